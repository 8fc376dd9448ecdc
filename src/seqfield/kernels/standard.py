"""Kernels of inner products and distances."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import numpy as np

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.kernels import combined, explicit
from seqfield.kernels._base import KERNELS, Floats, Kernel
from seqfield.kernels._distinct import distinct
from seqfield.kernels._pairs import Pairs, as_matrix, squared_norms
from seqfield.kernels.explicit import Expansion, inverse_root

#: rows whose distances give the length scale "auto"
SAMPLE = 500

#: k(x, x) below minus this share of the largest is no rounding error
NEGATIVE = 1e-6


@KERNELS.register
class Linear(Kernel):
    """Linear kernel: k(x, z) = x . z

    >>> Linear()(np.array([[1.0, 2.0], [0.0, 1.0]]))
    array([[5., 2.],
           [2., 1.]])
    """

    def _value(self, pairs: Pairs) -> Floats:
        return pairs.inner.copy()

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        return []

    def _diagonal(self, x: Any) -> Floats:
        return squared_norms(x)

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """The tokens as they are."""
        return explicit.Same(as_matrix(x).shape[1])


@KERNELS.register
class Constant(Kernel):
    """Constant kernel: k(x, z) = value

    Parameters
    ----------
    value : at least 0; can be learned. Add the kernel to another one to give functions an offset;
        a larger value lets the offset be larger

    >>> (Linear() + 2.0)(np.array([[1.0], [3.0]]))
    array([[ 3.,  5.],
           [ 5., 11.]])
    """

    _positive = ("value",)

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def _check(self) -> None:
        number("Constant: value", self.value, low=0)

    def _value(self, pairs: Pairs) -> Floats:
        return np.full(pairs.shape, float(self.value))

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        return [self._value(pairs) for _ in self._free()]

    def _diagonal(self, x: Any) -> Floats:
        return np.full(x.shape[0], float(self.value))

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """One column with the same value for all tokens."""
        return explicit.Ones(as_matrix(x).shape[1], float(self.value))


@KERNELS.register
class Polynomial(Kernel):
    """Polynomial kernel: k(x, z) = (x . z + coef0) ** degree

    Parameters
    ----------
    degree : a whole number of at least 1. Degree 2 uses pairs of features, degree 3 triples. Raise
        it if combinations of features matter
    coef0 : at least 0; can be learned. A larger value gives more weight to low powers of x . z

    >>> Polynomial(degree=2)(np.array([[1.0, 1.0], [0.0, 1.0]]))
    array([[9., 4.],
           [4., 4.]])
    """

    _positive = ("coef0",)

    def __init__(self, degree: int = 2, coef0: float = 1.0) -> None:
        self.degree = degree
        self.coef0 = coef0

    def _check(self) -> None:
        number("Polynomial: degree", self.degree, low=1, whole=True)
        number("Polynomial: coef0", self.coef0, low=0)

    def _value(self, pairs: Pairs) -> Floats:
        return whole_power(pairs.inner + self.coef0, self.degree)

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        # dk/dlog c = d (x.z + c)^(d-1) c
        rest = [whole_power(pairs.inner + self.coef0, self.degree - 1) for _ in self._free()]
        return [self.degree * self.coef0 * value for value in rest]

    def _diagonal(self, x: Any) -> Floats:
        return whole_power(squared_norms(x) + self.coef0, self.degree)

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """A constant, features, pairs and triples: for degree 1, and for sparse tokens of 0 and 1
        up to degree 3."""
        x, c = as_matrix(x), float(self.coef0)
        if self.degree == 1:
            return explicit.Beside(explicit.Ones(x.shape[1], c), explicit.Same(x.shape[1]))
        if self.degree == 2:
            return combined.Quadratic.learn(x, c, budget)
        return combined.cubic(x, c, budget) if self.degree == 3 else None


class _Stationary(Kernel):
    """Base class of kernels that depend on |x - z| / length_scale alone."""

    _positive: tuple[str, ...] = ("length_scale",)
    length_scale: float | str

    def _check(self) -> None:
        if self.length_scale == "auto":
            return
        try:
            number("length_scale", self.length_scale, low=0)
        except InputError as error:
            raise InputError(f"{type(self).__name__}: {error}, or 'auto'") from error
        if self.length_scale == 0:
            raise InputError(f"{type(self).__name__}: length_scale must be above 0")

    def _scale(self) -> float:
        if isinstance(self.length_scale, str):
            raise InputError(
                f"{type(self).__name__}: length_scale 'auto' is set by fit(x): "
                "fit the kernel first, or give a number"
            )
        return float(self.length_scale)

    def _diagonal(self, x: Any) -> Floats:
        self._scale()  # refuses "auto" as _value does
        return np.ones(x.shape[0])

    def fit(self, x: Any, names: list[str] | None = None) -> Self:
        """The kernel with the length scale "auto" set to the median distance."""
        self.check()
        out = copy.copy(self)
        if self.length_scale == "auto":
            out.length_scale = median_distance(as_matrix(x))
        return out


@KERNELS.register
class RBF(_Stationary):
    """RBF (squared exponential) kernel: k(x, z) = exp(-|x - z|^2 / (2 length_scale^2))

    Parameters
    ----------
    length_scale : above 0, or "auto" (the median distance of training tokens, set by `fit`); can be
        learned. Functions change over distances of about this size: lower it for functions that
        vary faster

    >>> RBF(1.0)(np.array([[0.0], [2.0]])).round(3)
    array([[1.   , 0.135],
           [0.135, 1.   ]])
    """

    def __init__(self, length_scale: float | str = "auto") -> None:
        self.length_scale = length_scale

    def _value(self, pairs: Pairs) -> Floats:
        out = pairs.squared_distances * (-0.5 / self._scale() ** 2)
        return np.exp(out, out=out)

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        # dk/dlog l = k |x - z|^2 / l^2
        return [self._value(pairs) * pairs.squared_distances / self._scale() ** 2]


@KERNELS.register
class Matern(_Stationary):
    """Matern kernel, for functions that are less smooth than those of `RBF`.

    Parameters
    ----------
    length_scale : above 0, or "auto" (the median distance of training tokens, set by `fit`); can be
        learned. Functions change over distances of about this size: lower it for functions that
        vary faster
    nu : smoothness: 0.5, 1.5 or 2.5. Lower it for rougher functions

    >>> Matern(1.0, nu=0.5)(np.array([[0.0], [1.0]])).round(3)
    array([[1.   , 0.368],
           [0.368, 1.   ]])
    """

    def __init__(self, length_scale: float | str = "auto", nu: float = 1.5) -> None:
        self.length_scale = length_scale
        self.nu = nu

    def _check(self) -> None:
        super()._check()
        if number("Matern: nu", self.nu) not in (0.5, 1.5, 2.5):
            raise InputError(f"Matern: nu must be 0.5, 1.5 or 2.5, got {self.nu!r}")

    def _scaled(self, pairs: Pairs) -> Floats:
        """sqrt(2 nu) |x - z| / l"""
        return np.sqrt(pairs.squared_distances * (2 * self.nu / self._scale() ** 2))

    def _value(self, pairs: Pairs) -> Floats:
        r = self._scaled(pairs)
        out = np.exp(-r)
        if self.nu == 1.5:
            out *= 1.0 + r
        elif self.nu == 2.5:
            out *= 1.0 + r + r * r / 3.0
        return out

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        # dk/dlog l = -r dk/dr
        r = self._scaled(pairs)
        out = np.exp(-r)
        if self.nu == 0.5:
            out *= r
        elif self.nu == 1.5:
            out *= r * r
        else:
            out *= r * r * (1.0 + r) / 3.0
        return [out]


@KERNELS.register
class RationalQuadratic(_Stationary):
    """Rational quadratic kernel: k(x, z) = (1 + |x - z|^2 / (2 alpha length_scale^2)) ** -alpha

    It is a mixture of `RBF` kernels of different length scales.

    Parameters
    ----------
    length_scale : above 0, or "auto" (the median distance of training tokens, set by `fit`); can be
        learned. Functions change over distances of about this size: lower it for functions that
        vary faster
    alpha : above 0; can be learned. Lower it for a wider mixture of length scales

    >>> RationalQuadratic(1.0, alpha=0.5)(np.array([[0.0], [2.0]])).round(3)
    array([[1.   , 0.447],
           [0.447, 1.   ]])
    """

    _positive = ("length_scale", "alpha")

    def __init__(self, length_scale: float | str = "auto", alpha: float = 1.0) -> None:
        self.length_scale = length_scale
        self.alpha = alpha

    def _check(self) -> None:
        super()._check()
        if number("RationalQuadratic: alpha", self.alpha, low=0) == 0:
            raise InputError("RationalQuadratic: alpha must be above 0")

    def _ratio(self, pairs: Pairs) -> Floats:
        return pairs.squared_distances / (2.0 * self.alpha * self._scale() ** 2)

    def _value(self, pairs: Pairs) -> Floats:
        return np.exp(-self.alpha * np.log1p(self._ratio(pairs)))

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        # with u the ratio: dk/dlog l = 2 alpha k u / (1 + u),
        # dk/dlog alpha = alpha k (u / (1 + u) - log(1 + u))
        u = self._ratio(pairs)
        logs = np.log1p(u)
        value = self.alpha * np.exp(-self.alpha * logs)
        share = u / (1.0 + u)
        return [2.0 * value * share, value * (share - logs)]


@KERNELS.register
class Normalized(Kernel):
    """Normalised kernel (cosine): k(x, z) / sqrt(k(x, x) k(z, z)).

    The value is 0 for a token with k(x, x) = 0. A kernel with k(x, x) < 0 raises an `InputError`.

    >>> Normalized(Linear())(np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]]))
    array([[1. , 0.8, 0. ],
           [0.8, 1. , 0. ],
           [0. , 0. , 0. ]])
    """

    _parts = ("kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def _squares(self, x: Any) -> Floats:
        """k(x, x) of each row; an `InputError` if one is below 0 by more than rounding."""
        out = self.kernel._diagonal(x)
        # values of 0 for such tokens would hide that the kernel is no covariance
        floor = -NEGATIVE * np.abs(out).max(initial=0.0)
        if not self.kernel.trusted and out.min(initial=0.0) < floor:
            t = int(out.argmin())
            raise InputError(
                f"Normalized: {self.kernel!r} is not positive semi-definite: {out[t]:g} for row "
                f"{t} with itself. Use a kernel with k(x, x) >= 0"
            )
        return out

    def _inverse(self, x: Any) -> Floats:
        """1 / sqrt(k(x, x)), or 0"""
        return inverse_root(self._squares(x))

    def _inverses(self, pairs: Pairs) -> tuple[Floats, Floats]:
        left = pairs.left_rows.keep(self, self._inverse)
        return left[:, None], pairs.right_rows.keep(self, self._inverse)

    def _value(self, pairs: Pairs) -> Floats:
        out = self.kernel._value(pairs)
        left, right = self._inverses(pairs)
        out *= left
        out *= right
        if pairs.aligned:
            np.fill_diagonal(out, (left[:, 0] > 0).astype(np.float64))
        return out

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        # d(k / sqrt(a b)) = dk / sqrt(a b) - k / sqrt(a b) (da / a + db / b) / 2
        value = self._value(pairs)
        left, right = self._inverses(pairs)
        out = []
        for d, da, db in zip(
            self.kernel._derivatives(pairs),
            self.kernel.diagonal_derivatives(pairs.x),
            self.kernel.diagonal_derivatives(pairs.z),
            strict=True,
        ):
            share = da[:, None] * left**2 + db * right**2
            out.append(d * left * right - 0.5 * value * share)
        return out

    def _diagonal(self, x: Any) -> Floats:
        return (self._squares(x) > 0).astype(np.float64)

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """The features of the kernel, scaled to length 1."""
        inner = self.kernel.expansion(x, budget)
        return None if inner is None else explicit.UnitLength(inner)


def whole_power(values: Floats, exponent: int) -> Floats:
    """values ** exponent by squaring: many times faster than numpy's for exponents above 2.

    ``values`` is overwritten.

    >>> whole_power(np.array([2.0, 3.0]), 5)
    array([ 32., 243.])
    """
    n = int(exponent)
    odd: Floats | None = None  # the product of the powers for the bits set so far
    while n > 1:
        if n % 2:
            odd = values.copy() if odd is None else odd * values
        values *= values
        n //= 2
    if n == 0:
        return np.ones_like(values)
    return values if odd is None else np.multiply(odd, values, out=odd)


def median_distance(x: Any) -> float:
    """Median distance of at most 500 distinct rows, drawn with a fixed seed; 1 if there is no
    distance."""
    first, _ = distinct(x)
    if len(first) > SAMPLE:
        first = np.sort(np.random.default_rng(0).choice(first, SAMPLE, replace=False))
    squares = Pairs(x[first]).squared_distances
    found = squares[np.triu_indices(len(first), 1)]
    median = float(np.sqrt(np.median(found))) if len(found) else 0.0
    return median if median > 0 else 1.0
