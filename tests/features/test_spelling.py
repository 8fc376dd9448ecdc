from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from seqfield.data.conll import read_conll
from seqfield.errors import InputError
from seqfield.features.spelling import Words

DATA = os.environ.get("SEQFIELD_DATA")

SAMPLE = ["La", "casa", "EFE", "S.A.", "R-12", "3.5", "2-1", "a.-b", ".", "-", "Walking", "who"]
SAMPLE += ["WHICH", "fastest", "Ed", "日本", "ñandú", "A", "x3", "", "ß", "1ª", "_B-1"]
TAGS = ["NC", "DA", "NC-1"]
text = st.one_of(st.sampled_from(SAMPLE), st.text(max_size=4))
row = st.tuples(text, st.sampled_from(TAGS), st.sampled_from(["x", "y"]))
batches = st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=4)

B3 = ["ING", "ED", "EN", "LY", "ER", "EST", "TH"]


def spelling(word, initial, kind):
    """Attributes of one token, straight from the tables."""
    if kind is None:
        return []
    cap, dot_end = word[:1].isupper(), word[-1:] == "."
    dot, hyphen = "." in word, "-" in word
    digit = any(c.isdigit() for c in word)
    first = word[:1]
    types = ["upper"] * first.isupper() + ["lower"] * first.islower()
    types += ["letter"] * first.isalpha() + ["digit"] * first.isdigit() + ["other"]
    table = {
        "SENT INI": initial,
        "CAP INI SENT INI": cap and initial,
        "CAP INI DOT END": cap and dot_end,
        "CAP INI CONTAINS DOT": cap and dot,
        "CAP INI CONTAINS HYPEN": cap and hyphen,
        "CAP INI CONTAINS DIGIT": cap and digit,
        "CONTAINS DOT CONTAINS DIGIT": dot and digit,
        "CONTAINS DOT CONTAINS HYPEN": dot and hyphen,
        "CONTAINS DIGIT CONTAINS HYPEN": digit and hyphen,
        "ALL CAPS": word.isupper(),
        "CAP INI": cap,
        "CONTAINS DIGIT": digit,
        "DOT END": dot_end,
    }
    if kind == "pos":
        lower = word.lower()
        table |= {f"ENDS WITH {end}": lower.endswith(end.lower()) for end in B3}
        table["BEGINS WITH WH"] = lower.startswith("wh")
    valued = [("TYPE FIRST LETTER", types[0]), ("ENDINGS ONE", word[-1:])]
    return valued + [(name, None) for name, holds in table.items() if holds]


def expand(X, window, kind, column=0, columns=True):
    out = []
    for rows in X:
        for t in range(len(rows)):
            names = []
            for d in range(-(window // 2), window // 2 + 1):
                at = "[0]" if d == 0 else f"[{d:+d}]"
                s = t + d
                if s < 0:
                    names.append(f"word{at}=_B{s}")
                elif s >= len(rows):
                    names.append(f"word{at}=_B+{s - len(rows) + 1}")
                else:
                    word = rows[s][column]
                    names.append(f"word{at}={word}")
                    if columns:
                        others = [c for c in range(len(rows[s])) if c != column]
                        names += [f"col{c}{at}={rows[s][c]}" for c in others]
                    for name, value in spelling(word, s == 0, kind):
                        names.append(f"{name}{at}" + ("" if value is None else f"={value}"))
            out.append(sorted(names))
    return out


def spelt(matrix, names):
    return [
        sorted(names[k] for k in matrix.indices[a:b])
        for a, b in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    ]


@pytest.mark.filterwarnings("ignore:min_freq=")
@given(
    batches,
    batches,
    st.sampled_from([1, 3, 5]),
    st.sampled_from([None, "ner", "pos"]),
    st.integers(0, 1),
    st.booleans(),
    st.integers(1, 2),
)
def test_against_plain_python(train, test, window, kind, column, columns, min_freq):
    encoder = Words(window, kind, column, columns, min_freq)
    learned = encoder.fit_transform(train)
    expected = expand(train, window, kind, column, columns)
    counts = Counter(name for row in expected for name in row)
    names = encoder.names()
    assert len(set(names)) == len(names)
    assert set(names) == {name for name, n in counts.items() if n >= min_freq}
    for X, encoded in ((train, learned), (test, encoder.transform(test))):
        rows = expand(X, window, kind, column, columns)
        assert spelt(encoded.x, names) == [[n for n in row if n in set(names)] for row in rows]
        assert encoded.x.dtype == np.int8
        assert encoded.edge is None
    assert encoder.transitions_ is True


def test_feature_sets_of_the_thesis():
    X = [["La", "casa"]]
    s1 = Words(window=1, spelling=None).fit(X)
    assert s1.names() == ["word[0]=La", "word[0]=casa"]
    s2 = set(Words(window=1).fit(X).names())
    s3 = set(Words(window=3).fit(X).names())
    assert set(s1.names()) < s2 < s3
    assert "CAP INI[-1]" in s3
    assert {name.split("[")[1][:2] for name in s3} == {"-1", "0]", "+1"}
    assert set(Words(spelling="pos").fit([["Walking", "who"]]).names()) >= {
        "ENDS WITH ING[0]",
        "BEGINS WITH WH[+1]",
    }


@pytest.mark.parametrize(
    ("word", "attributes"),
    [
        ("casa", set()),
        ("Casa", {"CAP INI"}),
        ("EFE", {"CAP INI", "ALL CAPS"}),
        ("S.A.", {"CAP INI", "ALL CAPS", "DOT END", "CAP INI DOT END", "CAP INI CONTAINS DOT"}),
        (
            "R-12",
            {
                "CAP INI",
                "ALL CAPS",
                "CONTAINS DIGIT",
                "CAP INI CONTAINS HYPEN",
                "CAP INI CONTAINS DIGIT",
                "CONTAINS DIGIT CONTAINS HYPEN",
            },
        ),
        ("3.5", {"CONTAINS DIGIT", "CONTAINS DOT CONTAINS DIGIT"}),
        ("a.-b", {"CONTAINS DOT CONTAINS HYPEN"}),
        (".", {"DOT END"}),
    ],
)
def test_yes_or_no_attributes(word, attributes):
    encoder = Words(window=1).fit([["first", word]])
    row = spelt(encoder.transform([["x", word]]).x, encoder.names())[1]
    assert {name.removesuffix("[0]") for name in row if "=" not in name} == attributes


def test_sentence_start_is_a_place_not_a_word():
    encoder = Words(window=3).fit([["La", "La"]])
    first, second = spelt(encoder.transform([["La", "La"]]).x, encoder.names())
    assert {"SENT INI[0]", "CAP INI SENT INI[0]"} <= set(first)
    assert {"SENT INI[-1]", "CAP INI SENT INI[-1]", "CAP INI[0]"} <= set(second)
    assert "SENT INI[0]" not in second


def test_rows_may_be_strings_tuples_or_lists():
    plain = Words().fit_transform([["a", "b"]]).x
    rows = Words().fit_transform([[("a",), ["b"]]]).x
    np.testing.assert_array_equal(plain.toarray(), rows.toarray())


def test_more_columns_than_in_training_are_ignored():
    encoder = Words().fit([[("a", "x")]])
    assert encoder.transform([[("a", "x", "label")]]).n_features == len(encoder.names())


@pytest.mark.parametrize("bad", [("b",), "bc", ("b", 3), {"b": "c"}, None])
def test_bad_rows_are_named(bad):
    X = [[("a", "b")], [("a", "b"), bad]]
    encoder = Words().fit(X[:1])
    for method in (encoder.transform, clone(encoder).fit):
        with pytest.raises(InputError, match=r"row of 2 strings, but .*sequence 1, position 1"):
            method(X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 2}, "odd"),
        ({"window": 0}, "odd"),
        ({"window": -1}, "odd"),
        ({"spelling": "NER"}, "spelling"),
        ({"column": 1}, "no column 1"),
        ({"column": -1}, "no column -1"),
        ({"min_freq": 0}, "min_freq"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        Words(**arguments).fit([["a"]])


@pytest.mark.parametrize("kind", [None, "ner", "pos"])
@pytest.mark.parametrize(("column", "columns"), [(0, True), (1, True), (0, False), (1, False)])
def test_state_round_trip(kind, column, columns):
    X = [[(word, tag) for word in SAMPLE] for tag in TAGS]
    encoder = Words(5, kind, column, columns, min_freq=2)
    learned = encoder.fit_transform(X)
    header, arrays = encoder.state()
    restored = Words.restore(json.loads(json.dumps(header)), arrays)
    assert restored.get_params() == encoder.get_params()
    assert restored.names() == encoder.names()
    again = restored.transform(X).x
    np.testing.assert_array_equal(again.indptr, learned.x.indptr)
    np.testing.assert_array_equal(again.indices, learned.x.indices)


def test_restore_checks_every_number():
    header, arrays = Words().fit([["a", "b"]]).state()
    combos = arrays["node"]
    for column, number in ((0, 1000), (1, 1000), (1, -1)):
        spoilt = combos.copy()
        spoilt[0, column] = number
        with pytest.raises(InputError):
            Words.restore(header, arrays | {"node": spoilt})
    for change in ({"window": 2}, {"spelling": "x"}, {"column": 5}, {"n_columns": 0}):
        with pytest.raises(InputError):
            Words.restore(header | change, arrays)


@pytest.mark.corpus
@pytest.mark.skipif(DATA is None, reason="SEQFIELD_DATA is not set")
def test_speed_on_spanish():
    # processor time: a busy machine must not fail the test
    X, _ = read_conll(Path(DATA) / "conll2002" / "esp.train.gz")
    encoder = Words(window=3).fit(X[:2])  # compiles
    start = time.process_time()
    encoded = encoder.fit_transform(X)
    assert time.process_time() - start < 4
    assert encoded.n_tokens == 264715
