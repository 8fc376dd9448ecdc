"""Roots of positive semi-definite matrices with few columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import InputError

Floats = NDArray[np.float64]


class ThinRoot(NamedTuple):
    """``root`` (N, r) with G = root root', and the row of G that each column belongs to (r,)."""

    root: Floats
    kept: NDArray[np.int64]


def thin_root(gram: Floats, tol: float = 1e-8) -> ThinRoot:
    """A lower triangular factor without small columns, so that it has about as many as the rank.

    G is first scaled to a diagonal of 1, and the factor is scaled back. Columns of squared norm
    below ``tol`` are left out of the scaled factor. Without the scaling, a tolerance would act as
    white noise on tokens whose k(x, x) is small.

    Rows are taken in the given order and not by size. So the root changes smoothly with the matrix,
    and random vectors along its columns keep their meaning. This costs O(N^3) time.

    >>> root, kept = thin_root(np.array([[4.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> root.round(4).tolist(), kept.tolist()
    ([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0, 2])
    """
    diagonal = np.diagonal(gram).astype(np.float64)
    if not np.isfinite(diagonal).all():
        raise InputError("a gram matrix must be finite: scale the features")
    mean, empty = float(diagonal.mean()), diagonal <= 0.0
    # a token without variance has no covariance with other tokens
    if not mean > 0.0 or np.abs(gram[empty]).max(initial=0.0) > tol * mean:
        raise InputError("a gram matrix must be positive semi-definite and not zero")
    size = np.sqrt(np.where(empty, 0.0, diagonal))
    inverse = np.where(empty, 0.0, 1.0) / np.where(empty, 1.0, size)
    matrix = np.array(gram, dtype=np.float64, order="F")
    matrix *= inverse
    matrix *= inverse[:, None]
    # far above rounding, far below tol
    np.fill_diagonal(matrix, 1.0 + 0.01 * tol)
    lower, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if failed:
        raise InputError("a gram matrix must be positive semi-definite")
    kept = np.flatnonzero((np.einsum("ij,ij->j", lower, lower) > tol) & ~empty)
    root = np.ascontiguousarray(lower[:, kept])
    root *= size[:, None]
    return ThinRoot(root, kept)
