"""The inspect command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqfield.cli import files
from seqfield.cli.screen import console, facts, show, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def inspect(
    model: files.ModelPath,
    top: Annotated[int, typer.Option(min=1, help="How many features and transitions.")] = 10,
    label: Annotated[
        str | None, typer.Option(help="Only the features of this label.", show_default=False)
    ] = None,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Every transition, and no features.")
    ] = False,
) -> None:
    """Show the parameters, features and transitions of a model."""
    from seqfield.errors import InputError
    from seqfield.estimators import load
    from seqfield.functions import LinearFunction

    estimator = load(model)
    names = {str(name): name for name in estimator.classes_.tolist()}
    if label is not None and label not in names:
        raise InputError(f"{label!r} is not one of the model's labels: {', '.join(names)}")
    screen = console()
    show(screen, model, _overview(estimator, model, list(names)))
    if not isinstance(estimator.function_, LinearFunction):
        return
    if not transitions:
        for text, name in names.items():
            if label in (None, text):
                show(screen, f"Features of {text}", _features(estimator, name, top))
    if label is None or transitions:
        _show_transitions(screen, estimator, list(names), None if transitions else top)


def _overview(model: Any, path: str, labels: list[str]) -> Table:
    from rich.filesize import decimal

    plain = type(model)().get_params(deep=False)
    changed = {k: v for k, v in model.get_params(deep=False).items() if repr(v) != repr(plain[k])}
    rows = [
        ("class", type(model).__name__),
        ("parameters", ", ".join(f"{k}={v!r}" for k, v in changed.items()) or "defaults"),
        ("labels", f"{len(labels):,}: {', '.join(labels)}"),
        ("features", f"{model.n_features_in_:,} by {type(model.features_).__name__}"),
    ]
    rows += learned(model)
    rows.append(("file size", decimal(Path(path).stat().st_size)))
    return facts(rows)


def learned(model: Any) -> list[tuple[str, str]]:
    """What a model consists of: weights; or a kernel, and the tokens at which it is evaluated."""
    from seqfield.functions import LinearFunction

    if isinstance(model.function_, LinearFunction):
        theta = model.function_.theta
        share = f"{(theta == 0).mean():.1%}" if len(theta) else "none"
        return [("weights", f"{len(theta):,}, {share} of them zero")]
    if not hasattr(model, "kernel_"):
        return []
    kept = ("inducing tokens", f"{model.n_kept_:,}")
    if hasattr(model, "n_tokens_"):
        kept = ("distinct tokens", f"{model.n_tokens_:,}, {model.n_kept_:,} of them kept")
    return [("kernel", repr(model.kernel_)), kept]


def _features(model: Any, label: Any, top: int) -> Table:
    """The highest and the lowest weights of a label side by side, each feature once."""
    from itertools import zip_longest

    highest = [w for w in model.top_weights(top, label=label) if w.value > 0]
    lowest = [w for w in model.top_weights(top, label=label, lowest=True) if w.value < 0]
    out = table("high", "feature", "low", "feature", numbers=("high", "low"))
    for pair in zip_longest(highest, lowest):
        cells = [(f"{w.value:+.3f}", w.feature) if w else ("", "") for w in pair]
        out.add_row(*cells[0], *cells[1])
    return out


def _show_transitions(screen: Console, model: Any, names: list[str], top: int | None) -> None:
    """Transitions with a weight, the strongest and the weakest (or all), and the forbidden ones."""
    import numpy as np

    weights = model.transitions_
    forbidden = _forbidden(model, names)
    used = [
        (i, j) for i, j in np.argwhere(weights != 0) if names[j] not in forbidden.get(names[i], [])
    ]
    used.sort(key=lambda pair: -weights[pair])
    if top is None:
        parts = {"Transitions": used}
    else:
        parts = {"Strongest transitions": used[:top], "Weakest transitions": used[::-1][:top]}
    for title, chosen in parts.items():
        part = table("weight", "from", "to", numbers=("weight",))
        for i, j in chosen:
            part.add_row(f"{weights[i, j]:+.3f}", names[i], names[j])
        show(screen, title, part)
    if not forbidden:
        return
    if top is None:
        rows = [(name, ", ".join(after)) for name, after in forbidden.items()]
        show(screen, "Forbidden after each label", facts(rows))
    else:
        n = sum(map(len, forbidden.values()))
        screen.print(f"{n:,} transitions are forbidden: --transitions lists them.")


def _forbidden(model: Any, names: list[str]) -> dict[str, list[str]]:
    """What may not follow each label; "(start)" and "(end)" stand for the ends of a sequence."""
    if model.constraint_ is None:
        return {}
    start, pairs, end = vars(model.constraint_).values()
    rows = {"(start)": [*start, 0.0]}
    rows |= {name: [*row, last] for name, row, last in zip(names, pairs, end, strict=True)}
    columns = [*names, "(end)"]
    found = {
        name: [after for after, score in zip(columns, row, strict=True) if score < 0]
        for name, row in rows.items()
    }
    return {name: after for name, after in found.items() if after}
