"""What estimators over explicit features share: parameters, the architecture, inspection."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from seqfield.architectures.linear import Linear
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._base import SequenceEstimator
from seqfield.estimators._descent import (
    early_stopping_param,
    patience_param,
    validation_fraction_param,
)
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import features_param, flag, parameters
from seqfield.functions import Learned, LinearFunction

Floats = NDArray[np.float64]


class NoWeightsError(CapabilityError, AttributeError):
    """Weights of features are asked of a model with a kernel; to `hasattr`, they are not there."""


class Weight(NamedTuple):
    """One weight of a linear model: its label, feature and value."""

    label: Any
    feature: str
    value: float


@parameters
class LinearEstimator(SequenceEstimator):
    """Base of estimators whose scores are linear in features."""

    learns: ClassVar[tuple[type[Learned], ...]] = (LinearFunction,)
    features: Any = features_param(kw_only=False)
    observed_only: bool = flag(
        default=True,
        help=(
            "give weights only to (feature, label) and (label, label) pairs that occur in "
            "training. False gives all of them a weight, which takes more memory"
        ),
    )
    transitions: bool = flag(
        default=True,
        help="False leaves transition weights out, as a template without a B line does",
    )
    warm_start: bool = flag(
        default=False,
        help="start from the weights, labels and features of the last fit",
    )
    early_stopping: bool = early_stopping_param()
    validation_fraction: float = validation_fraction_param()
    patience: int = patience_param(10, "iterations")

    def _architecture(self, lesson: Lesson, start: Learned | None) -> Linear:
        """The weights there are: those of the last fit, or what the lesson shows."""
        if isinstance(start, LinearFunction):
            return start.architecture
        return Linear.build(
            lesson.data,
            lesson.targets,
            lesson.n_labels,
            observed=self.observed_only,
            transitions=self.transitions and lesson.encoder.transitions_,
        )

    @property
    def theta_(self) -> Floats:
        """All weights; a model with a kernel has none."""
        return self._weights().theta

    @property
    def transitions_(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""
        return self.scorer.transitions

    @property
    def n_features_used_(self) -> int:
        """Number of node features with a weight other than zero."""
        weights, feature, _ = self._weights().node_weights()
        return len(np.unique(feature[np.flatnonzero(weights)]))

    def top_weights(self, n: int = 10, *, label: Any = None, lowest: bool = False) -> list[Weight]:
        """The n largest (or lowest) node weights, of one label or of all."""
        weights, feature, column = self._weights().node_weights()
        chosen = np.arange(len(weights))
        if label is not None:
            if label not in self.labels_.index:
                raise InputError(f"{label!r} is not one of the model's labels")
            chosen = np.flatnonzero(column == self.labels_.index[label])
        order = np.argsort(weights[chosen] if lowest else -weights[chosen], kind="stable")[:n]
        names = self.features_.names()
        return [
            Weight(self.labels_.names[column[k]], names[feature[k]], float(weights[k]))
            for k in chosen[order]
        ]

    def _weights(self) -> LinearFunction:
        check_is_fitted(self, "function_")
        if not isinstance(self.function_, LinearFunction):
            raise NoWeightsError(
                "a model with a kernel has coefficients of tokens, not weights of features"
            )
        return self.function_
