"""The distribution over all labellings but one, against enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.chain import ChainScores, log_prob, others
from seqfield.chain.reference import enumerate_labellings


def make(seed, positional, ends, forbidden=False, lengths=(1, 3, 2, 4), s=3):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    n = offsets[-1]
    edge = rng.normal(size=(n, s, s) if positional else (s, s))
    if forbidden:
        edge[..., 0, 1] = -np.inf
    start, end = (rng.normal(size=s) if ends else None for _ in range(2))
    scores = ChainScores(2 * rng.normal(size=(n, s)), edge, offsets, start, end)
    gold = []
    for i in range(len(lengths)):
        found = enumerate_labellings(scores, i)
        gold.append(found.labels[rng.choice(np.flatnonzero(found.scores > -np.inf))])
    return scores, np.concatenate(gold)


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("forbidden", [False, True])
def test_against_enumeration(positional, ends, forbidden):
    for seed in range(10):
        scores, gold = make(seed, positional, ends, forbidden)
        got = others(scores, gold)
        p = np.exp(log_prob(scores, gold))
        np.testing.assert_allclose(got.log_odds, np.log((1 - p) / p), rtol=1e-10, atol=1e-10)
        for i in range(scores.n_sequences):
            a, b = scores.offsets[i], scores.offsets[i + 1]
            found = enumerate_labellings(scores, i)
            differ = (found.labels != gold[a:b]).any(axis=1)
            q = np.where(differ, np.exp(found.scores - found.scores.max()), 0.0)
            q /= q.sum()
            for t in range(b - a):
                node = np.bincount(found.labels[:, t], q, 3)
                np.testing.assert_allclose(got.node[a + t], node, rtol=1e-10, atol=1e-15)
                pairs = np.zeros((3, 3))
                if t > 0:
                    np.add.at(pairs, (found.labels[:, t - 1], found.labels[:, t]), q)
                np.testing.assert_allclose(got.pairs[a + t], pairs, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("margin", [30.0, 100.0, 2000.0])
def test_all_but_certain(margin):
    """Independent tokens with one label favoured by a margin: odds (1 + e^-margin)^l - 1."""
    length = 7
    node = np.zeros((length, 2))
    node[:, 1] = -margin
    got = others(ChainScores(node, np.zeros((2, 2))), np.zeros(length, int))
    # one difference is e^margin times as likely as two
    assert got.log_odds[0] == pytest.approx(np.log(length) - margin, rel=1e-12)
    np.testing.assert_allclose(got.node[:, 1], 1 / length, rtol=1e-10)


def test_the_only_labelling_has_no_odds_against_it():
    edge = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    scores = ChainScores(np.zeros((3, 2)), edge, [0, 2, 3], start=[0.0, -np.inf])
    got = others(scores, [0, 0, 0])
    assert (got.log_odds == -np.inf).all()
    assert np.isfinite(got.node).all()
