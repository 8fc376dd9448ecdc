"""Log loss and softmax margin against the list of all labellings and against differences."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from seqfield.chain import ChainScores
from seqfield.chain.reference import enumerate_labellings
from seqfield.errors import NoPathError
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss

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


def augmented(case, cost):
    """Scores with the cost of wrong labels, written as a loop."""
    node = case.scores.node.copy()
    mask = case.targets.mask(node.shape[1])
    for t, j in product(*map(range, node.shape)):
        if not mask[t, j]:
            node[t, j] += cost
    s = case.scores
    return ChainScores(node, s.edge, s.offsets, s.start, s.end)


def by_enumeration(case, cost=0.0):
    """The loss of each sequence."""
    free, mask = augmented(case, cost), case.targets.mask(case.scores.n_labels)
    return np.array(
        [
            enumerate_labellings(free, i).log_z
            - enumerate_labellings(case.scores, i, allowed=mask).log_z
            for i in range(len(LENGTHS))
        ]
    )


def gradient_by_enumeration(case, cost=0.0):
    free, mask = augmented(case, cost), case.targets.mask(case.scores.n_labels)
    s, offsets = case.scores.n_labels, case.scores.offsets
    node, pairs = np.zeros_like(case.scores.node), np.zeros((offsets[-1], s, s))
    for i, w in enumerate(case.weights):
        at = slice(offsets[i], offsets[i + 1])
        a = enumerate_labellings(free, i)
        b = enumerate_labellings(case.scores, i, allowed=mask)
        node[at] = w * (a.node(s) - b.node(s))
        pairs[at] = w * (a.pairs(s) - b.pairs(s))
    return node, pairs.sum(axis=0) if case.scores.stationary else pairs


@pytest.mark.parametrize("cost", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("edges", EDGES)
def test_value_and_gradient_equal_enumeration(known, edges, cost):
    for key in product([known], [edges], ENDS, FORBIDDEN, WEIGHTS):
        case = make(*key)
        loss = LogLoss(cost)
        each = by_enumeration(case, cost)
        got = loss(*case)
        assert got.value == pytest.approx(case.weights @ each, rel=1e-11, abs=1e-11), key
        np.testing.assert_allclose(
            loss.values(case.scores, case.targets), each, rtol=1e-10, atol=1e-11, err_msg=key
        )
        node, edge = gradient_by_enumeration(case, cost)
        np.testing.assert_allclose(got.node, node, rtol=1e-10, atol=1e-12, err_msg=key)
        np.testing.assert_allclose(got.edge, edge, rtol=1e-10, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("cost", [0.0, 0.7])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("forbidden", FORBIDDEN)
def test_gradient_equals_central_differences(known, edges, forbidden, cost):
    case = make(known, edges, "start and end", forbidden, "weights")
    loss = LogLoss(cost)
    got = loss(*case)
    s = case.scores
    first = np.zeros(s.n_tokens, bool)
    first[s.offsets[:-1]] = True
    numeric = differences(loss, case)
    for part, gradient, want in zip((s.node, s.edge), got[1:], numeric, strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-6, atol=1e-8)
        assert not gradient[part == -np.inf].any()
    if edges == "positional":
        assert not got.edge[first].any()


@pytest.mark.parametrize("key", [k for k in GRID if k[4] == "ones" and k[0] == "full"])
def test_known_labels_given_as_sets_are_the_same(key):
    case = make(*key)
    sets = Targets(case.targets.codes, case.targets.mask(3), case.targets.offsets)
    for cost in (0.0, 0.5):
        a, b = LogLoss(cost)(*case), LogLoss(cost)(case.scores, sets, case.weights)
        assert a.value == pytest.approx(b.value, rel=1e-12)
        np.testing.assert_allclose(a.node, b.node, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(a.edge, b.edge, rtol=1e-10, atol=1e-13)


def test_cost_zero_is_the_log_loss():
    for key in GRID:
        case = make(*key)
        a, b = LogLoss()(*case), LogLoss(0.0)(*case)
        assert a.value == b.value
        np.testing.assert_array_equal(a.node, b.node)
        np.testing.assert_array_equal(a.edge, b.edge)


@pytest.mark.parametrize("known", KNOWN)
def test_cost_is_the_limit_of_the_log_loss_and_an_upper_bound(known):
    case = make(known, "stationary", "plain", False, "weights")
    plain = LogLoss()(*case).value
    values = [LogLoss(cost)(*case).value for cost in (1e-9, 0.1, 1.0, 10.0)]
    assert values[0] == pytest.approx(plain, rel=1e-8)
    assert plain < values[0] < values[1] < values[2] < values[3]


def test_nothing_known_costs_nothing():
    case = make("full", "stationary", "start and end", False, "weights")
    n, s = case.scores.node.shape
    unknown = Targets(np.full(n, -1, np.int32), np.ones((n, s), bool), case.targets.offsets)
    for cost in (0.0, 2.0):
        got = LogLoss(cost)(case.scores, unknown, case.weights)
        assert got.value == pytest.approx(0.0, abs=1e-12)
        np.testing.assert_allclose(got.node, 0.0, atol=1e-14)
        np.testing.assert_allclose(got.edge, 0.0, atol=1e-13)


def test_weights_count_sequences():
    case = make("mixed", "stationary", "plain", False, "weights")
    each = LogLoss().values(case.scores, case.targets)
    assert LogLoss()(*case).value == pytest.approx(case.weights @ each, rel=1e-12)
    one = np.zeros(len(LENGTHS))
    for i in range(len(LENGTHS)):
        one[:] = 0.0
        one[i] = 2.5
        got = LogLoss()(case.scores, case.targets, one)
        assert got.value == pytest.approx(2.5 * each[i], rel=1e-12)
        inside = np.zeros(case.scores.n_tokens, bool)
        inside[case.scores.offsets[i] : case.scores.offsets[i + 1]] = True
        assert not got.node[~inside].any()


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("cost", [0.0, 1.0, 4.0])
def test_convex_along_segments(edges, cost):
    """f(x + r d) lies below the chord and above the tangent, for known labels."""
    loss = LogLoss(cost)
    strict = 0
    for k in range(40):
        case = make("full", edges, "plain", False, "weights", scale=[0.3, 1.0, 5.0][k % 3])
        place, d_node, d_edge = along(case, k)

        def at(r, place=place):
            return loss(*place(r))

        ends = at(0.0), at(1.0)
        slope = (ends[0].node * d_node).sum() + (ends[0].edge * d_edge).sum()
        for r in (0.1, 0.5, 0.8):
            value = at(r).value
            chord = (1 - r) * ends[0].value + r * ends[1].value
            room = 1e-11 * abs(chord)
            assert ends[0].value + r * slope - room <= value <= chord + room
            strict += value < chord - 1e-6 * abs(chord)
    assert strict > 100


def test_loss_is_never_negative():
    for key in GRID:
        case = make(*key)
        assert (LogLoss().values(case.scores, case.targets) >= -1e-12).all()


def test_scores_are_not_changed():
    for key in GRID[::5]:
        case = make(*key)
        before = [None if p is None else np.array(p) for p in _parts(case.scores)]
        LogLoss(0.5)(*case)
        LogLoss()(*case)
        LogLoss(0.5).values(case.scores, case.targets)
        for old, new in zip(before, _parts(case.scores), strict=True):
            if old is not None:
                np.testing.assert_array_equal(old, new)


def _parts(scores):
    return scores.node, scores.edge, scores.start, scores.end


def test_extreme_scores_stay_finite():
    case = make("mixed", "stationary", "start and end", False, "weights", scale=1e5)
    got = LogLoss()(*case)
    assert np.isfinite(got.value)
    assert got.value >= 0
    assert np.isfinite(got.node).all()
    assert np.isfinite(got.edge).all()


def test_forbidden_gold_labels_have_infinite_loss_or_no_path():
    node, edge = np.zeros((2, 2)), np.array([[-np.inf, 0.0], [0.0, 0.0]])
    scores, offsets = ChainScores(node, edge), np.array([0, 2])
    gold = Targets(np.array([0, 0], np.int32), None, offsets)
    assert LogLoss()(scores, gold, np.ones(1)).value == np.inf
    held = Targets(np.array([0, -1], np.int32), np.array([[1, 0], [1, 0]], bool), offsets)
    with pytest.raises(NoPathError, match="sequence 0"):
        LogLoss()(scores, held, np.ones(1))
