"""The corpora of the thesis's experiments come out as the thesis counts them."""

import os

import pytest
from benchmarks._data import cut, english, spanish
from benchmarks._prosody import _sentences, only, prosody, windowed

pytestmark = pytest.mark.skipif(not os.environ.get("SEQFIELD_DATA"), reason="needs SEQFIELD_DATA")


def test_spanish_has_the_sentences_of_the_thesis_and_a_report_in_pieces():
    X, y = spanish().train
    assert len(X) == 7230 + 34
    assert sum(map(len, X)) == sum(map(len, y)) == 264_715 - 1_092
    assert round(sum(map(len, X)) / len(X)) == 36
    at = next(i for i, rows in enumerate(X) if rows[0][0] == "VALOR" and rows[1][0] == "ANTER.")
    pieces = X[at : at + 34]
    assert sum(map(len, pieces)) == 1238
    assert all(30 <= len(rows) <= 42 for rows in pieces)
    assert not any(labels[0].startswith("I-") for labels in y)


def test_a_cut_moves_behind_the_name_it_would_divide():
    assert cut(["O", "O", "B-X", "I-X", "I-X", "O"], mean=2) == [0, 2, 5, 6]
    assert cut(["O", "B-X", "I-X", "O"], mean=2) == [0, 3, 4]


def test_english_counts():
    corpus = english()
    assert [(len(X), sum(map(len, X))) for X, _ in corpus] == [
        (12544, 204577),
        (2001, 25147),
        (2077, 25094),
    ]
    assert len({tag for labels in corpus.train.y for tag in labels}) == 49


def test_prosody_attributes():
    sentences = _sentences()
    labels = [label for sentence in sentences for label in sentence.labels]
    assert (labels.count("0"), labels.count("1")) == (47535, 27454 + 24211)
    X, y = prosody(n=20)
    assert X == prosody(n=20).X
    assert [len(rows) for rows in X] == [len(row) for row in y]
    names = {name.split("=")[0] for name in X[0][0]}
    assert {"word", "SENT INI", "unigram", "rev joint", "position"} <= names
    assert "SENT END" in X[0][-1]
    wide = windowed(X, 5)
    assert "-2 outside" in wide[0][0]
    assert {f"+1 {name}" for name in X[0][1]} <= set(wide[0][0])
    word, unigram = only(X, ("word", "unigram"))[0][0]
    assert word.startswith("word=")
    assert unigram.startswith("unigram=")


def test_all_spanish_sentences():
    X, y = spanish(as_published=True).train
    assert (len(X), sum(map(len, X)), sum(map(len, y))) == (8323, 264_715, 264_715)
