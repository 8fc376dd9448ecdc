"""The pseudo-likelihood of label sequences: each label given the labels at some offsets.

    p(y_t | x_t, y) = softmax_q( F(x_t, q) + sum_d T_d[y_{t + offset_d}, q] )

Neighbours outside the sequence, or without a known label, contribute nothing. A token without a
known label has no term.
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


#: the smallest share of a step of `refine`; and distances must fall by this factor, else steps are
#: halved
LEAST, SHRINK = 2.0**-8, 0.9
#: rounds between two checks of the progress of a sequence; and the share of its way below which it
#: moved in circles
WINDOW, STRAIGHT = 20, 0.5


class Terms(NamedTuple):
    """One term for each token with a known label: number, label and weight of the token, and the
    label at each offset, or S if there is none."""

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
    """log sum_q exp(z[t, q]) of finite z (N, S); much faster than scipy's for small arrays.

    >>> log_sum_exp(np.array([[0.0, 0.0], [1000.0, 0.0]])).round(4).tolist()
    [0.6931, 1000.0]
    """
    top = z.max(axis=1)
    return np.asarray(top + np.log(np.exp(z - top[:, None]).sum(axis=1)))


def shifted(values: NDArray[np.int64], offsets: Ints, by: int, outside: int) -> Ints:
    """Each entry t replaced by entry t + by of its sequence, or by ``outside`` if there is none.

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
    """Label probabilities (N, S), the number of rounds, and whether all sequences converged."""

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
    """Mean field: probabilities of labels if the labels of neighbours are not known either.

    It finds the fixed point of P = softmax(node + sum_d P[t + distance_d] steps[d]), starting from
    P = softmax(node) (Srijith et al. 2016, algorithm 2). The first rounds, as many as a sequence
    has tokens, are full steps. If labels depend on one side alone, this is exact. After that, steps
    of a sequence are halved if it swings without coming closer, or if it moves in circles. A
    sequence that has converged does not change any more.

    >>> node, steps = np.array([[1.0, 0.0], [0.0, 0.1]]), np.array([[[2.0, 0.0], [0.0, 2.0]]])
    >>> refine(node, steps, np.array([0, 2]), (-1,)).probabilities.round(2).tolist()
    [[0.73, 0.27], [0.7, 0.3]]
    """
    out: Floats = softmax(node, axis=1)
    going = _Going(node, out, steps, offsets, distances)
    for k in range(1, max_rounds + 1):
        moving = going.go(k, tol)
        if not moving.any():
            out[going.tokens] = going.p
            return Refined(out, k, True)
        if 2 * moving.sum() < len(moving):  # not each time: it costs about as much as a round
            out[going.tokens] = going.p
            going.keep(moving)
    out[going.tokens] = going.p
    return Refined(out, max_rounds, False)


class _Going:
    """Sequences that have not yet converged. Each has its own step size, so its result does not
    depend on the other sequences."""

    def __init__(
        self, node: Floats, p: Floats, steps: Floats, offsets: Ints, distances: Sequence[int]
    ) -> None:
        self.steps, self.distances = steps, distances
        self.tokens, self.node, self.p, self.last = np.arange(len(p)), node, p, np.zeros_like(p)
        self._place(offsets)
        n = len(self.lengths)
        self.share, self.change = np.ones(n), np.full(n, np.inf)
        # probabilities some rounds ago, their distance from the fixed point, and the way since then
        self.mark, self.at_mark, self.way = p, np.full(n, np.inf), np.zeros(n)

    def _place(self, offsets: Ints) -> None:
        self.lengths, self.starts = np.diff(offsets), offsets[:-1]
        every = np.arange(len(self.p))
        self.places = [shifted(every, offsets, d, len(every)) for d in self.distances]

    def go(self, k: int, tol: float) -> NDArray[np.bool_]:
        """Round k: a step of every sequence that has not converged; returns which these are."""
        # the last row of zeros stands for neighbours that do not exist
        wide = np.vstack([self.p, np.zeros(self.p.shape[1])])
        total = self.node.copy()
        for at, table in zip(self.places, self.steps, strict=True):
            total += wide[at] @ table
        step = softmax(total, axis=1) - self.p
        before, self.change = self.change, self._by_sequence(np.maximum, np.abs(step).max(axis=1))
        # swings that do not get smaller; leaving an unstable point is not a swing
        back = self._by_sequence(np.add, (step * self.last).sum(axis=1)) < 0.0
        self._shorten(back & (self.change >= SHRINK * before) & (k > self.lengths))
        moving = self.change > tol
        step *= np.repeat(self.share * moving, self.lengths)[:, None]
        self.p, self.last = self.p + step, step
        self.way += self._by_sequence(np.add, np.abs(step).sum(axis=1))
        if k % WINDOW == 0:
            self._look_back(k)
        return moving

    def _by_sequence(self, how: np.ufunc, values: Floats) -> Floats:
        return np.asarray(how.reduceat(values, self.starts))

    def _shorten(self, which: NDArray[np.bool_]) -> None:
        self.share = np.where(which, np.maximum(0.5 * self.share, LEAST), self.share)

    def _look_back(self, k: int) -> None:
        """Shorten the steps of sequences that moved in circles and did not come closer."""
        came = self._by_sequence(np.add, np.abs(self.p - self.mark).sum(axis=1))
        circling = (came < STRAIGHT * self.way) & (self.change >= SHRINK * self.at_mark)
        self._shorten(circling & (k > self.lengths + WINDOW))
        self.mark, self.at_mark, self.way = self.p, self.change, np.zeros_like(self.way)

    def keep(self, moving: NDArray[np.bool_]) -> None:
        """Keep only these sequences."""
        rows = np.repeat(moving, self.lengths)
        self.tokens, self.node, self.p = self.tokens[rows], self.node[rows], self.p[rows]
        self.last = self.last[rows]
        self.share, self.change = self.share[moving], self.change[moving]
        self.mark, self.at_mark, self.way = self.mark[rows], self.at_mark[moving], self.way[moving]
        self._place(np.concatenate([[0], np.cumsum(self.lengths[moving])]))
