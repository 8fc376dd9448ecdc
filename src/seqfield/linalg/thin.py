"""Roots of positive semi-definite matrices with few columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import InputError

Floats = NDArray[np.float64]


class ThinRoot(NamedTuple):
    """``root`` (N, r) with G = root root', and the rows that its columns stand for (r,)."""

    root: Floats
    kept: NDArray[np.int64]


def thin_root(gram: Floats, tol: float = 1e-8) -> ThinRoot:
    """The lower triangular factor without its columns of squared norm below ``tol`` where every
    diagonal entry is 1: about as many are left as the rank.

    The factor is that of G with rows and columns scaled to such a diagonal, and scaled back: an
    absolute tolerance would be a white noise to tokens whose k(x, x) is small beside others.

    Rows are taken in the order given, never by what is largest: as the matrix moves, so does its
    root, and random vectors along its columns keep their meaning. The price is O(N^3) time.

    >>> root, kept = thin_root(np.array([[4.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> root.round(4).tolist(), kept.tolist()
    ([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0, 2])
    """
    diagonal = np.diagonal(gram).astype(np.float64)
    if not np.isfinite(diagonal).all():
        raise InputError("a gram matrix must be finite: scale the features")
    mean, empty = float(diagonal.mean()), diagonal <= 0.0
    # a token without variance has no covariance with others
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
