"""Elliptical slice sampling (Murray, Adams and MacKay 2010) of Gaussian-process scores.

theta = [b | B] ~ N(0, I) stands for scores F = root b and T = sqrt(eta) B. A step draws nu from the
prior and looks for a point theta cos a + nu sin a on their ellipse whose likelihood is above a
random share of the present one, shrinking the bracket of angles: no step is ever rejected and
there is nothing to tune.

Scores go along the ellipse as theta does: the product root nu, made for many steps at once, is all
that touches the covariance, and the gold path's score is linear. What is left for each angle is
one exponential a score and one forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqfield.architectures.lookup import Lookup
from seqfield.chain import _numba_total
from seqfield.optimisers._base import Callback, Floats, Result, require
from seqfield.optimisers._sampling import Move, Plan, for_chains, run_chains
from seqfield.priors import ElasticNet

#: numbers in the prior draws that are made at once: 16 MiB as float32
BLOCK = 2**22
#: angles that are looked at in one step at most: by then the bracket is the present point
SHRINKS = 100


@dataclass(frozen=True)
class EllipticalSlice:
    """Chains of ``plan``, each with random numbers of its own.

    Needs ``problem`` of an objective over `architectures.rooted.Rooted`.
    """

    plan: Plan
    seed: int = 0
    n_jobs: int | None = None
    needs = ("problem", "over")

    @property
    def max_iter(self) -> int:
        """Steps of all chains."""
        return self.plan.n_steps * self.plan.n_chains

    def minimise(self, objective: Any, theta: Floats, callback: Callback | None = None) -> Result:
        """Draw; the result's trace holds `Draws`, its theta is the mean of them."""
        require("elliptical slice sampling", objective, self.needs)
        goal = for_chains(objective, self.plan.n_chains)
        chains = [
            Walk(goal, np.random.default_rng([self.seed, k])) for k in range(self.plan.n_chains)
        ]
        return run_chains(
            self.plan, chains, lambda chain: chain.moves(self.plan.n_steps), callback, self.n_jobs
        )


class Walk:
    """The state of one chain."""

    def __init__(self, objective: Any, rng: np.random.Generator) -> None:
        architecture = objective.architecture
        self.rng, self.root = rng, architecture.root
        self.s, self.root_eta = architecture.n_labels, architecture.root_eta
        self.has_steps = architecture.root_eta > 0
        self.likelihood = Likelihood(objective)
        # a prior draw rounded to float32 is a draw from a prior that differs by 1e-7
        self.quick = np.ascontiguousarray(self.root.T, dtype=np.float32)
        self.cut = self.root.shape[1] * self.s
        self.n_parameters = architecture.n_parameters

    @property
    def n_evaluations(self) -> int:
        """Likelihoods looked at."""
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
            f, steps = self._scores(theta)  # what rounding has taken apart

    def _angle(
        self, f: Floats, nu: Any, steps: Floats, other: Floats, now: float
    ) -> tuple[float, float, float]:
        """cos and sin of the accepted angle, and the log-likelihood there."""
        level = now + math.log(1.0 - self.rng.random())
        a, b, value = self.likelihood.slice(f, nu, steps, other, level, self.rng.random(SHRINKS))
        return (1.0, 0.0, now) if math.isnan(value) else (a, b, value)


class Likelihood:
    """sum_i w_i log p(y_i | F, T) by the values F (n, S) at the distinct tokens."""

    def __init__(self, objective: Any) -> None:
        problem = objective.problem()
        rows, targets = problem.tables.rows, problem.targets
        self.n_evaluations, s = 0, objective.architecture.n_labels
        self.weights, self.offsets = problem.weights, targets.offsets
        n = len(problem.tables.root)
        # for what the quick form is not made for
        self.exact = objective.over(Lookup(s, n), ElasticNet(0.0, 0.0))
        self.constrained = problem.constraint is not None
        self.allowed = targets.allowed
        self.free = self.held = _places(np.arange(n), rows, np.zeros((0, s), np.bool_), s)
        if self.allowed is None:
            # the gold path's score is <counts, F> + <pairs, T>
            per_token = np.repeat(self.weights, np.diff(self.offsets))
            self.counts = _counts(rows, targets.codes, per_token, (n, s))
            at = np.delete(np.arange(len(rows)), self.offsets[:-1])
            self.pairs = _counts(targets.codes[at - 1], targets.codes[at], per_token[at], (s, s))
        else:
            self.held = _places(rows, np.arange(len(rows)), self.allowed, s)

    def at(self, f: Floats, steps: Floats) -> float:
        """The log-likelihood."""
        return self.along(f, np.zeros(f.shape[::-1], np.float32), steps, steps)(1.0, 0.0)

    def along(
        self, f: Floats, g: Any, steps: Floats, other: Floats
    ) -> Callable[[float, float], float]:
        """The log-likelihood of a F + b G', a T + b U, as a function of a and b."""
        known = self._known(f, g, steps, other)

        def value(a: float, b: float) -> float:
            self.n_evaluations += 1
            edge, rest = a * steps + b * other, (self.offsets, self.weights)
            free = np.nan
            if not self.constrained:
                free = _numba_total.log_z_of(*(f, g, a, b, edge, self.free, *rest))
            if np.isnan(free):
                theta = np.concatenate([(a * f + b * g.T).ravel(), edge.ravel()])
                return -float(self.exact.value(theta))
            if len(known):
                return float(a * known[0] + b * known[1] - free)
            return float(_numba_total.log_z_of(*(f, g, a, b, edge, self.held, *rest)) - free)

        return value

    def slice(
        self, f: Floats, g: Any, steps: Floats, other: Floats, level: float, uniforms: Floats
    ) -> tuple[float, float, float]:
        """cos and sin of the first angle of a shrinking bracket where the log-likelihood is above
        the level, and its value; NaN if the uniforms come to an end."""
        if not self.constrained:
            known = self._known(f, g, steps, other)
            rest = (self.free, self.held, self.offsets, self.weights, level, uniforms)
            a, b, value, n = _numba_total.slice_angle(*(f, g, steps, other, known, *rest))
            self.n_evaluations += n
            if not math.isnan(value):
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

    def _known(self, f: Floats, g: Any, steps: Floats, other: Floats) -> Floats:
        """The scores of the known labels by F, T and by G', U; none if some are not known."""
        if self.allowed is not None:
            return np.zeros(0)
        return np.array(
            [
                np.vdot(self.counts, f) + np.vdot(self.pairs, steps),
                np.vdot(self.counts, g.T) + np.vdot(self.pairs, other),
            ]
        )


def _places(rows: Any, index: Any, allowed: Any, n_labels: int) -> tuple[Any, ...]:
    """What `_numba_total.log_z_of` wants of a table of scores."""
    room = np.empty((len(rows), n_labels))
    return rows, index, allowed, room, np.empty(len(rows)), np.empty(room.size, np.int64)


def _counts(rows: Any, columns: Any, weights: Floats, shape: tuple[int, int]) -> Floats:
    flat = np.bincount(rows * shape[1] + columns, weights, shape[0] * shape[1])
    return flat.astype(np.float64).reshape(shape)
