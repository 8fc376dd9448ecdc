"""HMSVM: the list of all labellings, ways to the same model, what it tells and refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

import seqfield as sf
from seqfield.data.schemes import get_scheme
from seqfield.errors import BudgetError, CapabilityError, InputError, LabelError
from seqfield.kernels import RBF, Linear, Polynomial
from seqfield.linalg.factor import eigen_factor

from ..support.margins import MARGINS, SLACKS, Listed
from ..support.sequences import TEMPLATE, numbers, words

TIGHT = {"tol": 1e-9, "max_iter": 5_000}
every = pytest.mark.parametrize("slack", SLACKS)
each = pytest.mark.parametrize("margin", MARGINS)


def make(kernel="linear", **wanted):
    return sf.HMSVM(kernel, **{"n_jobs": 1, "random_state": 0} | wanted)


def small(n=5, s=3, longest=3, apart=1.0, width=3, seed=0, bio=False):
    """Tokens around a corner for each label, and the labels as numbers or in BIO."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in np.append([1, longest], rng.integers(1, longest + 1, n - 2)):
        labels = rng.integers(s, size=length)
        if bio:  # B-x, I-x and O; what is inside begins where nothing goes on
            before = np.append(2, labels[:-1])
            labels[(labels == 1) & (before == 2)] = 0
        X.append(rng.normal(size=(length, width)) + apart * np.eye(s, width)[labels])
        y.append(labels.tolist())
    return X, y


def binary(n=8, seed=0, width=9):
    """Sparse tokens of ones, some of them equal."""
    X, y = small(n, seed=seed)
    turn = np.random.default_rng(seed).normal(size=(3, width))
    return [sp.csr_array((x @ turn > 1.2).astype(np.int8)) for x in X], y


X, Y = small()
SPREAD = {"hard": small(apart=5.0)}
BINARY, BINARY_Y = binary()
WEIGHTS = np.array([0.7, 1.6, 1.0, 0.5, 1.3])


def scores(model, X=X):
    found = model.function_.scores(model.encode(X))
    return np.vstack([found.node, found.edge.reshape(-1, found.node.shape[1])])


def same(a, b, X=X):
    """The same optimum: |f - g|^2 / 2 is at most the gap for each of them."""
    assert a.objective_ == pytest.approx(b.objective_, abs=a.gap_ + b.gap_)
    x = np.vstack([x.toarray() if sp.issparse(x) else x for x in X])
    largest = max(a.kernel_.diagonal(x).max(), a.eta)
    far = (np.sqrt(2 * a.gap_) + np.sqrt(2 * b.gap_)) * np.sqrt(largest)
    np.testing.assert_allclose(scores(a, X), scores(b, X), atol=far)
    assert far < 0.01


def listed(X, y, model, root=None, **wanted):
    """The list of labellings under a linear kernel, or with rows of a root for tokens."""
    if root is not None:
        X = np.split(root, np.cumsum([len(x) for x in X])[:-1])
    cost = model.C_ * wanted.pop("weights", np.ones(len(X)))
    return Listed(X, y, len(model.classes_), model.margin, cost=cost, **wanted)


# --- the list of all labellings ----------------------------------------------------------------


@every
@each
@pytest.mark.parametrize("explicit", [True, False])
def test_optimum_is_that_of_the_list(slack, margin, explicit):
    X1, y1 = SPREAD.get(slack, (X, Y))
    model = make(C=0.7, slack=slack, margin=margin, explicit=explicit, **TIGHT)
    model.fit(X1, y1, sample_weight=WEIGHTS)
    want = listed(X1, y1, model, weights=WEIGHTS).optimum(slack)
    assert model.objective_ == pytest.approx(want, rel=1e-6)
    assert model.gap_ <= 1e-9 * model.objective_
    assert model.path_[-1][:3] == (model.objective_, model.objective_ - model.gap_, model.gap_)
    assert len(model.path_) == model.n_iter_


@pytest.mark.parametrize("slack", ["l1", "l2"])
@each
@pytest.mark.parametrize("eta", [0.25, 4.0])
def test_eta_is_the_squared_norm_of_a_transition(slack, margin, eta):
    model = make(RBF(1.5), C=2.0, eta=eta, slack=slack, margin=margin, **TIGHT).fit(X, Y)
    root = eigen_factor(RBF(1.5)(np.vstack(X)))[0]
    want = listed(X, Y, model, root, eta=eta).optimum(slack)
    assert model.objective_ == pytest.approx(want, rel=1e-6)
    other = listed(X, Y, model, root, eta=1.0).optimum(slack)
    assert abs(other - want) > 1e-3 * want


@every
@each
def test_forbidden_labellings_are_no_rivals(slack, margin):
    X1, codes = small(apart=5.0 if slack == "hard" else 1.0, bio=True, seed=2)
    names = ["B-x", "I-x", "O"]
    y1 = [[names[k] for k in row] for row in codes]
    scheme = get_scheme("BIO")
    wanted = {"C": 0.7, "slack": slack, "margin": margin, "classes": names, **TIGHT}
    model = make(scheme="bio", **wanted).fit(X1, y1)
    lawful = listed(X1, codes, model, allowed=scheme.transitions(names)).optimum(slack)
    assert model.objective_ == pytest.approx(lawful, rel=1e-6)
    assert len(model.support_) > 2
    for one in model.support_.sequences:
        row = list(y1[one.sequence])
        for t, label in zip(one.positions, one.labels, strict=True):
            row[t] = label
        assert row != y1[one.sequence]
        assert not scheme.violations(row)
    free = make(**wanted).fit(X1, y1)
    assert free.objective_ > model.objective_ * 1.001
    for row in model.predict(X1):
        assert not scheme.violations(row)


def test_labels_that_never_occur_are_rivals():
    more = make(C=0.7, classes=[3, 2, 1, 0], **TIGHT).fit(X, Y)
    assert more.classes_.tolist() == [3, 2, 1, 0]
    codes = [[3 - k for k in row] for row in Y]
    assert more.objective_ == pytest.approx(listed(X, codes, more).optimum("l1"), rel=1e-6)
    assert any(3 in one.labels for one in more.support_.sequences)


# --- peers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [0.1, 1.0])
@pytest.mark.parametrize("margin", ["unit", "hamming", "slack"])
def test_single_tokens_are_the_machine_of_crammer_and_singer(C, margin):
    X1, y1 = numbers(n=40, noise=1.5, longest=1)
    x, labels = np.vstack(X1), np.concatenate(y1)
    peer = LinearSVC(
        multi_class="crammer_singer", fit_intercept=False, C=C, tol=1e-10, max_iter=10**6
    ).fit(x, labels)
    model = make(C=C, margin=margin, **TIGHT).fit(X1, y1)
    values = peer.decision_function(x)
    np.testing.assert_allclose(scores(model, X1)[: len(x)], values, atol=1e-5)
    gold = np.searchsorted(peer.classes_, labels)
    rivals = values + (np.arange(3) != gold[:, None])
    slacks = rivals.max(axis=1) - values[np.arange(len(x)), gold]
    want = 0.5 * (peer.coef_**2).sum() + C * slacks.sum()
    assert model.objective_ == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("slack", ["l1", "labelling", "hard"])
@each
def test_without_transitions_they_score_zero(slack, margin):
    X1, y1 = SPREAD.get(slack, (X, Y))
    off = make(C=0.7, transitions=False, slack=slack, margin=margin, **TIGHT).fit(X1, y1)
    zero = make(C=0.7, eta=0.0, slack=slack, margin=margin, **TIGHT).fit(X1, y1)
    np.testing.assert_array_equal(off.transitions_, 0.0)
    assert off.objective_ == zero.objective_
    want = listed(X1, y1, off, eta=0.0).optimum(slack)
    assert off.objective_ == pytest.approx(want, rel=1e-6)


def test_without_transitions_hamming_margins_are_those_of_single_tokens():
    apart, y1 = [row[None] for row in np.vstack(X)], [[k] for row in Y for k in row]
    together = make(C=0.4, transitions=False, **TIGHT).fit(X, Y)
    single = make(C=0.4, transitions=False, **TIGHT).fit(apart, y1)
    assert together.objective_ == pytest.approx(single.objective_, abs=together.gap_ + single.gap_)
    np.testing.assert_allclose(scores(together), scores(single), atol=1e-3)


def test_a_template_without_b_has_no_transitions():
    X1, y1 = words(12)
    model = make(features="U:%x[0,0]").fit(X1, y1)
    np.testing.assert_array_equal(model.transitions_, 0.0)
    assert make(features=sf.Template(TEMPLATE)).fit(X1, y1).transitions_.any()


# --- ways to the same model --------------------------------------------------------------------


def few_rows(X):
    """A budget for the gram rows of four tokens alone."""
    rows = np.vstack([x.toarray() if sp.issparse(x) else x for x in X])
    return 8 * len(np.unique(rows, axis=0)) * 4 / 2**30


@pytest.mark.parametrize("slack", ["l1", "l2"])
@each
def test_explicit_features_gram_matrix_and_gram_rows_agree(slack, margin):
    wanted = {"C": 0.7, "slack": slack, "margin": margin, **TIGHT}
    explicit = make("linear", explicit=True, **wanted).fit(X, Y)
    gram = make("linear", explicit=False, **wanted).fit(X, Y)
    rows = make("linear", explicit=False, gram_budget=few_rows(X), **wanted).fit(X, Y)
    assert explicit.n_kept_ == 0 < gram.n_kept_ <= gram.n_tokens_
    same(gram, explicit)
    same(rows, explicit)


@pytest.mark.parametrize("kernel", [Polynomial(2), Linear() + 0.5 * Polynomial(2)])
@each
def test_pairs_of_binary_features_in_three_ways(kernel, margin):
    wanted = {"C": 0.2, "margin": margin, **TIGHT}
    explicit = make(kernel, explicit=True, **wanted).fit(BINARY, BINARY_Y)
    assert explicit.n_tokens_ < sum(x.shape[0] for x in BINARY)
    for budget in (6.0, few_rows(BINARY)):
        gram = make(kernel, explicit=False, gram_budget=budget, **wanted).fit(BINARY, BINARY_Y)
        same(gram, explicit, BINARY)


@every
@each
def test_gram_rows_change_hands_without_a_trace(slack, margin):
    wanted = {"C": 2.0, "slack": slack, "margin": margin, **TIGHT}
    X1, y1 = SPREAD.get(slack, (X, Y))
    matrix = make(RBF(1.5), **wanted).fit(X1, y1)
    rows = make(RBF(1.5), gram_budget=few_rows(X1), **wanted).fit(X1, y1)
    same(rows, matrix, X1)
    root = eigen_factor(RBF(1.5)(np.vstack(X1)))[0]
    assert rows.objective_ == pytest.approx(listed(X1, y1, rows, root).optimum(slack), rel=1e-6)


def test_single_precision_is_close():
    double, single = (
        make(RBF(1.5), C=2.0, tol=1e-6, max_iter=5000, gram_dtype=kind).fit(X, Y)
        for kind in ("float64", "float32")
    )
    assert single.objective_ == pytest.approx(double.objective_, rel=1e-5)
    np.testing.assert_allclose(scores(single), scores(double), atol=1e-2)


@pytest.mark.parametrize("inducing", ["pivoted", "random"])
def test_all_tokens_as_inducing_tokens_are_the_whole_model(inducing):
    whole = make(RBF(1.5), C=2.0, **TIGHT).fit(X, Y)
    model = make(RBF(1.5), C=2.0, n_inducing=50, inducing=inducing, **TIGHT).fit(X, Y)
    same(model, whole)
    some = make(RBF(1.5), C=2.0, n_inducing=3, inducing=inducing, **TIGHT).fit(X, Y)
    assert some.n_kept_ == 3
    assert some.objective_ > whole.objective_ * 1.001  # fewer functions to choose from


@every
@each
def test_order_does_not_change_the_optimum_and_a_seed_repeats_it(slack, margin):
    X1, y1 = SPREAD.get(slack, (X, Y))
    wanted = {"C": 0.7, "slack": slack, "margin": margin, **TIGHT}
    a, b, c, d = (
        make(random_state=seed, n_jobs=jobs, **wanted).fit(X1, y1)
        for seed, jobs in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    for other in (b, c):
        np.testing.assert_array_equal(scores(a, X1), scores(other, X1))
        assert a.path_ == other.path_
        assert a.support_ == other.support_
    assert a.path_ != d.path_
    assert a.objective_ == pytest.approx(d.objective_, abs=a.gap_ + d.gap_)


# --- sample weights, labels that are not known -------------------------------------------------


@pytest.mark.parametrize("margin", ["unit", "hamming"])
def test_a_weight_of_two_is_the_sequence_twice(margin):
    wanted = {"C": 0.1, "margin": margin, **TIGHT}
    weighted = make(**wanted).fit(X, Y, sample_weight=[1, 2, 1, 1, 1])
    twice = make(**wanted).fit([*X, X[1]], [*Y, Y[1]])
    same(weighted, twice)
    assert weighted.objective_ > make(**wanted).fit(X, Y).objective_ * 1.001


def test_a_weight_of_zero_leaves_a_sequence_out():
    a = make(C=0.3).fit(X, Y, sample_weight=[1, 0, 1, 1, 0])
    b = make(C=0.3).fit([X[0], X[2], X[3]], [Y[0], Y[2], Y[3]], sample_weight=None)
    np.testing.assert_array_equal(scores(a), scores(b))
    assert a.objective_ == b.objective_


def test_sequences_fall_apart_where_labels_are_missing():
    X1, y1 = small(6, longest=5, seed=3)
    y1[1][2] = y1[2][1] = None
    cut, known = [], []
    for x, row in zip(X1, y1, strict=True):
        at = [t for t, v in enumerate(row) if v is None]
        for a, b in zip([-1, *at], [*at, len(row)], strict=True):
            if a + 1 < b:
                cut.append(x[a + 1 : b])
                known.append(row[a + 1 : b])
    model = make(C=0.7, **TIGHT).fit(X1, y1)
    pieces = make(C=0.7, **TIGHT).fit(cut, known)
    assert len(known) > len(y1)
    assert model.objective_ == pytest.approx(pieces.objective_, abs=model.gap_ + pieces.gap_)
    np.testing.assert_allclose(scores(model, X1), scores(pieces, X1), atol=1e-3)


def test_candidates_are_as_good_as_nothing():
    missing, candidates = ([list(row) for row in Y] for _ in range(2))
    missing[1][1], candidates[1][1] = None, {0, 1}
    a, b = (make(C=0.7).fit(X, y) for y in (missing, candidates))
    np.testing.assert_array_equal(scores(a), scores(b))


def test_no_label_that_is_known_exactly_is_a_label_error():
    with pytest.raises(LabelError):
        make().fit([np.eye(3)[:2], np.eye(3)[1:]], [[{0, 1}, {1, 2}], [{0, 2}, {0, 1}]])


# --- what it tells -----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [None, "linear", RBF(2.0)])
def test_it_learns(kernel):
    X1, y1 = words(100, seed=1, noise=0.05)
    X2, y2 = words(50, seed=2, noise=0.05)
    majority = max(sum(row.count(k) for row in y2) for k in "ABC") / sum(map(len, y2))
    model = make(kernel, features=sf.Template(TEMPLATE)).fit(X1, y1)
    assert model.score(X2, y2) > majority + 0.2
    assert model.gap_ <= 0.01 * model.objective_


@pytest.mark.parametrize("kernel", [Linear(), RBF(0.7), Polynomial(2), 3.0 * RBF(1.0)])
def test_c_goes_by_the_scale_of_the_kernel(kernel):
    doubled = [np.vstack([x, x]) for x in X[:2]] + X[2:]  # equal tokens count once
    y1 = [row + row for row in Y[:2]] + Y[2:]
    model = make(kernel, tol=0.1).fit(doubled, y1)
    want = 2.0 / np.mean(np.diag(kernel(np.vstack(X))))
    assert model.C is None
    np.testing.assert_allclose(model.C_, want, rtol=1e-12)
    assert make(kernel, C=0.3, tol=0.1).fit(X, Y).C_ == 0.3


def test_features_that_are_all_zero_have_a_c_too():
    model = make().fit([np.zeros((2, 2)), np.zeros((3, 2))], [[0, 1], [0, 1, 0]])
    assert model.C_ == 1.0
    assert model.transitions_[0, 1] > 0


@pytest.mark.parametrize("slack", ["l1", "l2"])
def test_too_few_passes_are_told(slack):
    with pytest.warns(ConvergenceWarning, match=r"in 1 iterations.* lower C"):
        model = make(C=5.0, slack=slack, max_iter=1, tol=1e-6).fit(X, Y)
    assert model.n_iter_ == 1
    assert np.isfinite(model.gap_)


def test_the_warning_points_at_the_call_of_fit():
    with pytest.warns(ConvergenceWarning) as found:
        make(C=5.0, max_iter=1, tol=1e-6).fit(X, Y)
    assert found[0].filename == __file__


@each
def test_inseparable_data_with_hard_margins_are_told(margin):
    X1 = [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.array([[0.5, 0.5]])]
    with pytest.warns(ConvergenceWarning, match=r"no function separates.*slack='l1'"):
        model = make(slack="hard", margin=margin, max_iter=30).fit(X1, [["a"], ["a"], ["b"]])
    assert model.gap_ == np.inf


@each
def test_no_hard_margin_between_equal_features(margin):
    x = np.array([[1.0, 2.0]])
    with pytest.raises(InputError, match=r"sequence [01].*slack='l1'"):
        make(slack="hard", margin=margin).fit([np.repeat(x, 4, axis=0)] * 2, [[0, 0, 1, 0]] * 2)


def test_the_number_of_a_sequence_without_a_margin_is_the_users():
    x = np.repeat([[1.0, 2.0]], 4, axis=0)
    X1, y1 = [np.eye(2), np.eye(2), np.eye(2), x], [[0, 1], None, [0, 1], [0, 0, 1, 0]]
    with pytest.raises(InputError, match="sequence 3:"):
        make(slack="hard").fit(X1, y1, sample_weight=[0, 1, 1, 1])


def test_too_many_slacks_name_the_users_sequence(monkeypatch):
    monkeypatch.setattr(sf.solvers.margin, "MOST", 4)
    with pytest.raises(BudgetError, match=r"of sequence 1 .*slack='l1'"):
        make(C=0.01, slack="labelling").fit(X[:2], Y[:2], sample_weight=[0, 1])


# --- probabilities -----------------------------------------------------------------------------


def test_scores_are_not_probabilities():
    model = make().fit(X, Y)
    said = model.distribution(X)
    for ask in (lambda: model.predict_proba(X), said.marginals, said.nbest, said.sample):
        with pytest.raises(CapabilityError, match=r"HMSVM.*calibrate=True"):
            ask()


@pytest.mark.parametrize("kernel", ["linear", RBF(1.5)])
def test_calibrated_probabilities_leave_labels_alone(kernel):
    X1, y1 = numbers(20, noise=1.5)
    plain, model = (make(kernel, calibrate=flag).fit(X1, y1) for flag in (False, True))
    np.testing.assert_array_equal(scores(model, X1), scores(plain, X1))
    assert model.predict(X1) == plain.predict(X1)
    assert model.support_ == plain.support_
    p = np.vstack(model.predict_proba(X1))
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    assert ((p > 0.01) & (p < 0.99)).any()
    assert model.calibration_.temperature != 1.0


# --- files -------------------------------------------------------------------------------------


@every
@each
def test_a_model_file_has_the_same_scores(slack, margin, tmp_path):
    X1, y1 = SPREAD.get(slack, (X, Y))
    kernel = {"unit": "linear", "hamming": RBF(1.5), "slack": None}[margin]
    model = make(kernel, slack=slack, margin=margin).fit(X1, y1)
    model.save(tmp_path / "model")
    back = sf.load(tmp_path / "model")
    np.testing.assert_array_equal(scores(back), scores(model))
    assert back.predict(X) == model.predict(X)
    for name in ("C_", "objective_", "gap_", "n_tokens_", "n_kept_", "slack", "margin"):
        assert getattr(back, name) == getattr(model, name)
    assert not hasattr(back, "support_")
    again = clone(back).fit(X1, y1)
    assert again.objective_ == pytest.approx(model.objective_, rel=0.03)


def test_a_file_keeps_scheme_and_temperature(tmp_path):
    X1, codes = small(8, bio=True, seed=2)
    y1 = [[["B-x", "I-x", "O"][k] for k in row] for row in codes]
    model = make(RBF(1.5), scheme="BIO", calibrate=True).fit(X1, y1)
    model.save(tmp_path / "model")
    back = sf.load(tmp_path / "model")
    assert back.calibration_.temperature == model.calibration_.temperature
    for a, b in zip(back.predict_proba(X1), model.predict_proba(X1), strict=True):
        np.testing.assert_array_equal(a, b)


# --- what it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("C", value) for value in (0, -1.0, np.nan, np.inf, "1", True)),
        *(("slack", value) for value in ("L1", None, 2, ["l1"])),
        *(("margin", value) for value in ("hinge", None, 1)),
        *(("tol", value) for value in (-1e-3, np.nan, "x")),
        *(("max_iter", value) for value in (0, 1.5)),
        ("eta", -1.0),
        ("kernel", ["linear", "rbf"]),
        ("inducing", "best"),
        ("gram_budget", -1),
        ("gram_dtype", "int8"),
        ("explicit", "yes"),
        ("n_inducing", 0),
    ],
)
def test_wrong_arguments_are_named(name, value):
    with pytest.raises(InputError, match="float32" if name == "gram_dtype" else name):
        make(**{"kernel": "linear", name: value}).fit(X, Y)


def test_what_the_kernel_has_no_explicit_features_for():
    with pytest.raises(InputError, match="explicit=True"):
        make(RBF(1.0), explicit=True).fit(X, Y)


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    model = make().fit(X, Y)
    before = scores(model)
    with pytest.raises(InputError):
        model.set_params(C=-1.0).fit(X, Y)
    np.testing.assert_array_equal(scores(model), before)
    assert len(model.support_) > 0


@pytest.mark.parametrize(
    "wanted",
    [
        {"explicit": False},
        {"explicit": True},
        {"explicit": True, "kernel": "poly2"},
        {"n_inducing": 3},
    ],
    ids=str,
)
def test_a_budget_error_names_arguments_that_exist(wanted):
    with pytest.raises(BudgetError) as error:
        make(gram_budget=1e-12, **wanted).fit(BINARY, BINARY_Y)
    named = [word.split("=")[0] for word in str(error.value).split() if "=" in word]
    assert "gram_budget" in named
    for name in named:
        assert name in sf.HMSVM().get_params()
