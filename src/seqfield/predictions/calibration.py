"""Probabilities for scores that are not trained to be log-probabilities.

There are three methods. The first has one temperature T for all scores of the chain. The second
also has an offset b for each label (as the slope and the offset of Platt 1999). The third also has
a slope a for each label (vector scaling, Guo et al. 2017). p(y | x) is that of the chain with
scores (sum_t a(y_t) f_t(y_t) + b(y_t) + edges) / T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from seqfield._checks import number
from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.labels import Targets
from seqfield.losses.marginal import MarginalLoss
from seqfield.predictions.average import Average

Floats = NDArray[np.float64]

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


@dataclass(frozen=True, eq=False)
class Calibration:
    """How scores become calibrated ones: (slope * score + offset) / temperature.

    ``offsets`` (S,) and ``slopes`` (S,) belong to the labels' own scores; None where the method has
    none. Slopes and offsets may change the best labelling, the temperature does not.
    """

    temperature: float
    offsets: Floats | None = None
    slopes: Floats | None = None

    def rescale(self, scores: ChainScores) -> ChainScores:
        """The scores with the slope and the offset of each label."""
        return scores if self.offsets is None else rescaled(scores, self.slopes, self.offsets)

    def state(self) -> dict[str, Any]:
        """For the header of a model file."""
        parts = {"offsets": self.offsets, "slopes": self.slopes}
        held = {name: None if part is None else part.tolist() for name, part in parts.items()}
        return {"temperature": self.temperature} | held

    @classmethod
    def restore(cls, header: Any, n_labels: int) -> Self:
        """What `state` gave, if it can be."""

        def by_label(name: str, low: float = -np.inf) -> Floats | None:
            values = header[name]
            if values is None:
                return None
            numbers = np.array([number(name, value, low=low) for value in values], np.float64)
            if numbers.shape != (n_labels,):
                raise InputError(f"wrong number of {name}")
            return numbers

        temperature = number("temperature", header["temperature"], low=np.exp(-LIMIT) / 2)
        offsets, slopes = by_label("offsets"), by_label("slopes", low=0.0)
        if slopes is not None and offsets is None:
            raise InputError("slopes without offsets")
        return cls(float(temperature), offsets, slopes)


def tempered(scores: ChainScores, temperature: float) -> ChainScores:
    """The scores divided by a temperature: a higher temperature makes probabilities flatter."""

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


def fit_calibration(parts: list[HeldOut], way: bool | str) -> Calibration:
    """What ``calibrate`` asks for, with the least summed -log p(y_t | x) of held-out tokens.

    Weak priors keep the temperature finite if all tokens are right, and at 1 without information.
    """
    start = fit_temperature(parts)
    if way in (True, "temperature"):
        return Calibration(start)
    found = _fit_labels(parts, start, slopes=way == "vector")
    if len(parts[0].draws) == 1:
        return found
    # slopes and offsets are those of the mean scores; the temperature is that of the average
    assert found.offsets is not None
    moved = [
        part._replace(draws=[rescaled(one, found.slopes, found.offsets) for one in part.draws])
        for part in parts
    ]
    return replace(found, temperature=fit_temperature(moved))


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
        p = Average([tempered(one, temperature) for one in draws]).marginals()
        right = p.sum(axis=1, where=targets.mask(p.shape[1]))
        logs = np.log(np.maximum(right, np.finfo(float).tiny))
        total -= float(np.repeat(weights, np.diff(targets.offsets)) @ logs)
    return total


def _fit_labels(parts: list[HeldOut], temperature: float, *, slopes: bool) -> Calibration:
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
            by_label = slope * own * np.einsum("nj,nj->j", d_node, scores.node)
            gradient[0] += by_label.sum() + slope * np.vdot(d_edge, _finite(scores.edge))
            ends = (scores.start, scores.offsets[:-1]), (scores.end, scores.offsets[1:] - 1)
            for part, tokens in ends:
                if part is not None:
                    gradient[0] += slope * float(d_node[tokens].sum(axis=0) @ _finite(part))
            gradient[1 : 1 + s] += d_node.sum(axis=0)
            if slopes:
                gradient[1 + s :] += by_label
        return total, gradient

    start = np.zeros(len(spread))
    start[0] = -np.log(temperature)
    bounds = [(-LIMIT, LIMIT), *[(None, None)] * s, *[(-LIMIT, LIMIT)] * (s * slopes)]
    found = minimize(value_and_grad, start, jac=True, method="L-BFGS-B", bounds=bounds)
    temperature = float(np.exp(-found.x[0]))
    return Calibration(
        temperature,
        temperature * found.x[1 : 1 + s],
        np.exp(found.x[1 + s :]) if slopes else None,
    )


def _finite(part: Floats) -> Floats:
    """Zeros for what is forbidden, which stays so at any temperature."""
    return np.where(np.isfinite(part), part, 0.0)


def _mean(draws: list[ChainScores]) -> ChainScores:
    if len(draws) == 1:
        return draws[0]
    first = draws[0]  # what is forbidden is so in all of them
    node = np.mean([one.node for one in draws], axis=0)
    edge = np.mean([one.edge for one in draws], axis=0)
    return ChainScores(node, edge, first.offsets, first.start, first.end, check=False)
