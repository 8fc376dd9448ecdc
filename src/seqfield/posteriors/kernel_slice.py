"""Slice sampling of kernel parameters phi together with the scores F.

With whitened scores v, F = root(phi) v, only the likelihood depends on phi (Murray and Adams 2010).
The scores move together with phi, so they do not hold phi at its present value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.lookup import Lookup
from seqfield.architectures.rooted import Rooted
from seqfield.chain.constraint import Constraint
from seqfield.kernels import Kernel
from seqfield.kernels._pairs import Pairs
from seqfield.labels import Targets
from seqfield.linalg.thin import thin_root
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import WhitenedProblem
from seqfield.priors import ElasticNet
from seqfield.progress import progress
from seqfield.samplers.elliptical_slice import Walk
from seqfield.samplers.slice import slice_sample
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]

#: rounds, and steps of the scores in each
ROUNDS, STEPS = 40, 30
#: standard deviation of the prior of a parameter's logarithm
SPREAD = 1.0


def sample_kernel(
    kernel: Kernel,
    x: Any,
    data: Sequences,
    targets: Targets,
    weights: Floats,
    *,
    constraint: Constraint | None,
    eta: float,
    n_labels: int,
    rng: np.random.Generator,
    show: bool = False,
    rounds: int = ROUNDS,
) -> Floats:
    """Logarithms of the parameters (rounds, k), drawn from p(phi | y).

    ``x`` (n, D) holds the distinct tokens, and ``data`` the number of each token. Every value of
    phi that is tried takes O(n^3) time.
    """
    pairs, n = Pairs(x), int(x.shape[0])
    plain = ElasticNet(0.0, 0.0)
    table = Objective(Lookup(n_labels, n), LogLoss(), plain, data, targets, weights, constraint)
    start = kernel.log_parameters
    # the random numbers belong to tokens, so they do not depend on the rank
    v = rng.normal(size=(n, n_labels))
    b = rng.normal(size=n_labels**2 if eta > 0 else 0)

    def goal(phi: Floats) -> tuple[Rooted, NDArray[np.int64]]:
        root, kept = thin_root(kernel.with_log_parameters(phi)._value(pairs))
        return Rooted(n_labels, root, eta), kept

    def log_posterior(phi: Floats) -> float:
        if (np.abs(phi - start) > 5 * SPREAD).any():
            return -np.inf
        rooted, kept = goal(phi)
        value = -table.over(rooted, plain).value(np.concatenate([v[kept].ravel(), b]))
        return value - 0.5 * float(np.square((phi - start) / SPREAD).sum())

    found, phi = np.empty((rounds, len(start))), start.copy()
    with progress("kernel parameters", rounds, show=show) as report:
        for k in range(rounds):
            rooted, kept = goal(phi)
            theta = np.concatenate([v[kept].ravel(), b])
            for move in Walk(WhitenedProblem(rooted, table), rng).moves(STEPS, theta):
                theta = move.theta
            v[kept] = theta[: len(kept) * n_labels].reshape(-1, n_labels)
            b = theta[len(kept) * n_labels :]
            phi = slice_sample(log_posterior, phi, rng, width=SPREAD)
            found[k] = phi
            report(k + 1, "log-parameters " + " ".join(f"{p:.2f}" for p in phi))
    return found
