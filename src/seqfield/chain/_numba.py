"""Compiled sum-product loops over a chunk of sequences.

Shapes, for a chunk of N tokens, n sequences and S labels:

* ``node`` (N, S): log scores with start, end and allowed-label sets already added in;
* ``edge`` (1, S, S) if stationary, else (N, S, S): ``edge[t]`` scores the pair
  (y_{t-1}, y_t), so the entry of a sequence's first token is never read;
* ``offsets`` (n + 1): sequence i is the tokens ``offsets[i]:offsets[i + 1]``.

Two forms of one recursion. The scaled form works on ``exp`` of the scores and renormalises at
each step; the log form works for any scores at about ten times the cost. `shift_and_judge`
decides for each sequence: with a total score range of at most ``RANGE`` one step multiplies a
message by no less than e^-RANGE (1e-100), so as long as no entry falls below ``TINY`` (1e-200)
a zero can only be structural (a forbidden label or transition), never an underflow. A sequence
that breaks either condition is done in the log form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop

RANGE = 230.0
TINY = 1e-200


@inlined
def _span(values: Any) -> Any:
    """Smallest and largest finite entry of a matrix; (0, 0) if there is none."""
    low, high = np.inf, -np.inf
    for t in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = values[t, j]
            high = v if v > high else high
            w = v if v > -np.inf else np.inf
            low = w if w < low else low
    if high < low:
        return 0.0, 0.0
    return low, high


@loop
def shift_and_judge(node: Any, edge: Any, offsets: Any, safe: Any, shift: Any) -> Any:
    """Subtract from each sequence its largest score; say where the scaled form is safe.

    ``node`` and ``edge`` are changed in place; ``shift[i]`` is what log Z lost by it.
    """
    stationary = edge.shape[0] == 1
    low_e, high_e = 0.0, 0.0
    if stationary:
        low_e, high_e = _span(edge[0])
        edge[0] -= high_e
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        low, high = _span(node[a:b])
        if not stationary:
            low_e, high_e = _span(edge[a + 1 : b].reshape(-1, node.shape[1]))
            edge[a + 1 : b] -= high_e
        node[a:b] -= high
        safe[i] = (high - low) + (high_e - low_e) <= RANGE
        shift[i] = (b - a) * high + (b - a - 1) * high_e


@loop
def filter_scaled(
    weight: Any, edge: Any, offsets: Any, safe: Any, alpha: Any, pred: Any, log_z: Any
) -> None:
    """Forward messages of the safe sequences, normalised at each step.

    With weight = exp(node) and edge = exp(edge):
    pred_t[j] = sum_i alpha_{t-1}[i] edge_t[i, j],  alpha_t = pred_t * weight_t / c_t,
    log Z = sum_t log c_t. ``safe[i]`` turns False where a message comes near underflow.
    """
    n_labels = weight.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        if not safe[i]:
            continue
        a, b = offsets[i], offsets[i + 1]
        total = 0.0
        for t in range(a, b):
            for j in range(n_labels):
                pred[t, j] = 1.0 if t == a else 0.0
            if t > a:
                for q in range(n_labels):
                    v = alpha[t - 1, q]
                    for j in range(n_labels):
                        pred[t, j] += v * edge[step * t, q, j]
            c = 0.0
            for j in range(n_labels):
                alpha[t, j] = pred[t, j] * weight[t, j]
                c += alpha[t, j]
            if c == 0.0:
                total = -np.inf
                break
            total += np.log(c)
            c = 1.0 / c
            low = 1.0
            for j in range(n_labels):
                v = alpha[t, j] * c
                alpha[t, j] = v
                v = v if v > 0.0 else 1.0
                low = v if v < low else low
            if low < TINY:
                safe[i] = False
                break
        log_z[i] = total


@loop
def smooth_scaled(
    alpha: Any, pred: Any, edge: Any, edge_t: Any, offsets: Any, safe: Any, ratio: Any, node_p: Any
) -> None:
    """Node marginals of the safe sequences, backwards from the last token.

    r_t = P_t / pred_t,  P_{t-1}[i] = alpha_{t-1}[i] sum_j edge_t[i, j] r_t[j]. The pair marginals
    are alpha_{t-1}[i] edge_t[i, j] r_t[j]; ``ratio`` keeps r for them (0 at first tokens).
    ``edge_t`` holds the transposed matrices, so that the inner loop is contiguous.
    """
    n_labels = alpha.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        if not safe[i]:
            continue
        a, b = offsets[i], offsets[i + 1]
        for j in range(n_labels):
            node_p[b - 1, j] = alpha[b - 1, j]
            ratio[a, j] = 0.0
        for t in range(b - 1, a, -1):
            for j in range(n_labels):
                v = pred[t, j]
                ratio[t, j] = node_p[t, j] / (v if v > 0.0 else 1.0)
                node_p[t - 1, j] = 0.0
            for j in range(n_labels):
                v = ratio[t, j]
                for q in range(n_labels):
                    node_p[t - 1, q] += v * edge_t[step * t, j, q]
            c = 0.0
            for q in range(n_labels):
                v = node_p[t - 1, q] * alpha[t - 1, q]
                node_p[t - 1, q] = v
                c += v
            c = 1.0 / c
            for q in range(n_labels):
                node_p[t - 1, q] *= c


@loop
def pair_sums_scaled(
    alpha: Any, ratio: Any, edge: Any, offsets: Any, safe: Any, weights: Any, out: Any
) -> None:
    """Add sum_i weights[i] sum_t PP_t of the safe sequences to ``out`` (S, S)."""
    n_labels = alpha.shape[1]
    stationary = edge.shape[0] == 1
    if stationary:
        # sum_t alpha_{t-1} r_t' first, four tokens at a time, times the edge weights at the end
        sums = np.zeros((n_labels, n_labels))
        for i in range(offsets.shape[0] - 1):
            if not safe[i]:
                continue
            w, t = weights[i], offsets[i] + 1
            while t + 3 < offsets[i + 1]:
                for q in range(n_labels):
                    v0, v1 = w * alpha[t - 1, q], w * alpha[t, q]
                    v2, v3 = w * alpha[t + 1, q], w * alpha[t + 2, q]
                    for j in range(n_labels):
                        sums[q, j] += (v0 * ratio[t, j] + v1 * ratio[t + 1, j]) + (
                            v2 * ratio[t + 2, j] + v3 * ratio[t + 3, j]
                        )
                t += 4
            while t < offsets[i + 1]:
                for q in range(n_labels):
                    v = w * alpha[t - 1, q]
                    for j in range(n_labels):
                        sums[q, j] += v * ratio[t, j]
                t += 1
        for q in range(n_labels):
            for j in range(n_labels):
                if edge[0, q, j] > 0.0:  # the sum of a forbidden pair may be infinite
                    out[q, j] += sums[q, j] * edge[0, q, j]
        return
    for i in range(offsets.shape[0] - 1):
        if safe[i]:
            for t in range(offsets[i] + 1, offsets[i + 1]):
                for q in range(n_labels):
                    v = weights[i] * alpha[t - 1, q]
                    for j in range(n_labels):
                        out[q, j] += v * edge[t, q, j] * ratio[t, j]


@loop
def pairs_scaled(alpha: Any, ratio: Any, edge: Any, offsets: Any, safe: Any, out: Any) -> None:
    """Pair marginals PP_t (N, S, S) of the safe sequences; zero at first tokens."""
    n_labels = alpha.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        if not safe[i]:
            continue
        out[offsets[i]] = 0.0
        for t in range(offsets[i] + 1, offsets[i + 1]):
            for q in range(n_labels):
                v = alpha[t - 1, q]
                for j in range(n_labels):
                    out[t, q, j] = v * edge[step * t, q, j] * ratio[t, j]


@loop
def backward_kernels_scaled(
    alpha: Any, pred: Any, edge: Any, offsets: Any, safe: Any, kernels: Any
) -> None:
    """p(y_{t-1} = i | y_t = j, x) of the safe sequences.

    It is alpha_{t-1}[i] edge_t[i, j] / pred_t[j].
    """
    n_labels = alpha.shape[1]
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
def filter_log(node: Any, edge: Any, offsets: Any, safe: Any, alpha: Any, log_z: Any) -> None:
    """The log form, for the sequences that are not safe: ``alpha`` gets log messages.

    la_t[j] = node_t[j] + log sum_i exp(la_{t-1}[i] + edge_t[i, j]), largest entry shifted to 0.
    """
    n_labels = node.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        if safe[i]:
            continue
        total = 0.0
        for t in range(offsets[i], offsets[i + 1]):
            now = alpha[t]
            now[:] = node[t]
            if t > offsets[i]:
                for j in range(n_labels):
                    now[j] += _log_sum(alpha[t - 1], edge[step * t], j)
            high = now.max()
            total += high
            if high == -np.inf:
                break
            now -= high
        if total > -np.inf:
            last = alpha[offsets[i + 1] - 1]
            total += np.log(np.exp(last).sum())
        log_z[i] = total


@inlined
def _log_sum(la: Any, edge: Any, j: Any) -> Any:
    """log sum_i exp(la[i] + edge[i, j])"""
    high = -np.inf
    for q in range(la.shape[0]):
        high = max(high, la[q] + edge[q, j])
    if high == -np.inf:
        return high
    c = 0.0
    for q in range(la.shape[0]):
        c += np.exp(la[q] + edge[q, j] - high)
    return high + np.log(c)


@inlined
def _kernel_log(la: Any, edge: Any, out: Any) -> None:
    """p(y_{t-1} = i | y_t = j) from log messages; a column of zeros where j has no history."""
    for j in range(la.shape[0]):
        norm = _log_sum(la, edge, j)
        c = 0.0
        for q in range(la.shape[0]):
            out[q, j] = 0.0 if norm == -np.inf else np.exp(la[q] + edge[q, j] - norm)
            c += out[q, j]
        if c > 0.0:
            out[:, j] /= c


@loop
def smooth_log(
    alpha: Any, edge: Any, offsets: Any, safe: Any, weights: Any, node_p: Any, sums: Any, pairs: Any
) -> None:
    """Marginals of the sequences in the log form: P_{t-1} = K_t P_t.

    ``sums`` gets the weighted sum of the pair marginals; ``pairs`` each of them unless empty.
    """
    n_labels = alpha.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    kernel = np.empty((n_labels, n_labels))
    for i in range(offsets.shape[0] - 1):
        if safe[i]:
            continue
        last = node_p[offsets[i + 1] - 1]
        last[:] = np.exp(alpha[offsets[i + 1] - 1])
        last /= last.sum()
        if pairs.shape[0] > 0:
            pairs[offsets[i]] = 0.0
        for t in range(offsets[i + 1] - 1, offsets[i], -1):
            _kernel_log(alpha[t - 1], edge[step * t], kernel)
            kernel *= node_p[t]
            sums += weights[i] * kernel
            if pairs.shape[0] > 0:
                pairs[t] = kernel
            node_p[t - 1] = kernel.sum(axis=1)
            node_p[t - 1] /= node_p[t - 1].sum()


@loop
def backward_kernels_log(alpha: Any, edge: Any, offsets: Any, safe: Any, kernels: Any) -> None:
    """p(y_{t-1} = i | y_t = j, x) of the sequences in the log form."""
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        if safe[i]:
            continue
        kernels[offsets[i]] = 0.0
        for t in range(offsets[i] + 1, offsets[i + 1]):
            _kernel_log(alpha[t - 1], edge[step * t], kernels[t])
