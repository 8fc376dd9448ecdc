"""The train command."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from seqfield.cli import files
from seqfield.cli.screen import announce_compilation, console, facts, plain_warnings, show


class Loss(StrEnum):
    """Losses of the CRF."""

    LOG = "log"
    SOFTMAX_MARGIN = "softmax_margin"


class Solver(StrEnum):
    """Optimisers of the CRF."""

    AUTO = "auto"
    LBFGS = "lbfgs"
    OWLQN = "owlqn"
    SGD = "sgd"


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
    label: files.LabelColumn = -1,
    min_freq: Annotated[
        int, typer.Option(min=1, help="Drop features seen fewer times than this.")
    ] = 1,
    c1: Annotated[float, typer.Option(min=0.0, help="Weight of the L1 penalty.")] = 0.0,
    c2: Annotated[float, typer.Option(min=0.0, help="Weight of the L2 penalty.")] = 1.0,
    loss: Annotated[Loss, typer.Option(help="What is minimised.")] = Loss.LOG,
    cost: Annotated[
        float, typer.Option(min=0.0, help="Cost of a wrong label for softmax_margin.")
    ] = 1.0,
    solver: Annotated[
        Solver, typer.Option(help="Optimiser; auto takes owlqn if c1 > 0, else lbfgs.")
    ] = Solver.AUTO,
    all_features: Annotated[
        bool,
        typer.Option(
            "--all-features", help="Give a weight to label pairs and features never seen together."
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
    max_iter: Annotated[
        int | None,
        typer.Option(min=1, help="Most iterations: 500, or 20 epochs of sgd.", show_default=False),
    ] = None,
    tol: Annotated[
        float, typer.Option(min=0.0, help="Relative change of the objective at which to stop.")
    ] = 1e-5,
    early_stopping: Annotated[
        bool,
        typer.Option(
            "--early-stopping", help="Stop when a held-out tenth of the sequences no longer gains."
        ),
    ] = False,
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
) -> None:
    """Train a CRF on a column file and write it to a model file.

    A column file has one token a line, columns parted by blanks, an empty line between sequences.
    """
    import time

    from seqfield.cli.scores import scores, show_scores
    from seqfield.data.schemes import get_scheme
    from seqfield.estimators import CRF
    from seqfield.features import Template, Words

    begin = time.perf_counter()
    files.check_output(output)
    if scheme is not None:
        get_scheme(scheme)
    X, y = files.read_labelled(source, encoding, label, columns)
    held = None
    if test is not None:
        held = files.read_labelled(test, encoding, label, columns)
        files.check_same(held[0], test, X, source)
    model = CRF(
        Template(template, min_freq) if template is not None else Words(min_freq=min_freq),
        loss=loss.value,
        cost=cost,
        c1=c1,
        c2=c2,
        solver=solver.value,
        observed_only=not all_features,
        scheme=scheme,
        on_violation=on_violation.value,
        max_iter=max_iter,
        tol=tol,
        early_stopping=early_stopping,
        random_state=seed,
        n_jobs=jobs,
        verbose=not quiet,
    )
    if not quiet:
        announce_compilation()
    with plain_warnings(), files.about(source, encoding):
        model.fit(X, y)
    model.notes_ = {"columns": columns}  # the same ones serve tag and eval
    model.set_params(n_jobs=-1, verbose=False)  # of this run, not of the model
    model.save(output)
    screen = console()
    if not quiet:
        show(screen, "Trained", _summary(model, X, output, time.perf_counter() - begin))
    if held is not None and test is not None:
        show_scores(screen, scores(model, *held), test)


def _summary(model: Any, X: files.Rows, output: str, seconds: float) -> Any:
    from rich.filesize import decimal

    gap = f"at most {model.gap_:.2g} above the optimum"
    rows = [
        ("sequences", f"{len(X):,}"),
        ("tokens", f"{sum(map(len, X)):,}"),
        ("labels", f"{len(model.classes_):,}"),
        ("features", f"{model.n_features_in_:,}"),
        ("weights", f"{len(model.theta_):,}"),
        ("iterations", f"{model.n_iter_:,}"),
        ("objective", f"{model.objective_:.6g}"),
        ("gap", "no bound (c2 is 0)" if model.gap_ == float("inf") else gap),
        ("seconds", f"{seconds:.1f}"),
        ("model", f"{output}, {decimal(Path(output).stat().st_size)}"),
    ]
    return facts(rows)
