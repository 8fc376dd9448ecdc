"""Maximum-margin training: CoNLL-2000 beside our CRF, degree 2 on Spanish names, the four tasks.

    SEQFIELD_DATA=... python -m benchmarks.speed.margin [--n 100 --rounds 1]

CoNLL-2000 chunking with the CRF++ template: the linear HM-SVM to a gap of 1 % and the CRF (observed
features, c2 = 1) to convergence, each in a process of its own, in rounds that take turns; the ratio
is the median of the rounds' ratios. Then one fold of 3,000 Spanish sentences with degree 2, and the
median fit of each of the four tasks with linear kernels at the default C.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import seqfield as sf
from benchmarks._data import (
    TASKS,
    chunking_template,
    conll2000,
    published_folds,
    spanish,
    words,
)
from benchmarks._process import alone, answer, peak_gib, seconds, take_turns
from benchmarks._table import header, median_ratio, percent, row
from benchmarks.papers.hmsvm import N_SENTENCES, names_of, svm
from seqfield.data.datasets import load_fold_task

C = 0.1
LEARNERS = {
    f"linear HM-SVM, C = {C}": partial(sf.HMSVM, "linear", C, random_state=0),
    "CRF, c2 = 1": partial(sf.CRF, c2=1.0, random_state=0),
}


def chunking(learner: str, n: int | None) -> dict[str, Any]:
    X, y = conll2000("train", n)
    features = sf.Template(chunking_template().read_text()).fit(X)
    data = features.transform(X)
    # the loops are compiled, or read from their cache, before the clock starts
    LEARNERS[learner]().fit(data[:50], y[:50])
    model = LEARNERS[learner]()
    took = seconds(partial(model.fit, data, y))
    tokens, (X, y) = data.n_tokens, conll2000("test")
    predicted = model.predict(features.transform(X))
    return {
        "tokens": tokens,
        "seconds": took,
        "iterations": model.n_iter_,
        "gap": model.gap_ / model.objective_,
        "f1": sf.metrics.span_f1(y, predicted),
        "accuracy": sf.metrics.token_accuracy(y, predicted),
        "memory": peak_gib(),
    }


def names(n: int | None) -> dict[str, Any]:
    data = names_of(spanish().train)
    order = np.random.default_rng(0).permutation(len(data.y))[:N_SENTENCES]
    data = data.pick(order[: 4 * N_SENTENCES // 5][:n])
    X = words().fit_transform(data.X)
    scale = float(sf.kernels.Polynomial(2).diagonal(X.x).mean())
    model = svm(2, scale, C=2.0, margin="unit")
    took = seconds(partial(model.fit, X, data.y))
    gap = model.gap_ / model.objective_
    return {"seconds": took, "gap": gap, "tokens": X.n_tokens, "memory": peak_gib()}


def task(name: str, n: int | None) -> dict[str, Any]:
    first, *folds = published_folds(load_fold_task(name))
    first_twice = [first, first, *folds]  # the first time it reads the cache
    times = [
        seconds(partial(sf.HMSVM("linear", random_state=0).fit, fold.X, fold.y))
        for fold in first_twice
    ]
    return {"seconds": median(times[1:])}


PARTS = (
    {learner: partial(chunking, learner) for learner in LEARNERS}
    | {"names": names}
    | {name: partial(task, name) for name in TASKS}
)


def table(args: argparse.Namespace) -> None:
    def part(name: str) -> dict[str, Any]:
        given = [] if args.n is None else ["--n", args.n]
        return alone(__spec__.name, "--part", name, *given)

    rounds = take_turns({name: partial(part, name) for name in LEARNERS}, args.rounds)
    times = {name: [one["seconds"] for one in found] for name, found in rounds.items()}
    firsts = {name: found[0] for name, found in rounds.items()}
    print(f"CoNLL-2000, {next(iter(firsts.values()))['tokens']:,} tokens\n")
    header("learner", "seconds", "iterations", "gap", "accuracy / F1", "memory, GiB")
    for name, first in firsts.items():
        row(
            name,
            f"{median(times[name]):.1f}",
            first["iterations"],
            f"{100 * first['gap']:.2g} %",
            f"{percent(first['accuracy'])} / {percent(first['f1'])}",
            f"{first['memory']:.2f}",
        )
    print(f"\nHM-SVM / CRF: {median_ratio(*times.values()):.2f} of its time\n")
    found = part("names")
    print(
        f"Degree 2, {found['tokens']} Spanish tokens: {found['seconds']:.1f} s to a gap of "
        f"{100 * found['gap']:.2g} %, {found['memory']:.2f} GiB\n"
    )
    for name in TASKS:
        print(f"{name}: {part(name)['seconds']:.2f} s a fit", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, help="sentences of CoNLL-2000 and of the Spanish names")
    parser.add_argument("--rounds", type=int, default=3, help="that take turns")
    parser.add_argument("--part", choices=PARTS, help="one part, with its answer as JSON")
    args = parser.parse_args(arguments)
    if args.part:
        answer(PARTS[args.part](args.n))
    else:
        table(args)


if __name__ == "__main__":
    main()
