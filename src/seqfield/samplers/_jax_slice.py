"""The device's side of `device_slice`: steps of many chains of elliptical slice sampling at once.

A step is that of `elliptical_slice`. The brackets of all chains shrink side by side until every
chain has an angle. A chain that has its angle waits for the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from seqfield.linalg._jax import jax, jit, jnp, lax
from seqfield.objectives._jax_chains import Chains, log_likelihoods
from seqfield.samplers.elliptical_slice import SHRINKS


class Model(NamedTuple):
    """The root (n, r) of the gram matrix, the scale of transitions (0 for none), and the data."""

    root: Any
    root_eta: Any
    chains: Chains


class Function(NamedTuple):
    """k functions: b (k, r, S) and B (k, S, S), all N(0, 1), with F = root b (k, n, S)."""

    b: Any
    steps: Any
    f: Any


class State(NamedTuple):
    """The state of the chains: functions, their log-likelihoods (k,), the random key, and the
    number of evaluated likelihoods."""

    at: Function
    value: Any
    key: Any
    n_evaluations: Any


def bytes_needed(model: Model, k: int) -> float:
    """The least memory in bytes for the steps of k chains.

    On CPUs and GPUs, XLA needs 4.1 to 5.6 times the numbers of k functions and of their scores in
    all sequences. These are the present functions, the directions, the functions along them, and
    the arrays of a forward pass.
    """
    (n, r), s = model.root.shape, model.chains.ban.shape[0]
    padded = sum(bucket.extra.size for bucket in model.chains.buckets)
    return float(8 * (4 * k * (n * s + r * s + s * s + padded) + n * r))


def function(model: Model, b: Any, steps: Any) -> Function:
    """The functions with these parameters."""
    return Function(b, steps, jnp.einsum("nr,krs->kns", model.root, b))


def values(model: Model, at: Function) -> Any:
    """Log-likelihoods (k,)."""
    return log_likelihoods(model.chains, at.f, model.root_eta * at.steps)


def prior_draw(model: Model, key: Any, k: int) -> Function:
    """k functions from the prior."""
    one, two = jax.random.split(key)
    s = model.chains.ban.shape[0]
    b = jax.random.normal(one, (k, model.root.shape[1], s))
    return function(model, b, jax.random.normal(two, (k, s, s)))


@partial(jit, static_argnums=2)
def start(model: Model, key: Any, k: int) -> State:
    """k chains at draws of the prior."""
    key, other = jax.random.split(key)
    at = prior_draw(model, other, k)
    return State(at, values(model, at), key, jnp.asarray(k))


@partial(jit, donate_argnums=3)
def advance(model: Model, state: State, n: Any, watched: Any) -> tuple[State, Any]:
    """Make n steps; ``watched`` (at least n, k, 2) gets log-likelihoods and squared norms.

    At the end the scores are computed again from the parameters, to remove rounding errors.
    """

    def body(i: Any, carry: Any) -> Any:
        state, watched = carry
        state = _step(model, state)
        return state, watched.at[i].set(jnp.stack([state.value, norms(model, state.at)], -1))

    state, watched = lax.fori_loop(0, n, body, (state, watched))
    return state._replace(at=function(model, state.at.b, state.at.steps)), watched


def norms(model: Model, at: Function) -> Any:
    """Squared norms (k,) of the parameters."""
    steps = jnp.where(model.root_eta > 0.0, (at.steps**2).sum((1, 2)), 0.0)
    return (at.b**2).sum((1, 2)) + steps


def _step(model: Model, state: State) -> State:
    key, *keys = jax.random.split(state.key, 5)
    now, k = state.at, len(state.value)
    other = prior_draw(model, keys[0], k)
    level = state.value + jnp.log1p(-jax.random.uniform(keys[1], (k,)))
    angle = 2.0 * jnp.pi * jax.random.uniform(keys[2], (k,))
    shrinks = jax.random.uniform(keys[3], (SHRINKS, k))

    def along(angle: Any) -> Function:
        a, b = jnp.cos(angle)[:, None, None], jnp.sin(angle)[:, None, None]
        return Function(*(a * x + b * y for x, y in zip(now, other, strict=True)))

    def shrink(carry: Any) -> Any:
        i, angle, low, high, value, todo, looked = carry
        found = values(model, along(angle))
        value = jnp.where(todo, found, value)
        looked += todo.sum()
        todo &= ~(found > level)
        low = jnp.where(todo & (angle < 0.0), angle, low)
        high = jnp.where(todo & (angle >= 0.0), angle, high)
        angle = jnp.where(todo, low + (high - low) * shrinks[i], angle)
        return i + 1, angle, low, high, value, todo, looked

    first = (0, angle, angle - 2.0 * jnp.pi, angle, state.value, jnp.full(k, True), 0)
    found = lax.while_loop(lambda c: (c[0] < SHRINKS) & c[5].any(), shrink, first)
    _, angle, _, _, value, todo, looked = found
    # a chain whose bracket found no angle does not move
    value = jnp.where(todo, state.value, value)
    at = along(jnp.where(todo, 0.0, angle))
    return State(at, value, key, state.n_evaluations + looked)
