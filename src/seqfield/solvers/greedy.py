"""Greedy selection of atoms: pick by the gradient, refit, repeat (SGPS and clique selection).

The objective is a function of the score table itself. Kernels and prior belong to the atoms.

A round has three costs. The first is one product with the covariance, or with a few of its rows.
The second is the orthonormalisation, O(n p) for each new atom. The third is the refit, O(n p) for
each step over p atoms. If the values of the atoms are not in memory, a refit step instead costs
O(p^2) and a product with the covariance.
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

#: up to this number of atoms, the inverse Hessian is kept as a matrix
FEW = 1000

#: selection ends after this number of consecutive picks without a new atom
PATIENCE = 20

#: share of the last round's gain that a refit may leave
SHARE = 0.1


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the regularised risk with respect to the coefficient of each possible place.

    For kernel k and score column c, the derivative is c2 f_k(t) + sum_u G_k[t, u] d[u, c] at token
    t. At a transition it is c2 T + eta d_T.
    """

    objective: Objective
    atoms: Atoms
    c2: float
    own: list[Values]  # the present function, by kernel
    gradient: Values  # of the loss, by the score table and the transitions

    def rows(self, kernel: int, rows: Ints | None = None) -> Floats:
        """Derivatives (m, C) at the given tokens, or at all tokens."""
        covariance, own = self.atoms.covariances[kernel], self.own[kernel].table
        if rows is None:
            return self.c2 * own + covariance.multiply(self.gradient.table)
        return self.c2 * own[rows] + covariance.rows_times(rows, self.gradient.table)

    def transitions(self, kernel: int) -> Floats:
        """Derivatives (S, S) at the transitions."""
        return np.asarray(
            self.c2 * self.own[kernel].transitions + self.atoms.eta * self.gradient.transitions
        )


class Picker(Protocol):
    """Chooses atoms."""

    def __call__(self, slopes: Slopes, values: Values) -> list[Atom]:
        """The next atoms, given the derivatives and the values of the present function.

        An empty list ends the selection.
        """


class Round(NamedTuple):
    """A round of selection.

    It holds the atoms so far, the free transitions, the regularised risk, and the loss alone.
    """

    n_atoms: int
    transitions: Floats
    risk: float
    loss: float


class Selection(NamedTuple):
    """The record of a selection.

    It holds the atoms in order of choice, the rounds, a function that gives the coefficients of
    the atoms after k rounds, and the free transitions before the first round.
    """

    atoms: list[Atom]
    rounds: list[Round]
    coefficients: Callable[[int], Floats]
    start: Floats


class Selected(NamedTuple):
    """The result of a selection, and its record."""

    minimum: Minimum
    selection: Selection


@dataclass(frozen=True)
class Greedy:
    """Greedy selection: adds atoms round by round.

    Parameters
    ----------
    atoms : the empty set of atoms to fill
    prior : c2 / 2 times the squared norm of the function
    pick : the picker, which chooses the atoms of a round
    max_iter : largest number of rounds
    max_atoms : stop at this number of atoms
    update : which weights a round refits: those of "all" atoms, or only those of the "new" atoms.
        "last" refits only the new atoms in each round, and all atoms once at the end
    gain_tol : stop if a round lowers the risk by less than this; 0 means never
    tol, refit_iter : relative tolerance and largest number of iterations of a refit
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
        """Select, starting with no atoms. theta is the score table and the transitions."""
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
            # a refit need not be more exact than the gain of a round
            state.take(atoms[: self.max_atoms - held], SHARE * gain)
            if len(state.active) == held:  # every new atom lies in the span of the others
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
    """A function given by its values, with the loss and the gradient of the loss by the values."""

    values: Values
    loss: float
    gradient: Values

    @classmethod
    def of(cls, objective: Objective, values: Values) -> Point:
        """Evaluate the loss."""
        loss, gradient = objective.value_and_grad(flat(values))
        return cls(values, loss, objective.architecture.lift(gradient))


def flat(values: Values) -> Floats:
    """The score table and the transitions as one vector."""
    return np.concatenate([values.table.ravel(), values.transitions.ravel()])


class _Goal:
    """The regularised risk as a function of the weights of atoms.

    The class remembers the last point, for two reasons. A descent begins where the last descent
    ended. The picker chooses the next atoms by the derivatives at the end of a descent.
    """

    def __init__(
        self, objective: Objective, atoms: Atoms, prior: ElasticNet, theta: Floats, point: Point
    ) -> None:
        self.objective, self.atoms, self.prior = objective, atoms, prior
        self._whole = objective.over(atoms, prior)
        self._theta, self.point = theta, point

    def go(self, theta: Floats) -> None:
        """Evaluate the loss at theta, unless theta is the last point."""
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
        """The vector itself: weights of orthonormal functions have the plain inner product."""
        return vector


class _State(ABC):
    """The present function of a selection."""

    norm = 0.0
    #: whether the last refit converged
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
        """The score table and the transitions as one vector."""
        return flat(self.point.values)

    def slopes(self) -> Slopes:
        """The derivatives at the present function."""
        own = [self._own(k) for k in range(len(self.atoms.covariances))]
        return Slopes(self.objective, self.atoms, self.greedy.prior.c2, own, self.point.gradient)

    def take(self, atoms: list[Atom], enough: float = 0.0) -> None:
        """Add atoms and refit. The refit ends when the remaining gain is about ``enough``."""
        self.enough = enough
        self._refit(atoms)
        self.risk = self.point.loss + 0.5 * self.greedy.prior.c2 * self.norm

    def finished(self) -> _State:
        """The state after the last refit."""
        self.take([])
        return self

    def round(self) -> Round:
        """The record of the present round."""
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
        """Add these atoms, then set values, coefficients and norm."""

    def _descend(
        self, atoms: Atoms, start: Floats, history: History | Inverse | None = None
    ) -> Floats:
        """Find the best weights of atoms, from the present point on, and move to them."""
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
        # the curvature from the last rounds is still valid
        self._history = self._history.widened(before, new)
        self.weights = self._descend(self.atoms, self.weights, self._history)
        self.norm = float(self.weights @ self.weights)
        if new == 0:  # a more exact fit of the last round, or the first fit
            del self.kept[-1:]
        self.kept.append(self.weights[: len(self.active)])

    def coefficients(self, k: int) -> Floats:
        """The coefficients of the atoms after k rounds."""
        return self.atoms.coefficients(self.kept[k])


class _New(_State):
    """Only the coefficients of new atoms are fitted, for one kernel without free transitions.

    The present function has a part in the span of the new atoms. This part is removed and fitted
    again with the new atoms. The rest is orthogonal to the new atoms. So the penalty is that of the
    new weights plus a constant.
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
        """This state, or a state with all coefficients refitted if the user wants this."""
        if self.greedy.update == "new":
            return self
        every = _All(self.greedy, self.objective)
        every.take(self.active)  # drops atoms in the span of others
        every.kept = [*self.kept[:-1], every.kept[-1]]
        return every
