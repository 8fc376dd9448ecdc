"""`api`'s functions for ``engine="jax"``: batches of scores in padded pieces on a device.

Sequences are sorted by length, and lengths are rounded up to powers of two. They lie side by side
in pieces of bounded size. Batch sizes and token counts are rounded up too, so that few shapes are
compiled. All sequences are first done in the scaled form; those that are not safe are then done on
logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from seqfield.chain import _jax, _numba_paths
from seqfield.chain._chunks import Chunk, Labels, Pairs, checked, each_chunk
from seqfield.chain.scores import Booleans, ChainScores, Floats, Integers
from seqfield.linalg._jax import check_device, double, jit, jnp, on_cpu

#: numbers in one padded array: on a CPU, so that it fits the caches; on a GPU, so that it is busy
PIECE_CPU, PIECE_GPU = 2**20, 2**24
#: the least padded tokens of a piece, and of a batch
FEW, ROOM = 512, 4096
#: short sequences lie beside longer ones up to this many padded tokens for each token: on a GPU a
#: step of a scan costs the same for few sequences as for many
WASTE_CPU, WASTE_GPU = 1.5, 3.0


class Piece(NamedTuple):
    """Sequences that are done at once: their numbers, first tokens, lengths (0 for padding), and
    the number of places."""

    sequences: Integers
    first: Any
    lengths: Any
    places: int


class Batch(NamedTuple):
    """Scores on the device; the number of tokens is padded to a round number."""

    node: Any
    edge: Any
    offsets: Integers

    def pieces(self, sequences: Integers, per_token: int) -> Iterator[Piece]:
        """The given sequences by padded length, cut so that arrays stay small."""
        most = (PIECE_CPU if on_cpu() else PIECE_GPU) // per_token
        lengths = np.diff(self.offsets)
        places = padded_lengths(lengths[sequences])
        for l in np.unique(places).tolist():
            chosen = sequences[places == l]
            size = 2 ** int(np.log2(max(1, most // l)))
            for k in range(0, len(chosen), size):
                part = chosen[k : k + size]
                width = max(int(round_up(len(part))), min(size, FEW // l))
                first, long = np.zeros((2, width), np.int32)
                first[: len(part)], long[: len(part)] = self.offsets[part], lengths[part]
                yield Piece(part, jnp.asarray(first), jnp.asarray(long), l)


def round_up(n: Any) -> Any:
    """The next power of two.

    >>> round_up(np.array([1, 2, 5])).tolist()
    [1, 2, 8]
    """
    return 2 ** np.ceil(np.log2(n)).astype(np.int64)


def padded_lengths(lengths: Integers) -> Integers:
    """The number of places for each sequence: few different powers of two.

    >>> padded_lengths(np.array([3, 5, 9])).tolist()
    [16, 16, 16]
    >>> np.unique(padded_lengths(np.repeat([3, 2000], 1000))).tolist()
    [4, 2048]
    """
    places: Integers = round_up(lengths)
    most = max(2 * ROOM, (WASTE_CPU if on_cpu() else WASTE_GPU) * lengths.sum())
    total = places.sum()
    for short, long in pairwise(np.unique(places)):
        here = places == short
        total += here.sum() * (long - short)
        if total > most:
            break
        places[here] = long
    return places


def load(scores: ChainScores, allowed: Booleans | None, n_jobs: int | None = None) -> Batch:
    """Scores on the device with start, end and allowed-label sets added in."""
    check_device()
    n, s = scores.node.shape
    room = int(round_up(max(n, ROOM)))
    if n <= room - room // 4:
        room -= room // 4
    node = np.zeros((room, s))
    edge = scores.edge if scores.stationary else np.zeros((room, s, s))

    def fill(chunk: Chunk) -> None:
        node[chunk.tokens] = chunk.node
        if not scores.stationary:
            edge[chunk.tokens] = chunk.edge

    each_chunk(scores, allowed, n_jobs, fill)
    return Batch(jnp.asarray(node), jnp.asarray(edge), scores.offsets)


def log_partition(
    scores: ChainScores, allowed: Booleans | None, n_jobs: int | None = None
) -> Floats:
    """log Z of each sequence."""
    with double():
        batch = load(scores, allowed, n_jobs)

        def work(piece: Piece, log: bool) -> tuple[Any, Any]:
            where = piece.first, piece.lengths, piece.places
            log_z, safe = _log_z(batch.node, batch.edge, *where, log)
            return log_z, safe

        return _sweep(batch, scores.n_labels, work)


def log_prob(
    scores: ChainScores, labels: Labels, allowed: Booleans | None, n_jobs: int | None = None
) -> Floats:
    """log p of one labelling of each sequence; the host looks up the score of the labelling."""
    path = np.empty(scores.n_sequences)

    def work(chunk: Chunk) -> None:
        y = labels[chunk.tokens]
        _numba_paths.path_scores(chunk.node, chunk.edge, chunk.offsets, y, path[chunk.sequences])

    each_chunk(scores, allowed, n_jobs, work)
    return path - checked(log_partition(scores, allowed, n_jobs))


def marginals(
    scores: ChainScores,
    allowed: Booleans | None,
    pairs: Pairs,
    weights: Floats,
    n_jobs: int | None = None,
) -> tuple[Floats, Floats, Floats | None]:
    """log Z, node marginals, and pair marginals as asked."""
    with double():
        log_z, node, found = run_marginals(load(scores, allowed, n_jobs), pairs, weights)
        checked(log_z)
        node = np.array(node)[: scores.n_tokens]
        if found is None:
            return log_z, node, None
        end = {"each": scores.n_tokens, "sequence": scores.n_sequences}.get(str(pairs))
        return log_z, node, np.array(found)[:end]


def run_marginals(batch: Batch, pairs: Pairs, weights: Floats) -> tuple[Floats, Any, Any]:
    """log Z on the host; node and pair marginals on the device, with those of the padding."""
    room, s = batch.node.shape
    n = len(batch.offsets) - 1
    rows = {"each": (room,), "sequence": (int(round_up(n)),), "sum": ()}.get(str(pairs))
    node = jnp.zeros_like(batch.node)
    total = None if rows is None else jnp.zeros((*rows, s, s))

    def work(piece: Piece, log: bool) -> tuple[Any, Any]:
        nonlocal node, total
        own = np.zeros(len(piece.first))
        own[: len(piece.sequences)] = weights[piece.sequences]
        numbers = np.full(len(piece.first), 2**31 - 1, np.int32)  # JAX ignores indices out of range
        numbers[: len(piece.sequences)] = piece.sequences
        log_z, safe, node, total = _marginals(
            *batch[:2],
            piece.first,
            piece.lengths,
            numbers,
            own,
            node,
            total,
            piece.places,
            log,
            pairs,
        )
        return log_z, safe

    wide = pairs == "each" or batch.edge.ndim == 3
    return _sweep(batch, s * s if wide else s, work), node, total


def viterbi(
    scores: ChainScores, allowed: Booleans | None, n_jobs: int | None = None
) -> tuple[Labels, Floats]:
    """Labels and scores of the best labellings."""
    with double():
        batch = load(scores, allowed, n_jobs)
        labels = jnp.zeros(len(batch.node), jnp.int32)

        def work(piece: Piece, log: bool) -> tuple[Any, Any]:
            nonlocal labels
            best, labels = _viterbi(*batch[:2], piece.first, piece.lengths, labels, piece.places)
            return best, np.ones(len(best), bool)

        best = checked(_sweep(batch, scores.n_labels, work))
        return np.array(labels)[: scores.n_tokens], best


def _sweep(batch: Batch, per_token: int, work: Callable[[Piece, bool], tuple[Any, Any]]) -> Floats:
    """One number for each sequence. ``work(piece, log)`` returns the numbers and which are safe.

    All sequences are first done in the scaled form; those that are not safe then on logarithms.
    """
    if batch.edge.ndim == 3:
        per_token = batch.node.shape[1] ** 2
    out = np.empty(len(batch.offsets) - 1)
    todo = np.arange(len(out))
    for log in (False, True):
        # all pieces are started before the first result is awaited
        found = [(p.sequences, *work(p, log)) for p in batch.pieces(todo, per_token)]
        rest = []
        for sequences, values, safe in found:
            out[sequences] = np.asarray(values)[: len(sequences)]
            rest.append(sequences[~np.asarray(safe)[: len(sequences)]])
        todo = np.concatenate(rest)
        if not len(todo):
            break
    return out


def _placed(
    node: Any, edge: Any, first: Any, lengths: Any, places: int
) -> tuple[Any, tuple[Any, Any, Any]]:
    """The token at each place (L, B), out of range if there is none; node and edge scores there;
    and whether there is a token."""
    t = jnp.arange(places, dtype=jnp.int32)[:, None]
    real = t < lengths
    rows = jnp.where(real, first + t, len(node))

    def pick(x: Any) -> Any:
        return x.at[rows].get(mode="fill", fill_value=0.0)

    return rows, (pick(node), edge if edge.ndim == 2 else pick(edge), real)


@partial(jit, static_argnums=(4, 5))
def _log_z(node: Any, edge: Any, first: Any, lengths: Any, places: int, log: bool) -> Any:
    _, scores = _placed(node, edge, first, lengths, places)
    found = _jax.run(*scores, log, both=False)
    return found.log_z, found.safe


@partial(jit, static_argnums=(8, 9, 10))
def _marginals(
    node: Any,
    edge: Any,
    first: Any,
    lengths: Any,
    numbers: Any,
    weights: Any,
    out: Any,
    total: Any,
    places: int,
    log: bool,
    pairs: Pairs,
) -> Any:
    """log Z and safety of a piece. Node marginals go to ``out``; pairs are set or added."""
    rows, scores = _placed(node, edge, first, lengths, places)
    found = _jax.run(*scores, log)
    out = out.at[rows].set(found.node, mode="drop")
    if pairs == "each":
        total = total.at[rows].set(_jax.each_pair(found, log), mode="drop")
    elif pairs == "sequence":
        sums = _jax.pair_sums(found, weights, log, by_sequence=True)
        total = total.at[numbers].set(sums, mode="drop")
    elif pairs == "sum":
        total += _jax.pair_sums(found, weights, log)
    return found.log_z, found.safe, out, total


@partial(jit, static_argnums=5)
def _viterbi(
    node: Any, edge: Any, first: Any, lengths: Any, out: Any, places: int
) -> tuple[Any, Any]:
    rows, scores = _placed(node, edge, first, lengths, places)
    labels, best = _jax.best_paths(*scores)
    return best, out.at[rows].set(labels, mode="drop")
