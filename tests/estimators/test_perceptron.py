"""`StructuredPerceptron`: the estimator around the averaged perceptron."""

from __future__ import annotations

import numpy as np
import pytest

import seqfield as sf
from seqfield.errors import CapabilityError, InputError

from ..support.sequences import EDGE_TEMPLATE, TEMPLATE, numbers, words

X, Y = words()


def perceptron(**wanted):
    return sf.StructuredPerceptron(
        **{"features": sf.Template(TEMPLATE), "random_state": 0, "n_jobs": 1} | wanted
    )


@pytest.mark.parametrize("template", [TEMPLATE, EDGE_TEMPLATE])
def test_it_learns(template):
    X1, y1 = words(150, seed=1, noise=0.05)
    X2, y2 = words(60, seed=2, noise=0.05)
    model = perceptron(features=sf.Template(template)).fit(X1, y1)
    majority = max(sum(row.count(k) for row in y2) for k in "ABC") / sum(map(len, y2))
    assert model.score(X2, y2) > majority + 0.2


def test_separable_data_end_it():
    X1, y1 = words(noise=0.0)
    model = perceptron(max_iter=1000).fit(X1, y1)
    assert model.n_iter_ < 100
    assert model.objective_ == 0.0
    assert model.gap_ == np.inf
    last = perceptron(max_iter=1000, average=False).fit(X1, y1)
    assert last.score(X1, y1) == 1.0
    # perceptron weights are sums of whole features
    np.testing.assert_array_equal(last.theta_, np.rint(last.theta_))


def test_objective_is_the_share_of_mistakes():
    model = perceptron(max_iter=3).fit(X, Y)
    n = sum(map(len, X))
    assert 0 < model.objective_ < 1
    assert model.objective_ * n == pytest.approx(round(model.objective_ * n), abs=1e-9)
    assert model.n_iter_ == 3


def test_average_matters_and_is_the_default():
    a, b = perceptron(max_iter=3).fit(X, Y), perceptron(max_iter=3, average=False).fit(X, Y)
    assert not np.allclose(a.theta_, b.theta_)
    assert sf.StructuredPerceptron().average


def test_a_seed_repeats_it():
    thetas = [perceptron(random_state=k, max_iter=3).fit(X, Y).theta_ for k in (0, 0, 1)]
    np.testing.assert_array_equal(thetas[0], thetas[1])
    assert not np.array_equal(thetas[0], thetas[2])


def test_early_stopping_keeps_the_best_epoch():
    X1, y1 = words(60, seed=3, noise=0.4)
    wanted = {"early_stopping": True, "validation_fraction": 0.3}
    model = perceptron(max_iter=100, patience=3, **wanted).fit(X1, y1)
    assert model.n_iter_ == model.best_iter_ + 3 < 100
    order = np.random.RandomState(0).permutation(60)
    held = np.sort(order[: round(60 * 0.3)])
    X2, y2 = [X1[i] for i in held], [y1[i] for i in held]
    best = model.score(X2, y2)
    for epochs in range(1, model.n_iter_ + 1):
        few = perceptron(max_iter=epochs, patience=10**6, **wanted).fit(X1, y1)
        assert few.score(X2, y2) <= best + 1e-12


def test_warm_start_begins_at_the_weights():
    model = perceptron(warm_start=True, max_iter=2, average=False).fit(X, Y)
    first = model.theta_.copy()
    model.fit(X, Y)
    assert not np.array_equal(model.theta_, first)
    separable = words(noise=0.0)
    model = perceptron(warm_start=True, max_iter=1000, average=False).fit(*separable)
    done = model.theta_.copy()
    model.fit(*separable)
    np.testing.assert_array_equal(model.theta_, done)
    assert model.n_iter_ == 1


def test_partly_known_labels_help():
    X1, y1 = numbers(80, noise=0.7)
    holes = [[None if (i + t) % 3 else v for t, v in enumerate(row)] for i, row in enumerate(y1)]
    model = perceptron(features=None).fit(X1, holes)
    assert model.score(X1, y1) > 0.8


def test_scheme_holds():
    X1 = [["a", "b", "c"], ["c", "b"], ["b", "c", "a", "b"]]
    y1 = [["B-x", "I-x", "O"], ["O", "B-x"], ["B-x", "I-x", "O", "B-x"]]
    model = sf.StructuredPerceptron(scheme="BIO", random_state=0).fit(X1, y1)
    for row in model.predict([["c", "c", "b"], ["b"], ["a", "a"]]):
        assert all(not (b == "I-x" and a == "O") for a, b in zip(["O", *row], row, strict=False))


def test_scores_are_not_probabilities():
    with pytest.raises(CapabilityError, match=r"StructuredPerceptron.*calibrate=True"):
        perceptron().fit(X, Y).predict_proba(X)


@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_wrong_arguments_are_named(value):
    with pytest.raises(InputError, match="max_iter"):
        perceptron(max_iter=value).fit(X, Y)


@pytest.mark.parametrize("n_jobs", [0, "all"])
def test_threads_are_checked_even_where_training_uses_one(n_jobs):
    with pytest.raises(InputError, match="n_jobs"):
        perceptron(n_jobs=n_jobs).fit(X, Y)
