"""`SequenceBoost` and `AdaBoost`: boosting with features as weak learners."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield.architectures.linear import Linear
from seqfield.errors import CapabilityError
from seqfield.estimators._base import Fit, random_of
from seqfield.estimators._descent import (
    Floats,
    Merit,
    descent_facts,
    following,
    patience_param,
    tell,
    watched,
)
from seqfield.estimators._files import register
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._linear import LinearEstimator
from seqfield.estimators._params import flag, parameters, real, whole, word
from seqfield.functions import BoostedFunction, Learned
from seqfield.losses._base import Loss
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.objectives.problems import LinearProblem
from seqfield.priors import ElasticNet
from seqfield.solvers._base import Minimum, Step
from seqfield.solvers.boosting import Boosting, Round, Unit
from seqfield.solvers.lbfgs import LBFGS

REMEDY = "raise max_iter, or tol"


class Choice(NamedTuple):
    """One round of boosting: the feature (None for a transition) and its label, or the two labels
    of a transition; the step of its weight; log R after it; the share of sequences run again."""

    feature: str | None
    labels: tuple[Any, ...]
    step: float
    log_loss: float
    rerun: float


@register
@parameters
class SequenceBoost(LinearEstimator):
    """Sequence AdaBoost (Altun 2005, chapter 3): features are chosen one by one.

    `fit` minimises R = sum_i w_i pi^l_i (1 / p(y_i | x_i) - 1). Each round changes one weight, so
    most weights stay at zero. The scores are not probabilities; ``calibrate=True`` adds
    probabilities. A token without a known label is left out, and cuts its sequence in two. A warm
    start adds ``max_iter`` more rounds to the last fit. Early stopping uses the token error.

    Attributes
    ----------
    classes_ : labels in column order
    path_ : list of `Choice`, one for each round
    theta_ : all weights; transitions_ : (S, S) transition scores
    n_features_used_ : number of node features with a weight
    n_iter_ : rounds done; best_iter_ : rounds kept
    objective_ : final value of log R

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.SequenceBoost(max_iter=50).fit(X, y)
    >>> model.predict([["a", "cat"]])
    [['D', 'N']]
    >>> model.path_[0].feature, model.path_[0].labels  # None: a transition
    (None, ('D', 'N'))
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (BoostedFunction,)
    bound: Literal["loose", "tight", "exact"] = word(
        default="exact",
        help=(
            "how a round chooses its weight and its step. "
            '"loose" uses one bound for all sequences, "tight" a bound for each sequence. '
            '"exact" chooses the weight by the tight bound, and the step by R itself'
        ),
        words=("loose", "tight", "exact"),
    )
    max_iter: int = whole(default=1000, help="most rounds; each round changes one weight", low=1)
    smoothing: float = real(
        default=1e-4,
        help=("pulls steps towards zero where data are few; raise it against overfitting"),
        low=0,
    )
    max_step: float = real(
        default=1.0,
        help=(
            "the largest step. A feature that occurs only with right labels, or only with wrong "
            "ones, has no finite best step. Lower it to spread weight over similar features"
        ),
        low=1e-6,
        high=100,
    )
    length_weight: float = real(
        default=0.8,
        help=(
            "pi: a sequence of length l has the weight pi^l. With 1 the first rounds fit the "
            "longest sequences. With a small value the last rounds fit the shortest ones"
        ),
        low=1e-100,
        high=1,
    )
    tol: float = real(default=1e-7, help="stop when no weight can lower R by this share", low=0)
    refit: str | None = word(
        default=None,
        help=(
            'loss of a last fit of all chosen weights together, "log" or "exp", with the L2 '
            'penalty refit_c2. With "log" the model has the probabilities of a CRF'
        ),
        words=(None, "log", "exp"),
    )
    refit_c2: float = real(
        default=1.0, help="L2 penalty of the refit; raise it against overfitting", low=0
    )
    patience: int = patience_param(100, "rounds")

    @property
    def _unit(self) -> Unit:
        return "sequence"

    @property
    def probabilistic(self) -> bool:
        """True only if the weights were fitted again with the log loss."""
        function = getattr(self, "function_", None)
        refitted = function.refitted if isinstance(function, BoostedFunction) else self.refit
        return refitted == "log"

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        architecture = self._architecture(lesson, start)
        before = start if isinstance(start, BoostedFunction) else None
        theta = np.zeros(architecture.n_parameters) if before is None else before.theta

        def merit(held: Lesson) -> Merit:
            return held.objective(architecture, LogLoss(), n_jobs=self.n_jobs).error

        train, watch = watched(lesson, self, random_of(self), merit)
        if theta.any():  # the weights of a warm start may be the best on held-out data
            watch(Step(0, theta, float("nan")))
        problem = LinearProblem.of(
            architecture, train.data, train.targets, train.weights, train.constraint
        )
        with following(self.max_iter, show=lesson.show, watch=watch) as callback:
            found = self._solver().minimise(problem, theta, callback)
        theta, facts = descent_facts(None, found.minimum, watch, REMEDY)
        kept = found.rounds[: facts["best_iter_"]]
        if kept:
            facts["objective_"] = kept[-1].log_loss
        path = np.array(kept, np.float64).reshape(-1, len(Round._fields))
        function = BoostedFunction(architecture, theta, path, self.refit)
        if before is not None:
            path = np.vstack([before.path, path])
            function = replace(function, path=path, refitted=self.refit or before.refitted)
        if self.refit is not None and len(path):
            function, more = self._refit(train, function)
            facts |= more
        return Fit(function, facts)

    def _solver(self) -> Boosting:
        return Boosting(
            bound=self.bound,
            max_iter=self.max_iter,
            smoothing=self.smoothing,
            cap=self.max_step,
            length_weight=self.length_weight,
            tol=self.tol,
            unit=self._unit,
            n_jobs=self.n_jobs,
        )

    def _refit(
        self, lesson: Lesson, function: BoostedFunction
    ) -> tuple[BoostedFunction, dict[str, Any]]:
        """All chosen weights fitted together."""
        loss: Loss = LogLoss() if self.refit == "log" else ExponentialLoss(self.length_weight)
        chosen = np.unique(function.path[:, 0]).astype(np.int64)
        goal = lesson.objective(
            function.architecture, loss, ElasticNet(0.0, self.refit_c2), self.n_jobs
        )
        part = goal.restricted(chosen)
        found: Minimum = LBFGS(n_jobs=self.n_jobs).minimise(part, function.theta[chosen])
        assert found.gradient is not None
        gap = part.gap(found.theta, found.gradient)
        if not found.converged:
            tell(found.n_iter, found.value, gap, REMEDY)
        theta = np.zeros_like(function.theta)
        theta[chosen] = found.theta
        return replace(function, theta=theta), {"objective_": found.value, "gap_": gap}

    @property
    def path_(self) -> list[Choice]:
        """What each round chose."""
        function = self._boosted()
        names, labels = self.features_.names(), self.labels_.names
        feature, column = function.architecture.node.names()
        pairs = function.architecture.pairs

        def choice(weight: float, *rest: float) -> Choice:
            k = int(weight)
            if k < len(feature):
                return Choice(names[feature[k]], (labels[column[k]],), *rest)
            a, b = divmod(int(pairs[k - len(feature)]), len(labels))
            return Choice(None, (labels[a], labels[b]), *rest)

        return [choice(*row) for row in function.path.tolist()]

    def truncated(self, n_rounds: int) -> Self:
        """A model of the first ``n_rounds`` rounds of this model. The number can be chosen on other
        data.

        The scores of the new model are not calibrated.
        """
        function = self._boosted()
        number("n_rounds", n_rounds, low=0, high=len(function.path), whole=True)
        if function.refitted is not None:
            raise CapabilityError("the weights were fitted again after the last round")
        path = function.path[:n_rounds]
        out = copy.copy(self)
        out.function_ = replace(function, path=path, theta=_summed(path, function.architecture))
        out.calibration_ = None
        out.n_iter_ = out.best_iter_ = n_rounds
        out.objective_ = float(path[-1, 2]) if n_rounds else np.nan
        return out

    def _boosted(self) -> BoostedFunction:
        check_is_fitted(self, "function_")
        assert isinstance(self.function_, BoostedFunction)
        return self.function_


def _summed(path: Floats, architecture: Linear) -> Floats:
    """The weights after these rounds: the sums of their steps, added in order."""
    theta = np.zeros(architecture.n_parameters)
    for weight, step in path[:, :2]:
        theta[int(weight)] += step
    return theta


@register
@parameters
class AdaBoost(SequenceBoost):
    """AdaBoost on single tokens: the baselines for `SequenceBoost`.

    ``neighbors=False`` ignores the order of tokens. ``neighbors=True`` is Viterbi-AdaBoost (Abney
    et al. 1999): each token is learned given the gold label before it. The Viterbi algorithm
    decodes the labels.

    Attributes
    ----------
    classes_, path_, theta_, transitions_, n_iter_, best_iter_, objective_ : as in `SequenceBoost`

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.AdaBoost(max_iter=50).fit(X, y)
    >>> model.predict([["a", "cat"]])
    [['D', 'N']]
    """

    neighbors: bool = flag(default=False, help="learn each token given the gold label before it")

    @property
    def _unit(self) -> Unit:
        return "neighbours" if self.neighbors else "token"
