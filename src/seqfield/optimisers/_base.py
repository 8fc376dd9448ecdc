"""What every optimiser shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._parallel import run
from seqfield.errors import CapabilityError
from seqfield.linalg.vectors import combine, products

Floats = NDArray[np.float64]
#: columns of a long vector that one thread takes at a time
PIECE = 2**16


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
    """The last pairs of steps s and gradient changes y, and the product of the inverse Hessian
    they imply with a vector.

    The two-loop recursion needs nothing of the vectors but their inner products, and its result
    is a combination of them. So the inner products are kept (2m x 2m), the recursion runs on
    coefficients, and an iteration reads the m pairs twice instead of four times.
    """

    def __init__(self, size: int, n: int, n_jobs: int | None = None) -> None:
        self.size, self.n_jobs = size, n_jobs
        self._rows = np.zeros((2 * size, n))  # s in the even rows, y in the odd ones
        self._gram = np.zeros((2 * size, 2 * size))
        self._order: list[int] = []  # slots from the oldest pair to the newest
        self._pieces = [(k, min(k + PIECE, n)) for k in range(0, n, PIECE)]

    def __len__(self) -> int:
        return len(self._order)

    def clear(self) -> None:
        """Forget all pairs."""
        self._order.clear()

    def push(self, new: Floats, old: Floats, new_gradient: Floats, gradient: Floats) -> None:
        """Add the pair of a step from old to new; without positive curvature it is left out."""
        full = len(self) == self.size
        slot = self._order.pop(0) if full else self._free()
        s, y = self._rows[2 * slot], self._rows[2 * slot + 1]
        np.subtract(new, old, out=s)
        np.subtract(new_gradient, gradient, out=y)
        self._order.append(slot)
        pair = slice(2 * slot, 2 * slot + 2)
        inner = self._products(self._rows[pair])
        self._gram[pair] = inner
        self._gram[:, pair] = inner.T
        if self._gram[2 * slot, 2 * slot + 1] <= 1e-12 * self._gram[2 * slot + 1, 2 * slot + 1]:
            self._order.pop()

    def _free(self) -> int:
        return next(slot for slot in range(self.size) if slot not in self._order)

    def direction(self, gradient: Floats) -> Floats:
        """Minus the inverse Hessian times the gradient."""
        out = -gradient
        if not self._order:
            return out
        gram = self._gram
        # q = -gradient + sum_r c[r] rows[r], with_gradient[r] = rows[r] . (-gradient)
        c = np.zeros(2 * self.size)
        with_gradient = -self._products(gradient[None])[0]
        alphas = []
        for slot in reversed(self._order):
            s, y = 2 * slot, 2 * slot + 1
            alphas.append((with_gradient[s] + gram[s] @ c) / gram[s, y])
            c[y] -= alphas[-1]
        newest = 2 * self._order[-1]
        scale = gram[newest, newest + 1] / gram[newest + 1, newest + 1]
        c *= scale
        with_gradient *= scale
        for slot, alpha in zip(self._order, reversed(alphas), strict=True):
            s, y = 2 * slot, 2 * slot + 1
            c[s] += alpha - (with_gradient[y] + gram[y] @ c) / gram[s, y]
        out *= scale
        run(lambda piece: combine(out, self._rows, c, *piece), self._pieces, self.n_jobs)
        return out

    def _products(self, vectors: Floats) -> Floats:
        """Inner products of vectors with all rows, summed over pieces in order."""
        parts = run(lambda piece: products(self._rows, vectors, *piece), self._pieces, self.n_jobs)
        return np.asarray(sum(parts[1:], parts[0]))
