"""The linear architecture against plain loops, and its pullback against its own Jacobian."""

from __future__ import annotations

from itertools import product
from zlib import crc32

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.architectures._maps import DenseMap, SparseMap
from seqfield.architectures.linear import Linear
from seqfield.errors import InputError
from seqfield.labels import LabelSet
from seqfield.sequences import Sequences, offsets_of

LENGTHS = [1, 5, 2, 7, 3, 1, 6]
KINDS = ("dense", "binary", "int8", "real")
EDGES = (None, "dense", "binary", "real")
N_LABELS = (2, 3, 5, 17)


def features(rng, n, width, kind):
    """(N, D) features; the first columns are frequent and the last ones rare."""
    chance = np.geomspace(0.9, 0.05, width)
    marks = rng.random((n, width)) < chance
    if kind == "dense":
        return rng.normal(size=(n, width))
    if kind == "binary":
        return sp.csr_array(marks)
    if kind == "int8":
        return sp.csr_array((marks * rng.integers(-3, 4, marks.shape)).astype(np.int8))
    return sp.csr_array(marks * rng.normal(size=marks.shape))


def labels(rng, n_labels, known):
    rows = [rng.integers(n_labels, size=length).tolist() for length in LENGTHS]
    rows[1][0], rows[3][2] = 0, n_labels - 1
    if known == "partial":
        rows[1][2] = rows[3][0] = None
        rows[3][4] = {0, n_labels - 1}
        rows[2] = [None, None]
    return LabelSet(range(n_labels)).encode(rows)


class Problem:
    """Random data with its architecture, weights and score gradients."""

    def __init__(self, kind, edge, n_labels, observed, known="full", transitions=True):
        key = (kind, edge, n_labels, observed, known, transitions)
        self.rng = rng = np.random.default_rng(crc32(repr(key).encode()))
        offsets = offsets_of(LENGTHS)
        n, self.s = int(offsets[-1]), n_labels
        e = None if edge is None else features(rng, n, 4, edge)
        self.data = Sequences(features(rng, n, 9, kind), offsets, e)
        self.targets = labels(rng, n_labels, known)
        self.linear = Linear.build(
            self.data, self.targets, n_labels, observed=observed, transitions=transitions
        )
        self.theta = rng.normal(size=self.linear.n_parameters)
        shape = (n_labels, n_labels) if edge is None else (n, n_labels, n_labels)
        self.d_node, self.d_edge = rng.normal(size=(n, n_labels)), rng.normal(size=shape)

    def scores(self, theta):
        scores = self.linear.scores(theta, self.linear.design(self.data))
        once = self.linear.score(theta, self.data)
        np.testing.assert_allclose(once.node, scores.node, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(once.edge, scores.edge, rtol=1e-12, atol=1e-12)
        return scores

    def pullback(self, cuts=()):
        """J' d, from parts of whole sequences."""
        bounds = [0, *cuts, len(LENGTHS)]
        parts = []
        for a, b in zip(bounds[:-1], bounds[1:], strict=True):
            piece = self.data[a:b]
            at = slice(self.data.offsets[a], self.data.offsets[b])
            if self.d_edge.ndim == 3:
                d_edge = self.d_edge[at]
            else:
                d_edge = self.d_edge * (piece.n_tokens / self.data.n_tokens)
            design = self.linear.design(piece)
            pulled = self.linear.pullback(design, self.d_node[at], d_edge)
            assert pulled.shape == design.touched.shape
            parts.append((design, pulled))
        return self.linear.collect(parts)

    def naive_weights(self, theta):
        """Dense (D, S), (S, S) and (E, S^2) weights, from the names of the parameters."""
        linear, s = self.linear, self.s
        node, edge = np.zeros((self.data.n_features, s)), None
        at = 0
        for f, j in zip(*linear.node.names(), strict=True):
            node[f, j] = theta[at]
            at += 1
        pairs = np.zeros((s, s))
        for flat in linear.pairs:
            pairs[flat // s, flat % s] = theta[at]
            at += 1
        if linear.edge is not None:
            edge = np.zeros((self.data.edge.shape[1], s * s))
            for f, j in zip(*linear.edge.names(), strict=True):
                edge[f, j] = theta[at]
                at += 1
        assert at == linear.n_parameters == len(theta)
        return node, pairs, edge


def array(x):
    return (x.toarray() if sp.issparse(x) else x).astype(float)


GRID = list(product(KINDS, EDGES, N_LABELS, (True, False)))
IDS = ["-".join(map(str, key)) for key in GRID]


@pytest.mark.parametrize("key", GRID, ids=IDS)
def test_scores_equal_plain_loops(key):
    problem = Problem(*key)
    node, pairs, edge = problem.naive_weights(problem.theta)
    x, s = array(problem.data.x), problem.s
    scores = problem.scores(problem.theta)
    want = np.zeros((len(x), s))
    for t, j in product(range(len(x)), range(s)):
        want[t, j] = sum(x[t, f] * node[f, j] for f in range(x.shape[1]))
    np.testing.assert_allclose(scores.node, want, rtol=1e-12, atol=1e-12)
    assert scores.offsets.tolist() == problem.data.offsets.tolist()
    np.testing.assert_array_equal(problem.linear.transitions(problem.theta), pairs)
    if edge is None:
        np.testing.assert_array_equal(scores.edge, pairs)
        return
    e = array(problem.data.edge)
    want = np.stack([pairs + sum(row[f] * edge[f] for f in range(4)).reshape(s, s) for row in e])
    np.testing.assert_allclose(scores.edge, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("key", GRID, ids=IDS)
def test_pullback_is_the_adjoint_of_the_scores(key):
    """<d, J v> = <J' d, v> for random v; J is linear, so J v is the score of v."""
    problem = Problem(*key)
    pulled = problem.pullback()
    assert pulled.shape == (problem.linear.n_parameters,)
    for _ in range(3):
        v = problem.rng.normal(size=len(pulled))
        scores = problem.scores(v)
        left = (problem.d_node * scores.node).sum() + (problem.d_edge * scores.edge).sum()
        size = np.abs(problem.d_node * scores.node).sum()
        assert pulled @ v == pytest.approx(left, rel=1e-11, abs=1e-13 * size)


@pytest.mark.parametrize("key", GRID[::3], ids=IDS[::3])
def test_each_entry_of_the_pullback(key):
    problem = Problem(*key)
    pulled = problem.pullback()
    chosen = problem.rng.choice(len(pulled), min(40, len(pulled)), replace=False)
    for k in chosen:
        unit = np.zeros(len(pulled))
        unit[k] = 1.0
        scores = problem.scores(unit)
        want = (problem.d_node * scores.node).sum() + (problem.d_edge * scores.edge).sum()
        assert pulled[k] == pytest.approx(want, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("key", GRID[::2], ids=IDS[::2])
@pytest.mark.parametrize("cuts", [(3,), (1, 2, 5)])
def test_parts_of_the_data_add_up(key, cuts):
    problem = Problem(*key)
    np.testing.assert_allclose(problem.pullback(cuts), problem.pullback(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("key", GRID[::2], ids=IDS[::2])
def test_scores_are_linear_in_theta(key):
    problem = Problem(*key)
    other = problem.rng.normal(size=len(problem.theta))
    a, b = problem.scores(problem.theta), problem.scores(other)
    both = problem.scores(2.0 * problem.theta - 3.0 * other)
    np.testing.assert_allclose(both.node, 2 * a.node - 3 * b.node, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(both.edge, 2 * a.edge - 3 * b.edge, rtol=1e-10, atol=1e-11)


# --- which parameters there are ----------------------------------------------------------------


@pytest.mark.parametrize("n_labels", N_LABELS)
@pytest.mark.parametrize("kind", ["binary", "real"])
@pytest.mark.parametrize("known", ["full", "partial"])
def test_observed_pattern(n_labels, kind, known):
    problem = Problem(kind, "binary", n_labels, True, known)
    x, e = array(problem.data.x), array(problem.data.edge)
    mask = problem.targets.mask(n_labels)
    node, pairs, edge = set(), set(), set()
    for a, b in zip(problem.data.offsets[:-1], problem.data.offsets[1:], strict=True):
        for t in range(a, b):
            now = [] if mask[t].all() else np.flatnonzero(mask[t])
            node |= {(f, j) for f in np.flatnonzero(x[t]) for j in now}
            if t > a:
                before = [] if mask[t - 1].all() else np.flatnonzero(mask[t - 1])
                here = {i * n_labels + j for i in before for j in now}
                pairs |= here
                edge |= {(f, p) for f in np.flatnonzero(e[t]) for p in here}
    linear = problem.linear
    assert list(zip(*linear.node.names(), strict=True)) == sorted(node)
    assert linear.pairs.tolist() == sorted(pairs)
    assert list(zip(*linear.edge.names(), strict=True)) == sorted(edge)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge", EDGES)
def test_full_pattern_has_every_parameter(kind, edge):
    problem = Problem(kind, edge, 3, False, "partial")
    assert problem.linear.n_parameters == 9 * 3 + 9 + (0 if edge is None else 4 * 9)
    assert problem.linear.pairs.tolist() == list(range(9))


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("edge", [None, "binary"])
def test_without_transitions(observed, edge):
    problem = Problem("binary", edge, 3, observed, transitions=False)
    assert len(problem.linear.pairs) == 0
    _, pairs, _ = problem.naive_weights(problem.theta)
    assert not pairs.any()
    if edge is None:
        assert not problem.scores(problem.theta).edge.any()


def test_gradient_of_unseen_weights_does_not_exist_but_their_score_is_zero():
    x = sp.csr_array(np.eye(3))
    data = Sequences(x, [0, 3])
    linear = Linear.build(data, LabelSet([0, 1]).encode([[0, 1, 0]]), 2)
    assert linear.n_parameters == 3 + 2
    scores = linear.scores(np.ones(5), linear.design(data))
    np.testing.assert_array_equal(scores.node, [[1, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(scores.edge, [[0, 1], [1, 0]])


# --- maps --------------------------------------------------------------------------------------


def patterns(n_features, n_columns):
    """Random patterns: from no weight to all of them, features with none among them."""
    rng = np.random.default_rng(n_columns)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        marks = rng.random((n_features, n_columns)) < share
        marks[0], marks[-1] = False, share > 0
        csr = sp.csr_array(marks)
        yield SparseMap(csr.indptr, csr.indices, n_columns), marks


@pytest.mark.parametrize("n_columns", [1, 2, 3, 4, 9, 40])
@pytest.mark.parametrize("kind", ["binary", "int8", "real"])
def test_any_pattern(n_columns, kind):
    rng = np.random.default_rng(5)
    x = features(rng, 30, 8, kind)
    for part, marks in patterns(8, n_columns):
        theta = rng.normal(size=part.n_weights)
        dense = np.zeros(marks.shape)
        dense[marks] = theta
        d = rng.normal(size=(30, n_columns))
        design = part.design(x)
        got = part.apply(theta, design)
        np.testing.assert_allclose(got, array(x) @ dense, rtol=1e-12, atol=1e-12)
        pulled = spread(part, design, d)
        np.testing.assert_allclose(pulled, (array(x).T @ d)[marks], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["binary", "real"])
def test_a_design_touches_the_weights_of_its_features_and_no_others(kind):
    rng = np.random.default_rng(6)
    x = features(rng, 3, 8, kind)
    present = array(x).any(axis=0)
    assert not present.all()
    for part, _ in patterns(8, 5):
        touched = part.design(x).touched
        assert sorted(touched.tolist()) == np.flatnonzero(present[part.names()[0]]).tolist()


def spread(part, design, d):
    """X' d as a vector of all weights."""
    out = np.zeros(part.n_weights)
    out[design.touched] = part.pull(design, d)
    assert len(np.unique(design.touched)) == len(design.touched)
    return out


@pytest.mark.parametrize("make", [DenseMap, SparseMap.full])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csr_matrix])
def test_full_maps_are_matrix_products(make, form):
    rng = np.random.default_rng(3)
    x, w, d = rng.normal(size=(6, 4)), rng.normal(size=(4, 5)), rng.normal(size=(6, 5))
    part = make(4, 5)
    design = part.design(form(x))
    np.testing.assert_allclose(part.apply(w.ravel(), design), x @ w, rtol=1e-12)
    np.testing.assert_allclose(spread(part, design, d), (x.T @ d).ravel(), rtol=1e-11, atol=1e-13)
    feature, column = part.names()
    np.testing.assert_array_equal(w[feature, column], w.ravel())


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_unsorted_and_repeated_entries_count_as_their_sum(dtype):
    indices = np.array([2, 0, 2, 1], dtype)
    indptr = np.array([0, 3, 3, 4], dtype)
    x = sp.csr_array((np.array([1.0, 2.0, 4.0, -1.0]), indices, indptr), shape=(3, 3))
    part = SparseMap.full(3, 2)
    w = np.arange(6.0).reshape(3, 2)
    want = np.array([[2.0, 0.0, 5.0], [0, 0, 0], [0.0, -1.0, 0.0]]) @ w
    np.testing.assert_array_equal(part.apply(w.ravel(), part.design(x)), want)


def test_theta_and_parts_are_not_changed_by_scoring():
    problem = Problem("binary", "real", 5, True)
    theta = problem.theta.copy()
    problem.scores(problem.theta)
    np.testing.assert_array_equal(problem.theta, theta)
    first = problem.pullback((2, 4))
    np.testing.assert_array_equal(first, problem.pullback((2, 4)))


@pytest.mark.parametrize("make", [DenseMap, SparseMap.full])
def test_wrong_number_of_features(make):
    with pytest.raises(InputError, match="X has 4 features, the model 3"):
        make(3, 2).design(np.ones((2, 4)))
