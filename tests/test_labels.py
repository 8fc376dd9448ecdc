"""Labels of any kind, missing labels, candidate sets, and errors that name the place."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pandas as pd
import pytest

import seqfield as sf
from seqfield.errors import InputError, LabelError
from seqfield.labels import LabelSet, Targets, is_missing, nested
from seqfield.sequences import offsets_of

RNG = np.random.default_rng(0)
X = [RNG.normal(size=(length, 2)) for length in (2, 1, 3, 4)]
CODES = [[0, 1], [1], [1, 0, 0], [0, 1, 1, 0]]

KINDS = {
    "strings": ["B-x", "O"],
    "ints": [3, 7],
    "-1 is a label": [-1, 1],
    "bools": [False, True],
    "floats": [0.5, 2.5],
    "tuples": [("a", 1), ("b", 2)],
    "nested tuples": [("a", (1, 2)), ("b", ())],
    "mixed": ["O", 4],
    "tuples and strings": [("a", 1), "b"],
    "bytes": [b"a", b"b"],
    "not ASCII": ["日本", "Ωß"],
    "empty string": ["", "x"],
}


def named(labels, codes=CODES):
    return [[labels[k] for k in row] for row in codes]


# --- label sets --------------------------------------------------------------------------------


def test_labels_are_sorted():
    assert LabelSet.learn([["O", "B"], ["I", "B"]]).names == ["B", "I", "O"]
    assert LabelSet.learn([[10, -1, 9]]).names == [-1, 9, 10]


def test_labels_that_cannot_be_compared_keep_the_order_of_appearance():
    assert LabelSet.learn([["O", 4], [("a",), "O"]]).names == ["O", 4, ("a",)]


def test_learning_looks_into_sets_and_skips_missing():
    y = [["b", None], None, [{"a", "d"}, -100, frozenset({"c"})]]
    assert LabelSet.learn(y, missing_label=-100).names == ["a", "b", "c", "d"]


def test_missing_label_is_never_guessed():
    assert LabelSet.learn([[-1, 0], [-100, 1]]).names == [-100, -1, 0, 1]
    assert LabelSet.learn([[-1, 0], [-100, 1]], missing_label=-100).names == [-1, 0, 1]


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (np.array([[1, 0], [0, 1]]), [0, 1]),
        ([np.array([1, 0]), np.array([1], np.int8)], [0, 1]),
        ([[np.int64(1), np.int32(0)], [1]], [0, 1]),
        ([np.array(["b", "a"])], ["a", "b"]),
        ([[np.str_("b")], ["a"]], ["a", "b"]),
        ([np.array([0.5, 1.5])], [0.5, 1.5]),
        ([np.array([True, False])], [False, True]),
        ([np.array([None, "a"], object)], ["a"]),
    ],
)
def test_numpy_labels_become_python_labels(y, names):
    learned = LabelSet.learn(y)
    assert learned.names == names
    assert [type(name) for name in learned.names] == [type(name) for name in names]


def test_classes_array():
    assert LabelSet(["a", "b"]).array.dtype.kind == "U"
    assert LabelSet([1, 2]).array.dtype.kind == "i"
    for names in ([("a", 1), ("b", 2)], ["a", 1], [True, False], [("a",), ("b",)]):
        array = LabelSet(names).array
        assert (array.shape, array.dtype) == ((2,), object)
        assert array.tolist() == names


def test_decode_is_the_inverse_of_encode():
    labels = LabelSet(["x", "y", "z"])
    y = [["z"], ["x", "y", "y"]]
    targets = labels.encode(y)
    assert targets.codes.tolist() == [2, 0, 1, 1]
    assert targets.codes.dtype == np.int32
    assert targets.allowed is None
    assert labels.decode(targets.codes, targets.offsets) == y


def test_missing_labels_and_candidates_are_encoded():
    labels = LabelSet(["a", "b", "c"])
    targets = labels.encode([["a", None], [{"b", "c"}, {"b"}, frozenset({"a", "c"})]])
    assert targets.codes.tolist() == [0, -1, -1, 1, -1]
    expected = [[1, 0, 0], [1, 1, 1], [0, 1, 1], [0, 1, 0], [1, 0, 1]]
    assert targets.allowed.astype(int).tolist() == expected
    assert targets.mask(3) is targets.allowed


def test_singleton_sets_are_known_labels():
    targets = LabelSet(["a", "b"]).encode([[{"a"}, "b"]])
    assert targets.codes.tolist() == [0, 1]
    assert targets.allowed is None


def test_mask_of_known_labels():
    targets = LabelSet(["a", "b", "c"]).encode([["c", "a"]])
    assert targets.mask(3).astype(int).tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("partial", [False, True])
def test_targets_of_chosen_sequences(partial):
    labels = LabelSet(["a", "b"])
    y = [["a", "b"], ["b"], ["b", "a", "a"]]
    if partial:
        y[2][1] = None
    targets = labels.encode(y)
    for chosen in ([2, 0], [1], [0, 1, 2], [1, 1]):
        part, whole = targets[np.array(chosen)], labels.encode([y[i] for i in chosen])
        assert isinstance(part, Targets)
        assert part.offsets.tolist() == whole.offsets.tolist()
        assert part.codes.tolist() == whole.codes.tolist()
        np.testing.assert_array_equal(part.mask(2), whole.mask(2))
        assert (part.allowed is None) == (whole.allowed is None)


@pytest.mark.parametrize(
    ("label", "missing_label", "expected"),
    [
        (None, None, True),
        (None, -100, True),
        (-100, -100, True),
        (np.int64(-100), -100, True),
        (-100.0, -100, True),
        (-1, None, False),
        (-1, -100, False),
        ("", None, False),
        (float("nan"), float("nan"), True),
        (np.float64("nan"), float("nan"), True),
        (0.0, float("nan"), False),
        ("nan", float("nan"), False),
        ("?", "?", True),
        ({"?"}, "?", False),
        (("?",), ("?",), True),
    ],
)
def test_is_missing(label, missing_label, expected):
    assert is_missing(label, missing_label) is expected


# --- y against X -------------------------------------------------------------------------------


def test_nested_forms():
    offsets = offsets_of([2, 1])
    expected = [["a", "b"], ["a"]]
    assert nested([["a", "b"], ["a"]], offsets) == expected
    assert nested((("a", "b"), ("a",)), offsets) == expected
    assert nested([np.array(["a", "b"]), ["a"]], offsets) == expected
    assert nested(["a", "b", "a"], offsets, flat=True) == expected
    assert nested(np.array(["a", "b", "a"]), offsets, flat=True) == expected
    assert nested([["a", "b"], ["a"]], offsets, flat=True) == expected
    assert nested([None, ["a"]], offsets) == [[None, None], ["a"]]
    assert nested(["a", None, {"a"}], offsets, flat=True) == [["a", None], [{"a"}]]


ERRORS = {
    "y None": (lambda y: None, "y is None"),
    "y a number": (lambda y: 5, "y must be a list"),
    "y a string": (lambda y: "abcd", "y must be a list of label lists, got 'abcd'"),
    "too few": (lambda y: y[:3], "X has 4 sequences but y has 3"),
    "too many": (lambda y: [*y, ["a"]], "X has 4 sequences but y has 5"),
    "one label short": (
        lambda y: [*y[:2], y[2][:2], y[3]],
        "sequence 2: X has 3 tokens but y has 2 labels",
    ),
    "one label more": (
        lambda y: [y[0], ["a", "b"], *y[2:]],
        "sequence 1: X has 1 tokens but y has 2 labels",
    ),
    "flat": (lambda y: list(chain.from_iterable(y)), "X has 4 sequences but y has 10"),
    "string as row": (lambda y: [y[0], "a", *y[2:]], r"y\[1\] must be a list of labels"),
    "empty set": (lambda y: [y[0], [set()], *y[2:]], "empty set .* sequence 1, position 0"),
    "NaN": (lambda y: [*y[:2], ["a", float("nan"), "a"], y[3]], "NaN at sequence 2, position 1"),
    "list as label": (
        lambda y: [*y[:3], ["a", "b", ["a"], "b"]],
        "sequence 3, position 2 is not hashable",
    ),
    "dict as label": (lambda y: [*y[:3], ["a", "b", {}, "b"]], "sequence 3, position 2 is not"),
    "one label": (lambda y: [["a"] * len(row) for row in y], "only the label 'a'"),
    "one label and missing": (lambda y: [None, ["a"], None, None], "only the label 'a'"),
    "no labels": (lambda y: [None] * 4, "no labels"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_place(name):
    change, message = ERRORS[name]
    y = named(["a", "b"])
    with pytest.raises(LabelError, match=message):
        sf.CRF().fit(X, change(y))


@pytest.mark.parametrize("method", ["score", "log_likelihood"])
def test_unknown_labels_at_scoring(method):
    model = sf.CRF().fit(X, named(["a", "b"]))
    score = getattr(model, method)
    y = named(["a", "b"])
    y[2][1] = "z"
    with pytest.raises(LabelError, match=r"label 'z' at sequence 2, position 1 .*classes="):
        score(X, y)
    y[2][1] = {"a", "z"}
    with pytest.raises(LabelError, match="label 'z' at sequence 2, position 1"):
        score(X, y)
    with pytest.raises(LabelError, match="y is None"):
        score(X, None)
    with pytest.raises(LabelError, match="sequence 3: X has 4 tokens but y has 1"):
        score(X, [*y[:3], ["a"]])


def test_a_missing_label_must_be_one():
    with pytest.raises(InputError, match=r"missing_label must be .*\[1\]"):
        LabelSet(["a", "b"]).encode([["a"]], missing_label=[1])


def test_label_sets_refuse_duplicates_and_a_missing_label_among_them():
    with pytest.raises(LabelError, match="twice"):
        LabelSet(["a", "b", "a"])
    for y in ([["a", "?"]], [["a", "?", None]]):
        with pytest.raises(LabelError, match="both a label and the missing label"):
            LabelSet(["a", "?"]).encode(y, missing_label="?")


# --- through an estimator ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference():
    return sf.CRF(c2=0.1, n_jobs=1).fit(X, CODES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_label_gives_the_same_model(kind, reference):
    labels = KINDS[kind]
    model = sf.CRF(c2=0.1, n_jobs=1).fit(X, named(labels))
    order = [labels.index(name) for name in model.classes_.tolist()]
    assert sorted(order) == [0, 1]
    for got, want in zip(model.predict_proba(X), reference.predict_proba(X), strict=True):
        np.testing.assert_allclose(got, want[:, order], rtol=1e-6)
    predicted = model.predict(X)
    assert predicted == named(labels, reference.predict(X))
    assert {type(label) for row in predicted for label in row} <= {type(v) for v in labels}
    assert model.score(X, named(labels)) == reference.score(X, CODES)


@pytest.mark.parametrize(
    "form",
    [
        [np.array(row) for row in CODES],
        [np.array(row, np.int8) for row in CODES],
        [[np.int64(k) for k in row] for row in CODES],
        tuple(tuple(row) for row in CODES),
        [np.array(row, object) for row in CODES],
        [[{k} for k in row] for row in CODES],
        [pd.Series(row) for row in CODES],
        [pd.Series(row, dtype="category", index=range(7, 7 + len(row))) for row in CODES],
        [pd.Index(row) for row in CODES],
        pd.Series(CODES),
    ],
)
def test_every_form_of_y_gives_the_same_model(form, reference):
    model = sf.CRF(c2=0.1, n_jobs=1).fit(X, form)
    np.testing.assert_array_equal(model.theta_, reference.theta_)
    assert model.classes_.tolist() == [0, 1]
    assert all(type(label) is int for row in model.predict(X) for label in row)


def test_flat_y_with_lengths(reference):
    lengths = [len(part) for part in X]
    flat = list(chain.from_iterable(CODES))
    for y in (np.concatenate(CODES), flat, CODES, pd.Series(flat), pd.Series(flat, range(5, 15))):
        model = sf.CRF(c2=0.1, n_jobs=1).fit(np.vstack(X), y, lengths=lengths)
        np.testing.assert_array_equal(model.theta_, reference.theta_)
        assert model.score(np.vstack(X), y, lengths=lengths) == reference.score(X, CODES)


@pytest.mark.parametrize(
    ("missing_label", "value"),
    [(None, None), (-100, -100), (-100, None), ("?", "?"), (float("nan"), float("nan"))],
)
def test_missing_label_values_mean_the_same(missing_label, value):
    rows = [list(row) for row in CODES]
    rows[0][1] = rows[3][2] = None
    plain = sf.CRF(n_jobs=1, observed_only=False).fit(X, rows)
    rows[0][1] = rows[3][2] = value
    model = sf.CRF(n_jobs=1, observed_only=False, missing_label=missing_label).fit(X, rows)
    np.testing.assert_array_equal(model.theta_, plain.theta_)
    assert model.classes_.tolist() == [0, 1]
    pairs = zip(chain.from_iterable(rows), chain.from_iterable(model.predict(X)), strict=True)
    right = [y == p for y, p in pairs if y in (0, 1)]
    assert len(right) == 8
    assert model.score(X, rows) == np.mean(right)
    np.testing.assert_allclose(
        model.score(X, rows, sample_weight=np.ones(4)), model.score(X, rows), rtol=1e-14
    )


@pytest.mark.parametrize("dtype", [object, "str", "category"])
def test_a_gap_in_a_series_is_a_missing_label(dtype):
    rows = [["a" if k else "b" for k in row] for row in CODES]
    rows[0][1] = rows[3][2] = None
    plain = sf.CRF(n_jobs=1, observed_only=False).fit(X, rows)
    series = [pd.Series(row, dtype=dtype) for row in rows]
    model = sf.CRF(n_jobs=1, observed_only=False).fit(X, series)
    np.testing.assert_array_equal(model.theta_, plain.theta_)
    assert model.score(X, series) == plain.score(X, rows)
    whole = pd.Series([*chain.from_iterable(rows)], dtype=dtype)
    lengths = [len(part) for part in X]
    assert model.score(np.vstack(X), whole, lengths=lengths) == plain.score(X, rows)


def test_a_gap_outside_of_a_series_must_be_named():
    y = named(["a", "b"])
    y[2][1] = pd.NA
    with pytest.raises(LabelError, match="label is <NA> at sequence 2, position 1"):
        sf.CRF().fit(X, y)
    with pytest.raises(LabelError, match="label is <NA> at sequence 2, position 1"):
        sf.CRF(missing_label="?").fit(X, y)
    assert sf.CRF(missing_label=pd.NA).fit(X, y).classes_.tolist() == ["a", "b"]


def test_minus_one_and_minus_100_are_labels_unless_said_otherwise():
    y = [[-1 if k == 0 else -100 for k in row] for row in CODES]
    assert sf.CRF().fit(X, y).classes_.tolist() == [-100, -1]
    y[0][0] = 5
    assert sf.CRF(missing_label=-100).fit(X, y).classes_.tolist() == [-1, 5]


def test_candidate_sets_and_unlabelled_sequences_train():
    y = [["a", {"b", "c"}], None, ["c", None, "a"], ["b", "a", {"a", "b", "c"}, "c"]]
    model = sf.CRF().fit(X, y)
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert np.isfinite(model.theta_).all()
    assert model.log_likelihood(X, y)[1] == pytest.approx(0.0, abs=1e-12)


def test_y_is_not_changed():
    y = [["a", {"b", "c"}], None, ["c", None, "a"], ("b", "a", "c", "c")]
    copy = [["a", {"b", "c"}], None, ["c", None, "a"], ("b", "a", "c", "c")]
    sf.CRF().fit(X, y)
    assert y == copy


def test_a_string_is_no_flat_list_of_labels():
    lengths = [len(part) for part in X]
    with pytest.raises(LabelError, match="y must be a list of label lists, got 'ab"):
        sf.CRF().fit(np.vstack(X), "abababbaba", lengths=lengths)


# --- declared classes --------------------------------------------------------------------------


@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_declared_classes(form):
    model = sf.CRF(classes=form(["c", "b", "a"])).fit(X, named(["a", "b"]))
    assert model.classes_.tolist() == ["c", "b", "a"]
    assert model.predict_proba(X)[0].shape == (2, 3)
    assert np.isfinite(model.log_likelihood(X, [["c"] * len(x) for x in X])).all()


def test_declared_numpy_classes_become_python_labels():
    model = sf.CRF(classes=np.array([2, 1, 0])).fit(X, CODES)
    assert {type(label) for row in model.predict(X) for label in row} == {int}


def test_classes_errors():
    with pytest.raises(LabelError, match="label 'b' occurs in y but not in classes="):
        sf.CRF(classes=["a", "c"]).fit(X, named(["a", "b"]))
    with pytest.raises(LabelError, match="twice"):
        sf.CRF(classes=["a", "b", "a"]).fit(X, named(["a", "b"]))
    with pytest.raises(LabelError, match="only the label 'a'"):
        sf.CRF(classes=["a"]).fit(X, [["a"] * len(x) for x in X])
    with pytest.raises(LabelError, match=r"classes|hashable"):
        sf.CRF(classes=[["a"], ["b"]]).fit(X, named(["a", "b"]))
