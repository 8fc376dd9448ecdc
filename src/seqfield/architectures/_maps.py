"""Linear maps from feature rows to score columns, X (N, D) -> X W (N, C).

``design(x)`` lays data out once. A design knows which weights its data touch. ``apply`` gives X W.
``pull`` gives the gradient X' d of the touched weights, in the order of ``design.touched``. So the
cost of a small batch depends on the batch, not on the model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.architectures import _loops
from seqfield.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]


class Table(NamedTuple):
    """Feature rows and their weights as plain arrays, for loops that go token by token.

    Token t has the features ``indices[k]`` with ``values[k]``, k in ``indptr[t]:indptr[t + 1]``;
    feature f has the weights ``starts[f]:starts[f + 1]``, and weight w scores ``columns[w]``.
    """

    indptr: NDArray[np.int64]
    indices: Integers
    values: Floats
    starts: NDArray[np.int64]
    columns: Integers


class DenseDesign(NamedTuple):
    """A dense X; it touches every weight."""

    x: Floats
    touched: Integers


class DenseMap:
    """X W with dense X and a weight for every (feature, column) pair."""

    def __init__(self, n_features: int, n_columns: int) -> None:
        self.shape = (n_features, n_columns)
        self.n_weights = n_features * n_columns

    def design(self, x: Any) -> DenseDesign:
        """Data as they are."""
        dense = np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float64)
        if dense.shape[1] != self.shape[0]:
            raise InputError(f"X has {dense.shape[1]} features, the model {self.shape[0]}")
        return DenseDesign(dense, np.arange(self.n_weights, dtype=np.int32))

    def apply(self, theta: Floats, design: DenseDesign) -> Floats:
        """X W."""
        return design.x @ theta.reshape(self.shape)

    def pull(self, design: DenseDesign, d: Floats) -> Floats:
        """X' d."""
        return np.asarray(design.x.T @ d).ravel()

    def score(self, theta: Floats, x: Any) -> Floats:
        """X W of data that are scored once."""
        return self.apply(theta, self.design(x))

    def table(self, x: Any) -> Table:
        """Data and weights as plain arrays."""
        return SparseMap.full(*self.shape).table(sp.csr_array(self.design(x).x))

    def names(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Feature and column of each weight."""
        feature, column = np.indices(self.shape)
        return feature.ravel(), column.ravel()


class SparseDesign(NamedTuple):
    """A sparse X laid out for the compiled loops, in local numbers.

    If ``binary``, all values are 1 and are not kept. ``touched`` are the local weights. First come
    those of the dense rows, with their places ``cells`` in the block of rows; then those of
    entries.
    """

    binary: bool
    row_ptr: NDArray[np.int64]
    row: Integers
    row_value: NDArray[Any]
    entry_ptr: NDArray[np.int64]
    entry: Integers
    column: Integers
    entry_value: NDArray[Any]
    n_rows: int
    cells: Integers
    touched: Integers


class SparseMap:
    """X W with sparse X and weights on a pattern of (feature, column) pairs.

    Parameters
    ----------
    starts : (D + 1,) the weights of feature f are ``starts[f]:starts[f + 1]``
    columns : (K,) the column of each weight, rising within a feature
    n_columns : C
    """

    def __init__(self, starts: Any, columns: Any, n_columns: int) -> None:
        self.starts = np.ascontiguousarray(starts, dtype=np.int64)
        self.columns = np.ascontiguousarray(columns, dtype=np.int32)
        self.shape = (len(self.starts) - 1, n_columns)
        self.n_weights = len(self.columns)
        if self.n_weights >= 2**31:
            raise InputError(f"{self.n_weights} weights: at most 2^31 are possible")
        # measured: from a quarter of the columns on, a dense row is faster than entries
        self._many = np.diff(self.starts) >= min(n_columns, max(2, -(-n_columns // 4)))
        self._place = np.where(self._many, np.cumsum(self._many) - 1, -1).astype(np.int32)

    @classmethod
    def full(cls, n_features: int, n_columns: int) -> SparseMap:
        """A weight for every (feature, column) pair."""
        starts = np.arange(n_features + 1, dtype=np.int64) * n_columns
        return cls(starts, np.tile(np.arange(n_columns, dtype=np.int32), n_features), n_columns)

    @classmethod
    def observed(cls, x: sp.csr_array, hits: sp.csr_array) -> SparseMap:
        """Weights for the pairs that occur; ``hits`` (N, C) marks the columns of each token."""
        ones = sp.csr_array((np.ones(len(x.data), np.int32), x.indices, x.indptr), shape=x.shape)
        seen = (ones.T @ hits).tocsr()
        seen.sort_indices()
        return cls(seen.indptr, seen.indices, hits.shape[1])

    def score(self, theta: Floats, x: Any) -> Floats:
        """X W of data that are scored once, without a design: it would not be used again."""
        x = self._checked(x)
        rows = np.empty((0, self.shape[1]))
        if x.nnz > self.n_weights // 4:  # for less data, dense rows do not pay
            weights, cells = _loops.weights_of(
                np.flatnonzero(self._many), self.starts, self.columns, self.shape[1]
            )
            rows = np.zeros((int(self._many.sum()), self.shape[1]))
            _loops.put(rows.ravel(), cells, _loops.gather(theta, weights))
        out = np.empty((x.shape[0], self.shape[1]))
        _loops.score(
            x.indptr, x.indices, x.data, self._place, rows, self.starts, self.columns, theta, out
        )
        return out

    def _checked(self, x: Any) -> sp.csr_array:
        x = x if sp.issparse(x) else sp.csr_array(x)
        if x.shape[1] != self.shape[0]:
            raise InputError(f"X has {x.shape[1]} features, the model {self.shape[0]}")
        return x

    def design(self, x: Any) -> SparseDesign:
        """X laid out."""
        x = self._checked(x)
        features, local = _distinct(x.indices, self.shape[0])
        many = self._many[features]
        row_weights, cells = _loops.weights_of(
            features[many], self.starts, self.columns, self.shape[1]
        )
        entry_weights, _ = _loops.weights_of(features[~many], self.starts, self.columns, 0)
        # the local number of a feature's row, or of the first of its entries
        begin = self.starts[features]
        sizes = np.where(many, 0, self.starts[features + 1] - begin)
        place = np.where(many, np.cumsum(many) - 1, -1)
        binary = bool((x.data == 1).all())
        values = x.data[:0] if binary else x.data
        row_ptr, row, row_value, entry_ptr, entry, column, entry_value = _loops.split(
            x.indptr, local, values, place, np.cumsum(sizes) - sizes, sizes, begin, self.columns
        )
        return SparseDesign(
            binary=binary,
            row_ptr=row_ptr,
            row=row,
            row_value=row_value,
            entry_ptr=entry_ptr,
            entry=entry,
            column=column,
            entry_value=entry_value,
            n_rows=int(many.sum()),
            cells=cells,
            touched=np.concatenate([row_weights, entry_weights]),
        )

    def apply(self, theta: Floats, design: SparseDesign) -> Floats:
        """X W."""
        g = design
        local = _loops.gather(theta, g.touched)
        rows = np.zeros((g.n_rows, self.shape[1]))
        _loops.put(rows.ravel(), g.cells, local)
        out = np.empty((len(g.row_ptr) - 1, self.shape[1]))
        _loops.set_rows(g.row_ptr, g.row, g.row_value, g.binary, rows, out)
        _loops.add_entries(
            g.entry_ptr, g.entry, g.column, g.entry_value, g.binary, local[len(g.cells) :], out
        )
        return out

    def pull(self, design: SparseDesign, d: Floats) -> Floats:
        """X' d for the weights that the design touches."""
        g = design
        rows, local = np.zeros((g.n_rows, self.shape[1])), np.zeros(len(g.touched))
        _loops.pull_rows(g.row_ptr, g.row, g.row_value, g.binary, d, rows)
        _loops.pull_entries(
            g.entry_ptr, g.entry, g.column, g.entry_value, g.binary, d, local[len(g.cells) :]
        )
        local[: len(g.cells)] = _loops.gather(rows.ravel(), g.cells)
        return local

    def table(self, x: Any) -> Table:
        """Data and weights as plain arrays."""
        x = self._checked(x)
        return Table(
            x.indptr.astype(np.int64),
            x.indices.astype(np.int32),
            x.data.astype(np.float64),
            self.starts,
            self.columns,
        )

    def names(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Feature and column of each weight."""
        feature = np.repeat(np.arange(self.shape[0]), np.diff(self.starts))
        return feature, self.columns.astype(np.int64)


def _distinct(indices: Integers, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct indices in rising order, and the place of each index among them."""
    if 4 * len(indices) < n:
        return np.unique(indices, return_inverse=True)
    here = np.zeros(n, dtype=bool)
    here[indices] = True
    return np.flatnonzero(here), (np.cumsum(here) - 1)[indices]
