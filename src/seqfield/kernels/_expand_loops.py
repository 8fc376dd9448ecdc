"""Compiled loops that number the pairs and the triples of features of sparse rows.

Subsets lie in a hash table: ``slots`` holds their keys (-1 if free), ``places`` their numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop


@inlined
def _find(slots: Any, key: Any) -> Any:
    """The slot of a key, or the free slot where it belongs."""
    mask = np.uint64(slots.shape[0] - 1)
    code = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    at = (code ^ (code >> np.uint64(32))) & mask
    while slots[at] != key and slots[at] >= 0:
        at = (at + np.uint64(1)) & mask
    return at


@loop
def table_of(keys: Any) -> Any:
    """The table of keys that are all different."""
    size = 1024
    while size < 2 * keys.shape[0]:
        size *= 2
    slots, places = np.full(size, -1, np.int64), np.zeros(size, np.int32)
    for k in range(keys.shape[0]):
        at = _find(slots, keys[k])
        slots[at] = keys[k]
        places[at] = k
    return slots, places


@inlined
def _insert(keys: Any, slots: Any, n: Any, key: Any) -> Any:
    """Insert the key if it is new. Returns the tables, which may have grown, and the number of
    keys."""
    at = _find(slots, key)
    if slots[at] >= 0:
        return keys, slots, n
    if n == keys.shape[0]:  # the table is half full: one of twice the size
        more = np.empty(2 * n, np.int64)
        more[:n] = keys
        keys = more
        slots = np.full(4 * n, -1, np.int64)
        for k in range(n):
            slots[_find(slots, keys[k])] = keys[k]
        at = _find(slots, key)
    slots[at] = key
    keys[n] = key
    return keys, slots, n + 1


@loop
def find_pairs(indptr: Any, indices: Any, width: Any) -> Any:
    """Keys i * width + j of the pairs i < j in rows of rising indices, as they first appear."""
    slots = np.full(1 << 16, -1, np.int64)
    keys = np.empty(1 << 15, np.int64)
    n = 0
    for t in range(indptr.shape[0] - 1):
        for a in range(indptr[t], indptr[t + 1]):
            start = np.int64(indices[a]) * width
            for b in range(a + 1, indptr[t + 1]):
                keys, slots, n = _insert(keys, slots, n, start + indices[b])
    return keys[:n].copy()


@loop
def expand(indptr: Any, indices: Any, width: Any, slots: Any, places: Any) -> Any:
    """Rows [0, 1 + features, 1 + width + pairs] in rising order; pairs not in the table left out.

    Two passes count and write, so that no memory beyond the result is needed.
    """
    n = indptr.shape[0] - 1
    starts = np.zeros(n + 1, np.int64)
    for t in range(n):
        found = 1 + indptr[t + 1] - indptr[t]
        for a in range(indptr[t], indptr[t + 1]):
            start = np.int64(indices[a]) * width
            for b in range(a + 1, indptr[t + 1]):
                if slots[_find(slots, start + indices[b])] >= 0:
                    found += 1
        starts[t + 1] = starts[t] + found
    out = np.empty(starts[n], np.int32)
    for t in range(n):
        k = starts[t]
        out[k] = 0
        for a in range(indptr[t], indptr[t + 1]):
            k += 1
            out[k] = 1 + indices[a]
        k += 1
        pairs = k
        for a in range(indptr[t], indptr[t + 1]):
            start = np.int64(indices[a]) * width
            for b in range(a + 1, indptr[t + 1]):
                at = _find(slots, start + indices[b])
                if slots[at] >= 0:
                    out[k] = 1 + width + places[at]
                    k += 1
        out[pairs:k].sort()
    return starts, out


@loop
def find_triples(indptr: Any, indices: Any, width: Any) -> Any:
    """Keys (i * width + j) * width + k of the triples i < j < k, as they first appear."""
    slots = np.full(1 << 16, -1, np.int64)
    keys = np.empty(1 << 15, np.int64)
    n = 0
    for t in range(indptr.shape[0] - 1):
        for a in range(indptr[t], indptr[t + 1]):
            for b in range(a + 1, indptr[t + 1]):
                start = (np.int64(indices[a]) * width + indices[b]) * width
                for c in range(b + 1, indptr[t + 1]):
                    keys, slots, n = _insert(keys, slots, n, start + indices[c])
    return keys[:n].copy()


@loop
def expand_triples(indptr: Any, indices: Any, width: Any, slots: Any, places: Any) -> Any:
    """The triples of each row that are in the table, in rising order of their numbers."""
    n = indptr.shape[0] - 1
    starts, out = np.zeros(n + 1, np.int64), np.empty(0, np.int32)
    for write in (False, True):
        for t in range(n):
            found = starts[t]
            for a in range(indptr[t], indptr[t + 1]):
                for b in range(a + 1, indptr[t + 1]):
                    start = (np.int64(indices[a]) * width + indices[b]) * width
                    for c in range(b + 1, indptr[t + 1]):
                        at = _find(slots, start + indices[c])
                        if slots[at] >= 0:
                            if write:
                                out[found] = places[at]
                            found += 1
            if write:
                out[starts[t] : found].sort()
            else:
                starts[t + 1] = found
        if not write:
            out = np.empty(starts[n], np.int32)
    return starts, out
