"""Stochastic gradients with per-parameter steps (Adam, Kingma and Ba 2015), for large data.

Needs ``batches`` and ``batch_value_and_grad``. The step falls linearly to zero over the planned
epochs, so the last iterate needs no averaging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqfield.optimisers._base import Callback, Floats, Result, Step, require


@dataclass(frozen=True)
class SGD:
    """Adam on minibatches of sequences, shuffled in each epoch by the seed.

    ``max_iter`` counts epochs. All epochs are run unless the callback stops: a noisy value says
    little about convergence, so ``converged`` is true at the end of the plan.
    """

    max_iter: int = 20
    batch_size: int = 32
    step_size: float = 0.05
    seed: int = 0
    needs = ("value_and_grad", "batches", "batch_value_and_grad")

    def minimise(self, objective: Any, theta: Floats, callback: Callback | None = None) -> Result:
        """Minimise from theta."""
        require("SGD", objective, self.needs)
        rng = np.random.default_rng(self.seed)
        theta = theta.copy()
        first, second = np.zeros_like(theta), np.zeros_like(theta)
        b1, b2, done, epoch = 0.9, 0.999, 0, 0
        for epoch in range(1, self.max_iter + 1):
            batches = objective.batches(self.batch_size, rng)
            value = 0.0
            for batch in batches:
                part, gradient = objective.batch_value_and_grad(theta, batch)
                value += part
                done += 1
                rate = self.step_size * (1.0 - (done - 1) / (self.max_iter * len(batches)))
                # m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2, both in place
                first += (1.0 - b1) * (gradient - first)
                np.square(gradient, out=gradient)
                second += (1.0 - b2) * (gradient - second)
                scale = rate * np.sqrt(1.0 - b2**done) / (1.0 - b1**done)
                theta -= scale * first / (np.sqrt(second) + 1e-8)
            if callback is not None and callback(Step(epoch, theta, value)):
                break
        total, gradient = objective.value_and_grad(theta)
        return Result(theta, total, gradient, epoch, True)
