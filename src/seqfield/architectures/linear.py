"""The explicit-feature architecture: F = X W, T, and position-dependent edges from edge features.

theta = [node weights | transition weights | edge weights]. Without edge features the edge scores
are the stationary T; with them edge[t] = T + (X_edge W_edge)[t].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.architectures._loops import scatter_add
from seqfield.architectures._maps import DenseMap, SparseMap, Table
from seqfield.chain import ChainScores
from seqfield.labels import Targets
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
Map = DenseMap | SparseMap


class Design(NamedTuple):
    """Data laid out for scoring and for the pullback. ``touched`` are the weights that they use."""

    node: Any
    edge: Any
    offsets: NDArray[np.int64]
    touched: NDArray[np.int32]


class Tables(NamedTuple):
    """Data and weights as plain arrays.

    Node weights come first in theta, and edge weights start at ``edge_first``. ``pair_weight``
    (S, S) is the place of each transition's weight, or -1.
    """

    node: Table
    pair_weight: NDArray[np.int64]
    edge: Table | None
    edge_first: int
    offsets: NDArray[np.int64]


class Linear:
    """Scores that are linear in given features.

    Parameters
    ----------
    node : map from node features to S columns
    pairs : (P,) flat positions i * S + j of the transitions that have a weight
    edge : map from edge features to S^2 columns, or None
    """

    def __init__(
        self, n_labels: int, node: Map, pairs: NDArray[np.int64], edge: Map | None = None
    ) -> None:
        self.n_labels = n_labels
        self.node, self.pairs, self.edge = node, pairs, edge
        sizes = [node.n_weights, len(pairs), 0 if edge is None else edge.n_weights]
        self._cuts = np.cumsum(sizes)
        self.n_parameters = int(self._cuts[-1])

    @classmethod
    def build(
        cls,
        data: Sequences,
        targets: Targets,
        n_labels: int,
        *,
        observed: bool = True,
        transitions: bool = True,
    ) -> Linear:
        """The architecture for a training set.

        With ``observed``, only (feature, label) and (label, label) pairs that occur in the training
        set get a weight. A candidate set counts for each of its members, a missing label for none.
        """
        mask = targets.mask(n_labels)
        known = mask & ~mask.all(axis=1, keepdims=True) if n_labels > 1 else mask
        before = np.zeros_like(known)
        before[1:] = known[:-1]
        before[targets.offsets[:-1]] = False
        if not transitions:
            pairs = np.zeros(0, np.int64)
        elif observed:
            seen = before.astype(np.float32).T @ known.astype(np.float32)
            pairs = np.flatnonzero(seen.ravel())
        else:
            pairs = np.arange(n_labels**2)
        node = _build_map(data.x, sp.csr_array(known.astype(np.int32)), n_labels, observed)
        edge = None
        if data.edge is not None:
            both = None
            if sp.issparse(data.edge) and observed:
                both = sp.csr_array(_outer(before, known))
            edge = _build_map(data.edge, both, n_labels**2, observed)
        return cls(n_labels, node, pairs, edge)

    def design(self, data: Sequences) -> Design:
        """Data laid out for `scores` and `pullback`."""
        node = self.node.design(data.x)
        pairs = np.arange(self._cuts[0], self._cuts[1], dtype=np.int32)
        touched = [node.touched, pairs]
        edge = None
        if self.edge is not None:
            edge = self.edge.design(data.edge)
            touched.append(edge.touched + np.int32(self._cuts[1]))
        return Design(node, edge, data.offsets, np.concatenate(touched))

    def tables(self, data: Sequences) -> Tables:
        """Data and weights as plain arrays, for loops that change single weights."""
        pair_weight = np.full(self.n_labels**2, -1)
        pair_weight[self.pairs] = np.arange(self._cuts[0], self._cuts[1])
        return Tables(
            self.node.table(data.x),
            pair_weight.reshape(self.n_labels, self.n_labels),
            None if self.edge is None else self.edge.table(data.edge),
            int(self._cuts[1]),
            data.offsets,
        )

    @property
    def plain(self) -> bool:
        """Weights have the plain inner product."""
        return True

    @property
    def stationary(self) -> bool:
        """Without edge features all positions share one matrix of transition scores."""
        return self.edge is None

    def touched(self, design: Design) -> NDArray[np.int32]:
        """The weights that the data touch."""
        return design.touched

    def transitions(self, theta: Floats) -> Floats:
        """The stationary transition scores (S, S)."""
        out = np.zeros(self.n_labels**2)
        out[self.pairs] = theta[self._cuts[0] : self._cuts[1]]
        return out.reshape(self.n_labels, self.n_labels)

    def scores(self, theta: Floats, design: Design) -> ChainScores:
        """Chain scores of laid-out data."""
        node = self.node.apply(theta[: self._cuts[0]], design.node)
        own = None
        if self.edge is not None:
            own = self.edge.apply(theta[self._cuts[1] :], design.edge)
        return self._chain(theta, node, own, design.offsets)

    def score(self, theta: Floats, data: Sequences) -> ChainScores:
        """Chain scores of data that are scored once."""
        node = self.node.score(theta[: self._cuts[0]], data.x)
        own = None
        if self.edge is not None:
            own = self.edge.score(theta[self._cuts[1] :], data.edge)
        return self._chain(theta, node, own, data.offsets)

    def _chain(
        self, theta: Floats, node: Floats, own: Floats | None, offsets: NDArray[np.int64]
    ) -> ChainScores:
        edge = self.transitions(theta)
        if own is not None:
            edge = edge + own.reshape(-1, self.n_labels, self.n_labels)
        return ChainScores(node, edge, offsets, check=False)

    def pullback(self, design: Design, d_node: Floats, d_edge: Floats) -> Floats:
        """The gradient by the weights ``design.touched``, in their order."""
        total = d_edge if d_edge.ndim == 2 else d_edge.sum(axis=0)
        parts = [self.node.pull(design.node, d_node), total.ravel()[self.pairs]]
        if self.edge is not None:
            parts.append(self.edge.pull(design.edge, d_edge.reshape(-1, self.n_labels**2)))
        return np.concatenate(parts)

    def dual(self, theta: Floats) -> Floats:
        """theta itself: weights have the plain inner product."""
        return theta

    def noise(self, theta: Floats) -> float:
        """How far rounding may take a squared norm below 0: a sum of squares is never below 0."""
        return 0.0

    def lift(self, theta: Floats) -> Floats:
        """What `scores` reads: the weights as they are."""
        return theta

    def collect(self, parts: list[tuple[Design, Floats]]) -> Floats:
        """The gradient (n_parameters,) summed over pullbacks in the given order."""
        gradient = np.zeros(self.n_parameters)
        for design, part in parts:
            scatter_add(gradient, design.touched, part)
        return gradient


def _build_map(x: Any, hits: sp.csr_array | None, n_columns: int, observed: bool) -> Map:
    if not sp.issparse(x):
        return DenseMap(x.shape[1], n_columns)
    if observed and hits is not None:
        return SparseMap.observed(x, hits)
    return SparseMap.full(x.shape[1], n_columns)


def _outer(before: NDArray[np.bool_], known: NDArray[np.bool_]) -> sp.coo_array:
    """Marks (N, S^2) of the label pairs that may end at each token."""
    s = known.shape[1]
    t, j = np.nonzero(known)
    rows, columns = [], []
    for i in range(s):
        hit = before[t, i]
        rows.append(t[hit])
        columns.append(i * s + j[hit])
    row, column = np.concatenate(rows), np.concatenate(columns)
    return sp.coo_array((np.ones(len(row), np.int32), (row, column)), shape=(len(known), s * s))
