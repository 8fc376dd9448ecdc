"""Probabilities for scores that are not trained to be log-probabilities.

One temperature for all scores of the chain, or with it an offset for each label (as the slope and
the offset of Platt 1999): p(y | x) is that of the chain with scores (F(y) + sum_t b(y_t)) / T.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.labels import Targets
from seqfield.losses.marginal import MarginalLoss
from seqfield.sequences import Sequences

if TYPE_CHECKING:
    from seqfield.estimators._base import SequenceEstimator

Floats = NDArray[np.float64]

N_FOLDS = 3
#: temperatures are looked for between e^-LIMIT and e^LIMIT
LIMIT = 12.0
#: standard deviation of the priors on the logarithm of a temperature and on b / T
SPREAD = 5.0
#: what ``calibrate`` may be
WAYS = (False, True, "platt")


class HeldOut(NamedTuple):
    """Scores of sequences by a model that was not trained on them."""

    scores: ChainScores
    targets: Targets
    weights: Floats


def tempered(scores: ChainScores, temperature: float) -> ChainScores:
    """The scores over a temperature: probabilities flatten as it rises."""

    def part(values: Floats | None) -> Floats | None:
        return None if values is None else values / temperature

    node, edge = scores.node / temperature, scores.edge / temperature
    return ChainScores(
        node, edge, scores.offsets, part(scores.start), part(scores.end), check=False
    )


def shifted(scores: ChainScores, offsets: Floats) -> ChainScores:
    """The scores with an offset for each label."""
    return ChainScores(
        scores.node + offsets,
        scores.edge,
        scores.offsets,
        scores.start,
        scores.end,
        check=False,
    )


def held_out(
    model: SequenceEstimator,
    data: Sequences,
    targets: Targets,
    weights: Floats,
    rng: np.random.RandomState,
) -> list[HeldOut]:
    """Each fold scored by a twin of the model that is trained on the other folds."""
    # a sequence of which nothing is known tells nothing when held out, and may help in training
    blank = targets.mask(len(model._labels)).all(axis=1)
    told = np.flatnonzero(np.add.reduceat(~blank, targets.offsets[:-1]))
    if len(told) < N_FOLDS:
        raise InputError(
            f"calibrate={model.calibrate!r} needs at least {N_FOLDS} sequences with labels, got "
            f"{len(told)}"
        )
    out = []
    for fold in np.array_split(rng.permutation(told), N_FOLDS):
        rest = np.setdiff1d(np.arange(len(data)), fold)
        twin = copy.copy(model)
        twin.warm_start = twin.verbose = False
        twin._used = rest
        twin._fit(data[rest], targets[rest], weights[rest])
        scores = twin._constrained(twin._scores(data[fold]))
        out.append(HeldOut(scores, targets[fold], weights[fold]))
    return out


def fit_temperature(parts: list[HeldOut]) -> float:
    """The temperature with the least summed -log p(y_t | x) of held-out tokens.

    A weak prior on its logarithm keeps it finite where tokens are all right, and at 1 where they
    tell nothing.
    """
    loss = MarginalLoss()

    def value(log_temperature: float) -> float:
        temperature = float(np.exp(log_temperature))
        total = 0.5 * (log_temperature / SPREAD) ** 2
        for scores, targets, weights in parts:
            # the loss is a mean over each sequence; tokens are to count alike
            weights = weights * np.diff(targets.offsets)
            total += loss.total(loss.values(tempered(scores, temperature), targets), weights)
        return total

    found = minimize_scalar(value, bounds=(-LIMIT, LIMIT), method="bounded")
    return float(np.exp(found.x))


class Scaling(NamedTuple):
    """A temperature, and an offset (S,) for each label."""

    temperature: float
    offsets: Floats


def fit_scaling(parts: list[HeldOut]) -> Scaling:
    """Both with the least summed -log p(y_t | x) of held-out tokens, under a weak prior."""
    loss, s = MarginalLoss(), parts[0].scores.n_labels

    def value_and_grad(theta: Floats) -> tuple[float, Floats]:
        # theta = [log 1/T | b / T]
        slope, offsets = float(np.exp(theta[0])), theta[1:]
        total, gradient = 0.5 * float(theta @ theta) / SPREAD**2, theta / SPREAD**2
        for scores, targets, weights in parts:
            weights = weights * np.diff(targets.offsets)
            scaled = shifted(tempered(scores, 1.0 / slope), offsets)
            value, d_node, d_edge = loss(scaled, targets, weights)
            total += value
            # what is forbidden stays so at any temperature
            edge = np.where(np.isfinite(scores.edge), scores.edge, 0.0)
            gradient[0] += slope * (np.vdot(d_node, scores.node) + np.vdot(d_edge, edge))
            gradient[1:] += d_node.sum(axis=0)
        return total, gradient

    start = np.zeros(1 + s)
    start[0] = -np.log(fit_temperature(parts))
    found = minimize(
        value_and_grad,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-LIMIT, LIMIT), *[(None, None)] * s],
    )
    temperature = float(np.exp(-found.x[0]))
    return Scaling(temperature, temperature * found.x[1:])
