"""The Helsinki prosody corpus, in place of the thesis's Switchboard."""

from __future__ import annotations

import gzip
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

import seqfield as sf
from benchmarks._data import Data
from seqfield.data.datasets import corpus_folder

N_FRAGMENTS, N_BINS, N_POSITIONS = 1824, 25, 5

Token = list[str]


class _Sentence(NamedTuple):
    words: list[str]
    labels: list[str]
    before: list[str]  # the punctuation before each word, or ""
    after: list[str]


def prosody(n: int = N_FRAGMENTS, seed: int = 0) -> Data:
    """Random sentences of the Helsinki corpus, in place of Switchboard: labels 0, 1 = accented.

    A token is the list of its attributes: word and spelling (Table B.2), place in the sentence,
    punctuation around it (for pauses), and the log-probabilities of Table B.1 in 25 bins of equal
    width. These are counted, without labels, in all of dev.txt.
    """
    sentences = _sentences()
    drawn = np.random.default_rng(seed).choice(len(sentences), n, replace=False)
    spelling = _spelling([sentences[i].words for i in drawn])
    binned = _probabilities([sentence.words for sentence in sentences])
    X = []
    for i, spelt in zip(drawn, spelling, strict=True):
        _, labels, before, after = sentences[i]
        rows = []
        for t, token in enumerate(spelt):
            row = [*token, f"position={N_POSITIONS * t // len(spelt)}", *binned[i][t]]
            row += ["SENT END"] * (t == len(labels) - 1)
            row += [f"pause before={before[t]}"] * bool(before[t])
            row += [f"pause after={after[t]}"] * bool(after[t])
            rows.append(row)
        X.append(rows)
    return Data(X, [sentences[i].labels for i in drawn])


def windowed(X: list[list[Token]], size: int) -> list[list[Token]]:
    """Attributes of the tokens in a centred window, marked with their offset."""
    reach = size // 2
    out = []
    for rows in X:
        padded = [["outside"]] * reach + rows + [["outside"]] * reach
        out.append(
            [
                [f"{d - reach:+d} {name}" for d in range(size) for name in padded[t + d]]
                for t in range(len(rows))
            ]
        )
    return out


def only(X: list[list[Token]], names: tuple[str, ...]) -> list[list[Token]]:
    """The attributes of these names alone."""
    return [
        [[value for value in token if value.split("=")[0] in names] for token in rows] for rows in X
    ]


def _sentences() -> list[_Sentence]:
    """The sentences of dev.txt, without the tokens that have no label (punctuation)."""
    with gzip.open(
        corpus_folder() / "helsinki_prosody" / "dev.txt.gz", "rt", encoding="utf-8"
    ) as file:
        blocks = file.read().split("<file>\t")[1:]
    out = []
    for block in blocks:
        sentence = _Sentence([], [], [], [])
        pause = ""
        for line in block.splitlines()[1:]:
            word, label = line.split("\t")[:2]
            if label != "NA":
                sentence.words.append(word)
                sentence.labels.append("0" if label == "0" else "1")
                sentence.before.append(pause)
                sentence.after.append("")
                pause = ""
            elif not any(map(str.isalnum, word)):  # a few words have no label either
                pause = word
                if sentence.words:
                    sentence.after[-1] = word
        if sentence.words:
            out.append(sentence)
    return out


def _spelling(X: list[list[str]]) -> list[list[Token]]:
    """Word and spelling attributes by name."""
    words = sf.Words(window=1, spelling="ner", columns=False)
    data = words.fit_transform(X)
    names = [name.replace("[0]", "", 1) for name in words.names()]
    rows = [[names[k] for k in data.x.indices[a:b]] for a, b in pairwise(data.x.indptr)]
    return [rows[a:b] for a, b in pairwise(data.offsets)]


def _probabilities(X: list[list[str]]) -> list[list[Token]]:
    """The variables of Table B.1, each in bins of equal width."""
    lines = [["<s>", *map(str.lower, words), "</s>"] for words in X]
    one = Counter(word for line in lines for word in line)
    two = Counter(pair for line in lines for pair in pairwise(line))
    n = sum(map(len, X))
    values = []
    for line in lines:
        for a, b, c in zip(line, line[1:], line[2:], strict=False):
            ab, bc = two[a, b], two[b, c]
            values.append((one[b] / n, ab / one[a], bc / one[c], ab / n, bc / n))
    logs = np.log(values)
    low, high = logs.min(0), logs.max(0)
    bins = np.minimum((logs - low) / (high - low) * N_BINS, N_BINS - 1).astype(int)
    names = ("unigram", "bigram", "rev bigram", "joint", "rev joint")
    rows = [[f"{name}={k}" for name, k in zip(names, row, strict=True)] for row in bins]
    ends = np.cumsum([0, *map(len, X)])
    return [rows[a:b] for a, b in pairwise(ends)]
