"""How far predicted probabilities can be trusted.

`proba` is a list of (T_i, S) arrays with one column for each label of `classes`. Some functions
take `labels`, the predicted labels. The confidence of a token is then the probability of its
predicted label; without `labels` it is the largest probability of the token. Tokens without a gold
label, or without a predicted one, are skipped.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqfield.errors import InputError, LabelError
from seqfield.metrics.token import Labellings, labelled, share

FloatArray = NDArray[np.float64]

_BIN = np.dtype([("confidence", np.float64), ("accuracy", np.float64), ("count", np.int64)])


class CoverageCurve(NamedTuple):
    """For each threshold: the share of tokens kept (coverage), the precision on them, and the
    threshold, which is the least confidence kept."""

    coverage: FloatArray
    precision: FloatArray
    threshold: FloatArray


class _Graded(NamedTuple):
    """The tokens with a gold label: its column, the probabilities, and the predicted column."""

    true: NDArray[np.int64]
    proba: FloatArray
    pred: NDArray[np.int64]

    @property
    def confidence(self) -> FloatArray:
        return self.proba[np.arange(len(self.pred)), self.pred]


def _graded(
    y_true: Labellings, proba: Labellings, classes: Any, labels: Labellings | None = None
) -> _Graded:
    place: dict[Hashable, int] = {label: k for k, label in enumerate(classes)}

    def columns(i: int, row: Iterable[Hashable]) -> list[int]:
        found = []
        for t, label in enumerate(row):
            if label is not None and label not in place:
                raise LabelError(f"sequence {i}, position {t}: {label!r} is not among the classes")
            found.append(-1 if label is None else place[label])
        return found

    true: list[int] = []
    blocks = [np.empty((0, len(place)))]
    for i, row, block in labelled(y_true, proba):
        blocks.append(np.asarray(block, dtype=np.float64))
        if blocks[-1].shape != (len(row), len(place)):
            raise LabelError(
                f"sequence {i}: probabilities of shape {blocks[-1].shape}, "
                f"expected {(len(row), len(place))}"
            )
        true += columns(i, row)
    gold, stacked = np.array(true, dtype=np.int64), np.concatenate(blocks)
    if labels is not None:
        chosen = [k for i, _, row in labelled(y_true, labels) for k in columns(i, row)]
        pred = np.array(chosen, dtype=np.int64)
    else:
        pred = stacked.argmax(axis=1)
    keep = (gold >= 0) & (pred >= 0)
    return _Graded(gold[keep], stacked[keep], pred[keep])


def token_nll(y_true: Labellings, proba: Labellings, classes: Any, *, mean: bool = False) -> float:
    """Negative log-likelihood of tokens: the sum of -log p(gold label), or its mean.

    >>> round(token_nll([["a", "b"]], [[[0.5, 0.5], [0.75, 0.25]]], ["a", "b"]), 12)
    2.07944154168
    """
    true, p, _ = _graded(y_true, proba, classes)
    with np.errstate(divide="ignore"):
        total = joint_nll(np.log(p[np.arange(len(true)), true]))
    return share(total, len(true)) if mean else total


def joint_nll(log_likelihoods: ArrayLike) -> float:
    """Minus the sum of the log-likelihoods of whole sequences.

    >>> joint_nll([-1.5, -2.5])
    4.0
    """
    return float(0.0 - np.sum(np.asarray(log_likelihoods, dtype=np.float64)))


def brier(y_true: Labellings, proba: Labellings, classes: Any) -> float:
    """Brier score: mean squared distance of probabilities and one-hot gold label; nan if no tokens.

    >>> brier([["a", "b"]], [[[1.0, 0.0], [0.5, 0.5]]], ["a", "b"])
    0.25
    """
    true, gap, _ = _graded(y_true, proba, classes)
    gap[np.arange(len(true)), true] -= 1.0
    return share((gap**2).sum(), len(true))


def reliability(
    y_true: Labellings,
    proba: Labellings,
    classes: Any,
    n_bins: int = 15,
    labels: Labellings | None = None,
) -> NDArray[np.void]:
    """Reliability diagram: mean confidence, accuracy and count in bins of the confidence.

    Bins are (lower, upper], all of the same width. `n_bins` (at least 1) is their number: use fewer
    for few tokens. The result is a structured array of `n_bins` rows with the fields confidence,
    accuracy and count; the first two are nan in an empty bin.

    >>> bins = reliability([["a", "b"]], [[[0.8, 0.2], [0.9, 0.1]]], ["a", "b"], n_bins=2)
    >>> bins["count"], bins["accuracy"]
    (array([0, 2]), array([nan, 0.5]))
    """
    graded = _graded(y_true, proba, classes, labels)
    return _bins(graded.confidence, graded.true == graded.pred, n_bins)


def reliability_by_label(
    y_true: Labellings, proba: Labellings, classes: Any, n_bins: int = 15
) -> dict[Hashable, NDArray[np.void]]:
    """Reliability of each label: bins of its own probability, over all labelled tokens.

    This is `reliability` with two changes. ``confidence`` is the mean probability of the label,
    even if another label is more probable. ``accuracy`` is the share of tokens with this gold
    label.

    >>> bins = reliability_by_label([["a", "b"]], [[[0.8, 0.2], [0.9, 0.1]]], ["a", "b"], 2)
    >>> bins["b"]["count"], bins["b"]["accuracy"]
    (array([2, 0]), array([0.5, nan]))
    """
    graded = _graded(y_true, proba, classes)
    return {
        label: _bins(graded.proba[:, k], graded.true == k, n_bins)
        for k, label in enumerate(classes)
    }


def _bins(confidence: FloatArray, right: NDArray[np.bool_], n_bins: int) -> NDArray[np.void]:
    """Mean confidence, share of right labels and count, in bins of equal width."""
    if n_bins < 1:
        raise InputError(f"n_bins must be at least 1, got {n_bins}")
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    place = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(place, minlength=n_bins)
    bins = np.empty(n_bins, dtype=_BIN)
    bins["count"] = count
    for name, value in (("confidence", confidence), ("accuracy", right)):
        total = np.bincount(place, weights=value, minlength=n_bins)
        bins[name] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return bins


def ece(
    y_true: Labellings,
    proba: Labellings,
    classes: Any,
    n_bins: int = 15,
    labels: Labellings | None = None,
) -> float:
    """Expected calibration error: the mean of |accuracy - confidence| over bins.

    Bins are those of `reliability`, and each has the weight of its count. The result is nan if
    there are no tokens.

    >>> round(ece([["a", "b"]], [[[0.8, 0.2], [0.9, 0.1]]], ["a", "b"], n_bins=2), 12)
    0.35
    """
    bins = reliability(y_true, proba, classes, n_bins, labels)
    gap = np.abs(bins["accuracy"] - bins["confidence"]) * bins["count"]
    return share(gap[bins["count"] > 0].sum(), bins["count"].sum())


def precision_by_coverage(
    y_true: Labellings, proba: Labellings, classes: Any, labels: Labellings | None = None
) -> CoverageCurve:
    """Precision and coverage if only tokens of at least some confidence are kept.

    The curve has one point for each distinct confidence, which is the threshold. Thresholds fall
    along the curve, so the coverage rises.

    >>> curve = precision_by_coverage([["a", "b"]], [[[0.8, 0.2], [0.7, 0.3]]], ["a", "b"])
    >>> curve.coverage.tolist(), curve.precision.tolist(), curve.threshold.tolist()
    ([0.5, 1.0], [1.0, 0.5], [0.8, 0.7])
    """
    graded = _graded(y_true, proba, classes, labels)
    # np.unique sorts upwards; minus the confidence gives the falling order of the curve
    values, group = np.unique(-graded.confidence, return_inverse=True)
    kept = np.bincount(group, minlength=len(values)).cumsum()
    right = np.bincount(group, weights=graded.true == graded.pred, minlength=len(values)).cumsum()
    return CoverageCurve(kept / max(len(group), 1), right / kept, -values)
