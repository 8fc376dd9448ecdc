"""Stochastic gradients with per-weight steps (AdaGrad, Duchi et al. 2011), for large data.

A batch names the weights that it touches. So the cost of a step depends on the batch, not on the
size of the model. The step size falls linearly to zero over the planned epochs, so the last iterate
needs no averaging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqfield._compile import loop
from seqfield.objectives.needs import ADDITIVE, LOSS, NO_L1, SCORES, TOUCHES, check
from seqfield.objectives.objective import Objective
from seqfield.solvers._base import Callback, Floats, Minimum, Solver, Step


@dataclass(frozen=True)
class SGD(Solver):
    """AdaGrad on minibatches of sequences. Each epoch shuffles the order again, from the seed.

    Threads differentiate ``group`` batches at the same weights. Then the steps of these batches are
    taken in order. So the result does not depend on the number of threads.

    ``max_iter`` is the number of epochs. All epochs run unless the callback stops the solver. A
    noisy value says little about convergence, so ``converged`` is true after the last epoch.
    """

    max_iter: int = 20
    batch_size: int = 32
    group: int = 2
    step_size: float = 1.0
    seed: int = 0
    needs = (SCORES, LOSS, TOUCHES, ADDITIVE, NO_L1)

    def minimise(
        self, objective: Objective, theta: Floats, callback: Callback | None = None
    ) -> Minimum:
        """Minimise from theta."""
        check(self, objective)
        rng = np.random.default_rng(self.seed)
        batches = objective.batches(self.batch_size, rng)
        theta, squares = theta.copy(), np.zeros_like(theta)
        planned, done, epoch = self.max_iter * len(batches), 0, 0
        for epoch in range(1, self.max_iter + 1):
            value = 0.0
            order = rng.permutation(len(batches))
            for first in range(0, len(order), self.group):
                group = [batches[k] for k in order[first : first + self.group]]
                for part in objective.batch_gradients(theta, group):
                    value += part.value
                    rate = self.step_size * (1.0 - done / planned)
                    adagrad_step(theta, squares, *(*part[1:], rate))
                    done += 1
            if callback is not None and callback(Step(epoch, theta, value)):
                break
        total, gradient = objective.value_and_grad(theta)
        return Minimum(theta, total, gradient, epoch, True)


@loop
def adagrad_step(
    theta: Any, squares: Any, touched: Any, gradient: Any, penalty: Any, rate: Any
) -> None:
    """Take one AdaGrad step on the touched weights.

    g = gradient + penalty theta, squares += g^2, theta -= rate g / sqrt(squares).
    """
    for k in range(touched.shape[0]):
        w = touched[k]
        g = gradient[k] + penalty[k] * theta[w]
        if g != 0.0:
            squares[w] += g * g
            theta[w] -= rate * g / np.sqrt(squares[w])
