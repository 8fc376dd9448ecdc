"""Equalities between the CRF and other models, and between ways to train it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import seqfield as sf
from seqfield.sequences import Sequences, offsets_of

from ..support.sequences import steps

TIGHT = {"tol": 1e-14, "max_iter": 20000, "n_jobs": 1}


X, Y = steps()


def probabilities(model, X=X):
    return np.vstack(model.predict_proba(X))


# --- multinomial logistic regression -----------------------------------------------------------


@pytest.mark.parametrize("s", [2, 3, 6])
@pytest.mark.parametrize("c2", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_sequences_of_length_one_are_logistic_regression(s, c2, form):
    X1, y1 = steps(n=90, s=s, longest=1, seed=s)
    x, labels = np.vstack(X1), np.concatenate(y1)
    if form == "sparse":
        x = np.where(x > 0.3, x, 0.0)
    rows = Sequences(x if form == "dense" else sp.csr_array(x), np.arange(91))
    crf = sf.CRF(c2=c2, observed_only=False, **TIGHT).fit(rows, y1)
    # scikit-learn minimises C sum(loss) + |w|^2 / 2; its softmax has a weight for every label
    # only from three labels on, so two labels are given as columns of a softmax of their own
    if s == 2:
        weights = softmax_regression(x, labels, s, c2)
    else:
        peer = LogisticRegression(C=1 / c2, fit_intercept=False, tol=1e-12, max_iter=20000)
        peer.fit(x, labels)
        np.testing.assert_array_equal(peer.classes_, crf.classes_)
        weights = peer.coef_
        np.testing.assert_allclose(probabilities(crf, rows), peer.predict_proba(x), atol=1e-5)
    np.testing.assert_allclose(crf.theta_[: 5 * s].reshape(5, s).T, weights, atol=2e-4)
    np.testing.assert_array_equal(crf.transitions_, 0.0)
    scores = x @ weights.T
    log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    value = c2 / 2 * (weights**2).sum() - log_p[np.arange(90), labels].sum()
    assert crf.objective_ == pytest.approx(value, rel=1e-9)


def softmax_regression(x, labels, s, c2):
    """Weights (S, D) by an objective written from scratch."""
    one = np.eye(s)[labels]

    def objective(w):
        w = w.reshape(s, -1)
        scores = x @ w.T
        log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        gradient = (np.exp(log_p) - one).T @ x + c2 * w
        return c2 / 2 * (w**2).sum() - (log_p * one).sum(), gradient.ravel()

    options = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 10000, "maxfun": 100000}
    start = np.zeros(s * x.shape[1])
    return minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x.reshape(s, -1)


def test_two_labels_are_binary_logistic_regression_with_twice_the_penalty():
    """The softmax has two weight vectors w and -w, so its penalty counts each twice."""
    X1, y1 = steps(n=80, s=2, longest=1, seed=9)
    crf = sf.CRF(c2=1.0, observed_only=False, **TIGHT).fit(X1, y1)
    # p = sigmoid((w1 - w0) x), and |w0|^2 + |w1|^2 = |w1 - w0|^2 / 2 at w0 = -w1
    peer = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-12, max_iter=10000)
    peer.fit(np.vstack(X1), np.concatenate(y1))
    np.testing.assert_allclose(probabilities(crf, X1), peer.predict_proba(np.vstack(X1)), atol=1e-5)


# --- independent tokens ------------------------------------------------------------------------


def tokens(n=30, seed=1):
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, 7, n):
        labels = np.cumsum(rng.random(length) < 0.5) % 3
        X.append([(f"w{3 * k + rng.integers(4)}", f"t{rng.integers(2)}") for k in labels])
        y.append([f"L{k}" for k in labels])
    return X, y


def test_without_transitions_tokens_are_independent():
    rows, y = tokens()
    template = "U0:%x[0,0]\nU1:%x[0,1]"
    chain = sf.CRF(features=template, c2=0.5, **TIGHT).fit(rows, y)
    np.testing.assert_array_equal(chain.transitions_, 0.0)
    apart = [[token] for x in rows for token in x]
    labels = [[label] for row in y for label in row]
    single = sf.CRF(features=template, c2=0.5, **TIGHT).fit(apart, labels)
    assert chain.objective_ == pytest.approx(single.objective_, rel=1e-12)
    np.testing.assert_allclose(probabilities(chain, rows), probabilities(single, apart), atol=1e-6)
    # the joint probability is the product, and both decodings agree
    p = np.split(probabilities(chain, rows), np.cumsum([len(x) for x in rows])[:-1])
    index = {label: k for k, label in enumerate(chain.classes_.tolist())}
    want = [
        sum(np.log(part[t, index[v]]) for t, v in enumerate(row))
        for part, row in zip(p, y, strict=True)
    ]
    np.testing.assert_allclose(chain.log_likelihood(rows, y), want, rtol=1e-9)
    assert chain.predict(rows) == chain.predict(rows, decoding="posterior")


def test_a_b_line_makes_the_difference():
    rows, y = tokens()
    without = sf.CRF(features="U0:%x[0,0]", **TIGHT).fit(rows, y)
    with_b = sf.CRF(features="U0:%x[0,0]\nB", **TIGHT).fit(rows, y)
    assert with_b.transitions_.any()
    assert with_b.objective_ < without.objective_ - 0.1


def test_an_edge_feature_that_is_always_on_is_a_transition():
    """edge[t] = T + e[t] W with e = 1: the penalty is shared, so half the weight each."""
    x = np.vstack(X)
    offsets = offsets_of([len(part) for part in X])
    plain = sf.CRF(c2=1.0, observed_only=False, **TIGHT).fit(Sequences(x, offsets), Y)
    both = Sequences(x, offsets, np.ones((len(x), 1)))
    double = sf.CRF(c2=1.0, observed_only=False, **TIGHT).fit(both, Y)
    assert double.objective_ < plain.objective_
    t, w = double.transitions_, double.theta_[-9:].reshape(3, 3)
    np.testing.assert_allclose(t, w, atol=1e-5)
    # and one that is never on changes nothing
    never = Sequences(x, offsets, np.zeros((len(x), 1)))
    zero = sf.CRF(c2=1.0, observed_only=False, **TIGHT).fit(never, Y)
    np.testing.assert_allclose(zero.objective_, plain.objective_, rtol=1e-11)
    np.testing.assert_allclose(zero.transitions_, plain.transitions_, atol=1e-5)


# --- hidden Markov models ----------------------------------------------------------------------


def hmm(s=3, v=4, seed=2):
    rng = np.random.default_rng(seed)
    first = np.full(s, 1 / s)
    return first, rng.dirichlet(np.ones(s), size=s), rng.dirichlet(np.ones(v), size=s)


def posterior(first, steps, emit, words):
    """p(labels | words) of every labelling, from the joint."""
    found = list(product(range(len(first)), repeat=len(words)))
    joint = []
    for y in found:
        p = first[y[0]] * emit[y[0], words[0]]
        for t, (a, b) in enumerate(pairwise(y), 1):
            p *= steps[a, b] * emit[b, words[t]]
        joint.append(p)
    return found, np.array(joint) / sum(joint)


def test_a_crf_with_the_weights_of_an_hmm_has_its_posterior():
    first, steps, emit = hmm()
    sentences = [np.eye(4)[list(w)] for w in product(range(4), repeat=3)][::7]
    model = sf.CRF(observed_only=False).fit([np.eye(4)], [[0, 1, 2, 0]])
    theta = np.concatenate([np.log(emit).T.ravel(), np.log(steps).ravel()])
    assert theta.shape == model.theta_.shape
    model.function_ = replace(model.function_, theta=theta)
    for x in sentences:
        found, p = posterior(first, steps, emit, x.argmax(axis=1))
        got = np.exp(model.log_likelihood([x] * len(found), [list(y) for y in found]))
        np.testing.assert_allclose(got, p, rtol=1e-10)
        best = [list(y) for y in found][int(np.argmax(p))]
        assert model.predict([x]) == [best]


def test_a_crf_trained_on_an_hmm_learns_its_posterior():
    """Much data and a small penalty: the conditional distribution is that of the generator."""
    first, steps, emit = hmm()
    rng = np.random.default_rng(0)
    n, length = 12000, 3
    y = np.empty((n, length), int)
    y[:, 0] = rng.choice(3, n)
    for t in range(1, length):
        u = rng.random((n, 1))
        y[:, t] = (u > steps.cumsum(axis=1)[y[:, t - 1]][:, :-1]).sum(axis=1)
    w = (rng.random((n, length, 1)) > emit.cumsum(axis=1)[y][..., :-1]).sum(axis=2)
    x = Sequences(sp.csr_array(np.eye(4)[w.ravel()]), np.arange(n + 1) * length)
    model = sf.CRF(c2=1e-3, tol=1e-9, n_jobs=1).fit(x, y)
    for words in list(product(range(4), repeat=3))[::9]:
        found, p = posterior(first, steps, emit, words)
        sentence = np.eye(4)[list(words)]
        got = np.exp(model.log_likelihood([sentence] * len(found), [list(v) for v in found]))
        np.testing.assert_allclose(got, p, atol=0.03)


# --- ways to the same optimum ------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["log", "softmax_margin"])
def test_the_optimum_does_not_depend_on_the_solver(loss):
    a, b = (sf.CRF(c2=0.5, loss=loss, solver=s, **TIGHT).fit(X, Y) for s in ("lbfgs", "owlqn"))
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-10)
    np.testing.assert_allclose(a.theta_, b.theta_, atol=1e-5)
    c = sf.CRF(c2=0.5, loss=loss, solver="sgd", max_iter=200, random_state=0, n_jobs=1).fit(X, Y)
    assert a.objective_ <= c.objective_ * (1 + 1e-12)
    assert c.objective_ == pytest.approx(a.objective_, rel=1e-2)
    np.testing.assert_allclose(probabilities(c), probabilities(a), atol=0.08)


@pytest.mark.parametrize("c1", [0.0, 0.5])
def test_more_parameters_never_hurt_the_objective(c1):
    sparse = [sp.csr_array(np.where(x > 0.5, x, 0)) for x in X]
    seen = sf.CRF(c1=c1, c2=0.3, **TIGHT).fit(sparse, Y)
    full = sf.CRF(c1=c1, c2=0.3, observed_only=False, **TIGHT).fit(sparse, Y)
    assert len(full.theta_) == 5 * 3 + 9
    assert len(seen.theta_) < len(full.theta_)
    assert full.objective_ < seen.objective_


def test_softmax_margin_of_cost_zero_is_the_crf():
    a = sf.CRF(**TIGHT).fit(X, Y)
    b = sf.CRF(loss="softmax_margin", cost=0.0, **TIGHT).fit(X, Y)
    np.testing.assert_array_equal(a.theta_, b.theta_)
    c = sf.CRF(loss="softmax_margin", cost=1.0, **TIGHT).fit(X, Y)
    assert c.objective_ > a.objective_


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("c1", [0.0, 0.5])
def test_order_of_features_and_sequences_does_not_matter(form, c1):
    rng = np.random.default_rng(3)
    make = np.asarray if form == "dense" else sp.csr_array
    order, shuffled = rng.permutation(5), rng.permutation(len(X))
    settings = {"c1": c1, "c2": 0.4, "observed_only": False} | TIGHT
    a = sf.CRF(**settings).fit([make(x) for x in X], Y)
    b = sf.CRF(**settings).fit([make(X[i][:, order]) for i in shuffled], [Y[i] for i in shuffled])
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-9)
    np.testing.assert_allclose(
        b.theta_[:15].reshape(5, 3), a.theta_[:15].reshape(5, 3)[order], atol=2e-4
    )
    np.testing.assert_allclose(a.transitions_, b.transitions_, atol=2e-4)


def test_order_of_labels_does_not_matter():
    a = sf.CRF(c2=0.4, **TIGHT).fit(X, Y)
    b = sf.CRF(c2=0.4, classes=[2, 0, 1], **TIGHT).fit(X, Y)
    order = [2, 0, 1]
    np.testing.assert_allclose(probabilities(b), probabilities(a)[:, order], atol=1e-6)
    np.testing.assert_allclose(b.transitions_, a.transitions_[np.ix_(order, order)], atol=1e-5)


@pytest.mark.parametrize("c1", [0.0, 0.5])
def test_doubled_data_with_doubled_penalties_is_the_same_problem(c1):
    a = sf.CRF(c1=c1, c2=0.4, **TIGHT).fit(X, Y)
    b = sf.CRF(c1=2 * c1, c2=0.8, **TIGHT).fit(X + X, Y + Y)
    assert b.objective_ == pytest.approx(2 * a.objective_, rel=1e-9)
    np.testing.assert_allclose(a.theta_, b.theta_, atol=2e-4)


@pytest.mark.parametrize("factor", [0.1, 8.0])
def test_scaled_features_with_a_scaled_penalty_are_the_same_problem(factor):
    """x -> a x, theta -> theta / a: with node weights alone c2 -> a^2 c2 gives the same model."""
    X1 = [token[None] for part in X for token in part]
    y1 = [[label] for row in Y for label in row]
    a = sf.CRF(c2=0.5, **TIGHT).fit(X1, y1)
    scaled = [factor * x for x in X1]
    b = sf.CRF(c2=0.5 * factor**2, **TIGHT).fit(scaled, y1)
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-9)
    np.testing.assert_allclose(a.theta_, factor * b.theta_, atol=1e-4)


def test_dense_and_sparse_features_give_the_same_optimum():
    a = sf.CRF(observed_only=False, **TIGHT).fit(X, Y)
    b = sf.CRF(observed_only=False, **TIGHT).fit([sp.csr_array(x) for x in X], Y)
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-11)
    np.testing.assert_allclose(a.theta_, b.theta_, atol=1e-6)


def test_a_reversed_chain_has_transposed_transitions():
    a = sf.CRF(observed_only=False, **TIGHT).fit(X, Y)
    b = sf.CRF(observed_only=False, **TIGHT).fit([x[::-1] for x in X], [row[::-1] for row in Y])
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-11)
    np.testing.assert_allclose(a.transitions_, b.transitions_.T, atol=1e-6)
    np.testing.assert_allclose(
        probabilities(a),
        np.vstack([p[::-1] for p in b.predict_proba([x[::-1] for x in X])]),
        atol=1e-6,
    )


def test_a_large_penalty_makes_all_labels_equally_likely():
    model = sf.CRF(c2=1e9, **TIGHT).fit(X, Y)
    np.testing.assert_allclose(probabilities(model), 1 / 3, atol=1e-6)
    n = sum(map(len, X))
    assert model.objective_ == pytest.approx(n * np.log(3), rel=1e-6)
