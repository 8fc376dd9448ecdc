"""Gaussian-process pseudo-likelihood models (Srijith, Balamurugan and Shevade 2016).

    SEQFIELD_DATA=... python -m benchmarks.papers.gpsl table [--task chunking]
    SEQFIELD_DATA=... python -m benchmarks.papers.gpsl folds [--task chunking] [--folds 1]
    SEQFIELD_DATA=... python -m benchmarks.papers.gpsl missing [--repeats 20] --figures docs
    SEQFIELD_DATA=... python -m benchmarks.papers.gpsl time

table: Table 2, token error over ten random partitions of the CRF++ sets (seeds 0 to 9; the paper's
own are not published) for GPSL1 (-1), GPSL2 (-1, 1) and GPSL4 (-2, -1, 1, 2) beside a CRF, an HM-
SVM and GPstruct (HMC, 60 steps), all with linear kernels, and the paired differences of the GPSL
models; "m + v / 2" predicts with half of the variances added to the scores, as the paper does.
folds: the four tasks on the published folds, GPSL2 also by its chain. missing: figure 2, accuracy
when 5 to 50 % of the training labels are missing, with a CRF and a model without dependencies
beside it, GPSL2 also by its chain. time: Table 3. Nothing is
tuned on test labels: amplitudes are 1, or with --amplitude label those of the largest bound; c2 =
1, C is the default.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from benchmarks._data import TASKS, Data, Split, crfpp, published_folds, random_split
from benchmarks._figures import pyplot, save
from benchmarks._process import seconds
from benchmarks._table import header, row, with_sd
from seqfield.data.datasets import load_fold_task

MODELS = {"GPSL1": (-1,), "GPSL2": (-1, 1), "GPSL4": (-2, -1, 1, 2)}
THEIRS = {
    "basenp": {
        "GPSL1": 5.75, "GPSL2": 5.55, "GPSL4": 5.54, "CRF": 5.21, "HM-SVM": 5.19, "GPstruct": 5.66,
    },
    "chunking": {
        "GPSL1": 13.61, "GPSL2": 12.69, "GPSL4": 12.70, "CRF": 11.76, "HM-SVM": 10.71,
        "GPstruct": 12.56,
    },
    "segmentation": {
        "GPSL1": 24.25, "GPSL2": 23.62, "GPSL4": 23.60, "CRF": 24.10, "HM-SVM": 23.46,
        "GPstruct": 23.79,
    },
}  # fmt: skip
SECONDS = {"segmentation": 19.64, "chunking": 1350.0, "basenp": 6690.0}
#: sentences to train on and to test on; 36 of segmentation are as many as the paper uses
SIZES = {"basenp": (150, 150), "chunking": (50, 50), "segmentation": (20, 16)}
PARTITIONS, REPEATS, FRACTIONS = 10, 5, (0.05, 0.2, 0.35, 0.5)
CHAIN = "GPSL2, by its chain"
Make = Callable[..., Any]


def sentences(task: str) -> Data:
    """What to draw partitions from; of segmentation the training file alone."""
    return crfpp(task, *(["train"] if task == "segmentation" else ["train", "test"]))


@dataclass(frozen=True)
class Models:
    """The models whose names contain `only`."""

    amplitude: str
    only: str

    def gpsl(self, offsets: tuple[int, ...], **params: Any) -> sf.GPSL:
        return sf.GPSL("linear", offsets, amplitude=self.amplitude, random_state=0, **params)

    def makers(self, **params: Any) -> dict[str, Make]:
        gpsl = partial(self.gpsl, **params)
        found: dict[str, Make] = {name: partial(gpsl, offsets) for name, offsets in MODELS.items()}
        found["GPSL2, m + v / 2"] = partial(gpsl, MODELS["GPSL2"], half_variances=True)
        found["CRF"] = partial(sf.CRF, observed_only=False, **params)
        found["HM-SVM"] = partial(sf.HMSVM, "linear", random_state=0, **params)
        found["GPstruct"] = partial(sf.GPStruct, "linear", 60, random_state=0, **params)
        return {name: make for name, make in found.items() if self.only in name}


def table(tasks: Sequence[str], models: Models, partitions: int) -> None:
    header("task", "model", "token error % (sd)", "paper, other partitions")
    for task in tasks:
        source = sentences(task)
        errors: dict[str, list[float]] = {}
        for name, make in models.makers(classes=source.classes).items():
            errors[name] = []
            for seed in range(partitions):
                X, y, X_test, y_test = random_split(source, *SIZES[task], seed)
                predicted = make().fit(X, y).predict(X_test)
                errors[name].append(100 * sf.metrics.token_error(y_test, predicted))
            row(task, name, with_sd(errors[name]), THEIRS[task][name.partition(",")[0]])
        for name in ("GPSL2", "GPSL4") if not models.only else ():
            gap = np.array(errors[name]) - errors["GPSL1"]
            half = student.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / np.sqrt(len(gap))
            theirs = f"{THEIRS[task][name] - THEIRS[task]['GPSL1']:+.2f}"
            row(task, f"{name} - GPSL1, 95 %", f"{gap.mean():+.2f} +- {half:.2f}", theirs)


def folds(tasks: Sequence[str], models: Models, n_folds: int) -> None:
    header("task", "model", "token error % (sd)", "NLL")
    for name in tasks:
        task = load_fold_task(name)
        for label, offsets in MODELS.items():
            if models.only not in label:
                continue
            # both ways to predict from one fit
            ways = ("refine", "chain") if label == "GPSL2" else ("refine",)
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for X, y, X_test, y_test in published_folds(task, n_folds):
                model = models.gpsl(offsets, classes=range(len(task.labels))).fit(X, y)
                for way, rows in found.items():
                    model.set_params(inference=way)
                    error = 100 * sf.metrics.token_error(y_test, model.predict(X_test))
                    p = model.predict_proba(X_test)
                    rows.append((error, sf.metrics.token_nll(y_test, p, model.classes_)))
            for way, rows in found.items():
                errors, nlls = np.array(rows).T
                told = label if way == "refine" else f"{label}, by its chain"
                row(name, told, with_sd(errors), f"{nlls.mean():.0f}")


def missing(tasks: Sequence[str], models: Models, figures: Path | None, repeats: int) -> None:
    """Accuracy by share of missing labels, mean of repeats with other sentences and labels."""
    header("task", "model", *(f"{100 * f:.0f} % missing" for f in FRACTIONS))
    curves: dict[str, dict[str, list[float]]] = {}
    for task in tasks:
        source = sentences(task)
        curves[task] = {}
        alone: dict[str, Make] = {
            "no dependencies": partial(models.gpsl, (), classes=source.classes)
        }
        for name, make in (alone | models.makers(classes=source.classes)).items():
            if name not in (*alone, *MODELS, "CRF") or models.only not in name:
                continue
            # both ways to predict from one fit
            ways = (name, CHAIN) if name == "GPSL2" else (name,)
            found: dict[str, list[list[float]]] = {way: [] for way in ways}
            for fraction in FRACTIONS:
                splits = [random_split(source, *SIZES[task], seed) for seed in range(repeats)]
                rows = [
                    _with_missing(split, make, fraction, 1000 + seed, ways)
                    for seed, split in enumerate(splits)
                ]
                for k, way in enumerate(ways):
                    found[way].append([accuracies[k] for accuracies in rows])
            for way, values in found.items():
                curve = [float(np.mean(v)) for v in values]
                if way in MODELS:
                    curves[task][way] = curve
                row(task, way, *(f"{v:.2f}" for v in curve))
    if figures is not None:
        draw(figures, curves)


def _with_missing(
    split: Split, make: Make, fraction: float, seed: int, ways: tuple[str, ...]
) -> list[float]:
    """The accuracy in per cent of one repeat, by each way to predict."""
    rng = np.random.default_rng(seed)
    y = [[None if rng.random() < fraction else v for v in row] for row in split.y]
    model, out = make().fit(split.X, y), []
    for way in ways:
        if way == CHAIN:
            model.set_params(inference="chain")
        out.append(100 * sf.metrics.token_accuracy(split.y_test, model.predict(split.X_test)))
    return out


def draw(folder: Path, curves: dict[str, dict[str, list[float]]]) -> None:
    for task, found in curves.items():
        figure, axis = pyplot().subplots(figsize=(4, 3.2))
        for name, curve in found.items():
            axis.plot([100 * f for f in FRACTIONS], curve, "o-", label=name)
        axis.set(xlabel="labels missing, %", ylabel="accuracy %", title=task)
        axis.legend()
        save(figure, folder, f"gpsl_missing_{task}.png")


def times(tasks: Sequence[str], models: Models) -> None:
    header("task", "GPSL2, seconds a fit (median of five)", "paper", "times faster")
    for task in tasks:
        source = sentences(task)
        # the first one loads what is compiled
        splits = [random_split(source, *SIZES[task], seed) for seed in range(6)]
        fits = [partial(models.gpsl(MODELS["GPSL2"]).fit, split.X, split.y) for split in splits]
        mine = float(np.median([seconds(fit) for fit in fits][1:]))
        row(task, f"{mine:.2f}", SECONDS[task], f"{SECONDS[task] / mine:.0f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("table", "folds", "missing", "time"))
    parser.add_argument("--task", default="", help="only tasks whose name contains this")
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--figures", type=Path, help="folder for PNG files (missing)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each fraction (missing)")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="how many (table)")
    parser.add_argument("--folds", type=int, default=5, help="the first ones alone (folds)")
    parser.add_argument(
        "--amplitude", default="fixed", choices=("fixed", "label", "shared"), help="of GPSL"
    )
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    models = Models(args.amplitude, args.model)
    three = [task for task in THEIRS if args.task in task]
    if args.part == "folds":
        folds([task for task in TASKS if args.task in task], models, args.folds)
    elif args.part == "table":
        table(three, models, args.partitions)
    elif args.part == "missing":
        missing(three, models, args.figures, args.repeats)
    else:
        times(three, models)


if __name__ == "__main__":
    main()
