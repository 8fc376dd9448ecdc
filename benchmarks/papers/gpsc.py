"""Gaussian-process sequence classification (Altun, Hofmann, Smola 2004; Altun 2005, chapter 5).

    SEQFIELD_DATA=... python -m benchmarks.papers.gpsc ner
    SEQFIELD_DATA=... python -m benchmarks.papers.gpsc sparse
    SEQFIELD_DATA=... python -m benchmarks.papers.gpsc prosody --figures docs

ner: Spanish named entities, five folds over 1,000 random sentences, word and spelling of the word,
the one before and the one after (Table 5.1); sparse: with chosen coordinates, a quarter as many as
tokens.
prosody: the Helsinki corpus in place of Switchboard: degree 1, 2 and 3, accuracy against
sparseness (figure 1b), precision against coverage (figure 1c).
--folds 1 does the first fold alone, --n 40 with so few sentences. Nothing is tuned on test labels:
penalties are those of the best likelihood on sentences outside of all folds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from benchmarks._data import Data, Split, encoded, five_folds, spanish, words
from benchmarks._figures import pyplot, save
from benchmarks._prosody import prosody, windowed
from benchmarks._table import header, row, with_sd

N_SENTENCES = 1000
N_FRAGMENTS, N_DEVELOPMENT = 1824, 600
DEGREES = (1, 2, 3)
GRID = (0.3, 3.0, 30.0, 300.0, 3000.0)
JOBS = 1
Make = Callable[[], Any]

#: CRF-B of the thesis has a regulariser; its CRF has none
UNREGULARISED = 1e-4


def dense(degree: int, **params: Any) -> sf.GPSC:
    kernel = sf.kernels.Linear() if degree == 1 else sf.kernels.Polynomial(degree)
    return sf.GPSC(kernel, n_jobs=JOBS, random_state=0, **params)


def crf(c2: float) -> sf.CRF:
    return sf.CRF(c2=c2, observed_only=False, max_iter=300, n_jobs=JOBS)


def entities(n_folds: int, most: int | None, degrees: Sequence[int]) -> tuple[Any, list[Split]]:
    """Penalties by degree from sentences outside of all folds, and the folds."""
    train = spanish().train
    order = np.random.default_rng(0).permutation(len(train.y))
    data, rest = train.pick(order[:N_SENTENCES]), train.pick(order[N_SENTENCES:][:N_DEVELOPMENT])
    data, rest = data.pick(slice(most)), rest.pick(slice(most))
    penalty = {degree: penalty_of(degree, rest, words()) for degree in degrees}
    title(f"Spanish named entities, {len(data.y)} sentences, {n_folds} folds", "thesis")
    return penalty, five_folds(data, words(), n_folds)


def named_entities(n_folds: int, most: int | None) -> None:
    penalty, parts = entities(n_folds, most, (1, 2))
    report("DGPS1", "4.58", partial(dense, 1, c2=penalty[1]), parts)
    report("DGPS2", "4.39", partial(dense, 2, c2=penalty[2]), parts)
    report("CRF, hardly regularised", "4.92", partial(crf, UNREGULARISED), parts)
    report("CRF-B", "4.56", partial(crf, penalty[1]), parts)


def sparse_entities(n_folds: int, most: int | None) -> None:
    penalty, parts = entities(n_folds, most, (2,))
    full = report("DGPS2", "4.39", partial(dense, 2, c2=penalty[2]), parts)
    few = partial(dense, 2, c2=penalty[2], method="sparse", n_coordinates=0.25)
    some = report("SGPS2, a quarter as many coordinates as tokens", "4.48", few, parts)
    lost = np.array(some) - full
    print(f"\nSGPS2 against DGPS2: {lost.mean():+.2f} points of error, by fold {lost.round(2)}")


def title(text: str, source: str) -> None:
    print(f"\n### {text}\n")
    header("model", "token error % (sd)", source, "tokens chosen %", "CPU minutes a fold")


def report(name: str, theirs: str, make: Make, parts: list[Split]) -> list[float]:
    errors, kept, begin = [], [], time.process_time()
    for X, y, X_test, y_test in parts:
        model = make().fit(X, y)
        errors.append(100 * sf.metrics.token_error(y_test, model.predict(X_test)))
        if hasattr(model, "path_"):
            kept.append(100 * model.n_chosen_ / model.n_tokens_)
    minutes = (time.process_time() - begin) / 60 / len(parts)
    share = f"{np.mean(kept):.1f}" if kept else ""
    told = f"{name} (c2 = {model.c2:g})"
    row(told, with_sd(errors, ddof=0), theirs, share, f"{minutes:.1f}")
    return errors


def pitch(n_folds: int, most: int | None, figures: Path | None) -> None:
    raw = prosody(N_FRAGMENTS + N_DEVELOPMENT)
    data, features = Data(windowed(raw.X, 3), raw.y), sf.Attributes(min_freq=2)
    development = data.pick(slice(N_FRAGMENTS, None)).pick(slice(most))
    penalty = {degree: penalty_of(degree, development, features) for degree in DEGREES}
    data = data.pick(slice(N_FRAGMENTS)).pick(slice(most))
    parts = five_folds(data, features, n_folds)
    n_tokens = parts[0].X.n_tokens
    name = f"Prosody, {len(data.y):,} sentences, window 3, {n_folds} folds of {n_tokens} tokens"
    title(name, "thesis (Switchboard)")
    report("CRF", "", partial(crf, penalty[1]), parts)
    found = {
        degree: report(
            f"DGPS{degree}",
            {1: "", 2: "23.52", 3: "about as degree 2"}[degree],
            partial(dense, degree, c2=penalty[degree], gram_dtype="float32"),
            parts,
        )
        for degree in DEGREES
    }
    gain = np.array(found[1]) - found[2]
    print(f"\nDegree 2 against 1: {gain.mean():.2f} points less error, by fold {gain.round(2)}")
    curve = abstention(parts, penalty[2])
    title("Sparse", "thesis (Switchboard)")
    shares = (0.01, 0.02, 0.04, 0.078)
    sparse = {
        share: report(
            f"SGPS2, {100 * share:g} % of the coordinates",
            {0.01: "25.0", 0.078: "23.82"}.get(share, ""),
            partial(dense, 2, c2=penalty[2], method="sparse", n_coordinates=share),
            parts,
        )
        for share in shares
    }
    lost = np.array(sparse[0.078]) - found[2]
    print(f"SGPS2 at 7.8 % against DGPS2: {lost.mean():.2f} points more error\n")
    if figures is not None:
        draw(figures, found[2], sparse, curve)


def penalty_of(degree: int, data: Data, features: Any) -> float:
    """c2 of the best likelihood on held-out development sentences, which are no part of the
    folds."""
    cut = 4 * len(data.y) // 5
    X, y, X_held, y_held = encoded(data.pick(slice(cut)), data.pick(slice(cut, None)), features)
    found = {c2: dense(degree, c2=c2).fit(X, y).log_likelihood(X_held, y_held).sum() for c2 in GRID}
    best = max(found, key=found.get)
    print(f"degree {degree}: c2 = {best:g} from {GRID}")
    return best


def abstention(parts: list[Split], c2: float) -> list[tuple[float, float]]:
    """Coverage and precision of DGPS2 by threshold, over all folds."""
    sure, right = [], []
    for X, y, X_test, y_test in parts:
        model = dense(2, c2=c2).fit(X, y)
        p = np.vstack(model.predict_proba(X_test))
        sure.append(p.max(axis=1))
        labels = model.classes_[p.argmax(axis=1)]
        right.append(labels == np.concatenate([np.asarray(row) for row in y_test]))
    s, r = np.concatenate(sure), np.concatenate(right)
    header("abstain on %", "precision %", "error falls by % of itself", "thesis")
    base = 1 - r.mean()
    curve = []
    for share in (0.0, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50):
        kept = s >= np.quantile(s, share)
        error = 1 - r[kept].mean()
        curve.append((float(kept.mean()), float(1 - error)))
        theirs = "8.54 at 14.93 %" if share == 0.15 else ""
        fall = 100 * (base - error) / base
        told = f"{100 * (1 - kept.mean()):.1f}", f"{100 * (1 - error):.2f}", f"{fall:.1f}"
        row(*told, theirs)
    return curve


def draw(folder: Path, dense_errors: list[float], sparse: Any, curve: Any) -> None:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9, 3.2))
    left.axhline(100 - np.mean(dense_errors), color="black", label="dense")
    left.plot([100 * k for k in sparse], [100 - np.mean(v) for v in sparse.values()], "o-")
    left.set(xlabel="coordinates, % of tokens", ylabel="accuracy %", title="SGPS2")
    left.legend()
    right.plot([100 * c for c, _ in curve], [100 * p for _, p in curve], "o-")
    right.set(xlabel="tokens labelled, %", ylabel="precision %", title="abstention, DGPS2")
    save(figure, folder, "gpsc_prosody.png")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("ner", "sparse", "prosody"))
    parser.add_argument("--folds", type=int, default=5, help="the first ones alone")
    parser.add_argument("--n", type=int, help="so few sentences, also to choose penalties on")
    parser.add_argument("--figures", type=Path, help="folder for PNG files (prosody)")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    if args.part == "ner":
        named_entities(args.folds, args.n)
    elif args.part == "sparse":
        sparse_entities(args.folds, args.n)
    else:
        pitch(args.folds, args.n, args.figures)


if __name__ == "__main__":
    main()
