"""Factors of positive semi-definite matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import InputError

Floats = NDArray[np.float64]


class Factor(NamedTuple):
    """G = root root', and ``dual`` (N, r) with root' dual = I: a function root b is G (dual b)."""

    root: Floats
    dual: Floats


def eigen_factor(gram: Floats, tol: float = 1e-10) -> Factor:
    """The factor by eigenvectors, leaving out eigenvalues below ``tol`` of the largest.

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
