"""Small linear problems and everything about them by the list of all labellings."""

from __future__ import annotations

from itertools import product

import numpy as np
import scipy.sparse as sp

from seqfield.architectures.linear import Linear
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.labels import Targets
from seqfield.losses.exponential import ExponentialLoss
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import LinearProblem
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of

KINDS = ("binary", "counts", "negative", "real")


def law(s):
    """Label s - 1 follows only 0 and itself and starts nothing; with s > 2 nothing ends in 0."""
    pairs = np.ones((s, s), bool)
    pairs[1:-1, -1] = False
    start, end = np.ones(s, bool), np.ones(s, bool)
    start[-1] = False
    end[0] = s == 2
    return Allowed(start, pairs, end)


def gold_labels(rng, length, s, allowed):
    while True:
        y = rng.integers(s, size=length)
        if allowed is None:
            return y
        if allowed.start[y[0]] and allowed.end[y[-1]] and allowed.pairs[y[:-1], y[1:]].all():
            return y


def problem(
    kind="binary", s=3, *, n=12, scheme=False, observed=True, seed=0, lengths=None, width=6
):
    """An objective over sparse features that go with the labels, more or less."""
    rng = np.random.default_rng([seed, KINDS.index(kind), s, scheme])
    if lengths is None:
        lengths = np.append(np.arange(1, 5), rng.integers(1, 5, n - 4))
    offsets = offsets_of(lengths)
    total, allowed = int(offsets[-1]), law(s) if scheme else None
    y = np.concatenate([gold_labels(rng, l, s, allowed) for l in lengths])
    hit = rng.random((total, width)) < 0.15
    hit[np.arange(total), y % width] |= rng.random(total) < 0.6
    x = hit * {
        "binary": np.ones((total, width)),
        "counts": rng.integers(1, 4, (total, width)),
        "negative": rng.choice([-2, -1, 1], (total, width)),
        "real": rng.normal(size=(total, width)),
    }[kind].astype(float)
    return make_goal(x, offsets, y, s, allowed, rng.uniform(0.5, 2.0, len(lengths)), observed)


def make_goal(x, offsets, y, s, allowed=None, weights=None, observed=True, mask=None, edge=None):
    data = Sequences(sp.csr_array(x), offsets, None if edge is None else sp.csr_array(edge))
    targets = Targets(np.asarray(y, np.int32), mask, data.offsets)
    linear = Linear.build(data, targets, s, observed=observed)
    if weights is None:
        weights = np.ones(len(data))
    constraint = None if allowed is None else Constraint.of(allowed)
    goal = Objective(
        linear, ExponentialLoss(), ElasticNet(0.0, 0.0), data, targets, weights, constraint, 1
    )
    goal.start = lambda: np.zeros(linear.n_parameters)
    return goal


def linear_problem(goal):
    """What the perceptron and boosting are given of it."""
    return LinearProblem.of(
        goal.architecture, goal.data, goal.targets, goal.weights, goal.constraint
    )


def design(goal):
    """Node features (N, D) as an array; feature and label of each node weight; all pairs."""
    feature, label = goal.architecture.node.names()
    return goal.data.x.toarray(), feature, label, goal.architecture.pairs


class Brute:
    """Every lawful labelling but gold of every sequence, as one list.

    ``u`` (labellings, weights) counts each weight's feature beyond gold, ``sequence`` says whose
    labelling it is, ``low`` and ``high`` (sequences, weights) are the range of u over all
    labellings, lawful or not.
    """

    def __init__(self, goal, pi=1.0):
        x, feature, label, pairs = design(goal)
        s, offsets, gold = goal.architecture.n_labels, goal.data.offsets, goal.targets.codes
        self.weights = goal.weights * pi ** np.diff(offsets)
        u, sequence, low, high = [], [], [], []
        for i, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            labels = np.array(list(product(range(s), repeat=int(b - a))))
            on = labels[:, :, None] == label  # labelling, token, weight
            node = np.einsum("ltk,tk->lk", on, x[a:b, feature])
            follows = s * labels[:, :-1] + labels[:, 1:]
            edge = (follows[:, :, None] == pairs).sum(axis=1)
            counts = np.hstack([node, edge])
            at = np.flatnonzero((labels == gold[a:b]).all(axis=1))[0]
            wrong = np.ones(len(labels), bool)
            if goal.constraint is not None:
                c = goal.constraint
                total = c.start[labels[:, 0]] + c.end[labels[:, -1]]
                total = total + c.pairs[labels[:, :-1], labels[:, 1:]].sum(axis=1)
                wrong = total == 0.0
                assert wrong[at]
            wrong[at] = False
            more = counts - counts[at]
            u.append(more[wrong])
            sequence.append(np.full(wrong.sum(), i))
            low.append(more.min(axis=0))
            high.append(more.max(axis=0))
        self.u, self.sequence = np.concatenate(u), np.concatenate(sequence)
        self.low, self.high = np.array(low), np.array(high)

    def parts(self, theta):
        """w_i exp(F(y) - F(gold)) of each wrong labelling."""
        return self.weights[self.sequence] * np.exp(self.u @ theta)

    def risk(self, theta):
        """R = sum_i w_i (1 / p_i - 1)."""
        return self.parts(theta).sum()

    def log_p(self, theta):
        """log p(gold) of each sequence."""
        sums = np.bincount(self.sequence, np.exp(self.u @ theta), len(self.weights))
        return -np.log1p(sums)

    def z(self, theta, step):
        """What a step on each weight multiplies R with."""
        d = self.parts(theta)
        return d @ np.exp(step * self.u) / d.sum()

    def tight(self, theta, step):
        """The same bounded by the chord of each sequence over its own range of u."""
        return self._chords(theta, step, self.low[self.sequence], self.high[self.sequence])

    def loose(self, theta, step):
        """The same bounded by one chord over the range of all sequences."""
        return self._chords(theta, step, self.low.min(axis=0), self.high.max(axis=0))

    def _chords(self, theta, step, low, high):
        d = self.parts(theta)
        # where there is no range u is 0
        right = (self.u - low) / np.where(high > low, high - low, 1.0)
        return d @ ((1 - right) * np.exp(step * low) + right * np.exp(step * high)) / d.sum()

    def pseudo_accuracy(self, theta):
        """L, U and s of (3.22)-(3.28) of each weight."""
        low, high, d = self.low.min(axis=0), self.high.max(axis=0), self.parts(theta)
        return low, high, d @ ((high - self.u) / np.where(high > low, high - low, 1.0)) / d.sum()

    def rank_risk(self, theta):
        """Weighted number of wrong labellings that score at least as much as gold."""
        return self.weights[self.sequence] @ (self.u @ theta >= 0)
