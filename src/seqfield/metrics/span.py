"""Precision, recall and F1 of whole spans, as the CoNLL script conlleval counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from seqfield.data.schemes import Scheme, Span, spans
from seqfield.metrics.token import Labellings, labelled


class SpanScores(NamedTuple):
    """Scores and counts of spans; `by_type` holds them for each type, with an empty `by_type`."""

    precision: float
    recall: float
    f1: float
    n_true: int
    n_pred: int
    n_correct: int
    by_type: dict[str, SpanScores]


def _scores(counts: Iterable[int], by_type: dict[str, SpanScores]) -> SpanScores:
    n_true, n_pred, n_correct = counts
    # max(..., 1): 0/0 counts as 0
    precision, recall = n_correct / max(n_pred, 1), n_correct / max(n_true, 1)
    f1 = 2 * n_correct / max(n_true + n_pred, 1)
    return SpanScores(precision, recall, f1, n_true, n_pred, n_correct, by_type)


def span_scores(
    y_true: Labellings, y_pred: Labellings, scheme: str | Scheme | None = "BIO"
) -> SpanScores:
    """Precision, recall and F1 of predicted spans, in all and by type.

    A span is right if its type, its start and its end are right. A missing label counts as O. Give
    the label scheme as `scheme`, or None if the labels may be of any scheme.

    >>> scores = span_scores([["B-NP", "I-NP", "B-VP"]], [["B-NP", "B-NP", "B-VP"]])
    >>> scores.n_true, scores.n_pred, scores.n_correct, scores.by_type["VP"].f1
    (2, 3, 1, 1.0)
    """
    gold: list[str | None] = []
    guess: list[str | None] = []
    for _, true, pred in labelled(y_true, y_pred):
        # a None between sequences ends every span, so one pass reads all sequences
        gold += [*true, None]
        guess += [*pred, None]
    found: list[set[Span]] = [set(spans(labels, scheme)) for labels in (gold, guess)]
    counts = [Counter(kind for kind, _, _ in part) for part in (*found, found[0] & found[1])]
    by_type = {
        kind: _scores((count[kind] for count in counts), by_type={})
        for kind in sorted(counts[0] | counts[1])
    }
    return _scores((count.total() for count in counts), by_type)


def span_f1(y_true: Labellings, y_pred: Labellings, scheme: str | Scheme | None = "BIO") -> float:
    """F1 of the predicted spans; 0 if there are no gold and no predicted spans.

    >>> span_f1([["B-NP", "I-NP", "O"]], [["B-NP", "I-NP", "B-VP"]])
    0.6666666666666666
    """
    return span_scores(y_true, y_pred, scheme).f1
