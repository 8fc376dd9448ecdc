"""Approximate leave-one-out: probabilities of each training sequence from a fit without it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield._parallel import run
from seqfield.architectures.linear import Linear
from seqfield.chain import ChainScores
from seqfield.confidence._left_out import LeftOut
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators import CRF, GPSC
from seqfield.estimators._base import constrained
from seqfield.estimators._lesson import Law, Lesson
from seqfield.labels import nested
from seqfield.linalg.krylov import conjugate_gradients
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.progress import progress
from seqfield.sequences import Sequences, even_bounds, offsets_of

Floats = NDArray[np.float64]

#: relative residual of steps by conjugate gradients: this error is far below the error of taking
#: one Newton step alone
TOLERANCE = 1e-2
#: largest deviation of scores from the condition for an optimum, relative to the largest score
SLACK = 0.5
#: how many numbers of edge scores are held in memory at once
HELD = 2**22


class LeaveOneOut(NamedTuple):
    """For each sequence, probabilities (T, S) of its labels and log p(y | x) (n,). Both come from
    a model without this sequence in its training data."""

    proba: list[Floats]
    log_likelihood: Floats


def leave_one_out_proba(
    model: Any, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None
) -> LeaveOneOut:
    """Approximate leave-one-out: label probabilities of each training sequence as from a model that
    was fitted without it. Only one fit is needed.

    Parameters
    ----------
    model : a fitted `CRF` with loss="log" (or "softmax_margin"), c1=0 and c2 > 0, or a fitted
        `GPSC` with method="dense", posterior="map" and loss="log" (or "softmax_margin")
    X, y, sample_weight, lengths : the training data of the model

    The parameters without sequence i are approximated by one Newton step from the fitted ones:
    theta + (H - H_i)^-1 g_i. Here g_i and H_i are the first and second derivative of the loss of
    the sequence, and H is the second derivative of the whole objective. The features and the set of
    weights stay those of all data. The temperature from ``calibrate`` and a learned kernel also
    stay as they are.

    The step is exact in the limit of small changes, and too short for large changes. The error is
    some per cent of the change of log p(y | x). It is larger for a sequence that is unlike all
    others.

    The model must be at its optimum. A fit with the default tolerance is close enough. A fit with
    early stopping or solver="sgd" is not. Labels may be missing.

    Cost for a CRF: some milliseconds of dense algebra and O(T^2 S^2) memory for each sequence, and
    one matrix inverse. The size of the matrix is the number of shared weights: those that occur in
    several sequences. Up to 5000 shared weights are treated exactly. Beyond this number, a weight
    that occurs in few sequences is treated as if each of them had its own copy.

    Example: 500 sentences of 30 tokens, with 9 labels and 16,000 weights, take 17 seconds of one
    core. Ten folds take 14 seconds, and a refit without each sentence takes 550
    (benchmarks/speed/leave_one_out.py).

    Conjugate gradients solve each step instead if there are more than 5000 common weights, or if a
    sequence has T S > 3000. They are also used if labels are known in part, and for GPSC. Their
    residual is 1 %. The cost is 10 to 20 gradients of the objective for each sequence, which is a
    fraction of a fit.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> X, y = X[:100], y[:100]
    >>> model = sf.CRF().fit(X, y)
    >>> left = sf.leave_one_out_proba(model, X, y)
    >>> left.proba[0].shape == model.predict_proba(X)[0].shape
    True
    >>> bool(left.log_likelihood.mean() < model.log_likelihood(X, y).mean())
    True
    """
    _check(model)
    data = model.encode(X, lengths)
    rows = Law.of(model).repaired(nested(y, data.offsets, flat=lengths is not None))
    lesson = model.lesson(data, rows, sample_weight=sample_weight)
    fit = _Fit(model, lesson.part(lesson.told))
    numbers = {int(i): k for k, i in enumerate(fit.lesson.numbers)}
    proba: list[Floats] = []
    log_likelihood = []

    def scores(i: int) -> ChainScores:
        seen = i in numbers
        found = fit.without(numbers[i]) if seen else model.function_.scores(data[i], model.n_jobs)
        report(i + 1, "")
        return found

    n_blocks = 1 + data.n_tokens * len(model.classes_) ** 2 // HELD
    with progress("leave one out", len(data), show=bool(model.verbose)) as report:
        for first, last in even_bounds(data.offsets, n_blocks):
            moved = _joined(run(scores, list(range(first, last)), fit.jobs))
            # constraints and calibration are those of the model
            said = model.distribution_of([moved])
            proba += said.marginals()
            log_likelihood.append(said.log_prob(rows[first:last]))
    return LeaveOneOut(proba, np.concatenate(log_likelihood))


class ChosenC2(NamedTuple):
    """The best c2, all values that were tried, and the mean left-out log p(y | x) of each value."""

    c2: float
    tried: list[float]
    log_likelihood: list[float]


def choose_c2(
    model: Any,
    X: Any,
    y: Any,
    candidates: Iterable[float] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    *,
    sample_weight: Any = None,
    lengths: Any = None,
) -> ChosenC2:
    """The c2 whose `leave_one_out_proba` gives sequences the highest mean log p(y | x).

    Each candidate takes one fit and its leave-one-out. ``model`` is any model that
    `leave_one_out_proba` supports, and need not be fitted. If c2 is small, the steps are large and
    the approximation is too optimistic. If two values are nearly as good, take the larger one.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> sf.confidence.choose_c2(sf.CRF(), X[:60], y[:60], [0.01, 0.3, 10.0]).c2
    0.3
    """
    tried = [float(number("c2", c2, low=0)) for c2 in candidates]
    values = []
    for c2 in tried:
        fitted = clone(model).set_params(c2=c2)
        fitted.fit(X, y, sample_weight=sample_weight, lengths=lengths)
        left = leave_one_out_proba(fitted, X, y, sample_weight=sample_weight, lengths=lengths)
        values.append(float(np.average(left.log_likelihood, weights=sample_weight)))
    return ChosenC2(tried[int(np.argmax(values))], tried, values)


def _check(model: Any) -> None:
    """Raise a `CapabilityError` for a model without the derivatives that are needed."""
    check_is_fitted(model, "classes_")
    wanted: dict[str, tuple[Any, ...]] = {"loss": ("log", "softmax_margin")}
    if isinstance(model, GPSC):
        wanted |= {"method": ("dense",), "posterior": ("map",)}
        if model.n_inducing is not None:  # random inducing tokens cannot be drawn again
            wanted |= {"inducing": ("pivoted",)}
    elif isinstance(model, CRF):
        wanted |= {"c1": (0,), "early_stopping": (False,)}
    else:
        wanted = {"model": ("CRF", "GPSC")}
    given = {"model": type(model).__name__} | model.get_params(deep=False)
    for name, allowed in wanted.items():
        if given[name] not in allowed:
            raise CapabilityError(
                f"leave_one_out_proba does not go with {name}={given[name]!r}: it is for CRF("
                "loss='log', c1=0, c2 > 0) and GPSC(method='dense', posterior='map', loss='log'), "
                "or 'softmax_margin', at their optimum. Use cross_val_proba for others"
            )
    if model.c2 == 0:
        raise CapabilityError("leave_one_out_proba needs c2 > 0: without it weights have no bound")


class _Fit:
    """A fitted model as the optimum of an objective, and the Newton steps from this optimum."""

    def __init__(self, model: CRF | GPSC, lesson: Lesson) -> None:
        self.lesson, self.n_jobs = lesson, model.n_jobs
        self.goal, self.theta = model.optimum(lesson)
        self.architecture, self.prior = self.goal.architecture, self.goal.prior
        self.scores = self._scores(self.theta, self.goal.data)
        self._check_optimum()
        self.direct = self._solved()
        #: how many sequences run at a time; the products of one sequence use the threads themselves
        self.jobs = 1 if self.direct is None else self.n_jobs

    def without(self, i: int) -> ChainScores:
        """Scores of sequence i at the optimum without it."""
        if self.direct is not None:
            node, edge = self.direct.move(i)
            own = self.scores.select([i])[1]
            return ChainScores(own.node + node, own.edge + edge, own.offsets, check=False)
        others = np.delete(np.arange(len(self.lesson.weights)), i)
        gradient = self._objective([i], ElasticNet(0.0, 0.0)).value_and_grad(self.theta)[1]
        if not len(others):  # only the prior is left
            return self._scores(self.theta + gradient / self.prior.c2, self.goal.data[i])
        rest = self._objective(others, self.prior)
        found = conjugate_gradients(
            rest.curvature(self.theta), gradient, dual=rest.dual, tol=TOLERANCE
        )
        if found.negative.any():  # with labels missing the second derivative may be indefinite
            fisher = rest.curvature(self.theta, fisher=True)
            found = conjugate_gradients(fisher, gradient, dual=rest.dual, tol=TOLERANCE)
        return self._scores(self.theta + found.x, self.goal.data[i])

    def _objective(self, chosen: Any, prior: ElasticNet) -> Objective:
        lesson = self.lesson._replace(data=self.goal.data).part(chosen)
        return lesson.objective(self.architecture, self.goal.loss, prior, self.n_jobs)

    def _scores(self, theta: Floats, data: Sequences) -> ChainScores:
        scores: ChainScores = self.architecture.scores(
            self.architecture.lift(theta), self.architecture.design(data)
        )
        return scores

    def _check_optimum(self) -> None:
        """At an optimum theta = -(gradient of the loss) / c2: compare the scores of both sides."""
        gradient = self.goal.value_and_grad(self.theta)[1]
        off = self._scores(gradient / self.prior.c2, self.goal.data).node
        largest = float(np.abs(off).max() / max(1.0, np.abs(self.scores.node).max()))
        if largest > SLACK:
            raise InputError(
                f"the model is not at its optimum: scores are {100 * largest:.0f} % off those that "
                "the condition for one gives. Pass the X, y and sample_weight that it was fitted "
                "to, and fit it with a small tol and not with solver='sgd'"
            )

    def _solved(self) -> LeftOut | None:
        """The direct method, or None if it cannot be used."""
        lesson, architecture = self.lesson, self.architecture
        known = bool((lesson.targets.codes >= 0).all())
        if not known or not isinstance(architecture, Linear):
            return None
        (scores,) = constrained([self.scores], lesson.constraint)
        assert isinstance(self.goal.loss, LogLoss)
        found = LeftOut(
            architecture,
            lesson.data,
            lesson.targets,
            lesson.weights,
            self.goal.loss.free(scores, lesson.targets),
            self.prior.c2,
            self.n_jobs,
        )
        if not found.feasible:
            return None
        found.solve()
        return found


def _joined(parts: list[ChainScores]) -> ChainScores:
    """One batch of sequences, each with its own edge scores."""
    edges = [np.broadcast_to(p.edge, (p.n_tokens, *p.edge.shape[-2:])) for p in parts]
    offsets = offsets_of([p.n_tokens for p in parts])
    return ChainScores(
        np.concatenate([p.node for p in parts]), np.concatenate(edges), offsets, check=False
    )
