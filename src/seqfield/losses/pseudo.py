"""The pseudo-likelihood of label sequences: each label given those at some offsets from it.

    p(y_t | x_t, y) = softmax_q( F(x_t, q) + sum_d T_d[y_{t + offset_d}, q] )

Neighbours outside of the sequence, or with a label that is not known, contribute nothing; a token
whose own label is not known has no term.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from seqfield.labels import Targets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


#: the least share of a step of `refine`, and how much less a step back should be than the one forth
LEAST, SHRINK = 2.0**-8, 0.9


class Terms(NamedTuple):
    """One term for each token with a known label: its number, label, weight, and for each offset
    the label there, or S if there is none."""

    tokens: Ints
    gold: Ints
    weights: Floats
    neighbours: Ints  # (K, R)

    @classmethod
    def of(cls, targets: Targets, offsets: Sequence[int], weights: Floats, s: int) -> Terms:
        """The terms of sequences with the given weights.

        >>> codes = np.array([1, -1, 0], np.int32)
        >>> targets = Targets(codes, None, np.array([0, 3]))
        >>> Terms.of(targets, (-1, 2), np.ones(1), 2).neighbours.tolist()
        [[2, 0], [2, 2]]
        """
        codes = targets.codes.astype(np.int64)
        lengths = np.diff(targets.offsets)
        tokens = np.flatnonzero(codes >= 0)
        labels = np.where(codes >= 0, codes, s)
        columns = [shifted(labels, targets.offsets, d, s)[tokens] for d in offsets]
        neighbours = np.stack(columns, axis=1) if columns else np.zeros((len(tokens), 0), np.int64)
        return cls(tokens, codes[tokens], np.repeat(weights, lengths)[tokens], neighbours)

    def gather(self, steps: Floats) -> Floats:
        """sum_d steps[d, label there] (K, S) for steps (R, S, S)."""
        out = np.zeros((len(self.tokens), steps.shape[-1]))
        for d, table in enumerate(steps):
            out += np.vstack([table, np.zeros(len(table))])[self.neighbours[:, d]]
        return out

    def scatter(self, values: Floats) -> Floats:
        """The transpose of `gather`: (R, S, S)."""
        s = values.shape[1]
        out = np.zeros((self.neighbours.shape[1], s + 1, s))
        for d, table in enumerate(out):
            np.add.at(table, self.neighbours[:, d], values)
        return out[:, :s]


def log_sum_exp(z: Floats) -> Floats:
    """log sum_q exp(z[t, q]) of finite z (N, S); for small arrays faster than scipy's by far.

    >>> log_sum_exp(np.array([[0.0, 0.0], [1000.0, 0.0]])).round(4).tolist()
    [0.6931, 1000.0]
    """
    top = z.max(axis=1)
    return np.asarray(top + np.log(np.exp(z - top[:, None]).sum(axis=1)))


def shifted(values: NDArray[np.int64], offsets: Ints, by: int, outside: int) -> Ints:
    """Entry t + by of the same sequence in place of entry t.

    >>> shifted(np.array([5, 6, 7, 8]), np.array([0, 3, 4]), 1, -1).tolist()
    [6, 7, -1, -1]
    """
    n = len(values)
    at = np.arange(n) + by
    starts = np.repeat(offsets[:-1], np.diff(offsets))
    ends = np.repeat(offsets[1:], np.diff(offsets))
    inside = (at >= starts) & (at < ends)
    return np.where(inside, values[np.clip(at, 0, n - 1)], outside)


class Refined(NamedTuple):
    """Label probabilities (N, S) of each token, the number of rounds, and whether they settled."""

    probabilities: Floats
    n_rounds: int
    settled: bool


def refine(
    node: Floats,
    steps: Floats,
    offsets: Ints,
    distances: Sequence[int],
    *,
    max_rounds: int = 2000,
    tol: float = 1e-9,
) -> Refined:
    """Probabilities of labels when those of the neighbours are not known either.

    The fixed point of P = softmax(node + sum_d P[t + distance_d] steps[d]) (Srijith et al. 2016,
    algorithm 2), from P = softmax(node). As many rounds as a sequence has tokens are taken in full:
    where labels depend on one side alone, that is exact. After that a sequence that goes to and fro
    without coming closer takes half as long steps from then on.

    >>> node, steps = np.array([[1.0, 0.0], [0.0, 0.1]]), np.array([[[2.0, 0.0], [0.0, 2.0]]])
    >>> refine(node, steps, np.array([0, 2]), (-1,)).probabilities.round(2).tolist()
    [[0.73, 0.27], [0.7, 0.3]]
    """
    lengths, starts = np.diff(offsets), offsets[:-1]
    places = [shifted(np.arange(len(node)), offsets, d, len(node)) for d in distances]
    p: Floats = softmax(node, axis=1)
    # every sequence goes its own way: its result does not depend on those beside it
    share, change, last = np.ones(len(lengths)), np.full(len(lengths), np.inf), np.zeros_like(p)
    for k in range(1, max_rounds + 1):
        # a last row of zeros for neighbours that are not there
        wide = np.vstack([p, np.zeros(p.shape[1])])
        total = node.copy()
        for at, table in zip(places, steps, strict=True):
            total += wide[at] @ table
        step = softmax(total, axis=1) - p
        before, change = change, np.maximum.reduceat(np.abs(step).max(axis=1), starts)
        moving = change > tol
        # to and fro, and no less each time; moving on from a place that does not hold it is fine
        back = np.add.reduceat((step * last).sum(axis=1), starts) < 0.0
        wild = back & (change >= SHRINK * before) & (k > lengths)
        share, last = np.where(wild, np.maximum(0.5 * share, LEAST), share), step
        p = p + np.repeat(share * moving, lengths)[:, None] * step
        if not moving.any():
            return Refined(p, k, True)
    return Refined(p, max_rounds, False)
