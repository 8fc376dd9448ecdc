"""What estimators over explicit features share: scores, files, inspection."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from seqfield.architectures._maps import DenseMap, SparseMap
from seqfield.architectures.linear import Linear, Map
from seqfield.chain import ChainScores
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._descent import DescentEstimator
from seqfield.labels import Targets
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]


class Weight(NamedTuple):
    """One weight of a linear model: its label (or pair of labels), feature and value."""

    label: Any
    feature: str
    value: float


class LinearEstimator(DescentEstimator):
    """Base of estimators whose scores are linear in features.

    Fitted attributes, besides those of `DescentEstimator`: ``theta_`` (all weights) and
    ``transitions_`` (S, S).
    """

    observed_only: bool
    transitions: bool
    _architecture: Linear
    theta_: Floats

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        if not (self.warm_start and hasattr(self, "theta_")):
            self._architecture = Linear.build(
                data,
                targets,
                len(self._labels),
                observed=self.observed_only,
                transitions=self.transitions and self.features_.transitions_,
            )
        return data

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
        self._check_weights()
        used = np.flatnonzero(self.theta_[: self._architecture.node.n_weights])
        return len(np.unique(self._architecture.node.names()[0][used]))

    def top_weights(self, n: int = 10, *, label: Any = None, lowest: bool = False) -> list[Weight]:
        """The n largest (or lowest) node weights, of one label or of all."""
        self._check_weights()
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

    def _check_weights(self) -> None:
        check_is_fitted(self, "classes_")
        if not hasattr(self, "theta_"):
            raise CapabilityError(
                "a model with a kernel has coefficients of tokens, not weights of features"
            )

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
