"""Which settings `sf.Tagger` should try, on sentences that the published folds do not use.

    SEQFIELD_DATA=... python -m benchmarks.tagger_settings grid [--task basenp] [--splits 4]
    SEQFIELD_DATA=... python -m benchmarks.tagger_settings procedure [--task basenp] [--seed 100]

The four tasks' folds take the first sentences of a file; here are the others (of the segmentation
task 19 lines, so its rows say little), in random splits of the folds' sizes.

grid: for each kernel (linear plus so many times the cubed cosine), cost and c2 the token error and
the NLL, best first. The temperature is the best on the tested half, the same advantage for all.
procedure: `sf.Tagger` as a whole, choice and temperature by folds of the training half, for several
scales of transitions and weights of rare features; differences from the first row, with standard
errors. --seed is that of the first split: the settings were found on those from 0 on.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from benchmarks._data import TASKS, Split, crfpp, random_split
from benchmarks._table import header, row, with_error
from seqfield.estimators import tagger
from seqfield.kernels import InverseFrequency, Linear, Normalized
from seqfield.predictions import Calibration

#: CRF++'s file, which of its sentences are free, sizes of a split
FREE = {
    "basenp": ("test", slice(300, None), (150, 150)),
    "chunking": ("test", slice(100, None), (50, 50)),
    "segmentation": ("train", slice(19), (12, 7)),
    "japanesene": ("test", slice(100, None), (50, 50)),
}
WEIGHTS, COSTS, PENALTIES = (0.0, 5.0, 10.0), (0.0, 2.0, 4.0, 8.0), (0.1, 0.3, 1.0, 3.0)
#: scale of transitions and power of the inverse frequency
PRIORS = ((1.0, 0.0), (0.3, 0.0), (0.3, 0.1), (0.3, 0.15), (0.3, 0.2))


def model(weight: float, cost: float, c2: float, classes: list[str]) -> sf.GPSC:
    kernel = Linear()
    if weight:
        kernel = InverseFrequency(Linear() + weight * Normalized(Linear()) ** 3, tagger.RARITY)
    loss = "softmax_margin" if cost else "log"
    return sf.GPSC(kernel, loss=loss, cost=cost, c2=c2, eta=tagger.ETA, classes=classes)


def measured(fitted: sf.GPSC, X: Any, y: list[list[str]]) -> tuple[float, float]:
    """Token error % and the NLL at the best temperature."""

    def nll(log_temperature: float) -> float:
        fitted.calibration_ = Calibration(float(np.exp(log_temperature)))
        return sf.metrics.token_nll(y, fitted.predict_proba(X), fitted.classes_)

    error = 100 * sf.metrics.token_error(y, fitted.predict(X))
    return error, minimize_scalar(
        nll, bounds=(-2, 3), method="bounded", options={"xatol": 0.02}
    ).fun


def halves(task: str, seeds: range) -> Iterator[tuple[Split, list[str]]]:
    """Random halves, and all labels."""
    part, free, sizes = FREE[task]
    data = crfpp(task, part).pick(free)
    for seed in seeds:
        yield random_split(data, *sizes, seed), data.classes


def grid(task: str, seeds: range) -> None:
    settings = [(w, cost, c2) for w in WEIGHTS for cost in COSTS for c2 in PENALTIES]
    found: dict[Any, list[tuple[float, float]]] = {setting: [] for setting in settings}
    for (X, y, X_test, y_test), classes in halves(task, seeds):
        for setting, rows in found.items():
            rows.append(measured(model(*setting, classes).fit(X, y), X_test, y_test))
    means = {setting: np.mean(rows, axis=0) for setting, rows in found.items()}
    for setting in sorted(settings, key=lambda one: means[one][1])[:12]:
        error, nll = means[setting]
        row(task, *(f"{v:g}" for v in setting), f"{error:.2f}", f"{nll:.1f}")


def procedure(task: str, seeds: range) -> None:
    found: dict[Any, list[tuple[float, float]]] = {prior: [] for prior in PRIORS}
    for (X, y, X_test, y_test), classes in halves(task, seeds):
        for prior, rows in found.items():
            tagger.ETA, tagger.RARITY = prior
            fitted = sf.Tagger(classes=classes, random_state=0).fit(X, y)
            error = 100 * sf.metrics.token_error(y_test, fitted.predict(X_test))
            nll = sf.metrics.token_nll(y_test, fitted.predict_proba(X_test), fitted.classes_)
            rows.append((error, nll))
    first = np.array(found[PRIORS[0]])
    for prior, rows in found.items():
        error, nll = np.mean(rows, axis=0)
        changes = [with_error(change, "+.2f") for change in (np.array(rows) - first).T]
        row(task, *prior, f"{error:.2f}", changes[0], f"{nll:.1f}", changes[1])


PARTS = {
    "grid": (grid, 4, ("task", "cubed cosine", "cost", "c2", "token error %", "NLL")),
    "procedure": (
        procedure,
        8,
        ("task", "eta", "power", "token error %", "change", "NLL", "change"),
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--task", default="", help="only tasks whose name contains this")
    parser.add_argument("--splits", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first split")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    run, n_splits, cells = PARTS[args.part]
    header(*cells)
    for task in (t for t in TASKS if args.task in t):
        run(task, range(args.seed, args.seed + (args.splits or n_splits)))


if __name__ == "__main__":
    main()
