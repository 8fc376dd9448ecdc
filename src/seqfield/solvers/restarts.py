"""Perturbed restarts around another solver, for objectives that are not convex.

The needs are those of the inner solver. The method is that of Altun (2005, 2.4). Each restart
begins at a small random distance from the best point. Restarts end when the value does not improve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from seqfield.objectives.needs import Need
from seqfield.objectives.objective import Objective
from seqfield.solvers._base import Callback, Floats, Minimum, Solver, Step


class Tolerant(Protocol):
    """A solver with a relative tolerance and a largest number of iterations."""

    # a property in place of the attribute: both follow from the inner solver
    @property
    def max_iter(self) -> int:
        """Largest number of iterations."""
        ...

    @property
    def tol(self) -> float:
        """Relative tolerance: the share of the value that a run may leave."""
        ...

    @property
    def needs(self) -> tuple[Need, ...]:
        """Requirements on architecture, loss and prior."""
        ...

    def minimise(
        self, objective: Objective, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta."""
        ...


@dataclass(frozen=True)
class Restarts(Solver):
    """At most ``n`` restarts. The result is never worse than the result of the first run.

    The noise on each weight is normal. Its standard deviation is ``scale`` times the root mean
    square weight.
    """

    inner: Tolerant
    n: int = 1
    scale: float = 0.1
    seed: int = 0

    @property
    def max_iter(self) -> int:  # type: ignore[override]
        """Largest number of iterations of all runs together."""
        return self.inner.max_iter * (1 + self.n)

    @property
    def needs(self) -> tuple[Need, ...]:  # type: ignore[override]
        """The needs of the inner solver."""
        return self.inner.needs

    def minimise(
        self, objective: Objective, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta."""
        rng, done, stopped = np.random.default_rng(self.seed), 0, False

        def onward(step: Step) -> bool:
            nonlocal stopped
            stopped = callback is not None and callback(
                Step(done + step.iteration, step.theta, step.value)
            )
            return stopped

        best = self.inner.minimise(objective, theta, onward)
        done = best.n_iter
        for _ in range(self.n):
            if stopped:
                break
            spread = self.scale * np.sqrt(np.mean(best.theta**2))
            near = best.theta + spread * rng.normal(size=len(theta)) * (best.theta != 0.0)
            again = self.inner.minimise(objective, near, onward)
            done += again.n_iter
            gain = best.value - again.value
            if gain > 0.0:
                best = again
            if gain <= self.inner.tol * abs(best.value):
                break
        return best._replace(n_iter=done)
