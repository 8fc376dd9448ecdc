"""Scores looked up in a table: one row of scores for each distinct token, and the transitions.

Kernel models know the values of their function at the distinct training tokens. Whatever the
parameters of these values are, scoring is a look-up and the pullback is a scatter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures._loops import scatter_rows
from seqfield.chain import ChainScores
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]


class Values(NamedTuple):
    """The values (n, C) of a function at n tokens, and transition scores (S, S)."""

    table: Floats
    transitions: Floats


class LookupDesign(NamedTuple):
    """The table row of each token, and the offsets of the sequences."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]


class Lookup:
    """The table itself as parameters: theta = [table | T].

    Data are `Sequences` with one column: the table row of each token. With ``edges`` the table has
    S + S^2 columns, and the last S^2 are added to the scores of transitions into the token.
    """

    def __init__(self, n_labels: int, size: int, *, edges: bool = False) -> None:
        self.n_labels, self.size, self.edges = n_labels, size, edges
        self.n_columns = n_labels + edges * n_labels**2
        self.n_parameters = size * self.n_columns + n_labels**2

    @property
    def plain(self) -> bool:
        """The plain inner product."""
        return True

    @property
    def stationary(self) -> bool:
        """Without edge columns all positions share one matrix of transition scores."""
        return not self.edges

    def dual(self, theta: Floats) -> Floats:
        """The plain inner product."""
        return theta

    def noise(self, theta: Floats) -> float:
        """How far rounding may take a squared norm below 0: a sum of squares is never below 0."""
        return 0.0

    def lift(self, theta: Floats) -> Values:
        """The values of the function with these parameters."""
        cut, s = self.size * self.n_columns, self.n_labels
        return Values(theta[:cut].reshape(self.size, -1), theta[cut:].reshape(s, s))

    def design(self, data: Sequences) -> LookupDesign:
        """The table rows of the data's tokens."""
        return LookupDesign(data.x[:, 0].astype(np.int64), data.offsets)

    def scores(self, values: Values, design: LookupDesign) -> ChainScores:
        """Chain scores of laid-out data."""
        here, s = values.table[design.rows], self.n_labels
        edge = values.transitions
        if self.edges:
            edge = edge + here[:, s:].reshape(-1, s, s)
            here = np.ascontiguousarray(here[:, :s])
        return ChainScores(here, edge, design.offsets, check=False)

    def pullback(self, design: LookupDesign, d_node: Floats, d_edge: Floats) -> Floats:
        """The gradient by the scores of each token and by T; `gather` adds it to the table."""
        if not self.edges:
            return np.concatenate([d_node.ravel(), d_edge.ravel()])
        rows = np.hstack([d_node, d_edge.reshape(len(d_node), -1)])
        return np.concatenate([rows.ravel(), d_edge.sum(axis=0).ravel()])

    def gather(self, parts: list[tuple[LookupDesign, Floats]]) -> Values:
        """Pullbacks summed in the given order."""
        out = Values(np.zeros((self.size, self.n_columns)), np.zeros((self.n_labels,) * 2))
        for design, part in parts:
            cut = len(design.rows) * self.n_columns
            scatter_rows(out.table, design.rows, part[:cut].reshape(-1, self.n_columns))
            out.transitions.ravel()[:] += part[cut:]
        return out

    def collect(self, parts: list[tuple[LookupDesign, Floats]]) -> Floats:
        """The gradient by theta."""
        table, transitions = self.gather(parts)
        return np.concatenate([table.ravel(), transitions.ravel()])
