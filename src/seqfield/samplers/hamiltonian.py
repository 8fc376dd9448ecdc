"""Hamiltonian Monte Carlo and NUTS for posteriors with the prior N(0, I).

The energy is -log p(y | theta) + |theta|^2 / 2 + |p|^2 / 2. Without the likelihood, the motion is a
rotation of (theta, p), which is computed exactly. The likelihood kicks p before and after the
rotation (Shahbaba et al. 2014). So only the likelihood limits the step size. Parameters of which
the data say nothing do not.

During burn-in, dual averaging tunes the step size so that a share ``accept`` of proposals is
accepted (Hoffman and Gelman 2014). If the burn-in is too short for that, extra steps come before
it; they are not recorded. Tuning is needed: from a draw of the prior, a step of any size goes
downhill. An untuned step is then far too large near the posterior, and the chain does not move any
more.

The chains of HMC run side by side, with paths of the same random length. A gradient costs a product
with the root of the covariance, which is read once for all chains. NUTS doubles a path until it
turns back, and takes a point of it with the probability of its energy. Its chains run on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqfield.objectives.needs import (
    LIFTS_MANY,
    LIKELIHOOD,
    LOSS,
    NO_PRIOR,
    PLAIN,
    SCORES,
    check,
)
from seqfield.objectives.objective import Objective
from seqfield.samplers._base import Draws, Move, Plan, Recorder, Teller, joined, run_chains
from seqfield.solvers._base import Callback, Floats

#: a path diverges if its energy is this far above the first one
ASTRAY = 1000.0
#: doublings of a path of NUTS; they limit the steps of a path of HMC too
DEPTH = 8
#: the least number of steps for tuning the step size
TUNED = 20
#: the longest path of HMC: a quarter of the prior's period, after which nothing of the start is
#: left
LENGTH = np.pi / 2


class Energy(Protocol):
    """Minus a log-likelihood with its gradient; an `Objective` without prior is one."""

    def value_and_grad(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        ...


class Energies(Protocol):
    """The same at several points at once."""

    def each_value_and_grad(self, thetas: Floats) -> tuple[Floats, Floats]:
        """Values (k,) and gradients (k, n_parameters)."""
        ...


class Point(NamedTuple):
    """A point in phase space, with minus the log-likelihood and its gradient."""

    theta: Floats
    p: Floats
    loss: float
    gradient: Floats

    @property
    def energy(self) -> float:
        """Minus the log of the joint density."""
        return self.loss + 0.5 * float(self.theta @ self.theta + self.p @ self.p)


class Points(NamedTuple):
    """Points in phase space of several chains, one in each row."""

    theta: Floats
    p: Floats
    loss: Floats
    gradient: Floats

    @property
    def energies(self) -> Floats:
        """Minus the log of each joint density."""
        return np.asarray(self.loss + 0.5 * (self.theta**2 + self.p**2).sum(axis=1))


class Path(NamedTuple):
    """A part of a trajectory: its ends, a point drawn from it, the log of its summed weights, the
    sum of its momenta, whether it turned or diverged, and the acceptance of its steps."""

    left: Point
    right: Point
    chosen: Point
    log_weight: float
    rho: Floats
    ended: bool
    accept: float
    n_steps: int


P = TypeVar("P", Point, Points)


@dataclass(frozen=True)
class Hamiltonian:
    """Chains of ``plan`` with paths of random length, a `LENGTH` at most."""

    plan: Plan
    seed: int = 0
    accept: float = 0.8
    needs = (SCORES, LIFTS_MANY, PLAIN, LOSS, LIKELIHOOD, NO_PRIOR)

    @property
    def max_iter(self) -> int:
        """Steps of all chains."""
        return self.plan.n_steps * self.plan.n_chains

    def sample(self, objective: Objective, callback: Callback | None = None) -> Draws:
        """Draw from exp(-loss) N(theta; 0, I)."""
        check(self, objective)
        return self.draw(objective, objective.architecture.n_parameters, callback)

    def draw(self, goal: Energies, size: int, callback: Callback | None = None) -> Draws:
        """The same for any energy of ``size`` parameters."""
        n, chains = self.plan.n_chains, _SideBySide(goal, self.seed, self.accept)
        keepers = [Recorder(self.plan, k) for k in range(n)]
        told = Teller(callback)
        for moves in chains.moves((n, size), self.plan):
            for keep, move in zip(keepers, moves, strict=True):
                keep(move)
            stops = [told(move) for move in moves]
            if any(stops):
                break
        found = [keep.chain for keep in keepers]
        return joined(found, n * chains.n_evaluations, self.max_iter)


class _SideBySide:
    """Chains as rows of theta and p (n, P)."""

    def __init__(self, goal: Energies, seed: int, accept: float) -> None:
        self.goal, self.accept = goal, accept
        self.rng = np.random.default_rng(seed)
        self.n_evaluations = 0

    def moves(self, shape: tuple[int, int], plan: Plan) -> Iterator[list[Move]]:
        """Steps from draws of the prior."""
        here = self._at(self.rng.normal(size=shape), np.zeros(shape))
        tuning = StepSize(self._first_step(here), self.accept)
        for step in range(first_tuned(plan), plan.n_steps):
            here = here._replace(p=self.rng.normal(size=shape))
            burning = step < plan.n_burnt
            here, accept = self._path(here, tuning.trial if burning else tuning.final)
            if burning:
                tuning.learn(accept)
            if step >= 0:
                yield [Move(*one) for one in zip(here.theta, -here.loss, strict=True)]

    def _at(self, theta: Floats, p: Floats) -> Points:
        self.n_evaluations += 1
        return Points(theta, p, *self.goal.each_value_and_grad(theta))

    def _path(self, start: Points, size: float) -> tuple[Points, float]:
        """A path of random length, accepted or not by each chain; and the mean acceptance."""
        n = max(1, min(2**DEPTH, round(self.rng.uniform(0.2, 1.0) * LENGTH / size)))
        end = start
        for _ in range(n):
            end = rotated(end, size, self._at)
        gain = start.energies - end.energies
        shares = np.where(gain > -ASTRAY, np.exp(np.minimum(gain, 0.0)), 0.0)
        taken = self.rng.random(len(shares)) < shares
        return Points(*(_either(taken, *parts) for parts in zip(end, start, strict=True))), float(
            shares.mean()
        )

    def _first_step(self, start: Points) -> float:
        start = start._replace(p=self.rng.normal(size=start.theta.shape))
        return first_step(
            lambda size: float(np.median(start.energies - rotated(start, size, self._at).energies))
        )


def _either(taken: NDArray[np.bool_], new: Floats, old: Floats) -> Floats:
    return np.where(taken.reshape(-1, *([1] * (new.ndim - 1))), new, old)


@dataclass(frozen=True)
class NoUTurn:
    """NUTS: chains of ``plan`` whose paths end where they turn."""

    plan: Plan
    seed: int = 0
    n_jobs: int | None = None
    accept: float = 0.8
    needs = (SCORES, PLAIN, LOSS, LIKELIHOOD, NO_PRIOR)

    @property
    def max_iter(self) -> int:
        """Steps of all chains."""
        return self.plan.n_steps * self.plan.n_chains

    def sample(self, objective: Objective, callback: Callback | None = None) -> Draws:
        """Draw from exp(-loss) N(theta; 0, I)."""
        check(self, objective)
        # threads belong to the chains
        goal = objective if self.plan.n_chains == 1 else objective.on_one_thread()
        return self.draw(goal, objective.architecture.n_parameters, callback)

    def draw(self, goal: Energy, size: int, callback: Callback | None = None) -> Draws:
        """The same for any energy of ``size`` parameters."""
        chains = [
            _Chain(goal, np.random.default_rng([self.seed, k])) for k in range(self.plan.n_chains)
        ]
        return run_chains(
            self.plan, chains, lambda chain: chain.moves(size, self), callback, self.n_jobs
        )


class _Chain:
    """The state of one chain."""

    def __init__(self, goal: Energy, rng: np.random.Generator) -> None:
        self.goal, self.rng = goal, rng
        self.n_evaluations = 0

    def moves(self, size: int, settings: NoUTurn) -> Iterator[Move]:
        """Steps from a draw of the prior."""
        here = self._at(self.rng.normal(size=size), np.zeros(size))
        tuning = StepSize(self._first_step(here), settings.accept)
        for step in range(first_tuned(settings.plan), settings.plan.n_steps):
            here = here._replace(p=self.rng.normal(size=size))
            burning = step < settings.plan.n_burnt
            here, accept = self._turning(here, tuning.trial if burning else tuning.final)
            if burning:
                tuning.learn(accept)
            if step >= 0:
                yield Move(here.theta, -here.loss)

    def _at(self, theta: Floats, p: Floats) -> Point:
        self.n_evaluations += 1
        value, gradient = self.goal.value_and_grad(theta)
        return Point(theta, p, float(value), gradient)

    def _first_step(self, start: Point) -> float:
        start = start._replace(p=self.rng.normal(size=len(start.theta)))
        return first_step(lambda size: start.energy - rotated(start, size, self._at).energy)

    def _turning(self, start: Point, size: float) -> tuple[Point, float]:
        """One point of a path that is doubled until it turns back."""
        path = Path(start, start, start, 0.0, start.p, False, 0.0, 0)
        for depth in range(DEPTH):
            forward = bool(self.rng.random() < 0.5)
            edge = path.right if forward else path.left
            more = self._tree(edge, depth, size if forward else -size, start.energy)
            accept, n = path.accept + more.accept, path.n_steps + more.n_steps
            if more.ended:
                path = path._replace(accept=accept, n_steps=n)
                break
            # the new half is preferred, because it is farther away
            odds = min(0.0, more.log_weight - path.log_weight)
            chosen = more.chosen if np.log(self.rng.random()) < odds else path.chosen
            path = _joined(path, more, chosen, forward)
            if path.ended:
                break
        return path.chosen, path.accept / max(1, path.n_steps)

    def _tree(self, edge: Point, depth: int, size: float, energy: float) -> Path:
        """A path of 2^depth steps from one end of a path."""
        if depth == 0:
            new = rotated(edge, size, self._at)
            gain = energy - new.energy
            astray = not gain > -ASTRAY
            gain = -np.inf if np.isnan(gain) else gain
            accept = float(np.exp(min(gain, 0.0)))
            return Path(new, new, new, gain, new.p, astray, accept, 1)
        first = self._tree(edge, depth - 1, size, energy)
        if first.ended:
            return first
        forward = size > 0
        second = self._tree(first.right if forward else first.left, depth - 1, size, energy)
        if second.ended:
            accept, n = first.accept + second.accept, first.n_steps + second.n_steps
            return first._replace(ended=True, accept=accept, n_steps=n)
        both = np.logaddexp(first.log_weight, second.log_weight)
        later = np.log(self.rng.random()) < second.log_weight - both
        return _joined(first, second, second.chosen if later else first.chosen, forward)


def _joined(path: Path, more: Path, chosen: Point, forward: bool) -> Path:
    left, right = (path, more) if forward else (more, path)
    rho = path.rho + more.rho
    turned = _turned(left.left, right.right, rho)
    # also checked between the halves: two half periods make a whole one, which ends at its start
    turned |= _turned(left.left, right.left, left.rho + right.left.p)
    turned |= _turned(left.right, right.right, right.rho + left.right.p)
    log_weight = float(np.logaddexp(path.log_weight, more.log_weight))
    accept, n = path.accept + more.accept, path.n_steps + more.n_steps
    return Path(left.left, right.right, chosen, log_weight, rho, turned, accept, n)


def _turned(left: Point, right: Point, rho: Floats) -> bool:
    return bool(rho @ left.p <= 0.0 or rho @ right.p <= 0.0)


def rotated(point: P, size: float, at: Callable[[Floats, Floats], P]) -> P:
    """Half a kick, a rotation, half a kick."""
    p = point.p - 0.5 * size * point.gradient
    a, b = np.cos(size), np.sin(size)
    new = at(a * point.theta + b * p, a * p - b * point.theta)
    return new._replace(p=new.p - 0.5 * size * new.gradient)


def first_tuned(plan: Plan) -> int:
    """The number of the first step: below 0 if the burn-in is too short for tuning."""
    return min(0, plan.n_burnt - TUNED)


def first_step(gain: Callable[[float], float]) -> float:
    """Halve or double a step until about half of the proposals would be accepted.

    ``gain(step)`` is the energy that a proposal loses.
    """
    size, grow = 0.1, bool(gain(0.1) > np.log(0.5))
    for _ in range(20):
        size *= 2.0 if grow else 0.5
        if size >= 1.0 or bool(gain(size) > np.log(0.5)) != grow:
            break
    return min(size, 1.0)


class StepSize:
    """Dual averaging of log(step) towards a share of accepted proposals."""

    def __init__(self, first: float, accept: float) -> None:
        self.accept, self.centre = accept, np.log(10.0 * first)
        self.trial = self.final = first
        self._count, self._error, self._mean = 0, 0.0, 0.0

    def learn(self, accept: float) -> None:
        """Update the step size with the acceptance of a path."""
        self._count += 1
        m = self._count
        self._error += ((self.accept - accept) - self._error) / (m + 10.0)
        log_step = min(self.centre - np.sqrt(m) / 0.05 * self._error, np.log(1.5))
        share = m**-0.75
        self._mean = share * log_step + (1.0 - share) * self._mean
        self.trial, self.final = float(np.exp(log_step)), float(np.exp(self._mean))
