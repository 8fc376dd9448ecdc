"""L-BFGS with a weak Wolfe line search, for smooth objectives.

Besides computing gradients, an iteration reads the 2 m vectors of its history twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqfield.linalg.vectors import dot, plus_scaled
from seqfield.objectives.needs import LOSS, NO_L1, SCORES, check
from seqfield.solvers._base import (
    Callback,
    Differentiable,
    Floats,
    History,
    Inverse,
    Minimum,
    Smooth,
    Solver,
    Stall,
    Step,
    halt,
    history_size,
)


@dataclass(frozen=True)
class LBFGS(Solver):
    """Limited-memory BFGS.

    There are three rules to stop:

    * The objective's bound on value minus optimum (``gap``) is below ``tol`` of the value.
    * Ten iterations lowered the value by less than ``tol`` of itself. If the bound is still large,
      the solver continues for a while. If this does not help, it reports that it is stuck.
    * The solver's quadratic model predicts a remaining gain of at most ``enough``. This rule holds
      after ``known`` steps. After few steps, the model is almost a multiple of the identity. Then
      the true gain along flat directions is many times the predicted gain.
    """

    max_iter: int = 500
    tol: float = 1e-5
    memory: int | None = None
    n_jobs: int | None = None
    enough: float = 0.0
    known: int = 3
    needs = (SCORES, LOSS, NO_L1)

    def minimise(
        self,
        objective: Smooth,
        theta: Floats,
        callback: Callback | None = None,
        history: History | Inverse | None = None,
    ) -> Minimum:
        """Minimise from theta. ``history`` may come from a descent on a similar objective."""
        check(self, objective)
        value, gradient = objective.value_and_grad(theta)
        dual = objective.dual
        history = self.new_history(objective, len(theta)) if history is None else history
        stalled = Stall(self.tol)
        for iteration in range(1, self.max_iter + 1):
            if objective.gap(theta, gradient) <= self.tol * abs(value):
                return Minimum(theta, value, gradient, iteration - 1, True)
            direction = history.direction(gradient)
            slope = dot(direction, dual(gradient))
            if slope >= 0.0:
                history.clear()
                direction, slope = -gradient, -dot(gradient, dual(gradient))
            if slope == 0.0:
                return Minimum(theta, value, gradient, iteration - 1, True)
            # if H is the inverse second derivative, the optimum is lower by g' H g / 2
            if iteration > self.known and -slope <= 2.0 * self.enough:
                return Minimum(theta, value, gradient, iteration - 1, True)
            first = 1.0 if len(history) else 1.0 / np.sqrt(-slope)
            found = wolfe_step(objective, theta, value, direction, slope, first)
            if found is None:  # the value cannot be lowered in floating point
                gap = objective.gap(theta, gradient)
                if stalled.ends(value, gap, fresh=not len(history)):
                    return halt(theta, value, gradient, iteration - 1, gap)
                history.clear()  # pairs from other points may mislead here
                continue
            new, value, new_gradient = found
            history.push(new, theta, new_gradient, gradient)
            theta, gradient = new, new_gradient
            if callback is not None and callback(Step(iteration, theta, value)):
                return Minimum(theta, value, gradient, iteration, True)
            if stalled(value):
                gap = objective.gap(theta, gradient)
                if stalled.ends(value, gap):
                    return halt(theta, value, gradient, iteration, gap)
        return Minimum(theta, value, gradient, self.max_iter, False)

    def new_history(self, objective: Differentiable, n: int) -> History:
        """An empty history for vectors of n numbers."""
        return History(self.memory or history_size(n), n, self.n_jobs, objective.dual)


def wolfe_step(
    objective: Differentiable,
    theta: Floats,
    value: float,
    direction: Floats,
    slope: float,
    step: float,
    *,
    decrease: float = 1e-4,
    curvature: float = 0.9,
    max_tries: int = 40,
) -> tuple[Floats, float, Floats] | None:
    """A point that satisfies the weak Wolfe conditions, found by bisection.

    The value has fallen enough and the slope has become flat enough. The step is doubled until
    there is a bracket, and then the bracket is halved. The bracket may shrink to nothing. Then the
    result is a point where the value fell, or None if the value never fell.
    """
    low, high = 0.0, np.inf
    towards = objective.dual(direction)
    best: tuple[Floats, float, Floats] | None = None
    for _ in range(max_tries):
        new = plus_scaled(theta, step, direction)
        new_value, gradient = objective.value_and_grad(new)
        if not new_value <= value + decrease * step * slope:
            high = step
        else:
            if new_value < value:
                best = new, new_value, gradient
            if dot(gradient, towards) >= curvature * slope:
                return new, new_value, gradient
            low = step
        step = 2.0 * low if high == np.inf else 0.5 * (low + high)
    return best
