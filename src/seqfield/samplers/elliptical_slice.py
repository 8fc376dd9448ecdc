"""Elliptical slice sampling (Murray, Adams and MacKay 2010) of Gaussian-process scores.

theta = [b | B] ~ N(0, I) gives the scores F = root b and T = sqrt(eta) B. A step draws nu from the
prior. On the ellipse theta cos a + nu sin a it looks for a point whose likelihood is above a random
share of the present likelihood. The bracket of angles shrinks until such a point is found. No step
is rejected, and there is nothing to tune.

Scores move along the ellipse as theta does. So only the product root nu uses the covariance, and it
is computed for many steps at once. The score of the gold labels is linear. The remaining work for
an angle is one exponential for each score and one forward pass. No sequence can add to the
log-likelihood, so an angle is given up at the first sequence that brings the sum below the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqfield.chain import _numba_total
from seqfield.objectives.needs import LOG_LIKELIHOOD, NO_PRIOR, ROOTED, check
from seqfield.objectives.problems import WhitenedProblem
from seqfield.samplers._base import Draws, Move, Plan, run_chains
from seqfield.solvers._base import Callback, Floats

#: numbers in the prior draws that are made at once: 16 MiB as float32
BLOCK = 2**22
#: the largest number of angles tried in a step: by then the bracket is the present point
SHRINKS = 100


@dataclass(frozen=True)
class EllipticalSlice:
    """Chains of ``plan``, each with random numbers of its own."""

    plan: Plan
    seed: int = 0
    n_jobs: int | None = None
    needs = (ROOTED, LOG_LIKELIHOOD, NO_PRIOR)

    @property
    def max_iter(self) -> int:
        """Steps of all chains."""
        return self.plan.n_steps * self.plan.n_chains

    def sample(self, problem: WhitenedProblem, callback: Callback | None = None) -> Draws:
        """Draw."""
        check(self, problem)
        # threads belong to the chains
        goal = problem if self.plan.n_chains == 1 else problem.on_one_thread()
        chains = [
            Walk(goal, np.random.default_rng([self.seed, k])) for k in range(self.plan.n_chains)
        ]
        return run_chains(
            self.plan, chains, lambda chain: chain.moves(self.plan.n_steps), callback, self.n_jobs
        )


class Walk:
    """The state of one chain."""

    def __init__(self, problem: WhitenedProblem, rng: np.random.Generator) -> None:
        architecture = problem.architecture
        self.rng, self.root = rng, architecture.root
        self.s, self.root_eta = architecture.n_labels, architecture.root_eta
        self.has_steps = architecture.root_eta > 0
        self.likelihood = Likelihood(problem)
        # a prior draw rounded to float32 is a draw from a prior that differs by 1e-7
        self.quick = np.ascontiguousarray(self.root.T, dtype=np.float32)
        self.cut = self.root.shape[1] * self.s
        self.n_parameters = architecture.n_parameters

    @property
    def n_evaluations(self) -> int:
        """Number of evaluated likelihoods."""
        return self.likelihood.n_evaluations

    def _scores(self, theta: Floats) -> tuple[Floats, Floats]:
        """F and T."""
        f = self.root @ theta[: self.cut].reshape(-1, self.s)
        return np.ascontiguousarray(f), self._steps(theta)

    def _steps(self, theta: Floats) -> Floats:
        if not self.has_steps:
            return np.zeros((self.s, self.s))
        return np.asarray(self.root_eta * theta[self.cut :].reshape(self.s, self.s))

    def moves(self, n_steps: int, theta: Floats | None = None) -> Iterator[Move]:
        """Steps from theta, or from a draw of the prior."""
        theta = self.rng.normal(size=self.n_parameters) if theta is None else theta.copy()
        f, steps = self._scores(theta)
        now = self.likelihood.at(f, steps)
        at_once = max(1, BLOCK // (max(self.root.shape) * self.s))
        for begin in range(0, n_steps, at_once):
            k = min(at_once, n_steps - begin)
            z = self.rng.standard_normal((k, self.n_parameters), dtype=np.float32)
            wide = z[:, : self.cut].reshape(k, -1, self.s).transpose(0, 2, 1)
            # (k, S, n): the scores of one draw lie together
            nus = (wide.reshape(-1, self.root.shape[1]) @ self.quick).reshape(k, self.s, -1)
            for nu, other in zip(nus, z, strict=True):
                other_steps = self._steps(other)
                a, b, now = self._angle(f, nu, steps, other_steps, now)
                theta *= a
                theta += b * other
                steps = a * steps + b * other_steps
                _numba_total.turn(f, nu, a, b)
                yield Move(theta, now)
            f, steps = self._scores(theta)  # computed again, to remove rounding errors

    def _angle(
        self, f: Floats, nu: Any, steps: Floats, other: Floats, now: float
    ) -> tuple[float, float, float]:
        """cos and sin of the accepted angle, and the log-likelihood there."""
        level = now + math.log(1.0 - self.rng.random())
        a, b, value = self.likelihood.slice(f, nu, steps, other, level, self.rng.random(SHRINKS))
        return (1.0, 0.0, now) if math.isnan(value) else (a, b, value)


class Likelihood:
    """sum_i w_i log p(y_i | F, T) by the values F (n, S) at the distinct tokens."""

    def __init__(self, problem: WhitenedProblem) -> None:
        # for what the quick form is not made for
        self.exact = problem.table
        targets, s = self.exact.targets, problem.architecture.n_labels
        self.rows, self.n_evaluations = problem.rows, 0
        self.constrained = self.exact.constraint is not None
        self.labels, self.offsets = targets.codes, targets.offsets
        self.held = np.zeros((0, s), np.bool_) if targets.allowed is None else targets.allowed
        size = (int(np.diff(self.offsets).max()), s)
        room = np.empty(size), np.empty(size[0] * s, np.int64)
        self.chains = (self.offsets, self.exact.weights, *room)
        self.by_token = (np.empty((len(self.rows), s)), np.empty((len(self.rows), s), np.float32))

    def at(self, f: Floats, steps: Floats) -> float:
        """The log-likelihood."""
        return self.along(f, np.zeros(f.shape[::-1], np.float32), steps, steps)(1.0, 0.0)

    def along(
        self, f: Floats, g: Any, steps: Floats, other: Floats
    ) -> Callable[[float, float], float]:
        """The log-likelihood of a F + b G', a T + b U, as a function of a and b."""
        scores, known = self._line(f, g, steps, other)

        def value(a: float, b: float) -> float:
            self.n_evaluations += 1
            edge, found = a * steps + b * other, np.nan
            if not self.constrained:
                found = _numba_total.log_likelihood(*scores, a, b, edge, *known, -np.inf)
            if np.isnan(found):
                theta = np.concatenate([(a * f + b * g.T).ravel(), edge.ravel()])
                found = -self.exact.value(theta)
            return float(found)

        return value

    def slice(
        self, f: Floats, g: Any, steps: Floats, other: Floats, level: float, uniforms: Floats
    ) -> tuple[float, float, float]:
        """cos and sin of the first angle of a shrinking bracket whose log-likelihood is above the
        level, and the log-likelihood; NaN if the uniforms run out."""
        if not self.constrained:
            scores, known = self._line(f, g, steps, other)
            a, b, value, n = _numba_total.slice_angle(
                *scores, steps, other, *known, level, uniforms
            )
            if not math.isnan(value):
                self.n_evaluations += n
                return a, b, value
        along = self.along(f, g, steps, other)
        angle = 2.0 * math.pi * float(uniforms[0])
        low, high = angle - 2.0 * math.pi, angle
        for u in uniforms[1:].tolist():
            a, b = math.cos(angle), math.sin(angle)
            value = along(a, b)
            if value > level:
                return a, b, value
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = low + (high - low) * u
        return 1.0, 0.0, math.nan

    def _line(
        self, f: Floats, g: Any, steps: Floats, other: Floats
    ) -> tuple[tuple[Any, Any], tuple[Any, Any, Any]]:
        """F and G' by token, the known labels, and the chains."""
        _numba_total.by_token(f, g, self.rows, *self.by_token)
        path = np.zeros((0, 2))
        if not len(self.held):
            ends = (steps, other, self.labels, self.offsets)
            path = _numba_total.path_scores(*self.by_token, *ends)
        return self.by_token, (path, self.held, self.chains)
