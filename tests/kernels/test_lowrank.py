"""Features of tokens from a few chosen tokens."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.errors import InputError
from seqfield.kernels import RBF, Linear, Normalized, Polynomial, Precomputed
from seqfield.kernels.gram import distinct
from seqfield.kernels.lowrank import landmarks, nystrom, pivoted_cholesky


def tokens(n=60, width=3):
    x = np.random.default_rng(0).normal(size=(n, width))
    x[n // 2 :] = x[: n - n // 2]  # each twice
    return x


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kernel", [RBF(1.0), Polynomial(2), Linear()], ids=repr)
def test_all_distinct_tokens_are_exact(kernel, form):
    x = form(tokens())
    first, _ = distinct(x)
    found = landmarks(kernel, x[first])
    phi = found.features(x)
    np.testing.assert_allclose(phi @ phi.T, kernel(x), rtol=0, atol=1e-8)
    square = found.dual.T @ kernel(x[first]) @ found.dual
    np.testing.assert_allclose(square, np.eye(found.dual.shape[1]), rtol=0, atol=1e-8)
    for n_jobs in (1, 2, 4):
        np.testing.assert_array_equal(found.features(x, n_jobs), phi)


def test_landmarks_are_exact_at_the_landmarks():
    x = tokens()
    found = landmarks(RBF(1.0), x[:7])
    phi, at = found.features(x), found.features(x[:7])
    np.testing.assert_allclose(phi @ at.T, RBF(1.0)(x, x[:7]), rtol=0, atol=1e-12)
    # and never above the kernel elsewhere
    assert (np.square(phi).sum(1) <= 1 + 1e-12).all()


def test_landmarks_that_depend_on_each_other():
    x = tokens()
    found = landmarks(Linear(), x)  # 60 tokens of 3 dimensions
    assert found.dual.shape == (60, 3)
    phi = found.features(x)
    np.testing.assert_allclose(phi @ phi.T, x @ x.T, rtol=0, atol=1e-12)


def test_zero_landmarks():
    with pytest.raises(InputError, match="not zero"):
        landmarks(Linear(), np.zeros((3, 2)))


def test_nystrom():
    x = tokens()
    found = nystrom(RBF(1.0), x, 20, np.random.default_rng(1))
    assert found.tokens.shape == (20, 3)
    again = nystrom(RBF(1.0), x, 20, np.random.default_rng(1))
    np.testing.assert_array_equal(found.dual, again.dual)
    errors = []
    for rank in (3, 10, 60, 100):
        phi = nystrom(RBF(1.0), x, rank, np.random.default_rng(1)).features(x)
        errors.append(np.abs(phi @ phi.T - RBF(1.0)(x)).max())
    assert errors[0] > errors[1] > 1e-6 > 1e-8 > errors[2]
    assert errors[2] == errors[3]


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_pivoted_cholesky(form):
    kernel = RBF(1.0)
    x = form(tokens())
    g = kernel(x)
    before = np.inf
    for rank in (1, 5, 10, 20, 30):
        found = pivoted_cholesky(kernel, x, rank)
        assert len(set(found.chosen.tolist())) == rank
        left = g - found.factor @ found.factor.T
        np.testing.assert_allclose(np.trace(left), found.residual, rtol=1e-9, atol=1e-12)
        assert np.linalg.eigvalsh(left)[0] > -1e-12  # what is left is a covariance
        assert found.residual < before
        before = found.residual
        # the same function as that of the chosen tokens
        phi = landmarks(kernel, x[found.chosen]).features(x)
        np.testing.assert_allclose(phi @ phi.T, found.factor @ found.factor.T, rtol=0, atol=1e-8)
    # 30 distinct tokens: all of it
    assert before < 1e-9
    np.testing.assert_allclose(found.factor @ found.factor.T, g, rtol=0, atol=1e-9)
    assert len(pivoted_cholesky(kernel, x, 60).chosen) == 30


def test_pivots_are_greedy():
    x = tokens()
    kernel = Polynomial(2)
    found = pivoted_cholesky(kernel, x, 6)
    left = kernel(x)
    for r, t in enumerate(found.chosen):
        assert t == np.diagonal(left).argmax()
        left = left - np.outer(found.factor[:, r], found.factor[:, r])


def test_pivots_find_rare_tokens():
    """Drawn tokens are mostly of the large crowd; chosen ones are of every group."""
    centres = 10.0 * np.eye(12)
    groups = np.array([0] * 190 + list(range(1, 12)))
    x = centres[groups] + 0.01 * np.random.default_rng(0).normal(size=(201, 12))
    kernel = RBF(1.0)
    found = pivoted_cholesky(kernel, x, 12)
    assert sorted(groups[found.chosen]) == list(range(12))
    assert found.residual < 1.0
    for seed in range(5):
        phi = nystrom(kernel, x, 12, np.random.default_rng(seed)).features(x)
        assert 201 - np.square(phi).sum() > 5.0


def test_tolerance():
    x = tokens()
    g = RBF(1.0)(x)
    found = pivoted_cholesky(RBF(1.0), x, 60, tol=0.1)
    assert 1 < len(found.chosen) < 30
    left = np.diagonal(g - found.factor @ found.factor.T)
    assert left.max() <= 0.1
    shorter = pivoted_cholesky(RBF(1.0), x, len(found.chosen) - 1)
    assert np.diagonal(g - shorter.factor @ shorter.factor.T).max() > 0.1


def test_pivots_of_what_is_no_covariance():
    wrong = np.eye(37)
    wrong[0, 1] = wrong[1, 0] = 5.0
    x = np.arange(37)[:, None]
    with pytest.raises(InputError, match=r"not positive semi-definite.* token [01]"):
        pivoted_cholesky(Precomputed(wrong), x, 37)
    with pytest.raises(InputError, match="not positive semi-definite"):
        pivoted_cholesky(Precomputed(-np.eye(3)), x[:3], 2)


def test_kernels_that_overflow():
    x = np.full((20, 3), 1.0)
    x[11] = 1e3
    for choose in (pivoted_cholesky, lambda *a: nystrom(*a, np.random.default_rng(0))):
        with pytest.raises(InputError, match="the kernel is inf for tokens 11 and 11"):
            choose(Polynomial(80), x, 5)
    with pytest.raises(InputError, match="the kernel is inf for tokens 1 and 1"):
        landmarks(Polynomial(80), x[10:])
    # where k(x, x) is not inf, but what it is made of
    with pytest.raises(InputError, match="the kernel is nan"):
        pivoted_cholesky(Normalized(Polynomial(80)), x, 5)


def test_no_diagonal_no_pivots():
    found = pivoted_cholesky(Linear(), np.zeros((4, 2)), 3)
    assert found.factor.shape == (4, 0)
    assert found.residual == 0.0


@pytest.mark.parametrize("rank", [0, -1, 2.5, None])
def test_bad_rank(rank):
    with pytest.raises(InputError, match="rank"):
        pivoted_cholesky(Linear(), np.eye(3), rank)
    with pytest.raises(InputError, match="rank"):
        nystrom(Linear(), np.eye(3), rank, np.random.default_rng(0))


def test_bad_tolerance():
    with pytest.raises(InputError, match="tol"):
        pivoted_cholesky(Linear(), np.eye(3), 2, tol=-1.0)
