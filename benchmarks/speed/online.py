"""Averaged perceptron and stochastic CRF training against python-crfsuite on CoNLL-2000 chunking.

    SEQFIELD_DATA=... python benchmarks/speed/online.py [--quick]

Same data, same template, same observed features as `crf.py`. Every part runs in a process of its
own. Times of an epoch are medians of the epochs of one run, measured in three rounds that take
turns; the ratio is the median of the rounds' ratios. Then each learner is trained for as many
epochs as the table says and scored on the test set. ``--quick`` leaves that out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from statistics import median

from crf import corpus, crfsuite_items

ROUNDS, TIMED = 3, 6
#: learner: CRFsuite's algorithm, its parameters, its epochs, our epochs
LEARNERS = {
    "averaged perceptron": ("ap", {}, 100, 10),
    "stochastic gradients": ("l2sgd", {"c2": 0.5}, 250, 10),
}


def crfsuite(learner: str, epochs: int, score: bool) -> dict:
    import pycrfsuite

    from seqfield.data.conll import read_conll
    from seqfield.metrics import span_f1, token_accuracy

    algorithm, params, _, _ = LEARNERS[learner]
    X, y = read_conll(corpus() / "conll2000/train.txt.gz")
    trainer = pycrfsuite.Trainer(algorithm=algorithm, verbose=False)
    for rows, labels in zip(X, y, strict=True):
        trainer.append(crfsuite_items([rows])[0], labels)
    trainer.set_params(params | {"max_iterations": epochs})
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        trainer.train(f"{folder}/m")
        out = {"seconds": time.perf_counter() - begin}
        out["epoch"] = median(float(step["time"]) for step in trainer.logparser.iterations[1:])
        if score:
            X, y = read_conll(corpus() / "conll2000/test.txt.gz")
            tagger = pycrfsuite.Tagger()
            tagger.open(f"{folder}/m")
            predicted = [tagger.tag(items) for items in crfsuite_items(X)]
            out |= {"accuracy": token_accuracy(y, predicted), "f1": span_f1(y, predicted)}
    return out


def seqfield(learner: str, epochs: int, score: bool, n_jobs: int) -> dict:
    import seqfield as sf
    from seqfield.estimators import _linear

    times: list[float] = []
    watch = _linear._Watch.__call__

    def timed(self: _linear._Watch, step: object) -> bool:
        times.append(time.perf_counter())
        return watch(self, step)

    _linear._Watch.__call__ = timed  # called once at the end of each epoch
    features = sf.Template(corpus() / "crfpp/chunking/template")
    settings = {"max_iter": epochs, "random_state": 0, "n_jobs": n_jobs}
    if learner == "averaged perceptron":
        model = sf.StructuredPerceptron(features, **settings)
    else:
        model = sf.CRF(features, solver="sgd", c2=1.0, **settings)
    X, y = sf.read_conll(corpus() / "conll2000/train.txt.gz")
    begin = time.perf_counter()
    model.fit(X, y)
    out = {"seconds": time.perf_counter() - begin}
    out["epoch"] = median(b - a for a, b in pairwise(times))
    if score:
        X, y = sf.read_conll(corpus() / "conll2000/test.txt.gz")
        predicted = model.predict(X)
        out["accuracy"] = sf.metrics.token_accuracy(y, predicted)
        out["f1"] = sf.metrics.span_f1(y, predicted)
    return out


def run_part(who: str, learner: str, epochs: int, score: bool = False) -> dict:
    print(f"  {who}, {learner}, {epochs} epochs ...", file=sys.stderr, flush=True)
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--who", who, "--learner", learner]
    command += ["--epochs", str(epochs)] + (["--score"] if score else [])
    done = subprocess.run(command, env=os.environ | one_thread, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


WHO = {
    "crfsuite": crfsuite,
    "seqfield, 1 thread": lambda *a: seqfield(*a, n_jobs=1),
    "seqfield, 2 threads": lambda *a: seqfield(*a, n_jobs=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--who", choices=WHO)
    parser.add_argument("--learner", choices=LEARNERS)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--score", action="store_true")
    args = parser.parse_args()
    if args.who:
        print(json.dumps(WHO[args.who](args.learner, args.epochs, args.score)))
        return
    print("| | | epoch | ratio | trained | accuracy | F1 |\n| --- |" + " --- |" * 6)
    for learner, (_, _, theirs, ours) in LEARNERS.items():
        run_part("seqfield, 1 thread", learner, 2)  # compile once, so that no timed part does
        rounds = [[run_part(who, learner, TIMED)["epoch"] for who in WHO] for _ in range(ROUNDS)]
        print(learner, "rounds (s an epoch):", rounds, file=sys.stderr)
        for k, who in enumerate(WHO):
            seconds = median(times[k] for times in rounds)
            ratio = median(times[0] / times[k] for times in rounds)
            cells = [learner, who, f"{seconds:.3f} s", f"{ratio:.2f}x"]
            epochs = theirs if k == 0 else ours
            if args.quick or who == "seqfield, 1 thread":
                cells += ["", "", ""]
            else:
                found = run_part(who, learner, epochs, score=True)
                cells += [f"{epochs} epochs, {found['seconds']:.1f} s"]
                cells += [f"{100 * found['accuracy']:.2f}", f"{100 * found['f1']:.2f}"]
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
