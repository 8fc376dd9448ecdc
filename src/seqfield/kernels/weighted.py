"""Kernels that weigh features."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.kernels._base import Floats, Header, Kernel
from seqfield.kernels._pairs import Pairs, as_matrix, squared_norms
from seqfield.persist import Arrays


class InverseFrequency(Kernel):
    """A kernel of tokens in which rare features weigh more: feature j times f_j^-power.

    f_j is the share of training tokens in which the feature is not 0, counted by `fit` with one
    token more that has all of them. A common factor leaves the mean of |x|^2 as it is.

    >>> from seqfield.kernels import Linear
    >>> x = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    >>> InverseFrequency(Linear(), 0.5).fit(x)(x[2:], np.eye(2)).round(2)
    array([[0.8, 1.6]])
    """

    _parts = ("kernel",)
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
            raise InputError("InverseFrequency: the weights are those of fit(x); fit it first")
        if len(self._weights) != width:
            raise InputError(
                f"InverseFrequency: tokens of {width} features where fit had {len(self._weights)}"
            )
        return self._weights

    def seen(self, x: Any) -> Any:
        """Each feature times its weight."""
        return _times(x, self._fitted(x.shape[1]))

    def _weighted(self, pairs: Pairs) -> Pairs:
        weights = self._fitted(pairs.left_rows.whole.matrix.shape[1])
        return pairs.changed(b"weights" + weights.tobytes(), self.seen)

    def _value(self, pairs: Pairs) -> Floats:
        return self.kernel._value(self._weighted(pairs))

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        return self.kernel._derivatives(self._weighted(pairs))

    def _diagonal(self, x: Any) -> Floats:
        return self.kernel._diagonal(self.seen(x))

    def _state(self) -> tuple[Header, Arrays]:
        header, _ = super()._state()
        return header, {} if self._weights is None else {"weights": self._weights}

    def _load(self, header: Header, arrays: Arrays) -> None:
        super()._load(header, arrays)
        if "weights" not in arrays:
            return
        self._weights = found = arrays["weights"]
        good = found.ndim == 1 and found.dtype == np.float64 and np.isfinite(found).all()
        if not good or (found <= 0).any():
            raise InputError("damaged kernel: InverseFrequency needs positive weights")


def _times(x: Any, weights: NDArray[np.float64]) -> Any:
    """Each column times its weight."""
    if not sp.issparse(x):
        return x * weights
    return type(x)((x.data * weights[x.indices], x.indices, x.indptr), shape=x.shape)
