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
    """The lower triangular factor without its columns of squared norm below ``tol`` of the mean
    diagonal entry: about as many are left as the rank.

    Rows are taken in the order given, never by what is largest: as the matrix moves, so does its
    root, and random vectors along its columns keep their meaning. The price is O(N^3) time.

    >>> root, kept = thin_root(np.array([[4.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> root.round(4).tolist(), kept.tolist()
    ([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0, 2])
    """
    mean = float(np.diagonal(gram).mean())
    if not mean > 0.0:
        raise InputError("a gram matrix must be positive semi-definite and not zero")
    matrix = np.array(gram, dtype=np.float64, order="F")
    # far above rounding, far below tol
    matrix[np.diag_indices_from(matrix)] += 0.01 * tol * mean
    lower, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if failed:
        raise InputError("a gram matrix must be positive semi-definite")
    kept = np.flatnonzero(np.einsum("ij,ij->j", lower, lower) > tol * mean)
    return ThinRoot(np.ascontiguousarray(lower[:, kept]), kept)
