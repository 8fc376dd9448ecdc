"""`GPSC`: Gaussian-process sequence classification, dense and sparse."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from seqfield._checks import number
from seqfield.architectures.atoms import Atoms
from seqfield.architectures.kernel import Gram
from seqfield.architectures.lookup import Lookup, Values
from seqfield.architectures.rooted import Rooted
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._device import GPSC_ON_DEVICE
from seqfield.estimators._files import register
from seqfield.estimators._kernel import KernelEstimator
from seqfield.estimators._support import Support
from seqfield.kernels.covariance import Factored, Root
from seqfield.kernels.tokens import Tokens
from seqfield.labels import Targets
from seqfield.losses._base import Loss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.posteriors.evidence import KernelEvidence
from seqfield.posteriors.laplace import log_evidence, posterior_samples
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences
from seqfield.solvers._base import Callback, Minimum
from seqfield.solvers.greedy import Greedy, Selection
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.margin import Labelling
from seqfield.solvers.newton import NewtonCG
from seqfield.solvers.pickers import Coordinates, Labellings

CHOICES = {
    "method": ("dense", "sparse", "sequence"),
    "posterior": ("map", "laplace"),
    "loss": ("log", "softmax_margin", "marginal"),
    "pick": ("largest", "random"),
    "update": ("all", "new", "last"),
    "solver": ("lbfgs", "newton"),
    "laplace": ("full", "block"),
    "landmarks": ("pivoted", "random"),
    "engine": ("numba", "jax"),
}
#: of n_per_round="auto": coordinates of a round, of one sequence, and by the number of those there
FEW, EACH, GROWTH = 10, 3, 0.02


@register
class GPSC(KernelEstimator):
    """Gaussian-process sequence classification.

    The scores of each label are a Gaussian process over tokens with the given kernel; those of
    transitions are independent with variance ``eta``. Minimises

        sum_i w_i loss(y_i, x_i) + c2 / 2 |f|^2

    over functions f: with c2 = 1 the MAP estimate under that prior.

    Parameters
    ----------
    kernel : a kernel of `seqfield.kernels`, a name such as "rbf" or "poly2", or a function
        (x, z) -> (N, M); None is linear plus twice the squared cosine for features that are 0 or
        1, and RBF for others
    features : as in `CRF`
    method : "dense": a coefficient for every distinct token and label;
        "sparse": coordinates (token, label pair) chosen greedily; prediction evaluates the kernel
        at the kept tokens alone;
        "sequence": the same in whole labelled sequences
    posterior : "map" predicts with the MAP estimate; "laplace" averages predictions over
        ``n_samples`` draws from a Gaussian at it, and gives the log evidence
    loss : "log", "softmax_margin" (with ``cost``) or "marginal", as in `CRF`
    c2 : weight of the squared norm
    eta : variance of transition scores, in units of the kernel
    transitions : False leaves them out: kernel logistic regression of single tokens
    explicit : train on features that stand for the kernel, where it has any (linear, and degrees 2
        and 3 on sparse 0/1 features): the same model without a gram matrix. "auto": where that is
        faster
    n_landmarks : approximate the kernel by features from this many tokens, which are chosen by
        ``landmarks``: "pivoted" (greedily, by pivoted Cholesky) or "random" (Nystrom)
    n_coordinates : how many coordinates the sparse methods keep; a fraction is a share of the
        number of training tokens
    n_per_round : coordinates of a sequence (or labelled sequences) taken in each round; "auto" is
        ten labelled sequences, or ten coordinates, later 2 % as many as there are, at most three of
        each sequence: fewer rounds than with a fixed number, and a better choice
    pick : of which sequence: the one with the "largest" derivative or a "random" one
    update : after each round refit "all" coefficients; or the "new" ones alone, which is cheaper;
        or the new ones in each round and all of them at the end ("last")
    slope_tol : stop before if no derivative is larger than this
    laplace : the covariance of that Gaussian: "full" (between all positions of a sequence), or
        "block" (within tokens and pairs alone: cheaper, and further from the truth)
    optimize_kernel : learn the kernel's parameters, c2 and eta by maximising the evidence, on
        random sequences of at most ``evidence_tokens`` tokens in all
    solver : "lbfgs" or "newton" (Newton's method with conjugate gradients) of the dense method
    gram_budget : the most GiB that a gram matrix may take
    gram_dtype : "float64", or "float32" for half of the memory; sums are in float64 always
    scheme, on_violation, classes, missing_label, calibrate, random_state, n_jobs, verbose : as in
        `CRF`
    max_iter, tol : iterations and relative tolerance of the solver, or of each refit of a sparse
        method
    engine : "numba", or "jax" to keep the gram matrix and run the whole descent on JAX's device
        (``pip install 'seqfield[jax]'``): the dense method, with no explicit features. There the
        sums over a gram matrix of float32 are in float32 for 512 tokens at a time, and in float64
        beyond

    Attributes
    ----------
    classes_ : labels in column order
    kernel_ : the kernel, with what it took from the data or learned; c2_, eta_ : likewise
    log_evidence_, log_evidence_error_ : log p(y) by Laplace's method and the standard error of
        its random part (posterior="laplace")
    transitions_ : (S, S) transition scores
    objective_ : final value
    gap_ : proven bound on objective_ minus the optimum of the dense problem (with ``n_landmarks``,
        of that with the kernel which these give); infinite if the loss is not convex
    n_tokens_ : distinct training tokens; n_kept_ : tokens where prediction evaluates the kernel
    path_ : rounds of a sparse method (`seqfield.solvers.greedy.Round`); n_chosen_ : distinct
        tokens among its coordinates; support_ : the labelled sequences that method="sequence"
        chose (`print` it), not in model files

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPSC(sf.kernels.RBF(0.35)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    >>> sf.GPSC("rbf", method="sparse", n_coordinates=20).fit(X, y).n_kept_ <= 20
    True
    """

    cost: float
    c2: float
    n_coordinates: int | float
    n_per_round: int | str
    slope_tol: float
    max_iter: int
    tol: float
    posterior: str
    laplace: str
    n_samples: int
    optimize_kernel: bool
    evidence_tokens: int
    engine: str
    _basis: Root
    _gold: Targets
    _picked: Labellings

    def __init__(
        self,
        kernel: Any = None,
        *,
        features: Any = None,
        method: Literal["dense", "sparse", "sequence"] = "dense",
        posterior: Literal["map", "laplace"] = "map",
        loss: Literal["log", "softmax_margin", "marginal"] = "log",
        cost: float = 1.0,
        c2: float = 1.0,
        eta: float = 1.0,
        transitions: bool = True,
        explicit: bool | Literal["auto"] = "auto",
        n_landmarks: int | None = None,
        landmarks: Literal["pivoted", "random"] = "pivoted",
        n_coordinates: int | float = 0.25,
        n_per_round: int | Literal["auto"] = "auto",
        pick: Literal["largest", "random"] = "largest",
        update: Literal["all", "new", "last"] = "all",
        slope_tol: float = 1e-3,
        laplace: Literal["full", "block"] = "full",
        n_samples: int = 50,
        optimize_kernel: bool = False,
        evidence_tokens: int = 1500,
        solver: Literal["lbfgs", "newton"] = "lbfgs",
        gram_budget: float = 6.0,
        gram_dtype: Literal["float64", "float32"] = "float64",
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int = 500,
        tol: float = 1e-5,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        engine: Literal["numba", "jax"] = "numba",
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        self._check_choices(CHOICES)
        if self.posterior == "laplace" and (self.method != "dense" or self.loss != "log"):
            raise CapabilityError(
                "posterior='laplace' needs method='dense' and loss='log': the approximation is "
                "of a posterior, and sparse methods and other losses have none"
            )
        if self.optimize_kernel and self.loss != "log":
            raise CapabilityError(
                "optimize_kernel=True needs loss='log': the evidence is that of its probabilities"
            )
        if self.posterior == "laplace" and (self.explicit is True or self.gram_dtype != "float64"):
            raise CapabilityError(
                "posterior='laplace' works with a root of the gram matrix in float64: leave "
                "explicit and gram_dtype as they are, or use n_landmarks="
            )
        if self.posterior == "laplace" and self.calibrate:
            raise CapabilityError(
                "calibrate=True fits one temperature, which an average over the posterior does "
                "without: leave one of the two out"
            )
        if self.engine == "jax":
            GPSC_ON_DEVICE.check(self)
        if self.n_per_round != "auto":
            number("n_per_round", self.n_per_round, low=1, whole=True)
        for name in ("n_samples", "evidence_tokens", "max_iter"):
            number(name, getattr(self, name), low=1, whole=True)
        for name in ("n_coordinates", "slope_tol", "tol", "cost", "c2"):
            number(name, getattr(self, name), low=0)
        if self.c2 == 0 and (self.optimize_kernel or self.posterior == "laplace"):
            raise InputError("c2 must be above 0: without a prior there is no posterior")
        super()._fit(data, targets, weights)

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        numbered, s = super()._prepare(data, targets, weights), len(self._labels)
        self._gold = targets
        self.c2_, self.eta_ = float(number("c2", self.c2, low=0)), self._given_eta()
        if self.optimize_kernel:
            self._learn_kernel(data, targets, weights)
        dense = self.method == "dense"
        self._architecture = Lookup(s, self.n_tokens_)
        if self.posterior == "laplace":
            self._basis = self._root(self._kernels[0])
            self._architecture = Rooted(s, self._basis.root, self.eta_)
            return numbered
        if self.engine == "jax":
            self._prepare_device()
            return numbered
        self._cov = self._covariance(self._kernels[0], on_demand=not dense)
        if dense:
            self._architecture = Gram(s, self._cov.size, self._cov.multiply, self.eta_)
        return numbered

    def _prepare_device(self) -> None:
        """The gram matrix on the device."""
        from seqfield.architectures._jax import DeviceGram
        from seqfield.kernels._jax import OnDevice

        self._cov = OnDevice.of(
            self._kernels[0],
            self._tokens.x,
            budget=self._budget,
            dtype=self.gram_dtype,
            n_jobs=self.n_jobs,
            advice=self.advice,
        )
        self._architecture = DeviceGram(len(self._labels), self._cov, self.eta_)

    def _learn_kernel(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        """Set the kernel's parameters, c2 and eta to where the evidence is largest."""
        most = number("evidence_tokens", self.evidence_tokens, low=1, whole=True)
        some = self._some_sequences(data, most)
        tokens = Tokens.of(data[some])
        goal = Objective(
            Lookup(len(self._labels), tokens.x.shape[0]),
            LogLoss(),
            ElasticNet(0.0, self.c2_),
            tokens.numbered(),
            targets[some],
            weights[some],
            self._constraint,
            self.n_jobs,
        )
        evidence = KernelEvidence(
            self._kernels[0],
            tokens.x,
            goal,
            self.eta_,
            covariance=self.laplace,
            budget=self._budget,
        )
        kernel, self.c2_, self.eta_ = evidence.maximise(show=bool(self.verbose))
        self._kernels = [kernel]

    def _recipe(self, data: Sequences) -> Recipe:
        if self.method == "dense":
            return Recipe(self._descent(), self._loss(), self._prior)
        most = number("n_coordinates", self.n_coordinates, low=0)
        if most == 0:
            raise InputError("n_coordinates must be above 0, got 0")
        if not isinstance(most, int | np.integer):
            most = max(1, round(most * data.n_tokens))
        # there are no more coordinates
        most = min(int(most), self.n_tokens_ * len(self._labels) ** 2)
        # products with features cost less than what values of many functions at all tokens do
        held = not isinstance(self._cov, Factored)
        if self.update != "new":
            columns = 1 if self.method == "sparse" else len(self._labels)
            self._check_atoms(most, columns * self.n_tokens_ if held else most)
        greedy = Greedy(
            Atoms(
                len(self._labels),
                [self._cov],
                eta=self.eta_,
                joint=self.method == "sequence",
                held=held,
            ),
            self._prior,
            self._picker(data),
            max_iter=max(1, most),
            max_atoms=most,
            update=self.update,
            tol=self.tol,
            refit_iter=self.max_iter,
        )
        return Recipe(greedy, self._loss())

    def _picker(self, data: Sequences) -> Coordinates | Labellings:
        """What chooses the coordinates."""
        auto = self.n_per_round == "auto"
        size: Any = FEW if auto else self.n_per_round
        kind = Coordinates if self.method == "sparse" else Labellings
        rows = data.x[:, 0].astype(np.int64)
        tol = number("slope_tol", self.slope_tol, low=0)
        pick = kind(rows, data.offsets, size, self.pick, self._random(), tol)
        if isinstance(pick, Labellings):
            self._picked = pick
        elif auto:
            pick.size, pick.least, pick.growth = EACH, FEW, GROWTH
        return pick

    @property
    def _prior(self) -> ElasticNet:
        return ElasticNet(0.0, self.c2_)

    def _loss(self) -> Loss:
        if self.loss == "marginal":
            return MarginalLoss()
        return LogLoss(number("cost", self.cost, low=0) if self.loss == "softmax_margin" else 0.0)

    def _descent(self) -> Any:
        most = number("max_iter", self.max_iter, low=1, whole=True)
        tol = number("tol", self.tol, low=0)
        if self.engine == "jax":
            from seqfield.solvers.device import DeviceLBFGS

            return DeviceLBFGS(max_iter=most, tol=tol)
        kind = LBFGS if self.solver == "lbfgs" else NewtonCG
        return kind(max_iter=most, tol=tol, n_jobs=self.n_jobs)

    def _solve(
        self, optimiser: Any, goal: Objective, theta: Floats, callback: Callback
    ) -> tuple[Minimum, Selection | None]:
        if not isinstance(optimiser, Greedy):
            return optimiser.minimise(goal, theta, callback), None
        found = optimiser.minimise(goal, callback)
        return found.minimum, found.selection

    def _finish(self, goal: Objective, theta: Floats, result: Minimum, found: Any) -> None:
        if self.posterior == "laplace":
            super()._finish(goal, theta, result, found)
            self._keep_posterior(goal)
            return
        gram = self._architecture
        if self.method != "dense":
            gram = Gram(len(self._labels), self._cov.size, self._cov.multiply, self.eta_)
            theta = self._as_dense(gram, goal.architecture.lift(theta), found)
            goal = goal.over(gram, self._prior)
            value, gradient = goal.value_and_grad(theta)
            result = result._replace(theta=theta, value=value, gradient=gradient)
            self.path_ = found.rounds
            self.n_chosen_ = int(np.count_nonzero(gram.coefficients(theta).any(axis=1)))
            if self.method == "sequence":
                self.support_ = self._support(found)
                del self._picked
        super()._finish(goal, theta, result, found)
        steps = gram.lift(theta).transitions
        self._keep([self._cov.function(gram.coefficients(theta))], steps[None])
        del self.theta_, self._architecture, self._cov, self._tokens, self._gold

    def _support(self, found: Selection) -> Support:
        """The chosen labelled sequences."""
        values = found.coefficients(len(found.rounds))
        labels, offsets = self._picked.labels, self._gold.offsets
        chosen = [
            Labelling(i, float(value), int(offsets[i]), y)
            for (i, y), value in zip((labels[atom] for atom in found.atoms), values, strict=True)
        ]
        return Support.of_labellings(chosen, self._gold, self._used, self._labels.names)

    def _keep_posterior(self, goal: Objective) -> None:
        """Keep the MAP estimate and draws from the posterior around it."""
        n_samples = number("n_samples", self.n_samples, low=1, whole=True)
        rng = np.random.default_rng(int(self._random().randint(2**31 - 1)))
        found = log_evidence(goal, self.theta_, covariance=self.laplace)
        self.log_evidence_, self.log_evidence_error_ = found.value, found.error
        draws = posterior_samples(goal, self.theta_, n_samples, rng, self.laplace)
        every = np.vstack([self.theta_, draws])
        root_eta = self._architecture.root_eta
        self._keep_draws(self._basis, every, root_eta, variance=1.0 / self.c2_)
        del self.theta_, self._architecture, self._basis, self._tokens, self._gold

    def _as_dense(self, gram: Gram, values: Values, found: Selection) -> Floats:
        """The chosen function as parameters of the dense problem, whose bound then holds."""
        # rows past the tokens are transitions
        wide = np.zeros((gram.size + gram.n_labels, gram.n_labels))
        for atom, value in zip(found.atoms, found.coefficients(len(found.rounds)), strict=True):
            np.add.at(wide, (np.array(atom.rows), np.array(atom.columns)), value)
        a, b = wide[: gram.size], wide[gram.size :].T
        pairs = np.sqrt(self.eta_) * b.ravel()[gram.pairs]
        return np.concatenate([a.ravel(), values.table.ravel(), pairs])
