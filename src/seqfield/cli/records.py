"""What commands write of a labelled sequence: records, and the formats to write them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from seqfield.cli.files import ABSTAINED

if TYPE_CHECKING:
    from seqfield.data.annotation import Marked


class Format(StrEnum):
    """Formats of the output."""

    CONLL = "conll"
    JSONL = "jsonl"
    LABELSTUDIO = "labelstudio"
    DOCCANO = "doccano"


class Record(NamedTuple):
    """Labels of a sequence (None where the model abstains) with the probability of each, its spans
    and the probability of all labels together; None for what the model cannot tell.

    Labels that are not of a span scheme make one span for each token.
    """

    labels: list[str | None]
    probabilities: list[float] | None
    spans: list[Marked]
    probability: float | None


def records_of(model: Any, X: Any, decoding: str, least: float | None = None) -> list[Record]:
    """The records of sequences, which are scored once.

    With ``least`` the model abstains where it is less sure: from a span, all of it, by the exact
    probability of the span; from a token outside of spans by that of its label.
    """
    import numpy as np

    from seqfield.data.annotation import Marked

    said = model.distribution(X)
    labels, tells = said.best(decoding), model.has_probabilities
    # to abstain takes probabilities: a model that has none says so
    proba: Any = said.marginals() if tells or least is not None else [None] * len(labels)
    marked = _spans(said, labels, decoding, tells and (model.joint or least is not None))
    whole: Any = [None] * len(labels)
    if tells and model.joint:
        whole = np.exp(said.log_prob(labels)).tolist()
    place = {label: k for k, label in enumerate(model.classes_.tolist())}
    out = []
    for i, names in enumerate(labels):
        row: list[str | None] = list(map(str, names))
        own = None
        if proba[i] is not None:
            own = proba[i][np.arange(len(names)), [place[name] for name in names]].tolist()
        found = (
            [Marked(name, t, t + 1, own and own[t]) for t, name in enumerate(map(str, names))]
            if marked is None
            else [Marked(*span) for span in marked[i]]
        )
        if least is not None:
            row, found = _abstained(row, own, found, least)
        out.append(Record(row, own, found, whole[i]))
    return out


def _spans(said: Any, labels: Any, decoding: str, exact: bool) -> Any:
    """The spans of each sequence, or None if the labels are not of a span scheme."""
    from seqfield.data.schemes import NO_SPANS, reading, spans

    if reading(said.labels.names, "auto") == NO_SPANS:
        return None
    if exact:
        return said.spans(decoding)
    return [spans(row) for row in labels]


def _abstained(
    row: list[str | None], own: Any, found: list[Marked], least: float
) -> tuple[list[str | None], list[Marked]]:
    """Labels and spans without those that are less probable."""
    p = list(own)
    for span in found:
        p[span.start : span.end] = [span.probability] * (span.end - span.start)
    kept = [label if q >= least else None for label, q in zip(row, p, strict=True)]
    return kept, [span for span in found if (span.probability or 0.0) >= least]


def cells(record: Record, confidence: bool) -> list[tuple[str, ...]]:
    """The columns that follow a token's own: its label and, if asked for, its probability."""
    names = [ABSTAINED if label is None else label for label in record.labels]
    if not confidence or record.probabilities is None:
        return [(name,) for name in names]
    return [(name, f"{p:.4f}") for name, p in zip(names, record.probabilities, strict=True)]


def as_record(rows: list[tuple[str, ...]], record: Record) -> dict[str, Any]:
    """A record as a JSON object."""
    return {
        "tokens": [row[0] for row in rows],
        "labels": record.labels,
        "probabilities": record.probabilities,
        "spans": [span._asdict() for span in record.spans],
        "probability": record.probability,
    }


def json_lines(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """One line for each record."""
    from seqfield.data.annotation import dumped

    for record in records:
        yield f"{dumped(record)}\n"


def json_list(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A JSON list with one line for each record."""
    from seqfield.data.annotation import dumped

    yield "["
    mark = "\n"
    for record in records:
        yield f"{mark}{dumped(record)}"
        mark = ",\n"
    yield "\n]\n"


def annotated(
    form: Format, X: Any, marked: list[list[Marked]], scores: Any, meta: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Records for an annotation tool."""
    from seqfield.data.annotation import doccano_records, labelstudio_tasks

    if form is Format.DOCCANO:
        return doccano_records(X, marked, meta)
    known = None if any(score is None for score in scores) else scores
    return labelstudio_tasks(X, marked, meta, known)


def features_of(model: Any, X: Any) -> Any:
    """The columns that the model uses: a gold label that may follow them is left out."""
    need = model.features_.n_columns_
    return [[row[:need] for row in rows] for rows in X]
