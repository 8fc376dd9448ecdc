"""Kernel models against each other, the CRF and scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF as PeerRBF
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.linear_model import LogisticRegression

import seqfield as sf
from seqfield.kernels import RBF, Columns, Linear, Matern, Normalized, Polynomial, Precomputed
from seqfield.linalg.factor import eigen_factor
from seqfield.sequences import Sequences, offsets_of

from ..support.sequences import steps

TIGHT = {"tol": 1e-14, "max_iter": 5000, "n_jobs": 1}
# for the clique selection, which has no max_iter
FINE = {"tol": 1e-14, "n_jobs": 1}
data = partial(steps, n=14, width=4, longest=5)


def binary(n=14, width=12, seed=0):
    """Sparse tokens of ones, some of them equal."""
    X, y = data(n=n, seed=seed)
    rng = np.random.default_rng(seed)
    turn = rng.normal(size=(4, width))
    return [sp.csr_array((x @ turn > 1.5).astype(np.int8)) for x in X], y


X, Y = data()
BINARY = binary()[0]
STACKED, OFFSETS = np.vstack(X), offsets_of([len(x) for x in X])
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, len(X))


def scores(model, X=X):
    found = model.function_.scores(model.encode(X))
    return found.node, found.edge


def probabilities(model, X=X):
    return np.vstack(model.predict_proba(X))


def same(a, b, X=X, *, rel=1e-8, atol=1e-6, X_b=None):
    """The same optimum and the same scores."""
    assert a.objective_ == pytest.approx(b.objective_, rel=rel)
    for got, want in zip(scores(a, X), scores(b, X if X_b is None else X_b), strict=True):
        np.testing.assert_allclose(got, want, atol=atol)


# --- the linear kernel is the CRF --------------------------------------------------------------

VAGUE = [list(row) for row in Y]
VAGUE[2][0] = None
VAGUE[4][-1] = {0, 2}
VAGUE[6] = None
PAIRS = {(a, b) for row in Y for a, b in zip(row, row[1:], strict=False)}
CASES = {
    "plain": (Y, {}, None),
    "weak penalty": (Y, {"c2": 0.05}, None),
    "strong penalty": (Y, {"c2": 30.0}, None),
    "weights": (Y, {"c2": 0.7}, WEIGHTS),
    "missing labels": (VAGUE, {}, WEIGHTS),
    "scheme": (Y, {"scheme": PAIRS, "c2": 0.5}, None),
    "softmax margin": (Y, {"loss": "softmax_margin", "cost": 1.5}, WEIGHTS),
    "more classes": (Y, {"classes": [2, 0, 3, 1]}, None),
}


@pytest.mark.parametrize(("explicit", "form"), [(True, "sparse"), (False, "dense")])
@pytest.mark.parametrize("case", CASES)
def test_linear_kernel_is_the_crf(case, explicit, form):
    y, wanted, weights = CASES[case]
    x = X if form == "dense" else BINARY
    crf = sf.CRF(observed_only=False, **wanted, **TIGHT).fit(x, y, sample_weight=weights)
    model = sf.GPSC("linear", explicit=explicit, **wanted, **TIGHT)
    model.fit(x, y, sample_weight=weights)
    same(model, crf, x)
    np.testing.assert_allclose(model.transitions_, crf.transitions_, atol=1e-6)
    assert model.n_kept_ == (0 if explicit else model.n_tokens_)


def test_marginal_loss_is_that_of_the_crf():
    crf = sf.CRF(observed_only=False, loss="marginal", c2=0.5, **TIGHT).fit(X, Y)
    model = sf.GPSC("linear", explicit=False, loss="marginal", c2=0.5, **TIGHT).fit(X, Y)
    same(model, crf, atol=1e-5)
    # a stationary point: no small change of a score lowers the objective
    gram = STACKED @ STACKED.T
    node, edge = scores(model)
    a = np.linalg.lstsq(gram, node, rcond=1e-10)[0]

    def risk(a, edge):
        part = model.function_.parts[0]._replace(tokens=STACKED, coefficients=a)
        model.function_ = replace(model.function_, parts=[part], steps=edge)
        p, gold = probabilities(model), np.concatenate(Y)
        length = np.repeat([len(row) for row in Y], [len(row) for row in Y])
        loss = -(np.log(p[np.arange(len(gold)), gold]) / length).sum()
        return loss + 0.25 * (np.sum(a * (gram @ a)) + (edge**2).sum())

    here = risk(a, edge)
    assert here == pytest.approx(model.objective_, rel=1e-8)
    rng = np.random.default_rng(0)
    for _ in range(5):
        da, de = rng.normal(size=a.shape), rng.normal(size=edge.shape)
        up, down = (risk(a + e * da, edge + e * de) for e in (1e-4, -1e-4))
        assert (up - down) / 2e-4 == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("eta", [0.25, 3.0])
def test_eta_is_the_variance_of_transitions(eta):
    """A feature v of all edges adds v^2 to the prior variance of the transitions of a CRF, and a
    penalty c2 on all weights is a variance of 1 / c2."""
    v = np.sqrt(eta - 0.2)
    edges = Sequences(STACKED * np.sqrt(5.0), OFFSETS, np.full((len(STACKED), 1), v * np.sqrt(5)))
    crf = sf.CRF(c2=1.0, observed_only=False, **TIGHT).fit(edges, Y)
    # all variances five times as large: 5 (v^2 + 0.2) = 5 eta
    model = sf.GPSC("linear", c2=0.2, eta=eta, explicit=False, **TIGHT).fit(X, Y)
    assert model.objective_ == pytest.approx(crf.objective_, rel=1e-8)
    node, edge = scores(crf, edges)
    np.testing.assert_allclose(scores(model)[0], node, atol=1e-6)
    np.testing.assert_allclose(model.transitions_, edge[0], atol=1e-6)


@pytest.mark.parametrize("kernel", [RBF(1.5), Linear()])
def test_without_transitions_tokens_are_independent(kernel):
    off = sf.GPSC(kernel, transitions=False, **TIGHT).fit(X, Y)
    zero = sf.GPSC(kernel, eta=0.0, **TIGHT).fit(X, Y)
    apart = [row[None] for row in STACKED]
    single = sf.GPSC(kernel, **TIGHT).fit(apart, [[k] for row in Y for k in row])
    same(off, zero)
    assert off.objective_ == pytest.approx(single.objective_, rel=1e-10)
    np.testing.assert_allclose(probabilities(off), probabilities(single, apart), atol=1e-6)
    np.testing.assert_array_equal(off.transitions_, 0.0)


def test_a_template_without_b_has_no_transitions():
    words = [[(f"w{int(3 * v[0]) % 5}",) for v in x] for x in X]
    model = sf.GPSC("linear", features="U:%x[0,0]", **TIGHT).fit(words, Y)
    np.testing.assert_array_equal(model.transitions_, 0.0)
    crf = sf.CRF(features="U:%x[0,0]", observed_only=False, **TIGHT).fit(words, Y)
    assert model.objective_ == pytest.approx(crf.objective_, rel=1e-8)


# --- single tokens: logistic regression --------------------------------------------------------


def singles(s):
    X1, y1 = data(n=40, s=s, longest=1, seed=s)
    return X1, y1, np.vstack(X1), np.concatenate(y1)


def regression(gram, labels, c2):
    """Multinomial logistic regression on a root of the gram matrix: its probabilities."""
    root, _ = eigen_factor(gram)
    peer = LogisticRegression(C=1 / c2, fit_intercept=False, tol=1e-10, max_iter=20000)
    return peer.fit(root, labels).predict_proba(root)


@pytest.mark.parametrize("kernel", [RBF(1.2), Matern(2.0), Polynomial(2)])
@pytest.mark.parametrize("c2", [0.1, 2.0])
def test_sequences_of_length_one_are_kernel_logistic_regression(kernel, c2):
    X1, y1, x, labels = singles(3)
    model = sf.GPSC(kernel, c2=c2, **TIGHT).fit(X1, y1)
    want = regression(kernel(x), labels, c2)
    np.testing.assert_allclose(probabilities(model, X1), want, atol=2e-5)
    np.testing.assert_allclose(model.transitions_, 0.0, atol=1e-12)


def test_two_labels_are_gaussian_process_classification_with_twice_the_kernel():
    X1, y1, x, labels = singles(2)
    model = sf.GPSC(RBF(1.2), **TIGHT).fit(X1, y1)
    kernel = ConstantKernel(2.0) * PeerRBF(1.2)
    peer = GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=1000).fit(x, labels)
    mode = peer.base_estimator_.pi_  # the sigmoid at the posterior mode, at the training tokens
    np.testing.assert_allclose(probabilities(model, X1)[:, 1], mode, atol=1e-4)


@pytest.mark.parametrize("gain", ["gradient", "meanfield"])
def test_all_cliques_without_transitions_are_kernel_logistic_regression(gain):
    kernel, c2 = RBF(1.2), 0.5
    model = sf.KernelCRF(kernel, n_cliques=300, transitions=False, gain=gain, c2=c2, **FINE)
    model.fit(X, Y)
    want = regression(kernel(STACKED), np.concatenate(Y), c2)
    np.testing.assert_allclose(probabilities(model), want, atol=2e-5)
    np.testing.assert_array_equal(model.transitions_, 0.0)


# --- ways to the same model --------------------------------------------------------------------

KERNELS = {
    "linear": Linear(),
    "quadratic": Polynomial(2),
    "other constant": Polynomial(2, coef0=0.3),
    "degree 1": Polynomial(1, coef0=2.0),
    "sum": Linear() + Polynomial(2),
    "scaled": 0.3 * Polynomial(2),
    "constant": Linear() + 1.5,
    "normalised": Normalized(Polynomial(2)),
    "some columns": Columns(Polynomial(2), [0, 3, 4, 7]) + 2.0 * Linear(),
}


@pytest.mark.parametrize("method", ["dense", "sparse"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_explicit_features_are_the_kernel(kernel, method):
    extra = {"method": method, "eta": 0.5}
    if method == "sparse":
        extra |= {"n_coordinates": 1000, "update": "all", "slope_tol": 1e-9}
    new = binary(n=6, seed=5)[0]  # with pairs of features that training tokens do not have
    a, b = (
        sf.GPSC(KERNELS[kernel], explicit=explicit, **extra, **TIGHT).fit(BINARY, Y)
        for explicit in (True, False)
    )
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-9)
    assert (a.n_kept_, b.n_kept_ > 5) == (0, True)
    for x in (BINARY, new):
        np.testing.assert_allclose(probabilities(a, x), probabilities(b, x), atol=1e-6)


def test_explicit_auto_is_one_of_them():
    model = sf.GPSC("poly2", **TIGHT).fit(BINARY, Y)
    other = sf.GPSC("poly2", explicit=False, **TIGHT).fit(BINARY, Y)
    same(model, other, BINARY)


@pytest.mark.parametrize("inducing", ["pivoted", "random"])
@pytest.mark.parametrize("kernel", [RBF(0.8), Polynomial(2)])
def test_all_tokens_as_inducing_tokens_are_the_dense_model(kernel, inducing):
    dense = sf.GPSC(kernel, explicit=False, **TIGHT).fit(X, Y)
    model = sf.GPSC(kernel, n_inducing=500, inducing=inducing, random_state=0, **TIGHT)
    same(model.fit(X, Y), dense, atol=1e-5)
    some = sf.GPSC(kernel, n_inducing=6, inducing=inducing, random_state=0, **TIGHT).fit(X, Y)
    assert some.n_kept_ == 6
    assert some.objective_ > dense.objective_ + 1e-3  # fewer functions to choose from


@pytest.mark.parametrize("loss", ["log", "softmax_margin"])
@pytest.mark.parametrize("kernel", [RBF(0.8), Polynomial(2)])
def test_newton_is_lbfgs(kernel, loss):
    settings = {"loss": loss, "explicit": False, "eta": 0.4}
    a, b = (
        sf.GPSC(kernel, solver=solver, **settings, **TIGHT).fit(X, Y, sample_weight=WEIGHTS)
        for solver in ("newton", "lbfgs")
    )
    same(a, b)
    assert a.n_iter_ < b.n_iter_


def test_float32_is_close_to_float64():
    a, b = (
        sf.GPSC(RBF(1.0), gram_dtype=dtype, tol=1e-10, n_jobs=1).fit(X, Y)
        for dtype in ("float32", "float64")
    )
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-6)
    np.testing.assert_allclose(probabilities(a), probabilities(b), atol=1e-5)
    assert np.abs(probabilities(a) - probabilities(b)).max() > 1e-12


def test_equal_tokens_are_one():
    """With a kernel that tells them apart by nothing but a column it does not look at."""
    rounded = [x.round() for x in X]
    model = sf.GPSC(RBF(1.0), **TIGHT).fit(rounded, Y)
    assert model.n_tokens_ == len(np.unique(np.vstack(rounded), axis=0)) < len(STACKED)
    number = np.split(np.arange(len(STACKED), dtype=float), OFFSETS[1:-1])
    apart = [np.column_stack([x, k]) for x, k in zip(rounded, number, strict=True)]
    every = sf.GPSC(Columns(RBF(1.0), [0, 1, 2, 3]), explicit=False, **TIGHT).fit(apart, Y)
    assert every.n_tokens_ == len(STACKED)
    same(model, every, rounded, X_b=apart)


def rbf(x, z):
    return np.exp(-((x[:, None] - z[None]) ** 2).sum(-1) / 2)


def test_a_function_is_the_kernel():
    new = data(n=5, seed=9)[0]
    a = sf.GPSC(rbf, **TIGHT).fit(X, Y)
    b = sf.GPSC(RBF(1.0), **TIGHT).fit(X, Y)
    same(a, b)
    np.testing.assert_allclose(probabilities(a, new), probabilities(b, new), atol=1e-6)


def test_a_precomputed_gram_matrix_is_the_kernel():
    new = data(n=5, seed=9)[0]
    tokens = np.vstack([STACKED, *new])
    numbers = np.split(np.arange(len(tokens))[:, None], np.cumsum([len(x) for x in X + new])[:-1])
    kernel = Precomputed(rbf(tokens, tokens))
    a = sf.GPSC(kernel, **TIGHT).fit(numbers[: len(X)], Y)
    b = sf.GPSC(RBF(1.0), **TIGHT).fit(X, Y)
    same(a, b, numbers[: len(X)], X_b=X)
    got = probabilities(a, numbers[len(X) :])
    np.testing.assert_allclose(got, probabilities(b, new), atol=1e-6)


def test_functions_and_gram_matrices_for_cliques():
    settings = {"n_cliques": 12, **FINE}
    a = sf.KernelCRF(rbf, **settings).fit(X, Y)
    b = sf.KernelCRF(RBF(1.0), **settings).fit(X, Y)
    assert [c[:3] for c in a.cliques_] == [c[:3] for c in b.cliques_]
    same(a, b)


# --- all of a greedy selection -----------------------------------------------------------------

EVERYTHING = {"n_coordinates": 10_000, "slope_tol": 1e-9, "update": "all"}


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"eta": 0.3, "c2": 0.4},
        {"transitions": False},
        {"update": "last", "n_per_round": 7},
        {"pick": "random", "random_state": 0, "n_per_round": 5},
        {"n_inducing": 9},
        {"loss": "softmax_margin"},
    ],
    ids=str,
)
def test_all_coordinates_are_the_dense_model(wanted):
    settings = {key: v for key, v in wanted.items() if key not in ("update", "n_per_round", "pick")}
    dense = sf.GPSC(RBF(1.0), **settings, **TIGHT).fit(X, Y, sample_weight=WEIGHTS)
    model = sf.GPSC(RBF(1.0), method="sparse", **(EVERYTHING | wanted), **TIGHT)
    model.fit(X, Y, sample_weight=WEIGHTS)
    same(model, dense, atol=1e-5)
    assert model.gap_ < 1e-9 * model.objective_


def test_all_coordinates_with_missing_labels():
    dense = sf.GPSC(RBF(1.0), **TIGHT).fit(X, VAGUE)
    model = sf.GPSC(RBF(1.0), method="sparse", **EVERYTHING, **TIGHT).fit(X, VAGUE)
    same(model, dense, atol=1e-5)


@pytest.mark.parametrize("update", ["all", "last"])
def test_labelled_sequences_come_close_to_the_dense_model(update):
    few, y = X[:8], Y[:8]
    dense = sf.GPSC(RBF(1.0), **TIGHT).fit(few, y)
    settings = {"update": update, "n_coordinates": 10_000, "slope_tol": 1e-7, "n_per_round": 8}
    model = sf.GPSC(RBF(1.0), method="sequence", **settings, **TIGHT).fit(few, y)
    assert dense.objective_ * (1 - 1e-9) < model.objective_ < dense.objective_ * (1 + 1e-3)
    np.testing.assert_allclose(probabilities(model, few), probabilities(dense, few), atol=1e-2)
    assert model.path_[-1].risk == pytest.approx(model.objective_, rel=1e-8)


@pytest.mark.parametrize("gain", ["gradient", "meanfield"])
@pytest.mark.parametrize("wanted", [{}, {"eta": 0.3, "c2": 0.4}, {"transitions": False}], ids=str)
def test_all_vertex_cliques_are_gpsc(wanted, gain):
    dense = sf.GPSC(RBF(1.0), **wanted, **TIGHT).fit(X, Y, sample_weight=WEIGHTS)
    model = sf.KernelCRF(RBF(1.0), n_cliques=400, gain=gain, **wanted, **FINE)
    model.fit(X, Y, sample_weight=WEIGHTS)
    same(model, dense, atol=1e-5)


@pytest.mark.parametrize("gain", ["gradient", "meanfield"])
@pytest.mark.parametrize("y", [Y, VAGUE], ids=["all known", "missing labels"])
def test_all_edge_cliques_are_a_crf_over_root_features(y, gain):
    few, y = X[:5], y[:5]
    x = np.vstack(few)
    root, _ = eigen_factor(RBF(1.0)(x))
    rooted = Sequences(root, offsets_of([len(part) for part in few]), root)
    crf = sf.CRF(c2=0.6, observed_only=False, **TIGHT).fit(rooted, y)
    model = sf.KernelCRF(RBF(1.0), cliques="vertex+edge", n_cliques=600, gain=gain, c2=0.6, **FINE)
    model.fit(few, y)
    assert model.objective_ == pytest.approx(crf.objective_, rel=1e-7)
    np.testing.assert_allclose(probabilities(model, few), probabilities(crf, rooted), atol=1e-4)
    mine, want = model.log_likelihood(few, y), crf.log_likelihood(rooted, y)
    np.testing.assert_allclose(mine, want, atol=1e-3)


@pytest.mark.parametrize("cliques", ["vertex", "vertex+edge"])
def test_several_kernels_are_their_sum(cliques):
    few, y = X[:5], Y[:5]
    parts = [RBF(0.7), 0.5 * Polynomial(2)]
    settings = {"cliques": cliques, "n_cliques": 500, "c2": 0.8, **FINE}
    several = sf.KernelCRF(parts, **settings).fit(few, y)
    together = sf.KernelCRF(parts[0] + parts[1], **settings).fit(few, y)
    assert several.objective_ == pytest.approx(together.objective_, rel=1e-8)
    np.testing.assert_allclose(probabilities(several, few), probabilities(together, few), atol=1e-5)
