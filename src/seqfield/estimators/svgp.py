"""`StructuredSVGP`: sparse variational Gaussian-process chain models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy.linalg
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.decomposition import TruncatedSVD

from seqfield._checks import number
from seqfield._warn import warn
from seqfield.architectures.inducing import Inducing, is_dense
from seqfield.errors import BudgetError, CapabilityError, InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._kernel import GIB
from seqfield.estimators._sampled import SampledEstimator
from seqfield.kernels import Kernel, Precomputed
from seqfield.kernels.covariance import Root
from seqfield.kernels.gram import distinct
from seqfield.kernels.lowrank import pivoted_cholesky
from seqfield.labels import Targets
from seqfield.losses._base import Loss
from seqfield.losses.log import LogLoss
from seqfield.losses.piecewise import PiecewiseLoss
from seqfield.progress import progress
from seqfield.sequences import Sequences
from seqfield.solvers._base import Minimum, Step
from seqfield.variational._expectations import LABELLINGS, BlackBox, ChainLikelihood
from seqfield.variational.gaussians import Gaussians
from seqfield.variational.problems import InducingProblem
from seqfield.variational.svi import StochasticVariational

CHOICES = {
    "inducing": ("pivoted", "kmeans"),
    "gradient": ("reparam", "score"),
    "optimizer": ("auto", "natural", "adam"),
}
#: tokens that inducing inputs are chosen from, and dimensions in which sparse ones are compared
POOL, DIMENSIONS = 20_000, 50


class TransitionsWarning(UserWarning):
    """A likelihood function takes no notice of the transition scores that predictions use."""


@register
class StructuredSVGP(SampledEstimator):
    """Sparse variational Gaussian-process chain model (Galliani et al. 2017).

    The model of `GPStruct`. The posterior of each label's function is a Gaussian over its values
    at inducing tokens (or a mixture of Gaussians), fitted by maximising a lower bound on log p(y)
    with minibatches of sequences: memory does not grow with their number.

    Steps are its own natural gradients and Adam, not those of optax: Adam is ten lines, which need
    no dependency, and natural gradients are not in it. Inducing tokens are pivots by default, not
    k-means: they go by the kernel rather than by distances between features, are tokens of any
    kind, and explain more of the prior, so that the bound is higher; "kmeans" is there by name.

    Parameters
    ----------
    kernel, features : as in `GPSC`
    n_inducing : inducing tokens; all distinct tokens if there are no more
    inducing : how they are found: "pivoted" takes the tokens that leave the least of the prior's
        variance unexplained (pivoted Cholesky); "kmeans" the means of clusters, of sparse features
        the tokens nearest to them
    likelihood : "chain" (exact), "piecewise" (pseudo-likelihood of each edge by itself: cheaper,
        and a worse model of the whole; a label is learned twice, from one neighbour each time, so
        predictions take the chain with half of the transition scores, in which what two neighbours
        say of a label is the mean of what each does), or a function of (F, T, labels): score draws
        F (k, length, S), transition draws T (k, S, S) and label codes (length,), in order of
        ``classes``, -1 where missing, to k log-likelihoods. It needs no derivative, and must be
        told ``classes``; predictions are those of the chain with the scores it has found, T among
        them: those of T that it takes no notice of stay at their prior N(0, eta), over which
        predictions average (transitions=False hands it zeros and predicts without)
    gradient : "reparam" takes the likelihood's derivative; "score" its values alone, with far more
        noise: raise ``n_draws``
    n_components : Gaussians in the posterior
    batch_size : sequences in a step; n_draws : draws of their scores
    optimizer : "natural" steps along natural gradients, which takes far fewer epochs (one
        component, gradient="reparam", no candidate sets if piecewise; where labels are missing,
        the Fisher information stands for second derivatives); "adam"; "auto": natural where it can
    optimize_kernel, optimize_inducing : learn the kernel's parameters and the inducing tokens
        (dense features alone, at 4 kernel matrices a feature and step) by the bound
    learning_rate : of Adam
    n_samples : draws from the posterior that predictions are averaged over
    eta, transitions : as in `GPSC`
    gram_budget : the most GiB that posterior and batches may take
    scheme, on_violation, classes, missing_label, random_state, n_jobs, verbose : as in `CRF`
    max_iter : epochs; tol : stop when the last ten epochs (or a fifth of all, if more) raised the
        bound by less than this share of it over as many before and did not lower it, noise is too
        small to hide a rise of ten times that, and kernel parameters hardly move; 0: never stop

    Attributes
    ----------
    classes_ : labels in column order
    bound_ : the mean bound of the last epoch; bounds_ : the estimate of each step (not in model
        files)
    kernel_ : the kernel, with what it learned; n_kept_ : inducing tokens; n_tokens_ : training
        tokens, equal ones counted
    transitions_ : (S, S) posterior mean of the transition scores that predictions take: of
        "piecewise" half of those that were learned

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.StructuredSVGP(sf.kernels.RBF(0.35), n_inducing=40, tol=0.1, random_state=0)
    >>> model.fit(X, y).score(X, y) > 0.8
    True

    A likelihood that is not a chain: the labels of a sequence by themselves, and their number of
    changes, which should be about 2.

    >>> import numpy as np
    >>> def few_changes(F, T, labels):
    ...     top = F.max(axis=2, keepdims=True)
    ...     log_z = top[..., 0] + np.log(np.exp(F - top).sum(axis=2))
    ...     own = np.take_along_axis(F, labels[None, :, None], axis=2)[..., 0] - log_z
    ...     changes = np.count_nonzero(np.diff(labels))
    ...     return own.sum(axis=1) + T[:, 0, 1] * (changes - 2.0) - T[:, 0, 1] ** 2
    >>> model = sf.StructuredSVGP(sf.kernels.RBF(0.35), n_inducing=40, likelihood=few_changes,
    ...     gradient="score", n_draws=40, classes=[0, 1], tol=0.1, random_state=0)
    >>> model.fit(X, y).score(X, y) > 0.7
    True
    """

    n_inducing: int
    inducing: str
    likelihood: Any
    gradient: str
    n_components: int
    batch_size: int
    n_draws: int
    optimizer: str
    optimize_kernel: bool
    optimize_inducing: bool
    learning_rate: float
    max_iter: int
    tol: float
    gram_dtype = "float64"
    _natural: bool
    _moving: bool

    def __init__(
        self,
        kernel: Any = None,
        n_inducing: int = 500,
        *,
        features: Any = None,
        inducing: Literal["pivoted", "kmeans"] = "pivoted",
        likelihood: Literal["chain", "piecewise"] | Callable[..., Any] = "chain",
        gradient: Literal["reparam", "score"] = "reparam",
        n_components: int = 1,
        batch_size: int = 50,
        n_draws: int = 10,
        optimizer: Literal["auto", "natural", "adam"] = "auto",
        optimize_kernel: bool = True,
        optimize_inducing: bool = False,
        learning_rate: float = 0.02,
        n_samples: int = 100,
        eta: float = 1.0,
        transitions: bool = True,
        gram_budget: float = 6.0,
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int = 100,
        tol: float = 1e-3,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    # --- training -------------------------------------------------------------------------------

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        self._check_choices(CHOICES)
        for name in ("n_inducing", "n_components", "batch_size", "n_draws", "n_samples"):
            number(name, getattr(self, name), low=1, whole=True)
        number("max_iter", self.max_iter, low=1, whole=True)
        for name in ("learning_rate", "tol"):
            number(name, getattr(self, name), low=0)
        self._check_likelihood(targets)
        if self.optimize_inducing and not is_dense(data.x):
            raise CapabilityError(
                "optimize_inducing=True moves inducing tokens through space: sparse features have "
                "none to move through"
            )
        super()._fit(data, targets, weights)

    def _check_likelihood(self, targets: Targets) -> None:
        known = ("chain", "piecewise")
        if not callable(self.likelihood):
            if self.likelihood not in known:
                raise InputError(
                    f"likelihood must be one of {', '.join(known)}, or a function of (F, T, "
                    f"labels); got {self.likelihood!r}"
                )
            return
        if self.gradient != "score":
            raise CapabilityError(
                "a likelihood function gives values and no derivatives: use gradient='score'"
            )
        if self.classes is None:
            raise InputError(
                "a likelihood function needs classes=: its label codes are their order"
            )
        if self.scheme is not None:
            raise CapabilityError("a likelihood function knows no scheme: leave scheme out")
        sets = None if targets.allowed is None else targets.allowed.sum(axis=1)
        if sets is not None and ((sets > 1) & (sets < len(self._labels))).any():
            raise CapabilityError(
                "a likelihood function takes single labels or none, no candidates"
            )

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        # of the sequences that are left: those without labels tell nothing
        self._natural = self._steps_naturally(targets)
        self._check_space()
        tokens = self._inducing_tokens(data)
        self.n_tokens_ = int(data.n_tokens)  # telling the equal ones apart takes a copy of x
        self._check_memory(data, tokens.shape[0], partial=targets.allowed is not None)
        self._architecture = Inducing(
            len(self._labels), self._kernels[0], tokens, self._given_eta()
        )
        return data

    def _check_space(self) -> None:
        """Raise a `CapabilityError` if tokens that are no points shall be averaged or moved."""
        if not _has_numbers(self._kernels[0]):
            return
        for name, asks in (
            ("inducing", self.inducing == "kmeans"),
            ("optimize_inducing", self.optimize_inducing),
        ):
            if asks:
                raise CapabilityError(
                    f"{name}={getattr(self, name)!r} takes tokens between others, and those of a "
                    "Precomputed kernel are numbers of rows: use inducing='pivoted' and "
                    "optimize_inducing=False"
                )

    def _check_memory(self, data: Sequences, m: int, *, partial: bool) -> None:
        """Posterior, its derivatives and the moments of Adam; a batch and its scores; if labels are
        ``partial``ly known, means given what is known of drawn ones."""
        s, k, copies = len(self._labels), self.n_components, 4 if self._natural else 8
        lengths = np.sort(data.lengths)[-self.batch_size :].astype(np.float64)
        longest, squares = float(lengths.sum()), float((lengths**2).sum())
        need = copies * k * s * m**2 + longest * (m * (s + 4) + 3 * self.n_draws * s)
        # what is open of each sequence; covariance, root, inverse and derivative for each label
        need += squares * (3 * s * (k + 1) + 3)
        if partial and self._natural:
            need += LABELLINGS * longest * s
        if k > 1:  # overlaps of all pairs
            need += k**2 * s * m**2
        if self.gradient == "score":  # one sequence at a time: products of all draws, twice
            need += 2 * max(4, self.n_draws) * s * lengths[-1] ** 2
        need *= 8.0
        if need > self._budget:
            raise BudgetError(
                f"a posterior of {s} functions over {m} inducing tokens, with batches of "
                f"{longest:.0f} tokens in sequences of up to {lengths[-1]:.0f}, needs "
                f"{need / GIB:.3g} GiB; the budget is {self.gram_budget:g} GiB. Use a smaller "
                "n_inducing or batch_size, cut long sequences, or give more with gram_budget="
            )

    def _steps_naturally(self, targets: Targets) -> bool:
        """Whether q goes along natural gradients."""
        reason = ""
        if self.n_components > 1:
            reason = "has one component"
        elif self.gradient != "reparam":
            reason = "needs gradient='reparam'"
        elif not self._likelihood_of_scores().bends(targets):
            reason = "needs single labels or none with likelihood='piecewise', no candidates"
        if reason and self.optimizer == "natural":
            raise CapabilityError(f"optimizer='natural' {reason}; use optimizer='adam'")
        return self.optimizer != "adam" and not reason

    def _inducing_tokens(self, data: Sequences) -> Any:
        """All distinct tokens, or some that stand for them."""
        rng = self._random()
        some = np.arange(data.n_tokens)
        if len(some) > POOL:
            some = np.sort(rng.choice(len(some), POOL, replace=False))
        x = data.x[some]
        x = x[distinct(x)[0]]
        if self._kernels[0].diagonal(x).max() <= 0.0:
            raise InputError(
                "a kernel must be positive semi-definite and not zero: all k(x, x) <= 0. Give it "
                "features and scales that are not all zero"
            )
        if x.shape[0] <= self.n_inducing:
            return x
        if self.inducing == "pivoted":
            return x[np.sort(pivoted_cholesky(self._kernels[0], x, self.n_inducing).chosen)]
        seed = int(rng.randint(2**31 - 1))
        kind = MiniBatchKMeans if x.shape[0] > 5000 else KMeans
        clusters = kind(self.n_inducing, random_state=seed, n_init=1)
        if is_dense(x):
            means = clusters.fit(x).cluster_centers_
            return np.asarray(means[distinct(means)[0]])
        # the nearest tokens: a mean of sparse tokens is not sparse
        flat = x.astype(np.float64)
        if x.shape[1] > DIMENSIONS:
            flat = TruncatedSVD(DIMENSIONS, random_state=seed).fit_transform(flat)
        far = clusters.fit_transform(flat)
        return x[np.unique(far.argmin(axis=0))]

    def _recipe(self, data: Sequences) -> Recipe:
        optimiser = StochasticVariational(
            self.gradient,
            self._natural,
            self.n_components,
            self.n_draws,
            min(self.batch_size, len(data)),
            self.max_iter,
            self.tol,
            self.learning_rate,
            self.optimize_kernel,
            self.optimize_inducing,
            int(self._random().randint(2**31 - 1)),
        )
        return Recipe(optimiser)

    def _likelihood_of_scores(self) -> ChainLikelihood:
        """That of the chain where a function was given."""
        loss: Loss = PiecewiseLoss() if self.likelihood == "piecewise" else LogLoss()
        return ChainLikelihood(loss, self._constraint)

    def _shown(self, step: Step) -> str:
        return f"ELBO {-step.value:.6g}"

    @property
    def _remedy(self) -> str:
        if self._has_fallen():
            return (
                f"the bound fell from {self.bounds_[0]:.6g} to {self.bound_:.6g}, lower "
                "learning_rate, or scale the features"
            )
        if self._moving:
            return (
                "the kernel's parameters still move, raise max_iter or learning_rate, or use "
                "optimize_kernel=False"
            )
        return "raise max_iter or tol"

    def _has_fallen(self) -> bool:
        """Whether the bound ends below that of the prior, by more than batches and draws vary."""
        first, last = self.bounds_[0], self.bounds_[-(len(self.bounds_) // self.n_iter_) :]
        return bool(self.bound_ < first - 0.1 * abs(first) - 2.0 * last.std())

    def _train(
        self, recipe: Recipe, data: Sequences, targets: Targets, weights: Floats, again: bool
    ) -> None:
        method: StochasticVariational = recipe.optimiser
        own = self._likelihood_of_scores()
        likelihood = BlackBox(self.likelihood) if callable(self.likelihood) else own
        problem = InducingProblem(self._architecture, data, targets, weights, likelihood)
        with progress("training", method.max_iter, show=bool(self.verbose)) as report:

            def callback(step: Step) -> bool:
                report(step.iteration, self._shown(step))
                return False

            fitted = method.fit(problem, callback)
        self.best_iter_ = fitted.n_iter
        self.bounds_, self.bound_, self._moving = fitted.elbos, fitted.bound, fitted.moving
        ends = Minimum(fitted.mean, -fitted.bound, None, fitted.n_iter, fitted.converged)
        self._settle(ends.theta, ends)
        if fitted.converged and self._has_fallen():
            self._warn(fitted.n_iter)
        model, q = fitted.architecture, fitted.q
        if callable(self.likelihood) and model.eta > 0.0:
            self._check_notice(targets)
        self._kernels = [model.kernel]
        rng = np.random.default_rng(int(self._random().randint(2**31 - 1)))
        scale = 0.5 if self.likelihood == "piecewise" else 1.0  # of the transitions
        draws = _draws(q, model.eta, self.n_samples, rng)
        self._keep_posterior(_basis(model), ends.theta, draws, scale)
        del self.theta_, self._architecture

    def _check_notice(self, targets: Targets) -> None:
        """Warn if the likelihood is the same for all transition scores."""
        box, s, rng = BlackBox(self.likelihood), len(self._labels), np.random.default_rng(0)
        for i in range(len(targets.offsets) - 1):
            own = targets[np.array([i])]
            f = np.repeat(rng.normal(size=(1, len(own.codes), s)), 2, axis=0)
            values = box.bound(own, np.ones(1)).values(f, rng.normal(size=(2, s, s)))
            if values[0] != values[1]:
                return
        warn(
            "the likelihood function takes no notice of T: transition scores stay at their prior "
            f"N(0, {self.eta:g}), and predictions average over it. Use transitions=False",
            TransitionsWarning,
        )


def _has_numbers(kernel: Kernel) -> bool:
    """Whether tokens are numbers of rows."""
    return isinstance(kernel, Precomputed) or any(map(_has_numbers, kernel.parts().values()))


def _basis(model: Inducing) -> Root:
    """How whitened functions go on to new tokens."""
    dual: Floats = scipy.linalg.inv(model.root).T
    return Root(model.kernel, model.root, model.tokens, dual)


def _draws(q: Gaussians, eta: float, n: int, rng: np.random.Generator) -> Floats:
    v, steps = q.draw(n, rng)
    if eta == 0.0:
        steps = np.zeros_like(steps)
    return np.hstack([v.reshape(n, -1), steps.reshape(n, -1)])
