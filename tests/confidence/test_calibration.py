"""Calibration of estimators that are there already."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.confidence import calibration_gain
from seqfield.errors import BudgetError, InputError, LabelError
from seqfield.estimators import _base

METHODS = ("temperature", "platt", "vector")


def noisy(n, seed, d=120):
    """Sequences whose labels follow one of many features, and are flipped now and then."""
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(6, d)) for _ in range(n)]
    y = []
    for x in X:
        true = x[:, 0] > 0
        wrong = rng.random(6) < 0.15
        y.append([["no", "yes"][int(k)] for k in true ^ wrong])
    return X, y


TRAIN, OTHER, TEST = noisy(40, 0), noisy(60, 1), noisy(100, 2)


def nll(model, X, y):
    return sf.metrics.token_nll(y, model.predict_proba(X), model.classes_, mean=True)


@pytest.mark.parametrize("method", METHODS)
def test_folds_mend_a_model_that_is_too_sure(method):
    sure = sf.CRF(c2=1e-4).fit(*TRAIN)
    model = sf.calibrate(sf.CRF(c2=1e-4, random_state=0), *TRAIN, method=method)
    assert model.calibration_.temperature > 1.5
    assert nll(model, *TEST) < 0.8 * nll(sure, *TEST)
    np.testing.assert_array_equal(model.theta_, sure.theta_)
    if method == "temperature":
        assert model.predict(TEST[0]) == sure.predict(TEST[0])


@pytest.mark.parametrize("method", METHODS)
def test_held_out_sequences_mend_a_fitted_model(method, tmp_path):
    sure = sf.CRF(c2=1e-4).fit(*TRAIN)
    before = nll(sure, *TEST)
    model = sf.calibrate(sure, *OTHER, method=method, cv="prefit")
    assert nll(model, *TEST) < 0.8 * before
    assert nll(sure, *TEST) == before  # as it was
    assert sure.calibration_ is None
    assert sure.get_params()["calibrate"] is False
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    for a, b in zip(again.predict_proba(TEST[0]), model.predict_proba(TEST[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.predict(TEST[0]) == model.predict(TEST[0])
    # the labels shown are those of the shown probabilities
    best = model.distribution(TEST[0]).nbest(1)
    assert [row[0][0] for row in best] == model.predict(TEST[0])
    assert clone(model).calibrate == method


def test_lengths_and_weights():
    X, y = TRAIN
    flat, lengths = np.vstack(X), [len(x) for x in X]
    by_list = sf.calibrate(sf.CRF(random_state=0), X, y, cv=3)
    by_lengths = sf.calibrate(sf.CRF(random_state=0), flat, y, cv=3, lengths=lengths)
    assert by_lengths.calibration_.temperature == pytest.approx(
        by_list.calibration_.temperature, rel=1e-12
    )
    fitted = sf.CRF().fit(X, y)
    w = np.zeros(len(OTHER[0]))
    w[:20] = 1.0
    a = sf.calibrate(fitted, *OTHER, sample_weight=w, cv="prefit")
    b = sf.calibrate(fitted, OTHER[0][:20], OTHER[1][:20], cv="prefit")
    assert a.calibration_.temperature == pytest.approx(b.calibration_.temperature, rel=1e-12)


def test_partly_labelled_sequences():
    fitted = sf.CRF(c2=1e-4).fit(*TRAIN)
    X, y = OTHER
    partly = [[label if t % 2 else None for t, label in enumerate(row)] for row in y]
    partly[0] = None
    found = sf.calibrate(fitted, X, partly, cv="prefit").calibration_.temperature
    assert found == pytest.approx(
        sf.calibrate(fitted, X, y, cv="prefit").calibration_.temperature, rel=0.3
    )


def test_an_average_of_draws():
    model = sf.GPStruct(n_steps=30, n_chains=2, n_samples=10, random_state=0)
    X, y = noisy(20, 0, d=2)
    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):
        model.fit(X, y)
    scaled = sf.calibrate(model, *noisy(60, 1, d=2), cv="prefit")
    test = noisy(60, 2, d=2)
    assert nll(scaled, *test) < nll(model, *test) * 1.02


def test_gain_is_judged_on_what_the_scaling_has_not_seen():
    sure = sf.CRF(c2=1e-4, random_state=0).fit(*TRAIN)
    gain = calibration_gain(sure, *OTHER)
    assert gain.before.nll == pytest.approx(nll(sure, *OTHER), rel=1e-12)
    assert gain.after.nll < 0.8 * gain.before.nll
    assert gain.after.ece < 0.5 * gain.before.ece
    assert gain.after.brier < gain.before.brier
    # fitted to the judged tokens themselves it looks better still
    fitted = sf.calibrate(sure, *OTHER, cv="prefit")
    assert nll(fitted, *OTHER) < gain.after.nll


def test_gain_of_a_model_without_probabilities():
    scores = sf.StructuredPerceptron(random_state=0).fit(*TRAIN)
    gain = calibration_gain(scores, *OTHER)
    assert gain.before is None
    assert gain.after.nll < 1.0
    with pytest.raises(InputError, match="at least two sequences"):
        calibration_gain(scores, OTHER[0][:1], OTHER[1][:1])


def test_bad_arguments():
    model = sf.CRF().fit(*TRAIN)
    with pytest.raises(InputError, match="method must be one of 'temperature'"):
        sf.calibrate(model, *TRAIN, method="isotonic")
    with pytest.raises(
        InputError, match="cv must be a whole number of at least 2, got 'prefitted'"
    ):
        sf.calibrate(model, *TRAIN, cv="prefitted")
    with pytest.raises(InputError, match="5 folds needs at least 5 sequences"):
        sf.calibrate(sf.CRF(), TRAIN[0][:3], TRAIN[1][:3])
    with pytest.raises(LabelError, match="'maybe' at sequence 0"):
        sf.calibrate(model, TRAIN[0][:1], [["maybe"] * 6], cv="prefit")


def test_a_way_to_predict_that_was_set_after_the_fit_is_calibrated(tmp_path):
    X, y = sf.make_galaxy(12, random_state=0)
    kernel = sf.kernels.RBF(0.35)
    model = sf.GPSL(kernel, learn_kernel=False, inference="chain", random_state=0)
    model.fit(X[:8], y[:8]).save(tmp_path / "m.sf")
    later = clone(model).set_params(inference="refine").fit(X[:8], y[:8])
    later.set_params(inference="chain")
    held = X[8:], y[8:]
    wanted = sf.calibrate(model, *held, cv="prefit").calibration_.temperature
    assert abs(np.log(wanted)) > 0.1
    for one in (sf.load(tmp_path / "m.sf"), later):
        assert sf.calibrate(one, *held, cv="prefit").calibration_.temperature == wanted
        assert calibration_gain(one, *held) == calibration_gain(model, *held)


def test_scores_of_all_draws_have_a_budget(monkeypatch):
    X, y = sf.make_galaxy(6, random_state=0)
    model = sf.StructuredSVGP("rbf", 5, n_samples=4, tol=0.5, random_state=0).fit(X, y)
    n_tokens = sum(map(len, X))
    monkeypatch.setattr(_base, "HELD", 2 * 4 * n_tokens)
    sf.calibrate(model, X, y, cv="prefit")
    monkeypatch.setattr(_base, "HELD", 2 * 4 * n_tokens - 1)
    with pytest.raises(BudgetError, match=r"4 posterior draws.*fewer sequences"):
        sf.calibrate(model, X, y, cv="prefit")
