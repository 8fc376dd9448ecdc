"""Probabilities for scores that are not trained to be log-probabilities: one temperature."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

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
#: standard deviation of the prior on the logarithm of a temperature
SPREAD = 5.0


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
            f"calibrate=True needs at least {N_FOLDS} sequences with labels, got {len(told)}"
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
