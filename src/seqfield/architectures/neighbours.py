"""Scores of a label given its neighbours' labels: F = R u, each label's column times the root of an
amplitude, and a table of scores for each distance between neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.rooted import Rows
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]


class Neighbours:
    """theta = [u | T]: u (r, S) by a root (n, r) of the gram matrix, T (R, S, S) for R distances.

    Data are `Sequences` whose one column is the row of each token.
    """

    def __init__(self, n_labels: int, root: Floats, distances: tuple[int, ...]) -> None:
        self.n_labels, self.root, self.distances = n_labels, root, distances
        self._cut = root.shape[1] * n_labels
        self.n_parameters = self._cut + len(distances) * n_labels**2

    def split(self, theta: Floats) -> tuple[Floats, Floats]:
        """u and T."""
        s = self.n_labels
        return theta[: self._cut].reshape(-1, s), theta[self._cut :].reshape(-1, s, s)

    def tables(self, data: Sequences) -> Rows:
        """What optimisers need of data."""
        return Rows(self.root, data.x[:, 0].astype(np.int64))
