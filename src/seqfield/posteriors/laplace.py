"""Laplace approximation: a Gaussian at the MAP estimate, its mass and draws from it.

p(theta | y) is about N(map, H^-1) with H = c2 I + J' W J. There are two forms of W. "full" is the
covariance of all indicators within each sequence. "block" is that within each token and pair alone
(Altun 2005, 5.3.4). With missing labels, "full" is the covariance minus the covariance given the
known labels, and "block" is the covariance of known tokens and pairs alone. Everything is in
coordinates with the prior N(0, I / c2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import CapabilityError, InputError
from seqfield.linalg.factor import lower_factor
from seqfield.linalg.krylov import (
    LogDeterminant,
    conjugate_gradients,
    dense,
    exact_log_determinant,
    inverse_root,
    lanczos_log_determinant,
    smallest_value,
)
from seqfield.objectives.curvature import Curvature
from seqfield.objectives.objective import Objective

Floats = NDArray[np.float64]

#: up to this many parameters H is formed
EXACT = 1500
#: random vectors for the estimate of a determinant
PROBES = 48
#: relative residual of the linear systems for draws: below the noise of the draws
TOLERANCE = 1e-4


class Evidence(NamedTuple):
    """log p(y) by Laplace's method, the standard error of its random part, and log det(H / c2).

    ``fisher`` is True if H was not positive definite and the covariance free of labels took its
    place.
    """

    value: float
    error: float
    log_det: float
    fisher: bool = False


def log_evidence(
    objective: Objective,
    theta: Floats,
    *,
    covariance: str = "full",
    seed: int = 0,
    probes: Floats | None = None,
) -> Evidence:
    """log p(y | f) - c2 / 2 |theta|^2 - 1/2 log det(H / c2) at the MAP estimate theta.

    Beyond 1500 parameters, or if ``probes`` (k, n_parameters) of entries 1 and -1 are given, the
    determinant is estimated from random vectors. The same seed gives the same 48 vectors, so the
    difference of two models has a smaller error than each value.
    """
    c2, n = objective.prior.c2, len(theta)
    h, fisher = _posterior(objective, theta, covariance)

    def multiply(v: Floats) -> Floats:
        return h(v) / c2

    if probes is None and n <= EXACT:
        found = LogDeterminant(exact_log_determinant(multiply, n), 0.0)
    else:
        given = signs(n, seed) if probes is None else probes
        # the error of each term is a hundredth of its variation
        found = lanczos_log_determinant(multiply, given, tol=1e-4)
    value = -objective.value(theta) - 0.5 * found.value
    return Evidence(value, 0.5 * found.error, found.value, fisher)


def posterior_samples(
    objective: Objective,
    theta: Floats,
    n_samples: int,
    rng: np.random.Generator,
    covariance: str = "full",
) -> Floats:
    """Draws (n_samples, n_parameters) from N(theta, H^-1) at the MAP estimate theta."""
    h, n = _posterior(objective, theta, covariance)[0], len(theta)
    z = rng.normal(size=(n_samples, n))
    if n <= EXACT:
        # H = K K': K^-T z has the covariance H^-1
        root = lower_factor(dense(h, n))
        return np.asarray(theta + scipy.linalg.solve_triangular(root, z.T, trans=1, lower=True).T)
    if not h.drawable:
        return theta + inverse_root(h, z)
    # sqrt(c2) z + J' u has the covariance H, and H^-1 times that has H^-1
    right = np.sqrt(objective.prior.c2) * z + h.draws(n_samples, rng)
    return theta + conjugate_gradients(h, right, tol=TOLERANCE).x


def signs(n: int, seed: int, k: int = PROBES) -> Floats:
    """Random vectors (k, n) of entries 1 and -1."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=(k, n))


def is_block(covariance: str) -> bool:
    """Whether the covariance is "block"; an `InputError` if it is neither "block" nor "full"."""
    if covariance not in ("full", "block"):
        raise InputError(f"the Laplace covariance must be full or block, got {covariance!r}")
    return covariance == "block"


def _posterior(objective: Objective, theta: Floats, covariance: str) -> tuple[Curvature, bool]:
    """H, positive definite, and whether it counts what is not known."""
    prior = objective.prior
    if prior.c1 > 0 or prior.c2 == 0:
        raise CapabilityError("the Laplace approximation needs a Gaussian prior: c1=0 and c2 > 0")
    if not objective.architecture.plain:
        raise CapabilityError(
            "the Laplace approximation needs coordinates with the plain inner product: use a "
            "root of the gram matrix"
        )
    h = objective.curvature(theta, is_block(covariance))
    # H is positive definite at a minimum, but the search for it may have ended early
    if h.drawable or smallest_value(h, len(theta)) > 0.0:
        return h, False
    return objective.curvature(theta, fisher=True), True
