"""Compiled loops of working sets: the small quadratic programs, visits, certificates.

Sequence i has a working set of labellings y, and

    v(y) = factor(y) (Psi(gold) - Psi(y)),    g(y) = need(y) - <f, v(y)>

so that f = sum alpha(y) v(y). Here g(y) has two meanings. It is the derivative of the dual with
respect to alpha(y), and it is the slack that the labelling requires.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop
from seqfield.architectures.dual import add_at, has_row, read_weights
from seqfield.solvers._margin_decoding import (
    HARD,
    L1,
    L2,
    LABELLING,
    ROUNDING,
    best_outside,
    distance,
    is_member,
    labels_of,
    margin_of,
    most_violated,
    reached,
    read,
    terms,
)

#: a visit solves its program until the largest violation is at most this share of its first value
FALL = 0.1


@inlined
def _values_of(task: Any, store: Any, i: Any, labels: Any, marks: Any, out: Any) -> None:
    """Values (l, S) of the function Psi(gold) - Psi(labels) at the marked tokens.

    Only the kernel of tokens counts here.
    """
    a, l = task.begin[i], labels.shape[0]
    gold = task.gold[a : a + l]
    if store.table.shape[0] > 0:
        for t in range(l):
            if marks[t]:
                for j in range(out.shape[1]):
                    out[t, j] = 0.0
                for q in range(l):
                    if labels[q] != gold[q]:
                        v = store.gram[store.slot[store.rows[a + q]], store.rows[a + t]]
                        out[t, gold[q]] += v
                        out[t, labels[q]] -= v
        return
    for sign in (1.0, 0.0):  # write the function to the store, read its values, then remove it
        for q in range(l):
            if labels[q] != gold[q]:
                r = store.rows[a + q]
                for k in range(store.indptr[r], store.indptr[r + 1]):
                    w = store.scratch[store.indices[k]]
                    w[gold[q]] = sign * (w[gold[q]] + store.values[k])
                    w[labels[q]] = sign * (w[labels[q]] - store.values[k])
        if sign == 1.0:
            for t in range(l):
                if marks[t]:
                    read_weights(store, store.scratch, store.rows[a + t], out[t])


@inlined
def _enter(
    task: Any, sets: Any, store: Any, i: Any, labels: Any, marks: Any, values: Any, steps: Any
) -> None:
    """Put labels into the working set of sequence i, with inner products with all its entries.

    values (l, S) and steps (S, S) are scratch arrays.
    """
    a, l, e = task.begin[i], labels.shape[0], sets.held[i]
    gold, width = task.gold[a : a + l], sets.capacity[i]
    at = sets.first[i] + e
    sets.need[at], sets.factor[at] = terms(task.margin, distance(gold, labels))
    sets.alpha[at], sets.idle[at] = 0.0, 0
    labels_of(sets, i, e, l)[:] = labels
    sets.held[i] = e + 1
    _values_of(task, store, i, labels, marks, values)
    steps[:] = 0.0
    for t in range(1, l):
        steps[gold[t - 1], gold[t]] += store.eta
        steps[labels[t - 1], labels[t]] -= store.eta
    for f in range(e + 1):
        y, inner = labels_of(sets, i, f, l), 0.0
        for t in range(l):
            if y[t] != gold[t]:
                inner += values[t, gold[t]] - values[t, y[t]]
            if t > 0 and (y[t] != gold[t] or y[t - 1] != gold[t - 1]):
                inner += steps[gold[t - 1], gold[t]] - steps[y[t - 1], y[t]]
        inner *= sets.factor[at] * sets.factor[sets.first[i] + f]
        sets.gram[sets.square[i] + e * width + f] = inner
        sets.gram[sets.square[i] + f * width + e] = inner


@inlined
def _solve(gram: Any, g: Any, alpha: Any, cost: Any, slack: Any) -> Any:
    """Maximise the dual over one working set: sequential minimal optimisation (Platt 1999).

    Each step moves an amount of alpha from the labelling with the least derivative to the labelling
    with the largest. The unused part of C counts as one more labelling. This labelling has no
    features, and its derivative is 0. g (k,) are the derivatives. g and alpha are changed. Returns
    the gain of the dual. The gain is infinite if the dual has no bound.
    """
    k, total, gain, begin = alpha.shape[0], alpha.sum(), 0.0, -1.0
    ridge = 1.0 / (2.0 * cost) if slack == L2 else 0.0
    rest = max(cost - total, 0.0) if slack == L1 else np.inf
    most = cost if slack == LABELLING else np.inf
    for j in range(k):
        g[j] -= ridge * total
    for _ in range(100 * (k + 1)):
        up, down, high = -1, -1, 0.0
        low = 0.0 if rest > 0.0 else np.inf
        for j in range(k):
            if g[j] > high and alpha[j] < most:
                up, high = j, g[j]
            if g[j] < low and alpha[j] > 0.0:
                down, low = j, g[j]
        fall = high - low
        if fall <= FALL * begin or fall <= 1e-14 * (1.0 + abs(high)) or up == down:
            break
        begin = fall if begin < 0.0 else begin
        bend = ridge if up < 0 or down < 0 else 0.0
        bend += gram[up, up] if up >= 0 else 0.0
        bend += gram[down, down] if down >= 0 else 0.0
        bend -= 2.0 * gram[up, down] if up >= 0 and down >= 0 else 0.0
        limit = alpha[down] if down >= 0 else rest
        limit = min(limit, most - alpha[up] if up >= 0 else np.inf)
        step = min(fall / bend, limit) if bend > 0.0 else limit
        if step == np.inf:
            return np.inf
        gain += step * fall - 0.5 * step * step * bend
        if up >= 0:
            alpha[up] = most if step == most - alpha[up] else alpha[up] + step
        if down >= 0:
            alpha[down] = 0.0 if step == alpha[down] else alpha[down] - step
        if slack == L1:
            rest += step * ((up < 0) - (down < 0) * 1.0)
            rest = 0.0 if down < 0 and step == limit else rest
        for j in range(k):
            if up >= 0:
                g[j] -= step * (gram[j, up] + (ridge if down < 0 else 0.0))
            if down >= 0:
                g[j] += step * (gram[j, down] + (ridge if up < 0 else 0.0))
    return gain


@loop
def visit(
    order: Any,
    begin: Any,
    decode: Any,
    task: Any,
    sets: Any,
    store: Any,
    beta: Any,
    delta: Any,
    wanted: Any,
) -> Any:
    """Visit the sequences order[begin:].

    With ``decode``, a visit first looks for a labelling to add. Then it maximises the dual over the
    working set, and changes the function accordingly.

    Returns the place in ``order`` where the loop stopped, the gain of the dual, and a number of
    gram rows (of ``wanted``). The loop needs these rows to continue. The gain is infinite if the
    dual has no bound.
    """
    s, longest, most = task.edge.shape[1], 0, 2
    for i in order[begin:]:
        longest = max(longest, task.end[i] - task.begin[i])
        most = max(most, sets.capacity[i])
    node, values = np.empty((longest, s)), np.empty((longest, s))
    change, steps = np.zeros((longest, s)), np.empty((s, s))
    marks, every = np.zeros(longest, np.bool_), np.ones(longest, np.bool_)
    found, g, before = np.empty(longest, np.int32), np.empty(most), np.empty(most)
    gain = 0.0
    for k in range(begin, order.shape[0]):
        i = order[k]
        a, l, first = task.begin[i], task.end[i] - task.begin[i], sets.first[i]
        gold, new = task.gold[a : a + l], False
        marks[:l] = False
        for e in range(sets.held[i]):
            y = labels_of(sets, i, e, l)
            for t in range(l):
                marks[t] |= y[t] != gold[t]
        read(task, store, i, every if decode else marks, node)
        # compute all margins before any of them changes
        worst = 0.0
        for e in range(sets.held[i]):
            y = labels_of(sets, i, e, l)
            m = margin_of(gold, y, node, task.edge)
            g[e] = sets.need[first + e] - sets.factor[first + e] * m
            worst = max(worst, g[e])
        if decode:
            here = node[:l]
            if task.slack == LABELLING:
                new, worst = best_outside(task, sets, i, gold, here, found[:l]), 0.0
            else:
                new = most_violated(task, gold, here, found[:l])
            if new:
                need, factor = terms(task.margin, distance(gold, found[:l]))
                asked = need - factor * margin_of(gold, found[:l], here, task.edge)
                new = asked > worst + ROUNDING * (1.0 + worst)
                new = new and not is_member(sets, i, found[:l])
                if new:
                    g[sets.held[i]] = asked
                    for t in range(l):
                        marks[t] |= found[t] != gold[t]
        n_wanted = 0
        for t in range(l):
            if marks[t] and not has_row(store, a + t):
                wanted[n_wanted] = store.rows[a + t]
                n_wanted += 1
        if n_wanted > 0:
            return k, gain, n_wanted
        if new:
            _enter(task, sets, store, i, found[:l], marks, values, steps)
        count, width = sets.held[i], sets.capacity[i]
        if count == 0:
            continue
        alpha = sets.alpha[first : first + count]
        before[:count] = alpha
        square = sets.gram[sets.square[i] : sets.square[i] + width * width]
        got = _solve(square.reshape((width, width)), g[:count], alpha, task.cost[i], task.slack)
        if got == np.inf:
            return k, np.inf, 0
        gain += got
        for e in range(count):
            d = (alpha[e] - before[e]) * sets.factor[first + e]
            sets.idle[first + e] = 0 if alpha[e] > 0.0 else sets.idle[first + e] + 1
            if d == 0.0:
                continue
            y = labels_of(sets, i, e, l)
            for t in range(l):
                if y[t] != gold[t]:
                    change[t, gold[t]] += d
                    change[t, y[t]] -= d
                if t > 0 and store.eta > 0.0 and (y[t] != gold[t] or y[t - 1] != gold[t - 1]):
                    delta[gold[t - 1], gold[t]] += d
                    delta[y[t - 1], y[t]] -= d
                    task.edge[0, gold[t - 1], gold[t]] += store.eta * d
                    task.edge[0, y[t - 1], y[t]] -= store.eta * d
        for t in range(l):
            if marks[t]:
                add_at(store, a + t, change[t])
                for j in range(s):
                    beta[store.rows[a + t], j] += change[t, j]
                    change[t, j] = 0.0
    return order.shape[0], gain, 0


@loop
def certify(low: Any, high: Any, task: Any, sets: Any, store: Any, out: Any) -> None:
    """Exact decoding of sequences low..high under a fixed function.

    The columns of out (n, 5) are: the slack that a sequence requires; the sums of alpha need, of
    alpha <f, v> and of alpha over its working set; and min <f, v> / need. The last column is the
    reached share of the margins, and is set only for hard margins.
    """
    s, longest = task.edge.shape[1], 0
    for i in range(low, high):
        longest = max(longest, task.end[i] - task.begin[i])
    node, every = np.empty((longest, s)), np.ones(longest, np.bool_)
    found = np.empty(longest, np.int32)
    for i in range(low, high):
        a, l, first = task.begin[i], task.end[i] - task.begin[i], sets.first[i]
        gold = task.gold[a : a + l]
        out[i] = 0.0
        read(task, store, i, every, node)
        here = node[:l]
        for e in range(sets.held[i]):
            m = margin_of(gold, labels_of(sets, i, e, l), here, task.edge)
            alpha, need = sets.alpha[first + e], sets.need[first + e]
            out[i, 1] += alpha * need
            out[i, 2] += alpha * sets.factor[first + e] * m
            out[i, 3] += alpha
            if task.slack == LABELLING:
                out[i, 0] += max(0.0, need - sets.factor[first + e] * m)
        if task.slack == LABELLING:
            # labellings outside the set could require any amount of slack: there must be none
            if best_outside(task, sets, i, gold, here, found[:l]):
                need, factor = terms(task.margin, distance(gold, found[:l]))
                if need - factor * margin_of(gold, found[:l], here, task.edge) > ROUNDING:
                    out[i, 0] = np.inf
            continue
        if task.slack == HARD:
            out[i, 4] = reached(task, gold, here, found[:l])
            continue
        if most_violated(task, gold, here, found[:l]):
            need, factor = terms(task.margin, distance(gold, found[:l]))
            m = margin_of(gold, found[:l], here, task.edge)
            out[i, 0] = max(0.0, need - factor * m)


@loop
def repack(old: Any, new: Any, lengths: Any, patience: Any) -> None:
    """Copy working sets into new ones that may have more room.

    Labellings that had no part in the solution for ``patience`` visits are dropped.
    """
    for i in range(lengths.shape[0]):
        kept, l = 0, lengths[i]
        places = np.empty(old.held[i], np.int64)
        for e in range(old.held[i]):
            if old.alpha[old.first[i] + e] > 0.0 or old.idle[old.first[i] + e] < patience:
                places[kept] = e
                kept += 1
        for f in range(kept):
            e, at = places[f], new.first[i] + f
            source = old.first[i] + e
            new.alpha[at], new.need[at] = old.alpha[source], old.need[source]
            new.factor[at], new.idle[at] = old.factor[source], old.idle[source]
            for t in range(l):
                new.labels[new.spot[i] + f * l + t] = old.labels[old.spot[i] + e * l + t]
            for h in range(kept):
                new.gram[new.square[i] + f * new.capacity[i] + h] = old.gram[
                    old.square[i] + e * old.capacity[i] + places[h]
                ]
        new.held[i] = kept
