"""Compiled loops of sequence boosting.

Each weight k has a small table for the bounds. Entry b is the coefficient of exp(step * unit * b)
in the tight bound. The index b runs over the whole numbers from ``low[k]`` on.

Sequence i has the weights D_i and W_i = D_i / (1 - p_i). Its count difference u_k lies in [L, U].
The sequence adds (D_i U - W_i E[u]) / (U - L) at L and (W_i E[u] - D_i L) / (U - L) at U.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop


@inlined
def _whole_floor(v: Any) -> Any:
    """floor(v), with a tolerance for rounding errors."""
    return int(np.floor(v + 1e-9))


@inlined
def _whole_ceil(v: Any) -> Any:
    """ceil(v), with a tolerance for rounding errors."""
    return int(np.ceil(v - 1e-9))


@loop
def local_features(offsets: Any, indptr: Any, indices: Any, values: Any, n_features: Any) -> Any:
    """The distinct features of each sequence, with bounds on their counts.

    Returns ``place`` and the CSR-like lists (ptr, feature, least, most). ``place`` gives, for each
    stored value, the place of its feature in the list of the sequence. Over all labellings, the
    count of a feature lies in [least, most].
    """
    n = offsets.shape[0] - 1
    place = np.empty(indices.shape[0], np.int32)
    ptr = np.zeros(n + 1, np.int64)
    here, stamp = np.empty(n_features, np.int32), np.full(n_features, -1, np.int64)
    for i in range(n):
        size = 0
        for k in range(indptr[offsets[i]], indptr[offsets[i + 1]]):
            f = indices[k]
            if stamp[f] != i:
                stamp[f] = i
                here[f] = size
                size += 1
            place[k] = here[f]
        ptr[i + 1] = ptr[i] + size
    feature = np.empty(ptr[n], np.int32)
    least, most = np.zeros(ptr[n]), np.zeros(ptr[n])
    for i in range(n):
        for k in range(indptr[offsets[i]], indptr[offsets[i + 1]]):
            at = ptr[i] + place[k]
            feature[at] = indices[k]
            if values[k] > 0.0:
                most[at] += values[k]
            else:
                least[at] += values[k]
    return place, ptr, feature, least, most


@loop
def ranges(
    offsets: Any,
    gold: Any,
    indptr: Any,
    values: Any,
    place: Any,
    ptr: Any,
    feature: Any,
    least: Any,
    most: Any,
    starts: Any,
    columns: Any,
    unit: Any,
    n_labels: Any,
    low: Any,
    high: Any,
) -> None:
    """Smallest and largest count difference of each node weight over all sequences, in units."""
    longest = 0
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, ptr[i + 1] - ptr[i])
    observed = np.zeros((longest, n_labels))
    for i in range(offsets.shape[0] - 1):
        observed[: ptr[i + 1] - ptr[i]] = 0.0
        for t in range(offsets[i], offsets[i + 1]):
            for k in range(indptr[t], indptr[t + 1]):
                observed[place[k], gold[t]] += values[k]
        for k in range(ptr[i + 1] - ptr[i]):
            f = feature[ptr[i] + k]
            for w in range(starts[f], starts[f + 1]):
                g = observed[k, columns[w]]
                low[w] = min(low[w], _whole_floor((least[ptr[i] + k] - g) / unit[f]))
                high[w] = max(high[w], _whole_ceil((most[ptr[i] + k] - g) / unit[f]))


@loop
def update(
    chosen: Any,
    offsets: Any,
    gold: Any,
    indptr: Any,
    values: Any,
    place: Any,
    ptr: Any,
    feature: Any,
    least: Any,
    most: Any,
    starts: Any,
    columns: Any,
    unit: Any,
    base: Any,
    old_d: Any,
    old_w: Any,
    old_node: Any,
    new_d: Any,
    new_w: Any,
    new_node: Any,
    table: Any,
    changed: Any,
) -> None:
    """Replace the entries of the chosen sequences in the tables of all node weights.

    ``old_*`` are arrays over all sequences and tokens. ``new_*`` cover only the chosen sequences.
    Entry b of weight w is ``table[base[w] + b]``. ``changed`` marks features with changed tables.
    """
    n_labels = old_node.shape[1]
    longest = 0
    for i in chosen:
        longest = max(longest, ptr[i + 1] - ptr[i])
    observed = np.zeros((longest, n_labels))
    before, after = np.zeros((longest, n_labels)), np.zeros((longest, n_labels))
    row = 0
    for m in range(chosen.shape[0]):
        i = chosen[m]
        size = ptr[i + 1] - ptr[i]
        for k in range(size):
            for c in range(n_labels):
                observed[k, c] = before[k, c] = after[k, c] = 0.0
        for t in range(offsets[i], offsets[i + 1]):
            for k in range(indptr[t], indptr[t + 1]):
                at, v = place[k], values[k]
                observed[at, gold[t]] += v
                for c in range(n_labels):
                    before[at, c] += v * old_node[t, c]
                    after[at, c] += v * new_node[row, c]
            row += 1
        d, w_old, w_new = new_d[m] - old_d[i], old_w[i], new_w[m]
        for k in range(size):
            f = feature[ptr[i] + k]
            changed[f] = True
            h, lo, hi = 1.0 / unit[f], least[ptr[i] + k], most[ptr[i] + k]
            for w in range(starts[f], starts[f + 1]):
                c = columns[w]
                g = observed[k, c]
                low_i, high_i = _whole_floor((lo - g) * h), _whole_ceil((hi - g) * h)
                if high_i > low_i:
                    mean = h * (w_new * (after[k, c] - g) - w_old * (before[k, c] - g))
                    width = 1.0 / (high_i - low_i)
                    table[base[w] + low_i] += (d * high_i - mean) * width
                    table[base[w] + high_i] += (mean - d * low_i) * width


@loop
def update_pairs(
    chosen: Any,
    base: Any,
    gold: Any,
    most: Any,
    old_d: Any,
    old_w: Any,
    old_pairs: Any,
    new_d: Any,
    new_w: Any,
    new_pairs: Any,
    table: Any,
) -> None:
    """Replace the entries of the chosen sequences in the tables of all transition weights.

    ``gold`` and ``most`` (n, n_pairs) are the gold counts and the largest counts of each sequence.
    """
    for m in range(chosen.shape[0]):
        i = chosen[m]
        d = new_d[m] - old_d[i]
        for k in range(base.shape[0]):
            g, high_i = gold[i, k], most[i, k] - gold[i, k]
            if most[i, k] > 0:
                mean = new_w[m] * (new_pairs[m, k] - g) - old_w[i] * (old_pairs[i, k] - g)
                table[base[k] - g] += (d * high_i - mean) / most[i, k]
                table[base[k] + high_i] += (mean + d * g) / most[i, k]


@inlined
def _bound(table: Any, a: Any, n: Any, low: Any, x: Any) -> Any:
    """sum_b c_b (e^(b x) - 1) and its first two derivatives with respect to x.

    Entries below 0 are rounding errors and are skipped.
    """
    z, p = np.exp(x), np.exp(low * x)
    value, slope, bend = 0.0, 0.0, 0.0
    for j in range(n):
        c = table[a + j]
        if c > 0.0:
            b = low + j
            value += c * (p - 1.0)
            slope += c * b * p
            bend += c * b * b * p
        p *= z
    return value, slope, bend


@loop
def tight_steps(
    changed: Any,
    starts: Any,
    table: Any,
    first: Any,
    low: Any,
    unit: Any,
    cap: Any,
    step: Any,
    gain: Any,
) -> None:
    """Steps by the tight bound, for all weights of changed features.

    ``step`` gets the step of each weight. ``gain`` gets the change of the tight bound (0 or less).
    All transitions together count as one feature, the last.

    The method is Newton's method from 0, with steps limited by the cap. Every step gives a valid
    bound, so a few iterations are enough.
    """
    for f in range(changed.shape[0]):
        if not changed[f]:
            continue
        changed[f] = False
        for k in range(starts[f], starts[f + 1]):
            a, n = first[k], first[k + 1] - first[k]
            most = cap * unit[f]
            x = 0.0
            gain[k], step[k] = 0.0, 0.0
            if n < 2:
                continue
            for _ in range(6):
                value, slope, bend = _bound(table, a, n, low[k], x)
                if value < gain[k]:
                    gain[k], step[k] = value, x
                elif x != 0.0:
                    x = 0.5 * (x + step[k])  # too far: halve
                    continue
                if bend <= 0.0 or slope == 0.0:
                    break
                # a Newton step of an exponential sum may overshoot: at most 1 at a time
                new = x - min(max(slope / bend, -1.0), 1.0)
                new = min(max(new, -most), most)
                if abs(new - x) <= 1e-3 * abs(new):
                    break
                x = new
            step[k] /= unit[f]


@loop
def loose_steps(
    starts: Any,
    table: Any,
    first: Any,
    low: Any,
    unit: Any,
    cap: Any,
    total: Any,
    eps: Any,
    step: Any,
    gain: Any,
) -> None:
    """Steps by the loose bound s e^(step L) + (1 - s) e^(step U), for all weights.

    The steps have a closed form. L and U hold for all sequences. Sequences without the feature also
    count in s, so s depends on the total of D.
    """
    for f in range(starts.shape[0] - 1):
        most = cap * unit[f]
        for k in range(starts[f], starts[f + 1]):
            n = first[k + 1] - first[k]
            gain[k], step[k] = 0.0, 0.0
            if n < 2:
                continue
            mean = 0.0
            for j in range(n):
                mean += (low[k] + j) * max(table[first[k] + j], 0.0)
            lower, upper = float(low[k]), float(low[k] + n - 1)
            s = min(max((upper - mean / total) / (upper - lower), 0.0), 1.0)
            up, down = -lower * s + eps, upper * (1.0 - s) + eps
            if up <= 0.0:
                x = -most
            elif down <= 0.0:
                x = most
            else:
                x = min(max(np.log(up / down) / (upper - lower), -most), most)
            value = s * np.exp(x * lower) + (1.0 - s) * np.exp(x * upper) - 1.0
            if value < 0.0:
                gain[k], step[k] = total * value, x / unit[f]
