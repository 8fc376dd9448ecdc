"""How estimators learn: weights, threads, seeds, starts, objectives and their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from seqfield.estimators._base import random_of
from seqfield.estimators._descent import split

from ..support.estimators import (
    CONVEX,
    FORMS,
    NAMES,
    TABLES,
    X,
    Y,
    every,
    fingerprint,
    fitted,
    has,
    having,
    make,
    numeric,
    own,
    quiet,
    same_optimum,
    tight,
    where,
)

pytestmark = quiet
convex = where(CONVEX.__contains__)


# --- weights --------------------------------------------------------------------------------------


@convex
@pytest.mark.parametrize("form", FORMS)
def test_weight_two_is_duplication(name, form):
    X1 = FORMS[form](X)
    weights = np.ones(len(X))
    weights[[1, 4]] = 2.0
    a = tight(name, X1, Y, weights)
    b = tight(name, [*X1, X1[1], X1[4]], [*Y, Y[1], Y[4]])
    same_optimum(a, b, X1)


OBSERVED = [
    pytest.param(name, params, id=f"{name}-{params}")
    for name in NAMES
    for params in ([{}, {"observed_only": False}] if has(name, "observed_only") else [{}])
]


@pytest.mark.parametrize(("name", "params"), OBSERVED)
@pytest.mark.parametrize("form", FORMS)
def test_weight_zero_is_removal(name, params, form):
    """To the last bit: such a sequence must not even bring the weights of its own pairs."""
    X1 = FORMS[form](X)
    weights = np.ones(len(X))
    weights[[0, 3, 7]] = 0.0
    keep = np.flatnonzero(weights)
    a = make(name, **params).fit(X1, Y, sample_weight=weights)
    b = make(name, **params).fit([X1[i] for i in keep], [Y[i] for i in keep])
    np.testing.assert_array_equal(fingerprint(a, X1), fingerprint(b, X1))
    assert a.predict(X1) == b.predict(X1)


@every
def test_weights_matter(name):
    """Three sequences that weigh a thousand times as much are what is learned."""
    weights = np.where(np.arange(len(X)) < 3, 1000.0, 1.0)
    model = make(name).fit(X, Y, sample_weight=weights)
    assert model.score(X[:3], Y[:3]) >= fitted(name).score(X[:3], Y[:3])
    if model.has_probabilities:
        assert not np.array_equal(fingerprint(model), fingerprint(fitted(name)))


@having("c2", "max_iter")
def test_scaling_weights_and_penalty_changes_nothing(name):
    a = tight(name, c2=0.7)
    b = tight(name, c2=2.1, sample_weight=np.full(len(X), 3.0))
    assert b.objective_ == pytest.approx(3 * a.objective_, rel=1e-9)
    np.testing.assert_allclose(fingerprint(a), fingerprint(b), atol=1e-6)
    if hasattr(a, "theta_"):
        np.testing.assert_allclose(a.theta_, b.theta_, rtol=1e-6, atol=1e-6)


# --- threads and seeds ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large():
    """Enough tokens for several shards; few distinct ones, for those who have a gram matrix."""
    X, y = numeric(n=980, s=4, seed=5, longest=12)
    assert sum(map(len, X)) > 3 * 2048
    return [np.round(x) for x in X], y


#: a few steps of each, as the posterior of all tokens takes very long
STEPS = {"max_iter": 2, "n_cliques": 2, "n_steps": 4, "n_chains": 1, "n_samples": 2}
FEW_TOKENS = {"inference", "sampler"}
SOLVERS = [
    pytest.param(name, solver, id=f"{name}-{solver['solver'] if solver else 'default'}")
    for name in NAMES
    for solver in [{}, {"solver": "sgd"}]
    if not solver or (has(name, "solver") and "sgd" in TABLES[name]["solver"].words)
]


@pytest.mark.parametrize(("name", "solver"), SOLVERS)
@pytest.mark.parametrize("form", FORMS)
def test_results_are_bit_identical_for_every_number_of_threads(name, solver, form, large):
    X1, y1 = FORMS[form](large[0]), large[1]
    extra = solver | own(name, STEPS)
    if FEW_TOKENS & TABLES[name].keys():
        extra["n_inducing"] = 20
    # two fits of those that take many steps before the first that counts
    threads = (1, 3) if has(name, "sampler") or has(name, "n_mc") else (1, 2, 4)
    models = [make(name, n_jobs=k, **extra).fit(X1, y1) for k in threads]
    first = fingerprint(models[0], X1)
    for model in models[1:]:
        if hasattr(model, "theta_"):
            np.testing.assert_array_equal(model.theta_, models[0].theta_)
        np.testing.assert_array_equal(fingerprint(model, X1), first)
        assert model.predict(X1[:50]) == models[0].predict(X1[:50])


@every
def test_the_seed_decides(name):
    """A seed, a generator of that seed and the same seed again: one model."""
    want = fingerprint(fitted(name, random_state=3))
    again = make(name, random_state=np.random.RandomState(3)).fit(X, Y)
    if not has(name, "n_steps") and not has(name, "n_mc"):  # these take several seeds from it
        np.testing.assert_array_equal(fingerprint(again), want)
    np.testing.assert_array_equal(fingerprint(make(name, random_state=3).fit(X, Y)), want)
    np.testing.assert_array_equal(fingerprint(make(name, random_state=np.int64(3)).fit(X, Y)), want)


# --- starts and stops -----------------------------------------------------------------------------


@having("warm_start", "c2")
def test_warm_start_continues(name):
    cold = make(name, c2=0.05, warm_start=True, tol=1e-10, max_iter=5000).fit(X, Y)
    optimum, theta = cold.objective_, cold.theta_.copy()
    assert cold.n_iter_ > 10
    cold.fit(X, Y)
    assert cold.n_iter_ <= 2
    assert cold.objective_ == pytest.approx(optimum, rel=1e-9)
    # a start near by: weights of nearly the same data
    near = [[*row] for row in Y]
    near[2][0] = "L1" if near[2][0] != "L1" else "L0"
    fresh = make(name, c2=0.05, tol=1e-10, max_iter=5000).fit(X, near)
    cold.fit(X, near)
    assert cold.n_iter_ < fresh.n_iter_
    assert cold.objective_ == pytest.approx(fresh.objective_, rel=1e-8)
    np.testing.assert_allclose(cold.theta_, fresh.theta_, atol=1e-3)
    assert not np.array_equal(cold.theta_, theta)


@having("warm_start", "c2")
def test_warm_start_in_steps_reaches_the_optimum(name):
    want = tight(name).objective_
    model = make(name, warm_start=True, max_iter=4, tol=1e-9)
    values = []
    for _ in range(40):
        model.fit(X, Y)
        values.append(model.objective_)
    assert (np.diff(values) <= 1e-12).all()
    assert values[-1] == pytest.approx(want, rel=1e-6)


@having("warm_start")
def test_a_warm_start_keeps_labels_and_features(name):
    model = make(name, warm_start=True).fit(X, Y)
    model.fit(X[:4], Y[:4])
    assert model.classes_.tolist() == ["L0", "L1", "L2"]
    cold = make(name).fit(X[:4], Y[:4])
    assert model.score(X[:4], Y[:4]) >= cold.score(X[:4], Y[:4]) - 0.1


@having("early_stopping")
def test_early_stopping(name):
    rng = np.random.default_rng(1)
    noisy = [[v if rng.random() < 0.6 else f"L{rng.integers(3)}" for v in row] for row in Y]
    wide = [np.hstack([x, rng.normal(size=(len(x), 30))]) for x in X]
    weak = own(name, {"c2": 1e-4})
    settings = weak | {"early_stopping": True, "validation_fraction": 0.4, "patience": 3}
    model = make(name, **settings).fit(wide, noisy)
    full = make(name, **weak).fit(wide, noisy)
    assert model.n_iter_ < full.n_iter_
    same = make(name, **settings).fit(wide, noisy)
    np.testing.assert_array_equal(fingerprint(same, wide), fingerprint(model, wide))
    other = make(name, **settings, random_state=1).fit(wide, noisy)
    assert not np.array_equal(fingerprint(other, wide), fingerprint(model, wide))
    if hasattr(model, "theta_"):
        assert np.abs(model.theta_).max() < np.abs(full.theta_).max()


# --- objectives -----------------------------------------------------------------------------------


def penalised(model, X, y):
    """The objective of a model from its own log-likelihoods."""
    theta = model.theta_
    penalty = model.c1 * np.abs(theta).sum() + model.c2 / 2 * theta @ theta
    return penalty - model.log_likelihood(X, y).sum()


@having("c1")
@pytest.mark.parametrize("c1", [0.0, 0.3])
def test_objective_is_the_penalised_log_likelihood(name, c1):
    model = fitted(name, c1=c1, c2=0.4)
    assert model.objective_ == pytest.approx(penalised(model, X, Y), rel=1e-11)
    assert model.gap_ >= 0


@having("c1")
@pytest.mark.parametrize("c1", [0.0, 0.3])
def test_objective_with_early_stopping_is_that_of_the_training_part(name, c1):
    model = fitted(name, c1=c1, c2=0.4, early_stopping=True, validation_fraction=0.25, patience=1)
    train, held = split(len(X), 0.25, random_of(model))
    assert (len(train), len(held)) == (9, 3)
    want = penalised(model, [X[i] for i in train], [Y[i] for i in train])
    assert model.objective_ == pytest.approx(want, rel=1e-11)


@where(lambda name: has(name, "tol", "c2", "max_iter"))
def test_gap_is_a_bound_on_what_more_training_can_gain(name):
    best = tight(name, c2=0.3).objective_
    for tol in (1e-1, 1e-3, 1e-5):
        model = fitted(name, c2=0.3, tol=tol)
        assert 0 <= model.objective_ - best <= model.gap_ + 1e-9
        assert model.objective_ - best <= tol * model.objective_
    with pytest.warns(ConvergenceWarning, match="no convergence in 2 iterations"):
        model = fitted(name, c2=0.3, tol=1e-9, max_iter=2)
    assert model.n_iter_ == 2
    assert model.objective_ - best <= model.gap_
