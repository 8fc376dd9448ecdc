"""The scaled form of the derivative of the marginals along a direction.

Shapes are as in `_numba`; the direction is V = sum_t v_t[y_t] + sum_t D_t[y_{t-1}, y_t]. Each
sequence is done while its messages are in cache: first the forward messages, then everything that
runs backwards, then everything that runs forwards. Rows are padded with zeros to a multiple of
eight numbers, and matrices to a multiple of four rows. The compiler does not vectorise a short loop
over many arrays, because the arrays might overlap. So there are many loops with few arrays each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop
from seqfield.chain._numba import _filter_one


@inlined
def _transpose(matrix: Any, k: Any, out: Any) -> None:
    """out = M_k'; the columns beyond its rows stay 0."""
    for q in range(out.shape[0]):
        for j in range(out.shape[0]):
            out[q, j] = matrix[k, j, q]


@inlined
def _add_product(
    x: Any, y: Any, t: Any, edge: Any, k: Any, d_edge: Any, k_d: Any, out: Any
) -> None:
    """out += x_t E + y_t (E D), four rows at a time; D may be empty."""
    for block in range(edge.shape[1] // 4):
        q = 4 * block  # the compiler cannot know that a step of a range is positive
        x0, x1, x2, x3 = x[t, q], x[t, q + 1], x[t, q + 2], x[t, q + 3]
        if d_edge.shape[0] > 0:
            y0, y1, y2, y3 = y[t, q], y[t, q + 1], y[t, q + 2], y[t, q + 3]
            for j in range(edge.shape[2]):
                out[j] += (
                    (x0 + y0 * d_edge[k_d, q, j]) * edge[k, q, j]
                    + (x1 + y1 * d_edge[k_d, q + 1, j]) * edge[k, q + 1, j]
                ) + (
                    (x2 + y2 * d_edge[k_d, q + 2, j]) * edge[k, q + 2, j]
                    + (x3 + y3 * d_edge[k_d, q + 3, j]) * edge[k, q + 3, j]
                )
        else:
            for j in range(edge.shape[2]):
                out[j] += (x0 * edge[k, q, j] + x1 * edge[k, q + 1, j]) + (
                    x2 * edge[k, q + 2, j] + x3 * edge[k, q + 3, j]
                )


@inlined
def _add_products(x: Any, y: Any, t: Any, edge: Any, d_edge: Any, out_x: Any, out_y: Any) -> None:
    """out_x += x_t E and out_y += y_t E + x_t (E D), with E read once; D may be empty."""
    for block in range(edge.shape[0] // 4):
        q = 4 * block
        x0, x1, x2, x3 = x[t, q], x[t, q + 1], x[t, q + 2], x[t, q + 3]
        y0, y1, y2, y3 = y[t, q], y[t, q + 1], y[t, q + 2], y[t, q + 3]
        if d_edge.shape[0] > 0:
            for j in range(edge.shape[1]):
                e0, e1, e2, e3 = edge[q, j], edge[q + 1, j], edge[q + 2, j], edge[q + 3, j]
                out_x[j] += (x0 * e0 + x1 * e1) + (x2 * e2 + x3 * e3)
                out_y[j] += ((y0 + x0 * d_edge[q, j]) * e0 + (y1 + x1 * d_edge[q + 1, j]) * e1) + (
                    (y2 + x2 * d_edge[q + 2, j]) * e2 + (y3 + x3 * d_edge[q + 3, j]) * e3
                )
        else:
            for j in range(edge.shape[1]):
                e0, e1, e2, e3 = edge[q, j], edge[q + 1, j], edge[q + 2, j], edge[q + 3, j]
                out_x[j] += (x0 * e0 + x1 * e1) + (x2 * e2 + x3 * e3)
                out_y[j] += (y0 * e0 + y1 * e1) + (y2 * e2 + y3 * e3)


@inlined
def _backward(
    alpha: Any,
    pred: Any,
    edge: Any,
    edge_t: Any,
    d_edge: Any,
    d_edge_t: Any,
    bound: Any,
    v: Any,
    a: Any,
    b: Any,
    p: Any,
    inverse: Any,
    ratio: Any,
    u: Any,
    g: Any,
    back: Any,
    ahead: Any,
) -> Any:
    """Marginals p_t, and u_t[j] = p_t[j] E[V after t | y_t = j], centred; False on overflow.

    With r_t = p_t / pred_t (``ratio``) and g_t = r_t v_t + u_t / pred_t:
    p_{t-1} = alpha_{t-1} (E_t r_t),  u_{t-1} = alpha_{t-1} (E_t g_t + E_t D_t r_t) - p_{t-1} mean.
    The pairs need g_t centred too, so g_t - r_t mean is stored. ``bound`` is the largest |D|. If
    edges are stationary, ``edge_t`` and ``d_edge_t`` hold the transposed matrices.
    """
    n_labels, width, last = v.shape[1], edge.shape[2], b - 1 - a
    for j in range(width):
        p[last, j] = alpha[last, j]
        u[last, j] = 0.0
    total = 0.0
    for t in range(last, 0, -1):
        if edge.shape[0] > 1:
            _transpose(edge, a + t, edge_t)
        if d_edge.shape[0] > 1:
            _transpose(d_edge, a + t, d_edge_t)
        for j in range(width):
            c = pred[t, j]
            inverse[t, j] = np.reciprocal(c if c > 0.0 else 1.0)
        for j in range(width):
            ratio[t, j] = p[t, j] * inverse[t, j]
        for j in range(width):
            g[t, j] = u[t, j] * inverse[t, j]
        for j in range(n_labels):
            g[t, j] += ratio[t, j] * v[a + t, j]
        for j in range(width):
            back[j] = 0.0
            ahead[j] = 0.0
        _add_products(ratio, g, t, edge_t, d_edge_t, back, ahead)
        c, mean = 0.0, 0.0
        for q in range(width):
            c += back[q] * alpha[t - 1, q]
            mean += ahead[q] * alpha[t - 1, q]
        c = np.reciprocal(c)
        for q in range(width):
            p[t - 1, q] = back[q] * alpha[t - 1, q] * c
        for q in range(width):
            u[t - 1, q] = ahead[q] * alpha[t - 1, q] - p[t - 1, q] * mean
        for q in range(width):
            g[t, q] -= ratio[t, q] * mean
            total += g[t, q] + ratio[t, q] * bound
    return np.isfinite(total)


@inlined
def _forward(
    alpha: Any,
    edge: Any,
    d_edge: Any,
    v: Any,
    a: Any,
    b: Any,
    p: Any,
    inverse: Any,
    u: Any,
    x: Any,
    m: Any,
    out: Any,
) -> Any:
    """E[V], the derivative of the marginals p_t, and x_t = alpha_t m_t for the pairs.

    m_t[j] = E[V up to t | y_t = j], centred at each step:
    m_t = (x_{t-1} E_t + alpha_{t-1} (E_t D_t)) / pred_t + v_t - mean,  d p_t = p_t m_t + u_t.
    """
    n_labels, width = v.shape[1], edge.shape[2]
    step, step_d = min(1, edge.shape[0] - 1), min(1, d_edge.shape[0] - 1)
    total = 0.0
    for t in range(b - a):
        for j in range(width):
            m[j] = 0.0
        if t > 0:
            _add_product(x, alpha, t - 1, edge, step * (a + t), d_edge, step_d * (a + t), m)
        for j in range(n_labels):
            m[j] = m[j] * inverse[t, j] + v[a + t, j]
        mean = 0.0
        for j in range(width):
            mean += p[t, j] * m[j]
        total += mean
        for j in range(width):
            m[j] -= mean
        for j in range(width):
            x[t, j] = alpha[t, j] * m[j]
        for j in range(n_labels):
            out[a + t, j] = p[t, j] * m[j] + u[t, j]
    return total


@inlined
def _add_outer(x: Any, ratio: Any, alpha: Any, g: Any, d_edge: Any, l: Any, sums: Any) -> None:
    """sums += sum_t x_{t-1} r_t' + alpha_{t-1} (g_t + D r_t)', two tokens at a time.

    D is added here and not at the end: g_t holds its mean, so that no large numbers cancel.
    """
    n_labels, width = sums.shape
    for block in range(l // 2):
        t = 2 * block + 1  # row l is zero
        for q in range(n_labels):
            x0, x1, a0, a1 = x[t - 1, q], x[t, q], alpha[t - 1, q], alpha[t, q]
            if d_edge.shape[0] > 0:
                for j in range(width):
                    r0, r1, d = ratio[t, j], ratio[t + 1, j], d_edge[0, q, j]
                    sums[q, j] += (x0 * r0 + a0 * (g[t, j] + d * r0)) + (
                        x1 * r1 + a1 * (g[t + 1, j] + d * r1)
                    )
            else:
                for j in range(width):
                    sums[q, j] += (x0 * ratio[t, j] + a0 * g[t, j]) + (
                        x1 * ratio[t + 1, j] + a1 * g[t + 1, j]
                    )


@inlined
def _pairs_one(
    x: Any, ratio: Any, alpha: Any, g: Any, edge: Any, d_edge: Any, a: Any, b: Any, pairs: Any
) -> None:
    """Derivatives of the pairs of tokens a:b, each in its row of ``pairs`` or all summed in one."""
    n_labels = pairs.shape[1]
    step, step_d = min(1, edge.shape[0] - 1), min(1, d_edge.shape[0] - 1)
    place = min(1, pairs.shape[0] - 1)
    for t in range(a + 1, b):
        k = t - a
        for q in range(n_labels):
            x0, a0 = x[k - 1, q], alpha[k - 1, q]
            for j in range(n_labels):
                d = d_edge[step_d * t, q, j] if d_edge.shape[0] > 0 else 0.0
                v = x0 * ratio[k, j] + a0 * (g[k, j] + d * ratio[k, j])
                e = edge[step * t, q, j]
                pairs[place * t, q, j] += v * e if e > 0.0 else 0.0  # v may be infinite


@loop
def tangent_scaled(
    weight: Any,
    edge: Any,
    d_edge: Any,
    offsets: Any,
    safe: Any,
    v: Any,
    log_z: Any,
    means: Any,
    out: Any,
    pairs: Any,
    joint: Any,
) -> None:
    """E[V] and the derivatives of the marginals of the safe sequences.

    d pair_t[i, j] = E_t[i, j] (x_{t-1}[i] r_t[j] + alpha_{t-1}[i] (g_t[j] + D_t[i, j] r_t[j])).
    ``d_edge`` is D, which must be finite, or empty if D is 0. ``out`` gets d p_t, plus p_t E[V] if
    ``joint``. ``pairs`` gets the derivatives of the pair marginals: (1, S, S) for their sum,
    (N, S, S) for each, or empty for none. ``safe[i]`` becomes False if a message comes near
    underflow or a product with r overflows.
    """
    n_labels, width = weight.shape[1], edge.shape[2]
    step = min(1, edge.shape[0] - 1)
    summed = pairs.shape[0] == 1 and edge.shape[0] == 1 and d_edge.shape[0] <= 1
    bound = np.abs(d_edge).max() if d_edge.shape[0] > 0 else 0.0
    longest = 0
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    shape = (longest + 1, width)
    alpha, pred, p, inverse = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    ratio, u, g, x = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    back, ahead = np.zeros(width), np.zeros(width)
    edge_t = np.zeros((edge.shape[1], width))
    d_edge_t = np.zeros((edge.shape[1] if d_edge.shape[0] > 0 else 0, width))
    _transpose(edge, 0, edge_t)
    _transpose(d_edge, 0, d_edge_t)
    outer = np.zeros((n_labels, width))
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        if not safe[i]:
            continue
        log_z[i] = _filter_one(weight, edge, step, a, b, alpha, pred)
        safe[i] = not np.isnan(log_z[i])
        if not safe[i] or log_z[i] == -np.inf:
            continue
        safe[i] = _backward(
            alpha,
            pred,
            edge,
            edge_t,
            d_edge,
            d_edge_t,
            bound,
            v,
            a,
            b,
            p,
            inverse,
            ratio,
            u,
            g,
            back,
            ahead,
        )
        if not safe[i]:
            continue
        means[i] = _forward(alpha, edge, d_edge, v, a, b, p, inverse, u, x, back, out)
        if joint:
            for t in range(b - a):
                for j in range(n_labels):
                    out[a + t, j] += p[t, j] * means[i]
        if summed:
            ratio[b - a], g[b - a] = 0.0, 0.0
            _add_outer(x, ratio, alpha, g, d_edge, b - a, outer)
        elif pairs.shape[0] > 0:
            _pairs_one(x, ratio, alpha, g, edge, d_edge, a, b, pairs)
    if summed:
        # the factor edge is applied once, at the end
        for q in range(n_labels):
            for j in range(n_labels):
                if edge[0, q, j] > 0.0:  # the sum of a forbidden pair may be infinite
                    pairs[0, q, j] += outer[q, j] * edge[0, q, j]
