"""L-BFGS on the JAX device. The host keeps only the few numbers that determine the steps.

The method is that of `lbfgs`, in the function space. The host keeps the inner products of the
history (2m, 2m). From them it computes the coefficients of the direction. The host also runs the
line search. All other work is in `_jax`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from seqfield.architectures._jax import DeviceGram
from seqfield.linalg._jax import double, jnp
from seqfield.objectives.needs import LOG_LOSS, NO_L1, Need, check
from seqfield.objectives.objective import Objective
from seqfield.solvers._base import (
    Callback,
    Floats,
    Minimum,
    Solver,
    Stall,
    Step,
    curved,
    history_size,
    is_near,
)
from seqfield.solvers._jax import Vector, lay_out, take_step, try_step
from seqfield.solvers.lbfgs import wolfe_step

#: least number of pairs in the history: reading pairs is cheap compared with the gram matrix
PAIRS = 20

DEVICE_GRAM = Need(
    "a gram matrix on the device",
    lambda parts: isinstance(parts.architecture, DeviceGram),
    "use DeviceGram, or LBFGS",
)


class _Descent:
    """The state of a descent: vectors on the device, inner products of the history on the host.

    For `wolfe_step` this class is an objective: the value as a function of the step length.
    """

    def __init__(self, objective: Objective, gram: DeviceGram, theta: Floats, memory: int) -> None:
        n, s = gram.size, gram.n_labels
        self.pairs, b = gram.pairs, np.zeros(s * s)
        b[self.pairs] = theta[2 * n * s :]
        parts = *theta[: 2 * n * s].reshape(2, n, s), b.reshape(s, s)
        self.problem, self.memory = lay_out(objective, gram), memory
        self.prior = objective.prior
        # if some labels are not known exactly, the loss is a difference of two convex functions
        self.convex = objective.targets.allowed is None
        self.point = Vector(*map(jnp.asarray, parts))
        self.gradient = Vector(*map(jnp.zeros_like, self.point))
        self.history = Vector(*(jnp.zeros((2 * memory, *p.shape)) for p in self.point))
        self.log = False  # True after the scaled form of the chains was unsafe
        self.order: list[int] = []  # slots from the oldest pair to the newest
        self._gram = np.zeros((2 * memory, 2 * memory))
        self._now = np.zeros(2 * memory)  # inner products of the gradient with the history
        self._along = np.zeros(2 * memory), 0.0
        self.value, _ = self.value_and_grad(np.zeros(1))
        self.take(0.0)
        self.order.clear()  # the first call has no earlier gradient, so its pair is dropped

    def value_and_grad(self, step: Floats) -> tuple[float, Floats]:
        """Value and slope after a step along the direction."""
        state = (self.problem, self.point, self.gradient, self.history, *self._along)
        for log in (False, True):
            if log or not self.log:
                found, self._trial = try_step(*state, float(step[0]), log)
                value, slope, safe = np.asarray(found)
                if safe:
                    break
                self.log = True
        self._tried = float(step[0])
        return float(value), np.array([slope])

    @staticmethod
    def dual(vector: Floats) -> Floats:
        """The vector itself: the step length has the plain inner product."""
        return vector

    def take(self, step: float) -> None:
        """Move to the point after this step."""
        if step != self._tried:
            self.value_and_grad(np.array([step]))
        free = [k for k in range(self.memory) if k not in self.order]
        slot = free[0] if free else self.order.pop(0)
        found, self.gradient, self.history = take_step(
            self.problem, self._trial, self.point, self.gradient, self.history, slot
        )
        self.point = self._trial.point
        products = np.asarray(found)
        self._now, self.norm = products[0, :-1], float(products[0, -1])
        pair = slice(2 * slot, 2 * slot + 2)
        self._gram[pair] = products[1:, :-1]
        self._gram[:, pair] = products[1:, :-1].T
        (step, inner), (_, change) = self._gram[pair, pair]
        if curved(inner, step, change):
            self.order.append(slot)

    @property
    def gap(self) -> float:
        """Bound on value minus optimum, from the prior. It needs only the norm of the gradient."""
        norm = np.sqrt(np.maximum(self.norm, 0.0))  # NaN stays
        return self.prior.gap(np.zeros(1), np.array([norm])) if self.convex else np.inf

    def turn(self) -> float:
        """Set the direction to minus the inverse Hessian times the gradient. Returns its slope.

        R is the upper triangle of s'y and D its diagonal. gamma is s'y / y'y of the newest pair,
        and u = R^-1 s'g. The direction is
        -(gamma g + s R^-T ((D + gamma y'y) u - gamma y'g) - gamma y u).
        """
        c, gamma = np.zeros(2 * self.memory), 1.0
        if self.order:
            s, y = 2 * np.array(self.order), 2 * np.array(self.order) + 1
            cross, inner = self._gram[np.ix_(s, y)], self._gram[np.ix_(y, y)]
            upper, gamma = np.triu(cross), cross[-1, -1] / inner[-1, -1]
            u = solve_triangular(upper, self._now[s])
            right = np.diagonal(cross) * u + gamma * (inner @ u - self._now[y])
            c[s], c[y] = -solve_triangular(upper, right, trans=1), gamma * u
        self._along = c, float(gamma)
        return float(c @ self._now - gamma * self.norm)

    def result(self, n_iter: int, converged: bool) -> Minimum:
        """The result, copied to the host."""

        def flat(v: Vector) -> Floats:
            a, f, b = (np.asarray(part).ravel() for part in v)
            return np.concatenate([a, f, b[self.pairs]])

        theta, gradient = flat(self.point), flat(self.gradient)
        return Minimum(theta, self.value, gradient, n_iter, converged)

    def halt(self, n_iter: int) -> Minimum:
        """The result where the value no longer falls."""
        near = is_near(self.value, self.gap)
        return self.result(n_iter, near)._replace(stuck=not near)


@dataclass(frozen=True)
class DeviceLBFGS(Solver):
    """`LBFGS` on a device, for `DeviceGram` and `LogLoss`. The stopping rules are the same."""

    max_iter: int = 500
    tol: float = 1e-5
    memory: int | None = None
    needs = (DEVICE_GRAM, LOG_LOSS, NO_L1)

    def minimise(
        self, objective: Objective, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta. Callbacks get no weights, because weights stay on the device."""
        check(self, objective)
        gram = objective.architecture
        assert isinstance(gram, DeviceGram)
        with double():
            memory = self.memory or max(PAIRS, history_size(len(theta)))
            return self._minimise(_Descent(objective, gram, theta, memory), callback)

    def _minimise(self, at: _Descent, callback: Callback | None) -> Minimum:
        stalled = Stall(self.tol)
        for iteration in range(1, self.max_iter + 1):
            if at.gap <= self.tol * abs(at.value):
                return at.result(iteration - 1, True)
            slope = at.turn()
            if slope >= 0.0:
                at.order.clear()
                slope = at.turn()
            if slope >= 0.0:
                return at.result(iteration - 1, True)
            first = 1.0 if at.order else 1.0 / np.sqrt(-slope)
            # the line search is one-dimensional: it starts at 0 with direction 1
            found = wolfe_step(at, np.zeros(1), at.value, np.ones(1), slope, first)
            if found is None:  # the value cannot be lowered in floating point
                if stalled.ends(at.value, at.gap, fresh=not at.order):
                    return at.halt(iteration - 1)
                at.order.clear()  # pairs from other points may mislead here
                continue
            at.take(float(found[0][0]))
            at.value = found[1]
            if callback is not None and callback(Step(iteration, np.empty(0), at.value)):
                return at.result(iteration, True)
            if stalled(at.value) and stalled.ends(at.value, at.gap):
                return at.halt(iteration)
        return at.result(self.max_iter, False)
