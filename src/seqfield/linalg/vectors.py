"""Compiled operations on long vectors.

BLAS would start threads for such vectors. On a busy machine these cost more than they bring. The
order of sums, and so the last bits of every result, would depend on the number of cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import loop, summing_loop

#: columns that are worked on while they are in cache
BLOCK = 2048


@summing_loop
def dot(a: Any, b: Any) -> Any:
    """Inner product of two vectors.

    >>> import numpy as np
    >>> float(dot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
    11.0
    """
    total = 0.0
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@loop
def add_scaled(out: Any, scale: Any, a: Any) -> None:
    """out += scale * a, in place.

    >>> import numpy as np
    >>> x = np.ones(2)
    >>> add_scaled(x, 2.0, np.array([1.0, 3.0]))
    >>> x
    array([3., 7.])
    """
    for k in range(out.shape[0]):
        out[k] += scale * a[k]


@loop
def plus_scaled(a: Any, scale: Any, b: Any) -> Any:
    """a + scale * b, in one pass.

    >>> import numpy as np
    >>> plus_scaled(np.ones(2), 2.0, np.array([1.0, 3.0]))
    array([3., 7.])
    """
    out = np.empty(a.shape[0])
    for k in range(a.shape[0]):
        out[k] = a[k] + scale * b[k]
    return out


@summing_loop
def products(rows: Any, left: Any, which: Any, begin: Any, end: Any) -> Any:
    """Inner products (k, r) of the rows ``which`` of left with all ``rows`` (r, n), columns
    begin:end.

    A block of columns stays in cache while all products over it are computed, so each number is
    read from memory once. Loops run from 0 over slices: if an index might be negative, numba checks
    it, and there are no vector instructions.
    """
    out = np.zeros((which.shape[0], rows.shape[0]))
    for b in range(begin, end, BLOCK):
        e = min(b + BLOCK, end)
        for v in range(which.shape[0]):
            x = left[which[v], b:e]
            for r in range(rows.shape[0]):
                y = rows[r, b:e]
                total = 0.0
                for k in range(e - b):
                    total += x[k] * y[k]
                out[v, r] += total
    return out


@loop
def combine(out: Any, rows: Any, coefficients: Any, begin: Any, end: Any) -> None:
    """out = sum_r coefficients[r] rows[r] on the columns begin:end."""
    for b in range(begin, end, BLOCK):
        e = min(b + BLOCK, end)
        x = out[b:e]
        for k in range(e - b):
            x[k] = 0.0
        for r in range(coefficients.shape[0]):
            c, y = coefficients[r], rows[r, b:e]
            for k in range(e - b):
                x[k] += c * y[k]
