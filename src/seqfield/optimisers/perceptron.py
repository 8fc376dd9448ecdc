"""The averaged perceptron (Collins 2002; Altun 2005, algorithm 1).

Needs ``problem``: plain arrays of features, weights and labels. It goes through the sequences in
a shuffled order; where the best labelling is not the known one, the features of the known one are
added to the weights and those of the best one taken away. One compiled loop does an epoch.

The average over all sequences of all epochs costs nothing extra: with the clock c counting
sequences, an update d at time c lives on in theta from then on, so the mean of theta over a time C
is theta - (sum of c d) / C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqfield._compile import inlined, loop
from seqfield.chain._numba_paths import viterbi
from seqfield.optimisers._base import Callback, Floats, Result, Step, require


@dataclass(frozen=True)
class Perceptron:
    """``max_iter`` epochs at most; it ends when an epoch makes no mistake.

    The value of a step is the share of tokens that were labelled wrongly on the way. Where labels
    are not known exactly, the known labelling is the best one among those allowed.
    """

    max_iter: int = 20
    average: bool = True
    seed: int = 0
    needs = ("problem",)

    def minimise(self, objective: Any, theta: Floats, callback: Callback | None = None) -> Result:
        """Learn from theta."""
        require("the perceptron", objective, self.needs)
        problem = objective.problem()
        arrays: Any = _arrays(problem)
        rng = np.random.default_rng(self.seed)
        now, sums, clock = theta.copy(), np.zeros_like(theta), 1
        n_tokens = int(problem.tables.offsets[-1])
        out, value, epoch = theta, 0.0, 0
        for epoch in range(1, self.max_iter + 1):
            order = rng.permutation(len(problem.weights))
            mistakes = pass_over(order, *(*arrays, now, sums, clock))
            clock += len(order)
            out = now - sums / clock if self.average else now.copy()
            value = mistakes / n_tokens
            stop = callback is not None and callback(Step(epoch, out, value))
            if stop or mistakes == 0:
                break
        return Result(out, value, None, epoch, True)


def _arrays(problem: Any) -> tuple[Any, ...]:
    """The arguments of `pass_over` that stay the same."""
    tables, targets = problem.tables, problem.targets
    s = len(tables.pair_weight)
    edge = tables.edge
    if edge is None:
        none, no_weights = np.zeros(0, np.int64), np.zeros(0, np.int32)
        edge = (none, no_weights, np.zeros(0), none, no_weights)
    allowed = targets.allowed
    if allowed is None:
        allowed = np.zeros((0, s), np.bool_)
    start, pairs, end = np.zeros(s), np.zeros((s, s)), np.zeros(s)
    if problem.constraint is not None:
        c = problem.constraint
        start, pairs, end = c.start, c.pairs, c.end
    return (
        tables.offsets,
        *tables.node,
        *edge,
        tables.edge_first,
        tables.pair_weight,
        start,
        pairs,
        end,
        targets.codes,
        allowed,
        problem.weights,
    )


@inlined
def _add_features(
    t: Any,
    column: Any,
    step: Any,
    indptr: Any,
    indices: Any,
    values: Any,
    starts: Any,
    columns: Any,
    first: Any,
    clock: Any,
    theta: Any,
    sums: Any,
) -> None:
    """theta += step x for token t's features x and one column; sums += clock times that."""
    for k in range(indptr[t], indptr[t + 1]):
        f = indices[k]
        for w in range(starts[f], starts[f + 1]):
            if columns[w] == column:
                theta[first + w] += step * values[k]
                sums[first + w] += clock * step * values[k]


@loop
def pass_over(
    order: Any,
    offsets: Any,
    indptr: Any,
    indices: Any,
    values: Any,
    starts: Any,
    columns: Any,
    edge_indptr: Any,
    edge_indices: Any,
    edge_values: Any,
    edge_starts: Any,
    edge_columns: Any,
    edge_first: Any,
    pair_weight: Any,
    start: Any,
    pairs: Any,
    end: Any,
    gold: Any,
    allowed: Any,
    weights: Any,
    theta: Any,
    sums: Any,
    clock: Any,
) -> Any:
    """Visit the sequences in order, changing theta and sums; the number of wrong tokens."""
    s = pair_weight.shape[0]
    with_edges = edge_indptr.shape[0] > 0
    longest = 0
    for i in order:
        longest = max(longest, offsets[i + 1] - offsets[i])
    node = np.empty((longest, s))
    edge = np.empty((longest if with_edges else 1, s, s))
    held = np.empty((longest if allowed.shape[0] > 0 else 0, s))
    best, known = np.empty(longest, np.int32), np.empty(longest, np.int32)
    span, score = np.zeros(2, np.int64), np.empty(1)
    mistakes = 0
    for i in order:
        a, l = offsets[i], offsets[i + 1] - offsets[i]
        span[1] = l
        for t in range(l):
            for j in range(s):
                node[t, j] = 0.0
            for k in range(indptr[a + t], indptr[a + t + 1]):
                f, v = indices[k], values[k]
                for w in range(starts[f], starts[f + 1]):
                    node[t, columns[w]] += v * theta[w]
        for j in range(s):
            node[0, j] += start[j]
            node[l - 1, j] += end[j]
        for t in range(l if with_edges else 1):
            for p in range(s):
                for q in range(s):
                    w = pair_weight[p, q]
                    edge[t, p, q] = pairs[p, q] + (theta[w] if w >= 0 else 0.0)
            if with_edges:
                for k in range(edge_indptr[a + t], edge_indptr[a + t + 1]):
                    f, v = edge_indices[k], edge_values[k]
                    for w in range(edge_starts[f], edge_starts[f + 1]):
                        c = edge_columns[w]
                        edge[t, c // s, c % s] += v * theta[edge_first + w]
        viterbi(node[:l], edge[: l if with_edges else 1], span, best, score)
        sure = True
        for t in range(l):
            known[t] = gold[a + t]
            sure = sure and gold[a + t] >= 0
        if not sure:
            for t in range(l):
                for j in range(s):
                    held[t, j] = node[t, j] if allowed[a + t, j] else -np.inf
            viterbi(held[:l], edge[: l if with_edges else 1], span, known, score)
        step = weights[i]
        for t in range(l):
            wrong = best[t] != known[t]
            if wrong:
                mistakes += 1
                for y, sign in ((known[t], step), (best[t], -step)):
                    _add_features(
                        a + t, y, sign, indptr, indices, values, starts, columns, 0, clock, theta,
                        sums,
                    )  # fmt: skip
            if t > 0 and (wrong or best[t - 1] != known[t - 1]):
                for p, q, sign in (
                    (known[t - 1], known[t], step),
                    (best[t - 1], best[t], -step),
                ):
                    w = pair_weight[p, q]
                    if w >= 0:
                        theta[w] += sign
                        sums[w] += clock * sign
                    if with_edges:
                        _add_features(
                            a + t, p * s + q, sign, edge_indptr, edge_indices, edge_values,
                            edge_starts, edge_columns, edge_first, clock, theta, sums,
                        )  # fmt: skip
        clock += 1
    return mistakes
