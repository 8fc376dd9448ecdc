"""Compiled loops for products of sparse features with patterned weights.

Features fall in two kinds. A feature with many weights is a *row*: its weights lie in a dense
row of all C columns, so its loop is a plain vector addition. A feature with few weights (most
features, which are rare) is spread into *entries* (weight, column), one for each occurrence and
weight, so that its loop follows no pointers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import loop


@loop
def split(indptr: Any, indices: Any, values: Any, row_of: Any, starts: Any, columns: Any) -> Any:
    """Rows and entries of a CSR matrix.

    ``row_of[f]`` is the row of feature f or -1; feature f has the weights
    ``starts[f]:starts[f + 1]``, in the columns ``columns[...]``. Returns CSR-like parts
    (indptr, row, value) and (indptr, weight, column, value).
    """
    n = indptr.shape[0] - 1
    row_ptr, entry_ptr = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for t in range(n):
        n_rows, n_entries = 0, 0
        for k in range(indptr[t], indptr[t + 1]):
            f = indices[k]
            if row_of[f] >= 0:
                n_rows += 1
            else:
                n_entries += starts[f + 1] - starts[f]
        row_ptr[t + 1] = row_ptr[t] + n_rows
        entry_ptr[t + 1] = entry_ptr[t] + n_entries
    row = np.empty(row_ptr[n], np.int32)
    row_value = np.empty(row_ptr[n], values.dtype)
    weight = np.empty(entry_ptr[n], np.int32)
    column = np.empty(entry_ptr[n], np.int32)
    entry_value = np.empty(entry_ptr[n], values.dtype)
    r, e = 0, 0
    for t in range(n):
        for k in range(indptr[t], indptr[t + 1]):
            f = indices[k]
            if row_of[f] >= 0:
                row[r] = row_of[f]
                row_value[r] = values[k]
                r += 1
            else:
                for w in range(starts[f], starts[f + 1]):
                    weight[e] = w
                    column[e] = columns[w]
                    entry_value[e] = values[k]
                    e += 1
    return row_ptr, row, row_value, entry_ptr, weight, column, entry_value


@loop
def set_rows(indptr: Any, row: Any, values: Any, binary: Any, weights: Any, out: Any) -> None:
    """out[t] = sum_k values[k] weights[row[k]]"""
    n_columns = weights.shape[1]
    for t in range(indptr.shape[0] - 1):
        for c in range(n_columns):
            out[t, c] = 0.0
        for k in range(indptr[t], indptr[t + 1]):
            r = row[k]
            if binary:
                for c in range(n_columns):
                    out[t, c] += weights[r, c]
            else:
                v = values[k]
                for c in range(n_columns):
                    out[t, c] += v * weights[r, c]


@loop
def add_entries(
    indptr: Any, weight: Any, column: Any, values: Any, binary: Any, theta: Any, out: Any
) -> None:
    """out[t, column[k]] += values[k] theta[weight[k]]"""
    for t in range(indptr.shape[0] - 1):
        for k in range(indptr[t], indptr[t + 1]):
            v = theta[weight[k]]
            if not binary:
                v *= values[k]
            out[t, column[k]] += v


@loop
def pull_rows(indptr: Any, row: Any, values: Any, binary: Any, d: Any, out: Any) -> None:
    """out[row[k]] += values[k] d[t]: the transpose of `set_rows`."""
    n_columns = d.shape[1]
    for t in range(indptr.shape[0] - 1):
        for k in range(indptr[t], indptr[t + 1]):
            r = row[k]
            if binary:
                for c in range(n_columns):
                    out[r, c] += d[t, c]
            else:
                v = values[k]
                for c in range(n_columns):
                    out[r, c] += v * d[t, c]


@loop
def pull_entries(
    indptr: Any, weight: Any, column: Any, values: Any, binary: Any, d: Any, out: Any
) -> None:
    """out[weight[k]] += values[k] d[t, column[k]]: the transpose of `add_entries`."""
    for t in range(indptr.shape[0] - 1):
        for k in range(indptr[t], indptr[t + 1]):
            v = d[t, column[k]]
            if not binary:
                v *= values[k]
            out[weight[k]] += v
