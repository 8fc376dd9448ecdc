"""Explicit features: maps of tokens to features whose inner products are a kernel.

A model of such a kernel can be trained on the features of a whole corpus, without a gram matrix. An
`Expansion` is learned on training tokens and maps any tokens to the same columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.kernels._pairs import as_matrix, check_finite, squared_norms
from seqfield.persist import Arrays, Family, Header, State, prefixed, under

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: expansions that model files can hold
EXPANSIONS: Family[Expansion, []] = Family("expansion")


class Expansion(ABC):
    """A map of tokens (N, width) to features (N, n_columns)."""

    width: int
    n_columns: int
    parts: tuple[Expansion, ...] = ()

    def transform(self, x: Any) -> Any:
        """The features of tokens; sparse (CSR) if the tokens are sparse."""
        return self._transform(self._checked(x))

    def squared_norms(self, x: Any) -> Floats:
        """k(x, x) of each row; features that training tokens do not have count too."""
        return self._squared_norms(self._checked(x))

    def _checked(self, x: Any) -> Any:
        x = as_matrix(x)
        if x.shape[1] != self.width:
            raise InputError(f"tokens of {x.shape[1]} features, but training had {self.width}")
        return x

    @abstractmethod
    def _transform(self, x: Any) -> Any:
        """The features."""

    @abstractmethod
    def _squared_norms(self, x: Any) -> Floats:
        """k(x, x) of each row."""

    @abstractmethod
    def _own(self) -> State:
        """What `_load` takes besides the parts."""

    @classmethod
    @abstractmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        """The expansion of what `_own` gave."""

    def state(self) -> State:
        """Header and arrays of the expansion and of its parts."""
        own, arrays = self._own()
        parts: list[Header] = []
        for i, part in enumerate(self.parts):
            inner, found = EXPANSIONS.state(part)
            parts.append(inner)
            arrays |= prefixed(str(i), found)
        return State({"own": own, "parts": parts}, arrays)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays) -> Self:
        """The expansion of what `state` gave.

        >>> Same.restore(*Same(3).state()).n_columns
        3
        """
        inner = enumerate(header["parts"])
        parts = [EXPANSIONS.restore(part, under(str(i), arrays)) for i, part in inner]
        return cls._load(dict(header["own"]), arrays, parts)


@EXPANSIONS.register
class Same(Expansion):
    """The tokens as they are, in float64: products of int8, the type of binary features, would
    overflow."""

    def __init__(self, width: int) -> None:
        self.width = self.n_columns = width

    def _transform(self, x: Any) -> Any:
        return x.astype(np.float64, copy=False)

    def _squared_norms(self, x: Any) -> Floats:
        return squared_norms(x)

    def _own(self) -> State:
        return State({"width": self.width}, {})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        return cls(width_of(own))


@EXPANSIONS.register
class Ones(Expansion):
    """One column: the root of a value."""

    n_columns = 1

    def __init__(self, width: int, value: float) -> None:
        self.width, self.value = width, value

    def _transform(self, x: Any) -> Any:
        column = np.full((x.shape[0], 1), np.sqrt(self.value))
        return sp.csr_array(column) if sp.issparse(x) else column

    def _squared_norms(self, x: Any) -> Floats:
        return np.full(x.shape[0], self.value)

    def _own(self) -> State:
        return State({"width": self.width, "value": self.value}, {})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        return cls(width_of(own), number("value", own["value"], low=0))


@EXPANSIONS.register
class Times(Expansion):
    """The features of another expansion times the root of a scale."""

    def __init__(self, inner: Expansion, scale: float) -> None:
        self.parts, self.scale = (inner,), scale
        self.width, self.n_columns = inner.width, inner.n_columns

    def _transform(self, x: Any) -> Any:
        return self.parts[0].transform(x) * np.sqrt(self.scale)

    def _squared_norms(self, x: Any) -> Floats:
        return self.scale * self.parts[0].squared_norms(x)

    def _own(self) -> State:
        return State({"scale": self.scale}, {})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        (inner,) = parts
        return cls(inner, number("scale", own["scale"], low=0))


@EXPANSIONS.register
class UnitLength(Expansion):
    """The features of another expansion, scaled to length 1 in each row.

    Features that training tokens do not have count in the length too.
    """

    def __init__(self, inner: Expansion) -> None:
        self.parts = (inner,)
        self.width, self.n_columns = inner.width, inner.n_columns

    def _transform(self, x: Any) -> Any:
        scale = inverse_root(check_finite(self.parts[0].squared_norms(x)))
        features = self.parts[0].transform(x)
        if sp.issparse(features):
            return sp.csr_array(sp.diags_array(scale) @ features)
        return features * scale[:, None]

    def _squared_norms(self, x: Any) -> Floats:
        return (check_finite(self.parts[0].squared_norms(x)) > 0).astype(np.float64)

    def _own(self) -> State:
        return State({}, {})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        (inner,) = parts
        return cls(inner)


@EXPANSIONS.register
class Beside(Expansion):
    """The features of two expansions, side by side."""

    def __init__(self, left: Expansion, right: Expansion) -> None:
        if left.width != right.width:
            raise InputError("expansions side by side must take the same tokens")
        self.parts = (left, right)
        self.width, self.n_columns = left.width, left.n_columns + right.n_columns

    def _transform(self, x: Any) -> Any:
        found = [part.transform(x) for part in self.parts]
        return sp.hstack(found, format="csr") if sp.issparse(x) else np.hstack(found)

    def _squared_norms(self, x: Any) -> Floats:
        return self.parts[0].squared_norms(x) + self.parts[1].squared_norms(x)

    def _own(self) -> State:
        return State({}, {})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        left, right = parts
        return cls(left, right)


@EXPANSIONS.register
class Chosen(Expansion):
    """The features of another expansion of some of the columns."""

    def __init__(self, inner: Expansion, columns: Ints, width: int) -> None:
        if len(columns) != inner.width or ((columns < 0) | (columns >= width)).any():
            raise InputError("damaged expansion: its columns do not fit")
        self.parts, self.columns, self.width = (inner,), columns, width
        self.n_columns = inner.n_columns

    def _transform(self, x: Any) -> Any:
        return self.parts[0].transform(x[:, self.columns])

    def _squared_norms(self, x: Any) -> Floats:
        return self.parts[0].squared_norms(x[:, self.columns])

    def _own(self) -> State:
        return State({"width": self.width}, {"columns": self.columns})

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        (inner,) = parts
        return cls(inner, whole_numbers(arrays["columns"]), width_of(own))


def inverse_root(squares: Floats) -> Floats:
    """1 / sqrt(squares), or 0 for squares that are not above 0.

    >>> inverse_root(np.array([4.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    above = squares > 0
    return np.where(above, 1.0, 0.0) / np.sqrt(np.where(above, squares, 1.0))


def width_of(own: Header) -> int:
    """The number of columns in a header."""
    return int(number("width", own["width"], low=0, high=2**31, whole=True))


def whole_numbers(values: NDArray[Any]) -> Ints:
    """Checked whole numbers of a file."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError("damaged expansion: whole numbers expected")
    return values.astype(np.int64)
