"""`HMM`: the hidden Markov model, counted where labels are known and by EM where they are not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from seqfield import chain
from seqfield._checks import choice, number
from seqfield._parallel import run
from seqfield._warn import warn
from seqfield.architectures.emissions import KINDS, Gaussian, Kind, Multinomial
from seqfield.chain import ChainScores
from seqfield.errors import CapabilityError, InputError, LabelError
from seqfield.estimators._base import SequenceEstimator
from seqfield.estimators._files import register
from seqfield.labels import Targets
from seqfield.progress import progress
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]

#: least pseudo-count: with none at all a feature or a step not seen would forbid a label
LEAST = 1e-10
#: tokens scored in one piece
PIECE = 2**14


@register
class HMM(SequenceEstimator):
    """Hidden Markov model with smoothed counts; overlapping features are allowed.

    A sequence is drawn label by label: p(x, y) = p(y_1) prod_t p(x_t | y_t) p(y_t+1 | y_t), where
    y_l+1 is "stop". Stopping is one of the outcomes after a label, so the model is a proper
    distribution over sequences of every length. The features of a token are drawn independently
    of each other given its label. p(y | x) is the posterior of this model.

    Known labels are counted, in one pass. With missing labels or candidate sets the parameters
    are found by EM, which starts from what is known; unlabelled sequences do change the model.
    A scheme holds in both: what it forbids gets no probability. A template without a B line
    makes no difference, as an HMM has transitions in any case.

    Parameters
    ----------
    features : a feature encoder such as `Template`, a path of a CRF++ template, or None to choose
        by the form of X, as for `CRF`; edge features are not possible
    alpha : smoothing of emissions. "multinomial": added to the count of every feature with every
        label; "gaussian": each label gets this many extra tokens with the mean and the variance of
        all tokens
    alpha_transitions : added to the counts of starts, transitions and stops
    emission : "multinomial" for features that count or are there or not, log p(x_t | j) =
        sum_f x_tf log p(f | j); "gaussian" with a mean and a variance for each label and feature;
        or "auto": multinomial if X has no negative value and is sparse or of whole numbers
    scheme : None, or what holds in training and decoding: "BIO", "IOB1", "BIOES", "BILOU", or
        the allowed transitions as pairs (from, to), None standing for start or end
    on_violation : "raise" if training labels break the scheme, or "repair" them
    classes : all labels, if training data may lack some
    missing_label : a label that means "not known", besides None
    max_iter : iterations of EM
    tol : EM stops when the objective falls by less than this, relatively
    warm_start : start EM from the last fit, whose labels and features are kept; if all labels are
        known the parameters are counted anew
    n_jobs : threads, -1 for all cores; results are bit-identical for every number
    verbose : True shows progress on standard error

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
    objective_ : minus the log-likelihood of X and of what is known of y, minus the log prior that
        the smoothing stands for; no iteration raises it

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.HMM().fit(X, y)
    >>> model.predict([["the", "dog", "sat"]])
    [['D', 'N', 'V']]
    >>> model.emission_
    'multinomial'
    """

    alpha: float
    alpha_transitions: float
    emission: str
    max_iter: int
    tol: float
    log_start_: Floats
    log_transitions_: Floats
    log_end_: Floats
    _emission: Multinomial | Gaussian

    def __init__(
        self,
        features: Any = None,
        *,
        alpha: float = 0.01,
        alpha_transitions: float = 0.1,
        emission: Literal["auto", "multinomial", "gaussian"] = "auto",
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int = 100,
        tol: float = 1e-6,
        warm_start: bool = False,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    @property
    def emission_(self) -> str:
        """The kind of the emissions."""
        check_is_fitted(self, "log_start_")
        return self._emission.kind

    @property
    def log_emission_(self) -> Floats:
        """log p(f | j) (D, S) of a multinomial model."""
        return self._emission_part("log_emission")

    @property
    def means_(self) -> Floats:
        """Means (D, S) of a Gaussian model."""
        return self._emission_part("means")

    @property
    def variances_(self) -> Floats:
        """Variances (D, S) of a Gaussian model."""
        return self._emission_part("variances")

    def _emission_part(self, name: str) -> Floats:
        check_is_fitted(self, "log_start_")
        if not hasattr(self._emission, name):
            raise AttributeError(f"{self._emission.kind} emissions have no {name}_")
        part: Floats = getattr(self._emission, name)
        return part

    # --- training -------------------------------------------------------------------------------

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        _refuse_edges(data)
        number("max_iter", self.max_iter, low=1, whole=True)
        number("tol", self.tol, low=0)
        again = self.warm_start and hasattr(self, "log_start_")
        kind = self._kind(data, again)
        goal = _Goal(self, kind, data, targets, weights)
        if targets.allowed is None:
            self._maximise(goal, goal.known)
            self.n_iter_, self.objective_ = 1, goal.value_of_known()
            return
        if not (again and kind is type(self._emission) and goal.possible()):
            if targets.allowed.all():
                raise LabelError(
                    "every label is missing: an HMM learns from some known labels or candidate "
                    "sets, or with warm_start=True from those of the last fit"
                )
            self._maximise(goal, goal.known)
        self._improve(goal)

    def _improve(self, goal: _Goal) -> None:
        """EM from the present parameters."""
        value, counts = goal.expect()
        with progress("training", self.max_iter, show=bool(self.verbose)) as report:
            for n_iter in range(1, self.max_iter + 1):
                self._maximise(goal, counts)
                before = value
                value, counts = goal.expect()
                report(n_iter, f"objective {value:.6g}")
                converged = before - value <= self.tol * abs(value)
                if converged:
                    break
        self.n_iter_, self.objective_ = n_iter, value
        if not converged:
            warn(
                f"no convergence in {n_iter} iterations (objective {value:.6g}): raise max_iter "
                "or tol",
                ConvergenceWarning,
            )

    def _maximise(self, goal: _Goal, counts: _Counts) -> None:
        """The best parameters for (expected) counts."""
        self._emission = goal.emissions.best(counts.labels)
        if not all(np.isfinite(part).all() for part in vars(self._emission).values()):
            raise InputError("X has values too large to be added up: scale its features")
        steps = counts.steps.plus(goal.prior).log_shares()
        self.log_start_, self.log_transitions_, self.log_end_ = steps

    def _kind(self, data: Sequences, again: bool) -> Kind:
        choice("emission", self.emission, ("auto", *KINDS))
        if self.emission != "auto":
            return KINDS[self.emission]
        if again:
            return type(self._emission)
        values = data.x.data if sp.issparse(data.x) else data.x
        counted = sp.issparse(data.x) or (values == np.rint(values)).all()
        return Multinomial if counted and (values >= 0).all() else Gaussian

    # --- use ------------------------------------------------------------------------------------

    def _scores(self, data: Sequences) -> ChainScores:
        _refuse_edges(data)
        self._emission.check(data)
        pieces = [slice(k, k + PIECE) for k in range(0, data.n_tokens, PIECE)]
        node = run(lambda rows: self._emission.scores(data.x[rows]), pieces, self.n_jobs)
        steps = self.log_transitions_, data.offsets, self.log_start_, self.log_end_
        return ChainScores(np.concatenate(node), *steps)

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        arrays = {
            "start": self.log_start_,
            "transitions": self.log_transitions_,
            "end": self.log_end_,
            **vars(self._emission),
        }
        # files hold finite numbers; -inf stands exactly where the constraint has it
        finite = {name: np.where(np.isfinite(part), part, 0.0) for name, part in arrays.items()}
        return {"emission": self._emission.kind}, finite

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        s, d = len(self._labels), self.n_features_in_

        def part(name: str, *shape: int) -> Floats:
            array = np.asarray(arrays[name], np.float64)
            if array.shape != shape or not np.isfinite(array).all():
                raise InputError(f"{name} has the wrong shape or is not finite")
            return array

        kind = KINDS[header["emission"]]
        names = [field.name for field in fields(kind)]
        self._emission = kind(*(part(name, d, s) for name in names))
        if isinstance(self._emission, Gaussian) and (self._emission.variances <= 0).any():
            raise InputError("a variance is not positive")
        steps = part("start", s), part("transitions", s, s), part("end", s)
        if self._constraint is not None:
            c = self._constraint
            steps = steps[0] + c.start, steps[1] + c.pairs, steps[2] + c.end
        self.log_start_, self.log_transitions_, self.log_end_ = steps


# --- counts -------------------------------------------------------------------------------------


class _Steps(NamedTuple):
    """One number for each start (S,), transition (S, S) and stop (S,)."""

    start: Floats
    pairs: Floats
    end: Floats

    def plus(self, other: _Steps) -> _Steps:
        return _Steps(*(a + b for a, b in zip(self, other, strict=True)))

    def dot(self, logs: _Steps) -> float:
        """sum c log p; what never happens counts for nothing, even if it is forbidden."""
        both = zip(self, logs, strict=True)
        return float(sum(c[c > 0] @ log[c > 0] for c, log in both))

    def log_shares(self) -> _Steps:
        """log p(start), log p(j | i), log p(stop | i); -inf for a count of zero."""
        after = np.column_stack([self.pairs, self.end])
        total = after.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            start = np.log(self.start) - np.log(self.start.sum())
            # a label that the scheme lets nothing follow has no shares
            after = np.log(after) - np.log(np.where(total > 0, total, 1.0))
        return _Steps(start, np.ascontiguousarray(after[:, :-1]), after[:, -1].copy())


class _Counts(NamedTuple):
    """(Expected) labels (N, S) of the tokens and counts of steps, both weighted."""

    labels: Any
    steps: _Steps


class _Goal:
    """The penalised log-likelihood of a model on its training data."""

    def __init__(
        self,
        model: HMM,
        kind: Kind,
        data: Sequences,
        targets: Targets,
        weights: Floats,
    ) -> None:
        self.model, self.data, self.targets, self.weights = model, data, targets, weights
        self.per_token = np.repeat(weights, data.lengths)
        alpha = number("alpha", model.alpha, low=LEAST)
        self.emissions = kind.learner(data, self.per_token, alpha)
        s, c = len(model._labels), model._constraint
        self.allowed = _Steps(np.ones(s), np.ones((s, s)), np.ones(s))
        if c is not None:
            self.allowed = _Steps(np.exp(c.start), np.exp(c.pairs), np.exp(c.end))
        more = number("alpha_transitions", model.alpha_transitions, low=LEAST)
        self.prior = _Steps(*(more * part for part in self.allowed))
        self.known = self._count_known()

    def _count_known(self) -> _Counts:
        """Counts of what is known: a candidate counts by its share, a missing label not at all."""
        y, s = self.targets, len(self.model._labels)
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
        return _Counts(labels, _Steps(*(a * b for a, b in lawful)))

    def value_of_known(self) -> float:
        """The objective where every label is known."""
        scores = self.model._scores(self.data)
        node = scores.node[np.arange(scores.n_tokens), self.targets.codes]
        return (
            -float(node @ self.per_token) - self.known.steps.dot(self._logs()) - self._log_prior()
        )

    def expect(self) -> tuple[float, _Counts]:
        """The objective, and the counts that the present parameters lead to expect."""
        scores = self.model._scores(self.data)
        if self.model._constraint is not None:  # parameters of a warm start may not know of it
            scores = self.model._constraint.impose(scores)
        found = chain.marginals(
            scores,
            allowed=self.targets.allowed,
            pairs="sum",
            weights=self.weights,
            n_jobs=self.model.n_jobs,
        )
        assert found.pairs is not None
        labels = found.node * self.per_token[:, None]
        first, last = self.data.offsets[:-1], self.data.offsets[1:] - 1
        steps = _Steps(labels[first].sum(axis=0), found.pairs, labels[last].sum(axis=0))
        return -float(self.weights @ found.log_z) - self._log_prior(), _Counts(labels, steps)

    def possible(self) -> bool:
        """False if the parameters, those of a warm start, forbid what is allowed now."""
        both = zip(self.allowed, self._logs(), strict=True)
        return all(np.isfinite(log[allowed > 0]).all() for allowed, log in both)

    def _log_prior(self) -> float:
        return self.prior.dot(self._logs()) + self.emissions.log_prior(self.model._emission)

    def _logs(self) -> _Steps:
        m = self.model
        return _Steps(m.log_start_, m.log_transitions_, m.log_end_)


def _refuse_edges(data: Sequences) -> None:
    if data.edge is not None:
        raise CapabilityError(
            "X has edge features, which an HMM has no use for: leave them out, or train a CRF"
        )
