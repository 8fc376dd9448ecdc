"""Posterior variances of the latent functions of `GPSL` at any token."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.functions._base import checked
from seqfield.kernels.covariance import Root
from seqfield.kernels.functions import Span

Floats = NDArray[np.float64]

#: tokens whose variances are computed at once
PIECE = 2**12


class Halves(NamedTuple):
    """Arrays for the variances of all labels with the same kernel.

    phi(x) = k(x, z) dual with |phi(x)|^2 <= k(x, x), and k(x, z) factor = L^-1 phi(x) for each
    label.
    """

    dual: Floats  # (m, r)
    factors: Floats  # (labels, m, r)

    @classmethod
    def of(cls, basis: Root, lowers: list[Floats]) -> Self:
        """From the factors of H of each label; ``lowers`` is emptied, to save memory."""
        rank = basis.root.shape[1]
        # in the memory order of model files, so that a loaded model gives the same last bits
        dual = np.ascontiguousarray(basis.dual)
        factors = np.empty((len(lowers), *dual.shape))
        for factor in factors:
            lower = lowers.pop(0)[:rank, :rank]
            inverse = scipy.linalg.solve_triangular(lower, np.eye(rank), lower=True)
            factor[:] = dual @ inverse.T
        return cls(dual, factors)

    @classmethod
    def restored(cls, arrays: dict[str, NDArray[Any]], n_tokens: int, n_labels: int) -> Self:
        """From the arrays of a model file, with checked shapes."""
        rank = arrays["dual"].shape[-1]
        return cls(
            checked("dual", arrays, (n_tokens, rank)),
            checked("factors", arrays, (n_labels, n_tokens, rank)),
        )

    def variances(self, span: Span, x: Any) -> Floats:
        """v(x) (N, labels) with amplitude 1: |L^-1 phi(x)|^2 + k(x, x) - |phi(x)|^2."""
        prior = span.kernel.diagonal(x)
        out = np.empty((len(prior), len(self.factors)))
        for a in range(0, len(out), PIECE):
            piece = slice(a, a + PIECE)
            k = span.kernel(x[piece], span.tokens)
            phi = k @ self.dual
            rest = np.maximum(prior[piece] - np.einsum("ij,ij->i", phi, phi), 0.0)
            for q, factor in enumerate(self.factors):
                half = k @ factor
                out[piece, q] = np.einsum("ij,ij->i", half, half) + rest
        return out


def labels_of(k: int, n_kernels: int, n_labels: int) -> range:
    """The labels whose function has kernel k.

    >>> labels_of(0, 1, 3), labels_of(2, 3, 3)
    (range(0, 3), range(2, 3))
    """
    return range(n_labels) if n_kernels == 1 else range(k, k + 1)
