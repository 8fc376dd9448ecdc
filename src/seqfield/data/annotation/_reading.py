"""Reading what annotation tools export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from seqfield.data.annotation._text import NAMELESS, Text
from seqfield.data.schemes import Scheme, get_scheme
from seqfield.data.text import Source, read_text
from seqfield.errors import FormatError

Labels = list[str | None]


def read_doccano(
    source: Source, *, scheme: str | None = "BIO", snap: bool = False
) -> tuple[list[list[Any]], list[Labels | None]]:
    """Read what doccano exports of a sequence labelling project (JSONL).

    Spans are taken from ``label``, ``labels`` or ``entities``, as [start, end, type] or with
    ``start_offset``, ``end_offset`` and ``label``. If the file has no
    tokens from `write_doccano`, the text is split at white space.

    Parameters
    ----------
    source : path or open file, in UTF-8
    scheme : the scheme of the labels that are made from the spans. None is for labels of single
        tokens: the label of a token is then the type of its span, and None if it has no span
    snap : True widens a span that cuts a token to the whole token. False makes it an error

    Returns
    -------
    X : list of sequences in the form that they were written in, else of one-column token rows
    y : list of label lists; None for a record without any of the keys of spans

    >>> import io
    >>> read_doccano(io.StringIO('{"text": "Ana Ruiz sang", "label": [[0, 8, "PER"]]}'))
    ([[('Ana',), ('Ruiz',), ('sang',)]], [['B-PER', 'I-PER', 'O']])
    """
    named = None if scheme is None else get_scheme(scheme)
    name, text = read_text(source, None)
    X, y = [], []
    for k, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        record = _Record(name, k, "", named, snap)
        fields = record.mapping(record.parsed(line), "the line")
        found = record.text(fields)
        key = next((key for key in ("label", "labels", "entities") if key in fields), None)
        listed = None if key is None else record.listed(fields, key)
        X.append(found.tokens)
        y.append(None if listed is None else record.labels(found, map(record.entity, listed)))
    return _some(X, name), y


def read_labelstudio(
    source: Source,
    *,
    scheme: str | None = "BIO",
    snap: bool = False,
    predictions: bool = False,
) -> tuple[list[list[Any]], list[Labels | None]]:
    """Read what Label Studio exports (JSON) of a project whose text is ``$text``.

    If a task has several annotations, the last one that was not cancelled counts. Results of tags
    other than ``Labels`` are ignored.

    Parameters
    ----------
    source, scheme, snap : as for `read_doccano`
    predictions : read the predictions in place of the annotations

    Returns
    -------
    X : list of sequences in the form that they were written in, else of one-column token rows
    y : list of label lists; None for a task without annotation

    >>> import io
    >>> value = '{"start": 0, "end": 3, "labels": ["PER"]}'
    >>> done = f'[{{"result": [{{"type": "labels", "value": {value}}}]}}]'
    >>> read_labelstudio(io.StringIO(f'[{{"data": {{"text": "Ana"}}, "annotations": {done}}}]'))
    ([[('Ana',)]], [['B-PER']])
    """
    named = None if scheme is None else get_scheme(scheme)
    name, text = read_text(source, None)
    key = "predictions" if predictions else "annotations"
    X, y = [], []
    for i, (line, thing) in enumerate(_elements(text, name)):
        record = _Record(name, line, f"task {i}: ", named, snap)
        task = record.mapping(thing, "it")
        found = record.text(record.mapping(record.need(task, "data"), "data"))
        every = record.listed(task, key) if key in task else []
        kept = [one for one in every if not record.mapping(one, key).get("was_cancelled")]
        X.append(found.tokens)
        y.append(record.labels(found, record.regions(kept[-1])) if kept else None)
    return _some(X, name), y


def _some(X: list[Any], name: str) -> list[Any]:
    if not X:
        raise FormatError("no records", path=name)
    return X


def _elements(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON array, or one object, each with the line where it begins."""
    decoder, blank = json.JSONDecoder(), re.compile(r"[ \t\r\n]*")

    def skip(at: int) -> int:
        found = blank.match(text, at)
        assert found is not None
        return found.end()

    def fail(message: str, at: int) -> FormatError:
        return FormatError(message, path=name, line=text.count("\n", 0, at) + 1)

    def element(at: int) -> tuple[Any, int]:
        try:
            return decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            where = getattr(error, "pos", at)
            raise fail(f"not JSON: {getattr(error, 'msg', error)}", where) from error

    at, line, counted = skip(0), 1, 0
    many = text[at : at + 1] == "["
    at = skip(at + 1) if many else at
    if many and text[at : at + 1] == "]":
        return
    while True:
        thing, end = element(at)
        line, counted = line + text.count("\n", counted, at), at
        yield line, thing
        at = skip(end)
        mark = text[at : at + 1]
        if not many or mark == "]":
            if skip(at + many) < len(text):
                raise fail("not JSON: text after its end", at)
            return
        if mark != ",":
            raise fail("not JSON: the list of tasks is not ended", at)
        at = skip(at + 1)


class _Record(NamedTuple):
    """Reads one record; what is wrong with it is an error that names its place."""

    name: str
    line: int
    prefix: str
    scheme: Scheme | None
    snap: bool

    def fail(self, message: str) -> FormatError:
        return FormatError(self.prefix + message, path=self.name, line=self.line)

    def parsed(self, line: str) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"not JSON: {getattr(error, 'msg', error)}") from error

    def mapping(self, thing: Any, what: str) -> dict[str, Any]:
        if not isinstance(thing, dict):
            raise self.fail(f"{what} must be a JSON object, got {_shown(thing)}")
        return thing

    def need(self, fields: dict[str, Any], key: str) -> Any:
        if key not in fields:
            raise self.fail(f"no {key!r}")
        return fields[key]

    def listed(self, fields: dict[str, Any], key: str) -> list[Any]:
        if not isinstance(fields[key], list):
            raise self.fail(f"{key!r} must be a list, got {_shown(fields[key])}")
        return list(fields[key])

    def text(self, fields: dict[str, Any]) -> Text:
        """The text and its tokens."""
        text = self.need(fields, "text")
        if not isinstance(text, str):
            raise self.fail(f"'text' must be a string, got {_shown(text)}")
        if "tokens" not in fields:
            found = Text.split(text)
        else:
            found = self.with_tokens(self.listed(fields, "tokens"))
            if found.text != text:
                raise self.fail("'tokens' do not make up the text")
        if not found.tokens:
            raise self.fail("the text has no words")
        return found

    def with_tokens(self, tokens: list[Any]) -> Text:
        """The text of given tokens."""
        rows = [[token] if isinstance(token, str) else token for token in tokens]
        for row in rows:
            strings = isinstance(row, list) and all(isinstance(v, str) for v in row)
            if not (strings and row and row[0]):
                raise self.fail(f"a token must be a string or a row of strings, got {_shown(row)}")
        own = [token if isinstance(token, str) else tuple(token) for token in tokens]
        return Text.joined([row[0] for row in rows], own)

    def entity(self, thing: Any) -> tuple[int, int, str]:
        """Start, end and type of one of doccano's spans."""
        if isinstance(thing, dict):
            thing = [self.need(thing, key) for key in ("start_offset", "end_offset", "label")]
        if not isinstance(thing, list) or len(thing) != 3:
            raise self.fail(f"a span must be [start, end, type], got {_shown(thing)}")
        return self.span(*thing)

    def regions(self, annotation: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
        """Start, end and type of each span of one of Label Studio's annotations."""
        self.need(annotation, "result")
        for thing in self.listed(annotation, "result"):
            region = self.mapping(thing, "a result")
            if region.get("type") != "labels":
                continue
            value = self.mapping(self.need(region, "value"), "a value")
            start, end, labels = (self.need(value, key) for key in ("start", "end", "labels"))
            if not isinstance(labels, list) or len(labels) != 1:
                raise self.fail(f"a span must have one label, got {_shown(labels)}")
            yield self.span(start, end, labels[0])

    def span(self, start: Any, end: Any, kind: Any) -> tuple[int, int, str]:
        for offset in (start, end):
            if not isinstance(offset, int) or isinstance(offset, bool):
                raise self.fail(f"an offset must be a whole number, got {_shown(offset)}")
        if not isinstance(kind, str) or not kind:
            raise self.fail(f"the type of a span must be a string, got {_shown(kind)}")
        return start, end, kind

    def labels(self, text: Text, found: Iterable[tuple[int, int, str]]) -> Labels:
        """Labels of the tokens from spans of the text."""
        marked = sorted((self.tokens(text, a, b), kind) for a, b, kind in found)
        for ((_, end), one), ((start, _), other) in zip(marked, marked[1:], strict=False):
            if start < end:
                raise self.fail(f"spans of {one!r} and {other!r} overlap: a token has one label")
        size = len(text.tokens)
        if self.scheme is not None:
            named = [("" if kind == NAMELESS else kind, *place) for place, kind in marked]
            return list(self.scheme.encode(named, size))
        out: Labels = [None] * size
        for (start, end), kind in marked:
            out[start:end] = [kind] * (end - start)
        return out

    def tokens(self, text: Text, a: int, b: int) -> tuple[int, int]:
        """The tokens of the characters from a to b, the end exclusive."""
        if not 0 <= a < b <= len(text.text):
            raise self.fail(
                f"the span from {a} to {b} is not within its {len(text.text)} characters"
            )
        start, end = text.touched(a, b)
        if start >= end:
            raise self.fail(f"the span from {a} to {b} holds no token")
        first, last = text.characters(start, end)
        if not self.snap and (first < a or last > b):
            raise self.fail(
                f"the span {text.text[a:b]!r} cuts a token of {text.text[first:last]!r}: "
                "snap=True widens such spans"
            )
        return start, end


def _shown(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 60 else f"{text[:60]}..."
