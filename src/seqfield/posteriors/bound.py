"""Kernel parameters of `GPSL` that maximise the variational bound; exact roots of kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from seqfield._warn import warn
from seqfield.architectures.neighbours import Neighbours
from seqfield.errors import BudgetError, InputError
from seqfield.functions.latent import labels_of
from seqfield.kernels import Kernel
from seqfield.kernels._pairs import Pairs
from seqfield.kernels.covariance import Root
from seqfield.kernels.lowrank import pivoted_cholesky
from seqfield.kernels.tokens import Tokens
from seqfield.labels import Targets
from seqfield.linalg.thin import thin_root
from seqfield.posteriors.evidence import Point, maximise_evidence
from seqfield.variational.em import Posterior, VariationalEM
from seqfield.variational.problems import NeighbourProblem

Floats = NDArray[np.float64]

#: iterations of the search for kernel parameters, and sweeps at each point of the search
SEARCH, SWEEPS = 25, 10
#: if the logarithm of a parameter differs by more from what the data suggest, that is tried too
DOUBTFUL = 1.0
#: how far the logarithm of a parameter may move from its start, and how far the start may be from 0
REACH, FARTHEST = 8.0, 150.0
#: names of parameters that scale functions and do not change their shape
SCALES = ("scale", "value")
#: tokens on which a low rank is looked for first
PROBE = 2048


class Place(NamedTuple):
    """A parameter to be learned: its kernel, its number among those of the kernel, its name."""

    kernel: int
    number: int
    name: str


def to_learn(kernels: list[Kernel], *, scales: bool) -> list[Place]:
    """The parameters of kernels, with or without their scales.

    >>> from seqfield.kernels import RBF
    >>> [place.name for place in to_learn([2.0 * RBF(1.0)], scales=False)]
    ['kernel.length_scale']
    """
    return [
        Place(k, j, name)
        for k, kernel in enumerate(kernels)
        for j, name in enumerate(kernel.parameter_names)
        if scales or name.rpartition(".")[2] not in SCALES
    ]


class Bound(NamedTuple):
    """The bound of some data as a function of kernels, one for all labels or one for each."""

    tokens: Tokens
    targets: Targets
    weights: Floats
    distances: tuple[int, ...]
    n_labels: int
    n_jobs: int | None

    def __call__(self, kernels: list[Kernel], pairs: Pairs) -> tuple[float, list[Floats]]:
        """The bound with amplitude 1, and its derivatives by each kernel's log-parameters."""
        roots = [thin_root(kernel._value(pairs)).root for kernel in kernels]
        scores = Neighbours(self.n_labels, roots, self.distances)
        problem = NeighbourProblem.of(scores, self.tokens.numbered(), self.targets, self.weights)
        # a small amplitude would hide what the kernel's own parameters do
        method = VariationalEM(SWEEPS, 1e-4, "fixed", self.n_jobs)
        found = method.fit(problem)
        gradients = []
        for k, kernel in enumerate(kernels):
            labels = labels_of(k, len(kernels), self.n_labels)
            d_gram = by_gram(scores, found, labels)
            gradients.append(np.array([np.vdot(d_gram, d) for d in kernel._derivatives(pairs)]))
        return found.bound, gradients

    def maximise(
        self, kernels: list[Kernel], places: list[Place], report: Callable[[int, str], None]
    ) -> list[Kernel]:
        """The kernels that maximise the bound over the parameters in ``places``."""
        start = np.array([kernels[place.kernel].log_parameters[place.number] for place in places])
        for place, value in zip(places, start, strict=True):
            if abs(value) > FARTHEST:
                raise InputError(
                    f"a search from {_told(place, kernels)} = {np.exp(value):.3g} leads nowhere: "
                    "give a less extreme value, or use learn_kernel=False"
                )
        pairs, n_done = Pairs(self.tokens.x), 0

        def at(phi: Floats) -> list[Kernel]:
            logs = [kernel.log_parameters for kernel in kernels]
            for place, value in zip(places, phi, strict=True):
                logs[place.kernel][place.number] = value
            return [k.with_log_parameters(own) for k, own in zip(kernels, logs, strict=True)]

        def point(phi: Floats) -> Point:
            nonlocal n_done
            (value, gradients), n_done = self(at(phi), pairs), n_done + 1
            report(n_done, f"bound {value:.6g}")
            gradient = [gradients[place.kernel][place.number] for place in places]
            return Point(value, 0.0, np.array(gradient))

        starts = [start]
        # far from what the data suggest the bound may be flat, and the search would stay there
        logs = [by_data(kernel, self.tokens.x).log_parameters for kernel in kernels]
        other = np.array([logs[place.kernel][place.number] for place in places])
        if np.abs(other - start).max() > DOUBTFUL:
            starts.append(other)
        searches = [maximise_evidence(point, s, reach=REACH, max_iter=SEARCH) for s in starts]
        best, start = max(zip(searches, starts, strict=True), key=lambda found: found[0].value)
        if not best.settled:
            warn(
                f"the bound still rose after {SEARCH} iterations of the search for kernel "
                "parameters: fit again, starting with those found (kernel_)",
                ConvergenceWarning,
            )
        for place, value, begin in zip(places, best.phi, start, strict=True):
            if abs(value - begin) > REACH - 1e-6:
                warn(
                    f"{_told(place, kernels)} ended at {np.exp(value):.3g}, the limit of the "
                    "search: the bound rises beyond it. Give another value to start from, or use "
                    "learn_kernel=False",
                    ConvergenceWarning,
                )
        return at(best.phi)


def by_data(kernel: Kernel, x: Any) -> Kernel:
    """The kernel with every length scale set to the median distance of tokens, as "auto" does.

    >>> from seqfield.kernels import RBF
    >>> by_data(2.0 * RBF(1000.0), np.array([[0.0], [3.0]]))
    2.0 * RBF(length_scale=3.0)
    """
    out = copy.copy(kernel)
    for name, part in kernel.parts().items():
        setattr(out, name, by_data(part, kernel.seen(x)))
    if "length_scale" in kernel._free():
        return type(kernel)(**kernel.get_params(deep=False) | {"length_scale": "auto"}).fit(x)
    return out


def _told(place: Place, kernels: list[Kernel]) -> str:
    which = f" of label {place.kernel}" if len(kernels) > 1 else ""
    return f"the kernel parameter {place.name}{which}"


def by_gram(scores: Neighbours, found: Posterior, labels: range) -> Floats:
    """The derivative of the bound by the entries of the gram matrix of some labels.

    All other parameters are at their optimum.

    With alpha = (a G)^-1 m it is sum_q a / 2 (alpha alpha' - Lambda + Lambda V Lambda), and
    alpha = known - expected counts of the label at each token.
    """
    n = scores.shape[0]
    total = np.zeros((n, n))
    for q in labels:
        a, precision, alpha = found.amplitudes[q], found.precisions[:, q], found.residuals[:, q]
        right = scores.root(q).T * precision
        half = scipy.linalg.solve_triangular(found.factors[q], right, lower=True)
        total += 0.5 * a * (np.outer(alpha, alpha) + a * (half.T @ half))
        total[np.diag_indices(n)] -= 0.5 * a * precision
    return total


def exact_root(kernel: Kernel, x: Any, most: int, *, thorough: bool = False) -> Root | None:
    """An exact root of a kernel of low rank, with at most ``most`` columns; None if there is none.

    The root is found without the gram matrix, in O(n most^2) time. Unless the kernel has few
    explicit features, some of the tokens are tried first. If these have more than half of the full
    rank, the search ends; with ``thorough`` it ends only if their rank is above ``most``.
    """
    if most < 1 or not (_few_features(kernel, x, most) or _may_be_low(kernel, x, most, thorough)):
        return None
    chosen, factor, _ = pivoted_cholesky(kernel, x, most)
    if len(chosen) in (0, most):
        return None
    # factor[chosen] is lower triangular, and times its transpose it is k(z, z)
    inner = np.eye(len(chosen))
    dual = scipy.linalg.solve_triangular(factor[chosen], inner, trans=1, lower=True)
    return Root(kernel, np.ascontiguousarray(factor), x[chosen], dual)


def _few_features(kernel: Kernel, x: Any, most: int) -> bool:
    """Whether the kernel is an inner product of at most ``most`` features."""
    try:
        # features that need more bytes than the root are certainly more than ``most``
        found = kernel.expansion(x, 8.0 * x.shape[0] * most)
    except BudgetError:
        return False
    return found is not None and found.n_columns <= most


def _may_be_low(kernel: Kernel, x: Any, most: int, thorough: bool) -> bool:
    """Whether the rank at some tokens allows a low rank at all tokens."""
    n = x.shape[0]
    size = min(n, 2 * most) if thorough else min(n // 4, PROBE)
    limit = most if thorough else size // 2
    if size < 1:
        return False
    some = x[np.linspace(0, n - 1, size).astype(np.int64)]
    return len(pivoted_cholesky(kernel, some, limit + 1).chosen) <= limit
