"""Every estimator can be calibrated: by name when it is fitted, later, and on held-out data."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

import seqfield as sf
from seqfield import metrics

from ..support.estimators import (
    BIO,
    NEW_BIO,
    NEW_WORDS,
    PROBABILISTIC,
    WORDS,
    X,
    Y,
    every,
    fingerprint,
    fitted,
    has,
    likelihood,
    make,
    numeric,
    quiet,
    where,
)

pytestmark = quiet

WAYS = ["temperature", "platt", "vector"]
HELD, HELD_Y = numeric(30, seed=7)
ways = pytest.mark.parametrize("way", WAYS)


def nll(model, X=HELD, y=HELD_Y):
    return metrics.token_nll(y, model.predict_proba(X), model.classes_, mean=True)


def check_parts(found, way):
    """A method has the numbers that it is made of, and no others."""
    assert np.isfinite(found.temperature)
    assert found.temperature > 0
    assert (found.offsets is None) == (way == "temperature")
    assert (found.slopes is None) == (way != "vector")
    for part in (found.offsets, found.slopes):
        assert part is None or (part.shape == (3,) and np.isfinite(part).all())
    assert found.slopes is None or (found.slopes > 0).all()


@every
def test_without_calibration_there_is_none(name):
    model = fitted(name, calibrate=False)
    assert model.calibration_ is None
    assert model.has_probabilities == model.probabilistic


@every
@ways
def test_calibration_by_name(name, way):
    model, plain = fitted(name, calibrate=way), fitted(name, calibrate=False)
    check_parts(model.calibration_, way)
    assert model.has_probabilities
    for p in model.predict_proba(HELD):
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-9)
        assert (p >= 0).all()
    # the function is the one that is learned without
    np.testing.assert_array_equal(model.function_.transitions, plain.function_.transitions)
    if model.joint:
        assert np.isfinite(likelihood(model, HELD, HELD_Y)).all()
    if plain.has_probabilities:
        assert not np.array_equal(fingerprint(model, HELD), fingerprint(plain, HELD))
    if way == "temperature" and model.function_.n_draws == 1:
        assert model.predict(HELD) == plain.predict(HELD)


@every
def test_true_is_the_temperature(name):
    a, b = (fitted(name, calibrate=way) for way in (True, "temperature"))
    assert a.calibration_.state() == b.calibration_.state()
    np.testing.assert_array_equal(fingerprint(a), fingerprint(b))


@where(lambda name: not has(name, "candidates"))  # who calibrates by the folds it chose on
@ways
def test_calibration_by_folds_is_that_of_the_fit(name, way):
    later = sf.calibrate(make(name), X, Y, method=way, cv=3)
    want = fitted(name, calibrate=way)
    assert later.calibration_.state() == want.calibration_.state()
    np.testing.assert_array_equal(fingerprint(later, HELD), fingerprint(want, HELD))


@every
def test_calibration_by_folds(name):
    given = make(name)
    before = given.get_params()
    model = sf.calibrate(given, X, Y, method="platt", cv=2, sample_weight=np.ones(len(X)))
    assert given.get_params() == before
    assert not hasattr(given, "function_")
    check_parts(model.calibration_, "platt")
    assert model.calibrate == "platt"
    assert model.predict(HELD)
    # fitted again it is calibrated again
    check_parts(clone(model).fit(X, Y).calibration_, "platt")
    rows, lengths = np.vstack(X), [len(x) for x in X]
    flat = sf.calibrate(given, rows, Y, method="platt", cv=2, lengths=lengths)
    np.testing.assert_array_equal(fingerprint(flat, HELD), fingerprint(model, HELD))


@every
@ways
def test_calibration_on_held_out_sequences(name, way):
    model = fitted(name)
    before, state = fingerprint(model, HELD), model.calibration_
    scaled = sf.calibrate(model, HELD, HELD_Y, method=way, cv="prefit")
    assert scaled is not model
    assert model.calibration_ is state
    np.testing.assert_array_equal(fingerprint(model, HELD), before)
    check_parts(scaled.calibration_, way)
    assert scaled.function_ is model.function_
    # on the data that it was fitted to it is no worse, up to the weak priors
    if model.has_probabilities:
        assert nll(scaled) <= nll(model) + 0.01
    assert nll(scaled) < np.log(3)
    # it goes by the scores: what was calibrated before makes no difference
    twice = sf.calibrate(scaled, HELD, HELD_Y, method=way, cv="prefit")
    assert twice.calibration_.state() == scaled.calibration_.state()


@every
def test_a_better_method_fits_the_data_better(name):
    one, two, three = (
        sf.calibrate(fitted(name), HELD, HELD_Y, method=way, cv="prefit") for way in WAYS
    )
    if one.function_.n_draws == 1:  # of draws the offsets are those of their mean
        assert nll(three) - 0.02 <= nll(two) <= nll(one) + 0.005


@every
@ways
def test_calibration_gain(name, way):
    model = fitted(name, "words")
    gain = sf.confidence.calibration_gain(model, NEW_WORDS, NEW_BIO, method=way)
    assert (gain.before is None) == (name not in PROBABILISTIC)
    for quality in (gain.after, gain.before or gain.after):
        assert quality.nll > 0
        assert 0 <= quality.ece <= 1
        assert 0 <= quality.brier <= 2
    if gain.before is not None:
        said = model.distribution(NEW_WORDS)
        want = metrics.token_nll(NEW_BIO, said.marginals(), model.classes_, mean=True)
        assert gain.before.nll == pytest.approx(want, rel=1e-12)
    assert gain == sf.confidence.calibration_gain(model, NEW_WORDS, NEW_BIO, method=way)


@every
def test_calibration_holds_the_scheme_and_takes_missing_labels(name):
    holes = [
        [None if (i + t) % 4 == 0 else v for t, v in enumerate(row)] for i, row in enumerate(BIO)
    ]
    for way in WAYS:
        model = make(name, scheme="BIO", calibrate=way, classes=sorted({v for r in BIO for v in r}))
        if way != "temperature":  # one fit is enough for the question
            model = sf.calibrate(
                fitted(name, "words", scheme="BIO"), WORDS, holes, method=way, cv="prefit"
            )
        else:
            model.fit(WORDS, holes)
        forbidden = [["O", "I-PER"]]
        if model.joint:
            assert model.log_likelihood([WORDS[0][:2]], forbidden)[0] == -np.inf
        [p] = model.predict_proba([WORDS[0][:1]])
        assert p[0, model.classes_.tolist().index("I-PER")] == 0.0
