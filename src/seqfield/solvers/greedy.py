"""Greedy selection of atoms: pick by the gradient, refit, repeat (SGPS and clique selection).

The objective is a function of the score table itself; kernels and prior belong to the atoms. A
round costs one product with the covariance (or with a few of its rows), the orthonormalisation
O(n p) of each new atom, and the refit: O(n p) for each step over p atoms, or O(p^2) and a product
with the covariance where their values are not held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.atoms import Atom, Atoms
from seqfield.architectures.lookup import Values
from seqfield.objectives.needs import LOSS, NO_PRIOR, TABLE, check
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.solvers._base import Callback, Floats, History, Inverse, Minimum, Step
from seqfield.solvers.lbfgs import LBFGS

Ints = NDArray[np.int64]

#: up to so many atoms the inverse Hessian itself is kept
FEW = 1000

#: picks in a row that bring nothing new, after which there is nothing left
PATIENCE = 20

#: of the last round's gain a refit may leave this share
SHARE = 0.1


@dataclass(frozen=True)
class Slopes:
    """The derivative of the regularised risk by the coefficient of every possible place.

    For kernel k and score column c it is c2 f_k(t) + sum_u G_k[t, u] d[u, c] at token t, and
    c2 T + eta d_T at a transition.
    """

    objective: Objective
    atoms: Atoms
    c2: float
    own: list[Values]  # the present function, by kernel
    gradient: Values  # the loss's gradient by the score table and the transitions

    def rows(self, kernel: int, rows: Ints | None = None) -> Floats:
        """At some tokens, or at all (m, C)."""
        covariance, own = self.atoms.covariances[kernel], self.own[kernel].table
        if rows is None:
            return self.c2 * own + covariance.multiply(self.gradient.table)
        return self.c2 * own[rows] + covariance.rows_times(rows, self.gradient.table)

    def transitions(self, kernel: int) -> Floats:
        """At the transitions (S, S)."""
        return np.asarray(
            self.c2 * self.own[kernel].transitions + self.atoms.eta * self.gradient.transitions
        )


class Picker(Protocol):
    """Chooses atoms."""

    def __call__(self, slopes: Slopes, values: Values) -> list[Atom]:
        """The next atoms, given the derivatives and the values of the present function; none
        ends the selection."""


class Round(NamedTuple):
    """A round of selection: atoms so far, the free transitions, the regularised risk and the loss
    alone."""

    n_atoms: int
    transitions: Floats
    risk: float
    loss: float


class Selection(NamedTuple):
    """The whole way: atoms in order of choice, rounds, the coefficients of the atoms after so many
    rounds, and the free transitions before the first."""

    atoms: list[Atom]
    rounds: list[Round]
    coefficients: Callable[[int], Floats]
    start: Floats


class Selected(NamedTuple):
    """The end of a selection, and the whole way."""

    minimum: Minimum
    selection: Selection


@dataclass(frozen=True)
class Greedy:
    """Adds atoms round by round.

    Parameters
    ----------
    atoms : the empty set of atoms to fill
    prior : c2 / 2 times the squared norm of the function
    pick : chooses the atoms of a round
    max_iter : rounds
    max_atoms : stop at this many atoms
    update : after each round refit the weights of "all" atoms; or of the "new" ones alone, or
        ("last") of those alone and at the end of all
    gain_tol : stop when a round lowers the risk by less than this; 0 for never
    tol, refit_iter : relative tolerance and most iterations of a refit
    """

    atoms: Atoms
    prior: ElasticNet
    pick: Picker
    max_iter: int
    max_atoms: int
    update: Literal["all", "new", "last"] = "all"
    gain_tol: float = 0.0
    tol: float = 1e-5
    refit_iter: int = 500
    needs = (TABLE, LOSS, NO_PRIOR)

    def minimise(self, objective: Objective, callback: Callback | None = None) -> Selected:
        """Select from nothing; theta is the score table and the transitions."""
        check(self, objective)
        state: _State = (_All if self.update == "all" else _New)(self, objective)
        rounds: list[Round] = []
        start = self.atoms.transitions(state.weights)
        done, gain, in_vain = False, 0.0, 0
        while not done and len(rounds) < self.max_iter and len(state.active) < self.max_atoms:
            atoms = self.pick(state.slopes(), state.point.values)
            if not atoms:
                break
            before, held = state.risk, len(state.active)
            # a refit need not be finer than what the rounds gain
            state.take(atoms[: self.max_atoms - held], SHARE * gain)
            if len(state.active) == held:  # all in the span of the others
                in_vain += 1
                if in_vain == PATIENCE:
                    break
                continue
            gain, in_vain = before - state.risk, 0
            rounds.append(state.round())
            step = Step(len(rounds), state.theta, state.risk)
            done = callback is not None and callback(step)
            done = done or (self.gain_tol > 0.0 and gain < self.gain_tol)
        if rounds:
            state = state.finished()
            rounds[-1] = state.round()
        selection = Selection(state.active, rounds, state.coefficients, start)
        minimum = Minimum(state.theta, state.risk, None, len(rounds), state.converged)
        return Selected(minimum, selection)


class Point(NamedTuple):
    """A function by its values, the loss there and the loss's gradient by the values."""

    values: Values
    loss: float
    gradient: Values

    @classmethod
    def of(cls, objective: Objective, values: Values) -> Point:
        """Evaluate the loss."""
        loss, gradient = objective.value_and_grad(flat(values))
        return cls(values, loss, objective.architecture.lift(gradient))


def flat(values: Values) -> Floats:
    """The score table and the transitions."""
    return np.concatenate([values.table.ravel(), values.transitions.ravel()])


class _Goal:
    """The regularised risk as a function of the weights of atoms.

    Remembers where it was last: a descent begins where the last one has ended, and its end is what
    the next atoms are picked by.
    """

    def __init__(
        self, objective: Objective, atoms: Atoms, prior: ElasticNet, theta: Floats, point: Point
    ) -> None:
        self.objective, self.atoms, self.prior = objective, atoms, prior
        self._whole = objective.over(atoms, prior)
        self._theta, self.point = theta, point

    def go(self, theta: Floats) -> None:
        """Evaluate the loss there, if that is not where it is."""
        if theta is not self._theta:
            self._theta, self.point = theta, Point.of(self.objective, self.atoms.lift(theta))

    def value_and_grad(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        self.go(theta)
        gradient = self.atoms.pull(self.point.gradient)
        return self.point.loss + self.prior.add_smooth(theta, gradient), gradient

    def gap(self, theta: Floats, gradient: Floats) -> float:
        """Bound on value minus optimum."""
        return self._whole.gap(theta, gradient)

    def dual(self, vector: Floats) -> Floats:
        """The weights of orthonormal functions have the plain inner product."""
        return vector


class _State(ABC):
    """The present function of a selection."""

    norm = 0.0
    #: whether the last refit came to its end
    converged = True

    def __init__(self, greedy: Greedy, objective: Objective) -> None:
        self.greedy, self.objective, self.atoms = greedy, objective, greedy.atoms
        self.active: list[Atom] = []
        self.weights = np.zeros(self.atoms.n_parameters)
        self.kept: list[Floats] = []
        self.point = Point.of(objective, self.atoms.lift(self.weights))
        self.take([])

    @property
    def theta(self) -> Floats:
        """The score table and the transitions."""
        return flat(self.point.values)

    def slopes(self) -> Slopes:
        """The derivatives at the present function."""
        own = [self._own(k) for k in range(len(self.atoms.covariances))]
        return Slopes(self.objective, self.atoms, self.greedy.prior.c2, own, self.point.gradient)

    def take(self, atoms: list[Atom], enough: float = 0.0) -> None:
        """Take atoms in and refit, until about ``enough`` is left to gain."""
        self.enough = enough
        self._refit(atoms)
        self.risk = self.point.loss + 0.5 * self.greedy.prior.c2 * self.norm

    def finished(self) -> _State:
        """The state after the last refit."""
        self.take([])
        return self

    def round(self) -> Round:
        """What is to be told of it."""
        steps = self.atoms.transitions(self.weights)
        return Round(len(self.active), steps, self.risk, self.point.loss)

    @abstractmethod
    def coefficients(self, k: int) -> Floats:
        """The coefficients of the atoms after k rounds."""

    @abstractmethod
    def _own(self, kernel: int) -> Values:
        """The values of one kernel's part of the function."""

    @abstractmethod
    def _refit(self, atoms: list[Atom]) -> None:
        """Set values, coefficients and norm with these atoms added."""

    def _descend(
        self, atoms: Atoms, start: Floats, history: History | Inverse | None = None
    ) -> Floats:
        """The best weights of atoms, from those of the present point on; goes there."""
        if not len(start):
            return start
        goal = _Goal(self.objective, atoms, self.greedy.prior, start, self.point)
        descent = LBFGS(self.greedy.refit_iter, self.greedy.tol, enough=self.enough)
        found = descent.minimise(goal, start, history=history)
        self.converged = found.converged
        goal.go(found.theta)
        self.point = goal.point
        return found.theta


class _All(_State):
    """All weights are fitted in each round, in the orthonormal basis of all atoms."""

    def __init__(self, greedy: Greedy, objective: Objective) -> None:
        n, most = greedy.atoms.n_parameters, greedy.max_atoms
        self._history: History | Inverse = Inverse(n) if most <= FEW else History(50, n)
        super().__init__(greedy, objective)

    def _own(self, kernel: int) -> Values:
        if len(self.atoms.covariances) > 1:
            return self.atoms.of_kernel(self.weights, kernel)
        table, steps = self.point.values
        return Values(table, steps - self.atoms.transitions(self.weights))

    def _refit(self, atoms: list[Atom]) -> None:
        before = len(self.active)
        new = self.atoms.add(atoms)
        self.active = self.atoms.atoms
        self.weights = np.insert(self.weights, before, np.zeros(new))
        # what was learned of the curvature in the last rounds still holds
        self._history = self._history.widened(before, new)
        self.weights = self._descend(self.atoms, self.weights, self._history)
        self.norm = float(self.weights @ self.weights)
        if new == 0:  # a finer fit of the last round, or the very first
            del self.kept[-1:]
        self.kept.append(self.weights[: len(self.active)])

    def coefficients(self, k: int) -> Floats:
        """The coefficients of the atoms after k rounds."""
        return self.atoms.coefficients(self.kept[k])


class _New(_State):
    """The coefficients of the new atoms alone change: for one kernel, without free transitions.

    What the present function has in the span of the new atoms is taken out of it and fitted again
    with them; the rest is orthogonal to them, so the penalty is that of the new weights and a
    constant.
    """

    def _own(self, kernel: int) -> Values:
        return self.point.values

    def _refit(self, atoms: list[Atom]) -> None:
        if not atoms:
            self.kept = self.kept or [np.zeros(0)]
            return
        fresh, values = self.atoms.empty(), self.point.values
        fresh.add(atoms)
        old = fresh.project(values)
        part = fresh.lift(old)
        fresh.offset = Values(values.table - part.table, values.transitions - part.transitions)
        new = self._descend(fresh, old)
        self.norm += float(new @ new - old @ old)
        self.active = self.active + fresh.atoms
        self.kept.append(fresh.coefficients(new - old))

    def coefficients(self, k: int) -> Floats:
        """The coefficients of the atoms after k rounds."""
        return np.concatenate(self.kept[: k + 1])

    def finished(self) -> _State:
        """Itself, or all coefficients fitted again if the user wants it."""
        if self.greedy.update == "new":
            return self
        every = _All(self.greedy, self.objective)
        every.take(self.active)  # atoms in the span of others drop out
        every.kept = [*self.kept[:-1], every.kept[-1]]
        return every
