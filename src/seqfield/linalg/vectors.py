"""Compiled operations on long vectors.

BLAS starts threads for them: on a busy machine that costs more than it brings, and the order of
summation, so the last bits of every result, would depend on the machine's number of cores.
"""

from __future__ import annotations

from typing import Any

from seqfield._compile import loop


@loop
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
