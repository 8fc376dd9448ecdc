"""`HMM`: the hidden Markov model, fitted by counts, or by EM if labels are missing."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from seqfield import chain
from seqfield._warn import warn
from seqfield.architectures.emissions import KINDS, Gaussian, Kind, Multinomial
from seqfield.errors import InputError, LabelError
from seqfield.estimators._base import Fit, SequenceEstimator
from seqfield.estimators._files import register
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import features_param, flag, parameters, real, whole, word
from seqfield.functions import EmissionFunction, Learned
from seqfield.functions.emission import Steps, refuse_edges
from seqfield.progress import progress
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]

#: least pseudo-count: without one, an unseen feature or step would forbid a label
LEAST = 1e-10


@register
@parameters
class HMM(SequenceEstimator):
    """Hidden Markov model with smoothed counts; overlapping features are allowed.

    A sequence is drawn label by label: p(x, y) = p(y_1) prod_t p(x_t | y_t) p(y_t+1 | y_t), where
    y_l+1 is "stop". Stopping is one of the outcomes after a label, so the model is a proper
    distribution over sequences of every length. The features of a token are drawn independently
    of each other given its label. p(y | x) is the posterior of this model.

    If all labels are known, `fit` counts them in one pass. If labels are missing, or there are
    candidate sets, EM finds the parameters. EM starts from the known labels, and unlabelled
    sequences change the model. In both cases a scheme holds: what it forbids has probability 0.
    A template without a B line makes no difference, because an HMM always has transitions. Edge
    features are not possible.

    Attributes
    ----------
    classes_ : labels in column order
    features_ : the fitted feature encoder
    emission_ : "multinomial" or "gaussian"
    log_emission_ : (D, S) log p(f | j), multinomial only
    means_, variances_ : (D, S), Gaussian only
    log_start_ : (S,) log p(y_1 = j)
    log_transitions_ : (S, S) log p(j | i) from row label to column label
    log_end_ : (S,) log p(stop | i); a row of the transitions and its stop sum to one
    n_iter_ : iterations of EM, 1 if all labels are known
    objective_ : minus the log-likelihood of X and of the known labels, minus the log prior that
        belongs to the smoothing; no iteration raises it

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.HMM().fit(X, y)
    >>> model.predict([["the", "dog", "sat"]])
    [['D', 'N', 'V']]
    >>> model.emission_
    'multinomial'
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (EmissionFunction,)
    features: Any = features_param(kw_only=False)
    alpha: float = real(
        default=0.01,
        help=(
            'smoothing of emissions. For "multinomial" it is added to the count of every feature '
            'with every label. For "gaussian" each label gets this many extra tokens, with the '
            "mean and the variance of all tokens"
        ),
        low=LEAST,
    )
    alpha_transitions: float = real(
        default=0.1,
        help="smoothing of steps: added to the counts of starts, transitions and stops",
        low=LEAST,
    )
    emission: str = word(
        default="auto",
        help=(
            'the kind of p(x_t | j). "multinomial" is for counts and 0/1 features: '
            "log p(x_t | j) = sum_f x_tf log p(f | j). "
            '"gaussian" has a mean and a variance for each label and feature. "auto" is '
            "multinomial if X has no negative value and is sparse or of whole numbers"
        ),
        words=("auto", *KINDS),
    )
    max_iter: int = whole(default=100, help="largest number of iterations of EM", low=1)
    tol: float = real(
        default=1e-6,
        help="EM stops when the relative fall of the objective is less than this",
        low=0,
    )
    warm_start: bool = flag(
        default=False,
        help=(
            "start EM from the last fit, and keep its labels and features. If all labels are "
            "known, the parameters are counted again"
        ),
    )

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        refuse_edges(lesson.data)
        before = start if isinstance(start, EmissionFunction) else None
        kind = self._kind(lesson.data, before)
        goal = _Goal(lesson, kind, self.alpha, self.alpha_transitions, self.n_jobs)
        allowed = lesson.targets.allowed
        if allowed is None:
            function = goal.maximise(goal.known)
            return Fit(function, {"n_iter_": 1, "objective_": goal.value_of_known(function)})
        if before is None or kind is not type(before.emission) or not goal.possible(before):
            if allowed.all():
                raise LabelError(
                    "every label is missing: an HMM learns from some known labels or candidate "
                    "sets, or with warm_start=True from those of the last fit"
                )
            before = goal.maximise(goal.known)
        return self._improve(goal, before, lesson.show)

    def _improve(self, goal: _Goal, function: EmissionFunction, show: bool) -> Fit:
        """EM from the present parameters."""
        value, counts = goal.expect(function)
        with progress("training", self.max_iter, show=show) as report:
            for n_iter in range(1, self.max_iter + 1):
                function = goal.maximise(counts)
                before = value
                value, counts = goal.expect(function)
                report(n_iter, f"objective {value:.6g}")
                converged = before - value <= self.tol * abs(value)
                if converged:
                    break
        if not converged:
            warn(
                f"no convergence in {n_iter} iterations (objective {value:.6g}): raise max_iter "
                "or tol",
                ConvergenceWarning,
            )
        return Fit(function, {"n_iter_": n_iter, "objective_": value})

    def _kind(self, data: Sequences, before: EmissionFunction | None) -> Kind:
        if self.emission != "auto":
            return KINDS[self.emission]
        if before is not None:
            return type(before.emission)
        values = data.x.data if sp.issparse(data.x) else data.x
        counted = sp.issparse(data.x) or (values == np.rint(values)).all()
        return Multinomial if counted and (values >= 0).all() else Gaussian

    # --- what was learned -----------------------------------------------------------------------

    def _learned(self) -> EmissionFunction:
        check_is_fitted(self, "function_")
        assert isinstance(self.function_, EmissionFunction)
        return self.function_

    @property
    def emission_(self) -> str:
        """The kind of the emissions."""
        return self._learned().emission.kind

    @property
    def log_emission_(self) -> Floats:
        """log p(f | j) (D, S) of a multinomial model."""
        return self._part("log_emission")

    @property
    def means_(self) -> Floats:
        """Means (D, S) of a Gaussian model."""
        return self._part("means")

    @property
    def variances_(self) -> Floats:
        """Variances (D, S) of a Gaussian model."""
        return self._part("variances")

    def _part(self, name: str) -> Floats:
        emission = self._learned().emission
        if not hasattr(emission, name):
            raise AttributeError(f"{emission.kind} emissions have no {name}_")
        part: Floats = getattr(emission, name)
        return part

    @property
    def log_start_(self) -> Floats:
        """log p(y_1 = j) (S,)."""
        return self._learned().steps.start

    @property
    def log_transitions_(self) -> Floats:
        """log p(j | i) (S, S) from row label to column label."""
        return self._learned().steps.pairs

    @property
    def log_end_(self) -> Floats:
        """log p(stop | i) (S,)."""
        return self._learned().steps.end


# --- counts -------------------------------------------------------------------------------------


class _Counts(NamedTuple):
    """(Expected) labels (N, S) of the tokens and counts of steps, both weighted."""

    labels: Any
    steps: Steps


class _Goal:
    """The penalised log-likelihood of functions on training data."""

    def __init__(
        self,
        lesson: Lesson,
        kind: Kind,
        alpha: float,
        alpha_transitions: float,
        n_jobs: int | None,
    ) -> None:
        self.lesson, self.n_jobs = lesson, n_jobs
        self.per_token = np.repeat(lesson.weights, lesson.data.lengths)
        self.emissions = kind.learner(lesson.data, self.per_token, alpha)
        s, c = lesson.n_labels, lesson.constraint
        self.allowed = Steps(np.ones(s), np.ones((s, s)), np.ones(s))
        if c is not None:
            self.allowed = Steps(np.exp(c.start), np.exp(c.pairs), np.exp(c.end))
        self.prior = Steps(*(alpha_transitions * part for part in self.allowed))
        self.known = self._count_known()

    def maximise(self, counts: _Counts) -> EmissionFunction:
        """The best parameters for (expected) counts."""
        emission = self.emissions.best(counts.labels)
        if not all(np.isfinite(part).all() for part in vars(emission).values()):
            raise InputError("X has values too large to be added up: scale its features")
        return EmissionFunction(emission, counts.steps.plus(self.prior).log_shares())

    def _count_known(self) -> _Counts:
        """Counts of known labels: a candidate counts by its share, a missing label as nothing."""
        y, s = self.lesson.targets, self.lesson.n_labels
        if y.allowed is None:
            n = len(y.codes)
            known = sp.csr_array((np.ones(n), y.codes, np.arange(n + 1)), shape=(n, s))
        else:
            several = y.allowed & ~y.allowed.all(axis=1, keepdims=True)
            known = sp.csr_array(several / np.maximum(several.sum(axis=1, keepdims=True), 1))
        labels = sp.diags_array(self.per_token) @ known
        later = np.delete(np.arange(len(y.codes)), y.offsets[:-1])
        pairs = (known[later - 1].T @ labels[later]).toarray()
        start, end = (labels[k].sum(axis=0) for k in (y.offsets[:-1], y.offsets[1:] - 1))
        # neighbouring candidates may also make pairs that the scheme forbids
        lawful = zip((start, pairs, end), self.allowed, strict=True)
        return _Counts(labels, Steps(*(a * b for a, b in lawful)))

    def value_of_known(self, function: EmissionFunction) -> float:
        """The objective where every label is known."""
        scores = function.scores(self.lesson.data, self.n_jobs)
        node = scores.node[np.arange(scores.n_tokens), self.lesson.targets.codes]
        fit = float(node @ self.per_token) + self.known.steps.dot(function.steps)
        return -fit - self._log_prior(function)

    def expect(self, function: EmissionFunction) -> tuple[float, _Counts]:
        """The objective, and the expected counts under a function."""
        lesson = self.lesson
        scores = function.scores(lesson.data, self.n_jobs)
        if lesson.constraint is not None:  # the parameters of a warm start may break the constraint
            scores = lesson.constraint.impose(scores)
        found = chain.marginals(
            scores,
            allowed=lesson.targets.allowed,
            pairs="sum",
            weights=lesson.weights,
            n_jobs=self.n_jobs,
        )
        assert found.pairs is not None
        labels = found.node * self.per_token[:, None]
        first, last = lesson.data.offsets[:-1], lesson.data.offsets[1:] - 1
        steps = Steps(labels[first].sum(axis=0), found.pairs, labels[last].sum(axis=0))
        value = -float(lesson.weights @ found.log_z) - self._log_prior(function)
        return value, _Counts(labels, steps)

    def possible(self, function: EmissionFunction) -> bool:
        """False if the parameters of a warm start forbid what is allowed now."""
        both = zip(self.allowed, function.steps, strict=True)
        return all(np.isfinite(log[allowed > 0]).all() for allowed, log in both)

    def _log_prior(self, function: EmissionFunction) -> float:
        return self.prior.dot(function.steps) + self.emissions.log_prior(function.emission)
