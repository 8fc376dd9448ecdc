"""Marginal loss against conditioning on single tokens, by the list of all labellings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

from seqfield.chain import ChainScores
from seqfield.chain.reference import enumerate_labellings
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.sequences import offsets_of

from ..support.losses import (
    EDGES,
    ENDS,
    FORBIDDEN,
    GRID,
    KNOWN,
    LENGTHS,
    WEIGHTS,
    Case,
    along,
    differences,
    make,
)


def by_enumeration(case):
    """Loss of each sequence, and the gradient by node and edge scores.

    -log p(y_t in A) is log Z minus log Z with token t held in A; its gradient is the difference of
    the marginals with and without that.
    """
    scores, s = case.scores, case.scores.n_labels
    mask = case.targets.mask(s)
    values = np.zeros(scores.n_sequences)
    node, pairs = np.zeros_like(scores.node), np.zeros((scores.n_tokens, s, s))
    for i, w in enumerate(case.weights):
        a, b = scores.offsets[i : i + 2]
        free = enumerate_labellings(scores, i)
        for t in range(a, b):
            allowed = np.ones_like(mask)
            allowed[t] = mask[t]
            held = enumerate_labellings(scores, i, allowed=allowed)
            values[i] += (free.log_z - held.log_z) / (b - a)
            node[a:b] += w / (b - a) * (free.node(s) - held.node(s))
            pairs[a:b] += w / (b - a) * (free.pairs(s) - held.pairs(s))
    return values, node, pairs.sum(axis=0) if scores.stationary else pairs


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("edges", EDGES)
def test_value_and_gradient_equal_enumeration(known, edges):
    for key in product([known], [edges], ENDS, FORBIDDEN, WEIGHTS):
        case = make(*key)
        each, node, edge = by_enumeration(case)
        got = MarginalLoss()(*case)
        assert got.value == pytest.approx(case.weights @ each, rel=1e-11, abs=1e-11), key
        values = MarginalLoss().values(case.scores, case.targets)
        np.testing.assert_allclose(values, each, rtol=1e-10, atol=1e-11, err_msg=key)
        np.testing.assert_allclose(got.node, node, rtol=1e-10, atol=1e-11, err_msg=key)
        np.testing.assert_allclose(got.edge, edge, rtol=1e-10, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("forbidden", FORBIDDEN)
def test_gradient_equals_central_differences(known, edges, forbidden):
    case = make(known, edges, "start and end", forbidden, "weights")
    got = MarginalLoss()(*case)
    for gradient, want in zip(got[1:], differences(MarginalLoss(), case), strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-6, atol=1e-8)
    assert np.abs(got.node).max() > 0.01


def test_single_tokens_make_it_the_log_loss():
    for known in KNOWN:
        case = make(known, "stationary", "start and end", False, "ones")
        n = case.scores.n_tokens
        s, cut = case.scores, offsets_of([1] * n)
        scores = ChainScores(s.node, s.edge, cut, s.start, s.end)
        alone = Case(scores, Targets(case.targets.codes, case.targets.allowed, cut), np.arange(n))
        alone = alone._replace(weights=np.linspace(0.0, 2.0, n))
        got, want = MarginalLoss()(*alone), LogLoss()(*alone)
        assert got.value == pytest.approx(want.value, rel=1e-12)
        np.testing.assert_allclose(got.node, want.node, rtol=1e-11, atol=1e-14)
        assert not got.edge.any()


def test_without_transitions_it_is_the_mean_log_loss_of_tokens():
    case = make("full", "stationary", "plain", False, "weights")
    scores = ChainScores(case.scores.node, np.zeros((3, 3)), case.scores.offsets)
    tokens = logsumexp(scores.node, axis=1) - scores.node[np.arange(10), case.targets.codes]
    want = [part.mean() for part in np.split(tokens, scores.offsets[1:-1])]
    got = MarginalLoss().values(scores, case.targets)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_nothing_known_costs_nothing():
    """Also where scores forbid labels."""
    for edges, forbidden in product(EDGES, FORBIDDEN):
        case = make("mixed", edges, "start and end", forbidden, "weights", scale=3.0)
        a, b = case.scores.offsets[1:3]
        assert case.targets.allowed[a:b].all()
        got = MarginalLoss()(*case)
        assert MarginalLoss().values(case.scores, case.targets)[1] == 0.0
        np.testing.assert_allclose(got.node[a:b], 0.0, atol=1e-13)
        if edges == "positional":
            np.testing.assert_allclose(got.edge[a:b], 0.0, atol=1e-13)
        only = np.array([0.0, 2.0, 0.0, 0.0])
        alone = MarginalLoss()(case.scores, case.targets, only)
        assert alone.value == 0.0
        np.testing.assert_allclose(alone.edge, 0.0, atol=1e-13)


def test_never_negative():
    for key in GRID:
        case = make(*key, scale=4.0)
        assert (MarginalLoss().values(case.scores, case.targets) >= 0.0).all()


def test_not_convex():
    """Some segments lie above their chord, which a convex function never does."""
    above = 0
    for k in range(60):
        case = make("full", "stationary", "plain", False, "weights", scale=[1.0, 3.0][k % 2])
        at, _, _ = along(case, k)
        values = [MarginalLoss()(*at(r)).value for r in (0.0, 0.5, 1.0)]
        above += values[1] > (values[0] + values[2]) / 2 + 1e-6
    assert above >= 3
    assert not MarginalLoss.convex


@pytest.mark.parametrize("scale", [10.0, 30.0, 60.0])
@pytest.mark.parametrize("edges", EDGES)
def test_large_scores_keep_their_precision(edges, scale):
    for known in KNOWN:
        case = make(known, edges, "start and end", False, "weights", scale=scale)
        each, node, edge = by_enumeration(case)
        got = MarginalLoss()(*case)
        assert got.value == pytest.approx(case.weights @ each, rel=1e-10)
        np.testing.assert_allclose(got.node, node, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(got.edge, edge, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scale", [100.0, 150.0, 300.0, 1e3, 1e5, 1e8])
@pytest.mark.parametrize("edges", EDGES)
def test_extreme_scores_stay_finite(edges, scale):
    """The gradient is a mean of differences of probabilities, and stays one."""
    for known in KNOWN:
        case = make(known, edges, "start and end", False, "weights", scale=scale)
        got = MarginalLoss()(*case)
        assert 0.0 <= got.value < 700 * case.weights.sum()
        per_token = np.repeat(case.weights, LENGTHS)
        assert (np.abs(got.node) <= per_token[:, None] * (1 + 1e-9)).all()
        np.testing.assert_allclose(got.node.sum(axis=1), 0.0, atol=1e-9)
        assert np.isfinite(got.edge).all()
        assert np.abs(got.edge).max() <= (case.weights @ LENGTHS) * (1 + 1e-9)


def test_inputs_are_not_changed():
    case = make("mixed", "stationary", "start and end", False, "weights")
    before = [part.copy() for part in (*_parts(case.scores), case.targets.allowed, case.weights)]
    MarginalLoss()(*case)
    after = (*_parts(case.scores), case.targets.allowed, case.weights)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def _parts(scores):
    return scores.node, scores.edge, scores.start, scores.end
