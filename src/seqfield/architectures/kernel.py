"""The kernel architecture F = G A, T = eta B over the tokens of a gram matrix G.

The squared norm of a function is tr(A' G A) + eta |B|^2. In A the plain gradient
G (lambda A + P - Y) is badly scaled. Two remedies give the same descent in other coordinates:

* with a factor G = root root' and A = dual b, the scores are root b and the squared norm is |b|^2
  (`rooted.Rooted`);
* without a factor, gradients are taken in the inner product of the function space, where the
  gradient of R is lambda A + P - Y.

This module has the second. A function is carried as the pair (A, F = G A). So scores and inner
products need no product with G; an iteration takes one product, for its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.architectures.lookup import Lookup, LookupDesign, Values

Floats = NDArray[np.float64]

#: an eigenvalue below 0 by at most this share of the others counts as 0
ROUNDING = 1e-6


class Gram(Lookup):
    """Scores in the span of a kernel at given tokens, without a factor of the gram matrix.

    theta = [A | F | sqrt(eta) B] with F = G A always.

    Parameters
    ----------
    size : n, the number of gram rows
    multiply : V (n, S) -> G V
    eta : scale of the transitions in the kernel, at least 0; with 0 there are no transitions
    """

    def __init__(
        self, n_labels: int, size: int, multiply: Callable[[Floats], Floats], eta: float = 1.0
    ) -> None:
        super().__init__(n_labels, size)
        self.multiply = multiply
        self.root_eta = float(np.sqrt(number("eta", eta, low=0)))
        # weights for all transitions, or for none
        self.pairs = np.arange(n_labels**2 if eta > 0 else 0)
        self._cuts = np.cumsum([size * n_labels, size * n_labels, len(self.pairs)])
        self.n_parameters = int(self._cuts[-1])

    @property
    def plain(self) -> bool:
        """The inner product is that of the function space."""
        return False

    def dual(self, theta: Floats) -> Floats:
        """[F | 0 | B]: the inner product of two functions is tr(A' F) + eta B . B."""
        half, end = self._cuts[:2]
        return np.concatenate([theta[half:end], np.zeros(half), theta[end:]])

    def noise(self, theta: Floats) -> float:
        """How far rounding may take tr(A' G A) below 0: a float32 error of G times |A|^2."""
        a = theta[: self._cuts[0]]
        return ROUNDING * self._scale * float(a @ a)

    @cached_property
    def _scale(self) -> float:
        """|G v| / |v| of a random v, about the root mean square of the eigenvalues."""
        v = np.random.default_rng(0).normal(size=(self.size, 1))
        return float(np.linalg.norm(self.multiply(v)) / np.linalg.norm(v))

    def lift(self, theta: Floats) -> Values:
        """F and T = eta B."""
        half, end = self._cuts[:2]
        transitions = np.zeros(self.n_labels**2)
        transitions[self.pairs] = self.root_eta * theta[end:]
        table = theta[half:end].reshape(self.size, self.n_labels)
        return Values(table, transitions.reshape(self.n_labels, self.n_labels))

    def collect(self, parts: list[tuple[LookupDesign, Floats]]) -> Floats:
        """The gradient in the function space: [E | G E | sqrt(eta) E_B]."""
        e, e_transitions = self.gather(parts)
        last = self.root_eta * e_transitions.ravel()[self.pairs]
        return np.concatenate([e.ravel(), self.multiply(e).ravel(), last])

    def coefficients(self, theta: Floats) -> Floats:
        """A (n, S): the scores of new tokens with gram rows g are g A."""
        return theta[: self._cuts[0]].reshape(self.size, self.n_labels)
