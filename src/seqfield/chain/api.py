"""Exact inference on chain scores: pure functions that return named results.

Every function takes `ChainScores`. Arguments that many functions share:

* ``allowed``: a boolean (N, S) array of the labels that each token may have, or None if all tokens
  may have all labels. Use it for partly known labels;
* ``n_jobs``: the number of threads; -1 for all cores, None for one;
* ``engine``: "numba" for compiled loops, "jax" for JAX's device (float64, padded pieces of bounded
  size).

Work is O(N S^2) and is cut into fixed chunks of sequences. So memory beyond the results is
O(chunk), and results are bit-identical for every ``n_jobs``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from seqfield._checks import generator, number
from seqfield.chain import _numba_paths, _numba_posterior
from seqfield.chain._chunks import (
    Chunk,
    Labels,
    Pairs,
    check_pairs,
    checked,
    checked_labels,
    checked_weights,
    chunk_marginals,
    each_chunk,
    forward,
    posterior,
)
from seqfield.chain.scores import Booleans, ChainScores, Floats
from seqfield.errors import InputError


class Marginals(NamedTuple):
    """log Z (n,), node marginals P (N, S), and pair marginals or None.

    Pair marginals have the form that was asked for: their weighted sum (S, S), sums for each
    sequence (n, S, S), or one for each token (N, S, S) with zeros at first tokens.
    """

    log_z: Floats
    node: Floats
    pairs: Floats | None


class Paths(NamedTuple):
    """Labels (N,) and score (n,) of the best labelling of each sequence."""

    labels: Labels
    score: Floats


def _on_device(engine: str) -> Any:
    """The functions of ``engine="jax"``, or None for the compiled loops."""
    if engine == "numba":
        return None
    if engine != "jax":
        raise InputError(f"engine must be one of 'numba', 'jax', got {engine!r}")
    from seqfield.chain import _padded  # needs JAX, which a plain install does not have

    return _padded


def log_partition(
    scores: ChainScores,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
    strict: bool = True,
    engine: str = "numba",
) -> Floats:
    """Log partition function log Z (n,): the log of the sum of exp(score) over allowed labellings.

    If a sequence has no allowed labelling, a `NoPathError` is raised; with ``strict=False`` its
    log Z is -inf.

    >>> import numpy as np
    >>> float(log_partition(ChainScores(np.zeros((3, 2)), np.zeros((2, 2))))[0] / np.log(2))
    3.0
    """
    device = _on_device(engine)
    if device is None:
        parts = each_chunk(scores, allowed, n_jobs, lambda chunk: forward(chunk).log_z)
        log_z = np.concatenate(parts)
    else:
        log_z = device.log_partition(scores, allowed, n_jobs)
    return checked(log_z) if strict else log_z


def marginals(
    scores: ChainScores,
    *,
    allowed: Booleans | None = None,
    pairs: Pairs = None,
    weights: Floats | None = None,
    n_jobs: int | None = None,
    engine: str = "numba",
) -> Marginals:
    """Node marginals p(y_t = j | x), and pair marginals p(y_{t-1} = i, y_t = j | x) if asked for.

    ``pairs`` says in which form to return pair marginals:

    * None: not at all;
    * ``"sum"``: summed over all positions (S, S), where sequence i has the weight ``weights[i]``;
    * ``"sequence"``: summed over the positions of each sequence (n, S, S), weighted likewise;
    * ``"each"``: one for each token (N, S, S).

    >>> import numpy as np
    >>> scores = ChainScores([[0.0, 1.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]])
    >>> marginals(scores).node.round(3)
    array([[0.269, 0.731],
           [0.324, 0.676]])
    """
    check_pairs(pairs, ("sum", "sequence", "each", None))
    w = np.ones(scores.n_sequences) if weights is None else checked_weights(weights, scores)
    device = _on_device(engine)
    if device is not None:
        return Marginals(*device.marginals(scores, allowed, pairs, w, n_jobs))
    s = scores.n_labels
    node = np.empty((scores.n_tokens, s))
    # with position-dependent edges, pair marginals are computed and then summed, chunk by chunk
    by_pair = pairs == "each" or (pairs is not None and not scores.stationary)
    each = np.empty((scores.n_tokens if pairs == "each" else 0, s, s))
    none = np.empty((0, s, s))

    def work(chunk: Chunk) -> tuple[Floats, Floats]:
        n = len(chunk.offsets) - 1
        own, sums = none, np.zeros((n if pairs == "sequence" else int(pairs == "sum"), s, s))
        if by_pair:
            own = each[chunk.tokens] if pairs == "each" else np.empty((*chunk.node.shape, s))
        log_z = chunk_marginals(
            chunk, w[chunk.sequences], node[chunk.tokens], none if by_pair else sums, own
        )
        if by_pair and pairs != "each":
            per_token = np.repeat(w[chunk.sequences], np.diff(chunk.offsets))
            starts = chunk.offsets[:-1] if pairs == "sequence" else [0]
            sums = np.add.reduceat(per_token[:, None, None] * own, starts)
        return log_z, sums

    parts = each_chunk(scores, allowed, n_jobs, work)
    log_z = np.concatenate([part[0] for part in parts])
    if pairs == "sum":
        return Marginals(log_z, node, sum((part[1][0] for part in parts), np.zeros((s, s))))
    if pairs == "sequence":
        return Marginals(log_z, node, np.concatenate([part[1] for part in parts]))
    return Marginals(log_z, node, each if pairs == "each" else None)


def viterbi(
    scores: ChainScores,
    *,
    allowed: Booleans | None = None,
    n_jobs: int | None = None,
    engine: str = "numba",
) -> Paths:
    """Viterbi decoding: the best labelling of each sequence, and its score.

    Of equal scores the first label is taken, from the last token back to the first.

    >>> import numpy as np
    >>> viterbi(ChainScores([[0.0, 1.0], [0.5, 0.0]], 2 * np.eye(2))).labels
    array([1, 1], dtype=int32)
    """
    device = _on_device(engine)
    if device is not None:
        return Paths(*device.viterbi(scores, allowed, n_jobs))
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
    """For each sequence, the n best labellings and their log-probabilities, best first.

    If a sequence has fewer than n labellings, all of them are returned.

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

    At each token it has the label of largest marginal, unless the scores forbid that labelling.
    Then it is the best labelling that the scores allow, by the sum of marginals.

    >>> import numpy as np
    >>> posterior_decode(ChainScores([[0.0, 1.0], [0.5, 0.0]], np.zeros((2, 2))))
    array([1, 0], dtype=int32)
    """
    node = marginals(scores, allowed=allowed, n_jobs=n_jobs).node
    legal = _forbidding(scores, node, scores.edge)
    return viterbi(legal, allowed=allowed, n_jobs=n_jobs).labels


def _forbidding(scores: ChainScores, node: Floats, edge: Floats) -> ChainScores:
    """Scores ``node``, with only the forbidden labels and transitions of ``scores``."""

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
    """Draw n labellings (n, N) from p(y | x), by forward filtering and backward sampling.

    >>> import numpy as np
    >>> scores = ChainScores([[0.0, 9.0], [0.0, 0.0]], 9 * np.eye(2))
    >>> sample(scores, 3, random_state=0).tolist()
    [[1, 1], [1, 1], [1, 1]]
    """
    number("n", n, low=1, whole=True)
    uniforms = generator(random_state).random((n, scores.n_tokens))
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
    engine: str = "numba",
) -> Floats:
    """log p(y | x) (n,) of one labelling of each sequence; -inf for a forbidden labelling.

    ``labels`` (N,) holds the codes of the labels of all tokens.

    >>> import numpy as np
    >>> log_prob(ChainScores([[0.0, 0.0]], np.zeros((2, 2))), [1]).round(3)
    array([-0.693])
    """
    y = checked_labels(labels, scores)
    device = _on_device(engine)
    if device is not None:
        found: Floats = device.log_prob(scores, y, allowed, n_jobs)
        return found
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
    """Entropy (n,) in nats of p(y | x) over whole labellings, for each sequence.

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
