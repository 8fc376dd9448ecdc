"""Writing files for annotation tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from seqfield.data.annotation._text import NAMELESS, Text
from seqfield.data.schemes import NO_SPANS, reading, spans
from seqfield.data.text import Target, write_text
from seqfield.errors import InputError
from seqfield.sequences import listed


class Marked(NamedTuple):
    """A span, ``end`` exclusive, and its probability if it is a guess."""

    kind: str
    start: int
    end: int
    probability: float | None = None


def write_doccano(target: Target, X: Any, y: Any = None, *, meta: Any = None) -> None:
    """Write sequences for doccano's sequence labelling (import format JSONL).

    Parameters
    ----------
    target : path (written in one step, or left as it was) or open text file
    X : sequences of words or of token rows, as `read_conll` gives
    y : for each sequence its labels, or its spans (kind, start, end) as `predict_spans` gives, or
        None. doccano does not tell a sequence without spans from one without labels
    meta : for each sequence a dict of more JSON values that the tool shall keep

    >>> import sys
    >>> write_doccano(sys.stdout, [["Ana", "Ruiz", "sang"]], [["B-PER", "I-PER", "O"]])
    {"id": 0, "text": "Ana Ruiz sang", "label": [[0, 8, "PER"]], "tokens": ["Ana", "Ruiz", "sang"]}
    """
    records = doccano_records(X, y, meta)
    write_text(target, "".join(f"{dumped(record)}\n" for record in records))


def write_labelstudio(
    target: Target,
    X: Any,
    y: Any = None,
    *,
    scores: Any = None,
    model_version: str = "seqfield",
    from_name: str = "label",
    to_name: str = "text",
    meta: Any = None,
) -> None:
    """Write sequences as tasks of Label Studio, labels as predictions that annotators start from.

    Parameters
    ----------
    target, X, y, meta : as for `write_doccano`; spans may have their probability as a fourth part.
        A sequence whose y is None has no prediction
    scores : for each sequence how sure its prediction is, by which the tool can sort
    model_version : a name for whoever made the predictions
    from_name, to_name : names of the tags ``Labels`` and ``Text`` in the labelling interface, whose
        text is ``$text``

    >>> import sys
    >>> write_labelstudio(sys.stdout, [["Ana", "sang"]], [[("PER", 0, 1, 0.9)]], scores=[0.8])
    [
    {"data": {"text": "Ana sang", "tokens": ["Ana", "sang"]}, "predictions":
    [{"model_version": "seqfield", "score": 0.8, "result": [{"id": "0-0", "from_name": "label",
    "to_name": "text", "type": "labels", "value": {"start": 0, "end": 3, "text": "Ana",
    "labels": ["PER"]}, "score": 0.9}]}]}
    ]
    """
    tasks = labelstudio_tasks(
        X, y, meta, scores, model_version=model_version, from_name=from_name, to_name=to_name
    )
    write_text(target, "[\n" + ",\n".join(map(dumped, tasks)) + "\n]\n")


def doccano_records(X: Any, y: Any = None, meta: Any = None) -> Iterator[dict[str, Any]]:
    """What `write_doccano` writes, one record for each sequence."""
    for i, (text, marked, more) in enumerate(_each(X, y, meta)):
        label = [[*text.characters(s.start, s.end), s.kind] for s in marked or []]
        yield {"id": i, "text": text.text, "label": label, "tokens": text.tokens} | more


def labelstudio_tasks(
    X: Any,
    y: Any = None,
    meta: Any = None,
    scores: Any = None,
    *,
    model_version: str = "seqfield",
    from_name: str = "label",
    to_name: str = "text",
) -> Iterator[dict[str, Any]]:
    """What `write_labelstudio` writes, one task for each sequence."""
    sure = [None] * len(X) if scores is None else [float(v) for v in scores]
    _check_size("scores", sure, X)
    for i, (text, marked, more) in enumerate(_each(X, y, meta)):
        task: dict[str, Any] = {"data": {"text": text.text, "tokens": text.tokens} | more}
        if marked is not None:
            result = []
            for k, span in enumerate(marked):
                a, b = text.characters(span.start, span.end)
                value = {"start": a, "end": b, "text": text.text[a:b], "labels": [span.kind]}
                names = {"id": f"{i}-{k}", "from_name": from_name, "to_name": to_name}
                region = names | {"type": "labels", "value": value}
                result.append(region | _unless_none("score", span.probability))
            score = _unless_none("score", sure[i])
            task["predictions"] = [{"model_version": model_version} | score | {"result": result}]
        yield task


def dumped(record: dict[str, Any]) -> str:
    """A record as one line of JSON."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"JSON cannot hold this record: {error}") from error


def _unless_none(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}


def _each(X: Any, y: Any, meta: Any) -> Iterator[tuple[Text, list[Marked] | None, dict[str, Any]]]:
    """Text, spans (None without labels) and further values of each sequence."""
    X = listed(X) if len(X) else []
    rows = [None] * len(X) if y is None else list(y)
    extra = [{}] * len(X) if meta is None else list(meta)
    _check_size("y", rows, X)
    _check_size("meta", extra, X)
    single = _labels_of_tokens(rows)
    for i, (tokens, row, more) in enumerate(zip(X, rows, extra, strict=True)):
        text = _text_of(tokens, i)
        yield text, None if row is None else _marked(row, len(text.tokens), i, single), dict(more)


def _check_size(name: str, rows: Sequence[Any], X: Any) -> None:
    if len(rows) != len(X):
        raise InputError(f"X has {len(X)} sequences but {name} has {len(rows)}")


def _text_of(tokens: Any, i: int) -> Text:
    """The words of a sequence with a space between any two."""
    rows = [(token,) if isinstance(token, str) else token for token in tokens]
    for t, row in enumerate(rows):
        strings = isinstance(row, tuple | list) and all(isinstance(v, str) for v in row)
        if not (strings and row and row[0]):
            raise InputError(
                f"sequence {i}, position {t}: no word to show to an annotator: a token must be a "
                f"string or a row of strings, got {tokens[t]!r}"
            )
    return Text.joined([row[0] for row in rows], list(tokens))


def _labels_of_tokens(rows: list[Any]) -> bool:
    """Whether there are labels, and not those of a span scheme."""
    names = dict.fromkeys(v for row in rows if row is not None for v in row if isinstance(v, str))
    return reading(list(names), "auto") == NO_SPANS


def _marked(row: Any, size: int, i: int, single: bool) -> list[Marked]:
    """The spans of one sequence, from labels or spans."""
    if isinstance(row, str):
        raise InputError(f"sequence {i}: y must be a list of labels or spans, got {row!r}")
    things = list(row)
    if all(isinstance(thing, tuple | list) for thing in things):
        return [_checked_span(thing, size, i) for thing in things]
    if len(things) != size:
        raise InputError(f"sequence {i}: X has {size} tokens but y has {len(things)} labels")
    for t, label in enumerate(things):
        if not (label is None or isinstance(label, str)):
            raise InputError(
                f"sequence {i}, position {t}: labels must be strings or None, got {label!r}"
            )
    if single:
        return [Marked(label, t, t + 1) for t, label in enumerate(things) if label is not None]
    return [Marked(kind or NAMELESS, start, end) for kind, start, end in spans(things)]


def _checked_span(span: Any, size: int, i: int) -> Marked:
    if len(span) < 3 or not isinstance(span[0], str):
        raise InputError(f"sequence {i}: a span must be (kind, start, end), got {span!r}")
    kind, start, end, p = (*span, None)[:4]
    whole = isinstance(start, int | np.integer) and isinstance(end, int | np.integer)
    if not (whole and 0 <= start < end <= size):
        raise InputError(f"sequence {i}: the span {span!r} is not within its {size} tokens")
    return Marked(kind or NAMELESS, int(start), int(end), None if p is None else float(p))
