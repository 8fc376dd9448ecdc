"""All sequences of a learning problem on JAX's device, and their log-likelihood there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.lookup import Lookup
from seqfield.chain._jax import run
from seqfield.chain._padded import padded_lengths
from seqfield.errors import CapabilityError
from seqfield.linalg._jax import jax, jnp, lax
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective

Floats = NDArray[np.float64]
#: numbers in one array of scores
PIECE = 2**26


class Bucket(NamedTuple):
    """Sequences of similar length, side by side.

    The fields are: the gram row at each place (L, B); the numbers added to the scores there
    (L, B, S); which places are real; and the weight of each log Z. The weight is negative for the
    sum over known labels.
    """

    rows: Any
    extra: Any
    real: Any
    weights: Any


class Chains(NamedTuple):
    """Sequences and their labels.

    ``known`` (n, S) and ``known_pairs`` (S, S) are the weighted counts of gold labels where all
    labels are known. ``ban`` (S, S) is 0 or -inf.
    """

    buckets: list[Bucket]
    known: Any
    known_pairs: Any
    ban: Any


def known_scores(chains: Chains, f: Any, edge: Any) -> Any:
    """The weighted scores of all gold labels, given the scores F (n, S) and T (S, S)."""
    pairs = jnp.where(chains.known_pairs != 0.0, edge * chains.known_pairs, 0.0)
    return (f * chains.known).sum() + pairs.sum()


def log_likelihoods(chains: Chains, f: Any, edge: Any) -> Any:
    """sum_i w_i log p(y_i) of several functions with scores F (k, n, S) and T (k, S, S).

    If the scaled form is not safe for one sequence, all sequences are computed on logarithms.
    """
    edge = chains.ban + edge
    total = jax.vmap(known_scores, (None, 0, 0))(chains, f, edge)
    for rows, extra, real, weights in chains.buckets:
        node = f.at[:, rows].get(mode="fill", fill_value=0.0) + extra

        def each(log: bool, node: Any = node, real: Any = real) -> Any:
            def one(node: Any, edge: Any) -> Any:
                found = run(node, edge, real, log, both=False)
                return found.log_z, found.safe

            return jax.vmap(one)(node, edge)

        quick, safe = each(False)
        log_z = lax.cond(safe.all(), lambda q=quick: q, lambda e=each: e(True)[0])
        total -= log_z @ weights
    return total


def chains_of(table: Objective) -> Chains:
    """The sequences of an objective with `LogLoss` over a table of scores (`Lookup`)."""
    lookup, loss = table.architecture, table.loss
    if not (isinstance(lookup, Lookup) and isinstance(loss, LogLoss)):
        raise CapabilityError("chains on a device need a table of scores and the log loss")
    size, s, cost = lookup.size, lookup.n_labels, loss.cost
    targets, weights, constraint = table.targets, table.weights, table.constraint
    rows, offsets = np.asarray(table.data.x[:, 0], np.int64), targets.offsets
    per_token = np.repeat(weights, np.diff(offsets))
    extra, ban = np.zeros((len(rows), s)), np.zeros((s, s))
    if constraint is not None:
        ban = constraint.pairs
        extra[offsets[:-1]] += constraint.start
        extra[offsets[1:] - 1] += constraint.end
    mask = targets.mask(s)
    free = extra + cost * ~mask
    known, pairs = np.zeros((size, s)), np.zeros((s, s))
    if targets.allowed is None:
        np.add.at(known, (rows, targets.codes), per_token)
        later = np.delete(np.arange(len(rows)), offsets[:-1])
        np.add.at(pairs, (targets.codes[later - 1], targets.codes[later]), per_token[later])
    else:  # add each sequence again, with only its known labels and a negative weight
        free = np.vstack([free, np.where(mask, extra, -np.inf)])
        rows, weights = np.tile(rows, 2), np.concatenate([weights, -weights])
        offsets = np.concatenate([offsets, offsets[1:] + offsets[-1]])
    buckets = _buckets(rows, offsets, free, weights, size)
    return Chains(buckets, *map(jnp.asarray, (known, pairs, ban)))


def _buckets(
    rows: NDArray[np.int64], offsets: NDArray[np.int64], extra: Floats, weights: Floats, size: int
) -> list[Bucket]:
    """Put sequences of similar length side by side."""
    lengths = np.diff(offsets)
    places, s, out = padded_lengths(lengths), extra.shape[1], []
    for l in np.unique(places):
        chosen = np.flatnonzero(places == l)
        longest = int(lengths[chosen].max())
        for part in np.array_split(chosen, -(-len(chosen) * longest * s // PIECE)):
            t = np.arange(longest)[:, None]
            real = t < lengths[part]
            token = np.where(real, offsets[part] + t, 0)
            here = np.where(real, rows[token], size).astype(np.int32)
            own = np.where(real[..., None], extra[token], 0.0)
            out.append(Bucket(*map(jnp.asarray, (here, own, real, weights[part]))))
    return out
