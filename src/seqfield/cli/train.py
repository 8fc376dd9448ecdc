"""The train command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from seqfield.cli import files
from seqfield.cli.inspect import tokens
from seqfield.cli.learners import (
    CLASSES,
    Inference,
    Kernel,
    Learner,
    Loss,
    Margin,
    Method,
    OnViolation,
    Sampler,
    Slack,
    Solver,
    made,
)
from seqfield.cli.screen import announce_compilation, console, facts, plain_warnings, show, tell

#: sequences that are labelled at a time to see what a model has learned
SOME = 20


def _threads(number: int) -> int:
    if number == 0:
        raise typer.BadParameter("expected a number of threads, or -1 for all cores")
    return number


def _penalty(text: str | None) -> float | str | None:
    """A number that is not negative, or "auto"."""
    if text in (None, "auto"):
        return text
    try:
        weight = float(str(text))
    except ValueError:
        weight = -1.0
    if not 0 <= weight < math.inf:
        raise typer.BadParameter(
            f"expected a number of at least 0, or auto, got {text!r}", param_hint="--c2"
        )
    return weight


def _offsets(text: str | None) -> list[int] | None:
    """The numbers of a list such as -1,1; an empty one makes tokens independent."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers such as -1,1, got {text!r}", param_hint="--offsets"
        ) from None


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
    learner: Annotated[Learner, typer.Option(help="The kind of model.")] = Learner.CRF,
    kernel: Annotated[
        Kernel | None,
        typer.Option(help="The kernel; not for crf, boost and hmm.", show_default=False),
    ] = None,
    method: Annotated[
        Method, typer.Option(help="gpsc: all tokens, or a few chosen ones.")
    ] = Method.DENSE,
    cliques: Annotated[
        int | None,
        typer.Option(min=1, help="kernelcrf: how many cliques to choose.", show_default=False),
    ] = None,
    C: Annotated[
        float | None,
        typer.Option(
            "-C",
            "--slack-weight",
            min=0.0,
            help="hmsvm: weight of the slacks; by the scale of the kernel without it.",
            show_default=False,
        ),
    ] = None,
    sampler: Annotated[
        Sampler, typer.Option(help="gpstruct: how the posterior is sampled.")
    ] = Sampler.HMC,
    steps: Annotated[
        int | None,
        typer.Option(min=4, help="gpstruct: steps of each chain.", show_default=False),
    ] = None,
    inducing: Annotated[
        int | None,
        typer.Option(min=1, help="svgp: tokens behind the posterior.", show_default=False),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="gpsl: where the labels are that a label depends on, such as -1,1 (the default) "
            "or -2,-1,1,2; '' for none.",
            show_default=False,
        ),
    ] = None,
    inference: Annotated[
        Inference,
        typer.Option(help="gpsl: how labels are predicted; chain needs the offsets -1,1."),
    ] = Inference.REFINE,
    slack: Annotated[Slack, typer.Option(help="hmsvm: the kind of soft margin.")] = Slack.L1,
    margin: Annotated[
        Margin, typer.Option(help="hmsvm: what the known labels shall win by.")
    ] = Margin.HAMMING,
    c1: Annotated[float, typer.Option(min=0.0, help="CRF: weight of the L1 penalty.")] = 0.0,
    c2: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|auto",
            help="CRF: weight of the L2 penalty; auto is 1 for the log loss.",
            show_default=False,
        ),
    ] = None,
    loss: Annotated[Loss, typer.Option(help="CRF: what is minimised.")] = Loss.LOG,
    cost: Annotated[
        float, typer.Option(min=0.0, help="CRF: cost of a wrong label for softmax_margin.")
    ] = 1.0,
    solver: Annotated[
        Solver, typer.Option(help="CRF: optimiser; auto takes owlqn if c1 > 0, else lbfgs.")
    ] = Solver.AUTO,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit the confidence on held-out folds; not for hmm, gpstruct and svgp, which have "
            "their own.",
        ),
    ] = False,
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
        typer.Option(min=1, help="Most iterations, epochs or boosting rounds.", show_default=False),
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Relative change of the objective at which to stop.", show_default=False
        ),
    ] = None,
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
    """Train a model on a column file and write it to a model file.

    A column file has one token a line and an empty line between sequences. Tabs part its columns if
    the first line has one, else blanks do. A file named .conllu is read as CoNLL-U.
    """
    import time

    from seqfield import estimators
    from seqfield.cli.scores import scores, show_scores
    from seqfield.data.schemes import get_scheme
    from seqfield.features import Template, Words

    if cost != 1.0 and loss is not Loss.SOFTMAX_MARGIN:
        raise typer.BadParameter("--cost is that of --loss softmax_margin")
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
    given = {
        "kernel": None if kernel is None else kernel.value,
        "method": method.value,
        "n_cliques": cliques,
        "C": C,
        "sampler": sampler.value,
        "n_steps": steps,
        "n_inducing": inducing,
        "offsets": _offsets(offsets),
        "inference": inference.value,
        "slack": slack.value,
        "margin": margin.value,
        "loss": loss.value,
        "cost": cost,
        "c1": c1,
        "c2": _penalty(c2),
        "solver": solver.value,
        "observed_only": not all_features,
        "max_iter": max_iter,
        "tol": tol,
        "early_stopping": early_stopping,
        "calibrate": calibrate,
        "random_state": seed,
    }
    features = Template(template, min_freq) if template is not None else Words(min_freq=min_freq)
    model = made(getattr(estimators, CLASSES[learner])(features=features), learner, given)
    model.set_params(scheme=scheme, on_violation=on_violation.value, n_jobs=jobs, verbose=not quiet)
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
    if hasattr(model, "theta_"):
        rows.append(("weights", f"{len(model.theta_):,}"))
    if hasattr(model, "support_"):
        rows.append(("support sequences", f"{len(model.support_):,}"))
    if hasattr(model, "n_tokens_"):
        rows.append(("kernel", repr(model.kernel_)))
        rows.append(tokens(model))
    rows.append(("iterations", f"{model.n_iter_:,}"))
    if hasattr(model, "n_inducing"):
        rows.append(("ELBO", f"{model.bound_:.6g} (a lower bound on log p(y))"))
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
