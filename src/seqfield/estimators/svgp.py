"""`StructuredSVGP`: sparse variational Gaussian-process chain models."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from seqfield._warn import warn
from seqfield.architectures.inducing import Inducing, is_dense
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._base import Fit, random_of, seed_of
from seqfield.estimators._descent import Floats, following, tell
from seqfield.estimators._files import register
from seqfield.estimators._inducing import check_space, inducing_tokens
from seqfield.estimators._kernel import (
    KernelEstimator,
    eta_of,
    eta_param,
    fitted_kernels,
    grams_of,
    told_part,
    transitions_param,
)
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import flag, parameters, real, whole, word
from seqfield.functions import DrawnFunction, Learned
from seqfield.kernels.covariance import Root
from seqfield.labels import Targets
from seqfield.losses._base import Loss
from seqfield.losses.log import LogLoss
from seqfield.losses.piecewise import PiecewiseLoss
from seqfield.variational._expectations import LABELLINGS, BlackBox, ChainLikelihood
from seqfield.variational.gaussians import Gaussians
from seqfield.variational.problems import InducingProblem
from seqfield.variational.svi import Fitted, StochasticVariational


class TransitionsWarning(UserWarning):
    """A likelihood function ignores the transition scores that predictions use."""


@register
@parameters
class StructuredSVGP(KernelEstimator):
    """Sparse variational Gaussian-process chain model (Galliani et al. 2017).

    The model is that of `GPStruct`. The posterior of each label's function is a Gaussian, or a
    mixture of Gaussians, over its values at inducing tokens. `fit` maximises a lower bound on
    log p(y) with minibatches of sequences. The memory does not grow with the number of sequences.

    Natural gradients and Adam are implemented here, not taken from optax. Adam is ten lines and
    needs no dependency, and optax has no natural gradients. Inducing tokens are by default pivots,
    not k-means. Pivots depend on the kernel instead of distances between features, and work for
    tokens of any kind. They explain more of the prior, so the bound is higher.

    Attributes
    ----------
    classes_ : labels in column order
    bound_ : the mean bound of the last epoch; bounds_ : the estimate of each step (not in model
        files); objective_ : minus bound_
    n_iter_ : epochs
    kernel_ : the kernel with its learned parameters; n_kept_ : number of inducing tokens
    n_samples_ : number of posterior draws over which predictions are averaged
    transitions_ : (S, S) posterior mean of the transition scores in predictions; with "piecewise"
        half of the learned scores

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.StructuredSVGP(sf.kernels.RBF(0.35), n_inducing=40, tol=0.1, random_state=0)
    >>> model.fit(X, y).score(X, y) > 0.8
    True

    A likelihood that is not a chain: it has a term for each single label, and a term for the number
    of label changes, which should be about 2.

    >>> import numpy as np
    >>> def few_changes(F, T, labels):
    ...     top = F.max(axis=2, keepdims=True)
    ...     log_z = top[..., 0] + np.log(np.exp(F - top).sum(axis=2))
    ...     own = np.take_along_axis(F, labels[None, :, None], axis=2)[..., 0] - log_z
    ...     changes = np.count_nonzero(np.diff(labels))
    ...     return own.sum(axis=1) + T[:, 0, 1] * (changes - 2.0) - T[:, 0, 1] ** 2
    >>> model = sf.StructuredSVGP(sf.kernels.RBF(0.35), n_inducing=40, likelihood=few_changes,
    ...     gradient="score", n_mc=40, classes=[0, 1], tol=0.1, random_state=0)
    >>> model.fit(X, y).score(X, y) > 0.7
    True
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (DrawnFunction,)
    n_inducing: int = whole(
        default=500,
        help=(
            "number of inducing tokens; at most all distinct tokens are used. More inducing "
            "tokens approximate the posterior better, and take more time and memory"
        ),
        low=1,
        kw_only=False,
    )
    inducing: str = word(
        default="pivoted",
        help=(
            'how inducing tokens are found. "pivoted" (pivoted Cholesky) takes the tokens that '
            'leave the least prior variance unexplained. "kmeans" takes the means of clusters; '
            "with sparse features it takes the tokens nearest to these means"
        ),
        words=("pivoted", "kmeans"),
    )
    likelihood: Any = word(
        default="chain",
        help=(
            'the likelihood. "chain" is exact. "piecewise" is the pseudo-likelihood of each edge '
            "by itself: cheaper, and a worse model of the whole sequence. It learns each label "
            "twice, from one neighbour each time. Predictions therefore use the chain with half "
            "of the transition scores. The third choice is a function of (F, T, labels). It gets "
            "score draws F (k, length, S), transition draws T (k, S, S) and label codes (length,) "
            "in the order of ``classes``, -1 where missing. It returns k log-likelihoods. The "
            "function needs no derivative, and ``classes`` must be given. Predictions use the "
            "chain with the learned scores. If the function ignores transition scores, they stay "
            "at their prior N(0, eta), and predictions average over this prior. Give "
            "transitions=False in this case: T is then zero, and predictions have no transitions"
        ),
        words=("chain", "piecewise"),
        functions=True,
    )
    gradient: str = word(
        default="reparam",
        help=(
            'how gradients are estimated. "reparam" uses the derivative of the likelihood. '
            '"score" uses only its values, with far more noise: raise n_mc'
        ),
        words=("reparam", "score"),
    )
    n_components: int = whole(
        default=1,
        help=(
            "number of Gaussians in the posterior. More than one is a mixture, which needs "
            'solver="adam" or "auto"'
        ),
        low=1,
    )
    batch_size: int = whole(
        default=50, help="sequences in each step; more give less noise, and take more memory", low=1
    )
    n_mc: int = whole(
        default=10,
        help=(
            "number of Monte Carlo draws of the scores of a batch in each step; raise it if the "
            "bound is noisy"
        ),
        low=1,
    )
    solver: str = word(
        default="auto",
        help=(
            'the optimiser. "natural" uses natural gradients, which take far fewer epochs. It '
            'needs one component and gradient="reparam", and with "piecewise" no candidate sets. '
            "If labels are missing, it replaces second derivatives by the Fisher information. "
            '"adam" has no such limits. "auto" is natural where possible'
        ),
        words=("auto", "natural", "adam"),
    )
    learn_kernel: bool = flag(
        default=True, help="learn the kernel parameters by maximising the bound"
    )
    learn_inducing: bool = flag(
        default=False,
        help=(
            "move the inducing tokens to raise the bound. It works only with dense features, and "
            "takes 4 kernel matrices for each feature and step"
        ),
    )
    learning_rate: float = real(
        default=0.02, help="step size of Adam; lower it if the bound falls", low=0
    )
    n_samples: int = whole(
        default=100,
        help=(
            "number of posterior draws over which predictions are averaged. More draws give less "
            "noise, and take more time and memory"
        ),
        low=1,
    )
    eta: float = eta_param()
    transitions: bool = transitions_param()
    max_iter: int = whole(
        default=100, help="largest number of epochs (passes over the data)", low=1
    )
    tol: float = real(
        default=1e-3,
        help=(
            "stop when the bound hardly rises: the mean of the last ten epochs (or of a fifth of "
            "all, if more) is compared with that of as many epochs before. The rise must be "
            "below this share of the bound, and not negative. The noise must be too small to hide "
            "ten times this rise, and kernel parameters must hardly move. 0 never stops early"
        ),
        low=0,
    )

    # --- training -------------------------------------------------------------------------------

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        self._check_likelihood(lesson.targets, lesson.n_labels)
        if self.learn_inducing and not is_dense(lesson.data.x):
            raise CapabilityError(
                "learn_inducing=True moves inducing tokens through space: sparse features have "
                "none to move through"
            )
        (kernel,) = fitted_kernels(self.kernel, lesson)
        lesson = told_part(lesson, type(self).__name__)
        likelihood = self._likelihood(lesson)
        natural = self._steps_naturally(likelihood, lesson.targets)
        check_space(kernel, inducing=self.inducing, learn_inducing=self.learn_inducing)
        tokens = inducing_tokens(
            kernel, lesson.data, self.n_inducing, self.inducing, random_of(self)
        )
        self._check_memory(lesson, tokens.shape[0], natural=natural)
        problem = InducingProblem(
            Inducing(lesson.n_labels, kernel, tokens, eta_of(self, lesson)),
            lesson.data,
            lesson.targets,
            lesson.weights,
            BlackBox(self.likelihood) if callable(self.likelihood) else likelihood,
        )
        method = StochasticVariational(
            self.gradient,
            natural,
            self.n_components,
            self.n_mc,
            min(self.batch_size, len(lesson.data)),
            self.max_iter,
            self.tol,
            self.learning_rate,
            self.learn_kernel,
            self.learn_inducing,
            seed_of(self),
        )
        with following(
            self.max_iter, show=lesson.show, shown=lambda step: f"ELBO {-step.value:.6g}"
        ) as callback:
            found = method.fit(problem, callback)
        _tell(found)
        if callable(self.likelihood) and found.architecture.eta > 0.0:
            self._check_notice(lesson.targets, lesson.n_labels)
        facts: dict[str, Any] = {
            "n_iter_": found.n_iter,
            "best_iter_": found.n_iter,
            "gap_": np.inf,
        }
        facts |= {"bounds_": found.elbos, "bound_": found.bound, "objective_": -found.bound}
        return Fit(self._function(found), facts)

    def _function(self, found: Fitted) -> DrawnFunction:
        """Draws from the posterior, as a function of new tokens."""
        rng = np.random.default_rng(seed_of(self))
        draws = _draws(found.q, found.architecture.eta, self.n_samples, rng)
        scale = 0.5 if self.likelihood == "piecewise" else 1.0  # of the transitions
        return DrawnFunction.of(
            _basis(found.architecture),
            np.vstack([found.mean, draws]),
            found.architecture.n_labels,
            root_eta=scale,
            seed=seed_of(self),
        )

    def _likelihood(self, lesson: Lesson) -> ChainLikelihood:
        """The likelihood; that of the chain if a function was given."""
        loss: Loss = PiecewiseLoss() if self.likelihood == "piecewise" else LogLoss()
        return ChainLikelihood(loss, lesson.constraint)

    def _check_likelihood(self, targets: Targets, n_labels: int) -> None:
        if not callable(self.likelihood):
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
        if sets is not None and ((sets > 1) & (sets < n_labels)).any():
            raise CapabilityError(
                "a likelihood function takes single labels or none, no candidates"
            )

    def _check_memory(self, lesson: Lesson, m: int, *, natural: bool) -> None:
        """Posterior, its derivatives and the moments of Adam; a batch and its scores; if labels are
        known in part, means given what is known of drawn ones."""
        s, k, copies = lesson.n_labels, self.n_components, 4 if natural else 8
        lengths = np.sort(lesson.data.lengths)[-self.batch_size :].astype(np.float64)
        longest, squares = float(lengths.sum()), float((lengths**2).sum())
        need = copies * k * s * m**2 + longest * (m * (s + 4) + 3 * self.n_mc * s)
        # what is open of each sequence; covariance, root, inverse and derivative for each label
        need += squares * (3 * s * (k + 1) + 3)
        if lesson.targets.allowed is not None and natural:
            need += LABELLINGS * longest * s
        if k > 1:  # overlaps of all pairs
            need += k**2 * s * m**2
        if self.gradient == "score":  # one sequence at a time: products of all draws, twice
            need += 2 * max(4, self.n_mc) * s * lengths[-1] ** 2
        grams_of(self, 0).check(
            8.0 * need,
            f"a posterior of {s} functions over {m} inducing tokens, with batches of "
            f"{longest:.0f} tokens in sequences of up to {lengths[-1]:.0f}, needs",
            "Use a smaller n_inducing or batch_size, cut long sequences",
        )

    def _steps_naturally(self, likelihood: ChainLikelihood, targets: Targets) -> bool:
        """Whether the posterior q is fitted by natural gradients."""
        reason = ""
        if self.n_components > 1:
            reason = "has one component"
        elif self.gradient != "reparam":
            reason = "needs gradient='reparam'"
        elif not likelihood.bends(targets):
            reason = "needs single labels or none with likelihood='piecewise', no candidates"
        if reason and self.solver == "natural":
            raise CapabilityError(f"solver='natural' {reason}; use solver='adam'")
        return self.solver != "adam" and not reason

    def _check_notice(self, targets: Targets, s: int) -> None:
        """Warn if the likelihood is the same for all transition scores."""
        box, rng = BlackBox(self.likelihood), np.random.default_rng(0)
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

    @property
    def n_samples_(self) -> int:
        """Number of posterior draws over which predictions are averaged."""
        return self.scorer.n_draws


def _tell(found: Fitted) -> None:
    """Warn if the bound did not settle, or is below the bound of the prior by more than the noise
    of batches and draws."""
    first, last = found.elbos[0], found.elbos[-(len(found.elbos) // found.n_iter) :]
    fallen = bool(found.bound < first - 0.1 * abs(first) - 2.0 * last.std())
    if found.converged and not fallen:
        return
    remedy = "raise max_iter or tol"
    if fallen:
        remedy = (
            f"the bound fell from {first:.6g} to {found.bound:.6g}, lower learning_rate, or scale "
            "the features"
        )
    elif found.moving:
        remedy = (
            "the kernel's parameters still move, raise max_iter or learning_rate, or use "
            "learn_kernel=False"
        )
    tell(found.n_iter, -found.bound, np.inf, remedy)


def _basis(model: Inducing) -> Root:
    """The root that gives the values of whitened functions at new tokens."""
    dual: Floats = scipy.linalg.inv(model.root).T
    return Root(model.kernel, model.root, model.tokens, dual)


def _draws(q: Gaussians, eta: float, n: int, rng: np.random.Generator) -> Floats:
    v, steps = q.draw(n, rng)
    if eta == 0.0:
        steps = np.zeros_like(steps)
    return np.hstack([v.reshape(n, -1), steps.reshape(n, -1)])
