"""Compiled sum-product loops over a chunk of sequences.

Shapes, for a chunk of N tokens, n sequences and S labels:

* ``node`` (N, S): log scores with start, end and allowed-label sets already added in;
* ``edge`` (1, S, S) if stationary, else (N, S, S): ``edge[t]`` scores the pair
  (y_{t-1}, y_t), so the entry of a sequence's first token is never read;
* ``offsets`` (n + 1): sequence i is the tokens ``offsets[i]:offsets[i + 1]``.

There are two forms of one recursion. The scaled form works on ``exp`` of the scores and
renormalises at each step. The log form works for any scores, at about ten times the cost.
`shift_and_judge` decides for each sequence. With a total score range of at most ``RANGE``, one step
multiplies a message by no less than e^-RANGE (1e-100). While no entry falls below ``TINY``
(1e-200), a zero can only be structural (a forbidden label or transition), never an underflow. A
sequence that breaks either condition is done in the log form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop

RANGE = 230.0
TINY = 1e-200


@inlined
def _span(values: Any) -> Any:
    """Smallest and largest finite entry of a vector; (0, 0) if there is none.

    Four pairs run at once, so that no comparison waits for the one before it.
    """
    l0, l1, l2, l3 = np.inf, np.inf, np.inf, np.inf
    h0, h1, h2, h3 = -np.inf, -np.inf, -np.inf, -np.inf
    n = values.shape[0]
    for k in range(0, n - 3, 4):
        v0, v1, v2, v3 = values[k], values[k + 1], values[k + 2], values[k + 3]
        h0, h1 = v0 if v0 > h0 else h0, v1 if v1 > h1 else h1
        h2, h3 = v2 if v2 > h2 else h2, v3 if v3 > h3 else h3
        l0, l1 = v0 if v0 < l0 else l0, v1 if v1 < l1 else l1
        l2, l3 = v2 if v2 < l2 else l2, v3 if v3 < l3 else l3
    for k in range(n - n % 4, n):
        v0 = values[k]
        h0, l0 = v0 if v0 > h0 else h0, v0 if v0 < l0 else l0
    low, high = min(l0, l1, l2, l3), max(h0, h1, h2, h3)
    if high == -np.inf:
        return 0.0, 0.0
    if low == -np.inf:  # something is forbidden: find the smallest finite entry
        low = np.inf
        for k in range(n):
            low = values[k] if -np.inf < values[k] < low else low
    return low, high


@loop
def shift_and_judge(
    node: Any, edge: Any, offsets: Any, node_out: Any, edge_out: Any, safe: Any, shift: Any
) -> Any:
    """Subtract from each sequence its largest score, and say where the scaled form is safe.

    ``shift[i]`` is the amount that log Z of sequence i loses by this.
    """
    s = node.shape[1]
    nodes, edges = node.reshape(-1), edge.reshape(-1)
    new_nodes, new_edges = node_out.reshape(-1), edge_out.reshape(-1)
    stationary = edge.shape[0] == 1
    low_e, high_e = 0.0, 0.0
    if stationary:
        low_e, high_e = _span(edges)
        for k in range(edges.shape[0]):
            new_edges[k] = edges[k] - high_e
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        part, new = nodes[a * s : b * s], new_nodes[a * s : b * s]
        low, high = _span(part)
        for k in range(part.shape[0]):
            new[k] = part[k] - high
        if not stationary:
            new_edges[a * s * s : (a + 1) * s * s] = 0.0  # never read
            part, new = edges[(a + 1) * s * s : b * s * s], new_edges[(a + 1) * s * s : b * s * s]
            low_e, high_e = _span(part)
            for k in range(part.shape[0]):
                new[k] = part[k] - high_e
        safe[i] = (high - low) + (high_e - low_e) <= RANGE
        shift[i] = (b - a) * high + (b - a - 1) * high_e


@inlined
def _filter_one(weight: Any, edge: Any, step: Any, a: Any, b: Any, alpha: Any, pred: Any) -> Any:
    """Forward messages of the tokens a:b into the first rows of alpha and pred; log Z.

    The result is NaN if a message came near underflow. Rows of edge, alpha and pred are padded to
    ``width`` columns, so that innermost loops have no remainder.
    """
    n_labels, width = weight.shape[1], edge.shape[2]
    total = 0.0
    for t in range(b - a):
        for j in range(width):
            pred[t, j] = 1.0 if t == 0 else 0.0
        if t > 0:
            for q in range(n_labels):
                v = alpha[t - 1, q]
                for j in range(width):
                    pred[t, j] += v * edge[step * (a + t), q, j]
        c = 0.0
        for j in range(n_labels):
            alpha[t, j] = pred[t, j] * weight[a + t, j]
            c += alpha[t, j]
        if c == 0.0:
            return -np.inf
        total += np.log(c)
        c = 1.0 / c
        low = 1.0
        for j in range(n_labels):
            v = alpha[t, j] * c
            alpha[t, j] = v
            v = v if v > 0.0 else 1.0
            low = v if v < low else low
        if low < TINY:
            return np.nan
    return total


@loop
def filter_scaled(
    weight: Any, edge: Any, offsets: Any, safe: Any, alpha: Any, pred: Any, log_z: Any
) -> None:
    """Forward messages of the safe sequences, normalised at each step.

    With weight = exp(node) and edge = exp(edge):
    pred_t[j] = sum_i alpha_{t-1}[i] edge_t[i, j],  alpha_t = pred_t * weight_t / c_t,
    log Z = sum_t log c_t. ``safe[i]`` turns False where a message comes near underflow.
    """
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        if safe[i]:
            log_z[i] = _filter_one(weight, edge, step, a, b, alpha[a:b], pred[a:b])
            safe[i] = not np.isnan(log_z[i])


@inlined
def _smooth_one(
    alpha: Any,
    pred: Any,
    edge_t: Any,
    step: Any,
    a: Any,
    b: Any,
    ratio: Any,
    back: Any,
    node_p: Any,
) -> None:
    """Node marginals of the tokens a:b from messages in the first rows of alpha and pred.

    r_t = P_t / pred_t,  P_{t-1}[i] = alpha_{t-1}[i] sum_j edge_t[i, j] r_t[j]. The pair marginals
    are alpha_{t-1}[i] edge_t[i, j] r_t[j]; ``ratio`` keeps r for them (0 at the first token).
    ``edge_t`` holds the transposed matrices, so that the inner loop is contiguous.
    """
    n_labels, width = node_p.shape[1], edge_t.shape[2]
    for j in range(n_labels):
        node_p[b - 1, j] = alpha[b - 1 - a, j]
        ratio[0, j] = 0.0
    for t in range(b - 1, a, -1):
        k = t - a
        for j in range(n_labels):
            v = pred[k, j]
            ratio[k, j] = node_p[t, j] / (v if v > 0.0 else 1.0)
        for q in range(width):
            back[q] = 0.0
        for j in range(n_labels):
            v = ratio[k, j]
            for q in range(width):
                back[q] += v * edge_t[step * t, j, q]
        c = 0.0
        for q in range(n_labels):
            v = back[q] * alpha[k - 1, q]
            node_p[t - 1, q] = v
            c += v
        c = 1.0 / c
        for q in range(n_labels):
            node_p[t - 1, q] *= c


@inlined
def _add_outer(alpha: Any, ratio: Any, l: Any, w: Any, sums: Any) -> None:
    """sums += w sum_t alpha_{t-1} r_t', four tokens at a time; rows are padded."""
    n_labels, width = sums.shape
    t = 1
    while t + 3 < l:
        for q in range(n_labels):
            v0, v1 = w * alpha[t - 1, q], w * alpha[t, q]
            v2, v3 = w * alpha[t + 1, q], w * alpha[t + 2, q]
            for j in range(width):
                sums[q, j] += (v0 * ratio[t, j] + v1 * ratio[t + 1, j]) + (
                    v2 * ratio[t + 2, j] + v3 * ratio[t + 3, j]
                )
        t += 4
    while t < l:
        for q in range(n_labels):
            v = w * alpha[t - 1, q]
            for j in range(width):
                sums[q, j] += v * ratio[t, j]
        t += 1


@inlined
def _add_pairs(outer: Any, edge: Any, sums: Any) -> None:
    """Add the pair marginals to sums and clear outer.

    They are alpha_{t-1}[i] edge[i, j] r_t[j]; the factor edge is applied once, at the end.
    """
    n_labels = sums.shape[0]
    for q in range(n_labels):
        for j in range(n_labels):
            if edge[0, q, j] > 0.0:  # the sum of a forbidden pair may be infinite
                sums[q, j] += outer[q, j] * edge[0, q, j]
        for j in range(outer.shape[1]):
            outer[q, j] = 0.0


@inlined
def _pairs_one(alpha: Any, ratio: Any, edge: Any, step: Any, a: Any, b: Any, pairs: Any) -> None:
    """Pair marginals of the tokens a:b; zero at the first."""
    n_labels = pairs.shape[1]
    pairs[a] = 0.0
    for t in range(a + 1, b):
        for q in range(n_labels):
            v = alpha[t - 1 - a, q]
            for j in range(n_labels):
                pairs[t, q, j] = v * edge[step * t, q, j] * ratio[t - a, j]


@loop
def marginals_scaled(
    weight: Any,
    edge: Any,
    edge_t: Any,
    offsets: Any,
    safe: Any,
    weights: Any,
    log_z: Any,
    node_p: Any,
    sums: Any,
    pairs: Any,
) -> None:
    """log Z and marginals of the safe sequences, each while its messages are in cache.

    Training spends most of its time here. If edges are stationary, ``sums`` gets the weighted sum
    of pair marginals: (1, S, S) over all sequences, (n, S, S) for each, or empty for none.
    ``pairs`` (N, S, S) gets each pair marginal unless it is empty.
    """
    n_labels, width = weight.shape[1], edge.shape[2]
    step = 0 if edge.shape[0] == 1 else 1
    longest = 0
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    alpha, pred = np.zeros((longest, width)), np.zeros((longest, width))
    ratio, back = np.zeros((longest, width)), np.zeros(width)
    outer = np.zeros((n_labels, width))
    by_sequence = sums.shape[0] > 1
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        if not safe[i]:
            continue
        log_z[i] = _filter_one(weight, edge, step, a, b, alpha, pred)
        safe[i] = not np.isnan(log_z[i])
        if not safe[i] or log_z[i] == -np.inf:
            continue
        _smooth_one(alpha, pred, edge_t, step, a, b, ratio, back, node_p)
        if sums.shape[0] > 0:
            _add_outer(alpha, ratio, b - a, weights[i], outer)
        if by_sequence:
            _add_pairs(outer, edge, sums[i])
        if pairs.shape[0] > 0:
            _pairs_one(alpha, ratio, edge, step, a, b, pairs)
    if sums.shape[0] == 1:
        _add_pairs(outer, edge, sums[0])


@loop
def backward_kernels_scaled(
    alpha: Any, pred: Any, edge: Any, offsets: Any, safe: Any, kernels: Any
) -> None:
    """p(y_{t-1} = i | y_t = j, x) of the safe sequences.

    It is alpha_{t-1}[i] edge_t[i, j] / pred_t[j].
    """
    n_labels = kernels.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        if not safe[i]:
            continue
        kernels[offsets[i]] = 0.0
        for t in range(offsets[i] + 1, offsets[i + 1]):
            for q in range(n_labels):
                for j in range(n_labels):
                    p = pred[t, j]
                    kernels[t, q, j] = (
                        alpha[t - 1, q] * edge[step * t, q, j] / p if p > 0.0 else 0.0
                    )


@loop
def smooth_kernels(kernels: Any, offsets: Any, node_p: Any) -> None:
    """Node marginals P_{t-1} = K_t P_t, given those of the last tokens in ``node_p``."""
    n_labels = node_p.shape[1]
    for i in range(offsets.shape[0] - 1):
        for t in range(offsets[i + 1] - 1, offsets[i], -1):
            c = 0.0
            for q in range(n_labels):
                v = 0.0
                for j in range(n_labels):
                    v += kernels[t, q, j] * node_p[t, j]
                node_p[t - 1, q] = v
                c += v
            for q in range(n_labels):
                node_p[t - 1, q] /= c
