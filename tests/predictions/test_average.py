"""Averages of chains against sums over all labellings."""

from __future__ import annotations

import weakref
from itertools import pairwise, product

import numpy as np
import pytest

from seqfield import chain
from seqfield.chain import ChainScores
from seqfield.data.schemes import span_codes
from seqfield.errors import InputError
from seqfield.labels import LabelSet
from seqfield.predictions.average import Average

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


def some_weights(n, kind):
    """Weights (n, 3) of chains, or None for equal ones."""
    if kind == "equal":
        return None
    return np.random.default_rng(10).dirichlet(np.ones(n), size=3).T


def mixture(some, i, weights=None):
    """All labellings of sequence i and their mean probabilities."""
    found, _ = enumerated(some[0], i)
    each = [enumerated(scores, i)[1] for scores in some]
    return found, np.average(each, axis=0, weights=None if weights is None else weights[:, i])


cases = pytest.mark.parametrize("forbidden", [False, True])
numbers = pytest.mark.parametrize("n", [2, 3, 7])
weighing = pytest.mark.parametrize("kind", ["equal", "weights"])


@cases
@numbers
@weighing
def test_marginals(n, forbidden, kind):
    some, weights = draws(n, forbidden=forbidden), some_weights(n, kind)
    before = [scores.node.copy() for scores in some]
    got = Average(some, weights, 1).marginals()
    for i in range(3):
        found, p = mixture(some, i, weights)
        for t in range(LENGTHS[i]):
            want = [sum(q for y, q in zip(found, p, strict=True) if y[t] == k) for k in range(S)]
            np.testing.assert_allclose(got[OFFSETS[i] + t], want, atol=1e-12)
    for scores, node in zip(some, before, strict=True):
        np.testing.assert_array_equal(scores.node, node)


@cases
@numbers
@weighing
def test_log_prob(n, forbidden, kind):
    some, weights = draws(n, seed=1, forbidden=forbidden), some_weights(n, kind)
    for i in range(3):
        found, p = mixture(some, i, weights)
        same = np.full(len(found), i)
        chosen = [scores.select(same)[1] for scores in some]
        targets = LabelSet(range(S)).encode([list(y) for y in found])
        got = Average(chosen, None if weights is None else weights[:, same], 1).log_prob(targets)
        np.testing.assert_allclose(np.exp(got), p, rtol=1e-10)
        if forbidden:
            assert [np.isneginf(v) for v in got] == [not lawful(y) for y in found]
        assert np.exp(got).sum() == pytest.approx(1.0, rel=1e-12)


@cases
@weighing
def test_log_prob_of_what_is_not_known(forbidden, kind):
    some, weights = draws(5, seed=2, forbidden=forbidden), some_weights(5, kind)
    rows = [[None], [{0, 2}, None, 0], [0, 2, {1, 2}, None]]
    got = Average(some, weights, 1).log_prob(LabelSet(range(S)).encode(rows))
    for i, row in enumerate(rows):
        found, p = mixture(some, i, weights)
        options = [set(range(S)) if v is None else v if isinstance(v, set) else {v} for v in row]
        fits = [all(k in o for k, o in zip(y, options, strict=True)) for y in found]
        assert np.exp(got[i]) == pytest.approx(p[fits].sum(), rel=1e-10)
    if forbidden:
        rows[2] = [0, 1, None, None]
        got = Average(some, weights, 1).log_prob(LabelSet(range(S)).encode(rows))
        assert got[2] == -np.inf


@cases
@numbers
@weighing
def test_decodings(n, forbidden, kind):
    """The best product and the best sum of averaged marginals, among what is allowed."""
    for seed in range(4):
        some = Average(draws(n, seed=seed, forbidden=forbidden), some_weights(n, kind), 1)
        node = some.marginals()
        with np.errstate(divide="ignore"):
            logs = np.log(node)
        for decode, values in (
            (some.viterbi, logs),
            (some.posterior_decode, node),
        ):
            got = decode()
            for i in range(3):
                a, b = OFFSETS[i], OFFSETS[i + 1]
                options = [y for y in product(range(S), repeat=b - a) if not forbidden or lawful(y)]
                best = max(sum(values[a + t, k] for t, k in enumerate(y)) for y in options)
                mine = tuple(got[a:b].tolist())
                assert mine in options
                assert sum(values[a + t, k] for t, k in enumerate(mine)) == pytest.approx(best)


@cases
@numbers
@weighing
@pytest.mark.parametrize("best", [1, 2, 5])
def test_nbest(n, forbidden, best, kind):
    """Of the union of the draws' own n best, in order, with probabilities of the mixture."""
    some, weights = draws(n, seed=3, forbidden=forbidden), some_weights(n, kind)
    got = Average(some, weights, 1).nbest(best)
    for i in range(3):
        found, p = mixture(some, i, weights)
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


@weighing
def test_nbest_of_all_labellings_sums_to_one(kind):
    some = draws(3, seed=4)
    for best in Average(some, some_weights(3, kind), 1).nbest(81):
        assert np.exp([q for _, q in best]).sum() == pytest.approx(1.0, rel=1e-10)


@cases
@weighing
def test_sample(forbidden, kind):
    some, weights = draws(3, seed=5, forbidden=forbidden), some_weights(3, kind)
    n = 20000
    got = Average(some, weights, 1).sample(n, 0)
    assert got.shape == (n, OFFSETS[-1])
    assert got.dtype == np.int32
    for i in range(3):
        found, p = mixture(some, i, weights)
        place = {y: k for k, y in enumerate(found)}
        drawn = np.array([place[tuple(y)] for y in got[:, OFFSETS[i] : OFFSETS[i + 1]].tolist()])
        count = np.bincount(drawn, minlength=len(found))
        assert (count[p == 0] == 0).all()
        # five standard errors of each
        assert (np.abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9).all()
    a, b = got[:, OFFSETS[0]], got[:, OFFSETS[1]]
    joint = np.histogram2d(a, b, bins=(range(S + 1), range(S + 1)))[0] / n
    if weights is None:  # a draw of all sequences is from one chain: they depend on each other
        each = [chain.marginals(scores).node[[OFFSETS[0], OFFSETS[1]]] for scores in some]
        want = np.mean([np.outer(one[0], one[1]) for one in each], axis=0)
    else:  # each sequence has weights of its own, and chooses for itself
        want = np.outer(*Average(some, weights).marginals()[[OFFSETS[0], OFFSETS[1]]])
    assert (np.abs(joint - want) < 5 * np.sqrt(want / n) + 1e-9).all()


@weighing
def test_sample_goes_by_the_seed(kind):
    some, weights = draws(4, seed=6), some_weights(4, kind)
    first = Average(some, weights, 1).sample(50, 7)
    np.testing.assert_array_equal(first, Average(some, weights, 1).sample(50, 7))
    again = Average(some, weights, 2).sample(50, np.random.default_rng(7))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, Average(some, weights, 1).sample(50, 8))


# --- events ------------------------------------------------------------------------------------


def spans_of(y):
    """Spans (kind, first, last) with 0 outside, 1 a beginning and 2 what goes on."""
    out = []
    for t, k in enumerate(y):
        if k == 2 and out and out[-1][-1] == t - 1:
            out[-1] = (0, out[-1][1], t)
        elif k:
            out.append((0, t, t))
    return out


CODES = span_codes(["O", "B-x", "I-x"])


@cases
@numbers
@weighing
def test_windows(n, forbidden, kind):
    """Each window has the weights of its own sequence, in whatever order they are asked."""
    some, weights = draws(n, seed=11, forbidden=forbidden), some_weights(n, kind)
    asked = [(2, [{0, 2}, {1, 2}]), (0, [{0}]), (1, [{0, 1}, {0, 1, 2}, {0}]), (2, [{2}])]
    first, masks, wanted = [], [], []
    for i, options in asked:
        at = int(LENGTHS[i]) - len(options)
        first.append(OFFSETS[i] + at)
        masks.append(np.array([[k in one for k in range(S)] for one in options]))
        found, p = mixture(some, i, weights)
        fits = [all(k in o for k, o in zip(y[at:], options, strict=True)) for y in found]
        wanted.append(p[fits].sum())
    got = Average(some, weights, 1).window_prob(first, masks)
    np.testing.assert_allclose(got, wanted, rtol=1e-10)


@cases
@numbers
@weighing
def test_spans(n, forbidden, kind):
    some, weights = draws(n, seed=12, forbidden=forbidden), some_weights(n, kind)
    average = Average(some, weights, 1)
    likely = average.likely_spans(CODES, 0.1)
    for i in range(3):
        found, p = mixture(some, i, weights)
        wanted = {}
        for y, q in zip(found, p, strict=True):
            for span in spans_of(y):
                wanted[span] = wanted.get(span, 0.0) + q
        rows = [(i, k, OFFSETS[i] + a, OFFSETS[i] + b) for k, a, b in wanted]
        got = average.span_prob(CODES, rows)
        np.testing.assert_allclose(got, list(wanted.values()), rtol=1e-9, atol=1e-14)
        own = likely.rows[:, 0] == i
        listed = [(k, a - OFFSETS[i], b - OFFSETS[i]) for _, k, a, b in likely.rows[own].tolist()]
        assert len(listed) == len(set(listed))
        assert set(listed) == {span for span, q in wanted.items() if q >= 0.1}
        want = [wanted[span] for span in listed]
        np.testing.assert_allclose(likely.probability[own], want, rtol=1e-9)


@cases
@numbers
@weighing
def test_expectation(n, forbidden, kind):
    some, weights = draws(n, seed=13, forbidden=forbidden), some_weights(n, kind)
    rng = np.random.default_rng(0)
    node, edge = rng.normal(size=(OFFSETS[-1], S)), rng.normal(size=(S, S))
    got = Average(some, weights, 1).expectation(node, edge)
    for i in range(3):
        found, p = mixture(some, i, weights)
        values = [
            sum(node[OFFSETS[i] + t, k] for t, k in enumerate(y))
            + sum(edge[pair] for pair in pairwise(y))
            for y in found
        ]
        assert got[i] == pytest.approx(p @ values, rel=1e-10)


@cases
@weighing
def test_entropy(forbidden, kind):
    """Of an average by 32 drawn labellings, which err by chance alone."""
    some, weights = draws(4, seed=14, forbidden=forbidden), some_weights(4, kind)
    got = Average(some, weights, 1).entropy()
    for i in range(3):
        p = mixture(some, i, weights)[1]
        p = p[p > 0]
        entropy = -(p * np.log(p)).sum()
        sd = np.sqrt((p * (np.log(p) + entropy) ** 2).sum() / 32)
        assert abs(got[i] - entropy) < 4 * sd + 1e-12


@cases
def test_entropy_of_one_chain_is_exact(forbidden):
    some = draws(1, seed=14, forbidden=forbidden)
    got = Average(some, None, 1).entropy()
    for i in range(3):
        p = mixture(some, i)[1]
        p = p[p > 0]
        assert got[i] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-10)


@pytest.mark.parametrize("n", [-1, 0, 1.5, "two"])
def test_bad_numbers_of_samples(n):
    for count in (1, 3):
        with pytest.raises(InputError, match="n must be"):
            Average(draws(count), None, 1).sample(n, 0)


@pytest.mark.parametrize("n", [0, 1.5])
def test_bad_numbers_of_labellings(n):
    for count in (1, 3):
        with pytest.raises(InputError, match="n must be"):
            Average(draws(count), None, 1).nbest(n)


# --- one chain, or the same chain again and again ----------------------------------------------


@cases
def test_one_draw_is_the_plain_chain(forbidden):
    (one,) = draws(1, seed=8, forbidden=forbidden)
    some = Average([one], None, 1)
    np.testing.assert_array_equal(some.marginals(), chain.marginals(one).node)
    y = [[0], [0, 2, 0], [2, 0, 0, 2] if not forbidden else [2, 0, 0, 0]]
    targets = LabelSet(range(S)).encode(y)
    want = chain.log_prob(one, targets.codes)
    np.testing.assert_array_equal(some.log_prob(targets), want)
    np.testing.assert_array_equal(some.viterbi(), chain.viterbi(one).labels)
    np.testing.assert_array_equal(some.posterior_decode(), chain.posterior_decode(one))
    for got, plain in zip(some.nbest(4), chain.nbest(one, 4), strict=True):
        assert [(c.tolist(), v) for c, v in got] == [(c.tolist(), v) for c, v in plain]
    want = chain.sample(one, 9, random_state=3)
    np.testing.assert_array_equal(some.sample(9, 3), want)


@cases
@pytest.mark.parametrize("weights", [None, np.array([[0.5], [0.3], [0.2]]) * np.ones(3)])
def test_equal_draws_are_the_plain_chain(forbidden, weights):
    (one,) = draws(1, seed=9, forbidden=forbidden)
    some = Average([one] * 3, weights, 1)
    np.testing.assert_allclose(some.marginals(), chain.marginals(one).node, rtol=1e-12)
    np.testing.assert_array_equal(some.posterior_decode(), chain.posterior_decode(one))
    for got, plain in zip(some.nbest(4), chain.nbest(one, 4), strict=True):
        assert [c.tolist() for c, _ in got] == [c.tolist() for c, _ in plain]
        np.testing.assert_allclose([v for _, v in got], [v for _, v in plain], rtol=1e-10)


def test_marginals_of_many_draws_are_not_held_all_at_once(monkeypatch):
    plain, alive, most = chain.marginals, weakref.WeakSet(), 0

    class Node(np.ndarray):
        """An array that a weak set can hold."""

        __hash__ = object.__hash__

    def counted(scores, **options):
        nonlocal most
        found = plain(scores, **options)
        node = found.node.view(Node)
        alive.add(node)
        most = max(most, len(alive))
        return found._replace(node=node)

    wanted = Average(draws(10)).marginals()
    monkeypatch.setattr(chain, "marginals", counted)
    np.testing.assert_array_equal(Average(draws(10)).marginals(), wanted)
    assert most <= 3
