"""KernelCRF: its path and cliques, early stopping, files and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import seqfield as sf
from seqfield.chain import ChainScores
from seqfield.errors import (
    BudgetError,
    CapabilityError,
    InputError,
    ModelFileError,
    SeqfieldError,
)
from seqfield.estimators import kernel_crf
from seqfield.estimators._descent import split, watched
from seqfield.kernels import RBF, Graph, Linear, Polynomial, Precomputed
from seqfield.persist import read_model

from ..support.model_files import forge
from ..support.sequences import numbers

X, Y = numbers(n=14, seed=0)
NEW, NEW_Y = numbers(n=6, seed=1)
STACKED = np.vstack(X)
S = 3
LENGTHS = [len(x) for x in X]
NUMBERS = np.split(np.arange(len(STACKED))[:, None], np.cumsum(LENGTHS)[:-1])
NAMES = ["L0", "L1", "L2"]


def make(kernel=None, **wanted):
    kernel = RBF(1.0) if kernel is None else kernel
    return sf.KernelCRF(kernel, **{"n_jobs": 1, "n_cliques": 12, "tol": 1e-8} | wanted)


def probabilities(model, X=X):
    return np.vstack(model.predict_proba(X))


CASES = {
    "vertex": (None, {}),
    "mean field": (None, {"gain": "meanfield"}),
    "edges": (None, {"cliques": "vertex+edge", "n_cliques": 25, "c2": 0.3}),
    "edges, mean field": (None, {"cliques": "vertex+edge", "gain": "meanfield", "c2": 0.3}),
    "two kernels": ([RBF(0.5), Polynomial(2)], {"eta": 0.4}),
    "two kernels with edges": (
        [RBF(0.5), Linear()],
        {"cliques": "vertex+edge", "n_cliques": 21, "c2": 0.2},
    ),
    "no transitions": (None, {"transitions": False}),
}
every = pytest.mark.parametrize("case", CASES)


def fitted(case, **more):
    kernel, wanted = CASES[case]
    return make(kernel, **wanted | more).fit(X, Y)


def at(clique, X=X):
    return X[clique.place[0]][clique.place[1]]


def scores(model, X):
    """Chain scores from the cliques alone."""
    x = np.vstack(X)
    node, edge = np.zeros((len(x), S)), np.zeros((len(x), S, S))
    kernels = model.kernel_ if isinstance(model.kernel_, list) else [model.kernel_]
    for clique in model.cliques_:
        column = kernels[clique.kernel](x, at(clique)[None])[:, 0] * clique.coefficient
        codes = tuple(NAMES.index(v) for v in clique.labels)
        if len(codes) == 1:
            node[:, codes[0]] += column
        else:
            edge[:, codes[0], codes[1]] += column
    return node, edge + model.transitions_


# --- path and cliques --------------------------------------------------------------------------


@every
def test_cliques_are_the_model(case):
    model = fitted(case)
    for x in (X, NEW):
        node, edge = scores(model, x)
        found = model.function_.scores(model.encode(x))
        np.testing.assert_allclose(found.node, node, atol=1e-9)
        want = edge if model.cliques == "vertex+edge" else edge[0]
        np.testing.assert_allclose(found.edge, want, atol=1e-9)
    kinds = {len(clique.labels) for clique in model.cliques_}
    assert kinds == ({1, 2} if model.cliques == "vertex+edge" else {1})
    assert len({clique[:3] for clique in model.cliques_}) == len(model.cliques_)


@every
def test_path(case):
    model = fitted(case)
    n_kernels = len(model.kernel) if isinstance(model.kernel, list) else 1
    counts = [told.n_atoms for told in model.path_]
    assert counts[-1] == len(model.cliques_) == model.n_cliques
    assert (np.diff(counts) <= n_kernels).all()
    assert counts[0] == min(n_kernels, model.n_cliques)
    risks = [told.risk for told in model.path_]
    assert (np.diff(risks) < 1e-9).all()
    assert model.n_iter_ == model.best_iter_ == len(model.path_)
    assert model.objective_ == risks[-1]
    assert model.gap_ == np.inf or model.gap_ >= 0


@every
def test_objective_is_that_of_the_model(case):
    """-log p + c2 / 2 (|f|^2 + |T|^2 / eta) by cliques and gram values."""
    model = fitted(case)
    kernels = model.kernel_ if isinstance(model.kernel_, list) else [model.kernel_]
    norm = (model.transitions_**2).sum() / model.eta
    for a in model.cliques_:
        for b in model.cliques_:
            if (a.kernel, a.labels) == (b.kernel, b.labels):
                value = kernels[a.kernel](at(a)[None], at(b)[None])[0, 0]
                norm += a.coefficient * b.coefficient * value
    loss = -model.log_likelihood(X, Y).sum()
    assert model.objective_ == pytest.approx(loss + model.c2 / 2 * norm, rel=1e-9)
    assert model.path_[-1].loss == pytest.approx(loss, rel=1e-9)


def test_a_longer_selection_begins_like_a_shorter_one():
    short, long = make(n_cliques=5).fit(X, Y), make(n_cliques=15).fit(X, Y)
    assert [c[:3] for c in long.cliques_[:5]] == [c[:3] for c in short.cliques_]


def test_n_cliques_is_the_most_also_with_several_kernels():
    model = make([RBF(0.5), Linear()], n_cliques=7).fit(X, Y)
    assert len(model.cliques_) == 7
    assert model.path_[-1].n_atoms == 7


def test_n_kept_counts_tokens():
    model = make().fit(X, Y)
    assert model.n_kept_ == len({clique.place for clique in model.cliques_}) <= 12
    assert model.n_tokens_ == len(STACKED)


def test_place_is_the_first_token_like_it():
    model = make(n_cliques=8).fit(X, Y)
    doubled = make(n_cliques=8).fit(X + X, Y + Y, sample_weight=[0.5] * 28)
    assert [c[:3] for c in doubled.cliques_] == [c[:3] for c in model.cliques_]
    # sequences without labels come before: places are those of X as given
    shifted = make(n_cliques=8).fit([*NEW[:2], *X], [None, None, *Y])
    for a, b in zip(shifted.cliques_, model.cliques_, strict=True):
        assert a.labels == b.labels
        np.testing.assert_array_equal(at(a, [*NEW[:2], *X]), at(b))


def test_gain_tol_ends_the_selection():
    full = make(n_cliques=60).fit(X, Y)
    model = make(n_cliques=60, gain_tol=0.3).fit(X, Y)
    gains = -np.diff([told.risk for told in model.path_])
    assert 2 < len(model.path_) < len(full.path_)
    assert gains[-1] < 0.3
    assert (gains[:-1] >= 0.3 - 1e-6).all()


def test_weights_and_scheme():
    """A weight of two is the sequence twice; what the scheme forbids never happens."""
    weights = np.ones(14)
    weights[3] = 2.0
    a = make().fit(X, Y, sample_weight=weights)
    b = make().fit([*X, X[3]], [*Y, Y[3]])
    assert [c[:3] for c in a.cliques_] == [c[:3] for c in b.cliques_]
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-6)
    seen = {pair for row in Y for pair in zip(row, row[1:], strict=False)}
    banned = {(p, q) for p in NAMES for q in NAMES} - seen
    assert all(np.isfinite(make(scheme=seen).fit(X, Y).log_likelihood(X, Y)))
    model = make(scheme=seen, cliques="vertex+edge").fit(X, Y)
    for row in model.predict(NEW):
        assert not set(zip(row, row[1:], strict=False)) & banned


@pytest.mark.parametrize("cliques", ["vertex", "vertex+edge"])
def test_labels_that_are_certain_leave_nothing_to_choose(cliques):
    """With one lawful labelling the gradient is zero from the start: a model without cliques."""
    chain = [("L0", "L1"), ("L1", "L2"), (None, "L0"), ("L2", None)]
    x = [part[:3] for part in X if len(part) >= 3]
    y = [NAMES] * len(x)
    model = make(scheme=chain, cliques=cliques).fit(x, y)
    assert (model.cliques_, model.path_, model.n_kept_) == ([], [], 0)
    assert model.objective_ == pytest.approx(0.0, abs=1e-9)
    assert model.predict(x) == y


def test_a_kernel_of_zeros_leaves_nothing_to_choose():
    model = make(lambda x, z: np.zeros((len(x), len(z)))).fit(X, Y)
    assert model.cliques_ == []
    want = sf.CRF(observed_only=False, tol=1e-10).fit([x * 0 for x in X], Y)
    assert model.objective_ == pytest.approx(want.objective_, rel=1e-6)
    np.testing.assert_allclose(model.transitions_, want.transitions_, atol=1e-3)


# --- early stopping ----------------------------------------------------------------------------


def noisy(seed=0):
    rng = np.random.default_rng(seed)
    X, y = numbers(n=30, seed=seed, noise=1.5)
    return X, [[v if rng.random() < 0.7 else NAMES[rng.integers(3)] for v in row] for row in y]


@pytest.fixture
def seen(monkeypatch):
    """What early stopping saw, round by round."""
    values = []

    def watching(lesson, settings, rng, merit):
        def recording(held):
            measure = merit(held)

            def call(theta):
                values.append(measure(theta))
                return values[-1]

            return call

        return watched(lesson, settings, rng, recording)

    monkeypatch.setattr(kernel_crf, "watched", watching)
    return values


@pytest.mark.parametrize("kernel", [RBF(1.0), [RBF(1.0), Linear()]], ids=["one", "two"])
@pytest.mark.parametrize("cliques", ["vertex", "vertex+edge"])
@pytest.mark.parametrize("patience", [4, 1000])
def test_early_stopping_keeps_the_best_round(patience, cliques, kernel, seen):
    x, y = noisy()
    model = sf.KernelCRF(
        kernel, cliques=cliques, early_stopping=True, validation_fraction=0.3, random_state=0
    )
    model.set_params(patience=patience, n_cliques=60, c2=0.3, n_jobs=1).fit(x, y)
    _, held = split(len(x), 0.3, np.random.RandomState(0))
    assert len(held) == 9
    best = int(np.argmin(seen)) + 1
    assert 1 < best < model.n_iter_ == len(seen)
    assert model.best_iter_ == best == len(model.path_)
    if patience == 4:
        assert model.n_iter_ == best + 4
    assert len(model.cliques_) == model.path_[-1].n_atoms
    # it is that round's function
    loss = -model.log_likelihood([x[i] for i in held], [y[i] for i in held]).sum()
    assert loss == pytest.approx(seen[best - 1], rel=1e-9)


def test_early_stopping_tells_the_risk_of_the_training_part():
    x, y = noisy()
    model = make(RBF(0.3), early_stopping=True, patience=2, c2=0.01, random_state=0, n_cliques=50)
    model.fit(x, y)
    train, _ = split(len(x), 0.1, np.random.RandomState(0))
    assert model.best_iter_ < model.n_iter_ < 50
    loss = -model.log_likelihood([x[i] for i in train], [y[i] for i in train]).sum()
    assert model.path_[-1].loss == pytest.approx(loss, rel=1e-8)
    assert model.objective_ == model.path_[-1].risk > loss


# --- files -------------------------------------------------------------------------------------

BINARY = [sp.csr_array((x > 1.0).astype(np.int8)) for x in X]
GRAM = RBF(1.0)(STACKED)
quiet = pytest.mark.filterwarnings("ignore::seqfield.kernels.graph.GraphWarning")
VARIANTS = {
    "vertex": (RBF(1.0), X, {}),
    "default": (None, X, {}),
    "edges": (RBF(1.0), X, {"cliques": "vertex+edge", "n_cliques": 20}),
    "several": (["rbf", Linear(), 0.5 * Polynomial(2)], X, {}),
    "tuple": ((RBF(1.0), Linear()), X, {}),
    "several with edges": ([RBF(0.5), Linear()], X, {"cliques": "vertex+edge", "n_cliques": 20}),
    "sparse rows": (Polynomial(2), BINARY, {}),
    "graph": ([Graph(4), RBF(1.0)], X, {}),
    "precomputed": ([Precomputed(GRAM), Precomputed(GRAM @ GRAM)], NUMBERS, {}),
    "precomputed with edges": (Precomputed(GRAM), NUMBERS, {"cliques": "vertex+edge"}),
    "early stopping": (RBF(1.0), X, {"early_stopping": True, "random_state": 0, "patience": 3}),
}


@quiet
@pytest.mark.parametrize("name", VARIANTS)
def test_save_and_load(name, tmp_path):
    kernel, x, wanted = VARIANTS[name]
    model = make(kernel, **wanted).fit(x, Y)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    np.testing.assert_array_equal(probabilities(again, x), probabilities(model, x))
    if x is X and name != "graph":
        np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))
    np.testing.assert_array_equal(again.transitions_, model.transitions_)
    assert (again.n_kept_, again.n_tokens_) == (model.n_kept_, model.n_tokens_)
    assert repr(again.kernel_) == repr(model.kernel_)
    assert isinstance(again.function_.scores(again.encode(x)), ChainScores)
    refit = clone(again).fit(x, Y)
    np.testing.assert_allclose(probabilities(refit, x), probabilities(model, x), atol=1e-6)
    again.save(tmp_path / "again.sf")
    assert (tmp_path / "again.sf").read_bytes() == (tmp_path / "m.sf").read_bytes()


def test_a_model_with_a_function_cannot_be_saved(tmp_path):
    model = make([RBF(1.0), lambda x, z: x @ z.T], n_cliques=4).fit(X, Y)
    with pytest.raises(CapabilityError, match="callable kernel cannot be saved"):
        model.save(tmp_path / "m.sf")
    assert list(tmp_path.iterdir()) == []


DAMAGE = {
    "no transitions": lambda h, a: a.pop("function/steps"),
    "short transitions": lambda h, a: a.update({"function/steps": a["function/steps"][:, :2]}),
    "no draws": lambda h, a: a.update({"function/steps": a["function/steps"][:0]}),
    "several draws": lambda h, a: a.update({"function/steps": np.stack([a["function/steps"]] * 2)}),
    "NaN": lambda h, a: a["function/steps"].__setitem__((0, 0), np.nan),
    "NaN coefficient": lambda h, a: a["function/function1/coefficients"].__setitem__(
        (0, 0), np.nan
    ),
    "fewer tokens": lambda h, a: a.update(
        {"function/function0/tokens/data": a["function/function0/tokens/data"][1:]}
    ),
    "no tokens": lambda h, a: a.pop("function/function0/tokens/data"),
    "other columns": lambda h, a: a.update(
        {"function/function0/coefficients": a["function/function0/coefficients"][:, :3]}
    ),
    "vertex model": lambda h, a: h["function"].update(edges=False),
    "one kernel": lambda h, a: h["function"]["kernels"].pop(),
    "no functions": lambda h, a: h["function"].update(kernels=[], functions=[]),
    "unknown kernel": lambda h, a: h["function"]["kernels"][0].update({"class": "Magic"}),
    "bad kernel": lambda h, a: h["function"]["kernels"][0]["own"].update(length_scale=-1.0),
    "number of tokens": lambda h, a: h["facts"].update(n_tokens_="many"),
    "no header": lambda h, a: h.pop("function"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_are_refused(what, tmp_path):
    path = tmp_path / "m.sf"
    make([RBF(0.5), Linear()], cliques="vertex+edge").fit(X, Y).save(path)
    header, arrays = read_model(path)
    arrays = {key: array.copy() for key, array in arrays.items()}
    DAMAGE[what](header, arrays)
    forge(path, header, {k: np.ascontiguousarray(v) for k, v in arrays.items()})
    with pytest.raises(ModelFileError):
        sf.load(path)


def test_truncated_files_are_refused(tmp_path):
    path = tmp_path / "m.sf"
    make().fit(X, Y).save(path)
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            sf.load(path)


# --- bad input ---------------------------------------------------------------------------------

BAD = {
    "unknown cliques": ({"cliques": "edge"}, "cliques must be one of 'vertex', .*'edge'"),
    "unknown gain": ({"gain": "magic"}, "gain must be one of 'gradient', .*'magic'"),
    "no cliques": ({"n_cliques": 0}, "n_cliques must be a whole number of at least 1, got 0"),
    "half a clique": ({"n_cliques": 2.5}, "n_cliques must be"),
    "negative gain": ({"gain_tol": -1.0}, "gain_tol must be"),
    "no patience": ({"patience": 0}, "patience must be"),
    "nothing held out": (
        {"early_stopping": True, "validation_fraction": 0.0},
        "validation_fraction",
    ),
    "negative eta": ({"eta": -1.0}, "eta must be"),
    "negative tolerance": ({"tol": -1.0}, "tol must be"),
    "negative c2": ({"c2": -1.0}, "c2 must be"),
    "unknown type": ({"gram_dtype": "magic"}, "gram.*float64.*magic"),
    "no kernels": ({"kernel": []}, "kernel"),
    "kernel a number": ({"kernel": [RBF(1.0), 3]}, "a kernel is .*got 3"),
    "not symmetric": ({"kernel": lambda x, z: x @ z.T + x[:, :1]}, "not symmetric"),
    "negative": ({"kernel": [RBF(1.0), lambda x, z: -(x @ z.T)]}, "positive semi-definite"),
    "NaN": ({"kernel": lambda x, z: np.full((len(x), len(z)), np.nan)}, "gave nan"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    wanted, message = BAD[case]
    with pytest.raises(InputError, match=message):
        make(**wanted).fit(X, Y)


def test_budgets():
    with pytest.raises(BudgetError, match=r"gram matrix of .* GiB"):
        make(gram_budget=1e-9).fit(X, Y)
    room = 1.01 * 8 * len(STACKED) ** 2 / 2**30
    make(gram_budget=room).fit(X, Y)
    there = 3 * len(STACKED)
    with pytest.raises(BudgetError, match=f"{there} functions of"):
        make(gram_budget=room, n_cliques=1000).fit(X, Y)
    # all kernels share it
    with pytest.raises(BudgetError, match=r"gram matrix of .* GiB"):
        make([RBF(1.0), RBF(2.0)], gram_budget=room).fit(X, Y)


def test_no_more_cliques_than_there_are():
    model = make(n_cliques=10**9).fit(X, Y)
    assert len(model.cliques_) <= 3 * len(STACKED)


def test_edge_features_are_refused():
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    edged = sf.Sequences(STACKED, offsets, np.ones((len(STACKED), 1)))
    with pytest.raises(SeqfieldError, match="KernelCRF cannot use edge features"):
        make().fit(edged, Y)


def test_edge_cliques_need_transitions():
    with pytest.raises(InputError, match="edge cliques"):
        make(cliques="vertex+edge", transitions=False).fit(X, Y)


def test_selection_ends_where_only_rounding_is_left():
    """The linear kernel of four features has eight directions for three labels."""
    model = make(Linear(), n_cliques=500).fit(X, Y)
    assert len(model.path_) < 60


def spans(n=12, seed=0):
    """Numbers with BIO labels by the size of the first."""
    rng = np.random.default_rng(seed)
    x, y = [rng.normal(size=(5, 2)) for _ in range(n)], []
    for rows in x:
        label, labels = "O", []
        for value in rows[:, 0]:
            inside = value > 0 and label != "O"
            label = "B" if value > 0.5 else ("I" if inside else "O")
            labels.append(label)
        y.append(labels)
    return x, y


@pytest.mark.parametrize("gain", ["gradient", "meanfield"])
def test_selection_goes_on_while_there_is_something_to_gain(gain):
    """Graph functions are nearly constant: a clique alone gains little, all together much."""
    x, y = spans()
    kernel = 10 * Graph(4)
    dense = sf.GPSC(kernel, scheme="BIO", tol=1e-9, n_jobs=1).fit(x, y)
    some, every = (
        make(kernel, gain=gain, n_cliques=n, tol=1e-5, scheme="BIO").fit(x, y) for n in (60, 180)
    )
    assert len(some.cliques_) == 60
    assert some.objective_ < 1.15 * dense.objective_
    assert every.objective_ == pytest.approx(dense.objective_, rel=1e-5)


@quiet
def test_mean_field_gain_where_marginals_are_certain():
    """Parts of a graph that are far apart have large kernel values and certain labels."""
    rng = np.random.default_rng(6)
    parts = [rng.integers(0, 3, 4) for _ in range(10)]
    x = [np.c_[50 * k, 0 * k] + rng.normal(size=(4, 2)) for k in parts]
    y = [["aab"[v] for v in k] for k in parts]
    model = make(Graph(2), gain="meanfield", n_cliques=3).fit(x, y)
    assert len(model.cliques_) == 3
    assert model.predict(x) == y


def test_calibration_with_unlabelled_sequences():
    y = [row if k < 5 else None for k, row in enumerate(Y)]
    model = make(calibrate=True, random_state=0).fit(X, y)
    assert model.calibration_.temperature > 0
    assert all(place[0] < 5 for _, place, _, _ in model.cliques_)
