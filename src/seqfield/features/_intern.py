"""Compiled loops of the template expander: combinations of column codes to feature indices.

A combination is ``(group, code_1, ..., code_m)``. The group stands for a template line, or for all
lines that share their literal text. The codes are those of the column values that the line uses.
Combinations are kept in an open-addressing table and compared code by code. So distinct
combinations never collide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop

EMPTY = -1


@inlined
def _hash(combo: Any) -> Any:
    """64-bit hash of a small integer vector (multiply and xor-shift after each code)."""
    h = np.uint64(0x9E3779B97F4A7C15)
    for k in range(combo.shape[0]):
        h ^= np.uint64(combo[k] + 1)
        h *= np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    return h


@inlined
def _find(table: Any, combos: Any, combo: Any) -> Any:
    """Slot of the table that holds ``combo``, or the empty slot where it belongs."""
    mask = np.uint64(table.shape[0] - 1)
    slot = _hash(combo) & mask
    while True:
        f = table[slot]
        if f == EMPTY:
            return slot
        same = True
        for k in range(combo.shape[0]):
            if combos[f, k] != combo[k]:
                same = False
                break
        if same:
            return slot
        slot = (slot + np.uint64(1)) & mask


@inlined
def _gather(combo: Any, line: Any, lines: Any, codes: Any, t: Any, first: Any, last: Any) -> Any:
    """Fill ``combo`` for one template line at token t; False if a code is unknown.

    Codes 0..2k-1 stand for the boundary symbols _B-k..._B-1 and _B+1..._B+k.
    """
    group, n_macros, reach = lines[line, 0], lines[line, 1], lines[line, 2]
    combo[:] = 0
    combo[0] = group
    for m in range(n_macros):
        s = t + lines[line, 3 + 2 * m]
        if s < first:
            code = reach - (first - s)
        elif s >= last:
            code = reach + (s - last)
        else:
            code = codes[lines[line, 4 + 2 * m], s]
        if code < 0:
            return False
        combo[1 + m] = code
    return True


@loop
def build_table(combos: Any) -> Any:
    """Table of the given combinations (rows are distinct)."""
    size = 1024
    while size < 2 * combos.shape[0] + 2:
        size *= 2
    table = np.full(size, EMPTY, np.int32)
    for f in range(combos.shape[0]):
        table[_find(table, combos, combos[f])] = f
    return table


@loop
def learn(codes: Any, offsets: Any, lines: Any, width: Any) -> Any:
    """Indices (N x J) of every combination, numbered by first appearance; and the combinations.

    A combination with an unknown code gets -1.
    """
    n_tokens, n_lines = codes.shape[1], lines.shape[0]
    indices = np.empty((n_tokens, n_lines), np.int32)
    combos = np.empty((1024, width), np.int32)
    table = np.full(2048, EMPTY, np.int32)
    combo = np.zeros(width, np.int32)
    n = 0
    for i in range(offsets.shape[0] - 1):
        for t in range(offsets[i], offsets[i + 1]):
            for j in range(n_lines):
                if not _gather(combo, j, lines, codes, t, offsets[i], offsets[i + 1]):
                    indices[t, j] = EMPTY
                    continue
                slot = _find(table, combos, combo)
                f = table[slot]
                if f == EMPTY:
                    f = n
                    table[slot] = f
                    combos[f] = combo
                    n += 1
                    if n == combos.shape[0]:
                        larger = np.empty((2 * n, width), np.int32)
                        larger[:n] = combos
                        combos = larger
                        table = np.full(4 * n, EMPTY, np.int32)
                        for g in range(n):
                            table[_find(table, combos, combos[g])] = g
                indices[t, j] = f
    return indices, combos[:n].copy()


@loop
def look_up(codes: Any, offsets: Any, lines: Any, table: Any, combos: Any) -> Any:
    """Indices (N x J) of known combinations; -1 where the combination is unknown."""
    n_tokens, n_lines = codes.shape[1], lines.shape[0]
    indices = np.empty((n_tokens, n_lines), np.int32)
    combo = np.zeros(combos.shape[1], np.int32)
    for i in range(offsets.shape[0] - 1):
        for t in range(offsets[i], offsets[i + 1]):
            for j in range(n_lines):
                f = EMPTY
                if _gather(combo, j, lines, codes, t, offsets[i], offsets[i + 1]):
                    f = table[_find(table, combos, combo)]
                indices[t, j] = f
    return indices


@loop
def hash_all(codes: Any, offsets: Any, lines: Any, width: Any, n_buckets: Any) -> Any:
    """Indices (N x J) by the hashing trick: no table, nothing to learn."""
    n_tokens, n_lines = codes.shape[1], lines.shape[0]
    indices = np.empty((n_tokens, n_lines), np.int32)
    combo = np.zeros(width, np.int64)
    for i in range(offsets.shape[0] - 1):
        for t in range(offsets[i], offsets[i + 1]):
            for j in range(n_lines):
                if _gather(combo, j, lines, codes, t, offsets[i], offsets[i + 1]):
                    indices[t, j] = _hash(combo) % np.uint64(n_buckets)
                else:
                    indices[t, j] = EMPTY
    return indices


@loop
def compress(indices: Any, remap: Any) -> Any:
    """CSR parts of the kept entries: ``remap[f]`` is the new index of f, or -1 to drop it."""
    n_tokens, n_lines = indices.shape
    indptr = np.zeros(n_tokens + 1, np.int32)
    for t in range(n_tokens):
        kept = 0
        for j in range(n_lines):
            f = indices[t, j]
            if f >= 0 and remap[f] >= 0:
                kept += 1
        indptr[t + 1] = indptr[t] + kept
    out = np.empty(indptr[n_tokens], np.int32)
    k = 0
    for t in range(n_tokens):
        for j in range(n_lines):
            f = indices[t, j]
            if f >= 0 and remap[f] >= 0:
                out[k] = remap[f]
                k += 1
    return indptr, out
