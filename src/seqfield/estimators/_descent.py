"""What estimators share that minimise an objective: progress, early stopping, and what is told of
the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from seqfield._warn import warn
from seqfield.errors import InputError
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import flag, real, whole
from seqfield.objectives.objective import Objective
from seqfield.progress import progress
from seqfield.solvers._base import Callback, Minimum, Step

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Merit = Callable[[Floats], float]

#: what to do where a descent came to a halt far from the optimum: rounding hides which way it is
STUCK = (
    "the value no longer falls in float64. Scale the features to values of about 1, or the kernel "
    "down, or raise the penalty"
)


class Watch:
    """Remembers the best weights on held-out data, and says when to give up."""

    def __init__(self, merit: Merit | None = None, patience: int = 1) -> None:
        self.merit, self.patience = merit, patience
        self.best: tuple[float, int, Floats] | None = None

    def __call__(self, step: Step) -> bool:
        if self.merit is None:
            return False
        value = self.merit(step.theta)
        if self.best is None or value < self.best[0]:
            self.best = value, step.iteration, step.theta.copy()
        return step.iteration - self.best[1] >= self.patience

    def best_of(self, found: Minimum) -> tuple[Floats, int]:
        """The weights to keep and their iteration."""
        if self.best is None:
            return found.theta, found.n_iter
        return self.best[2], self.best[1]


def watched(
    lesson: Lesson,
    settings: Any,
    rng: np.random.RandomState,
    merit: Callable[[Lesson], Merit],
) -> tuple[Lesson, Watch]:
    """The sequences to train on, and a watch over those that early stopping holds out.

    ``settings`` has the parameters early_stopping, validation_fraction and patience. ``merit``
    makes of the sequences held out what is watched, the less the better.
    """
    if not settings.early_stopping:
        return lesson, Watch()
    train, rest = split(len(lesson.data), settings.validation_fraction, rng)
    return lesson.part(train), Watch(merit(lesson.part(rest)), settings.patience)


def split(n: int, fraction: float, rng: np.random.RandomState) -> tuple[Ints, Ints]:
    """Sequences to train on and sequences held out."""
    n_held = round(n * fraction)
    if not 0 < n_held < n:
        raise InputError(
            f"validation_fraction={fraction} of {n} sequences leaves none to hold out or none to "
            "train on"
        )
    order = rng.permutation(n)
    return np.sort(order[n_held:]), np.sort(order[:n_held])


@contextmanager
def following(
    n_iter: int,
    *,
    show: bool,
    watch: Watch | None = None,
    shown: Callable[[Step], str] = lambda step: f"objective {step.value:.6g}",
) -> Iterator[Callback]:
    """A callback that shows progress and asks the watch."""
    with progress("training", n_iter, show=show) as report:

        def callback(step: Step) -> bool:
            report(step.iteration, shown(step))
            return watch is not None and watch(step)

        yield callback


def descent_facts(
    goal: Objective | None, found: Minimum, watch: Watch, remedy: str, *, stuck: str = STUCK
) -> tuple[Floats, dict[str, Any]]:
    """The weights to keep, and what is told of a descent: n_iter_, best_iter_, objective_, gap_.

    Without convergence it warns. ``goal`` is None for solvers that minimise no `Objective`.
    """
    theta, best_iter = watch.best_of(found)
    value, gap = found.value, found.gap
    if goal is not None and found.gradient is not None:
        gradient = found.gradient
        if theta is not found.theta:
            value, gradient = goal.value_and_grad(theta)
            value += goal.l1 * float(np.abs(theta).sum())
        gap = goal.gap(theta, gradient)
    facts: dict[str, Any] = {"n_iter_": found.n_iter, "best_iter_": best_iter}
    facts |= {"objective_": value, "gap_": gap}
    if not found.converged:
        tell(found.n_iter, value, gap, stuck if found.stuck else remedy)
    return theta, facts


def tell(n_iter: int, value: float, gap: float, remedy: str) -> None:
    """Warn that a descent did not converge, and say what to do."""
    bound = f", at most {gap:.2g} above its optimum" if np.isfinite(gap) else ""
    warn(
        f"no convergence in {n_iter} iterations (objective {value:.6g}{bound}): {remedy}",
        ConvergenceWarning,
    )


# --- parameters of early stopping ---------------------------------------------------------------


def early_stopping_param() -> Any:
    """Whether sequences are held out to see when to stop."""
    return flag(
        default=False,
        help=(
            "hold out a share of the sequences, keep the weights that are best on them, and stop "
            "when these sequences no longer gain"
        ),
    )


def validation_fraction_param() -> Any:
    """How many sequences are held out."""
    return real(
        default=0.1,
        help="the share of the sequences that early stopping holds out",
        low=0,
        high=1,
    )


def patience_param(default: int, unit: str) -> Any:
    """How long to wait for a gain."""
    return whole(
        default=default,
        help=f"{unit} without gain after which early stopping gives up",
        low=1,
    )
