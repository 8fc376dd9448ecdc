"""The part of `device` that runs on the device: log loss of the kernel architecture, L-BFGS steps.

A function is stored as A, F = G A and sqrt(eta) B, as in `architectures.kernel`. The value along
a direction and its slope need no product with G. Only the gradient at the accepted point needs
such a product. So an iteration has two calls:

* `try_step` combines the direction from the history, makes a step and runs all chains. It returns
  value and slope.
* `take_step` computes the one product with G, the new pair of the history, and all inner products.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from seqfield.architectures._jax import DeviceGram
from seqfield.chain._jax import pair_sums, run
from seqfield.kernels._jax import product
from seqfield.linalg._jax import jit, jnp, lax
from seqfield.objectives._jax_chains import Chains, chains_of, known_scores
from seqfield.objectives.objective import Objective


class Vector(NamedTuple):
    """A function, or a stack of functions.

    The fields are the coefficients A (n, S), the values F = G A (n, S) and b = sqrt(eta) B (S, S).
    The inner product of two functions is tr(A' F) + tr(b' b).
    """

    a: Any
    f: Any
    b: Any


class Problem(NamedTuple):
    """The data on the device."""

    blocks: Any
    chains: Chains
    c2: Any
    root_eta: Any


class Trial(NamedTuple):
    """A trial point, and the gradient of the loss there by F (n, S) and T (S, S)."""

    point: Vector
    d_table: Any
    d_edge: Any


def _loss(chains: Chains, f: Any, edge: Any, log: bool) -> tuple[Any, Any, Any, Any]:
    """The loss, its gradients by F and T, and whether these numbers are reliable."""
    value = -known_scores(chains, f, edge)
    d_table, d_edge, safe = -chains.known, -chains.known_pairs, jnp.array(True)
    for rows, extra, real, weights in chains.buckets:
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

    The returned numbers are the value, the slope, and a flag. The flag is 1 if value and slope are
    reliable, else 0.
    """

    def along(past: Any, now: Any) -> Any:
        by_row = coefficients.reshape(-1, *([1] * (past.ndim - 1)))
        return (by_row * past).sum(0) - scale * now

    d = Vector(*map(along, history, gradient))
    new = Vector(*(old + step * part for old, part in zip(point, d, strict=True)))
    edge = problem.chains.ban + problem.root_eta * new.b
    value, d_table, d_edge, safe = _loss(problem.chains, new.f, edge, log)
    value += 0.5 * problem.c2 * _inner(new, new)
    e_a, e_b = _whole(problem, new, d_table, d_edge)
    slope = (e_a * d.f).sum() + (e_b * d.b).sum()
    return jnp.stack([value, slope, safe * 1.0]), Trial(new, d_table, d_edge)


@partial(jit, donate_argnums=4)
def take_step(
    problem: Problem, trial: Trial, point: Vector, gradient: Vector, history: Vector, slot: Any
) -> tuple[Any, Vector, Vector]:
    """The gradient at a trial point, and the history with the pair of this step in its slot.

    The returned numbers (3, 2m) are inner products of the gradient, the step and the change of the
    gradient with the history. The squared norm of the gradient is returned too.
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
    # no matrix product here: a product with few rows and columns uses few processors
    inner = [
        (history.a * v.f).sum((1, 2)) + (history.b * v.b).sum((1, 2)) for v in (now, step, change)
    ]
    own = jnp.full(3, _inner(now, now))
    return jnp.concatenate([jnp.stack(inner), own[:, None]], 1), now, history


def _whole(problem: Problem, point: Vector, d_table: Any, d_edge: Any) -> tuple[Any, Any]:
    """The gradient of the objective in the function space: coefficients and transitions."""
    return d_table + problem.c2 * point.a, problem.root_eta * d_edge + problem.c2 * point.b


def _inner(u: Vector, v: Vector) -> Any:
    return (u.a * v.f).sum() + (u.b * v.b).sum()


def lay_out(objective: Objective, gram: DeviceGram) -> Problem:
    """Put the data of an objective on the device. It must have this `DeviceGram` and `LogLoss`."""
    chains = chains_of(objective)
    return Problem(gram.blocks, chains, *map(jnp.asarray, (objective.prior.c2, gram.root_eta)))
