"""The train command."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from seqfield.cli import files
from seqfield.cli.inspect import tokens
from seqfield.cli.screen import announce_compilation, console, facts, plain_warnings, show


class Learner(StrEnum):
    """Kinds of models."""

    CRF = "crf"
    TAGGER = "tagger"
    PERCEPTRON = "perceptron"
    BOOST = "boost"
    HMM = "hmm"
    GPSC = "gpsc"
    KERNEL_CRF = "kernelcrf"
    HMSVM = "hmsvm"
    GPSL = "gpsl"
    GPSTRUCT = "gpstruct"
    SVGP = "svgp"


CLASSES = {
    Learner.CRF: "CRF",
    Learner.TAGGER: "Tagger",
    Learner.PERCEPTRON: "StructuredPerceptron",
    Learner.BOOST: "SequenceBoost",
    Learner.HMM: "HMM",
    Learner.GPSC: "GPSC",
    Learner.KERNEL_CRF: "KernelCRF",
    Learner.HMSVM: "HMSVM",
    Learner.GPSL: "GPSL",
    Learner.GPSTRUCT: "GPStruct",
    Learner.SVGP: "StructuredSVGP",
}


class Method(StrEnum):
    """Methods of GPSC."""

    DENSE = "dense"
    SPARSE = "sparse"
    SEQUENCE = "sequence"


class Sampler(StrEnum):
    """Samplers of GPstruct."""

    HMC = "hmc"
    NUTS = "nuts"
    ESS = "ess"


class Inference(StrEnum):
    """How GPSL predicts."""

    REFINE = "refine"
    CHAIN = "chain"


class Slack(StrEnum):
    """Soft margins of the HM-SVM."""

    L1 = "l1"
    L2 = "l2"
    LABELLING = "labelling"
    HARD = "hard"


class Margin(StrEnum):
    """What the known labelling shall win by."""

    UNIT = "unit"
    HAMMING = "hamming"
    SLACK = "slack"


class Loss(StrEnum):
    """Losses of the CRF."""

    LOG = "log"
    SOFTMAX_MARGIN = "softmax_margin"
    MARGINAL = "marginal"
    EXP = "exp"


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
    label: files.LabelColumn = -1,
    min_freq: Annotated[
        int, typer.Option(min=1, help="Drop features seen fewer times than this.")
    ] = 1,
    learner: Annotated[Learner, typer.Option(help="The kind of model.")] = Learner.CRF,
    kernel: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="All but crf, boost and hmm: linear, poly2, poly3, rbf, matern, "
            "rational_quadratic, cosine.",
            show_default=False,
        ),
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
        float | None,
        typer.Option(
            min=0.0, help="CRF: weight of the L2 penalty, 1 for the log loss.", show_default=False
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

    A column file has one token a line, columns parted by blanks, an empty line between sequences.
    """
    import time

    from seqfield import estimators
    from seqfield.cli.scores import scores, show_scores
    from seqfield.data.schemes import get_scheme
    from seqfield.features import Template, Words

    if cost != 1.0 and loss is not Loss.SOFTMAX_MARGIN:
        raise typer.BadParameter("--cost is that of --loss softmax_margin")
    begin = time.perf_counter()
    files.check_output(output)
    if scheme is not None:
        get_scheme(scheme)
    X, y = files.read_labelled(source, encoding, label, columns)
    held = None
    if test is not None:
        held = files.read_labelled(test, encoding, label, columns)
        files.check_same(held[0], test, X, source)
    given = {
        "kernel": kernel,
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
        "c2": c2,
        "solver": solver.value,
        "observed_only": not all_features,
        "max_iter": max_iter,
        "tol": tol,
        "early_stopping": early_stopping,
        "calibrate": calibrate,
        "random_state": seed,
    }
    features = Template(template, min_freq) if template is not None else Words(min_freq=min_freq)
    model = _made(getattr(estimators, CLASSES[learner])(features=features), learner, given)
    model.set_params(scheme=scheme, on_violation=on_violation.value, n_jobs=jobs, verbose=not quiet)
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


def _made(model: Any, learner: Learner, given: dict[str, Any]) -> Any:
    """The model with the options given; one that it does not have is an error, not ignored."""
    own = model.get_params(deep=False)
    told = {name: value for name, value in given.items() if value is not None}
    left = {"loss": "log", "cost": 1.0, "c1": 0.0, "solver": "auto", "observed_only": True}
    left |= {"early_stopping": False, "calibrate": False, "method": "dense"}
    left |= {"slack": "l1", "margin": "hamming", "sampler": "hmc", "inference": "refine"}
    for name, value in told.items():
        if name == "random_state" or value != left.get(name):
            if name in own:
                model.set_params(**{name: value})
            elif name != "random_state":
                option = OPTIONS.get(name, name.replace("_", "-"))
                raise typer.BadParameter(f"--{option} has no meaning for --learner {learner.value}")
    return model


#: options that are not called like the argument
OPTIONS = {"observed_only": "all-features", "n_cliques": "cliques", "C": "slack-weight"}
OPTIONS |= {"n_steps": "steps", "n_inducing": "inducing"}


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
