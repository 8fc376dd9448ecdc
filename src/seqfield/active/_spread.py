"""Choosing sequences of high value that differ from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.kernels import Kernel, Normalized
from seqfield.kernels._pairs import Pairs, as_rows
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: 1 - k^2 of equal sequences is 0 up to a rounding error below this
NOISE = 1e-12


def spread(
    values: Floats, data: Sequences, kernel: Kernel, diversity: float, n: int, taken: Integers
) -> tuple[Integers, Floats]:
    """Choose n sequences greedily; return them and the score of each when it was chosen.

    The score of a sequence is u^(1 - d) v^d, with its value u and d = ``diversity``. x is the mean
    of a sequence's tokens and k the normalised kernel. v = 1 - max_z k(x, z)^2 over all z that are
    ``taken`` or chosen before. In a Gaussian process, v is the share of the variance at x that
    remains if the nearest z is known. Scores fall as more are chosen and never rise. Each
    chosen or taken sequence costs O(n_pool) kernel values.

    >>> data = Sequences(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), [0, 1, 2, 3])
    >>> from seqfield.kernels import Linear
    >>> values, none = np.array([1.0, 0.9, 0.5]), np.array([], np.int64)
    >>> spread(values, data, Linear(), 0.5, 3, none)[0].tolist()
    [0, 2, 1]
    """
    means = _means(data)
    cosine = Normalized(kernel.fit(means))
    cosine.check()
    rows = as_rows(means)
    left = np.ones(len(values))

    def take(z: int) -> None:
        near = cosine._value(Pairs(rows.part(z, z + 1), rows))[0]
        share = 1.0 - near**2
        np.minimum(left, np.where(share > NOISE, share, 0.0), out=left)

    for z in taken:
        take(int(z))
    gone = np.zeros(len(values), dtype=bool)
    gone[taken] = True
    chosen, worth = np.empty(n, np.int64), np.empty(n)
    for k in range(n):
        now = np.where(gone, -1.0, values ** (1.0 - diversity) * left**diversity)
        chosen[k] = z = int(now.argmax())
        worth[k], gone[z] = now[z], True
        if k + 1 < n:
            take(z)
    return chosen, worth


def _means(data: Sequences) -> Any:
    """The mean of each sequence's tokens (n, D), sparse if the tokens are sparse."""
    share = np.repeat(1.0 / data.lengths, data.lengths)
    shape = len(data), data.n_tokens
    mean = sp.csr_array((share, np.arange(data.n_tokens), data.offsets), shape=shape)
    return mean @ data.x
