"""`GPSL`: Gaussian-process pseudo-likelihood models with variational EM."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield.architectures.neighbours import Neighbours
from seqfield.chain import ChainScores
from seqfield.errors import BudgetError, CapabilityError, InputError, LabelError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._evidence import Point, maximise_evidence
from seqfield.estimators._files import register
from seqfield.estimators._kernel import GIB, KernelEstimator, Tokens
from seqfield.estimators._objective import Objective
from seqfield.estimators._progress import progress
from seqfield.kernels import Kernel
from seqfield.kernels._pairs import Pairs
from seqfield.kernels.covariance import Root
from seqfield.kernels.functions import Span
from seqfield.labels import Targets, nested
from seqfield.linalg.thin import thin_root
from seqfield.losses.log import LogLoss
from seqfield.losses.pseudo import Refined, Terms, log_sum_exp, refine
from seqfield.optimisers._base import Result
from seqfield.optimisers.variational import Posterior, VariationalEM
from seqfield.persist import prefixed, under
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences

CHOICES = {
    "amplitude": ("shared", "label", "fixed"),
    "landmarks": ("pivoted", "random"),
}
#: iterations of the search for kernel parameters, and sweeps in each of its points
SEARCH, SWEEPS = 8, 10
#: rounds of refining probabilities, besides one for each token of a sequence
ROUNDS = 2000
#: the largest offset
FARTHEST = 10**6
#: tokens whose predictive variances are computed at once
PIECE = 2**12


class Latent(NamedTuple):
    """The posterior of the latent functions at some tokens: for each sequence means and variances
    (T, S), and the rounds that refining their probabilities took."""

    means: list[Floats]
    variances: list[Floats]
    n_rounds: int


@register
class GPSL(KernelEstimator):
    """Gaussian-process model of each label given the labels around it.

        p(y_t | x_t, y) = softmax_q( f_q(x_t) + sum_d T_d[y_{t + offset_d}, q] )

    f_q is a Gaussian process with the given kernel, T_d has independent standard normal entries; a
    Gaussian approximates their posterior. It has no joint p(y | x): probabilities of single labels
    are those of algorithm 2 of Srijith et al. (2016), in which the labels around are not known
    either, and `log_pseudo_likelihood` takes the place of the log-likelihood.

    Parameters
    ----------
    kernel, features : as in `GPSC`
    offsets : where the labels are that a label depends on: (-1,) the one before, (-1, 1) both
        neighbours, (-2, -1, 1, 2), any other; () makes tokens independent
    optimize_kernel : learn the kernel's parameters by maximising the bound, on random sequences of
        at most ``evidence_tokens`` tokens in all (one at least), with amplitude 1
    amplitude : the scale of the functions: "fixed" at 1; or learned for each "label", or one that
        is "shared" by all. The bound favours small ones, and a shared one may vanish
    half_variances : predict with the mean of exp(score), m + v / 2, as the paper does, in place of
        the mean score m. It favours labels that little is known of, all the more so the larger
        the amplitude
    n_landmarks, landmarks, gram_budget : as in `GPSC`: beyond the memory that the posterior of all
        tokens takes, that of functions over a few of them
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
    kernel_, n_tokens_, n_kept_ : as in `GPSC`

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPSL(sf.kernels.RBF(0.35), offsets=(-1, 1)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """

    offsets: Any
    optimize_kernel: bool
    evidence_tokens: int
    amplitude: str
    half_variances: bool
    max_iter: int
    tol: float
    eta = 1.0
    transitions = True
    gram_dtype = "float64"
    joint = False
    _basis: Root
    _distances: tuple[int, ...]
    _dual: Floats
    _factors: Floats

    def __init__(
        self,
        kernel: Any = None,
        offsets: Any = (-1, 1),
        *,
        features: Any = None,
        optimize_kernel: bool = True,
        evidence_tokens: int = 1500,
        amplitude: Literal["fixed", "label", "shared"] = "fixed",
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
        number("evidence_tokens", self.evidence_tokens, low=1, whole=True)
        if not (targets.codes >= 0).any():
            raise LabelError("y tells no label exactly: missing labels and candidates have no term")
        super()._fit(data, targets, weights)

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        numbered = super()._prepare(data, targets, weights)
        if self.optimize_kernel and len(self._kernels[0].log_parameters):
            self._learn_kernel(data, targets, weights)
        self._check_memory()
        self._basis = self._root(self._kernels[0])
        self._architecture = Neighbours(len(self._labels), self._basis.root, self._distances)
        return numbered

    def _check_memory(self) -> None:
        """The posterior has a matrix for each label."""
        n = self.n_tokens_
        rank = n
        if self.n_landmarks is not None:
            rank = min(n, number("n_landmarks", self.n_landmarks, low=1, whole=True))
        # factors and their inverses, the root and what it is made of, a product with it
        need = 8.0 * ((2 * len(self._labels) + 3) * rank**2 + 3 * n * rank)
        if need > self._budget:
            raise BudgetError(
                f"the posterior of {len(self._labels)} functions over {rank} tokens needs "
                f"{need / GIB:.3g} GiB; the budget is {self.gram_budget:g} GiB. Use n_landmarks=, "
                "fewer sequences, or give more with gram_budget="
            )

    def _recipe(self, data: Sequences) -> Recipe:
        method = VariationalEM(
            number("max_iter", self.max_iter, low=1, whole=True),
            number("tol", self.tol, low=0),
            self.amplitude,
            self.n_jobs,
        )
        return Recipe(method)

    def _learn_kernel(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        """Set the kernel's parameters to where the bound is largest."""
        some = self._some_sequences(data, self.evidence_tokens)
        if not (targets[some].codes >= 0).any():
            return
        tokens, kernel = Tokens.of(data[some]), self._kernels[0]
        pairs, s, n_done = Pairs(tokens.x), len(self._labels), 0
        n = tokens.x.shape[0]
        need = 8.0 * (s + 6 + len(kernel.log_parameters)) * n**2
        if need > self._budget:
            raise BudgetError(
                f"kernel parameters by {n} tokens need {need / GIB:.3g} GiB; the budget is "
                f"{self.gram_budget:g} GiB. Lower evidence_tokens, use optimize_kernel=False, or "
                "give more with gram_budget="
            )

        def point(phi: Floats) -> Point:
            nonlocal n_done
            here = kernel.with_log_parameters(phi)
            root = thin_root(here._value(pairs)).root
            goal = Objective(
                Neighbours(s, root, self._distances),
                LogLoss(),
                ElasticNet(0.0, 0.0),
                tokens.numbered(),
                targets[some],
                weights[some],
                None,
                self.n_jobs,
            )
            zero = np.zeros(goal.architecture.n_parameters)
            # a small amplitude would hide what the kernel's own parameters do
            found = VariationalEM(SWEEPS, 1e-4, "fixed", self.n_jobs).minimise(goal, zero)
            n_done += 1
            report(n_done, f"bound {-found.value:.6g}")
            by_gram = _by_gram(root, found.trace[0])
            gradient = [np.vdot(by_gram, d) for d in here._derivatives(pairs)]
            return Point(-found.value, 0.0, np.array(gradient))

        with progress("kernel parameters", SEARCH, show=bool(self.verbose)) as report:
            best = maximise_evidence(point, kernel.log_parameters, max_iter=SEARCH)
        self._kernels = [kernel.with_log_parameters(best.phi)]

    def _finish(self, goal: Objective, theta: Floats, result: Result) -> None:
        super()._finish(goal, theta, result)
        found: Posterior = result.trace[0]
        self.bounds_, self.bound_ = found.bounds, found.bounds[-1]
        self.amplitudes_ = found.amplitudes
        self.steps_, self.step_variances_ = found.steps, found.step_variances
        # v(x) = a |L^-1 phi(x)|^2 with phi(x) = k(x, z) dual
        # in the order in which files hold them, so that a loaded model rounds alike
        self._dual = np.ascontiguousarray(self._basis.dual)
        self._factors = np.empty((len(found.factors), *self._dual.shape))
        for q in range(len(self._factors)):
            self._factors[q] = self._dual @ _inverse(found.factors.pop(0)).T
        means, s = np.sqrt(found.amplitudes) * found.means, len(self._labels)
        self._keep([self._basis.function(means)], np.zeros((1, s, s)))
        del self.theta_, self._architecture, self._basis, self._tokens

    # --- use ------------------------------------------------------------------------------------

    def latent(self, X: Any, *, lengths: Any = None) -> Latent:
        """Means and variances of the latent functions at the tokens of X."""
        data = self._encode(X, lengths)
        means, variances = self._moments(data)
        rounds = self._refined(means, variances, data.offsets).n_rounds
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
            warnings.warn(
                f"the probabilities of some labels did not settle in {found.n_rounds} rounds: the "
                "labels depend on each other too strongly. Use fewer offsets",
                ConvergenceWarning,
                stacklevel=2,
            )
        return found

    def _moments(self, data: Sequences) -> tuple[Floats, Floats]:
        """Means and variances (N, S) of the latent functions."""
        check_is_fitted(self, "steps_")
        means, span = self._values(data, slice(None)), self._functions[0]
        assert isinstance(span, Span)
        variances = np.empty_like(means)
        kernel: Kernel = self._kernels[0]
        prior = kernel.diagonal(data.x)
        for a in range(0, len(means), PIECE):
            piece = slice(a, a + PIECE)
            k = kernel(data.x[piece], span.tokens)
            phi = k @ self._dual
            rest = np.maximum(prior[piece] - np.einsum("ij,ij->i", phi, phi), 0.0)
            for q, factor in enumerate(self._factors):
                half = k @ factor
                own = np.einsum("ij,ij->i", half, half)
                variances[piece, q] = self.amplitudes_[q] * (own + rest)
        return means, variances

    def _joint(self, chains: list[ChainScores]) -> list[ChainScores]:
        raise CapabilityError(
            "GPSL has no joint distribution of labels: use predict_proba, or "
            "log_pseudo_likelihood in place of log_likelihood"
        )

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
        own = {"dual": self._dual, "factors": self._factors, "amplitudes": self.amplitudes_}
        own |= {"steps": self.steps_, "step_variances": self.step_variances_}
        return header | {"distances": list(self._distances)}, arrays | prefixed("posterior", own)

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, arrays)
        self._distances = _distances(header["distances"])
        own, s, m = under("posterior", arrays), len(self._labels), self.n_kept_
        rank = own["dual"].shape[-1]
        shapes = {
            "dual": (m, rank),
            "factors": (s, m, rank),
            "amplitudes": (s,),
            "steps": (len(self._distances), s, s),
            "step_variances": (len(self._distances), s, s),
        }
        for name, shape in shapes.items():
            if own[name].shape != shape or not np.isfinite(own[name]).all():
                raise InputError(f"{name} of the wrong shape or not finite")
        if (own["amplitudes"] <= 0).any() or (own["step_variances"] <= 0).any():
            raise InputError("variances that are not above 0")
        self._dual, self._factors = own["dual"], own["factors"]
        self.amplitudes_, self.steps_ = own["amplitudes"], own["steps"]
        self.step_variances_ = own["step_variances"]


def _distances(offsets: Any) -> tuple[int, ...]:
    """Checked offsets."""
    if not isinstance(offsets, Iterable) or isinstance(offsets, str):
        raise InputError(f"offsets must be whole numbers such as (-1, 1), got {offsets!r}")
    found = tuple(
        int(number("offsets", value, low=-FARTHEST, high=FARTHEST, whole=True)) for value in offsets
    )
    if 0 in found or len(set(found)) != len(found):
        raise InputError(f"offsets must be different from 0 and from each other, got {offsets!r}")
    return found


def _inverse(lower: Floats) -> Floats:
    inverse: Floats = scipy.linalg.solve_triangular(lower, np.eye(len(lower)), lower=True)
    return inverse


def _by_gram(root: Floats, found: Posterior) -> Floats:
    """The derivative of the bound by the entries of G, all else at its optimum.

    With alpha = (a G)^-1 m it is sum_q a / 2 (alpha alpha' - Lambda + Lambda V Lambda), and
    alpha = known - expected counts of the label at each token.
    """
    n = len(root)
    total = np.zeros((n, n))
    for q, lower in enumerate(found.factors):
        a, precision, alpha = found.amplitudes[q], found.precisions[:, q], found.residuals[:, q]
        half = scipy.linalg.solve_triangular(lower, root.T * precision, lower=True)
        total += 0.5 * a * (np.outer(alpha, alpha) + a * (half.T @ half))
        total[np.diag_indices(n)] -= 0.5 * a * precision
    return total
