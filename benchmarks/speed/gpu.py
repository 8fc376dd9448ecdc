"""engine="jax" on an accelerator: forward-backward, and the iterations of dense GPSC.

    python -m benchmarks.speed.gpu [--tokens 50000] [--labels 10]

chain: marginals with summed pairs of 20 x tokens in sequences of 5 to 45, by JAX with the scores
already on the device and with all transfers, and by the compiled loops in the same run.
descent: L-BFGS of dense GPSC on that many distinct tokens of 64 random numbers under an RBF kernel,
the gram matrix formed on the device. An iteration against the floor: reading the gram matrix once,
measured by a bare sum and reckoned at 4.8 TB/s (an H200). Products in other forms are beside it.
Medians of rounds; compilation is told apart. --part chain|descent runs one of the two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks._process import seconds
from benchmarks._table import header, row
from seqfield import chain
from seqfield.architectures._jax import DeviceGram
from seqfield.chain import _padded
from seqfield.kernels import RBF
from seqfield.kernels._jax import OnDevice, product
from seqfield.labels import Targets
from seqfield.linalg._jax import double
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences
from seqfield.solvers import device

ROUNDS, ITERATIONS, WARM = 7, 40, 5
BANDWIDTH = 4.8e12


def offsets_of(n_tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Sequences of 5 to 45 tokens, the last one cut."""
    ends = np.cumsum(rng.integers(5, 46, n_tokens // 5))
    return np.concatenate([[0], ends[ends < n_tokens - 1], [n_tokens]])


def first_and_usual(work: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float]:
    """Seconds of the first call and the median of the others."""
    found = [seconds(lambda: jax.block_until_ready(work())) for _ in range(rounds + 1)]
    return found[0], median(found[1:])


def forward_backward(n_tokens: int, n_labels: int) -> None:
    rng = np.random.default_rng(0)
    offsets = offsets_of(n_tokens, rng)
    node, edge = rng.normal(size=(n_tokens, n_labels)), rng.normal(size=(n_labels, n_labels))
    scores = chain.ChainScores(node, edge, offsets)
    weights = np.ones(len(offsets) - 1)
    print(f"chain: {n_tokens} tokens, {n_labels} labels, {len(weights)} sequences\n")

    def run(engine: str, n_jobs: int = 1) -> chain.Marginals:
        return chain.marginals(scores, pairs="sum", engine=engine, n_jobs=n_jobs)

    rows = [("numba, one thread", *first_and_usual(lambda: run("numba"), 3))]
    rows.append(("numba, all threads", *first_and_usual(lambda: run("numba", -1))))
    rows.append(("JAX with transfers", *first_and_usual(lambda: run("jax", -1))))
    with double():
        batch = _padded.load(scores, None)
        own = first_and_usual(lambda: _padded.run_marginals(batch, "sum", weights)[1:])
        rows.append(("JAX, scores on the device", *own))
    off = np.abs(run("jax").node - run("numba").node).max()
    header(
        "marginals, pairs summed", "first call s", "ms", "tokens / s", "times numba, all threads"
    )
    for name, first, usual in rows:
        ratio = rows[1][2] / usual
        row(name, f"{first:.2f}", f"{1e3 * usual:.2f}", f"{n_tokens / usual:.3g}", f"{ratio:.2f}")
    print(f"\nlargest difference of a node marginal: {off:.1e}\n")


def problem(n: int, s: int, dtype: str) -> tuple[Objective, OnDevice]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 64))
    codes = (x[:, :8] @ rng.normal(size=(8, s)) + rng.normal(size=(n, s))).argmax(axis=1)
    offsets = offsets_of(n, rng)
    begin = time.perf_counter()
    cov = OnDevice.of(RBF(8.0), x, budget=1e13, dtype=dtype, advice="")
    cov.blocks.block_until_ready()
    print(f"gram matrix of {n} tokens in {dtype} formed in {time.perf_counter() - begin:.2f} s")
    goal = Objective(
        DeviceGram(s, cov),
        LogLoss(),
        ElasticNet(0.0, 1.0),
        Sequences(np.arange(n, dtype=np.float64)[:, None], offsets),
        Targets(codes.astype(np.int32), None, offsets),
        np.ones(len(offsets) - 1),
    )
    return goal, cov


def split(n: int, s: int, dtype: str) -> list[tuple[str, float]]:
    """Milliseconds of an iteration and of its parts."""
    goal, cov = problem(n, s, dtype)
    tries, stamps = [0], []
    original = device.try_step

    def counted(*args: object) -> object:
        tries[0] += 1
        return original(*args)

    def callback(step: object) -> bool:
        stamps.append((time.perf_counter(), tries[0]))
        return False

    device.try_step = counted
    begin = time.perf_counter()
    theta = np.zeros(goal.architecture.n_parameters)
    optimiser = device.DeviceLBFGS(max_iter=ITERATIONS, tol=0.0, memory=device.PAIRS)
    result = optimiser.minimise(goal, theta, callback)
    device.try_step = original
    gap = goal.gap(result.theta, result.gradient)
    took = time.perf_counter() - begin
    print(f"{result.n_iter} iterations in {took:.2f} s: {result.value:.8g}, gap {gap:.2g}")
    every = [1e3 * (later[0] - now[0]) for now, later in pairwise(stamps[WARM:])]
    evaluations = (stamps[-1][1] - stamps[WARM][1]) / (len(stamps) - WARM - 1)
    out = [("an iteration", median(every)), ("evaluations an iteration", evaluations)]
    out += parts(goal, theta)
    with double():
        out += products(cov.blocks, s)
        bare = jax.jit(lambda g: g.sum())
        out.append(("floor: a bare sum of G", 1e3 * first_and_usual(lambda: bare(cov.blocks))[1]))
    out.append(("floor: bytes / 4.8 TB/s", 1e3 * cov.blocks.nbytes / BANDWIDTH))
    return out


def parts(goal: Objective, theta: np.ndarray) -> list[tuple[str, float]]:
    """Milliseconds of the two calls that make an iteration."""
    with double():
        at = device._Descent(goal, goal.architecture, theta, device.PAIRS)
        coefficients, scale = np.ones(2 * device.PAIRS), 1.0

        def attempt() -> object:
            where = at.problem, at.point, at.gradient, at.history
            return device.try_step(*where, coefficients, scale, 1e-3, False)

        def take() -> object:
            where = at.problem, at._trial, at.point, at.gradient, at.history
            found, _, at.history = device.take_step(*where, 0)
            return found

        tried, taken = first_and_usual(attempt), first_and_usual(take)
    return [("try_step alone", 1e3 * tried[1]), ("take_step alone", 1e3 * taken[1])]


def products(blocks: jax.Array, s: int) -> list[tuple[str, float]]:
    """Milliseconds of a product with G in several forms."""
    n = blocks.shape[2]
    v = jnp.asarray(np.random.default_rng(0).normal(size=(n, s)))
    short = v.astype(blocks.dtype)
    high = lax.Precision.HIGHEST

    def strips(g: jax.Array, v: jax.Array) -> jax.Array:
        rows = lax.map(lambda strip: strip.astype(jnp.float64) @ v, g)
        return rows.reshape(-1, v.shape[1])[:n]

    forms: dict[str, tuple[Callable[..., jax.Array], jax.Array]] = {
        "product as used": (product, v),
        "product, G V at once": (
            lambda g, v: jnp.einsum("khn,ns->khs", g, v, precision=high),
            short,
        ),
        "product, V' G at once": (
            lambda g, v: jnp.einsum("sm,mn->sn", v, g.reshape(-1, n), precision=high),
            jnp.zeros((s, blocks.shape[0] * blocks.shape[1]), blocks.dtype).at[:, :n].set(short.T),
        ),
    }
    if blocks.dtype == jnp.float32:
        forms["product, strips made float64"] = strips, v
    wanted, out = None, []
    for name, (form, with_v) in forms.items():
        try:
            work = jax.jit(form)
            found = np.asarray(work(blocks, with_v), np.float64)
            found = found.T if found.shape[0] == s else found.reshape(-1, s)[:n]
            wanted = found if wanted is None else wanted
            off = np.abs(found - wanted).max() / np.abs(wanted).max()
            usual = 1e3 * first_and_usual(lambda w=work, x=with_v: w(blocks, x))[1]
            out.append((f"{name} (off by {off:.0e})", usual))
        except Exception as error:  # too little memory, say: the other rows are worth having
            print(f"{name}: {str(error).splitlines()[0]}")
    return out


def descent(n: int, s: int) -> None:
    for dtype in ("float32", "float64"):
        print(f"descent: {n} tokens, {s} labels, {dtype}")
        rows = split(n, s, dtype)
        found = dict(rows)
        floor, reckoned = found["floor: a bare sum of G"], found["floor: bytes / 4.8 TB/s"]
        print()
        title = f"{n} tokens, {s} labels, G in {dtype}"
        header(title, "ms", "times bare sum", "times 4.8 TB/s")
        for name, value in rows:
            if name.startswith("evaluations"):
                row(name, f"{value:.2f} (a number)", "", "")
            else:
                times = (f"{value / base:.2f}" for base in (floor, reckoned))
                row(name, f"{value:.3f}", *times)
        print()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50_000, help="distinct ones")
    parser.add_argument("--labels", type=int, default=10, help="how many")
    parser.add_argument("--part", choices=["chain", "descent"], help="both by default")
    given = parser.parse_args(arguments)
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}\n")
    if given.part != "descent":
        forward_backward(20 * given.tokens, given.labels)
    if given.part != "chain":
        descent(given.tokens, given.labels)


if __name__ == "__main__":
    main()
