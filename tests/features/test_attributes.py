from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import seqfield
from seqfield.errors import InputError
from seqfield.features.attributes import EDGE, Attributes

words = st.sampled_from(["a", "b", "c=d", "é", ""])
listed = st.lists(words, max_size=5)
value = st.one_of(
    words,
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.5, 1.0, 2.5]),
    listed,
    st.sets(words),
)
features = st.one_of(listed, listed.map(tuple), st.sets(words), st.dictionaries(words, value))
token = st.one_of(
    features,
    st.builds(
        lambda own, edge: own | {EDGE: edge},
        st.dictionaries(words, value),
        features,
    ),
)
batches = st.lists(st.lists(token, min_size=1, max_size=4), min_size=1, max_size=4)


def spell(features):
    """Pairs of name and value, from the table in the documentation."""
    if not isinstance(features, dict):
        return [(name, 1.0) for name in features]
    out = []
    for name, value in features.items():
        if isinstance(value, str):
            out.append((f"{name}={value}", 1.0))
        elif isinstance(value, list | set):
            out += [(f"{name}={item}", 1.0) for item in value]
        elif value:
            out.append((name, float(value)))
    return out


def split(token):
    if not isinstance(token, dict):
        return spell(token), []
    own = {name: value for name, value in token.items() if name != EDGE}
    return spell(own), spell(token.get(EDGE, []))


def check(matrix, names, rows):
    """The matrix holds the sums of the values of the named features, and nothing else."""
    dense = np.zeros((len(rows), len(names)))
    at = {name: k for k, name in enumerate(names)}
    for t, row in enumerate(rows):
        for name, value in row:
            if name in at:
                dense[t, at[name]] += value
    np.testing.assert_array_equal(matrix.toarray(), dense)
    assert matrix.has_canonical_format
    assert matrix.indices.dtype == np.int32
    assert matrix.dtype == np.float64 or (matrix.dtype == np.int8 and (matrix.data == 1).all())


@pytest.mark.filterwarnings("ignore:min_freq=")
@given(batches, batches, st.integers(1, 3))
def test_against_plain_python(train, test, min_freq):
    encoder = Attributes(min_freq=min_freq)
    learned = encoder.fit_transform(train)
    both = [split(token) for rows in train for token in rows]
    for part, names in ((0, encoder.names()), (1, encoder.edge_names())):
        counts = Counter(name for row in both for name, _ in row[part])
        assert set(names) == {name for name, n in counts.items() if n >= min_freq}
        falling = [counts[name] for name in names]
        assert falling == sorted(falling, reverse=True)
    assert (learned.edge is None) == (not encoder.edge_names())
    for X, encoded in (
        (train, learned),
        (train, encoder.transform(train)),
        (test, encoder.transform(test)),
    ):
        both = [split(token) for rows in X for token in rows]
        check(encoded.x, encoder.names(), [row[0] for row in both])
        if encoded.edge is not None:
            check(encoded.edge, encoder.edge_names(), [row[1] for row in both])


def test_forms_of_values():
    tokens = [
        {"w": "casa", "cap": True, "up": False, "len": 4, "tag": ["x", "y"], "zero": 0.0},
        {"w": np.str_("casa"), "cap": np.bool_(True), "up": np.bool_(False), "len": np.int64(4)},
        {"len": np.float32(0.5), "cap": 1, "tag": {"x"}, "ratio": Fraction(1, 4)},
    ]
    encoder = Attributes()
    x = encoder.fit_transform([tokens]).x
    assert encoder.names() == ["cap", "len", "w=casa", "tag=x", "tag=y", "ratio"]
    np.testing.assert_array_equal(
        x.toarray(), [[1, 4, 1, 1, 1, 0], [1, 4, 1, 0, 0, 0], [1, 0.5, 0, 1, 0, 0.25]]
    )


def test_a_dict_and_a_list_name_the_same_feature():
    assert Attributes().fit([[{"w": "a"}, ["w=a"]]]).names() == ["w=a"]


def test_int8_only_for_ones():
    assert Attributes().fit_transform([[["a"], {"b": True, "c": 1.0}]]).x.dtype == np.int8
    assert Attributes().fit_transform([[["a"], {"b": 2}]]).x.dtype == np.float64


@pytest.mark.parametrize("hash_bits", [None, 8])
def test_many_duplicates_do_not_overflow(hash_bits):
    x = Attributes(hash_bits=hash_bits).fit_transform([[["a"] * 300]]).x
    assert x.data.tolist() == [300.0]


def test_edge_features_seen_later_only_are_dropped():
    encoder = Attributes().fit([[["a"]]])
    assert encoder.transform([[{"a": True, EDGE: ["e"]}]]).edge is None
    encoder = Attributes().fit([[{"a": True, EDGE: {"e": 2.5, "f": "x"}}, ["a"]]])
    assert encoder.names() == ["a"]
    edge = encoder.transform([[["a"], {EDGE: ["e", "new"]}]]).edge
    assert encoder.edge_names() == ["e", "f=x"]
    np.testing.assert_array_equal(edge.toarray(), [[0, 0], [1, 0]])


def test_input_is_left_alone():
    token = {"a": True, EDGE: ["e"]}
    Attributes().fit([[token]])
    assert token == {"a": True, EDGE: ["e"]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"len": math.nan}, "feature 'len' is nan"),
        ({"len": math.inf}, "feature 'len' is inf"),
        ({"len": np.float32("-inf")}, "feature 'len' is -inf"),
        ({"len": 10**400}, "too large"),
        ({"len": 1j}, "feature 'len' is 1j"),
        ({"w": None}, "feature 'w' is None"),
        ({"w": {"x": "y"}}, "feature 'w' is"),
        ({"w": [3]}, "3 is not a string"),
        ({3: "w"}, "3 is not a string"),
        ({3: True}, "3 is not a string"),
        (["w", 3], "3 is not a string"),
        ([["w"]], "unhashable"),
        ("word", "'word' is neither a dict nor a list"),
        (3, "3 is neither a dict nor a list"),
        (None, "None is neither a dict nor a list"),
        ({EDGE: "e"}, "'e' is neither a dict nor a list"),
        ({EDGE: {"len": math.nan}}, "feature 'len' is nan"),
    ],
)
@pytest.mark.parametrize("hash_bits", [None, 8])
def test_errors_name_the_place(bad, message, hash_bits):
    good = [[["a"]], [["a"], {"w": "x", EDGE: ["a"]}]]
    encoder = Attributes(hash_bits=hash_bits).fit(good)
    for method in (encoder.transform, clone(encoder).fit):
        with pytest.raises(InputError, match="sequence 1, position 2") as caught:
            method([[["a"]], [["a"], {"w": "x", EDGE: ["a"]}, bad]])
        assert message in str(caught.value)


@pytest.mark.parametrize("arguments", [{"min_freq": 0}, {"hash_bits": 0}, {"hash_bits": 31}])
def test_bad_arguments(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        Attributes(**arguments).fit([[["a"]]])


def test_hashing():
    encoder = Attributes(hash_bits=20)
    X = [[{"w": "la", "len": 2}, {"w": "casa", EDGE: ["w=la"]}]]
    encoded = encoder.fit_transform(X)
    assert encoded.x.shape == encoded.edge.shape == (2, 1 << 20)
    assert sorted(encoded.x[[0]].data.tolist()) == [1.0, 2.0]
    # a name has the same column wherever it stands
    assert encoded.edge.indices.item() in encoded.x[[0]].indices
    assert len(encoder.names()) == len(encoder.edge_names()) == 1 << 20
    assert encoder.transform([[["unseen"]]]).x.nnz == 1


def test_hashing_is_equal_in_every_process():
    script = (
        "from seqfield.features.attributes import Attributes\n"
        "X = [[{'w': 'naïve', 's': {'a', 'b', 'c', 'd'}}]]\n"
        "print(Attributes(hash_bits=12).fit_transform(X).x.indices.tolist())"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {
            "PYTHONPATH": str(Path(seqfield.__file__).parents[1]),
            "PYTHONHASHSEED": seed,
        }
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", script],
                env=os.environ | environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert len(outputs) == 1


@pytest.mark.parametrize("hash_bits", [None, 10])
@pytest.mark.parametrize("edge", [False, True])
def test_state_round_trip(hash_bits, edge):
    X = [[{"w": "é", "len": 2.5}, {"w": "b"}], [["w=b", "", "日本"]]]
    if edge:
        X[0][1][EDGE] = {"e": "f"}
    encoder = Attributes(hash_bits=hash_bits)
    learned = encoder.fit_transform(X)
    header, arrays = encoder.state()
    restored = Attributes.restore(json.loads(json.dumps(header)), arrays)
    assert restored.get_params() == encoder.get_params()
    assert restored.names() == encoder.names()
    assert restored.edge_names() == encoder.edge_names()
    again = restored.transform(X)
    np.testing.assert_array_equal(again.x.toarray(), learned.x.toarray())
    assert (again.edge is None) == (not edge)
    if edge:
        np.testing.assert_array_equal(again.edge.toarray(), learned.edge.toarray())


def test_restore_checks():
    header, arrays = Attributes().fit([[["aa", "bb"]]]).state()
    spoilt = [
        (header, arrays | {"bytes": arrays["bytes"][:-1]}),
        (header, arrays | {"bytes": np.frombuffer(b"aaaa", np.uint8)}),
        (header, arrays | {"ends": np.array([5, 4])}),
        (header | {"hash_bits": 99}, arrays),
    ]
    for bad in spoilt:
        with pytest.raises(InputError):
            Attributes.restore(*bad)


def test_speed():
    # processor time: a busy machine must not fail the test
    r = np.random.default_rng(0)
    names = [f"feature{k}" for k in range(50_000)]
    picks = (len(names) * r.random((200_000, 20)) ** 3).astype(int)
    tokens = [[names[k] for k in row] for row in picks.tolist()]
    start = time.process_time()
    Attributes().fit_transform([tokens])
    assert time.process_time() - start < 4
