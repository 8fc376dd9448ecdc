"""`GPSL`: Gaussian-process pseudo-likelihood models with variational EM."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import choice, number
from seqfield._warn import warn
from seqfield.architectures.neighbours import Neighbours
from seqfield.chain import ChainScores
from seqfield.errors import BudgetError, CapabilityError, InputError, LabelError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._kernel import GIB, KernelEstimator
from seqfield.kernels import Kernel
from seqfield.kernels.covariance import Root
from seqfield.kernels.functions import Function, Span
from seqfield.kernels.tokens import Tokens
from seqfield.labels import Targets, nested
from seqfield.losses.pseudo import Refined, Terms, log_sum_exp, refine
from seqfield.persist import prefixed, under
from seqfield.posteriors.bound import SEARCH, Bound, exact_root, labels_of, to_learn
from seqfield.posteriors.latent import Halves, check_shape
from seqfield.progress import progress
from seqfield.sequences import Sequences
from seqfield.solvers._base import Minimum, Step
from seqfield.variational.em import VariationalEM
from seqfield.variational.problems import NeighbourProblem

CHOICES = {
    "amplitude": ("shared", "label", "fixed"),
    "landmarks": ("pivoted", "random"),
    "inference": ("refine", "chain"),
}
#: rounds of refining probabilities, besides one for each token of a sequence
ROUNDS = 5000
#: the largest offset
FARTHEST = 10**6


class Latent(NamedTuple):
    """The posterior of the latent functions at some tokens: for each sequence means and variances
    (T, S), and the rounds that refining their probabilities took, 0 with ``inference="chain"``."""

    means: list[Floats]
    variances: list[Floats]
    n_rounds: int


@register
class GPSL(KernelEstimator):
    """Gaussian-process model of each label given the labels around it.

        p(y_t | x_t, y) = softmax_q( f_q(x_t) + sum_d T_d[y_{t + offset_d}, q] )

    f_q is a Gaussian process with the given kernel, T_d has independent standard normal entries; a
    Gaussian approximates their posterior. It has no joint p(y | x) unless ``inference="chain"``:
    probabilities of single labels are those of algorithm 2 of Srijith et al. (2016), in which the
    labels around are not known either, and `log_pseudo_likelihood` takes the place of the
    log-likelihood.

    Parameters
    ----------
    kernel : as in `GPSC`, or a list with one for each label in the order of ``classes_``
    features : as in `GPSC`
    offsets : where the labels are that a label depends on: (-1,) the one before, (-1, 1) both
        neighbours, (-2, -1, 1, 2), any other; () makes tokens independent
    optimize_kernel : learn the kernel's parameters by maximising the bound, on random sequences of
        at most ``evidence_tokens`` tokens in all (one at least), with amplitude 1. Length
        scales far from the median distance of tokens are searched for from there too. With
        ``amplitude="fixed"`` scales (of ``2.0 * RBF()``, or of a constant) stay as given: what
        holds for amplitudes holds for them
    kernel_per_label : give each label its own copy of the kernel, with parameters of its own
    amplitude : the scale of the functions: "fixed" at 1; or learned for each "label", or one that
        is "shared" by all. The bound favours small ones, and a shared one may vanish
    inference : "refine" predicts by algorithm 2, in which each label goes by the probabilities of
        those around it as if they were known by themselves; "chain", with offsets (-1, 1) alone, by
        the chain whose labels given their neighbours are those of the model: probabilities are
        less sure of themselves, and all that takes a joint p(y | x) works. It may be set after
        `fit` too
    half_variances : predict with the mean of exp(score), m + v / 2, as the paper does, in place of
        the mean score m. It favours labels that little is known of, all the more so the larger
        the amplitude
    n_landmarks, landmarks, gram_budget : as in `GPSC`: beyond the memory that the posterior of all
        tokens takes, that of functions over a few of them. A kernel of low rank, such as a linear
        one of few features, is found to be one and needs no landmarks
    scheme, on_violation, classes, missing_label, calibrate, random_state, n_jobs, verbose : as in
        `CRF`; the scheme holds in decoding. A token without a label has no term of its own, and
        those around it do without it; so it is with a set of candidates
    max_iter : sweeps over means, covariances and amplitudes
    tol : stop when a sweep raises the bound by less than this share of it

    Attributes
    ----------
    classes_ : labels in column order
    bound_ : the lower bound on log p(y); bounds_ : after each sweep (not in model files)
    amplitudes_ : (S,) scale of each label's function
    steps_ : (R, S, S) posterior means of the T_d, row label there, column label here;
        step_variances_ : likewise
    kernel_, n_tokens_, n_kept_ : as in `GPSC`; a list of kernels if each label has its own

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPSL(sf.kernels.RBF(0.35), offsets=(-1, 1)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """

    offsets: Any
    optimize_kernel: bool
    kernel_per_label: bool
    evidence_tokens: int
    amplitude: str
    half_variances: bool
    inference: str
    max_iter: int
    tol: float
    eta = 1.0
    transitions = True
    gram_dtype = "float64"
    several_kernels = True
    _bases: list[Root]
    _distances: tuple[int, ...]
    _halves: list[Halves]

    def __init__(
        self,
        kernel: Any = None,
        offsets: Any = (-1, 1),
        *,
        features: Any = None,
        optimize_kernel: bool = True,
        kernel_per_label: bool = False,
        evidence_tokens: int = 1500,
        amplitude: Literal["fixed", "label", "shared"] = "fixed",
        inference: Literal["refine", "chain"] = "refine",
        half_variances: bool = False,
        n_landmarks: int | None = None,
        landmarks: Literal["pivoted", "random"] = "pivoted",
        gram_budget: float = 6.0,
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int = 50,
        tol: float = 1e-4,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    # --- training -------------------------------------------------------------------------------

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        self._check_choices(CHOICES)
        self._distances = _distances(self.offsets)
        self._check_inference()
        given, s = self.kernel, len(self._labels)
        if isinstance(given, list | tuple) and len(given) not in (1, s):
            raise InputError(f"kernel must be one kernel or one for each of {s} labels: {given!r}")
        number("evidence_tokens", self.evidence_tokens, low=1, whole=True)
        if not (targets.codes >= 0).any():
            raise LabelError("y tells no label exactly: missing labels and candidates have no term")
        super()._fit(data, targets, weights)

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        numbered, s = super()._prepare(data, targets, weights), len(self._labels)
        if self.kernel_per_label and len(self._kernels) == 1:
            self._kernels = self._kernels * s
        if self.optimize_kernel:
            self._learn_kernels(data, targets, weights)
        self._bases = [self._root(kernel) for kernel in self._kernels]
        rest = np.hstack([self._rest(basis) for basis in self._bases])
        roots = [basis.root for basis in self._bases]
        self._architecture = Neighbours(s, roots, self._distances, rest)
        return numbered

    def _root(self, kernel: Kernel) -> Root:
        n = rank = self.n_tokens_
        if self.n_landmarks is not None:
            rank = min(n, number("n_landmarks", self.n_landmarks, low=1, whole=True))
        else:
            # a rank above half of the full one saves nothing, unless memory is short
            short = self._need(n) > self._budget
            ranks = range(n if short else n // 2 + 1)
            most = bisect_right(ranks, self._budget, key=self._need) - 1
            found = exact_root(kernel, self._tokens.x, most, thorough=short)
            if found is not None:
                return found
        need = self._need(rank)
        if need > self._budget:
            raise BudgetError(
                f"the posterior of {len(self._labels)} functions over {rank} tokens needs "
                f"{need / GIB:.3g} GiB; the budget is {self.gram_budget:g} GiB. Use n_landmarks=, "
                "fewer sequences, or give more with gram_budget="
            )
        return super()._root(kernel)

    def _need(self, rank: int) -> float:
        """Bytes that a posterior of this rank takes: a matrix for each label."""
        # factors and their inverses; roots, what one is made of, and a product with it
        squares, rows = 2 * len(self._labels) + 3, len(self._kernels) + 2
        return 8.0 * (squares * rank**2 + rows * self.n_tokens_ * rank)

    def _rest(self, basis: Root) -> Floats:
        """The variance at each token that landmarks leave out (n, 1)."""
        if self.n_landmarks is None:
            return np.zeros((self.n_tokens_, 1))
        own = np.einsum("ij,ij->i", basis.root, basis.root)
        left = basis.kernel.diagonal(self._tokens.x) - own
        return np.asarray(np.maximum(left, 0.0))[:, None]

    def _recipe(self, data: Sequences) -> Recipe:
        method = VariationalEM(
            number("max_iter", self.max_iter, low=1, whole=True),
            number("tol", self.tol, low=0),
            self.amplitude,
            self.n_jobs,
        )
        return Recipe(method)

    def _learn_kernels(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        """Set the kernels' parameters to where the bound is largest."""
        places = to_learn(self._kernels, scales=self.amplitude != "fixed")
        some = self._some_sequences(data, self.evidence_tokens)
        if not places or not (targets[some].codes >= 0).any():
            return
        tokens, s = Tokens.of(data[some]), len(self._labels)
        n, held = tokens.x.shape[0], len(self._kernels[0].log_parameters)
        need = 8.0 * (s + 5 + len(self._kernels) + held) * n**2
        if need > self._budget:
            raise BudgetError(
                f"kernel parameters by {n} tokens need {need / GIB:.3g} GiB; the budget is "
                f"{self.gram_budget:g} GiB. Lower evidence_tokens, use optimize_kernel=False, or "
                "give more with gram_budget="
            )
        bound = Bound(tokens, targets[some], weights[some], self._distances, s, self.n_jobs)
        with progress("kernel parameters", SEARCH, show=bool(self.verbose)) as report:
            self._kernels = bound.maximise(self._kernels, places, report)

    def _train(
        self, recipe: Recipe, data: Sequences, targets: Targets, weights: Floats, again: bool
    ) -> None:
        method: VariationalEM = recipe.optimiser
        problem = NeighbourProblem.of(self._architecture, data, targets, weights)
        with progress("training", method.max_iter, show=bool(self.verbose)) as report:

            def callback(step: Step) -> bool:
                report(step.iteration, self._shown(step))
                return False

            found = method.fit(problem, callback=callback)
        self.best_iter_ = found.n_iter
        ends = Minimum(found.theta, -found.bound, None, found.n_iter, found.converged)
        self._settle(ends.theta, ends)
        self.bounds_, self.bound_ = found.bounds, found.bounds[-1]
        self.amplitudes_ = found.amplitudes
        self.steps_, self.step_variances_ = found.steps, found.step_variances
        means, s = np.sqrt(found.amplitudes) * found.means, len(self._labels)
        functions: list[Function] = []
        self._halves = []
        for k, basis in enumerate(self._bases):
            own = labels_of(k, len(self._bases), s)
            # the values of all functions add up, so each is zero for the labels of others
            b = np.zeros((basis.root.shape[1], s))
            b[:, own] = means[: len(b), own]
            functions.append(basis.function(b))
            self._halves.append(Halves.of(basis, [found.factors.pop(0) for _ in own]))
        self._keep(functions, np.zeros((1, s, s)))
        del self.theta_, self._architecture, self._bases, self._tokens

    def _shown(self, step: Step) -> str:
        return f"bound {-step.value:.6g}"

    @property
    def _remedy(self) -> str:
        return "raise max_iter or tol, or scale the kernel down if its values are large"

    # --- use ------------------------------------------------------------------------------------

    def latent(self, X: Any, *, lengths: Any = None) -> Latent:
        """Means and variances of the latent functions at the tokens of X."""
        data = self._encode(X, lengths)
        means, variances = self._moments(data)
        rounds = 0 if self.joint else self._refined(means, variances, data.offsets).n_rounds
        cuts = data.offsets[1:-1]
        return Latent(np.split(means, cuts), np.split(variances, cuts), rounds)

    def log_pseudo_likelihood(self, X: Any, y: Any, *, lengths: Any = None) -> Floats:
        """sum_t log p(y_t | x_t, the labels around it) of each sequence (n,).

        Over its tokens with a label; those without one are left out as neighbours too. Of the
        model itself: what ``calibrate`` fitted is no part of it.
        """
        data = self._encode(X, lengths)
        rows = nested(y, data.offsets, flat=lengths is not None)
        targets = self._labels.encode(rows, self.missing_label)
        means, variances = self._moments(data)
        terms = Terms.of(targets, self._distances, np.ones(len(data)), len(self._labels))
        node, steps = self._corrected(means, variances)
        z = node[terms.tokens] + terms.gather(steps)
        p = z[np.arange(len(z)), terms.gold] - log_sum_exp(z)
        sequence = np.searchsorted(data.offsets, terms.tokens, "right") - 1
        return np.bincount(sequence, p, len(data)).astype(np.float64)

    def _scores(self, data: Sequences) -> ChainScores:
        means, variances = self._moments(data)
        self._check_inference()
        if self.joint:
            node, steps = self._corrected(means, variances)
            before, after = (steps[self._distances.index(offset)] for offset in (-1, 1))
            # a chain with edges E has p(y_t | y_t-1 = i, y_t+1 = j) = softmax(f + E[i] + E[:, j]):
            # what is learned of E from either side, on equal terms
            edge = 0.5 * (before + after.T)
            return ChainScores(node, edge, data.offsets, check=False)
        p = self._refined(means, variances, data.offsets).probabilities
        s = len(self._labels)
        node = np.log(np.maximum(p, 1e-300))
        return ChainScores(node, np.zeros((s, s)), data.offsets, check=False)

    def _corrected(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """Scores of labels and of steps to predict with."""
        if not self.half_variances:
            return means, self.steps_
        return means + 0.5 * variances, self.steps_ + 0.5 * self.step_variances_

    def _refined(self, means: Floats, variances: Floats, offsets: NDArray[np.int64]) -> Refined:
        node, steps = self._corrected(means, variances)
        rounds = ROUNDS + int(np.diff(offsets).max())
        found = refine(node, steps, offsets, self._distances, max_rounds=rounds)
        if not found.settled:
            remedy = "inference='chain' or fewer offsets" if self._has_chain else "fewer offsets"
            warn(
                f"the probabilities of some labels did not settle in {found.n_rounds} rounds: the "
                f"labels depend on each other too strongly. Use {remedy}",
                ConvergenceWarning,
            )
        return found

    def _moments(self, data: Sequences) -> tuple[Floats, Floats]:
        """Means and variances (N, S) of the latent functions."""
        check_is_fitted(self, "steps_")
        means = self._values(data, slice(None))
        variances = np.empty_like(means)
        for k, (span, halves) in enumerate(zip(self._functions, self._halves, strict=True)):
            assert isinstance(span, Span)
            own = labels_of(k, len(self._halves), len(self._labels))
            variances[:, own] = self.amplitudes_[own] * halves.variances(span, data.x)
        return means, variances

    @property
    def joint(self) -> bool:
        """Whether labels have a joint distribution: with ``inference="chain"``."""
        return bool(choice("inference", self.inference, CHOICES["inference"]) == "chain")

    @property
    def _has_chain(self) -> bool:
        """Whether there is a chain with the conditionals of the model."""
        return sorted(self._distances) == [-1, 1]

    def _check_inference(self) -> None:
        if self.joint and not self._has_chain:
            raise CapabilityError(
                f"inference='chain' needs offsets=(-1, 1), got {self._distances}: use "
                "inference='refine'"
            )

    def _joint(self, chains: list[ChainScores]) -> list[ChainScores]:
        if self.joint:
            return super()._joint(chains)
        raise CapabilityError(
            "GPSL has no joint distribution of labels: use predict_proba, or "
            "log_pseudo_likelihood in place of log_likelihood; or inference='chain', with "
            "offsets=(-1, 1)"
        )

    @property
    def kernel_(self) -> Any:
        """The fitted kernel; a list of one for each label if each has its own."""
        check_is_fitted(self, "steps_")
        one = len(self._kernels) == 1 and not isinstance(self.kernel, list | tuple)
        return self._kernels[0] if one else self._kernels

    @property
    def transitions_(self) -> Floats:
        """Scores (S, S) of a label (column) by the one before it (row); zero if it has no say."""
        check_is_fitted(self, "steps_")
        if -1 not in self._distances:
            return np.zeros((len(self._labels),) * 2)
        return np.asarray(self.steps_[self._distances.index(-1)])

    # --- files ----------------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        header, arrays = super()._state()
        own = {"amplitudes": self.amplitudes_, "steps": self.steps_}
        arrays |= prefixed("posterior", own | {"step_variances": self.step_variances_})
        for k, halves in enumerate(self._halves):
            arrays |= prefixed(_home(k), halves._asdict())
        return header | {"distances": list(self._distances)}, arrays

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, arrays)
        self._distances = _distances(header["distances"])
        s, n_kernels, r = len(self._labels), len(self._kernels), len(self._distances)
        if n_kernels not in (1, s):
            raise InputError("a number of kernels that is not that of labels")
        own, steps = under("posterior", arrays), (r, s, s)
        shapes = {"amplitudes": (s,), "steps": steps, "step_variances": steps}
        for name, shape in shapes.items():
            check_shape(name, own[name], shape)
        if (own["amplitudes"] <= 0).any() or (own["step_variances"] <= 0).any():
            raise InputError("variances that are not above 0")
        self._halves = []
        for k, function in enumerate(self._functions):
            n = len(labels_of(k, n_kernels, s))
            self._halves.append(Halves.restored(under(_home(k), arrays), function.n_tokens, n))
        self.amplitudes_, self.steps_ = own["amplitudes"], own["steps"]
        self.step_variances_ = own["step_variances"]


def _home(k: int) -> str:
    """Where a model file has what belongs to kernel k."""
    return "posterior" if k == 0 else f"posterior{k}"


def _distances(offsets: Any) -> tuple[int, ...]:
    """Checked offsets."""
    no_list = isinstance(offsets, str | bytes | bytearray) or not isinstance(offsets, Iterable)
    if no_list or (isinstance(offsets, np.ndarray) and offsets.ndim == 0):
        raise InputError(f"offsets must be whole numbers such as (-1, 1), got {offsets!r}")
    found = tuple(
        int(number("offsets", value, low=-FARTHEST, high=FARTHEST, whole=True)) for value in offsets
    )
    if 0 in found or len(set(found)) != len(found):
        raise InputError(f"offsets must be different from 0 and from each other, got {offsets!r}")
    return found
