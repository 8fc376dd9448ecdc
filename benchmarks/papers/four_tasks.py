"""The four NLP tasks on the five published folds: token error and negative log-likelihood.

    SEQFIELD_DATA=... python -m benchmarks.papers.four_tasks [--model "CRF, c2=1"] [--task chunking]

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
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, KFold

import seqfield as sf
from benchmarks._data import TASKS, published_folds
from benchmarks._table import header, row, with_sd
from seqfield.data.datasets import FoldTask, load_fold_task

GRID = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]


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
    for X, y, X_test, y_test in published_folds(task):
        model = make(task).fit(X, y)
        model = getattr(model, "best_estimator_", model)
        found = [model.predict(X_test, decoding=decoding) for decoding in DECODINGS]
        errors.append([100 * sf.metrics.token_error(y_test, labels) for labels in found])
        nlls.append(sf.metrics.token_nll(y_test, model.predict_proba(X_test), model.classes_))
    return np.array(errors), nlls


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--task", default="", help="only tasks whose name contains this")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    header("model", "task", "token error %", "posterior decoding", "NLL")
    for name, make in MODELS.items():
        for task in (t for t in TASKS if args.model in name and args.task in t):
            errors, nlls = measure(make, load_fold_task(task))
            row(name, task, *map(with_sd, errors.T), f"{np.mean(nlls):.0f}")


if __name__ == "__main__":
    main()
