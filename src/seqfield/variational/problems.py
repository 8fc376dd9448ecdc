"""What variational methods work on: labels and a prior of scores, without a loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.inducing import Inducing
from seqfield.architectures.neighbours import Neighbours
from seqfield.labels import Targets
from seqfield.objectives.needs import Parts
from seqfield.sequences import Sequences
from seqfield.variational._expectations import Likelihood

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NeighbourProblem:
    """Labels given their neighbours' labels: variational EM. ``rows`` (N,) is the row of each token
    in the architecture's root."""

    architecture: Neighbours
    rows: NDArray[np.int64]
    targets: Targets
    weights: Floats

    @classmethod
    def of(
        cls, architecture: Neighbours, data: Sequences, targets: Targets, weights: Floats
    ) -> NeighbourProblem:
        """From data whose one column is the row of each token."""
        return cls(architecture, np.asarray(data.x[:, 0], np.int64), targets, weights)

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        return Parts(self.architecture)


@dataclass(frozen=True)
class InducingProblem:
    """Labels under functions that are known at inducing tokens: stochastic variational inference.
    Batches are taken of the data."""

    architecture: Inducing
    data: Sequences
    targets: Targets
    weights: Floats
    likelihood: Likelihood

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        return Parts(self.architecture)
