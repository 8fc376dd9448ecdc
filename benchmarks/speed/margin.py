"""Maximum-margin training: CoNLL-2000 beside our CRF, degree 2 on Spanish names, the four tasks.

    SEQFIELD_DATA=... python benchmarks/speed/margin.py

CoNLL-2000 chunking with the CRF++ template: the linear HM-SVM to a gap of 1 % and the CRF (observed
features, c2 = 1) to convergence, each in a process of its own, in rounds that take turns; the ratio
is the median of the rounds' ratios. Then one fold of 3,000 Spanish sentences with degree 2, and the
median fit of each of the four tasks with linear kernels at the default C.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from crf import corpus, peak_gb

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

ROUNDS = 3
C = 0.1
TASKS = ("segmentation", "chunking", "basenp", "japanesene")


def chunking(learner: str) -> dict:
    import seqfield as sf

    X, y = sf.read_conll(corpus() / "conll2000/train.txt.gz")
    features = sf.Template((corpus() / "crfpp/chunking/template").read_text()).fit(X)
    data = features.transform(X)
    # the loops are compiled, or read from their cache, before the clock starts
    models = {
        "CRF": lambda: sf.CRF(c2=1.0, random_state=0),
        "HMSVM": lambda: sf.HMSVM("linear", C, random_state=0),
    }
    models[learner]().fit(data[:50], y[:50])
    begin = time.perf_counter()
    model = models[learner]().fit(data, y)
    seconds = time.perf_counter() - begin
    X, y = sf.read_conll(corpus() / "conll2000/test.txt.gz")
    predicted = model.predict(features.transform(X))
    return {
        "seconds": seconds,
        "iterations": model.n_iter_,
        "gap": model.gap_ / model.objective_,
        "f1": sf.metrics.span_f1(y, predicted),
        "accuracy": sf.metrics.token_accuracy(y, predicted),
        "memory": peak_gb(),
    }


def names() -> dict:
    import numpy as np
    from hmsvm import N_SENTENCES, names_of, spanish, svm

    import seqfield as sf

    data = names_of(spanish().train)
    order = np.random.default_rng(0).permutation(len(data.y))[:N_SENTENCES]
    data = data.pick(order[: 4 * N_SENTENCES // 5])
    X = sf.Words(window=3, spelling="ner", columns=False).fit_transform(data.X)
    kernel = sf.kernels.Polynomial(2)
    begin = time.perf_counter()
    model = svm(2, float(kernel.diagonal(X.x).mean()), C=2.0, margin="unit").fit(X, data.y)
    seconds = time.perf_counter() - begin
    gap = model.gap_ / model.objective_
    return {"seconds": seconds, "gap": gap, "tokens": X.n_tokens, "memory": peak_gb()}


def task(name: str) -> dict:
    import seqfield as sf
    from seqfield.data.datasets import load_fold_task

    found, times = load_fold_task(name), []
    for train, _ in [found.folds[0], *found.folds]:  # the first one twice: it reads the cache
        X, y = [found.X[i] for i in train], [found.y[i] for i in train]
        begin = time.perf_counter()
        sf.HMSVM("linear", random_state=0).fit(X, y)
        times.append(time.perf_counter() - begin)
    return {"seconds": median(times[1:])}


def measured(*arguments: str) -> dict:
    """A part in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    rounds = [(measured("HMSVM"), measured("CRF")) for _ in range(ROUNDS)]
    print("CoNLL-2000, 211,727 tokens\n")
    print("| learner | seconds | iterations | gap | accuracy / F1 | memory, GB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for k, label in enumerate((f"linear HM-SVM, C = {C}", "CRF, c2 = 1")):
        first = rounds[0][k]
        scores = f"{100 * first['accuracy']:.2f} / {100 * first['f1']:.2f}"
        seconds = median(r[k]["seconds"] for r in rounds)
        print(
            f"| {label} | {seconds:.1f} | {first['iterations']} | {100 * first['gap']:.2g} % "
            f"| {scores} | {first['memory']:.2f} |"
        )
    ratio = median(svm["seconds"] / crf["seconds"] for svm, crf in rounds)
    print(f"\nHM-SVM / CRF: {ratio:.2f} of its time\n")
    found = measured("names")
    print(
        f"Degree 2, {found['tokens']} Spanish tokens: {found['seconds']:.1f} s to a gap of "
        f"{100 * found['gap']:.2g} %, {found['memory']:.2f} GB\n"
    )
    for name in TASKS:
        print(f"{name}: {measured(name)['seconds']:.2f} s a fit")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        part = sys.argv[1]
        result = names() if part == "names" else task(part) if part in TASKS else chunking(part)
        print(json.dumps(result))
