"""The galaxy: what sequences and unlabelled points bring (figure 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import seqfield as sf
from benchmarks._figures import pyplot, save
from benchmarks._table import header, progress, row, with_error
from benchmarks.papers.kernel_crf import DECODINGS, as_is
from seqfield.kernels import RBF, Graph

COLOURS = ("tab:blue", "tab:orange")
GALAXY_GRAPH = 10 * Graph(n_neighbors=10, shift=1e-6)
GALAXY_RBF = RBF(0.35)
GALAXY_SIZES, GALAXY_CLIQUES, GALAXY_C2 = (1, 2, 3, 5, 7, 10, 15, 20), 100, 1.0
GALAXY_MODELS = {
    "logistic regression, graph": (False, "graph"),
    "logistic regression, RBF": (False, "RBF"),
    "KCRF, graph": (True, "graph"),
    "KCRF, RBF": (True, "RBF"),
}


def galaxy(tiny: bool, folder: Path | None) -> None:
    """Test error against the number of labelled sequences."""
    trials, sizes, n = (2, (1, 4), 25) if tiny else (10, GALAXY_SIZES, 100)
    errors: dict[str, dict[str, list[list[float]]]] = {
        name: {decoding: [[] for _ in sizes] for decoding in DECODINGS} for name in GALAXY_MODELS
    }
    for trial in range(trials):
        progress("galaxy: trial", trial + 1)
        X, y = sf.make_galaxy(n, random_state=trial)
        order = np.random.default_rng(trial).permutation(n)
        kernels = {"graph": as_is(GALAXY_GRAPH.fit(np.concatenate(X))), "RBF": GALAXY_RBF}
        for at, size in enumerate(sizes):
            told, rest = order[:size], order[size:]
            X_rest, y_rest = [X[i] for i in rest], [y[i] for i in rest]
            for name, (sequences, kernel) in GALAXY_MODELS.items():
                model = galaxy_model(kernels[kernel], transitions=sequences)
                model.fit([X[i] for i in told], [y[i] for i in told])
                if trial == at == 0 and kernel == "graph":
                    same_as_transductive(model, X, y, set(told))
                for decoding, found in errors[name].items():
                    labels = model.predict(X_rest, decoding=decoding)
                    found[at].append(100 * sf.metrics.token_error(y_rest, labels))
    print_galaxy(errors, sizes, trials, n)
    if folder:
        draw_galaxy(folder, errors, sizes)


def galaxy_model(kernel: Any, **params: Any) -> sf.KernelCRF:
    settings = {"n_cliques": GALAXY_CLIQUES, "c2": GALAXY_C2, "classes": [0, 1], "n_jobs": 1}
    return sf.KernelCRF(kernel, **settings | params)


def same_as_transductive(model: sf.KernelCRF, X: Any, y: Any, told: set[int]) -> None:
    """That the shared graph gives what `fit` with unlabelled sequences gives."""
    other = galaxy_model(GALAXY_GRAPH, transitions=model.transitions)
    other.fit(X, [labels if i in told else None for i, labels in enumerate(y)])
    risks = [found.path_[-1].risk for found in (model, other)]
    if not np.isclose(*risks, rtol=1e-3):
        raise AssertionError(f"the shared graph gives another risk: {risks}")


def print_galaxy(errors: Any, sizes: tuple[int, ...], trials: int, n: int) -> None:
    print(
        f"### Galaxy (figure 2): test error %, mean (standard error) of {trials} trials\n\n"
        f"{n} sequences of 20 points, drawn anew for each trial; errors on those that have no "
        f"label. Posterior decoding, c2 = {GALAXY_C2:g} and at most {GALAXY_CLIQUES} cliques for "
        "all. The paper: without sequences both kernels stop at the Bayes error of 20 %, with "
        "them both go below; the graph kernel learns from fewer labels (figure without numbers).\n"
    )
    header(
        "labelled sequences",
        "points",
        *GALAXY_MODELS,
        "RBF - graph, regression",
        "RBF - graph, KCRF",
    )
    posterior = {name: found["posterior"] for name, found in errors.items()}
    names = list(GALAXY_MODELS)
    for at, size in enumerate(sizes):
        cells = [with_error(posterior[name][at], ".1f") for name in names]
        for graph, rbf in (names[:2], names[2:]):
            gap = np.subtract(posterior[rbf][at], posterior[graph][at])
            cells.append(with_error(gap, "+.1f"))
        row(str(size), str(20 * size), *cells)
    print(f"\nWith {sizes[-1]} labelled sequences, by decoding, and trials that end below 20 %:\n")
    header("", *names)
    for decoding in DECODINGS:
        row(decoding, *(with_error(errors[name][decoding][-1], ".1f") for name in names))
    below = [int(np.sum(np.array(posterior[name][-1]) < 20)) for name in names]
    row("trials below 20 %", *(f"{k} of {trials}" for k in below))
    print(flush=True)


def draw_galaxy(folder: Path, errors: Any, sizes: tuple[int, ...]) -> None:
    figure, axes = pyplot().subplots(1, 3, figsize=(12, 3.6))
    X, y = sf.make_galaxy(100, random_state=0)
    points, labels = np.concatenate(X), np.concatenate(y)
    for label, colour in enumerate(COLOURS):
        axes[0].plot(*points[labels == label].T, ".", color=colour, markersize=2)
    axes[0].set(title="galaxy", aspect="equal")
    for axis, sequences in zip(axes[1:], (False, True), strict=True):
        for colour, (name, (is_sequence, kernel)) in zip(
            COLOURS * 2, GALAXY_MODELS.items(), strict=True
        ):
            if is_sequence == sequences:
                values = np.array(errors[name]["posterior"])
                error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
                axis.errorbar(sizes, values.mean(axis=1), error, color=colour, label=kernel)
        axis.axhline(20, color="grey", linewidth=0.8, linestyle=":")
        axis.set(
            title="kernel CRF" if sequences else "kernel logistic regression",
            xlabel="labelled sequences",
            ylabel="test error %",
            ylim=(0, 50),
        )
        axis.legend()
    save(figure, folder, "galaxy.png")
