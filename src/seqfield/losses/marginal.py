"""Marginal loss: the mean over a sequence's tokens of -log p(y_t | x)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from seqfield.chain import ChainScores, marginals, tangent
from seqfield.labels import Targets
from seqfield.losses._base import Floats, Loss, ScoreGradient

#: a probability that underflows counts as this, so that the loss stays finite
TINY = 1e-300


class MarginalLoss(Loss):
    """sum_i w_i / l_i sum_t -log p(y_t in known labels | x) (Altun 2005, 2.18).

    It is an upper bound on the Hamming error of max-marginal decoding. It is not convex.

    Let V(y) = sum_t v_t(y_t) with v_t(j) = w_i / l_i 1{j known} / p(y_t known | x). The gradient by
    a score is minus the covariance of V with its indicator. That is the derivative of the marginals
    along the direction v, which takes one more pass of the same cost.

    >>> scores = ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))
    >>> targets = Targets(np.array([0, 1], np.int32), None, np.array([0, 2]))
    >>> round(MarginalLoss()(scores, targets, np.ones(1)).value, 4)
    0.6931
    """

    convex = False

    def __call__(self, scores: ChainScores, targets: Targets, weights: Floats) -> ScoreGradient:
        """Value and score gradient; sequence i counts ``weights[i]`` times."""
        known = self._known(scores, targets)
        lengths = np.diff(targets.offsets)
        v = np.repeat(weights / lengths, lengths) / known
        if targets.allowed is None:
            direction = np.zeros_like(scores.node)
            direction[np.arange(len(v)), targets.codes] = v
        else:
            direction = v[:, None] * targets.allowed
        pairs: Literal["sum", "each"] = "sum" if scores.stationary else "each"
        change = tangent(scores, direction, pairs=pairs)
        assert change.pairs is not None
        value = self.total(_means(-np.log(known), targets), weights)
        return ScoreGradient(value, -change.node, -change.pairs)

    def values(self, scores: ChainScores, targets: Targets) -> Floats:
        """The loss of each sequence (n,)."""
        return _means(-np.log(self._known(scores, targets)), targets)

    def _known(self, scores: ChainScores, targets: Targets) -> Floats:
        """p(y_t in known labels | x) of each token."""
        p = marginals(scores).node
        if targets.allowed is None:
            held = p[np.arange(len(p)), targets.codes]
        else:
            held = (p * targets.allowed).sum(axis=1)
            held[targets.allowed.all(axis=1)] = 1.0  # if nothing is known, the loss is exactly 0
        return np.clip(held, TINY, 1.0)


def _means(values: Floats, targets: Targets) -> Floats:
    sums: Floats = np.add.reduceat(values, targets.offsets[:-1])
    return sums / np.diff(targets.offsets)
