"""What estimators over explicit features share: training, scores, files, inspection."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield.architectures._maps import DenseMap, SparseMap
from seqfield.architectures.linear import Linear, Map
from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.estimators._base import SequenceEstimator
from seqfield.estimators._objective import Objective
from seqfield.estimators._progress import progress
from seqfield.labels import Targets
from seqfield.losses._base import Loss
from seqfield.losses.log import LogLoss
from seqfield.optimisers._base import Result, Step
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]


class Weight(NamedTuple):
    """One weight of a linear model: its label (or pair of labels), feature and value."""

    label: Any
    feature: str
    value: float


class Recipe(NamedTuple):
    """The other two axes of a method over explicit features: objective and optimiser.

    An optimiser that goes by mistakes uses neither loss nor prior.
    """

    optimiser: Any
    loss: Loss = LogLoss()
    prior: ElasticNet = ElasticNet(0.0, 0.0)


class LinearEstimator(SequenceEstimator):
    """Base of estimators whose scores are linear in features.

    Fitted attributes: ``theta_`` (all weights), ``transitions_`` (S, S), ``n_iter_``,
    ``best_iter_`` (the iteration whose weights are kept), ``objective_`` (final value) and
    ``gap_`` (bound on its distance from the optimum).
    """

    observed_only: bool
    transitions: bool
    early_stopping: bool
    validation_fraction: float
    patience: int
    _architecture: Linear
    theta_: Floats

    @abstractmethod
    def _recipe(self, data: Sequences) -> Recipe:
        """Optimiser, loss and prior, from checked constructor arguments."""

    def _start(self, goal: Objective, theta: Floats) -> Floats:
        """Where to start, given the weights that are there (zeros at first)."""
        return theta

    def _merit(self, held: Objective) -> Callable[[Floats], float]:
        """What early stopping watches on held-out data: the less the better."""
        return held.error

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        optimiser, loss, prior = self._recipe(data)
        again = self.warm_start and hasattr(self, "theta_")
        if not again:
            self._architecture = Linear.build(
                data,
                targets,
                len(self._labels),
                observed=self.observed_only,
                transitions=self.transitions and self.features_.transitions_,
            )

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
                report(step.iteration, f"objective {step.value:.6g}")
                return watch(step)

            result = optimiser.minimise(goal, theta, callback)
        theta, self.best_iter_ = watch.best_of(result)
        self._finish(goal, theta, result)

    def _finish(self, goal: Objective, theta: Floats, result: Result) -> None:
        value, gradient = result.value, result.gradient
        if gradient is not None and theta is not result.theta:
            value, gradient = goal.value_and_grad(theta)
            value += goal.l1 * float(np.abs(theta).sum())
        self.theta_ = theta
        self.n_iter_ = result.n_iter
        self.objective_ = value
        self.gap_ = np.inf if gradient is None else goal.gap(theta, gradient)
        if not result.converged:
            self._warn(result.n_iter)

    def _warn(self, n_iter: int) -> None:
        bound = f", at most {self.gap_:.2g} above its optimum" if np.isfinite(self.gap_) else ""
        warnings.warn(
            f"no convergence in {n_iter} iterations (objective {self.objective_:.6g}{bound}): "
            "raise max_iter, or the penalty or tol",
            ConvergenceWarning,
            stacklevel=6,
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

    def _scores(self, data: Sequences) -> ChainScores:
        if self._architecture.edge is not None and data.edge is None:
            raise InputError("the model was trained with edge features, but X has none")
        return self._architecture.score(self.theta_, data)

    @property
    def transitions_(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""
        check_is_fitted(self, "theta_")
        return self._architecture.transitions(self.theta_)

    @property
    def n_features_used_(self) -> int:
        """Number of node features with a weight other than zero."""
        check_is_fitted(self, "theta_")
        used = np.flatnonzero(self.theta_[: self._architecture.node.n_weights])
        return len(np.unique(self._architecture.node.names()[0][used]))

    def top_weights(self, n: int = 10, *, label: Any = None, lowest: bool = False) -> list[Weight]:
        """The n largest (or lowest) node weights, of one label or of all."""
        check_is_fitted(self, "theta_")
        feature, column = self._architecture.node.names()
        theta = self.theta_[: self._architecture.node.n_weights]
        chosen = np.arange(len(theta))
        if label is not None:
            if label not in self._labels.index:
                raise InputError(f"{label!r} is not one of the model's labels")
            chosen = np.flatnonzero(column == self._labels.index[label])
        order = np.argsort(theta[chosen] if lowest else -theta[chosen], kind="stable")[:n]
        names = self.features_.names()
        return [
            Weight(self._labels.names[column[k]], names[feature[k]], float(theta[k]))
            for k in chosen[order]
        ]

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        a = self._architecture
        header: dict[str, Any] = {"node": _map_header(a.node)}
        arrays = {"theta": self.theta_, "pairs": a.pairs} | _map_arrays("node", a.node)
        if a.edge is not None:
            header["edge"] = _map_header(a.edge)
            arrays |= _map_arrays("edge", a.edge)
        return header, arrays

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        s = len(self._labels)
        node = _restored_map("node", header["node"], arrays, s)
        edge = None
        if "edge" in header:
            edge = _restored_map("edge", header["edge"], arrays, s * s)
        pairs = np.asarray(arrays["pairs"], np.int64)
        if pairs.ndim != 1 or (pairs < 0).any() or (pairs >= s * s).any():
            raise InputError("transition table out of range")
        if (np.diff(pairs) <= 0).any():
            raise InputError("transition table out of order")
        self._architecture = Linear(s, node, pairs, edge)
        self.theta_ = np.asarray(arrays["theta"], np.float64)
        if self.theta_.shape != (self._architecture.n_parameters,):
            raise InputError("wrong number of weights")
        if node.shape[0] != self.n_features_in_:
            raise InputError("wrong number of features")


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

    def best_of(self, result: Result) -> tuple[Floats, int]:
        """The weights to keep and their iteration."""
        if self.best is None:
            return result.theta, result.n_iter
        return self.best[2], self.best[1]


def _map_header(part: Map) -> dict[str, Any]:
    return {"dense": isinstance(part, DenseMap), "n_features": part.shape[0]}


def _map_arrays(name: str, part: Map) -> dict[str, NDArray[Any]]:
    if isinstance(part, DenseMap):
        return {}
    return {f"{name}.starts": part.starts, f"{name}.columns": part.columns}


def _restored_map(
    name: str, header: dict[str, Any], arrays: dict[str, NDArray[Any]], n_columns: int
) -> Map:
    n_features = int(header["n_features"])
    if header["dense"]:
        if n_features < 0 or n_features * n_columns > arrays["theta"].size:
            raise InputError("wrong number of features")
        return DenseMap(n_features, n_columns)
    starts = np.asarray(arrays[f"{name}.starts"], np.int64)
    columns = np.asarray(arrays[f"{name}.columns"])
    if starts.ndim != 1 or len(starts) != n_features + 1 or columns.ndim != 1:
        raise InputError("weight table of the wrong shape")
    if starts.min() < 0 or starts.max() > len(columns):
        raise InputError("weight table out of range")
    if starts[0] != 0 or starts[-1] != len(columns) or (np.diff(starts) < 0).any():
        raise InputError("weight table out of order")
    if (columns < 0).any() or (columns >= n_columns).any():
        raise InputError("weight table out of range")
    inner = np.ones(len(columns), bool)
    inner[starts[:-1][starts[:-1] < len(columns)]] = False
    if (np.diff(columns.astype(np.int64), prepend=-1)[inner] <= 0).any():
        raise InputError("weight table out of order")
    return SparseMap(starts, columns, n_columns)
