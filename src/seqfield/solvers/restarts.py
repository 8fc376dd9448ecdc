"""Perturbed restarts around another optimiser, for objectives that are not convex.

Needs what the inner optimiser needs. As in Altun (2005, 2.4): start again from a point slightly
and randomly off the best one until the value does not improve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqfield.solvers._base import Callback, Floats, Result, Step


@dataclass(frozen=True)
class Restarts:
    """At most ``n`` restarts; the result is never worse than that of the first run.

    The noise on each weight is normal with ``scale`` times the root mean square weight.
    """

    inner: Any
    n: int = 1
    scale: float = 0.1
    seed: int = 0

    @property
    def max_iter(self) -> int:
        """Iterations of all runs together, at most."""
        return int(self.inner.max_iter) * (1 + self.n)

    def minimise(self, objective: Any, theta: Floats, callback: Callback | None = None) -> Result:
        """Minimise from theta."""
        rng, done, stopped = np.random.default_rng(self.seed), 0, False

        def onward(step: Step) -> bool:
            nonlocal stopped
            stopped = callback is not None and callback(
                Step(done + step.iteration, step.theta, step.value)
            )
            return stopped

        best: Result = self.inner.minimise(objective, theta, onward)
        done = best.n_iter
        for _ in range(self.n):
            if stopped:
                break
            spread = self.scale * np.sqrt(np.mean(best.theta**2))
            near = best.theta + spread * rng.normal(size=len(theta)) * (best.theta != 0.0)
            again: Result = self.inner.minimise(objective, near, onward)
            done += again.n_iter
            gain = best.value - again.value
            if gain > 0.0:
                best = again
            if gain <= self.inner.tol * abs(best.value):
                break
        return best._replace(n_iter=done)
