"""Compiled loops for events in a window of the posterior chain, by backward transition matrices.

A loop goes through a window from its last token back. v[j] is the probability that the labels from
token t on meet the condition and that y_t = j. A step back multiplies by p(y_{t-1} = i | y_t = j,
x), which is ``kernels``. Spans follow the rules of conlleval. A span goes on from label i to label
j if both are of its kind, i may be followed (``opens``) and j may follow (``continues``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop


@loop
def windows(
    kernels: Any, node_p: Any, first: Any, starts: Any, allowed: Any, sizes: Any, out: Any
) -> None:
    """P(y_t in A_t for every t of a window). Window q starts at token first[q], its sets at row
    starts[q]."""
    n_labels = node_p.shape[1]
    v, new = np.empty(n_labels), np.empty(n_labels)
    for q in range(first.shape[0]):
        a, row = first[q], starts[q]
        t = a + sizes[q] - 1
        for j in range(n_labels):
            v[j] = node_p[t, j] if allowed[row + t - a, j] else 0.0
        for t in range(a + sizes[q] - 1, a, -1):
            for i in range(n_labels):
                new[i] = 0.0
                if allowed[row + t - 1 - a, i]:
                    for j in range(n_labels):
                        new[i] += kernels[t, i, j] * v[j]
            v, new = new, v
        out[q] = v.sum()


@inlined
def _ends(kernels: Any, node_p: Any, t: Any, at_end: Any, k: Any, codes: Any, v: Any) -> Any:
    """v[j] = P(y_t = j and a span of kind k ends at t); returns the sum of v."""
    kind, opens, continues = codes
    total = 0.0
    for j in range(v.shape[0]):
        v[j] = 0.0
        if kind[j] != k:
            continue
        if at_end or not opens[j]:
            v[j] = node_p[t, j]
        else:
            for q in range(v.shape[0]):
                if kind[q] != k or not continues[q]:
                    v[j] += kernels[t + 1, j, q] * node_p[t + 1, q]
        total += v[j]
    return total


@inlined
def _goes_on(kernels: Any, t: Any, k: Any, codes: Any, v: Any, new: Any) -> Any:
    """new[i] = P(the span of v includes t - 1 and y_{t-1} = i); returns the sum of new."""
    kind, opens, continues = codes
    total = 0.0
    for i in range(v.shape[0]):
        new[i] = 0.0
        if kind[i] == k and opens[i]:
            for j in range(v.shape[0]):
                if continues[j]:
                    new[i] += kernels[t, i, j] * v[j]
        total += new[i]
    return total


@inlined
def _begins(kernels: Any, t: Any, at_start: Any, k: Any, codes: Any, v: Any) -> Any:
    """P(the span of v begins at t)."""
    kind, opens, continues = codes
    total = 0.0
    for j in range(v.shape[0]):
        if at_start or not continues[j]:
            total += v[j]
        elif v[j] > 0.0:
            for i in range(v.shape[0]):
                if kind[i] != k or not opens[i]:
                    total += kernels[t, i, j] * v[j]
    return total


@loop
def spans(
    kernels: Any, node_p: Any, offsets: Any, queries: Any, kind: Any, opens: Any, continues: Any,
    out: Any,
) -> None:  # fmt: skip
    """P(y has the span) of each row (sequence, kind, first token, last token) of queries."""
    codes = (kind, opens, continues)
    v, new = np.empty(node_p.shape[1]), np.empty(node_p.shape[1])
    for q in range(queries.shape[0]):
        i, k, first, last = queries[q]
        _ends(kernels, node_p, last, last + 1 == offsets[i + 1], k, codes, v)
        for t in range(last, first, -1):
            _goes_on(kernels, t, k, codes, v, new)
            v, new = new, v
        out[q] = _begins(kernels, first, first == offsets[i], k, codes, v)


@loop
def likely_spans(
    kernels: Any, node_p: Any, offsets: Any, n_kinds: Any, least: Any, kind: Any, opens: Any,
    continues: Any, found: Any, p: Any,
) -> Any:  # fmt: skip
    """All spans of probability >= least as rows of found (see `spans`); returns their number.

    Rows beyond the size of ``found`` are counted, not written. Probability only falls as a span
    grows back from its end, so each walk back can stop early.
    """
    codes = (kind, opens, continues)
    n = 0
    v, new = np.empty(node_p.shape[1]), np.empty(node_p.shape[1])
    for i in range(offsets.shape[0] - 1):
        for last in range(offsets[i], offsets[i + 1]):
            for k in range(n_kinds):
                t = last
                mass = _ends(kernels, node_p, t, t + 1 == offsets[i + 1], k, codes, v)
                while mass >= least:
                    whole = _begins(kernels, t, t == offsets[i], k, codes, v)
                    if whole >= least:
                        if n < p.shape[0]:
                            found[n, 0], found[n, 1], found[n, 2], found[n, 3] = i, k, t, last
                            p[n] = whole
                        n += 1
                    if t == offsets[i]:
                        break
                    mass = _goes_on(kernels, t, k, codes, v, new)
                    v, new = new, v
                    t -= 1
    return n
