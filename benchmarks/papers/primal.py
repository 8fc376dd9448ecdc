"""The thesis's primal experiments (Altun 2005, tables 2.1-2.3 and 3.1-3.3, figure 3.2).

    SEQFIELD_DATA=... python -m benchmarks.papers.primal [--part ner] [--tiny]

Prints markdown tables beside the thesis's numbers; progress goes to standard error. Penalties,
length weights, boosting rounds and perceptron epochs are chosen on development data only. Part of
speech and prosody use other corpora than the thesis, so there the orderings are to be compared.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

import seqfield as sf
from benchmarks._data import Corpus, Data, english, spanish, words
from benchmarks._prosody import only, prosody, windowed
from benchmarks._table import header, row, with_error
from benchmarks.papers._primal_learners import (
    TOL,
    Found,
    Task,
    boosted,
    fit,
    kept,
    search,
    sequence_models,
)

RESELECTION_ROUNDS, RESELECTION_SHOWN = 100, 15
RESELECTION_WEIGHTS = (0.05, 0.1, 0.2, 0.8)
PROSODY_WINDOWS, FOLDS = (1, 3, 5), 10


# --- named entities and parts of speech -----------------------------------------------------------

NER_SETS = {"S1": (1, None), "S2": (1, "ner"), "S3": (3, "ner")}
NER_THESIS = {
    "log": (59.92, 70.26, 74.83),
    "marginal": (None, None, 74.17),
    "exp": (59.68, 69.11, 74.22),
    "boosting": (48.23, 69.00, 73.88),
    "perceptron": (None, None, 73.41),
}
POS_SETS = {"S1": (1, None), "S2": (1, "pos")}
POS_THESIS = {
    "log": (94.91, 95.68),
    "marginal": (None, 95.71),
    "exp": (94.57, 95.25),
    "boosting": (89.42, 94.91),
    "perceptron": (None, 95.91),
}


def named_entities(tiny: bool) -> Task:
    return Task(
        "NER",
        some(spanish(), 150 if tiny else None),
        sf.metrics.span_f1,
        log={"c2": (0.1, 0.3)},
        marginal=None,
        exp={"length_weight": (1.0,), "c2": (1e-6, 1e-5)},
        rounds=(20, 50) if tiny else (500, 1000, 2000, 3000, 4000, 6000),
        boost_weights=(0.9,),
        epochs=(10, 20, 40),
        options={"scheme": "BIO"},
    )


def ner(tiny: bool) -> None:
    print("### Spanish named entities: F1 on esp.testa (thesis: the same data)\n")
    by_set(named_entities(tiny), NER_SETS, NER_THESIS)


def pos(tiny: bool) -> None:
    task = Task(
        "POS",
        some(english(), 200 if tiny else None),
        sf.metrics.token_accuracy,
        log={"c2": (0.1,)},
        marginal=None,
        exp={"length_weight": (1.0,), "c2": (1e-6,)},
        rounds=(20, 50) if tiny else (500, 1000, 1500),
        boost_weights=(0.9,),
        epochs=(5, 10),
        bound="tight",
        iterations=150,  # 49 labels make it slow
    )
    print("### Parts of speech: token accuracy % on UD English EWT (thesis: Penn Treebank)\n")
    by_set(task, POS_SETS, POS_THESIS)


def some(corpus: Corpus, n: int | None) -> Corpus:
    return Corpus(*(part.pick(slice(n)) for part in corpus))


def by_set(task: Task, sets: dict[str, Any], thesis: dict[str, Any]) -> None:
    """One row for each learner; for each feature set the score here and in the thesis."""
    found, tests = {}, {}
    for name, (window, spelling) in sets.items():
        here = task.encoded(name, sf.Words(window=window, spelling=spelling, columns=False))
        found[name] = sequence_models(here)
        tests[name] = {k: here.measure(f.model, here.data.test) for k, f in found[name].items()}
    header("learner", *(cell for name in sets for cell in (name, "thesis")))
    for learner, theirs in thesis.items():
        cells = []
        for name, number in zip(sets, theirs, strict=True):
            cells += [f"{tests[name][learner]:.2f}", "" if number is None else f"{number:.2f}"]
        row(learner, *cells)
    cells = []
    for name in sets:
        # the thesis: about 10 % once there are spelling features
        cells += [f"{kept(found[name]['boosting'].model):.1f}", "" if name == "S1" else "about 10"]
    row("% of weights boosting uses", *cells)
    print("\nChosen on development data, with its score there:\n")
    header("learner", *sets)
    for learner in thesis:
        row(learner, *(describe(found[name][learner]) for name in sets))
    print(flush=True)


def describe(found: Found) -> str:
    return ", ".join([*(f"{k} {v}" for k, v in found.chosen.items()), f"{found.dev:.2f}"])


def longer(tiny: bool) -> None:
    """Spanish S3: the exponential loss by length weight, and boosting with more rounds."""
    task = named_entities(tiny).encoded("S3", words())
    crf = partial(sf.CRF, loss="exp", c2=1e-5, tol=TOL, max_iter=task.iterations)
    print("### Spanish S3: F1 of the exponential loss by length weight, c2 = 1e-5\n")
    header("length weight", "development", "test")
    for weight in (0.7, 0.8, 0.9):
        found = fit(task, "exp", crf, length_weight=weight)
        row(str(weight), f"{found.dev:.2f}", f"{task.measure(found.model, task.data.test):.2f}")
    print("\n### Spanish S3: F1 of boosting by rounds (exact, length weight 0.9)\n")
    header("rounds", "% of weights", "development", "test")
    most = 100 if tiny else 16000
    whole = fit(task, "boosting", partial(sf.SequenceBoost, max_iter=most), length_weight=0.9).model
    for n in range(most // 8, most + 1, most // 8):
        model = whole.truncated(min(n, len(whole.path_)))
        scores = (task.measure(model, part) for part in (task.data.dev, task.data.test))
        row(str(n), f"{kept(model):.1f}", *(f"{score:.2f}" for score in scores))
    print(flush=True)


# --- prosody --------------------------------------------------------------------------------------

BASELINES = ("per-token AdaBoost", "Viterbi-AdaBoost")
PROSODY_THESIS = {
    "majority": 60.53,
    "HMM": 68.62,
    "log": 76.62,
    "marginal": 76.40,
    "perceptron": 76.55,
}


def pitch_accents(tiny: bool) -> None:
    windows, folds = ((1, 3), 2) if tiny else (PROSODY_WINDOWS, FOLDS)
    X, y = prosody(100) if tiny else prosody()
    # an HMM has one word and its frequency class at each position
    narrow = Data(sf.Attributes().fit_transform(only(X, ("word", "unigram"))), y)
    scores: dict[str, dict[int, list[float]]] = {}
    for window in windows:
        wide = Data(sf.Attributes().fit_transform(windowed(X, window)), y)
        for k, (train, test) in enumerate(KFold(folds).split(y)):
            held = len(train) // 10
            parts = train[held:], train[:held], test
            task = prosody_task(f"prosody window {window} fold {k + 1}", wide, parts, tiny)
            hmm = replace(task, data=Corpus(*map(narrow.pick, parts)))
            for name, score in prosody_scores(task, hmm).items():
                scores.setdefault(name, {}).setdefault(window, []).append(score)
    print_prosody(scores, windows)


def prosody_task(name: str, data: Data, parts: tuple[Any, ...], tiny: bool) -> Task:
    return Task(
        name,
        Corpus(*map(data.pick, parts)),
        sf.metrics.token_accuracy,
        log={"c2": (3.0, 10.0, 30.0)},
        marginal={"c2": (10.0, 30.0)},
        exp={"length_weight": (0.6, 0.7, 0.8), "c2": (0.003, 0.01)},
        rounds=(20, 50) if tiny else (100, 200, 400, 800, 1600),
        boost_weights=(0.6, 0.7),
        epochs=(5, 10, 20),
        max_step=0.3,
    )


def prosody_scores(task: Task, hmm: Task) -> dict[str, float]:
    """Test accuracy of every model, and the share of weights boosting uses."""
    train, _, test = task.data
    most = Counter(label for labels in train.y for label in labels).most_common(1)[0][0]
    constant = [[most] * len(labels) for labels in test.y]
    found = {"HMM": fit(hmm, "HMM", sf.HMM)}
    for name, neighbours in zip(BASELINES, (False, True), strict=True):
        make = partial(sf.AdaBoost, neighbors=neighbours, max_step=task.max_step)
        found[name] = boosted(task, name, make)
    found |= sequence_models(task)
    scores = {"majority": 100 * task.metric(test.y, constant)}
    for name, one in found.items():
        scores[name] = task.measure(one.model, (hmm if name == "HMM" else task).data.test)
    return scores | {"% of weights boosting uses": kept(found["boosting"].model)}


def print_prosody(scores: dict[str, dict[int, list[float]]], windows: tuple[int, ...]) -> None:
    print("### Pitch accents: token accuracy %, mean over folds (thesis: Switchboard, window 5)\n")
    header("model", *(f"window {window}" for window in windows), "thesis")
    for name, by_window in scores.items():
        theirs = f"{PROSODY_THESIS[name]:.2f}" if name in PROSODY_THESIS else ""
        theirs = "11.56" if name.startswith("%") else theirs
        row(name, *(f"{np.mean(by_window[window]):.2f}" for window in windows), theirs)
    print("\nGain over the two baselines, mean over folds (standard error):\n")
    header("model", *(f"{name}, window {window}" for window in windows for name in BASELINES))
    for name in ("log", "marginal", "exp", "boosting", "perceptron"):
        cells = []
        for window in windows:
            for base in BASELINES:
                gain = np.subtract(scores[name][window], scores[base][window])
                cells.append(with_error(gain, "+.2f"))
        row(name, *cells)
    print(flush=True)


def order(tiny: bool) -> None:
    """What neighbouring labels tell here: a CRF with and without transitions."""
    windows, folds = ((1, 3), 2) if tiny else (PROSODY_WINDOWS, FOLDS)
    X, y = prosody(100) if tiny else prosody()
    gains: dict[int, list[float]] = {}
    for window in windows:
        wide = Data(sf.Attributes().fit_transform(windowed(X, window)), y)
        for train, test in KFold(folds).split(y):
            data, held = wide.pick(train), wide.pick(test)
            scores = []
            for transitions in (False, True):
                model = sf.CRF(c2=10.0, transitions=transitions, tol=1e-4).fit(data.X, data.y)
                scores.append(100 * sf.metrics.token_accuracy(held.y, model.predict(held.X)))
            gains.setdefault(window, []).append(scores[1] - scores[0])
    print("### Gain of transitions on pitch accents: log loss, c2 = 10, mean (standard error)\n")
    header(*(f"window {window}" for window in windows))
    row(*(with_error(gains[w], "+.2f") for w in windows))
    print(flush=True)


# --- features chosen again ------------------------------------------------------------------------


def reselection(tiny: bool) -> None:
    """Table 3.3: how often the first rounds choose the same feature, by bound."""
    task = named_entities(tiny)
    # sentences are not encoded before, so that names are kept; the thesis's steps are free: a cap
    # would make the same feature come again
    make = partial(sf.SequenceBoost, words(), max_iter=RESELECTION_ROUNDS, max_step=20.0)
    grid = {"length_weight": RESELECTION_WEIGHTS}
    exact = search(task, "reselection", partial(make, bound="exact"), grid)
    models = {
        b: fit(task, b, partial(make, bound=b), **exact.chosen).model for b in ("loose", "tight")
    }
    counts = {
        bound: Counter(
            f"{' > '.join(choice.labels)}{'' if choice.feature is None else f', {choice.feature}'}"
            for choice in model.path_
        )
        for bound, model in (models | {"exact": exact.model}).items()
    }
    print(
        f"### Features chosen again in {RESELECTION_ROUNDS} boosting rounds: Spanish S3, length "
        f"weight {exact.chosen['length_weight']} (the best F1 on development data, exact)\n"
    )
    header("", *counts, "thesis: loose", "tight", "exact")
    again = [sum(n > 1 for n in count.values()) for count in counts.values()]
    row("features chosen more than once", *map(str, again), "5", "10", "7")
    row("most often", *(str(max(count.values())) for count in counts.values()), "30", "8", "4")
    print()
    header("feature", *counts)
    most = counts["loose"] | counts["tight"] | counts["exact"]  # the largest of the counts
    for name, n in most.most_common(RESELECTION_SHOWN):
        if n > 1:
            cells = [str(count[name]) for count in counts.values()]
            row(f"`{name}`".replace("|", "\\|"), *cells)
    print(flush=True)


PARTS = {
    "ner": ner,
    "longer": longer,
    "pos": pos,
    "prosody": pitch_accents,
    "order": order,
    "reselection": reselection,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="all by default")
    parser.add_argument("--tiny", action="store_true", help="small slices: a smoke test")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name, part in PARTS.items():
        if args.part in (None, name):
            part(args.tiny)


if __name__ == "__main__":
    main()
