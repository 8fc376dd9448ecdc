"""What every optimiser shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.errors import CapabilityError
from seqfield.linalg.vectors import add_scaled, dot

Floats = NDArray[np.float64]


class Step(NamedTuple):
    """Where an optimiser stands after an iteration (or an epoch)."""

    iteration: int
    theta: Floats
    value: float


#: called after each iteration; True stops the optimiser
Callback = Callable[[Step], bool]


class Result(NamedTuple):
    """The end of an optimisation. ``gradient`` is that of the smooth part at ``theta``."""

    theta: Floats
    value: float
    gradient: Floats
    n_iter: int
    converged: bool


def require(optimiser: str, objective: Any, needs: tuple[str, ...]) -> None:
    """Raise a `CapabilityError` that names what the objective lacks."""
    missing = [name for name in needs if not hasattr(objective, name)]
    if missing:
        raise CapabilityError(f"{optimiser} needs {', '.join(missing)} of its objective")


class Stall:
    """True once the value has fallen by less than ``tol`` of itself over ``period`` iterations."""

    def __init__(self, tol: float, period: int = 10) -> None:
        self.tol, self.period = tol, period
        self._values: list[float] = []

    def __call__(self, value: float) -> bool:
        """Record the value of one more iteration."""
        self._values.append(value)
        if len(self._values) <= self.period:
            return False
        before = self._values[-1 - self.period]
        return before - value <= self.tol * max(abs(value), 1e-300)


class History:
    """The last pairs of steps and gradient changes, and the product of the inverse Hessian they
    imply with a vector (the two-loop recursion)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pairs: list[tuple[Floats, Floats, float]] = []

    def push(self, s: Floats, y: Floats) -> None:
        """Add a pair; one without positive curvature is left out."""
        curvature = dot(s, y)
        if curvature > 1e-12 * dot(y, y):
            self._pairs.append((s, y, curvature))
            del self._pairs[: -self.size]

    def clear(self) -> None:
        """Forget all pairs."""
        self._pairs.clear()

    def __len__(self) -> int:
        return len(self._pairs)

    def direction(self, gradient: Floats) -> Floats:
        """Minus the inverse Hessian times the gradient."""
        q = -gradient
        alphas = []
        for s, y, curvature in reversed(self._pairs):
            alpha = dot(s, q) / curvature
            alphas.append(alpha)
            add_scaled(q, -alpha, y)
        if self._pairs:
            _, y, curvature = self._pairs[-1]
            q *= curvature / dot(y, y)
        for (s, y, curvature), alpha in zip(self._pairs, reversed(alphas), strict=True):
            beta = dot(y, q) / curvature
            add_scaled(q, alpha - beta, s)
        return q
