"""Triangular systems with one right-hand side, solved in place.

LAPACK needs the matrix in one piece of memory. If the matrix is a corner of a larger array, it is
copied, which costs more than the solution. These loops read each row of the corner in place, once.
"""

from __future__ import annotations

from typing import Any

from seqfield._compile import loop, summing_loop


@summing_loop
def solve_upper(r: Any, x: Any) -> None:
    """x <- r^-1 x for an upper triangular r.

    >>> import numpy as np
    >>> x = np.array([5.0, 4.0])
    >>> solve_upper(np.array([[1.0, 3.0], [0.0, 4.0]]), x)
    >>> x
    array([2., 1.])
    """
    n = x.shape[0]
    for k in range(n):
        i = n - 1 - k
        row, found = r[i, i + 1 : n], x[i + 1 : n]
        total = 0.0
        for j in range(k):
            total += row[j] * found[j]
        x[i] = (x[i] - total) / r[i, i]


@loop
def solve_upper_transposed(r: Any, x: Any) -> None:
    """x <- r'^-1 x for an upper triangular r.

    >>> import numpy as np
    >>> x = np.array([2.0, 10.0])
    >>> solve_upper_transposed(np.array([[1.0, 3.0], [0.0, 4.0]]), x)
    >>> x
    array([2., 1.])
    """
    n = x.shape[0]
    for i in range(n):
        x[i] /= r[i, i]
        row, rest, value = r[i, i + 1 : n], x[i + 1 : n], x[i]
        for j in range(n - 1 - i):
            rest[j] -= value * row[j]
