"""The enumeration oracle: chain inference by listing every labelling of one sequence.

It costs O(S^l), so it is for tests and for readers. It uses plain sums over all labellings and
shares no code with the compiled loops.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from seqfield.chain.scores import Booleans, ChainScores, Floats, Integers


class Enumeration(NamedTuple):
    """All labellings (S^l, l) of one sequence, their scores and their probabilities."""

    labels: Integers
    scores: Floats
    log_z: float
    probabilities: Floats

    def expect(self, values: Floats) -> Floats:
        """Expectation of values (S^l, ...) under p(y | x)."""
        return np.tensordot(self.probabilities, values, axes=1)

    def node(self, n_labels: int) -> Floats:
        """Node marginals (l, S)."""
        return self.expect(np.eye(n_labels)[self.labels])

    def pairs(self, n_labels: int) -> Floats:
        """Pair marginals (l, S, S), zero at the first token."""
        one = np.eye(n_labels)[self.labels]
        out = np.zeros((self.labels.shape[1], n_labels, n_labels))
        if len(out) > 1:
            out[1:] = self.expect(one[:, :-1, :, None] * one[:, 1:, None, :])
        return out


def enumerate_labellings(
    scores: ChainScores, sequence: int = 0, allowed: Booleans | None = None
) -> Enumeration:
    """Score every labelling of one sequence.

    >>> import numpy as np
    >>> found = enumerate_labellings(ChainScores([[0.0, 1.0]], np.zeros((2, 2))))
    >>> found.probabilities.round(3)
    array([0.269, 0.731])
    """
    a, b = scores.offsets[sequence], scores.offsets[sequence + 1]
    labels = np.array(list(product(range(scores.n_labels), repeat=int(b - a))), dtype=np.int64)
    total = np.zeros(len(labels))
    for t in range(a, b):
        y = labels[:, t - a]
        total += scores.node[t, y]
        if t > a:
            edge = scores.edge if scores.stationary else scores.edge[t]
            total += edge[labels[:, t - 1 - a], y]
        if allowed is not None:
            total[~allowed[t, y]] = -np.inf
    if scores.start is not None:
        total += scores.start[labels[:, 0]]
    if scores.end is not None:
        total += scores.end[labels[:, -1]]
    high = total.max()
    if high == -np.inf:
        return Enumeration(labels, total, -np.inf, np.full(len(labels), np.nan))
    weights = np.exp(total - high)
    return Enumeration(labels, total, float(high + np.log(weights.sum())), weights / weights.sum())
