"""The state of variational EM, and the moves of a sweep; the formulas are in `em`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.losses.pseudo import Terms, log_sum_exp
from seqfield.solvers._base import Floats, History, history_size
from seqfield.solvers.lbfgs import LBFGS
from seqfield.variational.problems import NeighbourProblem

#: halvings of a step before it is given up: of one label, and of all
HALVINGS, MORE_HALVINGS = 8, 12
#: the largest change of the logarithm of an amplitude in one step, and the least worth a step
STRIDE, LEAST = 1.0, 1e-5
#: of a step of an amplitude, what is tried
SHARES = (1.0, 0.5, 0.25, 0.1)
#: the largest variance, far from what float64 cannot hold; from about 1e25 on fits do not converge,
#: and say so
LARGEST = 1e100
#: entries of H = I + ... beside which the identity is lost in rounding
DROWNED = 1e12
#: steps after which what L-BFGS says about the rest of its way is worth something
KNOWN = 40


class _Factor(NamedTuple):
    """H's factor, the variances v (n,) and the terms of the bound that the covariance alone has."""

    lower: Floats
    v: Floats
    cost: float


class Fit:
    """The state of one optimisation."""

    def __init__(self, problem: NeighbourProblem, theta: Floats, n_jobs: int | None) -> None:
        architecture = problem.architecture
        self.n_jobs, self.s, self.scores = n_jobs, architecture.n_labels, architecture
        s, distances = self.s, architecture.distances
        self.terms = Terms.of(problem.targets, distances, problem.weights, s)
        self.rows = problem.rows[self.terms.tokens]
        self.n, r = architecture.shape
        self.mu, self.m = architecture.split(theta.copy())
        self.w = np.ones((len(distances), s, s))
        self.a, self.precision = np.ones(s), np.zeros((self.n, s))
        # the prior
        identity = np.eye(r)
        self.factors = [_Factor(identity, self._variances(q, 1.0), 0.0) for q in range(s)]
        # by its slope, what the steps that were refused in a sweep would have gained
        self.refused = np.inf
        self.f = self._values(self.mu)
        # whether the means came to a halt far from their optimum
        self.stuck = False
        # what was learned of the curvature in a sweep still holds in the next
        n = len(self.theta)
        self._history = History(history_size(n), n, n_jobs)

    # --- the bound ------------------------------------------------------------------------------

    @property
    def theta(self) -> Floats:
        """[mu | M]"""
        return np.concatenate([self.mu.ravel(), self.m.ravel()])

    def _values(self, mu: Floats) -> Floats:
        return np.asarray(np.sqrt(self.a) * self.scores.values(mu))

    def _variances(self, q: int, a: float, half: Floats | None = None) -> Floats:
        """v for half = L^-1 R', or R' itself if there is none: a (|half_i|^2 + rest_i)."""
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
        """What stands in the exponents besides the means (K, S)."""
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

        Where all variances are large, one of them has no say: the softmax goes by the others.
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
        """Raise the bound over all means, until about ``enough`` is left."""
        problem, theta, learned = _Means(self, self._offsets()), self.theta, len(self._history)
        # a quadratic of few parameters is known after as many steps
        known = max(LBFGS.known, min(KNOWN, len(theta)) - learned)
        method = LBFGS(200, 1e-12, n_jobs=self.n_jobs, enough=enough, known=known)
        found = method.minimise(problem, theta, history=self._history)
        self.mu, self.m = self.scores.split(found.theta)
        self.f, self.stuck = self._values(self.mu), found.stuck

    def move_covariances(self, *, each: bool) -> None:
        """Raise the bound over the covariance of each label in turn, with ``each`` also over its
        amplitude."""
        self.refused = 0.0
        z, _ = self._exponents()
        for q in range(self.s):
            top = np.delete(z, q, axis=1)
            rest, own = log_sum_exp(top), z[:, q] - 0.5 * self.factors[q].v[self.rows]
            # p_q = 1 / (1 + exp(rest - z_q))
            weights = self.terms.weights / (1.0 + np.exp(np.minimum(rest - z[:, q], 700.0)))
            target = np.bincount(self.rows, weights, self.n).astype(np.float64)

            def likelihood(
                v: Floats, rest: Floats = rest, own: Floats = own, shift: Floats | float = 0.0
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
        """Take the amplitude and the covariance of a label together, if the bound rises.

        Its coefficients stay, so that the function grows as the amplitude does; where that lowers
        the bound the function itself stays.
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
        now, a, mu, f, factors = self.bound(), self.a, self.mu, self.f, self.factors
        for share in SHARES:
            ratio = np.exp(share * step)
            self.a = ratio * a
            self.factors = [self._factor(q, self.a[q], self.precision[:, q]) for q in range(self.s)]
            for growth in (ratio, 1.0):
                self.mu, self.f = growth / np.sqrt(ratio) * mu, growth * f
                if self.bound() > now:
                    return
        self.a, self.mu, self.f, self.factors = a, mu, f, factors

    def _stride(self, labels: NDArray[np.int64]) -> float:
        """The change of the logarithm of an amplitude that would bring the derivative of the bound
        to zero, nothing else changing much."""
        have = float(np.square(self.mu[:, labels]).sum())
        want = sum(float(self.precision[:, q] @ self.factors[q].v) for q in labels)
        if want <= 0.0 or have <= 0.0:
            return 0.0
        return float(np.clip(np.log(have / want), -STRIDE, STRIDE))

    def _factor(self, q: int, a: float, precision: Floats) -> _Factor:
        root = self.scores.root(q)
        lower = lower_of(np.sqrt(a * precision)[:, None] * root)
        half = scipy.linalg.blas.dtrsm(1.0, lower, root.T, lower=1)
        v = self._variances(q, a, half)
        # 1/2 (tr H^-1 - r + log |H|), tr H^-1 = r - lambda . v without what the root leaves out
        own = v - a * self.scores.rest[:, q]
        cost = np.log(np.diagonal(lower)).sum() - 0.5 * float(precision @ own)
        return _Factor(lower, v, float(cost))

    def residuals(self) -> Floats:
        """Known minus expected counts of labels (n, S)."""
        z, _ = self._exponents()
        left = -np.exp(z - log_sum_exp(z)[:, None])
        left[np.arange(len(z)), self.terms.gold] += 1.0
        out = np.zeros_like(self.f)
        np.add.at(out, self.rows, self.terms.weights[:, None] * left)
        return out


def lower_of(scaled: Floats) -> Floats:
    """The Cholesky factor of H = I + A' A for A (n, r)."""
    h = scaled.T @ scaled
    h[np.diag_indices_from(h)] += 1.0
    if h.diagonal().max() < DROWNED:
        # h.T, as LAPACK wants columns in order: nothing is copied
        lower, failed = scipy.linalg.lapack.dpotrf(h.T, lower=1, clean=1, overwrite_a=1)
        if not failed:
            return np.asarray(lower)
    # the identity is lost in H, but not in [I; A] = Q L', whatever the sizes of A: O(n r^2) too,
    # with a larger factor
    upper = scipy.linalg.qr(np.vstack([np.eye(len(h)), scaled]), mode="r", check_finite=False)[0]
    upper = upper[: len(h)]
    return np.asfortranarray((np.where(upper.diagonal() < 0.0, -1.0, 1.0)[:, None] * upper).T)


class _Means:
    """Minus the bound as a function of the means alone: strongly convex."""

    def __init__(self, fit: Fit, offsets: Floats) -> None:
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
        """Value minus optimum at most, as it is strongly convex."""
        return 0.5 * float(gradient @ gradient)

    def dual(self, vector: Floats) -> Floats:
        """The plain inner product."""
        return vector
