"""Scores from a dense root of the gram matrix of distinct tokens: F = root b, T = eta B."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.architectures.lookup import Lookup, LookupDesign, Values

Floats = NDArray[np.float64]
Parts = list[tuple[LookupDesign, Floats]]


class Rooted(Lookup):
    """Whitened parameters theta = [b | sqrt(eta) B]: |theta|^2 is the squared norm of the function.

    Tokens with equal rows share one row of the root. Many functions are multiplied by the root at
    once, because for few labels most of the time of a product is spent on reading the root.

    Parameters
    ----------
    root : (n, r) with G = root root'
    eta : scale of the transitions in the kernel, at least 0; with 0 there are no transitions
    """

    def __init__(self, n_labels: int, root: Floats, eta: float = 1.0) -> None:
        super().__init__(n_labels, len(root))
        self.root = root
        self.root_eta = float(np.sqrt(number("eta", eta, low=0)))
        self._cut = root.shape[1] * n_labels
        self.n_parameters = self._cut + (n_labels**2 if eta > 0 else 0)

    def values(self, theta: Floats) -> Floats:
        """Values [F | T] (k, n S + S^2) of functions with parameters (k, n_parameters)."""
        table = _multiply(self.root, theta[:, : self._cut], self.n_labels)
        steps = np.zeros((len(theta), self.n_labels**2))
        steps[:, : theta.shape[1] - self._cut] = self.root_eta * theta[:, self._cut :]
        return np.hstack([table, steps])

    def pull_values(self, e: Floats) -> Floats:
        """The transpose of `values`: derivatives by values to derivatives by parameters."""
        cut = self.size * self.n_labels
        b = _multiply(self.root.T, e[:, :cut], self.n_labels)
        return np.hstack([b, self.root_eta * e[:, cut:][:, : self.n_parameters - self._cut]])

    def lift(self, theta: Floats) -> Values:
        """F and T."""
        return self.lift_all(theta[None])[0]

    def lift_all(self, theta: Floats) -> list[Values]:
        """F and T of each row of theta."""
        return [super(Rooted, self).lift(row) for row in self.values(theta)]

    def collect(self, parts: Parts) -> Floats:
        """The gradient by theta."""
        return np.asarray(self.collect_all([parts])[0])

    def collect_all(self, several: list[Parts]) -> Floats:
        """The gradients by theta for several lists of pullbacks."""
        return self.pull_values(np.stack([super(Rooted, self).collect(p) for p in several]))


def _multiply(matrix: Floats, rows: Floats, columns: int) -> Floats:
    """matrix @ V for each row of ``rows``, whose entries are V (m, columns)."""
    k, m = len(rows), matrix.shape[1]
    wide = rows.reshape(k, m, columns).transpose(1, 0, 2).reshape(m, k * columns)
    out = (matrix @ wide).reshape(-1, k, columns)
    return out.transpose(1, 0, 2).reshape(k, -1)
