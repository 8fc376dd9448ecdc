"""Kernel parameters by the evidence: log p(y) by Laplace's method and its gradient.

With the prior covariance C(phi) of the scores, f = C g at the optimum, g = -d loss / d scores, and
s ~ N(0, Sigma), Sigma = (C^-1 + W)^-1:

    d log p(y) = 1/2 g' dC g - 1/2 tr(R dC) + ((I + W C)^-1 q)' dC g,
    R = (I + W C)^-1 W,    q = -1/2 E[d(s' W s) / df]

The last term is there because the optimum moves with phi, and W with it. Up to 1500 parameters the
traces are exact; beyond that they are means over draws. The random numbers belong to tokens and
transitions and are the same for every phi. So value and gradient change smoothly with phi.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from seqfield._checks import number
from seqfield._warn import warn
from seqfield.architectures.lookup import Lookup
from seqfield.architectures.rooted import Rooted
from seqfield.errors import BudgetError
from seqfield.kernels import Kernel
from seqfield.kernels._pairs import Pairs
from seqfield.kernels.gram import finite_block
from seqfield.linalg.factor import lower_factor
from seqfield.linalg.krylov import Multiply, conjugate_gradients, dense, inverse_root
from seqfield.linalg.thin import thin_root
from seqfield.objectives.curvature import Curvature
from seqfield.objectives.objective import Objective
from seqfield.posteriors import laplace as _laplace
from seqfield.priors import ElasticNet
from seqfield.progress import progress
from seqfield.solvers.newton import NewtonCG

Floats = NDArray[np.float64]

#: draws for the traces of a gradient, and random vectors for a determinant. They are the same for
#: every phi, so few are enough for comparisons
DRAWS = 16
#: the least number of iterations of a search, and the number for each parameter
SEARCH, EACH = 10, 5
#: logarithms of parameters are searched within this distance from their start
REACH = 8.0
#: points that a line search tries
TRIALS = 5
#: bytes for matrices of all pairs of tokens
BUDGET = 4.0 * 2**30


class Settings(NamedTuple):
    """The kernel, c2 and eta that phi stands for."""

    kernel: Kernel
    c2: float
    eta: float


class Point(NamedTuple):
    """The evidence at some phi, the standard error of its random part, and its gradient."""

    value: float
    error: float
    gradient: Floats


class Best(NamedTuple):
    """The best phi that was found, its evidence, the number of evaluations, and whether the search
    converged."""

    phi: Floats
    value: float
    n_evaluations: int
    settled: bool


class _Fit(NamedTuple):
    """The optimum at some phi: scores f = C g, and the token or transition of each parameter."""

    kernel: Kernel
    rooted: Rooted
    c2: float
    f: Floats
    g: Floats
    own: NDArray[np.int64]

    def whitened(self, w: Callable[[Floats], Floats]) -> Multiply:
        """v -> H v = c2 v + L' W L v for rows v."""
        return lambda v: self.c2 * v + self.rooted.pull_values(w(self.rooted.values(v)))


class _Traces(NamedTuple):
    """Rows with share * sum s s' = Sigma and share * sum u v' = R, exactly or on average."""

    s: Floats
    u: Floats
    v: Floats
    share: float


class KernelEvidence:
    """phi = [log-parameters of the kernel, log c2, log eta] -> evidence and gradient.

    C = blockdiag(G I_S / c2, eta / c2 I) over the distinct tokens x and the transitions; with
    eta = 0 there are no transitions and phi ends with log c2.

    Parameters
    ----------
    kernel : where to start
    x : the distinct tokens (n, D)
    objective : data whose one feature is the number of each token in x, with loss and c2
    eta : scale of the transitions
    covariance : "full" or "block"
    budget : bytes for matrices of all pairs of tokens
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Any,
        objective: Objective,
        eta: float = 1.0,
        *,
        covariance: str = "full",
        budget: float = BUDGET,
        seed: int = 0,
        tol: float = 1e-9,
    ) -> None:
        self._kernel, self._c2 = kernel, objective.prior.c2
        self._eta = number("eta", eta, low=0)
        self._covariance, self._block = covariance, _laplace.is_block(covariance)
        self._seed, self._newton = seed, NewtonCG(tol=tol, n_jobs=objective.n_jobs)
        self._check_budget(x.shape[0], budget)
        self._pairs = Pairs(x)
        n_labels = objective.architecture.n_labels
        # scores themselves as parameters: its curvature is W, its gradient -g
        self._table = objective.over(Lookup(n_labels, x.shape[0]), ElasticNet(0.0, 0.0))
        self._exact = self._table.architecture.n_parameters <= _laplace.EXACT
        self._dual = np.zeros(self._table.architecture.n_parameters)  # g at the phi before

    @property
    def start(self) -> Floats:
        """phi of the settings given."""
        own = [self._c2, self._eta] if self._eta > 0 else [self._c2]
        return np.concatenate([self._kernel.log_parameters, np.log(own)])

    def settings(self, phi: Floats) -> Settings:
        """The kernel, c2 and eta that phi stands for."""
        n = len(self._kernel.log_parameters)
        scales = np.exp(phi[n:])
        eta = float(scales[1]) if self._eta > 0 else 0.0
        return Settings(self._kernel.with_log_parameters(phi[:n]), float(scales[0]), eta)

    def maximise(self, *, show: bool = False) -> Settings:
        """The settings of largest evidence."""
        n_done, most = 0, max(SEARCH, EACH * len(self.start))
        with progress("kernel parameters", most, show=show) as report:

            def told(phi: Floats) -> Point:
                nonlocal n_done
                point, n_done = self(phi), n_done + 1
                report(n_done, f"log evidence {point.value:.6g}")
                return point

            best = maximise_evidence(told, self.start, reach=REACH, max_iter=most)
        if not best.settled:
            warn(
                f"the evidence still rose after {most} iterations of the search for kernel "
                "parameters: fit again, starting with those found (kernel_, c2_, eta_)",
                ConvergenceWarning,
            )
        self._tell_ends(best.phi)
        return self.settings(best.phi)

    def _tell_ends(self, phi: Floats) -> None:
        """Warn about parameters that ended at a bound of the search."""
        names = [*self._kernel.parameter_names, "c2", "eta"]
        # the search stops exactly at its bounds, except for their rounding
        ends = np.flatnonzero(np.abs(phi - self.start) > REACH - 1e-9)
        # a very small eta means no transitions, and a smaller one would change nothing
        ends = ends[[names[k] != "eta" or phi[k] > self.start[k] for k in ends]]
        if len(ends):
            found = ", ".join(f"{names[k]} = {np.exp(phi[k]):.3g}" for k in ends)
            warn(
                f"the evidence is largest at a bound of the search, {np.exp(REACH):.3g} times more "
                f"or less than at its start: {found}. Start there, or choose by cross-validation",
                ConvergenceWarning,
            )

    def __call__(self, phi: Floats) -> Point:
        """Evidence and gradient."""
        kernel, c2, eta = self.settings(phi)
        root, kept = thin_root(finite_block(kernel, self._pairs))
        s = self._table.architecture.n_labels
        rooted = Rooted(s, root, eta)
        goal = self._table.over(rooted, ElasticNet(0.0, c2))
        # A = g / c2 and B = g_T / c2 at an optimum, and theta = [root' A | sqrt(eta) B]; if phi
        # moved far, that may be a worse start than zero
        before = rooted.pull_values(self._dual[None] / c2)[0]
        begin = min(before, np.zeros_like(before), key=goal.value)
        theta = self._newton.minimise(goal, begin).theta
        f = rooted.values(theta[None])[0]
        self._dual = -self._table.value_and_grad(f)[1]
        tokens = (kept[:, None] * s + np.arange(s)).ravel()
        steps = np.arange(len(root) * s, len(f))[: rooted.n_parameters - len(tokens)]
        fit = _Fit(kernel, rooted, c2, f, self._dual, np.concatenate([tokens, steps]))
        found = _laplace.log_evidence(
            goal,
            theta,
            covariance=self._covariance,
            probes=None if self._exact else _laplace.signs(len(f), self._seed, DRAWS)[:, fit.own],
        )
        return Point(found.value, found.error, self._gradient(fit, found.fisher))

    def _gradient(self, fit: _Fit, fisher: bool) -> Floats:
        rooted, c2, g = fit.rooted, fit.c2, fit.g
        w = self._table.curvature(fit.f, self._block and not fisher, fisher=fisher)
        traces = self._by_algebra(fit, w) if self._exact else self._drawn(fit, w)
        q = -0.5 * traces.share * w.third(traces.s).sum(axis=0)
        # (I + W C)^-1 q = q - W L H^-1 L' q, with the true second derivative: the optimum's own
        true = self._table.curvature(fit.f)
        right, tol = rooted.pull_values(q[None]), 1e-10 if self._exact else _laplace.TOLERANCE
        found = conjugate_gradients(fit.whitened(true), right, tol=tol)
        if found.negative.any():  # with missing labels H may be indefinite
            true = w
            found = conjugate_gradients(fit.whitened(true), right, tol=tol)
        inner = found.x
        moved = q - true(rooted.values(inner))[0]
        # all terms are u' dC v: collect them by left and right vectors
        left = np.vstack([0.5 * g + moved, -0.5 * traces.share * traces.u])
        right = np.vstack([g, traces.v])
        n, s = rooted.size, rooted.n_labels
        cut = n * s
        by_kernel = []
        if len(fit.kernel.log_parameters):
            # the derivative by each entry of G: sum over vectors and labels of u v' / c2
            u, v = (
                side[:, :cut].reshape(-1, n, s).transpose(1, 0, 2).reshape(n, -1)
                for side in (left, right)
            )
            by_gram = u @ v.T / c2
            by_kernel = [np.vdot(by_gram, d) for d in fit.kernel._derivatives(self._pairs)]
        # C = L L' / c2 is inverse in c2, and in proportion to eta where it is about transitions
        by_c2 = -np.vdot(rooted.pull_values(left), rooted.pull_values(right)) / c2
        eta = rooted.root_eta**2
        by_eta = [eta / c2 * np.vdot(left[:, cut:], right[:, cut:])] if eta > 0 else []
        return np.array([*by_kernel, by_c2, *by_eta])

    def _by_algebra(self, fit: _Fit, w: Curvature) -> _Traces:
        # H = K K', so Sigma = (L K^-T) (L K^-T)' and R = W - W Sigma W
        m = fit.rooted.n_parameters
        root = lower_factor(dense(fit.whitened(w), m))
        s = fit.rooted.values(scipy.linalg.solve_triangular(root, np.eye(m), lower=True))
        ws, n = w(s), s.shape[1]
        return _Traces(s, dense(w, n) - ws.T @ ws, np.eye(n), 1.0)

    def _drawn(self, fit: _Fit, w: Curvature) -> _Traces:
        rng, rooted, h = np.random.default_rng(self._seed), fit.rooted, fit.whitened(w)
        z = rng.normal(size=(DRAWS, len(fit.f)))[:, fit.own]
        if w.drawable:
            # s = L H^-1 (sqrt(c2) z + L' u) has the covariance Sigma, and then r = W s - u has R:
            # with c = L z / sqrt(c2), a draw from the prior, r is also C^-1 (c - s)
            u = w.draws(DRAWS, rng)
            right = np.sqrt(fit.c2) * z + rooted.pull_values(u)
            s = rooted.values(conjugate_gradients(h, right, tol=_laplace.TOLERANCE).x)
            r = w(s) - u
            return _Traces(s, r, r, 1.0 / DRAWS)
        # R = W - W L H^-1 L' W may have either sign: R = E[R v v'] for signs v
        s = rooted.values(inverse_root(h, z))
        v = rng.choice([-1.0, 1.0], size=(DRAWS, len(fit.f)))
        wv = w(v)
        inner = conjugate_gradients(h, rooted.pull_values(wv), tol=_laplace.TOLERANCE).x
        return _Traces(s, wv - w(rooted.values(inner)), v, 1.0 / DRAWS)

    def _check_budget(self, n: int, budget: float) -> None:
        # inner products, distances, gram matrix, its root and the root's argument; derivatives
        held = 5 + len(self._kernel.log_parameters)
        need = 8.0 * held * n**2
        if need > budget:
            raise BudgetError(
                f"kernel parameters by the evidence need {held} matrices of {n} x {n} tokens, "
                f"{need / 2**30:.3g} GiB; the budget is {budget / 2**30:.3g} GiB. Choose them on "
                "fewer sequences, or by cross-validation"
            )


def maximise_evidence(
    fit_at: Callable[[Floats], Point],
    start: Floats,
    *,
    reach: float = REACH,
    max_iter: int = 25,
    tol: float = 1e-5,
) -> Best:
    """The phi of largest evidence, by L-BFGS-B within ``reach`` of the start.

    The best point that the search evaluates is kept. The evidence of large problems has a random
    part, and its gradient is not exactly that of the value. For the same reason the search ends if
    a line search finds no better point in ``TRIALS`` tries: near the maximum the random part hides
    any rise.

    >>> def parabola(phi):
    ...     return Point(-float(phi @ phi), 0.0, -2.0 * phi)
    >>> abs(float(maximise_evidence(parabola, np.array([3.0])).phi[0])) < 1e-6
    True
    """
    best: list[tuple[Floats, float]] = []
    # the first step is the gradient, scaled so that no parameter changes by more than a factor e
    scale = 0.0

    def loss(phi: Floats) -> tuple[float, Floats]:
        nonlocal scale
        point = fit_at(phi)
        scale = scale or max(1.0, float(np.abs(point.gradient).max()))
        if not best or point.value > best[-1][1]:
            best.append((phi.copy(), point.value))
        return -point.value / scale, -point.gradient / scale

    result = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(v - reach, v + reach) for v in start],
        options={"maxiter": max_iter, "ftol": tol, "maxls": TRIALS},
    )
    # status 1 means that the limit of iterations was reached
    return Best(*best[-1], int(result.nfev), result.status != 1)
