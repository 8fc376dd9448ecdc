"""Exponential loss in the log domain: the logarithm of the summed inverse probabilities."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from seqfield._checks import number
from seqfield.chain import ChainScores
from seqfield.labels import Targets
from seqfield.losses._base import Floats, Loss, ScoreGradient
from seqfield.losses.log import LogLoss


class ExponentialLoss(Loss):
    """log R with R = sum_i D_i (1 / p(y_i | x_i) - 1), D_i = w_i pi^l_i (Altun 2005, 3.7).

    1 / p is S^l at zero weights, beyond any float for ordinary sentences, so everything stays a
    logarithm. R is a sum of exponentials of linear functions of the scores: log R is convex.

    1 / p - 1 = expm1(x) with x = -log p, and d log R / dx_i = D_i e^x_i / R: the gradient is that
    of the log loss with these weights.

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
        """Value and score gradient, sequence i counting ``weights[i]`` times."""
        x = self._log_loss.values(scores, targets)
        value = self.total(self._parts(x, targets), weights)
        if value == -np.inf:  # every gold labelling is certain, or nothing is known
            own = np.zeros_like(x)
        else:
            with np.errstate(divide="ignore", under="ignore"):
                own = np.exp(np.log(weights) + self._discount(targets) + x - value)
            # a gold labelling that the scores forbid has infinite loss and no gradient
            own[~np.isfinite(x)] = 0.0
        return ScoreGradient(value, *self._log_loss(scores, targets, own)[1:])

    def values(self, scores: ChainScores, targets: Targets) -> Floats:
        """log(pi^l (1 / p - 1)) of each sequence (n,)."""
        return self._parts(self._log_loss.values(scores, targets), targets)

    def _discount(self, targets: Targets) -> Floats:
        return self.log_weight * np.diff(targets.offsets)

    def _parts(self, x: Floats, targets: Targets) -> Floats:
        # log expm1(x) = x + log(1 - e^-x), and -inf for x = 0 (or a rounding error below)
        with np.errstate(divide="ignore", under="ignore"):
            x = np.maximum(x, 0.0)
            return np.asarray(self._discount(targets) + x + np.log(-np.expm1(-x)))

    def total(self, values: Floats, weights: Floats) -> float:
        """log sum_i w_i exp(values_i)."""
        if not (weights > 0).any() or (values[weights > 0] == -np.inf).all():
            return -np.inf
        with np.errstate(under="ignore"):
            return float(logsumexp(values, b=weights))

    def shares(self, values: Floats, weights: Floats) -> Floats:
        """w_i exp(values_i) / R."""
        total = self.total(values, weights)
        if total == -np.inf:
            return np.zeros_like(values)
        with np.errstate(under="ignore"):
            return np.asarray(weights * np.exp(values - total))
