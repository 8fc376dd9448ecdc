"""Hidden Markov SVMs and dual perceptrons (Altun 2005, chapter 4).

    SEQFIELD_DATA=... python -m benchmarks.papers.hmsvm ner
    SEQFIELD_DATA=... python -m benchmarks.papers.hmsvm prosody
    SEQFIELD_DATA=... python -m benchmarks.papers.hmsvm four
    SEQFIELD_DATA=... python -m benchmarks.papers.hmsvm support

ner: Spanish named entities, five folds over 3,000 random sentences that are shorter than 60 and
have at least 3 labels of names, window 3 (Table 4.1). prosody: the Helsinki corpus in place of
Switchboard, window 5, degree 1, 2 and 3 (figure 4.1), with the sparseness figures of section 4.6.
four: the four NLP tasks on the published folds, C by 3-fold cross-validation inside each training
fold. support: the support sequences of an HM-SVM beside those of GPSC (section 5.6), and one
sentence as in figure 4.2. --folds 1 does the first fold alone, --n 60 with so few sentences.

C, penalties and epochs are those of the best F1 or accuracy on sentences outside of all folds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, KFold

import seqfield as sf
from benchmarks._data import (
    TASKS,
    Data,
    Split,
    encoded,
    five_folds,
    published_folds,
    spanish,
    words,
)
from benchmarks._process import timed
from benchmarks._prosody import prosody, windowed
from benchmarks._table import header, row, with_sd
from seqfield.data.datasets import FoldTask, load_fold_task

N_SENTENCES, N_DEVELOPMENT, LONGEST, FEWEST = 3000, 600, 60, 3
N_FRAGMENTS = 1824
#: C in units of 1 / mean k(x, x), the same for every kernel
C_GRID = (0.02, 0.07, 0.2, 0.7, 2.0, 7.0, 20.0)
PITCH_GRID = (0.07, 0.2, 0.7, 2.0)
C2_GRID = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
EPOCHS = (5, 10, 20)
ALPHAS = (0.01, 0.1, 1.0)
Make = Callable[..., Any]
Metric = Callable[[Any, Any], float]


def kernel_of(degree: int) -> Any:
    return sf.kernels.Linear() if degree == 1 else sf.kernels.Polynomial(degree)


def svm(degree: int, scale: float, *, C: float, **params: Any) -> sf.HMSVM:
    return sf.HMSVM(
        kernel_of(degree),
        C / scale,
        random_state=0,
        gram_dtype="float32",
        gram_budget=8.0,
        **params,
    )


def perceptron(degree: int, *, max_iter: int, average: bool) -> sf.StructuredPerceptron:
    return sf.StructuredPerceptron(
        kernel=kernel_of(degree), max_iter=max_iter, average=average, random_state=0
    )


class Study:
    """Folds, development data, a score; models are tuned on the one and measured on the other."""

    def __init__(
        self, data: Data, rest: Data, features: Any, metric: Metric, n_folds: int, only: str
    ) -> None:
        self.metric, self.only, self.n = metric, only, len(data.y)
        cut = 2 * len(rest.y) // 3
        self.development = encoded(rest.pick(slice(cut)), rest.pick(slice(cut, None)), features)
        self.folds = five_folds(data, features, n_folds)
        self.tokens = self.folds[0].X.x

    def title(self, name: str) -> None:
        n, tokens = len(self.folds), self.folds[0].X.n_tokens
        print(f"\n### {name}, {self.n} sentences, {n} folds of {tokens} tokens\n")

    def scale(self, degree: int) -> float:
        """Mean of k(x, x)."""
        return float(kernel_of(degree).fit(self.tokens).diagonal(self.tokens).mean())

    def score(self, model: Any, part: Split) -> float:
        return 100 * self.metric(part.y_test, model.fit(part.X, part.y).predict(part.X_test))

    def tuned(self, make: Make, name: str, grid: tuple[Any, ...]) -> tuple[Make, str]:
        """The maker with the value that is best on development data, and what that is."""
        scores = {value: self.score(make(**{name: value}), self.development) for value in grid}
        best = max(scores, key=lambda value: scores[value])
        return partial(make, **{name: best}), f"{name} = {best:g}"

    def add(self, name: str, theirs: str, make: Make, key: str, grid: tuple[Any, ...]) -> list[Any]:
        """Print the row of a tuned model, if it is asked for; the models of the folds."""
        if self.only not in name:
            return []
        make, chosen = self.tuned(make, key, grid)
        scores, models, begin = [], [], time.time()
        for part in self.folds:
            models.append(make())
            scores.append(self.score(models[-1], part))
        minutes = (time.time() - begin) / 60 / len(scores)
        row(name, chosen, with_sd(scores, ddof=0), theirs, f"{minutes:.2f}")
        return models


def names_of(data: Data) -> Data:
    """Sentences that are not long and have some names."""
    fits = [len(labels) < LONGEST and sum(v != "O" for v in labels) >= FEWEST for labels in data.y]
    return data.pick(np.flatnonzero(fits))


def named_entities(n_folds: int, only: str, most: int | None) -> None:
    data = names_of(spanish().train)
    order = np.random.default_rng(0).permutation(len(data.y))
    study = Study(
        data.pick(order[:N_SENTENCES][:most]),
        data.pick(order[N_SENTENCES:][:N_DEVELOPMENT][:most]),
        words(),
        sf.metrics.span_f1,
        n_folds,
        only,
    )
    study.title("Spanish named entities")
    header("model", "chosen on other sentences", "F1 (sd)", "thesis", "minutes a fold")
    study.add("HMM, overlapping features", "69.11", sf.HMM, "alpha", ALPHAS)
    crf = partial(sf.CRF, observed_only=False)
    study.add("CRF", "72.62", crf, "c2", C2_GRID)
    for average in (False, True):
        dual = partial(perceptron, 2, average=average)
        word = ", averaged" if average else ""
        theirs = "" if average else "72.15"
        study.add(f"dual perceptron, degree 2{word}", theirs, dual, "max_iter", EPOCHS)
    machines(study, {1: "", 2: "72.77", 3: "73.15"})


def machines(study: Study, theirs: dict[int, str], grid: tuple[float, ...] = C_GRID) -> None:
    """HM-SVMs of several degrees; the thesis has unit margins."""
    supports = {}
    for degree, number in theirs.items():
        for margin in ("unit", "hamming"):
            make = partial(svm, degree, study.scale(degree), margin=margin)
            name = f"HM-SVM, degree {degree}, {margin} margin"
            supports[name] = study.add(name, number if margin == "unit" else "", make, "C", grid)
    print("\nC is in units of 1 / mean k(x, x).\n")
    header(
        "model", "support sequences", "% of sequences without", "for each with some",
        "positions from gold", "gap %",
    )  # fmt: skip
    for name, models in ((name, found) for name, found in supports.items() if found):
        reports = [model.support_ for model in models]
        row(
            name,
            f"{np.mean([len(r) for r in reports]):.0f}",
            f"{100 * np.mean([r.without for r in reports]):.1f}",
            f"{np.mean([r.mean_count for r in reports]):.2f}",
            f"{np.mean([r.mean_distance for r in reports]):.2f}",
            f"{100 * np.mean([m.gap_ / m.objective_ for m in models]):.2f}",
        )


def pitch(n_folds: int, only: str, most: int | None) -> None:
    raw = prosody(N_FRAGMENTS + N_DEVELOPMENT)
    data = Data(windowed(raw.X, 5), raw.y)
    study = Study(
        data.pick(slice(N_FRAGMENTS)).pick(slice(most)),
        data.pick(slice(N_FRAGMENTS, None)).pick(slice(most)),
        sf.Attributes(min_freq=2),
        sf.metrics.token_accuracy,
        n_folds,
        only,
    )
    study.title("Prosody, window 5")
    header("model", "chosen on other sentences", "accuracy % (sd)", "thesis", "minutes a fold")
    crf = partial(sf.CRF, observed_only=False)
    study.add("CRF", "", crf, "c2", C2_GRID)
    dual = partial(perceptron, 2, average=False)
    study.add("dual perceptron, degree 2", "", dual, "max_iter", EPOCHS)
    machines(study, {1: "", 2: "", 3: ""}, PITCH_GRID)
    print(
        "\nThesis (Switchboard): 5716 support sequences, 41.73 % without, 4.24 for each with some."
    )


# --- the four tasks -------------------------------------------------------------------------------

THEIRS = {"basenp": (5.9, 4.91), "chunking": (9.8, 8.43), "segmentation": (16.2, 16.2)}
THEIRS["japanesene"] = (5.6, 4.72)


def searched(task: FoldTask, kernel: Any, **params: Any) -> GridSearchCV:
    """C by 3-fold cross-validation of the accuracy inside the training fold."""
    scale = np.mean([kernel.diagonal(x).mean() for x in task.X])
    return GridSearchCV(
        sf.HMSVM(kernel, classes=range(len(task.labels)), random_state=0, **params),
        {"C": [C / scale for C in C_GRID]},
        scoring=sf.metrics.get_scorer("token_accuracy"),
        cv=KFold(3, shuffle=True, random_state=0),
    )


def four(tasks: Sequence[str], n_folds: int, only: str) -> None:
    header("task", "model", "token error % (sd)", "GPstruct paper's SVM", "svm_hmm", "C", "fit, s")
    for name in tasks:
        task = load_fold_task(name)
        makers: dict[str, Make] = {
            f"linear, {margin} margin": partial(searched, task, sf.kernels.Linear(), margin=margin)
            for margin in ("unit", "hamming", "slack")
        }
        makers["RBF, hamming margin"] = partial(searched, task, sf.kernels.RBF(4.0))
        if name == "japanesene":  # these folds can be separated
            makers["linear, hamming margin, hard"] = partial(
                sf.HMSVM, "linear", slack="hard", classes=range(len(task.labels)), random_state=0
            )
        for label, make in makers.items():
            if only not in label:
                continue
            errors, costs, seconds = [], [], []
            for X, y, X_test, y_test in published_folds(task, n_folds):
                model: Any = make()
                if isinstance(model, GridSearchCV):
                    found = model.fit(X, y)
                    costs.append(f"{found.best_params_['C']:.3g}")
                    model = found.best_estimator_
                model, took = timed(partial(model.fit, X, y))
                seconds.append(took)
                errors.append(100 * sf.metrics.token_error(y_test, model.predict(X_test)))
            row(
                name,
                label,
                with_sd(errors),
                *THEIRS[name],
                " ".join(costs),
                f"{np.median(seconds):.2f}",
            )


# --- support sequences ----------------------------------------------------------------------------


def support(n: int | None) -> None:
    """300 sentences, as in figure 4.2."""
    data = names_of(spanish().train)
    data = data.pick(np.random.default_rng(0).permutation(len(data.y))[: n or 300])
    X = words().fit_transform(data.X)
    kernel = kernel_of(2)
    scale = float(kernel.fit(X.x).diagonal(X.x).mean())
    found = {
        "HM-SVM, unit margin": svm(2, scale, C=2.0, margin="unit").fit(X, data.y),
        "HM-SVM, Hamming margin": svm(2, scale, C=2.0, margin="hamming").fit(X, data.y),
        "GPSC, labelled sequences": sf.GPSC(
            kernel, c2=3.0, method="sequence", n_coordinates=1000, random_state=0
        ).fit(X, data.y),
    }
    print(f"\n### Support sequences of {len(data.y)} Spanish sentences, degree 2\n")
    header(
        "model", "support sequences", "% of sentences without", "for each with some",
        "positions from gold, mean", "median", "tokens of a sentence",
    )  # fmt: skip
    for name, model in found.items():
        report = model.support_
        far = [len(one.positions) for one in report.sequences]
        row(
            name,
            len(report),
            f"{100 * report.without:.1f}",
            f"{report.mean_count:.2f}",
            f"{report.mean_distance:.2f}",
            f"{np.median(far):g}",
            f"{X.n_tokens / len(X):.1f}",
        )
    report = found["HM-SVM, unit margin"].support_
    short = [i for i in report.gold if len(data.y[i]) <= 14 and len(report.of(i)) > 3]
    i = max(short, key=lambda i: len(report.of(i)))
    print("\n```\n" + report.show(i, [word[0] for word in data.X[i]]) + "\n```")


PARTS = {"ner": named_entities, "prosody": pitch}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=[*PARTS, "four", "support"])
    parser.add_argument("--folds", type=int, default=5, help="the first ones alone")
    parser.add_argument("--n", type=int, help="so few sentences (not four)")
    parser.add_argument("--task", default="", help="only tasks whose name contains this (four)")
    parser.add_argument("--model", default="", help="only models whose name contains this")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    if args.part == "support":
        support(args.n)
    elif args.part == "four":
        four([task for task in TASKS if args.task in task], args.folds, args.model)
    else:
        PARTS[args.part](args.folds, args.model, args.n)


if __name__ == "__main__":
    main()
