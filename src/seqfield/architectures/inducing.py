"""Inducing tokens: scores from functions that are known at a few tokens (Galliani et al. 2017).

Each label has a function f ~ GP(0, k), u = f(Z) at M inducing tokens, and u = L v with
L L' = k(Z, Z), v ~ N(0, I). Given v, the values at the T tokens of a sequence have

    mean Phi v,    covariance Q = k(x, x) - Phi Phi',    Phi = k(x, Z) L^-T  (T, M)

So with v ~ N(mu, C C') the values are Gaussian, with mean Phi mu and covariance Q + Phi C C' Phi'.
All parameters of the prior are in Phi and Q.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.kernels import Kernel
from seqfield.linalg.factor import JITTER
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
#: step of the differences for derivatives by inducing tokens, as a share of the tokens' spread
STEP = 1e-5
#: the nugget as a share of the first mean of k(z, z). It is needed because tokens of a sequence may
#: be equal
NUGGET = 1e-6


class Batch(NamedTuple):
    """Tokens of some sequences: Phi (N, M), and Q (T, T) of each sequence."""

    x: Any
    offsets: NDArray[np.int64]
    phi: Floats
    rest: list[Floats]


class Inducing:
    """A kernel at inducing tokens: a prior of scores, whose parameters others hold.

    Parameters
    ----------
    kernel : covariance of each label's function
    tokens : (M, D) inducing tokens
    eta : variance of transition scores, at least 0; with 0 there are no transition scores
    nugget : a small number that is added to the variance of each score
    """

    def __init__(
        self,
        n_labels: int,
        kernel: Kernel,
        tokens: Any,
        eta: float,
        nugget: float | None = None,
    ) -> None:
        self.n_labels, self.kernel, self.tokens, self.eta = n_labels, kernel, tokens, eta
        self.root = inducing_root(kernel, tokens)
        own = NUGGET * float(kernel.diagonal(tokens).mean()) if nugget is None else nugget
        self.nugget = own
        self.size = len(self.root)
        self.n_parameters = self.size * n_labels + n_labels**2

    def lay_out(self, data: Sequences) -> Batch:
        """Phi and Q of some sequences."""
        phi = self._whiten(self.kernel(data.x, self.tokens))
        rest = []
        for a, b in pairwise(data.offsets.tolist()):
            own, part = self.kernel(data.x[a:b]), phi[a:b]
            own[np.diag_indices_from(own)] += self.nugget
            rest.append(own - part @ part.T)
        return Batch(data.x, data.offsets, phi, rest)

    def _whiten(self, k: Floats) -> Floats:
        """K L^-T."""
        return np.ascontiguousarray(scipy.linalg.solve_triangular(self.root, k.T, lower=True).T)

    def with_kernel(self, kernel: Kernel, tokens: Any = None) -> Inducing:
        """A copy with another kernel, and with other tokens if they are given."""
        tokens = self.tokens if tokens is None else tokens
        return Inducing(self.n_labels, kernel, tokens, self.eta, self.nugget)

    # --- derivatives ----------------------------------------------------------------------------

    def pull_covariances(self, batch: Batch, d_phi: Floats) -> tuple[Floats, Floats]:
        """Derivatives by k(x, Z) (N, M) and k(Z, Z) (M, M), from those by Phi."""
        # Phi L' = K: d Phi = (dK - Phi dL') L^-T
        by_k = scipy.linalg.solve_triangular(self.root, d_phi.T, lower=True, trans=1).T
        by_root = np.tril(-by_k.T @ batch.phi)
        # through the Cholesky factor: L^-T tril(L' dL, half of the diagonal) L^-1
        inner = np.tril(self.root.T @ by_root)
        inner[np.diag_indices_from(inner)] *= 0.5
        half = scipy.linalg.solve_triangular(self.root, inner, lower=True, trans=1)
        by_gram = scipy.linalg.solve_triangular(self.root, half.T, lower=True, trans=1).T
        return by_k, 0.5 * (by_gram + by_gram.T)

    def by_parameters(self, batch: Batch, d_phi: Floats, d_rest: list[Floats]) -> Floats:
        """Derivatives by the kernel's log-parameters, from those by Phi and by Q (at fixed Phi)."""
        by_k, by_gram = self.pull_covariances(batch, d_phi)
        out = np.array([np.vdot(by_k, d) for d in self.kernel.derivatives(batch.x, self.tokens)])
        out += [np.vdot(by_gram, d) for d in self.kernel.derivatives(self.tokens)]
        for (a, b), by_own in zip(pairwise(batch.offsets.tolist()), d_rest, strict=True):
            for k, d in enumerate(self.kernel.derivatives(batch.x[a:b])):
                out[k] += np.vdot(by_own, d)
        return out

    def by_tokens(self, batch: Batch, d_phi: Floats) -> Floats:
        """Derivatives by the inducing tokens (M, D), by central differences of the kernel.

        A column is moved for all tokens at once, because k(x, z) depends on no inducing token but
        z.
        """
        by_k, by_gram = self.pull_covariances(batch, d_phi)
        z = np.asarray(self.tokens)
        out = np.zeros(z.shape)
        for d in range(z.shape[1]):
            step = STEP * max(float(z[:, d].std()), 1e-3)
            up, down = z.copy(), z.copy()
            up[:, d] += step
            down[:, d] -= step
            for weights, x in ((by_k, batch.x), (2.0 * by_gram, z)):
                difference = self.kernel(x, up) - self.kernel(x, down)
                out[:, d] += np.einsum("ij,ij->j", weights, difference) / (2.0 * step)
        return out


def inducing_root(kernel: Kernel, tokens: Any) -> Floats:
    """L with L L' = k(Z, Z), with at most 1e-6 of its mean diagonal added to the diagonal."""
    gram = kernel(tokens)
    mean = float(np.diagonal(gram).mean())
    if mean > 0.0 and np.isfinite(mean):
        for part in JITTER[3:]:
            shifted = gram.copy()
            shifted[np.diag_indices_from(shifted)] += part * mean
            root, failed = scipy.linalg.lapack.dpotrf(shifted, lower=1, clean=1)
            if failed == 0 and np.diagonal(root).min() ** 2 > 0.5 * part * mean:
                return np.asarray(root)
    raise InputError(
        "a kernel must be positive semi-definite: k(Z, Z) of the inducing tokens has no Cholesky "
        "factor even with 1e-6 of its mean diagonal added"
    )


def is_dense(x: Any) -> bool:
    """Whether tokens are rows of a plain array."""
    return not sp.issparse(x)
