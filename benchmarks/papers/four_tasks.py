"""The four NLP tasks on the five published folds: token error and negative log-likelihood.

    SEQFIELD_DATA=... python benchmarks/papers/four_tasks.py

Prints one row for each model and task: token error in percent, mean (sd) over the folds, of the
best labelling and of the best label for each token, and NLL = sum over test tokens of -log p(y_t |
x). Nothing is tuned on test labels: the penalty of the "by CV" rows is chosen by 3-fold cross-
validation inside each training fold, and temperatures are fitted there too; the parameters of
kernels are those of the largest evidence, on random sentences of the training fold with 1,500
tokens in all; `sf.Tagger` chooses among its settings by folds of the training fold.

    --model "softmax margin" runs the models whose name contains this; --task likewise.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, KFold

import seqfield as sf
from seqfield.data.datasets import FoldTask, load_fold_task

TASKS = ("basenp", "chunking", "segmentation", "japanesene")
GRID = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]


def pick(items: list, index: np.ndarray) -> list:
    return [items[i] for i in index]


def crf(task: FoldTask, **params: object) -> sf.CRF:
    # every (feature, label) pair has a weight, as in the papers; labels a fold lacks are declared
    return sf.CRF(
        classes=range(len(task.labels)), observed_only=False, tol=1e-7, max_iter=2000, **params
    )


def tuned(task: FoldTask) -> GridSearchCV:
    return GridSearchCV(
        crf(task),
        {"c2": GRID},
        scoring=sf.metrics.get_scorer("log_likelihood"),
        cv=KFold(3, shuffle=True, random_state=0),
    )


def gpsc(task: FoldTask, kernel: sf.kernels.Kernel, **params: object) -> sf.GPSC:
    return sf.GPSC(
        kernel,
        classes=range(len(task.labels)),
        tol=1e-7,
        max_iter=2000,
        learn_kernel=True,
        random_state=0,
        **params,
    )


#: kernels whose parameters, with c2 and the scale of transitions, are learned by the evidence
KERNELS = {
    "linear": sf.kernels.Linear(),
    "degree 2": sf.kernels.Polynomial(2),
    "RBF": sf.kernels.RBF(),
}

MODELS: dict[str, Callable[[FoldTask], object]] = {
    "CRF, c2=1": partial(crf, c2=1.0),
    "CRF, c2 by 3-fold CV": tuned,
    "softmax margin, cost 4, c2=1": partial(crf, loss="softmax_margin", cost=4.0, c2=1.0),
    "softmax margin, cost 4, c2=1, calibrated": partial(
        crf, loss="softmax_margin", cost=4.0, c2=1.0, calibrate=True, random_state=0
    ),
}
MODELS["Tagger"] = lambda task: sf.Tagger(classes=range(len(task.labels)), random_state=0)
MODELS |= {
    f"GPSC, {name}, by evidence": partial(gpsc, kernel=kernel) for name, kernel in KERNELS.items()
}
MODELS["GPSC, linear, by evidence, averaged over the posterior"] = partial(
    gpsc, kernel=KERNELS["linear"], posterior="laplace"
)


DECODINGS = ("viterbi", "posterior")


def measure(make: Callable[[FoldTask], object], task: FoldTask) -> tuple[np.ndarray, list[float]]:
    """Errors (folds, decodings) and NLL of each fold."""
    errors, nlls = [], []
    for train, test in task.folds:
        model = make(task).fit(pick(task.X, train), pick(task.y, train))
        model = getattr(model, "best_estimator_", model)
        X, y = pick(task.X, test), pick(task.y, test)
        found = [model.predict(X, decoding=decoding) for decoding in DECODINGS]
        errors.append([100 * sf.metrics.token_error(y, labels) for labels in found])
        nlls.append(sf.metrics.token_nll(y, model.predict_proba(X), model.classes_))
    return np.array(errors), nlls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--task", default="", help="only tasks whose name contains this")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| model | task | token error % | posterior decoding | NLL |")
    print("| --- | --- | --- | --- | --- |")
    for name, make in MODELS.items():
        for task in (t for t in TASKS if args.model in name and args.task in t):
            errors, nlls = measure(make, load_fold_task(task))
            cells = [f"{each.mean():.2f} ({each.std(ddof=1):.2f})" for each in errors.T]
            print("|", " | ".join([name, task, *cells, f"{np.mean(nlls):.0f}"]), "|", flush=True)


if __name__ == "__main__":
    main()
