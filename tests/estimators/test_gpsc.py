"""GPSC: what it tells, what it needs, what it refuses, and its files."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import seqfield as sf
from seqfield import chain
from seqfield.errors import (
    BudgetError,
    CapabilityError,
    InputError,
    ModelFileError,
    SeqfieldError,
)
from seqfield.kernels import (
    RBF,
    Callable,
    Columns,
    Graph,
    Linear,
    Normalized,
    Polynomial,
    Precomputed,
)
from seqfield.kernels.graph import ExtensionWarning, GraphWarning
from seqfield.persist import read_model

from ..support.files import places, replaced
from ..support.model_files import forge
from ..support.sequences import numbers, words

X, Y = numbers(n=14, seed=0)
NEW = numbers(n=6, seed=1)[0]
STACKED = np.vstack(X)
BINARY = [sp.csr_array((x > 1.0).astype(np.int8)) for x in X]
LENGTHS = [len(x) for x in X]
NUMBERS = np.split(np.arange(len(STACKED))[:, None], np.cumsum(LENGTHS)[:-1])
GRAM = RBF(1.0)(STACKED)
TIGHT = {"tol": 1e-13, "max_iter": 5000}


def make(kernel=None, **wanted):
    return sf.GPSC(RBF(1.0) if kernel is None else kernel, **{"n_jobs": 1} | wanted)


def probabilities(model, X=X):
    return np.vstack(model.predict_proba(X))


# --- what it tells -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dense", "sparse", "sequence"])
@pytest.mark.parametrize("update", ["all", "new", "last"])
def test_gap_is_a_bound(method, update):
    """Of the dense problem, for every method."""
    best = make(**TIGHT).fit(X, Y).objective_
    for wanted in ({"tol": 1e-1}, {"tol": 1e-4}, {"n_coordinates": 5}, {"n_coordinates": 40}):
        if method == "dense" and (update != "all" or "tol" not in wanted):
            continue
        model = make(method=method, update=update, n_per_round=4, **wanted).fit(X, Y)
        assert -1e-9 <= model.objective_ - best <= model.gap_
        assert np.isfinite(model.gap_)


class _Indefinite(RBF):
    """Nothing in its class says that it is no covariance."""

    def _value(self, pairs):
        return 1e-3 - super()._value(pairs)


class _Even(RBF):
    """A covariance in which all that differs between tokens has variance 0, or nearly that."""

    def _value(self, pairs):
        return 1e6 + 1e-12 * super()._value(pairs)


@pytest.mark.parametrize("solver", ["lbfgs", "newton"])
def test_no_bound_where_the_kernel_is_no_covariance(solver):
    with pytest.raises(InputError, match="not positive semi-definite"):
        make(_Indefinite(1.0), solver=solver).fit(X, Y)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rounding_is_no_negative_square(dtype):
    even = [["L0", "L1", "L2"] for _ in range(5)]
    rows = np.random.default_rng(0).normal(size=(5, 3, 2))
    model = make(_Even(1.0), gram_dtype=dtype, transitions=False).fit(list(rows), even)
    assert model.gap_ >= 0.0


@pytest.mark.parametrize("method", ["sparse", "sequence"])
@pytest.mark.parametrize("update", ["all", "new", "last"])
def test_objective_is_that_of_the_model(method, update):
    """-log p + c2 / 2 |f|^2 from probabilities, kept tokens and coefficients."""
    model = make(method=method, update=update, n_coordinates=15, n_per_round=3, c2=0.6, eta=0.7)
    model.fit(X, Y)
    (function,) = model.function_.parts
    gram = RBF(1.0)(function.tokens)
    a, b = function.coefficients, model.transitions_ / 0.7
    norm = np.sum(a * (gram @ a)) + 0.7 * (b**2).sum()
    want = 0.3 * norm - model.log_likelihood(X, Y).sum()
    assert model.objective_ == pytest.approx(want, rel=1e-9)
    assert model.path_[-1].risk == pytest.approx(want, rel=1e-9)
    assert model.path_[-1].loss == pytest.approx(-model.log_likelihood(X, Y).sum(), rel=1e-9)
    risks = [told.risk for told in model.path_]
    assert (np.diff(risks) < 0).all()
    assert len(model.path_) == model.n_iter_
    assert 1 <= model.n_kept_ == len(function.tokens)


def test_numbers_of_tokens():
    model = make().fit(X, Y)
    assert model.n_tokens_ == model.n_kept_ == len(STACKED)
    twice = make().fit(X + X, Y + Y)
    assert twice.n_tokens_ == len(STACKED)
    assert make("linear", explicit=True).fit(X, Y).n_kept_ == 0
    assert make(n_inducing=7).fit(X, Y).n_kept_ == 7
    sparse = make(method="sparse", n_coordinates=9).fit(X, Y)
    assert 1 <= sparse.n_kept_ <= 9
    assert sparse.path_[-1].n_atoms <= 9
    share = make(method="sparse", n_coordinates=0.25, slope_tol=0.0, update="new").fit(X, Y)
    assert share.path_[-1].n_atoms == round(0.25 * len(STACKED))


def test_kernel_holds_what_it_took_from_the_data():
    model = sf.GPSC("rbf").fit(X, Y)
    assert model.kernel == "rbf"
    assert model.kernel_ == RBF().fit(STACKED) or isinstance(model.kernel_.length_scale, float)
    assert model.kernel_.length_scale == RBF().fit(STACKED).length_scale


def test_default_kernel_is_the_documented_one():
    """Linear plus twice the squared cosine for features that are 0 or 1, RBF for others; the form
    of the matrix does not matter."""
    assert isinstance(sf.GPSC().fit(X, Y).kernel_, RBF)
    assert isinstance(sf.GPSC().fit([sp.csr_array(x) for x in X], Y).kernel_, RBF)
    want = (Linear() + 2 * Normalized(Linear()) ** 2)(BINARY[3])
    for form in (BINARY, [x.toarray() for x in BINARY]):
        kernel = sf.GPSC().fit(form, Y).kernel_
        np.testing.assert_allclose(kernel(BINARY[3]), want, rtol=1e-12)


def test_iterations_that_are_not_enough():
    with pytest.warns(sf.estimators._descent.ConvergenceWarning, match="in 2 iterations"):
        make(max_iter=2, tol=1e-12).fit(X, Y)


# --- what prediction needs ---------------------------------------------------------------------


class Counter:
    """A kernel function that counts what it is asked for."""

    def __init__(self):
        self.shapes = []

    def __call__(self, x, z):
        self.shapes.append((len(x), len(z)))
        return RBF(1.0)(x, z)


@pytest.mark.parametrize("method", ["sparse", "sequence"])
def test_prediction_evaluates_the_kernel_at_kept_tokens_alone(method):
    counter = Counter()
    model = make(counter, method=method, n_coordinates=4, n_per_round=2).fit(X, Y)
    assert 1 <= model.n_kept_ < len(STACKED) / 2
    counter.shapes.clear()
    model.predict(NEW)
    tokens = sum(map(len, NEW))
    assert max(width for _, width in counter.shapes) == model.n_kept_
    # one more value is asked for to have what all blocks share
    assert sum(a * b for a, b in counter.shapes) <= tokens * model.n_kept_ + 1


@pytest.mark.parametrize("method", ["sparse", "sequence"])
@pytest.mark.parametrize("update", ["all", "new", "last"])
def test_explicit_features_choose_the_same(method, update):
    settings = {"method": method, "update": update, "n_coordinates": 12, "n_per_round": 2} | TIGHT
    a, b = (make("poly2", explicit=on, **settings).fit(BINARY, Y) for on in (True, False))
    assert len(a.path_) == len(b.path_) > 1
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-9)
    np.testing.assert_allclose(probabilities(a, BINARY), probabilities(b, BINARY), atol=1e-5)


def test_memory_of_explicit_features_goes_by_the_number_of_coordinates():
    every = np.unpackbits(np.arange(64, dtype=np.uint8)[:, None], axis=1)[:, 2:]
    X, y = [sp.csr_array(row[None]) for row in every], [[str(row.sum() % 2)] for row in every]
    settings = {"method": "sparse", "n_coordinates": 30, "gram_budget": 40_000 / 2**30}
    with pytest.raises(BudgetError, match="30 functions of 64 numbers"):
        make("poly2", explicit=False, **settings).fit(X, y)
    make("poly2", explicit=True, **settings).fit(X, y)
    with pytest.raises(BudgetError, match="45 functions of 45 numbers"):
        make("poly2", explicit=True, **settings | {"n_coordinates": 45}).fit(X, y)


def test_coordinates_of_a_round():
    settings = {"method": "sparse", "n_coordinates": 40, "slope_tol": 0.0, "c2": 0.01}
    auto = [told.n_atoms for told in make(**settings).fit(X, Y).path_]
    assert 10 <= auto[0] <= 12
    four = [told.n_atoms for told in make(n_per_round=4, **settings).fit(X, Y).path_]
    assert four[:3] == [4, 8, 12]


@pytest.mark.parametrize("update", ["new", "last"])
def test_a_gram_matrix_over_the_budget_is_evaluated_on_demand(update):
    """The sparse methods need no gram matrix; the model is the same."""
    settings = {"method": "sparse", "n_coordinates": 6, "n_per_round": 2, "update": update}
    small = 8 * len(STACKED) * 20 / 2**30  # room for six functions, but not for the matrix
    counter = Counter()
    model = make(counter, gram_budget=small, **settings).fit(X, Y)
    want = make(**settings).fit(X, Y)
    assert model.objective_ == pytest.approx(want.objective_, rel=1e-9)
    np.testing.assert_allclose(probabilities(model), probabilities(want), atol=1e-8)


class _Counted(RBF):
    """A kernel that is not checked, and counts its values."""

    n_values = 0

    def _value(self, pairs):
        _Counted.n_values += pairs.shape[0] * pairs.shape[1]
        return super()._value(pairs)


def test_random_sequences_look_at_their_own_tokens_alone():
    settings = {"method": "sparse", "pick": "random", "update": "new", "random_state": 0}
    settings |= {"n_coordinates": 4, "n_per_round": 2, "gram_budget": 1e-12}
    model = make(_Counted(1.0), **settings)
    _Counted.n_values = 0
    model.fit(X, Y)
    # two rounds, each of the rows of one sequence and of two atoms; then one product for the gap
    assert len(model.path_) == 2
    n = len(STACKED)
    assert n * n < _Counted.n_values <= n * n + 2 * n * (max(LENGTHS) + 2) + 10
    again = clone(model).fit(X, Y)
    np.testing.assert_array_equal(probabilities(again), probabilities(model))


def test_abstention():
    """Precision by coverage from the probabilities: fewer tokens, fewer errors."""
    train, y = numbers(n=40, seed=2, noise=1.6)
    test, gold = numbers(n=60, seed=3, noise=1.6)
    model = make().fit(train, y)
    proba = model.predict_proba(test)
    curve = sf.metrics.precision_by_coverage(gold, proba, model.classes_)
    assert curve.coverage[-1] == 1.0
    best = np.vstack(proba).max(axis=1)
    right = model.classes_[np.vstack(proba).argmax(axis=1)] == np.concatenate(gold)
    assert curve.precision[-1] == pytest.approx(right.mean())
    for cut in (0.5, 0.8):
        k = int(np.flatnonzero(curve.threshold >= cut)[-1])
        kept = best >= curve.threshold[k]
        assert curve.coverage[k] == pytest.approx(kept.mean())
        assert curve.precision[k] == pytest.approx(right[kept].mean())
    half = int(np.searchsorted(curve.coverage, 0.5))
    assert curve.precision[half] > curve.precision[-1] + 0.05


# --- unlabelled sequences ----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dense", "sparse"])
def test_unlabelled_sequences_change_nothing_without_a_graph(method):
    settings = {"method": method, "n_per_round": 10} | TIGHT
    a = make(**settings).fit(X, Y)
    b = make(**settings).fit([*NEW[:2], *X, *NEW[2:]], [None, None, *Y, *[None] * 4])
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-10)
    assert a.n_tokens_ == b.n_tokens_
    np.testing.assert_allclose(probabilities(a), probabilities(b), atol=1e-7)


def two_moons(n=60, seed=0):
    """Tokens on two long arcs, a label each; few of them are labelled."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, np.pi, n)
    side = rng.integers(2, size=n)
    x = np.column_stack([np.cos(t), np.sin(t)]) * np.where(side, 1.0, -1.0)[:, None]
    x += np.where(side, 0.0, [1.0] * 1)[:, None] * [1.0, 0.4] + rng.normal(scale=0.04, size=(n, 2))
    return [row[None] for row in x], [[str(k)] for k in side]


@pytest.mark.filterwarnings("ignore::seqfield.kernels.graph.GraphWarning")
def test_unlabelled_sequences_shape_a_graph():
    tokens, labels = two_moons(120)
    known = [labels.index(["0"]), labels.index(["1"])]
    known += [k for k in range(2, 8) if k not in known]
    y = [row if k in known else None for k, row in enumerate(labels)]
    graph = Graph(n_neighbors=6, shift=0.01)
    model = make(graph).fit(tokens, y)
    with_all = model.score(tokens, labels)
    rbf = make(RBF(1.0)).fit(tokens, y).score(tokens, labels)
    assert with_all > 0.95
    assert with_all > rbf + 0.03
    assert model.kernel_.in_graph(np.vstack(tokens)).all()


# --- files -------------------------------------------------------------------------------------

quiet = pytest.mark.filterwarnings("ignore::seqfield.kernels.graph.GraphWarning")
ATTRIBUTES = words(n=14, seed=4)
TEMPLATE = "U0:%x[0,0]\nU1:%x[0,1]\nB"
VARIANTS = {
    "dense": (RBF(1.0), X, {}),
    "float32": (RBF(1.0), X, {"gram_dtype": "float32"}),
    "linear": (Linear(), X, {"explicit": True}),
    "pairs": (Polynomial(2), BINARY, {"explicit": True}),
    "sum": (Linear() + 0.5 * Normalized(Polynomial(2)), BINARY, {"explicit": True}),
    "sparse rows": (Polynomial(3), BINARY, {}),
    "inducing": (RBF(1.0), X, {"n_inducing": 5}),
    "random inducing": ("rbf", X, {"n_inducing": 5, "inducing": "random", "random_state": 0}),
    "sparse": (RBF(1.0), X, {"method": "sparse", "n_coordinates": 6}),
    "sparse pairs": (Polynomial(2), BINARY, {"method": "sparse", "explicit": True}),
    "sequence": (RBF(1.0), X, {"method": "sequence", "n_coordinates": 6}),
    "no transitions": (RBF(1.0), X, {"transitions": False}),
    "graph": (Graph(4), X, {}),
    "few graph features": (Graph(4, n_components=5), X, {"explicit": True}),
    "graph and more": (10 * Graph(4, transform="diffusion") + RBF(1.0), X, {}),
    "precomputed": (Precomputed(GRAM), NUMBERS, {}),
    "precomputed and more": (Precomputed(GRAM) + 1.0, NUMBERS, {"method": "sparse"}),
    "numbers of columns": (Columns(RBF(1.0), [0, 2]), X, {}),
    "slice": (Columns(RBF(1.0), slice(0, 2)), X, {}),
    "prefix": (Columns(Linear(), "U0") + Polynomial(2), ATTRIBUTES[0], {"features": TEMPLATE}),
    "calibrated": (RBF(1.0), X, {"calibrate": True, "random_state": 0}),
    "scheme": (RBF(1.0), X, {"scheme": [(f"L{a}", f"L{b}") for a in range(3) for b in range(3)]}),
}


def variant(name):
    kernel, x, wanted = VARIANTS[name]
    return make(kernel, **wanted), x, ATTRIBUTES[1] if name == "prefix" else Y


@quiet
@pytest.mark.parametrize("name", VARIANTS)
def test_save_and_load(name, tmp_path):
    model, x, y = variant(name)
    model.fit(x, y).save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    np.testing.assert_array_equal(probabilities(again, x), probabilities(model, x))
    np.testing.assert_array_equal(again.transitions_, model.transitions_)
    assert (again.n_kept_, again.n_tokens_) == (model.n_kept_, model.n_tokens_)
    assert type(again.kernel_) is type(model.kernel_)
    if name not in ("graph", "few graph features", "graph and more") and x is X:
        np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))


@quiet
@pytest.mark.parametrize("name", VARIANTS)
def test_a_loaded_model_can_be_saved_and_trained_again(name, tmp_path):
    """To the same file, and with the same kernel."""
    model, x, y = variant(name)
    model.fit(x, y).save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    refit = clone(again).fit(x, y)
    np.testing.assert_allclose(probabilities(refit, x), probabilities(model, x), atol=1e-5)
    again.save(tmp_path / "again.sf")
    assert (tmp_path / "again.sf").read_bytes() == (tmp_path / "m.sf").read_bytes()


@pytest.mark.parametrize(
    "kernel", [lambda a, b: a @ b.T, RBF(1.0) + Callable(lambda a, b: a @ b.T)]
)
def test_a_model_with_a_function_cannot_be_saved(kernel, tmp_path):
    model = make(kernel).fit(X, Y)
    with pytest.raises(CapabilityError, match="callable kernel cannot be saved"):
        model.save(tmp_path / "m.sf")
    assert list(tmp_path.iterdir()) == []


def damaged(array):
    """Arrays that cannot be, by what is wrong with them."""
    out = {"deleted": None, "of another rank": array.ravel() if array.ndim > 1 else array[:, None]}
    if len(array):
        out |= {"short": array[:-1], "long": np.concatenate([array, array[-1:]])}
    if array.ndim > 1:
        out["narrow"] = array[:, :-1]
    if array.dtype.kind == "f" and array.size:
        out["NaN"] = array.copy()
        out["NaN"].flat[-1] = np.nan
    if array.dtype.kind in "iu" and array.size and array.dtype.itemsize > 1:
        for name, value in (("too large", np.iinfo(array.dtype).max), ("negative", -1)):
            out[name] = array.copy()
            out[name].flat[array.size // 2] = value
    return out


@quiet
@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("slice", "prefix")])
def test_damaged_arrays_are_refused(name, tmp_path):
    model, x, y = variant(name)
    path = tmp_path / "m.sf"
    model.fit(x, y).save(path)
    header, arrays = read_model(path)
    tried = 0
    for key, array in arrays.items():
        if not key.startswith("function/"):
            continue
        for what, bad in damaged(array).items():
            if key.endswith("/columns") and what in ("short", "long"):
                continue  # other columns, of which nothing says that they are wrong
            if name == "few graph features" and what == "narrow" and "/kernel0/" in key:
                continue  # prediction goes by the features, the kernel is for training again
            changed = {k: v for k, v in arrays.items() if k != key or bad is not None}
            if bad is not None:
                changed[key] = np.ascontiguousarray(bad)
            forge(path, header, changed)
            with pytest.raises(ModelFileError):
                pytest.fail(f"{key} {what}: {sf.load(path)}")
            tried += 1
    assert tried >= 8


@quiet
@pytest.mark.parametrize("name", ["sum", "graph and more", "precomputed", "sparse rows"])
def test_damaged_headers_are_refused_or_harmless(name, tmp_path):
    model, x, y = variant(name)
    path = tmp_path / "m.sf"
    model.fit(x, y).save(path)
    header, arrays = read_model(path)
    refused = 0
    for place in places(header["function"], ("function",)):
        for value in (None, "x", -1, []):
            forge(path, replaced(header, place, value), arrays)
            try:
                found = sf.load(path)
            except ModelFileError:
                refused += 1
                continue
            assert np.isfinite(probabilities(found, x)).all()
    assert refused > 10


# --- bad input ---------------------------------------------------------------------------------


def lopsided(x, z):
    return x @ z.T + 0.5 * x[:, :1]


def negative(x, z):
    return -(x @ z.T)


def holey(x, z):
    out = x @ z.T
    out[x[:, 0] > 1.0] = np.nan
    return out


SPARSE = {"method": "sparse", "n_coordinates": 5}
ON_DEMAND = {"method": "sparse", "n_coordinates": 5, "update": "new", "gram_budget": 1e-12}
FORMS = {
    "dense": {},
    "sparse": SPARSE,
    "on demand": ON_DEMAND,
    "inducing": {"n_inducing": 5},
    "random inducing": {"n_inducing": 5, "inducing": "random", "random_state": 0},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (holey, "gave nan for rows"),
        (lopsided, "not symmetric|positive semi-definite"),
        (negative, "positive semi-definite"),
        (lambda x, z: np.ones((2, 2)), r"shape \(2, 2\)"),
        (lambda x, z: 1j * (x @ z.T), "real numbers"),
    ],
    ids=["NaN", "not symmetric", "negative", "shape", "complex"],
)
def test_functions_that_are_no_kernel(kernel, message, form):
    with pytest.raises(InputError, match=message):
        make(kernel, **FORMS[form]).fit(X, Y)


@pytest.mark.parametrize("form", FORMS)
def test_gram_matrices_that_are_none(form):
    def fit(gram):
        make(Precomputed(gram), **FORMS[form]).fit(NUMBERS, Y)

    with pytest.raises(InputError, match="positive semi-definite"):
        fit(-GRAM)
    with pytest.raises(InputError, match="not symmetric"):
        fit(np.triu(GRAM))
    with pytest.raises(InputError, match="gram is nan at row 0, column 0"):
        fit(np.where(np.eye(len(GRAM)) > 0, np.nan, GRAM))
    with pytest.raises(InputError, match="square matrix"):
        fit(GRAM[:4])
    with pytest.raises(InputError, match="not a whole number from 0 to 9"):
        fit(GRAM[:10, :10])


BAD = {
    "unknown method": ({"method": "magic"}, "method must be one of 'dense', .*'magic'"),
    "unknown loss": ({"loss": "magic"}, "loss must be one of 'log', .*'magic'"),
    "unknown pick": ({"pick": "magic"}, "pick must be .*'magic'"),
    "unknown update": ({"update": "magic"}, "update must be .*'magic'"),
    "unknown solver": ({"solver": "magic"}, "solver must be .*'magic'"),
    "unknown landmarks": ({"inducing": "magic", "n_inducing": 3}, "inducing must be .*'magic'"),
    "unknown explicit": ({"explicit": "magic"}, "explicit must be .*'magic'"),
    "unknown type": ({"gram_dtype": "magic"}, "gram.*float64.*magic"),
    "wrong type": (
        {"gram_dtype": "float16"},
        "gram_dtype must be one of .float64., .float32., got .float16.",
    ),
    "explicit and landmarks": (
        {"kernel": "linear", "explicit": True, "n_inducing": 3},
        "explicit=True and n_inducing",
    ),
    "an array for a choice": ({"method": np.array(["dense", "sparse"])}, "method must be one of"),
    "a number for a flag": ({"explicit": 1}, "explicit must be one of True, False, 'auto', got 1"),
    "text transitions": ({"transitions": "no"}, "transitions must be one of True, False, got 'no'"),
    "text flag": ({"learn_kernel": "x"}, "learn_kernel must be one of True, False"),
    "an array for a flag": ({"transitions": np.array([True, False])}, "transitions must be one of"),
    "array of ways": ({"calibrate": np.array([1, 2])}, "calibrate must be one of"),
    "array of repairs": ({"on_violation": np.array(["raise"])}, "on_violation must be one of"),
    "no landmarks": (
        {"n_inducing": 0},
        "n_inducing must be a whole number of at least 1, or None, got 0",
    ),
    "half a landmark": ({"n_inducing": 2.5}, "n_inducing must be"),
    "no coordinates": ({"method": "sparse", "n_coordinates": 0}, "n_coordinates must be"),
    "negative coordinates": ({"method": "sparse", "n_coordinates": -1}, "n_coordinates must be"),
    "text coordinates": ({"method": "sparse", "n_coordinates": "9"}, "n_coordinates must be"),
    "no round": ({"method": "sparse", "n_per_round": 0}, "n_per_round must be"),
    "text round": ({"method": "sparse", "n_per_round": "all"}, "n_per_round must be"),
    "slope": ({"method": "sparse", "slope_tol": -1.0}, "slope_tol must be"),
    "negative eta": ({"eta": -1.0}, "eta must be a number of at least 0, got -1"),
    "eta without transitions": ({"eta": "x", "transitions": False}, "eta must be"),
    "negative budget": ({"gram_budget": -1.0}, "gram_budget must be"),
    "NaN budget": ({"gram_budget": float("nan")}, "gram_budget must be"),
    "negative cost": ({"loss": "softmax_margin", "cost": -1.0}, "cost must be"),
    "explicit features of an RBF kernel": ({"explicit": True}, "explicit=True: .*no explicit"),
    "text seed": ({"method": "sparse", "random_state": "x"}, "random_state"),
    "kernel a number": ({"kernel": 3}, "a kernel is .*got 3"),
    "kernel a class": ({"kernel": RBF}, "a kernel is "),
    "kernel unknown": ({"kernel": "magic"}, "one of linear, .*'magic'"),
    "no kernels": ({"kernel": []}, "kernel"),
    "several kernels": ({"kernel": [RBF(1.0), "linear"]}, "kernel"),
    "bad kernel": ({"kernel": RBF(-1.0)}, "length_scale must be"),
    "prefix without names": (
        {"kernel": Columns(Linear(), "w=")},
        "no feature name starts with 'w='",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    wanted, message = BAD[case]
    with pytest.raises(InputError, match=message):
        make(**wanted).fit(X, Y)


def test_explicit_features_of_other_values():
    with pytest.raises(InputError, match="explicit=True: Polynomial"):
        make("poly2", explicit=True).fit(X, Y)
    thirds = [sp.csr_array(x / 3) for x in X]
    with pytest.raises(InputError, match="explicit=True: Polynomial"):
        make("poly2", explicit=True).fit(thirds, Y)
    model = make("poly2", explicit=True).fit(BINARY, Y)
    with pytest.raises(InputError, match="0 or 1"):
        model.predict(thirds)


def test_a_gram_matrix_over_the_budget():
    with pytest.raises(BudgetError) as caught:
        make(gram_budget=1e-9).fit(X, Y)
    for part in (f"{len(STACKED)} x {len(STACKED)}", "GiB", "sparse", "n_inducing", "explicit"):
        assert part in str(caught.value)
    with pytest.raises(BudgetError, match=r"20 functions .*update='new'"):
        make(method="sparse", n_coordinates=20, gram_budget=1e-9).fit(X, Y)
    with pytest.raises(BudgetError, match="pairs of features"):
        make("poly2", explicit=True, gram_budget=1e-9).fit(BINARY, Y)


def test_no_more_coordinates_than_there_are():
    model = make(method="sparse", n_coordinates=10**7).fit(X, Y)
    assert model.path_[-1].n_atoms <= 9 * len(STACKED)


def test_a_bound_that_is_infinite_comes_back_from_a_file(tmp_path):
    vague = [[None, *row[1:]] for row in Y]
    model = make().fit(X, vague)
    assert model.gap_ == np.inf
    model.save(tmp_path / "model.sf")
    assert sf.load(tmp_path / "model.sf").gap_ == np.inf


def test_a_graph_of_some_columns():
    wide = [np.hstack([x, x + 1.0]) for x in X]
    alone = make(Graph(3)).fit(X, Y)
    part = make(Columns(Graph(3), slice(0, X[0].shape[1]))).fit(wide, Y)
    np.testing.assert_allclose(probabilities(part, wide), probabilities(alone), atol=1e-8)


def test_edge_features_are_refused():
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    edged = sf.Sequences(STACKED, offsets, np.ones((len(STACKED), 1)))
    with pytest.raises(SeqfieldError, match="GPSC cannot use edge features"):
        make().fit(edged, Y)
    with pytest.raises(SeqfieldError, match="edge"):
        make().fit(X, Y).predict(edged)


def test_nothing_is_known():
    vague = [[{"L0", "L1", "L2"}] * len(x) for x in X]
    with pytest.raises(InputError, match="label"):
        make(classes=["L0", "L1", "L2"]).fit(X, vague)


# --- graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [len(STACKED), 10**6])
def test_more_neighbours_than_tokens(k):
    with pytest.raises(InputError, match=f"n_neighbors={k} needs more than {k} distinct tokens"):
        make(Graph(k)).fit(X, Y)


def told(kernel, X, y):
    """The texts of the warnings of a fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(kernel).fit(X, y)
    assert {w.category for w in caught} <= {GraphWarning}
    return " ".join(str(w.message) for w in caught)


def test_a_graph_in_parts_warns():
    far = [x + 1000.0 * k for k, x in enumerate(X[:6])]
    assert "falls apart into" in told(Graph(1), far, Y[:6])
    alone = [x + 1000.0 for x in NEW]
    text = told(Graph(4), X + alone, [*Y, *[None] * len(alone)])
    assert "no labelled token: nothing is learned" in text
    assert told(Graph(8), X, Y) == ""


def test_few_labels_are_no_evidence_against_a_graph():
    """All labelled neighbours agree: that they are few does not say that the graph is useless."""
    tokens, labels = two_moons(120)
    known = [labels.index(["0"]), labels.index(["1"]), *range(2, 8)]
    y = [row if k in known else None for k, row in enumerate(labels)]
    assert "tells nothing" not in told(Graph(n_neighbors=6), tokens, y)


def test_a_graph_that_says_nothing_warns():
    rng = np.random.default_rng(0)
    shuffled = [[f"L{k}" for k in rng.integers(3, size=len(x))] for x in X]
    with pytest.warns(GraphWarning, match="tells nothing about the labels"):
        make(Graph(8)).fit(X, shuffled)


@quiet
def test_tokens_that_are_not_in_the_graph_warn():
    model = make(Graph(8)).fit(X, Y)
    with pytest.warns(ExtensionWarning, match="tokens are not in the graph"):
        p = probabilities(model, NEW)
    assert np.isfinite(p).all()
    probabilities(model)  # those that are do not


# --- the posterior ------------------------------------------------------------------------------


def laplace(**wanted):
    return make(posterior="laplace", n_samples=40, random_state=0, **wanted)


def test_the_map_estimate_of_a_posterior_is_the_dense_one():
    settings = {"c2": 0.4, "eta": 0.7, "tol": 1e-12}
    a, b = laplace(**settings).fit(X, Y), make(**settings).fit(X, Y)
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-9)
    data = b.encode(X)
    np.testing.assert_allclose(
        a.function_.scores(data, a.n_jobs).node, b.function_.scores(data, b.n_jobs).node, atol=1e-5
    )
    np.testing.assert_allclose(a.transitions_, b.transitions_, atol=1e-5)


def test_a_posterior_over_tokens_of_all_sizes():
    """What a root leaves out of small tokens would be noise that explains their labels."""
    large = np.random.default_rng(0).random(len(STACKED)) < 0.3
    mixed = np.split(STACKED * np.where(large, 30.0, 1.0)[:, None], np.cumsum(LENGTHS)[:-1])
    a, b = (model.fit(mixed, Y) for model in (laplace(kernel=Polynomial(3)), make(Polynomial(3))))
    assert b.objective_ - b.gap_ - 1e-6 <= a.objective_ <= b.objective_ + a.gap_ + 1e-6


@pytest.mark.filterwarnings("ignore:no convergence")
@pytest.mark.parametrize("wanted", [{"posterior": "laplace"}, {"learn_kernel": True}])
def test_kernels_of_values_too_far_apart(wanted):
    large = [30.0 * x for x in X]
    with pytest.raises(InputError, match=r"Scale the features.*degree.*Normalized"):
        make(Polynomial(8), **wanted).fit(large, Y)


@pytest.mark.parametrize(
    "wanted",
    [
        {"n_inducing": 5, "inducing": "random"},
        {"n_inducing": 5},
        {"learn_kernel": True},
        {"posterior": "laplace"},
        {"method": "sparse"},
        {},
    ],
    ids=str,
)
def test_kernels_that_overflow(wanted):
    large = [1e3 * x for x in X]
    with pytest.raises(InputError, match=r"the kernel is inf for tokens .* scale the features"):
        make(Polynomial(80), random_state=0, **wanted).fit(large, Y)


@pytest.mark.parametrize("scale", [1e160, 1e200])
def test_explicit_features_that_overflow(scale):
    with pytest.raises(InputError, match="the kernel is inf for tokens 0 and 0"):
        make("linear", explicit=True).fit([scale * x for x in X], Y)
    model = make("linear", explicit=True, c2=1e-2).fit(X, Y)
    with pytest.raises(InputError, match="the scores of row 1 are not finite"):
        model.predict([np.array([[1.0, 1.0, 1.0], [1.7e308, 0.0, 0.0]])])


def test_an_average_is_less_sure_than_the_map_estimate():
    averaged, single = laplace().fit(X, Y), make().fit(X, Y)
    assert (
        probabilities(averaged, NEW).max(axis=1).mean()
        < probabilities(single, NEW).max(axis=1).mean()
    )
    np.testing.assert_allclose(probabilities(averaged, NEW).sum(axis=1), 1.0, rtol=1e-12)
    each = np.stack(
        [chain.marginals(part).node for part in averaged.distribution(NEW).single.draws]
    )
    assert len(each) == 40
    np.testing.assert_allclose(probabilities(averaged, NEW), each.mean(axis=0), rtol=1e-12)


def test_a_posterior_with_all_landmarks_is_the_exact_one():
    a, b = laplace(n_inducing=1000, tol=1e-10).fit(X, Y), laplace(tol=1e-10).fit(X, Y)
    assert a.log_evidence_ == pytest.approx(b.log_evidence_, rel=1e-6)
    assert a.log_evidence_error_ == 0.0


def test_learned_parameters_have_the_larger_evidence():
    before = laplace().fit(X, Y)
    after = laplace(learn_kernel=True).fit(X, Y)
    assert after.log_evidence_ > before.log_evidence_ + 0.1
    given = laplace(kernel=after.kernel_, c2=after.c2_, eta=after.eta_).fit(X, Y)
    assert given.log_evidence_ == pytest.approx(after.log_evidence_, rel=1e-6)
    single = make(learn_kernel=True, random_state=0).fit(X, Y)
    assert (single.c2_, single.eta_) == (after.c2_, after.eta_)
    assert repr(single.kernel_) == repr(after.kernel_)


def test_the_evidence_is_learned_on_whole_sequences_that_fit():
    whole = make(learn_kernel=True, random_state=0, evidence_tokens=len(STACKED)).fit(X, Y)
    more = make(learn_kernel=True, random_state=0, evidence_tokens=10**6).fit(X, Y)
    assert whole.c2_ == more.c2_


def test_a_posterior_comes_back_from_a_file(tmp_path):
    model = laplace(learn_kernel=True).fit(X, Y)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))
    assert again.predict(NEW) == model.predict(NEW)
    for name in ("c2_", "eta_", "objective_", "log_evidence_", "log_evidence_error_"):
        assert getattr(again, name) == getattr(model, name)


def test_nothing_of_another_fit_is_left():
    model = laplace().fit(X, Y)
    model.set_params(posterior="map", method="sparse").fit(X, Y)
    assert not hasattr(model, "log_evidence_")
    model.set_params(method="dense").fit(X, Y)
    assert not hasattr(model, "path_")


def test_block_covariance_is_another_one():
    full, block = laplace().fit(X, Y), laplace(laplace="block").fit(X, Y)
    assert abs(full.log_evidence_ - block.log_evidence_) > 1e-3


@pytest.mark.parametrize(
    "wanted",
    [
        {"posterior": "laplace", "method": "sparse"},
        {"posterior": "laplace", "loss": "marginal"},
        {"posterior": "laplace", "explicit": True},
        {"posterior": "laplace", "gram_dtype": "float32"},
        {"learn_kernel": True, "loss": "softmax_margin"},
    ],
    ids=str,
)
def test_what_a_posterior_cannot_do(wanted):
    with pytest.raises(CapabilityError):
        make(**wanted).fit(X, Y)


def test_an_average_over_the_posterior_is_calibrated_as_a_fitted_one_is():
    given = {"posterior": "laplace", "n_samples": 5, "random_state": 0}
    model = make(calibrate=True, **given).fit(X, Y)
    plain = make(**given).fit(X, Y)
    assert model.calibration_.temperature > 0
    assert model.calibration_.temperature == pytest.approx(
        sf.calibrate(plain, X, Y, cv=3).calibration_.temperature, rel=1e-12
    )
    assert model.predict(X) == plain.predict(X)


def test_no_posterior_without_a_prior():
    with pytest.raises(InputError, match="c2 must be above 0"):
        laplace(c2=0.0).fit(X, Y)
    with pytest.raises(BudgetError, match=r"five matrices .*n_inducing"):
        laplace(gram_budget=1e-6).fit(X, Y)
    with pytest.raises(BudgetError, match="20 inducing tokens"):
        laplace(gram_budget=1e-6, n_inducing=20).fit(X, Y)


@pytest.mark.parametrize("length_scale", [1.0, 8.0])
def test_rounding_of_float32_is_not_learned_from(length_scale):
    """A smooth kernel has more tokens than it has directions above the rounding of float32."""
    settings = {"c2": 0.01, "tol": 1e-10}
    best = make(RBF(length_scale), **settings).fit(X, Y).objective_
    model = make(
        RBF(length_scale),
        method="sparse",
        n_coordinates=1000,
        slope_tol=1e-9,
        gram_dtype="float32",
        **settings,
    ).fit(X, Y)
    assert model.objective_ >= best * (1 - 1e-4)
    assert 0 <= model.objective_ - best <= model.gap_ + 0.01


def test_calibration_with_unlabelled_sequences():
    y = [row if k < 5 else None for k, row in enumerate(Y)]
    model = make(calibrate=True, random_state=0).fit(X, y)
    assert model.calibration_.temperature > 0
    with pytest.raises(InputError, match="with labels"):
        make(calibrate=True).fit(X, [row if k < 2 else None for k, row in enumerate(Y)])


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_values_too_large_for_float32(form):
    with pytest.raises(InputError, match=r"is 1e\+39 for tokens 0 and 0.* gram_dtype=\"float64\""):
        make(1e39 * RBF(1.0), gram_dtype="float32", **FORMS[form]).fit(X, Y)


def test_values_too_large_for_float32_in_a_kernel_crf():
    with pytest.raises(InputError, match=r"is 1e\+39 for tokens 0 and 0.* gram_dtype=\"float64\""):
        sf.KernelCRF(1e39 * RBF(1.0), gram_dtype="float32").fit(X, Y)


@pytest.mark.parametrize("form", FORMS)
def test_cosines_of_functions_that_are_no_kernel(form):
    with pytest.raises(InputError, match=r"not positive semi-definite: -.* for row \d+ with"):
        make(Normalized(Callable(negative)), **FORMS[form]).fit(X, Y)


def given_again(kernel, x, y, path, **wanted):
    """The kernel as given, of a model that was saved and loaded."""
    make(kernel, **wanted).fit(x, y).save(path)
    return sf.load(path).kernel


def test_a_loaded_model_is_trained_again_on_the_columns_of_its_prefix(tmp_path):
    x, y = ATTRIBUTES
    kernel = given_again(Columns(Linear(), "U0"), x, y, tmp_path / "m.sf", features=TEMPLATE)
    assert kernel.columns == "U0"
    order = "U1:%x[0,1]\nU0:%x[0,0]\nB"
    fresh, again = (
        make(k, features=order).fit(x, y).kernel_ for k in (Columns(Linear(), "U0"), kernel)
    )
    np.testing.assert_array_equal(again.columns, fresh.columns)


some_at_bounds = pytest.mark.filterwarnings("ignore:the evidence is largest at a bound")


@some_at_bounds
@pytest.mark.parametrize("columns", [slice(-2, None), [-1], [0, 2], np.array([0, 2])], ids=repr)
def test_a_loaded_model_has_the_kernel_that_was_given(columns, tmp_path):
    """Not what was taken from the data, or learned."""
    kernel = given_again(Columns(RBF(), columns) + 2.0, X, Y, tmp_path / "m.sf", learn_kernel=True)
    assert (kernel.left.kernel.length_scale, kernel.right.value) == ("auto", 2.0)
    wide = np.hstack([STACKED, STACKED])
    expected = Columns(Linear(), columns).fit(wide).columns
    np.testing.assert_array_equal(kernel.fit(wide).left.columns, expected)


@some_at_bounds
def test_a_loaded_model_has_the_scale_that_was_given(tmp_path):
    kernel = 2.0 * Precomputed(GRAM)
    again = given_again(kernel, NUMBERS, Y, tmp_path / "m.sf", learn_kernel=True)
    assert again.scale == 2.0
    np.testing.assert_array_equal(again.kernel.gram, GRAM)


def test_damaged_kernels_as_given(tmp_path):
    path = tmp_path / "m.sf"
    make(2.0 * Precomputed(GRAM)).fit(NUMBERS, Y).save(path)
    header, arrays = read_model(path)
    given = header["params"]["kernel"]
    assert given["arrays"] == ["kernel/gram"]
    for bad in ([], [["kernel/gram"]], 1, None):
        given["arrays"] = bad
        forge(path, header, arrays)
        with pytest.raises(ModelFileError):
            sf.load(path)


def test_a_kernel_that_was_changed_after_fitting(tmp_path):
    model = make(RBF(1.0)).fit(X, Y).set_params(kernel=Precomputed(GRAM))
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    np.testing.assert_array_equal(probabilities(again), probabilities(model))
    assert isinstance(again.kernel, RBF)


def test_kernels_of_earlier_files(tmp_path):
    """They have None for a kernel that holds arrays: that of the fitted one is taken."""
    path = tmp_path / "m.sf"
    make(Columns(RBF(1.0), [0, 2])).fit(X, Y).save(path)
    header, arrays = read_model(path)
    header["params"]["kernel"] = {"kernel": None}
    forge(path, header, arrays)
    np.testing.assert_array_equal(sf.load(path).kernel.columns, [0, 2])


@pytest.mark.parametrize("training", [np.asarray, sp.csr_array])
def test_a_function_gets_new_tokens_in_the_form_of_training(training):
    forms = set()

    def function(x, z):
        forms.update((type(x), type(z)))
        found = x @ z.T
        return found.toarray() if sp.issparse(found) else found

    model = make(function).fit([training(x) for x in X], Y)
    same = probabilities(model, [training(x) for x in NEW])
    forms.clear()
    for form in (np.asarray, sp.csr_array):
        found = probabilities(model, [form(x) for x in NEW])
        np.testing.assert_allclose(found, same, rtol=1e-9)
    assert len(forms) == 1


def test_explicit_triples_of_a_small_constant():
    a, b = (
        make(Polynomial(3, coef0=0.1), explicit=explicit, tol=1e-10).fit(BINARY, Y)
        for explicit in (True, False)
    )
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-7)
