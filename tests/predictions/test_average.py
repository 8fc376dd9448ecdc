"""Averages of chains against sums over all labellings."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from seqfield import chain
from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.estimators import _average
from seqfield.labels import LabelSet

S = 3
OFFSETS = np.array([0, 1, 4, 8])
LENGTHS = np.diff(OFFSETS)


def draws(n=4, seed=0, *, forbidden=False, spread=1.5):
    """Chains on the same sequences; with the same labellings ruled out in each."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        node = rng.normal(scale=spread, size=(OFFSETS[-1], S))
        edge = rng.normal(scale=spread, size=(S, S))
        start = end = None
        if forbidden:
            edge[[0, 1], [1, 1]] = -np.inf
            start, end = np.array([0.0, -np.inf, 0.0]), np.array([0.0, 0.0, -np.inf])
        out.append(ChainScores(node, edge, OFFSETS, start, end))
    return out


def lawful(y):
    pairs = list(pairwise(y))
    return y[0] != 1 and y[-1] != 2 and (0, 1) not in pairs and (1, 1) not in pairs


def enumerated(scores, i):
    """All labellings of sequence i and their probabilities."""
    a, b = OFFSETS[i], OFFSETS[i + 1]
    found = list(product(range(S), repeat=b - a))
    logs = []
    for y in found:
        value = sum(scores.node[a + t, k] for t, k in enumerate(y))
        value += sum(scores.edge[j, k] for j, k in pairwise(y))
        if scores.start is not None:
            value += scores.start[y[0]] + scores.end[y[-1]]
        logs.append(value)
    p = np.exp(np.array(logs) - max(logs))
    return found, p / p.sum()


def mixture(some, i):
    """All labellings of sequence i and their mean probabilities."""
    found, _ = enumerated(some[0], i)
    return found, np.mean([enumerated(scores, i)[1] for scores in some], axis=0)


cases = pytest.mark.parametrize("forbidden", [False, True])
numbers = pytest.mark.parametrize("n", [2, 3, 7])


@cases
@numbers
def test_marginals(n, forbidden):
    some = draws(n, forbidden=forbidden)
    before = [scores.node.copy() for scores in some]
    got = _average.marginals(some, 1)
    for i in range(3):
        found, p = mixture(some, i)
        for t in range(LENGTHS[i]):
            want = [sum(q for y, q in zip(found, p, strict=True) if y[t] == k) for k in range(S)]
            np.testing.assert_allclose(got[OFFSETS[i] + t], want, atol=1e-12)
    for scores, node in zip(some, before, strict=True):
        np.testing.assert_array_equal(scores.node, node)


@cases
@numbers
def test_log_prob(n, forbidden):
    some = draws(n, seed=1, forbidden=forbidden)
    for i in range(3):
        found, p = mixture(some, i)
        chosen = [scores.select(np.full(len(found), i))[1] for scores in some]
        targets = LabelSet(range(S)).encode([list(y) for y in found])
        got = _average.log_prob(chosen, targets, 1)
        np.testing.assert_allclose(np.exp(got), p, rtol=1e-10)
        if forbidden:
            assert [np.isneginf(v) for v in got] == [not lawful(y) for y in found]
        assert np.exp(got).sum() == pytest.approx(1.0, rel=1e-12)


@cases
def test_log_prob_of_what_is_not_known(forbidden):
    some = draws(5, seed=2, forbidden=forbidden)
    rows = [[None], [{0, 2}, None, 0], [0, 2, {1, 2}, None]]
    got = _average.log_prob(some, LabelSet(range(S)).encode(rows), 1)
    for i, row in enumerate(rows):
        found, p = mixture(some, i)
        options = [set(range(S)) if v is None else v if isinstance(v, set) else {v} for v in row]
        fits = [all(k in o for k, o in zip(y, options, strict=True)) for y in found]
        assert np.exp(got[i]) == pytest.approx(p[fits].sum(), rel=1e-10)
    if forbidden:
        rows[2] = [0, 1, None, None]
        got = _average.log_prob(some, LabelSet(range(S)).encode(rows), 1)
        assert got[2] == -np.inf


@cases
@numbers
def test_decodings(n, forbidden):
    """The best product and the best sum of averaged marginals, among what is allowed."""
    for seed in range(4):
        some = draws(n, seed=seed, forbidden=forbidden)
        node = _average.marginals(some, 1)
        with np.errstate(divide="ignore"):
            logs = np.log(node)
        for decode, values in (
            (_average.viterbi, logs),
            (_average.posterior_decode, node),
        ):
            got = decode(some, 1)
            for i in range(3):
                a, b = OFFSETS[i], OFFSETS[i + 1]
                options = [y for y in product(range(S), repeat=b - a) if not forbidden or lawful(y)]
                best = max(sum(values[a + t, k] for t, k in enumerate(y)) for y in options)
                mine = tuple(got[a:b].tolist())
                assert mine in options
                assert sum(values[a + t, k] for t, k in enumerate(mine)) == pytest.approx(best)


@cases
@numbers
@pytest.mark.parametrize("best", [1, 2, 5])
def test_nbest(n, forbidden, best):
    """Of the union of the draws' own n best, in order, with probabilities of the mixture."""
    some = draws(n, seed=3, forbidden=forbidden)
    got = _average.nbest(some, best, 1)
    for i in range(3):
        found, p = mixture(some, i)
        place = {y: k for k, y in enumerate(found)}
        union = set()
        for scores in some:
            _, own = enumerated(scores, i)
            order = np.argsort(-own, kind="stable")[:best]
            union |= {k for k in order if own[k] > 0}
        want = sorted((p[k] for k in union), reverse=True)[:best]
        assert len(got[i]) == len(want)
        np.testing.assert_allclose([np.exp(q) for _, q in got[i]], want, rtol=1e-10)
        for codes, q in got[i]:
            assert np.exp(q) == pytest.approx(p[place[tuple(codes.tolist())]], rel=1e-10)
        assert len({tuple(codes.tolist()) for codes, _ in got[i]}) == len(got[i])
        if forbidden:
            assert all(lawful(tuple(codes.tolist())) for codes, _ in got[i])


def test_nbest_of_all_labellings_sums_to_one():
    some = draws(3, seed=4)
    for best in _average.nbest(some, 81, 1):
        assert np.exp([q for _, q in best]).sum() == pytest.approx(1.0, rel=1e-10)


@cases
def test_sample(forbidden):
    some = draws(3, seed=5, forbidden=forbidden)
    n = 20000
    got = _average.sample(some, n, 0, 1)
    assert got.shape == (n, OFFSETS[-1])
    assert got.dtype == np.int32
    for i in range(3):
        found, p = mixture(some, i)
        place = {y: k for k, y in enumerate(found)}
        drawn = np.array([place[tuple(y)] for y in got[:, OFFSETS[i] : OFFSETS[i + 1]].tolist()])
        count = np.bincount(drawn, minlength=len(found))
        assert (count[p == 0] == 0).all()
        # five standard errors of each
        assert (np.abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9).all()
    # a draw of all sequences is from one chain: they depend on each other
    a, b = got[:, OFFSETS[0]], got[:, OFFSETS[1]]
    joint = np.histogram2d(a, b, bins=(range(S + 1), range(S + 1)))[0] / n
    each = [chain.marginals(scores).node[[OFFSETS[0], OFFSETS[1]]] for scores in some]
    want = np.mean([np.outer(one[0], one[1]) for one in each], axis=0)
    assert (np.abs(joint - want) < 5 * np.sqrt(want / n) + 1e-9).all()


def test_sample_goes_by_the_seed():
    some = draws(4, seed=6)
    first = _average.sample(some, 50, 7, 1)
    np.testing.assert_array_equal(first, _average.sample(some, 50, 7, 1))
    np.testing.assert_array_equal(first, _average.sample(some, 50, np.random.default_rng(7), 2))
    assert not np.array_equal(first, _average.sample(some, 50, 8, 1))


@pytest.mark.parametrize("n", [-1, 0, 1.5, "two"])
def test_bad_numbers_of_samples(n):
    for count in (1, 3):
        with pytest.raises(InputError, match="n must be"):
            _average.sample(draws(count), n, 0, 1)


@pytest.mark.parametrize("n", [0, 1.5])
def test_bad_numbers_of_labellings(n):
    for count in (1, 3):
        with pytest.raises(InputError, match="n must be"):
            _average.nbest(draws(count), n, 1)


# --- one chain, or the same chain again and again ----------------------------------------------


@cases
def test_one_draw_is_the_plain_chain(forbidden):
    (one,) = some = draws(1, seed=8, forbidden=forbidden)
    np.testing.assert_array_equal(_average.marginals(some, 1), chain.marginals(one).node)
    y = [[0], [0, 2, 0], [2, 0, 0, 2] if not forbidden else [2, 0, 0, 0]]
    targets = LabelSet(range(S)).encode(y)
    want = chain.log_prob(one, targets.codes)
    np.testing.assert_array_equal(_average.log_prob(some, targets, 1), want)
    np.testing.assert_array_equal(_average.viterbi(some, 1), chain.viterbi(one).labels)
    np.testing.assert_array_equal(_average.posterior_decode(some, 1), chain.posterior_decode(one))
    for got, plain in zip(_average.nbest(some, 4, 1), chain.nbest(one, 4), strict=True):
        assert [(c.tolist(), v) for c, v in got] == [(c.tolist(), v) for c, v in plain]
    want = chain.sample(one, 9, random_state=3)
    np.testing.assert_array_equal(_average.sample(some, 9, 3, 1), want)


@cases
def test_equal_draws_are_the_plain_chain(forbidden):
    (one,) = draws(1, seed=9, forbidden=forbidden)
    some = [one] * 3
    np.testing.assert_allclose(_average.marginals(some, 1), chain.marginals(one).node, rtol=1e-12)
    np.testing.assert_array_equal(_average.posterior_decode(some, 1), chain.posterior_decode(one))
    for got, plain in zip(_average.nbest(some, 4, 1), chain.nbest(one, 4), strict=True):
        assert [c.tolist() for c, _ in got] == [c.tolist() for c, _ in plain]
        np.testing.assert_allclose([v for _, v in got], [v for _, v in plain], rtol=1e-10)
