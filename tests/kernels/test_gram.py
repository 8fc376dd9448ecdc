"""Gram matrices in blocks, equal rows, products."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.errors import BudgetError, InputError
from seqfield.kernels import (
    RBF,
    Callable,
    Columns,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    Precomputed,
)
from seqfield.kernels import gram as module
from seqfield.kernels.gram import apply, distinct, gram, product


def inner(x, z):
    return (x @ z.T).toarray() if sp.issparse(x) else x @ z.T


KERNELS = [
    Linear(),
    Polynomial(2),
    RBF(2.0),
    Matern(2.0, 0.5),
    Normalized(Polynomial(3)) + 2 * Columns(RBF(1.5), slice(3, 20)),
    Callable(inner),
]


def dense(n=300, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 25))


def sparse(n=300, seed=0):
    x = sp.random_array((n, 400), density=0.03, rng=np.random.default_rng(seed), format="csr")
    return sp.vstack([x, sp.csr_array((2, 400)), x[:5]], format="csr")


def binary(n=300, seed=0):
    x = sparse(n, seed)
    x.data[:] = 1
    return x


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Many blocks, of 7 or so rows."""
    monkeypatch.setattr(module, "CACHE", 2**14)
    monkeypatch.setattr(module, "BLOCK", 2**14)
    monkeypatch.setattr(module, "MIRROR", 32)
    monkeypatch.setattr(module, "PIECE", 16)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("make", [dense, sparse, binary])
def test_equals_the_kernel(kernel, make):
    x, z = make(), make(90, 1)
    assert len(module.cuts(x.shape[0], x.shape[0])) > 16
    square = gram(kernel, x, budget=1e9)
    direct = kernel(x)
    scale = np.abs(direct).max()
    np.testing.assert_allclose(square, direct, rtol=1e-12, atol=1e-14 * scale)
    np.testing.assert_allclose(
        gram(kernel, x, z, budget=1e9), kernel(x, z), rtol=1e-12, atol=1e-14 * scale
    )
    if kernel.trusted:
        np.testing.assert_array_equal(square, square.T)
    np.testing.assert_array_equal(
        gram(kernel, x, budget=1e9, dtype=np.float32), square.astype(np.float32)
    )


@pytest.mark.parametrize("kernel", [RBF(0.1), Matern(0.1, 0.5), Normalized(Linear() + 1)], ids=repr)
@pytest.mark.parametrize("make", [dense, sparse, binary])
def test_unit_diagonal_is_exact(kernel, make):
    assert (np.diagonal(gram(kernel, make(), budget=1e9)) == 1.0).all()


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("make", [dense, sparse, binary])
def test_the_same_bits_for_every_number_of_threads(kernel, make):
    x, z = make(), make(90, 1)
    v = np.random.default_rng(0).normal(size=(z.shape[0], 3))
    one, other = gram(kernel, x, budget=1e9), gram(kernel, x, z, budget=1e9)
    applied = apply(kernel, x, z, v)
    for n_jobs in (1, 2, 4):
        np.testing.assert_array_equal(gram(kernel, x, budget=1e9, n_jobs=n_jobs), one)
        np.testing.assert_array_equal(gram(kernel, x, z, budget=1e9, n_jobs=n_jobs), other)
        np.testing.assert_array_equal(apply(kernel, x, z, v, n_jobs), applied)


@pytest.mark.parametrize("make", [dense, sparse, binary])
def test_apply(make):
    kernel = KERNELS[4]
    x, z = make(), make(90, 1)
    v = np.random.default_rng(0).normal(size=(z.shape[0], 3))
    np.testing.assert_allclose(apply(kernel, x, z, v), kernel(x, z) @ v, rtol=1e-11, atol=1e-11)
    with pytest.raises(InputError, match="rows of coefficients"):
        apply(kernel, x, z, v[1:])


@pytest.mark.parametrize("m", [1, 1000, 30_000, 300_000, 10**7])
def test_blocks_are_small(m, monkeypatch):
    monkeypatch.undo()
    strips = module.cuts(70_000, m)
    assert strips[0][0] == 0
    assert strips[-1][1] == 70_000
    assert all(a[1] == b[0] for a, b in zip(strips, strips[1:], strict=False))
    largest = max(b - a for a, b in strips)
    assert largest == 1 or 8 * largest * m <= 2**25


def test_no_tokens():
    assert gram(Linear(), np.zeros((0, 3)), budget=1).shape == (0, 0)
    assert gram(Linear(), np.zeros((2, 3)), np.zeros((0, 3)), budget=1).shape == (2, 0)
    assert gram(KERNELS[-1], np.zeros((0, 3)), budget=1).shape == (0, 0)


def test_budget():
    x = dense(100)
    gram(Linear(), x, budget=80_000)
    gram(Linear(), x, budget=40_000, dtype=np.float32)
    with pytest.raises(BudgetError) as error:
        gram(Linear(), x, budget=79_999)
    for part in ("100 x 100", "7.45e-05 GiB", 'method="sparse"', "n_inducing=", "explicit=True"):
        assert part in str(error.value)
    for part in ("gram_budget=", 'gram_dtype="float32"'):
        assert part in str(error.value)


def test_budget_is_checked_before_any_work():
    # 10^6 x 10^6 tokens would be 8 TB
    x = sp.csr_array((10**6, 5))
    with pytest.raises(BudgetError, match=r"7\.45e\+03 GiB"):
        gram(Linear(), x, budget=2**33)


@pytest.mark.parametrize("budget", [None, -1, "1 GB"])
def test_bad_budget(budget):
    with pytest.raises(InputError, match="gram_budget"):
        gram(Linear(), dense(3), budget=budget)


def test_bad_dtype():
    with pytest.raises(InputError, match="float64 or float32"):
        gram(Linear(), dense(3), budget=1e9, dtype=np.int32)


def test_bad_kernels_are_refused():
    with pytest.raises(InputError, match="length_scale"):
        gram(RBF(-1.0), dense(3), budget=1e9)


def test_overflow_names_the_tokens():
    x = np.zeros((40, 1))
    x[17] = 1e160
    with pytest.raises(InputError, match="is inf for tokens 17 and 17"):
        gram(Linear() ** 2, x, budget=1e9)
    with pytest.raises(InputError, match="is inf for tokens 0 and 17"):
        apply(Linear() ** 2, x[17:], x, np.ones((40, 1)))


def test_large_numbers_are_no_overflow():
    x = np.full((40, 1), 1e153)  # the sum of a block is infinite, no value is
    assert (gram(Linear(), x, budget=1e9) == 1e306).all()


def test_values_too_large_for_float32_name_the_tokens():
    x = np.zeros((40, 1))
    x[17] = 1e20
    assert gram(Linear(), x, budget=1e9).max() == 1e40
    with pytest.raises(
        InputError, match=r"is 1e\+40 for tokens 17 and 17.* gram_dtype=\"float64\""
    ):
        gram(Linear(), x, budget=1e9, dtype=np.float32)
    with pytest.raises(InputError, match=r"is -1e\+40 for tokens 17 and 1"):
        gram(Linear(), x, -x[16:], budget=1e9, dtype=np.float32)


def test_large_numbers_fit_into_float32():
    x = np.full((40, 1), 1e19)  # the sum of a block is beyond float32, no value is
    assert (gram(Linear(), x, budget=1e9, dtype=np.float32) == np.float32(1e38)).all()


def test_nan_of_a_function_names_the_tokens():
    def function(x, z):
        out = x @ z.T
        out[x[:, 0] == 30] = np.nan
        return out

    with pytest.raises(InputError, match="gave nan for rows 30 and 0"):
        gram(Callable(function), np.arange(40.0)[:, None], budget=1e9)


def test_asymmetry_is_found():
    def function(x, z):
        return x @ z.T + 1e-3 * ((x == 1) & (z.T == 38)) + 1e-12 * (x > z.T)

    x = np.arange(40.0)[:, None]
    with pytest.raises(InputError, match=r"not symmetric: .* for tokens 1, 38"):
        gram(Callable(function), x, budget=1e9)
    # but a function of rounding errors is symmetric
    gram(Callable(lambda x, z: x @ z.T + 1e-12 * (x > z.T)), x, budget=1e9)


def test_negative_eigenvalues_are_found():
    def function(x, z):
        return -((x - z.T) ** 2)

    with pytest.raises(InputError, match=r"not positive semi-definite: -.* tokens 0 and"):
        gram(Callable(function), np.arange(600.0)[:, None], budget=1e9)
    # of two sets of tokens nothing of the kind can be said
    gram(Callable(function), np.arange(9.0)[:, None], np.arange(8.0)[:, None], budget=1e9)


def banded(value):
    """Of tokens next to each other; with a value above 1/2 it is no covariance."""
    return Callable(lambda x, z: (x == z.T) + value * (np.abs(x - z.T) == 1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [20, 700, 2500])
def test_negative_eigenvalues_of_matrices_without_a_wrong_entry(n, dtype):
    x = np.arange(float(n))[:, None]
    with pytest.raises(InputError, match="not positive semi-definite: an eigenvalue of -0"):
        gram(banded(0.9), x, budget=1e9, dtype=dtype)
    gram(banded(0.5), x, budget=1e9, dtype=dtype)


@pytest.mark.parametrize("n", [600, 2500])
def test_one_entry_that_no_covariance_has(n):
    """Wherever it stands."""
    wrong = np.eye(n)
    wrong[n - 70, 33] = wrong[33, n - 70] = 5.0
    x = np.arange(n)[:, None]
    with pytest.raises(InputError, match=f"semi-definite: 5 for tokens 33 and {n - 70}, 1 and 1"):
        gram(Precomputed(wrong), x, budget=1e9)
    wrong[n - 70, 33] = wrong[33, n - 70] = 0.0
    wrong[33, 33] = -0.1
    with pytest.raises(InputError, match=r"semi-definite: -0\.1 for tokens 33 and 33"):
        gram(Precomputed(wrong), x, budget=1e9)


def test_zero_is_a_covariance():
    gram(Callable(lambda x, z: 0.0 * (x @ z.T)), np.eye(5), budget=1e9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_singular_is_positive_semi_definite(dtype):
    x = np.random.default_rng(0).normal(size=(500, 2))
    gram(Callable(lambda x, z: x @ z.T), x, budget=1e9, dtype=dtype)


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1025, 3), (66, 2050, 9), (17, 3, 0)])
def test_product(dtype, shape):
    n, m, s = shape
    rng = np.random.default_rng(0)
    g, v = rng.normal(size=(n, m)).astype(dtype), rng.normal(size=(m, s))
    found = product(g, v)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, g.astype(np.float64) @ v, rtol=0, atol=1e-13 * m)
    for n_jobs in (1, 2, 4):
        np.testing.assert_array_equal(product(g, v, n_jobs), found)


def test_float32_is_summed_in_float64():
    """In float32 the small terms would vanish beside the large one."""
    g = np.ones((3, 10_001), np.float32)
    v = np.full((10_001, 1), 2.0**-30)
    v[0] = 1.0
    np.testing.assert_allclose(product(g, v), 1.0 + 10_000 * 2.0**-30, rtol=1e-15)


def test_product_of_views():
    rng = np.random.default_rng(0)
    g, v = rng.normal(size=(40, 30)), np.asfortranarray(rng.normal(size=(20, 4)))
    for a in (g, g.astype(np.float32)):
        part = a[::2, 5:25]
        np.testing.assert_allclose(product(part, v), part @ v, rtol=0, atol=1e-12)
        np.testing.assert_allclose(product(part.T, v), part.T @ v, rtol=0, atol=1e-12)


def test_product_of_wrong_sizes():
    with pytest.raises(InputError, match="3 columns times one of 2 rows"):
        product(np.eye(3), np.ones((2, 1)))


# --- equal rows -----------------------------------------------------------------------------------


def check_distinct(x, full):
    first, inverse = distinct(x)
    _, expected_first, expected = np.unique(full, axis=0, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(first, np.sort(expected_first))
    np.testing.assert_array_equal(full[first][inverse], full)
    assert len(np.unique(np.stack([inverse, expected.ravel()], 1), axis=0)) == len(first)


@pytest.mark.parametrize("seed", range(5))
def test_distinct(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, 2, (400, 4)).astype(np.float64)
    check_distinct(x, x)
    check_distinct(np.asfortranarray(x), x)
    check_distinct(x[:, 1:3], x[:, 1:3])
    check_distinct(sp.csr_array(x), x)
    check_distinct(sp.csr_matrix(x.astype(np.int8)), x)
    check_distinct(sp.coo_array(x), x)


def test_distinct_real_numbers():
    x = np.random.default_rng(0).normal(size=(50, 3))
    x = np.vstack([x, x[::-1], np.nextafter(x, 9.0)])
    check_distinct(x, x)
    check_distinct(sp.csr_array(x), x)


def test_distinct_minus_zero():
    assert len(distinct(np.array([[0.0], [-0.0]]))[0]) == 1


def test_distinct_sparse_forms_that_are_not_canonical():
    # the same row four times: in order, out of order, in two pieces, with a stored zero; and not
    data = np.array([1, 100, 100, 1, 1, 60, 40, 1, 0, 100, 1, 99], np.int8)
    indices = np.array([0, 3, 3, 0, 0, 3, 3, 0, 1, 3, 0, 3])
    x = sp.csr_array((data, indices, np.array([0, 2, 4, 7, 10, 12])), shape=(5, 4))
    before = x.data.copy(), x.indices.copy()
    first, inverse = distinct(x)
    assert (first.tolist(), inverse.tolist()) == ([0, 4], [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(x.data, before[0])
    np.testing.assert_array_equal(x.indices, before[1])


def test_distinct_of_nothing():
    for x in (np.zeros((0, 3)), sp.csr_array((0, 3))):
        assert [len(part) for part in distinct(x)] == [0, 0]
    for x in (np.zeros((3, 0)), sp.csr_array((3, 4))):
        assert distinct(x)[0].tolist() == [0]
