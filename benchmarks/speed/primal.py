"""What the losses cost, and boosting 1,000 rounds on Spanish named entities.

    SEQFIELD_DATA=... python -m benchmarks.speed.primal [--part losses|boosting] [--n 100]

losses: a gradient of the CRF objective on CoNLL-2000 chunking (8,936 sentences, 22 labels), one
thread, at weights trained for a few iterations; medians of rounds that take turns.
boosting: all 8,323 sentences of the Spanish training file, words and spelling in a window of
three, bound="exact", defaults otherwise.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from functools import partial
from statistics import median

import numpy as np

import seqfield as sf
from benchmarks._data import chunking_template, conll2000, spanish, words
from benchmarks._process import seconds, take_turns
from benchmarks._table import header, median_ratio, row
from seqfield.architectures.linear import Linear
from seqfield.labels import LabelSet
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.solvers.lbfgs import LBFGS

ROUNDS = 9


def losses(n: int | None) -> None:
    X, y = conll2000("train", n)
    data = sf.Template(chunking_template()).fit_transform(X)
    labels = LabelSet.learn(y)
    targets = labels.encode(y)
    linear = Linear.build(data, targets, len(labels))
    goal = Objective(
        linear, LogLoss(), ElasticNet(0.0, 1.0), data, targets, np.ones(len(X)), None, 1
    )
    theta = LBFGS(max_iter=20).minimise(goal, np.zeros(linear.n_parameters)).theta
    kinds = {"log": LogLoss(), "softmax margin": LogLoss(1.0), "marginal": MarginalLoss()}
    kinds["exp"] = ExponentialLoss()
    goals = {name: goal.with_loss(loss, goal.prior) for name, loss in kinds.items()}
    works = {name: partial(one.value_and_grad, theta) for name, one in goals.items()}
    take_turns(works, 1)  # compiles
    times = take_turns({name: partial(seconds, work) for name, work in works.items()}, ROUNDS)
    header("loss", "gradient", "against log")
    for name, own in times.items():
        row(name, f"{median(own):.3f} s", f"{median_ratio(own, times['log']):.2f}x")


def boosting(n: int | None) -> None:
    X, y = spanish(as_published=True).train.pick(slice(n))
    features = words()
    sf.SequenceBoost(features, max_iter=2).fit(X[:50], y[:50])  # compiles
    model = sf.SequenceBoost(features, max_iter=1000, scheme="BIO")
    took = seconds(partial(model.fit, X, y))
    rerun = [choice.rerun for choice in model.path_]
    falls = np.diff([choice.log_loss for choice in model.path_]) <= 0
    header("sentences", "rounds", "time", "run again: median", "mean", "R never rose")
    row(
        f"{len(X):,}",
        f"{len(rerun):,}",
        f"{took:.0f} s",
        f"{median(rerun):.2%}",
        f"{np.mean(rerun):.1%}",
        falls.all(),
    )


PARTS = {"losses": losses, "boosting": boosting}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="all by default")
    parser.add_argument("--n", type=int, help="the first sentences alone")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for name, part in PARTS.items():
        if args.part in (None, name):
            part(args.n)


if __name__ == "__main__":
    main()
