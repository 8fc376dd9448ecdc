"""Every estimator has scikit-learn's habits."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline

import seqfield as sf
import seqfield.estimators
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._files import REGISTRY

from ..support.estimators import (
    BIO,
    LENGTHS,
    NAMES,
    TABLES,
    TEMPLATE,
    WORDS,
    X,
    Y,
    every,
    fingerprint,
    fitted,
    fresh,
    make,
    quiet,
)

pytestmark = quiet


def test_there_are_estimators():
    assert "CRF" in NAMES
    assert all(REGISTRY[name].__name__ == name for name in NAMES)
    assert all(getattr(seqfield.estimators, name) is REGISTRY[name] for name in NAMES)
    assert all(getattr(sf, name) is REGISTRY[name] for name in NAMES)


@every
def test_parameters(name):
    model = make(name)
    params = model.get_params(deep=False)
    assert params.keys() == TABLES[name].keys()
    assert clone(model).get_params(deep=False) == params
    for key in params:
        marker = object()
        assert model.set_params(**{key: marker}) is model
        assert model.get_params(deep=False)[key] is marker
        model.set_params(**{key: params[key]})
    with pytest.raises(ValueError, match="no_such"):
        model.set_params(no_such=1)


@every
def test_the_constructor_stores_its_arguments_and_does_nothing_else(name):
    markers = {key: object() for key in TABLES[name]}
    model = REGISTRY[name](**markers)
    assert vars(model) == markers
    assert all(getattr(model, key) is marker for key, marker in markers.items())
    signature = inspect.signature(REGISTRY[name]).parameters
    assert signature.keys() == TABLES[name].keys()
    assert vars(REGISTRY[name]()) == {key: p.default for key, p in signature.items()}


@every
def test_fit_returns_self_and_keeps_its_hands_off(name):
    """Neither constructor arguments nor X, y and the weights are changed by fit and use."""
    classes, weights = ["L2", "L0", "L1"], np.linspace(0.5, 2.0, len(X))
    model = make(name, classes=classes)
    before = dict(vars(model))
    X1, y1, w1 = copy.deepcopy(X), copy.deepcopy(Y), weights.copy()
    assert model.fit(X1, y1, sample_weight=w1) is model
    model.predict(X1)
    for key, value in before.items():
        assert getattr(model, key) is value, key
    assert classes == ["L2", "L0", "L1"]
    assert y1 == Y
    np.testing.assert_array_equal(w1, weights)
    for a, b in zip(X1, X, strict=True):
        np.testing.assert_array_equal(a, b)


@every
def test_the_features_argument_is_cloned_and_not_fitted(name):
    features = sf.Template(TEMPLATE)
    before = dict(vars(features))
    model = make(name, features=features).fit(WORDS, BIO)
    assert vars(features) == before
    assert model.features is features
    assert model.features_ is not features


@every
def test_refit_gives_the_same_model_and_forgets_other_data(name):
    model = fresh(name)
    first = fingerprint(model)
    np.testing.assert_array_equal(fingerprint(model.fit(X, Y)), first)
    model.fit(WORDS, BIO)
    assert set(model.classes_) == {label for row in BIO for label in row}
    np.testing.assert_array_equal(fingerprint(model.fit(X, Y)), first)
    np.testing.assert_array_equal(fingerprint(clone(model).fit(X, Y)), first)
    assert model.n_features_in_ == 4


@every
def test_pipeline_with_a_template(name):
    pipeline = Pipeline([("features", sf.Template(TEMPLATE)), ("model", make(name))])
    pipeline.fit(WORDS, BIO)
    alone = fitted(name, "words", features=sf.Template(TEMPLATE))
    assert pipeline.predict(WORDS) == alone.predict(WORDS)
    assert pipeline.score(WORDS, BIO) == alone.score(WORDS, BIO)
    np.testing.assert_allclose(fingerprint(pipeline, WORDS), fingerprint(alone, WORDS), rtol=1e-9)


@every
def test_grid_search(name):
    grid = {"features": [sf.Template("U:%x[0,0]\nB"), sf.Template(TEMPLATE)]}
    search = GridSearchCV(make(name, features=None), grid, cv=3, error_score="raise")
    search.fit(WORDS, BIO, sample_weight=np.ones(len(WORDS)))
    assert search.best_score_ > 0.5
    assert search.predict(WORDS) == search.best_estimator_.predict(WORDS)
    nested = make(name, features=sf.Template(TEMPLATE))
    search = GridSearchCV(
        nested,
        {"features__min_freq": [1, 2]},
        cv=2,
        scoring=sf.metrics.get_scorer("token_accuracy"),
        error_score="raise",
    ).fit(WORDS, BIO)
    assert search.best_params_["features__min_freq"] in (1, 2)


@every
def test_cross_validation_with_every_scorer(name):
    model = make(name)
    once = fitted(name, "words")
    scorers = {}
    for scorer in sf.metrics.SCORERS:
        try:
            sf.metrics.get_scorer(scorer)(once, WORDS, BIO)
        except CapabilityError:
            # of probabilities, or of those of whole labellings, which the model does not have
            assert not (once.has_probabilities and once.joint)
            continue
        scorers[scorer] = sf.metrics.get_scorer(scorer)
    assert "span_f1" in scorers
    assert len(scorers) == len(sf.metrics.SCORERS) or not (once.has_probabilities and once.joint)
    found = cross_validate(model, WORDS, BIO, scoring=scorers, cv=3, error_score="raise")
    folds = [np.arange(5), np.arange(5, 10), np.arange(10, 14)]
    for k, held in enumerate(folds):
        rest = np.setdiff1d(np.arange(14), held)
        part = clone(model).fit([WORDS[i] for i in rest], [BIO[i] for i in rest])
        for scorer, score in scorers.items():
            want = score(part, [WORDS[i] for i in held], [BIO[i] for i in held])
            assert np.isfinite(want)
            assert found[f"test_{scorer}"][k] == pytest.approx(want, rel=1e-12)


@every
def test_cross_validation_in_two_processes_and_with_sequences(name):
    score = sf.metrics.get_scorer("token_accuracy")
    model = make(name)
    plain = cross_val_score(model, X, Y, scoring=score, cv=3, error_score="raise")
    batch = sf.Sequences(np.vstack(X), np.concatenate([[0], np.cumsum(LENGTHS)]))
    for form, jobs in ((X, 2), (batch, 1), (batch, 2)):
        again = cross_val_score(
            model, form, Y, scoring=score, cv=3, n_jobs=jobs, error_score="raise"
        )
        np.testing.assert_array_equal(again, plain)


def _use(model, X):
    return model.predict(X), fingerprint(model, X)


@every
def test_works_after_copying(name):
    model = fitted(name)
    here = _use(model, X)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), copy.copy(model)):
        labels, values = _use(again, X)
        assert labels == here[0]
        np.testing.assert_array_equal(values, here[1])
        assert again.get_params() == model.get_params()
    with pytest.raises(NotFittedError, match="not fitted"):
        clone(model).predict(X)


@every
def test_works_in_workers(name):
    model = fitted(name)
    here = _use(model, X)
    jobs = (delayed(_predict_and_refit)(m, X, Y) for m in (model, copy.deepcopy(model)))
    for labels, refit in Parallel(n_jobs=2)(jobs):
        assert labels == here[0]
        np.testing.assert_array_equal(refit, here[1])


def _predict_and_refit(model, X, Y):
    return model.predict(X), fingerprint(clone(model).fit(X, Y), X)


@every
def test_works_in_threads(name):
    model = fitted(name, n_jobs=2)
    here = _use(model, X)
    for labels, values in Parallel(n_jobs=4, backend="threading")(
        delayed(_use)(model, X) for _ in range(8)
    ):
        assert labels == here[0]
        np.testing.assert_array_equal(values, here[1])


# --- not fitted -----------------------------------------------------------------------------------

UNFITTED = {
    "predict": lambda m: m.predict(X),
    "predict_proba": lambda m: m.predict_proba(X),
    "predict_spans": lambda m: m.predict_spans(X),
    "distribution": lambda m: m.distribution(X),
    "distributions": lambda m: list(m.distributions(X)),
    "log_likelihood": lambda m: m.log_likelihood(X, Y),
    "score": lambda m: m.score(X, Y),
    "save": lambda m: m.save("never-written.sf"),
    "encode": lambda m: m.encode(X),
    "lesson": lambda m: m.lesson(X, Y),
    "rank": lambda m: sf.active.rank(m, X),
    "calibrate": lambda m: sf.calibrate(m, X, Y, cv="prefit"),
    "calibration_gain": lambda m: sf.confidence.calibration_gain(m, X, Y),
    "report": lambda m: sf.report.report_content(m, X, Y, n_boot=2),
    "sets": lambda m: sf.conformal.TokenSets(m).fit(X, Y),
    "threshold": lambda m: sf.threshold_for_precision(m, X, Y),
}


@every
@pytest.mark.parametrize("method", UNFITTED)
def test_not_fitted(name, method):
    with pytest.raises(NotFittedError, match="not fitted"):
        UNFITTED[method](make(name))
    assert not Path("never-written.sf").exists()


@every
@pytest.mark.parametrize("settings", [{"on_violation": "ignore"}, {"calibrate": True}], ids=str)
def test_a_failed_first_fit_leaves_it_not_fitted(name, settings):
    """A parameter that cannot be fails at once, one sequence for three folds after learning."""
    model = make(name, **settings)
    with pytest.raises(InputError, match=r"on_violation|folds"):
        model.fit(X[3:4], Y[3:4])
    assert not any(key.endswith("_") for key in vars(model))
    for use in UNFITTED.values():
        with pytest.raises(NotFittedError, match="not fitted"):
            use(model)


@every
@pytest.mark.parametrize("settings", [{"on_violation": "ignore"}, {"calibrate": True}], ids=str)
def test_a_failed_refit_does_not_mix_two_models(name, settings):
    """After a failed fit on other data the old model answers as before."""
    model = fresh(name)
    before, state = fingerprint(model), {k: v for k, v in vars(model).items() if k.endswith("_")}
    model.set_params(**settings)
    with pytest.raises(InputError, match=r"on_violation|folds"):
        model.fit([2 * X[3]], [["z", "w"] * 2 + ["z"] * (len(X[3]) - 4)])
    assert state.items() <= vars(model).items()
    np.testing.assert_array_equal(fingerprint(model), before)
    assert set(model.classes_) == {"L0", "L1", "L2"}
