"""Compiled sum of log Z over all sequences from a table of scores: what samplers ask for most.

Scores are w = exp(score - the token's largest) and e = exp(transition - the largest of all), so
every token has a label with w = 1, and a label's message is at least e^-r of the largest before it,
r being the range of the transitions. A label whose w underflows to 0 has less than e^-745 of the
token's mass, and what follows can favour it by no more than e^r: with r <= `RANGE` nothing is lost
that a float64 could hold. Forbidden transitions break this argument and have no place here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seqfield._compile import loop

#: the largest range of transition scores
RANGE = 250.0
#: constants of the exponential: log2(e), log(2) in two parts, 1 / k!
LOG2E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
INVERSE = tuple(1.0 / math.factorial(k) for k in range(14))
LEAST = -708.0
#: messages are scaled up again below this: one step takes them down by e^-RANGE at most, and of
#: what is left then a share of e^-RANGE may be all that counts later
SMALL = 1e-70


@loop
def exponents(
    f: Any, g: Any, a: Any, b: Any, rows: Any, allowed: Any, out: Any, largest: Any
) -> None:
    """out[k] = a f + b g at rows[k], less its largest entry, which goes to largest[k].

    f is (n, S), g (S, n). What is not ``allowed`` (K, S) becomes -inf; an empty array allows
    everything.
    """
    s = f.shape[1]
    free = allowed.shape[0] == 0
    for k in range(rows.shape[0]):
        r = rows[k]
        top = -np.inf
        for j in range(s):
            v = a * f[r, j] + b * g[j, r]
            if not (free or allowed[k, j]):
                v = -np.inf
            out[k, j] = v
            top = v if v > top else top
        for j in range(s):
            out[k, j] -= top
        largest[k] = top


@loop
def turn(f: Any, g: Any, a: Any, b: Any) -> None:
    """f <- a f + b g for f (n, S), g (S, n)."""
    for r in range(f.shape[0]):
        for j in range(f.shape[1]):
            f[r, j] = a * f[r, j] + b * g[j, r]


@loop
def exp_all(x: Any, whole: Any) -> None:
    """x <- exp(x) for x <= 0, to about 1e-14; below -708 it is 0.

    exp(x) = 2^k exp(r) with |r| <= log(2) / 2 and a polynomial for exp(r): loops without a branch,
    which become vector instructions. ``whole`` (n,) is room for 2^k.
    """
    n, power = x.shape[0], whole.view(np.float64)
    for i in range(n):
        v = max(x[i], LEAST)
        k = np.floor(v * LOG2E + 0.5)
        r = (v - k * LN2_HIGH) - k * LN2_LOW
        p = INVERSE[13]
        for c in INVERSE[12::-1]:
            p = p * r + c
        whole[i] = (np.int64(k) + 1023) << 52
        x[i] = p if x[i] >= LEAST else 0.0
    for i in range(n):
        x[i] *= power[i]


@loop
def total_log_z(w: Any, largest: Any, index: Any, edge: Any, offsets: Any, weights: Any) -> Any:
    """sum_i weights[i] log Z_i; token t has the row index[t]. NaN if the range of ``edge`` (S, S)
    is above `RANGE`."""
    s = edge.shape[0]
    low, high = edge[0, 0], edge[0, 0]
    for q in range(s):
        for j in range(s):
            low, high = min(low, edge[q, j]), max(high, edge[q, j])
    if not high - low <= RANGE:
        return np.nan
    # rows padded to fours: inner loops have no odd end
    width = (s + 3) // 4 * 4
    e = np.zeros((s, width))
    for q in range(s):
        for j in range(s):
            e[q, j] = np.exp(edge[q, j] - high)
    alpha, pred = np.zeros(width), np.zeros(width)
    total = 0.0
    for i in range(offsets.shape[0] - 1):
        first, last = offsets[i], offsets[i + 1]
        log_z = high * (last - first - 1)
        for t in range(first, last):
            k = index[t]
            log_z += largest[k]
            if t == first:
                for j in range(s):
                    pred[j] = 1.0
            else:
                for j in range(width):
                    pred[j] = 0.0
                for q in range(s):
                    v = alpha[q]
                    for j in range(width):
                        pred[j] += v * e[q, j]
            c = 0.0
            for j in range(s):
                v = pred[j] * w[k, j]
                alpha[j] = v
                c += v
            if c < SMALL or c > 1.0 / SMALL or t == last - 1:
                log_z += np.log(c)
                c = 1.0 / c
                for j in range(s):
                    alpha[j] *= c
        total += weights[i] * log_z
    return total


@loop
def log_z_of(
    f: Any, g: Any, a: Any, b: Any, edge: Any, places: Any, offsets: Any, weights: Any
) -> Any:
    """sum_i weights[i] log Z_i at the scores a f + b g' and transitions ``edge``.

    ``places`` are rows of the table, the row among these that each token has, the labels they may
    have, and room for three arrays.
    """
    rows, index, allowed, w, largest, whole = places
    exponents(f, g, a, b, rows, allowed, w, largest)
    exp_all(w.reshape(-1), whole)
    return total_log_z(w, largest, index, edge, offsets, weights)


@loop
def slice_angle(
    f: Any,
    g: Any,
    steps: Any,
    other: Any,
    known: Any,
    places: Any,
    held: Any,
    offsets: Any,
    weights: Any,
    level: Any,
    uniforms: Any,
) -> Any:
    """The first angle of a shrinking bracket whose log-likelihood is above ``level``: its cosine,
    sine, the log-likelihood, and how many were looked at.

    The log-likelihood at a f + b g', a steps + b other is what is known minus log Z: the score of
    the known labels a known[0] + b known[1], or log Z over what they may be (``held``, if
    ``known`` is empty). The value is NaN where `total_log_z` is not made for the transitions, or
    where ``uniforms`` come to an end.
    """
    angle = 2.0 * np.pi * uniforms[0]
    low, high = angle - 2.0 * np.pi, angle
    for k in range(1, uniforms.shape[0]):
        a, b = np.cos(angle), np.sin(angle)
        edge = a * steps + b * other
        value = -log_z_of(f, g, a, b, edge, places, offsets, weights)
        if known.shape[0] > 0:
            value += a * known[0] + b * known[1]
        else:
            value += log_z_of(f, g, a, b, edge, held, offsets, weights)
        if value > level or np.isnan(value):
            return a, b, value, k
        if angle < 0.0:
            low = angle
        else:
            high = angle
        angle = low + (high - low) * uniforms[k]
    return 1.0, 0.0, np.nan, uniforms.shape[0] - 1
