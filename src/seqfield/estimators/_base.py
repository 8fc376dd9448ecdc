"""The shared base of all estimators: forms of X and y, fitting, and thin callers of
`LabelDistribution`.

An estimator says how it learns (`SequenceEstimator._learn`): from a `Lesson` to a `Fit`, without
changing itself. Everything a user calls is here.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from seqfield._parallel import check_jobs
from seqfield.chain import ChainScores
from seqfield.chain.constraint import Constraint
from seqfield.errors import BudgetError, CapabilityError, InputError
from seqfield.estimators import _files
from seqfield.estimators._lesson import Law, Lesson, checked_weights, lesson_of
from seqfield.estimators._params import anything, check, features_param, parameters, whole, word
from seqfield.features import Encoder, Numeric, resolve
from seqfield.functions import Learned
from seqfield.labels import SETS, is_missing, nested
from seqfield.metrics import token_accuracy
from seqfield.predictions import Calibration, LabelDistribution, SpanConfidence
from seqfield.predictions.average import Average
from seqfield.predictions.calibration import WAYS, HeldOut, fit_calibration
from seqfield.predictions.distribution import Decoding, Limits
from seqfield.sequences import Sequences, as_sequences, even_bounds

Floats = NDArray[np.float64]

#: numbers in the scores of all draws that are held at once: 512 MiB
DRAWN = 2**26
#: and in one distribution that answers many questions: 4 GiB
HELD = 2**29
#: folds behind ``calibrate=True``
N_FOLDS = 3


class Fit(NamedTuple):
    """What a fit gives: the function that was learned, attributes that tell of the fit, and a
    calibration if the way of learning has one of its own."""

    function: Learned
    facts: dict[str, Any]
    calibration: Calibration | None = None


# scikit-learn has no types, so its classes are Any to mypy
@parameters
class SequenceEstimator(BaseEstimator, ABC):
    """Base of all sequence labellers.

    Fitted attributes: ``classes_`` (labels in column order), ``features_`` (the fitted feature
    encoder), ``n_features_in_``, ``function_`` (what was learned), ``calibration_`` (None unless
    calibrated), ``labels_`` and ``constraint_`` (labels with their codes, and what the scheme
    forbids), and ``notes_`` (free JSON notes that model files keep).
    """

    features: Any = features_param()
    scheme: Any = anything(
        default=None,
        help=(
            "which label sequences are possible, in training and decoding. None allows all. "
            '"BIO", "IOB1", "BIOES" and "BILOU" are schemes of span labels. Or give the allowed '
            "transitions as pairs (from, to), where None is the start or the end. Give a scheme "
            "if labels mark spans"
        ),
    )
    on_violation: str = word(
        default="raise",
        help=(
            'what to do with training labels that break the scheme: "raise" an error, or "repair"'
            " them"
        ),
        words=("raise", "repair"),
    )
    classes: Any = anything(
        default=None,
        help=(
            "all labels in column order; None takes those of y. Give it if training data may lack"
            " some"
        ),
    )
    missing_label: Any = anything(default=None, help='a label that means "not known", besides None')
    calibrate: Any = word(
        default=False,
        help=(
            "True fits a temperature of the scores on held-out folds, which takes three more "
            'fits. Use it if probabilities must be right on new data. "platt" adds an offset for '
            'each label, "vector" also a slope for each label. Both may change the decoded labels'
        ),
        words=WAYS,
    )
    random_state: Any = anything(
        default=None,
        help=(
            "seed of all random choices, such as folds and draws. None gives different numbers "
            "in each fit"
        ),
    )
    n_jobs: int | None = whole(
        default=-1,
        help="number of threads, -1 for all cores; the results do not depend on it, bit for bit",
        words=(None,),
    )
    verbose: Any = anything(default=False, help="True shows progress on standard error")

    @abstractmethod
    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        """Learn from a lesson, with ``start`` for a warm start; sets no attribute of its own."""

    @property
    def joint(self) -> bool:
        """Whether there is a distribution p(y | x) of whole labellings."""
        return True

    @property
    def probabilistic(self) -> bool:
        """Whether the trained scores themselves define p(y | x)."""
        return True

    @property
    def has_probabilities(self) -> bool:
        """Whether the fitted model gives p(y | x): by its scores, or calibrated."""
        return self.probabilistic or self.calibration_ is not None

    # --- training -------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None) -> Self:
        """Train on sequences X and labels y.

        Parameters
        ----------
        X : sequences in any accepted form (see the documentation of `seqfield`)
        y : a list of label lists; None is a missing label, a set holds candidates, and a
            sequence whose y is None is unlabelled
        sample_weight : (n,) weight of each sequence
        lengths : the lengths of the sequences if X is one matrix (y may then be flat)
        """
        check(self)
        check_jobs(self.n_jobs)
        random_of(self)
        again = getattr(self, "warm_start", False) and hasattr(self, "function_")
        if again and self.calibrate:
            raise CapabilityError(
                "calibrate=True scores folds by models trained from the beginning, which a warm "
                "start has no match for: fit once, or leave one of the two out"
            )
        law = Law.of(self)
        X = X if lengths is None else as_sequences(X, lengths)
        encoder = self.features_ if again else resolve(self.features, X)
        data = self.encode(X) if again else encoder.fit_transform(X)
        rows = law.repaired(nested(y, data.offsets, flat=lengths is not None))
        labels = self.labels_ if again else law.learn(rows)
        lesson = lesson_of(law, data, rows, labels, encoder, sample_weight)
        found = self._learn(
            lesson._replace(show=bool(self.verbose)), self.function_ if again else None
        )
        if self.calibrate and found.calibration is None:
            parts = held_out(self, lesson, random_of(self))
            found = found._replace(calibration=fit_calibration(parts, self.calibrate))
        self._keep(lesson, found, data.n_features, self.notes_ if again else {})
        return self

    def lesson(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None) -> Lesson:
        """X and y as the fitted model sees them: encoded, checked, with weights."""
        law, data = Law.of(self), self.encode(X, lengths)
        rows = law.repaired(nested(y, data.offsets, flat=lengths is not None))
        return lesson_of(law, data, rows, self.labels_, self.features_, sample_weight)

    def _keep(self, lesson: Lesson, found: Fit, n_features: int, notes: dict[str, Any]) -> None:
        """Set all fitted attributes at once: a fit that fails leaves the last one as it was."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self.features_, self.labels_, self.notes_ = lesson.encoder, lesson.labels, notes
        self.classes_, self.n_features_in_ = lesson.labels.array, n_features
        self.constraint_, self.function_ = lesson.constraint, found.function
        self.calibration_ = found.calibration
        for name, value in found.facts.items():
            setattr(self, name, value)

    # --- use ------------------------------------------------------------------------------------

    def distribution(self, X: Any, *, lengths: Any = None) -> LabelDistribution:
        """p(y | x) of the sequences X, scored once: everything that can be asked of the model.

        >>> import seqfield as sf
        >>> X, y = sf.load_ingredients("train")
        >>> said = sf.CRF().fit(X, y).distribution([["2", "cups", "flour"]])
        >>> said.best()
        [['B-QTY', 'B-UNIT', 'B-NAME']]
        """
        data = self.encode(X, lengths)
        _check_held(
            data,
            self.function_,
            len(self.labels_),
            "ask about fewer sequences at a time, or go through distributions(X)",
        )
        return self.distribution_of(self.scorer.draws(data, self.n_jobs))

    def distributions(self, X: Any, *, lengths: Any = None) -> Iterator[LabelDistribution]:
        """p(y | x) in blocks of whole sequences, in order, so that memory is bounded."""
        data = self.encode(X, lengths)
        n_draws = self.function_.n_draws
        numbers = data.n_tokens * len(self.labels_) * n_draws
        n_blocks = 1 if n_draws == 1 else -(-numbers // DRAWN)
        for first, last in even_bounds(data.offsets, n_blocks):
            block = data if n_blocks == 1 else data[np.arange(first, last)]
            yield self.distribution_of(self.scorer.draws(block, self.n_jobs))

    def predict(self, X: Any, *, lengths: Any = None, decoding: Decoding = "viterbi") -> list[Any]:
        """Labels of each sequence.

        ``decoding="viterbi"`` gives the most probable labelling, ``"posterior"`` the one with the
        most expected right labels.
        """
        said = self.distributions(X, lengths=lengths)
        return [row for part in said for row in part.best(decoding)]

    def predict_proba(self, X: Any, *, lengths: Any = None) -> list[Floats]:
        """p(y_t = j | x): for each sequence a (T, S) array, columns in order of ``classes_``."""
        said = self.distributions(X, lengths=lengths)
        return [p for part in said for p in part.marginals()]

    def predict_spans(
        self, X: Any, *, lengths: Any = None, decoding: Decoding = "viterbi"
    ) -> list[list[SpanConfidence]]:
        """The spans of the decoded labels, each with its exact probability.

        >>> import seqfield as sf
        >>> X, y = sf.load_ingredients("train")
        >>> [span] = sf.CRF().fit(X, y).predict_spans([["flour"]])[0]
        >>> span.kind, span.start, span.end
        ('NAME', 0, 1)
        """
        said = self.distributions(X, lengths=lengths)
        return [row for part in said for row in part.spans(decoding)]

    def log_likelihood(self, X: Any, y: Any, *, lengths: Any = None) -> Floats:
        """log p(y | x) of each sequence (n,).

        Missing labels and candidate sets are summed over; a labelling that the scheme forbids has
        -inf.
        """
        data = self.encode(X, lengths)
        rows = nested(y, data.offsets, flat=lengths is not None)
        targets = self.labels_.encode(rows, self.missing_label)
        out, at = [], 0
        for said in self.distributions(data):
            out.append(said.joint.log_prob(targets[np.arange(at, at + len(said))]))
            at += len(said)
        return np.concatenate(out)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, lengths: Any = None) -> float:
        """Token accuracy over the labelled tokens; sequence i counts ``sample_weight[i]`` times."""
        data = self.encode(X, lengths)
        rows = nested(y, data.offsets, flat=lengths is not None)
        self.labels_.encode(rows, self.missing_label)  # unknown labels are an error, not a miss
        rows = [
            [None if is_missing(v, self.missing_label) or isinstance(v, SETS) else v for v in row]
            for row in rows
        ]
        predicted = self.predict(data)
        if sample_weight is None:
            return token_accuracy(rows, predicted)
        known = [sum(v is not None for v in row) for row in rows]
        w = checked_weights(sample_weight, len(rows)) * known
        each = [token_accuracy([a], [b]) for a, b in zip(rows, predicted, strict=True)]
        return float(np.average(np.nan_to_num(each), weights=w)) if w.any() else float("nan")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file, atomically; `seqfield.load` reads it."""
        check_is_fitted(self, "function_")
        _files.save(self, path)

    # --- from X to scores -----------------------------------------------------------------------

    def encode(self, X: Any, lengths: Any = None) -> Sequences:
        """X in the features of the fitted model."""
        check_is_fitted(self, "function_")
        encoder: Encoder = self.features_
        if isinstance(X, Sequences) and type(encoder) is not Numeric:
            if X.n_features == self.n_features_in_:
                return X  # encoded already, by this model's features_
            if not isinstance(encoder, Numeric):  # a window takes the numbers themselves as well
                raise InputError(
                    f"X has {X.n_features} features, the model was trained with "
                    f"{self.n_features_in_}"
                )
        return encoder.transform(X if lengths is None else as_sequences(X, lengths))

    @property
    def scorer(self) -> Learned:
        """The function that predicts: what was learned, with the present way to predict."""
        check_is_fitted(self, "function_")
        return self.function_

    def distribution_of(self, draws: list[ChainScores]) -> LabelDistribution:
        """The distribution of scores that are not those of ``function_``, such as ones without a
        sequence's own part in the fit: under the model's constraints and calibration."""
        draws = constrained(draws, self.constraint_)
        calibration = self.calibration_
        if calibration is not None:
            draws = [calibration.rescale(scores) for scores in draws]
        return LabelDistribution(
            self.labels_,
            Average(draws, None, self.n_jobs),
            temperature=None if calibration is None else calibration.temperature,
            limits=self._limits(),
            missing_label=self.missing_label,
        )

    def _limits(self) -> Limits:
        """What the model cannot say."""
        if self.has_probabilities:
            return Limits()
        why = (
            f"{type(self).__name__} gives scores, not probabilities: fit it with calibrate=True to "
            "have probabilities calibrated on held-out folds"
        )
        return Limits(probabilities=why)


def random_of(model: SequenceEstimator) -> np.random.RandomState:
    """The random numbers of an estimator's ``random_state``."""
    try:
        state: np.random.RandomState = check_random_state(model.random_state)
        return state
    except ValueError as error:
        raise InputError(f"random_state: {error}") from error


def seed_of(model: SequenceEstimator) -> int:
    """A seed for what draws its own numbers."""
    return int(random_of(model).randint(2**31 - 1))


def _check_held(data: Sequences, function: Learned, n_labels: int, remedy: str) -> None:
    """Raise a `BudgetError` if the scores of all draws take too much memory at once."""
    numbers = data.n_tokens * n_labels * function.n_draws
    if numbers > HELD:
        by = f" by {function.n_draws} posterior draws" if function.n_draws > 1 else ""
        raise BudgetError(
            f"the scores of {data.n_tokens:,} tokens{by} take {8 * numbers / 2**30:.3g} GiB: "
            f"{remedy}"
        )


def constrained(draws: list[ChainScores], constraint: Constraint | None) -> list[ChainScores]:
    """Scores with what is forbidden set to -inf."""
    return draws if constraint is None else [constraint.impose(scores) for scores in draws]


def held_out(
    model: SequenceEstimator, lesson: Lesson, rng: np.random.RandomState, n_folds: int = N_FOLDS
) -> list[HeldOut]:
    """Each fold scored by what the model learns from the other folds."""
    # a sequence of which nothing is known tells nothing when held out, and may help in training
    told = lesson.told
    if len(told) < n_folds:
        raise InputError(
            f"calibration by {n_folds} folds needs at least {n_folds} sequences with labels, got "
            f"{len(told)}"
        )
    out = []
    for fold in np.array_split(rng.permutation(told), n_folds):
        rest = np.setdiff1d(np.arange(len(lesson.data)), fold)
        found = model._learn(lesson.part(rest)._replace(show=False))
        out.append(scored(model, found.function, lesson.part(fold)))
    return out


def scored(model: SequenceEstimator, function: Learned, lesson: Lesson) -> HeldOut:
    """Sequences scored by a function that was not learned from them."""
    _check_held(lesson.data, function, lesson.n_labels, "calibrate on fewer sequences")
    draws = constrained(function.draws(lesson.data, model.n_jobs), lesson.constraint)
    return HeldOut(draws, lesson.targets, lesson.weights)
