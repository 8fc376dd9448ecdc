"""Linear systems and determinants of operators that are given by their products."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.linalg.factor import lower_factor

Floats = NDArray[np.float64]
#: maps rows (k, n) to the operator applied to each row
Multiply = Callable[[Floats], Floats]

#: numbers that the bases of the Lanczos recursions may take at once: 256 MiB
BASIS = 2**25
#: steps between two checks of whether a quadrature has converged
PERIOD = 5


class Solution(NamedTuple):
    """Solutions in the shape of the right-hand sides; whether each ended at a direction of negative
    curvature; and the largest number of iterations."""

    x: Floats
    negative: NDArray[np.bool_]
    n_iter: int


class LogDeterminant(NamedTuple):
    """An estimate and its standard error."""

    value: float
    error: float


def conjugate_gradients(
    multiply: Multiply,
    b: Floats,
    *,
    dual: Callable[[Floats], Floats] | None = None,
    tol: float | Floats = 1e-8,
    max_iter: int = 1000,
) -> Solution:
    """Solve A x = b for one right-hand side (n,) or for each of several (k, n).

    A is self-adjoint in the inner product <u, v> = u . dual(v), by default the plain one. Each row
    has its own coefficients. A row is finished when its residual is below ``tol`` times |b|, and
    then it is not multiplied any more. A row also ends at a direction d of negative curvature, that
    is <d, A d> <= 0. At the first iteration it then ends with x = d = b, which is a descent
    direction for a truncated Newton step.

    >>> a = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda v: v @ a, np.array([3.0, 4.0])).x.round(6)
    array([1., 1.])
    """

    def inner(u: Floats, v: Floats) -> Floats:
        if dual is not None:
            v = np.stack([dual(row) for row in v])
        return np.asarray(np.einsum("ij,ij->i", u, v))

    r = np.array(np.atleast_2d(b), dtype=np.float64)
    x, d, square = np.zeros_like(r), r.copy(), inner(r, r)
    goal = np.asarray(tol) ** 2 * square
    negative = np.zeros(len(r), bool)
    todo, n_iter = np.flatnonzero(square > goal), 0
    while len(todo) and n_iter < max_iter:
        n_iter += 1
        towards = d[todo]
        image = multiply(towards)
        curve = inner(towards, image)
        bad = curve <= 0.0
        if bad.any():
            negative[todo[bad]] = True
            if n_iter == 1:
                x[todo[bad]] = towards[bad]
            todo, towards, image, curve = todo[~bad], towards[~bad], image[~bad], curve[~bad]
            if not len(todo):
                break
        step = (square[todo] / curve)[:, None]
        x[todo] += step * towards
        r[todo] -= step * image
        new = inner(r[todo], r[todo])
        d[todo] = r[todo] + (new / square[todo])[:, None] * towards
        square[todo] = new
        todo = todo[new > goal[todo]]
    return Solution(x.reshape(b.shape), negative, n_iter)


def lanczos_log_determinant(
    multiply: Multiply, probes: Floats, steps: int = 100, tol: float = 1e-6
) -> LogDeterminant:
    """log det A of a symmetric positive definite A by stochastic Lanczos quadrature.

    log det A = E[z' log(A) z] over Rademacher vectors z, the rows of ``probes`` (k, n). Each
    term is |z|^2 sum_j v_j^2 log(l_j). The l_j are the eigenvalues of the tridiagonal matrix of a
    Lanczos recursion from z, and the v_j the first entries of its eigenvectors (Golub and Meurant).
    Every new vector is made orthogonal to all earlier ones; otherwise eigenvalues appear twice. The
    recursion ends after ``steps``, or when no term changes by more than ``tol`` times the largest.

    >>> probes = np.array([[1.0, 1.0], [1.0, -1.0]])
    >>> found = lanczos_log_determinant(lambda v: v * [1.0, np.e], probes)
    >>> round(found.value, 6), round(found.error, 6)
    (1.0, 0.0)
    """
    found = [part.quadratic for part in _by_lanczos(multiply, probes, np.log, steps, tol)]
    terms = np.concatenate(found)
    error = float(terms.std(ddof=1) / np.sqrt(len(terms))) if len(terms) > 1 else np.inf
    return LogDeterminant(float(terms.mean()), error)


def inverse_root(multiply: Multiply, z: Floats, steps: int = 300, tol: float = 1e-8) -> Floats:
    """A^(-1/2) z for each row of z (k, n) and a symmetric positive definite A.

    With z ~ N(0, I), the results are draws of covariance A^-1. The Lanczos recursion ends when
    z' A^(-1/2) z has converged to ``tol``.

    >>> inverse_root(lambda v: v * [1.0, 4.0], np.array([[1.0, 1.0]])).round(6)
    array([[1. , 0.5]])
    """
    parts = _by_lanczos(multiply, z, lambda values: values**-0.5, steps, tol)
    return np.vstack([part.image for part in parts])


def smallest_value(multiply: Multiply, n: int, steps: int = 50) -> float:
    """The smallest eigenvalue of a symmetric A (n, n), or a number not far above it.

    >>> round(smallest_value(lambda v: v * [3.0, -2.0], 2), 6)
    -2.0
    """
    start = np.random.default_rng(0).normal(size=(1, n))
    found = _recursion(multiply, start, min(steps, n), None)
    return float(_ritz(found.alpha[0], found.beta[0], found.sizes[0])[0][0])


class _Function(NamedTuple):
    """z' f(A) z (k,) and f(A) z (k, n)."""

    quadratic: Floats
    image: Floats


class _Basis(NamedTuple):
    """For each row: orthonormal vectors (k, steps, n), the tridiagonal matrix of A in this basis,
    and the number of vectors."""

    vectors: Floats
    alpha: Floats
    beta: Floats
    sizes: NDArray[np.int64]


def _by_lanczos(
    multiply: Multiply, z: Floats, function: Callable[[Floats], Floats], steps: int, tol: float
) -> list[_Function]:
    """f(A) of a positive definite A by Lanczos recursions from the rows of z, some at a time."""

    def term(alpha: Floats, beta: Floats, m: int) -> float:
        values, vectors = _positive(alpha, beta, m)
        return float(vectors[0] ** 2 @ function(values))

    k, n = z.shape
    steps = min(steps, n)
    size = max(1, BASIS // (n * steps))
    out = []
    for a in range(0, k, size):
        rows = z[a : a + size]
        found = _recursion(multiply, rows, steps, _Settled(term, tol))
        square = np.einsum("ij,ij->i", rows, rows)
        quadratic, image = np.empty(len(rows)), np.empty_like(rows)
        for i, m in enumerate(found.sizes):
            # f(A) z = |z| Q U f(l) U' e_1
            values, vectors = _positive(found.alpha[i], found.beta[i], m)
            weights = vectors[0] * function(values)
            quadratic[i] = square[i] * (vectors[0] @ weights)
            image[i] = np.sqrt(square[i]) * ((vectors @ weights) @ found.vectors[i, :m])
        out.append(_Function(quadratic, image))
    return out


class _Settled(NamedTuple):
    """The end of a recursion: no term changes by more than ``tol`` times the largest.

    A term is a function of a row's tridiagonal matrix.
    """

    term: Callable[[Floats, Floats, int], float]
    tol: float


def _recursion(multiply: Multiply, z: Floats, steps: int, rule: _Settled | None) -> _Basis:
    k, n = z.shape
    square = np.einsum("ij,ij->i", z, z)
    basis = np.zeros((k, steps, n))
    alpha, beta = np.zeros((k, steps)), np.zeros((k, steps))
    q = z / np.sqrt(square)[:, None]
    going, sizes, before = np.ones(k, bool), np.full(k, steps), np.full(k, np.inf)
    for j in range(steps):
        rows = np.flatnonzero(going)
        basis[rows, j] = q[rows]
        w = multiply(q[rows])
        alpha[rows, j] = np.einsum("ij,ij->i", q[rows], w)
        scale = np.sqrt(np.einsum("ij,ij->i", w, w))
        for i, row in enumerate(rows):
            seen = basis[row, : j + 1]
            for _ in range(2):  # the second pass removes the rounding errors of the first
                w[i] -= (seen @ w[i]) @ seen
        beta[rows, j] = np.sqrt(np.einsum("ij,ij->i", w, w))
        # the Krylov space is exhausted: the quadrature is exact
        over = beta[rows, j] <= 1e-12 * scale
        sizes[rows[over]], going[rows[over]] = j + 1, False
        rows, w = rows[~over], w[~over]
        if rule is not None and (j + 1) % PERIOD == 0 and len(rows):
            now = np.array([rule.term(alpha[r], beta[r], j + 1) for r in rows]) * square[rows]
            settled = np.abs(now - before[rows]).max() <= rule.tol * np.abs(now).max()
            before[rows] = now
            if settled:
                sizes[rows], going[rows] = j + 1, False
        if not going.any():
            break
        q[rows] = w / beta[rows, j][:, None]
    return _Basis(basis, alpha, beta, sizes)


def _ritz(alpha: Floats, beta: Floats, m: int) -> tuple[Floats, Floats]:
    """Eigenvalues, the smallest first, and eigenvectors of the leading m x m tridiagonal matrix."""
    values, vectors = scipy.linalg.eigh_tridiagonal(alpha[:m], beta[: m - 1])
    return values, vectors


def _positive(alpha: Floats, beta: Floats, m: int) -> tuple[Floats, Floats]:
    values, vectors = _ritz(alpha, beta, m)
    if values[0] <= 0.0:
        raise InputError("the operator is not positive definite")
    return values, vectors


def dense(multiply: Multiply, n: int, block: int = 64) -> Floats:
    """A symmetric operator as a matrix (n, n), by its products with all unit vectors.

    >>> dense(lambda v: 2.0 * v, 2)
    array([[2., 0.],
           [0., 2.]])
    """
    out = np.empty((n, n))
    for a in range(0, n, block):
        b = min(a + block, n)
        unit = np.zeros((b - a, n))
        unit[np.arange(b - a), np.arange(a, b)] = 1.0
        out[a:b] = multiply(unit)
    return 0.5 * (out + out.T)


def exact_log_determinant(multiply: Multiply, n: int) -> float:
    """log det A of a symmetric positive definite A by n products and a Cholesky factor.

    >>> round(exact_log_determinant(lambda v: v * [1.0, np.e], 2), 6)
    1.0
    """
    return log_determinant(dense(multiply, n))


def log_determinant(matrix: Floats) -> float:
    """log det of a positive definite matrix.

    >>> round(log_determinant(np.diag([1.0, np.e])), 6)
    1.0
    """
    return 2.0 * float(np.log(np.diagonal(lower_factor(matrix))).sum())
