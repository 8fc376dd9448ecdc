"""Factors of positive semi-definite matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import InputError

Floats = NDArray[np.float64]

#: jitter: shares of the mean diagonal that are added to it until there is a Cholesky factor
JITTER = (0.0, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


class Factor(NamedTuple):
    """G = root root', and ``dual`` (N, r) with root' dual = I: a function root b is G (dual b)."""

    root: Floats
    dual: Floats


def eigen_factor(gram: Floats, tol: float = 1e-10) -> Factor:
    """The factor by eigenvectors, without eigenvalues below ``tol`` times the largest.

    O(N^3) time, two more matrices of the size of G.

    >>> root, dual = eigen_factor(np.array([[2.0, 2.0], [2.0, 2.0]]))
    >>> root.shape, (root @ root.T).round(6).tolist()
    ((2, 1), [[2.0, 2.0], [2.0, 2.0]])
    """
    values, vectors = scipy.linalg.eigh(gram)
    if values[-1] <= 0.0 or values[0] < -1e-6 * values[-1]:
        raise InputError("a gram matrix must be positive semi-definite and not zero")
    kept = values > tol * values[-1]
    scale = np.sqrt(values[kept])
    return Factor(vectors[:, kept] * scale, vectors[:, kept] / scale)


def lower_factor(matrix: Floats) -> Floats:
    """The lower triangular Cholesky factor K of a positive definite matrix H = K K'.

    If there is no factor, an `InputError` is raised. Rounding may be the cause if the entries of H
    differ too much in size.

    >>> lower_factor(np.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    try:
        return np.asarray(scipy.linalg.cholesky(matrix, lower=True))
    except ValueError as error:  # not positive definite, or not finite
        raise InputError(
            f"a second derivative has no Cholesky factor in float64: {error}. Scale the features; "
            "of a kernel lower the degree or take Normalized, so that k(x, x) is less extreme"
        ) from error


def cholesky_factor(gram: Floats) -> Factor:
    """The lower triangular factor of G, with at most 1e-6 of the mean diagonal added as jitter.

    Jitter is added only if it is needed, because of rounding in singular matrices.

    O(N^3) time, several times less than `eigen_factor`; two more matrices of the size of G.

    >>> root, dual = cholesky_factor(np.array([[4.0, 2.0], [2.0, 5.0]]))
    >>> root.tolist(), (root.T @ dual).tolist()
    ([[2.0, 0.0], [1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]])
    """
    mean = float(np.diagonal(gram).mean())
    if not mean > 0.0:
        raise InputError("a gram matrix must be positive semi-definite and not zero")
    for part in JITTER:
        matrix = np.array(gram, dtype=np.float64, order="F")
        matrix[np.diag_indices_from(matrix)] += part * mean
        root, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
        # a pivot of a singular matrix may be a rounding error, and the dual contains its inverse
        if failed == 0 and np.diagonal(root).min() ** 2 > 0.5 * JITTER[1] * mean:
            inverse, _ = scipy.linalg.lapack.dtrtri(root, lower=1)
            return Factor(root, inverse.T)
    raise InputError(
        "a gram matrix must be positive semi-definite: it has no Cholesky factor even with 1e-6 "
        "of its mean diagonal added"
    )
