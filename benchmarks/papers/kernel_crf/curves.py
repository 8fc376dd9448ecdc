"""Proteins: what more cliques bring (figure 4), and how long their selection takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import seqfield as sf
from benchmarks._figures import pyplot, save
from benchmarks._table import header, progress, row
from benchmarks.papers.kernel_crf.protein import (
    CLIQUES,
    PROTEIN_CLIQUES,
    chosen,
    drawn,
    protein_model,
)

CURVE_COUNTS = (1, 10, 25, 50, 75, 100, 150, 200, 250, 300)


class Curve(NamedTuple):
    """Risk after each round; at some counts the test log-likelihood and posterior accuracy."""

    risks: list[float]
    counts: tuple[int, ...]
    likelihoods: list[float]
    accuracies: list[float]


def curves(tiny: bool, folder: Path | None) -> None:
    """What more cliques bring, on the first draw."""
    counts = (1, 5, 10) if tiny else CURVE_COUNTS
    data, best = drawn(tiny), chosen(tiny)
    train, test = data.train[0], data.test
    found = {}
    for cliques in CLIQUES:
        likelihoods, accuracies = [], []
        for n in counts:  # selection is the same each time, so these are points of one way
            progress("curves:", cliques, n)
            model = protein_model(best.kernel, cliques, n, **best.penalties)
            model.fit(train.X, train.y)
            likelihoods.append(float(model.log_likelihood(test.X, test.y).sum()))
            labels = model.predict(test.X, decoding="posterior")
            accuracies.append(100 * sf.metrics.token_accuracy(test.y, labels))
        found[cliques] = Curve([r.risk for r in model.path_], counts, likelihoods, accuracies)
    print(
        "### Clique selection on proteins (figure 4): first draw, ten chains\n\n"
        "The paper: with edge cliques the risk falls much faster and the test log-likelihood is "
        "higher, but not the accuracy (figure without numbers).\n"
    )
    measures = ("risk", "test log-likelihood", "test accuracy %")
    header("cliques", *(f"{measure} ({c})" for measure in measures for c in CLIQUES))
    for k, n in enumerate(counts):
        row(
            str(n),
            *(f"{curve.risks[n - 1]:.0f}" for curve in found.values()),
            *(f"{curve.likelihoods[k]:.0f}" for curve in found.values()),
            *(f"{curve.accuracies[k]:.1f}" for curve in found.values()),
        )
    print(flush=True)
    if folder:
        draw_curves(folder, found)


def draw_curves(folder: Path, found: dict[str, Curve]) -> None:
    figure, axes = pyplot().subplots(1, 3, figsize=(12, 3.4))
    for (name, curve), style in zip(found.items(), ("--", "-"), strict=True):
        rounds = range(1, len(curve.risks) + 1)
        axes[0].plot(rounds, curve.risks, style, label=name)
        axes[1].plot(curve.counts, curve.likelihoods, style, label=name)
        axes[2].plot(curve.counts, curve.accuracies, style, label=name)
    titles = ("regularised risk", "test log-likelihood", "test accuracy %")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="cliques")
        axis.legend()
    save(figure, folder, "protein_risk.png")


def times(tiny: bool, folder: Path | None) -> None:
    """How long selection takes, on the first draw."""
    n_cliques = 3 if tiny else PROTEIN_CLIQUES
    data, best = drawn(tiny), chosen(tiny)
    fits = {
        "(v), gradient": (10, "v", "gradient"),
        "(v+e), gradient": (10, "v+e", "gradient"),
        "(v), gradient, 5 chains": (5, "v", "gradient"),
        "(v), mean field, 5 chains": (5, "v", "meanfield"),
    }
    print(
        f"### Time: {n_cliques} rounds on the first draw, ten chains if not said, one thread\n\n"
        "The paper: about 30 minutes for a KCRF, 7 for an SVM, 16 hours for a transductive SVM, "
        "training and testing, in 2004.\n"
    )
    header("KCRF", "training, wall", "training, CPU", "testing, CPU", "risk", "accuracy, posterior")
    for name, (size, cliques, gain) in fits.items():
        progress("time:", name)
        train = data.train[0].pick(slice(size))
        model = protein_model(best.kernel, cliques, n_cliques, gain=gain, **best.penalties)
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(train.X, train.y)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        begin = time.process_time()
        labels = model.predict(data.test.X, decoding="posterior")
        tested = time.process_time() - begin
        accuracy = 100 * sf.metrics.token_accuracy(data.test.y, labels)
        risk = model.path_[-1].risk
        row(name, *(f"{t:.1f} s" for t in (wall, cpu, tested)), f"{risk:.1f}", f"{accuracy:.1f} %")
    print(flush=True)
