"""The scaled form of `tangent` against the form on backward kernels, which works for any scores."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield import chain
from seqfield.chain import ChainScores, _chunks, _numba_posterior, _numba_tangent
from seqfield.chain._numba import RANGE, TINY
from seqfield.errors import NoPathError

LENGTHS = [1, 7, 1, 2, 30, 12, 3]


def random_scores(lengths, s, *, seed=0, positional=False, scale=1.0, forbid=0.0):
    """Scores in which label 0 all along is a path."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    shape = (n, s, s) if positional else (s, s)
    edge = scale * rng.normal(size=shape)
    edge[rng.random(shape) < forbid] = -np.inf
    edge[..., 0, 0] = scale
    node, ends = scale * rng.normal(size=(n, s)), scale * rng.normal(size=(2, s))
    return ChainScores(node, edge, np.r_[0, np.cumsum(lengths)], *ends)


def random_sets(scores, seed=1):
    allowed = np.random.default_rng(seed).random(scores.node.shape) < 0.7
    allowed[:, 0] = True
    return allowed


def random_direction(scores, kind, seed=2):
    rng = np.random.default_rng(seed)
    n, s = scores.node.shape
    shape = {"none": None, "stationary": (s, s), "positional": (n, s, s)}[kind]
    return rng.normal(size=(n, s)), None if shape is None else rng.normal(size=shape)


def by_kernels(scores, d_node, d_edge, allowed=None):
    """E[V] and the derivatives of the node and of each pair marginal, from backward kernels."""
    n, s = scores.node.shape
    chunk = _chunks._chunk(scores, allowed, 0, scores.n_sequences)
    kernels, node = _chunks.posterior(chunk)
    d_edge = np.zeros((s, s)) if d_edge is None else d_edge
    mean, out, pairs = np.empty(scores.n_sequences), np.empty((n, s)), np.zeros((n, s, s))
    _numba_posterior.tangent(
        kernels, node, chunk.offsets, d_node, d_edge.reshape(-1, s, s), mean, out, pairs
    )
    return mean, out, pairs


def agree(scores, d_node, d_edge, allowed=None, size=1.0):
    mean, out, pairs = by_kernels(scores, d_node, d_edge, allowed)
    close = {"rtol": 1e-10, "atol": 1e-13 * size}
    each = chain.tangent(scores, d_node, d_edge, allowed=allowed, pairs="each")
    np.testing.assert_allclose(each.mean, mean, **close)
    np.testing.assert_allclose(each.node, out, **close)
    np.testing.assert_allclose(each.pairs, pairs, **close)
    total = chain.tangent(scores, d_node, d_edge, allowed=allowed)
    np.testing.assert_array_equal(total.node, each.node)
    np.testing.assert_array_equal(total.mean, each.mean)
    np.testing.assert_allclose(total.pairs, pairs.sum(axis=0), rtol=1e-10, atol=1e-12 * size)
    value, joint = chain.expectation(scores, d_node, d_edge, allowed=allowed)
    np.testing.assert_array_equal(value, each.mean)
    p = chain.marginals(scores, allowed=allowed).node
    expected = out + p * np.repeat(mean, np.diff(scores.offsets))[:, None]
    np.testing.assert_allclose(joint, expected, **close)
    return each


def how_safe(monkeypatch):
    """A list that gets which sequences the scaled form found safe, chunk by chunk."""
    seen = []
    loop = _numba_tangent.tangent_scaled

    def spy(*args):
        loop(*args)
        seen.append(args[4].copy())

    monkeypatch.setattr(_numba_tangent, "tangent_scaled", spy)
    return seen


@pytest.mark.parametrize("direction", ["none", "stationary", "positional"])
@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("s", "scale", "forbid"), [(3, 1, 0), (8, 10, 0.3), (9, 3, 0.3), (22, 3, 0)]
)
def test_both_forms_agree(s, scale, forbid, known, positional, direction, monkeypatch):
    x = random_scores(LENGTHS, s, seed=s, positional=positional, scale=scale, forbid=forbid)
    seen = how_safe(monkeypatch)
    allowed = random_sets(x) if known else None
    ours = agree(x, *random_direction(x, direction), allowed)
    assert np.concatenate(seen).all()
    # what is impossible stays so, exactly
    p = chain.marginals(x, allowed=allowed, pairs="each")
    assert not ours.node[p.node == 0].any()
    assert not ours.pairs[p.pairs == 0].any()
    if known:
        assert (p.node == 0).any()


@pytest.mark.parametrize("direction", ["none", "stationary", "positional"])
@pytest.mark.parametrize("positional", [False, True])
def test_safe_and_unsafe_sequences_in_one_batch(positional, direction, monkeypatch):
    lengths = LENGTHS * 4
    x = random_scores(lengths, 5, seed=3, positional=positional, forbid=0.2)
    hard = np.arange(len(lengths)) % 7 < 3
    node = np.where(np.repeat(hard, lengths)[:, None], 500 * x.node, x.node)
    mixed = ChainScores(node, x.edge, x.offsets, x.start, x.end)
    seen = how_safe(monkeypatch)
    agree(mixed, *random_direction(mixed, direction), random_sets(mixed))
    found = np.concatenate(seen[: len(seen) // 3])
    assert found.any()
    assert not found.all()


def test_a_message_near_underflow_turns_a_sequence_to_kernels(monkeypatch):
    l, s = 60, 3
    node = np.zeros((3 * l, s))
    node[l : 2 * l, 1] = np.r_[np.full(l // 2, -100.0), np.full(l // 2, 100.0)]
    edge = np.where(np.eye(s, dtype=bool), 0.0, -np.inf)
    x = ChainScores(node, edge, [0, l, 2 * l, 3 * l])
    seen = how_safe(monkeypatch)
    agree(x, *random_direction(x, "stationary"), size=10.0)
    np.testing.assert_array_equal(seen[0], [True, False, True])


@pytest.mark.parametrize("size", [1.0, 1e6, 1e9, 1e12, 1e100])
def test_ratios_that_overflow(size, monkeypatch):
    """Label 0 has all the forward mass until the last token forbids it: P/pred is about 1e298."""
    gap, level = 1.0, -228.5
    l = int(-np.log(TINY) / gap)
    edge = np.full((3, 3), -np.inf)
    edge[0, 0], edge[1, 1], edge[2, 2] = level, level - gap, 0.0
    assert -edge[1, 1] <= RANGE
    node = np.zeros((l, 3))
    node[:, 2] = -np.inf
    node[-1, 0] = -np.inf
    easy = np.tile([0.0, 0.0, -np.inf], (5, 1))
    x = ChainScores(np.r_[easy, node, easy], edge, [0, 5, 5 + l, 10 + l])
    d_node, d_edge = random_direction(x, "stationary")
    seen = how_safe(monkeypatch)
    ours = agree(x, size * d_node, size * d_edge, size=size)
    assert np.isfinite(ours.pairs).all()
    np.testing.assert_array_equal(seen[0], [True, size < 1e9, True])


def test_a_direction_may_be_infinite_where_nothing_can_go():
    x = random_scores(LENGTHS, 4, forbid=0.4)
    d_node, d_edge = random_direction(x, "stationary")
    finite = chain.tangent(x, d_node, d_edge)
    other = chain.tangent(x, d_node, np.where(x.edge == -np.inf, -np.inf, d_edge))
    for p, q in zip(finite, other, strict=True):
        np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("kind", ["mixing", "frozen"])
def test_nothing_grows_with_the_length(kind):
    rng = np.random.default_rng(0)
    l, s = 100_000, 3
    node, edge = rng.normal(size=(l, s)), rng.normal(size=(s, s))
    if kind == "frozen":  # a label is kept for all 100,000 tokens
        node, edge = np.zeros((l, s)), np.where(np.eye(s, dtype=bool), 0.0, -np.inf)
    x = ChainScores(node, edge)
    d = rng.normal(size=(l, s))
    ours = chain.tangent(x, d, pairs="each")
    size = max(1.0, np.abs(ours.node).max())
    np.testing.assert_allclose(ours.node.sum(axis=1), 0.0, atol=1e-12 * size)
    np.testing.assert_allclose(ours.pairs.sum(axis=(1, 2)), 0.0, atol=1e-12 * size)
    np.testing.assert_allclose(ours.pairs[1:].sum(axis=1), ours.node[1:], atol=1e-12 * size)
    np.testing.assert_allclose(ours.pairs[1:].sum(axis=2), ours.node[:-1], atol=1e-12 * size)
    p = chain.marginals(x).node
    assert ours.mean[0] == pytest.approx((p * d).sum(), rel=1e-9)
    if kind == "frozen":
        v = d.sum(axis=0)
        expected = np.tile((v - v.mean()) / s, (l, 1))
        np.testing.assert_allclose(ours.node, expected, rtol=1e-10, atol=1e-11 * size)


@pytest.mark.parametrize("pairs", ["sum", "each", None])
def test_the_same_bits_for_any_number_of_threads(pairs):
    lengths = np.random.default_rng(0).integers(1, 60, size=300).tolist()
    x = random_scores(lengths, 11, seed=5)
    hard = np.repeat(np.arange(len(lengths)) % 9 == 4, lengths)[:, None]
    x = ChainScores(np.where(hard, 500 * x.node, x.node), x.edge, x.offsets)
    assert len(_chunks.chunk_bounds(x.offsets, 2**16 // 11)) > 1
    for kind in ("none", "stationary", "positional"):
        d = random_direction(x, kind)
        one = chain.tangent(x, *d, pairs=pairs, n_jobs=1)
        for n_jobs in (2, 4):
            other = chain.tangent(x, *d, pairs=pairs, n_jobs=n_jobs)
            for p, q in zip(one, other, strict=True):
                np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("scale", [1.0, 500.0])
@pytest.mark.parametrize("which", [0, 3, 6])
def test_a_sequence_without_a_labelling_is_named(which, scale):
    x = random_scores(LENGTHS, 3, scale=scale)
    node = x.node.copy()
    node[x.offsets[which]] = -np.inf
    bad = ChainScores(node, x.edge, x.offsets)
    with pytest.raises(NoPathError, match=f"sequence {which} "):
        chain.tangent(bad, np.ones_like(node))


def test_no_direction_at_all():
    x = random_scores(LENGTHS, 3)
    for d_edge in (None, np.zeros((3, 3)), np.zeros((x.n_tokens, 3, 3))):
        for part in chain.tangent(x, np.zeros(x.node.shape), d_edge):
            assert not part.any()
