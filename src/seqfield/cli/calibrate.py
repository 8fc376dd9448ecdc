"""The calibrate command."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

import typer

from seqfield.cli import files
from seqfield.cli.screen import console, fixed, show, table


class Method(StrEnum):
    """Ways to rescale scores."""

    TEMPERATURE = "temperature"
    PLATT = "platt"
    VECTOR = "vector"


def calibrate(
    model: files.ModelPath,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Labelled column file that the model was not trained on; - is standard input.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="OUT", help="Where to write the calibrated model."),
    ],
    method: Annotated[
        Method,
        typer.Option(help="One temperature; with an offset, and with a slope, for each label."),
    ] = Method.TEMPERATURE,
    columns: files.Columns = None,
    label: files.LabelColumn = None,
    missing: files.Missing = None,
    comment: files.Comment = None,
    encoding: files.Encoding = "utf-8",
) -> None:
    """Rescale the scores of a model so that its probabilities are right on held-out sequences.

    The table compares probabilities before and after on parts of the file that the scaling did not
    see (five folds). The calibrated model is fitted to the whole file.
    """
    import seqfield as sf
    from seqfield.confidence import calibration_gain

    files.check_output(output, model, source)
    estimator = sf.load(model)
    how = files.Reading(encoding, comment, label, missing)
    held = how.labelled(source, files.chosen(columns, estimator))
    X, y, document = held
    files.check_columns(estimator, X, document, spare=False)
    files.warn_of_abstentions(held, estimator.classes_.tolist())
    with files.about(document):
        scaled = sf.calibrate(estimator, X, y, method=method.value, cv="prefit")
        gain = calibration_gain(estimator, X, y, method=method.value)
    scaled.save(output)
    out = table("", "before", "after", numbers=("before", "after"))
    names = ("NLL per token", "calibration error (ECE)", "Brier score")
    before = gain.before or [math.nan] * len(names)
    for name, *numbers in zip(names, before, gain.after, strict=True):
        out.add_row(name, *map(fixed, numbers))
    show(console(), f"{source}: temperature {scaled.calibration_.temperature:.3g}", out)
