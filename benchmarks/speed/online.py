"""Averaged perceptron and stochastic CRF training against python-crfsuite on CoNLL-2000 chunking.

    SEQFIELD_DATA=... python -m benchmarks.speed.online [--quick] [--n 100 --rounds 1]

Same data, same template, same observed features as `crf`. Every part runs in a process of its
own. Times of an epoch are medians of the epochs of one run, measured in rounds that take
turns; the ratio is the median of the rounds' ratios. Then each learner is trained for as many
epochs as the table says and scored on the test set. ``--quick`` leaves that out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import seqfield as sf
from benchmarks._data import chunking_template, conll2000
from benchmarks._process import alone, answer, seconds, take_turns
from benchmarks._table import header, median_ratio, percent, progress, row
from benchmarks.speed import _crfsuite
from seqfield.estimators._descent import Watch
from seqfield.metrics import span_f1, token_accuracy

TIMED = 6
#: learner: CRFsuite's algorithm, its parameters, its epochs, our epochs
LEARNERS: dict[str, tuple[str, dict[str, float], int, int]] = {
    "averaged perceptron": ("ap", {}, 100, 10),
    "stochastic gradients": ("l2sgd", {"c2": 0.5}, 250, 10),
}


def crfsuite(args: argparse.Namespace) -> dict[str, Any]:
    algorithm, params, _, _ = LEARNERS[args.learner]
    trainer = _crfsuite.trainer(algorithm, args.n, params | {"max_iterations": args.epochs})
    with tempfile.TemporaryDirectory() as folder:
        out = {"seconds": seconds(partial(trainer.train, f"{folder}/m"))}
        out["epoch"] = median(float(step["time"]) for step in trainer.logparser.iterations[1:])
        if args.score:
            X, y = conll2000("test")
            tagger = _crfsuite.tagger(f"{folder}/m")
            out |= scores(y, [tagger.tag(items) for items in _crfsuite.items(X)])
    return out


def own(args: argparse.Namespace, n_jobs: int) -> dict[str, Any]:
    times: list[float] = []
    watch = Watch.__call__

    def watched(self: Watch, step: object) -> bool:
        times.append(time.perf_counter())
        return watch(self, step)

    Watch.__call__ = watched  # called once at the end of each epoch
    features = sf.Template(chunking_template())
    settings = {"max_iter": args.epochs, "random_state": 0, "n_jobs": n_jobs}
    if args.learner == "averaged perceptron":
        model = sf.StructuredPerceptron(features, **settings)
    else:
        model = sf.CRF(features, solver="sgd", c2=1.0, **settings)
    out = {"seconds": seconds(partial(model.fit, *conll2000("train", args.n)))}
    out["epoch"] = median(b - a for a, b in pairwise(times))
    if args.score:
        X, y = conll2000("test")
        out |= scores(y, model.predict(X))
    return out


def scores(y: Any, predicted: Any) -> dict[str, float]:
    return {"accuracy": token_accuracy(y, predicted), "f1": span_f1(y, predicted)}


WHO = {
    "crfsuite": crfsuite,
    "seqfield, 1 thread": partial(own, n_jobs=1),
    "seqfield, 2 threads": partial(own, n_jobs=2),
}


def table(args: argparse.Namespace) -> None:
    def part(who: str, learner: str, epochs: int, score: bool = False) -> dict[str, Any]:
        given = ["--who", who, "--learner", learner, "--epochs", epochs]
        given += (["--score"] if score else []) + ([] if args.n is None else ["--n", args.n])
        return alone(__spec__.name, *given, blas_threads=False)

    header("", "", "epoch", "ratio", "trained", "accuracy", "F1")
    for learner, (_, _, theirs, ours) in LEARNERS.items():
        part("seqfield, 1 thread", learner, 2)  # compile once, so that no timed part does
        works = {who: partial(part, who, learner, TIMED) for who in WHO}
        rounds = {
            who: [one["epoch"] for one in found]
            for who, found in take_turns(works, args.rounds).items()
        }
        progress(learner, "rounds (s an epoch):", rounds)
        for who, times in rounds.items():
            ratio = median_ratio(rounds["crfsuite"], times)
            cells = [learner, who, f"{median(times):.3f} s", f"{ratio:.2f}x"]
            epochs = theirs if who == "crfsuite" else ours
            if args.quick or who == "seqfield, 1 thread":
                cells += ["", "", ""]
            else:
                found = part(who, learner, epochs, score=True)
                cells += [f"{epochs} epochs, {found['seconds']:.1f} s"]
                cells += [percent(found["accuracy"]), percent(found["f1"])]
            row(*cells)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="do not train to the end")
    parser.add_argument("--n", type=int, help="train on the first sentences alone")
    parser.add_argument("--rounds", type=int, default=3, help="that take turns")
    parser.add_argument("--who", choices=WHO, help="one learner, with its answer as JSON")
    parser.add_argument("--learner", choices=LEARNERS, help="what it learns (with --who)")
    parser.add_argument("--epochs", type=int, help="how long (with --who)")
    parser.add_argument("--score", action="store_true", help="and how well (with --who)")
    args = parser.parse_args(arguments)
    if args.who:
        answer(WHO[args.who](args))
    else:
        table(args)


if __name__ == "__main__":
    main()
