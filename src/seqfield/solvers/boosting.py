"""Sequence AdaBoost (Altun 2005, algorithms 3 and 4).

Each round changes one weight. A bound on the exponential loss gives the weight and its step.
In round r the loss is R = sum_i w_i (1 / p_i - 1). Adding a step to weight k multiplies R by

  Z(step) = sum_i D_i sum_{y != gold} pi_i(y) exp(step u_k(y)),

where u_k is the count of feature k in y minus its count in gold, D_i is the share of sequence i in
R, and pi_i(y) = p(y) / (1 - p_i). The function exp is convex, so it lies below a chord over the
range of u_k. There are three bounds:

* loose: one chord for all sequences, over the largest range;
* tight: a chord for each sequence, over its own range [L_i, U_i];
* exact: the tight bound chooses the weight, and Z itself gives the step. Z needs the distribution
  of a count over labellings. Running the affected sequences at a trial step is cheaper and gives
  the same number.

All numbers are kept without the normaliser: D_i = w_i (1 / p_i - 1). So the tight bound of a weight
changes only if one of its own sequences changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from seqfield.objectives.needs import LINEAR, NO_EDGE_FEATURES, OWN_CRITERION, check
from seqfield.objectives.problems import LinearProblem
from seqfield.solvers import _boosting_loops as loops
from seqfield.solvers._base import Callback, Floats, Minimum, Step
from seqfield.solvers._boosting_state import Rows, State, Trial

EPSILON = float(np.finfo(np.float64).eps)
Bound = Literal["loose", "tight", "exact"]
Unit = Literal["sequence", "token", "neighbours"]


class Round(NamedTuple):
    """One round: the weight, its step, log R after the step, and the share of sequences rerun."""

    weight: int
    step: float
    log_loss: float
    rerun: float


class Boosted(NamedTuple):
    """The result of boosting, and its rounds."""

    minimum: Minimum
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class Boosting:
    """Sequence boosting with at most ``max_iter`` rounds.

    Boosting ends earlier if a round would lower R by less than ``tol`` times R. ``smoothing``
    (3.37) pulls steps towards 0 where there is little evidence. ``cap`` limits the size of steps: a
    feature that occurs on one side only has no finite step without a limit.

    ``unit`` is the unit of boosting. It is whole sequences, single tokens (AdaBoost.MR), or tokens
    given the gold label before them (Viterbi-AdaBoost). In the last case, transitions become
    ordinary features.
    """

    bound: Bound = "exact"
    max_iter: int = 1000
    smoothing: float = 1e-4
    cap: float = 1.0
    length_weight: float = 0.8
    tol: float = 1e-7
    unit: Unit = "sequence"
    n_jobs: int | None = None
    needs = (LINEAR, NO_EDGE_FEATURES, OWN_CRITERION)

    def minimise(
        self, problem: LinearProblem, theta: Floats, callback: Callback | None = None
    ) -> Boosted:
        """Boost from theta."""
        check(self, problem)
        if not (problem.targets.codes >= 0).any() or len(theta) == 0:
            return Boosted(Minimum(theta.copy(), 0.0, None, 0, True), ())
        state = self.prepare(problem, theta)
        rounds: list[Round] = []
        value, stop = _log_total(state)
        while len(rounds) < self.max_iter and not stop:
            k = self.choose(state)
            step, trial, chosen = 0.0, None, state.sequences_of(k)
            if state.gain[k] < -self.tol * state.distribution.sum():
                step, trial = self.step(state, k, chosen)
            if step == 0.0:
                if state.fresh:
                    break
                state.refresh()  # rounding errors may have hidden a gain
                continue
            state.apply(k, step, chosen, trial)
            value, stop = _log_total(state)
            rounds.append(Round(int(k), step, value, len(chosen) / state.n_sequences))
            if callback is not None and callback(Step(len(rounds), state.theta, value)):
                break
        # the end of all planned rounds counts as convergence
        return Boosted(Minimum(state.theta, value, None, len(rounds), True), tuple(rounds))

    def prepare(self, problem: LinearProblem, theta: Floats) -> State:
        """The state before the first round."""
        rows = _rows(problem, theta, self.unit, np.log(self.length_weight))
        s = rows.node.shape[1]
        forbidden = np.zeros((s, s))
        if problem.constraint is not None and self.unit == "sequence":
            forbidden = problem.constraint.pairs
        return State(rows, theta, forbidden, self.n_jobs)

    def choose(self, state: State) -> int:
        """The weight with the lowest bound. Updates ``state.step`` and ``state.gain``."""
        if self.bound == "loose":
            loops.loose_steps(
                state.starts,
                state.table,
                state.first,
                state.low,
                state.unit,
                self.cap,
                state.distribution.sum(),
                self.smoothing,
                state.step,
                state.gain,
            )
        else:
            loops.tight_steps(
                state.changed,
                state.starts,
                state.table,
                state.first,
                state.low,
                state.unit,
                self.cap,
                state.step,
                state.gain,
            )
        return int(np.argmin(state.gain))

    def step(self, state: State, k: int, chosen: Any) -> tuple[float, Trial | None]:
        """The step of weight k, and the results of the chosen sequences after it, if they ran."""
        if self.bound == "loose":
            return float(state.step[k]), None
        # smoothing adds eps R (e^x + e^-x), x in units of the count
        eps, unit = self.smoothing * state.distribution.sum(), state.unit_of(k)
        a, b = state.first[k], state.first[k + 1]
        counts = (state.low[k] + np.arange(b - a)) * unit
        c = np.maximum(state.table[a:b], 0.0)
        at_zero = float(c @ counts)

        def slope(x: float) -> tuple[float, None]:
            own = float((c * counts * np.exp(counts * x)).sum())
            return own + 2.0 * eps * unit * np.sinh(x * unit), None

        by_bound = _descend(slope, at_zero, float(state.step[k]), self.cap, 1e-6)
        if self.bound == "tight":
            return by_bound

        def exact(x: float) -> tuple[float, Trial]:
            trial = state.run(chosen, k, x)
            with np.errstate(under="ignore"):
                w = np.exp(state.log_inverse(chosen, trial) - state.reference)
                own = float(w @ state.expected_change(chosen, k, trial))
            return own + 2.0 * eps * unit * np.sinh(x * unit), trial

        # where the slope is a tenth of the first slope, nearly all of the gain is reached
        return _descend(exact, at_zero, by_bound[0], self.cap, 0.1)


def _descend(slope: Any, at_zero: float, guess: float, cap: float, tol: float) -> tuple[float, Any]:
    """A step from 0 towards the root of a rising function.

    The function is the slope of a convex function. At 0 it has the sign of -guess. The step ends
    before the root, where the slope is at most ``tol`` times the slope at 0. So the convex function
    falls along the whole step. The method is bracketing, with steps between secant and bisection.
    """
    low, at_low = 0.0, (at_zero, None)
    high, at_high = np.inf, np.inf
    x = guess
    for _ in range(100):
        x = float(np.clip(x, -cap, cap))
        here = slope(x)
        if here[0] * guess <= 0.0:  # still falling
            low, at_low = x, here
            if abs(here[0]) <= tol * abs(at_zero) or abs(x) >= cap:
                break
        else:
            high, at_high = x, here[0]
        if high == np.inf:
            x = 2.0 * low
            continue
        # aim a little before the root of the secant, as points beyond the root do not count
        share = at_low[0] / (at_low[0] - at_high)
        x = low + float(np.clip(0.98 * share, 0.05, 0.95)) * (high - low)
    return low, at_low[1]


def _log_total(state: State) -> tuple[float, bool]:
    """log R, and whether every gold labelling has probability 1 up to rounding."""
    total, least = float(state.distribution.sum()), EPSILON * float(state.inverse.sum())
    return float(np.log(max(total, least)) + state.reference), total <= least


def _rows(problem: LinearProblem, theta: Floats, unit: Unit, log_pi: float) -> Rows:
    """The sequences of the problem, in the layout of boosting.

    A token is left out if its label is not known exactly. It cuts its sequence in two.
    """
    tables, targets = problem.tables, problem.targets
    y, offsets, s = targets.codes, targets.offsets, len(tables.pair_weight)
    indptr, indices, values, starts, columns = tables.node
    n_tokens, n_node = len(y), len(columns)
    x = sp.csr_array((values, indices, indptr), shape=(n_tokens, len(starts) - 1))
    pairs = np.flatnonzero(tables.pair_weight.ravel() >= 0)
    first = np.zeros(n_tokens, bool)
    first[offsets[:-1]] = True
    if unit == "neighbours":
        # transitions from the gold label before become features, after all other features
        t = np.flatnonzero(~first)
        t = t[y[t - 1] >= 0]
        before = sp.csr_array((np.ones(len(t)), (t, y[t - 1])), shape=(n_tokens, s))
        x = sp.hstack([x, before], format="csr")
        more = n_node + np.searchsorted(pairs, s * np.arange(1, s + 1))
        starts = np.concatenate([starts, more])
        columns = np.concatenate([columns, (pairs % s).astype(np.int32)])
    if unit != "sequence":
        pairs = pairs[:0]
    weights = sp.csr_array((theta[: len(columns)], columns, starts), shape=(len(starts) - 1, s))
    node = np.asarray((x @ weights).todense())
    if problem.constraint is not None and unit == "sequence":
        node[offsets[:-1]] += problem.constraint.start
        node[offsets[1:] - 1] += problem.constraint.end
    kept = np.flatnonzero(y >= 0)
    fresh = first[kept] | (np.diff(kept, prepend=-2) > 1)
    if unit != "sequence":
        fresh[:] = True
    begin = np.flatnonzero(fresh)
    own = np.searchsorted(offsets, kept[begin], side="right") - 1
    new_offsets = np.append(begin, len(kept)).astype(np.int64)
    log_weight = np.log(problem.weights[own]) + log_pi * np.diff(new_offsets)
    return Rows(
        x[kept],
        np.asarray(starts, np.int64),
        columns,
        y[kept],
        new_offsets,
        log_weight,
        node[kept],
        pairs,
        len(columns),
    )
