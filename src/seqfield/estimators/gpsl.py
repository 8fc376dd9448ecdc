"""`GPSL`: Gaussian-process pseudo-likelihood models with variational EM."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from seqfield.architectures.neighbours import Neighbours
from seqfield.errors import InputError, LabelError
from seqfield.estimators._base import Fit, random_of, seed_of
from seqfield.estimators._descent import Floats, Watch, descent_facts, following
from seqfield.estimators._files import register
from seqfield.estimators._kernel import (
    Grams,
    KernelEstimator,
    fitted_kernels,
    grams_of,
    inducing_param,
    n_inducing_param,
    some_sequences,
    told_part,
)
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import anything, flag, parameters, real, whole, word
from seqfield.functions import Learned, NeighbourFunction
from seqfield.functions.latent import Halves, labels_of
from seqfield.functions.neighbour import check_inference, checked_distances
from seqfield.kernels import Kernel
from seqfield.kernels.covariance import Root
from seqfield.kernels.functions import Span
from seqfield.kernels.tokens import Tokens
from seqfield.labels import nested
from seqfield.posteriors.bound import SEARCH, Bound, exact_root, to_learn
from seqfield.predictions.distribution import Limits
from seqfield.progress import progress
from seqfield.solvers._base import Minimum
from seqfield.variational.em import Posterior, VariationalEM
from seqfield.variational.problems import NeighbourProblem

REMEDY = "raise max_iter or tol, or scale the kernel down if its values are large"


class Latent(NamedTuple):
    """The posterior of the latent functions at some tokens: means and variances (T, S) of each
    sequence, and the rounds of refinement of the probabilities (0 with ``inference="chain"``)."""

    means: list[Floats]
    variances: list[Floats]
    n_rounds: int


@register
@parameters
class GPSL(KernelEstimator):
    """Gaussian-process model of each label given the labels around it.

        p(y_t | x_t, y) = softmax_q( f_q(x_t) + sum_d T_d[y_{t + offset_d}, q] )

    f_q is a Gaussian process with the given kernel, and T_d has independent standard normal
    entries. A Gaussian approximates the posterior of f and T.

    Only with ``inference="chain"`` does the model have a joint p(y | x). Otherwise the
    probabilities of single labels come from algorithm 2 of Srijith et al. (2016), in which the
    neighbouring labels are also unknown. `log_pseudo_likelihood` then replaces the log-likelihood.

    The scheme holds in decoding. A token without a label has no term in the pseudo-likelihood, and
    its neighbours are learned without it. A set of candidates counts as a missing label.

    Attributes
    ----------
    classes_ : labels in column order
    bound_ : the lower bound on log p(y); bounds_ : after each sweep (not in model files);
        objective_ : minus bound_
    n_iter_ : sweeps
    amplitudes_ : (S,) scale of each label's function
    steps_ : (R, S, S) posterior means of the T_d; rows are labels of the neighbour, columns labels
        of the token; step_variances_ : posterior variances of the T_d
    kernel_, n_tokens_, n_kept_ : as in `GPSC`; a list of kernels if each label has its own

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPSL(sf.kernels.RBF(0.35), offsets=(-1, 1)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (NeighbourFunction,)
    kernel: Any = anything(
        default=None,
        help="a kernel as in `GPSC`, or a list of one for each label in the order of ``classes_``",
        kw_only=False,
    )
    offsets: Any = anything(
        default=(-1, 1),
        help=(
            "relative positions of the labels that a label depends on. (-1,) is the label "
            "before, and (-1, 1) both neighbours. () makes tokens independent"
        ),
        kw_only=False,
    )
    learn_kernel: bool = flag(
        default=True,
        help=(
            "learn the kernel parameters: maximise the bound, with amplitude 1, on random "
            "sequences (at least one) with at most evidence_tokens tokens in all. If length "
            "scales are far from the median distance of tokens, the search also starts from this "
            'distance. With amplitude="fixed" scales (of ``2.0 * RBF()``, or of a constant) stay '
            "as given, because they are amplitudes too"
        ),
    )
    kernel_per_label: bool = flag(
        default=False,
        help="give each label its own copy of the kernel, with its own parameters",
    )
    evidence_tokens: int = whole(
        default=1500,
        help="most tokens for learning kernel parameters; more tokens take more time and memory",
        low=1,
    )
    amplitude: str = word(
        default="fixed",
        help=(
            'the scale of the functions: "fixed" at 1, learned for each "label", or one learned '
            'scale that is "shared" by all labels. The bound favours small scales, and a shared '
            "scale may fall to zero"
        ),
        words=("shared", "label", "fixed"),
    )
    inference: str = word(
        default="refine",
        help=(
            'how to predict. "refine" is algorithm 2: each label depends on the probabilities of '
            'its neighbours, as if the neighbours were independent. "chain" needs offsets '
            "(-1, 1). It predicts by the chain in which each label, given its neighbours, has the "
            "distribution of the model. Its probabilities are less extreme, and all methods that "
            "need a joint p(y | x) work. You can also set it after `fit`"
        ),
        words=("refine", "chain"),
    )
    half_variances: bool = flag(
        default=False,
        help=(
            "predict with m + v / 2, the logarithm of the mean of exp(score), as the paper does, "
            "instead of the mean score m. This favours labels with little training data, and the "
            "more so the larger the amplitude. You can also set it after `fit`"
        ),
    )
    n_inducing: int | None = n_inducing_param()
    inducing: str = inducing_param()
    max_iter: int = whole(
        default=50, help="most sweeps over means, covariances and amplitudes", low=1
    )
    tol: float = real(
        default=1e-4,
        help="stop when a sweep raises the bound by less than this share of it",
        low=0,
    )

    # --- training -------------------------------------------------------------------------------

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        distances, s = checked_distances(self.offsets), lesson.n_labels
        check_inference(self.inference, distances)
        given = self.kernel
        if isinstance(given, list | tuple) and len(given) not in (1, s):
            raise InputError(f"kernel must be one kernel or one for each of {s} labels: {given!r}")
        if not (lesson.targets.codes >= 0).any():
            raise LabelError("y tells no label exactly: missing labels and candidates have no term")
        kernels = fitted_kernels(given, lesson, several=True)
        lesson = told_part(lesson, type(self).__name__)
        if self.kernel_per_label and len(kernels) == 1:
            kernels = kernels * s
        grams, tokens = grams_of(self, seed_of(self)), Tokens.of(lesson.data)
        if self.learn_kernel:
            kernels = self._learned_kernels(kernels, lesson, distances, grams)
        bases = [self._root(k, tokens.x, grams, s, len(kernels)) for k in kernels]
        rest = np.hstack([self._rest(basis, tokens.x) for basis in bases])
        architecture = Neighbours(s, [basis.root for basis in bases], distances, rest)
        problem = NeighbourProblem.of(
            architecture, tokens.numbered(), lesson.targets, lesson.weights
        )
        method = VariationalEM(self.max_iter, self.tol, self.amplitude, self.n_jobs)
        with following(
            self.max_iter, show=lesson.show, shown=lambda step: f"bound {-step.value:.6g}"
        ) as callback:
            found = method.fit(problem, callback=callback)
        end = Minimum(found.theta, -found.bound, None, found.n_iter, found.converged)
        _, facts = descent_facts(None, end, Watch(), REMEDY)
        facts |= {"bounds_": found.bounds, "bound_": found.bound}
        facts["n_tokens_"] = int(tokens.x.shape[0])
        return Fit(self._function(found, kernels, bases, distances), facts)

    def _function(
        self,
        found: Posterior,
        kernels: list[Kernel],
        bases: list[Root],
        distances: tuple[int, ...],
    ) -> NeighbourFunction:
        """The function that predicts from a posterior."""
        s = len(found.amplitudes)
        means = np.sqrt(found.amplitudes) * found.means
        spans: list[Span] = []
        halves = []
        for k, basis in enumerate(bases):
            own = labels_of(k, len(bases), s)
            # the values of all functions are added, so each is zero for the labels of the others
            b = np.zeros((basis.root.shape[1], s))
            b[:, own] = means[: len(b), own]
            spans.append(basis.function(b))
            halves.append(Halves.of(basis, [found.factors.pop(0) for _ in own]))
        return NeighbourFunction(
            kernels,
            spans,
            halves,
            found.amplitudes,
            found.steps,
            found.step_variances,
            distances,
            self.inference,
            self.half_variances,
        )

    def _root(self, kernel: Kernel, x: Any, grams: Grams, s: int, n_kernels: int) -> Root:
        n = rank = x.shape[0]

        def need(rank: int) -> float:
            """Bytes that a posterior of this rank takes: a matrix for each label."""
            # factors and their inverses; roots, what one is made of, and a product with it
            squares, rows = 2 * s + 3, n_kernels + 2
            return float(8.0 * (squares * rank**2 + rows * n * rank))

        if self.n_inducing is not None:
            rank = min(n, self.n_inducing)
        else:
            # a rank above half of the full one saves nothing, unless memory is short
            short = need(n) > grams.bytes
            ranks = range(n if short else n // 2 + 1)
            most = bisect_right(ranks, grams.bytes, key=need) - 1
            found = exact_root(kernel, x, most, thorough=short)
            if found is not None:
                return found
        what = f"the posterior of {s} functions over {rank} tokens needs"
        grams.check(need(rank), what, "Use n_inducing=, fewer sequences")
        return grams.root(kernel, x)

    def _rest(self, basis: Root, x: Any) -> Floats:
        """The variance at each token that the inducing tokens do not explain (n, 1)."""
        if self.n_inducing is None:
            return np.zeros((x.shape[0], 1))
        own = np.einsum("ij,ij->i", basis.root, basis.root)
        left = basis.kernel.diagonal(x) - own
        return np.asarray(np.maximum(left, 0.0))[:, None]

    def _learned_kernels(
        self, kernels: list[Kernel], lesson: Lesson, distances: tuple[int, ...], grams: Grams
    ) -> list[Kernel]:
        """The kernels with the parameters where the bound is largest."""
        places = to_learn(kernels, scales=self.amplitude != "fixed")
        some = lesson.part(some_sequences(lesson.data, self.evidence_tokens, random_of(self)))
        if not places or not (some.targets.codes >= 0).any():
            return kernels
        tokens, s = Tokens.of(some.data), lesson.n_labels
        n, held = tokens.x.shape[0], len(kernels[0].log_parameters)
        grams.check(
            8.0 * (s + 5 + len(kernels) + held) * n**2,
            f"kernel parameters by {n} tokens need",
            "Lower evidence_tokens, use learn_kernel=False",
        )
        bound = Bound(tokens, some.targets, some.weights, distances, s, self.n_jobs)
        with progress("kernel parameters", SEARCH, show=lesson.show) as report:
            return bound.maximise(kernels, places, report)

    # --- use ------------------------------------------------------------------------------------

    @property
    def scorer(self) -> NeighbourFunction:
        """The learned function, with the present values of the parameters for prediction."""
        check_is_fitted(self, "function_")
        assert isinstance(self.function_, NeighbourFunction)
        return replace(self.function_, inference=self.inference, half_variances=self.half_variances)

    def latent(self, X: Any, *, lengths: Any = None) -> Latent:
        """Means and variances of the latent functions at the tokens of X."""
        data, function = self.encode(X, lengths), self.scorer
        means, variances = function.moments(data, self.n_jobs)
        rounds = 0 if self.joint else function.refined(means, variances, data.offsets).n_rounds
        cuts = data.offsets[1:-1]
        return Latent(np.split(means, cuts), np.split(variances, cuts), rounds)

    def log_pseudo_likelihood(self, X: Any, y: Any, *, lengths: Any = None) -> Floats:
        """sum_t log p(y_t | x_t, the labels around it) of each sequence (n,).

        The sum is over the tokens with a label. Tokens without a label are left out as neighbours
        too. The scores are those of the model itself, without the scaling of ``calibrate``.
        """
        data = self.encode(X, lengths)
        rows = nested(y, data.offsets, flat=lengths is not None)
        targets = self.labels_.encode(rows, self.missing_label)
        return self.scorer.log_pseudo_likelihood(data, targets, self.n_jobs)

    @property
    def joint(self) -> bool:
        """Whether labels have a joint distribution: with ``inference="chain"``."""
        if self.inference not in ("refine", "chain"):
            raise InputError(f"inference must be one of 'refine', 'chain', got {self.inference!r}")
        return self.inference == "chain"

    def _limits(self) -> Limits:
        if self.joint:
            return super()._limits()
        why = (
            "GPSL has no joint distribution of labels: use predict_proba, or "
            "log_pseudo_likelihood in place of log_likelihood; or inference='chain', with "
            "offsets=(-1, 1)"
        )
        return Limits(joint=why)

    @property
    def amplitudes_(self) -> Floats:
        """The scale of each label's function (S,)."""
        return self.scorer.amplitudes

    @property
    def steps_(self) -> Floats:
        """Posterior means of the tables of steps (R, S, S)."""
        return self.scorer.steps

    @property
    def step_variances_(self) -> Floats:
        """Posterior variances of the tables of steps (R, S, S)."""
        return self.scorer.step_variances

    @property
    def kernel_(self) -> Any:
        """The fitted kernel; a list of one for each label if each has its own."""
        kernels = self.scorer.kernels
        one = len(kernels) == 1 and not isinstance(self.kernel, list | tuple)
        return kernels[0] if one else kernels
