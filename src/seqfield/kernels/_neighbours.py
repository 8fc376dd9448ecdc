"""Nearest-neighbour graphs of tokens and the spectrum of their Laplacians, for `Graph`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, cg, eigsh
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from seqfield.errors import BudgetError, CapabilityError, InputError
from seqfield.kernels._distinct import distinct
from seqfield.kernels._pairs import as_matrix, canonical, squared_norms
from seqfield.persist import Arrays, prefixed, under

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: up to this many distinct tokens all eigenvectors are kept; and how many are kept beyond
ALL_UP_TO, SMOOTHEST = 3000, 300

#: the largest residual |L u - l u| of an eigenvector, as a part of the Laplacian's diagonal
RESIDUAL = 1e-6

#: a token whose degree is more than this times the mean makes plain Lanczos slow
HUB = 4.0

#: restarts of the Lanczos iteration before the slower and safer method is used
RESTARTS = 50


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Distinct tokens and the weights W between neighbours, symmetric.

    ``pool`` (n, D) are the tokens, a float64 array or CSR; ``width`` is the s of heat weights
    exp(-d^2 / (2 s^2)), 0 for weights of 1.
    """

    pool: Any
    weights: Any
    n_neighbors: int
    metric: str
    width: float

    @classmethod
    def learn(cls, x: Any, n_neighbors: int, metric: str, heat: bool) -> Neighbours:
        """The graph in which tokens are neighbours if one is among the nearest of the other."""
        pool = _plain(x[distinct(x)[0]])
        n = pool.shape[0]
        if n <= n_neighbors:
            raise InputError(
                f"n_neighbors={n_neighbors} needs more than {n_neighbors} distinct tokens, got {n}"
            )
        distances, nearest = _search(pool, n_neighbors, metric).kneighbors()
        width = 0.0
        if heat:
            # cosine distances can be 0 between tokens that are not equal
            width = float(np.median(distances[distances > 0])) if distances.any() else 1.0
        starts = np.arange(n + 1) * n_neighbors
        near = sp.csr_array((_heat(distances, width).ravel(), nearest.ravel(), starts), (n, n))
        weights = canonical(sp.csr_array(near.maximum(near.T)))
        return cls(pool, weights, n_neighbors, metric, width)

    def __len__(self) -> int:
        return int(self.pool.shape[0])

    @cached_property
    def degrees(self) -> Floats:
        """Sums of the weights of each token (n,)."""
        return np.asarray(self.weights.sum(axis=1), dtype=np.float64)

    @cached_property
    def parts(self) -> Ints:
        """Number of the connected part that each token is in (n,)."""
        return np.asarray(connected_components(self.weights, directed=False)[1], dtype=np.int64)

    @cached_property
    def _searcher(self) -> Any:
        return _search(self.pool, self.n_neighbors, self.metric)

    def locate(self, x: Any) -> Ints:
        """Number of the token that each row of x is equal to (N,), -1 if there is none.

        O((n + N) D): the tokens and x are numbered together, first the tokens.
        """
        x = self._as_pool(x)
        stacked = sp.vstack([self.pool, x], format="csr") if sp.issparse(x) else None
        _, kinds = distinct(np.concatenate([self.pool, x]) if stacked is None else stacked)
        found = kinds[len(self) :]
        return np.where(found < len(self), found, -1)

    def nearest(self, x: Any) -> Any:
        """Weights of x with their nearest tokens, CSR (N, n)."""
        x = self._as_pool(x)
        distances, nearest = self._searcher.kneighbors(_measurable(x))
        starts = np.arange(x.shape[0] + 1) * self.n_neighbors
        values = _heat(distances, self.width).ravel()
        return sp.csr_array((values, nearest.ravel(), starts), (x.shape[0], len(self)))

    def _as_pool(self, x: Any) -> Any:
        """x as an array if the tokens are, or as CSR if they are."""
        if x.shape[1] != self.pool.shape[1]:
            raise InputError(
                f"tokens of {x.shape[1]} features, but the graph has {self.pool.shape[1]}"
            )
        if not sp.issparse(self.pool):
            return x.toarray() if sp.issparse(x) else x
        return _plain(sp.csr_array(x))

    def arrays(self) -> Arrays:
        """What `restore` takes."""
        pool = _from_csr(self.pool) if sp.issparse(self.pool) else {"rows": self.pool}
        weights = prefixed("weights", _from_csr(self.weights))
        return prefixed("pool", pool) | weights | {"width": np.array([self.width])}

    @classmethod
    def restore(cls, arrays: Arrays, n_neighbors: int, metric: str, heat: bool) -> Neighbours:
        """The graph of what `arrays` gave, or an `InputError`."""
        width = _floats(arrays["width"], 1)
        _need(len(width) == 1 and (width[0] > 0) == heat and width[0] >= 0, "its heat width")
        rows = under("pool", arrays)
        pool = _floats(rows["rows"], 2) if "rows" in rows else _to_csr(rows)
        n = pool.shape[0]
        _need(n > n_neighbors and len(distinct(pool)[0]) == n, "its tokens")
        weights = _to_csr(under("weights", arrays))
        _need(weights.shape == (n, n) and (weights.data > 0).all(), "its weights")
        _need((weights != weights.T).nnz == 0 and not weights.diagonal().any(), "its weights")
        return cls(pool, weights, n_neighbors, metric, float(width[0]))


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The smoothest eigenvectors of a graph's Laplacian (n, m) and their eigenvalues, rising."""

    values: Floats
    vectors: Floats
    normalized: bool

    @classmethod
    def learn(
        cls, graph: Neighbours, normalized: bool, n_components: int | None, budget: float
    ) -> Spectrum:
        """The spectrum of L = D - W, or of I - D^-1/2 W D^-1/2."""
        n, constants = len(graph), constant_functions(graph, normalized)
        c = constants.shape[1]
        if n_components is None:
            m = n if n <= ALL_UP_TO else max(SMOOTHEST, c)
        else:
            m = min(int(n_components), n)
        if m < c:
            raise InputError(
                f"the graph has {c} connected parts, so n_components={m} is too few: the smoothest "
                f"functions are constant on each. Use at least {c}, or a larger n_neighbors="
            )
        matrix = laplacian(graph, normalized)
        values, vectors = _smoothest(matrix, constants, m - c, budget)
        return cls(
            np.concatenate([np.zeros(c), np.maximum(values, 0.0)]),
            np.hstack([constants.toarray(), vectors]),
            normalized,
        )

    def extend(self, graph: Neighbours, x: Any) -> Floats:
        """u_j(x) (N, m) of tokens that are not in the graph, by Nystrom's method.

        If x were a token of the graph then L u = l u would read, for weights w and d = sum_i w_i,
        d u(x) - sum_i w_i u(i) = l u(x), so

            u(x) = sum_i w_i u(i) / (d - l)
            u(x) = sum_i w_i u(i) / sqrt(d d_i) / (1 - l)    for the normalised Laplacian.

        This holds for smooth functions, where l is far below d. Rough functions change between
        neighbours, so neighbours say nothing about x: the divisor would reach 0 and change sign.
        So the divisor is at least half of its value at l = 0.
        """
        near = graph.nearest(x)
        d = np.asarray(near.sum(axis=1), dtype=np.float64)[:, None]
        scaled, level = self.vectors, d
        divisor = d - self.values
        if self.normalized:
            scaled = self.vectors * _inverse(np.sqrt(graph.degrees))[:, None]
            level = np.sqrt(d)
            divisor = level * (1.0 - self.values)
        # a token so far away that all its weights are 0 gets 0
        return np.asarray((near @ scaled) * _inverse(np.maximum(divisor, 0.5 * level)))

    def arrays(self) -> Arrays:
        """What `restore` takes."""
        return {"values": self.values, "vectors": self.vectors}

    @classmethod
    def restore(cls, arrays: Arrays, n: int, normalized: bool) -> Spectrum:
        """The spectrum of what `arrays` gave, or an `InputError`."""
        values, vectors = _floats(arrays["values"], 1), _floats(arrays["vectors"], 2)
        _need(vectors.shape == (n, len(values)) and 0 < len(values) <= n, "its eigenvectors")
        _need(bool((values >= 0).all() and (np.diff(values) >= 0).all()), "its eigenvalues")
        return cls(values, vectors, normalized)


def laplacian(graph: Neighbours, normalized: bool) -> Any:
    """D - W, or I - D^-1/2 W D^-1/2 (0 where a token has no neighbours), CSR."""
    if not normalized:
        return sp.csr_array(sp.diags_array(graph.degrees) - graph.weights)
    root = sp.diags_array(_inverse(np.sqrt(graph.degrees)))
    ones = sp.diags_array((graph.degrees > 0).astype(np.float64))
    return sp.csr_array(ones - root @ graph.weights @ root)


def constant_functions(graph: Neighbours, normalized: bool) -> Any:
    """The eigenvectors of eigenvalue 0, CSR (n, c): 1, or sqrt(d), on one connected part each."""
    n = len(graph)
    values = np.sqrt(np.where(graph.degrees > 0, graph.degrees, 1.0)) if normalized else np.ones(n)
    norms = np.sqrt(np.bincount(graph.parts, np.square(values)))
    entries = (values / norms[graph.parts], (np.arange(n), graph.parts))
    return sp.csr_array(entries, shape=(n, len(norms)))


def _smoothest(matrix: Any, constants: Any, m: int, budget: float) -> tuple[Floats, Floats]:
    """The m smallest eigenvalues of a Laplacian, without those of the constants; and eigenvectors.

    The constants are known exactly, so they are moved away: L + lift C C' has them as eigenvectors
    with an eigenvalue above all others. So 1 / (0 + shift) is exact for a tiny shift, and the
    iterations meet no multiple eigenvalue.
    """
    n = matrix.shape[0]
    top = float(matrix.diagonal().max())
    lift = 4.0 * top + 1.0  # eigenvalues are at most 2 max_i L_ii
    if m == 0:
        return np.zeros(0), np.zeros((n, 0))
    ways = [_inverse_lanczos, _dense]
    if n <= 500 or 4 * m > n:
        ways = [_dense]
    elif top <= HUB * float(matrix.diagonal().mean()):
        ways.insert(0, _lanczos)
    for way in ways:
        need = 32.0 * n * (n if way is _dense else m)
        if need > budget and way is ways[0]:
            raise BudgetError(
                f"{m} eigenvectors of a graph of {n} distinct tokens need {need / 2**30:.3g} GiB; "
                f"the budget is {budget / 2**30:.3g} GiB. Use fewer with n_components="
            )
        found = None if need > budget else way(matrix, constants, m, lift)
        if found is not None:
            values, vectors = found
            residuals = matrix @ vectors - vectors * values
            if np.sqrt(np.square(residuals).sum(axis=0)).max() <= RESIDUAL * top:
                return values, vectors
    raise CapabilityError(
        f"the {m} smoothest functions on the graph were not found: use fewer with n_components=, "
        'or laplacian="normalized"'
    )


def _dense(matrix: Any, constants: Any, m: int, lift: float) -> tuple[Floats, Floats] | None:
    full = matrix.toarray() + lift * (constants @ constants.T).toarray()
    # all eigenvectors, even if few are needed: for a subset LAPACK is ten times slower
    values, vectors = scipy.linalg.eigh(full, driver="evd", overwrite_a=True)
    return values[:m], vectors[:, :m].copy()


def _lanczos(matrix: Any, constants: Any, m: int, lift: float) -> tuple[Floats, Floats] | None:
    """Lanczos on the Laplacian itself.

    A token with hundreds of neighbours makes a large eigenvalue. Beside it, the gaps between the
    smallest eigenvalues are small, and convergence is slow.
    """

    def product(v: Floats) -> Floats:
        return np.asarray(matrix @ v + lift * (constants @ (constants.T @ v)))

    operator = LinearOperator(matrix.shape, matvec=product, dtype=np.float64)
    return _eigsh(operator, m, which="SA", maxiter=RESTARTS)


def _inverse_lanczos(
    matrix: Any, constants: Any, m: int, lift: float
) -> tuple[Floats, Floats] | None:
    """Lanczos on (L + s I)^-1 by conjugate gradients.

    A factor of L would be faster in two dimensions, but in many dimensions it fills the memory.
    """
    shift = 1e-2 * float(matrix.diagonal().mean())
    shifted = sp.csr_array(matrix + shift * sp.eye_array(matrix.shape[0]))
    scaling = sp.diags_array(1.0 / shifted.diagonal())

    def solve(v: Floats) -> Floats:
        level = constants @ (constants.T @ v)
        out, _ = cg(shifted, v - level, rtol=1e-10, maxiter=5000, M=scaling)
        # rounding brings constants back, and the inverse would make them large
        out -= constants @ (constants.T @ out)
        return np.asarray(out + level / (lift + shift))

    inverse = LinearOperator(matrix.shape, matvec=solve, dtype=np.float64)
    return _eigsh(matrix, m, sigma=-shift, OPinv=inverse)


def _eigsh(operator: Any, m: int, **options: Any) -> tuple[Floats, Floats] | None:
    # a fixed start: the same graph gives the same vectors
    start = np.random.default_rng(0).uniform(-1.0, 1.0, operator.shape[0])
    size = m + max(m // 2, 20)
    try:
        # products with single vectors gain little from threads, which are slow on a busy machine
        with threadpool_limits(1, user_api="blas"):
            values, vectors = eigsh(operator, m, v0=start, ncv=size, tol=1e-8, **options)
    except ArpackNoConvergence:
        return None
    order = np.argsort(values)
    return values[order], vectors[:, order]


def _search(pool: Any, n_neighbors: int, metric: str) -> Any:
    return NearestNeighbors(n_neighbors=n_neighbors, metric=metric).fit(_measurable(pool))


def _measurable(x: Any) -> Any:
    """x, or an `InputError` if the distances of a row overflow."""
    with np.errstate(over="ignore"):
        # |x - z|^2 <= 4 max(|x|^2, |z|^2)
        bad = np.flatnonzero(~np.isfinite(4.0 * squared_norms(x)))
    if len(bad):
        raise InputError(f"the distances of row {bad[0]} overflow: scale the features")
    return x


def _heat(distances: Floats, width: float) -> Floats:
    """exp(-d^2 / (2 s^2)), or 1 for s = 0."""
    return np.exp(-0.5 * np.square(distances / width)) if width else np.ones_like(distances)


def _inverse(values: Floats) -> Floats:
    """1 / values, and 0 for 0."""
    return np.where(values > 0, 1.0, 0.0) / np.where(values > 0, values, 1.0)


def _plain(x: Any) -> Any:
    """x in the form of the graph: float64, and CSR without repeated or zero entries."""
    x = as_matrix(x).astype(np.float64)
    return canonical(sp.csr_array(x)) if sp.issparse(x) else x


# --- model files --------------------------------------------------------------------------------


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise InputError(f"damaged graph kernel: {what} cannot be used")


def _floats(values: NDArray[Any], axes: int) -> Floats:
    _need(values.ndim == axes and values.dtype == np.float64, "an array")
    _need(bool(np.isfinite(values).all()), "an array")
    return values


def _from_csr(matrix: Any) -> Arrays:
    return {
        "data": matrix.data,
        "indices": matrix.indices.astype(np.int64),
        "indptr": matrix.indptr.astype(np.int64),
        "shape": np.array(matrix.shape, dtype=np.int64),
    }


def _to_csr(arrays: Arrays) -> Any:
    """A CSR matrix whose indices are all checked."""
    whole = [arrays[name] for name in ("indices", "indptr", "shape")]
    _need(all(v.ndim == 1 and v.dtype == np.int64 for v in whole), "a sparse matrix")
    indices, indptr, shape = whole
    _need(len(shape) == 2 and bool((shape >= 0).all() and (shape < 2**31).all()), "a shape")
    data = _floats(arrays["data"], 1)
    _need(len(indptr) == shape[0] + 1 and indptr[0] == 0, "a sparse matrix")
    _need(indptr[-1] == len(data) == len(indices), "a sparse matrix")
    _need(bool((np.diff(indptr) >= 0).all()), "a sparse matrix")
    _need(bool(((indices >= 0) & (indices < shape[1])).all()), "an index")
    # 32-bit indices are what neighbour search takes
    small = np.int32 if len(data) < 2**31 else np.int64
    entries = (data, indices.astype(small), indptr.astype(small))
    return canonical(sp.csr_array(entries, shape=(int(shape[0]), int(shape[1]))))
