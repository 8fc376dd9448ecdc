"""What every loss gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.chain import ChainScores
from seqfield.labels import Targets

Floats = NDArray[np.float64]


class ScoreGradient(NamedTuple):
    """Value of a loss, and its derivatives by node (N, S) and edge scores ((S, S) or (N, S, S))."""

    value: float
    node: Floats
    edge: Floats


class Loss(ABC):
    """From scores and labels to a value and its score gradient.

    ``values`` gives each sequence's part and ``total`` puts parts together, by a weighted sum
    unless a loss says otherwise. Parts of the data may be totalled apart and those totals again:
    total(parts) is associative, with all weights 1 the second time.
    """

    #: convex in the scores if every label is known, so that an optimality certificate exists
    convex: bool = True
    #: a plain sum over sequences, as minibatches need
    additive: bool = True

    @abstractmethod
    def __call__(self, scores: ChainScores, targets: Targets, weights: Floats) -> ScoreGradient:
        """Total and score gradient, sequence i counting ``weights[i]`` times."""

    @abstractmethod
    def values(self, scores: ChainScores, targets: Targets) -> Floats:
        """The part of each sequence (n,)."""

    def total(self, values: Floats, weights: Floats) -> float:
        """The parts put together."""
        return float(weights @ values)

    def shares(self, values: Floats, weights: Floats) -> Floats:
        """The derivative of the total by each part (n,)."""
        return weights
