"""Compiled loops: inner products of sparse rows, equal rows, products with a gram matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop, summing_loop

#: columns that are worked on while they are in cache
WIDTH = 1024


@loop
def postings(indptr: Any, columns: Any, values: Any, n_columns: Any) -> Any:
    """The rows of each column in rising order (CSC), and their values unless there are none."""
    n = indptr.shape[0] - 1
    starts = np.zeros(n_columns + 1, np.int64)
    for k in range(columns.shape[0]):
        starts[columns[k] + 1] += 1
    for c in range(n_columns):
        starts[c + 1] += starts[c]
    rows, kept = np.empty(columns.shape[0], np.uint32), np.empty(values.shape[0])
    at = starts.copy()
    for t in range(n):
        for k in range(indptr[t], indptr[t + 1]):
            c = columns[k]
            rows[at[c]] = t
            if values.shape[0] > 0:
                kept[at[c]] = values[k]
            at[c] += 1
    return starts, rows, kept


@inlined
def _within(starts: Any, rows: Any, c: Any, begin: Any, end: Any) -> Any:
    """Where the rows of column c from ``begin`` to before ``end`` lie."""
    first, last = starts[c], starts[c + 1]
    if first == last or (begin <= rows[first] and rows[last - 1] < end):
        return first, last
    found = rows[first:last]
    return first + np.searchsorted(found, begin), first + np.searchsorted(found, end)


@loop
def count_shared(indptr: Any, columns: Any, starts: Any, rows: Any, begin: Any, out: Any) -> None:
    """out[i, j] += number of entries that row i shares with row begin + j, all entries being 1."""
    shift = np.uint32(begin)
    for i in range(out.shape[0]):
        row = out[i]
        for k in range(indptr[i], indptr[i + 1]):
            c = columns[k]
            if c >= 0:
                first, last = _within(starts, rows, c, begin, begin + out.shape[1])
                found = rows[first:last]
                for m in range(found.shape[0]):
                    # unsigned: numba checks of each signed index whether it is negative
                    row[found[m] - shift] += 1.0


@loop
def add_products(
    indptr: Any,
    columns: Any,
    weights: Any,
    starts: Any,
    rows: Any,
    values: Any,
    begin: Any,
    out: Any,
) -> None:
    """out[i, j] += inner product of row i and row begin + j."""
    shift = np.uint32(begin)
    for i in range(out.shape[0]):
        row = out[i]
        for k in range(indptr[i], indptr[i + 1]):
            c = columns[k]
            if c >= 0:
                first, last = _within(starts, rows, c, begin, begin + out.shape[1])
                found, other = rows[first:last], values[first:last]
                for m in range(found.shape[0]):
                    row[found[m] - shift] += weights[k] * other[m]


@loop
def number_rows(words: Any, starts: Any) -> Any:
    """The first of each group of equal rows, and the group of each row.

    Groups are numbered as they appear. Row t is ``words[starts[t]:starts[t + 1]]``. A hash table
    holds the groups; rows with the same slot are compared word by word.
    """
    n = starts.shape[0] - 1
    size = 16
    while size < 2 * n:
        size *= 2
    table = np.full(size, -1, np.int64)
    first, kind = np.empty(n, np.int64), np.empty(n, np.int64)
    n_kinds = 0
    for t in range(n):
        a, b = starts[t], starts[t + 1]
        code = np.uint64(14695981039346656037)
        for k in range(a, b):
            code = (code ^ words[k]) * np.uint64(1099511628211)
            code ^= code >> np.uint64(29)
        slot = np.int64(code & np.uint64(size - 1))
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = n_kinds
                first[n_kinds] = t
                kind[t] = n_kinds
                n_kinds += 1
                break
            c = starts[first[other]]
            same = starts[first[other] + 1] - c == b - a
            for k in range(b - a):
                if not same:
                    break
                same = words[a + k] == words[c + k]
            if same:
                kind[t] = other
                break
            slot = (slot + 1) & (size - 1)
    return first[:n_kinds].copy(), kind


@summing_loop
def multiply(g: Any, v: Any, out: Any) -> None:
    """out = g v' for v (3 m, n), summed in float64.

    Two rows of g are multiplied with three rows of v at a time. So each number that is loaded is
    used two or three times, and the six sums stay in registers. For so few columns this is as fast
    as BLAS, and a float32 matrix is read as float32.
    """
    for pair in range((g.shape[0] + 1) // 2):
        i, k = 2 * pair, min(2 * pair + 1, g.shape[0] - 1)
        a, b = g[i], g[k]
        for third in range(v.shape[0] // 3):
            s = 3 * third
            x, y, z = v[s], v[s + 1], v[s + 2]
            ax, ay, az, bx, by, bz = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(g.shape[1]):
                ax += a[j] * x[j]
                ay += a[j] * y[j]
                az += a[j] * z[j]
                bx += b[j] * x[j]
                by += b[j] * y[j]
                bz += b[j] * z[j]
            out[i, s], out[i, s + 1], out[i, s + 2] = ax, ay, az
            out[k, s], out[k, s + 1], out[k, s + 2] = bx, by, bz
