from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from seqfield.errors import InputError
from seqfield.features.window import Numeric, Window
from seqfield.sequences import Sequences, offsets_of


def expand(parts, size):
    """Windows token by token."""
    reach = size // 2
    out = []
    for part in parts:
        for t in range(len(part)):
            row, ends = [], []
            for s in range(t - reach, t + reach + 1):
                inside = 0 <= s < len(part)
                row += list(part[s]) if inside else [0.0] * part.shape[1]
                if s != t:
                    ends.append(float(not inside))
            out.append(row + ends)
    return np.array(out)


def random_parts(lengths, width, seed=0):
    r = np.random.default_rng(seed)
    return [np.round(r.normal(size=(n, width)), 1) * (r.random((n, width)) < 0.6) for n in lengths]


lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(lengths, st.integers(1, 4), st.sampled_from([1, 3, 5, 9]), st.integers(0, 5))
def test_against_plain_python(lengths, width, size, seed):
    parts = random_parts(lengths, width, seed)
    expected = expand(parts, size)
    encoder = Window(size)
    dense = encoder.fit_transform(parts)
    assert isinstance(dense.x, np.ndarray)
    np.testing.assert_array_equal(dense.x, expected)
    assert len(encoder.names()) == dense.n_features
    np.testing.assert_array_equal(dense.offsets, offsets_of(lengths))
    sparse = Window(size).fit_transform([sp.csr_array(part) for part in parts])
    assert sp.issparse(sparse.x)
    assert sparse.x.indices.dtype == np.int32
    np.testing.assert_array_equal(sparse.x.toarray(), expected)
    np.testing.assert_array_equal(encoder.transform(parts).x, expected)


def test_binary_features_stay_int8():
    x = sp.csr_array(np.eye(4, dtype=np.int8))
    assert Window(3).fit_transform(Sequences(x, [0, 1, 4])).x.dtype == np.int8


def test_names_say_what_the_columns_hold():
    encoder = Window(5).fit([np.zeros((1, 2))])
    names = encoder.names()
    assert names[:3] == ["x0[-2]", "x1[-2]", "x0[-1]"]
    assert names[4:6] == ["x0[0]", "x1[0]"]
    assert names[-4:] == ["end[-2]", "end[-1]", "end[+1]", "end[+2]"]
    part = np.arange(1.0, 7).reshape(3, 2)
    row = dict(zip(names, encoder.transform([part]).x[2], strict=True))
    assert row["x1[-2]"] == 2
    assert row["x0[0]"] == 5
    assert row["x0[+1]"] == 0
    assert [row[f"end{at}"] for at in ("[-2]", "[-1]", "[+1]", "[+2]")] == [0, 0, 1, 1]


@pytest.mark.parametrize("encoder", [Numeric(), Window(3)])
def test_edge_passes_through(encoder):
    edge = np.arange(6.0).reshape(3, 2)
    encoded = encoder.fit_transform(Sequences(np.eye(3), [0, 1, 3], edge))
    np.testing.assert_array_equal(encoded.edge, edge)
    assert encoder.edge_names() == ["e0", "e1"]
    with pytest.raises(InputError, match="edge has 0 features, the model was trained with 2"):
        encoder.transform(Sequences(np.eye(3)))


@pytest.mark.parametrize("encoder", [Numeric(), Window(3)])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array, lambda x: x.tolist()])
def test_number_of_features_must_stay(encoder, convert):
    encoder.fit([convert(np.ones((2, 5)))])
    with pytest.raises(InputError, match="X has 7 features, the model was trained with 5"):
        encoder.transform([convert(np.ones((2, 7)))])
    assert encoder.names()[:5] == [
        f"x{k}" + ("[-1]" * (len(encoder.names()) > 5)) for k in range(5)
    ]


def test_numeric_is_a_passthrough():
    batch = Sequences(np.eye(3), [0, 1, 3])
    encoder = Numeric()
    assert encoder.fit_transform(batch) is batch
    assert encoder.transform(batch) is batch
    assert encoder.names() == ["x0", "x1", "x2"]
    assert encoder.edge_names() == []


@pytest.mark.parametrize("size", [0, 2, -3])
def test_size_must_be_odd(size):
    with pytest.raises(InputError, match="odd"):
        Window(size).fit([np.eye(2)])


@pytest.mark.parametrize("X", [[], [["a"]], np.eye(2), [np.zeros((0, 2))], [[[np.nan]]]])
@pytest.mark.parametrize("encoder", [Numeric(), Window(3)])
def test_bad_input(encoder, X):
    with pytest.raises(InputError):
        encoder.fit(X)


@pytest.mark.parametrize("encoder", [Numeric(), Window(5)])
def test_state_round_trip(encoder):
    X = random_parts([3, 1, 4], 3)
    learned = encoder.fit_transform(X)
    header, arrays = encoder.state()
    restored = type(encoder).restore(json.loads(json.dumps(header)), arrays)
    assert restored.get_params() == encoder.get_params()
    assert restored.names() == encoder.names()
    np.testing.assert_array_equal(restored.transform(X).x, learned.x)
    with pytest.raises(InputError):
        type(encoder).restore(header | {"n_features": -1}, arrays)
