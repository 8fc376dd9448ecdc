"""Cutting a batch into fixed chunks of sequences, and the messages of one chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqfield._parallel import run
from seqfield.chain import _numba, _numba_log, _numba_posterior, _numba_tangent
from seqfield.chain.scores import Booleans, ChainScores, Floats, Integers, whole
from seqfield.errors import InputError, NoPathError

Labels = NDArray[np.int32]
Pairs = Literal["sum", "sequence", "each"] | None
Result = TypeVar("Result")


@dataclass(frozen=True)
class Chunk:
    """A run of whole sequences: log scores with start and end added, local offsets, and the place
    of the run in the batch."""

    node: Floats
    edge: Floats
    offsets: Integers
    tokens: slice
    sequences: slice


@dataclass(frozen=True)
class Forward:
    log_z: Floats
    safe: Booleans
    alpha: Floats
    pred: Floats
    edge: Floats  # exp of the shifted edge scores


def chunk_bounds(offsets: Integers, n_tokens: int) -> list[tuple[int, int]]:
    """Ranges of sequences with about n_tokens tokens each. They depend on the arguments alone."""
    cuts = [0]
    while cuts[-1] < len(offsets) - 1:
        wanted = offsets[cuts[-1]] + n_tokens
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(offsets, wanted, side="right")) - 1))
    return list(pairwise(cuts))


def _size(per_token: int) -> int:
    """Tokens in a chunk whose arrays hold ``per_token`` numbers for each token."""
    return max(64, 2**16 // per_token)


def each_chunk(
    scores: ChainScores,
    allowed: Booleans | None,
    n_jobs: int | None,
    work: Callable[[Chunk], Result],
    wide: bool = False,
) -> list[Result]:
    """Results of ``work`` on each chunk, in order; ``wide`` work holds S^2 numbers a token."""
    s = scores.n_labels
    if allowed is not None:
        allowed = np.asarray(allowed, dtype=bool)
        if allowed.shape != scores.node.shape:
            raise InputError(f"allowed must have shape {scores.node.shape}, got {allowed.shape}")
    per_token = s * s if wide or not scores.stationary else s
    bounds = chunk_bounds(scores.offsets, _size(per_token))
    make = partial(_chunk, scores, allowed)
    return run(lambda bound: work(make(*bound)), bounds, n_jobs)


def _chunk(scores: ChainScores, allowed: Booleans | None, i0: int, i1: int) -> Chunk:
    a, b = int(scores.offsets[i0]), int(scores.offsets[i1])
    offsets = scores.offsets[i0 : i1 + 1] - a
    node = np.ascontiguousarray(scores.node[a:b], dtype=np.float64)
    plain = allowed is None and scores.start is None and scores.end is None
    if not plain and np.shares_memory(node, scores.node):
        node = node.copy()
    if scores.start is not None:
        node[offsets[:-1]] += scores.start
    if scores.end is not None:
        node[offsets[1:] - 1] += scores.end
    if allowed is not None:
        node[~allowed[a:b]] = -np.inf
    edge = scores.edge[None] if scores.stationary else scores.edge[a:b]
    edge = np.ascontiguousarray(edge)
    return Chunk(node, edge, offsets, slice(a, b), slice(i0, i1))


class Scaled(NamedTuple):
    """exp of the shifted scores, which sequences are safe, and the shift to add to log Z."""

    weight: Floats
    edge: Floats
    safe: Booleans
    shift: Floats


def scaled(chunk: Chunk) -> Scaled:
    weight, edge = np.empty_like(chunk.node), np.empty_like(chunk.edge)
    n = len(chunk.offsets) - 1
    safe, shift = np.empty(n, np.bool_), np.empty(n)
    _numba.shift_and_judge(chunk.node, chunk.edge, chunk.offsets, weight, edge, safe, shift)
    with np.errstate(over="ignore", under="ignore"):  # `safe` says where underflow did harm
        np.exp(weight, out=weight)
        np.exp(edge, out=edge)
    return Scaled(weight, _padded(edge), safe, shift)


def _padded(edge: Floats, n_rows: int = 1) -> Floats:
    """Rows padded with zeros to a multiple of eight numbers; a multiple of n_rows such rows."""
    n, s, _ = edge.shape
    out = np.zeros((n, -(-s // n_rows) * n_rows, -(-s // 8) * 8))
    out[:, :s, :s] = edge
    return out


def forward(chunk: Chunk) -> Forward:
    """log Z and forward messages: probabilities where safe, else their logarithms."""
    weight, edge, safe, shift = scaled(chunk)
    shape = (len(weight), edge.shape[2])
    alpha, pred = np.empty(shape), np.empty(shape)
    log_z = np.zeros(len(safe))
    _numba.filter_scaled(weight, edge, chunk.offsets, safe, alpha, pred, log_z)
    log_z += shift
    if not safe.all():
        own = np.empty(weight.shape)
        _numba_log.filter_log(chunk.node, chunk.edge, chunk.offsets, safe, own, log_z)
        rows = np.repeat(~safe, np.diff(chunk.offsets))
        alpha[rows, : weight.shape[1]] = own[rows]
    return Forward(log_z, safe, alpha, pred, edge)


def chunk_marginals(
    chunk: Chunk, weights: Floats, node: Floats, sums: Floats, pairs: Floats
) -> Floats:
    """log Z. Fills node marginals, and sums of pair marginals or each one, unless empty."""
    weight, edge, safe, shift = scaled(chunk)
    log_z = np.zeros(len(safe))
    edge_t = _padded(edge[:, :, : weight.shape[1]].transpose(0, 2, 1))
    _numba.marginals_scaled(
        weight, edge, edge_t, chunk.offsets, safe, weights, log_z, node, sums, pairs
    )
    log_z += shift
    if not safe.all():
        alpha = np.empty(weight.shape)
        _numba_log.filter_log(chunk.node, chunk.edge, chunk.offsets, safe, alpha, log_z)
        checked(log_z, chunk.sequences.start)
        _numba_log.smooth_log(alpha, chunk.edge, chunk.offsets, safe, weights, node, sums, pairs)
    return checked(log_z, chunk.sequences.start)


def posterior(chunk: Chunk) -> tuple[Floats, Floats]:
    """Backward transition matrices (N, S, S) and node marginals (N, S) of a chunk."""
    f, s = forward(chunk), chunk.node.shape[1]
    checked(f.log_z, chunk.sequences.start)
    node, kernels = np.empty(chunk.node.shape), np.empty((*chunk.node.shape, s))
    _numba.backward_kernels_scaled(f.alpha, f.pred, f.edge, chunk.offsets, f.safe, kernels)
    last = chunk.offsets[1:] - 1
    node[last] = f.alpha[last, :s]
    if not f.safe.all():
        alpha = np.ascontiguousarray(f.alpha[:, :s])
        _numba_log.backward_kernels_log(alpha, chunk.edge, chunk.offsets, f.safe, kernels)
        unsafe = last[~f.safe]
        with np.errstate(under="ignore"):
            node[unsafe] = np.exp(alpha[unsafe])
        node[unsafe] /= node[unsafe].sum(axis=1, keepdims=True)
    _numba.smooth_kernels(kernels, chunk.offsets, node)
    return kernels, node


def chunk_tangent(
    chunk: Chunk,
    d_node: Floats,
    d_edge: Floats | None,
    mean: Floats,
    out: Floats,
    pairs: Floats,
    joint: bool,
) -> None:
    """E[V] and the derivatives of the marginals of a chunk along (d_node, d_edge).

    ``out`` gets the derivatives of node marginals, plus P E[V] if ``joint``. ``pairs`` gets those
    of pair marginals: (1, S, S) for their sum, (N, S, S) for each, or empty for none.
    """
    weight, edge, safe, _ = scaled(chunk)
    s = weight.shape[1]
    edge = edge[:, :, :s]
    own = np.empty((0, s, s)) if d_edge is None else d_edge
    if not np.isfinite(own).all():  # a forbidden transition may make it infinite
        own = np.where(edge > 0.0, own, 0.0)
    log_z = np.zeros(len(safe))
    _numba_tangent.tangent_scaled(
        weight,
        _padded(edge, 4),
        _padded(own, 4),
        chunk.offsets,
        safe,
        d_node,
        log_z,
        mean,
        out,
        pairs,
        joint,
    )
    checked(log_z, chunk.sequences.start)
    if d_edge is None:
        d_edge = np.zeros((1, s, s))
    if len(pairs) == 0:
        pairs = np.zeros((1, s, s))
    for part, tokens, sequences in _unsafe(chunk, safe):
        kernels, p = posterior(part)
        _numba_posterior.tangent(
            kernels,
            p,
            part.offsets,
            d_node[tokens],
            d_edge if len(d_edge) == 1 else d_edge[tokens],
            mean[sequences],
            out[tokens],
            pairs[tokens] if len(pairs) > 1 else pairs,
        )
        if joint:
            with np.errstate(under="ignore"):
                out[tokens] += p * np.repeat(mean[sequences], np.diff(part.offsets))[:, None]


def _unsafe(chunk: Chunk, safe: Booleans) -> Iterator[tuple[Chunk, slice, slice]]:
    """Smaller chunks of the sequences that are not safe: these need S^2 numbers for each token.

    Each comes with the slices of its tokens and of its sequences within the chunk.
    """
    size = _size(chunk.node.shape[1] ** 2)
    turns = np.flatnonzero(np.diff(safe, prepend=True, append=True))
    for first, end in zip(turns[::2], turns[1::2], strict=True):
        for i0, i1 in chunk_bounds(chunk.offsets[first : end + 1], size):
            sequences = slice(first + i0, first + i1)
            a, b = chunk.offsets[sequences.start], chunk.offsets[sequences.stop]
            tokens = slice(a, b)
            edge = chunk.edge if len(chunk.edge) == 1 else chunk.edge[tokens]
            offsets = chunk.offsets[sequences.start : sequences.stop + 1] - a
            start = chunk.sequences.start
            place = slice(start + sequences.start, start + sequences.stop)
            yield Chunk(chunk.node[tokens], edge, offsets, tokens, place), tokens, sequences


def checked(log_z: Floats, first: int = 0) -> Floats:
    if (log_z == -np.inf).any():
        i = first + int(np.argmax(log_z == -np.inf))
        raise NoPathError(
            f"sequence {i} has no allowed labelling: its label sets and the forbidden "
            "transitions exclude every path"
        )
    return log_z


def checked_labels(labels: Any, scores: ChainScores) -> Labels:
    """Label codes as int32 (N,), each within 0..S-1."""
    y = whole("labels", labels)
    if y.shape != (scores.n_tokens,):
        raise InputError(f"labels must have shape ({scores.n_tokens},), got {y.shape}")
    if len(y) and not (y.min() >= 0 and y.max() < scores.n_labels):
        t = int(np.argmax((y < 0) | (y >= scores.n_labels)))
        raise InputError(f"labels[{t}] is {y[t]}: codes run from 0 to {scores.n_labels - 1}")
    return np.ascontiguousarray(y, dtype=np.int32)


def checked_weights(weights: Any, scores: ChainScores) -> Floats:
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (scores.n_sequences,):
        raise InputError(f"weights must have shape ({scores.n_sequences},), got {w.shape}")
    return w


def check_pairs(pairs: Any, kinds: tuple[str | None, ...] = ("sum", "each", None)) -> None:
    if pairs not in kinds:
        wanted = ", ".join(map(repr, kinds))
        raise InputError(f"pairs must be one of {wanted}, got {pairs!r}")
