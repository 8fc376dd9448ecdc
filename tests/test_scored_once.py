"""However much is asked of a batch, the model scores it once."""

from __future__ import annotations

import pytest

import seqfield as sf
from seqfield.active import UNITS, rank
from seqfield.confidence import calibration_gain
from seqfield.functions import LinearFunction
from seqfield.report.comparison import compare


@pytest.fixture(scope="module")
def model():
    X, y = sf.load_ingredients("train")
    return sf.CRF(scheme="BIO", max_iter=20, tol=0.1, n_jobs=1).fit(X[:60], y[:60])


@pytest.fixture(scope="module")
def data():
    X, y = sf.load_ingredients("test")
    return X[:40], y[:40]


@pytest.fixture
def scored(monkeypatch):
    """The number of sequences of each call for scores."""
    calls, plain = [], LinearFunction.scores

    def counted(self, data, n_jobs=None):
        calls.append(len(data))
        return plain(self, data, n_jobs)

    monkeypatch.setattr(LinearFunction, "scores", counted)
    return calls


def test_all_questions_of_one_distribution(model, data, scored):
    X, y = data
    said = model.distribution(X)
    spans = said.spans()
    said.best(), said.best("posterior"), said.nbest(2), said.sample(2, random_state=0)
    said.marginals(), said.log_prob(y), said.entropy(), said.confidence()
    said.likely_spans(), said.span_prob([[span[:3] for span in row] for row in spans])
    said.pattern_prob([[(0, ["O"])] for _ in X])
    said.given([[labels[0], *[None] * (len(labels) - 1)] for labels in y]).best()
    assert scored == [40]


@pytest.mark.parametrize("unit", ["token", "span", "sequence"])
def test_thresholds(model, data, scored, unit):
    sf.threshold_for_precision(model, *data, unit=unit)
    assert scored == [40]


@pytest.mark.parametrize("kind", [sf.conformal.TokenSets, sf.conformal.SpanSets])
def test_conformal_sets(model, data, scored, kind):
    sets = kind(model, 0.5).fit(*data)
    assert scored == [40]
    sets.predict(data[0])
    assert scored == [40, 40]


@pytest.mark.parametrize(
    ("unit", "strategy"), [(unit, name) for unit, names in UNITS.items() for name in names]
)
def test_ranks(model, data, scored, unit, strategy):
    rank(model, data[0], strategy, unit=unit)
    assert scored == ([] if strategy == "diversity" else [40])


def test_reports(model, data, scored):
    compare(model, *data)
    assert scored == [40]


def test_calibration(model, data, scored):
    sf.calibrate(model, *data, cv="prefit")
    assert scored == [40]
    calibration_gain(model, *data)
    assert scored == [40, 40]
