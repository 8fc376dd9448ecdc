"""Finding tokens with equal rows, which share one row of a gram matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.kernels import _loops
from seqfield.kernels._pairs import as_matrix, canonical

Ints = NDArray[np.int64]


def distinct(x: Any) -> tuple[Ints, Ints]:
    """Where each distinct row first occurs, and for each row the number of its distinct row.

    >>> first, inverse = distinct(np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]]))
    >>> first.tolist(), inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    x = as_matrix(x)
    n, width = x.shape
    if not sp.issparse(x):
        # adding 0 turns -0.0 into 0.0, which has other bits
        words = np.ascontiguousarray(x + 0.0).view(np.uint64).ravel()
        first, inverse = _loops.number_rows(words, np.arange(n + 1) * width)
        return first, inverse
    x = canonical(x)
    words = np.empty(2 * x.nnz, np.uint64)
    words[::2] = x.indices[: x.nnz]
    words[1::2] = x.data[: x.nnz].astype(np.float64).view(np.uint64)
    first, inverse = _loops.number_rows(words, 2 * x.indptr.astype(np.int64))
    return first, inverse
