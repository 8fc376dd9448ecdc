"""Piecewise pseudo-likelihood against its definition, and the second derivatives of the two losses
that natural gradients take."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from seqfield.chain import ChainScores
from seqfield.chain.reference import enumerate_labellings
from seqfield.errors import CapabilityError
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.losses.piecewise import PiecewiseLoss
from seqfield.sequences import offsets_of

from ..support.losses import ENDS, FORBIDDEN, KNOWN, Case, differences, make

LOSS = PiecewiseLoss()
SEEDS = range(3)


def chains(seed, s, *, known="full", lengths=(1, 2, 3, 4, 5, 6), weighted=True):
    """Random scores and labels; "missing": some are not known, "mixed": some are candidates."""
    rng = np.random.default_rng([seed, s, KNOWN.index(known)])
    offsets = offsets_of(rng.permutation(lengths))
    n = int(offsets[-1])
    scores = ChainScores(rng.normal(size=(n, s)), rng.normal(size=(s, s)), offsets)
    mask = np.arange(s) == rng.integers(s, size=n)[:, None]
    if known in ("candidates", "mixed"):
        mask |= (rng.random(n) < 0.4)[:, None] & (rng.random((n, s)) < 0.5)
    if known in ("missing", "mixed"):
        mask[rng.random(n) < 0.4] = True
    codes = np.where(mask.sum(axis=1) == 1, mask.argmax(axis=1), -1).astype(np.int32)
    targets = Targets(codes, None if (codes >= 0).all() else mask, offsets)
    return Case(scores, targets, rng.uniform(0.3, 2.0, len(lengths)) if weighted else np.ones(6))


def from_definition(scores, targets):
    """The loss of each sequence, edge by edge: the table of an edge holds the scores of all pairs
    of labels, its two nodes with them, and is normalised along one side or the other."""
    s, out = scores.n_labels, []
    mask = targets.mask(s)
    for a, b in pairwise(scores.offsets.tolist()):
        node = scores.node[a:b].copy()
        node[0] += 0.0 if scores.start is None else scores.start
        node[-1] += 0.0 if scores.end is None else scores.end
        allowed = [np.flatnonzero(row) for row in mask[a:b]]
        known = [len(some) == 1 for some in allowed]
        total, explained = 0.0, [len(some) == s for some in allowed]
        for t in range(1, b - a):
            table = node[t - 1][:, None] + scores.edge + node[t][None, :]
            if known[t - 1] and len(allowed[t]) < s:
                row = table[allowed[t - 1][0]]
                total += logsumexp(row[allowed[t]]) - logsumexp(row)
                explained[t] = True
            if known[t] and len(allowed[t - 1]) < s:
                column = table[:, allowed[t][0]]
                total += logsumexp(column[allowed[t - 1]]) - logsumexp(column)
                explained[t - 1] = True
        for t in np.flatnonzero(~np.array(explained)):
            total += logsumexp(node[t][allowed[t]]) - logsumexp(node[t])
        out.append(-total)
    return np.array(out)


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("s", [2, 3, 4])
def test_value_equals_the_definition(s, known, seed):
    scores, targets, weights = chains(seed, s, known=known)
    want = from_definition(scores, targets)
    np.testing.assert_allclose(LOSS.values(scores, targets), want, rtol=1e-12, atol=1e-13)
    assert LOSS(scores, targets, weights).value == pytest.approx(weights @ want, rel=1e-12)
    assert weights @ want != pytest.approx(want.sum(), rel=1e-3)


@pytest.mark.parametrize("forbidden", FORBIDDEN)
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("known", KNOWN)
def test_starts_ends_and_what_is_forbidden(known, ends, forbidden):
    case = make(known, "stationary", ends, forbidden, "weights")
    want = from_definition(case.scores, case.targets)
    assert np.isfinite(want).all()
    got = LOSS.values(case.scores, case.targets)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    assert LOSS(*case).value == pytest.approx(case.weights @ want, rel=1e-12)


def test_every_inner_label_counts_twice():
    """At zero scores each direction of each edge is one choice among S."""
    for length, n in ((1, 1), (2, 2), (3, 4), (6, 10)):
        scores = ChainScores(np.zeros((length, 3)), np.zeros((3, 3)))
        targets = Targets(np.zeros(length, np.int32), None, np.array([0, length]))
        value = LOSS(scores, targets, np.ones(1)).value
        assert value == pytest.approx(n * np.log(3), rel=1e-12)


def test_sequences_of_one_token_are_the_log_loss():
    for s in (2, 4):
        scores, targets, weights = chains(0, s, lengths=[1] * 6)
        want = LogLoss()(scores, targets, weights)
        got = LOSS(scores, targets, weights)
        assert got.value == pytest.approx(want.value, rel=1e-12)
        np.testing.assert_allclose(got.node, want.node, atol=1e-13)
        np.testing.assert_array_equal(got.edge, 0.0)
        values = LogLoss().values(scores, targets)
        np.testing.assert_allclose(LOSS.values(scores, targets), values, rtol=1e-12)


def test_longer_sequences_are_not():
    scores, targets, _ = chains(0, 3, lengths=[2] * 6)
    apart = np.abs(LOSS.values(scores, targets) - LogLoss().values(scores, targets))
    assert apart.min() > 0.01
    assert apart.max() > 1.0


def test_a_label_without_known_neighbours_is_a_softmax_of_its_node():
    rng = np.random.default_rng(0)
    scores = ChainScores(rng.normal(size=(5, 3)), rng.normal(size=(3, 3)))
    codes = np.array([2, -1, 0, -1, 1], np.int32)
    mask = (codes[:, None] < 0) | (np.arange(3) == codes[:, None])
    targets = Targets(codes, mask, np.array([0, 5]))
    own = log_softmax(scores.node, axis=1)
    want = -(own[0, 2] + own[2, 0] + own[4, 1])
    found = LOSS(scores, targets, np.ones(1))
    assert found.value == pytest.approx(want, rel=1e-12)
    np.testing.assert_array_equal(found.edge, 0.0)
    np.testing.assert_array_equal(found.node[[1, 3]], 0.0)


def test_a_missing_label_has_no_term_and_no_say():
    """What is left of a sequence are the pieces to its left and right, as if cut there."""
    scores, targets, _ = chains(1, 3, lengths=[6] * 6)
    codes = targets.codes.copy()
    codes[2::6] = -1
    mask = (codes[:, None] < 0) | (np.arange(3) == codes[:, None])
    held = np.delete(np.arange(36), np.arange(2, 36, 6))
    cut = offsets_of([2, 3] * 6)
    parts = ChainScores(scores.node[held], scores.edge, cut)
    want = LOSS.values(parts, Targets(codes[held], None, cut)).reshape(6, 2).sum(axis=1)
    got = LOSS.values(scores, Targets(codes, mask, scores.offsets))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_nothing_known_is_nothing_lost():
    scores = ChainScores(np.ones((3, 2)), np.ones((2, 2)), [0, 1, 3])
    targets = Targets(np.full(3, -1, np.int32), np.ones((3, 2), bool), scores.offsets)
    found = LOSS(scores, targets, np.ones(2))
    assert found.value == 0.0
    assert not found.node.any()
    assert not found.edge.any()
    np.testing.assert_array_equal(LOSS.values(scores, targets), 0.0)


def test_one_neighbour_that_is_known_is_enough():
    """A token between a known and an unknown label is told by the known one alone."""
    rng = np.random.default_rng(3)
    scores = ChainScores(rng.normal(size=(3, 2)), rng.normal(size=(2, 2)))
    mask = np.array([[True, False], [False, True], [True, True]])
    targets = Targets(np.array([0, 1, -1], np.int32), mask, np.array([0, 3]))
    node, edge = scores.node, scores.edge
    want = -(log_softmax(node[1] + edge[0])[1] + log_softmax(node[0] + edge[:, 1])[0])
    assert LOSS.values(scores, targets)[0] == pytest.approx(want, rel=1e-12)


def test_transitions_of_each_position_are_refused():
    case = make("full", "positional", "plain", False, "ones")
    for ask in (
        lambda: LOSS(*case),
        lambda: LOSS.values(case.scores, case.targets),
        lambda: LOSS.curvature(*case, np.random.default_rng(0), 4),
    ):
        with pytest.raises(CapabilityError, match="one matrix of transition scores"):
            ask()


# --- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("s", [2, 3, 4])
def test_gradient_equals_differences(s, known):
    case = chains(5, s, known=known, lengths=(1, 5, 6))
    case = case._replace(weights=case.weights[:3])
    found = LOSS(*case)
    node, edge = differences(LOSS, case)
    np.testing.assert_allclose(found.node, node, atol=1e-8)
    np.testing.assert_allclose(found.edge, edge, atol=1e-8)
    assert np.abs(edge).max() > 0.01


@pytest.mark.parametrize(("ends", "weights"), [("start and end", "weights"), ("start", "zeros")])
@pytest.mark.parametrize("known", KNOWN)
def test_gradient_where_something_is_forbidden(known, ends, weights):
    case = make(known, "stationary", ends, True, weights)
    found = LOSS(*case)
    node, edge = differences(LOSS, case)
    np.testing.assert_allclose(found.node, node, atol=1e-8)
    np.testing.assert_allclose(found.edge, edge, atol=1e-8)
    assert found.edge[0, 0] == found.edge[1, 2] == 0.0


def test_large_scores_do_not_overflow():
    case = chains(0, 3)
    big = ChainScores(1e4 * case.scores.node, 1e4 * case.scores.edge, case.scores.offsets)
    found = LOSS(big, case.targets, case.weights)
    want = from_definition(big, case.targets)
    assert found.value == pytest.approx(case.weights @ want, rel=1e-12)
    assert np.isfinite(found.node).all()
    assert np.isfinite(found.edge).all()


# --- second derivatives ------------------------------------------------------------------------


def slopes(case, name, at):
    """The derivative of the loss's gradient along one score: node and edge part."""
    parts = {"node": case.scores.node, "edge": case.scores.edge}
    ends = []
    for step in (1e-3, -1e-3, 5e-4, -5e-4):
        moved = parts[name].copy()
        moved[at] += step
        s = case.scores
        scores = ChainScores(**parts | {name: moved}, offsets=s.offsets, start=s.start, end=s.end)
        ends.append(LOSS(scores, case.targets, case.weights))
    coarse = [(a - b) / 2e-3 for a, b in zip(ends[0][1:], ends[1][1:], strict=True)]
    fine = [(a - b) / 1e-3 for a, b in zip(ends[2][1:], ends[3][1:], strict=True)]
    return [(4 * f - c) / 3 for f, c in zip(fine, coarse, strict=True)]


@pytest.mark.parametrize("ends", ["plain", "start and end"])
@pytest.mark.parametrize("s", [2, 4])
def test_curvature_equals_differences_of_the_gradient(s, ends):
    case = make("full", "stationary", ends, False, "weights", n_labels=s)
    nodes, steps = LOSS.curvature(*case, np.random.default_rng(0), 2)
    bounds = list(pairwise(case.scores.offsets.tolist()))
    assert [part.shape for part in nodes] == [(s, b - a, b - a) for a, b in bounds]
    for (a, b), part in zip(bounds, nodes, strict=True):
        for t, j in product(range(a, b), range(s)):
            node, _ = slopes(case, "node", (t, j))
            np.testing.assert_allclose(part[j, t - a], node[a:b, j], atol=1e-9)
    for at in np.ndindex(s, s):
        _, edge = slopes(case, "edge", at)
        assert steps[at] == pytest.approx(edge[at], abs=1e-9)
    assert steps.max() > 0.1


def test_curvature_where_something_is_forbidden():
    case = make("full", "stationary", "start", True, "ones")
    nodes, steps = LOSS.curvature(*case, np.random.default_rng(0), 2)
    assert all(np.isfinite(part).all() for part in nodes)
    assert np.isfinite(steps).all()
    assert steps[0, 0] == steps[1, 2] == 0.0


def exact_curvature(scores, i):
    """Covariances of the labels' indicators (S, T, T) and variances of transition counts."""
    s, found = scores.n_labels, enumerate_labellings(scores, i)
    one = np.eye(s)[found.labels]
    centred = one - found.expect(one)
    nodes = np.einsum("k,kts,kus->stu", found.probabilities, centred, centred)
    counts = (one[:, :-1, :, None] * one[:, 1:, None, :]).sum(axis=1)
    return nodes, found.expect((counts - found.expect(counts)) ** 2)


def test_the_log_loss_has_an_unbiased_curvature():
    """Many copies of a sequence are as many independent estimates. Dividing by n would be wrong by
    a third or more."""
    rng = np.random.default_rng(0)
    copies, length, s = 3000, 4, 3
    node, edge = rng.normal(size=(length, s)), rng.normal(size=(s, s))
    one = ChainScores(node, edge)
    many = ChainScores(np.tile(node, (copies, 1)), edge, offsets_of([length] * copies))
    targets = Targets(np.zeros(copies * length, np.int32), None, many.offsets)
    want, _ = exact_curvature(one, 0)
    for n in (2, 3):
        nodes, _ = LogLoss().curvature(many, targets, np.full(copies, 2.5), rng, n)
        found = np.stack(nodes) / 2.5
        error = found.std(axis=0, ddof=1) / np.sqrt(copies)
        assert (np.abs(found.mean(axis=0) - want) < 4.5 * error).all()
        diagonal = np.einsum("stt->st", want)
        # what it is fine enough to tell
        assert (diagonal / n > 9 * np.einsum("stt->st", error)).all()


def test_the_log_loss_has_unbiased_variances_of_transitions():
    rng = np.random.default_rng(1)
    s, weights = 2, np.array([0.5, 3.0, 1.0])
    offsets = offsets_of([4, 3, 1])
    scores = ChainScores(rng.normal(size=(8, s)), rng.normal(size=(s, s)), offsets)
    targets = Targets(np.zeros(8, np.int32), None, offsets)
    parts = [exact_curvature(scores, i)[1] for i in range(2)]
    want = 0.5 * parts[0] + 3.0 * parts[1]
    repeats = 900
    found = np.stack(
        [LogLoss().curvature(scores, targets, weights, rng, 3)[1] for _ in range(repeats)]
    )
    error = found.std(axis=0, ddof=1) / np.sqrt(repeats)
    assert (np.abs(found.mean(axis=0) - want) < 4.5 * error).all()
    # squared weights, or none, would be seen
    for wrong in (0.25 * parts[0] + 9.0 * parts[1], parts[0] + parts[1], want * 2 / 3):
        assert (np.abs(wrong - want) > 8 * error).any()


def test_curvature_of_either_loss_is_positive_semi_definite():
    case = make("full", "stationary", "start and end", True, "weights")
    rng = np.random.default_rng(2)
    for loss, n in product((LogLoss(), LOSS), (2, 3, 8)):
        for _ in range(10):
            nodes, steps = loss.curvature(*case, rng, n)
            assert (steps >= 0.0).all()
            for part in nodes:
                np.testing.assert_array_equal(part, part.transpose(0, 2, 1))
                assert np.linalg.eigvalsh(part).min() > -1e-12


def test_curvature_of_the_log_loss_counts_weights():
    scores, targets, weights = chains(2, 3)
    one, steps = LogLoss().curvature(scores, targets, np.ones(6), np.random.default_rng(0), 6)
    got, twice = LogLoss().curvature(scores, targets, weights, np.random.default_rng(0), 6)
    for a, b, w in zip(got, one, weights, strict=True):
        np.testing.assert_allclose(a, w * b, rtol=1e-12, atol=1e-15)
    equal, scaled = LogLoss().curvature(
        scores, targets, np.full(6, 4.0), np.random.default_rng(0), 6
    )
    np.testing.assert_allclose(scaled, 4.0 * steps, rtol=1e-12)
    np.testing.assert_allclose(equal[3], 4.0 * one[3], rtol=1e-12)
    assert not np.allclose(twice, steps)
