"""Stochastic variational inference for sparse Gaussian-process scores.

A step takes some sequences, estimates the expected log-likelihood of their labels and its
derivatives by the Gaussians of their scores (`_expectations`), and pulls these back to q, to the
kernel's parameters and to the inducing tokens. Memory is that of q and of one batch: it does not
grow with the number of tokens.

q takes natural gradient steps if it has one component and the likelihood has second derivatives of
one sign, or a substitute for them. Their rate falls, so that noise averages out. Otherwise q takes
steps of Adam, as all other parameters do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures.inducing import Batch, Inducing
from seqfield.errors import CapabilityError, InputError
from seqfield.objectives.needs import INDUCING, OWN_CRITERION, check
from seqfield.solvers._base import Callback, Floats, Step
from seqfield.variational._elbo import Gradient, elbo
from seqfield.variational._expectations import Bound, draw_noise, scores_of
from seqfield.variational.gaussians import (
    Gaussians,
    Natural,
    divergence_gradient,
    natural_steps,
)
from seqfield.variational.problems import InducingProblem

#: the natural step falls as (1 + step / SETTLE)^-POWER from this many epochs on
SETTLE, POWER = 10.0, 0.7
#: the longest natural step, and the first one: steps from the prior are long and uncertain
LONGEST, FIRST = 0.5, 0.3
#: draws for the second derivative along a step
BENDS = 2
#: shares of a step that are tried, each half of the one before
HALVINGS = 30
#: beyond this, logarithms of kernel parameters are refused
FARTHEST = 100.0
#: epochs whose mean ELBO is compared with the mean of as many epochs before
PATIENCE = 10
#: a rise that noise may hide: this many tolerances, but at most this share of the ELBO; or this
#: many nats, which matter to nobody and are all that few sequences can show
HIDDEN, PART, NATS = 10.0, 0.01, 1.0
#: kernel parameters still move if they go farther than this share of steps that all have one sign
ON_THE_WAY = 0.25


class Fitted(NamedTuple):
    """The end of it: q, the architecture with its kernel and tokens, the ELBO of each step, that of
    the last epoch, whether the kernel's parameters were still on their way, the number of epochs,
    and whether they came to an end."""

    q: Gaussians
    architecture: Inducing
    elbos: Floats
    bound: float
    moving: bool
    n_iter: int
    converged: bool

    @property
    def mean(self) -> Floats:
        """Posterior means of the whitened functions and the transitions."""
        return self.q.mean


@dataclass(frozen=True)
class StochasticVariational:
    """``max_iter`` epochs at most."""

    gradient: str = "reparam"
    natural: bool = True
    n_components: int = 1
    n_mc: int = 10
    batch_size: int = 50
    max_iter: int = 100
    tol: float = 1e-4
    learning_rate: float = 0.02
    learn_kernel: bool = True
    learn_inducing: bool = False
    seed: int = 0
    needs = (INDUCING, OWN_CRITERION)

    def moves(self, architecture: Inducing) -> bool:
        """Whether the prior has parameters to learn."""
        learns = self.learn_kernel and len(architecture.kernel.log_parameters) > 0
        return learns or self.learn_inducing

    def fit(self, problem: InducingProblem, callback: Callback | None = None) -> Fitted:
        """Maximise the ELBO, from the prior on."""
        check(self, problem)
        self._check_likelihood(problem)
        state = _State(self, problem.architecture, np.random.default_rng(self.seed))
        n = len(problem.data)
        n_batches = -(-n // self.batch_size)
        settled, kernel = _Watch(self.tol), _Drift(n_batches * self.learning_rate)
        converged, epoch = False, 0
        for epoch in range(1, self.max_iter + 1):
            order = state.rng.permutation(n)
            for chosen in np.array_split(order, n_batches):
                state.step(problem, np.sort(chosen), n)
            value = float(np.mean(state.elbos[-n_batches:]))
            if callback is not None and callback(Step(epoch, state.q.mean, -value)):
                break
            # both must be called in every epoch
            kernel(state.architecture.kernel.log_parameters)
            converged = settled(value) and not kernel.moving
            if converged:
                break
        elbos = np.array(state.elbos)
        last = float(np.mean(elbos[-n_batches:]))
        return Fitted(state.q, state.architecture, elbos, last, kernel.moving, epoch, converged)

    def _check_likelihood(self, problem: InducingProblem) -> None:
        """Raise a `CapabilityError` for derivatives that the likelihood does not have."""
        own = problem.likelihood
        kind = type(self).__name__
        if self.gradient == "reparam" and not own.differentiable:
            raise CapabilityError(
                f"{kind} needs a likelihood with derivatives: use gradient='score' for one that is "
                "a function of values alone"
            )
        if self.natural and not (self.gradient == "reparam" and own.bends(problem.targets)):
            raise CapabilityError(
                f"{kind} needs second derivatives of one sign for natural gradients: use "
                "natural=False"
            )
        if self.natural and self.n_components > 1:
            raise CapabilityError(
                f"{kind} needs one component for natural gradients: use natural=False"
            )


class _Watch:
    """The test of convergence: it compares the mean ELBO of the last epochs with that of the epochs
    before.

    It is True if the mean rose by at most a tolerance, fell by at most the noise, and the noise is
    too small to hide a rise. With a tolerance of 0 it is never True. Later the ELBO rises more
    slowly, and more epochs are needed to see a rise in the noise. So means are over `PATIENCE`
    epochs, or over a fifth of all epochs if that is more.
    """

    def __init__(self, tol: float) -> None:
        self.tol = tol
        self.values: list[float] = []

    def __call__(self, value: float) -> bool:
        self.values.append(value)
        n = max(PATIENCE, len(self.values) // 5)
        if self.tol <= 0.0 or len(self.values) < 2 * n:
            return False
        earlier, later = self.values[-2 * n : -n], self.values[-n:]
        before = np.mean(earlier)
        rise, little = np.mean(later) - before, self.tol * abs(before)
        error = np.sqrt((np.var(earlier, ddof=1) + np.var(later, ddof=1)) / n)
        if 2.0 * error > max(max(self.tol, min(HIDDEN * self.tol, PART)) * abs(before), NATS):
            return False
        # if values fall along a straight line, the two means are 3.5 of these spreads apart
        return bool(-max(little, 2.0 * np.std(earlier)) <= rise <= little)


class _Drift:
    """Whether the kernel's log-parameters still move.

    They do if `PATIENCE` epochs took them farther than a share of ``reach`` for each epoch.
    ``reach`` is the way of an epoch's steps of Adam if all have the same sign. A kernel far from
    the best one moves steadily, while the ELBO may not rise yet.
    """

    def __init__(self, reach: float) -> None:
        self.reach, self.moving = reach, False
        self.seen: list[Floats] = []

    def __call__(self, parameters: Floats) -> None:
        self.seen = [*self.seen[-PATIENCE:], parameters]
        if len(self.seen) > PATIENCE and len(parameters):
            way = float(np.abs(self.seen[-1] - self.seen[0]).max())
            self.moving = way > ON_THE_WAY * PATIENCE * self.reach


class _State:
    """q, the prior's parameters, and the moments of Adam."""

    def __init__(
        self, settings: StochasticVariational, architecture: Inducing, rng: np.random.Generator
    ) -> None:
        self.settings, self.architecture, self.rng = settings, architecture, rng
        self.q = Gaussians.prior(
            settings.n_components, architecture.size, architecture.n_labels, architecture.eta, rng
        )
        self.elbos: list[float] = []
        self.n_steps = 0
        self._adams: dict[str, Adam] = {}
        self._seen = 0.0  # the weight of data, as against the prior, in the precisions
        if settings.natural:
            self._naturals = Natural(architecture.n_labels, architecture.size)

    def step(self, problem: InducingProblem, chosen: NDArray[np.int64], n: int) -> None:
        """One batch."""
        batch = self.architecture.lay_out(problem.data[chosen])
        weights = problem.weights[chosen] * (n / len(chosen))
        bound = problem.likelihood.bound(problem.targets[chosen], weights)
        found = elbo(self.q, self.architecture, batch, bound, self.settings, self.rng)
        self.elbos.append(found.value)
        self.n_steps += 1
        # the prior's parameters are not stepped until q is useful
        if self.n_steps > 1 and self.settings.moves(self.architecture):
            self._move_prior(batch, found)
        if self.settings.natural:
            self._natural(batch, bound, found, len(chosen) / n)
        else:
            self._adam(found)

    def _natural(self, batch: Batch, bound: Bound, found: Gradient, share: float) -> None:
        epochs = self.n_steps * share
        rate = min(1.0, 2.0 * share) * (1.0 + max(0.0, epochs - 1.0) / SETTLE) ** -POWER
        rate = min(rate, LONGEST if self.n_steps > 1 else FIRST)
        q, eta = self.q, self.architecture.eta
        means, roots = self._naturals.step(q, found.means, found.covariances, rate)
        steps, variances = natural_steps(q, eta, found.steps, found.step_variances, rate)
        d_means, d_steps = means - q.means, steps - q.steps
        # The noise of steps must average out like the noise of the precisions. So the share of the
        # way to the peak is the weight of this batch in their mean over all batches so far.
        self._seen += rate * (1.0 - self._seen)
        way = min(rate / self._seen, LONGEST if self.n_steps > 1 else FIRST)
        part = min(1.0, way * self._peak(batch, bound, found, d_means, d_steps))
        part = self._rising(batch, bound, found, d_means, d_steps, part)
        means, steps = q.means + part * d_means, q.steps + part * d_steps
        self.q = Gaussians(q.logits, means, roots, steps, variances)

    def _peak(
        self, batch: Batch, bound: Bound, found: Gradient, d_means: Floats, d_steps: Floats
    ) -> float:
        """Where the ELBO peaks along a step of all means, by its slope and second derivative.

        Each label and each transition was moved as if the others stood still.
        """
        q, eta = self.q, self.architecture.eta
        slope = float(np.vdot(found.means - q.means, d_means))
        bend = float(np.vdot(d_means, d_means))
        if eta > 0.0:
            slope += float(np.vdot(found.steps - q.steps / eta, d_steps))
            bend += float(np.vdot(d_steps, d_steps)) / eta
        moments = found.moments[0]
        d_node = batch.phi @ d_means[0]
        h = 1e-3 / max(float(np.abs(d_node).max()), float(np.abs(d_steps).max()), 1e-12)
        f, t = scores_of(moments, draw_noise(moments, BENDS, self.rng, paired=True))
        assert bound.gradient is not None
        for own, table in zip(f, t, strict=True):
            up = bound.gradient(own + h * d_node, table + h * d_steps)
            down = bound.gradient(own - h * d_node, table - h * d_steps)
            change = np.vdot(up[1] - down[1], d_node) + np.vdot(up[2] - down[2], d_steps)
            bend -= float(change) / (2.0 * h * len(f))
        if bend > 0.0:
            return max(slope, 0.0) / bend
        # with missing labels there may be no peak ahead
        return math.inf if slope > 0.0 else 0.0

    def _rising(
        self,
        batch: Batch,
        bound: Bound,
        found: Gradient,
        d_means: Floats,
        d_steps: Floats,
        part: float,
    ) -> float:
        """The largest of part, part / 2, ... at which the ELBO is not below its present value.

        If all probabilities are near 0 or 1, the second derivative says nothing about the ELBO a
        step away.
        """
        q, eta, moments = self.q, self.architecture.eta, found.moments[0]
        d_node = batch.phi @ d_means[0]
        # its own random numbers: those of other steps must not depend on the number of tries
        own = np.random.default_rng(self.n_steps)
        f, t = scores_of(moments, draw_noise(moments, BENDS, own, paired=True))

        def value(share: float) -> float:
            means, steps = q.means + share * d_means, q.steps + share * d_steps
            size = float(np.vdot(means, means))
            if eta > 0.0:
                size += float(np.vdot(steps, steps)) / eta
            found = bound.values(f + share * d_node, t + share * d_steps)
            return float(found.sum(axis=1).mean()) - 0.5 * size

        now = value(0.0)
        for _ in range(HALVINGS):
            if value(part) >= now:
                return part
            part *= 0.5
        return 0.0

    def _adam(self, found: Gradient) -> None:
        q, rate = self.q, self.settings.learning_rate
        kl = divergence_gradient(q, self.architecture.eta)
        by_covariance = found.covariances - kl.covariances
        by_root = np.tril(2.0 * by_covariance @ q.roots)
        # the diagonal is stepped by its logarithm, so it stays positive
        diagonal = np.einsum("...ii->...i", q.roots)
        by_log = np.einsum("...ii->...i", by_root) * diagonal
        lower = q.roots + self._towards("roots", np.tril(by_root, -1), rate)
        grown = diagonal * np.exp(self._towards("diagonal", by_log, rate))
        np.einsum("...ii->...i", lower)[...] = grown
        means = q.means + self._towards("means", found.means - kl.means, rate)
        logits = q.logits
        if len(logits) > 1:
            values = np.array([one.values.sum() for one in found.expected])
            by_weight = q.weights * (values - q.weights @ values)
            logits = logits + self._towards("logits", by_weight - kl.logits, rate)
        steps, variances = q.steps, q.step_variances
        if self.architecture.eta > 0:
            steps = steps + self._towards("steps", found.steps - kl.steps, rate)
            by_variance = (found.step_variances - kl.step_variances) * variances
            variances = variances * np.exp(self._towards("variances", by_variance, rate))
        if not (np.isfinite(lower).all() and np.einsum("...ii->...i", lower).min() ** 2 > 0.0):
            raise InputError("a step left the posterior without a covariance: lower learning_rate")
        self.q = Gaussians(logits, means, lower, steps, variances)

    def _move_prior(self, batch: Batch, found: Gradient) -> None:
        settings, model = self.settings, self.architecture
        kernel, tokens = model.kernel, model.tokens
        if settings.learn_kernel and len(kernel.log_parameters):
            slope = model.by_parameters(batch, found.phi, found.rest)
            moved = kernel.log_parameters + self._towards("kernel", slope, settings.learning_rate)
            if np.abs(moved).max() > FARTHEST:
                raise InputError(
                    f"a step took kernel parameters to exp({moved.round(1).tolist()}): lower "
                    "learning_rate, or use learn_kernel=False"
                )
            kernel = kernel.with_log_parameters(moved)
        if settings.learn_inducing:
            slope = model.by_tokens(batch, found.phi)
            tokens = tokens + self._towards("tokens", slope, settings.learning_rate)
        if kernel is not model.kernel or tokens is not model.tokens:
            self.architecture = model.with_kernel(kernel, tokens)

    def _towards(self, name: str, gradient: Floats, rate: float) -> Floats:
        if name not in self._adams:
            self._adams[name] = Adam(gradient.shape)
        return self._adams[name].step(gradient, rate)


class Adam:
    """Kingma and Ba (2015): steps of about ``rate`` in every coordinate, uphill."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.m, self.v, self.count = np.zeros(shape), np.zeros(shape), 0

    def step(self, gradient: Floats, rate: float) -> Floats:
        """The step to add to the parameters."""
        self.count += 1
        self.m += 0.1 * (gradient - self.m)
        self.v += 0.001 * (gradient**2 - self.v)
        m = self.m / (1.0 - 0.9**self.count)
        v = self.v / (1.0 - 0.999**self.count)
        return np.asarray(rate * m / (np.sqrt(v) + 1e-8))
