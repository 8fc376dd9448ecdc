"""Low-rank approximations of a kernel: features of tokens from a few chosen tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.kernels._base import Floats, Kernel
from seqfield.kernels._pairs import Pairs, as_matrix, as_rows
from seqfield.kernels.gram import apply, finite_block, finite_diagonal
from seqfield.linalg.factor import eigen_factor

Ints = NDArray[np.int64]

#: variances below minus this share of the largest are no rounding error
NEGATIVE = 1e-6


class Landmarks(NamedTuple):
    """Features phi(x) = k(x, z) dual of tokens, from chosen tokens z (Nystrom).

    dual' k(z, z) dual = I, so phi(x) . phi(z_j) = k(x, z_j). The features are exact at the chosen
    tokens, and everywhere if all distinct tokens are chosen.

    >>> from seqfield.kernels import RBF
    >>> x = np.array([[0.0], [1.0], [5.0]])
    >>> found = landmarks(RBF(1.0), x)
    >>> phi = found.features(x)
    >>> bool(np.allclose(phi @ phi.T, RBF(1.0)(x)))
    True
    """

    kernel: Kernel
    tokens: Any  # (m, D)
    dual: Floats  # (m, r)

    def features(self, x: Any, n_jobs: int | None = None) -> Floats:
        """phi(x) (N, r)."""
        return apply(self.kernel, x, self.tokens, self.dual, n_jobs)


class Pivots(NamedTuple):
    """The result of `pivoted_cholesky`: chosen tokens, and a factor of the gram matrix."""

    chosen: Ints  # (r,)
    factor: Floats  # (N, r): k(x, x) is about factor factor'
    residual: float  # sum of the diagonal of what is left


def landmarks(kernel: Kernel, tokens: Any) -> Landmarks:
    """The features from these tokens; directions below 1e-10 of the largest are left out."""
    kernel.check()
    tokens = as_matrix(tokens)
    return Landmarks(kernel, tokens, eigen_factor(finite_block(kernel, Pairs(tokens))).dual)


def nystrom(kernel: Kernel, x: Any, rank: int, rng: np.random.Generator) -> Landmarks:
    """The features from ``rank`` tokens drawn uniformly without replacement (all if fewer)."""
    number("rank", rank, low=1, whole=True)
    kernel.check()
    x = as_matrix(x)
    n = len(finite_diagonal(kernel, x))
    chosen = np.sort(rng.choice(n, min(rank, n), replace=False))
    return landmarks(kernel, x[chosen])


def pivoted_cholesky(kernel: Kernel, x: Any, rank: int, tol: float = 1e-10) -> Pivots:
    """Pivoted Cholesky factor: choose the token of largest remaining variance, again and again.

    It ends at ``rank`` tokens, or if the largest remaining variance is at most ``tol`` times the
    largest k(x, x). It takes O(N rank^2) time and (N, rank) memory; the gram matrix is never
    formed.

    >>> from seqfield.kernels import Linear
    >>> found = pivoted_cholesky(Linear(), np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), 3)
    >>> found.chosen.tolist(), found.factor.tolist()
    ([1, 2], [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    """
    number("rank", rank, low=1, whole=True)
    number("tol", tol, low=0)
    kernel.check()
    rows = as_rows(x)
    left = finite_diagonal(kernel, rows.matrix).astype(np.float64)
    n, largest = len(left), float(left.max(initial=0.0))
    floor = tol * largest
    # columns of the factor are stored as rows, so that each lies in one piece of memory
    factor = np.empty((min(rank, n), n))
    chosen: list[int] = []
    for r in range(len(factor)):
        t = int(left.argmax())
        if not left[t] > floor:
            break
        # l_r = (k(x, z_t) - sum_s l_s l_s[t]) / sqrt(what is left at t)
        column = finite_block(kernel, Pairs(rows.part(t, t + 1), rows))[0]
        column -= factor[:r, t] @ factor[:r]
        column /= np.sqrt(left[t])
        factor[r] = column
        left -= column**2
        left[t] = 0.0
        chosen.append(t)
    # the remaining diagonal is a variance, so it is not negative except for rounding
    if left.min(initial=0.0) < -NEGATIVE * largest:
        raise InputError(
            f"the kernel is not positive semi-definite: given {len(chosen)} others, token "
            f"{int(left.argmin())} has a variance of {left.min():.3g}"
        )
    residual = float(np.maximum(left, 0.0).sum())
    return Pivots(np.array(chosen, np.int64), factor[: len(chosen)].T, residual)
