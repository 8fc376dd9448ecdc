"""What the losses cost, and boosting 1,000 rounds on Spanish named entities.

    SEQFIELD_DATA=... python benchmarks/speed/primal.py [--part losses|boosting]

losses: a gradient of the CRF objective on CoNLL-2000 chunking (8,936 sentences, 22 labels), one
thread, at weights trained for a few iterations; medians of rounds that take turns.
boosting: all 8,323 sentences of the Spanish training file, words and spelling in a window of
three, bound="exact", defaults otherwise.
"""

from __future__ import annotations

import argparse
import time
import warnings
from statistics import median

import numpy as np

import seqfield as sf
from seqfield.architectures.linear import Linear
from seqfield.data.datasets import corpus_folder
from seqfield.labels import LabelSet
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.solvers.lbfgs import LBFGS

ROUNDS = 9


def losses() -> None:
    X, y = sf.read_conll(corpus_folder() / "conll2000/train.txt.gz")
    data = sf.Template(corpus_folder() / "crfpp/chunking/template").fit_transform(X)
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
    times: dict[str, list[float]] = {name: [] for name in goals}
    for turn in range(ROUNDS + 1):
        for name, one in goals.items():
            begin = time.perf_counter()
            one.value_and_grad(theta)
            if turn > 0:  # the first one compiles
                times[name].append(time.perf_counter() - begin)
    print("| loss | gradient | against log |\n| --- | --- | --- |")
    for name, own in times.items():
        ratio = median(a / b for a, b in zip(own, times["log"], strict=True))
        print(f"| {name} | {median(own):.3f} s | {ratio:.2f}x |", flush=True)


def boosting() -> None:
    X, y = sf.read_conll(corpus_folder() / "conll2002/esp.train.gz")
    features = sf.Words(window=3, spelling="ner", columns=False)
    sf.SequenceBoost(features, max_iter=2).fit(X[:50], y[:50])  # compiles
    model = sf.SequenceBoost(features, max_iter=1000, scheme="BIO", on_violation="repair")
    begin = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - begin
    rerun = [choice.rerun for choice in model.path_]
    falls = np.diff([choice.log_loss for choice in model.path_]) <= 0
    print("| sentences | rounds | time | run again: median | mean | R never rose |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(
        f"| {len(X):,} | {len(rerun):,} | {seconds:.0f} s | {median(rerun):.2%} "
        f"| {np.mean(rerun):.1%} | {falls.all()} |"
    )


PARTS = {"losses": losses, "boosting": boosting}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, part in PARTS.items():
        if args.part in (None, name):
            part()


if __name__ == "__main__":
    main()
