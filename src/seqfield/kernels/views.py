"""Kernels of changed tokens: of some columns, or of columns with weights."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.kernels import explicit
from seqfield.kernels._base import KERNELS, Floats, Kernel
from seqfield.kernels._pairs import Pairs, as_matrix, squared_norms
from seqfield.kernels.explicit import Expansion
from seqfield.persist import Arrays, Header, State

Ints = NDArray[np.int64]


class _View(Kernel):
    """Base class: an inner kernel of the tokens that `seen` returns."""

    _parts = ("kernel",)
    kernel: Kernel

    @abstractmethod
    def _key(self, width: int) -> bytes:
        """A key that distinguishes this view of tokens with ``width`` features from other views."""

    def _seen(self, pairs: Pairs) -> Pairs:
        width = pairs.left_rows.whole.matrix.shape[1]
        return pairs.changed(type(self).__name__.encode() + self._key(width), self.seen)

    def _value(self, pairs: Pairs) -> Floats:
        return self.kernel._value(self._seen(pairs))

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        return self.kernel._derivatives(self._seen(pairs))

    def _diagonal(self, x: Any) -> Floats:
        return self.kernel._diagonal(self.seen(x))


@KERNELS.register
class Columns(_View):
    """A kernel of some of the columns.

    Parameters
    ----------
    kernel : the kernel of these columns
    columns : a slice, a list of column numbers, or a prefix of feature names. `fit` finds the
        columns whose names start with the prefix

    >>> from seqfield.kernels import Linear
    >>> k = Columns(Linear(), "w=").fit(np.eye(3), names=["w=a", "tag=N", "w=b"])
    >>> k.columns.tolist(), k(np.eye(3)).diagonal().tolist()
    ([0, 2], [1.0, 0.0, 1.0])
    """

    def __init__(self, kernel: Kernel, columns: slice | list[int] | Ints | str) -> None:
        self.kernel = kernel
        self.columns = columns

    def _check(self) -> None:
        if isinstance(self.columns, slice):
            for part in (self.columns.start, self.columns.stop, self.columns.step):
                if part is not None:
                    number("Columns: each part of a slice", part, whole=True)
            if self.columns.step == 0:
                raise InputError("Columns: the step of a slice must not be 0")

    def fit(self, x: Any, names: list[str] | None = None) -> Self:
        """The kernel with the columns as an array of numbers."""
        self.check()
        x = as_matrix(x)
        if isinstance(self.columns, str):
            found = self._matching(self.columns, names, x.shape[1])
        else:
            found = self._numbers(x.shape[1])
        out = copy.copy(self)
        out.columns = found
        within = None if names is None else [names[c] for c in found]
        out.kernel = self.kernel.fit(x[:, found], within)
        return out

    @staticmethod
    def _matching(prefix: str, names: list[str] | None, width: int) -> Ints:
        if names is None or len(names) != width:
            have = "none" if names is None else f"{len(names)} for {width} columns"
            raise InputError(f"Columns: the prefix {prefix!r} needs feature names, got {have}")
        found = [c for c, name in enumerate(names) if name.startswith(prefix)]
        if not found:
            first = ", ".join(map(repr, names[:5]))
            raise InputError(f"Columns: no feature name starts with {prefix!r}; the first: {first}")
        return np.array(found, dtype=np.int64)

    def _numbers(self, width: int) -> Ints:
        """The columns as numbers from 0 on."""
        if isinstance(self.columns, str):
            raise InputError(
                f"Columns: the prefix {self.columns!r} is looked up by fit(x, names); "
                "fit the kernel first"
            )
        if isinstance(self.columns, slice):
            return np.arange(width, dtype=np.int64)[self.columns]
        found = np.asarray(self.columns)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise InputError(
                "Columns: columns must be a slice, a list of whole numbers or a prefix of names, "
                f"got {self.columns!r}"
            )
        found = found.astype(np.int64)
        outside = found[(found < -width) | (found >= width)]
        if len(outside):
            raise InputError(f"Columns: no column {outside[0]}: tokens have {width} columns")
        return np.where(found < 0, found + width, found)

    def seen(self, x: Any) -> Any:
        """The chosen columns of the tokens."""
        return x[:, self._numbers(x.shape[1])]

    def _key(self, width: int) -> bytes:
        return self._numbers(width).tobytes()

    def _own(self) -> State:
        # what stands for other columns in other data is kept as it is given
        if isinstance(self.columns, str):
            return State({"columns": self.columns}, {})
        if isinstance(self.columns, slice):
            parts = (self.columns.start, self.columns.stop, self.columns.step)
            return State({"columns": {"slice": [None if v is None else int(v) for v in parts]}}, {})
        numbers = np.asarray(self.columns, dtype=np.int64)
        if (numbers < 0).any():
            return State({"columns": numbers.tolist()}, {})
        return State({}, {"columns": numbers})

    def _load(self, header: Header, arrays: Arrays) -> None:
        if header:
            self.columns = _columns_from_json(header)
            return
        found = self.columns = arrays["columns"]
        if found.ndim != 1 or found.dtype.kind not in "iu" or (found < 0).any():
            raise InputError("damaged kernel: Columns needs whole numbers from 0 on")

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """The features of the kernel on the columns."""
        x = as_matrix(x)
        found = self._numbers(x.shape[1])
        inner = self.kernel.expansion(x[:, found], budget)
        return None if inner is None else explicit.Chosen(inner, found, x.shape[1])


@KERNELS.register
class InverseFrequency(_View):
    """A kernel of weighted features, in which rare features weigh more.

    Feature j is multiplied by f_j^-power. f_j is the share of training tokens in which feature j is
    not 0; `fit` counts one more token that has all features. A common factor keeps the mean of
    |x|^2.

    Parameters
    ----------
    kernel : the kernel of the weighted features
    power : at least 0. 0 weighs all features alike; raise it to give rare features more weight

    >>> from seqfield.kernels import Linear
    >>> x = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    >>> InverseFrequency(Linear(), 0.5).fit(x)(x[2:], np.eye(2)).round(2)
    array([[0.8, 1.6]])
    """

    _weights: Floats | None = None

    def __init__(self, kernel: Kernel, power: float = 0.1) -> None:
        self.kernel = kernel
        self.power = power

    def _check(self) -> None:
        number("InverseFrequency: power", self.power, low=0)

    def fit(self, x: Any, names: list[str] | None = None) -> Self:
        """The kernel with the weights of the columns of x."""
        self.check()
        x = as_matrix(x)
        share = (np.asarray((x != 0).sum(axis=0)).ravel() + 1.0) / (x.shape[0] + 1.0)
        weights = share**-self.power
        before, after = squared_norms(x).sum(), squared_norms(_times(x, weights)).sum()
        out = copy.copy(self)
        out._weights = weights * (np.sqrt(before / after) if after > 0 else 1.0)
        out.kernel = self.kernel.fit(out.seen(x), names)
        return out

    def _fitted(self, width: int) -> Floats:
        if self._weights is None:
            raise InputError("InverseFrequency: fit(x) sets the weights; fit the kernel first")
        if len(self._weights) != width:
            raise InputError(
                f"InverseFrequency: tokens of {width} features, but fit had {len(self._weights)}"
            )
        return self._weights

    def seen(self, x: Any) -> Any:
        """Each feature times its weight."""
        return _times(x, self._fitted(x.shape[1]))

    def _key(self, width: int) -> bytes:
        return self._fitted(width).tobytes()

    def _own(self) -> State:
        header, _ = super()._own()
        return State(header, {} if self._weights is None else {"weights": self._weights})

    def _load(self, header: Header, arrays: Arrays) -> None:
        super()._load(header, arrays)
        if "weights" not in arrays:
            return
        self._weights = found = arrays["weights"]
        good = found.ndim == 1 and found.dtype == np.float64 and np.isfinite(found).all()
        if not good or (found <= 0).any():
            raise InputError("damaged kernel: InverseFrequency needs positive weights")


def _columns_from_json(header: Header) -> slice | list[int] | str:
    """A prefix, a slice or numbers of columns as `Columns` wrote them; the parts of a slice are
    checked with the kernel."""
    found = header["columns"] if set(header) == {"columns"} else None
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return [int(number("column", v, low=-(2**31), high=2**31, whole=True)) for v in found]
    parts = found["slice"] if isinstance(found, dict) and set(found) == {"slice"} else None
    if isinstance(parts, list) and len(parts) == 3:
        return slice(*parts)
    raise InputError("damaged kernel: Columns needs a prefix, a slice or whole numbers")


def _times(x: Any, weights: NDArray[np.float64]) -> Any:
    """Each column times its weight."""
    if not sp.issparse(x):
        return x * weights
    return type(x)((x.data * weights[x.indices], x.indices, x.indptr), shape=x.shape)
