"""The base class of solvers, and the parts that several solvers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqfield._parallel import run
from seqfield.linalg.vectors import combine, products
from seqfield.objectives.needs import Need
from seqfield.objectives.objective import Objective

Floats = NDArray[np.float64]
#: number of columns of a long vector that one thread processes at a time
PIECE = 2**16
#: NEAR: largest gap at an optimum, relative to the value; HALTS: allowed number of halts
NEAR, HALTS = 1e-2, 5
#: most bytes of a history of steps: more pairs save iterations, but reading pairs costs time
HISTORY = 2**26


def history_size(n: int) -> int:
    """Number of pairs of steps and gradient changes to keep, for vectors of n numbers.

    >>> [history_size(n) for n in (1000, 100_000, 1_000_000)]
    [50, 41, 6]
    """
    return max(6, min(50, HISTORY // (16 * max(n, 1))))


class Step(NamedTuple):
    """The state of a solver after an iteration (or an epoch)."""

    iteration: int
    theta: Floats
    value: float


#: function called after each iteration; the solver stops if the function returns True
Callback = Callable[[Step], bool]


class Minimum(NamedTuple):
    """The result of an optimisation.

    ``gradient`` is the gradient of the smooth part at ``theta``. It is None if the solver computes
    no gradient.
    """

    theta: Floats
    value: float
    gradient: Floats | None
    n_iter: int
    converged: bool
    #: bound on value minus optimum, if the solver computes such a bound itself
    gap: float = np.inf
    #: whether the solver halted far from the optimum, before its last iteration
    stuck: bool = False


def same(vector: Floats) -> Floats:
    """The dual of a vector under the plain inner product: the vector itself."""
    return vector


class Differentiable(Protocol):
    """A function with a value and a gradient."""

    def value_and_grad(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        ...

    def dual(self, vector: Floats) -> Floats:
        """The dual v*: <u, v> = u . v* in the inner product of the gradients.

        A solver that only adds vectors and takes inner products works in any inner product.
        """
        ...


class Smooth(Differentiable, Protocol):
    """A smooth function to minimise, such as an `Objective`."""

    def gap(self, theta: Floats, gradient: Floats) -> float:
        """Bound on value minus optimum. It is infinite if no bound is known."""
        ...


class Penalised(Smooth, Protocol):
    """A smooth function plus l1 |theta|_1. Value and gradient leave out the L1 term."""

    @property
    def l1(self) -> float:
        """Weight of the L1 penalty."""
        ...

    def pseudo_gradient(self, theta: Floats, gradient: Floats) -> Floats:
        """Subgradient of the whole function with the least norm."""
        ...


class Solver(ABC):
    """Finds the minimum of an objective. Subclass it for a new solver.

    A subclass must have ``minimise(objective, theta, callback)``. This method should first call
    ``check(self, objective)`` of `seqfield.objectives.needs`. After each iteration, it should call
    the callback with a `Step`, and stop if the callback returns True.

    A subclass should set ``needs`` to a tuple of `Need`. Needs are requirements on architecture,
    loss and prior, beyond a value and a gradient. `seqfield.objectives.needs` has common needs.

    An objective gives ``value_and_grad(theta)``, ``value(theta)``, ``gap(theta, gradient)`` and
    ``dual(vector)``. Some objectives also give ``curvature(theta)`` and ``batches(size, rng)``.
    """

    #: requirements on architecture, loss and prior
    needs: tuple[Need, ...] = ()
    #: largest number of iterations, if there is a limit
    max_iter: int | None = None

    @abstractmethod
    def minimise(
        self, objective: Objective, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta."""


class Stall:
    """Detects a stall: over ``period`` iterations the value fell by at most ``tol`` of itself.

    A badly scaled objective may stall before the optimum. `ends` decides whether to stop there.
    """

    def __init__(self, tol: float, period: int = 10) -> None:
        self.tol, self.period = tol, period
        self._values: list[float] = []
        self._halts = 0

    def __call__(self, value: float) -> bool:
        """Record the value of one more iteration. Returns whether the value has stalled."""
        self._values.append(value)
        if len(self._values) <= self.period:
            return False
        before = self._values[-1 - self.period]
        return before - value <= self.tol * max(abs(value), 1e-300)

    def ends(self, value: float, gap: float, *, fresh: bool = False) -> bool:
        """Whether the solver should stop at this halt. If not, another period begins.

        It should stop near the optimum, or if there were too many halts. It should also stop if
        there is no old curvature model that could mislead (``fresh``).
        """
        self._values.clear()
        self._halts += 1
        return fresh or is_near(value, gap) or self._halts >= HALTS


def halt(theta: Floats, value: float, gradient: Floats, n_iter: int, gap: float) -> Minimum:
    """The result where the value no longer falls. It is an optimum unless the gap is too large.

    >>> halt(np.zeros(1), 2.0, np.ones(1), 7, 300.0).converged
    False
    """
    near = is_near(value, gap)
    return Minimum(theta, value, gradient, n_iter, near, stuck=not near)


def is_near(value: float, gap: float) -> bool:
    """Whether the gap is small enough for an optimum. An unknown gap counts as small enough."""
    return not np.isfinite(gap) or gap <= NEAR * max(abs(value), 1.0)


class History:
    """L-BFGS history: the last m pairs of steps s and gradient changes y.

    The pairs imply an inverse Hessian. `direction` multiplies this inverse Hessian by a vector.

    The two-loop recursion needs only inner products of the vectors. Its result is a linear
    combination of the vectors. So the inner products (2m x 2m) are kept, and the recursion runs on
    coefficients. An iteration then reads the m pairs twice instead of four times.
    """

    def __init__(
        self,
        size: int,
        n: int,
        n_jobs: int | None = None,
        dual: Callable[[Floats], Floats] = same,
    ) -> None:
        self.size, self.n_jobs, self._dual = size, n_jobs, dual
        # even rows hold s, odd rows hold y, and the last row holds the gradient
        self._rows = np.zeros((2 * size + 1, n))
        self._gram = np.zeros((2 * size, 2 * size))
        self._order: list[int] = []  # slots from the oldest pair to the newest
        self._fresh: int | None = None  # the slot whose inner products are still unknown
        self._pieces = [(k, min(k + PIECE, n)) for k in range(0, max(n, 1), PIECE)]

    def __len__(self) -> int:
        return len(self._order)

    def clear(self) -> None:
        """Forget all pairs."""
        self._order.clear()
        self._fresh = None

    def widened(self, at: int, by: int) -> History:
        """The same history for longer vectors, with ``by`` new numbers from place ``at`` on.

        The new numbers are zero in all pairs, so the inner products do not change.
        """
        out = History(self.size, self._rows.shape[1] + by, self.n_jobs, self._dual)
        out._rows = np.insert(self._rows, [at] * by, 0.0, axis=1)
        out._gram, out._order, out._fresh = self._gram, self._order, self._fresh
        return out

    def push(self, new: Floats, old: Floats, new_gradient: Floats, gradient: Floats) -> None:
        """Add the pair that belongs to a step from old to new."""
        if self._fresh is not None:
            self._update_products()
        used = set(self._order)
        slot = next((k for k in range(self.size) if k not in used), None)
        if slot is None:
            slot = self._order.pop(0)
        np.subtract(new, old, out=self._rows[2 * slot])
        np.subtract(new_gradient, gradient, out=self._rows[2 * slot + 1])
        self._order.append(slot)
        self._fresh = slot

    def direction(self, gradient: Floats) -> Floats:
        """Minus the inverse Hessian times the gradient."""
        last = 2 * self.size
        self._rows[last] = gradient
        with_gradient = -self._update_products()[:last]
        if not self._order:
            return -gradient
        gram = self._gram
        # q = -gradient + sum_r c[r] rows[r], with_gradient[r] = rows[r] . (-gradient)
        c = np.zeros(last)
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
        out, weights = np.empty(len(gradient)), np.append(c, -scale)
        run(lambda piece: combine(out, self._rows, weights, *piece), self._pieces, self.n_jobs)
        return out

    def _update_products(self) -> Floats:
        """Inner products of the gradient with all rows.

        The same pass computes the inner products of a new pair. If the new pair has no positive
        curvature, it is dropped.
        """
        which, fresh = [2 * self.size], self._fresh
        if fresh is not None:
            which += [2 * fresh, 2 * fresh + 1]
        index = np.array(which)
        left = self._rows
        if self._dual is not same:
            left = np.stack([self._dual(row) for row in left[index]])
            index = np.arange(len(left))
        parts = run(
            lambda piece: products(self._rows, left, index, *piece), self._pieces, self.n_jobs
        )
        inner = np.asarray(sum(parts[1:], parts[0]))
        if fresh is not None:
            pair = slice(2 * fresh, 2 * fresh + 2)
            self._gram[pair] = inner[1:, :-1]
            self._gram[:, pair] = inner[1:, :-1].T
            self._fresh = None
            if not curved(
                self._gram[2 * fresh, 2 * fresh + 1], inner[1, 2 * fresh], inner[2, 2 * fresh + 1]
            ):
                self._order.remove(fresh)
        return np.asarray(inner[0])


def curved(inner: float, step: float, change: float) -> bool:
    """Whether a pair has positive curvature, from s'y, s's and y'y.

    s'y is compared with |s| |y|, so the scale of the objective has no effect.
    """
    # in a singular inner product, the square of a vector of rounding errors may be below 0
    return bool(inner > 1e-12 * np.sqrt(max(step, 0.0)) * np.sqrt(max(change, 0.0)))


class Inverse:
    """The inverse Hessian as a matrix, for few parameters. `History` is for many parameters.

    The matrix keeps the information of all steps. So a descent needs few steps if it begins at the
    end of a similar descent.
    """

    def __init__(self, n: int) -> None:
        self._inverse = np.eye(n)
        self._n_pairs = 0

    def __len__(self) -> int:
        return self._n_pairs

    def clear(self) -> None:
        """Forget all pairs."""
        self._inverse, self._n_pairs = np.eye(len(self._inverse)), 0

    def widened(self, at: int, by: int) -> Inverse:
        """The same inverse Hessian with ``by`` new parameters from place ``at`` on.

        Each new parameter gets the mean of the old diagonal.
        """
        n = len(self._inverse)
        out = Inverse(n + by)
        old = np.concatenate([np.arange(at), np.arange(at + by, n + by)])
        out._inverse *= np.diagonal(self._inverse).mean() if n else 1.0
        out._inverse[np.ix_(old, old)] = self._inverse
        out._n_pairs = self._n_pairs
        return out

    def direction(self, gradient: Floats) -> Floats:
        """Minus the inverse Hessian times the gradient."""
        return -self._inverse @ gradient

    def push(self, new: Floats, old: Floats, new_gradient: Floats, gradient: Floats) -> None:
        """Learn from a step from old to new. A step without positive curvature is ignored."""
        s, y = new - old, new_gradient - gradient
        inner = float(s @ y)
        if not curved(inner, float(s @ s), float(y @ y)):
            return
        if not self._n_pairs:  # the usual first guess of the scale
            self._inverse *= inner / float(y @ y)
        # H <- (I - s y'/s'y) H (I - y s'/s'y) + s s'/s'y
        turned = self._inverse @ y
        across = np.outer(turned, s)
        self._inverse -= (across + across.T) / inner
        self._inverse += np.outer(s, s * ((inner + float(y @ turned)) / inner**2))
        self._n_pairs += 1
