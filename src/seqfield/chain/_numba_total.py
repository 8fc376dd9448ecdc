"""Compiled log-likelihood of sequences on an ellipse of scores, the main work of slice samplers.

Scores are kept as w = exp(score - the token's largest) and e = exp(transition - the largest of
all). So every token has a label with w = 1. Let r be the range of the transitions. The message of a
label is at least e^-r of the largest message before it. If w of a label underflows to 0, the label
has less than e^-745 of the token's mass, and later tokens can favour it by at most e^r. So with r
<= `RANGE` nothing is lost that a float64 can hold. Forbidden transitions break this argument and
are not allowed here.
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
#: messages below this are scaled up again. One step lowers them by e^-RANGE at most, and a share of
#: e^-RANGE of the rest may decide later
SMALL = 1e-70


@loop
def turn(f: Any, g: Any, a: Any, b: Any) -> None:
    """f <- a f + b g for f (n, S), g (S, n)."""
    for r in range(f.shape[0]):
        for j in range(f.shape[1]):
            f[r, j] = a * f[r, j] + b * g[j, r]


@loop
def exp_all(x: Any, whole: Any) -> None:
    """x <- exp(x) for x <= 0, with an error of about 1e-14; below -708 the result is 0.

    exp(x) = 2^k exp(r) with |r| <= log(2) / 2, and a polynomial gives exp(r). Such loops have no
    branch, so they become vector instructions. ``whole`` (n,) is working memory for 2^k.
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
def exponents(f: Any, g: Any, a: Any, b: Any, allowed: Any, out: Any) -> Any:
    """out[t] = a f[t] + b g[t] minus its largest entry; returns the sum of the largest entries.

    f, g, out are (n, S). Entries that are not ``allowed`` (n, S) become -inf; an empty array
    allows everything.
    """
    n, s = f.shape
    free = allowed.shape[0] == 0
    total = 0.0
    for t in range(n):
        top = -np.inf
        for j in range(s):
            v = a * f[t, j] + b * g[t, j]
            if not (free or allowed[t, j]):
                v = -np.inf
            out[t, j] = v
            top = v if v > top else top
        for j in range(s):
            out[t, j] -= top
        total += top
    return total


@loop
def forward(w: Any, e: Any, alpha: Any, pred: Any) -> Any:
    """log sum_y prod_t w[t, y_t] prod_t e[y_{t-1}, y_t] for w (n, S).

    Rows of ``e`` are padded with zeros to a multiple of four, so that inner loops have no
    remainder. alpha and pred are working memory of the length of a row.
    """
    n, s = w.shape
    width = e.shape[1]
    log_z = 0.0
    for t in range(n):
        if t == 0:
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
            v = pred[j] * w[t, j]
            alpha[j] = v
            c += v
        if c < SMALL or c > 1.0 / SMALL or t == n - 1:
            log_z += np.log(c)
            c = 1.0 / c
            for j in range(s):
                alpha[j] *= c
    return log_z


@loop
def log_likelihood(
    f: Any, g: Any, a: Any, b: Any, edge: Any, known: Any, held: Any, chains: Any, level: Any
) -> Any:
    """sum_i weights[i] log p_i at the scores a f + b g and the transitions ``edge`` (S, S).

    f, g are (N, S) by token. If all labels are known, log p_i is their score
    a known[i, 0] + b known[i, 1] minus log Z_i. If some are missing, it is log Z over the labels
    ``held`` (N, S) minus log Z. Of ``known`` and ``held``, one is empty. ``chains`` holds offsets,
    weights, and working memory for the longest sequence.

    No term is positive. So the sum ends early, and is returned, as soon as it is at or below
    ``level``. The result is NaN if the range of the transitions is above `RANGE`.
    """
    offsets, weights, room, whole = chains
    s = edge.shape[0]
    low, high = edge[0, 0], edge[0, 0]
    for q in range(s):
        for j in range(s):
            low, high = min(low, edge[q, j]), max(high, edge[q, j])
    if not high - low <= RANGE:
        return np.nan
    width = (s + 3) // 4 * 4
    e, alpha, pred = np.zeros((s, width)), np.zeros(width), np.zeros(width)
    for q in range(s):
        for j in range(s):
            e[q, j] = np.exp(edge[q, j] - high)
    total = 0.0
    for i in range(offsets.shape[0] - 1):
        here = slice(offsets[i], offsets[i + 1])
        n = offsets[i + 1] - offsets[i]
        w, flat = room[:n], room.reshape(-1)[: n * s]
        log_z = exponents(f[here], g[here], a, b, held[:0], w)
        exp_all(flat, whole)
        log_z += forward(w, e, alpha, pred)
        if held.shape[0] == 0:
            value = a * known[i, 0] + b * known[i, 1] - high * (n - 1)
        else:
            value = exponents(f[here], g[here], a, b, held[here], w)
            exp_all(flat, whole)
            value += forward(w, e, alpha, pred)
        total += weights[i] * (value - log_z)
        if total <= level:
            break
    return total


@loop
def path_scores(f: Any, g: Any, steps: Any, other: Any, labels: Any, offsets: Any) -> Any:
    """Scores (n, 2) of one labelling of each sequence by f, steps and by g, other."""
    out = np.zeros((offsets.shape[0] - 1, 2))
    for i in range(out.shape[0]):
        for t in range(offsets[i], offsets[i + 1]):
            y = labels[t]
            out[i, 0] += f[t, y]
            out[i, 1] += g[t, y]
            if t > offsets[i]:
                out[i, 0] += steps[labels[t - 1], y]
                out[i, 1] += other[labels[t - 1], y]
    return out


@loop
def by_token(f: Any, g: Any, rows: Any, f_out: Any, g_out: Any) -> None:
    """Tables f (n, S), g (S, n) as rows (N, S) of tokens."""
    for t in range(rows.shape[0]):
        for j in range(f.shape[1]):
            f_out[t, j] = f[rows[t], j]
            g_out[t, j] = g[j, rows[t]]


@loop
def slice_angle(
    f: Any,
    g: Any,
    steps: Any,
    other: Any,
    known: Any,
    held: Any,
    chains: Any,
    level: Any,
    uniforms: Any,
) -> Any:
    """The first angle of a shrinking bracket whose log-likelihood is above ``level``.

    Returns its cosine, its sine, the log-likelihood, and the number of angles tried. Scores are
    a f + b g, transitions are a steps + b other; the rest is as in `log_likelihood`. The value is
    NaN if the range of the transitions is too large, or if ``uniforms`` run out.
    """
    angle = 2.0 * np.pi * uniforms[0]
    low, high = angle - 2.0 * np.pi, angle
    for k in range(1, uniforms.shape[0]):
        a, b = np.cos(angle), np.sin(angle)
        value = log_likelihood(f, g, a, b, a * steps + b * other, known, held, chains, level)
        if value > level or np.isnan(value):
            return a, b, value, k
        if angle < 0.0:
            low = angle
        else:
            high = angle
        angle = low + (high - low) * uniforms[k]
    return 1.0, 0.0, np.nan, uniforms.shape[0] - 1
