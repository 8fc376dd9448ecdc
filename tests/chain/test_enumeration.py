"""Chain inference against the list of all labellings.

Scores lie on a dyadic grid, so that sums of them are exact in float64 and max-product results
can be compared with ``==``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from zlib import crc32

import numpy as np
import pytest

from seqfield import chain
from seqfield.chain import ChainScores
from seqfield.chain._chunks import _chunk, forward
from seqfield.chain._numba import RANGE, TINY
from seqfield.chain.reference import Enumeration, enumerate_labellings
from seqfield.errors import NoPathError

GRID = 2.0**-16
CASES = 125  # feasible sequences in each random batch
LONGEST = {1: 6, 2: 6, 3: 5, 4: 4}
SCALES = (0.1, 1.0, 10.0, 100.0, 1e4, "mixed")
RANDOM = list(product((1, 2, 3, 4), ("stationary", "positional"), SCALES, (0, 1)))
RANDOM = [key for i, key in enumerate(RANDOM) if key[0] > 1 or i % 2 == 0]
ADVERSARIAL = ("recovery", "dead end", "patterns", "patterns S=3", "range", "tiny", "unused edge")


def on_grid(values):
    return np.round(np.asarray(values, dtype=np.float64) / GRID) * GRID


@dataclass
class Batch:
    """Sequences that have a path, what enumeration says of each, and random extra arguments."""

    scores: ChainScores
    allowed: np.ndarray | None
    found: list[Enumeration]
    rng: np.random.Generator
    magnitude: float

    @property
    def log_z(self):
        return np.array([each.log_z for each in self.found])

    def split(self, values):
        return np.split(values, self.scores.offsets[1:-1])

    def close(self, actual, expected, *, size=1.0):
        """Relative 1e-10; the absolute floor only grows with the size of a cancelling sum."""
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12 * size)

    def part(self, keep):
        """The sequences ``keep`` alone."""
        tokens = np.concatenate([np.arange(*self.scores.offsets[i : i + 2]) for i in keep])
        lengths = np.diff(self.scores.offsets)[keep]
        edge = self.scores.edge if self.scores.stationary else self.scores.edge[tokens]
        return Batch(
            ChainScores(
                self.scores.node[tokens],
                edge,
                np.r_[0, np.cumsum(lengths)],
                self.scores.start,
                self.scores.end,
            ),
            None if self.allowed is None else self.allowed[tokens],
            [self.found[i] for i in keep],
            self.rng,
            self.magnitude,
        )


@lru_cache
def indicators(n_labels, l):
    """One column for each (t, j) and then for each (t, i, j), one row for each labelling."""
    labels = np.array(list(product(range(n_labels), repeat=l)))
    one = np.eye(n_labels)[labels]
    pairs = one[:, :-1, :, None] * one[:, 1:, None, :]
    return np.hstack([one.reshape(len(labels), -1), pairs.reshape(len(labels), -1)])


def unpack(values, n_labels, l):
    """Rows (l, S) of the nodes and (l, S, S) of the pairs, zero at the first token."""
    cut = l * n_labels
    pairs = np.zeros((l, n_labels, n_labels))
    pairs[1:] = values[cut:].reshape(l - 1, n_labels, n_labels)
    return values[:cut].reshape(l, n_labels), pairs


def exact_marginals(batch):
    s = batch.scores.n_labels
    rows = []
    for e in batch.found:
        l = e.labels.shape[1]
        rows.append(unpack(e.probabilities @ indicators(s, l), s, l))
    return np.concatenate([r[0] for r in rows]), np.concatenate([r[1] for r in rows])


def finish(scores, allowed, rng, n_cases=None):
    """Check that the first sequence without a path is named, then keep those that have one."""
    found = [enumerate_labellings(scores, i, allowed) for i in range(scores.n_sequences)]
    feasible = [i for i, each in enumerate(found) if each.log_z > -np.inf]
    if len(feasible) < len(found):
        bad = next(i for i, each in enumerate(found) if each.log_z == -np.inf)
        for function in (chain.log_partition, chain.marginals, chain.viterbi, chain.entropy):
            with pytest.raises(NoPathError, match=rf"^sequence {bad} has"):
                function(scores, allowed=allowed)
    if n_cases is not None:
        assert len(feasible) >= n_cases, "the batch has too few sequences with a path"
        feasible = feasible[:n_cases]
    finite = scores.node[np.isfinite(scores.node)]
    whole = Batch(scores, allowed, found, rng, float(np.abs(finite).max()))
    return whole.part(feasible)


def random_batch(n_labels, kind, scale, variant):
    rng = np.random.default_rng([n_labels, len(kind), SCALES.index(scale), variant])
    n = 3 * CASES
    lengths = rng.integers(1, LONGEST[n_labels] + 1, n)
    offsets = np.r_[0, np.cumsum(lengths)]
    shape = (offsets[-1], n_labels)

    def draw(shape):
        factor = 10.0 ** rng.uniform(-1, 4, shape) if scale == "mixed" else scale
        return on_grid(rng.standard_normal(shape) * factor)

    node = draw(shape)
    density = np.repeat(rng.choice([0.0, 0.0, 0.1, 0.3], n), lengths)[:, None]
    node[rng.random(shape) < density] = -np.inf
    many = n_labels > 1
    forbid_edges = variant == 1 and (many or kind == "positional")
    if kind == "stationary":
        edge = draw((n_labels, n_labels))
        if forbid_edges:
            edge.flat[rng.choice(edge.size, edge.size // 4, replace=False)] = -np.inf
    else:
        edge = draw((offsets[-1], n_labels, n_labels))
        if forbid_edges:
            edge[rng.random(edge.shape) < 0.15] = -np.inf
        edge[offsets[:-1]] = 7.0  # ignored
    start, end = (draw((n_labels,)) if rng.random() < 0.6 else None for _ in range(2))
    for part in (start, end):
        if part is not None and many and rng.random() < 0.4:
            part[rng.integers(n_labels)] = -np.inf
    allowed = None
    if variant == 1:
        unknown = np.repeat(rng.random(n) < 0.5, lengths)[:, None]
        allowed = unknown | (rng.random(shape) < 0.7)
    return finish(ChainScores(node, edge, offsets, start, end), allowed, rng, CASES)


def adversarial_batch(name):
    """Sequences made to underflow the scaled form, or to pass it only just."""
    rng = np.random.default_rng([99, ADVERSARIAL.index(name)])
    nodes, edges = [], []
    tiny = -math.log(TINY)

    def sequence(node, edge, end=(0.0, 0.0)):
        node, edge = np.array(node, dtype=float), np.array(edge, dtype=float)
        node[-1] += np.asarray(end)
        nodes.append(on_grid(node))
        edges.append(np.broadcast_to(on_grid(edge), (len(node), *edge.shape)))

    def ramp(early, late, n_early, l):
        node = np.zeros((l, 2))
        node[:n_early, 1], node[n_early:, 1] = -early, late
        return node + rng.normal(size=(l, 2))

    l = 11
    never, rarely = np.array([[0, -np.inf], [-np.inf, 0]]), np.array([[0, -5.0], [-7.0, 0]])
    if name == "recovery":
        # a state far behind catches up by the last token
        for late in (5.0, 40.0, 70.0, 110.0, 150.0, 229.0, 231.0, 650.0, 900.0, 1e4):
            for n_early in (1, 2, 4):
                for edge in (never, rarely, rarely * 30):
                    gain = late * (l - n_early) / n_early
                    sequence(ramp(gain + rng.normal(), late, n_early, l), edge)
        sequence(ramp(1e4, 1e3, 1, l), never)
        sequence(ramp(1e4, 650.0, 1, l), rarely * 1e3)
    elif name == "dead end":
        # the state that has all the forward mass turns out to be forbidden at the last token
        for early in (1.0, 20.0, 41.9, 42.0, 46.0, 46.1, 80.0, 229.0, 231.0, 745.0, 1e4):
            for edge in (never, [[0, -np.inf], [0, 0]], [[0, -200.0], [-np.inf, 0]]):
                sequence(ramp(early, -early, l, l), edge, (-np.inf, 0.0))
    elif name.startswith("patterns"):
        s = 3 if name.endswith("3") else 2
        for _ in range(70):
            size = rng.choice([20.0, 76.0, 114.9, 115.1, 150.0, 229.0, 231.0, 460.0, 745.0, 1e4])
            values = np.array([0.0, 0.0, size, -size, 1.0, -np.inf])
            own = rng.choice(values, size=(6 if s == 3 else 9, s))
            between = rng.choice(values[[0, 1, 3, 4, 5]], size=(len(own), s, s))
            nodes.append(on_grid(own + rng.normal(size=own.shape)))
            edges.append(on_grid(between + rng.normal(size=between.shape)))
    elif name == "range":
        # total range just below, at and just above the constant
        for total in (RANGE - 1e-3, RANGE - GRID, RANGE, RANGE + GRID, RANGE + 1e-3):
            for share in (0.0, 0.3, 1.0):
                high = on_grid(share * total)
                rest = on_grid(total) - high
                node = rng.choice([0.0, high], size=(9, 2))
                edge = rng.choice([0.0, rest], size=(9, 2, 2))
                node[0], edge[1, 0], edge[1, 1] = (0.0, high), (0.0, rest), (rest, 0.0)
                nodes.append(node)
                edges.append(edge)
                nodes.append(node[:, ::-1])
                edges.append(-edge)
    elif name == "tiny":
        # a message just above and just below the constant, in scores of safe range
        for n_early in (3, 4, 5):
            for excess in (-1.0, -1e-3, -2 * GRID, 0.0, 2 * GRID, 1e-3, 1.0):
                for edge in (never, rarely):
                    node = np.zeros((l, 2))
                    node[:n_early, 1] = -(tiny + excess) / n_early
                    node[n_early:, 1] = tiny / (l - n_early)
                    if np.ptp(node) > RANGE:
                        node[n_early:, 1] = RANGE - 12.0 + node[:n_early, 1].min()
                    sequence(node, edge)
    elif name == "unused edge":
        # the largest edge score belongs to a label that no token may have
        for level in (-100.0, -210.0, -218.0, -229.0):
            for gap in (0.0, 5.0, 10.5, 11.0):
                edge = np.full((3, 3), -np.inf)
                edge[0, 0], edge[1, 1], edge[2, 2] = level, level - gap, 0.0
                node = np.zeros((7, 3))
                node[:, 2] = -np.inf
                node[-1, 0] = -np.inf if gap else 0.0
                sequence(node, edge, (0.0, 0.0, 0.0))
    offsets = np.r_[0, np.cumsum([len(node) for node in nodes])]
    edge = np.concatenate(edges)
    edge[offsets[:-1]] = 7.0  # ignored
    return finish(ChainScores(np.concatenate(nodes), edge, offsets), None, rng)


def name_of(key):
    return key if isinstance(key, str) else "-".join(map(str, key))


@pytest.fixture(scope="module", params=[*RANDOM, *ADVERSARIAL], ids=name_of)
def built(request):
    key = request.param
    return adversarial_batch(key) if isinstance(key, str) else random_batch(*key)


@pytest.fixture
def batch(built, request):
    """The batch, with random numbers that depend on the name of the test alone."""
    built.rng = np.random.default_rng(crc32(request.node.name.encode()))
    return built


def test_there_are_ten_thousand_random_cases():
    assert len(RANDOM) * CASES >= 10_000


def test_the_oracle_itself():
    """A third way: recursion over labellings in plain Python with exact summation."""
    rng = np.random.default_rng(3)
    for s, l in ((1, 1), (2, 1), (3, 4), (2, 5)):
        node, edge = rng.normal(size=(l + 2, s)), rng.normal(size=(l + 2, s, s))
        start, end = rng.normal(size=s), rng.normal(size=s)
        allowed = rng.random((l + 2, s)) < 0.9
        allowed[:, 0] = True
        scores = ChainScores(node, edge, [0, 2, l + 2], start, end)
        found = enumerate_labellings(scores, 1, allowed)

        weights = {}
        for y in product(range(s), repeat=l):
            terms = [start[y[0]], end[y[-1]], *(node[t + 2, y[t]] for t in range(l))]
            terms += [edge[t + 2, y[t - 1], y[t]] for t in range(1, l)]
            possible = all(allowed[t + 2, y[t]] for t in range(l))
            weights[y] = math.exp(math.fsum(terms)) if possible else 0.0
        z = math.fsum(weights.values())
        assert found.log_z == pytest.approx(math.log(z), rel=1e-13)
        assert [tuple(row) for row in found.labels] == list(weights)
        np.testing.assert_allclose(found.probabilities, np.array(list(weights.values())) / z, 1e-13)
        for t, j in product(range(l), range(s)):
            p = math.fsum(w for y, w in weights.items() if y[t] == j) / z
            assert found.node(s)[t, j] == pytest.approx(p, rel=1e-12)
        for t, i, j in product(range(1, l), range(s), range(s)):
            p = math.fsum(w for y, w in weights.items() if y[t - 1] == i and y[t] == j) / z
            assert found.pairs(s)[t, i, j] == pytest.approx(p, rel=1e-12)
        assert not found.pairs(s)[0].any()


def test_log_partition(batch):
    log_z = chain.log_partition(batch.scores, allowed=batch.allowed)
    batch.close(log_z, batch.log_z, size=max(1.0, batch.magnitude / 100))


def test_marginals(batch):
    node, pairs = exact_marginals(batch)
    own = batch.found[0]
    np.testing.assert_allclose(
        node[: own.labels.shape[1]], own.node(batch.scores.n_labels), rtol=1e-12, atol=1e-300
    )
    plain = chain.marginals(batch.scores, allowed=batch.allowed)
    assert plain.pairs is None
    batch.close(plain.node, node)
    assert plain.node.min() >= 0
    assert plain.node.max() <= 1
    batch.close(plain.log_z, batch.log_z, size=max(1.0, batch.magnitude / 100))

    each = chain.marginals(batch.scores, allowed=batch.allowed, pairs="each")
    np.testing.assert_array_equal(each.node, plain.node)
    batch.close(each.pairs, pairs)
    assert not each.pairs[batch.scores.offsets[:-1]].any()

    weights = batch.rng.normal(size=batch.scores.n_sequences)
    lengths = np.diff(batch.scores.offsets)
    for w in (None, weights):
        total = chain.marginals(batch.scores, allowed=batch.allowed, pairs="sum", weights=w)
        np.testing.assert_array_equal(total.node, plain.node)
        per_token = np.repeat(np.ones(len(lengths)) if w is None else w, lengths)
        expected = np.tensordot(per_token, pairs, axes=1)
        batch.close(total.pairs, expected, size=len(lengths))


def test_forbidden_labels_have_probability_exactly_zero(batch):
    node, pairs = exact_marginals(batch)
    ours = chain.marginals(batch.scores, allowed=batch.allowed, pairs="each")
    s = batch.scores.n_labels
    for i, e in enumerate(batch.found):
        l = e.labels.shape[1]
        a, b = batch.scores.offsets[i : i + 2]
        possible = (e.scores > -np.inf) @ indicators(s, l)
        may_node, may_pair = unpack(possible, s, l)
        assert not ours.node[a:b][may_node == 0].any()
        assert not ours.pairs[a:b][may_pair == 0].any()
        # and nothing that is possible with a probability in range is lost
        assert (ours.node[a:b][(may_node > 0) & (node[a:b] > 1e-250)] > 0).all()
        assert (ours.pairs[a:b][(may_pair > 0) & (pairs[a:b] > 1e-250)] > 0).all()


def test_viterbi(batch):
    best = chain.viterbi(batch.scores, allowed=batch.allowed)
    assert best.labels.dtype == np.int32
    for e, y, score in zip(batch.found, batch.split(best.labels), best.score, strict=True):
        assert score == e.scores.max()
        assert e.scores[index(y, batch.scores.n_labels)] == score


def index(labels, n_labels):
    """Row of a labelling in the list of all."""
    return int(np.ravel_multi_index(tuple(labels), (n_labels,) * len(labels)))


def check_nbest(batch, n):
    lists = chain.nbest(batch.scores, n, allowed=batch.allowed)
    assert len(lists) == len(batch.found)
    for e, ours in zip(batch.found, lists, strict=True):
        possible = np.sort(e.scores[e.scores > -np.inf])[::-1]
        assert len(ours) == min(n, len(possible))
        rows = [index(y, batch.scores.n_labels) for y, _ in ours]
        assert len(set(rows)) == len(rows)
        # scores are exact on the grid: the list is the true one, in order
        np.testing.assert_array_equal(e.scores[rows], possible[: len(ours)])
        log_p = np.array([p for _, p in ours])
        floor = 1e-12 * max(1.0, batch.magnitude)
        np.testing.assert_allclose(log_p, e.scores[rows] - e.log_z, rtol=1e-10, atol=floor)
        sums = np.cumsum(np.exp(log_p))
        assert (np.diff(sums) >= 0).all()
        assert sums[-1] <= 1 + 1e-9
        if len(ours) == len(possible):
            assert sums[-1] == pytest.approx(1.0, abs=1e-10)


def test_nbest(batch):
    for n in (1, 2, 6):
        check_nbest(batch, n)


def test_nbest_of_all_labellings_has_probability_one(batch):
    short = [i for i, e in enumerate(batch.found) if len(e.labels) <= 300]
    few = [i for i in short if len(batch.found[i].labels) <= 30]
    keep = sorted({*few[:8], *short[:4]})
    if keep:
        part = batch.part(keep)
        most = max(len(e.labels) for e in part.found)
        check_nbest(part, most)
        check_nbest(part, most + 3)


def test_posterior_decode(batch):
    node, _ = exact_marginals(batch)
    labels = chain.posterior_decode(batch.scores, allowed=batch.allowed)
    s = batch.scores.n_labels
    rows = zip(batch.found, batch.split(labels), batch.split(node), strict=True)
    for e, y, p in rows:
        l = len(y)
        right = indicators(s, l)[:, : l * s] @ p.ravel()
        ours = index(y, s)
        assert e.scores[ours] > -np.inf
        assert right[ours] == pytest.approx(right[e.scores > -np.inf].max(), rel=1e-10)


def test_log_prob(batch):
    s = batch.scores.n_labels
    anything = batch.rng.integers(s, size=batch.scores.n_tokens)
    best = chain.viterbi(batch.scores, allowed=batch.allowed).labels
    for labels in (anything, best):
        log_p = chain.log_prob(batch.scores, labels, allowed=batch.allowed)
        pick = zip(batch.found, batch.split(labels), strict=True)
        expected = [e.scores[index(y, s)] - e.log_z for e, y in pick]
        batch.close(log_p, expected, size=max(1.0, batch.magnitude))


def test_entropy(batch):
    expected = []
    for e in batch.found:
        p = e.probabilities[e.probabilities > 0]
        log_p = (e.scores - e.log_z)[e.probabilities > 0]
        expected.append(-(p * log_p).sum())
    batch.close(chain.entropy(batch.scores, allowed=batch.allowed), expected, size=20.0)


def test_count_distribution(batch):
    s = batch.scores.n_labels
    node_hits = batch.rng.integers(0, 3, size=batch.scores.node.shape)
    pair_hits = batch.rng.integers(0, 3, size=(s, s))
    for pair in (None, pair_hits):
        ours = chain.count_distribution(batch.scores, node_hits, pair, allowed=batch.allowed)
        assert len(ours) == len(batch.found)
        for e, hits, p in zip(batch.found, batch.split(node_hits), ours, strict=True):
            l = len(hits)
            count = hits[np.arange(l), e.labels].sum(axis=1)
            if pair is not None:
                count += pair[e.labels[:, :-1], e.labels[:, 1:]].sum(axis=1)
            expected = np.bincount(count, weights=e.probabilities, minlength=len(p))
            assert len(expected) == len(p)
            batch.close(p, expected)


def exact_tangent(batch, d_node, d_edge):
    """E[V], the covariance of V with every indicator, and E[1{y_t = j} V]."""
    s = batch.scores.n_labels
    mean, node, pairs, joint = [], [], [], []
    for i, e in enumerate(batch.found):
        a, b = batch.scores.offsets[i : i + 2]
        direction = [d_node[a:b].ravel()]
        for t in range(a + 1, b):
            direction.append((d_edge if d_edge.ndim == 2 else d_edge[t]).ravel())
        table = indicators(s, b - a)
        v = table @ np.concatenate(direction)
        mean.append(e.probabilities @ v)
        n, p = unpack((e.probabilities * (v - mean[-1])) @ table, s, b - a)
        node.append(n)
        pairs.append(p)
        joint.append(unpack((e.probabilities * v) @ table, s, b - a)[0])
    return np.array(mean), np.concatenate(node), np.concatenate(pairs), np.concatenate(joint)


@pytest.mark.parametrize("d_edge_kind", [None, "stationary", "positional"])
def test_tangent_and_expectation(batch, d_edge_kind):
    s = batch.scores.n_labels
    d_node = batch.rng.normal(size=batch.scores.node.shape)
    d_edge = {
        None: None,
        "stationary": batch.rng.normal(size=(s, s)),
        "positional": batch.rng.normal(size=(batch.scores.n_tokens, s, s)),
    }[d_edge_kind]
    known = np.zeros((s, s)) if d_edge is None else d_edge
    mean, node, pairs, joint = exact_tangent(batch, d_node, known)
    # covariances are differences of products of size |V|, up to about 10 here
    total = chain.tangent(batch.scores, d_node, d_edge, allowed=batch.allowed)
    batch.close(total.mean, mean, size=10.0)
    batch.close(total.node, node, size=10.0)
    batch.close(total.pairs, pairs.sum(axis=0), size=10.0 * batch.scores.n_tokens)
    each = chain.tangent(batch.scores, d_node, d_edge, allowed=batch.allowed, pairs="each")
    np.testing.assert_array_equal(each.node, total.node)
    batch.close(each.pairs, pairs, size=10.0)
    none = chain.tangent(batch.scores, d_node, d_edge, allowed=batch.allowed, pairs=None)
    np.testing.assert_array_equal(none.node, total.node)
    assert none.pairs is None

    value, with_label = chain.expectation(batch.scores, d_node, d_edge, allowed=batch.allowed)
    batch.close(value, mean, size=10.0)
    batch.close(with_label, joint, size=10.0)


def test_expectation_of_reciprocal_marginals(batch):
    """V = sum_t 1{y_t = gold_t} / P(y_t = gold_t), as the marginal loss needs it: E[V] = l.

    V is as large as the gold labels are improbable, and its expectations must not suffer.
    """
    node, _ = exact_marginals(batch)
    tokens = np.arange(len(node))
    gold = batch.rng.integers(node.shape[1], size=len(node))
    gold = np.where(node[tokens, gold] > 1e-250, gold, node.argmax(axis=1))
    v = np.zeros_like(node)
    v[tokens, gold] = 1 / node[tokens, gold]
    mean, joint = chain.expectation(batch.scores, v, allowed=batch.allowed)
    no_edge = np.zeros((node.shape[1], node.shape[1]))
    _, _, _, expected = exact_tangent(batch, v, no_edge)
    batch.close(mean, np.diff(batch.scores.offsets), size=100.0)
    batch.close(joint, expected, size=100.0)


def test_samples_are_possible_labellings(batch):
    s = batch.scores.n_labels
    draws = chain.sample(batch.scores, 3, random_state=1, allowed=batch.allowed)
    assert draws.min() >= 0
    assert draws.max() < s
    for labels in draws:
        for e, y in zip(batch.found, batch.split(labels), strict=True):
            assert e.probabilities[index(y, s)] > 0


def forbid(batch):
    """The same scores with the allowed-label sets written as -inf node scores."""
    if batch.allowed is None:
        return batch.scores
    x = batch.scores
    node = np.where(batch.allowed, x.node, -np.inf)
    return ChainScores(node, x.edge, x.offsets, x.start, x.end)


@pytest.mark.parametrize("cost", [1.0, 0.25, -3.0, 1000.0])
def test_hamming_augmented_viterbi(batch, cost):
    s = batch.scores.n_labels
    gold = batch.rng.integers(s, size=batch.scores.n_tokens)
    augmented = chain.hamming_augmented(batch.scores, gold, cost)
    best = chain.viterbi(augmented, allowed=batch.allowed)
    golds = batch.split(gold)
    for e, g, y, score in zip(
        batch.found, golds, batch.split(best.labels), best.score, strict=True
    ):
        total = e.scores + cost * (e.labels != g).sum(axis=1)
        assert score == total.max()
        assert total[index(y, s)] == score


def test_viterbi_by_distance(batch):
    s = batch.scores.n_labels
    gold = batch.rng.integers(s, size=batch.scores.n_tokens)
    ours = chain.viterbi_by_distance(forbid(batch), gold)
    assert len(ours) == len(batch.found)
    for e, g, (labels, best) in zip(batch.found, batch.split(gold), ours, strict=True):
        distance = (e.labels != g).sum(axis=1)
        assert labels.shape == (len(g) + 1, len(g))
        assert best.shape == (len(g) + 1,)
        for h in range(len(g) + 1):
            expected = e.scores[distance == h].max(initial=-np.inf)
            assert best[h] == expected
            if expected > -np.inf:
                assert (labels[h] != g).sum() == h
                assert e.scores[index(labels[h], s)] == expected


def test_allowed_sets_are_forbidden_node_scores(batch):
    """Both ways of saying it give the same bits."""
    if batch.allowed is None:
        return
    one = chain.marginals(batch.scores, allowed=batch.allowed, pairs="each")
    other = chain.marginals(forbid(batch), pairs="each")
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("l", [22, 60, 400])
@pytest.mark.parametrize("size", [0.5, 20.0, 115.0, 229.0, 231.0, 650.0, 1e4])
def test_chains_that_never_switch(l, size):
    """With forbidden switches there are S labellings of any length: each has one label.

    A label falls far behind and recovers, in long walks that no enumeration could follow.
    """
    rng = np.random.default_rng([l, int(size)])
    s, n = 3, 6
    walk = rng.choice([0.0, -size, size / 2], size=(n, l, s)) + rng.normal(size=(n, l, s))
    walk[:, :, 0] = 0.0
    walk[0, 0, 1], walk[0, 1:21, 1] = -20 * size, size  # 20 steps make up for the first
    # bring the three labels level at the end, with a difference that can be seen
    walk[:, -1] -= walk.sum(axis=1) - rng.normal(size=(n, s))
    walk = on_grid(walk)
    edge = np.where(np.eye(s, dtype=bool), on_grid(-3.0), -np.inf)
    total = walk.sum(axis=1) - 3.0 * (l - 1)
    high = total.max(axis=1, keepdims=True)
    log_z = high[:, 0] + np.log(np.exp(total - high).sum(axis=1))
    p = np.exp(total - log_z[:, None])
    scores = ChainScores(walk.reshape(-1, s), edge, np.arange(n + 1) * l)

    # messages are sums of l terms of this size, each rounded
    rounding = 1e-12 + 1e-15 * l * max(1.0, size)
    ours = chain.marginals(scores, pairs="sum")
    np.testing.assert_allclose(ours.log_z, log_z, rtol=1e-12, atol=rounding)
    np.testing.assert_allclose(ours.node, np.repeat(p, l, axis=0), rtol=0, atol=rounding)
    np.testing.assert_allclose(ours.pairs, np.diag(p.sum(axis=0)) * (l - 1), atol=n * l * rounding)
    h = -(p * np.log(p)).sum(axis=1)
    np.testing.assert_allclose(chain.entropy(scores), h, rtol=0, atol=10 * rounding)
    np.testing.assert_array_equal(chain.viterbi(scores).score, high[:, 0])
    best = np.repeat(total.argmax(axis=1), l)
    np.testing.assert_array_equal(chain.viterbi(scores).labels, best)
    # Var[number of tokens labelled 1] = l^2 p (1 - p): all positions move together
    change = chain.tangent(scores, np.tile([0.0, 1.0, 0.0], (n * l, 1)), pairs=None)
    np.testing.assert_allclose(change.mean, l * p[:, 1], rtol=0, atol=l * rounding)
    sums = np.add.reduceat(change.node[:, 1], scores.offsets[:-1])
    np.testing.assert_allclose(sums, l**2 * p[:, 1] * (1 - p[:, 1]), atol=10 * l**2 * rounding)


@pytest.mark.parametrize("deep", [200.0, 229.0, 240.0, 300.0, 500.0])
@pytest.mark.parametrize("behind", [400.0, 440.0, 459.0, 461.0, 510.0, 560.0, 590.0, 700.0])
def test_one_deep_step_after_a_small_message(behind, deep):
    """The product of a message near TINY and a weight near exp(-RANGE) must not become 0.

    Label 1 falls ``behind`` in small steps, then ``deep`` in one, by its node score or by its
    edge score, and is then the only label left, or catches up.
    """
    small, l = 10, 60
    never = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    nodes, edges = [], []
    for place, rescue in product(("node", "edge", "first"), ("dead end", "recovery")):
        node, edge = np.zeros((l, 2)), np.tile(never, (l, 1, 1))
        node[1 : small + 1, 1] = on_grid(-behind / small)
        if place == "node":
            node[small + 1, 1] = -deep
        elif place == "edge":
            edge[small + 1, 1, 1] = -deep
        else:
            node[0, 1] = -deep
        if rescue == "dead end":
            node[-1, 0] = -np.inf
        else:
            node[small + 2 :, 1] = on_grid((behind + deep) / (l - small - 2))
        nodes.append(node)
        edges.append(edge)
    n = len(nodes)
    scores = ChainScores(np.concatenate(nodes), np.concatenate(edges), np.arange(n + 1) * l)
    total = np.array([node.sum(axis=0) for node in nodes])
    total[:, 1] += np.array([edge[1:, 1, 1].sum() for edge in edges])
    log_z = np.logaddexp(total[:, 0], total[:, 1])
    p = np.exp(total - log_z[:, None])
    ours = chain.marginals(scores, pairs="sum")
    np.testing.assert_allclose(ours.log_z, log_z, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(ours.node, np.repeat(p, l, axis=0), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(ours.pairs, np.diag(p.sum(axis=0)) * (l - 1), rtol=1e-10)
    h = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    np.testing.assert_allclose(chain.entropy(scores), h, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("ignored", [0.0, -np.inf, 800.0, 1e4, -1e4, 1e308, -1e308])
def test_edge_scores_of_first_tokens_are_ignored(ignored):
    rng = np.random.default_rng(0)
    node, edge = rng.normal(size=(6, 3)), rng.normal(size=(6, 3, 3))
    offsets = [0, 1, 4, 6]
    expected = chain.marginals(ChainScores(node, edge, offsets), pairs="each")
    other = edge.copy()
    other[[0, 1, 4]] = ignored
    scores = ChainScores(node, other, offsets)
    for a, b in zip(chain.marginals(scores, pairs="each"), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(chain.log_partition(scores), expected.log_z)
    best = chain.viterbi(ChainScores(node, edge, offsets))
    np.testing.assert_array_equal(chain.viterbi(scores).score, best.score)
    alone = ChainScores(node[:1], np.full((1, 3, 3), ignored))
    np.testing.assert_allclose(chain.log_partition(alone), expected.log_z[0], rtol=1e-14)
    np.testing.assert_allclose(chain.marginals(alone).node, expected.node[:1], rtol=1e-14)


def test_the_adversarial_batches_reach_both_forms():
    """They would test little if all of their sequences took the same form."""
    forms = {}
    for name in ADVERSARIAL:
        scores = adversarial_batch(name).scores
        forms[name] = forward(_chunk(scores, None, 0, scores.n_sequences)).safe
    for name in ("recovery", "dead end", "range", "tiny"):
        assert forms[name].any(), name
        assert not forms[name].all(), name
