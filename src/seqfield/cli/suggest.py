"""The suggest command."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from seqfield.cli import files
from seqfield.cli.records import Format

if TYPE_CHECKING:
    from seqfield.data.conll import Document

#: sequences ranked at a time
BATCH = 2048


class Unit(StrEnum):
    """What is labelled at once."""

    SEQUENCE = "sequence"
    TOKEN = "token"
    SPAN = "span"


class Question(NamedTuple):
    """One suggestion: the number of its sequence, facts for the user, and the words and the span
    that it is about, if it is not about the whole."""

    sequence: int
    facts: dict[str, Any]
    words: list[str]
    span: Any


def suggest(
    model: files.ModelPath,
    source: Annotated[
        str, typer.Argument(metavar="POOL", help="Column file; - is standard input.")
    ] = files.STREAM,
    n: Annotated[int, typer.Option("-n", min=1, metavar="N", help="How many to suggest.")] = 20,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sequence_entropy, least_confidence, margin, token_entropy, expected_spans or "
            "diversity; the default is sequence_entropy, for tokens token_entropy, for spans "
            "least_confidence.",
            show_default=False,
        ),
    ] = None,
    unit: Annotated[Unit, typer.Option(help="What is labelled at once.")] = Unit.SEQUENCE,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Score by token, if tokens are what costs.")
    ] = False,
    diversity: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Weight of sequences being unlike each other."),
    ] = 0.0,
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="OUT", help="Where to write; - is standard output."),
    ] = files.STREAM,
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.CONLL,
    columns: files.Columns = None,
    comment: files.Comment = None,
    encoding: files.Encoding = "utf-8",
) -> None:
    """Say which sequences of a column file are best labelled next.

    The input may have the gold label as one column more than the features; it is not looked at.

    The format conll has the sequences, the best first, with the model's labels and their
    probabilities as last columns. Before each come lines with a hash: rank, score and line in the
    pool, such as "# 1 12.9146 line 27", and for tokens and spans what is asked about, the guess and
    its probability.

    The format jsonl has one object for each suggestion. The formats labelstudio and doccano are
    tasks for these tools that start from the model's spans, or with --unit from those to ask about.
    """
    from seqfield.active import UNITS
    from seqfield.cli.screen import announce_compilation
    from seqfield.estimators import load

    if strategy is not None and strategy not in UNITS[unit.value]:
        wanted = ", ".join(UNITS[unit.value])
        raise typer.BadParameter(f"--strategy must be one of {wanted} for --unit {unit}")
    if output != files.STREAM:
        files.check_output(output, model, source)
    estimator = load(model)
    document = files.Reading(encoding, comment).tokens(source)
    columns = files.chosen(columns, estimator)
    X = files.choose(document, columns)
    files.check_columns(estimator, X, document, spare=columns is None)
    by = files.separator(document, estimator, output) if form is Format.CONLL else ""
    announce_compilation()
    options = {"strategy": strategy, "per_token": per_token, "diversity": diversity}
    ranked = _ranked(estimator, X, n, options | {"unit": unit.value})
    found = [_question(k, one, X, document) for k, one in enumerate(ranked, 1)]
    files.write(_written(estimator, document.rows, X, found, form, by), output, encoding)


def _ranked(model: Any, X: Any, n: int, options: dict[str, Any]) -> list[Any]:
    """The n best of the pool, ranked in pieces where each sequence is scored by itself."""
    from seqfield.active import rank
    from seqfield.progress import progress

    if options["diversity"] or options["strategy"] == "diversity":
        return rank(model, X, n=n, **options)
    best: list[Any] = []
    with progress("ranking", len(X), show=True) as report:
        for k in range(0, len(X), BATCH):
            found = rank(model, X[k : k + BATCH], n=n, **options)
            best += [one._replace(sequence=one.sequence + k) for one in found]
            best = sorted(best, key=lambda one: -one.score)[:n]
            report(min(k + BATCH, len(X)), "")
    return best


def _question(k: int, one: Any, X: files.Rows, document: Document) -> Question:
    """What suggestion number k asks about."""
    from seqfield.data.annotation import Marked

    facts = {"rank": k, "score": one.score, "line": document.lines[one.sequence]}
    if not hasattr(one, "probability"):
        return Question(one.sequence, facts, [], None)
    if hasattr(one, "position"):
        span = Marked(str(one.label), one.position, one.position + 1, one.probability)
    else:
        span = Marked(one.kind, one.start, one.end, one.probability)
    facts["line"] = document.line(one.sequence, span.start)
    words = [row[0] for row in X[one.sequence][span.start : span.end]]
    return Question(one.sequence, facts, words, span)


def _written(
    model: Any, rows: files.Rows, X: files.Rows, found: list[Question], form: Format, by: str
) -> Iterator[str]:
    """The suggestions, those about one sequence together but for JSON lines."""
    from seqfield.cli.records import (
        annotated,
        as_record,
        features_of,
        json_lines,
        json_list,
        records_of,
    )

    by_sequence: dict[int, list[Question]] = {}
    for one in found:
        by_sequence.setdefault(one.sequence, []).append(one)
    own = [X[i] for i in by_sequence]
    labelled = records_of(model, own, "viterbi") if own else []
    if form is Format.CONLL:
        kept = [rows[i] for i in by_sequence]
        return map(_block, kept, by_sequence.values(), labelled, repeat(by))
    if form is Format.JSONL:
        whole = map(as_record, own, labelled)
        asked = ({"tokens": one.words} | one.span._asdict() for one in found if one.span)
        more = whole if found and found[0].span is None else asked
        return json_lines(one.facts | rest for one, rest in zip(found, more, strict=True))
    first = [questions[0] for questions in by_sequence.values()]
    marked = [
        record.spans if questions[0].span is None else [one.span for one in questions]
        for record, questions in zip(labelled, by_sequence.values(), strict=True)
    ]
    meta = [{"id": i} | one.facts for i, one in zip(by_sequence, first, strict=True)]
    sure = [record.probability for record in labelled]
    records = annotated(form, features_of(model, own), marked, sure, meta)
    return (json_list if form is Format.LABELSTUDIO else json_lines)(records)


def _block(rows: list[files.Row], questions: list[Question], record: Any, by: str) -> str:
    """The lines of one sequence in a column file."""
    from seqfield.cli.records import cells
    from seqfield.data.conll import joined

    text = ""
    for _, facts, words, asked in questions:
        text += f"# {facts['rank']} {facts['score']:.4f} line {facts['line']}"
        if asked is not None:
            text += f" {' '.join(words)}: {asked.kind} {asked.probability:.4f}"
        text += "\n"
    return text + joined([rows], [cells(record, confidence=True)], by)
