"""The log-likelihoods of several functions on a device are those of the compiled loops."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from seqfield.linalg._jax import double, free_bytes, is_out_of_memory, jax, jnp
from seqfield.objectives._jax_chains import chains_of, log_likelihoods
from seqfield.samplers._jax_slice import Model, advance, bytes_needed, start
from seqfield.samplers.elliptical_slice import Likelihood

from ..support.samplers import KINDS, some, whitened


@pytest.mark.parametrize("kind", ["known", "missing, law"])
@pytest.mark.parametrize("size", [1.0, 400.0])
def test_several_functions(kind, size):
    """Also where one of them has transitions of a range for which only logarithms are safe."""
    problem = whitened(some(3, **KINDS[kind]))
    rng, likelihood = np.random.default_rng(3), Likelihood(problem)
    f, steps = rng.normal(size=(4, 8, 3)), rng.normal(size=(4, 3, 3))
    steps[2] *= size
    with double():
        chains = chains_of(problem.table)
        found = np.asarray(jax.jit(log_likelihoods)(chains, jnp.asarray(f), jnp.asarray(steps)))
    want = [likelihood.at(table, edge) for table, edge in zip(f, steps, strict=True)]
    np.testing.assert_allclose(found, want, rtol=1e-11)


def test_the_memory_of_many_chains():
    """No more than what XLA takes, so that nothing is refused that fits, and not much less."""
    goal, k = some(3, n=60, distinct=100, rank=40), 64
    with double():
        root = jnp.asarray(goal.architecture.root)
        model = Model(root, jnp.asarray(1.0), chains_of(whitened(goal).table))
        key = jax.random.key(0, impl="rbg")
        state = jax.eval_shape(lambda model, key: start(model, key, k), model, key)
        room = jax.ShapeDtypeStruct((1, k, 2), jnp.float64)
        told = advance.lower(model, state, 1, room).compile().memory_analysis()
    taken = told.temp_size_in_bytes + told.argument_size_in_bytes + told.output_size_in_bytes
    assert 0.4 * taken < bytes_needed(model, k) < 1.2 * taken  # other versions take other ways


def test_what_the_device_has_left():
    assert free_bytes(jax.devices()[0]) > 0
    for stats, want in (({"bytes_limit": 9, "bytes_in_use": 4}, 5), ({}, np.inf), (None, np.inf)):
        device = SimpleNamespace(memory_stats=lambda stats=stats: stats, platform="gpu")
        assert free_bytes(device) == want
    # a CPU says nothing itself
    assert free_bytes(SimpleNamespace(memory_stats=lambda: None, platform="cpu")) > 0


def test_errors_for_want_of_memory():
    for text in ("RESOURCE_EXHAUSTED: 3", "INTERNAL: Out of memory allocating 8 bytes"):
        assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(RuntimeError("INVALID_ARGUMENT: shapes"))
