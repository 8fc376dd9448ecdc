"""Weights of explicit features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures._maps import DenseMap, SparseMap
from seqfield.architectures.linear import Linear, Map
from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.functions._base import LEARNED, Floats, Learned, Shape, checked
from seqfield.persist import Arrays, Header, State
from seqfield.sequences import Sequences


@LEARNED.register
@dataclass(frozen=True, eq=False)
class LinearFunction(Learned):
    """Scores that are linear in features: an architecture and its weights."""

    architecture: Linear
    theta: Floats

    @property
    def transitions(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""
        return self.architecture.transitions(self.theta)

    def scores(self, data: Sequences, n_jobs: int | None = None) -> ChainScores:
        """Chain scores of encoded data, without constraints."""
        if self.architecture.edge is not None and data.edge is None:
            raise InputError("the model was trained with edge features, but X has none")
        return self.architecture.score(self.theta, data)

    def node_weights(self) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
        """The weights of node features, with the feature and the label of each."""
        node = self.architecture.node
        return (self.theta[: node.n_weights], *node.names())

    def state(self) -> State:
        """Header and arrays for a model file."""
        a = self.architecture
        header: dict[str, Any] = {"n_labels": a.n_labels, "node": _map_header(a.node)}
        arrays = {"theta": self.theta, "pairs": a.pairs} | _map_arrays("node", a.node)
        if a.edge is not None:
            header["edge"] = _map_header(a.edge)
            arrays |= _map_arrays("edge", a.edge)
        return State(header, arrays)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, shape: Shape) -> Self:
        """The function of what `state` gave; every index is range-checked."""
        s = shape.n_labels
        if header["n_labels"] != s:
            raise InputError("wrong number of labels")
        node = _restored_map("node", header["node"], arrays, s)
        edge = None
        if "edge" in header:
            edge = _restored_map("edge", header["edge"], arrays, s * s)
        pairs = np.asarray(arrays["pairs"], np.int64)
        if pairs.ndim != 1 or (pairs < 0).any() or (pairs >= s * s).any():
            raise InputError("transition table out of range")
        if (np.diff(pairs) <= 0).any():
            raise InputError("transition table out of order")
        architecture = Linear(s, node, pairs, edge)
        theta = checked("theta", arrays, (architecture.n_parameters,))
        if node.shape[0] != shape.n_features:
            raise InputError("wrong number of features")
        return cls(architecture, theta)


@LEARNED.register
@dataclass(frozen=True, eq=False)
class BoostedFunction(LinearFunction):
    """Weights that were chosen one by one.

    ``path`` (rounds, 4) holds of each round the weight, its step, log R after it, and the share of
    sequences run again; ``refitted`` is the loss that all chosen weights were last fitted with.
    """

    path: Floats
    refitted: str | None = None

    def state(self) -> State:
        """Header and arrays for a model file."""
        header, arrays = super().state()
        return State(header | {"refitted": self.refitted}, arrays | {"path": self.path})

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, shape: Shape) -> Self:
        """The function of what `state` gave; every index is range-checked."""
        plain = LinearFunction.restore(header, arrays, shape)
        path = checked("path", arrays, (len(arrays["path"]), 4))
        weights = path[:, 0]
        if ((weights < 0) | (weights >= len(plain.theta)) | (weights % 1 != 0)).any():
            raise InputError("path out of range")
        if header["refitted"] not in (None, "log", "exp"):
            raise InputError("unknown kind of refit")
        return cls(plain.architecture, plain.theta, path, header["refitted"])


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
