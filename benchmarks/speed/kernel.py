"""Kernel models: an iteration against bare products, gram matrices, clique selection.

    SEQFIELD_DATA=... python -m benchmarks.speed.kernel [--part gram] [--n 20]

iteration: dense GPSC on 6,000 tokens and 9 labels, one L-BFGS iteration against two bare products
of the gram matrix with an (n, 9) matrix by numpy; gram: the degree-2 gram matrix of 6,000 tokens
of sparse features against scipy's sparse product X X'; both in rounds that take turns, medians of
ratios. cliques: 300 rounds of vertex and edge clique selection on ten protein chains. spanish:
800 sentences, degree 2, through the gram matrix and through explicit features, each in a process
of its own for its peak memory; and all 8,323 sentences of esp.train through explicit features.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import seqfield as sf
from benchmarks._data import protein_draws, spanish, words
from benchmarks._process import alone, answer, peak_gib, seconds, take_turns
from benchmarks._table import header, median_ratio, row
from seqfield.architectures.kernel import Gram
from seqfield.kernels.gram import gram, product
from seqfield.kernels.tokens import Tokens
from seqfield.labels import LabelSet
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.solvers.lbfgs import LBFGS

ROUNDS, N_TOKENS = 9, 6000


def spanish_data(n: int | None) -> tuple[sf.Sequences, list[list[str]]]:
    """Random sentences of the thesis's training part; None: all of esp.train, as published."""
    data = spanish(as_published=n is None).train
    if n is not None:
        chosen = np.random.default_rng(0).permutation(len(data.y))[:n]
        data = data.pick(np.sort(chosen))
    return words().fit_transform(data.X), data.y


def compared(own: Callable[[], float], bare: Callable[[], float]) -> tuple[float, float, float]:
    """Median seconds of both, and the median ratio of rounds that take turns."""
    times = take_turns({"bare": bare, "own": own}, ROUNDS)
    ratio = median_ratio(times["own"], times["bare"])
    return median(times["own"]), median(times["bare"]), ratio


def iteration(n: int | None) -> None:
    data, y = spanish_data(n or 200)
    tokens = Tokens.of(data)
    g = gram(sf.kernels.Polynomial(2), tokens.x, budget=2**33)
    labels = LabelSet.learn(y)
    s = len(labels)
    architecture = Gram(s, len(g), lambda v: product(g, v, -1))
    goal = Objective(
        architecture,
        LogLoss(),
        ElasticNet(0.0, 1.0),
        tokens.numbered(),
        labels.encode(y),
        np.ones(len(y)),
        None,
        -1,
    )
    start = np.zeros(architecture.n_parameters)
    v = np.random.default_rng(0).normal(size=(len(g), s))
    LBFGS(max_iter=3, tol=0.0).minimise(goal, start)

    def bare() -> float:
        return seconds(lambda: [g @ v for _ in range(20)]) / 10

    def own() -> float:
        begin = time.perf_counter()
        done = LBFGS(max_iter=20, tol=0.0).minimise(goal, start)
        return (time.perf_counter() - begin) / done.n_iter

    mine, theirs, ratio = compared(own, bare)
    print(
        f"dense GPSC, {len(g)} tokens, {s} labels: an iteration {1000 * mine:.1f} ms, two "
        f"bare products {1000 * theirs:.1f} ms, ratio {ratio:.2f}"
    )


def gram_matrix(n: int | None) -> None:
    data, _ = spanish_data(n or 200)
    x = data.x[:N_TOKENS].astype(np.float64)
    whole = partial(gram, sf.kernels.Polynomial(2), x, budget=2**33, n_jobs=-1)
    whole()
    mine, theirs, ratio = compared(partial(seconds, whole), lambda: seconds(lambda: x @ x.T))
    print(
        f"gram matrix of {x.shape[0]} tokens, degree 2: {mine:.2f} s, scipy's sparse X X' "
        f"{theirs:.2f} s, ratio {ratio:.2f}"
    )


def cliques(n: int | None) -> None:
    X, y = protein_draws(1).train[0].pick(slice(n))
    for kind in ("vertex", "vertex+edge"):
        model = sf.KernelCRF(sf.kernels.RBF(np.sqrt(5.0)), cliques=kind, n_cliques=2)
        model.fit(X, y)  # compiles
        took = seconds(partial(model.set_params(n_cliques=n or 300).fit, X, y))
        residues = sum(map(len, y))
        print(f"{kind}: {len(model.path_)} rounds on {residues} residues in {took:.1f} s")


WAYS: dict[str, tuple[int | None, dict[str, Any]]] = {
    "gram": (800, {"explicit": False}),
    "gram, float32": (800, {"explicit": False, "gram_dtype": "float32"}),
    "explicit": (800, {"explicit": True}),
    "explicit, all of esp.train": (None, {"explicit": True}),
}


def spanish_way(name: str, n: int | None) -> dict[str, Any]:
    usual, params = WAYS[name]
    data, y = spanish_data(n or usual)
    model = sf.GPSC(sf.kernels.Polynomial(2), **params)
    took = seconds(partial(model.fit, data, y))
    return {
        "tokens": data.n_tokens,
        "distinct": model.n_tokens_,
        "iterations": model.n_iter_,
        "seconds": took,
        "peak": peak_gib(),
        "objective": model.objective_,
        "gap": model.gap_,
    }


def spanish_ways(n: int | None) -> None:
    header("way", "tokens", "distinct", "iterations", "time", "peak memory", "objective", "gap")
    for name in WAYS:
        found = alone(__spec__.name, "--way", name, *([] if n is None else ["--n", n]))
        row(
            name,
            f"{found['tokens']:,}",
            f"{found['distinct']:,}",
            found["iterations"],
            f"{found['seconds']:.0f} s",
            f"{found['peak']:.1f} GiB",
            f"{found['objective']:.2f}",
            f"{found['gap']:.2g}",
        )


PARTS = {
    "iteration": iteration,
    "gram": gram_matrix,
    "cliques": cliques,
    "spanish": spanish_ways,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="all by default")
    parser.add_argument("--n", type=int, help="so few sentences, or chains and cliques")
    parser.add_argument("--way", choices=WAYS, help="one of spanish, with its answer as JSON")
    args = parser.parse_args(arguments)
    if args.way:
        answer(spanish_way(args.way, args.n))
        return
    for name, part in PARTS.items():
        if args.part in (None, name):
            part(args.n)


if __name__ == "__main__":
    main()
