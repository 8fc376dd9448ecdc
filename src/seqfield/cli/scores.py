"""The scores of a model on labelled sequences, and their tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from seqfield.cli.screen import facts, fixed, show, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from seqfield.metrics import SpanScores

#: single scores: key and name
HEADLINES = (
    ("token_accuracy", "token accuracy"),
    ("sequence_accuracy", "sequence accuracy"),
    ("transition_accuracy", "transition accuracy"),
    ("joint_nll_per_sequence", "joint NLL per sequence"),
    ("nll_per_token", "NLL per token"),
    ("ece", "calibration error (ECE)"),
    ("brier", "Brier score"),
)


def scores(model: Any, X: Any, y: Any, scheme: str = "auto") -> dict[str, Any]:
    """Every score of the eval command, by name.

    ``scheme`` is that of the spans: a name, "auto" to count spans if the labels look like such,
    or "none". Confidence is the probability of the predicted label. A label that the model does not
    know counts as missed, and its token is left out of what is made of probabilities.
    """
    from seqfield import metrics

    known = set(model.classes_.tolist())
    met = {label for row in y for label in row} - {None}
    judged = [[label if label in known else None for label in row] for row in y]
    predicted: list[Any] = []
    proba: list[Any] = []
    joint = 0.0
    for said in model.distributions(X):
        own = judged[len(predicted) : len(predicted) + len(said)]
        predicted += said.best()
        if model.has_probabilities:
            proba += said.marginals()
            joint += metrics.joint_nll(said.log_prob(own)) if model.joint else 0.0
    spans = _spans(y, predicted, known | met, scheme)
    return {
        "unknown_labels": sorted(met - known),
        "sequences": len(y),
        "tokens": sum(map(len, y)),
        "token_accuracy": metrics.token_accuracy(y, predicted),
        "sequence_accuracy": 1.0 - metrics.sequence_error(y, predicted),
        "transition_accuracy": metrics.transition_accuracy(y, predicted),
        **_of_probabilities(model, judged, predicted, proba, joint),
        "spans": spans and _plain(spans) | {"by_type": _plain_all(spans.by_type)},
        "labels": _plain_all(metrics.per_label(y, predicted)),
    }


def _of_probabilities(
    model: Any, y: Any, predicted: Any, proba: Any, joint: float
) -> dict[str, float]:
    """Scores that need probabilities; none for a model without them."""
    from seqfield import metrics

    if not model.has_probabilities:
        return {}
    whole = {"joint_nll_per_sequence": joint / len(y)} if model.joint else {}
    return whole | {
        "nll_per_token": metrics.token_nll(y, proba, model.classes_, mean=True),
        "ece": metrics.ece(y, proba, model.classes_, labels=predicted),
        "brier": metrics.brier(y, proba, model.classes_),
    }


def _spans(y: Any, predicted: Any, labels: set[Any], scheme: str) -> SpanScores | None:
    from seqfield.data.schemes import NO_SPANS, reading
    from seqfield.metrics import span_scores

    how = reading(list(labels), scheme)
    return None if how == NO_SPANS else span_scores(y, predicted, how)


def _plain(values: Any) -> dict[str, Any]:
    """A named tuple of numbers as a dict."""
    return {name: value for name, value in values._asdict().items() if name != "by_type"}


def _plain_all(groups: dict[Any, Any]) -> dict[str, dict[str, Any]]:
    return {str(name): _plain(values) for name, values in groups.items()}


def as_json(report: dict[str, Any]) -> str:
    """The scores as JSON; a number that JSON has no word for is null.

    >>> as_json({"a": 0.5, "b": {"c": float("nan")}})
    '{"a": 0.5, "b": {"c": null}}'
    """
    import json

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(report), ensure_ascii=False, allow_nan=False)


def show_scores(screen: Console, report: dict[str, Any], title: str) -> None:
    """Print the scores as tables."""
    size = f"{report['sequences']:,} sequences, {report['tokens']:,} tokens"
    rows = [(name, fixed(report[key])) for key, name in HEADLINES if key in report]
    show(screen, f"{title}: {size}", facts(rows))
    if report["spans"] is not None:
        by_type = {"all": report["spans"]} | report["spans"]["by_type"]
        show(screen, "Spans", _by_name("type", by_type, "n_true"))
    show(screen, "Labels", _by_name("label", report["labels"], "support"))
    if report["unknown_labels"]:
        names = ", ".join(report["unknown_labels"])
        screen.print(f"Labels the model does not know count as missed: {names}")


def _by_name(kind: str, groups: dict[str, Any], count: str) -> Table:
    numbers = ("precision", "recall", "F1", "gold")
    out = table(kind, *numbers, numbers=numbers)
    for name, values in groups.items():
        cells = [fixed(values[key]) for key in ("precision", "recall", "f1")]
        out.add_row(name or "(no type)", *cells, f"{values[count]:,}")
    return out
