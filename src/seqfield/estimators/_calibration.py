"""Probabilities for scores that are not trained to be log-probabilities.

One temperature for all scores of the chain; with it an offset for each label (as the slope and the
offset of Platt 1999); and with both a slope for each label (vector scaling, Guo et al. 2017):
p(y | x) is that of the chain with scores (sum_t a(y_t) f_t(y_t) + b(y_t) + edges) / T.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.estimators import _average
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
#: that of the logarithm of a slope
SLOPES = 1.0
#: what ``calibrate`` may be; True is the temperature
WAYS = (False, True, "temperature", "platt", "vector")


class HeldOut(NamedTuple):
    """Scores of sequences by a model that was not trained on them, of each of its draws."""

    draws: list[ChainScores]
    targets: Targets
    weights: Floats


class Scaling(NamedTuple):
    """A temperature, and an offset (S,) and a slope (S,) for each label, or None."""

    temperature: float
    offsets: Floats | None = None
    slopes: Floats | None = None


def tempered(scores: ChainScores, temperature: float) -> ChainScores:
    """The scores over a temperature: probabilities flatten as it rises."""

    def part(values: Floats | None) -> Floats | None:
        return None if values is None else values / temperature

    node, edge = scores.node / temperature, scores.edge / temperature
    return ChainScores(
        node, edge, scores.offsets, part(scores.start), part(scores.end), check=False
    )


def rescaled(scores: ChainScores, slopes: Floats | None, offsets: Floats) -> ChainScores:
    """The scores with a slope and an offset for each label."""
    return ChainScores(
        (scores.node if slopes is None else scores.node * slopes) + offsets,
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
    n_folds: int = N_FOLDS,
) -> list[HeldOut]:
    """Each fold scored by a twin of the model that is trained on the other folds."""
    # a sequence of which nothing is known tells nothing when held out, and may help in training
    blank = targets.mask(len(model._labels)).all(axis=1)
    told = np.flatnonzero(np.add.reduceat(~blank, targets.offsets[:-1]))
    if len(told) < n_folds:
        raise InputError(
            f"calibration by {n_folds} folds needs at least {n_folds} sequences with labels, got "
            f"{len(told)}"
        )
    out = []
    for fold in np.array_split(rng.permutation(told), n_folds):
        rest = np.setdiff1d(np.arange(len(data)), fold)
        twin = copy.copy(model)
        twin.warm_start = twin.verbose = False
        twin._used = rest
        twin._fit(data[rest], targets[rest], weights[rest])
        out.append(scored(twin, data[fold], targets[fold], weights[fold]))
    return out


def scored(model: SequenceEstimator, data: Sequences, targets: Targets, weights: Floats) -> HeldOut:
    """Sequences scored by a model that was not trained on them."""
    return HeldOut([model._constrained(part) for part in model._draws(data)], targets, weights)


def fit_scaling(parts: list[HeldOut], way: bool | str) -> Scaling:
    """What ``calibrate`` asks for, with the least summed -log p(y_t | x) of held-out tokens.

    Weak priors keep it finite where tokens are all right, and at 1 where they tell nothing.
    """
    start = fit_temperature(parts)
    if way in (True, "temperature"):
        return Scaling(start)
    found = _fit_labels(parts, start, slopes=way == "vector")
    if len(parts[0].draws) == 1:
        return found
    # slopes and offsets are those of the mean scores; the temperature is that of the average
    assert found.offsets is not None
    moved = [
        part._replace(draws=[rescaled(one, found.slopes, found.offsets) for one in part.draws])
        for part in parts
    ]
    return found._replace(temperature=fit_temperature(moved))


def fit_temperature(parts: list[HeldOut]) -> float:
    """The temperature with the least summed -log p(y_t | x) of held-out tokens."""

    def value(log_temperature: float) -> float:
        prior = 0.5 * (log_temperature / SPREAD) ** 2
        return held_out_nll(parts, float(np.exp(log_temperature))) + prior

    found = minimize_scalar(value, bounds=(-LIMIT, LIMIT), method="bounded")
    return float(np.exp(found.x))


def held_out_nll(parts: list[HeldOut], temperature: float) -> float:
    """The summed -log p(y_t | x) of held-out tokens."""
    total = 0.0
    for draws, targets, weights in parts:
        p = _average.marginals([tempered(one, temperature) for one in draws], None)
        right = p.sum(axis=1, where=targets.mask(p.shape[1]))
        logs = np.log(np.maximum(right, np.finfo(float).tiny))
        total -= float(np.repeat(weights, np.diff(targets.offsets)) @ logs)
    return total


def _fit_labels(parts: list[HeldOut], temperature: float, *, slopes: bool) -> Scaling:
    """Temperature, offsets and perhaps slopes of chains, or of the mean scores of draws."""
    loss, s = MarginalLoss(), parts[0].draws[0].n_labels
    chains = [(_mean(draws), targets, weights) for draws, targets, weights in parts]
    spread = np.concatenate([np.full(1 + s, SPREAD), np.full(s if slopes else 0, SLOPES)])

    def value_and_grad(theta: Floats) -> tuple[float, Floats]:
        # theta = [log 1/T | b / T | log a]
        slope, offsets = float(np.exp(theta[0])), theta[1 : 1 + s]
        own = np.exp(theta[1 + s :]) if slopes else np.ones(s)
        total, gradient = 0.5 * float(((theta / spread) ** 2).sum()), theta / spread**2
        for scores, targets, weights in chains:
            # the loss is a mean over each sequence; tokens are to count alike
            weights = weights * np.diff(targets.offsets)
            scaled = rescaled(tempered(scores, 1.0 / slope), own, offsets)
            value, d_node, d_edge = loss(scaled, targets, weights)
            total += value
            # what is forbidden stays so at any temperature
            edge = np.where(np.isfinite(scores.edge), scores.edge, 0.0)
            by_label = slope * own * np.einsum("nj,nj->j", d_node, scores.node)
            gradient[0] += by_label.sum() + slope * np.vdot(d_edge, edge)
            gradient[1 : 1 + s] += d_node.sum(axis=0)
            if slopes:
                gradient[1 + s :] += by_label
        return total, gradient

    start = np.zeros(len(spread))
    start[0] = -np.log(temperature)
    bounds = [(-LIMIT, LIMIT), *[(None, None)] * s, *[(-LIMIT, LIMIT)] * (s * slopes)]
    found = minimize(value_and_grad, start, jac=True, method="L-BFGS-B", bounds=bounds)
    temperature = float(np.exp(-found.x[0]))
    return Scaling(
        temperature,
        temperature * found.x[1 : 1 + s],
        np.exp(found.x[1 + s :]) if slopes else None,
    )


def _mean(draws: list[ChainScores]) -> ChainScores:
    if len(draws) == 1:
        return draws[0]
    first = draws[0]  # what is forbidden is so in all of them
    node = np.mean([one.node for one in draws], axis=0)
    edge = np.mean([one.edge for one in draws], axis=0)
    return ChainScores(node, edge, first.offsets, first.start, first.end, check=False)
