"""Linear maps from feature rows to score columns, X (N, D) -> X W (N, C).

A map has four steps, so that what depends on the data alone or on the weights alone is done
once: ``design(x)`` lays out data, ``unpack(theta)`` lays out weights, ``apply(weights, design)``
gives X W and ``pull(design, d)`` the part of the weight gradient X' d that this data brings;
``collect(parts)`` adds such parts, always in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.architectures import _loops
from seqfield.errors import InputError

Floats = NDArray[np.float64]


class DenseMap:
    """X W with dense X and a weight for every (feature, column) pair."""

    def __init__(self, n_features: int, n_columns: int) -> None:
        self.shape = (n_features, n_columns)
        self.n_weights = n_features * n_columns

    def design(self, x: Any, *, gradient: bool = True) -> Floats:
        """Data as they are."""
        return np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float64)

    def unpack(self, theta: Floats) -> Floats:
        """Weights as a (D, C) matrix."""
        return theta.reshape(self.shape)

    def apply(self, weights: Floats, x: Floats) -> Floats:
        """X W."""
        return x @ weights

    def pull(self, x: Floats, d: Floats) -> Floats:
        """X' d."""
        return x.T @ d

    def collect(self, parts: list[Floats]) -> Floats:
        """The summed gradient as a vector."""
        return np.asarray(sum(parts[1:], parts[0])).ravel()

    def names(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Feature and column of each weight."""
        feature, column = np.indices(self.shape)
        return feature.ravel(), column.ravel()


class Rows(NamedTuple):
    """Occurrences of features with a dense row of weights."""

    indptr: NDArray[np.int64]
    row: NDArray[np.int32]
    values: NDArray[Any]


class Entries(NamedTuple):
    """Occurrences of single weights; ``weights`` maps local weight numbers to global ones."""

    indptr: NDArray[np.int64]
    weight: NDArray[np.int32]
    column: NDArray[np.int32]
    values: NDArray[Any]
    weights: NDArray[np.int64] | None


class SparseDesign(NamedTuple):
    """A sparse X laid out for the compiled loops."""

    n_tokens: int
    binary: bool
    rows: Rows
    entries: Entries


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
        counts = np.diff(self.starts)
        # Measured: beyond a quarter of the columns one dense row beats single entries.
        many = counts >= min(n_columns, max(2, -(-n_columns // 4)))
        self._row_of = np.where(many, np.cumsum(many) - 1, -1).astype(np.int32)
        self._n_rows = int(many.sum())
        feature = np.repeat(np.arange(len(counts)), counts)
        in_row = many[feature]
        self._row_weights = np.flatnonzero(in_row)
        self._row_cells = (
            self._row_of[feature[in_row]].astype(np.int64) * n_columns + self.columns[in_row]
        )
        self._full = self._n_rows * n_columns == self.n_weights

    @classmethod
    def full(cls, n_features: int, n_columns: int) -> SparseMap:
        """A weight for every (feature, column) pair."""
        starts = np.arange(n_features + 1, dtype=np.int64) * n_columns
        return cls(starts, np.tile(np.arange(n_columns, dtype=np.int32), n_features), n_columns)

    @classmethod
    def observed(cls, x: sp.csr_array, hits: sp.csr_array) -> SparseMap:
        """Weights for the pairs seen together: ``hits`` (N, C) marks the columns of each token."""
        ones = sp.csr_array((np.ones(len(x.data), np.int32), x.indices, x.indptr), shape=x.shape)
        seen = (ones.T @ hits).tocsr()
        seen.sort_indices()
        return cls(seen.indptr, seen.indices, hits.shape[1])

    def design(self, x: Any, *, gradient: bool = True) -> SparseDesign:
        """X laid out; without ``gradient`` a shorter preparation that serves `apply` alone."""
        x = x if sp.issparse(x) else sp.csr_array(x)
        if x.shape[1] != self.shape[0]:
            raise InputError(f"X has {x.shape[1]} features, the model {self.shape[0]}")
        parts = _loops.split(x.indptr, x.indices, x.data, self._row_of, self.starts, self.columns)
        row_ptr, row, row_value, entry_ptr, weight, column, entry_value = parts
        weights = None
        if gradient:
            # local numbers: a small vector of the weights that occur here
            weights, weight = np.unique(weight, return_inverse=True)
            weights, weight = weights.astype(np.int64), weight.astype(np.int32)
        return SparseDesign(
            x.shape[0],
            bool((x.data == 1).all()),
            Rows(row_ptr, row, row_value),
            Entries(entry_ptr, weight, column, entry_value, weights),
        )

    def unpack(self, theta: Floats) -> tuple[Floats, Floats]:
        """Weights as (dense rows, the vector itself)."""
        if self._full:
            return theta.reshape(self._n_rows, self.shape[1]), theta
        rows = np.zeros((self._n_rows, self.shape[1]))
        rows.ravel()[self._row_cells] = theta[self._row_weights]
        return rows, theta

    def apply(self, weights: tuple[Floats, Floats], design: SparseDesign) -> Floats:
        """X W."""
        rows, theta = weights
        out = np.empty((design.n_tokens, self.shape[1]))
        e = design.entries
        _loops.set_rows(*design.rows, design.binary, rows, out)
        local = theta if e.weights is None else theta[e.weights]
        _loops.add_entries(e.indptr, e.weight, e.column, e.values, design.binary, local, out)
        return out

    def pull(self, design: SparseDesign, d: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """This data's part of X' d: dense rows, and the other weights with their numbers."""
        e = design.entries
        if e.weights is None:
            raise InputError("this design was made without gradient=True")
        rows, local = np.zeros((self._n_rows, self.shape[1])), np.zeros(len(e.weights))
        _loops.pull_rows(*design.rows, design.binary, d, rows)
        _loops.pull_entries(e.indptr, e.weight, e.column, e.values, design.binary, d, local)
        return rows, local, e.weights

    def collect(self, parts: list[tuple[Floats, Floats, NDArray[np.int64]]]) -> Floats:
        """The summed gradient as a vector."""
        total = parts[0][0]
        for rows, _, _ in parts[1:]:
            total += rows
        if self._full:
            return total.ravel()
        gradient = np.zeros(self.n_weights)
        gradient[self._row_weights] = total.ravel()[self._row_cells]
        for _, local, weights in parts:
            gradient[weights] += local
        return gradient

    def names(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Feature and column of each weight."""
        feature = np.repeat(np.arange(self.shape[0]), np.diff(self.starts))
        return feature, self.columns.astype(np.int64)
