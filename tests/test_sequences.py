"""`Sequences`: forms of numeric X, indexing, and errors that name the place."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import seqfield as sf
from seqfield.errors import InputError
from seqfield.sequences import Sequences, as_sequences, checked_lengths, offsets_of, place_of

LENGTHS = [2, 1, 4, 3]
OFFSETS = [0, 2, 3, 7, 10]


def matrix(seed=0, width=3, density=0.6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(10, width))
    x[rng.random(x.shape) > density] = 0.0
    return x


def dense(part):
    return part.toarray() if sp.issparse(part) else np.asarray(part)


def cut(x):
    return [x[a:b] for a, b in zip(OFFSETS[:-1], OFFSETS[1:], strict=True)]


X = matrix()

FORMS = {
    "list of arrays": lambda: as_sequences(cut(X)),
    "tuple of arrays": lambda: as_sequences(tuple(cut(X))),
    "object array of arrays": lambda: as_sequences(_object_array(cut(X))),
    "generator of arrays": lambda: as_sequences(part for part in cut(X)),
    "list of Fortran-ordered arrays": lambda: as_sequences([np.asfortranarray(p) for p in cut(X)]),
    "list of lists of lists": lambda: as_sequences([part.tolist() for part in cut(X)]),
    "list of lists of tuples": lambda: as_sequences([list(map(tuple, p.tolist())) for p in cut(X)]),
    "list of CSR arrays": lambda: as_sequences([sp.csr_array(part) for part in cut(X)]),
    "list of CSR matrices": lambda: as_sequences([sp.csr_matrix(part) for part in cut(X)]),
    "list of COO arrays": lambda: as_sequences([sp.coo_array(part) for part in cut(X)]),
    "list of CSC arrays": lambda: as_sequences([sp.csc_array(part) for part in cut(X)]),
    "matrix and lengths": lambda: as_sequences(X, LENGTHS),
    "matrix and array of lengths": lambda: as_sequences(X, np.array(LENGTHS, np.uint8)),
    "CSR and lengths": lambda: as_sequences(sp.csr_array(X), LENGTHS),
    "CSC and lengths": lambda: as_sequences(sp.csc_matrix(X), LENGTHS),
    "Sequences": lambda: as_sequences(Sequences(X, OFFSETS)),
    "sparse Sequences": lambda: as_sequences(Sequences(sp.csr_array(X), OFFSETS)),
    "list of Sequences": lambda: as_sequences([Sequences(part) for part in cut(X)]),
    "list of longer Sequences": lambda: as_sequences(
        [Sequences(X[:3], OFFSETS[:3]), Sequences(X[3:], [0, 4, 7])]
    ),
    "list of sparse Sequences": lambda: as_sequences(
        [Sequences(sp.csr_array(part)) for part in cut(X)]
    ),
}


def _object_array(parts):
    out = np.empty(len(parts), object)
    out[:] = parts
    return out


@pytest.mark.parametrize("form", FORMS)
def test_every_form_carries_the_same_data(form):
    batch = FORMS[form]()
    np.testing.assert_array_equal(dense(batch.x), X)
    assert batch.offsets.tolist() == OFFSETS
    assert batch.offsets.dtype == np.int64
    assert len(batch) == 4
    assert batch.lengths.tolist() == LENGTHS
    assert (batch.n_tokens, batch.n_features) == (10, 3)
    assert batch.edge is None
    assert sp.issparse(batch.x) == any(word in form for word in ("CS", "COO", "sparse"))
    if not sp.issparse(batch.x):
        assert batch.x.dtype == np.float64
        assert batch.x.flags.c_contiguous


def test_three_dimensional_array_is_equally_long_sequences():
    cube = np.arange(24.0).reshape(2, 3, 4)
    batch = as_sequences(cube)
    assert batch.lengths.tolist() == [3, 3]
    np.testing.assert_array_equal(batch.x, cube.reshape(6, 4))


@pytest.mark.parametrize("dtype", [bool, np.int8])
def test_sparse_flags_stay_one_byte(dtype):
    flags = np.array([[0, 1], [1, 1]]).astype(dtype)
    batch = Sequences(sp.csr_array(flags))
    assert batch.x.data.dtype == np.int8
    np.testing.assert_array_equal(batch.x.toarray(), flags)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.int16])
def test_sparse_numbers_become_float64(dtype):
    numbers = np.array([[0, 200 if dtype is not np.int16 else -3], [7, 1]]).astype(dtype)
    batch = Sequences(sp.csr_array(numbers))
    assert batch.x.data.dtype == np.float64
    np.testing.assert_array_equal(batch.x.toarray(), numbers)


@pytest.mark.parametrize("form", ["list of arrays", "list of CSR arrays"])
def test_input_is_not_changed(form):
    parts = cut(matrix())
    if "CSR" in form:
        parts = [sp.csr_array(part) for part in parts]
    before = [dense(part).copy() for part in parts]
    batch = as_sequences(parts)
    batch.x[0, 0] if sp.issparse(batch.x) else batch.x.sum()
    for part, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(dense(part), old)


# --- indexing ----------------------------------------------------------------------------------

KEYS = {
    "number": (2, [2]),
    "numpy number": (np.int64(1), [1]),
    "last": (-1, [3]),
    "first from the end": (-4, [0]),
    "slice": (slice(1, 3), [1, 2]),
    "slice with a step": (slice(None, None, 2), [0, 2]),
    "reversed": (slice(None, None, -1), [3, 2, 1, 0]),
    "list": ([3, 0], [3, 0]),
    "repeated": ([1, 1, 2], [1, 1, 2]),
    "array": (np.array([0, 2, 3]), [0, 2, 3]),
    "mask": (np.array([True, False, False, True]), [0, 3]),
    "nothing": (slice(0, 0), []),
}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("key", KEYS)
def test_indexing(kind, key):
    make = np.asarray if kind == "dense" else sp.csr_array
    edge = matrix(1, width=2)
    batch = Sequences(make(X), OFFSETS, make(edge))
    chosen, expected = KEYS[key]
    part = batch[chosen]
    assert isinstance(part, Sequences)
    assert part.lengths.tolist() == [LENGTHS[i] for i in expected]
    assert sp.issparse(part.x) == (kind == "sparse")
    for got, whole in ((part.x, X), (part.edge, edge)):
        want = np.concatenate([np.zeros((0, whole.shape[1])), *(cut(whole)[i] for i in expected)])
        np.testing.assert_array_equal(dense(got), want)


@pytest.mark.parametrize("key", [4, -5, np.int64(100)])
def test_index_out_of_range(key):
    with pytest.raises(IndexError, match=r"of 4"):
        Sequences(X, OFFSETS)[key]


def test_iteration_gives_each_sequence_once():
    found = list(Sequences(X, OFFSETS))
    assert [part.n_tokens for part in found] == LENGTHS
    np.testing.assert_array_equal(np.concatenate([part.x for part in found]), X)


def test_concatenation_keeps_edge_features():
    edge = matrix(2, width=2)
    whole = Sequences(X, OFFSETS, edge)
    again = as_sequences(list(whole))
    np.testing.assert_array_equal(again.edge, edge)
    np.testing.assert_array_equal(again.offsets, OFFSETS)


@pytest.mark.parametrize("first", ["with", "without"])
def test_concatenation_needs_edge_features_in_all_or_none(first):
    parts = [Sequences(X[:2], edge=np.ones((2, 1))), Sequences(X[2:5])]
    if first == "without":
        parts.reverse()
    with pytest.raises(InputError, match="edge"):
        as_sequences(parts)


def test_pickle_and_repr():
    batch = Sequences(sp.csr_array(X), OFFSETS, matrix(1, width=2))
    again = pickle.loads(pickle.dumps(batch))
    np.testing.assert_array_equal(again.x.toarray(), X)
    np.testing.assert_array_equal(again.edge, batch.edge)
    assert again.offsets.tolist() == OFFSETS
    assert repr(batch) == "Sequences(n=4, tokens=10, features=3)"


def test_places_of_all_tokens():
    batch = Sequences(X, OFFSETS)
    expected = [(i, t) for i, length in enumerate(LENGTHS) for t in range(length)]
    assert [batch.place(k) for k in range(10)] == expected
    assert [place_of(k, offsets_of(LENGTHS)) for k in range(10)] == expected


# --- errors ------------------------------------------------------------------------------------


def poisoned(value, form):
    x = matrix()
    x[5, 1] = value  # sequence 2, position 2
    return {"dense": x, "CSR": sp.csr_array(x), "CSC": sp.csc_array(x)}[form]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["dense", "CSR", "CSC"])
def test_not_finite_names_the_place(value, form):
    with pytest.raises(InputError) as caught:
        as_sequences(poisoned(value, form), LENGTHS)
    message = str(caught.value)
    assert f"x is {value} at sequence 2, position 2, column 1" in message
    assert "finite" in message


def test_first_of_several_bad_values_is_named():
    x = matrix()
    x[9, 0] = x[3, 2] = np.nan
    with pytest.raises(InputError, match="sequence 2, position 0, column 2"):
        as_sequences(cut(x))


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_not_finite_edge_names_the_place(make):
    edge = np.ones((10, 2))
    edge[2, 1] = np.inf
    with pytest.raises(InputError, match="edge is inf at sequence 1, position 0, column 1"):
        Sequences(X, OFFSETS, make(edge))


ERRORS = {
    "no sequences": (lambda: as_sequences([]), "no sequences: X is empty"),
    "no offsets": (lambda: Sequences(np.zeros((0, 3)), [0]), "no sequences"),
    "no rows": (lambda: Sequences(np.zeros((0, 3))), "sequence 0 is empty"),
    "empty array": (lambda: as_sequences([X[:2], X[:0], X[:1]]), "sequence 1 is empty"),
    "empty first array": (lambda: as_sequences([X[:0], X[:1]]), "sequence 0 is empty"),
    "empty list": (lambda: as_sequences([[[1.0, 2.0]], []]), "sequence 1 is empty"),
    "empty first list": (lambda: as_sequences([[], [[1.0, 2.0]]]), "sequence 0 is empty"),
    "empty CSR": (lambda: as_sequences([sp.csr_array(X), sp.csr_array((0, 3))]), "sequence 1 is"),
    "length 0": (lambda: as_sequences(X, [2, 0, 8]), "sequence 1 is empty"),
    "negative length": (lambda: as_sequences(X, [12, -2]), "sequence 1 is empty"),
    "lengths too short": (lambda: as_sequences(X, [2, 7]), "add up to 9, but X has 10 rows"),
    "lengths too long": (lambda: as_sequences(X, [20]), "add up to 20, but X has 10 rows"),
    "lengths not whole": (lambda: as_sequences(X, [5.5, 4.5]), "whole numbers"),
    "lengths of two dimensions": (lambda: as_sequences(X, [[5, 5]]), "whole numbers"),
    "lengths a number": (lambda: checked_lengths(10, 10), "whole numbers"),
    "lengths text": (lambda: as_sequences(X, ["5", "5"]), "whole numbers"),
    "matrix without lengths": (lambda: as_sequences(X), "pass lengths="),
    "CSR without lengths": (lambda: as_sequences(sp.csr_array(X)), "pass lengths="),
    "offsets fall": (lambda: Sequences(X, [0, 5, 3, 10]), "sequence 1 is empty"),
    "offsets start late": (lambda: Sequences(X, [1, 10]), "from 0 to 10, got 1 to 10"),
    "offsets end early": (lambda: Sequences(X, [0, 9]), "from 0 to 10, got 0 to 9"),
    "offsets of two dimensions": (lambda: Sequences(X, [[0, 10]]), "offsets must be"),
    "offsets text": (lambda: Sequences(X, ["a", "b"]), "offsets must be"),
    "offsets not whole": (lambda: Sequences(X, [0, 2.5, 10]), "offsets must be"),
    "another width": (
        lambda: as_sequences([X[:2], X[2:4], X[4:6, :2]]),
        "sequence 2 has 2 features, but sequence 0 has 3",
    ),
    "Sequences of other widths": (
        lambda: as_sequences([Sequences(X), Sequences(X[:, :2])]),
        "different numbers of features",
    ),
    "ragged rows": (lambda: as_sequences([[[1.0, 2.0], [3.0]]]), "sequence 0 of X is not"),
    "a vector": (lambda: as_sequences([X[:2], X[0]]), r"sequence 1 .*ndarray of shape \(3,\)"),
    "strings": (lambda: as_sequences([["a", "b"]]), "sequence 0 .*need features="),
    "one vector": (lambda: as_sequences(X[:, 0]), "sequence 0 of X is not"),
    "one number": (lambda: as_sequences(5), "X must be a list of sequences"),
    "None": (lambda: as_sequences(None), "X must be a list of sequences"),
    "text matrix": (lambda: Sequences([["a", "b"]]), "not a matrix of numbers"),
    "three dimensions": (lambda: Sequences(np.zeros((2, 2, 2))), "two dimensions .* got 3"),
    "one dimension": (lambda: Sequences(np.zeros(3)), "two dimensions .* got 1"),
    "complex": (lambda: Sequences(np.full((2, 2), 1j)), "complex"),
    "complex CSR": (lambda: Sequences(sp.csr_array(np.full((2, 2), 1j))), "complex"),
    "edge rows": (
        lambda: Sequences(X, OFFSETS, np.ones((9, 1))),
        "edge has 9 rows, but x has 10",
    ),
    "edge of one dimension": (lambda: Sequences(X, OFFSETS, np.ones(10)), "edge must have two"),
    "edge text": (lambda: Sequences(X, OFFSETS, [["a"]] * 10), "edge is not a matrix of numbers"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("first", ["dense", "sparse"])
def test_dense_and_sparse_parts_mix_or_are_refused_by_name(first):
    parts = [X[:2], sp.csr_array(X[2:5])]
    if first == "sparse":
        parts = [sp.csr_array(X[:2]), X[2:5]]
    try:
        batch = as_sequences(parts)
    except InputError as error:
        assert "sequence 1" in str(error)  # noqa: PT017
    else:
        np.testing.assert_array_equal(dense(batch.x), X[:5])


# --- the same through an estimator -------------------------------------------------------------

Y = [["a", "b"], ["a"], ["b", "b", "a", "a"], ["a", "a", "b"]]


@pytest.mark.parametrize("make", [list, lambda parts: list(map(sp.csr_array, parts))])
def test_wrong_number_of_features_at_prediction(make):
    model = sf.CRF().fit(make(cut(X)), Y)
    narrow = make(cut(X[:, :2]))
    for call in (model.predict, model.predict_proba, model.distribution, model.predict_spans):
        with pytest.raises(InputError, match="X has 2 features, the model was trained with 3"):
            call(narrow)
    with pytest.raises(InputError, match="X has 2 features"):
        model.predict(as_sequences(narrow))


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("width", [1, 3, None])
def test_wrong_number_of_edge_features_at_prediction(make, width):
    edge = matrix(3, width=2)
    model = sf.CRF().fit(Sequences(make(X), OFFSETS, make(edge)), Y)
    other = None if width is None else make(np.ones((10, width)))
    with pytest.raises(InputError, match="edge"):
        model.predict(Sequences(make(X), OFFSETS, other))


def test_features_are_checked_at_prediction_too():
    model = sf.CRF().fit(cut(X), Y)
    with pytest.raises(InputError, match="sequence 2, position 2, column 1"):
        model.predict(cut(poisoned(np.nan, "dense")))
    with pytest.raises(InputError, match="sequence 0 is empty"):
        model.predict([[]])
    with pytest.raises(InputError, match="no sequences"):
        model.predict([])
