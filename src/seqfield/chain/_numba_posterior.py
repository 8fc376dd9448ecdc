"""Compiled loops on the posterior chain itself.

Given x, the labels form a Markov chain that can be run backwards. It starts with p(y_last | x). Its
backward transition matrices are ``kernels[t][i, j]`` = p(y_{t-1} = i | y_t = j, x). Samples,
entropy, the distribution of a count and directional derivatives need nothing else. All numbers here
are posterior probabilities, so an underflow does no harm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop


@inlined
def _draw(p: Any, u: Any) -> Any:
    """Index drawn from the weights p by a uniform number u in [0, 1); never one of weight 0."""
    u *= p.sum()
    chosen = -1
    c = 0.0
    for j in range(p.shape[0]):
        if p[j] > 0.0:
            chosen = j
            c += p[j]
            if u < c:
                break
    return chosen


@loop
def sample(kernels: Any, node_p: Any, offsets: Any, uniforms: Any, out: Any) -> None:
    """Labellings drawn from p(y|x), last label first; ``uniforms`` and ``out`` are (n, N)."""
    for s in range(uniforms.shape[0]):
        for i in range(offsets.shape[0] - 1):
            t = offsets[i + 1] - 1
            out[s, t] = _draw(node_p[t], uniforms[s, t])
            for t in range(offsets[i + 1] - 1, offsets[i], -1):
                out[s, t - 1] = _draw(kernels[t, :, out[s, t]], uniforms[s, t - 1])


@inlined
def _entropy(p: Any) -> Any:
    h = 0.0
    for j in range(p.shape[0]):
        if p[j] > 0.0:
            h -= p[j] * np.log(p[j])
    return h


@loop
def entropy(kernels: Any, node_p: Any, offsets: Any, out: Any) -> None:
    """H(y|x) = H(y_last) + sum_t sum_j P_t[j] H(y_{t-1} | y_t = j): no cancellation."""
    n_labels = node_p.shape[1]
    for i in range(offsets.shape[0] - 1):
        h = _entropy(node_p[offsets[i + 1] - 1])
        for t in range(offsets[i] + 1, offsets[i + 1]):
            for j in range(n_labels):
                h += node_p[t, j] * _entropy(kernels[t, :, j])
        out[i] = h


@loop
def count_distribution(
    kernels: Any, node_p: Any, offsets: Any, node_hits: Any, pair_hits: Any, n_counts: Any
) -> Any:
    """Distribution (n, n_counts) of sum_t node_hits[t, y_t] + sum_t pair_hits[y_{t-1}, y_t].

    Runs backwards with an accumulator: state (count so far, label).
    """
    n_labels = node_p.shape[1]
    out = np.zeros((offsets.shape[0] - 1, n_counts))
    for i in range(offsets.shape[0] - 1):
        now = np.zeros((n_counts, n_labels))
        t = offsets[i + 1] - 1
        for j in range(n_labels):
            now[node_hits[t, j], j] = node_p[t, j]
        for t in range(offsets[i + 1] - 1, offsets[i], -1):
            new = np.zeros((n_counts, n_labels))
            for c in range(n_counts):
                for j in range(n_labels):
                    p = now[c, j]
                    if p > 0.0:
                        for q in range(n_labels):
                            d = c + pair_hits[q, j] + node_hits[t - 1, q]
                            if d < n_counts:
                                new[d, q] += p * kernels[t, q, j]
            now = new
        for c in range(n_counts):
            out[i, c] = now[c].sum()
    return out


@loop
def tangent(
    kernels: Any,
    node_p: Any,
    offsets: Any,
    d_node: Any,
    d_edge: Any,
    means: Any,
    out: Any,
    out_pairs: Any,
) -> None:
    """Covariance of V = sum_t d_node[t, y_t] + sum_t d_edge_t[y_{t-1}, y_t] with every indicator.

    This covariance is the derivative of the marginals along the direction (d_node, d_edge).
    Forward:  m_t[j] = E[V up to t | y_t = j], centred at each step;
    backward: u_t[j] = P_t[j] E[V after t | y_t = j], centred likewise;
    d P_t[j] = P_t[j] m_t[j] + u_t[j],
    d PP_t[i, j] = K_t[i, j] (P_t[j] (m_{t-1}[i] + d_edge_t[i, j] + d_node_t[j]) + u_t[j]), centred.
    ``out_pairs`` is (1, S, S) for the sum over pairs or (N, S, S) for each.
    """
    n_labels = node_p.shape[1]
    step = 0 if d_edge.shape[0] == 1 else 1
    each = 0 if out_pairs.shape[0] == 1 else 1
    u, back = np.empty(n_labels), np.empty(n_labels)
    local = np.empty((n_labels, n_labels))
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        m = np.empty((b - a, n_labels))
        total = 0.0
        for t in range(a, b):
            centre = 0.0
            for j in range(n_labels):
                v = 0.0
                if t > a:
                    for q in range(n_labels):
                        if kernels[t, q, j] > 0.0:
                            v += kernels[t, q, j] * (m[t - 1 - a, q] + d_edge[step * t, q, j])
                m[t - a, j] = v + d_node[t, j]
                centre += node_p[t, j] * m[t - a, j]
            m[t - a] -= centre
            total += centre
        means[i] = total
        u[:] = 0.0
        out[b - 1] = node_p[b - 1] * m[b - 1 - a]
        for t in range(b - 1, a, -1):
            back[:] = 0.0
            mean_pair, mean_back = 0.0, 0.0
            for q in range(n_labels):
                for j in range(n_labels):
                    k = kernels[t, q, j]
                    local[q, j] = 0.0
                    if k > 0.0:
                        ahead = node_p[t, j] * (d_edge[step * t, q, j] + d_node[t, j]) + u[j]
                        back[q] += k * ahead
                        local[q, j] = k * (ahead + node_p[t, j] * m[t - 1 - a, q])
                        mean_pair += local[q, j]
                mean_back += back[q]
            for q in range(n_labels):
                for j in range(n_labels):
                    v = local[q, j] - kernels[t, q, j] * node_p[t, j] * mean_pair
                    out_pairs[each * t, q, j] += v
            for q in range(n_labels):
                u[q] = back[q] - node_p[t - 1, q] * mean_back
                out[t - 1, q] = node_p[t - 1, q] * m[t - 1 - a, q] + u[q]
