"""Compiled max-product loops: Viterbi, n-best, best path for each Hamming distance.

All loops work on log scores, where ``-inf`` is a valid score. Viterbi keeps no back pointers: on
the way back, it computes the best predecessor of the one state on the path again. That is cheaper
than writing S pointers at every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop


@inlined
def _best_predecessor(before: Any, edge: Any, j: Any) -> Any:
    """First i that maximises before[i] + edge[i, j]."""
    best, value = 0, -np.inf
    for q in range(before.shape[0]):
        v = before[q] + edge[q, j]
        if v > value:
            best, value = q, v
    return best


@loop
def viterbi(node: Any, edge: Any, offsets: Any, labels: Any, best: Any) -> None:
    """Best labelling of each sequence (``labels``, N) and its score (``best``, n)."""
    n_labels = node.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    longest = 0
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    delta = np.empty((longest, n_labels))
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        delta[0] = node[a]
        for t in range(a + 1, b):
            k = t - a
            for j in range(n_labels):
                delta[k, j] = -np.inf
            for q in range(n_labels):
                v = delta[k - 1, q]
                for j in range(n_labels):
                    w = v + edge[step * t, q, j]
                    delta[k, j] = w if w > delta[k, j] else delta[k, j]
            for j in range(n_labels):
                delta[k, j] += node[t, j]
        labels[b - 1] = delta[b - 1 - a].argmax()
        best[i] = delta[b - 1 - a, labels[b - 1]]
        for t in range(b - 1, a, -1):
            labels[t - 1] = _best_predecessor(delta[t - 1 - a], edge[step * t], labels[t])


@loop
def nbest(node: Any, edge: Any, offsets: Any, k: Any, labels: Any, scores: Any) -> None:
    """The k best labellings of each sequence: ``labels`` (k, N), ``scores`` (n, k).

    Each state keeps its k best histories in falling order; ranks that do not exist score -inf.
    """
    n_labels = node.shape[1]
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        l = b - a
        value = np.full((l, n_labels, k), -np.inf)
        state = np.zeros((l, n_labels, k), np.int32)
        rank = np.zeros((l, n_labels, k), np.int32)
        for j in range(n_labels):
            value[0, j, 0] = node[a, j]
        for t in range(1, l):
            for j in range(n_labels):
                for q in range(n_labels):
                    for r in range(k):
                        v = value[t - 1, q, r] + edge[step * (a + t), q, j] + node[a + t, j]
                        if v <= value[t, j, k - 1]:
                            break
                        _insert(value[t, j], state[t, j], rank[t, j], v, q, r)
        best = np.full(k, -np.inf)
        last, last_rank = np.zeros(k, np.int32), np.zeros(k, np.int32)
        for j in range(n_labels):
            for r in range(k):
                v = value[l - 1, j, r]
                if v <= best[k - 1]:
                    break
                _insert(best, last, last_rank, v, j, r)
        for s in range(k):
            scores[i, s] = best[s]
            j, r = last[s], last_rank[s]
            for t in range(l - 1, -1, -1):
                labels[s, a + t] = j
                j, r = state[t, j, r], rank[t, j, r]


@inlined
def _insert(values: Any, states: Any, ranks: Any, v: Any, q: Any, r: Any) -> None:
    """Put (v, q, r) into lists kept in falling order of value, dropping the last."""
    s = values.shape[0] - 1
    while s > 0 and values[s - 1] < v:
        values[s], states[s], ranks[s] = values[s - 1], states[s - 1], ranks[s - 1]
        s -= 1
    values[s], states[s], ranks[s] = v, q, r


@loop
def viterbi_by_distance(node: Any, edge: Any, gold: Any, labels: Any, scores: Any) -> None:
    """For one sequence of length l: the best labelling at each Hamming distance h = 0..l.

    ``labels`` (l + 1, l), ``scores`` (l + 1); a distance no labelling has scores -inf.
    State (distance so far, label): O(l^2 S^2).
    """
    l, n_labels = node.shape
    step = 0 if edge.shape[0] == 1 else 1
    value = np.full((l, l + 1, n_labels), -np.inf)
    back = np.zeros((l, l + 1, n_labels), np.int32)
    for j in range(n_labels):
        value[0, 0 if j == gold[0] else 1, j] = node[0, j]
    for t in range(1, l):
        for h in range(t + 2):
            for j in range(n_labels):
                before = h if j == gold[t] else h - 1
                if before < 0 or before > t:
                    continue
                best = -np.inf
                for q in range(n_labels):
                    v = value[t - 1, before, q] + edge[step * t, q, j]
                    if v > best:
                        best = v
                        back[t, h, j] = q
                value[t, h, j] = best + node[t, j]
    for h in range(l + 1):
        j = value[l - 1, h].argmax()
        scores[h] = value[l - 1, h, j]
        if scores[h] == -np.inf:
            continue
        d = h
        for t in range(l - 1, -1, -1):
            labels[h, t] = j
            q = back[t, d, j]
            d -= 0 if j == gold[t] else 1
            j = q


@loop
def path_scores(node: Any, edge: Any, offsets: Any, labels: Any, out: Any) -> None:
    """Score of a given labelling of each sequence."""
    step = 0 if edge.shape[0] == 1 else 1
    for i in range(offsets.shape[0] - 1):
        total = 0.0
        for t in range(offsets[i], offsets[i + 1]):
            total += node[t, labels[t]]
            if t > offsets[i]:
                total += edge[step * t, labels[t - 1], labels[t]]
        out[i] = total


@loop
def subtract_path(
    node: Any, edge: Any, offsets: Any, labels: Any, weights: Any, d_node: Any, d_edge: Any
) -> Any:
    """Weighted score of a labelling; its weighted indicators are subtracted from the gradients.

    ``d_edge`` is (1, S, S) for the sum over pairs or (N, S, S) for each.
    """
    step = 0 if edge.shape[0] == 1 else 1
    each = 0 if d_edge.shape[0] == 1 else 1
    total = 0.0
    for i in range(offsets.shape[0] - 1):
        w = weights[i]
        if w == 0.0:
            continue
        for t in range(offsets[i], offsets[i + 1]):
            y = labels[t]
            total += w * node[t, y]
            d_node[t, y] -= w
            if t > offsets[i]:
                total += w * edge[step * t, labels[t - 1], y]
                d_edge[each * t, labels[t - 1], y] -= w
    return total
