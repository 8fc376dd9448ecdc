"""Maximum margins by working sets (Altun 2005, algorithm 5).

    min over f   1/2 |f|^2 + sum_i C_i slack_i
    with         slack_i >= need(y) - factor(y) (F(gold) - F(y))

for all labellings y of sequence i. At Hamming distance h, need and factor are 1 and 1 (unit
margin), h and 1 (Hamming margin) or h and h (slack rescaling).

The dual has a coefficient for each labelling, but only few of them are needed. A pass decodes each
sequence under the present function. It adds the labelling that requires the most slack to the
working set of the sequence. Then it maximises the dual over this set. Further passes over the sets
work without decoding, at a fraction of the cost.

Decoding all sequences under one function gives the value of the primal, and so the exact gap. The
gap is a sum over sequences. Sequences with a gap close to 0 are left out of the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._parallel import run
from seqfield.errors import BudgetError, InputError, LabelError
from seqfield.labels import Targets
from seqfield.objectives.needs import DUAL, OWN_CRITERION, check
from seqfield.objectives.problems import DualProblem
from seqfield.solvers import _margin_decoding as kinds
from seqfield.solvers import _margin_loops as loops
from seqfield.solvers._base import Callback, Minimum, Step
from seqfield.solvers._margin_decoding import Sets, Task

Ints = NDArray[np.int64]

MARGINS = {"unit": kinds.UNIT, "hamming": kinds.HAMMING, "slack": kinds.SCALED}
SLACKS = {"l1": kinds.L1, "l2": kinds.L2, "labelling": kinds.LABELLING, "hard": kinds.HARD}
#: most passes over the working sets after a decoding pass; they end if they gain too little
REPEATS = 10
#: least gain of such a pass, as a share of the gain of the last decoding pass
WORTH = 0.1
#: a labelling is dropped after this number of visits without a part in the solution
PATIENCE = 100
#: share of the allowed final gap that may belong to sequences left out of a pass
SKIPPED = 0.1
#: number of pieces of work for threads
PIECES = 16
#: most labellings of one sequence if each labelling has its own slack
MOST = 1000


class Pass(NamedTuple):
    """Primal and dual value after a pass, their difference, and the size of the solution."""

    primal: float
    dual: float
    gap: float
    n_support: int


class Labelling(NamedTuple):
    """Labels of a part of a training sequence, from token ``begin`` on, with a coefficient."""

    sequence: int
    coefficient: float
    begin: int
    labels: NDArray[np.int32]


class Margins(NamedTuple):
    """The solution, the passes, and the labellings that form the solution."""

    minimum: Minimum
    passes: list[Pass]
    support: list[Labelling]


@dataclass(frozen=True)
class MaxMargin:
    """Maximum margins by working sets.

    There are at most ``max_iter`` passes. They end when the gap is at most ``tol`` of the primal
    value. If some labels of a sequence are not known exactly, the sequence is split into runs of
    tokens with known labels.
    """

    C: float = 1.0
    slack: str = "l1"
    margin: str = "unit"
    max_iter: int = 200
    tol: float = 1e-3
    seed: int = 0
    n_jobs: int | None = None
    #: numbers of the sequences in error messages; None means 0, 1, 2, ...
    numbers: Ints | None = field(default=None, compare=False)
    needs = (DUAL, OWN_CRITERION)

    def minimise(self, problem: DualProblem, callback: Callback | None = None) -> Margins:
        """Learn, starting from the zero function."""
        check(self, problem)
        fit = _Fit(self, problem)
        passes: list[Pass] = []
        converged, n_iter = False, 0
        for n_iter in range(1, self.max_iter + 1):
            fit.improve()
            passes.append(fit.certificate())
            primal, _, gap, _ = passes[-1]
            converged = bool(np.isfinite(primal)) and gap <= self.tol * abs(primal)
            stop = callback is not None and callback(Step(n_iter, fit.theta, primal))
            if converged or stop:
                break
        last = passes[-1]
        minimum = Minimum(fit.theta, last.primal, None, n_iter, converged, last.gap)
        return Margins(minimum, passes, fit.support())


class _Fit:
    """The working sets and the function of one optimisation."""

    def __init__(self, method: MaxMargin, problem: DualProblem) -> None:
        dual = problem.architecture
        self.method, self.theta = method, np.zeros(dual.n_parameters)
        self.growing = problem.zero()
        self.beta, self.delta = dual.split(self.theta)
        self.task, self.sequence = _task(method, problem, dual.n_labels)
        self.lengths = self.task.end - self.task.begin
        n = len(self.lengths)
        self.sets = _room(np.full(n, 2), self.lengths)
        self.rng = np.random.default_rng(method.seed)
        self.order = np.arange(n)
        # the number of pieces is fixed and does not depend on the number of threads
        cuts = np.unique(np.linspace(0, n, PIECES + 1).astype(int))
        self.pieces = list(pairwise(cuts.tolist()))
        self.wanted = np.empty(int(self.lengths.max()), np.int64)

    def improve(self) -> None:
        """Do one pass with decoding, then some passes without."""
        order = self.rng.permutation(self.order)
        self._make_room(order)
        first = self._visit(order, decode=True)
        order = order[self.sets.held[order] > 0]
        for _ in range(REPEATS):
            if self._visit(order, decode=False) < WORTH * first:
                break

    def certificate(self) -> Pass:
        """Primal and dual value, by exact decoding of every sequence.

        This method also sets the sequences of the next pass.
        """
        task, method = self.task, self.method
        out = np.empty((len(self.lengths), 5))

        def work(piece: tuple[int, int]) -> None:
            loops.certify(*piece, *(task, self.sets, self.growing.store, out))

        run(work, self.pieces, method.n_jobs)
        slack, need, product, total, reached = out.T
        norm = float(product.sum())  # |f|^2 = sum alpha <f, v>
        cost, bound = task.cost * slack, np.zeros(len(slack))
        if task.slack == kinds.L2:
            cost, bound = task.cost * slack**2, total**2 / (4.0 * task.cost)
        dual = float((need - bound).sum()) - 0.5 * norm
        if task.slack == kinds.HARD:
            # f / share reaches every margin
            share = float(reached.min())
            primal = 0.5 * norm / share**2 if share > 0 else np.inf
            self.order = np.flatnonzero((reached < 1.0) | (self.sets.held > 0))
        else:
            primal = 0.5 * norm + float(cost.sum())
            # the gap is the sum of the gaps of the sequences
            gaps = cost + bound - need + product
            allowed = SKIPPED * method.tol * abs(primal) / len(gaps) if primal < np.inf else 0.0
            self.order = np.flatnonzero(~(gaps <= allowed))
        return Pass(primal, dual, primal - dual, int(np.count_nonzero(total)))

    def support(self) -> list[Labelling]:
        """The labellings with a coefficient above 0.

        They are ordered by sequence, then from the largest coefficient to the smallest.
        """
        sets, found = self.sets, []
        for i in np.flatnonzero(self.sets.held):
            l, first = int(self.lengths[i]), sets.first[i]
            alpha = sets.alpha[first : first + sets.held[i]]
            for e in np.argsort(-alpha, kind="stable"):
                if alpha[e] > 0:
                    at = sets.spot[i] + e * l
                    labels = sets.labels[at : at + l].copy()
                    begin = int(self.task.begin[i])
                    found.append(Labelling(int(self.sequence[i]), float(alpha[e]), begin, labels))
        return found

    def _visit(self, order: Ints, *, decode: bool) -> float:
        done, gain = 0, 0.0
        while done < len(order):
            done, got, n_wanted = loops.visit(
                *(order, done, decode, self.task, self.sets, self.growing.store),
                *(self.beta, self.delta, self.wanted),
            )
            if got == np.inf:
                raise InputError(
                    f"sequence {self._number(order[done])}: no function gives its labels a "
                    "margin, because another labelling has the same features. Use slack='l1'"
                )
            gain += got
            if n_wanted:
                self.growing.fetch(self.wanted[:n_wanted])
        return gain

    def _number(self, i: int) -> int:
        own, numbers = self.sequence[i], self.method.numbers
        return int(own if numbers is None else numbers[own])

    def _make_room(self, order: Ints) -> None:
        """Make room for one more labelling of each visited sequence."""
        sets = self.sets
        full = order[sets.held[order] == sets.capacity[order]]
        if not len(full):
            return
        if self.method.slack == "labelling" and sets.capacity[full].max() >= MOST:
            worst = self._number(full[sets.capacity[full].argmax()])
            raise BudgetError(
                f"slack='labelling': more than {MOST} labellings of sequence {worst} violate their "
                "margin, and each has a slack of its own. It is for small problems and short "
                "sequences: use slack='l1' or 'l2', or less C"
            )
        capacity = sets.capacity.copy()
        capacity[full] *= 2
        self.sets = _room(capacity, self.lengths)
        loops.repack(*(sets, self.sets, self.lengths, PATIENCE))


def _task(method: MaxMargin, problem: DualProblem, s: int) -> tuple[Task, Ints]:
    """The runs of known labels, and the sequence of each run."""
    targets = problem.targets
    begin, end = known_runs(targets)
    if not len(begin):
        raise LabelError("y tells no label exactly: a margin is won over known labels")
    sequence = np.searchsorted(targets.offsets, begin, "right") - 1
    start, edge, stop = np.zeros(s), np.zeros((1, s, s)), np.zeros(s)
    if problem.constraint is not None:
        c = problem.constraint
        start, edge, stop = c.start, c.pairs[None].copy(), c.end
    task = Task(
        begin,
        end,
        begin == targets.offsets[sequence],
        end == targets.offsets[sequence + 1],
        targets.codes,
        method.C * problem.weights[sequence],
        start,
        edge,
        stop,
        MARGINS[method.margin],
        SLACKS[method.slack],
    )
    return task, sequence


def known_runs(targets: Targets) -> tuple[Ints, Ints]:
    """Bounds of the longest runs of tokens with known labels: first token, and last token + 1.

    A run lies within one sequence.

    >>> codes = np.array([0, -1, 1, 1, 0], np.int32)
    >>> known_runs(Targets(codes, None, np.array([0, 3, 5])))
    (array([0, 2, 3]), array([1, 3, 5]))
    """
    known = targets.codes >= 0
    first, last = np.zeros((2, len(known)), bool)
    first[targets.offsets[:-1]] = last[targets.offsets[1:] - 1] = True
    before, after = np.roll(known, 1), np.roll(known, -1)
    return np.flatnonzero(known & (first | ~before)), np.flatnonzero(known & (last | ~after)) + 1


def _room(capacity: Ints, lengths: Ints) -> Sets:
    """Empty working sets."""

    def firsts(sizes: Ints) -> tuple[Ints, int]:
        ends = np.cumsum(sizes)
        return ends - sizes, int(ends[-1])

    first, n = firsts(capacity)
    square, n_square = firsts(capacity**2)
    spot, n_labels = firsts(capacity * lengths)
    return Sets(
        np.zeros_like(capacity),
        capacity,
        first,
        square,
        spot,
        np.zeros(n),
        np.zeros(n),
        np.zeros(n),
        np.zeros(n, np.int64),
        np.zeros(n_square),
        np.zeros(n_labels, np.int32),
    )
