"""Functions of tokens that a kernel model learns, in the form that prediction needs."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp

from seqfield.errors import InputError
from seqfield.kernels._base import Floats, Kernel
from seqfield.kernels.explicit import EXPANSIONS, Expansion
from seqfield.kernels.gram import apply
from seqfield.persist import Arrays, Family, Header, State, prefixed, under

#: functions that model files can hold; with the kernel, the number of features of a token and the
#: number of columns of a function that fits
FUNCTIONS: Family[Function, [Kernel, int, int]] = Family("function")


@FUNCTIONS.register
class Span(NamedTuple):
    """f(x) = sum_j k(x, z_j) a_j over kept tokens z_j."""

    kernel: Kernel
    tokens: Any  # (m, D)
    coefficients: Floats  # (m, C)

    def values(self, x: Any, n_jobs: int | None = None) -> Floats:
        """f(x) (N, C)."""
        return apply(self.kernel, x, self.tokens, self.coefficients, n_jobs)

    @property
    def n_tokens(self) -> int:
        """Number of kept tokens."""
        return int(self.tokens.shape[0])

    def state(self) -> State:
        """For a model file, which holds the kernel too."""
        tokens, found = matrix_state(self.tokens)
        arrays = prefixed("tokens", found) | {"coefficients": self.coefficients}
        return State({"tokens": tokens}, arrays)

    @classmethod
    def restore(
        cls, header: Header, arrays: Arrays, kernel: Kernel, width: int, n_columns: int
    ) -> Self:
        """The function of what `state` gave; ``width`` is the number of features of a token."""
        a = _coefficients(arrays, n_columns)
        tokens = restore_matrix(header["tokens"], under("tokens", arrays))
        if tokens.shape != (len(a), width):
            raise InputError("kept tokens that do not fit their coefficients")
        return cls(kernel, tokens, a)


@FUNCTIONS.register
class Expanded(NamedTuple):
    """f(x) = phi(x) w with features phi that can be written out."""

    expansion: Expansion
    coefficients: Floats  # (m, C)

    def values(self, x: Any, n_jobs: int | None = None) -> Floats:
        """f(x) (N, C)."""
        with np.errstate(over="ignore", invalid="ignore"):
            out = np.asarray(self.expansion.transform(x) @ self.coefficients)
            # a sum is one pass; it can also overflow with finite numbers, which is no error
            if np.isfinite(out.sum()):
                return out
        bad = np.flatnonzero(~np.isfinite(out).all(axis=1))
        if len(bad):
            raise InputError(
                f"the scores of row {bad[0]} are not finite: its features are too large. Scale "
                "them like those of the training tokens"
            )
        return out

    @property
    def n_tokens(self) -> int:
        """No tokens are kept."""
        return 0

    def state(self) -> State:
        """For a model file."""
        header, arrays = EXPANSIONS.state(self.expansion)
        arrays = prefixed("expansion", arrays) | {"coefficients": self.coefficients}
        return State({"expansion": header}, arrays)

    @classmethod
    def restore(
        cls, header: Header, arrays: Arrays, kernel: Kernel, width: int, n_columns: int
    ) -> Self:
        """The function of what `state` gave; its features stand for the kernel."""
        a = _coefficients(arrays, n_columns)
        expansion = EXPANSIONS.restore(header["expansion"], under("expansion", arrays))
        if (expansion.width, expansion.n_columns) != (width, len(a)):
            raise InputError("an expansion that does not fit its coefficients")
        return cls(expansion, a)


Function = Span | Expanded


def _coefficients(arrays: Arrays, n_columns: int) -> Floats:
    a = np.asarray(arrays["coefficients"], np.float64)
    if a.ndim != 2 or a.shape[1] != n_columns or not np.isfinite(a).all():
        raise InputError("coefficients of the wrong shape or not finite")
    return a


def matrix_state(matrix: Any) -> State:
    """A dense or CSR matrix for a model file."""
    if not sp.issparse(matrix):
        return State({"shape": list(matrix.shape)}, {"data": np.asarray(matrix, np.float64)})
    csr = sp.csr_array(matrix)
    arrays = {"data": csr.data, "indices": csr.indices.astype(np.int32)}
    arrays["indptr"] = csr.indptr.astype(np.int64)
    return State({"shape": list(csr.shape)}, arrays)


def restore_matrix(header: Header, arrays: Arrays) -> Any:
    """The matrix of `matrix_state`; every index is range-checked."""
    n, width = (int(v) for v in header["shape"])
    data = np.asarray(arrays["data"])
    if not np.isfinite(data).all():
        raise InputError("numbers that are not finite")
    if "indptr" not in arrays:
        if data.shape != (n, width):
            raise InputError("a matrix of the wrong shape")
        return data.astype(np.float64)
    indptr, indices = arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int64)
    right = indptr.shape == (n + 1,) and data.shape == indices.shape and data.ndim == 1
    if not right or indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
        raise InputError("a sparse matrix of the wrong shape")
    if len(indices) and (indices.min() < 0 or indices.max() >= width):
        raise InputError("a sparse matrix with columns out of range")
    kind = np.int8 if data.dtype == np.int8 else np.float64
    return sp.csr_array((data.astype(kind), indices.astype(np.int32), indptr), shape=(n, width))
