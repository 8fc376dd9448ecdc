"""Compiled decoding for maximum margins: find the labellings that require the most slack.

`Task` holds the problem and `Sets` the working sets, as plain arrays. The slack that a labelling y
requires is need(y) - factor(y) (F(gold) - F(y)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._compile import inlined
from seqfield.architectures.dual import read_scores
from seqfield.chain._numba_paths import nbest, viterbi, viterbi_by_distance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNIT, HAMMING, SCALED = 0, 1, 2
L1, L2, LABELLING, HARD = 0, 1, 2, 3
#: largest slack that rounding errors alone may cause
ROUNDING = 1e-12


class Task(NamedTuple):
    """Sequences whose labels are all known, the required margins, and the transition scores.

    Sequence i has the tokens begin[i]..end[i]. A sequence may be part of a longer one. Then
    ``opens`` is false if the longer one begins earlier, ``closes`` if it ends later.
    """

    begin: Ints
    end: Ints
    opens: NDArray[np.bool_]
    closes: NDArray[np.bool_]
    gold: NDArray[np.int32]
    cost: Floats  # (n,) C times the weight of the sequence
    start: Floats
    edge: Floats  # (1, S, S), -inf for forbidden transitions
    stop: Floats
    margin: int
    slack: int


class Sets(NamedTuple):
    """The working sets. Each has room for ``capacity`` labellings and now holds ``held`` of them.

    Entry e of sequence i is at first[i] + e. Its inner product with entry f is at
    square[i] + e capacity[i] + f. Its labels begin at spot[i] + e length[i].
    """

    held: Ints
    capacity: Ints
    first: Ints
    square: Ints
    spot: Ints
    alpha: Floats
    need: Floats
    factor: Floats
    idle: Ints  # visits since alpha was above 0
    gram: Floats
    labels: NDArray[np.int32]


@inlined
def labels_of(sets: Any, i: Any, e: Any, l: Any) -> Any:
    at = sets.spot[i] + e * l
    return sets.labels[at : at + l]


@inlined
def read(task: Any, store: Any, i: Any, marks: Any, node: Any) -> None:
    """Read the scores of the marked tokens into ``node``."""
    a, l = task.begin[i], task.end[i] - task.begin[i]
    for t in range(l):
        if marks[t]:
            read_scores(store, a + t, node[t])
    for j in range(node.shape[1]):
        if task.opens[i]:
            node[0, j] += task.start[j]
        if task.closes[i]:
            node[l - 1, j] += task.stop[j]


@inlined
def margin_of(gold: Any, labels: Any, node: Any, edge: Any) -> Any:
    """F(gold) - F(labels), computed only from the places where gold and labels differ."""
    m = 0.0
    for t in range(labels.shape[0]):
        y, g = labels[t], gold[t]
        if y != g:
            m += node[t, g] - node[t, y]
        if t > 0 and (y != g or labels[t - 1] != gold[t - 1]):
            m += edge[0, gold[t - 1], g] - edge[0, labels[t - 1], y]
    return m


@inlined
def distance(gold: Any, labels: Any) -> Any:
    h = 0
    for t in range(labels.shape[0]):
        h += labels[t] != gold[t]
    return h


@inlined
def terms(margin: Any, h: Any) -> Any:
    """need and factor of a labelling at Hamming distance h."""
    if margin == UNIT:
        return 1.0, 1.0
    return float(h), (1.0 if margin == HAMMING else float(h))


@inlined
def _add_cost(gold: Any, node: Any, cost: Any) -> None:
    """Add ``cost`` to the score of every wrong label."""
    for t in range(node.shape[0]):
        for j in range(node.shape[1]):
            if j != gold[t]:
                node[t, j] += cost


@inlined
def _second_best(gold: Any, node: Any, edge: Any, found: Any) -> Any:
    """The best labelling other than gold, if there is one."""
    l = node.shape[0]
    span, best = np.array([0, l]), np.empty(1)
    viterbi(node, edge, span, found, best)
    if distance(gold, found) > 0:
        return best[0] > -np.inf
    two, values = np.empty((2, l), np.int32), np.empty((1, 2))
    nbest(node, edge, span, 2, two, values)
    # if both labellings have the same score, gold may be first or second
    pick = 0 if distance(gold, two[0]) > 0 else 1
    found[:] = two[pick]
    return values[0, pick] > -np.inf


@inlined
def most_violated(task: Any, gold: Any, node: Any, found: Any) -> Any:
    """Find the labelling that requires the most slack, if there is any. May change ``node``."""
    l = node.shape[0]
    if task.margin == UNIT:
        return _second_best(gold, node, task.edge, found)
    if task.margin == HAMMING:
        _add_cost(gold, node, 1.0)
        best = np.empty(1)
        viterbi(node, task.edge, np.array([0, l]), found, best)
        _add_cost(gold, node, -1.0)
        return distance(gold, found) > 0
    labels, best = np.zeros((l + 1, l), np.int32), np.empty(l + 1)
    viterbi_by_distance(node, task.edge, gold, labels, best)
    worst, pick = -np.inf, 0
    for h in range(1, l + 1):
        if best[h] > -np.inf:
            asked = h * (1.0 - margin_of(gold, labels[h], node, task.edge))
            if asked > worst:
                worst, pick = asked, h
    found[:] = labels[pick]
    return pick > 0


@inlined
def best_outside(task: Any, sets: Any, i: Any, gold: Any, node: Any, found: Any) -> Any:
    """Find the labelling outside the working set that requires the most slack, if there is any.

    With slack rescaling, find the labelling of the least margin. It requires slack if any labelling
    outside the working set does.
    """
    l, k = node.shape[0], sets.held[i] + 2
    labels, values = np.empty((k, l), np.int32), np.empty((1, k))
    extra = 1.0 if task.margin == HAMMING else 0.0
    _add_cost(gold, node, extra)
    nbest(node, task.edge, np.array([0, l]), k, labels, values)
    _add_cost(gold, node, -extra)
    for r in range(k):
        if values[0, r] == -np.inf:
            return False
        if distance(gold, labels[r]) > 0 and not is_member(sets, i, labels[r]):
            found[:] = labels[r]
            return True
    return False


@inlined
def is_member(sets: Any, i: Any, labels: Any) -> Any:
    for e in range(sets.held[i]):
        if distance(labels, labels_of(sets, i, e, labels.shape[0])) == 0:
            return True
    return False


@inlined
def reached(task: Any, gold: Any, node: Any, found: Any) -> Any:
    """The minimum of <f, v> / need over labellings. If it is 1, all constraints hold."""
    if task.margin != HAMMING:
        if not _second_best(gold, node, task.edge, found):
            return np.inf
        return margin_of(gold, found, node, task.edge)
    l, least = node.shape[0], np.inf
    labels, best = np.zeros((l + 1, l), np.int32), np.empty(l + 1)
    viterbi_by_distance(node, task.edge, gold, labels, best)
    for h in range(1, l + 1):
        if best[h] > -np.inf:
            least = min(least, margin_of(gold, labels[h], node, task.edge) / h)
    return least
