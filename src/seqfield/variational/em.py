"""Variational Gaussians for pseudo-likelihood models (Srijith et al. 2016, algorithm 1).

Each label q has a function f_q = sqrt(a_q) R u_q at the n distinct tokens, u_q ~ N(0, I_r), where
R R' is the gram matrix and a_q an amplitude; transitions T_d[i, q] ~ N(0, 1). The posterior is
approximated by Gaussians, u_q ~ N(mu_q, H_q^-1) with H_q = I + a_q R' diag(lambda_q) R, and
independent T ~ N(M, W). With v_q = diag(a_q R H_q^-1 R') + a_q rest the bound on log p(y) is

    sum_t w_t ( F_t,y + M_t,y - log sum_q exp(F_tq + v_tq / 2 + M_tq + W_tq / 2) )
    - 1/2 sum_q ( tr H_q^-1 + |mu_q|^2 + log |H_q| - r ) - 1/2 sum ( W + M^2 - log W - 1 )

where M_tq and W_tq are sums over the neighbours of t. H >= I, so its Cholesky factor needs no
jitter. Its size is the rank of the kernel, not the number of tokens. ``rest`` is the variance of
the part of the functions that inducing tokens leave out; it stays as in the prior. Without it,
tr H_q^-1 = r - lambda_q . v_q.

The bound is concave in the means, and in each covariance. Means are found by L-BFGS. For the
covariances, lambda_q = sum of softmax weights is a fixed point. A step towards it is a natural
gradient step, so a part of the step raises the bound even if the whole does not. Label by label,
the step is halved until the bound rises. The first step is one of all labels together, before the
means; so is the step after a sweep in which a step was refused. Far from the optimum no single
label can raise the bound, and means that compensate large variances keep these from falling.
Amplitudes move towards |mu_q|^2 = lambda_q . v_q, where the derivative of the bound is zero, while
the bound rises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqfield.objectives.needs import NEIGHBOURS, OWN_CRITERION, check
from seqfield.solvers._base import Callback, Floats, Step
from seqfield.variational._sweeps import Fit
from seqfield.variational.problems import NeighbourProblem

#: of the last rise of the bound, what the means may leave; of the bound, what counts as that rise
#: in the first sweep
SHARE, FIRST = 0.1, 0.01


class Posterior(NamedTuple):
    """The variational posterior, the bound before and after each sweep, the number of sweeps, and
    whether they came to an end."""

    amplitudes: Floats  # (S,)
    means: Floats  # (r, S), of u
    precisions: Floats  # (n, S), lambda
    factors: list[Floats]  # Cholesky factors of H_q
    steps: Floats  # (R, S, S), means of the transitions
    step_variances: Floats
    residuals: Floats  # (n, S), known minus expected counts of labels
    bounds: list[float]
    n_iter: int
    converged: bool

    @property
    def theta(self) -> Floats:
        """[mu | M]: where another fit may start."""
        return np.concatenate([self.means.ravel(), self.steps.ravel()])

    @property
    def bound(self) -> float:
        """The last bound on log p(y)."""
        return self.bounds[-1]


@dataclass(frozen=True)
class VariationalEM:
    """At most ``max_iter`` sweeps, until the bound rises by less than ``tol`` of itself.

    ``amplitude`` is "fixed", "shared" or "label".
    """

    max_iter: int = 50
    tol: float = 1e-4
    amplitude: str = "shared"
    n_jobs: int | None = None
    needs = (NEIGHBOURS, OWN_CRITERION)

    def fit(
        self,
        problem: NeighbourProblem,
        theta: Floats | None = None,
        callback: Callback | None = None,
    ) -> Posterior:
        """Raise the bound; theta = [mu | M] says where to start (else zeros), amplitudes at 1."""
        check(self, problem)
        start = np.zeros(problem.architecture.n_parameters) if theta is None else theta
        fit = Fit(problem, start, self.n_jobs)
        bounds = [fit.bound()]
        converged, n_iter = False, 0
        for n_iter in range(1, self.max_iter + 1):
            last = bounds[-1] - bounds[-2] if n_iter > 1 else FIRST * abs(bounds[-1])
            if fit.refused > 0.0:
                fit.move_together()
            fit.move_means(SHARE * last)
            fit.move_covariances(each=self.amplitude == "label")
            fit.move_steps()
            if self.amplitude == "shared":
                fit.move_amplitude()
            bounds.append(fit.bound())
            if bounds[-1] - bounds[-2] + fit.refused <= self.tol * abs(bounds[-1]):
                # the means may have stopped too early, so they first go to their own optimum
                fit.move_means(0.0)
                bounds[-1] = fit.bound()
            stop = callback is not None and callback(Step(n_iter, fit.theta, -bounds[-1]))
            # if steps were refused, or if rounding hides better means, the bound may stop rising
            # before the optimum
            left = bounds[-1] - bounds[-2] + fit.refused
            converged = left <= self.tol * abs(bounds[-1]) and not fit.stuck
            if converged or stop:
                break
        lowers = [factor.lower for factor in fit.factors]
        return Posterior(
            fit.a, fit.mu, fit.precision, lowers, fit.m, fit.w, fit.residuals(), bounds, n_iter,
            converged,
        )  # fmt: skip
