"""The device's side of `device`: the kernel architecture under log loss, and a step of L-BFGS.

A function is carried as A, F = G A and sqrt(eta) B, as in `architectures.kernel`. The value along
a direction and its slope need no product with G, only the gradient of the point that is taken
does. So an iteration is two calls:

* `try_step`: combine the direction from the history, step, run all chains, value and slope;
* `take_step`: the one product with G, the new pair of the history, and all inner products.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.chain._jax import pair_sums, run
from seqfield.chain._padded import padded_lengths
from seqfield.kernels._jax import product
from seqfield.linalg._jax import jit, jnp, lax

Floats = NDArray[np.float64]
#: numbers in one array of scores
PIECE = 2**26


class Vector(NamedTuple):
    """A function: coefficients A (n, S), values F = G A (n, S), b = sqrt(eta) B (S, S); or a stack
    of such. The inner product of two is tr(A' F) + tr(b' b)."""

    a: Any
    f: Any
    b: Any


class Bucket(NamedTuple):
    """Sequences side by side: the gram row at each place (L, B), what is added to the scores there
    (L, B, S), which places are real, and the weight of each log Z, negative for the sum over known
    labels."""

    rows: Any
    extra: Any
    real: Any
    weights: Any


class Problem(NamedTuple):
    """The data on the device. ``known`` (n, S) and ``known_pairs`` (S, S) are the weighted counts
    of gold labels where all are known; ``ban`` (S, S) is 0 or -inf."""

    blocks: Any
    buckets: list[Bucket]
    known: Any
    known_pairs: Any
    ban: Any
    c2: Any
    root_eta: Any


class Trial(NamedTuple):
    """A point that was tried, and the loss's gradient there by F (n, S) and T (S, S)."""

    point: Vector
    d_table: Any
    d_edge: Any


def _loss(problem: Problem, f: Any, edge: Any, log: bool) -> tuple[Any, Any, Any, Any]:
    """The loss, its gradients by F and T, and whether they are to be trusted."""
    value = (
        -(f * problem.known).sum()
        - jnp.where(problem.known_pairs != 0.0, edge * problem.known_pairs, 0.0).sum()
    )
    d_table, d_edge, safe = -problem.known, -problem.known_pairs, jnp.array(True)
    for rows, extra, real, weights in problem.buckets:
        node = f.at[rows].get(mode="fill", fill_value=0.0)
        found = run(node + extra, edge, real, log)
        value += (weights * found.log_z).sum()
        d_table = d_table.at[rows].add(found.node * weights[:, None], mode="drop")
        d_edge += pair_sums(found, weights, log)
        safe &= found.safe.all()
    return value, d_table, d_edge, safe


@partial(jit, static_argnums=7)
def try_step(
    problem: Problem,
    point: Vector,
    gradient: Vector,
    history: Vector,
    coefficients: Any,
    scale: Any,
    step: Any,
    log: bool,
) -> tuple[Any, Trial]:
    """The point after a step along sum_r c_r history_r - scale gradient.

    The numbers are value, slope, and 1 if they are to be trusted, else 0.
    """

    def along(past: Any, now: Any) -> Any:
        by_row = coefficients.reshape(-1, *([1] * (past.ndim - 1)))
        return (by_row * past).sum(0) - scale * now

    d = Vector(*map(along, history, gradient))
    new = Vector(*(old + step * part for old, part in zip(point, d, strict=True)))
    edge = problem.ban + problem.root_eta * new.b
    value, d_table, d_edge, safe = _loss(problem, new.f, edge, log)
    value += 0.5 * problem.c2 * _inner(new, new)
    e_a, e_b = _whole(problem, new, d_table, d_edge)
    slope = (e_a * d.f).sum() + (e_b * d.b).sum()
    return jnp.stack([value, slope, safe * 1.0]), Trial(new, d_table, d_edge)


@partial(jit, donate_argnums=4)
def take_step(
    problem: Problem, trial: Trial, point: Vector, gradient: Vector, history: Vector, slot: Any
) -> tuple[Any, Vector, Vector]:
    """The gradient at a tried point, and the history with the pair of this step in its slot.

    The numbers (3, 2m) are inner products of gradient, step and change of gradient with the
    history, and beside them the gradient's with itself.
    """
    new, d_table, d_edge = trial
    e_a, e_b = _whole(problem, new, d_table, d_edge)
    now = Vector(e_a, product(problem.blocks, d_table) + problem.c2 * new.f, e_b)
    step = Vector(*(x - y for x, y in zip(new, point, strict=True)))
    change = Vector(*(x - y for x, y in zip(now, gradient, strict=True)))

    def put(rows: Any, one: Any, two: Any) -> Any:
        place = (2 * slot, *([0] * (rows.ndim - 1)))
        return lax.dynamic_update_slice(rows, jnp.stack([one, two]), place)

    history = Vector(*map(put, history, step, change))
    # not as a matrix product: one with few rows and columns keeps few processors busy
    inner = [
        (history.a * v.f).sum((1, 2)) + (history.b * v.b).sum((1, 2)) for v in (now, step, change)
    ]
    own = jnp.full(3, _inner(now, now))
    return jnp.concatenate([jnp.stack(inner), own[:, None]], 1), now, history


def _whole(problem: Problem, point: Vector, d_table: Any, d_edge: Any) -> tuple[Any, Any]:
    """The coefficients and the transitions of the objective's gradient in the function space."""
    return d_table + problem.c2 * point.a, problem.root_eta * d_edge + problem.c2 * point.b


def _inner(u: Vector, v: Vector) -> Any:
    return (u.a * v.f).sum() + (u.b * v.b).sum()


def lay_out(objective: Any) -> Problem:
    """The data of an objective with a `DeviceGram` and `LogLoss` on the device."""
    (rows, offsets), targets, weights, constraint = objective.problem()
    gram, s = objective.architecture, objective.architecture.n_labels
    lengths = np.diff(offsets)
    per_token = np.repeat(weights, lengths)
    extra = np.zeros((len(rows), s))
    ban = np.zeros((s, s))
    if constraint is not None:
        ban = constraint.pairs
        extra[offsets[:-1]] += constraint.start
        extra[offsets[1:] - 1] += constraint.end
    mask = targets.mask(s)
    free = extra + objective.loss.cost * ~mask
    known, pairs = np.zeros((gram.size, s)), np.zeros((s, s))
    if targets.allowed is None:
        np.add.at(known, (rows, targets.codes), per_token)
        later = np.delete(np.arange(len(rows)), offsets[:-1])
        np.add.at(pairs, (targets.codes[later - 1], targets.codes[later]), per_token[later])
    else:  # the same sequences once more, with the known labels alone and negative weights
        free = np.vstack([free, np.where(mask, extra, -np.inf)])
        rows, weights = np.tile(rows, 2), np.concatenate([weights, -weights])
        offsets = np.concatenate([offsets, offsets[1:] + offsets[-1]])
    buckets = _buckets(rows, offsets, free, weights, gram.size)
    return Problem(
        gram.blocks,
        buckets,
        *map(jnp.asarray, (known, pairs, ban, objective.prior.c2, gram.root_eta)),
    )


def _buckets(
    rows: NDArray[np.int64], offsets: NDArray[np.int64], extra: Floats, weights: Floats, size: int
) -> list[Bucket]:
    """Sequences of like lengths side by side."""
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
