"""Exact inference on chain scores: pure functions that return named results.

Every function takes `ChainScores` and, where it makes sense, ``allowed``: a boolean (N, S) array
of the labels each token may have (partial knowledge; all True means nothing is known).
Work is O(N S^2) and is cut into fixed chunks of sequences, so memory beyond the results is
O(chunk) and results are bit-identical for every ``n_jobs``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.chain import _numba_paths, _numba_posterior
from seqfield.chain._chunks import Chunk, Pairs, checked, each_chunk, forward, posterior, smooth
from seqfield.chain.scores import Booleans, ChainScores, Floats
from seqfield.errors import InputError

Labels = NDArray[np.int32]


class Marginals(NamedTuple):
    """log Z (n,), node marginals P (N, S), and pair marginals: their weighted sum (S, S), each of
    them (N, S, S) with zeros at first tokens, or None."""

    log_z: Floats
    node: Floats
    pairs: Floats | None


class Paths(NamedTuple):
    """Labels (N,) and score (n,) of the best labelling of each sequence."""

    labels: Labels
    score: Floats


class Tangent(NamedTuple):
    """E[V] (n,), derivative of node marginals (N, S), derivative of pair marginals."""

    mean: Floats
    node: Floats
    pairs: Floats | None


def log_partition(
    scores: ChainScores,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
    strict: bool = True,
) -> Floats:
    """log Z of each sequence: log of the summed exp(score) over all (allowed) labellings.

    A sequence without any allowed labelling is an error, or -inf if not ``strict``.

    >>> import numpy as np
    >>> float(log_partition(ChainScores(np.zeros((3, 2)), np.zeros((2, 2))))[0] / np.log(2))
    3.0
    """
    parts = each_chunk(scores, allowed, n_jobs, lambda chunk: forward(chunk).log_z)
    log_z = np.concatenate(parts)
    return checked(log_z) if strict else log_z


def marginals(
    scores: ChainScores,
    *,
    allowed: Booleans | None = None,
    pairs: Pairs = None,
    weights: Floats | None = None,
    n_jobs: int | None = None,
) -> Marginals:
    """Node marginals p(y_t = j | x), and pair marginals if asked.

    ``pairs="sum"`` adds the pair marginals over all positions, sequence i with ``weights[i]``;
    ``pairs="each"`` gives all of them.

    >>> import numpy as np
    >>> scores = ChainScores([[0.0, 1.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]])
    >>> marginals(scores).node.round(3)
    array([[0.269, 0.731],
           [0.324, 0.676]])
    """
    node = np.empty((scores.n_tokens, scores.n_labels))
    s = scores.n_labels
    each = np.empty((scores.n_tokens if pairs == "each" else 0, s, s))
    w = np.ones(scores.n_sequences) if weights is None else np.asarray(weights, dtype=np.float64)

    def work(chunk: Chunk) -> tuple[Floats, Floats]:
        messages = forward(chunk)
        checked(messages.log_z, chunk.sequences.start)
        sums = np.zeros((s, s))
        own_pairs = each[chunk.tokens] if pairs == "each" else each
        smooth(chunk, messages, node[chunk.tokens], pairs, w[chunk.sequences], sums, own_pairs)
        return messages.log_z, sums

    parts = each_chunk(scores, allowed, n_jobs, work)
    log_z = np.concatenate([part[0] for part in parts])
    if pairs == "sum":
        return Marginals(log_z, node, sum((part[1] for part in parts), np.zeros((s, s))))
    return Marginals(log_z, node, each if pairs == "each" else None)


def viterbi(
    scores: ChainScores, *, allowed: Booleans | None = None, n_jobs: int | None = None
) -> Paths:
    """The best labelling of each sequence and its score; of equal ones the first in label order.

    >>> import numpy as np
    >>> viterbi(ChainScores([[0.0, 1.0], [0.5, 0.0]], 2 * np.eye(2))).labels
    array([1, 1], dtype=int32)
    """
    labels = np.empty(scores.n_tokens, np.int32)
    best = np.empty(scores.n_sequences)

    def work(chunk: Chunk) -> None:
        _numba_paths.viterbi(
            chunk.node, chunk.edge, chunk.offsets, labels[chunk.tokens], best[chunk.sequences]
        )

    each_chunk(scores, allowed, n_jobs, work)
    return Paths(labels, checked(best))


def nbest(
    scores: ChainScores,
    n: int,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
) -> list[list[tuple[Labels, float]]]:
    """For each sequence its n best labellings with their log-probabilities, best first.

    A sequence with fewer than n labellings gets them all.

    >>> import numpy as np
    >>> [(y.tolist(), round(p, 3)) for y, p in nbest(ChainScores([[0.0, 1.0]], np.eye(2)), 5)[0]]
    [([1], -0.313), ([0], -1.313)]
    """
    number("n", n, low=1, whole=True)
    labels = np.empty((n, scores.n_tokens), np.int32)
    best = np.empty((scores.n_sequences, n))

    def work(chunk: Chunk) -> Floats:
        own = np.empty((n, chunk.node.shape[0]), np.int32)
        _numba_paths.nbest(chunk.node, chunk.edge, chunk.offsets, n, own, best[chunk.sequences])
        labels[:, chunk.tokens] = own
        return forward(chunk).log_z

    log_z = checked(np.concatenate(each_chunk(scores, allowed, n_jobs, work)))
    cuts = zip(scores.offsets[:-1], scores.offsets[1:], strict=True)
    return [
        [(labels[k, a:b], float(best[i, k] - log_z[i])) for k in range(n) if best[i, k] > -np.inf]
        for i, (a, b) in enumerate(cuts)
    ]


def posterior_decode(
    scores: ChainScores, *, allowed: Booleans | None = None, n_jobs: int | None = None
) -> Labels:
    """The labelling with the largest expected number of right labels.

    It is the label of largest marginal at each token, except that a labelling that the scores
    forbid is never returned.

    >>> import numpy as np
    >>> posterior_decode(ChainScores([[0.0, 1.0], [0.5, 0.0]], np.zeros((2, 2))))
    array([1, 0], dtype=int32)
    """
    node = marginals(scores, allowed=allowed, n_jobs=n_jobs).node
    legal = _forbidding(scores, node, scores.edge)
    return viterbi(legal, allowed=allowed, n_jobs=n_jobs).labels


def _forbidding(scores: ChainScores, node: Floats, edge: Floats) -> ChainScores:
    """Scores ``node`` under the forbidden labels and transitions of ``scores`` alone."""

    def ban(part: Floats | None) -> Floats | None:
        return None if part is None else np.where(part == -np.inf, -np.inf, 0.0)

    node = np.where(scores.node == -np.inf, -np.inf, node)
    return ChainScores(node, ban(edge), scores.offsets, ban(scores.start), ban(scores.end))


def sample(
    scores: ChainScores,
    n: int,
    *,
    random_state: int | np.random.Generator | None = None,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
) -> Labels:
    """n labellings (n, N) drawn from p(y | x) by forward filtering, backward sampling.

    >>> import numpy as np
    >>> scores = ChainScores([[0.0, 9.0], [0.0, 0.0]], 9 * np.eye(2))
    >>> sample(scores, 3, random_state=0).tolist()
    [[1, 1], [1, 1], [1, 1]]
    """
    number("n", n, low=1, whole=True)
    uniforms = np.random.default_rng(random_state).random((n, scores.n_tokens))
    out = np.empty((n, scores.n_tokens), np.int32)

    def work(chunk: Chunk) -> None:
        kernels, node = posterior(chunk)
        own = np.empty((n, chunk.node.shape[0]), np.int32)
        u = np.ascontiguousarray(uniforms[:, chunk.tokens])
        _numba_posterior.sample(kernels, node, chunk.offsets, u, own)
        out[:, chunk.tokens] = own

    each_chunk(scores, allowed, n_jobs, work, wide=True)
    return out


def log_prob(
    scores: ChainScores,
    labels: Any,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
) -> Floats:
    """log p(y | x) of one labelling (N,) of each sequence; -inf for a forbidden one.

    >>> import numpy as np
    >>> log_prob(ChainScores([[0.0, 0.0]], np.zeros((2, 2))), [1]).round(3)
    array([-0.693])
    """
    y = checked_labels(labels, scores)
    path = np.empty(scores.n_sequences)

    def work(chunk: Chunk) -> Floats:
        _numba_paths.path_scores(
            chunk.node, chunk.edge, chunk.offsets, y[chunk.tokens], path[chunk.sequences]
        )
        return forward(chunk).log_z

    return path - checked(np.concatenate(each_chunk(scores, allowed, n_jobs, work)))


def entropy(
    scores: ChainScores, *, allowed: Booleans | None = None, n_jobs: int | None = None
) -> Floats:
    """Entropy (nats) of p(y | x) over whole labellings, for each sequence.

    >>> import numpy as np
    >>> float(entropy(ChainScores(np.zeros((3, 2)), np.zeros((2, 2))))[0] / np.log(2))
    3.0
    """
    out = np.empty(scores.n_sequences)

    def work(chunk: Chunk) -> None:
        kernels, node = posterior(chunk)
        _numba_posterior.entropy(kernels, node, chunk.offsets, out[chunk.sequences])

    each_chunk(scores, allowed, n_jobs, work, wide=True)
    return out


def count_distribution(
    scores: ChainScores,
    node_hits: Any,
    pair_hits: Any = None,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
) -> list[Floats]:
    """Distribution of a count over each sequence's labellings.

    The count is sum_t node_hits[t, y_t] + sum_t pair_hits[y_{t-1}, y_t], with non-negative
    integers ``node_hits`` (N, S) and ``pair_hits`` (S, S). Entry c of result i is the
    probability that the count of sequence i is c.

    >>> import numpy as np
    >>> scores = ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))
    >>> count_distribution(scores, [[0, 1], [0, 1]])
    [array([0.25, 0.5 , 0.25])]
    """
    s = scores.n_labels
    hits = np.ascontiguousarray(node_hits, dtype=np.int64)
    pair = np.zeros((s, s), np.int64) if pair_hits is None else np.asarray(pair_hits, np.int64)
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


def tangent(
    scores: ChainScores,
    d_node: Any,
    d_edge: Any = None,
    *,
    allowed: Booleans | None = None,
    pairs: Pairs = "sum",
    n_jobs: int | None = None,
) -> Tangent:
    """Derivative of the marginals along the direction (d_node, d_edge): one Hessian-vector
    product of log Z.

    With V(y) = sum_t d_node[t, y_t] + sum_t d_edge[y_{t-1}, y_t] it is the covariance of V with
    each indicator, and ``mean`` is E[V], the derivative of log Z itself. ``d_edge`` is (S, S) or
    (N, S, S).

    >>> import numpy as np
    >>> tangent(ChainScores([[0.0, 0.0]], np.zeros((2, 2))), [[0.0, 1.0]]).node
    array([[-0.25,  0.25]])
    """
    s = scores.n_labels
    direction = np.ascontiguousarray(d_node, dtype=np.float64)
    edge = np.zeros((s, s)) if d_edge is None else np.asarray(d_edge, dtype=np.float64)
    if direction.shape != scores.node.shape or edge.shape[-2:] != (s, s):
        raise InputError("the direction must have the shapes of node and edge")
    mean = np.empty(scores.n_sequences)
    out = np.empty((scores.n_tokens, s))
    each = np.zeros((scores.n_tokens if pairs == "each" else 0, s, s))

    def work(chunk: Chunk) -> Floats:
        kernels, node = posterior(chunk)
        sums = np.zeros((1, s, s))
        _numba_posterior.tangent(
            kernels,
            node,
            chunk.offsets,
            direction[chunk.tokens],
            edge[None] if edge.ndim == 2 else edge[chunk.tokens],
            mean[chunk.sequences],
            out[chunk.tokens],
            each[chunk.tokens] if pairs == "each" else sums,
        )
        return sums.reshape(s, s)

    parts = each_chunk(scores, allowed, n_jobs, work, wide=True)
    if pairs == "sum":
        return Tangent(mean, out, sum(parts, np.zeros((s, s))))
    return Tangent(mean, out, each if pairs == "each" else None)


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
    change = tangent(scores, v_node, v_edge, allowed=allowed, pairs=None, n_jobs=n_jobs)
    node = marginals(scores, allowed=allowed, n_jobs=n_jobs).node
    return change.mean, change.node + node * np.repeat(change.mean, np.diff(scores.offsets))[
        :, None
    ]


def hamming_augmented(scores: ChainScores, gold: Any, cost: float = 1.0) -> ChainScores:
    """Scores with ``cost`` added to every label but the gold one.

    `viterbi` on them is loss-augmented decoding.

    >>> import numpy as np
    >>> hamming_augmented(ChainScores([[0.0, 0.0]], np.zeros((2, 2))), [1]).node
    array([[1., 0.]])
    """
    y = checked_labels(gold, scores)
    node = scores.node + cost
    node[np.arange(len(y)), y] = scores.node[np.arange(len(y)), y]
    return ChainScores(node, scores.edge, scores.offsets, scores.start, scores.end, check=False)


def viterbi_by_distance(
    scores: ChainScores, gold: Any, *, n_jobs: int | None = None
) -> list[tuple[NDArray[np.int32], Floats]]:
    """For each sequence the best labelling at each Hamming distance 0..l from gold.

    Returns for each sequence labels (l + 1, l) and scores (l + 1,); a distance that no allowed
    labelling has scores -inf. O(l^2 S^2) a sequence: what slack rescaling needs.

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
    """Weighted score of a labelling; its weighted indicators leave the gradients in place.

    ``d_node`` (N, S) and ``d_edge`` ((S, S), or (N, S, S) for each pair) are changed.

    >>> import numpy as np
    >>> d_node, d_edge = np.zeros((2, 2)), np.zeros((2, 2))
    >>> scores = ChainScores([[0.0, 1.0], [2.0, 0.0]], np.zeros((2, 2)))
    >>> subtract_path(scores, np.array([1, 0], np.int32), np.ones(1), d_node, d_edge)
    3.0
    >>> d_node
    array([[ 0., -1.],
           [-1.,  0.]])
    """
    edge, d_pairs = (part[None] if part.ndim == 2 else part for part in (scores.edge, d_edge))
    total = _numba_paths.subtract_path(
        scores.node, edge, scores.offsets, labels, weights, d_node, d_pairs
    )
    first, last = scores.offsets[:-1], scores.offsets[1:] - 1
    if scores.start is not None:
        total += weights @ scores.start[labels[first]]
    if scores.end is not None:
        total += weights @ scores.end[labels[last]]
    return float(total)


def checked_labels(labels: Any, scores: ChainScores) -> Labels:
    """Label codes as int32 (N,), each within 0..S-1."""
    y = np.ascontiguousarray(labels, dtype=np.int32)
    if y.shape != (scores.n_tokens,):
        raise InputError(f"labels must have shape ({scores.n_tokens},), got {y.shape}")
    if len(y) and not (y.min() >= 0 and y.max() < scores.n_labels):
        t = int(np.argmax((y < 0) | (y >= scores.n_labels)))
        raise InputError(f"labels[{t}] is {y[t]}: codes run from 0 to {scores.n_labels - 1}")
    return y
