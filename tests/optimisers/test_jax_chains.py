"""The log-likelihoods of several functions on a device are those of the compiled loops."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.linalg._jax import double, jax, jnp
from seqfield.optimisers._jax_chains import chains_of, log_likelihoods
from seqfield.optimisers.elliptical_slice import Likelihood

from .test_samplers import KINDS, some


@pytest.mark.parametrize("kind", ["known", "missing, law"])
@pytest.mark.parametrize("size", [1.0, 400.0])
def test_several_functions(kind, size):
    """Also where one of them has transitions of a range for which only logarithms are safe."""
    goal = some(3, **KINDS[kind])
    rng, likelihood = np.random.default_rng(3), Likelihood(goal)
    f, steps = rng.normal(size=(4, 8, 3)), rng.normal(size=(4, 3, 3))
    steps[2] *= size
    with double():
        chains = chains_of(goal, 8)
        found = np.asarray(jax.jit(log_likelihoods)(chains, jnp.asarray(f), jnp.asarray(steps)))
    want = [likelihood.at(table, edge) for table, edge in zip(f, steps, strict=True)]
    np.testing.assert_allclose(found, want, rtol=1e-11)
