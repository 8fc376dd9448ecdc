"""Explicit features of polynomial kernels on tokens of ones and zeros: pairs and triples.

Two such tokens have n = x . z features in common, so they share n choose m subsets of m features:

    (n + c)^2 = c^2 + (2c + 1) n + 2 (n choose 2)
    (n + c)^3 = c^3 + (3c^2 + 3c + 1) n + 6 (c + 1) (n choose 2) + 6 (n choose 3)

Only subsets that occur in training tokens get columns: all other weights are 0 at the optimum.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import BudgetError, InputError
from seqfield.kernels import _expand_loops
from seqfield.kernels._pairs import canonical
from seqfield.kernels.explicit import (
    EXPANSIONS,
    Beside,
    Expansion,
    Floats,
    Ints,
    Times,
    whole_numbers,
    width_of,
)
from seqfield.persist import Arrays, Header, State


class _Subsets(Expansion):
    """Columns for subsets of features; ``keys`` are the subsets as numbers with the digits i < j
    (< k) in base ``width``, in the order of their columns."""

    word: ClassVar[str]
    keys: Ints

    @classmethod
    def _checked_tokens(cls, x: Any, budget: float) -> Any:
        """x in canonical form; None if x is not sparse or not binary."""
        if not sp.issparse(x):
            return None
        x = canonical(x)
        if not (x.data == 1).all():
            return None
        entries = int(cls._entries(np.diff(x.indptr).astype(np.int64)).sum())
        need = 12 * entries  # a float64 and an int32 each
        if need > budget:
            raise BudgetError(
                f"the {cls.word} of features of {x.shape[0]} tokens are {entries} numbers, "
                f"{need / 2**30:.3g} GiB; the budget is {budget / 2**30:.3g} GiB. Use fewer "
                "features a token, explicit=False, or a larger gram_budget="
            )
        return x

    @staticmethod
    @abstractmethod
    def _entries(n: Ints) -> Ints:
        """Entries of rows with n features."""

    def _check_columns(self) -> None:
        if self.n_columns >= 2**31:
            raise BudgetError(f"{len(self.keys)} {self.word} of features are 2^31 columns or more")

    @cached_property
    def _table(self) -> tuple[Ints, NDArray[np.int32]]:
        slots, places = _expand_loops.table_of(self.keys)
        return slots, places

    def _binary(self, x: Any) -> Any:
        x = canonical(sp.csr_array(x))
        if not (x.data == 1).all():
            raise InputError(
                f"this model was trained on {self.word} of features that are 0 or 1, but these "
                "tokens have other values: train with explicit=False for such features"
            )
        return x

    def _csr(self, data: Floats, indices: Any, indptr: Any) -> Any:
        if len(indices) < 2**31:  # with another type of row starts scipy copies the columns
            indptr = indptr.astype(np.int32)
        return sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, self.n_columns))

    @staticmethod
    def _loaded(own: Header, arrays: Arrays, size: int) -> tuple[int, Ints]:
        """Width and keys of a file."""
        keys, width = whole_numbers(arrays["keys"]), width_of(own)
        digits = [keys // width**m % width if width else keys for m in range(size)]
        rising = all((a > b).all() for a, b in zip(digits, digits[1:], strict=False))
        if len(keys) and (
            keys.min() < 0
            or keys.max() >= width**size
            or not rising
            or len(np.unique(keys)) != len(keys)
        ):
            raise InputError("damaged expansion: its subsets of features do not fit")
        return width, keys


@EXPANSIONS.register
class UpToPairs(_Subsets):
    """a + b n + c (n choose 2) for n = x . z on tokens of ones and zeros and ``terms`` (a, b, c):
    [sqrt(a), sqrt(b) x_i, sqrt(c) x_i x_j (i < j)].

    >>> x = sp.csr_array(np.array([[1, 1, 0], [0, 1, 1]]))
    >>> phi = UpToPairs.learn(x, (1.0, 2.0, 3.0)).transform(x)
    >>> phi.shape, (phi @ phi.T).toarray().round(9).tolist()
    ((2, 6), [[8.0, 3.0], [3.0, 8.0]])
    """

    word = "pairs"

    def __init__(self, width: int, terms: tuple[float, float, float], keys: Ints) -> None:
        self.width, self.terms, self.keys = width, terms, keys
        self.n_columns = 1 + width + len(keys)
        self._check_columns()

    @staticmethod
    def _entries(n: Ints) -> Ints:
        return 1 + n + n * (n - 1) // 2

    @classmethod
    def learn(cls, x: Any, terms: Any, budget: float = np.inf) -> Self | None:
        """The expansion with the pairs that occur in x; None if x is not sparse or not binary."""
        x = cls._checked_tokens(x, budget)
        if x is None:
            return None
        return cls(x.shape[1], terms, _expand_loops.find_pairs(x.indptr, x.indices, x.shape[1]))

    def _values(self) -> tuple[float, float, float]:
        """The values in the first column, in columns of features, and in columns of pairs."""
        a, b, c = np.sqrt(self.terms)
        return a, b, c

    def _transform(self, x: Any) -> Any:
        x = self._binary(x)
        indptr, indices = _expand_loops.expand(x.indptr, x.indices, self.width, *self._table)
        first, single, pair = self._values()
        data = np.full(len(indices), pair)
        data[indices <= self.width] = single
        data[indptr[:-1]] = first
        return self._csr(data, indices, indptr)

    def _squared_norms(self, x: Any) -> Floats:
        n: Floats = np.diff(self._binary(x).indptr).astype(np.float64)
        a, b, c = self.terms
        return a + b * n + c * (n * (n - 1.0) / 2.0)

    def _own(self) -> State:
        return State({"width": self.width, "terms": list(self.terms)}, {"keys": self.keys})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        width, keys = cls._loaded(own, arrays, 2)
        a, b, c = (number("a term", term, low=0) for term in own["terms"])
        return cls(width, (a, b, c), keys)


@EXPANSIONS.register
class Quadratic(UpToPairs):
    """(x . z + c)^2 on tokens of ones and zeros: [c, sqrt(2c + 1) x_i, sqrt(2) x_i x_j (i < j)].

    >>> x = sp.csr_array(np.array([[1, 1, 0], [0, 1, 1]]))
    >>> found = Quadratic.learn(x, 1.0)
    >>> phi = found.transform(x)
    >>> phi.shape, (phi @ phi.T).toarray().round(9).tolist()
    ((2, 6), [[9.0, 4.0], [4.0, 9.0]])
    """

    def __init__(self, width: int, coef0: float, keys: Ints) -> None:
        super().__init__(width, (coef0 * coef0, 2.0 * coef0 + 1.0, 2.0), keys)
        self.coef0 = coef0

    def _values(self) -> tuple[float, float, float]:
        # c itself, which is finite even where its square is not
        _, single, pair = super()._values()
        return self.coef0, single, pair

    def _own(self) -> State:
        return State({"width": self.width, "coef0": self.coef0}, {"keys": self.keys})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        width, keys = cls._loaded(own, arrays, 2)
        return cls(width, number("coef0", own["coef0"], low=0), keys)


@EXPANSIONS.register
class Triples(_Subsets):
    """n choose 3 for n = x . z on tokens of ones and zeros: [x_i x_j x_k (i < j < k)].

    >>> x = sp.csr_array(np.array([[1, 1, 1, 0], [1, 1, 1, 1]]))
    >>> phi = Triples.learn(x).transform(x)
    >>> phi.shape, (phi @ phi.T).toarray().tolist()
    ((2, 4), [[1.0, 1.0], [1.0, 4.0]])
    """

    word = "triples"
    #: three digits in this base are below 2^63
    WIDEST = 2**21

    def __init__(self, width: int, keys: Ints) -> None:
        self.width, self.keys, self.n_columns = width, keys, len(keys)
        self._check_columns()

    @staticmethod
    def _entries(n: Ints) -> Ints:
        return n * (n - 1) * (n - 2) // 6

    @classmethod
    def learn(cls, x: Any, budget: float = np.inf) -> Triples | None:
        """With the triples that occur in x; None if x is not sparse, not binary or too wide."""
        x = cls._checked_tokens(x, budget)
        if x is None or x.shape[1] > cls.WIDEST:
            return None
        return cls(x.shape[1], _expand_loops.find_triples(x.indptr, x.indices, x.shape[1]))

    def _transform(self, x: Any) -> Any:
        x = self._binary(x)
        found = _expand_loops.expand_triples(x.indptr, x.indices, self.width, *self._table)
        indptr, indices = found
        return self._csr(np.ones(len(indices)), indices, indptr)

    def _squared_norms(self, x: Any) -> Floats:
        return self._entries(np.diff(self._binary(x).indptr).astype(np.int64)).astype(np.float64)

    def _own(self) -> State:
        return State({"width": self.width}, {"keys": self.keys})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        if width_of(own) > cls.WIDEST:
            raise InputError("damaged expansion: too many features for triples")
        return cls(*cls._loaded(own, arrays, 3))


def cubic(x: Any, c: float, budget: float = np.inf) -> Expansion | None:
    """The features of (x . z + c)^3 for c >= 0, or None if x is not sparse or not binary.

    >>> x = sp.csr_array(np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]))
    >>> phi = cubic(x, 1.0).transform(x)
    >>> (phi @ phi.T).toarray().round(9).tolist()
    [[64.0, 64.0, 1.0], [64.0, 125.0, 1.0], [1.0, 1.0, 1.0]]
    """
    triples = Triples.learn(x, budget)
    if triples is None:
        return None
    spent = 12.0 * float(triples.squared_norms(x).sum())
    terms = (c * c * c, 3.0 * c * c + 3.0 * c + 1.0, 6.0 * (c + 1.0))
    pairs = UpToPairs.learn(x, terms, budget - spent)
    assert pairs is not None
    return Beside(pairs, Times(triples, 6.0))
