"""Second derivatives of objectives against differences and against all labellings."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.architectures.kernel import Gram
from seqfield.architectures.linear import Linear
from seqfield.architectures.lookup import Lookup
from seqfield.architectures.rooted import Rooted
from seqfield.chain import marginals
from seqfield.chain.constraint import Constraint
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import Allowed
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of

S = 3


def tokens(lengths, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    offsets = offsets_of(lengths)
    y = rng.integers(S, size=offsets[-1])
    y[:2] = 0, 1
    mask = None
    codes = y.astype(np.int32)
    if missing:
        mask = np.arange(S) == y[:, None]
        mask[np.random.default_rng(1).random(len(y)) < missing] = True
        codes = np.where(mask.all(axis=1), -1, y).astype(np.int32)
    return rng, offsets, Targets(codes, mask, offsets)


def goal(kind, lengths=(1, 4, 2, 3), seed=0, missing=0.0, cost=0.0, constraint=None, n_jobs=1):
    rng, offsets, targets = tokens(lengths, seed, missing)
    x = rng.normal(size=(offsets[-1], 4))
    edge = None
    gram = np.exp(-0.2 * ((x[:, None] - x) ** 2).sum(-1)) if kind == "gram" else None
    numbers = np.arange(len(x), dtype=float)[:, None]
    if kind == "edges":
        edge = sp.csr_array(rng.normal(size=(len(x), 2)))
    rows = sp.csr_array(x) if kind in ("edges", "linear") else numbers
    data = Sequences(rows, offsets, edge)
    architecture = {
        "linear": lambda: Linear.build(data, targets, S, observed=False),
        "edges": lambda: Linear.build(data, targets, S, observed=False),
        "rooted": lambda: Rooted(S, x, 0.5),
        "gram": lambda: Gram(S, len(x), lambda v: gram @ v, 0.5),
        "lookup": lambda: Lookup(S, len(x)),
    }[kind]()
    weights = rng.uniform(0.5, 2.0, len(lengths))
    prior = ElasticNet(0.0, 0.0 if kind == "lookup" else 0.4)
    return Objective(
        architecture, LogLoss(cost), prior, data, targets, weights, constraint, n_jobs
    ), rng


LAW = Constraint.of(
    Allowed(np.ones(S, bool), np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]], bool), np.ones(S, bool))
)


def point(one, rng):
    """A random function; the gram architecture's theta must have F = G A."""
    theta = rng.normal(size=one.architecture.n_parameters)
    if hasattr(one.architecture, "multiply"):
        a = one.architecture.coefficients(theta)
        theta[a.size : 2 * a.size] = one.architecture.multiply(a).ravel()
    return theta


@pytest.mark.parametrize("kind", ["linear", "edges", "rooted", "gram", "lookup"])
@pytest.mark.parametrize("options", [{}, {"missing": 0.5}, {"cost": 1.0}, {"constraint": LAW}])
def test_products_equal_differences_of_gradients(kind, options):
    one, rng = goal(kind, **options)
    theta, directions = point(one, rng), np.stack([point(one, rng) for _ in range(3)])
    got = one.curvature(theta)(directions)
    for row, v in zip(got, directions, strict=True):
        ends = [one.value_and_grad(theta + r * v)[1] for r in (1e-5, -1e-5)]
        np.testing.assert_allclose(row, (ends[0] - ends[1]) / 2e-5, atol=2e-8, rtol=1e-6)
    np.testing.assert_array_equal(got[1], one.curvature(theta)(directions[1]))


def all_covariances(one, theta):
    """W by enumeration, by table entries and transitions, and its block form."""
    scores = one.architecture.scores(one.architecture.lift(theta), one._shards[0].design)
    n, offsets = scores.n_tokens, scores.offsets
    size = n * S + S * S
    full, block = np.zeros((size, size)), np.zeros((size, size))

    def add(into, w, p, hits):
        centred = hits - p @ hits
        into += w * centred.T @ (p[:, None] * centred)

    for i, w in enumerate(one.weights):
        found = enumerate_labellings(scores, i)
        a, b = offsets[i], offsets[i + 1]
        hits = np.zeros((len(found.labels), size))
        each = np.arange(len(hits))
        for t in range(a, b):
            own = np.zeros_like(hits)
            own[each, t * S + found.labels[:, t - a]] = 1.0
            add(block, w, found.probabilities, own)
            hits += own
            if t > a:
                own = np.zeros_like(hits)
                pair = found.labels[:, t - 1 - a] * S + found.labels[:, t - a]
                own[each, n * S + pair] = 1.0
                add(block, w, found.probabilities, own)
                hits += own
        add(full, w, found.probabilities, hits)
    return full, block


def test_w_equals_enumeration():
    one, rng = goal("lookup")
    theta = point(one, rng)
    full, block = all_covariances(one, theta)
    unit = np.eye(len(theta))
    np.testing.assert_allclose(one.curvature(theta)(unit), full, atol=1e-12)
    np.testing.assert_allclose(one.curvature(theta, fisher=True)(unit), full, atol=1e-12)
    np.testing.assert_allclose(one.curvature(theta, block=True)(unit), block, atol=1e-12)
    assert np.abs(full - block).max() > 0.1


@pytest.mark.parametrize("kind", ["linear", "edges", "rooted"])
def test_with_labels_missing_the_fisher_form_is_positive(kind):
    one, rng = goal(kind, missing=0.6)
    theta = 2.0 * point(one, rng)
    unit = np.eye(len(theta))
    values = np.linalg.eigvalsh(one.curvature(theta, fisher=True)(unit))
    assert values[0] > 0.4 - 1e-9
    assert np.linalg.eigvalsh(one.curvature(theta)(unit))[0] < 0.4
    # known labels or not: the covariance of p(y | x) is the same
    other, _ = goal(kind)
    np.testing.assert_allclose(
        other.curvature(theta, fisher=True)(unit),
        one.curvature(theta, fisher=True)(unit),
        atol=1e-12,
    )
    assert one.curvature(theta, fisher=True).drawable
    assert not one.curvature(theta).drawable


def test_the_block_form_counts_known_tokens_and_pairs():
    one, rng = goal("lookup", missing=0.5)
    theta = point(one, rng)
    complete, _ = goal("lookup")
    known = one.targets.codes >= 0
    offsets = one.data.offsets
    assert known.any()
    assert not known.all()
    want = complete.curvature(theta, block=True)(np.eye(len(theta)))
    nodes = len(known) * S
    found = one.curvature(theta, block=True)(np.eye(len(theta)))
    seen = np.repeat(known, S)
    np.testing.assert_allclose(
        found[:nodes, :nodes], want[:nodes, :nodes] * np.outer(seen, seen), atol=1e-12
    )
    # transitions: the sum over pairs of known tokens, each as if it stood alone
    both = known & np.append(False, known[:-1])
    both[offsets[:-1]] = False
    (shard,) = one._shards
    scores = one.architecture.scores(one.architecture.lift(theta), shard.design)
    p = marginals(scores, pairs="each").pairs.reshape(len(known), -1)
    weights = np.repeat(one.weights, np.diff(offsets))
    steps = sum(weights[t] * (np.diag(p[t]) - np.outer(p[t], p[t])) for t in np.flatnonzero(both))
    np.testing.assert_allclose(found[nodes:, nodes:], steps, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "edges", "rooted", "lookup"])
@pytest.mark.parametrize("block", [False, True])
def test_draws_have_the_covariance(kind, block):
    one, rng = goal(kind)
    h = one.curvature(point(one, rng), block, fisher=True)
    n = one.architecture.n_parameters
    want = h(np.eye(n)) - one.prior.c2 * np.eye(n)
    drawn = h.draws(1500, np.random.default_rng(1))
    for v in rng.normal(size=(5, n)):
        along = drawn @ v
        assert abs(along.mean()) < 4 * along.std() / np.sqrt(len(along))
        squares = along**2
        error = squares.std() / np.sqrt(len(squares))
        assert abs(squares.mean() - v @ want @ v) < 4 * error


@pytest.mark.parametrize("block", [False, True])
def test_the_same_for_all_numbers_of_threads(block):
    found = []
    for n_jobs in (1, 3):
        one, rng = goal("rooted", lengths=[9] * 1000, n_jobs=n_jobs)
        assert len(one._shards) > 1
        theta = point(one, rng)
        h = one.curvature(theta, block, fisher=True)
        found.append((h(rng.normal(size=(3, len(theta)))), h.draws(2, np.random.default_rng(0))))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
