"""Out-of-fold probabilities against fits by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, KFold, LeaveOneGroupOut, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import seqfield as sf
from seqfield.errors import CapabilityError, InputError, LabelError


def sentences(n=24, seed=0):
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, 6, n):
        k = rng.integers(3, size=length)
        X.append([(f"w{a}{rng.integers(3)}",) for a in k])
        y.append(["ABC"[a] for a in k])
    return X, y


def points(n=24, seed=0):
    y = sentences(n, seed)[1]
    rng = np.random.default_rng(seed)
    return [np.eye(3)[["ABC".index(v) for v in r]] + rng.normal(size=(len(r), 3)) for r in y], y


def some(rows, chosen):
    return [rows[i] for i in chosen]


def by_hand(model, X, y, folds, **options):
    out = [None] * len(X)
    for train, test in folds:
        model.set_params(**options).fit(some(X, train), some(y, train))
        for i, proba in zip(test, model.predict_proba(some(X, test)), strict=True):
            out[i] = proba
    return out


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


MODELS = {
    "CRF": (sf.CRF(c2=0.3), sentences),
    "GPSC": (sf.GPSC(sf.kernels.RBF(1.0)), points),
    "HMM": (sf.HMM(), sentences),
    "GPSL": (sf.GPSL(sf.kernels.RBF(1.0)), points),
    "perceptron": (sf.StructuredPerceptron(calibrate=True, random_state=0), sentences),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_fold_by_a_model_without_it(name):
    model, data = MODELS[name]
    X, y = data()
    found = sf.cross_val_proba(model, X, y, cv=3, random_state=7)
    folds = KFold(3, shuffle=True, random_state=7).split(X)
    assert_same(found, by_hand(model, X, y, folds))


def test_labels_and_words_of_held_out_sequences_alone():
    X, y = sentences()
    X[4], y[4] = [("new",), ("w00",)], ["Z", "A"]  # Z comes nowhere else
    found = sf.cross_val_proba(sf.CRF(), X, y, cv=4)
    classes = sf.CRF().fit(X, y).classes_
    assert classes.tolist() == ["A", "B", "C", "Z"]
    assert all(p.shape == (len(row), 4) for p, row in zip(found, y, strict=True))
    folds = KFold(4, shuffle=True, random_state=0).split(X)
    assert_same(found, by_hand(sf.CRF(), X, y, folds, classes=classes.tolist()))
    np.testing.assert_allclose(np.concatenate(found).sum(axis=1), 1.0)


def test_splitters_groups_and_pairs():
    X, y = sentences()
    groups = np.arange(len(X)) % 6
    by_number = sf.cross_val_proba(sf.CRF(), X, y, cv=3, groups=groups)
    assert_same(by_number, sf.cross_val_proba(sf.CRF(), X, y, cv=GroupKFold(3), groups=groups))
    folds = list(LeaveOneGroupOut().split(X, groups=groups))
    by_pairs = sf.cross_val_proba(sf.CRF(), X, y, cv=folds)
    assert_same(by_pairs, by_hand(sf.CRF(), X, y, folds))
    split = sf.cross_val_proba(sf.CRF(), X, y, cv=LeaveOneGroupOut(), groups=groups)
    assert_same(split, by_pairs)
    masks = [(np.isin(np.arange(len(X)), a), b) for a, b in folds]
    assert_same(sf.cross_val_proba(sf.CRF(), X, y, cv=masks), by_pairs)


def test_seed_threads_and_progress(capsys):
    X, y = sentences()
    first = sf.cross_val_proba(sf.CRF(verbose=True), X, y)
    assert_same(sf.cross_val_proba(sf.CRF(), X, y, n_jobs=2), first)
    other = sf.cross_val_proba(sf.CRF(), X, y, random_state=1)
    assert any((a != b).any() for a, b in zip(first, other, strict=True))
    assert capsys.readouterr().err == ""  # too short for a bar


def test_unlabelled_and_partly_labelled_sequences():
    X, y = sentences()
    y[0], y[1] = None, [None] * len(X[1])
    y[2] = [{"A", "B"}, *y[2][1:]]
    found = sf.cross_val_proba(sf.CRF(), X, y, cv=3)
    folds = KFold(3, shuffle=True, random_state=0).split(X)
    assert_same(found, by_hand(sf.CRF(), X, y, folds))
    hidden = [[-1] * len(X[0]), *y[1:]]
    assert_same(sf.cross_val_proba(sf.CRF(missing_label=-1), X, hidden, cv=3), found)


def test_mended_labels_are_known_in_every_fold():
    X = [["a", "b"], ["a", "c"], ["b", "a"], ["c", "b"]] * 3
    y = [["I-x", "O"]] * len(X)  # mended to B-x
    model = sf.CRF(scheme="BIO", on_violation="repair")
    found = sf.cross_val_proba(model, X, y, cv=3)
    assert found[0].shape[1] == len(model.fit(X, y).classes_)


def test_forms_of_input():
    X, y = points()
    listed = sf.cross_val_proba(sf.CRF(), X, y, cv=3)
    lengths, flat = [len(row) for row in y], [v for row in y for v in row]
    whole = np.vstack(X)
    assert_same(sf.cross_val_proba(sf.CRF(), whole, flat, cv=3, lengths=lengths), listed)
    data = sf.Sequences(whole, np.concatenate([[0], np.cumsum(lengths)]))
    assert_same(sf.cross_val_proba(sf.CRF(), data, y, cv=3), listed)


def test_weights():
    X, y = sentences()
    double = np.where(np.arange(len(X)) < 8, 2.0, 1.0)
    folds = list(KFold(3, shuffle=True, random_state=0).split(X))
    found = sf.cross_val_proba(sf.CRF(), X, y, cv=folds, sample_weight=double)
    train, test = folds[0]
    model = sf.CRF().fit(some(X, train), some(y, train), sample_weight=double[train])
    assert_same(some(found, test), model.predict_proba(some(X, test)))


def test_pipeline():
    X, y = sentences()
    upper = FunctionTransformer(lambda rows: [[(t[0].upper(),) for t in row] for row in rows])
    model = make_pipeline(upper, sf.CRF())
    found = sf.cross_val_proba(model, X, y, cv=3, sample_weight=np.full(len(X), 2.0))
    plain = sf.CRF().fit(X, y)
    assert [p.shape for p in found] == [p.shape for p in plain.predict_proba(X)]
    raised = upper.transform(X)
    again = sf.cross_val_proba(sf.CRF(), raised, y, cv=3, sample_weight=np.full(len(X), 2.0))
    assert_same(found, again)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cv": 1}, InputError, "cv must be a whole number from 2 to 24"),
        ({"cv": 2.5}, InputError, "cv must be a whole number"),
        ({"cv": None}, InputError, "cv must be a number of folds, a splitter"),
        ({"cv": ShuffleSplit(2, random_state=0)}, InputError, "held out 0 times"),
        ({"cv": [([0, 1], [1, 2])]}, InputError, "fold 0 both trains on sequence 1"),
        ({"sample_weight": [1.0]}, InputError, "one entry for each of 24 sequences"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        sf.cross_val_proba(sf.CRF(), *sentences(), **options)


def test_bad_data_are_named_before_any_fit():
    X, y = sentences()
    y[9] = [*y[9], "A"]
    with pytest.raises(LabelError, match="sequence 9"):
        sf.cross_val_proba(sf.CRF(), X, y)
    for wrong, message in (
        (5, "list of sequences"),
        ([], "no sequences"),
        ([["a"], []], "1 is empty"),
    ):
        with pytest.raises(InputError, match=message):
            sf.cross_val_proba(sf.CRF(), wrong, y)
    with pytest.raises(LabelError, match="'C' occurs in y but not in classes"):
        sf.cross_val_proba(sf.CRF(classes=["A", "B"]), *sentences())
    with pytest.raises(CapabilityError, match="estimator of seqfield"):
        sf.cross_val_proba(FunctionTransformer(), *sentences())
    with pytest.raises(CapabilityError, match="calibrate=True"):
        sf.cross_val_proba(sf.StructuredPerceptron(), *sentences())
