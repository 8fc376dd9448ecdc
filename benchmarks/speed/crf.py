"""CRF speed and memory against python-crfsuite on CoNLL-2000 chunking, in one run.

    SEQFIELD_DATA=... python -m benchmarks.speed.crf [--quick] [--n 100 --rounds 1]

Same data, same CRF++ chunking template, same observed features, same objective: CRFsuite's
penalty is c2 |w|^2 without the half, so its c2=0.5 is c2=1.0 here. Every part runs in a process of
its own, one after the other; CRFsuite has one thread. Times of an iteration are measured in
rounds that take turns, as machines change their speed by the minute; the ratio is the median of
the rounds' ratios. ``--quick`` leaves out training to the end.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._data import chunking_template, conll2000
from benchmarks._process import alone, answer, peak_gib, seconds, take_turns, timed
from benchmarks._table import header, median_ratio, progress, row
from benchmarks.speed import _crfsuite
from seqfield.data.datasets import corpus_folder

QUICK = 20
PENALTY = {"c1": 0.0, "c2": 0.5}


# --- the parts, each in a process of its own ------------------------------------------------------
# what they need is imported by them: it counts in their memory


def train_crfsuite(args: argparse.Namespace) -> dict[str, Any]:
    params = PENALTY | ({"max_iterations": QUICK} if args.quick else {})
    trainer = _crfsuite.trainer("lbfgs", args.n, params)
    took = seconds(partial(trainer.train, args.model))
    steps = trainer.logparser.iterations
    return {
        "iteration": median(float(step["time"]) for step in steps[1:QUICK]),
        "seconds": took,
        "iterations": len(steps),
        "objective": float(steps[-1]["loss"]),
        "peak": peak_gib(),
    }


def memory_crfsuite(args: argparse.Namespace) -> dict[str, Any]:
    """Peak memory as in CRFsuite's documentation: all features first, then training."""
    params = PENALTY | {"max_iterations": 3}
    _crfsuite.trainer("lbfgs", args.n, params, lists=True).train(args.model + ".tmp")
    return {"peak": peak_gib()}


def train_seqfield(args: argparse.Namespace, n_jobs: int) -> dict[str, Any]:
    import seqfield as sf
    from seqfield.solvers import lbfgs

    X, y = conll2000("train", args.n)
    times: list[float] = []
    stall = lbfgs.Stall.__call__

    def watched(self: lbfgs.Stall, value: float) -> bool:
        times.append(time.perf_counter())
        return stall(self, value)

    lbfgs.Stall.__call__ = watched  # called once at the end of each iteration
    crf = sf.CRF(
        features=sf.Template(chunking_template()),
        c2=1.0,
        n_jobs=n_jobs,
        max_iter=QUICK if args.quick else None,
        tol=args.tol,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        took = seconds(partial(crf.fit, X, y))
    crf.save(args.model)
    return {
        "iteration": median([b - a for a, b in pairwise(times)][:QUICK]),
        "seconds": took,
        "iterations": crf.n_iter_,
        "objective": crf.objective_,
        "gap": crf.gap_,
        "peak": peak_gib(),
    }


def tag_crfsuite(args: argparse.Namespace) -> dict[str, Any]:
    import pycrfsuite

    from seqfield.metrics import span_f1, token_accuracy

    X, y = conll2000("test")
    tagger = _crfsuite.tagger(args.model)
    items = [pycrfsuite.ItemSequence(rows) for rows in _crfsuite.items(X)]
    n = sum(map(len, X))
    predicted = [tagger.tag(item) for item in items]
    rates = [n / seconds(lambda: [tagger.tag(item) for item in items]) for _ in range(5)]
    return {
        "features": median(rates),
        "accuracy": token_accuracy(y, predicted),
        "f1": span_f1(y, predicted),
    }


def tag_seqfield(args: argparse.Namespace) -> dict[str, Any]:
    import seqfield as sf

    path = Path(tempfile.mkdtemp()) / "test.txt"
    path.write_bytes(gzip.decompress((corpus_folder() / "conll2000/test.txt.gz").read_bytes()))
    sf.load(args.model)  # imports
    crf, load = timed(lambda: sf.load(args.model).set_params(n_jobs=1))
    X, y = sf.read_conll(path)
    data = crf.features_.transform(X)
    predicted = crf.predict(data)
    ways = {
        "features": partial(seconds, lambda: crf.predict(data)),
        "file": partial(seconds, lambda: crf.predict(sf.read_conll(path)[0])),
    }
    rates = {way: data.n_tokens / median(s) for way, s in take_turns(ways, 9).items()}
    return rates | {
        "accuracy": sf.metrics.token_accuracy(y, predicted),
        "f1": sf.metrics.span_f1(y, predicted),
        "load": load,
    }


def first_prediction(args: argparse.Namespace) -> dict[str, Any]:
    code = (
        "import time; t = time.perf_counter(); import seqfield as sf; "
        f"m = sf.load({args.model!r}); m.predict([[('The', 'DT'), ('cat', 'NN')]]); "
        "print(time.perf_counter() - t)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    return {"seconds": median(times)}


PARTS = {
    "train_crfsuite": train_crfsuite,
    "train_seqfield_1": partial(train_seqfield, n_jobs=1),
    "train_seqfield_2": partial(train_seqfield, n_jobs=2),
    "memory_crfsuite": memory_crfsuite,
    "tag_crfsuite": tag_crfsuite,
    "tag_seqfield": tag_seqfield,
    "first": first_prediction,
}
TURNS = ("train_crfsuite", "train_seqfield_1", "train_seqfield_2")


# --- all of them ----------------------------------------------------------------------------------


def table(args: argparse.Namespace) -> None:
    def part(name: str, model: str, quick: bool = True, tol: float = 1e-5) -> dict[str, Any]:
        given = ["--part", name, "--model", model, "--tol", tol, *(["--quick"] if quick else [])]
        given += [] if args.n is None else ["--n", args.n]
        return alone(__spec__.name, *given, blas_threads=False)

    with tempfile.TemporaryDirectory() as folder:
        peer, own = f"{folder}/peer.model", f"{folder}/own.sf"
        # compile once, so that no timed part does
        part("train_seqfield_1", own)
        part("tag_seqfield", own)
        works = {name: partial(part, name, f"{folder}/{name}") for name in TURNS}
        rounds = {
            name: [one["iteration"] for one in found]
            for name, found in take_turns(works, args.rounds).items()
        }
        c = part("train_crfsuite", peer, args.quick)
        two = part("train_seqfield_2", own, args.quick, args.tol)
        tc, ts = part("tag_crfsuite", peer), part("tag_seqfield", own)
        first = part("first", own)
        documented = part("memory_crfsuite", peer)
    progress("rounds (s an iteration):", rounds)
    theirs, *ours = rounds.values()
    one_thread, two_threads = ((median(theirs), median(o), median_ratio(theirs, o)) for o in ours)
    header("", "CRFsuite", "seqfield", "ratio")
    compare("training iteration, 1 thread", *one_thread[:2], "s", one_thread[2])
    compare("training iteration, 2 threads", *two_threads[:2], "s", two_threads[2])
    less("training to default stop, 2 threads", c["seconds"], two["seconds"], "s")
    compare("iterations", c["iterations"], two["iterations"])
    compare("final objective", c["objective"], two["objective"])
    less("peak memory, all features in lists", documented["peak"], two["peak"], "GiB")
    less("peak memory, fed by the sentence", c["peak"], two["peak"], "GiB")
    rates = tc["features"], ts["features"]
    compare("tagging from features, 1 thread", *rates, "tokens/s", rates[1] / rates[0])
    compare("tagging from a file, 1 thread", None, ts["file"], "tokens/s")
    compare("test accuracy", 100 * tc["accuracy"], 100 * ts["accuracy"], "%")
    compare("test F1", 100 * tc["f1"], 100 * ts["f1"], "%")
    compare("loading the model", None, ts["load"], "s")
    compare("import, load, first prediction", None, first["seconds"], "s")


def compare(
    name: str, theirs: float | None, ours: float, unit: str = "", ratio: float | None = None
) -> None:
    shown = "" if theirs is None else f"{theirs:,.6g} {unit}"
    row(name, shown, f"{ours:,.6g} {unit}", "" if ratio is None else f"{ratio:.2f}x")


def less(name: str, theirs: float, ours: float, unit: str) -> None:
    """A row of which smaller numbers are better."""
    compare(name, theirs, ours, unit, theirs / ours)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="do not train to the end")
    parser.add_argument("--n", type=int, help="train on the first sentences alone")
    parser.add_argument("--rounds", type=int, default=3, help="that take turns")
    parser.add_argument("--tol", type=float, default=1e-5, help="tolerance of seqfield's CRF")
    parser.add_argument("--part", choices=sorted(PARTS), help="one part, with its answer as JSON")
    parser.add_argument("--model", default="", help="model file of a part")
    args = parser.parse_args(arguments)
    if args.part:
        answer(PARTS[args.part](args))
    else:
        table(args)


if __name__ == "__main__":
    main()
