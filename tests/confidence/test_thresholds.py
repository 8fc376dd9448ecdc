"""Thresholds for a wanted precision: by brute force, known bounds and simulation."""

import copy
import math
import weakref

import numpy as np
import pytest
from scipy.stats import beta, binomtest, norm, t
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import seqfield as sf
from seqfield.confidence.thresholds import _Items, _lower_bound, _shown
from seqfield.data.schemes import spans
from seqfield.errors import CapabilityError, InputError, LabelError
from seqfield.estimators import _base

from ..support.stored import Stored

STORED = Stored(["a", "b"])


def row(*confidence):
    """Tokens decoded as "a" with these probabilities."""
    return np.array([[c, 1 - c] for c in confidence])


@pytest.fixture(scope="module")
def tagger():
    X, y = sf.load_ingredients("train")
    return sf.CRF(scheme="BIO", max_iter=40).fit(X[:120], y[:120]), X[120:320], y[120:320]


def items_of(tagger, unit):
    """(confidence, right) of all that is decoded, from what the model says of each."""
    model, X, y = tagger
    decoded = model.predict(X)
    if unit == "token":
        place = {label: k for k, label in enumerate(model.classes_.tolist())}
        return [
            (p[k, place[label]], label == gold[k])
            for p, labels, gold in zip(model.predict_proba(X), decoded, y, strict=True)
            for k, label in enumerate(labels)
        ]
    if unit == "span":
        found = zip(model.predict_spans(X), y, strict=True)
        return [(s.probability, s[:3] in spans(gold)) for row, gold in found for s in row]
    p = model.distribution(X).confidence().probability
    return [(c, a == b) for c, a, b in zip(p, decoded, y, strict=True)]


@pytest.mark.parametrize("unit", ["token", "span", "sequence"])
@pytest.mark.parametrize("precision", [0.5, 0.8, 0.9, 0.97])
def test_the_smallest_threshold_that_will_do(tagger, unit, precision):
    items = items_of(tagger, unit)
    good = []
    for threshold in {c for c, _ in items}:
        kept = [right for c, right in items if c >= threshold]
        if sum(kept) >= precision * len(kept):
            good.append((threshold, sum(kept) / len(kept), len(kept) / len(items), len(kept)))
    wanted = min(good, default=(math.inf, math.nan, 0.0, 0))
    found = sf.threshold_for_precision(*tagger, precision, unit=unit)
    assert found == pytest.approx(wanted, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("unit", ["token", "span"])
def test_a_level_costs_coverage(tagger, unit):
    coverage = [
        sf.threshold_for_precision(*tagger, 0.85, unit=unit, level=level).coverage
        for level in (None, 0.5, 0.9, 0.99, 0.9999)
    ]
    assert coverage == sorted(coverage, reverse=True)
    assert coverage[0] > coverage[2] > 0.3


def test_errors_at_the_top_do_not_hide_what_is_below():
    X, y = [row(0.99, 0.9, 0.8), row(0.7, 0.6)], [["b", "a", "a"], ["a", "b"]]
    # precision by falling confidence: 0, 1/2, 2/3, 3/4, 3/5
    assert sf.threshold_for_precision(STORED, X, y, 0.75) == (0.7, 0.75, 0.8, 4)
    assert sf.threshold_for_precision(STORED, X, y, 0.5) == (0.6, 0.6, 1.0, 5)


def test_out_of_reach():
    X, y = [row(0.9, 0.8)], [["b", "a"]]
    for level in (None, 0.9):
        found = sf.threshold_for_precision(STORED, X, y, 0.9, level=level)
        assert found.threshold == math.inf
        assert math.isnan(found.precision)
        assert (found.coverage, found.n) == (0.0, 0)


def test_what_is_not_known_is_skipped(tagger):
    X, y = [row(0.9, 0.8), row(0.7), row(0.6)], [["a", None], None, [{"a", "b"}]]
    assert sf.threshold_for_precision(STORED, X, y, 0.9) == (0.9, 1.0, 1.0, 1)
    model, X, y = tagger
    for unit in ("span", "sequence"):
        plain = sf.threshold_for_precision(model, X[:100], y[:100], 0.8, unit=unit)
        more = y[:100] + [[None, *labels[1:]] for labels in y[100:]]
        found = sf.threshold_for_precision(model, X, more, 0.8, unit=unit)
        if unit == "sequence":
            assert found == plain
            continue
        # spans that begin at the first or the second token are not judged
        kept = [
            (s.probability, s[:3] in spans(gold))
            for i, (row_, gold) in enumerate(zip(model.predict_spans(X), y, strict=True))
            for s in row_
            if i < 100 or s.start > 1
        ]
        right = [r for c, r in kept if c >= found.threshold]
        assert found == (found.threshold, np.mean(right), len(right) / len(kept), len(right))


# --- with a level ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "n"), [(0, 3), (1, 1), (45, 45), (90, 97), (199, 200), (5, 50)])
@pytest.mark.parametrize("repeats", [1, 6])
def test_the_bound_of_sequences_that_are_right_as_a_whole_is_that_of_clopper_and_pearson(
    right, n, repeats
):
    hits = np.repeat(np.arange(n) < right, repeats)
    items = _Items(np.full(len(hits), 0.5), hits, np.repeat(np.arange(n), repeats))
    exact = binomtest(right, n, alternative="greater").proportion_ci(0.95, method="exact").low
    assert _lower_bound(items, 0.5, 0.05) == pytest.approx(exact, rel=1e-9)
    assert _lower_bound(items, 0.6, 0.05) == 0.0


def test_the_bound_of_independent_tokens_is_nearly_that_of_clopper_and_pearson():
    rng = np.random.default_rng(0)
    right, sequence = rng.random(4000) < 0.9, np.repeat(np.arange(500), 8)
    exact = binomtest(int(right.sum()), 4000, alternative="greater").proportion_ci(0.95).low
    found = _lower_bound(_Items(np.ones(4000), right, sequence), 0.5, 0.05)
    assert found == pytest.approx(exact, abs=0.002)


@pytest.mark.parametrize("n_wrong", [1, 2, 6])
def test_few_errors_say_little_about_their_spread(n_wrong):
    # one error in each of some of 20 sequences of 5 tokens: so far as independent as can be
    right = np.ones((20, 5), dtype=bool)
    right[:n_wrong, 0] = False
    items = _Items(np.ones(100), right.ravel(), np.repeat(np.arange(20), 5))
    share = n_wrong / 100
    spread = n_wrong * (1 - 5 * share) ** 2 + (20 - n_wrong) * (5 * share) ** 2
    seen = min(share * (1 - share) * 100**2 / spread, 100)
    effective = max(20, seen * (norm.ppf(0.05) / t.ppf(0.05, n_wrong)) ** 2)
    assert (effective > 20) == (n_wrong > 1)
    wanted = beta.ppf(0.05, effective * (1 - share), effective * share + 1)
    assert _lower_bound(items, 0.5, 0.05) == pytest.approx(wanted, rel=1e-9)


def test_tests_stop_at_the_first_that_fails():
    # right, wrong, and right again
    confidence = np.repeat([0.99, 0.9, 0.6], [200, 60, 5000])
    X, y = [row(c) for c in confidence], [["b" if c == 0.9 else "a"] for c in confidence]
    assert sf.threshold_for_precision(STORED, X, y, 0.95).threshold == 0.6
    assert 0.9 < sf.threshold_for_precision(STORED, X, y, 0.95, level=0.9).threshold <= 0.95


def drawn(rng, n, dependence, right):
    """Sequences of 1 to 15 tokens; ``right`` is the probability that one of some confidence is."""
    sequence = np.repeat(np.arange(n), rng.integers(1, 16, n))
    shared, own = rng.normal(size=(2, n))[:, sequence], rng.normal(size=(2, len(sequence)))
    confidence = norm.cdf(1 + math.sqrt(0.5) * (shared[0] + own[0]))
    u = norm.cdf(math.sqrt(dependence) * shared[1] + math.sqrt(1 - dependence) * own[1])
    return _Items(confidence, u < right(confidence), sequence)


@pytest.mark.parametrize("dependence", [0.0, 0.5, 1.0])
def test_the_risk_is_kept(dependence):
    """No threshold has the precision, by a hair, but one is found no more often than agreed."""
    rng, n_runs = np.random.default_rng(1), 100
    found = [
        _shown(drawn(rng, 200, dependence, lambda c: np.full_like(c, 0.9499)), 0.95, 0.1)
        for _ in range(n_runs)
    ]
    assert np.isfinite(found).mean() <= 0.1 + 3 * math.sqrt(0.09 / n_runs)


def test_tokens_are_not_independent():
    """The same with all tokens taken as independent: found far too often."""
    rng = np.random.default_rng(2)
    found = []
    for _ in range(60):
        items = drawn(rng, 200, 1.0, lambda c: np.full_like(c, 0.9499))
        alone = _Items(items.confidence, items.right, np.arange(len(items.right)))
        found.append((_shown(items, 0.95, 0.1), _shown(alone, 0.95, 0.1)))
    ours, naive = np.isfinite(found).mean(axis=0)
    assert ours <= 0.1 + 3 * math.sqrt(0.09 / 60)
    assert naive > 0.25


@pytest.mark.parametrize("power", [0.7, 1.0, 1.5])
def test_what_is_found_is_useful_and_true(power):
    """Confidences that are too low, right and too high."""
    rng, sample = (
        np.random.default_rng(3),
        norm.cdf(1 + np.random.default_rng(4).normal(size=10**5)),
    )
    ordered = np.sort(sample)[::-1]
    precision = np.cumsum(ordered**power) / np.arange(1, len(ordered) + 1)
    best = np.mean(precision >= 0.9)
    kept, low = [], []
    for _ in range(40):
        threshold = _shown(drawn(rng, 400, 0.3, lambda c: c**power), 0.9, 0.1)
        k = int(np.sum(ordered >= threshold))
        kept.append(k / len(ordered))
        low.append(k > 0 and precision[k - 1] < 0.9)
    assert np.mean(low) <= 0.1 + 3 * math.sqrt(0.09 / 40)
    assert 0.5 * best < np.mean(kept) <= best


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": 0}, "precision must be a number from 0.01 to 1"),
        ({"precision": "x"}, "precision must be a number"),
        ({"level": 1}, "level must be a number from 0.5 to 0.9999"),
        ({"unit": "word"}, "unit must be one of 'token', 'span', 'sequence', got 'word'"),
        ({"y": [["z"]]}, "label 'z' at sequence 0, position 0"),
        ({"y": [[None]]}, "y holds no known label"),
    ],
)
def test_bad_input_is_named(arguments, message):
    arguments = {"X": [row(0.9)], "y": [["a"]], **arguments}
    with pytest.raises(InputError, match=message):
        sf.threshold_for_precision(STORED, **arguments)


def test_models_and_labels_that_cannot_be_judged(tagger):
    model, X, y = tagger
    partly = [[None, *labels[1:]] for labels in y]
    with pytest.raises(LabelError, match="no sequence has all of its labels"):
        sf.threshold_for_precision(model, X, partly, unit="sequence")
    scores_only = sf.StructuredPerceptron(max_iter=1, random_state=0).fit(X, y)
    for unit in ("token", "span", "sequence"):
        with pytest.raises(CapabilityError, match="calibrate=True"):
            sf.threshold_for_precision(scores_only, X, y, unit=unit)
    found = sf.threshold_for_precision(model, X[:3], [["O"] * len(x) for x in X[:3]], unit="span")
    assert found.threshold == math.inf


def test_pipelines(tagger):
    """Of one step or several; what stands for a missing label is that of the last."""
    model, X, y = tagger
    wanted = sf.threshold_for_precision(model, X, [[None, *labels[1:]] for labels in y])
    hidden = [["?", *labels[1:]] for labels in y]
    model = copy.copy(model).set_params(missing_label="?")
    for steps in ([model], [FunctionTransformer(), model]):
        assert sf.threshold_for_precision(make_pipeline(*steps), X, hidden) == wanted


@pytest.mark.parametrize("unit", ["token", "span", "sequence"])
def test_blocks_of_sequences_are_not_held_all_at_once(unit, monkeypatch):
    X, y = sf.load_ingredients("train")
    X, y, alive, most = X[:12], y[:12], weakref.WeakSet(), []
    model = sf.StructuredSVGP("linear", 5, n_samples=2, tol=0.5, random_state=0).fit(X, y)
    monkeypatch.setattr(_base, "DRAWN", 1)
    plain = type(model).distribution_of

    def counted(self, draws):
        said = plain(self, draws)
        alive.add(said)
        most.append(len(alive))
        return said

    monkeypatch.setattr(type(model), "distribution_of", counted)
    sf.threshold_for_precision(model, X, y, 0.1, unit=unit)
    sf.conformal.TokenSets(model, 0.5).fit(X, y)
    sf.conformal.SpanSets(model, 0.1, floor=1e-6).fit(X, y)
    assert len(most) == 3 * len(X)
    assert max(most) <= 2
