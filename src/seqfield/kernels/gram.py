"""Gram matrices in blocks: within a memory budget, on threads, and checked.

Blocks depend on the sizes alone, and one thread computes each block. So every result is
bit-identical for every ``n_jobs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike, NDArray

from seqfield import _parallel
from seqfield._checks import number
from seqfield.errors import BudgetError, InputError
from seqfield.kernels import _loops
from seqfield.kernels._base import Floats, Kernel
from seqfield.kernels._distinct import distinct
from seqfield.kernels._pairs import Pairs, Rows, as_rows, check_finite, not_finite

__all__ = ["apply", "distinct", "gram", "product"]

#: bytes of one temporary array of a block: so that it fits the cache, and at most
CACHE, BLOCK = 2**22, 2**25

#: rows that are multiplied at once
PIECE = 512

#: rows that are mirrored at once
MIRROR = 512

#: from this many columns on BLAS is faster than the loop
WIDE = 24

#: what to do if a gram matrix is too large
ADVICE = (
    'Use method="sparse", n_inducing=, or for polynomial kernels of sparse features '
    "explicit=True; or give more with gram_budget=, or halve the need with gram_dtype="
    '"float32"'
)

#: tokens whose gram matrix is checked to be positive semi-definite: if the matrix exists anyway,
#: and if it is computed for the check alone
SHOWN, PROBE = 2000, 400


def gram(
    kernel: Kernel,
    x: Any,
    z: Any = None,
    *,
    budget: float,
    dtype: DTypeLike = np.float64,
    n_jobs: int | None = None,
    advice: str = ADVICE,
) -> NDArray[Any]:
    """k(x, z) (N, M) as an array of ``dtype``; if z is None, it is x.

    If the matrix needs more than ``budget`` bytes, a `BudgetError` is raised, whose message ends
    with ``advice``.

    >>> from seqfield.kernels import Linear
    >>> gram(Linear(), np.eye(2), budget=1e6)
    array([[1., 0.],
           [0., 1.]])
    """
    kernel.check()
    left = as_rows(x)
    same = z is None or z is x
    right = left if same else as_rows(z)
    kind = check_dtype(dtype)
    check_budget(left.end, right.end, kind, budget, advice)
    out = np.empty((left.end, right.end), kind)
    mirror = same and kernel.trusted

    def fill(begin: int, end: int) -> None:
        # the upper triangle of blocks; the lower one is its mirror image
        first = begin if mirror else 0
        pairs = Pairs(left.part(begin, end), right.part(first, right.end), aligned=mirror)
        block = finite_block(kernel, pairs)
        store(out[begin:end, first:], block, range(begin, end), range(first, right.end))

    def reflect(begin: int, end: int) -> None:
        out[end:, begin:end] = out[begin:end, end:].T
        corner = out[begin:end, begin:end]
        corner[:] = np.triu(corner) + np.triu(corner, 1).T

    warm(kernel, left, right)
    strips = cuts(left.end, right.end)
    _parallel.run(lambda strip: fill(*strip), strips, n_jobs)
    if mirror:
        # mirrored in larger blocks, so that memory is written in longer runs
        _parallel.run(lambda strip: reflect(*strip), even(left.end, MIRROR), n_jobs)
    if same and out.size and not kernel.trusted:
        check_covariance(out, strips)
    return out


def apply(
    kernel: Kernel, x: Any, z: Any, coefficients: Floats, n_jobs: int | None = None
) -> Floats:
    """k(x, z) @ coefficients (N, S) without holding k(x, z).

    >>> from seqfield.kernels import Linear
    >>> apply(Linear(), np.eye(2), np.eye(2), np.array([[1.0], [2.0]])).ravel()
    array([1., 2.])
    """
    kernel.check()
    left, right = as_rows(x), as_rows(z)
    if coefficients.shape[0] != right.end:
        raise InputError(
            f"{coefficients.shape[0]} rows of coefficients for {right.end} tokens of the kernel"
        )
    out = np.empty((left.end, coefficients.shape[1]))

    def fill(begin: int, end: int) -> None:
        block = finite_block(kernel, Pairs(left.part(begin, end), right))
        np.matmul(block, coefficients, out=out[begin:end])

    warm(kernel, left, right)
    _parallel.run(lambda strip: fill(*strip), cuts(left.end, right.end), n_jobs)
    return out


def product(g: NDArray[Any], v: Floats, n_jobs: int | None = None) -> Floats:
    """G @ v (N, S) in float64, whether G is stored in float64 or in float32.

    >>> product(np.eye(2, dtype=np.float32), np.array([[1.0], [2.0]])).ravel()
    array([1., 2.])
    """
    if g.shape[1] != v.shape[0]:
        raise InputError(f"a matrix of {g.shape[1]} columns times one of {v.shape[0]} rows")
    width = v.shape[1]
    if width > WIDE and g.dtype == np.float64:
        return np.asarray(g @ v)
    across = np.zeros((-(-width // 3) * 3, len(v)))
    across[:width] = v.T
    rows, out = np.ascontiguousarray(g), np.empty((len(g), len(across)))

    def fill(begin: int, end: int) -> None:
        _loops.multiply(rows[begin:end], across, out[begin:end])

    _parallel.run(lambda strip: fill(*strip), even(g.shape[0], PIECE), n_jobs)
    return np.ascontiguousarray(out[:, :width])


def warm(kernel: Kernel, left: Rows, right: Rows) -> None:
    """Compute what all blocks share, before several threads need it at once."""
    if left.end and right.end:
        with np.errstate(over="ignore", invalid="ignore"):  # blocks raise errors for such values
            kernel._value(Pairs(left.part(0, 1), right.part(0, 1)))


def cuts(n: int, m: int) -> list[tuple[int, int]]:
    """Rows of the blocks. Temporary arrays should fit the cache, but products of fewer than 64 rows
    are slow."""
    size = max(CACHE, min(BLOCK, 64 * 8 * m))
    return even(n, max(1, size // (8 * max(m, 1))))


def even(n: int, height: int) -> list[tuple[int, int]]:
    """0:n in pieces of this height."""
    return [(a, min(a + height, n)) for a in range(0, n, height)]


def check_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """float64 or float32."""
    try:
        kind = np.dtype("object" if dtype is None else dtype)
    except TypeError:
        raise InputError(f"a gram matrix is of float64 or float32, not of {dtype!r}") from None
    if kind not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise InputError(f"a gram matrix is of float64 or float32, not of {kind}")
    return kind


def check_budget(n: int, m: int, kind: np.dtype[Any], budget: float, advice: str) -> None:
    """Raise a `BudgetError` if a matrix (n, m) needs more bytes than the budget."""
    number("gram_budget", budget, low=0)
    need = n * m * kind.itemsize
    if need > budget:
        raise BudgetError(
            f"the gram matrix of {n} x {m} tokens in {kind} needs {need / 2**30:.3g} GiB, the "
            f"budget is {budget / 2**30:.3g} GiB. {advice}"
        )


def finite_block(kernel: Kernel, pairs: Pairs) -> Floats:
    """k(x, z), or an `InputError` that names the tokens where it is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        block = kernel._value(pairs)
        # a sum is one pass; it can also overflow with finite numbers, which is no error
        if np.isfinite(block.sum()):
            return block
    bad = np.argwhere(~np.isfinite(block))
    if len(bad):
        i, j = (int(v) for v in bad[0])
        row, column = pairs.left_rows.begin + i, pairs.right_rows.begin + j
        raise not_finite(block[i, j], row, column)
    return block


def store(place: NDArray[Any], block: Floats, rows: Sequence[int], columns: Sequence[int]) -> None:
    """Write finite values k(x, z), or raise an `InputError` that names the tokens whose value is
    too large for the type of their place; ``rows`` and ``columns`` are the numbers of the tokens.
    """
    with np.errstate(over="ignore"):
        place[:] = block
    # one pass; float64 has room for any sum of numbers of float32
    if place.dtype == np.float64 or np.isfinite(place.sum(dtype=np.float64)):
        return
    i, j = (int(v) for v in np.argwhere(~np.isfinite(place))[0])
    raise InputError(
        f"the kernel is {block[i, j]:g} for tokens {rows[i]} and {columns[j]}, too large for "
        f'gram_dtype="{place.dtype}": use gram_dtype="float64", or scale the kernel down'
    )


def finite_diagonal(kernel: Kernel, x: Any) -> Floats:
    """k(x, x) of each row, or an `InputError` that names the token where it is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return check_finite(kernel._diagonal(x))


def check_some(kernel: Kernel, x: Any, n_jobs: int | None = None) -> None:
    """Check an untrusted kernel at some tokens, if the whole gram matrix is never computed."""
    if not kernel.trusted:
        some = x[_spread(x.shape[0], PROBE)]
        gram(kernel, some, budget=8.0 * PROBE**2, n_jobs=n_jobs)


def check_covariance(g: NDArray[Any], strips: list[tuple[int, int]]) -> None:
    """Raise an `InputError` unless g is symmetric and looks positive semi-definite."""
    largest = max(float(np.abs(g[a:b]).max()) for a, b in strips)
    # float32 rounds to 6e-8
    symmetry, spectrum = (1e-8, 1e-6) if g.dtype == np.float64 else (1e-6, 1e-5)
    size = np.sqrt(np.maximum(np.diagonal(g).astype(np.float64), 0.0))
    for a, b in strips:
        off = np.abs(g[a:b, a:] - g[a:, a:b].T)
        if off.max() > symmetry * largest:
            i, j = (int(v) + a for v in np.unravel_index(int(off.argmax()), off.shape))
            raise InputError(
                f"the kernel is not symmetric: {g[i, j]:g} for tokens {i}, {j} but {g[j, i]:g} "
                f"for {j}, {i}"
            )
        # k(x, z)^2 <= k(x, x) k(z, z)
        off = np.abs(g[a:b, a:]) - size[a:b, None] * size[a:]
        if off.max() > symmetry * largest:
            i, j = (int(v) + a for v in np.unravel_index(int(off.argmax()), off.shape))
            raise InputError(
                f"the kernel is not positive semi-definite: {g[i, j]:g} for tokens {i} and {j}, "
                f"{g[i, i]:g} and {g[j, j]:g} for each of them with itself"
            )
    if largest > 0.0:
        _check_definite(g, largest, spectrum)


def _check_definite(g: NDArray[Any], largest: float, tol: float) -> None:
    """Raise an `InputError` if an eigenvalue is below -tol times about the largest one.

    If that amount is added to the diagonal, a Cholesky factor must exist. This test costs a
    fraction of the eigenvalues. The largest eigenvalue is at least |G|^2 / tr(G), the mean of the
    eigenvalues weighted by themselves.
    """
    rows = np.ix_(*2 * [_spread(len(g), SHOWN)])
    some = g[rows].astype(np.float64, copy=False)
    some /= largest  # so that squares do not overflow
    trace = float(np.trace(some))
    if trace <= 0.0:  # no entry is larger, then
        return
    some[np.diag_indices_from(some)] += tol * float(np.vdot(some, some)) / trace
    if scipy.linalg.lapack.dpotrf(some.T, clean=0, overwrite_a=1)[1]:
        values = scipy.linalg.eigvalsh(g[rows].astype(np.float64))
        raise InputError(
            f"the kernel is not positive semi-definite: an eigenvalue of {values[0]:.3g}, the "
            f"largest being {values[-1]:.3g}"
        )


def _spread(n: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` of n rows, evenly spread."""
    return np.linspace(0, n - 1, min(most, n)).astype(np.int64)
