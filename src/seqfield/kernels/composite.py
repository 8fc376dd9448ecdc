"""Kernels made from other kernels, from a function, or from a given gram matrix."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable as Function
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import CapabilityError, InputError
from seqfield.kernels import explicit
from seqfield.kernels._base import DIAGONAL_BLOCK, KERNELS, Floats, Kernel, written
from seqfield.kernels._pairs import Pairs, as_matrix
from seqfield.kernels.explicit import Expansion
from seqfield.kernels.standard import whole_power
from seqfield.persist import Arrays, Header, State

Ints = NDArray[np.int64]

#: a gram matrix may differ from its transpose by this share of its largest entry
SYMMETRY = 1e-8


@KERNELS.register
class Sum(Kernel):
    """Sum of two kernels: left + right. Write it with ``+``."""

    _parts = ("left", "right")
    _binding = 1

    def __init__(self, left: Kernel, right: Kernel) -> None:
        self.left = left
        self.right = right

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"{written(self.left, 1)} + {written(self.right, 2)}"

    def _value(self, pairs: Pairs) -> Floats:
        out = self.left._value(pairs)
        out += self.right._value(pairs)
        return out

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        return self.left._derivatives(pairs) + self.right._derivatives(pairs)

    def _diagonal(self, x: Any) -> Floats:
        return self.left._diagonal(x) + self.right._diagonal(x)

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """The features of both, side by side."""
        left = self.left.expansion(x, budget)
        right = None if left is None else self.right.expansion(x, budget)
        return None if left is None or right is None else explicit.Beside(left, right)


@KERNELS.register
class Product(Kernel):
    """Product of two kernels: left * right. Write it with ``*``."""

    _parts = ("left", "right")
    _binding = 2

    def __init__(self, left: Kernel, right: Kernel) -> None:
        self.left = left
        self.right = right

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"{written(self.left, 2)} * {written(self.right, 3)}"

    def _value(self, pairs: Pairs) -> Floats:
        out = self.left._value(pairs)
        out *= self.right._value(pairs)
        return out

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        left, right = self.left._value(pairs), self.right._value(pairs)
        by_left = [d * right for d in self.left._derivatives(pairs)]
        return by_left + [left * d for d in self.right._derivatives(pairs)]

    def _diagonal(self, x: Any) -> Floats:
        return self.left._diagonal(x) * self.right._diagonal(x)


@KERNELS.register
class Scaled(Kernel):
    """Scaled kernel: scale * kernel, with a scale of at least 0 that can be learned.

    Write it with ``*``. A larger scale lets functions be larger.
    """

    _positive = ("scale",)
    _parts = ("kernel",)
    _binding = 2

    def __init__(self, kernel: Kernel, scale: float = 1.0) -> None:
        self.kernel = kernel
        self.scale = scale

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"{self.scale!r} * {written(self.kernel, 3)}"

    def _check(self) -> None:
        number("Scaled: scale", self.scale, low=0)

    def _value(self, pairs: Pairs) -> Floats:
        out = self.kernel._value(pairs)
        out *= self.scale
        return out

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        own = [self._value(pairs) for _ in self._free()]  # dk/dlog s = k
        return own + [self.scale * d for d in self.kernel._derivatives(pairs)]

    def _diagonal(self, x: Any) -> Floats:
        return self.scale * self.kernel._diagonal(x)

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """The features of the kernel times the root of the scale."""
        inner = self.kernel.expansion(x, budget)
        return None if inner is None else explicit.Times(inner, float(self.scale))


@KERNELS.register
class Power(Kernel):
    """Power of a kernel: kernel ** exponent, a whole number of at least 1. Write it with ``**``."""

    _parts = ("kernel",)
    _binding = 3

    def __init__(self, kernel: Kernel, exponent: int = 2) -> None:
        self.kernel = kernel
        self.exponent = exponent

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"{written(self.kernel, 4)} ** {self.exponent!r}"

    def _check(self) -> None:
        number("Power: exponent", self.exponent, low=1, whole=True)

    def _value(self, pairs: Pairs) -> Floats:
        return whole_power(self.kernel._value(pairs), self.exponent)

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        # dk^n = n k^(n-1) dk
        rest = self.exponent * whole_power(self.kernel._value(pairs), self.exponent - 1)
        return [rest * d for d in self.kernel._derivatives(pairs)]

    def _diagonal(self, x: Any) -> Floats:
        return whole_power(self.kernel._diagonal(x), self.exponent)


@KERNELS.register
class Callable(Kernel):
    """A kernel from a Python function (x, z) -> k (N, M) of two matrices of tokens.

    Both matrices are float64, and both are dense or both CSR. x is converted to the form of z. A
    model passes its training tokens as z, so it can label tokens of either form. The function might
    not be a covariance, so its gram matrices are checked. A model with this kernel cannot be saved.

    >>> Callable(lambda x, z: x @ z.T)(np.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    _trusted = False

    def __init__(self, function: Function[[Any, Any], Any]) -> None:
        self.function = function

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"Callable({getattr(self.function, '__qualname__', repr(self.function))})"

    def _check(self) -> None:
        if not callable(self.function):
            raise InputError(f"Callable: function must be a function, got {self.function!r}")

    def _value(self, pairs: Pairs) -> Floats:
        # binary features are int8, and sums of int8 in the function would overflow
        z = pairs.z.astype(np.float64, copy=False)
        x = _in_form_of(z, pairs.x).astype(np.float64, copy=False)
        # a copy, because the function may keep the array
        out = np.array(_real(self.function(x, z), "the kernel function must give"))
        if out.shape != pairs.shape:
            raise InputError(
                f"the kernel function gave an array of shape {out.shape}, but the tokens need "
                f"{pairs.shape}"
            )
        if not np.isfinite(out).all():
            i, j = (int(v) for v in np.argwhere(~np.isfinite(out))[0])
            raise InputError(
                f"the kernel function gave {out[i, j]} for rows {pairs.left_rows.begin + i} and "
                f"{pairs.right_rows.begin + j}"
            )
        return out

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        return []

    def _diagonal(self, x: Any) -> Floats:
        out = np.empty(x.shape[0])
        for a in range(0, x.shape[0], DIAGONAL_BLOCK):
            out[a : a + DIAGONAL_BLOCK] = np.diagonal(self(x[a : a + DIAGONAL_BLOCK]))
        return out

    def _own(self) -> State:
        raise CapabilityError(
            "a model with a callable kernel cannot be saved, because model files hold no code"
        )

    def _load(self, header: Header, arrays: Arrays) -> None:
        raise InputError("a callable kernel cannot come from a model file")


@KERNELS.register
class Precomputed(Kernel):
    """A kernel from a given gram matrix.

    A token has one feature: the number of its row in ``gram``, a symmetric matrix (n, n).

    >>> k = Precomputed(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> k(np.array([[1], [0], [1]]), np.array([[0]])).ravel().tolist()
    [1.0, 2.0, 1.0]
    """

    _trusted = False

    def __init__(self, gram: Any) -> None:
        self.gram = gram

    def fit(self, x: Any, names: list[str] | None = None) -> Self:
        """Check the gram matrix, and that the tokens are numbers of its rows."""
        self.check()
        gram = self._matrix()
        if not np.isfinite(gram).all():
            i, j = (int(v) for v in np.argwhere(~np.isfinite(gram))[0])
            raise InputError(f"Precomputed: gram is {gram[i, j]} at row {i}, column {j}")
        off = np.abs(gram - gram.T)
        if off.max() > SYMMETRY * np.abs(gram).max():
            i, j = (int(v) for v in np.unravel_index(int(off.argmax()), off.shape))
            raise InputError(
                f"Precomputed: gram is not symmetric: {gram[i, j]:g} at row {i}, column {j} but "
                f"{gram[j, i]:g} at row {j}, column {i}"
            )
        out = copy.copy(self)
        out.gram = gram
        out._tokens(as_matrix(x))
        return out

    def _check(self) -> None:
        shape = self._matrix().shape
        if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
            raise InputError(f"Precomputed: gram must be a square matrix, got shape {shape}")

    def _matrix(self) -> Floats:
        """The gram matrix as an array."""
        return _real(self.gram, "Precomputed: gram must be")

    def _tokens(self, x: Any) -> Ints:
        """The numbers of the tokens."""
        if x.shape[1] != 1:
            raise InputError(
                "Precomputed: a token is one number, its row in the gram matrix; "
                f"got {x.shape[1]} columns"
            )
        given = (x.toarray() if sp.issparse(x) else x)[:, 0]
        n = len(self._matrix())
        bad = ~((given >= 0) & (given < n) & (given == np.floor(given)))
        if bad.any():
            t = int(bad.argmax())
            raise InputError(
                f"Precomputed: row {t} is {given[t]:g}, not a whole number from 0 to {n - 1}"
            )
        return np.asarray(given, dtype=np.int64)

    def _value(self, pairs: Pairs) -> Floats:
        return self._matrix()[np.ix_(self._tokens(pairs.x), self._tokens(pairs.z))]

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        return []

    def _diagonal(self, x: Any) -> Floats:
        return np.diagonal(self._matrix())[self._tokens(x)]

    def _own(self) -> State:
        return State({}, {"gram": self._matrix()})

    def _load(self, header: Header, arrays: Arrays) -> None:
        self.gram = arrays["gram"]
        if header or self.gram.dtype != np.float64:
            raise InputError("damaged kernel: Precomputed needs a gram matrix of float64")


def _in_form_of(z: Any, x: Any) -> Any:
    """The tokens x as a dense array if z is dense, else as CSR."""
    if sp.issparse(z):
        return x if type(x) is type(z) else type(z)(x)
    return x.toarray() if sp.issparse(x) else x


def _real(given: Any, must: str) -> Floats:
    """An array of float64 from an array, a sparse matrix or a list; the message of an error begins
    with ``must``."""
    try:
        values = np.asarray(given.toarray() if sp.issparse(given) else given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{must} real numbers in rows of one length: {error}") from error
    if values.dtype.kind not in "fiub":
        raise InputError(f"{must} real numbers, not the type {values.dtype}")
    return values.astype(np.float64, copy=False)
