"""Gaussians and mixtures of Gaussians as posteriors of whitened functions v ~ N(0, I).

q(v) = sum_k pi_k prod_j N(v_j; mu_kj, S_kj) over the S labels j, S = C C'; q(T) = N(m, diag(w)) of
the transitions, whose prior is N(0, eta I). The KL divergence of one Gaussian is exact. That of a
mixture is bounded by Jensen's inequality, -H(q) <= sum_k pi_k log sum_l pi_l N(mu_k; mu_l,
S_k + S_l), which for one component would be M / 2 (1 - log 2) a label too large.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.special import logsumexp, softmax

from seqfield.errors import InputError
from seqfield.solvers._base import Floats

#: shares of a step that are tried, each half of the one before
HALVINGS = 60


class Gaussians(NamedTuple):
    """Parameters of q."""

    logits: Floats  # (K,)
    means: Floats  # (K, M, S)
    roots: Floats  # (K, S, M, M)
    steps: Floats  # (S, S)
    step_variances: Floats  # (S, S)

    @classmethod
    def prior(
        cls, n_components: int, size: int, n_labels: int, eta: float, rng: np.random.Generator
    ) -> Gaussians:
        """A start near the prior; several components get different random means."""
        k, s = n_components, n_labels
        means = np.zeros((k, size, s))
        if k > 1:
            means += 0.1 * rng.normal(size=means.shape)
        roots = np.broadcast_to(np.eye(size), (k, s, size, size)).copy()
        return cls(np.zeros(k), means, roots, np.zeros((s, s)), np.full((s, s), float(eta)))

    @property
    def weights(self) -> Floats:
        """pi (K,)."""
        return np.asarray(softmax(self.logits))

    @property
    def mean(self) -> Floats:
        """Of v and T, one after the other (M S + S^2,)."""
        mean = np.einsum("k,kms->ms", self.weights, self.means)
        return np.concatenate([mean.ravel(), self.steps.ravel()])

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """n draws of v (n, M, S) and T (n, S, S)."""
        which = rng.choice(len(self.logits), size=n, p=self.weights)
        _, m, s = self.means.shape
        z = rng.normal(size=(n, s, m))
        v = np.empty((n, m, s))
        for k in np.unique(which):
            own = which == k
            for j in range(s):
                v[own, :, j] = self.means[k, :, j] + z[own, j] @ self.roots[k, j].T
        noise = rng.normal(size=(n, s, s))
        return v, self.steps + np.sqrt(self.step_variances) * noise


class KLGradient(NamedTuple):
    """The divergence (or its bound) and its derivatives by logits, means and S (K, S, M, M), by
    the means and the variances of transitions."""

    value: float
    logits: Floats
    means: Floats
    covariances: Floats
    steps: Floats
    step_variances: Floats


def divergence(q: Gaussians, eta: float) -> float:
    """KL(q || prior); for a mixture, its bound."""
    value = _steps_divergence(q, eta)[0]
    return value + (_single(q) if len(q.logits) == 1 else _mixture(q)[0])


def divergence_gradient(q: Gaussians, eta: float) -> KLGradient:
    """`divergence` and its derivatives."""
    value, by_steps, by_variances = _steps_divergence(q, eta)
    if len(q.logits) == 1:
        m = q.roots.shape[-1]
        inverses = np.stack([inverse_root(root) for root in q.roots[0]])
        by_covariances = 0.5 * (np.eye(m) - inverses.transpose(0, 2, 1) @ inverses)[None]
        own, by_logits, by_means = _single(q), np.zeros(1), q.means.copy()
    else:
        own, by_logits, by_means, by_covariances = _mixture(q)
    return KLGradient(own + value, by_logits, by_means, by_covariances, by_steps, by_variances)


def inverse_root(root: Floats) -> Floats:
    """The inverse of a triangular matrix."""
    lower = not np.triu(root, 1).any()
    found, failed = scipy.linalg.lapack.dtrtri(root, lower=int(lower))
    if failed:
        raise np.linalg.LinAlgError("a root is singular")
    return np.asarray(np.tril(found) if lower else np.triu(found))


def _steps_divergence(q: Gaussians, eta: float) -> tuple[float, Floats, Floats]:
    if eta == 0.0:
        return 0.0, np.zeros_like(q.steps), np.zeros_like(q.steps)
    ratio = q.step_variances / eta
    value = 0.5 * float((ratio + q.steps**2 / eta - 1.0 - np.log(ratio)).sum())
    return value, q.steps / eta, 0.5 * (1.0 / eta - 1.0 / q.step_variances)


def _single(q: Gaussians) -> float:
    """1/2 (tr S + |mu|^2 - M - log |S|) summed over labels."""
    squares = np.vdot(q.means, q.means) + np.vdot(q.roots, q.roots)
    diagonals = np.abs(np.einsum("...ii->...i", q.roots))
    return 0.5 * float(squares - diagonals.size) - float(np.log(diagonals).sum())


def _mixture(q: Gaussians) -> tuple[float, Floats, Floats, Floats]:
    k, s, m, _ = q.roots.shape
    pi, covariances = q.weights, q.roots @ q.roots.transpose(0, 1, 3, 2)
    # cross entropy with N(0, I): 1/2 (tr S + |mu|^2 + M S log 2 pi)
    traces = np.einsum("ksmm->k", covariances)
    cross = 0.5 * (traces + np.square(q.means).sum(axis=(1, 2)) + m * s * np.log(2 * np.pi))
    pairs = _overlaps(q.means, covariances)
    logs = pairs.value + np.log(pi)
    total = logsumexp(logs, axis=1)
    r = np.exp(logs - total[:, None])
    # sum_k pi_k (cross_k + log sum_l pi_l N_kl)
    by_pi = cross + total + (pi[:, None] * r).sum(axis=0) / pi
    by_means = pi[:, None, None] * q.means
    by_covariances = np.broadcast_to(0.5 * np.eye(m), q.roots.shape) * pi[:, None, None, None]
    by_covariances = by_covariances.copy()
    for a in range(k):
        for b in range(k):
            w = pi[a] * r[a, b]
            by_means[a] += w * pairs.by_mean[a, b]
            by_means[b] -= w * pairs.by_mean[a, b]
            by_covariances[a] += w * pairs.by_covariance[a, b]
            by_covariances[b] += w * pairs.by_covariance[a, b]
    by_logits = pi * (by_pi - pi @ by_pi)
    return float(pi @ (cross + total)), by_logits, by_means, by_covariances


class _Overlaps(NamedTuple):
    """log N(mu_k; mu_l, S_k + S_l) summed over labels (K, K), and its derivatives."""

    value: Floats
    by_mean: Floats  # (K, K, M, S), by mu_k
    by_covariance: Floats  # (K, K, S, M, M), by S_k + S_l


def _overlaps(means: Floats, covariances: Floats) -> _Overlaps:
    k, s, m, _ = covariances.shape
    value = np.zeros((k, k))
    by_mean, by_covariance = np.empty((k, k, m, s)), np.empty((k, k, s, m, m))
    for a in range(k):
        for b in range(k):
            for j in range(s):
                d = means[a, :, j] - means[b, :, j]
                inverse = np.linalg.inv(covariances[a, j] + covariances[b, j])
                sign_log = np.linalg.slogdet(inverse)[1]
                far = inverse @ d
                value[a, b] += 0.5 * (sign_log - m * np.log(2 * np.pi) - d @ far)
                by_mean[a, b, :, j] = -far
                by_covariance[a, b, j] = 0.5 * (np.outer(far, far) - inverse)
    return _Overlaps(value, by_mean, by_covariance)


class Natural:
    """Natural gradient steps of one Gaussian; keeps its precisions (S, M, M)."""

    def __init__(self, n_labels: int, size: int) -> None:
        self.precisions = np.broadcast_to(np.eye(size), (n_labels, size, size)).copy()

    def step(
        self, q: Gaussians, d_means: Floats, d_covariances: Floats, rate: float
    ) -> tuple[Floats, Floats]:
        """Means (1, M, S) and roots (1, S, M, M) after a step.

        The derivatives are those of the expected log-likelihood g. The precision moves towards
        I - 2 dg/dS, and the mean along the new covariance. Noise may take the precision away from
        positive definite matrices, so a share of the step is taken that keeps it positive definite.
        """
        means, roots = q.means.copy(), np.empty_like(q.roots)
        for j, old in enumerate(self.precisions):
            move = -(d_covariances[0, j] + d_covariances[0, j].T) - old
            move[np.diag_indices_from(move)] += 1.0
            for share in rate * 0.5 ** np.arange(HALVINGS):
                new = old + share * move
                lower, failed = scipy.linalg.lapack.dpotrf(new, lower=1, clean=1)
                # a NaN anywhere spreads to the last entry
                if failed == 0 and np.isfinite(lower[-1, -1]):
                    break
            else:
                raise InputError(
                    f"a step of natural gradient found no covariance for the scores of label {j}. "
                    "Scale the features or the kernel down, or use optimizer='adam', which needs "
                    "no such step"
                )
            self.precisions[j] = new
            # S = L^-T L^-1
            roots[0, j] = inverse_root(lower).T
            gradient = d_means[0, :, j] - q.means[0, :, j]
            means[0, :, j] += share * (roots[0, j] @ (roots[0, j].T @ gradient))
        return means, roots


def natural_steps(
    q: Gaussians, eta: float, d_steps: Floats, d_variances: Floats, rate: float
) -> tuple[Floats, Floats]:
    """Means and variances of transitions after a natural gradient step."""
    if eta == 0.0:
        return q.steps, q.step_variances
    old = 1.0 / q.step_variances
    # a precision stays above a tenth of its old value
    new = np.maximum(old + rate * (1.0 / eta - 2.0 * d_variances - old), 0.1 * old)
    return q.steps + rate * (d_steps - q.steps / eta) / new, 1.0 / new
