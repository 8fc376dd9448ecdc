"""`SequenceBoost` and `AdaBoost`: paths, warm starts, refits, files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import seqfield as sf
from seqfield.errors import CapabilityError, InputError, ModelFileError
from seqfield.persist import read_model

from ..support.model_files import forge
from ..support.sequences import EDGE_TEMPLATE, TEMPLATE, numbers, words

X, Y = words()
BOUNDS = ("loose", "tight", "exact")
KINDS = {
    "sequence": sf.SequenceBoost,
    "token": sf.AdaBoost,
    "neighbours": lambda **kw: sf.AdaBoost(neighbors=True, **kw),
}
every_bound = pytest.mark.parametrize("bound", BOUNDS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def boost(kind="sequence", **wanted):
    own = {"features": sf.Template(TEMPLATE), "max_iter": 30, "n_jobs": 1}
    return KINDS[kind](**own | {"max_step": 5.0, "length_weight": 1.0} | wanted)


def same_path(a, b, rel=1e-6):
    assert [c[:2] for c in a] == [c[:2] for c in b]
    np.testing.assert_allclose([c[2:] for c in a], [c[2:] for c in b], rtol=rel)


@every_kind
@every_bound
def test_path_adds_up_to_the_weights(kind, bound):
    model = boost(kind, bound=bound).fit(X, Y)
    path = model.path_
    assert model.n_iter_ == model.best_iter_ == len(path) == 30
    assert model.objective_ == path[-1].log_loss
    assert (np.diff([c.log_loss for c in path]) <= 1e-12).all()
    index = {label: k for k, label in enumerate(model.classes_.tolist())}
    transitions, nodes = np.zeros((3, 3)), {}
    for c in path:
        if c.feature is None:
            transitions[index[c.labels[0]], index[c.labels[1]]] += c.step
        else:
            key = c.labels[0], c.feature
            nodes[key] = nodes.get(key, 0.0) + c.step
        assert 0.0 < c.rerun <= 1.0
    np.testing.assert_allclose(model.transitions_, transitions, rtol=1e-12, atol=1e-14)
    found = {(w.label, w.feature): w.value for w in model.top_weights(10**6) if w.value}
    assert found.keys() == {key for key, v in nodes.items() if v}
    for key, value in found.items():
        assert value == pytest.approx(nodes[key], rel=1e-12)
    assert model.n_features_used_ == len({feature for _, feature in found})
    assert (kind == "token") == (not transitions.any())


@every_kind
def test_objective_is_the_exponential_loss(kind):
    """Of whole sequences, by log p of a model with the same weights."""
    model = boost(kind, length_weight=0.7).fit(X, Y)
    if kind != "sequence":
        alone = sum(len(row) for row in X)
        assert model.path_[0].log_loss <= np.log(alone * 0.7 * 2)
        return
    twin = sf.CRF(sf.Template(TEMPLATE)).fit(X, Y)
    twin.function_ = replace(twin.function_, theta=model.theta_)
    p = np.exp(twin.log_likelihood(X, Y))
    lengths = np.array([len(row) for row in X])
    assert np.exp(model.objective_) == pytest.approx(0.7**lengths @ (1 / p - 1), rel=1e-9)


@every_kind
def test_it_learns(kind):
    X1, y1 = words(150, seed=1, noise=0.05)
    X2, y2 = words(60, seed=2, noise=0.05)
    model = boost(kind, max_iter=100).fit(X1, y1)
    majority = max(sum(row.count(k) for row in y2) for k in "ABC") / sum(map(len, y2))
    assert model.score(X2, y2) > majority + 0.2


def test_deterministic():
    a = boost(random_state=0).fit(X, Y)
    b = boost(random_state=1, n_jobs=2).fit(X, Y)
    assert a.path_ == b.path_
    np.testing.assert_array_equal(a.theta_, b.theta_)


@every_kind
@every_bound
def test_warm_start_goes_on(kind, bound):
    whole = boost(kind, bound=bound, max_iter=24).fit(X, Y)
    model = boost(kind, bound=bound, max_iter=12, warm_start=True).fit(X, Y)
    assert len(model.path_) == 12
    model.fit(X, Y)
    same_path(model.path_, whole.path_)
    np.testing.assert_allclose(model.theta_, whole.theta_, rtol=1e-6, atol=1e-9)


@every_kind
@every_bound
def test_truncated_equals_fewer_rounds(kind, bound):
    model = boost(kind, bound=bound).fit(X, Y)
    before = model.theta_.copy()
    for n in (1, 7, 30):
        few = boost(kind, bound=bound, max_iter=n).fit(X, Y)
        cut = model.truncated(n)
        same_path(cut.path_, few.path_, rel=1e-12)
        np.testing.assert_allclose(cut.theta_, few.theta_, rtol=1e-12, atol=1e-14)
        assert cut.predict(X) == few.predict(X)
    assert not model.truncated(0).theta_.any()
    np.testing.assert_array_equal(model.theta_, before)
    assert len(model.path_) == 30
    for bad in (-1, 31, 1.5):
        with pytest.raises(InputError, match="n_rounds"):
            model.truncated(bad)


def test_truncated_has_no_probabilities_of_the_whole():
    model = boost(calibrate=True, random_state=0).fit(X, Y)
    assert model.calibration_.temperature > 0
    with pytest.raises(CapabilityError, match="calibrate=True"):
        model.truncated(10).predict_proba(X)
    assert model.predict_proba(X)


@every_kind
@pytest.mark.parametrize("refit", [None, "log", "exp"])
def test_save_and_load_keep_the_path(kind, refit, tmp_path):
    model = boost(kind, refit=refit).fit(X, Y)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    assert again.path_ == model.path_
    assert all(isinstance(c.step, float) for c in again.path_)
    np.testing.assert_array_equal(again.theta_, model.theta_)
    assert again.predict(X) == model.predict(X)
    if refit is None:
        assert again.truncated(5).predict(X) == model.truncated(5).predict(X)


def test_a_broken_path_is_refused(tmp_path):
    model = boost().fit(X, Y)
    path = tmp_path / "m.sf"
    model.save(path)
    header, arrays = read_model(path)
    rows = arrays["function/path"].copy()
    for bad in (rows[:, :3], np.where(np.arange(4) == 0, -1.0, rows), rows * 1e9, rows * np.nan):
        forge(path, header, arrays | {"function/path": bad})
        with pytest.raises(ModelFileError, match="path"):
            sf.load(path)


# --- refit -------------------------------------------------------------------------------------


@every_kind
def test_refit_log_gives_the_probabilities_of_a_crf(kind):
    plain = boost(kind, max_iter=12).fit(X, Y)
    model = boost(kind, max_iter=12, refit="log", refit_c2=0.5).fit(X, Y)
    assert model.probabilistic
    assert [c[:2] for c in model.path_] == [c[:2] for c in plain.path_]
    chosen = np.flatnonzero(plain.theta_)
    others = np.setdiff1d(np.arange(len(plain.theta_)), chosen)
    assert not model.theta_[others].any()
    assert model.theta_[chosen].all()

    def objective(theta):
        twin = sf.CRF(sf.Template(TEMPLATE)).fit(X, Y)
        twin.function_ = replace(twin.function_, theta=theta)
        return -twin.log_likelihood(X, Y).sum() + 0.25 * theta @ theta

    best = objective(model.theta_)
    assert model.objective_ == pytest.approx(best, rel=1e-9)
    assert -model.log_likelihood(X, Y).sum() == pytest.approx(
        best - 0.25 * model.theta_ @ model.theta_
    )
    assert best < objective(plain.theta_)
    for k in chosen:
        for step in (-1e-2, 1e-2):
            moved = model.theta_.copy()
            moved[k] += step
            assert objective(moved) > best - 1e-5 * best
    for p in model.predict_proba(X):
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)


def test_refit_exp_lowers_the_exponential_loss():
    plain = boost(max_iter=12).fit(X, Y)
    model = boost(max_iter=12, refit="exp", refit_c2=1e-3).fit(X, Y)
    assert not model.probabilistic
    penalty = 0.5e-3 * plain.theta_ @ plain.theta_
    assert model.objective_ < plain.objective_ + penalty
    with pytest.raises(CapabilityError, match="calibrate=True"):
        model.predict_proba(X)


def test_refitted_weights_cannot_be_truncated():
    with pytest.raises(CapabilityError, match="fitted again"):
        boost(refit="log").fit(X, Y).truncated(3)


@pytest.mark.parametrize("refit", [None, "log", "exp"])
def test_features_that_tell_nothing(refit):
    """No round is worth its while; the model is there all the same."""
    X1 = [["a"], ["a"], ["a"], ["a"]]
    y1 = [["x"], ["y"], ["x"], ["y"]]
    model = sf.SequenceBoost(refit=refit, max_iter=5).fit(X1, y1)
    assert model.path_ == []
    assert not model.theta_.any()
    assert model.predict(X1) == [["x"]] * 4


# --- early stopping ----------------------------------------------------------------------------


def test_early_stopping_keeps_the_best_round():
    X1, y1 = words(60, seed=3, noise=0.4)
    wanted = {"early_stopping": True, "validation_fraction": 0.3, "random_state": 0}
    model = boost(max_iter=200, patience=15, **wanted).fit(X1, y1)
    assert model.n_iter_ == model.best_iter_ + 15 < 200
    assert len(model.path_) == model.best_iter_ >= 1
    assert model.objective_ == model.path_[-1].log_loss
    steps = {}
    for c in model.path_:
        steps[c[:2]] = steps.get(c[:2], 0.0) + c.step
    total = sum(abs(v) for v in steps.values())
    assert np.abs(model.theta_).sum() == pytest.approx(total, rel=1e-10)
    # it is the best on what was held out
    order = np.random.RandomState(0).permutation(60)
    held = np.sort(order[: round(60 * 0.3)])
    X2, y2 = [X1[i] for i in held], [y1[i] for i in held]
    whole = boost(max_iter=200, patience=10**6, **wanted).fit(X1, y1)
    assert len(whole.path_) >= len(model.path_)
    same_path(whole.path_[: len(model.path_)], model.path_, rel=1e-9)
    best = model.score(X2, y2)
    for n in range(1, min(model.n_iter_, len(whole.path_)) + 1):
        assert whole.truncated(n).score(X2, y2) <= best + 1e-12


# --- labels ------------------------------------------------------------------------------------


@every_kind
def test_unknown_labels_cut(kind):
    """The same model as from the pieces, features of the whole."""
    X1, y1 = numbers(20)
    y1[3][0] = y1[5] = None
    y1[7] = [None if t % 2 else label for t, label in enumerate(y1[7])]
    y1[9][-1] = {"L0", "L1"}
    pieces, labels = [], []
    for x, row in zip(X1, y1, strict=True):
        piece = []
        for t, label in enumerate([*(row or [None] * len(x)), None]):
            if label is not None and not isinstance(label, set):
                piece.append(t)
            elif piece:
                pieces.append(x[piece])
                labels.append([row[t] for t in piece])
                piece = []
    a = boost(kind, features=None).fit(X1, y1)
    b = boost(kind, features=None).fit(pieces, labels)
    if kind == "neighbours":  # the label before an unknown one is still before its own
        assert a.predict(X1)
        return
    same_path(a.path_, b.path_)


def test_a_scheme_and_a_cut():
    X1 = [["a", "b", "c"], ["c", "b"], ["b", "c", "a", "b"]]
    y1 = [["B-x", None, "I-x"], ["O", "B-x"], [None, "I-x", "O", "B-x"]]
    model = sf.SequenceBoost(scheme="BIO", max_iter=20).fit(X1, y1)
    assert np.isfinite([c.log_loss for c in model.path_]).all()
    for row in model.predict(X1):
        for before, after in zip(["O", *row], row, strict=False):
            assert not (after == "I-x" and before == "O")


def test_nothing_is_known():
    """No sequence is left to boost on."""
    model = sf.SequenceBoost(classes=["a", "b"], max_iter=5).fit([["x", "y"]], [[None, None]])
    assert model.path_ == []
    assert len(model.predict([["x", "y"]])[0]) == 2


def test_sample_weights_count_sequences():
    w = np.array([1 + k % 3 for k in range(len(X))])
    a = boost(observed_only=False).fit(X, Y, sample_weight=w)
    many = [i for i, k in enumerate(w) for _ in range(k)]
    b = boost(observed_only=False).fit([X[i] for i in many], [Y[i] for i in many])
    assert [c[:2] for c in a.path_] == [c[:2] for c in b.path_]
    np.testing.assert_allclose(
        [c[2:4] for c in a.path_], [c[2:4] for c in b.path_], rtol=1e-6, atol=1e-9
    )


# --- arguments ---------------------------------------------------------------------------------


@every_kind
def test_edge_features_are_refused(kind):
    with pytest.raises(CapabilityError, match="edge features"):
        boost(kind, features=sf.Template(EDGE_TEMPLATE)).fit(X, Y)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bound", "wide"),
        ("refit", "hinge"),
        ("max_iter", 0),
        ("smoothing", -1.0),
        ("max_step", 0.0),
        ("length_weight", 0.0),
        ("length_weight", 1.5),
        ("tol", -1.0),
        ("refit_c2", -1.0),
    ],
)
def test_wrong_arguments_are_named(name, value):
    with pytest.raises(InputError, match=name):
        boost(**{"refit": "log", name: value}).fit(X, Y)


# --- corners --------------------------------------------------------------------------------------


def separable(n=60, s=3, seed=0):
    rng = np.random.default_rng(seed)
    y = [[f"L{k}" for k in rng.integers(s, size=4)] for _ in range(n)]
    return [[f"w{label}{rng.integers(5)}" for label in row] for row in y], y


def test_boosting_goes_on_where_everything_is_nearly_certain():
    """The tables are made anew as the loss falls: rounding errors must not end it."""
    X, y = separable()
    whole = sf.SequenceBoost(max_iter=1500, tol=0.0).fit(X, y)
    parts = sf.SequenceBoost(max_iter=750, tol=0.0, warm_start=True).fit(X, y).fit(X, y)
    assert len(whole.path_) == len(parts.path_)
    assert whole.objective_ == pytest.approx(parts.objective_, rel=1e-6)


def test_repeated_entries_of_a_sparse_matrix_add_up():
    rng = np.random.default_rng(0)
    x = sp.csr_array(2.0 * (rng.random((12, 5)) < 0.5))
    twice = sp.csr_array(
        (np.repeat(x.data, 2) / 2, np.repeat(x.indices, 2), 2 * x.indptr), shape=x.shape
    )
    y = [["a", "b", "a", "c"]] * 3
    one, two = (sf.SequenceBoost(max_iter=20).fit(m, y, lengths=[4, 4, 4]) for m in (x, twice))
    np.testing.assert_allclose(one.theta_, two.theta_, rtol=1e-8, atol=1e-10)


def test_nothing_to_choose_from():
    X = sp.csr_array((3, 2))
    for refit in (None, "log"):
        model = sf.SequenceBoost(transitions=False, refit=refit).fit(
            X, ["a", "b", "a"], lengths=[3]
        )
        assert model.path_ == []


def test_what_was_fitted_counts_not_what_is_set_now():
    X, y = separable(20)
    model = sf.SequenceBoost(max_iter=10).fit(X, y).set_params(refit="log")
    with pytest.raises(CapabilityError):
        model.predict_proba(X)
    short = model.truncated(4)
    assert (short.n_iter_, short.best_iter_) == (4, 4)
    assert short.objective_ == model.path_[3].log_loss
