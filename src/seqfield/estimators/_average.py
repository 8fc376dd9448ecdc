"""Inference for p(y | x) that is one chain, or the average of several chains on the same data.

An average over posterior draws f_s is no chain itself: log p(y | x) = log mean_s p(y | f_s), and a
label's probability is the mean of its marginals. With one chain all of this is plain inference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from seqfield import chain
from seqfield._checks import number
from seqfield.chain import ChainScores
from seqfield.data.schemes import SpanCodes
from seqfield.labels import Targets

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
NBest = list[list[tuple[Codes, float]]]

#: labellings behind the entropy of an average
LABELLINGS = 32


def marginals(draws: list[ChainScores], n_jobs: int | None) -> Floats:
    """p(y_t = j | x) (N, S)."""
    total = chain.marginals(draws[0], n_jobs=n_jobs).node
    for scores in draws[1:]:
        total += chain.marginals(scores, n_jobs=n_jobs).node
    return total / len(draws) if len(draws) > 1 else total


def window_prob(
    draws: list[ChainScores], first: Any, allowed: list[Any], n_jobs: int | None
) -> Floats:
    """P(y_t in A_t for all t of each window)."""
    parts = [chain.window_prob(scores, first, allowed, n_jobs=n_jobs) for scores in draws]
    return _mean(parts)


def span_prob(draws: list[ChainScores], codes: SpanCodes, spans: Any, n_jobs: int | None) -> Floats:
    """P(y has the span) of each row of spans."""
    parts = [chain.span_prob(scores, codes, spans, n_jobs=n_jobs) for scores in draws]
    return _mean(parts)


def likely_spans(
    draws: list[ChainScores], codes: SpanCodes, least: float, n_jobs: int | None
) -> chain.Spans:
    """Every span of probability ``least`` or more."""
    parts = [chain.likely_spans(scores, codes, least, n_jobs=n_jobs) for scores in draws]
    if len(draws) == 1:
        return parts[0]
    # a mean is not above the largest of its terms
    rows = np.unique(np.concatenate([part.rows for part in parts]), axis=0)
    p = span_prob(draws, codes, rows, n_jobs)
    return chain.Spans(rows[p >= least], p[p >= least])


def entropy(draws: list[ChainScores], n_jobs: int | None) -> Floats:
    """Entropy of p(y | x); of an average by `LABELLINGS` drawn labellings, without bias."""
    if len(draws) == 1:
        return chain.entropy(draws[0], n_jobs=n_jobs)
    # H = -E log p(y | x)
    offsets, total = draws[0].offsets, np.zeros(draws[0].n_sequences)
    for codes in sample(draws, LABELLINGS, 0, n_jobs):
        total -= log_prob(draws, Targets(codes, None, offsets), n_jobs)
    return total / LABELLINGS


def log_prob(draws: list[ChainScores], targets: Targets, n_jobs: int | None) -> Floats:
    """log p(y | x) of each sequence, summed over what is not known of y."""
    return _mean_of_logs([_log_prob(scores, targets, n_jobs) for scores in draws])


def _log_prob(scores: ChainScores, targets: Targets, n_jobs: int | None) -> Floats:
    if targets.allowed is None:
        return chain.log_prob(scores, targets.codes, n_jobs=n_jobs)
    free = chain.log_partition(scores, n_jobs=n_jobs)
    held = chain.log_partition(scores, allowed=targets.allowed, n_jobs=n_jobs, strict=False)
    return held - free


def viterbi(draws: list[ChainScores], n_jobs: int | None) -> Any:
    """The best labelling; of an average the one with the best product of averaged marginals that
    the constraints allow."""
    if len(draws) == 1:
        return chain.viterbi(draws[0], n_jobs=n_jobs).labels
    with np.errstate(divide="ignore"):
        return _best_lawful(draws[0], np.log(marginals(draws, n_jobs)), n_jobs)


def posterior_decode(draws: list[ChainScores], n_jobs: int | None) -> Any:
    """The labelling with the most expected right labels that the constraints allow."""
    if len(draws) == 1:
        return chain.posterior_decode(draws[0], n_jobs=n_jobs)
    return _best_lawful(draws[0], marginals(draws, n_jobs), n_jobs)


def _best_lawful(like: ChainScores, node: Floats, n_jobs: int | None) -> Any:
    """The labelling with the best sum of node scores that is possible under ``like``."""

    def lawful(part: Floats | None) -> Floats | None:
        return None if part is None else np.where(np.isneginf(part), -np.inf, 0.0)

    edge = lawful(like.edge)
    assert edge is not None
    scores = ChainScores(
        node, edge, like.offsets, lawful(like.start), lawful(like.end), check=False
    )
    return chain.viterbi(scores, n_jobs=n_jobs).labels


def nbest(draws: list[ChainScores], n: int, n_jobs: int | None) -> NBest:
    """For each sequence n labellings with their log-probabilities, best first.

    Of an average these are the best of all that are among the n best of some draw.
    """
    lists = [chain.nbest(scores, n, n_jobs=n_jobs) for scores in draws]
    if len(draws) == 1:
        return lists[0]
    out = []
    for i in range(draws[0].n_sequences):
        union = {np.asarray(codes).tobytes(): codes for found in lists for codes, _ in found[i]}
        rows = np.array(list(union.values()))
        here = [scores.select(np.full(len(rows), i))[1] for scores in draws]
        logs = _mean_of_logs([chain.log_prob(part, rows.ravel()) for part in here])
        order = np.argsort(-logs, kind="stable")[:n]
        out.append([(rows[j], float(logs[j])) for j in order])
    return out


def sample(draws: list[ChainScores], n: int, random_state: Any, n_jobs: int | None) -> Any:
    """n labellings of all sequences (n, N), each drawn from one of the chains."""
    if len(draws) == 1:
        return chain.sample(draws[0], n, random_state=random_state, n_jobs=n_jobs)
    number("n", n, low=1, whole=True)
    rng = np.random.default_rng(random_state)
    which = rng.integers(len(draws), size=n)
    out = np.empty((n, len(draws[0].node)), dtype=np.int32)
    for k in np.unique(which):
        seed = int(rng.integers(2**31 - 1))
        chosen = np.flatnonzero(which == k)
        out[chosen] = chain.sample(draws[k], len(chosen), random_state=seed, n_jobs=n_jobs)
    return out


def _mean(parts: list[Floats]) -> Floats:
    out: Floats = np.mean(parts, axis=0)
    return out


def _mean_of_logs(parts: list[Floats]) -> Floats:
    """log of the mean of exp(parts)."""
    if len(parts) == 1:
        return parts[0]
    with np.errstate(divide="ignore"):
        out: Floats = logsumexp(np.stack(parts), axis=0) - np.log(len(parts))
    return out
