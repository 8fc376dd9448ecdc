"""Log loss -log p(y | x), with an optional cost that makes it the softmax margin."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from seqfield.chain import ChainScores, log_partition, log_prob, marginals, sample, subtract_path
from seqfield.labels import Targets
from seqfield.losses._base import Floats, Loss, ScoreGradient, ScoreTangent, covariance


@dataclass(frozen=True)
class LogLoss(Loss):
    """sum_i w_i (log Z_i - log Z_i restricted to the known labels).

    If every label is known, the second term is the score of the gold labels, and the loss is
    -log p(y | x). With missing labels or candidate sets, the loss is -log of the summed probability
    of all labellings that agree with the known labels. This is exact; nothing is imputed.

    ``cost`` (at least 0) is added to the score of every wrong label in log Z alone. With a cost
    above 0 the loss is the softmax margin.

    >>> import numpy as np
    >>> scores = ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))
    >>> targets = Targets(np.array([0, 1], np.int32), None, np.array([0, 2]))
    >>> round(LogLoss()(scores, targets, np.ones(1)).value, 4)
    1.3863
    """

    cost: float = 0.0

    def __call__(self, scores: ChainScores, targets: Targets, weights: Floats) -> ScoreGradient:
        """Value and score gradient; sequence i counts ``weights[i]`` times."""
        pairs: Literal["sum", "each"] = "sum" if scores.stationary else "each"
        free = marginals(self.free(scores, targets), pairs=pairs, weights=weights)
        assert free.pairs is not None
        per_token = np.repeat(weights, np.diff(targets.offsets))
        node = free.node
        edge = free.pairs
        if not scores.stationary:
            edge *= per_token[:, None, None]
        if (weights != 1.0).any():
            node *= per_token[:, None]
        if targets.allowed is None:
            known = subtract_path(scores, targets.codes, weights, node, edge)
        else:
            held = marginals(scores, allowed=targets.allowed, pairs=pairs, weights=weights)
            assert held.pairs is not None
            node -= held.node * per_token[:, None]
            edge -= held.pairs if scores.stationary else held.pairs * per_token[:, None, None]
            known = float(weights @ held.log_z)
        return ScoreGradient(float(weights @ free.log_z) - known, node, edge)

    def values(self, scores: ChainScores, targets: Targets) -> Floats:
        """The loss of each sequence (n,), without gradient."""
        if self.cost == 0.0 and targets.allowed is None:
            return -log_prob(scores, targets.codes)
        free = log_partition(self.free(scores, targets))
        return free - log_partition(scores, allowed=targets.mask(scores.n_labels))

    def tangent(
        self, scores: ChainScores, targets: Targets, weights: Floats, d_node: Floats, d_edge: Floats
    ) -> ScoreTangent:
        """The derivative of the score gradient along (d_node, d_edge)."""
        node, edge = covariance(self.free(scores, targets), weights, d_node, d_edge)
        if targets.allowed is None:  # the score of the gold labels is linear
            return ScoreTangent(node, edge)
        held = covariance(scores, weights, d_node, d_edge, targets.allowed)
        return ScoreTangent(node - held.node, edge - held.edge)

    def curvature(
        self,
        scores: ChainScores,
        targets: Targets,
        weights: Floats,
        rng: np.random.Generator,
        n: int,
    ) -> tuple[list[Floats], Floats]:
        """Second derivatives by the scores of each sequence, one label at a time (S, T, T), and by
        each transition (S, S), if every label is known.

        The estimate from n labellings y ~ p(y | x) is unbiased and always positive semi-definite.
        """
        s, offsets = scores.n_labels, scores.offsets
        drawn = sample(self.free(scores, targets), n, random_state=rng)
        centred = (drawn[:, :, None] == np.arange(s)).astype(np.float64)
        centred -= centred.mean(axis=0)
        nodes = []
        for i, (a, b) in enumerate(pairwise(offsets.tolist())):
            own = centred[:, a:b].transpose(2, 1, 0)
            nodes.append(weights[i] / (n - 1) * (own @ own.transpose(0, 2, 1)))
        # counts of transitions are multiplied by the root of the weight, so variances by the weight
        later = np.delete(np.arange(offsets[-1]), offsets[:-1])
        root = np.sqrt(np.repeat(weights, np.diff(offsets)))[later]
        codes = drawn[:, later - 1].astype(np.int64) * s + drawn[:, later]
        counts = np.stack([np.bincount(row, root, s * s) for row in codes])
        return nodes, counts.var(axis=0, ddof=1).reshape(s, s)

    def free(self, scores: ChainScores, targets: Targets) -> ChainScores:
        """The scores whose partition function is log Z, the cost added to wrong labels."""
        if self.cost == 0.0:
            return scores
        node = scores.node + self.cost * ~targets.mask(scores.n_labels)
        return ChainScores(node, scores.edge, scores.offsets, scores.start, scores.end, check=False)
