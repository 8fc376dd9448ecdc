"""The corpora of the benchmarks, found through SEQFIELD_DATA, and how they are divided.

Where a paper's corpus is not public, another one stands in for it; its function says which.
"""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import seqfield as sf
from seqfield.data.datasets import FoldTask, corpus_folder
from seqfield.data.schemes import get_scheme


class Data(NamedTuple):
    """Sequences of any form and their labels."""

    X: Any
    y: list[list[Any]]

    def pick(self, chosen: Any) -> Data:
        """The sequences of a slice or an index array."""
        at = np.arange(len(self.y))[chosen]
        X = [self.X[i] for i in at] if isinstance(self.X, list) else self.X[at]
        return Data(X, [self.y[i] for i in at])

    @property
    def classes(self) -> list[Any]:
        """All labels, in order."""
        return sorted({label for row in self.y for label in row})


class Corpus(NamedTuple):
    train: Data
    dev: Data
    test: Data


class Split(NamedTuple):
    """What to train on and what to test on."""

    X: Any
    y: list[list[Any]]
    X_test: Any
    y_test: list[list[Any]]


# --- ways to divide -------------------------------------------------------------------------------


def random_split(data: Data, n_train: int, n_test: int, seed: int) -> Split:
    order = np.random.default_rng(seed).permutation(len(data.y))
    return Split(*data.pick(order[:n_train]), *data.pick(order[n_train:][:n_test]))


def encoded(train: Data, test: Data, features: Any) -> Split:
    """With features that are learned from the training part."""
    X = features.fit_transform(train.X)
    return Split(X, train.y, features.transform(test.X), test.y)


def five_folds(data: Data, features: Any, n: int = 5) -> list[Split]:
    """The first n of five random folds, encoded."""
    from sklearn.model_selection import KFold

    splits = list(KFold(5, shuffle=True, random_state=0).split(data.y))[:n]
    return [encoded(data.pick(train), data.pick(test), features) for train, test in splits]


# --- the four NLP tasks ---------------------------------------------------------------------------

TASKS = ("basenp", "chunking", "segmentation", "japanesene")
#: folder of each task's CRF++ files, and how their names end
_CRFPP = {
    "basenp": ("basenp", ".data"),
    "chunking": ("chunking", ".data"),
    "segmentation": ("seg", ".data"),
    "japanesene": ("JapaneseNE", ".utf8.data"),
}


def published_folds(task: FoldTask, n: int | None = None) -> list[Split]:
    data = Data(task.X, task.y)
    return [Split(*data.pick(train), *data.pick(test)) for train, test in task.folds[:n]]


def crfpp(task: str, *parts: str) -> Data:
    """Sentences of CRF++'s files "train" and "test", encoded as in the papers.

    Features are those of the template that the training file has at least three times.
    """
    name, ending = _CRFPP[task]
    folder = corpus_folder() / "crfpp" / name
    files = {part: sf.read_conll(folder / (part + ending)) for part in {"train", *parts}}
    features = sf.Template((folder / "template").read_text(), min_freq=3).fit(files["train"][0])
    X = [rows for part in parts for rows in files[part][0]]
    return Data(features.transform(X), [row for part in parts for row in files[part][1]])


# --- English chunks -------------------------------------------------------------------------------


def conll2000(part: str, n: int | None = None) -> Data:
    """CoNLL-2000 chunking, "train" or "test"; n: the first sentences alone."""
    return Data(*sf.read_conll(corpus_folder() / f"conll2000/{part}.txt.gz")).pick(slice(n))


def chunking_template() -> Path:
    return corpus_folder() / "crfpp/chunking/template"


# --- Spanish named entities -----------------------------------------------------------------------

REPORT_LENGTH, PIECE_LENGTH = 1238, 36


def spanish(*, as_published: bool = False) -> Corpus:
    """CoNLL-2002: esp.train, with esp.testb for development and esp.testa for testing.

    Training leaves out the 1,092 sentences of one token (1,088 are a lone dash): only without them
    is the thesis's count of 7,230 sentences of average length 36 met, the long one aside. That
    one, 1,238 tokens that the thesis calls a weather report (they are stock prices), is cut into
    pieces. ``as_published=True`` does neither: all 8,323 sentences, 264,715 tokens. One training
    label that breaks BIO is repaired.
    """
    folder = corpus_folder() / "conll2002"
    train, dev, test = (
        Data(*sf.read_conll(folder / f"esp.{name}.gz")) for name in ("train", "testb", "testa")
    )
    repaired = list(map(get_scheme("BIO").repair, train.y))
    if as_published:
        return Corpus(Data(train.X, repaired), dev, test)
    X, y = [], []
    for rows, labels in zip(train.X, repaired, strict=True):
        if len(rows) == 1:
            continue
        cuts = cut(labels) if len(rows) == REPORT_LENGTH else [0, len(rows)]
        X += [rows[a:b] for a, b in pairwise(cuts)]
        y += [labels[a:b] for a, b in pairwise(cuts)]
    return Corpus(Data(X, y), dev, test)


def words() -> sf.Words:
    """Word and spelling in a window of three: S3 of the thesis."""
    return sf.Words(window=3, spelling="ner", columns=False)


def cut(labels: list[str], mean: int = PIECE_LENGTH) -> list[int]:
    """Where to cut a sequence into pieces of this mean length: evenly, but not inside a name."""
    n = round(len(labels) / mean)
    cuts = [0]
    for k in range(1, n):
        t = round(k * len(labels) / n)
        while labels[t].startswith("I-"):
            t += 1
        cuts.append(t)
    return [*cuts, len(labels)]


# --- English parts of speech ----------------------------------------------------------------------


def english() -> Corpus:
    """UD English EWT with its Penn-style tags, in place of the Penn Treebank."""
    return Corpus(*(_conllu(f"en_ewt-ud-{name}.conllu.gz") for name in ("train", "dev", "test")))


def _conllu(name: str) -> Data:
    X: list[list[str]] = []
    y: list[list[str]] = []
    with gzip.open(corpus_folder() / "ud_english_ewt" / name, "rt", encoding="utf-8") as file:
        for block in file.read().strip().split("\n\n"):
            rows = [line.split("\t") for line in block.split("\n") if not line.startswith("#")]
            words = [row for row in rows if row[0].isdecimal()]  # not 1-2 or 1.1
            X.append([row[1] for row in words])
            y.append([row[4] for row in words])
    return Data(X, y)


# --- proteins -------------------------------------------------------------------------------------

N_TEST, MOST_CHAINS = 100, 10


class Draws(NamedTuple):
    """Training sets and the chains that all of them are tested on."""

    train: list[Data]
    test: Data


def proteins() -> Data:
    """The 1,252 JPred4 domains with a profile (T, 20), labels H, E, C.

    They stand in for RS126 of Lafferty, Liu and Zhu (2004, section 6), whose profiles are not
    public. Profiles by the paper's L(x): 0 up to -5, 1 from 5 on.
    """
    with np.load(corpus_folder() / "protein_ss" / "jpred4_train_pssm.npz") as file:
        offsets, ss, pssm = file["offsets"], file["ss"], file["pssm"]
    profiles = np.clip(0.5 + pssm / 10.0, 0.0, 1.0)
    labels = [chr(code) for code in ss]
    places = list(pairwise(offsets))
    return Data([profiles[a:b] for a, b in places], [labels[a:b] for a, b in places])


def protein_draws(n_draws: int, n_test: int = N_TEST, seed: int = 0) -> Draws:
    """A fixed random test set, and draws of ten chains from the others.

    A training set of five chains is the first half of one of ten, so the two can be compared pair
    by pair.
    """
    chains, rng = proteins(), np.random.default_rng(seed)
    order = rng.permutation(len(chains.y))
    test, others = order[:n_test], order[n_test:]
    chosen = [rng.choice(others, MOST_CHAINS, replace=False) for _ in range(n_draws)]
    return Draws([chains.pick(at) for at in chosen], chains.pick(test))
