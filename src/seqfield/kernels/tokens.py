"""The distinct tokens of a training set, over which gram matrices are computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.kernels.gram import distinct
from seqfield.sequences import Sequences


class Tokens(NamedTuple):
    """The distinct tokens of a training set: their rows, the first place of each, and the
    distinct token that each token is equal to."""

    x: Any
    first: NDArray[np.int64]
    inverse: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, data: Sequences) -> Tokens:
        """Equal rows are kept once."""
        first, inverse = distinct(data.x)
        return cls(data.x[first], first, inverse, data.offsets)

    def numbered(self) -> Sequences:
        """The sequences with the number of each token as its one feature."""
        return Sequences(self.inverse[:, None].astype(np.float64), self.offsets)
