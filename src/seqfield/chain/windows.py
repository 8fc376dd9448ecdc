"""Exact probabilities of patterns and spans: events within a window of a sequence.

They are sums over all labellings, not products of marginals of single tokens. Work is O(N S^2) for
the posterior chain, and O(l S^2) for a window of l tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from seqfield._checks import number
from seqfield.chain import _numba_windows
from seqfield.chain._chunks import Chunk, each_chunk, posterior
from seqfield.chain.scores import Booleans, ChainScores, Floats, Integers
from seqfield.data.schemes import SpanCodes

#: the smallest probability to ask for: it bounds the number of spans that can be found
LEAST = 1e-6


class Spans(NamedTuple):
    """Spans as rows (sequence, kind, first token, last token), and their probabilities.

    Tokens are numbered over all sequences.
    """

    rows: Integers
    probability: Floats


def window_prob(
    scores: ChainScores, first: Any, allowed: list[Booleans], *, n_jobs: int | None = None
) -> Floats:
    """Probability that all labels of a window are in given sets: P(y_t in A_t for all t of it).

    Window q starts at token ``first[q]``, and ``allowed[q]`` (l, S) holds the label set of each of
    its l tokens. A window must lie within one sequence. Tokens are numbered over all sequences.

    >>> scores = ChainScores([[0.0, 0.0], [0.0, 0.0]], np.zeros((2, 2)))
    >>> window_prob(scores, [0], [np.array([[True, False], [True, True]])])
    array([0.5])
    """
    tokens = np.asarray(first, dtype=np.int64)
    sizes = np.array([len(rows) for rows in allowed], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    sets = np.vstack([np.empty((0, scores.n_labels), dtype=bool), *allowed])
    out = np.empty(len(tokens))

    def work(chunk: Chunk) -> None:
        own = np.flatnonzero((tokens >= chunk.tokens.start) & (tokens < chunk.tokens.stop))
        if len(own):
            kernels, node = posterior(chunk)
            p = np.empty(len(own))
            at = tokens[own] - chunk.tokens.start
            _numba_windows.windows(kernels, node, at, starts[own], sets, sizes[own], p)
            out[own] = p

    each_chunk(scores, None, n_jobs, work, wide=True)
    return out


def span_prob(
    scores: ChainScores, codes: SpanCodes, spans: Any, *, n_jobs: int | None = None
) -> Floats:
    """Probability of each span, a row (sequence, kind, first token, last token) of ``spans``.

    >>> from seqfield.data.schemes import span_codes
    >>> scores = ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))
    >>> span_prob(scores, span_codes(["O", "B"]), [(0, 0, 1, 1)])
    array([0.5])
    """
    rows = np.asarray(spans, dtype=np.int64).reshape(-1, 4)
    out = np.empty(len(rows))

    def work(chunk: Chunk) -> None:
        i0, i1 = chunk.sequences.start, chunk.sequences.stop
        own = np.flatnonzero((rows[:, 0] >= i0) & (rows[:, 0] < i1))
        if len(own):
            kernels, node = posterior(chunk)
            p, a = np.empty(len(own)), chunk.tokens.start
            _numba_windows.spans(
                kernels, node, chunk.offsets, rows[own] - [i0, 0, a, a], *codes.tables, p
            )
            out[own] = p

    each_chunk(scores, None, n_jobs, work, wide=True)
    return out


def likely_spans(
    scores: ChainScores, codes: SpanCodes, least: float, *, n_jobs: int | None = None
) -> Spans:
    """Every span of probability ``least`` or more.

    Spans are sorted by sequence, last token, kind and length. Spans that hold the same token
    exclude each other, so at most 1 / least of the found spans hold any one token.

    >>> from seqfield.data.schemes import span_codes
    >>> scores = ChainScores([[0.0, 1.0], [0.0, 1.0]], np.zeros((2, 2)))
    >>> likely_spans(scores, span_codes(["O", "B"]), 0.7).probability.round(3)
    array([0.731, 0.731])
    """
    number("least", least, low=LEAST, high=1.0)

    def work(chunk: Chunk) -> Spans:
        kernels, node = posterior(chunk)
        room = len(node)
        while True:
            rows, p = np.empty((room, 4), dtype=np.int64), np.empty(room)
            n = _numba_windows.likely_spans(
                kernels, node, chunk.offsets, len(codes.kinds), least, *codes.tables, rows, p
            )
            if n <= room:
                break
            room = n
        a = chunk.tokens.start
        rows += [chunk.sequences.start, 0, a, a]
        return Spans(rows[:n], p[:n])

    parts = each_chunk(scores, None, n_jobs, work, wide=True)
    return Spans(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.probability for part in parts]),
    )
