"""The content of the report as plain data: numbers, names and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from seqfield import metrics
from seqfield.errors import LabelError
from seqfield.estimators._linear import Weight
from seqfield.functions import LinearFunction
from seqfield.report.columns import THRESHOLDS, drawn, level_of
from seqfield.report.comparison import Comparison, compare
from seqfield.report.intervals import N_BINS, Score, bin_of, intervals

#: group, key, name and meaning of the headline scores
HEADLINES = (
    ("Labels", "token_accuracy", "Token accuracy", "share of tokens with the right label"),
    ("Labels", "sequence_accuracy", "Sequence accuracy", "share of sequences without a mistake"),
    ("Spans", "span_f1", "Span F1", "whole spans: kind, start and end all right"),
    ("Spans", "span_precision", "Span precision", "share of the predicted spans that are right"),
    ("Spans", "span_recall", "Span recall", "share of the gold spans that were found"),
    ("Probabilities", "nll_per_token", "NLL per token", "surprise at the gold label, in nats"),
    ("Probabilities", "ece", "Calibration error", "mean gap of confidence and accuracy (ECE)"),
    ("Probabilities", "brier", "Brier score", "squared distance to the gold label"),
    ("Probabilities", "joint_nll_per_sequence", "NLL per sequence", "of the whole gold labelling"),
)
LOWER_IS_BETTER = "Probabilities"

#: number of features that are shown for each label
N_FEATURES = 12


def report_content(
    model: Any,
    X: Any,
    y: Any,
    *,
    title: str | None = None,
    scheme: str = "auto",
    n_boot: int = 1000,
    tokens: list[list[str]] | None = None,
    step: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The content of the report on ``model`` and the labelled sequences (X, y).

    Parameters
    ----------
    title : heading of the report; by default the name of the model's class
    scheme : label scheme of the spans: a name, "auto" to count spans if the labels look like spans,
        or "none"
    n_boot : number of resamples for the 95 % intervals. Raise it for steadier intervals
    tokens : the text of each token. By default it is taken from X: a word, the first column of a
        row, the first string among attributes, or else the position
    step : a function that is called with the name of each step

    A gold label that the model does not know counts as missed. Its token is left out of NLL,
    calibration error, Brier score and reliability, as in ``seqfield eval``.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("test")
    >>> model = sf.CRF(scheme="BIO").fit(X[:50], y[:50])
    >>> content = report_content(model, X[50:60], y[50:60], n_boot=10)
    >>> content["data"], content["metrics"][0]["name"]
    ({'sequences': 10, 'tokens': 55, 'labelled': 55}, 'Token accuracy')
    """
    compared = compare(model, X, y, scheme, step)
    step("intervals")
    measured = intervals(compared, n_boot)
    step("weights")
    return {
        "title": type(model).__name__ if title is None else title,
        "model": _about(model),
        "features": _features(model),
        **content_of(compared, texts(X, tokens, compared), measured),
    }


def content_of(
    compared: Comparison,
    words: list[list[str]],
    measured: dict[str, Score],
) -> dict[str, Any]:
    """The part of the content that needs no model."""
    return {
        "data": {
            "sequences": len(compared.gold),
            "tokens": len(compared.codes),
            "labelled": int(compared.known.sum()),
        },
        "labels": [str(label) for label in compared.labels],
        "n_classes": compared.n_classes,
        "has_spans": compared.has_spans,
        "metrics": [
            {
                "group": group,
                "key": key,
                "name": name,
                "meaning": meaning,
                "lower_is_better": group == LOWER_IS_BETTER,
                **measured[key]._asdict(),
            }
            for group, key, name, meaning in HEADLINES
            if key in measured
        ],
        "per_label": _per_label(compared),
        "span_types": _span_types(compared),
        "confusion": _confusion(compared),
        "reliability": _reliability(compared),
        "coverage": _coverage(compared),
        "sequences": drawn(compared, words),
    }


def texts(X: Any, tokens: list[list[str]] | None, compared: Comparison) -> list[list[str]]:
    """The text to draw for each token."""
    lengths = np.diff(compared.offsets).tolist()
    if tokens is None:
        if isinstance(X, list | tuple) and all(isinstance(row, list | tuple) for row in X):
            return [[_text(token, t) for t, token in enumerate(row)] for row in X]
        return [[str(t) for t in range(length)] for length in lengths]  # rows of numbers
    if len(tokens) != len(lengths):
        raise LabelError(f"X has {len(lengths)} sequences but tokens has {len(tokens)}")
    for i, (row, length) in enumerate(zip(tokens, lengths, strict=True)):
        if len(row) != length:
            raise LabelError(f"sequence {i}: X has {length} tokens but tokens has {len(row)}")
    return [[str(token) for token in row] for row in tokens]


def _text(token: Any, t: int) -> str:
    if isinstance(token, str):
        return token
    if not isinstance(token, list | tuple | dict | set | frozenset):
        return str(t)
    parts = token.values() if isinstance(token, dict) else token
    if isinstance(parts, set | frozenset):
        parts = sorted(parts, key=str)
    return next((part for part in parts if isinstance(part, str)), str(t))


def settings(model: Any) -> dict[str, Any]:
    """The arguments of a model that differ from their defaults.

    >>> import seqfield as sf
    >>> settings(sf.CRF(c2=0.5))
    {'c2': 0.5}
    """
    plain = type(model)().get_params(deep=False)
    own = model.get_params(deep=False)
    return {k: v for k, v in own.items() if repr(v) != repr(plain[k])}


def _about(model: Any) -> dict[str, Any]:
    return {
        "class": type(model).__name__,
        "settings": {name: repr(value) for name, value in settings(model).items()},
        "features": f"{model.n_features_in_:,} by {type(model.features_).__name__}",
        "probabilities": model.has_probabilities,
        "joint": bool(model.joint),
    }


def _features(model: Any) -> dict[str, Any] | None:
    """The weights (or cliques) that speak most for and against each label; None without any."""
    if isinstance(getattr(model, "function_", None), LinearFunction):
        # all weights at once, the largest first: a call for each label would name every feature
        # again
        what, ordered = "feature", model.top_weights(len(model.theta_))
    elif hasattr(model, "cliques_"):
        what, ordered = "training token", _cliques(model)
    else:
        return None
    names = model.classes_.tolist()
    high, low = _first(ordered, names), _first(reversed(ordered), names)
    rows = [
        {
            "high": [[w.feature, float(f"{w.value:.4g}")] for w in high[name] if w.value > 0],
            "low": [[w.feature, float(f"{w.value:.4g}")] for w in low[name] if w.value < 0],
        }
        for name in names
    ]
    return {"what": what, "labels": rows} if any(r["high"] or r["low"] for r in rows) else None


def _first(weights: Iterable[Weight], names: list[Any]) -> dict[Any, list[Weight]]:
    """The first few weights of each label."""
    out: dict[Any, list[Weight]] = {name: [] for name in names}
    missing = len(names)
    for weight in weights:
        own = out[weight.label]
        if len(own) < N_FEATURES:
            own.append(weight)
            missing -= len(own) == N_FEATURES
            if not missing:
                break
    return out


def _cliques(model: Any) -> list[Weight]:
    """Chosen vertex cliques, named by their place in the training data; the largest first."""
    found = [
        Weight(c.labels[0], f"sequence {c.place[0]}, token {c.place[1]}", c.coefficient)
        for c in model.cliques_
        if len(c.labels) == 1
    ]
    return sorted(found, key=lambda weight: -weight.value)


def _per_label(compared: Comparison) -> list[dict[str, Any]]:
    found = metrics.per_label(compared.gold, compared.predicted)
    place = {label: k for k, label in enumerate(compared.labels)}
    rows = [{"label": place[label], **scores._asdict()} for label, scores in found.items()]
    if compared.confidence is not None:
        # mean confidence over the labelled tokens for which the label was predicted
        codes, size = compared.codes[compared.known], len(compared.labels)
        count = np.bincount(codes, minlength=size)
        total = np.bincount(codes, weights=compared.confidence[compared.known], minlength=size)
        for row in rows:
            k = row["label"]
            row["confidence"] = metrics.token.share(total[k], count[k])
    return rows


def _span_types(compared: Comparison) -> list[dict[str, Any]] | None:
    if not compared.has_spans:
        return None
    labelled = [row if any(v is not None for v in row) else None for row in compared.gold]
    found = metrics.span_scores(labelled, compared.predicted, compared.scheme)
    return [
        {
            "kind": kind,
            "precision": s.precision,
            "recall": s.recall,
            "f1": s.f1,
            "support": s.n_true,
        }
        for kind, s in found.by_type.items()
    ]


def _confusion(compared: Comparison) -> list[list[int]]:
    """(gold, predicted, count) where the count is not 0."""
    known, size = compared.known, len(compared.labels)
    counts = np.bincount(compared.gold_codes[known] * size + compared.codes[known])
    cells = np.flatnonzero(counts)
    rows: list[list[int]] = np.column_stack([*divmod(cells, size), counts[cells]]).tolist()
    return rows


def _reliability(compared: Comparison) -> dict[str, Any] | None:
    """(confidence, accuracy, count) of each bin: for all graded tokens, and by predicted label."""
    if compared.confidence is None:
        return None
    graded = compared.graded
    confidence, right = compared.confidence[graded], compared.right[graded].astype(np.float64)
    cell = compared.codes[graded] * N_BINS + bin_of(confidence)
    size = compared.n_classes * N_BINS
    count, sure, good = (
        np.bincount(cell, weights, size).reshape(-1, N_BINS)
        for weights in (None, confidence, right)
    )
    return {
        "overall": _bins(count.sum(axis=0), sure.sum(axis=0), good.sum(axis=0)),
        "by_label": [_bins(*rows) for rows in zip(count, sure, good, strict=True)],
    }


def _bins(count: Any, confidence: Any, right: Any) -> list[list[float] | None]:
    return [
        [round(float(c / n), 6), round(float(r / n), 6), int(n)] if n else None
        for n, c, r in zip(count, confidence, right, strict=True)
    ]


def _coverage(compared: Comparison) -> dict[str, Any] | None:
    """For each threshold: labelled tokens of at least this confidence, and how many are right.

    A token whose gold label the model does not know counts here; it is wrong at any threshold.
    """
    if compared.confidence is None:
        return None
    known = compared.known
    level = level_of(compared.confidence[known])

    def at_least(weights: Any) -> list[int]:
        counts = np.bincount(level, weights, len(THRESHOLDS))
        above: list[int] = counts[::-1].cumsum()[::-1].astype(np.int64).tolist()
        return above

    return {
        "thresholds": THRESHOLDS.tolist(),
        "kept": at_least(None),
        "right": at_least(compared.right[known]),
    }
