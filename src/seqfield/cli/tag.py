"""The tag command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from seqfield.cli import files
from seqfield.cli.records import Format

#: sequences labelled at a time: bounds the memory and keeps the output flowing
BATCH = 2048


class Decoding(StrEnum):
    """Ways to choose labels."""

    VITERBI = "viterbi"
    POSTERIOR = "posterior"


def tag(
    model: files.ModelPath,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Column file; - is standard input.")
    ] = files.STREAM,
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="OUT", help="Where to write; - is standard output."),
    ] = files.STREAM,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Add the probability of each label as a column.")
    ] = False,
    nbest: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Write the N best labellings.", show_default=False),
    ] = None,
    decoding: Annotated[
        Decoding,
        typer.Option(help="The most probable labelling, or the most probable label of each token."),
    ] = Decoding.VITERBI,
    least: Annotated[
        float | None,
        typer.Option(
            "--min-confidence",
            min=0.0,
            max=1.0,
            metavar="P",
            help="Write ? in place of what is less probable than P.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.CONLL,
    columns: files.Columns = None,
    comment: files.Comment = None,
    encoding: files.Encoding = "utf-8",
) -> None:
    """Label the sequences of a column file.

    Writes the columns of the input and the label as the last one. The input may have the gold
    label as one column more than the features; it is kept and not looked at.

    With --nbest each sequence is written once for each of its best labellings, the best first.
    Before each comes a line with a hash, its rank and its log-probability, such as "# 1 -0.2231".

    With --min-confidence a label less probable than P is written as "?", which training takes for
    a missing label with --missing "?". A span is given up as a whole, by the probability that it is
    one, so no part of it stays.

    The format jsonl has one object for each sequence: tokens, labels (null for "?"), their
    probabilities, spans with theirs, and the probability of all labels together. The formats
    labelstudio and doccano are tasks for these tools that start from the spans; labels that are no
    span labels make one span for each token.
    """
    from seqfield.estimators import load

    if nbest is not None and decoding is not Decoding.VITERBI:
        raise typer.BadParameter("--nbest lists labellings by their probability: use viterbi")
    if nbest is not None and (form is not Format.CONLL or least is not None):
        raise typer.BadParameter("--nbest goes without --min-confidence, and with --format conll")
    if confidence and form is not Format.CONLL:
        raise typer.BadParameter(f"--confidence adds a column: --format {form} has none")
    if output != files.STREAM:
        files.check_output(output, model, source)
    estimator = load(model)
    document = files.Reading(encoding, comment).tokens(source)
    columns = files.chosen(columns, estimator)
    rows, X = document.rows, files.choose(document, columns)
    files.check_columns(estimator, X, document, spare=columns is None)
    by = files.separator(document, estimator, output) if form is Format.CONLL else ""
    batches = ((rows[k : k + BATCH], X[k : k + BATCH]) for k in range(0, len(X), BATCH))
    if form is not Format.CONLL:
        chunks = _as_json(estimator, batches, decoding, least, form)
    elif nbest is not None:
        chunks = (_ranked(estimator, *batch, by, nbest, confidence) for batch in batches)
    elif least is not None:
        chunks = (
            _abstaining(estimator, *batch, by, decoding, confidence, least) for batch in batches
        )
    else:
        chunks = (_labelled(estimator, *batch, by, decoding, confidence) for batch in batches)
    files.write(chunks, output, encoding)


def _abstaining(
    model: Any, rows: Any, X: Any, by: str, decoding: Decoding, confidence: bool, least: float
) -> str:
    from seqfield.cli.records import cells, records_of
    from seqfield.data.conll import joined
    from seqfield.errors import CapabilityError

    sign = files.ABSTAINED
    if sign in model.classes_.tolist():
        raise CapabilityError(f"the model has a label {sign!r}: it cannot stand for no label")
    found = records_of(model, X, decoding.value, least)
    return joined(rows, (cells(record, confidence) for record in found), by)


def _as_json(
    model: Any, batches: Iterable[Any], decoding: Decoding, least: float | None, form: Format
) -> Iterator[str]:
    from seqfield.cli.records import (
        annotated,
        as_record,
        features_of,
        json_lines,
        json_list,
        records_of,
    )

    def records() -> Iterator[dict[str, Any]]:
        done = 0
        for _, X in batches:
            found = records_of(model, X, decoding.value, least)
            if form is Format.JSONL:
                yield from map(as_record, X, found)
                continue
            meta: list[dict[str, Any]] = [{"id": done + k} for k in range(len(X))]
            done += len(X)
            marked, scores = [one.spans for one in found], [one.probability for one in found]
            yield from annotated(form, features_of(model, X), marked, scores, meta)

    return (json_list if form is Format.LABELSTUDIO else json_lines)(records())


def _labelled(model: Any, rows: Any, X: Any, by: str, decoding: Decoding, confidence: bool) -> str:
    from seqfield.data.conll import joined

    said = model.distribution(X)
    cells = _Cells(said, confidence)
    labels = said.best(decoding.value)
    return joined(rows, (cells.of(i, names) for i, names in enumerate(labels)), by)


def _ranked(model: Any, rows: Any, X: Any, by: str, n: int, confidence: bool) -> str:
    from seqfield.data.conll import joined

    said = model.distribution(X)
    cells = _Cells(said, confidence)
    text = []
    for i, found in enumerate(said.nbest(n)):
        for rank, (names, log_probability) in enumerate(found, 1):
            text.append(f"# {rank} {log_probability:.4f}\n")
            text.append(joined([rows[i]], [cells.of(i, names)], by))
    return "".join(text)


class _Cells:
    """The columns that follow a token's own: the label and, if asked for, its probability."""

    def __init__(self, said: Any, confidence: bool) -> None:
        self.proba = said.marginals() if confidence else None
        self.place = said.labels.index

    def of(self, i: int, names: list[Any]) -> list[tuple[str, ...]]:
        """The cells of sequence i under the labels ``names``."""
        if self.proba is None:
            return [(str(name),) for name in names]
        return [
            (str(name), f"{row[self.place[name]]:.4f}")
            for name, row in zip(names, self.proba[i], strict=True)
        ]
