"""Two sets of tokens and what kernels need of them: inner products and squared norms.

Linear, polynomial, RBF, Matern and rational quadratic kernels, and all sums and products of them,
are elementwise functions of X Z' and of the squared norms. A `Pairs` computes these once, however
many parts of a kernel ask, and sparse rows stay sparse.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.kernels import _loops

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: rows of which the median is the centre
SAMPLE = 101

#: rounding errors in distances of equal rows are below this share of the squared norms
NOISE = 16 * np.finfo(np.float64).eps


class Postings(NamedTuple):
    """The columns of a sparse matrix, each a list of rows."""

    columns: Ints  # that occur, rising
    starts: Ints  # of the list of each column
    rows: NDArray[np.uint32]  # rising in each list
    values: Floats  # none if all entries are 1


class Rows:
    """One set of tokens (N, D), and results that are computed once for it."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.begin, self.end = 0, matrix.shape[0]
        self.whole: Rows = self
        self._changed: dict[bytes, Rows] = {}
        self._kept: dict[int, tuple[Any, Floats]] = {}

    def part(self, begin: int, end: int) -> Rows:
        """Some of the rows; results that are computed for all rows are shared."""
        return Part(self.whole, self.begin + begin, self.begin + end)

    @cached_property
    def squared_norms(self) -> Floats:
        """|x|^2 of each row."""
        return squared_norms(self.matrix)

    @cached_property
    def centre(self) -> Floats:
        """The centre (D,) of dense rows: in each column the median of some of them.

        A median is no outlier. It is also a value of the column, so whole numbers stay exact when
        it is subtracted.
        """
        some = np.sort(self.matrix[:: max(1, self.end // SAMPLE)], axis=0)
        return np.asarray(some[len(some) // 2] if len(some) else np.zeros(self.matrix.shape[1]))

    @cached_property
    def centred(self) -> Rows:
        """Dense rows minus the centre of all rows."""
        return Rows(self.matrix - self.centre)

    @cached_property
    def postings(self) -> Postings:
        """The columns of a sparse matrix."""
        return make_postings(sp.csr_array(self.matrix))

    def changed(self, key: bytes, change: Callable[[Any], Any]) -> Rows:
        """The tokens changed by ``change`` row by row; computed once for each key."""
        if key not in self._changed:
            self._changed[key] = Rows(change(self.matrix))
        return self._changed[key]

    def keep(self, owner: Any, compute: Callable[[Any], Floats]) -> Floats:
        """``compute(matrix)``: one number for each row; computed once for each owner."""
        if id(owner) not in self._kept:
            self._kept[id(owner)] = owner, compute(self.matrix)
        return self._kept[id(owner)][1]


class Part(Rows):
    """Rows from ``begin`` to before ``end`` of others."""

    def __init__(self, whole: Rows, begin: int, end: int) -> None:
        self.whole, self.begin, self.end = whole, begin, end

    @cached_property
    def matrix(self) -> Any:
        """The rows themselves."""
        return self.whole.matrix[self.begin : self.end]

    @cached_property
    def squared_norms(self) -> Floats:
        """|x|^2 of each row."""
        return self.whole.squared_norms[self.begin : self.end]

    @cached_property
    def centred(self) -> Rows:
        """Dense rows minus the centre of all rows."""
        return self.whole.centred.part(self.begin, self.end)

    def changed(self, key: bytes, change: Callable[[Any], Any]) -> Rows:
        """The tokens changed by ``change`` row by row; computed once for each key."""
        return self.whole.changed(key, change).part(self.begin, self.end)

    def keep(self, owner: Any, compute: Callable[[Any], Floats]) -> Floats:
        """``compute(matrix)``: one number for each row; computed once for each owner."""
        return self.whole.keep(owner, compute)[self.begin : self.end]


class Pairs:
    """All pairs of a row of x (N, D) and a row of z (M, D); if z is None, it is x.

    ``aligned`` means that z starts with the rows of x.

    >>> Pairs(np.array([[1.0, 2.0], [0.0, 1.0]])).squared_distances
    array([[0., 2.],
           [2., 0.]])
    """

    def __init__(self, x: Any, z: Any = None, *, aligned: bool = False) -> None:
        self.left_rows = as_rows(x)
        self.aligned = aligned or z is None or z is x
        self.right_rows = self.left_rows if z is None or z is x else as_rows(z)
        widths = self.left_rows.whole.matrix.shape[1], self.right_rows.whole.matrix.shape[1]
        if widths[0] != widths[1]:
            raise InputError(f"tokens of {widths[0]} and of {widths[1]} features cannot be paired")

    @property
    def x(self) -> Any:
        """The first tokens (N, D)."""
        return self.left_rows.matrix

    @property
    def z(self) -> Any:
        """The second tokens (M, D)."""
        return self.right_rows.matrix

    @property
    def same(self) -> bool:
        """True if x and z are the same tokens."""
        return self.aligned and self.shape[0] == self.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        left, right = self.left_rows, self.right_rows
        return left.end - left.begin, right.end - right.begin

    @cached_property
    def inner(self) -> Floats:
        """X Z' (N, M), not to be changed in place."""
        return inner_products(self.left_rows, self.right_rows)

    @cached_property
    def squared_distances(self) -> Floats:
        """|x - z|^2 (N, M), not to be changed in place."""
        left, right = self.left_rows, self.right_rows
        if sp.issparse(left.whole.matrix) or sp.issparse(right.whole.matrix):
            out = -2.0 * self.inner
        else:
            # far from the origin, large norms would take digits from distances, so both sides are
            # moved by the same row. It is the centre of z, so that a value does not depend on the
            # other rows of x
            same = left.whole is right.whole
            left = left.centred if same else Rows(left.matrix - right.whole.centre)
            right = right.centred
            out = inner_products(left, right)
            out *= -2.0
        norms = left.squared_norms[:, None] + right.squared_norms
        out += norms
        # exactly 0 for equal rows. Rounding leaves about 1e-16 of the norms, and its root, which
        # Matern kernels use, would be 1e-8
        norms *= NOISE
        out[out <= norms] = 0.0
        if self.aligned:
            np.fill_diagonal(out, 0.0)
        return out

    def changed(self, key: bytes, change: Callable[[Any], Any]) -> Pairs:
        """The pairs of tokens changed by ``change``; computed once for each key."""
        if key not in self._changed:
            left = self.left_rows.changed(key, change)
            same = self.right_rows is self.left_rows
            right = left if same else self.right_rows.changed(key, change)
            self._changed[key] = Pairs(left, right, aligned=self.aligned)
        return self._changed[key]

    @cached_property
    def _changed(self) -> dict[bytes, Pairs]:
        return {}


def as_rows(x: Any) -> Rows:
    """Tokens as `Rows`: a sparse matrix as CSR, anything else as an array of numbers (N, D)."""
    if isinstance(x, Rows):
        return x
    return Rows(as_matrix(x))


def as_matrix(x: Any) -> Any:
    """A CSR matrix, or an array of float64, both (N, D)."""
    if sp.issparse(x):
        x = x if x.format == "csr" else sp.csr_array(x)
        if len(x.indices) != x.indptr[-1]:  # scipy allows unused space at the end, loops do not
            x = x.copy()
            x.prune()
        return x
    try:
        out = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"kernels take rows of numbers: {error}") from error
    if out.ndim != 2:
        raise InputError(f"kernels take a matrix, one row a token; got an array of {out.ndim} axes")
    return out


def canonical(x: Any) -> Any:
    """CSR with rising columns in each row, no repeated column, and no stored zeros."""
    if x.has_canonical_format and (x.data != 0).all():
        return x
    x = x.astype(np.float64)  # a copy, and sums of int8 cannot overflow
    x.sum_duplicates()
    x.eliminate_zeros()
    return x


def squared_norms(x: Any) -> Floats:
    """|x|^2 of each row."""
    if sp.issparse(x):
        values = x.astype(np.float64)
        return np.asarray(values.multiply(values).sum(axis=1), dtype=np.float64).ravel()
    return np.asarray(np.einsum("ij,ij->i", x, x))


def check_finite(diagonal: Floats) -> Floats:
    """The given k(x, x), or an `InputError` that names the first value that is not finite."""
    bad = np.flatnonzero(~np.isfinite(diagonal))
    if len(bad):
        raise not_finite(diagonal[bad[0]], int(bad[0]), int(bad[0]))
    return diagonal


def not_finite(value: float, row: int, column: int) -> InputError:
    """The error for a kernel that is NaN or infinite."""
    return InputError(
        f"the kernel is {value} for tokens {row} and {column}: scale the features, or lower the "
        "kernel's degree"
    )


def make_postings(x: Any) -> Postings:
    """The columns of a CSR matrix."""
    columns, local = np.unique(x.indices, return_inverse=True)
    values = np.zeros(0) if (x.data == 1).all() else x.data.astype(np.float64)
    starts, rows, kept = _loops.postings(x.indptr, local, values, len(columns))
    return Postings(columns.astype(np.int64), starts, rows, kept)


def inner_products(left: Rows, right: Rows) -> Floats:
    """X Z' as a dense array; sparse x and z stay sparse.

    For each entry of a row of x, the loop adds to all rows of z that have this column. The result
    is dense, so this is several times faster than a sparse product.
    """
    x = left.matrix
    if not (sp.issparse(x) and sp.issparse(right.whole.matrix)):
        product = x @ right.matrix.T
        return np.asarray(product.toarray() if sp.issparse(product) else product)
    found = right.whole.postings
    out = np.zeros((x.shape[0], right.end - right.begin))
    if not len(found.columns):
        return out
    at = np.minimum(np.searchsorted(found.columns, x.indices), len(found.columns) - 1)
    lists = np.where(found.columns[at] == x.indices, at, -1)
    if not len(found.values) and (x.data == 1).all():
        _loops.count_shared(x.indptr, lists, found.starts, found.rows, right.begin, out)
    else:
        values = found.values if len(found.values) else np.ones(len(found.rows))
        weights = x.data.astype(np.float64)
        _loops.add_products(
            x.indptr, lists, weights, found.starts, found.rows, values, right.begin, out
        )
    return out
