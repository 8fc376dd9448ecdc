"""Scores of a label given the labels of its neighbours, for the pseudo-likelihood.

F = R u, where each label's column is multiplied by the root of an amplitude. For each distance
between neighbours there is a table of scores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Neighbours:
    """theta = [u | T]: u (r, S) by a root (n, r) of the gram matrix, T (R, S, S) for R distances.

    A list holds one root for each label; roots of lower rank are padded with columns of zeros,
    along which nothing is learned. ``rest`` (n, 1) or (n, S) is the variance at each token that the
    root leaves out. Data are `Sequences` with one column: the row of each token.
    """

    def __init__(
        self,
        n_labels: int,
        root: Floats | list[Floats],
        distances: tuple[int, ...],
        rest: Floats | float = 0.0,
    ) -> None:
        self.n_labels, self.distances = n_labels, distances
        roots = root if isinstance(root, list) else [root]
        self.shape = len(roots[0]), max(own.shape[1] for own in roots)
        self._roots = [_widened(own, self.shape[1]) for own in roots]
        self.rest = np.broadcast_to(rest, (len(roots[0]), n_labels))
        self._cut = self.shape[1] * n_labels
        self.n_parameters = self._cut + len(distances) * n_labels**2

    def split(self, theta: Floats) -> tuple[Floats, Floats]:
        """u and T."""
        s = self.n_labels
        return theta[: self._cut].reshape(-1, s), theta[self._cut :].reshape(-1, s, s)

    def root(self, q: int) -> Floats:
        """The root of label q."""
        return self._roots[q % len(self._roots)]

    def values(self, u: Floats) -> Floats:
        """R u (n, S)."""
        if len(self._roots) == 1:
            return self._roots[0] @ u
        return np.stack([root @ u[:, q] for q, root in enumerate(self._roots)], axis=1)

    def pull(self, table: Floats) -> Floats:
        """R' times a table (n, S) of derivatives by the values."""
        if len(self._roots) == 1:
            return self._roots[0].T @ table
        return np.stack([root.T @ table[:, q] for q, root in enumerate(self._roots)], axis=1)


def _widened(root: Floats, width: int) -> Floats:
    """The root, padded with columns of zeros to this width."""
    missing = width - root.shape[1]
    return np.pad(root, ((0, 0), (0, missing))) if missing else root
