"""Exponential loss against the sum of inverse probabilities over all labellings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.architectures.linear import Linear
from seqfield.chain import ChainScores
from seqfield.chain.reference import enumerate_labellings
from seqfield.labels import Targets
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of

from ..support.losses import (
    EDGES,
    ENDS,
    FORBIDDEN,
    GRID,
    KNOWN,
    LENGTHS,
    WEIGHTS,
    along,
    differences,
    make,
)


def inverse_odds(case):
    """(1 - p) / p of what is known of each sequence: the two sums over labellings."""
    scores, mask = case.scores, case.targets.mask(case.scores.n_labels)
    out = []
    for i, (a, b) in enumerate(zip(scores.offsets[:-1], scores.offsets[1:], strict=True)):
        found = enumerate_labellings(scores, i)
        fits = mask[np.arange(a, b), found.labels].all(axis=1)
        out.append(found.probabilities[~fits].sum() / found.probabilities[fits].sum())
    return np.array(out)


@pytest.mark.parametrize("pi", [1.0, 0.4])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("edges", EDGES)
def test_value_equals_enumeration(known, edges, pi):
    loss = ExponentialLoss(pi)
    for key in product([known], [edges], ENDS, FORBIDDEN, WEIGHTS):
        case = make(*key)
        each = pi ** np.array(LENGTHS) * inverse_odds(case)
        got = np.exp(loss(*case).value)
        assert got == pytest.approx(case.weights @ each, rel=1e-10, abs=1e-13), key
        parts = loss.values(case.scores, case.targets)
        np.testing.assert_allclose(np.exp(parts), each, rtol=1e-10, atol=1e-14, err_msg=key)
        assert loss.total(parts, case.weights) == pytest.approx(loss(*case).value, rel=1e-12)
        # the same by the log loss: each term is expm1(-log p)
        same = pi ** np.array(LENGTHS) * np.expm1(LogLoss().values(case.scores, case.targets))
        np.testing.assert_allclose(np.exp(parts), same, rtol=1e-12, atol=1e-14, err_msg=key)


@pytest.mark.parametrize(("forbidden", "pi"), [(False, 0.4), (True, 1.0)])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("edges", EDGES)
def test_gradient_equals_central_differences(known, edges, forbidden, pi):
    case = make(known, edges, "start and end", forbidden, "weights")
    got = ExponentialLoss(pi)(*case)
    for gradient, want in zip(got[1:], differences(ExponentialLoss(pi), case), strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-6, atol=1e-8)
    assert np.abs(got.node).max() > 0.01


def test_gradient_is_finite_for_all_cases():
    for key in GRID:
        got = ExponentialLoss(0.7)(*make(*key, scale=20.0))
        assert np.isfinite(got.node).all()
        assert np.isfinite(got.edge).all()


def flat(lengths, s, seed=0):
    """Zero scores and random labels."""
    offsets = offsets_of(lengths)
    y = np.random.default_rng(seed).integers(s, size=int(offsets[-1])).astype(np.int32)
    scores = ChainScores(np.zeros((len(y), s)), np.zeros((s, s)), offsets)
    return scores, Targets(y, None, offsets)


@pytest.mark.parametrize("pi", [1.0, 0.9])
def test_a_long_sentence_at_zero_scores(pi):
    """1 / p = 50^1000, far beyond any float."""
    loss, (scores, targets) = ExponentialLoss(pi), flat([1000], 50)
    got = loss(scores, targets, np.ones(1))
    assert got.value == pytest.approx(1000 * np.log(50 * pi), rel=1e-12)
    # d log R = (1 / p) / (1 / p - 1) times that of the log loss
    want = np.full((1000, 50), 1 / 50)
    want[np.arange(1000), targets.codes] -= 1.0
    np.testing.assert_allclose(got.node, want, rtol=1e-9)
    pairs = np.full((50, 50), 999 / 2500)
    np.subtract.at(pairs, (targets.codes[:-1], targets.codes[1:]), 1.0)
    np.testing.assert_allclose(got.edge, pairs, rtol=1e-9, atol=1e-9)


def test_short_sentences_at_zero_scores():
    loss, (scores, targets) = ExponentialLoss(0.5), flat([1, 2, 3], 7)
    w = np.array([3.0, 2.0, 1.0])
    want = w @ [0.5**l * (7**l - 1) for l in (1, 2, 3)]
    assert np.exp(loss(scores, targets, w).value) == pytest.approx(want, rel=1e-12)


def test_the_longest_sentence_takes_all():
    loss, (scores, targets) = ExponentialLoss(), flat([400, 3, 900], 9)
    got = loss(scores, targets, np.array([1e9, 1.0, 1e-9]))
    assert got.value == pytest.approx(900 * np.log(9) + np.log(1e-9), rel=1e-12)
    assert not got.node[:403].any()
    assert np.abs(got.node[403:]).min() > 0.1


# --- sums of sums ------------------------------------------------------------------------------


def test_totals_of_totals():
    loss, rng = ExponentialLoss(0.8), np.random.default_rng(0)
    values, weights = 50 * rng.normal(size=20), rng.uniform(0, 2, 20)
    weights[[3, 4]] = 0.0
    values[7] = -np.inf
    whole = loss.total(values, weights)
    shares = loss.shares(values, weights)
    for cuts in ([10], [1, 2, 3], list(range(1, 20)), [4, 8, 19]):
        pieces = np.split(np.arange(20), cuts)
        sums = np.array([loss.total(values[p], weights[p]) for p in pieces])
        ones = np.ones(len(pieces))
        assert loss.total(sums, ones) == pytest.approx(whole, rel=1e-13)
        outer = loss.shares(sums, ones)
        inner = [o * loss.shares(values[p], weights[p]) for o, p in zip(outer, pieces, strict=True)]
        np.testing.assert_allclose(np.concatenate(inner), shares, rtol=1e-11, atol=1e-300)
    assert shares.sum() == pytest.approx(1.0, rel=1e-12)
    step = 1e-5
    for i in (0, 5, int(np.argmax(values))):
        up, down = values.copy(), values.copy()
        up[i] += step
        down[i] -= step
        slope = (loss.total(up, weights) - loss.total(down, weights)) / (2 * step)
        assert slope == pytest.approx(shares[i], rel=1e-6, abs=1e-9)


def objective(loss, known=True, c2=0.3):
    """Enough tokens for several shards, lengths that differ a lot."""
    rng = np.random.default_rng(1)
    lengths = np.concatenate([rng.integers(1, 5, 900), rng.integers(20, 60, 120)])
    offsets = offsets_of(lengths)
    n, s = int(offsets[-1]), 3
    y = rng.integers(s, size=n).astype(np.int32)
    x = (rng.random((n, 6)) < 0.3).astype(float)
    x[np.arange(n), y] += 1.0
    mask = None
    if not known:
        mask = (np.arange(s) == y[:, None]) | (rng.random(n) < 0.3)[:, None]
        y = np.where(mask.all(axis=1), -1, y).astype(np.int32)
    data, targets = Sequences(sp.csr_array(x), offsets), Targets(y, mask, offsets)
    weights = rng.uniform(0.5, 2.0, len(lengths))
    linear = Linear.build(data, targets, s)
    goal = Objective(linear, loss, ElasticNet(0.0, c2), data, targets, weights, None, 1)
    return goal, rng.normal(size=linear.n_parameters)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("loss", [LogLoss(), ExponentialLoss(), ExponentialLoss(0.5)])
def test_shards_add_up_to_the_whole(loss, known):
    goal, theta = objective(loss, known)
    assert len(goal._shards) > 2
    value, gradient = goal.value_and_grad(theta)
    assert goal.value(theta) == pytest.approx(value, rel=1e-13)
    n = len(goal.data)
    for parts in ([np.arange(n)], np.array_split(np.arange(n), 7)):
        goal._shards = [goal._shard(part) for part in parts]
        again, slope = goal.value_and_grad(theta)
        assert again == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(slope, gradient, rtol=1e-9, atol=1e-9)
        assert goal.value(theta) == pytest.approx(value, rel=1e-12)


def test_gradient_of_the_objective_equals_differences():
    goal, theta = objective(ExponentialLoss(0.5))
    _, gradient = goal.value_and_grad(theta)
    for k in range(0, len(theta), 3):
        ends = []
        for step in (1e-4, -1e-4, 5e-5, -5e-5):
            moved = theta.copy()
            moved[k] += step
            ends.append(goal.value(moved))
        slope = (4 * (ends[2] - ends[3]) / 1e-4 - (ends[0] - ends[1]) / 2e-4) / 3
        assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-6)


# --- shape -------------------------------------------------------------------------------------


@pytest.mark.parametrize("edges", EDGES)
def test_convex_along_segments(edges):
    loss, strict = ExponentialLoss(0.6), 0
    for k in range(40):
        case = make("full", edges, "plain", False, "weights", scale=[0.3, 1.0, 5.0][k % 3])
        at, d_node, d_edge = along(case, k)
        ends = loss(*at(0.0)), loss(*at(1.0))
        slope = (ends[0].node * d_node).sum() + (ends[0].edge * d_edge).sum()
        for r in (0.1, 0.5, 0.8):
            value = loss(*at(r)).value
            chord = (1 - r) * ends[0].value + r * ends[1].value
            room = 1e-10 * max(1.0, abs(chord))
            assert ends[0].value + r * slope - room <= value <= chord + room
            strict += value < chord - 1e-6 * abs(chord)
    assert strict > 50


# --- edges of the range ------------------------------------------------------------------------


def test_zero_weights_leave_sequences_out():
    case = make("full", "stationary", "plain", False, "zeros")
    kept = np.flatnonzero(case.weights)
    got = ExponentialLoss()(*case)
    parts = ExponentialLoss().values(case.scores, case.targets)
    alone = ExponentialLoss().total(parts[kept], case.weights[kept])
    assert got.value == pytest.approx(alone, rel=1e-14)
    dead = np.repeat(case.weights == 0, LENGTHS)
    assert not got.node[dead].any()
    assert np.abs(got.node[~dead]).max() > 0.01


def test_no_weight_at_all():
    case = make("full", "stationary", "plain", False, "ones")
    got = ExponentialLoss()(case.scores, case.targets, np.zeros(4))
    assert got.value == -np.inf
    assert not got.node.any()
    assert not got.edge.any()
    assert not ExponentialLoss().shares(np.zeros(4), np.zeros(4)).any()


def test_nothing_known_costs_nothing():
    case = make("full", "stationary", "plain", False, "weights")
    n, s = case.scores.node.shape
    unknown = Targets(np.full(n, -1, np.int32), np.ones((n, s), bool), case.targets.offsets)
    got = ExponentialLoss()(case.scores, unknown, case.weights)
    assert got.value < -30  # log of 0, or of a rounding error
    np.testing.assert_allclose(got.node, 0.0, atol=1e-9)


def test_certain_gold_labels():
    """p = 1 to the last digit, but the odds are known; with no other labelling R is 0."""
    scores, targets = flat([3, 1, 5], 4)
    node = np.full((9, 4), -2000.0)
    node[np.arange(9), targets.codes] = 0.0
    sure = ChainScores(node, np.zeros((4, 4)), scores.offsets)
    got = ExponentialLoss()(sure, targets, np.ones(3))
    assert got.value == pytest.approx(np.log(27) - 2000, rel=1e-14)
    np.testing.assert_allclose(got.node[node == 0], -1 / 9, rtol=1e-10)
    np.testing.assert_allclose(got.node[node < 0], 1 / 27, rtol=1e-10)
    node[node < 0] = -np.inf
    got = ExponentialLoss()(ChainScores(node, sure.edge, scores.offsets), targets, np.ones(3))
    assert got.value == -np.inf
    assert not got.node.any()
    assert not got.edge.any()


def test_one_certain_sequence_among_others():
    scores, targets = flat([3, 2], 4)
    node = scores.node.copy()
    node[np.arange(3), targets.codes[:3]] = 2000.0
    got = ExponentialLoss()(ChainScores(node, scores.edge, scores.offsets), targets, np.ones(2))
    assert got.value == pytest.approx(np.log(15), rel=1e-12)
    assert not got.node[:3].any()


def nearly_certain(margin, lengths=(3, 1, 5), s=4):
    scores, targets = flat(list(lengths), s)
    node = np.zeros_like(scores.node)
    node[np.arange(len(node)), targets.codes] = margin
    return ChainScores(node, scores.edge, scores.offsets), targets


@pytest.mark.parametrize("margin", [5.0, 15.0, 30.0, 60.0, 300.0])
def test_nearly_certain_gold_labels_keep_their_precision(margin):
    """1 / p - 1 = (1 + (S - 1) e^-m)^l - 1: where 1 - p is less than the float precision too.

    A separable training set with a weak penalty has its optimum there.
    """
    scores, targets = nearly_certain(margin)
    got = ExponentialLoss()(scores, targets, np.ones(3))
    each = np.expm1(np.array([3, 1, 5]) * np.log1p(3 * np.exp(-margin)))
    assert got.value == pytest.approx(np.log(each.sum()), rel=1e-9)
    # all tokens are alike: d log R / d (margin) = -1 in the limit, shared out over the tokens
    slope = (got.node[np.arange(9), targets.codes]).sum()
    step = 1e-4
    ends = [
        np.log(np.expm1(np.array([3, 1, 5]) * np.log1p(3 * np.exp(-m))).sum())
        for m in (margin + step, margin - step)
    ]
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_a_forbidden_gold_labelling_has_infinite_loss():
    scores = ChainScores(np.zeros((3, 2)), np.array([[-np.inf, 0.0], [0.0, 0.0]]), [0, 2, 3])
    targets = Targets(np.array([0, 0, 1], np.int32), None, np.array([0, 2, 3]))
    got = ExponentialLoss()(scores, targets, np.ones(2))
    assert got.value == np.inf
    assert np.isfinite(got.node).all()
    assert np.isfinite(got.edge).all()
