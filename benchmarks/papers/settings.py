"""Which settings `sf.Tagger` should try, on sentences that the published folds do not use.

    SEQFIELD_DATA=... python benchmarks/papers/settings.py [--task basenp] [--splits 4]

The four tasks' folds take the first sentences of a file; here are the others (of the segmentation
task 19 lines, so its rows say little), in random splits of the folds' sizes. Prints for each kernel
(linear plus so many times the cubed cosine), cost and c2 the token error and the NLL, best first.
The temperature is the best on the tested half, the same advantage for all settings.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from four_tasks import TASKS, pick
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.data.datasets import corpus_folder
from seqfield.kernels import Linear, Normalized

#: folder, file, first sentence and sentence after the last that are free, sizes of a split
FREE = {
    "basenp": ("basenp", "test.data", 300, None, (150, 150)),
    "chunking": ("chunking", "test.data", 100, None, (50, 50)),
    "segmentation": ("seg", "train.data", 0, 19, (12, 7)),
    "japanesene": ("JapaneseNE", "test.utf8.data", 100, None, (50, 50)),
}
WEIGHTS, COSTS, PENALTIES = (0.0, 5.0, 10.0), (0.0, 2.0, 4.0, 8.0), (0.1, 0.3, 1.0, 3.0)


def free_sentences(task: str) -> tuple[Any, list[list[str]], tuple[int, int]]:
    """Encoded sentences with the papers' features, their labels, and the sizes of a split."""
    name, file, begin, end, sizes = FREE[task]
    folder = corpus_folder() / "crfpp" / name
    counted = folder / file.replace("test", "train")
    features = sf.Template((folder / "template").read_text(), min_freq=3)
    features.fit(sf.read_conll(counted)[0])
    tokens, y = sf.read_conll(folder / file)
    return features.transform(tokens[begin:end]), y[begin:end], sizes


def model(weight: float, cost: float, c2: float, classes: list[str]) -> sf.GPSC:
    kernel = Linear() + weight * Normalized(Linear()) ** 3 if weight else Linear()
    loss = "softmax_margin" if cost else "log"
    return sf.GPSC(kernel, loss=loss, cost=cost, c2=c2, classes=classes)


def measured(fitted: sf.GPSC, X: Any, y: list[list[str]]) -> tuple[float, float]:
    """Token error % and the NLL at the best temperature."""

    def nll(log_temperature: float) -> float:
        fitted.temperature_ = float(np.exp(log_temperature))
        return sf.metrics.token_nll(y, fitted.predict_proba(X), fitted.classes_)

    error = 100 * sf.metrics.token_error(y, fitted.predict(X))
    return error, minimize_scalar(
        nll, bounds=(-2, 3), method="bounded", options={"xatol": 0.02}
    ).fun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="", help="only tasks whose name contains this")
    parser.add_argument("--splits", type=int, default=4)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    grid = [(w, cost, c2) for w in WEIGHTS for cost in COSTS for c2 in PENALTIES]
    print("| task | cubed cosine | cost | c2 | token error % | NLL |")
    print("| --- | --- | --- | --- | --- | --- |")
    for task in (t for t in TASKS if args.task in t):
        X, y, sizes = free_sentences(task)
        classes = sorted({label for row in y for label in row})
        found: dict[Any, list[tuple[float, float]]] = {setting: [] for setting in grid}
        for seed in range(args.splits):
            order = np.random.default_rng(seed).permutation(len(y))
            train, test = order[: sizes[0]], order[sizes[0] : sum(sizes)]
            for setting, rows in found.items():
                fitted = model(*setting, classes).fit(X[train], pick(y, train))
                rows.append(measured(fitted, X[test], pick(y, test)))
        means = {setting: np.mean(rows, axis=0) for setting, rows in found.items()}
        for setting in sorted(grid, key=lambda one: means[one][1])[:12]:
            error, nll = means[setting]
            cells = (task, *(f"{v:g}" for v in setting), f"{error:.2f}", f"{nll:.1f}")
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
