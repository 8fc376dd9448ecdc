"""`CRF` with the marginal and the exponential loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import seqfield as sf
from seqfield.errors import CapabilityError, InputError

from ..support.sequences import TEMPLATE, numbers, words

X, Y = numbers(30, noise=1.3)
LENGTHS = np.array([len(row) for row in X])
LOSSES = ("log", "softmax_margin", "marginal", "exp")


def crf(**wanted):
    return sf.CRF(**{"n_jobs": 1, "random_state": 0} | wanted)


def marginal_objective(model, c2):
    """sum_i 1 / l_i sum_t -log p(y_t | x) + c2 / 2 |theta|^2, from the model's probabilities."""
    place = {label: k for k, label in enumerate(model.classes_)}
    total = 0.5 * c2 * float(model.theta_ @ model.theta_)
    for p, row in zip(model.predict_proba(X), Y, strict=True):
        total -= np.mean([np.log(p[t, place[label]]) for t, label in enumerate(row)])
    return total


def exp_objective(model, c2, pi=1.0):
    p = model.log_likelihood(X, Y)
    risk = pi**LENGTHS @ np.expm1(-p)
    return np.log(risk) + 0.5 * c2 * float(model.theta_ @ model.theta_)


def moved(model, theta):
    twin = crf().fit(X, Y)
    twin.function_ = replace(twin.function_, theta=theta)
    return twin


@pytest.mark.parametrize("n_restarts", [0, 2])
@pytest.mark.parametrize("c2", ["auto", 0.02])
def test_marginal_loss_ends_no_higher_than_its_start(n_restarts, c2):
    own = 1 / LENGTHS.mean() if c2 == "auto" else c2
    model = crf(loss="marginal", c2=c2, n_restarts=n_restarts).fit(X, Y)
    assert model.objective_ == pytest.approx(marginal_objective(model, own), rel=1e-9)
    # the start: the log loss's optimum with the penalty scaled alike
    start = crf(loss="log", c2=own * LENGTHS.mean()).fit(X, Y)
    assert model.objective_ < marginal_objective(start, own) - 1e-4
    assert model.gap_ == np.inf
    # a stationary point
    slope = []
    for k in range(len(model.theta_)):
        ends = []
        for step in (1e-4, -1e-4):
            theta = model.theta_.copy()
            theta[k] += step
            ends.append(marginal_objective(moved(model, theta), own))
        slope.append((ends[0] - ends[1]) / 2e-4)
    assert np.abs(slope).max() < 0.02 * model.objective_


def test_restarts_never_hurt():
    values = [crf(loss="marginal", c2=1e-3, n_restarts=n).fit(X, Y).objective_ for n in (0, 1, 3)]
    assert values[2] <= values[1] <= values[0]


def test_marginal_loss_with_an_l1_penalty():
    model = crf(loss="marginal", c1=0.05, c2=0.01).fit(X, Y)
    assert (model.theta_ == 0.0).any()
    want = marginal_objective(model, 0.01) + 0.05 * np.abs(model.theta_).sum()
    assert model.objective_ == pytest.approx(want, rel=1e-9)


def test_marginal_loss_by_sgd_nears_the_optimum():
    best = crf(loss="marginal", c2=0.1).fit(X, Y).objective_
    found = crf(loss="marginal", c2=0.1, solver="sgd", max_iter=100).fit(X, Y)
    assert found.objective_ <= 1.05 * best


@pytest.mark.parametrize("pi", [1.0, 0.6])
@pytest.mark.parametrize("c2", ["auto", 0.5])
def test_exponential_loss_has_a_certified_optimum(pi, c2):
    own = 1 / len(X) if c2 == "auto" else c2
    model = crf(loss="exp", c2=c2, length_weight=pi, tol=1e-9).fit(X, Y)
    assert model.objective_ == pytest.approx(exp_objective(model, own, pi), rel=1e-9)
    assert model.gap_ < 1e-6 * abs(model.objective_)
    for k in range(len(model.theta_)):
        ends = []
        for step in (1e-4, -1e-4):
            theta = model.theta_.copy()
            theta[k] += step
            ends.append(exp_objective(moved(model, theta), own, pi))
        assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(0.0, abs=1e-3)
        assert min(ends) > model.objective_ - 1e-12


def test_exponential_loss_on_separable_data():
    """With a weak penalty gold labellings become certain beyond the float precision."""
    X1 = [["the", "cat", "sat"], ["a", "dog"], ["the", "dog", "sat"]] * 10
    y1 = [["D", "N", "V"], ["D", "N"], ["D", "N", "V"]] * 10
    for c2 in ("auto", 0.1, 1e-3):
        model = crf(loss="exp", c2=c2, features=sf.Template("U0:%x[0,0]\nB")).fit(
            [[(w,) for w in row] for row in X1], y1
        )
        assert np.isfinite(model.objective_)
        assert model.gap_ <= 1e-3 * abs(model.objective_)


def test_exponential_loss_by_owlqn_is_sparse():
    model = crf(loss="exp", c1=0.1, c2=0.1).fit(X, Y)
    assert (model.theta_ == 0.0).any()
    assert np.isfinite(model.gap_)


def test_exponential_loss_has_no_minibatches():
    with pytest.raises(CapabilityError, match="minibatches"):
        crf(loss="exp", solver="sgd").fit(X, Y)


def test_a_long_sentence_can_be_learned():
    """50^1000 labellings are no obstacle."""
    rng = np.random.default_rng(0)
    y = rng.integers(50, size=1000)
    x = np.eye(50)[y] + 0.3 * rng.normal(size=(1000, 50))
    model = crf(loss="exp", c2=1.0, transitions=False, tol=1e-3).fit([x], [y.tolist()])
    assert np.isfinite(model.objective_)
    assert model.score([x], [y.tolist()]) > 0.95


@pytest.mark.parametrize("loss", LOSSES)
def test_auto_penalty(loss):
    c2 = {"marginal": 1 / LENGTHS.mean(), "exp": 1 / len(X)}.get(loss, 1.0)
    a, b = crf(loss=loss).fit(X, Y), crf(loss=loss, c2=c2).fit(X, Y)
    np.testing.assert_array_equal(a.theta_, b.theta_)
    assert a.objective_ == b.objective_


def test_auto_penalties_are_alike():
    """The norms of the weights are of one size over all losses."""
    norms = [np.linalg.norm(crf(loss=loss).fit(X, Y).theta_) for loss in LOSSES]
    assert max(norms) < 5 * min(norms)


@pytest.mark.parametrize("loss", LOSSES)
def test_partly_known_labels(loss):
    X1, y1 = numbers(60, noise=0.7, seed=1)
    holes = [[None if (i + t) % 3 else v for t, v in enumerate(row)] for i, row in enumerate(y1)]
    model = crf(loss=loss).fit(X1, holes)
    assert model.gap_ == np.inf
    assert model.score(X1, y1) > 0.8


@pytest.mark.parametrize("loss", LOSSES)
def test_scheme_and_weights(loss):
    X1 = [["a", "b", "c"], ["c", "b"], ["b", "c", "a", "b"]]
    y1 = [["B-x", "I-x", "O"], ["O", "B-x"], ["B-x", "I-x", "O", "B-x"]]
    model = crf(loss=loss, scheme="BIO").fit(X1, y1, sample_weight=[1.0, 2.0, 0.0])
    # a sequence without weight counts for the labels alone
    twin = crf(loss=loss, scheme="BIO", classes=model.classes_.tolist())
    twin.fit(X1[:2], y1[:2], sample_weight=[1.0, 2.0])
    assert model.objective_ == pytest.approx(twin.objective_, rel=1e-6)
    for row in model.predict([["c", "c", "b"], ["b"], ["a", "a"]]):
        assert all(not (b == "I-x" and a == "O") for a, b in zip(["O", *row], row, strict=False))


def test_grid_search_over_losses():
    X1, y1 = words(24, noise=0.05)
    search = GridSearchCV(
        crf(features=sf.Template(TEMPLATE), max_iter=50, tol=1e-3), {"loss": list(LOSSES)}, cv=2
    )
    search.fit(X1, y1)
    assert search.best_params_["loss"] in LOSSES
    assert (search.cv_results_["mean_test_score"] > 0.6).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("loss", "hinge"), ("length_weight", 0.0), ("length_weight", 2.0), ("n_restarts", -1)],
)
def test_wrong_arguments_are_named(name, value):
    with pytest.raises(InputError, match=name):
        crf(**{"loss": "exp", name: value}).fit(X, Y)


@pytest.mark.parametrize("loss", LOSSES)
def test_save_and_load(loss, tmp_path):
    model = crf(loss=loss).fit(X, Y)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    assert again.loss == loss
    for a, b in zip(again.predict_proba(X), model.predict_proba(X), strict=True):
        np.testing.assert_array_equal(a, b)
