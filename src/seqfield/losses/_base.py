"""The base class of losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqfield.chain import ChainScores, tangent
from seqfield.labels import Targets

Floats = NDArray[np.float64]


class ScoreGradient(NamedTuple):
    """Value of a loss, and its derivatives by node (N, S) and edge scores ((S, S) or (N, S, S))."""

    value: float
    node: Floats
    edge: Floats


class ScoreTangent(NamedTuple):
    """Derivative of a score gradient along a direction: node (N, S), edge (S, S) or (N, S, S)."""

    node: Floats
    edge: Floats


class Loss(ABC):
    """From chain scores and labels to a value and its score gradient. Subclass it for a new loss.

    A subclass must have

    * ``__call__(scores, targets, weights)``: value and score gradient of a batch;
    * ``values(scores, targets)``: the part of each sequence, without gradient.

    It must set ``convex = False`` if the value is not convex in the scores where every label is
    known. If the value is more than a weighted sum of the parts, it must set ``additive = False``
    and override ``total`` and ``shares``. Parts of the data may be totalled apart and those
    totals again: ``total`` is associative, with all weights 1 the second time.

    A loss sees scores and labels only. It handles ``targets.allowed`` (missing labels and
    candidates), or raises a `CapabilityError`. With ``tangent`` and ``free`` it is
    `TwiceDifferentiable`, as Newton's method and the Laplace approximation need.
    """

    #: whether it is convex in the scores if every label is known; then there is a certificate
    convex: bool = True
    #: whether it is a plain sum over sequences, as minibatches need
    additive: bool = True
    #: True if it needs one matrix of transition scores for all positions
    stationary: bool = False

    @abstractmethod
    def __call__(self, scores: ChainScores, targets: Targets, weights: Floats) -> ScoreGradient:
        """Total and score gradient; sequence i counts ``weights[i]`` times."""

    @abstractmethod
    def values(self, scores: ChainScores, targets: Targets) -> Floats:
        """The part of each sequence (n,)."""

    def total(self, values: Floats, weights: Floats) -> float:
        """The total of the parts."""
        return float(weights @ values)

    def shares(self, values: Floats, weights: Floats) -> Floats:
        """The derivative of the total by each part (n,)."""
        return weights


@runtime_checkable
class TwiceDifferentiable(Protocol):
    """A loss whose second derivative is a covariance."""

    def tangent(
        self, scores: ChainScores, targets: Targets, weights: Floats, d_node: Floats, d_edge: Floats
    ) -> ScoreTangent:
        """The derivative of the score gradient along (d_node, d_edge)."""
        ...

    def free(self, scores: ChainScores, targets: Targets) -> ChainScores:
        """Scores of a distribution whose covariance is the second derivative of the loss, if every
        label is known."""
        ...


@runtime_checkable
class BendsByLabel(Protocol):
    """A loss with second derivatives of one label, or one transition, at a time."""

    def curvature(
        self,
        scores: ChainScores,
        targets: Targets,
        weights: Floats,
        rng: np.random.Generator,
        n: int,
    ) -> tuple[list[Floats], Floats]:
        """By the scores of each sequence (S, T, T) and by each transition (S, S), every label
        being known; from n labellings where they are drawn."""
        ...


def covariance(
    scores: ChainScores,
    weights: Floats,
    d_node: Floats,
    d_edge: Floats,
    allowed: NDArray[np.bool_] | None = None,
) -> ScoreTangent:
    """sum_i w_i W_i d: covariance matrices W_i of sequences times a direction d.

    W_i is the covariance of node indicators and transition counts of sequence i, over all pairs of
    positions.

    >>> scores = ChainScores(np.zeros((1, 2)), np.zeros((2, 2)))
    >>> covariance(scores, np.full(1, 2.0), np.array([[0.0, 1.0]]), np.zeros((2, 2))).node
    array([[-0.5,  0.5]])
    """
    pairs: Literal["sum", "each"] = "sum" if scores.stationary else "each"
    # the result is linear in the direction, so the weights can be multiplied into it
    if (weights == weights[0]).all():
        d_node, d_edge = weights[0] * d_node, weights[0] * d_edge
    else:
        per_token = np.repeat(weights, np.diff(scores.offsets))
        d_node, d_edge = per_token[:, None] * d_node, per_token[:, None, None] * d_edge
    found = tangent(scores, d_node, d_edge, allowed=allowed, pairs=pairs)
    assert found.pairs is not None
    return ScoreTangent(found.node, found.pairs)
