"""The report command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqfield.cli import files
from seqfield.cli.screen import announce_compilation, plain_warnings


def report(
    model: files.ModelPath,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Labelled column file; - is standard input.", show_default=False
        ),
    ],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="OUT", help="Where to write the report.")
    ] = "report.html",
    title: Annotated[
        str | None,
        typer.Option(help="Heading; the names of the files without one.", show_default=False),
    ] = None,
    scheme: Annotated[
        str,
        typer.Option(
            metavar="auto|none|BIO|...",
            help="Scheme of the spans; auto counts spans if the labels look like such.",
        ),
    ] = "auto",
    learning_curve: Annotated[
        str | None,
        typer.Option(
            metavar="TRAIN",
            help="Labelled file to train on again, in growing shares, for a learning curve.",
            show_default=False,
        ),
    ] = None,
    columns: files.Columns = None,
    label: files.LabelColumn = None,
    missing: files.Missing = None,
    comment: files.Comment = None,
    encoding: files.Encoding = "utf-8",
) -> None:
    """Write a report on a model and a labelled column file: one HTML file to open in a browser.

    It shows scores with 95 % intervals, mistakes, how far the confidence can be trusted, what
    abstaining brings, and every sequence with its labels and probabilities.
    """
    from rich.filesize import decimal

    from seqfield.data.schemes import get_scheme
    from seqfield.estimators import load
    from seqfield.report import learning_curve as learn
    from seqfield.report import report_content, steps, write_page

    files.check_output(output, model, source, learning_curve)
    if scheme.lower() not in ("auto", "none"):
        get_scheme(scheme)
    estimator = load(model)
    columns = files.chosen(columns, estimator)
    how = files.Reading(encoding, comment, label, missing)
    held = how.labelled(source, columns)
    X, y, document = held
    files.check_columns(estimator, X, document, spare=False)
    files.warn_of_abstentions(held, estimator.classes_.tolist())
    train = None
    if learning_curve is not None:
        train = how.labelled(learning_curve, columns)
        files.check_same(train, held)
    announce_compilation()
    name = f"{Path(model).stem} on {Path(source).name}" if title is None else title
    with plain_warnings(), steps(show=True, curve=train is not None) as step:
        with files.about(document):
            content = report_content(estimator, X, y, title=name, scheme=scheme, step=step)
        if train is not None:
            with files.about(train.document):
                content["learning"] = learn(
                    estimator, train.X, train.y, X, y, scheme=scheme, step=step
                )
    write_page(content, output)
    typer.echo(f"{output}, {decimal(Path(output).stat().st_size)}")
