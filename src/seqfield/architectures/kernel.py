"""The kernel architecture F = G A, T = eta B over the tokens of a gram matrix G.

In whitened coordinates it is a linear one. With G = root root' and A = dual b the scores are
root b, and the squared norm tr(A' G A) + eta |B|^2 is |theta|^2 for theta = [b | sqrt(eta) B]: the
plain gradient is well scaled, and penalty and optimality gap are those of any L2 model. The rows
of ``root`` take the place of features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.architectures._maps import DenseMap
from seqfield.architectures.linear import Design, Linear, Tables
from seqfield.errors import CapabilityError
from seqfield.linalg.factor import Factor
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]


class Kernel(Linear):
    """Scores in the span of a kernel at given tokens; every transition has a weight.

    Parameters
    ----------
    factor : the factor of the tokens' gram matrix
    eta : scale of the transitions in the kernel
    """

    def __init__(self, n_labels: int, factor: Factor, eta: float = 1.0) -> None:
        self.factor = factor
        self.root_eta = float(np.sqrt(number("eta", eta, low=0)))
        super().__init__(n_labels, DenseMap(factor.root.shape[1], n_labels), np.arange(n_labels**2))

    def transitions(self, theta: Floats) -> Floats:
        """T = eta B."""
        return self.root_eta * super().transitions(theta)

    def pullback(self, design: Design, d_node: Floats, d_edge: Floats) -> Floats:
        """The gradient by theta."""
        return super().pullback(design, d_node, self.root_eta * d_edge)

    def tables(self, data: Sequences) -> Tables:
        """Not for this architecture: its transitions are scaled."""
        raise CapabilityError("the kernel architecture has no single weights to step or to choose")

    def coefficients(self, theta: Floats) -> tuple[Floats, Floats]:
        """A (N, S) and B (S, S): the scores of new tokens with gram rows g are g A."""
        b = theta[: self.node.n_weights].reshape(self.node.shape)
        return self.factor.dual @ b, super().transitions(theta) / (self.root_eta or 1.0)
