"""The tag command."""

from __future__ import annotations

import io
from enum import StrEnum
from typing import Annotated, Any

import typer

from seqfield.cli import files

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
    columns: files.Columns = None,
    encoding: files.Encoding = "utf-8",
) -> None:
    """Label the sequences of a column file.

    Writes the columns of the input and the label as the last one. The input may have the gold
    label as one column more than the features; it is kept and not looked at.

    With --nbest each sequence is written once for each of its best labellings, the best first.
    Before each comes a line with a hash, its rank and its log-probability, such as "# 1 -0.2231".
    """
    from seqfield.estimators import load

    if nbest is not None and decoding is not Decoding.VITERBI:
        raise typer.BadParameter("--nbest lists labellings by their probability: use viterbi")
    if output != files.STREAM:
        files.check_output(output)
    estimator = load(model)
    rows, _ = files.read(source, encoding, label=None)
    columns = files.chosen(columns, estimator)
    X = files.choose(rows, columns, None, source)
    files.check_columns(estimator, X, source, spare=columns is None)
    labelled = (
        _labelled(estimator, rows[k : k + BATCH], X[k : k + BATCH], decoding, confidence)
        if nbest is None
        else _ranked(estimator, rows[k : k + BATCH], X[k : k + BATCH], nbest, confidence)
        for k in range(0, len(X), BATCH)
    )
    files.write(labelled, output, encoding)


def _labelled(model: Any, rows: Any, X: Any, decoding: Decoding, confidence: bool) -> str:
    from seqfield.data.conll import write_conll

    data = model.features_.transform(X)
    labels = model.predict(data, decoding=decoding.value)
    cells = _Cells(model, data, confidence)
    text = io.StringIO()
    write_conll(text, rows, (cells.of(i, names) for i, names in enumerate(labels)))
    return text.getvalue()


def _ranked(model: Any, rows: Any, X: Any, n: int, confidence: bool) -> str:
    from seqfield.data.conll import write_conll

    data = model.features_.transform(X)
    cells = _Cells(model, data, confidence)
    text = io.StringIO()
    for i, found in enumerate(model.predict_nbest(data, n)):
        for rank, (names, log_probability) in enumerate(found, 1):
            text.write(f"# {rank} {log_probability:.4f}\n")
            write_conll(text, [rows[i]], [cells.of(i, names)])
    return text.getvalue()


class _Cells:
    """The columns that follow a token's own: the label and, if asked for, its probability."""

    def __init__(self, model: Any, data: Any, confidence: bool) -> None:
        self.proba = model.predict_proba(data) if confidence else None
        self.place = {label: k for k, label in enumerate(model.classes_.tolist())}

    def of(self, i: int, names: list[Any]) -> list[tuple[str, ...]]:
        """The cells of sequence i under the labels ``names``."""
        if self.proba is None:
            return [(str(name),) for name in names]
        return [
            (str(name), f"{row[self.place[name]]:.4f}")
            for name, row in zip(names, self.proba[i], strict=True)
        ]
