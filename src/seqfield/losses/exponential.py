"""Exponential loss in the log domain: the logarithm of the summed inverse probabilities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from seqfield._checks import number
from seqfield.chain import ChainScores, others
from seqfield.labels import Targets
from seqfield.losses._base import Floats, Loss, ScoreGradient
from seqfield.losses.log import LogLoss

Integers = NDArray[np.int64]

#: below this -log p, the odds 1 / p - 1 are computed without p, because 1 - p loses digits
SURE = 1e-6
#: numbers held at a time for such sequences
HELD = 2**22


class ExponentialLoss(Loss):
    """log R with R = sum_i D_i (1 / p(y_i | x_i) - 1), D_i = w_i pi^l_i (Altun 2005, 3.7).

    At zero weights 1 / p is S^l, which overflows for ordinary sentences. So everything is kept as a
    logarithm. R is a sum of exponentials of linear functions of the scores, so log R is convex.

    1 / p - 1 = expm1(x) with x = -log p, and d log R / dx_i = D_i e^x_i / R. So the gradient is
    that of the log loss with these weights. If p is nearly 1, another form loses no digits: the
    share of the sequence in R times (marginals over all labellings except gold - gold indicators).

    >>> scores = ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))
    >>> targets = Targets(np.array([0, 1], np.int32), None, np.array([0, 2]))
    >>> round(float(np.exp(ExponentialLoss()(scores, targets, np.ones(1)).value)), 4)
    3.0
    """

    additive = False

    def __init__(self, length_weight: float = 1.0) -> None:
        #: log pi
        self.log_weight = float(np.log(number("length_weight", length_weight, low=1e-100, high=1)))
        self._log_loss = LogLoss()

    def __call__(self, scores: ChainScores, targets: Targets, weights: Floats) -> ScoreGradient:
        """Value and score gradient; sequence i counts ``weights[i]`` times."""
        x = self._log_loss.values(scores, targets)
        sure = _sure(x, targets)
        values = self._discount(targets) + self._log_odds(x, sure, scores, targets)
        value = self.total(values, weights)
        own = np.zeros_like(x)
        # log R is infinite if every gold labelling is certain, or if one is forbidden
        if np.isfinite(value):
            x[sure] = -np.inf
            with np.errstate(divide="ignore", under="ignore"):
                own = np.exp(np.log(weights) + self._discount(targets) + x - value)
        _, node, edge = self._log_loss(scores, targets, own)
        share = self.shares(values, weights)
        for sequences in _groups(sure if np.isfinite(value) else sure[:0], scores):
            rows, part = scores.select(sequences)
            y, every = targets.codes[rows], np.arange(len(rows))
            found = others(part, y)
            later = np.delete(every, part.offsets[:-1])
            found.node[every, y] -= 1.0
            found.pairs[later, y[later - 1], y[later]] -= 1.0
            w = np.repeat(share[sequences], np.diff(part.offsets))
            node[rows] += w[:, None] * found.node
            pairs = w[:, None, None] * found.pairs
            if scores.stationary:
                edge += pairs.sum(axis=0)
            else:
                edge[rows] += pairs
        return ScoreGradient(value, node, edge)

    def values(self, scores: ChainScores, targets: Targets) -> Floats:
        """log(pi^l (1 / p - 1)) of each sequence (n,)."""
        x = self._log_loss.values(scores, targets)
        odds = self._log_odds(x, _sure(x, targets), scores, targets)
        return self._discount(targets) + odds

    def _discount(self, targets: Targets) -> Floats:
        return self.log_weight * np.diff(targets.offsets)

    def _log_odds(self, x: Floats, sure: Integers, scores: ChainScores, targets: Targets) -> Floats:
        """log(1 / p - 1) of each sequence."""
        # log expm1(x) = x + log(1 - e^-x), and -inf for x = 0 (or a rounding error below)
        with np.errstate(divide="ignore", under="ignore"):
            odds = np.asarray(np.maximum(x, 0.0) + np.log(-np.expm1(-np.maximum(x, 0.0))))
        for sequences in _groups(sure, scores):
            rows, part = scores.select(sequences)
            odds[sequences] = others(part, targets.codes[rows]).log_odds
        return odds

    def total(self, values: Floats, weights: Floats) -> float:
        """log sum_i w_i exp(values_i)."""
        if not (weights > 0).any() or (values[weights > 0] == -np.inf).all():
            return -np.inf
        with np.errstate(under="ignore"):
            return float(logsumexp(values, b=weights))

    def shares(self, values: Floats, weights: Floats) -> Floats:
        """w_i exp(values_i) / R."""
        total = self.total(values, weights)
        if not np.isfinite(total):
            return np.zeros_like(values)
        with np.errstate(under="ignore"):
            return np.asarray(weights * np.exp(values - total))


def _sure(x: Floats, targets: Targets) -> Integers:
    """The sequences whose gold labelling, known in full, is nearly certain."""
    known = np.logical_and.reduceat(targets.codes >= 0, targets.offsets[:-1])
    return np.flatnonzero((x < SURE) & known)


def _groups(sequences: Integers, scores: ChainScores) -> Iterator[Integers]:
    """The sequences in runs whose pair marginals fit in memory."""
    if len(sequences) == 0:
        return
    tokens = np.cumsum(np.diff(scores.offsets)[sequences])
    group = tokens * (scores.n_labels + 1) ** 2 // HELD
    yield from np.split(sequences, np.flatnonzero(np.diff(group)) + 1)
