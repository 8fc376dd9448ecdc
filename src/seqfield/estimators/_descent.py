"""What estimators share that minimise an objective over their weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from seqfield._checks import number
from seqfield._warn import warn
from seqfield.errors import InputError
from seqfield.estimators._base import SequenceEstimator
from seqfield.labels import Targets
from seqfield.losses._base import Loss
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.progress import progress
from seqfield.sequences import Sequences
from seqfield.solvers._base import Callback, Minimum, Step

Floats = NDArray[np.float64]

#: what to do where a descent came to a halt far from the optimum: rounding hides which way it is
STUCK = (
    "the value no longer falls in float64. Scale the features to values of about 1, or the kernel "
    "down, or raise the penalty; or use solver='newton', if it is not that"
)


class Recipe(NamedTuple):
    """Two of the three axes of a method: objective and optimiser.

    An optimiser that goes by mistakes uses neither loss nor prior.
    """

    optimiser: Any
    loss: Loss = LogLoss()
    prior: ElasticNet = ElasticNet(0.0, 0.0)


class DescentEstimator(SequenceEstimator):
    """Base of estimators that minimise a loss and a prior.

    Fitted attributes: ``n_iter_``, ``best_iter_`` (the iteration whose weights are kept),
    ``objective_`` (final value) and ``gap_`` (bound on its distance from the optimum).
    """

    early_stopping = False
    validation_fraction = 0.1
    patience = 10
    _architecture: Any
    theta_: Floats

    @property
    def _remedy(self) -> str:
        """What to do if there is no convergence."""
        return "raise max_iter, or the penalty or tol"

    def _shown(self, step: Step) -> str:
        """What progress shows of an iteration."""
        return f"objective {step.value:.6g}"

    @abstractmethod
    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        """Set the architecture; the data in the form that it lays out."""

    @abstractmethod
    def _recipe(self, data: Sequences) -> Recipe:
        """Optimiser, loss and prior, from checked constructor arguments and prepared data."""

    def _start(self, goal: Objective, theta: Floats) -> Floats:
        """Where to start, given the weights that are there (zeros at first)."""
        return theta

    def _merit(self, held: Objective) -> Callable[[Floats], float]:
        """What early stopping watches on held-out data: the less the better."""
        return held.error

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        again = self.warm_start and hasattr(self, "theta_")
        data = self._prepare(data, targets, weights)
        self._train(self._recipe(data), data, targets, weights, again)

    def _train(
        self, recipe: Recipe, data: Sequences, targets: Targets, weights: Floats, again: bool
    ) -> None:
        """Learn from prepared data, from the weights that are there if ``again``."""
        optimiser, loss, prior = recipe

        def objective(chosen: Any, penalty: ElasticNet) -> Objective:
            return Objective(
                self._architecture,
                loss,
                penalty,
                data[chosen],
                targets[chosen],
                weights[chosen],
                self._constraint,
                self.n_jobs,
            )

        patience = number("patience", self.patience, low=1, whole=True)
        train, watch = np.arange(len(data)), _Watch(None, patience)
        if self.early_stopping:
            train, rest = self._split(len(data))
            held = objective(rest, ElasticNet(0.0, 0.0))
            watch = _Watch(self._merit(held), patience)
        goal = objective(train, prior)
        theta = self.theta_ if again else np.zeros(self._architecture.n_parameters)
        theta = self._start(goal, theta)
        if theta.any():  # what is there already may be the best on held-out data
            watch(Step(0, theta, np.nan))
        with progress("training", optimiser.max_iter, show=bool(self.verbose)) as report:

            def callback(step: Step) -> bool:
                report(step.iteration, self._shown(step))
                return watch(step)

            result, found = self._solve(optimiser, goal, theta, callback)
        theta, self.best_iter_ = watch.best_of(result)
        self._finish(goal, theta, result, found)

    def _solve(
        self, optimiser: Any, goal: Objective, theta: Floats, callback: Callback
    ) -> tuple[Minimum, Any]:
        """The minimum, and what else a special solver has found."""
        return optimiser.minimise(goal, theta, callback), None

    def _finish(self, goal: Objective, theta: Floats, result: Minimum, found: Any) -> None:
        value, gradient = result.value, result.gradient
        if gradient is not None and theta is not result.theta:
            value, gradient = goal.value_and_grad(theta)
            value += goal.l1 * float(np.abs(theta).sum())
        gap = result.gap if gradient is None else goal.gap(theta, gradient)
        self._settle(theta, result._replace(value=value, gap=gap))

    def _settle(self, theta: Floats, result: Minimum) -> None:
        """Keep what was found, and warn if that is not the end."""
        self.theta_ = theta
        self.n_iter_, self.objective_, self.gap_ = result.n_iter, result.value, result.gap
        if not result.converged:
            self._warn(result.n_iter, stuck=result.stuck)

    def _warn(self, n_iter: int, *, stuck: bool = False) -> None:
        bound = f", at most {self.gap_:.2g} above its optimum" if np.isfinite(self.gap_) else ""
        warn(
            f"no convergence in {n_iter} iterations (objective {self.objective_:.6g}{bound}): "
            + (STUCK if stuck else self._remedy),
            ConvergenceWarning,
        )

    def _split(self, n: int) -> tuple[Any, Any]:
        """Sequences to train on and sequences held out."""
        n_held = round(n * number("validation_fraction", self.validation_fraction, low=0, high=1))
        if not 0 < n_held < n:
            raise InputError(
                f"validation_fraction={self.validation_fraction} of {n} sequences leaves none "
                "to hold out or none to train on"
            )
        order = self._random().permutation(n)
        return np.sort(order[n_held:]), np.sort(order[:n_held])


class _Watch:
    """Remembers the best weights on held-out data; says when to give up."""

    def __init__(self, merit: Callable[[Floats], float] | None, patience: int) -> None:
        self.merit, self.patience = merit, patience
        self.best: tuple[float, int, Floats] | None = None

    def __call__(self, step: Step) -> bool:
        if self.merit is None:
            return False
        value = self.merit(step.theta)
        if self.best is None or value < self.best[0]:
            self.best = value, step.iteration, step.theta.copy()
        return step.iteration - self.best[1] >= self.patience

    def best_of(self, result: Minimum) -> tuple[Floats, int]:
        """The weights to keep and their iteration."""
        if self.best is None:
            return result.theta, result.n_iter
        return self.best[2], self.best[1]
