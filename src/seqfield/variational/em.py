"""Variational Gaussians for pseudo-likelihood models (Srijith et al. 2016, algorithm 1).

Each label q has a function f_q = sqrt(a_q) R u_q at the n distinct tokens, u_q ~ N(0, I_r), where
R R' is the gram matrix and a_q an amplitude; transitions T_d[i, q] ~ N(0, 1). The posterior is
approximated by Gaussians, u_q ~ N(mu_q, H_q^-1) with H_q = I + a_q R' diag(lambda_q) R, and
independent T ~ N(M, W). With v_q = diag(a_q R H_q^-1 R') + a_q rest the bound on log p(y) is

    sum_t w_t ( F_t,y + M_t,y - log sum_q exp(F_tq + v_tq / 2 + M_tq + W_tq / 2) )
    - 1/2 sum_q ( tr H_q^-1 + |mu_q|^2 + log |H_q| - r ) - 1/2 sum ( W + M^2 - log W - 1 )

where M_tq and W_tq are sums over the neighbours of t. H >= I, so its Cholesky factor needs no
jitter. Its size is the rank of the kernel, not the number of tokens. ``rest`` is the variance of
the part of the functions that landmarks leave out; it stays as in the prior. Without it, tr H_q^-1
= r - lambda_q . v_q.

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.losses.pseudo import Terms, log_sum_exp
from seqfield.solvers._base import (
    Callback,
    Floats,
    History,
    Result,
    Step,
    history_size,
    require,
)
from seqfield.solvers.lbfgs import LBFGS

#: halvings before a step is refused: a step of one label, and a step of all labels
HALVINGS, MORE_HALVINGS = 8, 12
#: the largest change of an amplitude's logarithm in a step, and the smallest that is tried
STRIDE, LEAST = 1.0, 1e-5
#: shares of a step of an amplitude that are tried
SHARES = (1.0, 0.5, 0.25, 0.1)
#: the largest variance, far below what float64 can hold. From about 1e25 on, fits do not converge
#: and warn
LARGEST = 1e100
#: beside entries of H of this size, the identity in H = I + ... is lost in rounding
DROWNED = 1e12
#: steps after which the model of L-BFGS predicts the remaining gain well enough
KNOWN = 40
#: share of the last rise of the bound that the means may leave to gain; and share of the bound that
#: counts as the last rise in the first sweep
SHARE, FIRST = 0.1, 0.01


class Posterior(NamedTuple):
    """The variational posterior, and the bound after each sweep."""

    amplitudes: Floats  # (S,)
    means: Floats  # (r, S), of u
    precisions: Floats  # (n, S), lambda
    factors: list[Floats]  # Cholesky factors of H_q
    steps: Floats  # (R, S, S), means of the transitions
    step_variances: Floats
    residuals: Floats  # (n, S), known minus expected counts of labels
    bounds: list[float]


@dataclass(frozen=True)
class VariationalEM:
    """At most ``max_iter`` sweeps, until the bound rises by less than ``tol`` of itself.

    Needs ``problem`` of an objective over `architectures.neighbours.Neighbours`. ``amplitude`` is
    "fixed", "shared" or "label".
    """

    max_iter: int = 50
    tol: float = 1e-4
    amplitude: str = "shared"
    n_jobs: int | None = None
    needs = ("problem",)

    def minimise(self, objective: Any, theta: Floats, callback: Callback | None = None) -> Result:
        """Minimise minus the bound, starting at theta = [mu | M] and at amplitudes of 1."""
        require("the variational method", objective, self.needs)
        fit = _Fit(objective, theta, self.n_jobs)
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
        trace = (fit.posterior(bounds),)
        return Result(fit.theta, -bounds[-1], None, n_iter, converged, trace)


class _Factor(NamedTuple):
    """The factor of H, the variances v (n,), and the terms of the bound without the means."""

    lower: Floats
    v: Floats
    cost: float


class _Fit:
    """The state of one optimisation."""

    def __init__(self, objective: Any, theta: Floats, n_jobs: int | None) -> None:
        problem, architecture = objective.problem(), objective.architecture
        self.n_jobs, self.s, self.scores = n_jobs, architecture.n_labels, architecture
        s, distances = self.s, architecture.distances
        self.terms = Terms.of(problem.targets, distances, problem.weights, s)
        self.rows = problem.tables[self.terms.tokens]
        self.n, r = architecture.shape
        self.mu, self.m = architecture.split(theta.copy())
        self.w = np.ones((len(distances), s, s))
        self.a, self.precision = np.ones(s), np.zeros((self.n, s))
        # the prior
        identity = np.eye(r)
        self.factors = [_Factor(identity, self._variances(q, 1.0), 0.0) for q in range(s)]
        # what refused steps of a sweep would have gained, by the slope of the bound
        self.refused = np.inf
        self.f = self._values(self.mu)
        # whether the means stopped far from their optimum
        self.stuck = False
        # the curvature that L-BFGS learned in one sweep is used in the next
        n = len(self.theta)
        self._history = History(history_size(n), n, n_jobs)

    # --- the bound ------------------------------------------------------------------------------

    @property
    def theta(self) -> Floats:
        return np.concatenate([self.mu.ravel(), self.m.ravel()])

    def _values(self, mu: Floats) -> Floats:
        return np.asarray(np.sqrt(self.a) * self.scores.values(mu))

    def _variances(self, q: int, a: float, half: Floats | None = None) -> Floats:
        """v = a (|half_i|^2 + rest_i) with half = L^-1 R'; without ``half`` it is R' itself."""
        half = self.scores.root(q).T if half is None else half
        v = np.asarray(a * (np.einsum("ij,ij->j", half, half) + self.scores.rest[:, q]))
        if not (v < LARGEST).all():  # also NaN
            raise InputError(
                f"values of the kernel must be below {LARGEST:g}: scale it, or the features, down"
            )
        return v

    @property
    def _v(self) -> Floats:
        return np.stack([factor.v for factor in self.factors], axis=1)

    def _offsets(self) -> Floats:
        """The part of the exponents (K, S) that does not depend on the means."""
        return np.asarray(0.5 * (self._v[self.rows] + self.terms.gather(self.w)))

    def bound(self) -> float:
        """The bound on log p(y)."""
        z, gold = self._exponents()
        likelihood = float(self.terms.weights @ (gold - log_sum_exp(z)))
        return likelihood - self._mean_cost() - self._covariance_cost() - self._step_cost(self.w)

    def _exponents(self) -> tuple[Floats, Floats]:
        """Exponents (K, S) of the softmax, and the mean scores of the known labels (K,)."""
        means = self.f[self.rows] + self.terms.gather(self.m)
        gold = means[np.arange(len(means)), self.terms.gold]
        return means + self._offsets(), gold

    def _mean_cost(self) -> float:
        return 0.5 * float(np.vdot(self.mu, self.mu) + np.vdot(self.m, self.m))

    def _covariance_cost(self) -> float:
        return sum(factor.cost for factor in self.factors)

    @staticmethod
    def _step_cost(w: Floats) -> float:
        return 0.5 * float((w - np.log(w) - 1.0).sum())

    # --- moves ----------------------------------------------------------------------------------

    def move_together(self) -> None:
        """Raise the bound over the covariances of all labels at once.

        If all variances are large, one alone changes little, because the others rule the softmax.
        """
        z, _ = self._exponents()
        p = np.exp(z - log_sum_exp(z)[:, None]) * self.terms.weights[:, None]
        target = np.zeros_like(self.precision)
        np.add.at(target, self.rows, p)
        now, old, factors = self.bound(), self.precision, self.factors
        share = 1.0
        for _ in range(MORE_HALVINGS):
            self.precision = old + share * (target - old)
            self.factors = [self._factor(q, self.a[q], self.precision[:, q]) for q in range(self.s)]
            if self.bound() > now:
                return
            share *= 0.5
        self.precision, self.factors = old, factors

    def move_means(self, enough: float) -> None:
        """Raise the bound over all means, until about ``enough`` is left to gain."""
        problem, theta, learned = _Means(self, self._offsets()), self.theta, len(self._history)
        # a quadratic of few parameters is known after as many steps as parameters
        known = max(LBFGS.known, min(KNOWN, len(theta)) - learned)
        method = LBFGS(200, 1e-12, n_jobs=self.n_jobs, enough=enough, known=known)
        found = method.minimise(problem, theta, history=self._history)
        self.mu, self.m = self.scores.split(found.theta)
        self.f, self.stuck = self._values(self.mu), found.stuck

    def move_covariances(self, *, each: bool) -> None:
        """Raise the bound over the covariance of each label in turn; with ``each`` also over the
        label's amplitude."""
        self.refused = 0.0
        z, _ = self._exponents()
        for q in range(self.s):
            top = np.delete(z, q, axis=1)
            rest, own = log_sum_exp(top), z[:, q] - 0.5 * self.factors[q].v[self.rows]
            # p_q = 1 / (1 + exp(rest - z_q))
            weights = self.terms.weights / (1.0 + np.exp(np.minimum(rest - z[:, q], 700.0)))
            target = np.bincount(self.rows, weights, self.n).astype(np.float64)

            def likelihood(
                v: Floats, rest: Floats = rest, own: Floats = own, shift: Any = 0.0
            ) -> float:
                total = np.logaddexp(rest, own + shift + 0.5 * v[self.rows])
                return -float(self.terms.weights @ total)

            now = likelihood(self.factors[q].v) - self.factors[q].cost
            if not (each and self._scaled(q, target, now, likelihood)):
                self._towards(q, target, now, likelihood)
            z, _ = self._exponents()

    def _towards(
        self, q: int, target: Floats, now: float, likelihood: Callable[..., float]
    ) -> None:
        old, v = self.precision[:, q], self.factors[q].v
        share = 1.0
        for _ in range(HALVINGS):
            new = old + share * (target - old)
            factor = self._factor(q, self.a[q], new)
            if likelihood(factor.v) - factor.cost >= now:
                self.precision[:, q], self.factors[q] = new, factor
                return
            # the derivative of the bound by v is -(target - lambda) / 2
            slope = 0.5 * float((target - old) @ (v - factor.v)) / share
            share *= 0.5
        self.refused += slope

    def _scaled(
        self,
        q: int,
        target: Floats,
        now: float,
        likelihood: Callable[..., float],
    ) -> bool:
        """Change the amplitude and the covariance of a label together, if the bound rises.

        First the coefficients stay fixed, so that the function grows with the amplitude. If that
        lowers the bound, the function stays fixed.
        """
        step = self._stride(np.array([q]))
        if abs(step) < LEAST:
            return False
        mine, old = self.terms.weights * (self.terms.gold == q), self.precision[:, q]
        square = float(self.mu[:, q] @ self.mu[:, q])
        for share in SHARES:
            ratio = np.exp(share * step)
            precision = old + share * (target - old)
            factor = self._factor(q, self.a[q] * ratio, precision)
            for growth in (ratio, 1.0):
                shift = (growth - 1.0) * self.f[:, q][self.rows]
                rise = likelihood(factor.v, shift=shift) + float(mine @ shift) - factor.cost
                rise -= 0.5 * (growth**2 / ratio - 1.0) * square
                if rise > now:
                    self.a[q] *= ratio
                    self.mu[:, q] *= growth / np.sqrt(ratio)
                    self.f[:, q] *= growth
                    self.precision[:, q], self.factors[q] = precision, factor
                    return True
        return False

    def move_steps(self) -> None:
        """Raise the bound over the variances of the transitions."""
        z, _ = self._exponents()
        fixed = z - 0.5 * self.terms.gather(self.w)

        def value(w: Floats) -> float:
            total = log_sum_exp(fixed + 0.5 * self.terms.gather(w))
            return -float(self.terms.weights @ total) - self._step_cost(w)

        p = np.exp(z - log_sum_exp(z)[:, None]) * self.terms.weights[:, None]
        target, old, now = 1.0 + self.terms.scatter(p), 1.0 / self.w, value(self.w)
        share = 1.0
        for _ in range(HALVINGS):
            new = 1.0 / (old + share * (target - old))
            if value(new) >= now:
                self.w = new
                return
            share *= 0.5

    def move_amplitude(self) -> None:
        """Raise the bound over one amplitude for all labels."""
        step = self._stride(np.arange(self.s))
        if abs(step) < LEAST:
            return
        now, *before = self.bound(), self.a, self.mu, self.f, self.factors
        a, mu, f, _ = before
        for share in SHARES:
            ratio = np.exp(share * step)
            self.a = ratio * a
            self.factors = [self._factor(q, self.a[q], self.precision[:, q]) for q in range(self.s)]
            for growth in (ratio, 1.0):
                self.mu, self.f = growth / np.sqrt(ratio) * mu, growth * f
                if self.bound() > now:
                    return
        self.a, self.mu, self.f, self.factors = before

    def _stride(self, labels: NDArray[np.int64]) -> float:
        """The change of an amplitude's logarithm that makes the derivative of the bound zero, if
        nothing else changes much."""
        have = float(np.square(self.mu[:, labels]).sum())
        want = sum(float(self.precision[:, q] @ self.factors[q].v) for q in labels)
        if want <= 0.0 or have <= 0.0:
            return 0.0
        return float(np.clip(np.log(have / want), -STRIDE, STRIDE))

    def _factor(self, q: int, a: float, precision: Floats) -> _Factor:
        root = self.scores.root(q)
        lower = _lower_of(np.sqrt(a * precision)[:, None] * root)
        half = scipy.linalg.blas.dtrsm(1.0, lower, root.T, lower=1)
        v = self._variances(q, a, half)
        # 1/2 (tr H^-1 - r + log |H|), tr H^-1 = r - lambda . v without what the root leaves out
        own = v - a * self.scores.rest[:, q]
        cost = np.log(np.diagonal(lower)).sum() - 0.5 * float(precision @ own)
        return _Factor(lower, v, float(cost))

    def posterior(self, bounds: list[float]) -> Posterior:
        """What was found."""
        lowers = [factor.lower for factor in self.factors]
        z, _ = self._exponents()
        left = -np.exp(z - log_sum_exp(z)[:, None])
        left[np.arange(len(z)), self.terms.gold] += 1.0
        residuals = np.zeros_like(self.f)
        np.add.at(residuals, self.rows, self.terms.weights[:, None] * left)
        return Posterior(self.a, self.mu, self.precision, lowers, self.m, self.w, residuals, bounds)


def _lower_of(scaled: Floats) -> Floats:
    """The Cholesky factor of H = I + A' A for A (n, r)."""
    h = scaled.T @ scaled
    h[np.diag_indices_from(h)] += 1.0
    if h.diagonal().max() < DROWNED:
        # h.T, because LAPACK needs column order; so nothing is copied
        lower, failed = scipy.linalg.lapack.dpotrf(h.T, lower=1, clean=1, overwrite_a=1)
        if not failed:
            return np.asarray(lower)
    # the identity is lost in H, but not in [I; A] = Q L', whatever the size of A. The time is
    # O(n r^2) too, with a larger factor
    upper = scipy.linalg.qr(np.vstack([np.eye(len(h)), scaled]), mode="r", check_finite=False)[0]
    upper = upper[: len(h)]
    return np.asfortranarray((np.where(upper.diagonal() < 0.0, -1.0, 1.0)[:, None] * upper).T)


class _Means:
    """Minus the bound as a function of the means alone: strongly convex."""

    def __init__(self, fit: _Fit, offsets: Floats) -> None:
        self.fit, self.offsets = fit, offsets
        self.scaled = np.sqrt(fit.a)

    def value_and_grad(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient by theta = [mu | M]."""
        fit, terms = self.fit, self.fit.terms
        mu, m = fit.scores.split(theta)
        means = (self.scaled * fit.scores.values(mu))[fit.rows] + terms.gather(m)
        every = np.arange(len(means))
        z = means + self.offsets
        total = log_sum_exp(z)
        value = float(terms.weights @ (total - means[every, terms.gold])) + 0.5 * theta @ theta
        d = np.exp(z - total[:, None])
        d[every, terms.gold] -= 1.0
        d *= terms.weights[:, None]
        table = np.zeros_like(fit.f)
        np.add.at(table, fit.rows, d)
        gradient = np.concatenate(
            [(self.scaled * fit.scores.pull(table)).ravel(), terms.scatter(d).ravel()]
        )
        return float(value), gradient + theta

    def gap(self, theta: Floats, gradient: Floats) -> float:
        """A bound on value minus optimum: the function is strongly convex."""
        return 0.5 * float(gradient @ gradient)
