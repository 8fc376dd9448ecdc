"""CRF speed and memory against python-crfsuite on CoNLL-2000 chunking, in one run.

    SEQFIELD_DATA=... python benchmarks/speed/crf.py [--quick]

Same data, same CRF++ chunking template, same observed features, same objective: CRFsuite's
penalty is c2 |w|^2 without the half, so its c2=0.5 is c2=1.0 here. Every part runs in a process of
its own, one after the other; CRFsuite has one thread. Times of an iteration are measured in three
rounds that take turns, as machines change their speed by the minute; the ratio is the median of
the rounds' ratios. ``--quick`` leaves out training to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

QUICK = 20
ROUNDS = 3


def corpus() -> Path:
    from seqfield.data.datasets import corpus_folder

    return corpus_folder()


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def crfsuite_items(X: list) -> list:
    """Feature strings of every token, by an expansion that owes nothing to seqfield's."""
    import re

    lines = [
        (line.split(":")[0], re.findall(r"%x\[(-?\d+),(\d+)\]", line))
        for line in (corpus() / "crfpp/chunking/template").read_text().splitlines()
        if line.startswith("U")
    ]

    def value(rows: list, t: int) -> str:
        if t < 0:
            return f"_B{t}"
        return f"_B+{t - len(rows) + 1}" if t >= len(rows) else rows[t]

    out = []
    for rows in X:
        columns = list(zip(*rows, strict=True))
        out.append(
            [
                [
                    name + ":" + "/".join(value(columns[int(c)], t + int(r)) for r, c in macros)
                    for name, macros in lines
                ]
                for t in range(len(rows))
            ]
        )
    return out


def train_crfsuite(model: str, quick: bool) -> dict:
    import pycrfsuite

    from seqfield.data.conll import read_conll

    X, y = read_conll(corpus() / "conll2000/train.txt.gz")
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    # one sentence at a time, so that Python's copy of the strings does not count as CRFsuite's
    for rows, labels in zip(X, y, strict=True):
        trainer.append(crfsuite_items([rows])[0], labels)
    params = {"c1": 0.0, "c2": 0.5}
    trainer.set_params(params | ({"max_iterations": QUICK} if quick else {}))
    begin = time.perf_counter()
    trainer.train(model)
    seconds = time.perf_counter() - begin
    steps = trainer.logparser.iterations
    return {
        "iteration": median(float(step["time"]) for step in steps[1:QUICK]),
        "seconds": seconds,
        "iterations": len(steps),
        "objective": float(steps[-1]["loss"]),
        "peak": peak_gb(),
    }


def memory_crfsuite(model: str) -> dict:
    """Peak memory as in CRFsuite's documentation: all features first, then training."""
    import pycrfsuite

    from seqfield.data.conll import read_conll

    X, y = read_conll(corpus() / "conll2000/train.txt.gz")
    items = crfsuite_items(X)
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    for rows, labels in zip(items, y, strict=True):
        trainer.append(rows, labels)
    trainer.set_params({"c1": 0.0, "c2": 0.5, "max_iterations": 3})
    trainer.train(model)
    return {"peak": peak_gb()}


def train_seqfield(model: str, quick: bool, n_jobs: int, tol: float) -> dict:
    import warnings

    import seqfield as sf
    from seqfield.solvers import lbfgs

    X, y = sf.read_conll(corpus() / "conll2000/train.txt.gz")
    times: list[float] = []
    stall = lbfgs.Stall.__call__

    def timed(self: lbfgs.Stall, value: float) -> bool:
        times.append(time.perf_counter())
        return stall(self, value)

    lbfgs.Stall.__call__ = timed  # called once at the end of each iteration
    crf = sf.CRF(
        features=sf.Template(corpus() / "crfpp/chunking/template"),
        c2=1.0,
        n_jobs=n_jobs,
        max_iter=QUICK if quick else None,
        tol=tol,
    )
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crf.fit(X, y)
    seconds = time.perf_counter() - begin
    crf.save(model)
    steps = [b - a for a, b in zip(times[:-1], times[1:], strict=True)]
    return {
        "iteration": median(steps[:QUICK]),
        "seconds": seconds,
        "iterations": crf.n_iter_,
        "objective": crf.objective_,
        "gap": crf.gap_,
        "peak": peak_gb(),
    }


def tag_crfsuite(model: str) -> dict:
    import pycrfsuite

    from seqfield.data.conll import read_conll
    from seqfield.metrics import span_f1, token_accuracy

    X, y = read_conll(corpus() / "conll2000/test.txt.gz")
    tagger = pycrfsuite.Tagger()
    tagger.open(model)
    items = [pycrfsuite.ItemSequence(rows) for rows in crfsuite_items(X)]
    n = sum(map(len, X))
    predicted = [tagger.tag(item) for item in items]
    rates = []
    for _ in range(5):
        begin = time.perf_counter()
        for item in items:
            tagger.tag(item)
        rates.append(n / (time.perf_counter() - begin))
    return {
        "features": median(rates),
        "accuracy": token_accuracy(y, predicted),
        "f1": span_f1(y, predicted),
    }


def tag_seqfield(model: str) -> dict:
    import seqfield as sf

    path = Path(tempfile.mkdtemp()) / "test.txt"
    import gzip

    path.write_bytes(gzip.decompress((corpus() / "conll2000/test.txt.gz").read_bytes()))
    sf.load(model)  # imports
    begin = time.perf_counter()
    crf = sf.load(model).set_params(n_jobs=1)
    load = time.perf_counter() - begin
    X, y = sf.read_conll(path)
    data = crf.features_.transform(X)
    predicted = crf.predict(data)
    n = data.n_tokens
    from_features, from_file = [], []
    for _ in range(9):
        begin = time.perf_counter()
        crf.predict(data)
        from_features.append(n / (time.perf_counter() - begin))
        begin = time.perf_counter()
        crf.predict(sf.read_conll(path)[0])
        from_file.append(n / (time.perf_counter() - begin))
    return {
        "features": median(from_features),
        "file": median(from_file),
        "accuracy": sf.metrics.token_accuracy(y, predicted),
        "f1": sf.metrics.span_f1(y, predicted),
        "load": load,
    }


def first_prediction(model: str) -> dict:
    code = (
        "import time; t = time.perf_counter(); import seqfield as sf; "
        f"m = sf.load({model!r}); m.predict([[('The', 'DT'), ('cat', 'NN')]]); "
        "print(time.perf_counter() - t)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    return {"seconds": median(times)}


PARTS = {
    "train_crfsuite": lambda a: train_crfsuite(a.model, a.quick),
    "train_seqfield_1": lambda a: train_seqfield(a.model, a.quick, 1, a.tol),
    "train_seqfield_2": lambda a: train_seqfield(a.model, a.quick, 2, a.tol),
    "memory_crfsuite": lambda a: memory_crfsuite(a.model + ".tmp"),
    "tag_crfsuite": lambda a: tag_crfsuite(a.model),
    "tag_seqfield": lambda a: tag_seqfield(a.model),
    "first": lambda a: first_prediction(a.model),
}


TURNS = ("train_crfsuite", "train_seqfield_1", "train_seqfield_2")


def run_part(part: str, model: str, quick: bool, tol: float = 1e-5) -> dict:
    print(f"  {part} ...", file=sys.stderr, flush=True)
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--part", part, "--model", model, "--tol", str(tol)]
    done = subprocess.run(
        command + (["--quick"] if quick else []),
        env=os.environ | one_thread,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tol", type=float, default=1e-5, help="tolerance of seqfield's CRF")
    parser.add_argument("--part", choices=sorted(PARTS))
    parser.add_argument("--model", default="")
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part](args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        peer, own = f"{folder}/peer.model", f"{folder}/own.sf"
        # compile once, so that no timed part does
        run_part("train_seqfield_1", own, True)
        run_part("tag_seqfield", own, True)
        rounds = [
            [run_part(part, f"{folder}/{part}", True)["iteration"] for part in TURNS]
            for _ in range(ROUNDS)
        ]
        c = run_part("train_crfsuite", peer, args.quick)
        two = run_part("train_seqfield_2", own, args.quick, args.tol)
        tc, ts = run_part("tag_crfsuite", peer, args.quick), run_part("tag_seqfield", own, True)
        first = run_part("first", own, True)
        documented = run_part("memory_crfsuite", peer, True)
    theirs, one_thread, two_threads = (median(times) for times in zip(*rounds, strict=True))
    ratios = [median(r[0] / r[k] for r in rounds) for k in (1, 2)]
    rows = [
        ("training iteration, 1 thread", theirs, one_thread, "s", ratios[0]),
        ("training iteration, 2 threads", theirs, two_threads, "s", ratios[1]),
        ("training to default stop, 2 threads", c["seconds"], two["seconds"], "s", True),
        ("iterations", c["iterations"], two["iterations"], "", None),
        ("final objective", c["objective"], two["objective"], "", None),
        ("peak memory, all features in lists", documented["peak"], two["peak"], "GiB", True),
        ("peak memory, fed by the sentence", c["peak"], two["peak"], "GiB", True),
        ("tagging from features, 1 thread", tc["features"], ts["features"], "tokens/s", False),
        ("tagging from a file, 1 thread", None, ts["file"], "tokens/s", False),
        ("test accuracy", 100 * tc["accuracy"], 100 * ts["accuracy"], "%", None),
        ("test F1", 100 * tc["f1"], 100 * ts["f1"], "%", None),
        ("loading the model", None, ts["load"], "s", True),
        ("import, load, first prediction", None, first["seconds"], "s", True),
    ]
    print("rounds (s an iteration: CRFsuite, 1 thread, 2 threads):", rounds, file=sys.stderr)
    print("| | CRFsuite | seqfield | ratio |\n| --- | --- | --- | --- |")
    for name, theirs, ours, unit, better in rows:
        ratio = ""
        if theirs is not None and better is not None:
            # a ratio as measured, or whether smaller numbers are better
            value = better if better not in (True, False) else theirs / ours
            ratio = f"{1 / value if better is False else value:.2f}x"
        shown = "" if theirs is None else f"{theirs:,.6g} {unit}"
        print(f"| {name} | {shown} | {ours:,.6g} {unit} | {ratio} |")


if __name__ == "__main__":
    main()
