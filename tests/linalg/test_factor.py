"""Factors of gram matrices."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.errors import InputError
from seqfield.linalg.factor import cholesky_factor, eigen_factor, lower_factor


def gram(n=20, rank=20, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, rank))
    return x @ x.T


@pytest.mark.parametrize("factor", [cholesky_factor, eigen_factor])
def test_factor(factor):
    g = gram(rank=30)
    before = g.copy()
    root, dual = factor(g)
    np.testing.assert_array_equal(g, before)
    np.testing.assert_allclose(root @ root.T, g, rtol=0, atol=1e-12)
    np.testing.assert_allclose(root.T @ dual, np.eye(20), rtol=0, atol=1e-11)


def test_cholesky_is_triangular():
    root, dual = cholesky_factor(gram(rank=30))
    np.testing.assert_array_equal(root, np.tril(root))
    np.testing.assert_array_equal(dual, np.triu(dual))
    np.testing.assert_allclose(root, np.linalg.cholesky(gram(rank=30)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rank", [1, 5, 19])
def test_singular(rank):
    g = gram(rank=rank)
    root, dual = cholesky_factor(g)
    mean = np.diagonal(g).mean()
    np.testing.assert_allclose(root @ root.T, g, rtol=0, atol=1e-10 * mean)
    np.testing.assert_allclose(root.T @ dual, np.eye(20), rtol=0, atol=1e-8)
    assert eigen_factor(g).root.shape == (20, rank)


def test_jitter_grows_as_needed():
    g = gram(rank=30)
    mean = np.diagonal(g).mean()
    values, vectors = np.linalg.eigh(g)
    for below in (1e-10, 1e-8):
        values[0] = -below * mean
        root, _ = cholesky_factor((vectors * values) @ vectors.T)
        added = np.diagonal(root @ root.T - (vectors * values) @ vectors.T)
        assert below < added.mean() / mean <= 10.1 * below


@pytest.mark.parametrize("factor", [cholesky_factor, eigen_factor])
def test_not_positive_semi_definite(factor):
    for g in (np.diag([1.0, -1e-4]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.zeros((2, 2))):
        with pytest.raises(InputError, match="positive semi-definite"):
            factor(g)


def test_nan():
    with pytest.raises(InputError):
        cholesky_factor(np.array([[1.0, np.nan], [np.nan, 1.0]]))


def test_lower_factor():
    a = np.array([[4.0, 2.0], [2.0, 5.0]])
    np.testing.assert_allclose(lower_factor(a), [[2.0, 0.0], [1.0, 2.0]], rtol=1e-15)
    for bad in (np.diag([1.0, -1.0]), np.diag([1.0, np.nan]), np.diag([1.0, np.inf])):
        with pytest.raises(InputError, match="Scale the features"):
            lower_factor(bad)
