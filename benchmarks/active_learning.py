"""Learning curves of what `seqfield.active.rank` chooses, against random choice.

    SEQFIELD_DATA=... python -m benchmarks.active_learning [ner] [protein] [--figures docs]

A simulation: all labels are known, and those of chosen sequences are shown to the model. It starts
from random sequences, the same for all strategies, and each round adds the ones that a strategy
ranks first. Random choice goes on further than the others, to see how much it needs for their last
score; that is read off its mean curve, straight lines between the points.

ner: CoNLL-2002 Spanish, a pool of 1,500 sentences, span F1 on 600 sentences of esp.testa; 25
sentences a round. protein: secondary structure of JPred4 domains from windows of 9 profile rows, a
pool of 300 chains, token accuracy by posterior decoding on 100 other chains; 5 chains a round.
Pools and test sets differ from repeat to repeat.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from benchmarks._data import Split, encoded, proteins, spanish, words
from benchmarks._figures import pyplot, save
from benchmarks._table import header, row, with_sd

#: arguments of `rank`; None draws at random
STRATEGIES: dict[str, dict[str, Any] | None] = {
    "random": None,
    "sequence_entropy": {"strategy": "sequence_entropy"},
    "least_confidence": {"strategy": "least_confidence"},
    "expected_spans": {"strategy": "expected_spans"},
    "token_entropy": {"strategy": "token_entropy"},
    "sequence_entropy, per token": {"strategy": "sequence_entropy", "per_token": True},
    "sequence_entropy, diversity 0.5": {"strategy": "sequence_entropy", "diversity": 0.5},
    "diversity": {"strategy": "diversity"},
}


class Task(NamedTuple):
    """What is learned, how it is measured, and how many sequences there are after each round."""

    title: str
    measure: str
    split: Callable[[np.random.Generator], Split]
    model: Callable[[], Any]
    score: Callable[[Any, Split], float]
    sizes: list[int]
    beyond: list[int]
    strategies: list[str]


class Curve(NamedTuple):
    """Score and labelled tokens (repeats, rounds) by number of labelled sequences."""

    sizes: list[int]
    score: np.ndarray
    tokens: np.ndarray


def ner() -> Task:
    corpus = spanish()

    def split(rng: np.random.Generator) -> Split:
        pool = corpus.train.pick(rng.permutation(len(corpus.train.y))[:1500])
        test = corpus.test.pick(rng.permutation(len(corpus.test.y))[:600])
        return encoded(pool, test, words())

    return Task(
        "CoNLL-2002 Spanish named entities",
        "span F1 %",
        split,
        lambda: sf.CRF(c2=1.0, scheme="BIO", max_iter=50, n_jobs=1),
        lambda model, data: sf.metrics.span_f1(data.y_test, model.predict(data.X_test)),
        list(range(25, 251, 25)),
        [300, 400, 500, 600, 700],
        list(STRATEGIES),
    )


def protein() -> Task:
    chains = proteins()

    def split(rng: np.random.Generator) -> Split:
        order = rng.permutation(len(chains.y))
        pool, test = chains.pick(order[:300]), chains.pick(order[300:400])
        rows = np.vstack(pool.X)
        mean, sd = rows.mean(axis=0), rows.std(axis=0)
        pool, test = (part._replace(X=[(x - mean) / sd for x in part.X]) for part in (pool, test))
        return encoded(pool, test, sf.Window(9))

    def score(model: Any, data: Split) -> float:
        return sf.metrics.token_accuracy(
            data.y_test, model.predict(data.X_test, decoding="posterior")
        )

    return Task(
        "Protein secondary structure (JPred4)",
        "token accuracy %",
        split,
        lambda: sf.CRF(c2=30.0, max_iter=25, n_jobs=1),
        score,
        list(range(5, 51, 5)),
        [75, 100, 150, 200],
        [name for name in STRATEGIES if name != "expected_spans"],
    )


def simulate(task: Task, name: str, repeats: int) -> Curve:
    scores, tokens, options = [], [], STRATEGIES[name]
    sizes = task.sizes + (task.beyond if options is None else [])
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        data = task.split(rng)
        order = rng.permutation(len(data.y))
        chosen: list[int] = []
        model: Any = None
        for size in sizes:
            if model is None or options is None:
                chosen = order[:size].tolist()
            else:
                known = set(chosen)
                y = [row if i in known else None for i, row in enumerate(data.y)]
                best = sf.active.rank(model, data.X, n=size - len(chosen), y=y, **options)
                chosen += [one.sequence for one in best]
            model = task.model().fit(data.X[np.array(chosen)], [data.y[i] for i in chosen])
            scores.append(100 * task.score(model, data))
            tokens.append(int(data.X.lengths[chosen].sum()))
    shape = repeats, len(sizes)
    return Curve(sizes, np.reshape(scores, shape), np.reshape(tokens, shape))


def needed(random: Curve, score: float, amounts: np.ndarray) -> str:
    """How much random choice takes to a score, by its mean curve."""
    # best so far: a curve that dips reaches a score where it first does
    mean = np.maximum.accumulate(random.score.mean(axis=0))
    if score > mean[-1]:
        return f"more than {amounts[-1]:,.0f}"
    return f"{np.interp(score, mean, amounts):,.0f}"


def report(task: Task, curves: dict[str, Curve], seconds: float) -> None:
    random, last = curves["random"], len(task.sizes) - 1
    repeats = len(random.score)
    print(f"\n### {task.title}: {repeats} repeats, {seconds:.0f} s\n")
    half = last // 2
    header(
        "strategy",
        f"{task.measure} with {task.sizes[half]} sequences (sd)",
        f"with {task.sizes[last]} (sd)",
        "sequences that random choice needs for that",
        f"tokens in {task.sizes[last]}",
        "tokens that random choice needs",
    )
    for name, curve in curves.items():
        at, final = (curve.score[:, k] for k in (half, last))
        row(
            name,
            with_sd(at, ".1f", ddof=0),
            with_sd(final, ".1f", ddof=0),
            needed(random, final.mean(), np.array(random.sizes)),
            f"{curve.tokens[:, last].mean():,.0f}",
            needed(random, final.mean(), random.tokens.mean(axis=0)),
        )


def draw(task: Task, curves: dict[str, Curve], folder: Path, file: str) -> None:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for name, curve in curves.items():
        n = len(task.sizes) if name != "random" else len(task.sizes) + 1
        mean, sd = curve.score.mean(axis=0)[:n], curve.score.std(axis=0)[:n]
        # a strategy has the same colour in all figures
        style: Any = {"color": f"C{list(STRATEGIES).index(name)}", "linewidth": 1.2}
        if name == "random":
            style = {"color": "black", "linewidth": 2.5}
        for axis, amounts in ((left, curve.sizes[:n]), (right, curve.tokens.mean(axis=0)[:n])):
            axis.plot(amounts, mean, label=name, **style)
            axis.fill_between(amounts, mean - sd, mean + sd, color=style["color"], alpha=0.08)
    left.set(xlabel="labelled sequences", ylabel=task.measure, title=task.title)
    right.set(xlabel="labelled tokens")
    right.legend(fontsize=8, loc="lower right")
    save(figure, folder, file)


def main(arguments: Sequence[str] | None = None) -> None:
    tasks = {"ner": ner, "protein": protein}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", help=f"{' or '.join(tasks)}; all by default")
    parser.add_argument("--repeats", type=int, default=3, help="of the simulation")
    parser.add_argument("--rounds", type=int, help="the first ones alone; random goes no further")
    parser.add_argument("--figures", type=Path, help="folder for PNG files")
    args = parser.parse_args(arguments)
    unknown = set(args.tasks) - set(tasks)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in args.tasks or tasks:
        task, begin = tasks[name](), time.time()
        if args.rounds is not None:
            task = task._replace(sizes=task.sizes[: args.rounds], beyond=[])
        curves = {one: simulate(task, one, args.repeats) for one in task.strategies}
        report(task, curves, time.time() - begin)
        if args.figures is not None:
            draw(task, curves, args.figures, f"active_{name}.png")


if __name__ == "__main__":
    main()
