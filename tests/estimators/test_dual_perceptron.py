"""`StructuredPerceptron` with a kernel: the same mistakes in coefficients of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import seqfield as sf
from seqfield.errors import BudgetError, CapabilityError, InputError, ModelFileError
from seqfield.kernels import RBF
from seqfield.persist import read_model
from seqfield.sequences import Sequences, offsets_of

from ..support.model_files import forge
from ..support.sequences import TEMPLATE, numbers, words


def binary(n=14, s=3, seed=0, width=7):
    """Tokens of zeros and ones, some of them equal; all sums of them are exact, and so are ties."""
    rng = np.random.default_rng(seed)
    steps = rng.dirichlet(np.ones(s), size=s)
    X, y = [], []
    for length in np.append([1, 2, 5], rng.integers(1, 6, n - 3)):
        labels = [int(rng.integers(s))]
        while len(labels) < length:
            labels.append(int(rng.choice(s, p=steps[labels[-1]])))
        x = rng.random((length, width)) < 0.25
        x[np.arange(length), labels] |= rng.random(length) < 0.6
        X.append(sp.csr_array(x.astype(np.int8)))
        y.append(labels)
    return X, y


X, Y = binary()
NEW = binary(8, seed=1)[0]
N_DISTINCT = len(np.unique(sp.vstack(X).toarray(), axis=0))
#: room for the gram rows of one sequence and one token
FEW_ROWS = 8 * N_DISTINCT * 6 / 2**30
STORES = {
    "explicit": {"explicit": True},
    "gram": {"explicit": False},
    "gram rows": {"explicit": False, "gram_budget": FEW_ROWS},
}
WEIGHTS = np.random.default_rng(2).integers(1, 9, len(X)) / 4
#: 2 starts nothing and does not follow 0
SCHEME = {(None, 0), (None, 1), (0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)}


def lawful(row):
    out = []
    for v in row:
        out.append(v if v < 2 or (out and out[-1] > 0) else 1)
    return out


def partly(y):
    """Some labels are missing, of others there are candidates."""
    y = [list(row) for row in y]
    y[2][1], y[2][3], y[5][0], y[7][-1] = None, {y[2][3], 2}, {0, 1}, None
    return y


LAWFUL = [lawful(row) for row in Y]
CASES = {
    "plain": (Y, {}, None),
    "weights": (Y, {}, WEIGHTS),
    "a weight of zero": (Y, {}, np.arange(len(Y)) % 3 / 2),
    "partly known": (partly(Y), {}, WEIGHTS),
    "scheme": (LAWFUL, {"scheme": SCHEME}, None),
    "scheme and partly known": (partly(LAWFUL), {"scheme": SCHEME}, WEIGHTS),
    "no transitions": (Y, {"transitions": False}, None),
    "more classes": (Y, {"classes": [3, 1, 0, 2]}, None),
}


def make(**wanted):
    return sf.StructuredPerceptron(**{"random_state": 0, "n_jobs": 1} | wanted)


def scores(model, X=X):
    found = model.function_.scores(model.encode(X))
    return np.vstack([found.node, found.edge.reshape(-1, found.node.shape[1])])


def same(a, b, X=X, atol=1e-12):
    assert (a.n_iter_, a.objective_) == (b.n_iter_, b.objective_)
    np.testing.assert_allclose(scores(a, X), scores(b, X), atol=atol)
    np.testing.assert_allclose(a.transitions_, b.transitions_, atol=atol)


# --- the primal form ---------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("average", [True, False])
def test_linear_kernel_makes_the_mistakes_of_the_primal_form(case, store, average):
    y, wanted, weights = CASES[case]
    wanted = {"average": average} | wanted
    for epochs in (1, 2, 3, 20):
        primal = make(observed_only=False, max_iter=epochs, **wanted)
        model = make(kernel="linear", max_iter=epochs, **wanted, **STORES[store])
        same(model.fit(X, y, sample_weight=weights), primal.fit(X, y, sample_weight=weights))
        assert primal.objective_ > 0 or epochs > 2
        if case == "no transitions":
            np.testing.assert_array_equal(model.transitions_, 0.0)
        else:
            assert model.transitions_.any()


def test_few_gram_rows_were_fewer_than_all():
    assert 6 < N_DISTINCT < sum(x.shape[0] for x in X)
    model = make(kernel="linear", explicit=False).fit(X, Y)
    assert model.n_tokens_ == N_DISTINCT
    with pytest.raises(BudgetError, match=r"gram rows of a sequence of 5 tokens.*gram_budget="):
        make(kernel="linear", explicit=False, gram_budget=FEW_ROWS * 0.8).fit(X, Y)


@pytest.mark.parametrize("store", STORES)
def test_eta_scales_what_transitions_learn(store):
    """A feature 2 of all edges beside the transitions: each step adds 1 + 2^2 to their scores."""
    offsets = offsets_of([x.shape[0] for x in X])
    edges = sp.csr_array(np.full((offsets[-1], 1), 2.0))
    with_edges = Sequences(sp.vstack(X, format="csr").astype(float), offsets, edges)
    for epochs in (1, 4):
        primal = make(observed_only=False, max_iter=epochs).fit(with_edges, Y)
        model = make(kernel="linear", eta=5.0, max_iter=epochs, **STORES[store]).fit(X, Y)
        assert (model.n_iter_, model.objective_) == (primal.n_iter_, primal.objective_)
        found = primal.function_.scores(primal.encode(with_edges))
        np.testing.assert_allclose(scores(model)[: offsets[-1]], found.node, atol=1e-12)
        np.testing.assert_allclose(model.transitions_, found.edge[1], atol=1e-12)


def test_sequences_without_labels_only_shape_the_kernel():
    blank = [None if i in (1, 4) else row for i, row in enumerate(Y)]
    kept = [i for i in range(len(X)) if i not in (1, 4)]
    a = make(kernel="linear").fit(X, blank)
    b = make(kernel="linear").fit([X[i] for i in kept], [Y[i] for i in kept])
    same(a, b, NEW, atol=0.0)


# --- kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [True, False])
def test_explicit_pairs_of_features_are_their_gram_matrix(average):
    uneven = np.random.default_rng(0).uniform(0.5, 1.5, len(X))  # no ties for roundings to break
    for epochs in (1, 2, 20):
        wanted = {"kernel": "poly2", "average": average, "max_iter": epochs}
        explicit, *others = (
            make(**wanted, **STORES[store]).fit(X, Y, sample_weight=uneven) for store in STORES
        )
        assert explicit.n_kept_ == 0
        for other in others:
            assert 0 < other.n_kept_ <= N_DISTINCT
            same(other, explicit, NEW, atol=1e-10)


def test_gram_rows_are_the_gram_matrix():
    X1, y1 = numbers(20, noise=1.5)
    n = sum(map(len, X1))
    a = make(kernel=RBF(1.0)).fit(X1, y1)
    b = make(kernel=RBF(1.0), gram_budget=8 * n * 7 / 2**30).fit(X1, y1)
    assert a.n_iter_ > 2
    same(a, b, X1, atol=1e-10)
    single = make(kernel=RBF(1.0), gram_dtype="float32").fit(X1, y1)
    same(a, single, X1, atol=1e-4)


def test_a_curved_border_needs_a_curved_kernel():
    X1, y1 = sf.make_galaxy(40, random_state=0)
    X2, y2 = sf.make_galaxy(20, random_state=1)
    flat = np.concatenate(y2)
    majority = max(np.mean(flat == k) for k in np.unique(flat))
    model = make(kernel="rbf").fit(X1, y1)
    assert model.score(X2, y2) > majority + 0.2
    assert model.score(X2, y2) > make(kernel="linear").fit(X1, y1).score(X2, y2) + 0.1


def test_tokens_that_were_never_wrong_are_not_kept():
    X1, y1 = numbers(30, noise=0.3)
    model = make(kernel=RBF(2.0), average=False).fit(X1, y1)
    assert model.objective_ == 0.0
    assert 0 < model.n_kept_ < model.n_tokens_ / 2
    assert model.n_tokens_ == sum(map(len, X1))


# --- what estimators can do --------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["linear", RBF(1.0)])
def test_early_stopping_keeps_the_best_epoch(kernel):
    X1, y1 = numbers(60, noise=1.8, seed=3)
    wanted = {"kernel": kernel, "early_stopping": True, "validation_fraction": 0.3}
    model = make(max_iter=100, patience=3, **wanted).fit(X1, y1)
    assert model.n_iter_ == model.best_iter_ + 3 < 100
    held = np.sort(np.random.RandomState(0).permutation(60)[:18])
    X2, y2 = [X1[i] for i in held], [y1[i] for i in held]
    best = make(max_iter=model.best_iter_, patience=10**6, **wanted).fit(X1, y1)
    np.testing.assert_array_equal(scores(model, X1), scores(best, X1))
    for epochs in range(1, model.n_iter_ + 1):
        few = make(max_iter=epochs, patience=10**6, **wanted).fit(X1, y1)
        assert few.score(X2, y2) <= model.score(X2, y2) + 1e-12


@pytest.mark.parametrize("kernel", ["linear", RBF(1.0)])
def test_calibrated_probabilities_leave_labels_alone(kernel):
    X1, y1 = numbers(30, noise=1.5)
    plain = make(kernel=kernel).fit(X1, y1)
    model = make(kernel=kernel, calibrate=True).fit(X1, y1)
    same(plain, model, X1, atol=0.0)
    assert model.predict(X1) == plain.predict(X1)
    p = np.vstack(model.predict_proba(X1))
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    assert ((p > 0.01) & (p < 0.99)).any()
    with pytest.raises(CapabilityError, match=r"StructuredPerceptron.*calibrate=True"):
        plain.predict_proba(X1)


@pytest.mark.parametrize("wanted", [*STORES.values(), {"calibrate": True}], ids=str)
@pytest.mark.parametrize("kernel", ["linear", "poly2"])
def test_a_model_file_has_the_same_scores(kernel, wanted, tmp_path):
    model = make(kernel=kernel, scheme=SCHEME, **wanted).fit(X, LAWFUL)
    model.save(tmp_path / "model")
    back = sf.load(tmp_path / "model")
    np.testing.assert_array_equal(scores(back, NEW), scores(model, NEW))
    np.testing.assert_array_equal(back.transitions_, model.transitions_)
    assert back.predict(NEW) == model.predict(NEW)
    assert (back.n_tokens_, back.n_kept_) == (model.n_tokens_, model.n_kept_)
    assert back.objective_ == model.objective_
    if "calibrate" in wanted:
        for a, b in zip(back.predict_proba(NEW), model.predict_proba(NEW), strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_estimator_may_change_its_form():
    dual, primal = make(kernel="linear").fit(X, Y), make(observed_only=False).fit(X, Y)
    model = make(kernel="linear", observed_only=False).fit(X, Y)
    same(model.set_params(kernel=None).fit(X, Y), primal, atol=0.0)
    assert len(model.top_weights(3)) == 3
    same(model.set_params(kernel="linear").fit(X, Y), dual, atol=0.0)
    with pytest.raises(CapabilityError, match="coefficients of tokens"):
        model.top_weights(3)


@pytest.mark.parametrize("form", ["words", "numbers"])
def test_any_form_of_x_will_do(form):
    X1, y1 = words(20) if form == "words" else numbers(20)
    features = sf.Template(TEMPLATE) if form == "words" else None
    model = make(features=features, kernel="linear").fit(X1, y1)
    primal = make(features=features, observed_only=False).fit(X1, y1)
    assert model.n_iter_ == primal.n_iter_
    assert model.predict(X1) == primal.predict(X1)


def test_a_seed_repeats_it_and_threads_change_no_bit():
    a, b, c, d = (
        clone(make(kernel=RBF(1.0), max_iter=3, random_state=seed, n_jobs=jobs)).fit(X, Y)
        for seed, jobs in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    same(a, b, atol=0.0)
    same(a, c, atol=0.0)
    assert not np.array_equal(scores(a), scores(d))


# --- what it refuses ---------------------------------------------------------------------------


def test_warm_start_needs_the_primal_form():
    with pytest.raises(CapabilityError, match="warm_start"):
        make(kernel="linear", warm_start=True).fit(X, Y)


def test_weights_of_features_need_the_primal_form():
    model = make(kernel="linear").fit(X, Y)
    for ask in (model.top_weights, lambda: model.n_features_used_):
        with pytest.raises(CapabilityError, match="kernel"):
            ask()
    assert not hasattr(model, "theta_")
    assert not hasattr(model, "n_features_used_")
    assert "n_features_used_" not in dir(model)


def test_edge_features_need_the_primal_form():
    offsets = offsets_of([x.shape[0] for x in X])
    x = sp.vstack(X, format="csr").astype(float)
    with pytest.raises(CapabilityError, match="edge features"):
        make(kernel="linear").fit(Sequences(x, offsets, x), Y)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel", ["linear", "rbf"]),
        ("explicit", "yes"),
        ("eta", -1.0),
        ("gram_budget", -1.0),
        ("max_iter", 0),
    ],
)
def test_wrong_arguments_are_named(name, value):
    with pytest.raises(InputError, match=name):
        make(**{"kernel": "linear", name: value}).fit(X, Y)


def test_a_budget_error_names_arguments_that_exist():
    with pytest.raises(BudgetError) as error:
        make(kernel="linear", explicit=False, gram_budget=1e-12).fit(X, Y)
    named = [word.strip(",.:;") for word in str(error.value).split() if "=" in word]
    assert named
    for word in named:
        assert word.split("=")[0] in sf.StructuredPerceptron().get_params()


@pytest.mark.parametrize("kernel", ["linear", RBF(0.5), None])
@pytest.mark.parametrize("later", ["linear", RBF(0.5), ["linear", RBF(0.5)], None])
def test_the_form_is_that_of_the_fit_whatever_the_argument_becomes(kernel, later, tmp_path):
    model = make(kernel=kernel).fit(X, Y)
    wanted = scores(model)
    model.set_params(kernel=later)
    model.save(tmp_path / "model")
    back = sf.load(tmp_path / "model")
    for one in (model, back):
        np.testing.assert_array_equal(scores(one), wanted)
        assert hasattr(one, "theta_") == (kernel is None)
        assert hasattr(one, "kernel_") == hasattr(one, "n_kept_") == (kernel is not None)
    assert repr(back.kernel) == repr(later)


def test_a_file_with_a_function_of_another_kind_is_refused(tmp_path):
    make().fit(X, Y).save(tmp_path / "model")
    header, arrays = read_model(tmp_path / "model")
    forge(tmp_path / "model", header | {"class": "HMSVM", "params": {}}, arrays)
    with pytest.raises(ModelFileError, match="HMSVM does not learn a LinearFunction"):
        sf.load(tmp_path / "model")
