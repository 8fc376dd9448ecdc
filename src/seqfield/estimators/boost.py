"""`SequenceBoost` and `AdaBoost`: boosting with features as weak learners."""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import choice, number
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._linear import LinearEstimator
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import LinearProblem
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences
from seqfield.solvers._base import Callback, Minimum
from seqfield.solvers.boosting import Boosted, Boosting, Round, Unit
from seqfield.solvers.lbfgs import LBFGS


class Choice(NamedTuple):
    """One round of boosting: the feature (None for a transition) and its label, or the two labels
    of a transition; the step of its weight; log R after it; the share of sequences run again."""

    feature: str | None
    labels: tuple[Any, ...]
    step: float
    log_loss: float
    rerun: float


@register
class SequenceBoost(LinearEstimator):
    """Sequence AdaBoost (Altun 2005, chapter 3): features are chosen one by one.

    Minimises R = sum_i w_i pi^l_i (1 / p(y_i | x_i) - 1) one weight at a time, so that most weights
    stay at zero. Its scores are not probabilities: ``calibrate=True`` adds some.

    Parameters
    ----------
    features : see `CRF`
    bound : how a round's weight is chosen and stepped: "loose", one bound for all sequences;
        "tight", a bound for each sequence; "exact", chosen by the tight bound and stepped by R
        itself
    max_iter : rounds
    smoothing : pulls steps towards zero where there is little evidence; larger regularises more
    max_step : no step is larger: a feature that training shows on one side only has no finite one,
        and small steps leave room for other features that say the same
    length_weight : pi, at most 1: a sequence of length l weighs pi^l. With 1 the first rounds go
        to the longest sequences alone, with little the last ones to the shortest
    tol : ends when no weight would lower R by this share
    refit : "log" or "exp" fits all chosen weights together at the end, with this loss and the L2
        penalty ``refit_c2``; with "log" the model has the probabilities of a CRF
    warm_start : add ``max_iter`` more rounds to the last fit
    early_stopping, validation_fraction : see `CRF`; early stopping watches the token error
    patience : rounds without gain after which early stopping gives up
    observed_only, transitions, scheme, on_violation, classes, missing_label, calibrate,
    random_state, n_jobs, verbose : see `CRF`. A token whose label is not known is left out and
        cuts its sequence in two

    Attributes
    ----------
    path_ : list of `Choice`, one for each round
    theta_ : all weights; transitions_ : (S, S) transition scores
    n_features_used_ : number of node features with a weight
    n_iter_ : rounds done; best_iter_ : rounds kept
    objective_ : log R

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.SequenceBoost(max_iter=50).fit(X, y)
    >>> model.predict([["a", "cat"]])
    [['D', 'N']]
    >>> model.path_[0].feature, model.path_[0].labels  # None: a transition
    (None, ('D', 'N'))
    """

    bound: Any
    max_iter: int
    smoothing: float
    max_step: float
    length_weight: float
    tol: float
    refit: Any
    refit_c2: float
    _rounds: list[Round]

    def __init__(
        self,
        features: Any = None,
        *,
        bound: Literal["loose", "tight", "exact"] = "exact",
        max_iter: int = 1000,
        smoothing: float = 1e-4,
        max_step: float = 1.0,
        length_weight: float = 0.8,
        tol: float = 1e-7,
        refit: Literal["log", "exp"] | None = None,
        refit_c2: float = 1.0,
        observed_only: bool = True,
        transitions: bool = True,
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 100,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    @property
    def _unit(self) -> Unit:
        return "sequence"

    @property
    def probabilistic(self) -> bool:
        """Only weights fitted again by the log loss are those of a probability."""
        return bool(getattr(self, "_refitted", self.refit) == "log")

    def _recipe(self, data: Sequences) -> Recipe:
        choice("bound", self.bound, ("loose", "tight", "exact"))
        choice("refit", self.refit, (None, "log", "exp"))
        number("refit_c2", self.refit_c2, low=0)
        optimiser = Boosting(
            bound=self.bound,
            max_iter=number("max_iter", self.max_iter, low=1, whole=True),
            smoothing=number("smoothing", self.smoothing, low=0),
            cap=number("max_step", self.max_step, low=1e-6, high=100),
            length_weight=number("length_weight", self.length_weight, low=1e-100, high=1),
            tol=number("tol", self.tol, low=0),
            unit=self._unit,
            n_jobs=self.n_jobs,
        )
        return Recipe(optimiser)

    def _solve(
        self, optimiser: Boosting, goal: Objective, theta: Floats, callback: Callback
    ) -> tuple[Minimum, Boosted]:
        problem = LinearProblem.of(
            self._architecture, goal.data, goal.targets, goal.weights, goal.constraint
        )
        found = optimiser.minimise(problem, theta, callback)
        return found.minimum, found

    def _finish(self, goal: Objective, theta: Floats, result: Minimum, found: Boosted) -> None:
        again = self.warm_start and hasattr(self, "_rounds")
        before, refitted = (self._rounds, self._refitted) if again else ([], None)
        super()._finish(goal, theta, result, found)
        self._rounds = [*before, *found.rounds[: self.best_iter_]]
        if 0 < self.best_iter_ <= len(found.rounds):
            self.objective_ = found.rounds[self.best_iter_ - 1].log_loss
        #: the loss that the weights were last fitted again with
        self._refitted: str | None = self.refit or refitted
        if self.refit is not None and self._rounds:
            self._fit_chosen(goal)

    def _fit_chosen(self, goal: Objective) -> None:
        """Fit all chosen weights together."""
        loss = {"log": LogLoss(), "exp": ExponentialLoss(self.length_weight)}[self.refit]
        chosen = np.unique([r.weight for r in self._rounds]).astype(np.int64)
        part = goal.with_loss(loss, ElasticNet(0.0, self.refit_c2)).restricted(chosen)
        result = LBFGS(n_jobs=self.n_jobs).minimise(part, self.theta_[chosen])
        self.theta_ = np.zeros_like(self.theta_)
        self.theta_[chosen] = result.theta
        assert result.gradient is not None
        self.objective_, self.gap_ = result.value, part.gap(result.theta, result.gradient)
        if not result.converged:
            self._warn(result.n_iter)

    @property
    def path_(self) -> list[Choice]:
        """What each round chose."""
        check_is_fitted(self, "_rounds")
        names, labels = self.features_.names(), self._labels.names
        feature, column = self._architecture.node.names()
        pairs = self._architecture.pairs

        def choice(k: int, *rest: float) -> Choice:
            if k < len(feature):
                return Choice(names[feature[k]], (labels[column[k]],), *rest)
            a, b = divmod(int(pairs[k - len(feature)]), len(labels))
            return Choice(None, (labels[a], labels[b]), *rest)

        return [choice(*r) for r in self._rounds]

    def truncated(self, n_rounds: int) -> Self:
        """A model of the first rounds of this one, such as a good number of them on other data.

        Its scores are uncalibrated.
        """
        check_is_fitted(self, "_rounds")
        number("n_rounds", n_rounds, low=0, high=len(self._rounds), whole=True)
        if self._refitted is not None:
            raise CapabilityError("the weights were fitted again after the last round")
        out = copy.copy(self)
        out._rounds = self._rounds[:n_rounds]
        out._scale(None)
        out.n_iter_ = out.best_iter_ = n_rounds
        out.objective_ = out._rounds[-1].log_loss if n_rounds else np.nan
        out.theta_ = np.zeros_like(self.theta_)
        for r in out._rounds:
            out.theta_[r.weight] += r.step
        return out

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        header, arrays = super()._state()
        path = np.array(self._rounds, np.float64).reshape(-1, len(Round._fields))
        return header | {"refit": self._refitted}, arrays | {"path": path}

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, arrays)
        self._refitted = header["refit"]
        if self._refitted not in (None, "log", "exp"):
            raise InputError("unknown kind of refit")
        path = np.asarray(arrays["path"], np.float64)
        if path.ndim != 2 or path.shape[1] != len(Round._fields):
            raise InputError("path of the wrong shape")
        if not ((path[:, 0] >= 0) & (path[:, 0] < len(self.theta_))).all():
            raise InputError("path out of range")
        self._rounds = [Round(int(row[0]), *row[1:].tolist()) for row in path]


@register
class AdaBoost(SequenceBoost):
    """AdaBoost on single tokens: the baselines that `SequenceBoost` is measured against.

    ``neighbours=False`` ignores the order of tokens. ``neighbours=True`` is Viterbi-AdaBoost
    (Abney et al. 1999): each token is learned given the gold label before it, and labels are
    found by Viterbi.

    The other parameters and the attributes are those of `SequenceBoost`.

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.AdaBoost(max_iter=50).fit(X, y)
    >>> model.predict([["a", "cat"]])
    [['D', 'N']]
    """

    neighbours: bool

    def __init__(
        self,
        features: Any = None,
        *,
        neighbours: bool = False,
        bound: Literal["loose", "tight", "exact"] = "exact",
        max_iter: int = 1000,
        smoothing: float = 1e-4,
        max_step: float = 1.0,
        length_weight: float = 0.8,
        tol: float = 1e-7,
        refit: Literal["log", "exp"] | None = None,
        refit_c2: float = 1.0,
        observed_only: bool = True,
        transitions: bool = True,
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 100,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    @property
    def _unit(self) -> Unit:
        return "neighbours" if self.neighbours else "token"
