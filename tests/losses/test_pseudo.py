"""Pseudo-likelihood terms against plain loops, and the fixed point of refined probabilities."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import softmax

from seqfield.labels import Targets
from seqfield.losses import pseudo
from seqfield.losses.pseudo import Terms, refine, shifted
from seqfield.sequences import offsets_of

S = 3
DISTANCES = [(), (-1,), (1,), (-1, 1), (1, -1), (-2, -1, 1, 2), (3,), (-3, 2), (7, -9), (-1, 50)]
SEEDS = range(4)


def ragged(seed, n=9, missing=0.3, longest=6):
    """Targets with some labels missing, and a weight for each sequence."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, longest + 1, n))
    codes = rng.integers(S, size=offsets[-1])
    codes[rng.random(len(codes)) < missing] = -1
    assert (codes < 0).any()
    assert (codes >= 0).any()
    return Targets(codes.astype(np.int32), None, offsets), rng.uniform(0.0, 3.0, n)


def looped(targets, weights, distances):
    """Token, label, weight, and the labels at each distance (None if there is none)."""
    out = []
    for i, (a, b) in enumerate(pairwise(targets.offsets.tolist())):
        row = targets.codes[a:b].tolist()
        for t, label in enumerate(row):
            if label < 0:
                continue
            near = []
            for d in distances:
                known = 0 <= t + d < len(row) and row[t + d] >= 0
                near.append(row[t + d] if known else None)
            out.append((a + t, label, weights[i], near))
    return out


# --- terms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", [-7, -2, -1, 0, 1, 2, 5, 6, 40, -40])
def test_shifted_equals_a_loop(by, seed):
    targets, _ = ragged(seed)
    values = np.random.default_rng(seed).integers(100, size=len(targets.codes))
    want = []
    for a, b in pairwise(targets.offsets.tolist()):
        want += [values[t + by] if a <= t + by < b else -5 for t in range(a, b)]
    np.testing.assert_array_equal(shifted(values, targets.offsets, by, -5), want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_terms_equal_a_loop(distances, seed):
    targets, weights = ragged(seed)
    found, want = Terms.of(targets, distances, weights, S), looped(targets, weights, distances)
    np.testing.assert_array_equal(found.tokens, [term[0] for term in want])
    np.testing.assert_array_equal(found.gold, [term[1] for term in want])
    np.testing.assert_array_equal(found.weights, [term[2] for term in want])
    near = np.array([[S if k is None else k for k in term[3]] for term in want], np.int64)
    assert found.neighbours.shape == (len(want), len(distances))
    np.testing.assert_array_equal(found.neighbours, near.reshape(len(want), len(distances)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_gather_equals_a_loop(distances, seed):
    targets, weights = ragged(seed)
    steps = np.random.default_rng(seed).normal(size=(len(distances), S, S))
    want = looped(targets, weights, distances)
    got = Terms.of(targets, distances, weights, S).gather(steps)
    assert got.shape == (len(want), S)
    for row, (*_, near) in zip(got, want, strict=True):
        total = np.zeros(S)
        for d, there in enumerate(near):
            for q in range(S):
                total[q] += 0.0 if there is None else steps[d, there, q]
        np.testing.assert_allclose(row, total, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_scatter_equals_a_loop_and_is_the_transpose_of_gather(distances, seed):
    targets, weights = ragged(seed)
    terms = Terms.of(targets, distances, weights, S)
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(len(terms.tokens), S))
    want = np.zeros((len(distances), S, S))
    for value, (*_, near) in zip(values, looped(targets, weights, distances), strict=True):
        for d, there in enumerate(near):
            if there is not None:
                want[d, there] += value
    got = terms.scatter(values)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    steps = rng.normal(size=want.shape)
    left, right = np.vdot(terms.gather(steps), values), np.vdot(steps, got)
    assert left == pytest.approx(right, rel=1e-12, abs=1e-12)


def test_a_distance_longer_than_every_sequence_tells_nothing():
    targets, weights = ragged(0, longest=4)
    terms = Terms.of(targets, (4, -4), weights, S)
    assert (terms.neighbours == S).all()
    assert not terms.gather(np.ones((2, S, S))).any()
    assert not terms.scatter(np.ones((len(terms.tokens), S))).any()


def test_weights_are_those_of_the_sequences():
    targets = Targets(np.array([0, 1, -1, 2], np.int32), None, np.array([0, 1, 3, 4]))
    terms = Terms.of(targets, (-1,), np.array([0.5, 2.0, 0.0]), S)
    assert terms.weights.tolist() == [0.5, 2.0, 0.0]
    assert terms.tokens.tolist() == [0, 1, 3]


def test_no_label_known_is_no_term():
    targets = Targets(np.full(4, -1, np.int32), None, np.array([0, 4]))
    terms = Terms.of(targets, (-1, 1), np.ones(1), S)
    assert terms.neighbours.shape == (0, 2)
    assert terms.gather(np.ones((2, S, S))).shape == (0, S)
    assert not terms.scatter(np.zeros((0, S))).any()


# --- refined probabilities ---------------------------------------------------------------------


def chains(seed, distances, strength, n=6, s=S):
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 7, n))
    node = rng.normal(size=(offsets[-1], s))
    return node, strength * rng.normal(size=(len(distances), s, s)), offsets


def one_round(p, node, steps, offsets, distances):
    """Step 9 of algorithm 2, label by label."""
    new = np.zeros_like(p)
    for a, b in pairwise(offsets.tolist()):
        for t in range(a, b):
            scores = []
            for q in range(p.shape[1]):
                score = node[t, q]
                for d, distance in enumerate(distances):
                    if a <= t + distance < b:
                        score += sum(p[t + distance, k] * steps[d, k, q] for k in range(p.shape[1]))
                scores.append(score)
            new[t] = softmax(scores)
    return new


def left_at(p, node, steps, offsets, distances):
    """How far probabilities are from the fixed point."""
    return np.abs(one_round(p, node, steps, offsets, distances) - p).max()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_refined_probabilities_equal_algorithm_2_and_are_a_fixed_point(distances, seed):
    given = *chains(seed, distances, 0.5), distances
    found = refine(*given)
    assert found.settled
    assert left_at(found.probabilities, *given) < 1e-8
    p = softmax(given[0], axis=1)
    for _ in range(60):
        p = one_round(p, *given)
    np.testing.assert_allclose(found.probabilities, p, atol=1e-8)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, rtol=1e-12)


def test_without_distances_the_softmax_is_there_at_once():
    node, steps, offsets = chains(0, (), 1.0)
    found = refine(node, steps, offsets, ())
    assert found.settled
    assert found.n_rounds == 1
    np.testing.assert_array_equal(found.probabilities, softmax(node, axis=1))


def test_distances_that_leave_the_sequence_contribute_nothing():
    node, steps, offsets = chains(1, (-6, 6), 3.0)
    assert np.diff(offsets).max() <= 6
    found = refine(node, steps, offsets, (-6, 6))
    np.testing.assert_array_equal(found.probabilities, softmax(node, axis=1))
    # nor does a sequence know of the next one
    node, steps, offsets = chains(2, (-1, 1), 0.5)
    whole = refine(node, steps, offsets, (-1, 1)).probabilities
    for a, b in pairwise(offsets.tolist()):
        alone = refine(node[a:b], steps, np.array([0, b - a]), (-1, 1)).probabilities
        np.testing.assert_allclose(whole[a:b], alone, atol=1e-8)


@pytest.mark.parametrize("strength", [-3.0, -8.0, -20.0])
def test_couplings_that_oscillate_are_settled(strength):
    offsets, distances = np.array([0, 2, 4]), (-1, 1)
    node = np.array([[0.5, 0.0], [0.5, 0.0], [-0.2, 0.0], [-0.2, 0.0]])
    given = node, np.stack([strength * np.eye(2)] * 2), offsets, distances
    p = softmax(node, axis=1)
    for _ in range(300):
        p = one_round(p, *given)
    assert left_at(p, *given) > 0.1  # the plain rounds go back and forth
    found = refine(*given)
    assert found.settled
    # a change of 1e-9 in P changes the scores by up to |strength| a neighbour, softmax by half
    assert left_at(found.probabilities, *given) <= 1e-9 * max(1.0, abs(strength))
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("strength", [2.0, 20.0, 500.0, 1e5])
@pytest.mark.parametrize("distances", [(-1,), (-1, 1), (-2, -1, 1, 2)], ids=str)
def test_settled_is_true_only_at_a_fixed_point_and_probabilities_are_always_finite(
    distances, strength
):
    for seed in range(6):
        given = *chains(seed, distances, strength), distances
        found = refine(*given)
        assert np.isfinite(found.probabilities).all()
        assert found.probabilities.min() >= 0.0
        np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, rtol=1e-9)
        if found.settled:
            slope = 0.5 * np.abs(given[1]).sum(axis=1).max(axis=1).sum()
            assert left_at(found.probabilities, *given) <= 1e-9 * max(1.0, slope)
        else:
            assert found.n_rounds == 2000


def test_too_few_rounds_are_told():
    node, steps, offsets = chains(3, (-1, 1), 1.0)
    found = refine(node, steps, offsets, (-1, 1), max_rounds=2)
    assert (found.n_rounds, found.settled) == (2, False)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert refine(node, steps, offsets, (-1, 1)).settled


def test_one_directed_distance_settles_where_forward_substitution_does():
    """The plain rounds are exact after as many as the sequence is long, whatever the couplings."""
    for seed in range(6):
        node, steps, offsets = chains(seed, (-1,), 5.0)
        p = softmax(node, axis=1)
        for a, b in pairwise(offsets.tolist()):
            for t in range(a + 1, b):
                p[t] = softmax(node[t] + p[t - 1] @ steps[0])
        found = refine(node, steps, offsets, (-1,))
        assert found.settled
        np.testing.assert_allclose(found.probabilities, p, atol=1e-8)


def test_strongly_coupled_sequences_do_not_depend_on_others_beside_them():
    for seed in range(6):
        node, steps, offsets = chains(seed, (-1,), 5.0)
        whole = refine(node, steps, offsets, (-1,)).probabilities
        for a, b in pairwise(offsets.tolist()):
            alone = refine(node[a:b], steps, np.array([0, b - a]), (-1,)).probabilities
            np.testing.assert_allclose(whole[a:b], alone, atol=1e-6)


#: labels, strength of the couplings, distances and seed of sequences that go in circles of more
#: than two rounds
CIRCLES = [
    (3, 2.0, (-2, -1, 1, 2), 6),
    (3, 5.0, (-2, -1, 1, 2), 7),
    (5, 2.0, (-1, 1), 3),
    (5, 3.0, (-1, 1), 9),
    (5, 5.0, (-1, 1), 11),
]


@pytest.mark.parametrize(("s", "strength", "distances", "seed"), CIRCLES)
def test_couplings_that_go_in_circles_are_settled(s, strength, distances, seed):
    given = *chains(seed, distances, strength, s=s), distances
    p = softmax(given[0], axis=1)
    for _ in range(300):
        p = one_round(p, *given)
    assert left_at(p, *given) > 1e-3
    found = refine(*given)
    assert found.settled
    assert left_at(found.probabilities, *given) <= 1e-9 * 20 * strength


def test_settled_sequences_take_no_further_rounds(monkeypatch):
    node, _, _ = chains(0, (-1, 1), 0.5, n=40)
    strong = np.array([[0.0, 9.0, 0.0], [0.0, 0.0, 9.0], [9.0, 0.0, 0.0]])
    sizes = []

    def counted(total, axis):
        sizes.append(len(total))
        return softmax(total, axis=axis)

    monkeypatch.setattr(pseudo, "softmax", counted)
    # single tokens settle at once; the one pair never does, each label wanting the other one moved
    node, offsets = node[:60], np.concatenate([np.arange(59), [60]])
    found = refine(node, np.stack([strong, strong]), offsets, (-1, 1), max_rounds=50)
    assert not found.settled
    assert sizes[-1] == 2
    np.testing.assert_array_equal(found.probabilities[:58], softmax(node[:58], axis=1))
