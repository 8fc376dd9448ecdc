"""`GPSC`: Gaussian-process sequence classification, dense and sparse."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from seqfield.architectures.lookup import Lookup
from seqfield.architectures.rooted import Rooted
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._base import Fit, random_of, seed_of
from seqfield.estimators._descent import STUCK, Floats, Watch, descent_facts, following
from seqfield.estimators._device import GPSC_ON_DEVICE
from seqfield.estimators._files import register
from seqfield.estimators._kernel import (
    KernelEstimator,
    eta_of,
    eta_param,
    explicit_param,
    fitted_kernels,
    gram_dtype_param,
    grams_of,
    inducing_param,
    n_inducing_param,
    some_sequences,
    told_part,
    transitions_param,
)
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import flag, parameters, real, whole, word
from seqfield.estimators._setting import Setting
from seqfield.estimators._sparse import Sparse
from seqfield.functions import DrawnFunction, KernelFunction, Learned
from seqfield.kernels.gram import ADVICE
from seqfield.kernels.tokens import Tokens
from seqfield.losses._base import Loss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.posteriors.evidence import KernelEvidence
from seqfield.posteriors.laplace import log_evidence, posterior_samples
from seqfield.solvers._base import Minimum, Solver
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.newton import NewtonCG

REMEDY = "raise max_iter, or the penalty or tol"


@register
@parameters
class GPSC(KernelEstimator):
    """Gaussian-process sequence classification.

    The prior: the scores of each label are a Gaussian process over tokens with the given kernel.
    Transition scores are independent, with variance ``eta``. `fit` minimises

        sum_i w_i loss(y_i, x_i) + c2 / 2 |f|^2

    over functions f. With c2 = 1 the minimum is the MAP estimate, the most probable f.

    Attributes
    ----------
    classes_ : labels in column order
    kernel_ : the kernel, with the values that were taken from the data or learned; c2_, eta_ :
        c2 and eta, as given or learned
    log_evidence_, log_evidence_error_ : the log evidence, log p(y), by Laplace's method, and the
        standard error of its random part (posterior="laplace")
    transitions_ : (S, S) transition scores
    objective_ : final value of the objective
    gap_ : proven upper bound on objective_ minus the optimum of the dense problem. With
        ``n_inducing`` this is the problem with the low-rank kernel. Infinite if the loss is not
        convex
    n_tokens_ : distinct training tokens; n_kept_ : tokens where prediction evaluates the kernel
    n_iter_ : iterations, or rounds of a sparse method
    n_chosen_ : distinct tokens among the coordinates of a sparse method
    path_ : the rounds of a sparse method (`seqfield.solvers.greedy.Round`), not in model files
    support_ : the labelled sequences that method="sequence" chose (`print` it), not in model files

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPSC(sf.kernels.RBF(0.35)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    >>> sf.GPSC("rbf", method="sparse", n_coordinates=20).fit(X, y).n_kept_ <= 20
    True
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (KernelFunction, DrawnFunction)
    method: str = word(
        default="dense",
        help=(
            '"dense" has a coefficient for every distinct token and label. "sparse" chooses '
            "coordinates (token, label pair) greedily. Prediction then evaluates the kernel only "
            'at the kept tokens. "sequence" is the same, but chooses whole labelled sequences'
        ),
        words=("dense", "sparse", "sequence"),
    )
    posterior: str = word(
        default="map",
        help=(
            '"map" predicts with the MAP estimate. "laplace" puts a Gaussian around the MAP '
            "estimate, averages predictions over n_samples draws, and gives the log evidence"
        ),
        words=("map", "laplace"),
    )
    loss: str | Loss = word(
        default="log",
        help='the loss: "log", "softmax_margin" (with ``cost``) or "marginal", as in `CRF`',
        words=("log", "softmax_margin", "marginal"),
        accepts=(Loss,),
    )
    cost: float = real(
        default=1.0,
        help='cost of a wrong label in loss="softmax_margin"; raise it for wider margins',
        low=0,
    )
    c2: float = real(
        default=1.0,
        help=(
            "weight of the squared norm; 1 uses the kernel as the prior. Raise it if the model "
            "fits training labels too closely"
        ),
        low=0,
    )
    eta: float = eta_param()
    transitions: bool = transitions_param()
    explicit: Any = explicit_param()
    n_inducing: int | None = n_inducing_param()
    inducing: str = inducing_param()
    n_coordinates: int | float = real(
        default=0.25,
        help=(
            "number of coordinates that the sparse methods keep; a fraction is a share of the "
            "number of training tokens. More fit better, and make prediction slower"
        ),
        above=0,
    )
    n_per_round: int | str = whole(
        default="auto",
        help=(
            "how many coordinates of a sequence, or labelled sequences, each round takes. "
            'With method="sequence", "auto" takes ten labelled sequences. With method="sparse" it '
            "takes ten coordinates, later 2 % of those already chosen, at most three of each "
            "sequence"
        ),
        low=1,
        words=("auto",),
    )
    pick: Literal["largest", "random"] = word(
        default="largest",
        help=(
            "from which sequence a round takes coordinates: the one with the "
            '"largest" derivative, or a "random" one'
        ),
        words=("largest", "random"),
    )
    update: Literal["all", "new", "last"] = word(
        default="all",
        help=(
            'which coefficients are fitted after each round: "all", or only the "new" ones, '
            'which is cheaper. "last" fits the new ones in each round, and all of them at the end'
        ),
        words=("all", "new", "last"),
    )
    slope_tol: float = real(
        default=1e-3,
        help="a sparse method stops early if no derivative is larger than this value",
        low=0,
    )
    laplace: str = word(
        default="full",
        help=(
            'covariance of the Gaussian of posterior="laplace". "full" is between all positions '
            'of a sequence. "block" is only within tokens and pairs: cheaper and less exact'
        ),
        words=("full", "block"),
    )
    n_samples: int = whole(
        default=50,
        help=(
            'number of draws of posterior="laplace" over which predictions are averaged. More '
            "draws give less noise, and take more time and memory"
        ),
        low=1,
    )
    learn_kernel: bool = flag(
        default=False,
        help=(
            "learn the parameters of the kernel, c2 and eta: maximise the evidence on random "
            "sequences with at most evidence_tokens tokens in all"
        ),
    )
    evidence_tokens: int = whole(
        default=1500,
        help="most tokens for learning kernel parameters; more tokens take more time and memory",
        low=1,
    )
    solver: str | Solver = word(
        default="lbfgs",
        help=(
            'the optimiser of the dense method: "lbfgs", or "newton" with conjugate gradients. '
            'Use "newton" if L-BFGS does not converge'
        ),
        words=("lbfgs", "newton"),
        accepts=(Solver,),
    )
    gram_dtype: str = gram_dtype_param()
    max_iter: int = whole(
        default=500,
        help="largest number of iterations of the solver, or of each refit of a sparse method",
        low=1,
    )
    tol: float = real(
        default=1e-5,
        help="relative tolerance of the solver, or of each refit; lower it for a closer optimum",
        low=0,
    )
    engine: str = word(
        default="numba",
        help=(
            '"jax" holds the gram matrix and runs the whole descent of the dense method on the '
            "device of JAX (``pip install 'seqfield[jax]'``), without explicit features. Sums "
            "over a float32 gram matrix are in float32 for blocks of 512 tokens. The sum of the "
            "blocks is in float64"
        ),
        words=("numba", "jax"),
    )

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        self._check()
        (kernel,) = fitted_kernels(self.kernel, lesson)
        lesson = told_part(lesson, type(self).__name__)
        seed = seed_of(self) if self.n_inducing is not None else 0
        grams = grams_of(self, seed)
        tokens = Tokens.of(lesson.data)
        setting = Setting(kernel, float(self.c2), eta_of(self, lesson), lesson, tokens, grams)
        if self.learn_kernel:
            setting = self._learned_kernel(setting)
        if self.posterior == "laplace":
            return self._learn_posterior(setting)
        if self.method != "dense":
            return self._learn_sparse(setting)
        return self._learn_device(setting) if self.engine == "jax" else self._learn_dense(setting)

    def _check(self) -> None:
        """Raise a `CapabilityError` for arguments that do not go together."""
        averaged = self.posterior == "laplace"
        if averaged and (self.method != "dense" or self.loss != "log"):
            raise CapabilityError(
                "posterior='laplace' needs method='dense' and loss='log': the approximation is "
                "of a posterior, and sparse methods and other losses have none"
            )
        if self.learn_kernel and self.loss != "log":
            raise CapabilityError(
                "learn_kernel=True needs loss='log': the evidence is that of its probabilities"
            )
        if averaged and (self.explicit is True or self.gram_dtype != "float64"):
            raise CapabilityError(
                "posterior='laplace' works with a root of the gram matrix in float64: leave "
                "explicit and gram_dtype as they are, or use n_inducing="
            )
        if self.engine == "jax":
            GPSC_ON_DEVICE.check(self)
        if self.c2 == 0 and (self.learn_kernel or averaged):
            raise InputError("c2 must be above 0: without a prior there is no posterior")

    def _learned_kernel(self, setting: Setting) -> Setting:
        """The setting whose kernel parameters, c2 and eta maximise the evidence."""
        lesson = setting.lesson
        some = lesson.part(some_sequences(lesson.data, self.evidence_tokens, random_of(self)))
        tokens = Tokens.of(some.data)
        goal = some._replace(data=tokens.numbered()).objective(
            Lookup(lesson.n_labels, tokens.x.shape[0]), LogLoss(), setting.prior, self.n_jobs
        )
        evidence = KernelEvidence(
            setting.kernel,
            tokens.x,
            goal,
            setting.eta,
            covariance=self.laplace,
            budget=setting.grams.bytes,
        )
        kernel, c2, eta = evidence.maximise(show=lesson.show)
        return setting._replace(kernel=kernel, c2=c2, eta=eta)

    def optimum(self, lesson: Lesson) -> tuple[Objective, Floats]:
        """The objective of the dense method that the fit minimised over a lesson, and the final
        function."""
        lesson = told_part(lesson, type(self).__name__)
        function = self.function_
        assert isinstance(function, KernelFunction)
        tokens, grams = Tokens.of(lesson.data), grams_of(self, 0)
        setting = Setting(function.kernels[0], self.c2_, self.eta_, lesson, tokens, grams)
        gram = setting.gram(setting.covariance())
        # only the values of a function matter here, not the coefficients behind them
        values = function.values(tokens.x, self.n_jobs).ravel()
        steps = function.transitions.ravel()[gram.pairs] / (gram.root_eta or 1.0)
        theta = np.concatenate([np.zeros(len(values)), values, steps])
        return setting.numbered.objective(gram, self._loss(), setting.prior, self.n_jobs), theta

    def _learn_dense(self, setting: Setting) -> Fit:
        covariance = setting.covariance()
        gram = setting.gram(covariance)
        goal = setting.numbered.objective(gram, self._loss(), setting.prior, self.n_jobs)
        found = self._run(self._solver(), goal, setting)
        theta, facts = self._facts(goal, found, setting)
        return Fit(setting.function(covariance, gram, theta), facts)

    def _learn_device(self, setting: Setting) -> Fit:
        """The dense method with the gram matrix on the device."""
        from seqfield.architectures._jax import DeviceGram
        from seqfield.kernels._jax import OnDevice
        from seqfield.solvers.device import DeviceLBFGS

        covariance = OnDevice.of(
            setting.kernel,
            setting.tokens.x,
            budget=setting.grams.bytes,
            dtype=self.gram_dtype,
            n_jobs=self.n_jobs,
            advice=ADVICE,
        )
        gram = DeviceGram(setting.lesson.n_labels, covariance, setting.eta)
        goal = setting.numbered.objective(gram, self._loss(), setting.prior, self.n_jobs)
        found = self._run(DeviceLBFGS(max_iter=self.max_iter, tol=self.tol), goal, setting)
        theta, facts = self._facts(goal, found, setting)
        return Fit(setting.function(covariance, gram, theta), facts)

    def _learn_sparse(self, setting: Setting) -> Fit:
        chosen = Sparse.of(self).choose(setting, self._loss(), random_of(self))
        theta, facts = self._facts(chosen.goal, chosen.minimum, setting)
        function = setting.function(chosen.covariance, chosen.gram, theta)
        return Fit(function, facts | chosen.facts)

    def _learn_posterior(self, setting: Setting) -> Fit:
        """The MAP estimate, and draws from the posterior around it."""
        basis, s = setting.grams.root(setting.kernel, setting.tokens.x), setting.lesson.n_labels
        rooted = Rooted(s, basis.root, setting.eta)
        goal = setting.numbered.objective(rooted, self._loss(), setting.prior, self.n_jobs)
        theta, facts = self._facts(goal, self._run(self._solver(), goal, setting), setting)
        evidence = log_evidence(goal, theta, covariance=self.laplace)
        facts |= {"log_evidence_": evidence.value, "log_evidence_error_": evidence.error}
        rng = np.random.default_rng(seed_of(self))
        draws = posterior_samples(goal, theta, self.n_samples, rng, self.laplace)
        function = DrawnFunction.of(
            basis,
            np.vstack([theta, draws]),
            s,
            root_eta=rooted.root_eta,
            seed=seed_of(self),
            variance=1.0 / setting.c2,
        )
        return Fit(function, facts)

    def _run(self, solver: Solver, goal: Objective, setting: Setting) -> Minimum:
        theta = np.zeros(goal.architecture.n_parameters)
        with following(self.max_iter, show=setting.lesson.show) as callback:
            return solver.minimise(goal, theta, callback)

    def _facts(
        self, goal: Objective, found: Minimum, setting: Setting
    ) -> tuple[Floats, dict[str, Any]]:
        # only the dense method has another solver; a solver instance is a choice of the user
        other = (self.solver, self.method, self.engine) == ("lbfgs", "dense", "numba")
        stuck = f"{STUCK}; or use solver='newton'" if other else STUCK
        theta, facts = descent_facts(goal, found, Watch(), REMEDY, stuck=stuck)
        return theta, facts | setting.facts

    def _loss(self) -> Loss:
        if isinstance(self.loss, Loss):
            return self.loss
        if self.loss == "marginal":
            return MarginalLoss()
        return LogLoss(self.cost if self.loss == "softmax_margin" else 0.0)

    def _solver(self) -> Solver:
        if isinstance(self.solver, Solver):
            return self.solver
        kind = LBFGS if self.solver == "lbfgs" else NewtonCG
        return kind(max_iter=self.max_iter, tol=self.tol, n_jobs=self.n_jobs)
