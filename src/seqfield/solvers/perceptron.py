"""The averaged perceptron (Collins 2002; Altun 2005, algorithms 1 and 6).

The perceptron visits the sequences in a shuffled order. If the best labelling differs from the
known labelling, the weights change. The features of the known labelling are added, and the features
of the best labelling are subtracted. One compiled loop does an epoch. The dual form takes the same
steps in the coefficients of tokens and transitions.

The average over all sequences of all epochs has no extra cost. The clock c counts sequences. An
update d at time c stays in theta from then on. So the mean of theta over a time C is
theta - (sum of c d) / C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield._compile import inlined, loop
from seqfield.architectures._maps import Table
from seqfield.architectures.dual import add_at, has_row, read_scores
from seqfield.chain._numba_paths import viterbi
from seqfield.errors import InputError
from seqfield.objectives.needs import LINEAR_OR_DUAL, OWN_CRITERION, check
from seqfield.objectives.problems import DualProblem, LinearProblem
from seqfield.solvers._base import Callback, Floats, Minimum, Step


@dataclass(frozen=True)
class Perceptron:
    """Averaged perceptron with at most ``max_iter`` epochs.

    It ends earlier after an epoch without mistakes.

    The value of a step is the share of tokens that got a wrong label during the epoch. If labels
    are not known exactly, the best allowed labelling counts as the known labelling.
    """

    max_iter: int = 20
    average: bool = True
    seed: int = 0
    needs = (LINEAR_OR_DUAL, OWN_CRITERION)

    def minimise(
        self,
        problem: LinearProblem | DualProblem,
        theta: Floats,
        callback: Callback | None = None,
    ) -> Minimum:
        """Learn, starting from theta. In the dual form, theta must be zero."""
        check(self, problem)
        rng = np.random.default_rng(self.seed)
        now, sums, clock = theta.copy(), np.zeros_like(theta), 1
        epoch_over: _Primal | _Dual
        if isinstance(problem, DualProblem):
            epoch_over = _Dual(problem, now, sums)
        else:
            epoch_over = _Primal(problem, now, sums)
        n_tokens = int(problem.targets.offsets[-1])
        out, value, epoch = theta, 0.0, 0
        for epoch in range(1, self.max_iter + 1):
            order = rng.permutation(len(problem.weights))
            mistakes = epoch_over(order, clock)
            clock += len(order)
            out = now - sums / clock if self.average else now.copy()
            value = mistakes / n_tokens
            stop = callback is not None and callback(Step(epoch, out, value))
            if stop or mistakes == 0:
                break
        return Minimum(out, value, None, epoch, True)


class _Primal:
    """Epochs over explicit weights theta."""

    def __init__(self, problem: LinearProblem, theta: Floats, sums: Floats) -> None:
        tables = problem.tables
        edge = tables.edge
        if edge is None:
            none, no_weights = np.zeros(0, np.int64), np.zeros(0, np.int32)
            edge = Table(none, no_weights, np.zeros(0), none, no_weights)
        first = (tables.offsets, *tables.node, *edge, tables.edge_first, tables.pair_weight)
        self._arrays = (*first, *_known(problem, len(tables.pair_weight)), theta, sums)

    def __call__(self, order: NDArray[np.int64], clock: int) -> int:
        return int(pass_over(order, *(*self._arrays, clock)))


class _Dual:
    """Epochs over theta = [beta | delta] of `architectures.dual.Dual`."""

    def __init__(self, problem: DualProblem, theta: Floats, sums: Floats) -> None:
        if theta.any():
            raise InputError("the dual perceptron starts at zero: give zeros as theta")
        self._growing = problem.zero()
        split = self._growing.dual.split
        known = _known(problem, self._growing.dual.n_labels)
        self._wanted = np.empty(int(np.diff(self._growing.offsets).max()), np.int64)
        first = (self._growing.offsets, self._growing.store)
        self._arrays = (*first, *known, *split(theta), *split(sums), self._wanted)

    def __call__(self, order: NDArray[np.int64], clock: int) -> int:
        done, mistakes = 0, 0
        while done < len(order):
            done, wrong, n_wanted = dual_pass(order, done, *(*self._arrays, clock))
            mistakes += wrong
            if n_wanted:
                self._growing.fetch(self._wanted[:n_wanted])
        return mistakes


def _known(problem: LinearProblem | DualProblem, s: int) -> tuple[Any, ...]:
    """Constraints, labels and weights, in the layout of the loops."""
    targets, c = problem.targets, problem.constraint
    allowed = targets.allowed
    if allowed is None:
        allowed = np.zeros((0, s), np.bool_)
    start, pairs, end = np.zeros(s), np.zeros((s, s)), np.zeros(s)
    if c is not None:
        start, pairs, end = c.start, c.pairs, c.end
    # the dual form adds learned transitions to the pairs, so the pairs are copied
    return start, pairs.copy(), end, targets.codes, allowed, problem.weights


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
    """theta += step x and sums += clock step x, for the features x of token t and one column."""
    for k in range(indptr[t], indptr[t + 1]):
        f = indices[k]
        for w in range(starts[f], starts[f + 1]):
            if columns[w] == column:
                theta[first + w] += step * values[k]
                sums[first + w] += clock * step * values[k]


@inlined
def _best_known(
    gold: Any, allowed: Any, node: Any, edge: Any, span: Any, held: Any, known: Any, score: Any
) -> None:
    """The labels, if all labels are known. Otherwise the best allowed labelling."""
    sure = True
    for t in range(gold.shape[0]):
        known[t] = gold[t]
        sure = sure and gold[t] >= 0
    if not sure:
        for t in range(gold.shape[0]):
            for j in range(node.shape[1]):
                held[t, j] = node[t, j] if allowed[t, j] else -np.inf
        viterbi(held[: gold.shape[0]], edge, span, known, score)


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
    """Visit the sequences in order. Changes theta and sums; returns the number of wrong tokens."""
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
        here = edge[: l if with_edges else 1]
        viterbi(node[:l], here, span, best, score)
        _best_known(gold[a : a + l], allowed[a : a + l], node, here, span, held, known, score)
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


@loop
def dual_pass(
    order: Any,
    begin: Any,
    offsets: Any,
    store: Any,
    start: Any,
    pairs: Any,
    end: Any,
    gold: Any,
    allowed: Any,
    weights: Any,
    beta: Any,
    delta: Any,
    beta_sums: Any,
    delta_sums: Any,
    wanted: Any,
    clock: Any,
) -> Any:
    """Visit the sequences order[begin:]. Changes beta, delta, their sums, the store and the pairs.

    Returns the place in ``order`` where the loop stopped, the number of wrong tokens, and a number
    of gram rows (of ``wanted``). The loop needs these rows to continue.
    """
    s, longest = pairs.shape[0], 0
    for i in order[begin:]:
        longest = max(longest, offsets[i + 1] - offsets[i])
    node, change = np.empty((longest, s)), np.zeros(s)
    held = np.empty((longest if allowed.shape[0] > 0 else 0, s))
    best, known = np.empty(longest, np.int32), np.empty(longest, np.int32)
    span, score = np.zeros(2, np.int64), np.empty(1)
    edge, mistakes = pairs.reshape((1, s, s)), 0
    for k in range(begin, order.shape[0]):
        i = order[k]
        a, l = offsets[i], offsets[i + 1] - offsets[i]
        span[1] = l
        for t in range(l):
            read_scores(store, a + t, node[t])
        for j in range(s):
            node[0, j] += start[j]
            node[l - 1, j] += end[j]
        viterbi(node[:l], edge, span, best, score)
        _best_known(gold[a : a + l], allowed[a : a + l], node, edge, span, held, known, score)
        n_wanted = 0
        for t in range(l):
            if best[t] != known[t] and not has_row(store, a + t):
                wanted[n_wanted] = store.rows[a + t]
                n_wanted += 1
        if n_wanted > 0:
            return k, mistakes, n_wanted
        step, now = weights[i], clock + k
        for t in range(l):
            wrong = best[t] != known[t]
            if wrong:
                mistakes += 1
                r = store.rows[a + t]
                for y, d in ((known[t], step), (best[t], -step)):
                    change[y] = d
                    beta[r, y] += d
                    beta_sums[r, y] += now * d
                add_at(store, a + t, change)
                change[known[t]] = change[best[t]] = 0.0
            if t > 0 and store.eta > 0.0 and (wrong or best[t - 1] != known[t - 1]):
                for p, q, d in (
                    (known[t - 1], known[t], step),
                    (best[t - 1], best[t], -step),
                ):
                    delta[p, q] += d
                    delta_sums[p, q] += now * d
                    edge[0, p, q] += store.eta * d
    return order.shape[0], mistakes, 0
