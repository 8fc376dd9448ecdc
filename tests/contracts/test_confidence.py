"""What is done with probabilities works for every estimator."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.base import clone

import seqfield as sf
from seqfield.confidence.conformal import CoverageWarning
from seqfield.errors import CapabilityError

from ..support.estimators import (
    BIO,
    JOINT,
    NEW_BIO,
    NEW_WORDS,
    PROBABILISTIC,
    WORDS,
    every,
    fitted,
    is_average,
    make,
    quiet,
    speaking,
    where,
)
from ..support.reports import embedded

pytestmark = [quiet, pytest.mark.filterwarnings("error::RuntimeWarning")]


def told(name):
    return fitted(name, "words", scheme="BIO", **speaking(name))


# --- sets and thresholds --------------------------------------------------------------------------


@every
@pytest.mark.parametrize("per", ["token", "sequence"])
@pytest.mark.parametrize("score", ["threshold", "cumulative"])
def test_sets_of_labels(name, per, score):
    model = told(name)
    sets = sf.conformal.TokenSets(model, 0.8, score=score, per=per).fit(NEW_WORDS, NEW_BIO)
    found = sets.predict(NEW_WORDS)
    pairs = [
        (label in held, guess in held)
        for row, best, gold in zip(found, model.predict(NEW_WORDS), NEW_BIO, strict=True)
        for held, guess, label in zip(row, best, gold, strict=True)
    ]
    assert all(decoded for _, decoded in pairs)
    assert np.mean([right for right, _ in pairs]) >= 0.7


@every
def test_too_few_sequences_for_a_coverage(name):
    model = told(name)
    with pytest.warns(CoverageWarning, match="too few"):
        sets = sf.conformal.TokenSets(model, 0.99).fit(NEW_WORDS[:3], NEW_BIO[:3])
    assert all(len(held) == 5 for row in sets.predict(NEW_WORDS) for held in row)


@every
def test_sets_of_spans(name):
    model = told(name)
    sets = sf.conformal.SpanSets(model, 0.5, floor=1e-6).fit(NEW_WORDS, NEW_BIO)
    found = sets.predict(NEW_WORDS)
    assert all(span.probability >= sets.threshold_ for row in found for span in row)
    gold = [sf.metrics.span.spans(row) for row in NEW_BIO]
    hits = [
        np.mean([span in {tuple(one[:3]) for one in row} for span in own])
        for row, own in zip(found, gold, strict=True)
        if own
    ]
    assert np.mean(hits) >= 0.5


@every
@pytest.mark.parametrize("unit", ["token", "span", "sequence"])
@pytest.mark.parametrize("level", [None, 0.6])
def test_thresholds(name, unit, level):
    found = sf.threshold_for_precision(told(name), NEW_WORDS, NEW_BIO, 0.5, unit=unit, level=level)
    assert 0 <= found.coverage <= 1
    if math.isinf(found.threshold):
        assert (found.n, found.coverage) == (0, 0.0)
    else:
        assert found.precision >= 0.5
        assert found.n > 0


# --- probabilities of folds -----------------------------------------------------------------------


@every
def test_probabilities_of_folds(name):
    params = {} if name in PROBABILISTIC else {"calibrate": True}
    model = make(name, **params)
    found = sf.cross_val_proba(model, WORDS, BIO, cv=3, random_state=0)
    assert [p.shape for p in found] == [(len(x), 5) for x in WORDS]
    for p in found:
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-9)
    # by hand: the first fold
    held = np.array([0, 1, 2, 3])
    rest = np.setdiff1d(np.arange(len(WORDS)), held)
    own = clone(model).set_params(classes=sorted({v for row in BIO for v in row}))
    own.fit([WORDS[i] for i in rest], [BIO[i] for i in rest])
    folds = [(rest, held), (held, rest)]
    again = sf.cross_val_proba(model, WORDS, BIO, cv=folds)
    for p, i in zip(own.predict_proba([WORDS[i] for i in held]), held, strict=True):
        np.testing.assert_array_equal(again[i], p)
    assert not hasattr(model, "function_")
    # and who has none says so
    if name not in PROBABILISTIC:
        with pytest.raises(CapabilityError, match="calibrate=True"):
            sf.cross_val_proba(make(name), WORDS, BIO, cv=2)


@every
def test_wrong_labels_are_found(name):
    y = [list(row) for row in BIO]
    i, t = next((i, row.index("O")) for i, row in enumerate(y) if "O" in row)
    y[i][t] = "I-LOC"
    params = {} if name in PROBABILISTIC else {"calibrate": True}
    proba = sf.cross_val_proba(make(name, **params), WORDS, y, cv=3)
    found = sf.label_errors(make(name, **params), WORDS, y, proba=proba)
    assert found == sf.label_errors(make(name, **params), WORDS, y, cv=3)
    assert (i, t) in [(one.sequence, one.position) for one in found[:6]]
    scores = [one.score for one in found]
    assert scores == sorted(scores)
    worst = sf.label_errors(make(name), WORDS, y, proba=proba, unit="sequence")
    assert sorted(one.sequence for one in worst) == list(range(len(WORDS)))


# --- what to label next ---------------------------------------------------------------------------

STRATEGIES = [(unit, strategy) for unit, all_of in sf.active.UNITS.items() for strategy in all_of]
strategies = pytest.mark.parametrize(("unit", "strategy"), STRATEGIES)


@every
@strategies
def test_ranking(name, unit, strategy):
    model = told(name)
    found = sf.active.rank(model, NEW_WORDS, strategy, unit=unit)
    scores = [one.score for one in found]
    assert np.isfinite(scores).all()
    assert scores == sorted(scores, reverse=True) or strategy == "diversity"
    assert found[:3] == sf.active.rank(model, NEW_WORDS, strategy, unit=unit, n=3)
    if unit == "sequence":
        assert sorted(one.sequence for one in found) == list(range(len(NEW_WORDS)))
    elif unit == "token":
        assert len(found) == sum(map(len, NEW_WORDS))
        best = model.predict_proba(NEW_WORDS)
        for one in found:
            p = best[one.sequence][one.position]
            assert one.probability == pytest.approx(p.max(), rel=1e-9)
    else:
        assert all(min(one.probability, 1 - one.probability) >= 0.05 for one in found)
    # what is known is not asked for
    known = [[*row[:-1], None] for row in NEW_BIO]
    known[0] = list(NEW_BIO[0])
    left = sf.active.rank(model, NEW_WORDS, strategy, unit=unit, y=known)
    assert all(one.sequence != 0 for one in left)


@where(lambda name: name not in PROBABILISTIC)
@strategies
def test_ranking_by_scores_that_are_no_probabilities(name, unit, strategy):
    model = fitted(name, "words")
    if strategy == "diversity":
        assert len(sf.active.rank(model, NEW_WORDS, strategy)) == len(NEW_WORDS)
        return
    with pytest.raises(CapabilityError, match="calibrate=True"):
        sf.active.rank(model, NEW_WORDS, strategy, unit=unit)


@where(lambda name: name not in JOINT)
@strategies
def test_ranking_without_a_distribution_of_labellings(name, unit, strategy):
    model = fitted(name, "words")
    if strategy in ("diversity", "token_entropy") or unit == "token":
        assert sf.active.rank(model, NEW_WORDS, strategy, unit=unit)
        return
    with pytest.raises(CapabilityError, match=r"whole labellings|no joint distribution"):
        sf.active.rank(model, NEW_WORDS, strategy, unit=unit)


# --- reports --------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("speaks", [True, False])
def test_reports_with_a_learning_curve(name, speaks, tmp_path):
    model = fitted(name, "words", **(speaking(name) if speaks else {}))
    path = tmp_path / "report.html"
    sf.report.write_report(model, NEW_WORDS, NEW_BIO, path, n_boot=5, learning_curve=(WORDS, BIO))
    content = embedded(path.read_text("utf-8"))
    assert content["title"] == name
    keys = {one["key"] for one in content["metrics"]}
    assert {"token_accuracy", "span_f1"} <= keys
    assert ("nll_per_token" in keys) == model.has_probabilities
    assert ("joint_nll_per_sequence" in keys) == (model.has_probabilities and model.joint)
    sizes = content["learning"]["sizes"]
    assert sizes[-1] == len(WORDS)
    assert len(sizes) > 1
    assert all(len(values) == len(sizes) for values in content["learning"]["scores"].values())
    shown = next(one for one in content["metrics"] if one["key"] == "token_accuracy")
    assert shown["value"] == pytest.approx(model.score(NEW_WORDS, NEW_BIO), abs=1e-6)


def test_draws_are_averaged():
    assert any(is_average(told(name)) for name in JOINT)
