"""The shared base of all estimators: forms of X and y, decoding, probabilities, scoring.

An estimator gives its parameters in four hooks (`SequenceEstimator._fit`, ``_scores``, ``_state``,
``_restore``). Everything a user calls is here.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import choice
from seqfield.chain import ChainScores
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed, get_scheme, table_transitions
from seqfield.errors import CapabilityError, InputError, LabelError
from seqfield.estimators import _average, _files
from seqfield.estimators._calibration import (
    WAYS,
    HeldOut,
    fit_scaling,
    held_out,
    rescaled,
    tempered,
)
from seqfield.estimators._confidence import Confidence
from seqfield.estimators._lawful import check_lawful, repaired
from seqfield.features import Encoder, Numeric, resolve
from seqfield.labels import LabelSet, Targets, is_missing, nested
from seqfield.metrics import token_accuracy
from seqfield.sequences import Sequences, as_sequences, even_bounds

Floats = NDArray[np.float64]
Decoding = Literal["viterbi", "posterior"]

#: numbers in the scores of all draws that are held at once: 512 MiB
DRAWN = 2**26


# scikit-learn has no types, so its classes are Any to mypy
class SequenceEstimator(Confidence, BaseEstimator, ABC):
    """Base of all sequence labellers.

    Fitted attributes: ``classes_`` (labels in column order), ``features_`` (the fitted feature
    encoder), ``n_features_in_``, ``temperature_`` (None unless fitted with ``calibrate``) and
    ``offsets_`` and ``slopes_`` (of the labels' scores; None unless fitted with
    ``calibrate="platt"``, which has offsets, or ``"vector"``, which has both).
    """

    #: whether a temperature for them is fitted on held-out folds
    calibrate: bool | str = False
    random_state: Any = None

    features: Any
    scheme: Any
    on_violation: str
    classes: Any
    missing_label: Any
    warm_start: bool
    n_jobs: int | None
    verbose: bool | int
    temperature_: float | None
    offsets_: Floats | None
    slopes_: Floats | None
    _labels: LabelSet
    #: free JSON notes that are saved with the model, such as how its input was read
    notes_: dict[str, Any]
    _constraint: Constraint | None
    #: numbers of the sequences of the last fit that had a say
    _used: NDArray[np.int64]

    # --- hooks ----------------------------------------------------------------------------------

    @abstractmethod
    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        """Set the parameters from encoded data."""

    @abstractmethod
    def _scores(self, data: Sequences) -> ChainScores:
        """Chain scores of encoded data, without constraints."""

    def _draws(self, data: Sequences) -> list[ChainScores]:
        """The same for each posterior draw, where p(y | x) is an average; else just one."""
        return [self._scores(data)]

    @property
    def _n_draws(self) -> int:
        """How many draws there are."""
        return 1

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Header and arrays of the fitted parameters, for a model file."""

    @abstractmethod
    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Set the parameters from a model file; every index is range-checked."""

    def _store(self, arguments: dict[str, Any]) -> None:
        """Keep the arguments of a constructor, given as its ``locals()``."""
        for name, value in arguments.items():
            if name != "self":
                setattr(self, name, value)

    def _check_flags(self) -> None:
        """Raise an `InputError` for a yes or no that is neither."""
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            if parameter.annotation == "bool":
                choice(name, getattr(self, name), (True, False))

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
        return self.probabilistic or self.temperature_ is not None

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
        before = dict(vars(self))
        try:
            self._learn(X, y, sample_weight, lengths)
        except BaseException:
            # a fit that fails leaves the estimator as it was
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, lengths: Any) -> None:
        self._check_flags()
        again = self.warm_start and hasattr(self, "features_")
        choice("calibrate", self.calibrate, WAYS)
        if again and self.calibrate:
            raise CapabilityError(
                "calibrate=True scores folds by models trained from the beginning, which a warm "
                "start has no match for: fit once, or leave one of the two out"
            )
        if again:
            data = self._encode(X, lengths)
        else:
            X = X if lengths is None else as_sequences(X, lengths)
            encoder = resolve(self.features, X)
            data = encoder.fit_transform(X)
        rows = self._listed(y, data, lengths)
        if not again:
            labels = self._learn_labels(rows)
            self.features_, self._labels, self.classes_ = encoder, labels, labels.array
            self.n_features_in_, self.notes_ = data.n_features, {}
        data, targets, weights = self._lessons(data, rows, sample_weight)
        self._scale(None)
        self._fit(data, targets, weights)
        if self.calibrate:
            self._scale(held_out(self, data, targets, weights, self._random()))

    def _listed(self, y: Any, data: Sequences, lengths: Any) -> list[Any]:
        """Labels with one entry for each sequence, mended if the user asked for it."""
        rows = nested(y, data.offsets, flat=lengths is not None)
        return repaired(rows, self.scheme, self.on_violation, self.missing_label)

    def _lessons(
        self, data: Sequences, rows: list[Any], sample_weight: Any
    ) -> tuple[Sequences, Targets, Floats]:
        """What to learn from: the sequences that have a say, checked against the scheme."""
        targets = self._labels.encode(rows, self.missing_label)
        allowed = self._allowed(self._labels)
        self._constraint = None
        if allowed is not None:
            mendable = self.on_violation == "raise" and isinstance(self.scheme, str)
            check_lawful(rows, targets, allowed, mendable=mendable)
            self._constraint = Constraint.of(allowed)
        weights = _checked_weights(sample_weight, len(data))
        self._used = np.arange(len(data))
        if not weights.all():
            self._used = kept = np.flatnonzero(weights)
            data, targets, weights = data[kept], targets[kept], weights[kept]
        return data, targets, weights

    def _scale(self, parts: list[HeldOut] | None) -> None:
        """Calibrate by held-out scores in the way that ``calibrate`` says; None: not at all."""
        found = (None, None, None) if parts is None else fit_scaling(parts, self.calibrate)
        self.temperature_, self.offsets_, self.slopes_ = found

    def _random(self) -> np.random.RandomState:
        try:
            state: np.random.RandomState = check_random_state(self.random_state)
            return state
        except ValueError as error:
            raise InputError(f"random_state: {error}") from error

    def _learn_labels(self, rows: list[Any]) -> LabelSet:
        labels = LabelSet.learn(rows, self.missing_label)
        if self.classes is not None:
            declared = LabelSet(self.classes)
            extra = [name for name in labels.names if name not in declared.index]
            if extra:
                raise LabelError(f"label {extra[0]!r} occurs in y but not in classes=")
            labels = declared
        if len(labels) < 2:
            what = f"only the label {labels.names[0]!r}" if len(labels) else "no labels"
            raise LabelError(f"y holds {what}: training needs at least two labels")
        return labels

    def _allowed(self, labels: LabelSet) -> Allowed | None:
        """The tables of what the scheme allows, or None without a scheme."""
        if self.scheme is None:
            return None
        if isinstance(self.scheme, str):
            return get_scheme(self.scheme).transitions(labels.names)
        if not isinstance(self.scheme, Iterable):
            raise InputError(f"scheme must be a name or pairs of labels, got {self.scheme!r}")
        return table_transitions(self.scheme, labels.names)

    # --- use ------------------------------------------------------------------------------------

    def predict(self, X: Any, *, lengths: Any = None, decoding: Decoding = "viterbi") -> list[Any]:
        """Labels of each sequence.

        ``decoding="viterbi"`` gives the most probable labelling, ``"posterior"`` the one with the
        most expected right labels.
        """
        return self._labels_of(self._encode(X, lengths), decoding)

    def _labels_of(self, data: Sequences, decoding: Decoding) -> list[Any]:
        return [row for chains in self._blocks(data) for row in self._decode(chains, decoding)]

    def _decode(self, chains: list[ChainScores], decoding: Decoding) -> list[Any]:
        if decoding == "viterbi":
            codes = _average.viterbi(chains, self.n_jobs)
        elif decoding == "posterior":
            codes = _average.posterior_decode(self._posterior(chains), self.n_jobs)
        else:
            raise InputError(f"decoding must be 'viterbi' or 'posterior', got {decoding!r}")
        return self._labels.decode(codes, chains[0].offsets)

    def predict_proba(self, X: Any, *, lengths: Any = None) -> list[Floats]:
        """p(y_t = j | x): for each sequence a (T, S) array, columns in order of ``classes_``."""
        data = self._encode(X, lengths)
        blocks = (self._posterior(chains) for chains in self._blocks(data))
        node = np.vstack([_average.marginals(chains, self.n_jobs) for chains in blocks])
        return np.split(node, data.offsets[1:-1])

    def predict_nbest(
        self, X: Any, n: int = 5, *, lengths: Any = None
    ) -> list[list[tuple[list[Any], float]]]:
        """For each sequence its n best labellings with their log-probabilities, best first."""
        data = self._encode(X, lengths)
        names, out = self._labels.names, []
        for chains in map(self._joint, self._blocks(data)):
            found = _average.nbest(chains, n, self.n_jobs)
            out += [[([names[k] for k in codes], p) for codes, p in best] for best in found]
        return out

    def sample(
        self, X: Any, n: int = 1, *, random_state: Any = None, lengths: Any = None
    ) -> list[list[list[Any]]]:
        """For each sequence n labellings drawn from p(y | x)."""
        data = self._encode(X, lengths)
        if self._n_draws > 1:  # blocks go on with the same random numbers
            random_state = np.random.default_rng(random_state)
        blocks = (self._joint(chains) for chains in self._blocks(data))
        parts = [_average.sample(chains, n, random_state, self.n_jobs) for chains in blocks]
        drawn = [self._labels.decode(row, data.offsets) for row in np.hstack(parts)]
        return [[draw[i] for draw in drawn] for i in range(len(data))]

    def log_likelihood(self, X: Any, y: Any, *, lengths: Any = None) -> Floats:
        """log p(y | x) of each sequence (n,).

        Missing labels and candidate sets are summed over; a labelling that the scheme forbids has
        -inf.
        """
        data = self._encode(X, lengths)
        rows = nested(y, data.offsets, flat=lengths is not None)
        targets = self._labels.encode(rows, self.missing_label)
        out, at = [], 0
        for chains in map(self._joint, self._blocks(data)):
            n = chains[0].n_sequences
            out.append(_average.log_prob(chains, targets[np.arange(at, at + n)], self.n_jobs))
            at += n
        return np.concatenate(out)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, lengths: Any = None) -> float:
        """Token accuracy over the labelled tokens; sequence i counts ``sample_weight[i]`` times."""
        data = self._encode(X, lengths)
        rows = nested(y, data.offsets, flat=lengths is not None)
        self._labels.encode(rows, self.missing_label)  # unknown labels are an error, not a miss
        rows = [[None if is_missing(v, self.missing_label) else v for v in row] for row in rows]
        predicted = self._labels_of(data, "viterbi")
        if sample_weight is None:
            return token_accuracy(rows, predicted)
        known = [sum(v is not None for v in row) for row in rows]
        w = _checked_weights(sample_weight, len(rows)) * known
        each = [token_accuracy([a], [b]) for a, b in zip(rows, predicted, strict=True)]
        return float(np.average(np.nan_to_num(each), weights=w)) if w.any() else float("nan")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file, atomically; `seqfield.load` reads it."""
        check_is_fitted(self, "classes_")
        _files.save(self, path)

    # --- encoding -------------------------------------------------------------------------------

    def _encode(self, X: Any, lengths: Any = None) -> Sequences:
        """X in the features of the fitted model."""
        check_is_fitted(self, "features_")
        encoder: Encoder = self.features_
        if isinstance(X, Sequences) and not isinstance(encoder, Numeric):
            if X.n_features != self.n_features_in_:
                raise InputError(
                    f"X has {X.n_features} features, the model was trained with "
                    f"{self.n_features_in_}"
                )
            return X  # encoded already, by this model's features_
        return encoder.transform(X if lengths is None else as_sequences(X, lengths))

    def _blocks(self, data: Sequences) -> Iterator[list[ChainScores]]:
        """Scores of data under the model's constraints, of each posterior draw; of many draws in
        blocks of sequences, so that memory has a bound."""
        numbers = data.n_tokens * len(self._labels) * self._n_draws
        n_blocks = 1 if self._n_draws == 1 else -(-numbers // DRAWN)
        for first, last in even_bounds(data.offsets, n_blocks):
            yield self._chains(data if n_blocks == 1 else data[np.arange(first, last)])

    def _chains(self, data: Sequences) -> list[ChainScores]:
        chains = [self._constrained(part) for part in self._draws(data)]
        if self.offsets_ is not None:  # labels and probabilities shall agree
            chains = [rescaled(scores, self.slopes_, self.offsets_) for scores in chains]
        return chains

    def _constrained(self, scores: ChainScores) -> ChainScores:
        return scores if self._constraint is None else self._constraint.impose(scores)

    def _joint(self, chains: list[ChainScores]) -> list[ChainScores]:
        """The same, for what needs the distribution of whole labellings."""
        return self._posterior(chains)

    def _posterior(self, chains: list[ChainScores]) -> list[ChainScores]:
        """Scores whose chain distributions average to p(y | x)."""
        if self.temperature_ is not None:
            return [tempered(scores, self.temperature_) for scores in chains]
        if not self.probabilistic:
            raise CapabilityError(
                f"{type(self).__name__} gives scores, not probabilities: fit it with "
                "calibrate=True to have probabilities calibrated on held-out folds"
            )
        return chains


def _checked_weights(sample_weight: Any, n: int) -> Floats:
    if sample_weight is None:
        return np.ones(n)
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must be numbers: {error}") from error
    if weights.shape != (n,):
        raise InputError(f"sample_weight must have one entry for each of {n} sequences")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InputError("sample_weight must be finite, not negative, and not all zero")
    return weights
