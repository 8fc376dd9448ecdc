"""Gram matrices on JAX's device."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.errors import InputError
from seqfield.kernels import RBF

pytest.importorskip("jax")


def test_values_too_large_for_float32():
    from seqfield.kernels._jax import OnDevice

    x = np.arange(6.0)[:, None]
    OnDevice.of(1e39 * RBF(1.0), x, budget=1e6, dtype="float64", advice="")
    with pytest.raises(InputError, match=r"tokens 0 and 0.* gram_dtype=\"float64\""):
        OnDevice.of(1e39 * RBF(1.0), x, budget=1e6, dtype="float32", advice="")
