"""The ELBO of a batch under Gaussians over inducing values, and its derivatives.

`_expectations` gives expected log-likelihoods and their derivatives by the Gaussians of the scores.
Here these are pulled back to q and to the parameters of the prior.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqfield._checks import score_size
from seqfield.architectures.inducing import Batch, Inducing
from seqfield.errors import InputError
from seqfield.solvers._base import Floats
from seqfield.variational._expectations import (
    Bound,
    Expected,
    Moments,
    by_reparameterisation,
    by_scores,
)
from seqfield.variational.gaussians import Gaussians, divergence

if TYPE_CHECKING:
    from seqfield.variational.svi import StochasticVariational


class Gradient(NamedTuple):
    """An estimate of the ELBO, and its derivatives by q, Phi and Q."""

    value: float
    moments: list[Moments]  # of the scores, under each component
    expected: list[Expected]  # likewise
    means: Floats  # (K, M, S), of the expected log-likelihood alone
    covariances: Floats  # (K, S, M, M), likewise
    steps: Floats
    step_variances: Floats
    phi: Floats  # (N, M)
    rest: list[Floats]  # (T, T) of each sequence; neither if the prior is fixed


def moments_of(q: Gaussians, batch: Batch, k: int) -> tuple[Moments, Floats]:
    """The Gaussians of the scores of a batch under component k, and Phi C (S, N, M)."""
    wide = batch.phi @ q.roots[k]
    covariances = [
        rest + wide[:, a:b] @ wide[:, a:b].transpose(0, 2, 1)
        for (a, b), rest in zip(pairwise(batch.offsets.tolist()), batch.rest, strict=True)
    ]
    # without transitions, their means and variances are zero
    variances = np.maximum(q.step_variances, 1e-300)
    means = batch.phi @ q.means[k]
    spread = max(float(np.einsum("stt->st", own).max()) for own in covariances)
    largest = max(spread, float(variances.max())) ** 0.5
    score_size(
        max(largest, float(np.abs(means).max()), float(np.abs(q.steps).max())),
        "scale the features or the kernel, or lower eta or learning_rate",
    )
    try:
        return Moments.of(batch.offsets, means, covariances, q.steps, variances), wide
    except np.linalg.LinAlgError as error:
        raise _no_root(batch) from error


def _no_root(batch: Batch) -> InputError:
    """The error for covariances without a Cholesky factor."""
    lowest = min(float(np.linalg.eigvalsh(own)[0]) for own in batch.rest)
    parts = zip(pairwise(batch.offsets.tolist()), batch.rest, strict=True)
    prior = max(
        float((np.diagonal(own) + (batch.phi[a:b] ** 2).sum(axis=1)).max()) for (a, b), own in parts
    )
    if lowest < -1e-6 * prior:
        return InputError(
            "the kernel is not positive semi-definite: given the inducing tokens, others have a "
            f"covariance with an eigenvalue of {lowest:.3g}"
        )
    return InputError(
        "the covariance of the scores has no Cholesky factor: lower learning_rate, or scale the "
        "features"
    )


def elbo(
    q: Gaussians,
    architecture: Inducing,
    batch: Batch,
    bound: Bound,
    settings: StochasticVariational,
    rng: np.random.Generator,
) -> Gradient:
    """The ELBO of a batch and its derivatives; ``bound`` is the likelihood of its labels."""
    k, m, s = q.means.shape
    out = Gradient(
        0.0, [], [], np.zeros((k, m, s)), np.zeros((k, s, m, m)), np.zeros((s, s)),
        np.zeros((s, s)), np.zeros_like(batch.phi), [np.zeros_like(rest) for rest in batch.rest],
    )  # fmt: skip
    total, pi = -divergence(q, architecture.eta), q.weights
    for c in range(k):
        moments, wide = moments_of(q, batch, c)
        if settings.gradient == "reparam":
            assert bound.gradient is not None  # the method has asked for it
            bent = bound.curvature if settings.natural else None
            found = by_reparameterisation(moments, bound.gradient, settings.n_mc, rng, bent)
        else:
            found = by_scores(moments, bound.values, settings.n_mc, rng)
        total += pi[c] * float(found.values.sum())
        out.moments.append(moments)
        _pull(out, batch, found, pi[c], c)
        if settings.moves(architecture):
            _pull_prior(out, q, batch, found, wide, pi[c], c)
    return out._replace(value=float(total))


def _pull(out: Gradient, batch: Batch, found: Expected, pi: float, c: int) -> None:
    """Add a component's part to the derivatives by q."""
    out.expected.append(found)
    out.means[c] += pi * (batch.phi.T @ found.means)
    out.steps[...] += pi * found.steps
    out.step_variances[...] += pi * found.step_variances
    for j, total in enumerate(out.covariances[c]):
        # rows of G Phi for the block-diagonal G of all sequences
        spread = np.empty_like(batch.phi)
        for i, (a, b) in enumerate(pairwise(batch.offsets.tolist())):
            np.matmul(found.covariances[i][j], batch.phi[a:b], out=spread[a:b])
        total += pi * (batch.phi.T @ spread)


def _pull_prior(
    out: Gradient, q: Gaussians, batch: Batch, found: Expected, wide: Floats, pi: float, c: int
) -> None:
    """Add a component's part to the derivatives by Phi and Q.

    Sigma = Q + Phi S Phi', and Q contains -Phi Phi'.
    """
    out.phi[...] += pi * (found.means @ q.means[c].T)
    for j in range(q.means.shape[2]):
        moved = wide[j] @ q.roots[c, j].T - batch.phi
        for i, (a, b) in enumerate(pairwise(batch.offsets.tolist())):
            own = found.covariances[i][j]
            out.rest[i][...] += pi * own
            out.phi[a:b] += 2.0 * pi * (own @ moved[a:b])
