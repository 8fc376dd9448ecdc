"""Truncated Newton: conjugate gradients compute each step from the second derivative.

A gradient takes a forward-backward pass. A product with the second derivative takes a tangent pass,
and an iteration needs several products. But there are few iterations, and convergence becomes
faster near the optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from seqfield.linalg.krylov import conjugate_gradients
from seqfield.linalg.vectors import dot
from seqfield.objectives.needs import LOSS, NO_L1, SCORES, TWICE, check
from seqfield.objectives.objective import Objective
from seqfield.solvers._base import (
    Callback,
    Floats,
    Minimum,
    Solver,
    Stall,
    Step,
    halt,
)
from seqfield.solvers.lbfgs import wolfe_step

#: factor by which the Levenberg term rises after a shortened step, and falls after other steps
DAMPING = 4.0


@dataclass(frozen=True)
class NewtonCG(Solver):
    """Truncated Newton method. The smaller the gradient, the more exactly a system is solved.

    The solver stops by the objective's bound on value minus optimum, as `LBFGS` does. It also stops
    when three iterations lowered the value by less than ``tol`` of itself.

    ``block`` leaves covariances between positions out of the curvature. The result is not the
    second derivative, so full steps may overshoot repeatedly. Therefore a Levenberg term, a
    multiple of the identity, is added. It rises after a shortened step and falls after a full step.
    """

    max_iter: int = 100
    tol: float = 1e-5
    max_cg: int = 250
    block: bool = False
    n_jobs: int | None = None
    needs = (SCORES, LOSS, TWICE, NO_L1)

    def minimise(
        self, objective: Objective, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta."""
        check(self, objective)
        value, gradient = objective.value_and_grad(theta)
        dual = objective.dual
        first = norm = _norm(gradient, dual)
        stalled, damping = Stall(self.tol, 3), 0.0
        for iteration in range(1, self.max_iter + 1):
            if norm == 0.0 or objective.gap(theta, gradient) <= self.tol * abs(value):
                return Minimum(theta, value, gradient, iteration - 1, True)
            curvature = objective.curvature(theta, block=self.block)
            direction = conjugate_gradients(
                partial(_damped, curvature, damping),
                -gradient,
                dual=dual,
                # increasing accuracy: the error of a step is its size to the power 3/2
                tol=min(0.5, np.sqrt(norm / first)),
                max_iter=self.max_cg,
            ).x
            slope = dot(direction, dual(gradient))
            if slope >= 0.0:  # rounding errors: no gain is left
                return halt(theta, value, gradient, iteration - 1, objective.gap(theta, gradient))
            # Armijo's rule: the value must fall in proportion to the slope
            found = wolfe_step(
                objective, theta, value, direction, slope, 1.0, curvature=np.inf, max_tries=30
            )
            if found is None:  # the value cannot be lowered in floating point
                return halt(theta, value, gradient, iteration - 1, objective.gap(theta, gradient))
            new, value, gradient = found
            damping = self._damping(damping, theta, new, direction, slope, dual)
            theta, norm = new, _norm(gradient, dual)
            if callback is not None and callback(Step(iteration, theta, value)):
                return Minimum(theta, value, gradient, iteration, True)
            if stalled(value):
                gap = objective.gap(theta, gradient)
                if stalled.ends(value, gap):
                    return halt(theta, value, gradient, iteration, gap)
        return Minimum(theta, value, gradient, self.max_iter, False)

    def _damping(
        self,
        damping: float,
        old: Floats,
        new: Floats,
        direction: Floats,
        slope: float,
        dual: Callable[[Floats], Floats],
    ) -> float:
        """The Levenberg term of the next step."""
        towards = dual(direction)
        square = float(dot(direction, towards))
        cut = dot(new - old, towards) < 0.9 * square
        # the curvature along the direction, according to the model: d' H d = -slope
        own = -slope / square
        if cut:
            return max(DAMPING * damping, 0.25 * own)
        return damping / DAMPING if damping > 1e-3 * own else 0.0


def _damped(curvature: Callable[[Floats], Floats], damping: float, v: Floats) -> Floats:
    return curvature(v) + damping * v


def _norm(v: Floats, dual: Callable[[Floats], Floats]) -> float:
    # in a singular inner product, the square of a vector of rounding errors may be below 0
    return float(np.sqrt(max(0.0, dot(v, dual(v)))))
