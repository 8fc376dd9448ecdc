"""Scores that compare labels token by token.

In this package, `y_true` and `y_pred` are lists of label lists. A gold label that is not known
(None or a set of candidates) is skipped. A sequence whose labels are None is skipped too. A
predicted None (an abstention) is never right.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics
from numpy.typing import NDArray

from seqfield.errors import LabelError

Labellings = Sequence[Any]


class LabelScores(NamedTuple):
    """Precision, recall and F1 of one label; support is the number of its gold tokens."""

    precision: float
    recall: float
    f1: float
    support: int


class _Tokens(NamedTuple):
    """All tokens: gold and predicted labels as indices into `labels`, -1 for none."""

    true: NDArray[np.int64]
    pred: NDArray[np.int64]
    sequence: NDArray[np.int64]
    labels: list[Hashable]

    @property
    def known(self) -> NDArray[np.bool_]:
        return np.greater_equal(self.true, 0)

    @property
    def right(self) -> NDArray[np.bool_]:
        return self.known & np.equal(self.true, self.pred)


def labelled(y_true: Labellings, y_pred: Labellings) -> Iterator[tuple[int, Any, Any]]:
    """Number, gold labels and predictions of each labelled sequence; lengths are checked.

    >>> list(labelled([["a"], None], [["b"], ["c"]]))
    [(0, ['a'], ['b'])]
    """
    if len(y_true) != len(y_pred):
        raise LabelError(f"{len(y_true)} labelled sequences, but {len(y_pred)} predicted ones")
    for i, (true, pred) in enumerate(zip(y_true, y_pred, strict=True)):
        if true is None:
            continue
        if pred is None or len(true) != len(pred):
            found = "none" if pred is None else len(pred)
            raise LabelError(f"sequence {i}: {len(true)} gold labels, but {found} predicted")
        yield i, [None if isinstance(label, set) else label for label in true], pred


def share(part: float, whole: float) -> float:
    """part / whole, or nan if whole is 0.

    >>> share(1, 4), share(0, 0)
    (0.25, nan)
    """
    return float(part / whole) if whole else float("nan")


def _tokens(y_true: Labellings, y_pred: Labellings) -> _Tokens:
    place: dict[Hashable, int] = {None: -1}
    rows: list[tuple[int, int, int]] = []
    for i, true, pred in labelled(y_true, y_pred):
        for pair in zip(true, pred, strict=True):
            a, b = (place.setdefault(label, len(place) - 1) for label in pair)
            rows.append((a, b, i))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return _Tokens(columns[0], columns[1], columns[2], labels=list(place)[1:])


def _numbered(
    y_true: Labellings, y_pred: Labellings, labels: Sequence[Hashable] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Hashable]]:
    """Gold and predicted labels of known tokens as indices into `labels` (default: all, sorted).

    scikit-learn refuses tuples and labels of mixed types, but it takes these indices.
    """
    tokens = _tokens(y_true, y_pred)
    true, pred = tokens.true[tokens.known], tokens.pred[tokens.known]
    if labels is None:
        met = [tokens.labels[k] for k in np.union1d(true, pred) if k >= 0]
        try:
            labels = sorted(met)
        except TypeError:
            labels = sorted(met, key=repr)
    place = {label: k for k, label in enumerate(labels)}
    renumber = np.array([*(place.get(label, -1) for label in tokens.labels), -1], dtype=np.int64)
    return renumber[true], renumber[pred], list(labels)


def token_accuracy(y_true: Labellings, y_pred: Labellings) -> float:
    """Share of the labelled tokens whose prediction is right; nan if no token is labelled.

    >>> token_accuracy([["a", "b"], ["a", None]], [["a", "a"], ["a", "b"]])
    0.6666666666666666
    """
    tokens = _tokens(y_true, y_pred)
    return share(tokens.right.sum(), tokens.known.sum())


def token_error(y_true: Labellings, y_pred: Labellings) -> float:
    """Hamming error: share of the labelled tokens predicted wrongly; nan if no token is labelled.

    >>> token_error([["a", "b"], ["a", "a"]], [["a", "a"], ["a", "a"]])
    0.25
    """
    tokens = _tokens(y_true, y_pred)
    return share((tokens.known & ~tokens.right).sum(), tokens.known.sum())


def sequence_error(y_true: Labellings, y_pred: Labellings) -> float:
    """Share of sequences with at least one wrong token, among sequences with a labelled token.

    The result is nan if no token is labelled.

    >>> sequence_error([["a", "b"], ["a", "a"]], [["a", "a"], ["a", "a"]])
    0.5
    """
    tokens = _tokens(y_true, y_pred)
    wrong = tokens.sequence[tokens.known & ~tokens.right]
    return share(np.unique(wrong).size, np.unique(tokens.sequence[tokens.known]).size)


def transition_accuracy(y_true: Labellings, y_pred: Labellings) -> float:
    """Share of label changes that are right: both neighbours of a change must be right.

    A change is a pair of neighbours with different gold labels. The result is nan if there is none.

    >>> transition_accuracy([["a", "b", "b", "a"]], [["a", "b", "a", "a"]])
    0.5
    """
    tokens = _tokens(y_true, y_pred)
    true, right, known, sequence = tokens.true, tokens.right, tokens.known, tokens.sequence
    changes = known[:-1] & known[1:] & (sequence[:-1] == sequence[1:]) & (true[:-1] != true[1:])
    return share((changes & right[:-1] & right[1:]).sum(), changes.sum())


def confusion_matrix(
    y_true: Labellings, y_pred: Labellings, labels: Sequence[Hashable] | None = None
) -> NDArray[np.int64]:
    """Counts of gold label (row) against predicted label (column).

    Rows and columns are in the order of `labels`; without it, all labels that occur, sorted. Tokens
    with a label that is not in `labels` are left out.

    >>> confusion_matrix([["a", "b", "b"]], [["a", "a", "b"]])
    array([[1, 0],
           [1, 1]])
    """
    true, pred, order = _numbered(y_true, y_pred, labels)
    listed = (true >= 0) & (pred >= 0)
    if not listed.any():  # scikit-learn refuses empty input
        return np.zeros((len(order), len(order)), dtype=np.int64)
    counts: NDArray[np.int64] = sklearn.metrics.confusion_matrix(
        true[listed], pred[listed], labels=np.arange(len(order))
    )
    return counts


def per_label(y_true: Labellings, y_pred: Labellings) -> dict[Hashable, LabelScores]:
    """Precision, recall, F1 and support of every label that occurs; 0/0 counts as 0.

    >>> per_label([["a", "b", "b"]], [["a", "a", "b"]])["b"]
    LabelScores(precision=1.0, recall=0.5, f1=0.666..., support=2)
    """
    true, pred, order = _numbered(y_true, y_pred)
    if not order:  # scikit-learn refuses empty input
        return {}
    scores = sklearn.metrics.precision_recall_fscore_support(
        true, pred, labels=np.arange(len(order)), zero_division=0.0
    )
    rows = zip(*(column.tolist() for column in scores), strict=True)
    return {
        label: LabelScores(p, r, f, int(n)) for label, (p, r, f, n) in zip(order, rows, strict=True)
    }
