"""The compiled log-likelihood of all sequences against `chain.log_partition`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from seqfield.chain import ChainScores, log_partition
from seqfield.chain._numba_total import (
    RANGE,
    by_token,
    exponents,
    log_likelihood,
    path_scores,
    turn,
)
from seqfield.sequences import offsets_of

EVERYTHING = np.zeros((0, 1), np.bool_)


def batch(s, seed, *, n=9, longest=60, distinct=25):
    """Scores f (rows, S) and g (S, rows), the row of each token, offsets and weights."""
    rng = np.random.default_rng([seed, s])
    lengths = np.append([1, longest], rng.integers(1, longest + 1, n - 2))
    offsets = offsets_of(lengths)
    index = rng.integers(distinct, size=offsets[-1])
    f = rng.normal(size=(distinct, s))
    g = rng.normal(size=(s, distinct)).astype(np.float32)  # as prior draws come
    return rng, f, g, index, offsets, rng.uniform(0.2, 3.0, n)


def total(f, g, a, b, index, edge, offsets, weights, allowed=EVERYTHING, level=-np.inf):
    """Minus the log-likelihood of labels whose scores are 0: the sum of log Z. With ``allowed``,
    what the labels that are held take of it."""
    s, longest = f.shape[1], int(np.diff(offsets).max())
    scores = np.empty((len(index), s)), np.empty((len(index), s), g.dtype)
    by_token(f, g, index, *scores)
    known = np.zeros((len(weights) if len(allowed) == 0 else 0, 2))
    chains = offsets, weights, np.empty((longest, s)), np.empty(longest * s, np.int64)
    return -log_likelihood(*scores, a, b, edge, known, allowed, chains, level)


def between(f, g, a, b):
    return a * f + b * g.T.astype(np.float64)


def expected(node, edge, offsets, weights, allowed=None):
    found = log_partition(ChainScores(node, edge, offsets), allowed=allowed)
    return float(weights @ found)


@pytest.mark.parametrize("s", range(1, 18))
def test_rows_that_are_shared_by_tokens(s):
    rng, f, g, index, offsets, weights = batch(s, 0)
    edge = rng.normal(size=(s, s))
    a, b = np.cos(1.1), np.sin(1.1)
    got = total(f, g, a, b, index, edge, offsets, weights)
    want = expected(between(f, g, a, b)[index], edge, offsets, weights)
    assert got == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("s", [1, 2, 3, 5, 8, 13, 17])
def test_labels_that_a_token_may_have(s):
    rng, f, g, index, offsets, weights = batch(s, 1)
    edge = rng.normal(size=(s, s))
    n = len(index)
    allowed = rng.random((n, s)) < 0.4
    allowed[np.arange(n), rng.integers(s, size=n)] = True
    a, b = -0.3, 1.7
    got = total(f, g, a, b, index, edge, offsets, weights, allowed)
    node = between(f, g, a, b)[index]
    free = expected(node, edge, offsets, weights)
    want = free - expected(node, edge, offsets, weights, allowed)
    assert got == pytest.approx(want, rel=1e-11, abs=1e-11)
    if s > 1:
        assert got > 1.0


@pytest.mark.parametrize("partly", [False, True])
def test_a_sum_ends_where_it_is_below_the_level(partly):
    """What is given then is the sum of the first sequences, and every later one is lower."""
    rng, f, g, index, offsets, weights = batch(4, 6)
    edge, allowed = rng.normal(size=(4, 4)), EVERYTHING
    if partly:
        allowed = rng.random((len(index), 4)) < 0.4
        allowed[:, 2] = True
    sums = []
    for n in range(1, len(weights) + 1):
        some = index[: offsets[n]], edge, offsets[: n + 1], weights[:n], allowed[: offsets[n]]
        sums.append(-total(f, g, 0.6, 0.8, *some))
    if partly:
        assert (np.diff(sums) <= 0).all()
    rest = index, edge, offsets, weights, allowed
    for level in (sums[0] / 2, sums[3], (sums[4] + sums[5]) / 2, sums[-1]):
        want = next(value for value in sums if value <= level)
        assert -total(f, g, 0.6, 0.8, *rest, level) == pytest.approx(want, rel=1e-14)
    assert -total(f, g, 0.6, 0.8, *rest, sums[-1] - 1e-9) == pytest.approx(sums[-1], rel=1e-14)


def test_path_scores():
    rng, f, g, index, offsets, _ = batch(3, 7)
    steps, other = rng.normal(size=(2, 3, 3))
    y = rng.integers(3, size=len(index))
    got = path_scores(f[index], g.T[index], steps, other, y, offsets)
    for i, (first, last) in enumerate(pairwise(offsets)):
        here = y[first:last]
        for k, (node, edge) in enumerate(((f, steps), (g.T, other))):
            want = node[index[first:last], here].sum() + edge[here[:-1], here[1:]].sum()
            assert got[i, k] == pytest.approx(want, rel=1e-5 if k else 1e-12)


def test_exponents():
    _, f, g, index, _, _ = batch(5, 2)
    allowed = np.random.default_rng(0).random((len(index), 5)) < 0.5
    allowed[:, 3] = True
    w = np.empty((len(index), 5))
    top = exponents(f[index], g.T[index], 0.8, -0.6, allowed, w)
    want = np.where(allowed, between(f, g, 0.8, -0.6)[index], -np.inf)
    largest = want.max(axis=1)
    assert top == pytest.approx(largest.sum(), rel=1e-14)
    assert (w.max(axis=1) == 0.0).all()
    assert np.isneginf(w[~allowed]).all()
    np.testing.assert_allclose((w + largest[:, None])[allowed], want[allowed], atol=1e-14)


def test_turn():
    _, f, g, *_ = batch(4, 3)
    before, kept = f.copy(), g.copy()
    turn(f, g, 0.6, 0.8)
    np.testing.assert_allclose(f, between(before, kept, 0.6, 0.8), rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(g, kept)


@pytest.mark.parametrize("s", [2, 5, 17])
@pytest.mark.parametrize("spread", [30.0, 300.0, 1000.0, 1e5])
def test_extreme_node_scores(s, spread):
    """Nothing overflows, and labels that hardly count do not spoil those that do."""
    rng, f, g, index, offsets, weights = batch(s, 4)
    f = rng.uniform(-spread, spread, size=f.shape)
    edge = 3.0 * rng.normal(size=(s, s))
    got = total(f, g, 1.0, 0.0, index, edge, offsets, weights)
    want = expected(f[index], edge, offsets, weights)
    assert got == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("s", [2, 3, 6])
@pytest.mark.parametrize("spread", [0.0, 1.0, 100.0, 500.0, 1000.0])
@pytest.mark.parametrize("shift", [0.0, 700.0])
def test_transitions_of_the_largest_range(s, spread, shift):
    """Every message may be e^-RANGE of the last one, in long sequences and in either direction."""
    rng, f, g, index, offsets, weights = batch(s, 5)
    f = rng.uniform(-spread, spread, size=f.shape)
    for edge in (rng.uniform(0.0, RANGE, (s, s)), RANGE * (rng.random((s, s)) < 0.5)):
        edge[0, 0], edge[0, 1] = 0.0, 0.999 * RANGE
        edge += shift
        got = total(f, g, 1.0, 0.0, index, edge, offsets, weights)
        want = expected(f[index], edge, offsets, weights)
        assert got == pytest.approx(want, rel=1e-12)


def one_chain(node, edge):
    n = len(node)
    where = np.arange(n)
    empty = np.zeros((node.shape[1], n))
    return total(node, empty, 1.0, 0.0, where, edge, np.array([0, n]), np.ones(1))


@pytest.mark.parametrize("range_", [50.0, 150.0, 200.0, 249.9])
def test_a_label_that_matters_only_later(range_):
    """Label 1 is unlikely by almost as much as the transitions make up for later.

    The scores below hold label 0 against a staying score of -range_, so that its messages shrink
    each step, and give label 1 a share just above e^-range_ of the third; the fourth token can be
    reached from label 1 for nothing.
    """
    edge = np.zeros((2, 2))
    edge[0, 0] = -range_
    for share in np.linspace(0.9, 1.02, 13):
        node = np.zeros((6, 2))
        node[0, 1] = -1000.0
        node[1, 1] = -range_ * 2.4
        node[2, 1] = -range_ * (1.0 + share)
        node[3:, 1] = -1000.0
        want = float(log_partition(ChainScores(node, edge))[0])
        assert one_chain(node, edge) == pytest.approx(want, rel=1e-12)


def test_random_searches_for_lost_mass():
    """Scores of a few sizes in all combinations: what one step loses another may ask for."""
    rng = np.random.default_rng(0)
    sizes = np.array([0.0, 1.0, 120.0, 240.0, 249.0, 360.0, 490.0, 600.0, 740.0, 1000.0])
    for _ in range(400):
        s, n = rng.integers(2, 4), rng.integers(2, 9)
        node = -rng.choice(sizes, (n, s))
        node[np.arange(n), rng.integers(s, size=n)] = 0.0
        edge = -rng.choice(sizes[sizes < RANGE], (s, s))
        want = float(log_partition(ChainScores(node, edge))[0])
        assert one_chain(node, edge) == pytest.approx(want, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("bad", [1.001 * RANGE, 1e4, np.inf, np.nan])
def test_too_large_a_range_is_told(bad):
    edge = np.zeros((3, 3))
    assert np.isfinite(one_chain(np.zeros((4, 3)), edge))
    for place in ((0, 0), (1, 2), (2, 2)):
        for sign in (1.0, -1.0):
            edge = np.zeros((3, 3))
            edge[place] = sign * bad
            assert np.isnan(one_chain(np.zeros((4, 3)), edge))
