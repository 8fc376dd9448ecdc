"""The state of sequence boosting between rounds, and its updates.

A round runs only those sequences again in which the last chosen feature can occur (Altun 2005,
algorithm 4). SList of the algorithm is ``sequences_of``. FList is the set of features that the
tokens of a sequence have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.chain import ChainScores, marginals
from seqfield.sequences import rows_of
from seqfield.solvers import _boosting_loops as loops

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: number of grid steps for features whose counts are not whole numbers or have a larger range
GRID = 64
#: after the loss has fallen by e^DRIFT, everything is computed again: so rounding errors of
#: earlier sums stay below e^DRIFT times the float precision
DRIFT = 16.0


class Rows(NamedTuple):
    """Sequences to boost on: feature rows, gold labels, offsets, log weights, start scores."""

    x: sp.csr_array
    starts: Integers
    columns: NDArray[np.int32]
    gold: NDArray[np.int32]
    offsets: Integers
    log_weight: Floats
    node: Floats
    pairs: Integers
    pair_first: int


class Trial(NamedTuple):
    """Results for the chosen sequences at a trial step.

    They are log p of the gold labels, the node marginals and the expected transitions.
    """

    log_p: Floats
    node: Floats
    pairs: Floats


class State:
    """Scores, marginals and weights of all sequences, and the bound tables of all weights.

    ``starts`` gives the weights of each feature. All transitions together count as one more
    feature, the last. ``unit`` is the grid step of the counts of a feature. Weight k has the table
    entries ``first[k]:first[k + 1]``, for the counts from ``low[k]`` on.
    """

    def __init__(
        self, rows: Rows, theta: Floats, forbidden: Floats, n_jobs: int | None = None
    ) -> None:
        self.rows, self.theta, self.n_jobs = rows, theta.copy(), n_jobs
        self.n_labels = rows.node.shape[1]
        self.n_sequences = len(rows.offsets) - 1
        self._forbidden = forbidden
        self.node = rows.node.copy()
        self._by_feature = rows.x.T.tocsr()
        self._sequence = np.repeat(np.arange(self.n_sequences), np.diff(rows.offsets))
        self._lengths = np.diff(rows.offsets)
        n_weights = rows.pair_first + len(rows.pairs)
        self.starts = np.append(rows.starts, n_weights)
        self._feature = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        self._gold_pairs = self._count_gold_pairs()
        # largest count of a transition: (a, b) with a != b fits at most at every second place
        equal = rows.pairs // self.n_labels == rows.pairs % self.n_labels
        lengths = self._lengths[:, None]
        self._most_pairs = np.where(equal, lengths - 1, lengths // 2)
        self._lay_out_tables()
        self.log_p = np.zeros(self.n_sequences)
        self.inverse, self.distribution = np.zeros(self.n_sequences), np.zeros(self.n_sequences)
        self.marginal = np.zeros_like(self.node)
        self.pair_sums = np.zeros((self.n_sequences, len(rows.pairs)))
        self.refresh()

    # --- tables ---------------------------------------------------------------------------------

    def _lay_out_tables(self) -> None:
        rows, n_node, n = self.rows, self.rows.pair_first, int(self.starts[-1])
        indptr, values = rows.x.indptr.astype(np.int64), rows.x.data.astype(np.float64)
        place, *local = loops.local_features(
            rows.offsets, indptr, rows.x.indices, values, rows.x.shape[1]
        )
        # a feature gets its own grid if its counts are not whole numbers, or are very large
        _, feature, least, most = local
        range_of = np.zeros(rows.x.shape[1])
        np.maximum.at(range_of, feature, most - least)
        whole = np.ones(rows.x.shape[1], bool)
        whole[rows.x.indices[values != np.rint(values)]] = False
        fine = np.maximum(range_of, 1e-300) / GRID
        self.unit = np.append(np.where(whole & (range_of <= 4 * GRID), 1.0, fine), 1.0)
        weights = (rows.starts, rows.columns, self.unit)
        self._arrays: Any = (rows.offsets, rows.gold, indptr, values, place, *local, *weights)
        low, high = np.zeros(n, np.int64), np.zeros(n, np.int64)
        arguments: Any = (*self._arrays, self.n_labels, low[:n_node], high[:n_node])
        loops.ranges(*arguments)
        if len(rows.pairs):
            low[n_node:] = -self._gold_pairs.max(axis=0)
            high[n_node:] = (self._most_pairs - self._gold_pairs).max(axis=0)
        self.low = low
        self.first = np.concatenate([[0], np.cumsum(high - low + 1)])
        self._base = self.first[:-1] - low
        self.table = np.zeros(self.first[-1])
        self.changed = np.ones(len(self.starts) - 1, np.bool_)
        self.step, self.gain = np.zeros(n), np.zeros(n)

    def _count_gold_pairs(self) -> Integers:
        y, s = self.rows.gold.astype(np.int64), self.n_labels
        out = np.zeros((self.n_sequences, len(self.rows.pairs)), np.int64)
        if len(self.rows.pairs):
            inner = np.ones(len(y), bool)
            inner[self.rows.offsets[:-1]] = False
            place = np.full(s * s, -1)
            place[self.rows.pairs] = np.arange(len(self.rows.pairs))
            t = np.flatnonzero(inner)
            k = place[y[t - 1] * s + y[t]]
            np.add.at(out, (self._sequence[t][k >= 0], k[k >= 0]), 1)
        return out

    def _update(self, chosen: Integers, trial: Trial) -> None:
        """Replace the entries of the chosen sequences in all tables, and store their new values."""
        log_w = self.rows.log_weight[chosen]
        with np.errstate(under="ignore"):
            inverse = np.exp(log_w - trial.log_p - self.reference)
            # D = W (1 - p)
            distribution = inverse * -np.expm1(trial.log_p)
        old, new = (self.distribution, self.inverse), (distribution, inverse)
        node: Any = (*self._arrays, self._base, *old, self.marginal, *new, trial.node)
        loops.update(chosen, *(*node, self.table, self.changed))
        if len(self.rows.pairs):
            self.changed[-1] = True
            pairs: Any = (self._base[self.rows.pair_first :], self._gold_pairs, self._most_pairs)
            pairs += (*old, self.pair_sums, *new, trial.pairs)
            loops.update_pairs(chosen, *(*pairs, self.table))
        self.inverse[chosen], self.distribution[chosen] = inverse, distribution
        self.log_p[chosen], self.pair_sums[chosen] = trial.log_p, trial.pairs
        self.marginal[rows_of(self.rows.offsets, chosen)[0]] = trial.node

    def unit_of(self, k: int) -> float:
        """The unit in which the table of weight k counts."""
        return float(self.unit[self._feature[k]])

    # --- sequences ------------------------------------------------------------------------------

    def sequences_of(self, k: int) -> Integers:
        """The sequences that weight k can affect."""
        if k >= self.rows.pair_first:
            return np.flatnonzero(self._lengths > 1)
        tokens, _ = self._tokens_of(k)
        return np.unique(self._sequence[tokens])

    def _tokens_of(self, k: int) -> tuple[Any, Floats]:
        f, m = self._feature[k], self._by_feature
        here = slice(m.indptr[f], m.indptr[f + 1])
        return m.indices[here], m.data[here]

    def edge(self) -> Floats:
        """Transition scores, including the forbidden transitions."""
        out = self._forbidden.copy().ravel()
        out[self.rows.pairs] += self.theta[self.rows.pair_first :][: len(self.rows.pairs)]
        return out.reshape(self.n_labels, self.n_labels)

    def run(self, chosen: Integers, k: int = -1, step: float = 0.0) -> Trial:
        """Run the chosen sequences with ``step`` added to weight k. The state does not change."""
        rows = self.rows
        tokens, offsets = rows_of(self.rows.offsets, chosen)
        node, edge = self.node[tokens], self.edge()
        if 0 <= k < rows.pair_first:
            at, values = self._tokens_of(k)
            np.add.at(node[:, rows.columns[k]], np.searchsorted(tokens, at), step * values)
        elif k >= 0:
            edge.ravel()[rows.pairs[k - rows.pair_first]] += step
        found = marginals(
            ChainScores(node, edge, offsets, check=False), pairs="sequence", n_jobs=self.n_jobs
        )
        assert found.pairs is not None
        y = rows.gold[tokens]
        path = node[np.arange(len(y)), y]
        steps = edge[y[:-1], y[1:]]
        steps[offsets[1:-1] - 1] = 0.0  # no transition from one sequence to the next
        path[1:] += steps
        log_p = np.minimum(np.add.reduceat(path, offsets[:-1]) - found.log_z, 0.0)
        pairs = found.pairs.reshape(len(chosen), -1)[:, rows.pairs]
        return Trial(log_p, found.node, pairs)

    def log_inverse(self, chosen: Integers, trial: Trial) -> Floats:
        """log W = log(w / p) of the chosen sequences."""
        return self.rows.log_weight[chosen] - trial.log_p

    def expected_change(self, chosen: Integers, k: int, trial: Trial) -> Floats:
        """E[u_k] of each chosen sequence: expected count minus gold count."""
        rows = self.rows
        if k >= rows.pair_first:
            pair = k - rows.pair_first
            return np.asarray(trial.pairs[:, pair] - self._gold_pairs[chosen, pair])
        at, values = self._tokens_of(k)
        tokens, offsets = rows_of(self.rows.offsets, chosen)
        place = np.searchsorted(tokens, at)
        off = trial.node[place, rows.columns[k]] - (rows.gold[at] == rows.columns[k])
        mine = np.searchsorted(offsets, place, side="right") - 1
        return np.asarray(np.bincount(mine, values * off, len(chosen)), np.float64)

    def apply(self, k: int, step: float, chosen: Integers, trial: Trial | None = None) -> None:
        """Add ``step`` to weight k and update the chosen sequences.

        ``chosen`` must hold all sequences that weight k touches.
        """
        if trial is None:
            trial = self.run(chosen, k, step)
        self.theta[k] += step
        if k < self.rows.pair_first:
            at, values = self._tokens_of(k)
            np.add.at(self.node[:, self.rows.columns[k]], at, step * values)
        self._update(chosen, trial)
        self.fresh = False
        # the sum of D falls further than W = D / (1 - p): W tends to w as p tends to 1
        if np.log(self._total / max(self.distribution.sum(), 1e-300)) > DRIFT:
            self.refresh()

    def refresh(self) -> None:
        """Run all sequences again. Sequence weights are then relative to the largest one."""
        every = np.arange(self.n_sequences)
        trial = self.run(every)
        #: logarithm of the unit of ``inverse`` and ``distribution``
        self.reference = float(self.log_inverse(every, trial).max())
        self.inverse[:] = self.distribution[:] = self.table[:] = 0.0
        self.changed[:] = True
        self._update(every, trial)
        self._total, self.fresh = float(self.distribution.sum()), True
