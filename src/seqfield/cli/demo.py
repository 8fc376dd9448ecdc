"""The demo command: a first look, on data that come with the library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqfield.cli.screen import announce_compilation, console, fixed, plain_warnings, show, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: lines that are not in the bundled data
LINES = (
    "2 cups wholemeal flour , sifted",
    "1 ( 14 oz ) can coconut milk",
    "3 heaped tsp smoked paprika , plus extra to serve",
    "juice and zest of 2 unwaxed lemons",
    "half a nutmeg , grated",
    "a good glug of olive oil",
)
COLOURS = {
    "QTY": "cyan",
    "UNIT": "magenta",
    "SIZE": "yellow",
    "NAME": "green",
    "PREP": "blue",
    "NOTE": "red",
}
SURE, UNSURE = 0.9, 0.6

#: key of `scores`, name and explanation
SCORES = (
    ("token_accuracy", "token accuracy", "share of tokens with the right label"),
    ("span_f1", "span F1", "whole pieces found, with the right ends"),
    ("nll_per_token", "NLL per token", "surprise at the right label: 0 is none"),
    ("ece", "calibration error", "gap of confidence and accuracy: 0 is honest"),
)


def demo(
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the screen as a picture.")
    ] = None,
) -> None:
    """Train on bundled recipe lines and label new ones."""
    import time

    from seqfield.cli.scores import scores
    from seqfield.data.datasets import load_ingredients
    from seqfield.estimators import CRF
    from seqfield.features import Words

    screen = console(record=svg is not None)
    begin = time.perf_counter()
    X, y = load_ingredients("train")
    announce_compilation()
    screen.print(f"Training a CRF on {len(X)} recipe lines ...", style="bold")
    # the settings with the lowest NLL in a cross-validation of the training lines
    model = CRF(Words(window=5, spelling="pos"), c2=0.5, scheme="BIO")
    with plain_warnings():
        model.fit(X, y)
    held = load_ingredients("test")
    report = scores(model, *held)
    report["span_f1"] = report["spans"]["f1"]
    found = table("score", "", "what it says", numbers=[""])
    for key, name, meaning in SCORES:
        found.add_row(name, fixed(report[key]), meaning)
    show(screen, f"Scores on {report['sequences']} other lines", found, "", _trust(model, *held))
    screen.print("New lines, each label with its confidence", style="bold")
    _legend(screen)
    tokens = [line.split() for line in LINES]
    for words, labels, p in zip(
        tokens, model.predict(tokens), model.predict_proba(tokens), strict=True
    ):
        screen.print()
        confidence = p[range(len(words)), [model.classes_.tolist().index(k) for k in labels]]
        _draw(screen, words, labels, confidence.tolist())
    if svg is not None:
        svg.write_text(_picture(screen), encoding="utf-8")
    screen.print(f"\n{time.perf_counter() - begin:.1f} seconds. What to run next:\n")
    _next_steps(screen)


def _picture(screen: Console) -> str:
    """What was printed so far as SVG, in the reader's own fonts."""
    svg = screen.export_svg(title="seqfield demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _trust(model: Any, X: Any, y: Any) -> str:
    """One sentence on what confidence is worth."""
    from seqfield.metrics import precision_by_coverage

    curve = precision_by_coverage(y, model.predict_proba(X), model.classes_, model.predict(X))
    k = int((curve.threshold >= SURE).sum()) - 1
    return (
        f"{curve.coverage[k]:.0%} of the tokens have a confidence of {SURE} or more: "
        f"{curve.precision[k]:.1%} of them are right."
    )


def _style(label: str, confidence: float) -> str:
    """Colour by kind of label, strength by confidence."""
    colour = COLOURS.get(label.partition("-")[2], "default")
    strength = "bold " if confidence >= SURE else "dim " if confidence < UNSURE else ""
    return strength + colour


def _legend(screen: Console) -> None:
    from rich.text import Text

    kinds = Text(" ").join(Text(kind, colour) for kind, colour in COLOURS.items())
    screen.print(Text("B- begins a piece, I- goes on, O is outside; kinds: ") + kinds)
    screen.print(f"bold: confidence of {SURE} or more; dim and ?: below {UNSURE}")


def _draw(screen: Console, words: list[str], labels: list[str], confidence: list[float]) -> None:
    """Tokens with label and confidence underneath, in as many rows as the screen needs."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    rows: list[Text] = []
    room = 0
    for word, label, p in zip(words, labels, confidence, strict=True):
        cells = (word, label + ("?" if p < UNSURE else ""), f"{p:.2f}")
        width = max(map(cell_len, cells)) + 2
        if not rows or width > room:
            for row in rows:
                screen.print(row)
            rows, room = [Text("  ") for _ in cells], screen.width - 2
        for row, cell in zip(rows, cells, strict=True):
            row.append(set_cell_size(cell, width), _style(label, p))
        room -= width
    for row in rows:
        screen.print(row)


def _next_steps(screen: Console) -> None:
    """Three commands that work as they are."""
    import shlex
    from importlib.resources import files

    data = shlex.quote(str(files("seqfield") / "data" / "bundled" / "ingredients.conll"))
    for command in (
        f"seqfield train {data} -o ingredients.sf --scheme BIO --c2 0.5",
        r"printf '2\ncups\nflour\n' | seqfield tag ingredients.sf --confidence",
        "seqfield inspect ingredients.sf --top 5",
    ):
        screen.print(f"  {command}", style="bold", soft_wrap=True, highlight=False)
