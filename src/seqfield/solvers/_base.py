"""What every solver shares, and what a new one must have."""

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
#: columns of a long vector that one thread takes at a time
PIECE = 2**16
#: of a value, the largest gap of an optimum; and how often a solver may halt farther from it
NEAR, HALTS = 1e-2, 5
#: bytes that a history of steps may take; more pairs save iterations, reading them costs time
HISTORY = 2**26


def history_size(n: int) -> int:
    """How many pairs of steps and gradient changes to keep of vectors of n numbers.

    >>> [history_size(n) for n in (1000, 100_000, 1_000_000)]
    [50, 41, 6]
    """
    return max(6, min(50, HISTORY // (16 * max(n, 1))))


class Step(NamedTuple):
    """Where a solver stands after an iteration (or an epoch)."""

    iteration: int
    theta: Floats
    value: float


#: called after each iteration; True stops the solver
Callback = Callable[[Step], bool]


class Minimum(NamedTuple):
    """The end of an optimisation.

    ``gradient`` is that of the smooth part at ``theta``, or None from a solver without one.
    """

    theta: Floats
    value: float
    gradient: Floats | None
    n_iter: int
    converged: bool
    #: bound on value minus optimum, if the solver has one of its own
    gap: float = np.inf
    #: whether it came to a halt far from the optimum, with iterations left
    stuck: bool = False


def same(vector: Floats) -> Floats:
    """The dual of a vector under the plain inner product: itself."""
    return vector


class Differentiable(Protocol):
    """A function that can be stepped along."""

    def value_and_grad(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        ...

    def dual(self, vector: Floats) -> Floats:
        """v* with <u, v> = u . v* in the inner product that gradients are in.

        A solver that only ever adds vectors and asks for their inner products works in any.
        """
        ...


class Smooth(Differentiable, Protocol):
    """A function to be minimised; an `Objective` is one."""

    def gap(self, theta: Floats, gradient: Floats) -> float:
        """Bound on value minus optimum; infinite if there is none."""
        ...


class Penalised(Smooth, Protocol):
    """A smooth function plus l1 |theta|_1, which value and gradient leave out."""

    @property
    def l1(self) -> float:
        """Weight of the L1 penalty."""
        ...

    def pseudo_gradient(self, theta: Floats, gradient: Floats) -> Floats:
        """Subgradient of least norm of the whole."""
        ...


class Solver(ABC):
    """Finds the minimum of an objective. Subclass it for a new solver.

    A subclass must have ``minimise(objective, theta, callback)``. It should begin with
    ``check(self, objective)`` of `seqfield.objectives.needs`, and call the callback with a `Step`
    after each iteration; True from it means to stop there.

    It should set ``needs`` to a tuple of `Need`: what it asks of architecture, loss and prior
    beyond a value and a gradient. `seqfield.objectives.needs` has the common ones.
    An objective gives ``value_and_grad(theta)``, ``value(theta)``, ``gap(theta, gradient)``,
    ``dual(vector)`` and, for some, ``curvature(theta)`` and ``batches(size, rng)``.
    """

    #: what it asks of architecture, loss and prior
    needs: tuple[Need, ...] = ()
    #: most iterations, where there is a limit
    max_iter: int | None = None

    @abstractmethod
    def minimise(
        self, objective: Objective, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta."""


class Stall:
    """True once the value has fallen by less than ``tol`` of itself over ``period`` iterations.

    Badly scaled objectives rest on the way: `ends` says whether such a place is the end.
    """

    def __init__(self, tol: float, period: int = 10) -> None:
        self.tol, self.period = tol, period
        self._values: list[float] = []
        self._halts = 0

    def __call__(self, value: float) -> bool:
        """Record the value of one more iteration."""
        self._values.append(value)
        if len(self._values) <= self.period:
            return False
        before = self._values[-1 - self.period]
        return before - value <= self.tol * max(abs(value), 1e-300)

    def ends(self, value: float, gap: float, *, fresh: bool = False) -> bool:
        """Whether a halt is the end: near the optimum, with nothing learned that could mislead
        (``fresh``), or once too often. Otherwise another period begins."""
        self._values.clear()
        self._halts += 1
        return fresh or is_near(value, gap) or self._halts >= HALTS


def halt(theta: Floats, value: float, gradient: Floats, n_iter: int, gap: float) -> Minimum:
    """The end where the value no longer falls: an optimum only if the gap does not deny it.

    >>> halt(np.zeros(1), 2.0, np.ones(1), 7, 300.0).converged
    False
    """
    near = is_near(value, gap)
    return Minimum(theta, value, gradient, n_iter, near, stuck=not near)


def is_near(value: float, gap: float) -> bool:
    """Whether the optimum may be here: a gap that is not known does not deny it."""
    return not np.isfinite(gap) or gap <= NEAR * max(abs(value), 1.0)


class History:
    """The last pairs of steps s and gradient changes y, and the product of the inverse Hessian
    they imply with a vector.

    The two-loop recursion needs nothing of the vectors but their inner products, and its result
    is a combination of them. So the inner products are kept (2m x 2m), the recursion runs on
    coefficients, and an iteration reads the m pairs twice instead of four times.
    """

    def __init__(
        self,
        size: int,
        n: int,
        n_jobs: int | None = None,
        dual: Callable[[Floats], Floats] = same,
    ) -> None:
        self.size, self.n_jobs, self._dual = size, n_jobs, dual
        # s in the even rows, y in the odd ones, and in the last the gradient
        self._rows = np.zeros((2 * size + 1, n))
        self._gram = np.zeros((2 * size, 2 * size))
        self._order: list[int] = []  # slots from the oldest pair to the newest
        self._fresh: int | None = None  # a slot whose inner products are not known yet
        self._pieces = [(k, min(k + PIECE, n)) for k in range(0, max(n, 1), PIECE)]

    def __len__(self) -> int:
        return len(self._order)

    def clear(self) -> None:
        """Forget all pairs."""
        self._order.clear()
        self._fresh = None

    def widened(self, at: int, by: int) -> History:
        """The same for vectors with ``by`` more numbers from place ``at`` on, about which it knows
        nothing: they are zero in all pairs, and inner products stay what they are."""
        out = History(self.size, self._rows.shape[1] + by, self.n_jobs, self._dual)
        out._rows = np.insert(self._rows, [at] * by, 0.0, axis=1)
        out._gram, out._order, out._fresh = self._gram, self._order, self._fresh
        return out

    def push(self, new: Floats, old: Floats, new_gradient: Floats, gradient: Floats) -> None:
        """Add the pair of a step from old to new."""
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
        """Inner products of the gradient with all rows, in one pass with those of a new pair.

        A pair without positive curvature is dropped.
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
    """Whether a pair has positive curvature, by s'y, s's and y'y.

    Against |s| |y|, so that the scale of the objective makes no difference.
    """
    # of vectors of rounding errors, the square in a singular inner product may be below 0
    return bool(inner > 1e-12 * np.sqrt(max(step, 0.0)) * np.sqrt(max(change, 0.0)))


class Inverse:
    """The inverse Hessian itself, for few parameters: what `History` is for many.

    It forgets nothing, so a descent that begins where a like one has ended needs few steps.
    """

    def __init__(self, n: int) -> None:
        self._inverse = np.eye(n)
        self._n_pairs = 0

    def __len__(self) -> int:
        return self._n_pairs

    def clear(self) -> None:
        """Forget all."""
        self._inverse, self._n_pairs = np.eye(len(self._inverse)), 0

    def widened(self, at: int, by: int) -> Inverse:
        """The same with ``by`` more parameters from place ``at`` on, which are taken to be as
        curved as the others are on average."""
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
        """Learn from a step from old to new; one without positive curvature teaches nothing."""
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
