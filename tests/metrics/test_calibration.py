import math

import numpy as np
import pytest
import sklearn.metrics

from seqfield import metrics
from seqfield.errors import InputError, LabelError

CLASSES = np.array(["a", "b", "c"])


def corpus(seed, missing=0.2, n=40, decimals=None):
    rng = np.random.default_rng(seed)
    y, proba = [], []
    for _ in range(n):
        size = int(rng.integers(0, 6))
        p = rng.dirichlet([0.6, 0.8, 1.0], size=size)
        if decimals is not None:
            p = np.round(p, decimals)
        y.append([None if rng.random() < missing else CLASSES[rng.integers(3)] for _ in p])
        proba.append(p)
    return y, proba


def flat(y, proba, labels=None):
    """(gold column, probabilities, predicted column) of each labelled token, one at a time."""
    column = {label: k for k, label in enumerate(CLASSES.tolist())}
    out = []
    for i, (row, block) in enumerate(zip(y, proba, strict=True)):
        for t, gold in enumerate(row):
            if gold is not None:
                best = int(np.argmax(block[t])) if labels is None else column[labels[i][t]]
                out.append((column[gold], block[t], best))
    return out


def some_labels(seed, y):
    rng = np.random.default_rng(seed)
    return [[str(rng.choice(CLASSES)) for _ in row] for row in y]


@pytest.mark.parametrize("seed", range(10))
def test_nll_and_brier(seed):
    y, proba = corpus(seed)
    tokens = flat(y, proba)
    nll = -math.fsum(math.log(p[k]) for k, p, _ in tokens)
    assert metrics.token_nll(y, proba, CLASSES) == pytest.approx(nll, rel=1e-13)
    mean = metrics.token_nll(y, proba, CLASSES, mean=True)
    assert mean == pytest.approx(nll / len(tokens), rel=1e-13)
    true, stacked = [k for k, _, _ in tokens], np.array([p for _, p, _ in tokens])
    assert mean == pytest.approx(sklearn.metrics.log_loss(true, stacked), rel=1e-12)
    want = math.fsum(sum((p[j] - (j == k)) ** 2 for j in range(3)) for k, p, _ in tokens)
    assert metrics.brier(y, proba, CLASSES) == pytest.approx(want / len(tokens), rel=1e-13)


def test_metrics_leave_the_probabilities_alone():
    y, proba = corpus(0, missing=0.0)
    before = [p.copy() for p in proba]
    metrics.brier(y, proba, CLASSES)
    metrics.ece(y, proba, CLASSES)
    assert all(np.array_equal(p, q) for p, q in zip(proba, before, strict=True))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("n_bins", [1, 2, 7, 15])
@pytest.mark.parametrize("seed", range(5))
def test_ece_and_reliability(seed, n_bins, given):
    y, proba = corpus(seed)
    labels = some_labels(seed, y) if given else None
    tokens = flat(y, proba, labels)
    bins = metrics.reliability(y, proba, CLASSES, n_bins, labels)
    assert bins.dtype.names == ("confidence", "accuracy", "count")
    total = 0.0
    for b in range(n_bins):
        inside = [
            (k == best, p[best])
            for k, p, best in tokens
            if b / n_bins < p[best] <= (b + 1) / n_bins or (b == 0 and p[best] == 0)
        ]
        assert bins["count"][b] == len(inside)
        if not inside:
            assert np.isnan(bins["accuracy"][b])
            assert np.isnan(bins["confidence"][b])
            continue
        accuracy, confidence = np.mean(inside, axis=0)
        assert bins["accuracy"][b] == pytest.approx(accuracy, rel=1e-13)
        assert bins["confidence"][b] == pytest.approx(confidence, rel=1e-13)
        total += len(inside) / len(tokens) * abs(accuracy - confidence)
    got = metrics.ece(y, proba, CLASSES, n_bins, labels)
    assert got == pytest.approx(total, rel=1e-12)


def test_bins_are_closed_above():
    y, proba = [["a"] * 4], [np.array([[0.0, 1.0], [0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])]
    bins = metrics.reliability(y, proba, ["a", "b"], n_bins=2, labels=[["a"] * 4])
    assert bins["count"].tolist() == [2, 2]
    assert bins["confidence"].tolist() == [0.25, 0.875]
    # rounding can leave a probability just above one
    over = [np.array([[np.nextafter(1.0, 2.0), 0.0]])]
    assert metrics.reliability([["a"]], over, ["a", "b"], n_bins=3)["count"].tolist() == [0, 0, 1]


def test_calibrated_probabilities_have_a_small_ece_and_sharpened_ones_do_not():
    rng = np.random.default_rng(5)
    p = rng.dirichlet([1.0, 1.0, 1.0], size=20000)
    y = [[CLASSES[k] for k in (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1)]]
    sharp = p**4 / (p**4).sum(axis=1, keepdims=True)
    assert metrics.ece(y, [p], CLASSES) < 0.02
    assert metrics.ece(y, [sharp], CLASSES) > 0.15


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_precision_by_coverage(seed, given):
    y, proba = corpus(seed, decimals=1)
    labels = some_labels(seed, y) if given else None
    tokens = flat(y, proba, labels)
    coverage, precision, threshold = metrics.precision_by_coverage(y, proba, CLASSES, labels)
    assert threshold.tolist() == sorted({p[best] for _, p, best in tokens}, reverse=True)
    assert len(threshold) < len(tokens)
    for c, q, least in zip(coverage, precision, threshold, strict=True):
        kept = [k == best for k, p, best in tokens if p[best] >= least]
        assert c == pytest.approx(len(kept) / len(tokens), rel=1e-15)
        assert q == pytest.approx(sum(kept) / len(kept), rel=1e-15)
    assert coverage[-1] == 1.0


def test_joint_nll():
    values = np.random.default_rng(0).normal(size=50)
    assert metrics.joint_nll(values) == pytest.approx(-math.fsum(values), rel=1e-13)
    assert math.copysign(1.0, metrics.joint_nll([])) == 1.0


def test_an_impossible_gold_label_costs_infinity():
    assert metrics.token_nll([["a"]], [[[0.0, 1.0]]], ["a", "b"]) == math.inf


def test_nothing_to_judge():
    for y, proba in [([], []), ([[None]], [[[0.5, 0.5]]]), ([None], [[[0.5, 0.5]]])]:
        assert metrics.token_nll(y, proba, ["a", "b"]) == 0.0
        assert math.isnan(metrics.token_nll(y, proba, ["a", "b"], mean=True))
        assert math.isnan(metrics.brier(y, proba, ["a", "b"]))
        assert math.isnan(metrics.ece(y, proba, ["a", "b"]))
        assert metrics.reliability(y, proba, ["a", "b"])["count"].sum() == 0
        assert all(len(part) == 0 for part in metrics.precision_by_coverage(y, proba, ["a", "b"]))


def test_abstentions_are_not_graded():
    bins = metrics.reliability(
        [["a", "b"]], [[[0.9, 0.1], [0.5, 0.5]]], ["a", "b"], 1, labels=[["a", None]]
    )
    assert bins.tolist() == [(0.9, 1.0, 1)]


@pytest.mark.parametrize(
    "metric",
    [
        metrics.token_nll,
        metrics.brier,
        metrics.ece,
        metrics.reliability,
        metrics.precision_by_coverage,
    ],
)
def test_bad_input_is_named(metric):
    half = [[0.5, 0.5]]
    with pytest.raises(LabelError, match="sequence 1, position 1: 'z' is not among the classes"):
        metric([["a"], ["b", "z"]], [half, half * 2], ["a", "b"])
    with pytest.raises(LabelError, match="sequence 1: 2 gold labels, but 1 predicted"):
        metric([["a"], ["a", "b"]], [half, half], ["a", "b"])
    with pytest.raises(LabelError, match="1 labelled sequences, but 2 predicted"):
        metric([["a"]], [half, half], ["a", "b"])
    with pytest.raises(LabelError, match=r"sequence 0: probabilities of shape \(1, 2\), expected"):
        metric([["a"]], [half], ["a", "b", "c"])


def test_bad_predictions_and_bins_are_named():
    with pytest.raises(LabelError, match="sequence 0, position 0: 'z' is not among the classes"):
        metrics.ece([["a"]], [[[0.5, 0.5]]], ["a", "b"], labels=[["z"]])
    with pytest.raises(InputError, match="n_bins must be at least 1, got 0"):
        metrics.ece([["a"]], [[[0.5, 0.5]]], ["a", "b"], n_bins=0)


def test_reliability_by_label_counts_every_labelled_token():
    rng = np.random.default_rng(0)
    proba = [rng.dirichlet([1.0, 1.0, 1.0], size=n) for n in (4, 1, 6)]
    y = [["abc"[k] for k in rng.integers(3, size=len(p))] for p in proba]
    y[2][3] = None
    flat = [
        (p, label)
        for block, row in zip(proba, y, strict=True)
        for p, label in zip(block, row, strict=True)
        if label is not None
    ]
    found = metrics.reliability_by_label(y, proba, "abc", n_bins=4)
    assert list(found) == list("abc")
    for k, label in enumerate("abc"):
        for b in range(4):
            inside = [(p[k], gold) for p, gold in flat if b / 4 < p[k] <= (b + 1) / 4]
            assert found[label]["count"][b] == len(inside)
            if inside:
                mean = np.mean([p for p, _ in inside])
                share = np.mean([gold == label for _, gold in inside])
                assert found[label]["confidence"][b] == pytest.approx(mean)
                assert found[label]["accuracy"][b] == pytest.approx(share)
