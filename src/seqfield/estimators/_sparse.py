"""The sparse methods of `GPSC`: coordinates of the function, or labelled sequences, chosen
greedily."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from seqfield.architectures.atoms import Atoms
from seqfield.architectures.kernel import Gram
from seqfield.architectures.lookup import Lookup, Values
from seqfield.estimators._descent import Floats, following
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._setting import Setting
from seqfield.kernels.covariance import Covariance, Factored
from seqfield.losses._base import Loss
from seqfield.objectives.objective import Objective
from seqfield.solvers._base import Minimum
from seqfield.solvers.greedy import Greedy, Selection
from seqfield.solvers.margin import Labelling
from seqfield.solvers.pickers import Coordinates, Labellings
from seqfield.solvers.support import Support

#: of n_per_round="auto": coordinates of a round, of one sequence, and by the number of those there
FEW, EACH, GROWTH = 10, 3, 0.02


class Chosen(NamedTuple):
    """A chosen function: the dense problem, where it lies in it, and what is told of the choice."""

    goal: Objective
    minimum: Minimum
    covariance: Covariance
    gram: Gram
    facts: dict[str, Any]


class Sparse(NamedTuple):
    """The parameters of `GPSC` that say what is chosen."""

    method: str
    n_coordinates: int | float
    n_per_round: int | str
    pick: Literal["largest", "random"]
    update: Literal["all", "new", "last"]
    slope_tol: float
    tol: float
    max_iter: int
    n_jobs: int | None

    @classmethod
    def of(cls, model: Any) -> Sparse:
        """Those of an estimator."""
        return cls(*(getattr(model, name) for name in cls._fields))

    def choose(self, setting: Setting, loss: Loss, rng: np.random.RandomState) -> Chosen:
        """Choose coordinates and fit their coefficients."""
        lesson = setting.numbered
        s, n = lesson.n_labels, int(setting.tokens.x.shape[0])
        covariance = setting.covariance(on_demand=True)
        most = self._most(lesson.data.n_tokens, n * s**2)
        # products with features cost less than what values of many functions at all tokens do
        held = not isinstance(covariance, Factored)
        if self.update != "new":
            columns = 1 if self.method == "sparse" else s
            setting.grams.check_atoms(most, columns * n if held else most)
        picker = self._picker(lesson, rng)
        joint = self.method == "sequence"
        solver = Greedy(
            Atoms(s, [covariance], eta=setting.eta, joint=joint, held=held),
            setting.prior,
            picker,
            max_iter=most,
            max_atoms=most,
            update=self.update,
            tol=self.tol,
            refit_iter=self.max_iter,
        )
        goal = lesson.objective(Lookup(s, n), loss, n_jobs=self.n_jobs)
        with following(most, show=lesson.show) as callback:
            minimum, found = solver.minimise(goal, callback)
        gram = setting.gram(covariance)
        theta = as_dense(gram, goal.architecture.lift(minimum.theta), found)
        goal = goal.over(gram, setting.prior)
        value, gradient = goal.value_and_grad(theta)
        minimum = minimum._replace(theta=theta, value=value, gradient=gradient)
        n_chosen = np.count_nonzero(gram.coefficients(theta).any(axis=1))
        facts = {"path_": found.rounds, "n_chosen_": int(n_chosen)}
        if isinstance(picker, Labellings):
            facts["support_"] = _support(found, picker, lesson)
        return Chosen(goal, minimum, covariance, gram, facts)

    def _most(self, n_tokens: int, n_coordinates: int) -> int:
        """How many coordinates to choose at most; there are no more than ``n_coordinates``."""
        most = self.n_coordinates
        if not isinstance(most, int | np.integer):
            most = most * n_tokens
        return min(max(1, round(most)), n_coordinates)

    def _picker(self, lesson: Lesson, rng: np.random.RandomState) -> Coordinates | Labellings:
        """What chooses the coordinates."""
        auto = self.n_per_round == "auto"
        size: Any = FEW if auto else self.n_per_round
        kind = Coordinates if self.method == "sparse" else Labellings
        rows = lesson.data.x[:, 0].astype(np.int64)
        pick = kind(rows, lesson.data.offsets, size, self.pick, rng, self.slope_tol)
        if isinstance(pick, Coordinates) and auto:
            pick.size, pick.least, pick.growth = EACH, FEW, GROWTH
        return pick


def as_dense(gram: Gram, values: Values, found: Selection) -> Floats:
    """A chosen function as parameters of the dense problem, whose bound then holds."""
    # rows past the tokens are transitions
    wide = np.zeros((gram.size + gram.n_labels, gram.n_labels))
    for atom, value in zip(found.atoms, found.coefficients(len(found.rounds)), strict=True):
        np.add.at(wide, (np.array(atom.rows), np.array(atom.columns)), value)
    a, b = wide[: gram.size], wide[gram.size :].T
    pairs = gram.root_eta * b.ravel()[gram.pairs]
    return np.concatenate([a.ravel(), values.table.ravel(), pairs])


def _support(found: Selection, picker: Labellings, lesson: Lesson) -> Support:
    """The chosen labelled sequences."""
    values = found.coefficients(len(found.rounds))
    labels, offsets = picker.labels, lesson.targets.offsets
    chosen = [
        Labelling(i, float(value), int(offsets[i]), y)
        for (i, y), value in zip((labels[atom] for atom in found.atoms), values, strict=True)
    ]
    return Support.of_labellings(chosen, lesson.targets, lesson.numbers, lesson.labels.names)
