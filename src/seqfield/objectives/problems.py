"""Problems for special solvers. Each problem holds only the parts that its solver reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.dual import Dual, Growing
from seqfield.architectures.linear import Linear, Tables
from seqfield.architectures.lookup import Lookup
from seqfield.architectures.rooted import Rooted
from seqfield.chain.constraint import Constraint
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.objectives.needs import Parts
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LinearProblem:
    """Explicit features as plain arrays, for the primal perceptron and boosting.

    The loops of these solvers change single weights.
    """

    architecture: Linear
    tables: Tables
    targets: Targets
    weights: Floats
    constraint: Constraint | None = None

    @classmethod
    def of(
        cls,
        architecture: Linear,
        data: Sequences,
        targets: Targets,
        weights: Floats,
        constraint: Constraint | None = None,
    ) -> LinearProblem:
        """Make the problem from data."""
        return cls(architecture, architecture.tables(data), targets, weights, constraint)

    @property
    def parts(self) -> Parts:
        """Architecture, loss and prior."""
        return Parts(self.architecture)


@dataclass(frozen=True)
class DualProblem:
    """A function in the span of the data's tokens, for the dual perceptron and maximum margins."""

    architecture: Dual
    data: Sequences
    targets: Targets
    weights: Floats
    constraint: Constraint | None = None

    def zero(self) -> Growing:
        """A new zero function over the tokens of the data. A solver then changes the function."""
        return Growing(self.architecture, self.data)

    @property
    def parts(self) -> Parts:
        """Architecture, loss and prior."""
        return Parts(self.architecture)


@dataclass(frozen=True)
class WhitenedProblem:
    """Labels under the scores F = root b and T = sqrt(eta) B, for elliptical slice sampling.

    The prior is b, B ~ N(0, I). ``table`` is the log-likelihood as a function of the scores.
    """

    architecture: Rooted
    table: Objective

    @classmethod
    def of(
        cls,
        architecture: Rooted,
        data: Sequences,
        targets: Targets,
        weights: Floats,
        constraint: Constraint | None = None,
        n_jobs: int | None = None,
    ) -> WhitenedProblem:
        """Make the problem from data. Their one column is the row of the root for each token."""
        scores = Lookup(architecture.n_labels, architecture.size)
        flat = ElasticNet(0.0, 0.0)
        table = Objective(scores, LogLoss(), flat, data, targets, weights, constraint, n_jobs)
        return cls(architecture, table)

    @property
    def rows(self) -> Ints:
        """The row of the root for each token."""
        return np.asarray(self.table.data.x[:, 0], np.int64)

    @property
    def parts(self) -> Parts:
        """Architecture, loss and prior."""
        return Parts(self.architecture)

    def on_one_thread(self) -> WhitenedProblem:
        """The same problem on one thread, for use by several threads at the same time."""
        return replace(self, table=self.table.on_one_thread())
