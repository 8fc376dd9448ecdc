"""`GPStruct`: Gaussian-process chain models by sampling from the posterior."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from seqfield._checks import number, score_size
from seqfield._warn import warn
from seqfield.architectures.rooted import Rooted
from seqfield.errors import InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._device import GPSTRUCT_ON_DEVICE
from seqfield.estimators._files import register
from seqfield.estimators._sampled import SampledEstimator
from seqfield.kernels.covariance import Root
from seqfield.kernels.tokens import Tokens
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import WhitenedProblem
from seqfield.posteriors.kernel_slice import sample_kernel
from seqfield.samplers._base import Draws, Plan
from seqfield.samplers.elliptical_slice import EllipticalSlice
from seqfield.samplers.hamiltonian import Hamiltonian, NoUTurn
from seqfield.sequences import Sequences
from seqfield.solvers._base import Callback, Minimum

CHOICES = {
    "sampler": ("ess", "hmc", "nuts"),
    "landmarks": ("pivoted", "random"),
    "engine": ("numba", "jax"),
}
#: steps of each chain if nothing is said
STEPS = {"ess": 5000, "hmc": 200, "nuts": 200}
#: counts of a fit that model files keep
COUNTS = ("n_iter_", "n_evaluations_")
#: chains that a warning names at most
NAMED = 5
#: chains that disagree by more than this have not settled
SETTLED = 1.1


@register
class GPStruct(SampledEstimator):
    """Gaussian-process chain model, its posterior sampled (Bratieres, Quadrianto, Ghahramani 2015).

    The scores of each label are a Gaussian process over tokens with the given kernel, those of
    transitions independent with variance ``eta``: the model of `GPSC`, but p(y | x) is averaged
    over draws from the posterior, at new tokens with what these leave open.

    Parameters
    ----------
    kernel, features : as in `GPSC`
    n_steps : steps of each chain; by default 5000 for "ess", 200 for the others
    sampler : "hmc" (Hamiltonian Monte Carlo) or "nuts" (without a path length to choose), which
        take gradients; "ess" (elliptical slice sampling), which needs none and takes far more steps
    burn_in : the share of the steps that is thrown away; "hmc" and "nuts" tune their step in it;
        if it has fewer than 20 steps the others come before it, uncounted
    n_chains : independent chains, from draws of the prior
    n_samples : draws that are kept of all chains, evenly spread
    sample_kernel : before, slice sample the kernel's parameters (log-normal priors about their
        values) with the scores, on random sequences of at most ``evidence_tokens`` tokens in all;
        the mean of their logarithms is used from there on
    eta, transitions : as in `GPSC`
    n_landmarks, landmarks, gram_budget : as in `GPSC`
    engine : "numba", or "jax" to run the chains of "ess" on JAX's device, where a hundred take
        little longer than one
    scheme, on_violation, classes, missing_label, random_state, n_jobs, verbose : as in `CRF`

    Attributes
    ----------
    classes_ : labels in column order
    effective_sample_size_, r_hat_ : of the log-likelihood and of the squared norm, whichever is
        worse, over all steps after burn-in: r_hat_ is about 1 once the chains agree, and infinite
        if one of them never moved
    log_likelihoods_ : (n_chains, steps) of the training labels after burn-in, not in model files
    n_iter_ : steps of all chains; n_evaluations_ : evaluations of the likelihood, or of its
        gradient
    n_samples_ : draws that are kept; transitions_ : (S, S) their mean transition scores
    kernel_, n_tokens_, n_kept_ : as in `GPSC`; kernel_samples_ : (rounds, parameters) logarithms
        (sample_kernel=True, not in model files)

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPStruct(sf.kernels.RBF(0.35), n_steps=60, n_samples=20, random_state=0)
    >>> model.fit(X, y).score(X, y) > 0.8
    True
    """

    n_steps: int | None
    sampler: str
    burn_in: float
    n_chains: int
    sample_kernel: bool
    evidence_tokens: int
    engine: str
    gram_dtype = "float64"
    _basis: Root

    def __init__(
        self,
        kernel: Any = None,
        n_steps: int | None = None,
        *,
        features: Any = None,
        sampler: Literal["hmc", "nuts", "ess"] = "hmc",
        burn_in: float = 0.5,
        n_chains: int = 4,
        n_samples: int = 100,
        sample_kernel: bool = False,
        evidence_tokens: int = 1500,
        eta: float = 1.0,
        transitions: bool = True,
        n_landmarks: int | None = None,
        landmarks: Literal["pivoted", "random"] = "pivoted",
        gram_budget: float = 6.0,
        engine: Literal["numba", "jax"] = "numba",
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        self._check_choices(CHOICES)
        if self.engine == "jax":
            GPSTRUCT_ON_DEVICE.check(self)
        self._plan()
        self.__dict__.pop("kernel_samples_", None)
        super()._fit(data, targets, weights)

    def _plan(self) -> Plan:
        steps = STEPS[self.sampler] if self.n_steps is None else self.n_steps
        return Plan.of(steps, self.burn_in, self.n_chains, self.n_samples)

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        numbered = super()._prepare(data, targets, weights)
        prior = self._kernels[0].diagonal(self._tokens.x)
        score_size(float(np.sqrt(max(prior.max(), self._given_eta()))))
        if self.sample_kernel:
            self._learn_kernel(data, targets, weights)
        self._basis = self._root(self._kernels[0])
        self._architecture = Rooted(len(self._labels), self._basis.root, self._given_eta())
        return numbered

    def _learn_kernel(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        kernel = self._kernels[0]
        if not len(kernel.log_parameters):
            raise InputError(
                f"sample_kernel=True: {kernel!r} has no parameters to sample; 1.0 * kernel has a "
                "scale"
            )
        some = self._some_sequences(
            data, number("evidence_tokens", self.evidence_tokens, low=1, whole=True)
        )
        tokens = Tokens.of(data[some])
        found = sample_kernel(
            kernel,
            tokens.x,
            tokens.numbered(),
            targets[some],
            weights[some],
            constraint=self._constraint,
            eta=self._given_eta(),
            n_labels=len(self._labels),
            rng=np.random.default_rng(self._random().randint(2**31 - 1)),
            show=bool(self.verbose),
        )
        self.kernel_samples_ = found
        settled = found[len(found) // 2 :].mean(axis=0)
        self._kernels = [kernel.with_log_parameters(settled)]

    def _recipe(self, data: Sequences) -> Recipe:
        plan, seed = self._plan(), int(self._random().randint(2**31 - 1))
        if self.sampler == "hmc":
            return Recipe(Hamiltonian(plan, seed), LogLoss())
        if self.engine == "jax":
            from seqfield.samplers.device_slice import DeviceSlice

            return Recipe(DeviceSlice(plan, seed), LogLoss())
        kind = EllipticalSlice if self.sampler == "ess" else NoUTurn
        return Recipe(kind(plan, seed, self.n_jobs), LogLoss())

    def _solve(
        self, optimiser: Any, goal: Objective, theta: Floats, callback: Callback
    ) -> tuple[Minimum, Draws]:
        if self.sampler == "ess":
            parts = goal.data, goal.targets, goal.weights, goal.constraint, goal.n_jobs
            draws = optimiser.sample(WhitenedProblem.of(self._architecture, *parts), callback)
        else:
            draws = optimiser.sample(goal, callback)
        value = -draws.log_likelihood
        return Minimum(draws.mean, value, None, draws.n_iter, True), draws

    def _finish(self, goal: Objective, theta: Floats, result: Minimum, found: Draws) -> None:
        super()._finish(goal, theta, result, found)
        draws = found
        self.effective_sample_size_, self.r_hat_ = draws.effective_sample_size, draws.r_hat
        self.log_likelihoods_ = draws.watched[:, :, 0]
        self.n_evaluations_ = draws.n_evaluations
        if not self.r_hat_ <= SETTLED:  # of too few steps it is not a number
            warn(
                f"no convergence: {self._unsettled(draws.still)}",
                ConvergenceWarning,
            )
        self._keep_posterior(self._basis, theta, draws.theta, self._architecture.root_eta)
        del self.theta_, self._architecture, self._basis, self._tokens

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        header, arrays = super()._state()
        counts = {name: int(getattr(self, name)) for name in COUNTS if hasattr(self, name)}
        return header | {"counts": counts}, arrays

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, arrays)
        # files of older versions have none
        for name, value in header.get("counts", {}).items():
            if name not in COUNTS:
                raise InputError(f"unknown count {name!r}")
            setattr(self, name, number(name, value, low=0, whole=True))

    def _unsettled(self, still: list[int]) -> str:
        """What is wrong with the chains, of which some never moved, and what to do."""
        if still and not np.isnan(self.r_hat_):
            return _standing(still, self.log_likelihoods_.shape, self.sampler)
        what = f"the chains disagree (R-hat {self.r_hat_:.2f})"
        if np.isnan(self.r_hat_):
            what = "too few steps to tell whether the chains agree"
        other = ", or use sampler='hmc'" if self.sampler == "ess" else ""
        return f"{what}: raise n_steps{other}"


def _standing(still: list[int], shape: tuple[int, ...], sampler: str) -> str:
    named = ", ".join(map(str, still[:NAMED])) + ", ..." * (len(still) > NAMED)
    # steps of "ess" have no size that could be too large
    remedy = "" if sampler == "ess" else "raise burn_in or n_steps, in which the step is tuned, or "
    return (
        f"{len(still)} of {shape[0]} chains (number {named}) never moved in {shape[1]} steps: "
        f"{remedy}lower the scale of the kernel, eta or sample_weight"
    )
