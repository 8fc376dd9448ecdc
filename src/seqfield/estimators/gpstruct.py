"""`GPStruct`: Gaussian-process chain models by sampling from the posterior."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from seqfield._checks import score_size
from seqfield._warn import warn
from seqfield.architectures.rooted import Rooted
from seqfield.errors import InputError
from seqfield.estimators._base import Fit, random_of, seed_of
from seqfield.estimators._descent import following
from seqfield.estimators._device import GPSTRUCT_ON_DEVICE
from seqfield.estimators._files import register
from seqfield.estimators._kernel import (
    KernelEstimator,
    eta_of,
    eta_param,
    fitted_kernels,
    grams_of,
    inducing_param,
    n_inducing_param,
    some_sequences,
    told_part,
    transitions_param,
)
from seqfield.estimators._lesson import Floats, Lesson
from seqfield.estimators._params import flag, parameters, real, whole, word
from seqfield.functions import DrawnFunction, Learned
from seqfield.kernels import Kernel
from seqfield.kernels.tokens import Tokens
from seqfield.losses.log import LogLoss
from seqfield.objectives.problems import WhitenedProblem
from seqfield.posteriors.kernel_slice import sample_kernel
from seqfield.samplers._base import Draws, Plan
from seqfield.samplers.elliptical_slice import EllipticalSlice
from seqfield.samplers.hamiltonian import Hamiltonian, NoUTurn

#: default number of steps of each chain
STEPS = {"ess": 5000, "hmc": 200, "nuts": 200}
#: largest number of chains that a warning names
NAMED = 5
#: largest r_hat of chains that have settled
SETTLED = 1.1


@register
@parameters
class GPStruct(KernelEstimator):
    """Gaussian-process chain model, its posterior sampled (Bratieres, Quadrianto, Ghahramani 2015).

    The prior is that of `GPSC`. The scores of each label are a Gaussian process over tokens with
    the given kernel. Transition scores are independent, with variance ``eta``. Unlike in `GPSC`,
    p(y | x) is averaged over draws from the posterior. At new tokens the average also includes the
    uncertainty that remains when the drawn functions are known at the training tokens.

    Attributes
    ----------
    classes_ : labels in column order
    effective_sample_size_, r_hat_ : diagnostics of all steps after burn-in. They are computed for
        the log-likelihood and for the squared norm, and the worse value is kept. r_hat_ is about 1
        if the chains agree, and infinite if a chain never moved
    log_likelihoods_ : (n_chains, steps) of the training labels after burn-in, not in model files
    objective_ : minus the mean of the log-likelihoods
    n_iter_ : steps of all chains; n_evaluations_ : evaluations of the likelihood, or of its
        gradient
    n_samples_ : number of kept draws; transitions_ : (S, S) mean transition scores of these draws
    kernel_, n_tokens_, n_kept_ : as in `GPSC`; kernel_samples_ : (rounds, parameters)
        logarithms of kernel parameters (learn_kernel=True, not in model files)

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPStruct(sf.kernels.RBF(0.35), n_steps=60, n_samples=20, random_state=0)
    >>> model.fit(X, y).score(X, y) > 0.8
    True
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (DrawnFunction,)
    n_steps: int | None = whole(
        default=None,
        help='steps of each chain; None is 5000 for "ess" and 200 for the other samplers',
        low=4,
        words=(None,),
        kw_only=False,
    )
    sampler: str = word(
        default="hmc",
        help=(
            'the sampler. "hmc" (Hamiltonian Monte Carlo) and "nuts" (HMC that chooses its path '
            'length) use gradients. "ess" (elliptical slice sampling) uses no gradients, and '
            "needs far more steps"
        ),
        words=("hmc", "nuts", "ess"),
    )
    burn_in: float = real(
        default=0.5,
        help=(
            'burn-in: the share of first steps that is not used. In these steps "hmc" and "nuts" '
            "tune their step size. If they are fewer than 20, the tuning steps come before them "
            "and do not count"
        ),
        low=0,
        high=0.99,
    )
    n_chains: int = whole(
        default=4,
        help=(
            "number of independent chains; each starts at a draw from the prior. Use several to "
            "see whether they agree"
        ),
        low=1,
    )
    n_samples: int = whole(
        default=100,
        help=(
            "number of draws that are kept, evenly spread over all chains. More draws give less "
            "noise, and take more time and memory"
        ),
        low=1,
    )
    learn_kernel: bool = flag(
        default=False,
        help=(
            "learn the kernel parameters first: sample them together with the scores by slice "
            "sampling. Their priors are log-normal around the given values. Random sequences with "
            "at most evidence_tokens tokens are used. The mean of the logarithms is then kept"
        ),
    )
    evidence_tokens: int = whole(
        default=1500,
        help="most tokens for sampling kernel parameters; more tokens take more time and memory",
        low=1,
    )
    eta: float = eta_param()
    transitions: bool = transitions_param()
    n_inducing: int | None = n_inducing_param()
    inducing: str = inducing_param()
    engine: str = word(
        default="numba",
        help=(
            '"jax" runs the chains of "ess" on the device of JAX. A hundred chains take little '
            "longer there than one chain"
        ),
        words=("numba", "jax"),
    )

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        if self.engine == "jax":
            GPSTRUCT_ON_DEVICE.check(self)
        (kernel,) = fitted_kernels(self.kernel, lesson)
        lesson = told_part(lesson, type(self).__name__)
        tokens, eta, s = Tokens.of(lesson.data), eta_of(self, lesson), lesson.n_labels
        score_size(float(np.sqrt(max(kernel.diagonal(tokens.x).max(), eta))))
        facts: dict[str, Any] = {"n_tokens_": int(tokens.x.shape[0])}
        if self.learn_kernel:
            facts["kernel_samples_"] = found = self._kernel_samples(kernel, lesson, eta)
            kernel = kernel.with_log_parameters(found[len(found) // 2 :].mean(axis=0))
        basis = grams_of(self, seed_of(self)).root(kernel, tokens.x)
        rooted = Rooted(s, basis.root, eta)
        draws = self._draw(rooted, lesson._replace(data=tokens.numbered()))
        facts |= self._told(draws)
        function = DrawnFunction.of(
            basis,
            np.vstack([draws.mean, draws.theta]),
            s,
            root_eta=rooted.root_eta,
            seed=seed_of(self),
        )
        return Fit(function, facts)

    def _kernel_samples(self, kernel: Kernel, lesson: Lesson, eta: float) -> Floats:
        if not len(kernel.log_parameters):
            raise InputError(
                f"learn_kernel=True: {kernel!r} has no parameters to sample; 1.0 * kernel has a "
                "scale"
            )
        some = lesson.part(some_sequences(lesson.data, self.evidence_tokens, random_of(self)))
        tokens = Tokens.of(some.data)
        return sample_kernel(
            kernel,
            tokens.x,
            tokens.numbered(),
            some.targets,
            some.weights,
            constraint=lesson.constraint,
            eta=eta,
            n_labels=lesson.n_labels,
            rng=np.random.default_rng(seed_of(self)),
            show=lesson.show,
        )

    def _draw(self, rooted: Rooted, lesson: Lesson) -> Draws:
        """Draws from the posterior of whitened functions."""
        steps = STEPS[self.sampler] if self.n_steps is None else self.n_steps
        plan = Plan.of(steps, self.burn_in, self.n_chains, self.n_samples)
        seed = seed_of(self)
        with following(plan.n_steps * plan.n_chains, show=lesson.show) as callback:
            if self.sampler != "ess":
                goal = lesson.objective(rooted, LogLoss(), n_jobs=self.n_jobs)
                if self.sampler == "hmc":
                    return Hamiltonian(plan, seed).sample(goal, callback)
                return NoUTurn(plan, seed, self.n_jobs).sample(goal, callback)
            problem = WhitenedProblem.of(
                rooted,
                lesson.data,
                lesson.targets,
                lesson.weights,
                lesson.constraint,
                self.n_jobs,
            )
            if self.engine == "jax":
                from seqfield.samplers.device_slice import DeviceSlice

                return DeviceSlice(plan, seed).sample(problem, callback)
            return EllipticalSlice(plan, seed, self.n_jobs).sample(problem, callback)

    def _told(self, draws: Draws) -> dict[str, Any]:
        """Diagnostics of the chains; warn if the chains have not settled."""
        r_hat = draws.r_hat
        if not r_hat <= SETTLED:  # with too few steps r_hat is nan
            what = _unsettled(draws, self.sampler)
            warn(f"no convergence: {what}", ConvergenceWarning)
        return {
            "n_iter_": draws.n_iter,
            "n_evaluations_": draws.n_evaluations,
            "objective_": -draws.log_likelihood,
            "effective_sample_size_": draws.effective_sample_size,
            "r_hat_": r_hat,
            "log_likelihoods_": draws.watched[:, :, 0],
        }

    @property
    def n_samples_(self) -> int:
        """Number of posterior draws over which predictions are averaged."""
        return self.scorer.n_draws


def _unsettled(draws: Draws, sampler: str) -> str:
    """What is wrong with the chains, and what to do. Some chains may never have moved."""
    still, r_hat = draws.still, draws.r_hat
    if still and not np.isnan(r_hat):
        return _standing(still, draws.watched.shape, sampler)
    what = f"the chains disagree (R-hat {r_hat:.2f})"
    if np.isnan(r_hat):
        what = "too few steps to tell whether the chains agree"
    other = ", or use sampler='hmc'" if sampler == "ess" else ""
    return f"{what}: raise n_steps{other}"


def _standing(still: list[int], shape: tuple[int, ...], sampler: str) -> str:
    named = ", ".join(map(str, still[:NAMED])) + ", ..." * (len(still) > NAMED)
    # "ess" has no step size that could be too large
    remedy = "" if sampler == "ess" else "raise burn_in or n_steps, in which the step is tuned, or "
    return (
        f"{len(still)} of {shape[0]} chains (number {named}) never moved in {shape[1]} steps: "
        f"{remedy}lower the scale of the kernel, eta or sample_weight"
    )
