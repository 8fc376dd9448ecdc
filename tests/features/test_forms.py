"""Forms of X that look right and are not, and data frames: through encoders and estimators."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import seqfield as sf
from seqfield.errors import InputError
from seqfield.features import Numeric, Window, resolve
from seqfield.sequences import as_sequences

WORDS = [["2", "cups", "flour"], ["salt"]]
LABELS = [["Q", "U", "N"], ["N"]]
ATTRIBUTES = [[[f"w={word}"] for word in row] for row in WORDS]
NUMBERS = [np.eye(3), np.ones((1, 3))]

ENCODERS = {
    "words": (sf.Words(), WORDS),
    "template": (sf.Template("U0:%x[0,0]\nB"), WORDS),
    "attributes": (sf.Attributes(), ATTRIBUTES),
    "hashed attributes": (sf.Attributes(hash_bits=4), ATTRIBUTES),
    "hashed template": (sf.Template("U0:%x[0,0]", hash_bits=4), WORDS),
    "numeric": (Numeric(), NUMBERS),
    "window": (Window(), NUMBERS),
}

#: what is wrong, and how the message begins
TEXT = {
    "a string": ("2 cups flour", "X is the string '2 cups flour'"),
    "a list of lines": (["2 cups flour", "salt"], "sequence 0 of X is the string '2 cups flour'"),
    "a list of words": (["2", "cups", "flour"], "sequence 0 of X is the string '2'"),
    "an array of words": (np.array(["2", "cups", "flour"]), "sequence 0 of X is the string '2'"),
    "a series of words": (pd.Series(["2", "cups", "flour"]), "sequence 0 of X is the string '2'"),
    "one string among lists": ([["2", "cups", "flour"], "salt"], "sequence 1 of X is the string"),
}


def told(call, X, begin):
    with pytest.raises(InputError) as caught:
        call(X)
    assert str(caught.value).startswith(begin)
    return str(caught.value)


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("form", TEXT)
def test_encoders_refuse_text(kind, form):
    encoder, good = ENCODERS[kind]
    bad, begin = TEXT[form]
    fitted = resolve(encoder, good).fit(good)
    for call in (resolve(encoder, good).fit, resolve(encoder, good).fit_transform):
        told(call, bad, begin)
    text = told(fitted.transform, bad, begin)
    if form != "one string among lists":
        assert '[["2", "cups", "flour"]]' in text


@pytest.mark.parametrize("features", [None, sf.Words(), "U0:%x[0,0]\nB"])
@pytest.mark.parametrize("form", TEXT)
def test_estimators_refuse_text(features, form):
    bad, begin = TEXT[form]
    model = sf.CRF(features).fit(WORDS, LABELS)
    told(model.predict, bad, begin)
    told(model.predict_proba, bad, begin)
    told(lambda X: sf.CRF(features).fit(X, LABELS), bad, begin)


def test_long_text_is_cut_in_messages():
    text = told(sf.Words().fit, "word " * 1000, "X is the string 'word word")
    assert len(text) < 300
    assert told(sf.Words().fit, "", "X is the string ''")
    assert told(sf.Words().fit, b"2 cups", "X is the string b'2 cups'")


@pytest.mark.parametrize(
    ("X", "begin"),
    [
        ({"a": ["b"]}, "X is a dict"),
        ([{"w": "a"}], "sequence 0 of X is a dict"),
        ([["a"], {"a", "b"}], "sequence 1 of X is a set"),
    ],
)
def test_what_has_no_order_is_no_sequence(X, begin):
    model = sf.CRF().fit(WORDS, LABELS)
    for call in (model.predict, lambda X: resolve(None, X), sf.Words().fit, as_sequences):
        told(call, X, begin)


def test_an_iterator_cannot_be_looked_at_twice():
    told(lambda X: sf.CRF().fit(X, LABELS), iter(WORDS), "X is a list_iterator")
    model = sf.CRF().fit(WORDS, LABELS)
    assert model.predict(iter(WORDS)) == model.predict(WORDS)  # here once is enough


@pytest.mark.parametrize("make", [sf.Words, sf.Attributes, partial(sf.Template, "U0:%x[0,0]\nB")])
def test_a_frequency_that_leaves_no_features_is_warned_of(make):
    X = ATTRIBUTES if make is sf.Attributes else WORDS
    with pytest.warns(UserWarning, match=r"min_freq=99 leaves none of the \d+ features: lower it"):
        assert make(min_freq=99).fit_transform(X).n_features == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(min_freq=1).fit(X)
        sf.Template("B\n", min_freq=99).fit(WORDS)  # there are none to leave


# --- data frames ----------------------------------------------------------------------------------

FRAME = pd.DataFrame(
    {"a": [1.0, 0.0, 0.0, 1.0], "b": [0, 1, 0, 1], "c": [False, False, True, True]}
)
LENGTHS = [3, 1]


def test_one_frame_with_lengths():
    own = as_sequences(FRAME, LENGTHS)
    np.testing.assert_array_equal(own.x, np.vstack(NUMBERS))
    assert own.lengths.tolist() == LENGTHS
    model = sf.CRF().fit(FRAME, pd.Series([*LABELS[0], *LABELS[1]]), lengths=LENGTHS)
    plain = sf.CRF().fit(NUMBERS, LABELS)
    np.testing.assert_array_equal(model.theta_, plain.theta_)
    assert model.predict(FRAME, lengths=pd.Series(LENGTHS)) == plain.predict(NUMBERS)


def test_a_list_of_frames():
    frames = [FRAME[:3], FRAME[3:]]
    plain = sf.CRF().fit(NUMBERS, LABELS)
    model = sf.CRF().fit(frames, LABELS)
    np.testing.assert_array_equal(model.theta_, plain.theta_)
    assert plain.predict(frames) == plain.predict(NUMBERS)
    np.testing.assert_array_equal(sf.CRF(Window()).fit(frames, LABELS).n_features_in_, 11)


def test_frames_of_text_are_token_rows():
    rows = [[("2", "D"), ("cups", "N"), ("flour", "N")], [("salt", "N")]]
    frames = [pd.DataFrame(sequence, columns=["word", "pos"]) for sequence in rows]
    words = [frame["word"] for frame in frames]
    for given, same in ((frames, rows), (words, WORDS)):
        model, plain = sf.CRF().fit(given, LABELS), sf.CRF().fit(same, LABELS)
        assert model.features_.names() == plain.features_.names()
        np.testing.assert_array_equal(model.theta_, plain.theta_)
        assert plain.predict(given) == plain.predict(same)


def test_a_frame_without_lengths():
    told(as_sequences, FRAME, "X is one matrix: pass lengths=")
    told(lambda X: sf.CRF().fit(X, LABELS), FRAME, "X is one matrix: pass lengths=")
    told(sf.CRF().fit(WORDS, LABELS).predict, FRAME, "X is one matrix: pass lengths=")


def test_a_frame_of_text_with_lengths():
    frame = pd.DataFrame({"word": ["2", "cups", "flour", "salt"]})
    text = told(lambda X: as_sequences(X, LENGTHS), frame, "X is not a matrix of numbers")
    assert "one for each sequence" in text


def test_frames_with_gaps_name_the_place():
    frame = FRAME.copy()
    frame.loc[2, "a"] = None
    told(lambda X: as_sequences(X, LENGTHS), frame, "x is nan at sequence 0, position 2, column 0")


def test_sparse_arrays_are_no_frames():
    model = sf.CRF().fit([sp.csr_array(part) for part in NUMBERS], LABELS)
    assert model.n_features_in_ == 3
