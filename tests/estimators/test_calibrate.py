"""Probabilities by a temperature that is fitted on held-out folds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import seqfield as sf
from seqfield.chain import ChainScores, marginals, sample
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._base import constrained, held_out
from seqfield.labels import Targets
from seqfield.predictions import calibration
from seqfield.predictions.calibration import (
    SPREAD,
    HeldOut,
    fit_calibration,
    fit_temperature,
    rescaled,
    tempered,
)
from seqfield.sequences import offsets_of

from ..support.sequences import numbers

X, Y = numbers(36, noise=1.2)
MODELS = {
    "perceptron": lambda **kw: sf.StructuredPerceptron(**kw),
    "boost": lambda **kw: sf.SequenceBoost(max_iter=25, **kw),
    "adaboost": lambda **kw: sf.AdaBoost(max_iter=25, **kw),
    "viterbi adaboost": lambda **kw: sf.AdaBoost(max_iter=25, neighbors=True, **kw),
    "refit by exp": lambda **kw: sf.SequenceBoost(max_iter=10, refit="exp", **kw),
}
every = pytest.mark.parametrize("name", MODELS)


def make(name, **wanted):
    return MODELS[name](**{"random_state": 0, "n_jobs": 1} | wanted)


@every
def test_scores_are_not_taken_for_probabilities(name):
    model = make(name).fit(X, Y)
    assert model.calibration_ is None
    kind = type(model).__name__
    for use in (
        lambda: model.predict_proba(X),
        lambda: model.distribution(X).nbest(2),
        lambda: model.distribution(X).sample(2),
        lambda: model.log_likelihood(X, Y),
        lambda: model.predict(X, decoding="posterior"),
    ):
        with pytest.raises(CapabilityError, match=rf"{kind}.*calibrate=True"):
            use()
    assert len(model.predict(X)) == len(X)


@every
def test_calibrated_probabilities(name, tmp_path):
    plain, model = make(name).fit(X, Y), make(name, calibrate=True).fit(X, Y)
    assert model.calibration_.temperature > 0
    np.testing.assert_array_equal(model.theta_, plain.theta_)
    assert model.predict(X) == plain.predict(X)
    p = model.predict_proba(X)
    for part in p:
        np.testing.assert_allclose(part.sum(axis=1), 1.0, rtol=1e-12)
    assert 0.34 < np.concatenate(p).max(axis=1).mean() < 0.999
    best = model.distribution(X).nbest(1)
    assert [row[0][0] for row in best] == model.predict(X)
    np.testing.assert_allclose(
        [row[0][1] for row in best], model.log_likelihood(X, model.predict(X)), rtol=1e-9
    )
    assert len(model.distribution(X).sample(2, random_state=0)[0]) == 2
    assert len(model.predict(X, decoding="posterior")) == len(X)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    assert again.calibration_.temperature == model.calibration_.temperature
    for a, b in zip(again.predict_proba(X), p, strict=True):
        np.testing.assert_array_equal(a, b)


@every
def test_probabilities_are_those_of_scores_over_the_temperature(name):
    model = make(name, calibrate=True).fit(X, Y)
    (scores,) = constrained(model.function_.draws(model.encode(X)), model.constraint_)
    want = marginals(
        ChainScores(
            scores.node / model.calibration_.temperature,
            scores.edge / model.calibration_.temperature,
            scores.offsets,
        )
    ).node
    np.testing.assert_allclose(np.concatenate(model.predict_proba(X)), want, rtol=1e-12)


def token_nll(parts, temperature):
    total = 0.0
    for (scores,), targets, weights in parts:
        p = marginals(tempered(scores, temperature)).node
        known = (p * targets.mask(p.shape[1])).sum(axis=1)
        total -= np.repeat(weights, np.diff(scores.offsets)) @ np.log(np.maximum(known, 1e-300))
    return total


@every
def test_the_temperature_is_the_best_on_held_out_folds(name):
    weights = np.linspace(0.5, 2.0, len(X))
    model = make(name, calibrate=True).fit(X, Y, sample_weight=weights)
    plain = make(name).fit(X, Y, sample_weight=weights)
    lesson = plain.lesson(X, Y, sample_weight=weights)
    parts = held_out(plain, lesson, np.random.RandomState(0))
    assert sorted(int(t) for part in parts for t in np.diff(part.targets.offsets)) == sorted(
        len(row) for row in Y
    )
    assert fit_temperature(parts) == pytest.approx(model.calibration_.temperature, rel=1e-9)
    best = token_nll(parts, model.calibration_.temperature)
    assert best <= token_nll(parts, 1.0)
    grid = [token_nll(parts, t) for t in np.exp(np.linspace(-4, 8, 200))]
    assert best <= min(grid) * (1 + 1e-4)


def test_a_fold_is_scored_by_a_model_that_has_not_seen_it():
    """Labels at random: on its own training set the perceptron would look sure, here it is not."""
    rng = np.random.default_rng(0)
    X1 = [rng.normal(size=(3, 200)) for _ in range(60)]
    y1 = [[f"L{k}" for k in rng.integers(2, size=3)] for _ in range(60)]
    model = make("perceptron", calibrate=True, max_iter=20).fit(X1, y1)
    assert model.score(X1, y1) > 0.8
    assert np.concatenate(model.predict_proba(X1)).max(axis=1).mean() < 0.65


def chain_scores(scale, n=300, seed=0):
    """Scores and labels drawn from them, then scores blown up."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 6, n))
    node, edge = rng.normal(size=(int(offsets[-1]), 3)), rng.normal(size=(3, 3))
    true = ChainScores(1.5 * node, edge, offsets)
    y = sample(true, 1, random_state=seed)[0]
    return HeldOut(
        [ChainScores(scale * true.node, scale * edge, offsets)],
        Targets(y.astype(np.int32), None, offsets),
        np.ones(n),
    )


@pytest.mark.parametrize("scale", [1e-3, 0.2, 1.0, 7.0, 1e3])
def test_the_true_temperature_is_found(scale):
    parts = [chain_scores(scale, seed=k) for k in range(2)]
    assert fit_temperature(parts) == pytest.approx(scale, rel=0.15)
    found = fit_temperature(parts) / scale
    assert found == pytest.approx(
        fit_temperature([chain_scores(1.0, seed=k) for k in (0, 1)]), 1e-3
    )


def test_tempered_scores_keep_everything_else():
    part = chain_scores(1.0).draws[0]
    scores = ChainScores(part.node, part.edge, part.offsets, np.arange(3.0), -np.arange(3.0))
    scores.edge[0, 1] = -np.inf
    got = tempered(scores, 4.0)
    np.testing.assert_array_equal(got.node, scores.node / 4)
    np.testing.assert_array_equal(got.edge, scores.edge / 4)
    np.testing.assert_array_equal(got.start, scores.start / 4)
    np.testing.assert_array_equal(got.end, scores.end / 4)
    assert got.edge[0, 1] == -np.inf
    assert tempered(part, 2.0).start is None


def test_calibration_lowers_the_test_nll_of_a_softmax_margin_crf():
    """Arguments as they come by default; a model that happens to be sure enough gains nothing."""
    X1, y1 = sf.make_digits(100, (5, 10), images="train", random_state=0)
    X2, y2 = sf.make_digits(100, (5, 10), images="test", random_state=1)
    wanted = {"loss": "softmax_margin", "random_state": 0, "n_jobs": 1}
    plain = sf.CRF(**wanted).fit(X1, y1)
    model = sf.CRF(**wanted, calibrate=True).fit(X1, y1)
    assert model.predict(X2) == plain.predict(X2)

    def nll(model):
        return -np.mean(
            [
                np.log(p[np.arange(len(y)), y]).mean()
                for p, y in zip(model.predict_proba(X2), y2, strict=True)
            ]
        )

    assert nll(model) < nll(plain) - 0.01


def test_partly_known_labels_calibrate():
    holes = [
        [None if (i + t) % 4 == 0 else v for t, v in enumerate(row)] for i, row in enumerate(Y)
    ]
    for name in ("perceptron", "boost"):
        model = make(name, calibrate=True).fit(X, holes)
        assert 0 < model.calibration_.temperature < np.inf


def test_too_few_sequences_are_said_so():
    with pytest.raises(InputError, match="at least 3 sequences with labels, got 2"):
        make("perceptron", calibrate=True).fit(X[:2], Y[:2])


def test_a_second_fit_forgets_the_temperature():
    model = make("perceptron", calibrate=True).fit(X, Y)
    model.set_params(calibrate=False).fit(X, Y)
    assert model.calibration_ is None
    with pytest.raises(CapabilityError, match="calibrate=True"):
        model.predict_proba(X)


@every
def test_a_warm_start_cannot_be_calibrated(name):
    """The folds' models start from the beginning: their temperature is not this model's."""
    model = make(name, calibrate=True, warm_start=True).fit(X, Y)
    theta, first = model.theta_.copy(), model.calibration_.temperature
    with pytest.raises(CapabilityError, match="warm start"):
        model.fit(X, Y)
    np.testing.assert_array_equal(theta, model.theta_)
    assert model.calibration_.temperature == first


def test_a_temperature_without_evidence_is_one():
    part = chain_scores(1.0)
    unknown = Targets(
        np.full_like(part.targets.codes, -1),
        np.ones_like(part.draws[0].node, bool),
        part.targets.offsets,
    )
    assert fit_temperature([part._replace(targets=unknown)]) == pytest.approx(1.0, abs=1e-3)


def test_a_seed_repeats_it():
    a, b = (make("boost", calibrate=True).fit(X, Y).calibration_.temperature for _ in range(2))
    assert a == b


def biased(n=60, seed=3):
    """Held-out scores that are four times too large and too low for the first label."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 8, n))
    node, edge = rng.normal(size=(offsets[-1], 3)), rng.normal(size=(3, 3))
    truth = ChainScores(node, edge, offsets)
    codes = sample(truth, 1, random_state=0)[0].astype(np.int32)
    shift = np.array([-6.0, 1.0, 0.0])
    scores = ChainScores(4.0 * node + shift, 4.0 * edge, offsets)
    return HeldOut([scores], Targets(codes, None, offsets), np.ones(n)), truth, shift


def test_scaling_finds_slope_and_offsets():
    part, truth, shift = biased(3000)
    found = fit_calibration([part], "platt")
    assert found.temperature == pytest.approx(4.0, rel=0.05)
    # an offset that all labels share has no effect; the prior keeps the sum small
    got = found.offsets - found.offsets.mean()
    np.testing.assert_allclose(got, -(shift - shift.mean()), atol=0.3)
    mended = tempered(rescaled(part.draws[0], None, found.offsets), found.temperature)
    np.testing.assert_allclose(marginals(mended).node, marginals(truth).node, atol=0.03)


def test_scaling_is_at_a_minimum():
    part, _, _ = biased()
    found = fit_calibration([part], "platt")
    best = np.concatenate([[-np.log(found.temperature)], found.offsets / found.temperature])

    def value(theta):
        slope, b = np.exp(theta[0]), theta[1:]
        given = part.draws[0]
        scores = ChainScores(slope * given.node + b, slope * given.edge, given.offsets)
        p = marginals(scores).node[np.arange(len(part.targets.codes)), part.targets.codes]
        return -np.log(p).sum() + 0.5 * theta @ theta / SPREAD**2

    for k in range(4):
        for step in (-1e-2, 1e-2):
            other = best.copy()
            other[k] += step
            assert value(other) > value(best)


def test_vector_scaling_finds_slopes():
    rng = np.random.default_rng(1)
    n = 3000
    offsets = offsets_of(rng.integers(1, 8, n))
    node, edge = 2 * rng.normal(size=(offsets[-1], 3)), rng.normal(size=(3, 3))
    truth = ChainScores(node, edge, offsets)
    codes = sample(truth, 1, random_state=0)[0].astype(np.int32)
    slopes, shift = np.array([3.0, 1.0, 0.5]), np.array([-1.0, 1.0, 0.0])
    part = HeldOut(
        [ChainScores(2.0 * (slopes * node + shift), 2.0 * edge, offsets)],
        Targets(codes, None, offsets),
        np.ones(n),
    )
    found = fit_calibration([part], "vector")
    np.testing.assert_allclose(found.slopes / found.temperature, 0.5 / slopes, rtol=0.1)
    mended = rescaled(part.draws[0], found.slopes, found.offsets)
    np.testing.assert_allclose(
        marginals(tempered(mended, found.temperature)).node, marginals(truth).node, atol=0.05
    )


@pytest.mark.parametrize("slopes", [False, True])
@pytest.mark.parametrize("ends", [None, "some", "forbidden"])
def test_gradient_of_scaling(slopes, ends, monkeypatch):
    """The gradient that the search is given against differences."""
    part, _, _ = biased(5)
    if ends is not None:  # an HMM has scores of starts and stops, which the temperature divides too
        (plain,) = part.draws
        start, end = np.array([1.0, -2.0, 0.5]), np.array([-1.5, 0.3, 2.0])
        if ends == "forbidden":
            allowed = np.isin(np.arange(3), part.targets.codes[plain.offsets[:-1]])
            start = np.where(allowed, start, -np.inf)
            assert not allowed.all()
        part = part._replace(draws=[ChainScores(plain.node, plain.edge, plain.offsets, start, end)])
    seen = []

    def search(function, start, **_):
        rng = np.random.default_rng(0)
        theta = 0.3 * rng.normal(size=len(start))
        _, gradient = function(theta)
        for k in range(len(theta)):
            up, down = theta.copy(), theta.copy()
            up[k] += 1e-5
            down[k] -= 1e-5
            difference = (function(up)[0] - function(down)[0]) / 2e-5
            assert gradient[k] == pytest.approx(difference, rel=1e-6, abs=1e-7)
        seen.append(len(theta))
        return minimize(function, start, jac=True)

    monkeypatch.setattr(calibration, "minimize", search)
    fit_calibration([part], "vector" if slopes else "platt")
    assert seen == [7 if slopes else 4]


def test_the_temperature_of_an_average_is_that_of_its_probabilities():
    """Draws that are each too sure may average to what is right: then nothing is flattened."""
    rng = np.random.default_rng(0)
    n = 2000
    offsets = offsets_of(np.full(n, 3))
    node, edge = rng.normal(size=(3 * n, 2)), np.zeros((2, 2))
    draws = [
        ChainScores(node + 1.5 * rng.normal(size=node.shape), edge, offsets) for _ in range(30)
    ]
    p = np.mean([marginals(one).node for one in draws], axis=0)
    codes = (rng.random(3 * n) < p[:, 1]).astype(np.int32)
    part = HeldOut(draws, Targets(codes, None, offsets), np.ones(n))
    assert fit_temperature([part]) == pytest.approx(1.0, rel=0.15)
    found = fit_calibration([part], "platt")
    mended = [tempered(rescaled(one, None, found.offsets), found.temperature) for one in draws]
    again = np.mean([marginals(one).node for one in mended], axis=0)
    np.testing.assert_allclose(again, p, atol=0.1)


@pytest.mark.parametrize("scheme", [None, [(a, b) for a in "AB" for b in "AB"]])
def test_platt_in_an_estimator(scheme, tmp_path):
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(5, 2)) for _ in range(30)]
    y = [["A" if v > 0.3 else "B" for v in x[:, 0] + rng.normal(size=5)] for x in X]
    if scheme is not None:
        scheme = [*scheme, (None, "A"), (None, "B"), ("A", None), ("B", None)]
    model = sf.StructuredPerceptron(calibrate="platt", scheme=scheme, random_state=0).fit(X, y)
    assert model.calibration_.temperature > 0
    assert model.calibration_.offsets.shape == (2,)
    best = model.distribution(X).nbest(1)
    assert [row[0][0] for row in best] == model.predict(X)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    for a, b in zip(again.predict_proba(X), model.predict_proba(X), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.predict(X) == model.predict(X)
    # fitted again without it nothing of it is left
    assert model.set_params(calibrate=True).fit(X, y).calibration_.offsets is None


def test_calibrate_must_be_known():
    with pytest.raises(
        InputError, match=r"calibrate must be one of .*'platt', 'vector', got 'plat'"
    ):
        sf.CRF(calibrate="plat").fit(X, Y)
