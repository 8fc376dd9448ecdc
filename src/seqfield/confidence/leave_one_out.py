"""Approximate leave-one-out: what a model says of each training sequence without having seen it."""

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

#: residual, as a part of the right-hand side, of steps by conjugate gradients: an error far below
#: that of taking one step
TOLERANCE = 1e-2
#: the most by which scores may be off the condition for an optimum, as a part of the largest
SLACK = 0.5
#: numbers in the edge scores that are held at once
HELD = 2**22


class LeaveOneOut(NamedTuple):
    """For each sequence (T, S) probabilities of its labels, and log p(y | x) (n,), both without it
    in the training data."""

    proba: list[Floats]
    log_likelihood: Floats


def leave_one_out_proba(
    model: Any, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None
) -> LeaveOneOut:
    """Probabilities of each training sequence's labels from a model without it, by one fit.

    Parameters
    ----------
    model : a fitted `CRF` with loss="log" (or "softmax_margin"), c1=0 and c2 > 0, or a fitted
        `GPSC` with method="dense", posterior="map" and loss="log" (or "softmax_margin")
    X, y, sample_weight, lengths : what it was fitted to

    The parameters without sequence i are one Newton step from those with it,
    theta + (H - H_i)^-1 g_i with g_i and H_i the first and second derivative of the sequence's loss
    and H that of the whole objective. Features, and which weights there are, stay those of all
    data. The step is exact in the limit of small changes and falls short of large ones: by some
    per cent of what it moves log p(y | x) by, and by more for sequences that no other is like. A
    temperature from ``calibrate`` stays as it is, and so does a kernel that was learned.

    The model must be at its optimum, as the default tolerance leaves it; with early stopping or
    solver="sgd" it is not. Labels may be missing.

    Cost: for a CRF some milliseconds of dense algebra a sequence, O(T^2 S^2) in memory, and one
    inverse, of the size of the number of weights that several sequences meet. Up to 5000 of them
    are treated exactly; beyond, those that few sequences meet are taken as if each of these had its
    own. On 500 sentences of 30 tokens with 9 labels and 16,000 weights this takes 17 seconds of one
    core, where ten folds take 14 and refits without each sentence 550
    (benchmarks/speed/leave_one_out.py). Where the common weights are more than 5000 or a sequence
    has T S > 3000, where labels are known in part, and for GPSC, each step is solved by conjugate
    gradients instead, to a residual of 1 %, at the price of 10 to 20 gradients of the objective a
    sequence: a fraction of a fit for each.

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
            # constraints and calibration are the model's own
            said = model.distribution_of([moved])
            proba += said.marginals()
            log_likelihood.append(said.log_prob(rows[first:last]))
    return LeaveOneOut(proba, np.concatenate(log_likelihood))


class ChosenC2(NamedTuple):
    """The best c2, all that were tried, and the mean left-out log p(y | x) of each."""

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

    One fit and its leave-one-out for each candidate; ``model`` is any that `leave_one_out_proba`
    supports, and need not be fitted. Where c2 is small and steps are large, the approximation is
    too kind: of values that are nearly as good, take the larger one.

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
        if model.n_inducing is not None:  # random ones cannot be had again
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
    """A fitted model as the optimum of an objective, and the steps from there."""

    def __init__(self, model: CRF | GPSC, lesson: Lesson) -> None:
        self.lesson, self.n_jobs = lesson, model.n_jobs
        self.goal, self.theta = model.optimum(lesson)
        self.architecture, self.prior = self.goal.architecture, self.goal.prior
        self.scores = self._scores(self.theta, self.goal.data)
        self._check_optimum()
        self.direct = self._solved()
        #: sequences at a time; products of one use the threads themselves
        self.jobs = 1 if self.direct is None else self.n_jobs

    def without(self, i: int) -> ChainScores:
        """Scores of sequence i at the optimum without it."""
        if self.direct is not None:
            node, edge = self.direct.move(i)
            own = self.scores.select([i])[1]
            return ChainScores(own.node + node, own.edge + edge, own.offsets, check=False)
        others = np.delete(np.arange(len(self.lesson.weights)), i)
        gradient = self._objective([i], ElasticNet(0.0, 0.0)).value_and_grad(self.theta)[1]
        if not len(others):  # the prior is all that is left
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
        """The direct method, where it can be used."""
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
    """Sequences with edge scores of their own as one batch."""
    edges = [np.broadcast_to(p.edge, (p.n_tokens, *p.edge.shape[-2:])) for p in parts]
    offsets = offsets_of([p.n_tokens for p in parts])
    return ChainScores(
        np.concatenate([p.node for p in parts]), np.concatenate(edges), offsets, check=False
    )
