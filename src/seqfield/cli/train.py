"""The train command."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from seqfield.cli import files
from seqfield.cli.inspect import learned
from seqfield.cli.learners import CLASSES, FIRST, Learner
from seqfield.cli.screen import announce_compilation, console, facts, plain_warnings, show, tell

#: sequences that are labelled at a time to see what a model has learned
SOME = 20


class OnViolation(StrEnum):
    """What to do with labels that break the scheme."""

    RAISE = "raise"
    REPAIR = "repair"


def _threads(number: int) -> int:
    if number == 0:
        raise typer.BadParameter("expected a number of threads, or -1 for all cores")
    return number


def train(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TRAIN", help="Labelled column file; - is standard input.", show_default=False
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="MODEL", help="Where to write the model.", show_default=False
        ),
    ],
    template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CRF++ template; words and their spelling without one."),
    ] = None,
    columns: files.Columns = None,
    label: files.LabelColumn = None,
    missing: files.Missing = None,
    comment: files.Comment = None,
    min_freq: Annotated[
        int, typer.Option(min=1, help="Drop features seen fewer times than this.")
    ] = 1,
    learner: Annotated[Learner, typer.Option(help="The kind of model.")] = FIRST,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit the confidence on held-out folds; tagger does so in any case.",
        ),
    ] = False,
    scheme: Annotated[
        str | None,
        typer.Option(
            metavar="BIO|IOB1|BIOES|BILOU", help="Only label sequences of this scheme are possible."
        ),
    ] = None,
    on_violation: Annotated[
        OnViolation, typer.Option(help="What to do with labels that break the scheme.")
    ] = OnViolation.RAISE,
    test: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Labelled file to evaluate the model on at the end."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            callback=_threads, help="Threads, -1 for all cores; the model does not depend on it."
        ),
    ] = -1,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of held-out choice and shuffling.")
    ] = 0,
    encoding: files.Encoding = "utf-8",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no summary.")
    ] = False,
    *,
    given: dict[str, Any],
) -> None:
    """Train a model on a column file and write it to a model file.

    A column file has one token a line and an empty line between sequences. Tabs part its columns if
    the first line has one, else blanks do. A file named .conllu is read as CoNLL-U.
    """
    import time

    from seqfield import estimators
    from seqfield.cli.scores import scores, show_scores
    from seqfield.data.schemes import get_scheme
    from seqfield.features import Template, Words

    begin = time.perf_counter()
    files.check_output(output, source, template, test)
    if scheme is not None:
        get_scheme(scheme)
    how = files.Reading(encoding, comment, label, missing)
    lesson = how.labelled(source, columns)
    files.warn_of_abstentions(lesson)
    held = None if test is None else how.labelled(test, columns)
    if held is not None:
        files.check_same(held, lesson)
    features = Template(template, min_freq) if template is not None else Words(min_freq=min_freq)
    model = getattr(estimators, CLASSES[learner])(features=features, random_state=seed, **given)
    model.set_params(scheme=scheme, on_violation=on_violation.value, n_jobs=jobs, verbose=not quiet)
    if calibrate:
        model.set_params(calibrate=True)
    if not quiet:
        announce_compilation()
    X, y, document = lesson
    with plain_warnings(), files.about(document):
        model.fit(X, y)
    # the same columns serve tag and eval
    model.notes_ = {"columns": columns, "separator": document.separator}
    model.set_params(n_jobs=-1, verbose=False)  # of this run, not of the model
    model.save(output)
    _warn_of_one_label(model, X, y)
    screen = console()
    if not quiet:
        show(screen, "Trained", _summary(model, X, output, time.perf_counter() - begin))
    if held is not None:
        show_scores(screen, scores(model, held.X, held.y), held.document.name)


def _warn_of_one_label(model: Any, X: files.Rows, y: list[Any]) -> None:
    """Warn of a model that has learned nothing but which label is the most frequent one."""
    if len({label for row in y for label in row} - {None}) < 2:
        return
    given: set[Any] = set()
    for k in range(0, len(X), SOME):  # most often the first few sequences have two labels
        given |= {label for row in model.predict(X[k : k + SOME]) for label in row}
        if len(given) > 1:
            return
    own = model.get_params(deep=False)
    heavy = [name for name in ("c1", "c2") if own.get(name) not in (None, 0, "auto")]
    remedy = f"lower {' and '.join(heavy)}" if heavy else "give it more features or iterations"
    [label] = given
    tell(
        "warning",
        f"the model gives all tokens that it was trained on the label {label!r}: {remedy}",
    )


def _summary(model: Any, X: files.Rows, output: str, seconds: float) -> Any:
    from rich.filesize import decimal

    rows = [
        ("sequences", f"{len(X):,}"),
        ("tokens", f"{sum(map(len, X)):,}"),
        ("labels", f"{len(model.classes_):,}"),
        ("features", f"{model.n_features_in_:,}"),
    ]
    rows += learned(model)
    if hasattr(model, "support_"):
        rows.append(("support sequences", f"{len(model.support_):,}"))
    rows.append(("iterations", f"{model.n_iter_:,}"))
    if hasattr(model, "bound_"):
        rows.append(("bound", f"{model.bound_:.6g} (a lower bound on log p(y))"))
    else:
        rows.append(("objective", f"{model.objective_:.6g}"))
    if getattr(model, "gap_", math.inf) < math.inf:
        rows.append(("gap", f"at most {model.gap_:.2g} above the optimum"))
    if hasattr(model, "chosen_"):
        rows.append(
            (
                "chosen",
                f"cost {model.chosen_.cost:g}, c2 {model.chosen_.c2:g}, {model.kernel_!r}",
            )
        )
    if hasattr(model, "r_hat_"):
        rows.append(("R-hat", f"{model.r_hat_:.3f} (about 1 if the chains agree)"))
        rows.append(("effective sample size", f"{model.effective_sample_size_:,.0f}"))
    if model.calibration_ is not None:
        rows.append(("temperature", f"{model.calibration_.temperature:.3g}"))
    rows.append(("seconds", f"{seconds:.1f}"))
    rows.append(("model", f"{output}, {decimal(Path(output).stat().st_size)}"))
    return facts(rows)
