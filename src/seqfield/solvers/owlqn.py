"""OWL-QN (Andrew and Gao 2007): L-BFGS for a smooth objective plus c1 |theta|_1.

The quadratic model uses gradients of the smooth part. Each step stays in one orthant, which the
pseudo-gradient determines. So weights become exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqfield.linalg.vectors import dot
from seqfield.objectives.needs import LOSS, PLAIN, SCORES, check
from seqfield.solvers._base import (
    Callback,
    Floats,
    History,
    Minimum,
    Penalised,
    Solver,
    Stall,
    Step,
    halt,
    history_size,
)


@dataclass(frozen=True)
class OWLQN(Solver):
    """Orthant-wise limited-memory quasi-Newton method. The rules to stop are those of `LBFGS`."""

    max_iter: int = 500
    tol: float = 1e-5
    memory: int | None = None
    n_jobs: int | None = None
    max_tries: int = 40
    needs = (SCORES, LOSS, PLAIN)

    def minimise(
        self, objective: Penalised, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta."""
        check(self, objective)

        def total(smooth: float, at: Floats) -> float:
            return smooth + float(objective.l1 * np.abs(at).sum())

        smooth, gradient = objective.value_and_grad(theta)
        value = total(smooth, theta)
        history, stalled = (
            History(self.memory or history_size(len(theta)), len(theta), self.n_jobs),
            Stall(self.tol),
        )
        for iteration in range(1, self.max_iter + 1):
            if objective.gap(theta, gradient) <= self.tol * abs(value):
                return Minimum(theta, value, gradient, iteration - 1, True)
            pseudo = objective.pseudo_gradient(theta, gradient)
            if not pseudo.any():
                return Minimum(theta, value, gradient, iteration - 1, True)
            direction = history.direction(pseudo)
            direction[direction * pseudo >= 0.0] = 0.0
            if not direction.any():
                history.clear()
                direction = -pseudo
            orthant = np.where(theta != 0.0, np.sign(theta), -np.sign(pseudo))
            step = 1.0 if len(history) else 1.0 / float(np.sqrt(dot(direction, direction)))
            for _ in range(self.max_tries):
                new = theta + step * direction
                new[new * orthant < 0.0] = 0.0
                smooth, new_gradient = objective.value_and_grad(new)
                new_value = total(smooth, new)
                if new_value <= value + 1e-4 * dot(pseudo, new - theta):
                    break
                step *= 0.5
            else:  # the value cannot be lowered in floating point
                gap = objective.gap(theta, gradient)
                if stalled.ends(value, gap, fresh=not len(history)):
                    return halt(theta, value, gradient, iteration - 1, gap)
                history.clear()  # pairs from other points may mislead here
                continue
            history.push(new, theta, new_gradient, gradient)
            theta, value, gradient = new, new_value, new_gradient
            if callback is not None and callback(Step(iteration, theta, value)):
                return Minimum(theta, value, gradient, iteration, True)
            if stalled(value):
                gap = objective.gap(theta, gradient)
                if stalled.ends(value, gap):
                    return halt(theta, value, gradient, iteration, gap)
        return Minimum(theta, value, gradient, self.max_iter, False)
