"""Kernel models: an iteration against bare products, gram matrices, clique selection.

    SEQFIELD_DATA=... python benchmarks/speed/kernel.py [--part iteration|gram|cliques|spanish]

iteration: dense GPSC on 6,000 tokens and 9 labels, one L-BFGS iteration against two bare products
of the gram matrix with an (n, 9) matrix by numpy; gram: the degree-2 gram matrix of 6,000 tokens
of sparse features against scipy's sparse product X X'; both in rounds that take turns, medians of
ratios. cliques: 300 rounds of vertex and edge clique selection on ten protein chains. spanish:
800 sentences, degree 2, through the gram matrix and through explicit features, each in a process
of its own for its peak memory; and all 8,323 sentences of esp.train through explicit features.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

import seqfield as sf
from seqfield.architectures.kernel import Gram
from seqfield.kernels.gram import gram, product
from seqfield.kernels.tokens import Tokens
from seqfield.labels import LabelSet
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.solvers.lbfgs import LBFGS

sys.path.insert(0, str(Path(__file__).parents[1] / "papers"))

ROUNDS, N_TOKENS = 9, 6000


def spanish_data(n: int | None):
    """Random sentences of the thesis's training part; None: all of esp.train, as published."""
    from _thesis_data import spanish

    data = spanish(as_published=n is None).train
    if n is not None:
        chosen = np.random.default_rng(0).permutation(len(data.y))[:n]
        data = data.pick(np.sort(chosen))
    return sf.Words(window=3, spelling="ner", columns=False).fit_transform(data.X), data.y


def iteration() -> None:
    data, y = spanish_data(200)
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
    ratios, bares, owns = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(10):
            g @ v
            g @ v
        bare = (time.perf_counter() - begin) / 10
        begin = time.perf_counter()
        done = LBFGS(max_iter=20, tol=0.0).minimise(goal, start)
        own = (time.perf_counter() - begin) / done.n_iter
        ratios.append(own / bare)
        bares.append(bare)
        owns.append(own)
    print(
        f"dense GPSC, {len(g)} tokens, {s} labels: an iteration {1000 * median(owns):.1f} ms, two "
        f"bare products {1000 * median(bares):.1f} ms, ratio {median(ratios):.2f}"
    )


def gram_matrix() -> None:
    data, _ = spanish_data(200)
    x = data.x[:N_TOKENS].astype(np.float64)
    kernel = sf.kernels.Polynomial(2)
    gram(kernel, x, budget=2**33, n_jobs=-1)
    ratios, bares, owns = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        x @ x.T
        bare = time.perf_counter() - begin
        begin = time.perf_counter()
        gram(kernel, x, budget=2**33, n_jobs=-1)
        own = time.perf_counter() - begin
        ratios.append(own / bare)
        bares.append(bare)
        owns.append(own)
    print(
        f"gram matrix of {x.shape[0]} tokens, degree 2: {median(owns):.2f} s, scipy's sparse X X' "
        f"{median(bares):.2f} s, ratio {median(ratios):.2f}"
    )


def cliques() -> None:
    from _kcrf_data import draw

    X, y = draw(1).train[0]
    for kind in ("vertex", "vertex+edge"):
        model = sf.KernelCRF(sf.kernels.RBF(np.sqrt(5.0)), cliques=kind, n_cliques=2)
        model.fit(X, y)  # compiles
        begin = time.perf_counter()
        model.set_params(n_cliques=300).fit(X, y)
        seconds = time.perf_counter() - begin
        n = sum(map(len, y))
        print(f"{kind}: {len(model.path_)} rounds on {n} residues in {seconds:.1f} s", flush=True)


WAYS = {
    "gram": (800, {"explicit": False}),
    "gram, float32": (800, {"explicit": False, "gram_dtype": "float32"}),
    "explicit": (800, {"explicit": True}),
    "explicit, all of esp.train": (None, {"explicit": True}),
}


def spanish_way(name: str) -> None:
    n, params = WAYS[name]
    data, y = spanish_data(n)
    begin = time.perf_counter()
    model = sf.GPSC(sf.kernels.Polynomial(2), **params).fit(data, y)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {name} | {data.n_tokens:,} | {model.n_tokens_:,} | {model.n_iter_} | {seconds:.0f} s "
        f"| {peak:.1f} GiB | {model.objective_:.2f} | {model.gap_:.2g} |",
        flush=True,
    )


def spanish_ways() -> None:
    print("| way | tokens | distinct | iterations | time | peak memory | objective | gap |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in WAYS:
        subprocess.run([sys.executable, __file__, "--way", name], check=True)


PARTS = {
    "iteration": iteration,
    "gram": gram_matrix,
    "cliques": cliques,
    "spanish": spanish_ways,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        spanish_way(args.way)
        return
    for name, part in PARTS.items():
        if args.part in (None, name):
            part()


if __name__ == "__main__":
    main()
