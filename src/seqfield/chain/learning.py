"""Chain inference for training: derivatives, counts, loss-augmented decoding."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.chain import _numba_paths, _numba_posterior
from seqfield.chain._chunks import (
    Chunk,
    Labels,
    Pairs,
    check_pairs,
    checked_labels,
    checked_weights,
    chunk_tangent,
    each_chunk,
    posterior,
)
from seqfield.chain.api import log_partition, marginals
from seqfield.chain.scores import Booleans, ChainScores, Floats, whole
from seqfield.errors import InputError


class Tangent(NamedTuple):
    """E[V] (n,), derivative of node marginals (N, S), derivative of pair marginals."""

    mean: Floats
    node: Floats
    pairs: Floats | None


def tangent(
    scores: ChainScores,
    d_node: Any,
    d_edge: Any = None,
    *,
    allowed: Booleans | None = None,
    pairs: Pairs = "sum",
    n_jobs: int | None = None,
) -> Tangent:
    """Directional derivative of the marginals: one Hessian-vector product of log Z.

    The direction is (d_node, d_edge), where ``d_edge`` is (S, S) or (N, S, S). Let
    V(y) = sum_t d_node[t, y_t] + sum_t d_edge[y_{t-1}, y_t]. The derivative is the covariance of V
    with each indicator. ``mean`` is E[V], the derivative of log Z.

    >>> import numpy as np
    >>> tangent(ChainScores([[0.0, 0.0]], np.zeros((2, 2))), [[0.0, 1.0]]).node
    array([[-0.25,  0.25]])
    """
    return _tangent(scores, d_node, d_edge, allowed, pairs, n_jobs, joint=False)


def expectation(
    scores: ChainScores,
    v_node: Any,
    v_edge: Any = None,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
) -> tuple[Floats, Floats]:
    """E[V] (n,) and E[1{y_t = j} V] (N, S) for V(y) = sum_t v_node[t, y_t] (+ pairs).

    >>> import numpy as np
    >>> expectation(ChainScores([[0.0, 0.0]], np.zeros((2, 2))), [[0.0, 1.0]])
    (array([0.5]), array([[0. , 0.5]]))
    """
    return _tangent(scores, v_node, v_edge, allowed, None, n_jobs, joint=True)[:2]


def _tangent(
    scores: ChainScores,
    d_node: Any,
    d_edge: Any,
    allowed: Booleans | None,
    pairs: Pairs,
    n_jobs: int | None,
    joint: bool,
) -> Tangent:
    """`tangent`; if ``joint``, E[1{y_t = j} V] takes the place of the covariances."""
    n, s = scores.node.shape
    direction = np.ascontiguousarray(d_node, dtype=np.float64)
    edge = None if d_edge is None else np.asarray(d_edge, dtype=np.float64)
    check_pairs(pairs)
    if direction.shape != (n, s) or not (edge is None or edge.shape in ((s, s), (n, s, s))):
        raise InputError("the direction must have the shapes of node and edge")
    if edge is not None and not edge.any():
        edge = None
    mean, out = np.empty(scores.n_sequences), np.empty((n, s))
    each = np.zeros((n if pairs == "each" else 0, s, s))

    def work(chunk: Chunk) -> Floats:
        sums = np.zeros((1 if pairs == "sum" else 0, s, s))
        own = edge
        if edge is not None:
            own = edge[None] if edge.ndim == 2 else edge[chunk.tokens]
        chunk_tangent(
            chunk,
            direction[chunk.tokens],
            own,
            mean[chunk.sequences],
            out[chunk.tokens],
            each[chunk.tokens] if pairs == "each" else sums,
            joint,
        )
        return sums

    wide = edge is not None and edge.ndim == 3
    parts = each_chunk(scores, allowed, n_jobs, work, wide)
    if pairs == "sum":
        return Tangent(mean, out, sum((part[0] for part in parts), np.zeros((s, s))))
    return Tangent(mean, out, each if pairs == "each" else None)


def count_distribution(
    scores: ChainScores,
    node_hits: Any,
    pair_hits: Any = None,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
) -> list[Floats]:
    """Distribution of a count over the labellings of each sequence.

    The count is sum_t node_hits[t, y_t] + sum_t pair_hits[y_{t-1}, y_t], with non-negative
    integers ``node_hits`` (N, S) and ``pair_hits`` (S, S). Entry c of result i is the
    probability that the count of sequence i is c.

    >>> import numpy as np
    >>> scores = ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))
    >>> count_distribution(scores, [[0, 1], [0, 1]])
    [array([0.25, 0.5 , 0.25])]
    """
    s = scores.n_labels
    hits = np.ascontiguousarray(whole("node_hits", node_hits), dtype=np.int64)
    pair = np.zeros((s, s), np.int64)
    if pair_hits is not None:
        pair = np.asarray(whole("pair_hits", pair_hits), np.int64)
    if hits.shape != scores.node.shape or pair.shape != (s, s):
        raise InputError(f"hits must have shapes {scores.node.shape} and {(s, s)}")
    if hits.min() < 0 or pair.min() < 0:
        raise InputError("hits must not be negative")
    most = np.add.reduceat(hits.max(axis=1), scores.offsets[:-1])
    most += (np.diff(scores.offsets) - 1) * pair.max()

    def work(chunk: Chunk) -> list[Floats]:
        kernels, node = posterior(chunk)
        own = most[chunk.sequences]
        table = _numba_posterior.count_distribution(
            kernels, node, chunk.offsets, hits[chunk.tokens], pair, int(own.max()) + 1
        )
        return [row[: m + 1] for row, m in zip(table, own, strict=True)]

    parts = each_chunk(scores, allowed, n_jobs, work, wide=True)
    return [row for part in parts for row in part]


def hamming_augmented(scores: ChainScores, gold: Any, cost: float = 1.0) -> ChainScores:
    """Scores with ``cost`` added to every label except the gold label.

    `viterbi` on these scores is loss-augmented decoding with the Hamming loss.

    >>> import numpy as np
    >>> hamming_augmented(ChainScores([[0.0, 0.0]], np.zeros((2, 2))), [1]).node
    array([[1., 0.]])
    """
    y = checked_labels(gold, scores)
    node = scores.node + number("cost", cost)
    node[np.arange(len(y)), y] = scores.node[np.arange(len(y)), y]
    return ChainScores(node, scores.edge, scores.offsets, scores.start, scores.end, check=False)


def viterbi_by_distance(
    scores: ChainScores, gold: Any, *, n_jobs: int | None = None
) -> list[tuple[NDArray[np.int32], Floats]]:
    """For each sequence, the best labelling at each Hamming distance 0..l from the gold labels.

    Returns labels (l + 1, l) and scores (l + 1,) of each sequence. If no allowed labelling has a
    distance, its score is -inf. A sequence costs O(l^2 S^2). Slack rescaling needs this function.

    >>> import numpy as np
    >>> viterbi_by_distance(ChainScores([[0.0, 3.0]], np.zeros((2, 2))), [0])
    [(array([[0], [1]], dtype=int32), array([0., 3.]))]
    """
    y = checked_labels(gold, scores)

    def work(chunk: Chunk) -> list[tuple[NDArray[np.int32], Floats]]:
        found = []
        own = y[chunk.tokens]
        for a, b in zip(chunk.offsets[:-1], chunk.offsets[1:], strict=True):
            labels, best = np.zeros((b - a + 1, b - a), np.int32), np.empty(b - a + 1)
            edge = chunk.edge if len(chunk.edge) == 1 else chunk.edge[a:b]
            _numba_paths.viterbi_by_distance(chunk.node[a:b], edge, own[a:b], labels, best)
            found.append((labels, best))
        return found

    return [pair for part in each_chunk(scores, None, n_jobs, work) for pair in part]


def subtract_path(
    scores: ChainScores, labels: Labels, weights: Floats, d_node: Floats, d_edge: Floats
) -> float:
    """Weighted score of a labelling; its weighted indicators are subtracted from the gradients.

    ``d_node`` (N, S) and ``d_edge`` are changed in place. ``d_edge`` is (S, S), or (N, S, S) for
    each pair.

    >>> import numpy as np
    >>> d_node, d_edge = np.zeros((2, 2)), np.zeros((2, 2))
    >>> scores = ChainScores([[0.0, 1.0], [2.0, 0.0]], np.zeros((2, 2)))
    >>> subtract_path(scores, np.array([1, 0], np.int32), np.ones(1), d_node, d_edge)
    3.0
    >>> d_node
    array([[ 0., -1.],
           [-1.,  0.]])
    """
    y, w, s = checked_labels(labels, scores), checked_weights(weights, scores), scores.n_labels
    if d_node.shape != scores.node.shape or d_edge.shape not in ((s, s), (len(d_node), s, s)):
        raise InputError("the gradients must have the shapes of node and edge")
    edge, d_pairs = (part[None] if part.ndim == 2 else part for part in (scores.edge, d_edge))
    total = _numba_paths.subtract_path(scores.node, edge, scores.offsets, y, w, d_node, d_pairs)
    first, last = scores.offsets[:-1], scores.offsets[1:] - 1
    if scores.start is not None:
        total += w[w != 0] @ scores.start[y[first]][w != 0]
    if scores.end is not None:
        total += w[w != 0] @ scores.end[y[last]][w != 0]
    return float(total)


class Others(NamedTuple):
    """Log odds against a labelling, log((1 - p) / p) (n,); and node marginals (N, S) and pair
    marginals (N, S, S) of the labellings that differ from it."""

    log_odds: Floats
    node: Floats
    pairs: Floats


def others(scores: ChainScores, labels: Any, *, n_jobs: int | None = None) -> Others:
    """The distribution over all labellings except a given one.

    It is exact even if the given labelling has a probability near 1; 1 - p would then be lost in
    rounding. The method is a chain of S + 1 states: the S labels after the first difference, and
    "no difference so far". It needs (S + 1)^2 numbers for each token, so use it for few sequences
    at a time. If there is no other labelling, the log odds are -inf.

    >>> import numpy as np
    >>> found = others(ChainScores([[0.0, -50.0]], np.zeros((2, 2))), [0])
    >>> found.log_odds, found.node
    (array([-50.]), array([[0., 1.]]))
    """
    y, s = checked_labels(labels, scores), scores.n_labels
    every, first, last = np.arange(len(y)), scores.offsets[:-1], scores.offsets[1:] - 1
    node = scores.node.astype(np.float64)
    for ends, part in ((first, scores.start), (last, scores.end)):
        if part is not None:
            node[ends] += part
    before = np.concatenate([y[:1], y[:-1]])
    edge = np.full((len(y), s + 1, s + 1), -np.inf)
    edge[:, :s, :s] = scores.edge
    edge[:, s, :s] = edge[every, before, :s]
    edge[:, s, s] = edge[every, before, y]
    edge[every, s, y] = -np.inf
    path = np.empty(scores.n_sequences)
    _numba_paths.path_scores(node, edge[:, :s, :s].copy(), scores.offsets, y, path)
    node = np.hstack([node, node[every, y][:, None]])
    node[first, y[first]] = -np.inf
    kept = node[last, s].copy()
    node[last, s] = -np.inf
    wide = ChainScores(node, edge, scores.offsets, check=False)
    alone = log_partition(wide, n_jobs=n_jobs, strict=False) == -np.inf
    node[last[alone], s] = kept[alone]  # the chain needs at least one path
    log_z, p, pairs = marginals(wide, pairs="each", n_jobs=n_jobs)
    assert pairs is not None
    log_odds = np.where(alone, -np.inf, log_z - path)
    # back to S labels: the state "no difference" has the given label
    p[every, y] += p[:, s]
    pairs[every, before] += pairs[:, s]
    pairs[every, :, y] += pairs[:, :, s]
    return Others(log_odds, p[:, :s].copy(), pairs[:, :s, :s].copy())
