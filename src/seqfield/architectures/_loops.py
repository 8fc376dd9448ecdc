"""Compiled loops for products of sparse features with patterned weights.

There are two kinds of features. A feature with many weights is a *row*: its weights lie in a dense
row of all C columns, so its loop is a plain vector addition. A feature with few weights becomes
*entries* (weight, column), one for each occurrence and weight, so its loop follows no pointers.
Most features are of the second kind, because most features are rare.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import loop


@loop
def weights_of(features: Any, starts: Any, columns: Any, width: Any) -> Any:
    """All weights of the features, in order, and their places in a block of rows of ``width``."""
    n = 0
    for f in features:
        n += starts[f + 1] - starts[f]
    weights, cells = np.empty(n, np.int32), np.empty(n, np.int32)
    k = 0
    for r in range(features.shape[0]):
        for w in range(starts[features[r]], starts[features[r] + 1]):
            weights[k] = w
            cells[k] = r * width + columns[w]
            k += 1
    return weights, cells


@loop
def split(
    indptr: Any,
    features: Any,
    values: Any,
    place: Any,
    first: Any,
    sizes: Any,
    begin: Any,
    columns: Any,
) -> Any:
    """Rows and entries of a CSR matrix whose features have local numbers.

    ``place[f]`` is the row of feature f, or -1. A feature without a row has ``sizes[f]`` entries,
    from ``first[f]`` on, with the columns from ``begin[f]`` on. Returns CSR-like parts
    (indptr, row, value) and (indptr, entry, column, value), without values if none are given.
    """
    valued = values.shape[0] > 0
    n = indptr.shape[0] - 1
    row_ptr, entry_ptr = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for t in range(n):
        n_rows, n_entries = 0, 0
        for k in range(indptr[t], indptr[t + 1]):
            f = features[k]
            if place[f] >= 0:
                n_rows += 1
            else:
                n_entries += sizes[f]
        row_ptr[t + 1] = row_ptr[t] + n_rows
        entry_ptr[t + 1] = entry_ptr[t] + n_entries
    row = np.empty(row_ptr[n], np.int32)
    row_value = np.empty(row_ptr[n] if valued else 0, values.dtype)
    entry = np.empty(entry_ptr[n], np.int32)
    column = np.empty(entry_ptr[n], np.int32)
    entry_value = np.empty(entry_ptr[n] if valued else 0, values.dtype)
    r, e = 0, 0
    for t in range(n):
        for k in range(indptr[t], indptr[t + 1]):
            f = features[k]
            if place[f] >= 0:
                row[r] = place[f]
                if valued:
                    row_value[r] = values[k]
                r += 1
            else:
                for m in range(sizes[f]):
                    entry[e] = first[f] + m
                    column[e] = columns[begin[f] + m]
                    if valued:
                        entry_value[e] = values[k]
                    e += 1
    return row_ptr, row, row_value, entry_ptr, entry, column, entry_value


@loop
def gather(values: Any, index: Any) -> Any:
    """values[index]"""
    out = np.empty(index.shape[0])
    for k in range(index.shape[0]):
        out[k] = values[index[k]]
    return out


@loop
def put(out: Any, index: Any, values: Any) -> None:
    """out[index] = values, as many as there are indices"""
    for k in range(index.shape[0]):
        out[index[k]] = values[k]


@loop
def scatter_add(out: Any, index: Any, values: Any) -> None:
    """out[index] += values"""
    for k in range(index.shape[0]):
        out[index[k]] += values[k]


@loop
def scatter_rows(out: Any, index: Any, values: Any) -> None:
    """out[index[k]] += values[k] row by row, in order of k."""
    for k in range(index.shape[0]):
        for c in range(values.shape[1]):
            out[index[k], c] += values[k, c]


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
    indptr: Any, entry: Any, column: Any, values: Any, binary: Any, theta: Any, out: Any
) -> None:
    """out[t, column[k]] += values[k] theta[entry[k]]"""
    for t in range(indptr.shape[0] - 1):
        for k in range(indptr[t], indptr[t + 1]):
            v = theta[entry[k]]
            if not binary:
                v *= values[k]
            out[t, column[k]] += v


@loop
def score(
    indptr: Any,
    indices: Any,
    values: Any,
    place: Any,
    rows: Any,
    starts: Any,
    columns: Any,
    theta: Any,
    out: Any,
) -> None:
    """out = X W without a design, for data that are scored once.

    ``place[f]`` is the row of ``rows`` that holds the weights of feature f, or -1. If ``rows`` is
    empty, all weights are read from theta.
    """
    n_columns = out.shape[1]
    dense = rows.shape[0] > 0
    for t in range(indptr.shape[0] - 1):
        for c in range(n_columns):
            out[t, c] = 0.0
        for k in range(indptr[t], indptr[t + 1]):
            f, v = indices[k], values[k]
            if dense and place[f] >= 0:
                r = place[f]
                for c in range(n_columns):
                    out[t, c] += v * rows[r, c]
            else:
                for w in range(starts[f], starts[f + 1]):
                    out[t, columns[w]] += v * theta[w]


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
    indptr: Any, entry: Any, column: Any, values: Any, binary: Any, d: Any, out: Any
) -> None:
    """out[entry[k]] += values[k] d[t, column[k]]: the transpose of `add_entries`."""
    for t in range(indptr.shape[0] - 1):
        for k in range(indptr[t], indptr[t + 1]):
            v = d[t, column[k]]
            if not binary:
                v *= values[k]
            out[entry[k]] += v
