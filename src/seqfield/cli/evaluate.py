"""The eval command."""

from __future__ import annotations

from typing import Annotated

import typer

from seqfield.cli import files
from seqfield.cli.screen import console


def evaluate(
    model: files.ModelPath,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Labelled column file; - is standard input.", show_default=False
        ),
    ],
    scheme: Annotated[
        str,
        typer.Option(
            metavar="auto|none|BIO|...",
            help="Scheme of the spans; auto counts spans if the labels look like such.",
        ),
    ] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    columns: files.Columns = None,
    label: files.LabelColumn = None,
    missing: files.Missing = None,
    comment: files.Comment = None,
    encoding: files.Encoding = "utf-8",
) -> None:
    """Score a model on a labelled column file.

    The calibration error is that of the probability of the predicted label, in 15 bins.
    """
    from seqfield.cli.scores import as_json, scores, show_scores
    from seqfield.data.schemes import get_scheme
    from seqfield.estimators import load

    if scheme.lower() not in ("auto", "none"):
        get_scheme(scheme)
    estimator = load(model)
    how = files.Reading(encoding, comment, label, missing)
    held = how.labelled(source, files.chosen(columns, estimator))
    X, y, document = held
    files.check_columns(estimator, X, document, spare=False)
    files.warn_of_abstentions(held, estimator.classes_.tolist())
    with files.about(document):
        report = scores(estimator, X, y, scheme)
    if json:
        typer.echo(as_json(report))
    else:
        show_scores(console(), report, source)
