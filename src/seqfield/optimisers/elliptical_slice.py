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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.lookup import Lookup
from seqfield.chain import _numba_total
from seqfield.optimisers._base import Callback, Floats, Result, require
from seqfield.optimisers._sampling import Move, Plan, for_chains, run_chains
from seqfield.priors import ElasticNet

#: numbers in the prior draws that are made at once: 16 MiB as float32
BLOCK = 2**22
#: a bracket narrower than this has shrunk to the present point
NARROW = 1e-12


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
        along = self.likelihood.along(f, nu, steps, other)
        level = now + math.log(1.0 - self.rng.random())
        angle = 2.0 * math.pi * self.rng.random()
        low, high = angle - 2.0 * math.pi, angle
        while high - low > NARROW:
            a, b = math.cos(angle), math.sin(angle)
            value = along(a, b)
            if value > level:
                return a, b, value
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = low + (high - low) * self.rng.random()
        return 1.0, 0.0, now


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
        self.free = _places(np.arange(n), rows, np.zeros((0, s), np.bool_), s)
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
        return self.along(f, np.zeros_like(f.T), steps, steps)(1.0, 0.0)

    def along(
        self, f: Floats, g: Any, steps: Floats, other: Floats
    ) -> Callable[[float, float], float]:
        """The log-likelihood of a F + b G', a T + b U, as a function of a and b."""
        if self.allowed is None:
            gold = float(np.vdot(self.counts, f) + np.vdot(self.pairs, steps))
            beyond = float(np.vdot(self.counts, g.T) + np.vdot(self.pairs, other))

        def value(a: float, b: float) -> float:
            self.n_evaluations += 1
            edge = a * steps + b * other
            free = np.nan if self.constrained else self._log_z(self.free, f, g, edge, a, b)
            if np.isnan(free):
                theta = np.concatenate([(a * f + b * g.T).ravel(), edge.ravel()])
                return -float(self.exact.value(theta))
            if self.allowed is None:
                return a * gold + b * beyond - free
            return self._log_z(self.held, f, g, edge, a, b) - free

        return value

    def _log_z(self, places: Places, f: Floats, g: Any, edge: Floats, a: float, b: float) -> float:
        rows, index, allowed, w, largest = places
        _numba_total.exponents(f, g, a, b, rows, allowed, w, largest)
        np.exp(w, out=w)
        return float(_numba_total.total_log_z(w, largest, index, edge, self.offsets, self.weights))


class Places(NamedTuple):
    """Rows of the table that are exponentiated, which of them each token has, the labels they may
    have, and room for the result."""

    rows: NDArray[np.int64]
    at: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    w: Floats
    largest: Floats


def _places(rows: Any, index: Any, allowed: Any, n_labels: int) -> Places:
    return Places(rows, index, allowed, np.empty((len(rows), n_labels)), np.empty(len(rows)))


def _counts(rows: Any, columns: Any, weights: Floats, shape: tuple[int, int]) -> Floats:
    flat = np.bincount(rows * shape[1] + columns, weights, shape[0] * shape[1])
    return flat.astype(np.float64).reshape(shape)
