"""Functions of tokens that a kernel model learns, in the form that prediction needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from seqfield.errors import InputError
from seqfield.kernels._base import Floats, Kernel
from seqfield.kernels.explicit import Expansion
from seqfield.kernels.explicit import restore as restore_expansion
from seqfield.kernels.gram import apply
from seqfield.persist import Arrays, prefixed, under

Header = dict[str, Any]


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

    def state(self) -> tuple[Header, Arrays]:
        """Header and arrays for a model file; the file holds the kernel elsewhere."""
        tokens, found = matrix_state(self.tokens)
        arrays = prefixed("tokens", found) | {"coefficients": self.coefficients}
        return {"tokens": tokens}, arrays


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

    def state(self) -> tuple[Header, Arrays]:
        """For a model file."""
        header, arrays = self.expansion.state()
        arrays = prefixed("expansion", arrays) | {"coefficients": self.coefficients}
        return {"expansion": header}, arrays


Function = Span | Expanded


def restore_function(
    header: Header, arrays: Arrays, kernel: Kernel, width: int, n_columns: int
) -> Function:
    """The function of what ``state`` gave; ``width`` is the number of features of a token."""
    a = np.asarray(arrays["coefficients"], np.float64)
    if a.ndim != 2 or a.shape[1] != n_columns or not np.isfinite(a).all():
        raise InputError("coefficients of the wrong shape or not finite")
    if "expansion" in header:
        expansion = restore_expansion(header["expansion"], under("expansion", arrays))
        if (expansion.width, expansion.n_columns) != (width, len(a)):
            raise InputError("an expansion that does not fit its coefficients")
        return Expanded(expansion, a)
    tokens = restore_matrix(header["tokens"], under("tokens", arrays))
    if tokens.shape != (len(a), width):
        raise InputError("kept tokens that do not fit their coefficients")
    return Span(kernel, tokens, a)


def matrix_state(matrix: Any) -> tuple[Header, Arrays]:
    """A dense or CSR matrix for a model file."""
    if not sp.issparse(matrix):
        return {"shape": list(matrix.shape)}, {"data": np.asarray(matrix, np.float64)}
    csr = sp.csr_array(matrix)
    arrays = {"data": csr.data, "indices": csr.indices.astype(np.int32)}
    return {"shape": list(csr.shape)}, arrays | {"indptr": csr.indptr.astype(np.int64)}


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
