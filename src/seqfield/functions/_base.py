"""What a model learned, as an object: encoded sequences in, chain scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.persist import Arrays, Family, Header, State
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]


class Shape(NamedTuple):
    """What a function must fit: the numbers of labels and of features."""

    n_labels: int
    n_features: int


class Learned(ABC):
    """A learned function from encoded sequences to scores of labels and transitions.

    A posterior is represented by draws. `draws` gives the scores of each draw, and `scores` gives
    the scores of the point estimate.
    """

    @property
    def n_draws(self) -> int:
        """How many draws there are."""
        return 1

    @property
    @abstractmethod
    def transitions(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""

    @abstractmethod
    def scores(self, data: Sequences, n_jobs: int | None = None) -> ChainScores:
        """Chain scores of encoded data, without constraints."""

    def draws(self, data: Sequences, n_jobs: int | None = None) -> list[ChainScores]:
        """Chain scores of each draw from the posterior; without a posterior, of one function."""
        return [self.scores(data, n_jobs)]

    @abstractmethod
    def state(self) -> State:
        """Header and arrays for a model file."""

    @classmethod
    @abstractmethod
    def restore(cls, header: Header, arrays: Arrays, shape: Shape) -> Self:
        """The function of what `state` gave; every index is range-checked."""


#: functions that model files may hold
LEARNED: Family[Learned, [Shape]] = Family("learned function")


def checked(
    name: str, arrays: Arrays, shape: tuple[int, ...], *, low: float = -np.inf
) -> NDArray[np.float64]:
    """An array of a model file: of this shape, finite, and nowhere below ``low``."""
    array = np.asarray(arrays[name], np.float64)
    if array.shape != shape or not np.isfinite(array).all() or (array < low).any():
        raise InputError(f"{name} has the wrong shape or values that cannot be")
    return array
