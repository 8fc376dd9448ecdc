"""The log form of the sum-product loops: right for any scores, at about ten times the cost.

Shapes as in `_numba`; only sequences that are not ``safe`` are done, and ``alpha`` holds log
messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop


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

    ``sums`` and ``pairs`` are as in `marginals_scaled`.
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
            if sums.shape[0] > 0:
                sums[i if sums.shape[0] > 1 else 0] += weights[i] * kernel
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
