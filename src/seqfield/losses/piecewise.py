"""Piecewise pseudo-likelihood (Sutton and McCallum 2007): each edge by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqfield.chain import ChainScores
from seqfield.errors import CapabilityError
from seqfield.labels import Targets
from seqfield.losses._base import Floats, Loss, ScoreGradient
from seqfield.losses.pseudo import log_sum_exp

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PiecewiseLoss(Loss):
    """-sum over edges of log p(y_t | y_{t-1}) + log p(y_{t-1} | y_t), where each term is normalised
    over the scores of its edge and its two nodes alone.

    The node scores of the given label cancel. So a term is the log softmax of
    node_t + edge[y_{t-1}, :] or of node_{t-1} + edge[:, y_t]. A missing label gives no term, and no
    term is conditioned on it. For candidates the probabilities are summed. A label without known
    neighbours (as in a sequence of one token) has the term log softmax node_t.

    >>> scores = ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))
    >>> targets = Targets(np.array([0, 1], np.int32), None, np.array([0, 2]))
    >>> round(PiecewiseLoss()(scores, targets, np.ones(1)).value, 4)
    1.3863
    """

    stationary = True

    def __call__(self, scores: ChainScores, targets: Targets, weights: Floats) -> ScoreGradient:
        """Value and score gradient; sequence i counts ``weights[i]`` times."""
        node, known = self._node(scores), targets.mask(scores.n_labels)
        d_node, d_edge = np.zeros_like(node), np.zeros_like(scores.edge)
        per_token = np.repeat(weights, np.diff(targets.offsets))
        value = 0.0
        for side, t, given in self._pieces(targets, known):
            z = node[t] + self._edges(scores.edge, side, given)
            parts, d = _softmax(z, known[t])
            w = per_token[t]
            value += float(w @ parts)
            d *= w[:, None]
            np.add.at(d_node, t, d)
            if side:
                table = np.zeros_like(d_edge)
                np.add.at(table, given, d)
                d_edge += table if side == "before" else table.T
        return ScoreGradient(value, d_node, d_edge)

    def values(self, scores: ChainScores, targets: Targets) -> Floats:
        """The loss of each sequence (n,)."""
        node, known = self._node(scores), targets.mask(scores.n_labels)
        out = np.zeros(scores.n_sequences)
        sequence = np.repeat(np.arange(len(out)), np.diff(targets.offsets))
        for side, t, given in self._pieces(targets, known):
            z = node[t] + self._edges(scores.edge, side, given)
            out += np.bincount(sequence[t], _softmax(z, known[t])[0], len(out))
        return out

    def curvature(
        self,
        scores: ChainScores,
        targets: Targets,
        weights: Floats,
        rng: np.random.Generator,
        n: int,
    ) -> tuple[list[Floats], Floats]:
        """Second derivatives by the scores of each sequence, one label at a time (S, T, T), and by
        each transition (S, S), if every label is known: p (1 - p) of each piece, exactly."""
        node, known = self._node(scores), targets.mask(scores.n_labels)
        per_token = np.repeat(weights, np.diff(targets.offsets))
        own, steps = np.zeros_like(node), np.zeros_like(scores.edge)
        for side, t, given in self._pieces(targets, known):
            z = node[t] + self._edges(scores.edge, side, given)
            p = np.exp(z - log_sum_exp(z)[:, None]) if len(z) else z
            bent = per_token[t][:, None] * p * (1.0 - p)
            np.add.at(own, t, bent)
            if side:
                table = np.zeros_like(steps)
                np.add.at(table, given, bent)
                steps += table if side == "before" else table.T
        parts = np.split(own, targets.offsets[1:-1])
        return [part.T[:, :, None] * np.eye(len(part)) for part in parts], steps

    @staticmethod
    def _node(scores: ChainScores) -> Floats:
        """Node scores with the scores of starts and ends added."""
        if not scores.stationary:
            raise CapabilityError(
                "the piecewise likelihood needs one matrix of transition scores for all positions"
            )
        node = scores.node.astype(np.float64)
        if scores.start is not None:
            node[scores.offsets[:-1]] += scores.start
        if scores.end is not None:
            node[scores.offsets[1:] - 1] += scores.end
        return node

    @staticmethod
    def _edges(edge: Floats, side: str, given: Ints) -> Floats | float:
        if not side:
            return 0.0
        return edge[given] if side == "before" else edge.T[given]

    @staticmethod
    def _pieces(targets: Targets, known: NDArray[np.bool_]) -> list[tuple[str, Ints, Ints]]:
        """Groups (side of the known label, tokens to explain, known labels): one for each side, and
        one for tokens without known neighbours."""
        told, codes = ~known.all(axis=1), targets.codes.astype(np.int64)
        before, after = np.full(len(codes), -1), np.full(len(codes), -1)
        before[1:], after[:-1] = codes[:-1], codes[1:]
        before[targets.offsets[:-1]] = -1
        after[targets.offsets[1:] - 1] = -1
        out = []
        for side, given in (("before", before), ("after", after)):
            t = np.flatnonzero(told & (given >= 0))
            out.append((side, t, given[t]))
        t = np.flatnonzero(told & (before < 0) & (after < 0))
        return [*out, ("", t, np.full(len(t), -1))]


def _softmax(z: Floats, known: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """-log of the summed probability of known labels (K,), and its derivative by z (K, S)."""
    if not len(z):
        return np.zeros(0), np.zeros_like(z)
    held = np.where(known, z, -np.inf)
    total, part = log_sum_exp(z), log_sum_exp(held)
    return total - part, np.exp(z - total[:, None]) - np.exp(held - part[:, None])
