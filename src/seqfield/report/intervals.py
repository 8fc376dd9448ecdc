"""Scores with 95 % intervals, by resampling whole sequences.

Every score is a function of sums over sequences. So a resample does not read the tokens again: it
is a row of weights (how often each sequence was drawn) times the matrix of the sequences' sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seqfield._checks import number
from seqfield.report.comparison import Codes, Comparison, Floats

N_BINS = 15
LEVELS = (0.025, 0.975)

#: numbers in the weights of resamples that are in memory at once: 32 MiB
HELD = 2**22


class Score(NamedTuple):
    """A score and the ends of its interval (nan if nothing can be resampled)."""

    value: float
    low: float
    high: float


def bin_of(confidence: Floats, n_bins: int = N_BINS) -> Codes:
    """The bin (lower, upper] of each confidence, as `seqfield.metrics.reliability` cuts them.

    >>> bin_of(np.array([0.0, 0.5, 0.51, 1.0]), 2).tolist()
    [0, 0, 1, 1]
    """
    return np.searchsorted(np.linspace(0.0, 1.0, n_bins + 1)[1:-1], confidence, side="left")


def sums(compared: Comparison) -> dict[str, Floats]:
    """Sums over the tokens of each sequence, for the scores: arrays (n,), for bins (n, 15)."""
    known, right = compared.known, compared.right
    out = {"known": compared.in_row(known), "right": compared.in_row(known & right)}
    out["labelled"] = (out["known"] > 0).astype(np.float64)
    out["exact"] = out["labelled"] * (out["known"] == out["right"])
    if compared.has_spans:
        pairs = list(zip(*compared.spans(), strict=True))
        out["gold_spans"] = np.array([len(gold) for gold, _ in pairs], dtype=np.float64)
        out["spans"] = np.array([len(found) for _, found in pairs], dtype=np.float64)
        out["right_spans"] = np.array([len(a & b) for a, b in pairs], dtype=np.float64)
    if compared.proba is not None:
        out |= _sums_of_probabilities(compared, compared.proba)
    if compared.log_gold is not None:
        out |= _split("joint_nll", -compared.log_gold)
    return out


def _sums_of_probabilities(compared: Comparison, proba: Floats) -> dict[str, Floats]:
    graded, right = compared.graded, compared.right
    t = np.flatnonzero(graded)
    gold, confidence = compared.gold_codes[t], proba[t, compared.codes[t]]
    p = proba[t, gold]
    nll, squares = np.zeros(len(graded)), np.zeros(len(graded))
    with np.errstate(divide="ignore"):
        nll[t] = -np.log(p)
    # |p - onehot|^2 = |p|^2 - 2 p_gold + 1
    squares[t] = (proba[t] ** 2).sum(axis=1) - 2 * p + 1
    gap = np.zeros((len(graded), N_BINS))
    gap[t, bin_of(confidence)] = right[t] - confidence
    return {
        "graded": compared.in_row(graded),
        **_split("nll", compared.in_row(nll)),
        "squares": compared.in_row(squares),
        "gap": compared.in_row(gap),
    }


def _split(name: str, values: Floats) -> dict[str, Floats]:
    """Finite values, and apart from them marks of infinite ones: 0 times infinity is NaN."""
    infinite = np.isinf(values)
    return {name: np.where(infinite, 0.0, values), f"{name}_infinite": infinite.astype(np.float64)}


def scores(total: dict[str, Floats]) -> dict[str, Floats]:
    """The scores of totals, also of many resamples: arrays of any shape, one more axis for bins.

    0/0 is nan for shares, and 0 for precision, recall and F1, as in `seqfield.metrics`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        out = {
            "token_accuracy": total["right"] / total["known"],
            "sequence_accuracy": total["exact"] / total["labelled"],
        }
        if "spans" in total:
            right, gold, found = (total[k] for k in ("right_spans", "gold_spans", "spans"))
            out["span_precision"] = right / np.maximum(found, 1)
            out["span_recall"] = right / np.maximum(gold, 1)
            out["span_f1"] = 2 * right / np.maximum(gold + found, 1)
        if "graded" in total:
            # ECE = sum_b |right_b - confidence_b| / N, in each bin the sums of both
            out["nll_per_token"] = _whole("nll", total) / total["graded"]
            out["ece"] = np.abs(total["gap"]).sum(axis=-1) / total["graded"]
            out["brier"] = total["squares"] / total["graded"]
        if "joint_nll" in total:
            out["joint_nll_per_sequence"] = _whole("joint_nll", total) / total["labelled"]
    return out


def _whole(name: str, total: dict[str, Floats]) -> Floats:
    return np.where(total[f"{name}_infinite"] > 0, np.inf, total[name])


def intervals(compared: Comparison, n_boot: int = 1000, random_state: int = 0) -> dict[str, Score]:
    """Every score with the 2.5 % and 97.5 % quantiles of ``n_boot`` resamples of the sequences.

    The calibration error is biased upwards in a sample, and in a resample once more. So its
    quantiles are mirrored at the score (the basic bootstrap) and cut at 0.

    Costs n_boot x n random numbers and one product (n_boot, n) x (n, K), K about 30.
    """
    number("n_boot", n_boot, low=0, whole=True)
    parts = sums(compared)
    values = scores({name: part.sum(axis=0) for name, part in parts.items()})
    if len(compared.gold) < 2:  # resamples of one sequence are all equal
        n_boot = 0
    drawn = resampled(parts, n_boot, np.random.default_rng(random_state))
    out = {}
    for name, value in values.items():
        found = drawn[name][~np.isnan(drawn[name])]
        # order statistics, because infinite scores cannot be interpolated
        ends = np.quantile(found, LEVELS, method="inverted_cdf") if len(found) else (np.nan, np.nan)
        low, high = map(float, ends)
        if name == "ece":
            low, high = (max(0.0, 2 * float(value) - end) for end in (high, low))
        out[name] = Score(float(value), low, high)
    return out


def resampled(
    parts: dict[str, Floats], n_boot: int, random: np.random.Generator
) -> dict[str, Floats]:
    """The scores (n_boot,) of sets of n sequences drawn from the n with replacement."""
    n = len(parts["known"])
    flat = {name: part.reshape(n, -1) for name, part in parts.items()}
    matrix = np.hstack(list(flat.values()))
    cuts = np.cumsum([part.shape[1] for part in flat.values()])[:-1]
    blocks, step = [np.empty((0, matrix.shape[1]))], max(1, HELD // n)
    for first in range(0, n_boot, step):
        size = min(step, n_boot - first)
        row = np.arange(size)[:, None] * n
        weights = np.bincount(
            (random.integers(n, size=(size, n)) + row).ravel(), minlength=size * n
        )
        blocks.append(weights.reshape(size, n).astype(np.float64) @ matrix)
    split = zip(parts, np.split(np.vstack(blocks), cuts, axis=1), strict=True)
    return scores({k: part if parts[k].ndim > 1 else part[:, 0] for k, part in split})
