"""Penalties on parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.linalg.vectors import add_scaled, dot

Floats = NDArray[np.float64]
#: maps v to v*, where the inner product of the parameter space is <u, v> = u . v*
Dual = Callable[[Floats], Floats]
#: maps v to a bound on how far rounding may take <v, v> below 0
Noise = Callable[[Floats], float]


def _same(vector: Floats) -> Floats:
    return vector


def _none(vector: Floats) -> float:
    return 0.0


@dataclass(frozen=True)
class ElasticNet:
    """c1 |theta|_1 + c2 / 2 |theta|^2.

    >>> gradient = np.zeros(1)
    >>> ElasticNet(c1=0.0, c2=2.0).add_smooth(np.array([3.0]), gradient), gradient
    (9.0, array([6.]))
    """

    c1: float = 0.0
    c2: float = 1.0

    def __post_init__(self) -> None:
        for name in ("c1", "c2"):
            number(name, getattr(self, name), low=0)

    def smooth(self, theta: Floats, dual: Dual = _same) -> float:
        """Value of the part that can be differentiated; |theta|^2 = theta . dual(theta)."""
        return 0.5 * self.c2 * float(dot(theta, dual(theta)))

    def add_smooth(self, theta: Floats, gradient: Floats, dual: Dual = _same) -> float:
        """The value of `smooth`; its gradient is added to ``gradient`` in place."""
        add_scaled(gradient, self.c2, theta)
        return self.smooth(theta, dual)

    def pseudo_gradient(self, theta: Floats, gradient: Floats) -> Floats:
        """The subgradient of least norm, given the gradient of the smooth part.

        If theta is 0, it is the gradient shrunk towards 0 by c1; otherwise c1 sign(theta) is
        added to the gradient.
        """
        if self.c1 == 0.0:
            return gradient
        shrunk = np.sign(gradient) * np.maximum(np.abs(gradient) - self.c1, 0.0)
        return np.where(theta == 0.0, shrunk, gradient + self.c1 * np.sign(theta))

    def gap(
        self, theta: Floats, gradient: Floats, dual: Dual = _same, noise: Noise = _none
    ) -> float:
        """Bound on value minus optimum for a convex loss: |subgradient|^2 / (2 c2).

        The bound holds because the penalty makes the objective c2-strongly convex. With c2 = 0
        there is no such bound, and the result is infinite.
        """
        if self.c2 == 0.0:
            return np.inf
        v = self.pseudo_gradient(theta, gradient)
        square = float(dot(v, dual(v)))
        if square < 0.0:
            if square < -noise(v):
                raise InputError(
                    f"the kernel is not positive semi-definite: a function has the squared norm "
                    f"{square:.3g}"
                )
            square = 0.0
        return square / (2.0 * self.c2)
