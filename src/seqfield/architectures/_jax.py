"""The kernel architecture F = G A, T = eta B with its gram matrix on JAX's device."""

from __future__ import annotations

from seqfield.architectures.kernel import Gram
from seqfield.kernels._jax import OnDevice


class DeviceGram(Gram):
    """`Gram` for the solver that runs on the device too, which asks for the blocks of G."""

    def __init__(self, n_labels: int, covariance: OnDevice, eta: float = 1.0) -> None:
        super().__init__(n_labels, covariance.size, covariance.multiply, eta)
        self.blocks = covariance.blocks
