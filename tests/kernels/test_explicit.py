"""Kernels written out as features."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.errors import BudgetError, InputError
from seqfield.kernels import RBF, Columns, Constant, Linear, Normalized, Polynomial
from seqfield.kernels.combined import Quadratic, Triples, UpToPairs
from seqfield.kernels.explicit import EXPANSIONS


def binary(n=30, width=40, seed=0):
    x = sp.random_array((n, width), density=0.15, rng=np.random.default_rng(seed), format="csr")
    x.data[:] = 1
    return x.astype(np.int8)


EXPANDABLE = [
    Linear(),
    Constant(2.0),
    Polynomial(1, 0.5),
    Polynomial(2, 0.0),
    Polynomial(2, 1.0),
    Polynomial(2, 0.3),
    Polynomial(3, 1.0),
    Polynomial(3, 0.7),
    Polynomial(3, 2.5),
    Polynomial(3, 0.1),
    Polynomial(3, 0.0),
    Normalized(Polynomial(3, 0.0)),
    3 * Polynomial(2) + Linear() + 0.5,
    Normalized(Polynomial(3)),
    0 * Polynomial(2) + Linear(),
    Normalized(Linear()),
    Normalized(Polynomial(2)) + 2 * Normalized(Linear() + 1),
    Columns(Polynomial(2), slice(5, 25)) + Columns(Linear(), [0, 39]),
    Normalized(Columns(Polynomial(2), slice(5, 25))),
]


@pytest.mark.parametrize("kernel", EXPANDABLE, ids=repr)
def test_features_are_the_kernel(kernel):
    x, z = binary(), binary(200, seed=1)
    expansion = kernel.expansion(x)
    here, there = expansion.transform(x), expansion.transform(z)
    assert isinstance(here, sp.csr_array)
    assert here.shape == (30, expansion.n_columns)
    np.testing.assert_allclose((here @ here.T).toarray(), kernel(x), rtol=1e-12, atol=1e-12)
    # pairs of new tokens that no training token has do not count against those
    np.testing.assert_allclose((there @ here.T).toarray(), kernel(z, x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(expansion.squared_norms(z), kernel.diagonal(z), rtol=1e-12)
    copy = EXPANSIONS.restore(*EXPANSIONS.state(expansion))
    again = copy.transform(z)
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(again, part), getattr(there, part))


def test_many_attributes_in_common():
    """More than an int8, the type of binary attributes, can count."""
    x = sp.csr_array(np.ones((3, 200), np.int8))
    for kernel in (Linear(), Columns(Linear(), slice(0, 150)), Linear() + Linear()):
        features = kernel.expansion(x).transform(x)
        assert features.dtype == np.float64
        np.testing.assert_array_equal((features @ features.T).toarray(), kernel(x))


@pytest.mark.parametrize("kernel", [RBF(1.0), Polynomial(4), Linear() * Linear(), Linear() ** 2])
def test_no_features(kernel):
    for k in (kernel, Linear() + kernel, kernel + Linear(), 2 * kernel, Columns(kernel, [0])):
        assert k.expansion(binary()) is None
    assert Normalized(kernel).expansion(binary()) is None


def test_pairs_need_sparse_ones():
    assert Polynomial(2).expansion(binary().toarray()) is None
    assert Polynomial(2).expansion(2 * binary()) is None
    # 1 + 1 in one place is 2
    x = sp.csr_array((np.ones(2), np.array([0, 0]), np.array([0, 2])), shape=(1, 3))
    assert Polynomial(2).expansion(x) is None


def test_columns_are_those_of_the_formula():
    x = sp.csr_array(np.array([[1, 0, 1], [1, 1, 1]]))
    expansion = Polynomial(2, 1.0).expansion(x)
    expected = np.array(
        [[1, 3**0.5, 0, 3**0.5, 2**0.5, 0, 0], [1, 3**0.5, 3**0.5, 3**0.5, 2**0.5] + 2 * [2**0.5]]
    )
    np.testing.assert_allclose(expansion.transform(x).toarray(), expected, rtol=1e-15)
    np.testing.assert_array_equal(expansion.keys, [2, 1, 5])  # (0, 2), (0, 1), (1, 2)


def test_rows_are_in_order():
    x = binary(50)
    # columns out of order, and zeros stored, change nothing
    mixed = sp.csr_array((x.data[::-1], x.indices[::-1], x.indptr[-1] - x.indptr[::-1]), x.shape)
    mixed.data = np.append(mixed.data, 0).astype(np.int8)
    mixed.indices = np.append(mixed.indices, 3).astype(np.int32)
    mixed.indptr = mixed.indptr.copy()
    mixed.indptr[-1] += 1
    expansion = Quadratic.learn(x, 1.0)
    features = expansion.transform(mixed)
    for a, b in zip(features.indptr[:-1], features.indptr[1:], strict=True):
        assert (np.diff(features.indices[a:b]) > 0).all()
    assert (expansion.transform(x)[::-1] != features).nnz == 0
    assert features.indices.dtype == features.indptr.dtype == np.int32


def test_many_pairs():
    """More pairs than the first tables hold."""
    x = binary(800, 1500, seed=2)
    x = x[:, :600]
    expansion = Quadratic.learn(x, 1.0)
    both = (x.T.astype(np.int64) @ x.astype(np.int64)).tocoo()
    rows, columns = both.coords
    upper = rows < columns
    expected = rows[upper].astype(np.int64) * 600 + columns[upper]
    assert len(expected) > 2**16
    np.testing.assert_array_equal(np.sort(expansion.keys), np.sort(expected))
    features = expansion.transform(x[:50])
    np.testing.assert_allclose((features @ features.T).toarray(), Polynomial(2)(x[:50]), rtol=1e-12)


def test_wide_tokens():
    """Keys of pairs are beyond 32 bits."""
    x = binary(20, 100)
    width = 10_000_000
    columns = np.sort(np.random.default_rng(0).choice(width, 100, replace=False))
    wide = sp.csr_array((x.data, columns[x.indices], x.indptr), shape=(20, width))
    features = Polynomial(2).expansion(wide).transform(wide)
    np.testing.assert_allclose((features @ features.T).toarray(), Polynomial(2)(x), rtol=1e-12)


def test_many_triples():
    """More triples than the first tables hold, against a plain loop."""
    x = binary(300, 150, seed=2)
    expansion = Triples.learn(x)
    expected = {
        (i * 150 + j) * 150 + k
        for a, b in zip(x.indptr[:-1], x.indptr[1:], strict=True)
        for i, j, k in combinations(np.sort(x.indices[a:b]).tolist(), 3)
    }
    assert len(expected) > 2**17
    assert len(expansion.keys) == len(expected)
    assert set(expansion.keys.tolist()) == expected
    features = expansion.transform(x)
    for a, b in zip(features.indptr[:-1], features.indptr[1:], strict=True):
        assert (np.diff(features.indices[a:b]) > 0).all()


def test_triples_of_wide_tokens():
    """Keys of triples must be below 2^63."""
    x = binary(20, 100)
    for width, there in ((Triples.WIDEST, True), (Triples.WIDEST + 1, False)):
        columns = width - 100 + np.arange(100)
        wide = sp.csr_array((x.data, columns[x.indices], x.indptr), shape=(20, width))
        expansion = Polynomial(3).expansion(wide)
        assert (expansion is not None) == there
        if there:
            phi = expansion.transform(wide)
            np.testing.assert_allclose((phi @ phi.T).toarray(), Polynomial(3)(x), rtol=1e-12)


def test_budget_of_triples():
    x = binary()
    n = np.diff(x.indptr).astype(int)
    entries = n * (n - 1) * (n - 2) // 6 + 1 + n + n * (n - 1) // 2
    need = 12 * int(entries.sum())
    assert Polynomial(3).expansion(x, need) is not None
    with pytest.raises(BudgetError, match="pairs of features"):
        Polynomial(3).expansion(x, need - 1)
    with pytest.raises(BudgetError, match="triples of features"):
        Polynomial(3).expansion(x, 100)


@pytest.mark.parametrize("degree", [2, 3])
def test_values_other_than_ones_at_prediction(degree):
    x = binary()
    expansion = Polynomial(degree).expansion(x)
    for use in (expansion.transform, expansion.squared_norms):
        with pytest.raises(InputError, match="have other values"):
            use(2 * x)


def test_other_width_at_prediction():
    expansion = Linear().expansion(binary())
    with pytest.raises(InputError, match="39 features, but training had 40"):
        expansion.transform(binary()[:, 1:])


def test_budget():
    x = binary()
    n = np.diff(x.indptr)
    need = 12 * int((1 + n + n * (n - 1) // 2).sum())
    assert 12 * Polynomial(2).expansion(x, need).transform(x).nnz == need
    for kernel in (Polynomial(2), 2 * Normalized(Polynomial(2)) + 1, Linear() + Polynomial(2)):
        with pytest.raises(BudgetError, match=f"are {need // 12} numbers"):
            kernel.expansion(x, need - 1)


@pytest.mark.parametrize(
    ("change", "arrays"),
    [
        ({"class": "Popen"}, {}),
        ({"class": ["Same"]}, {}),
        ({"own": None}, {}),
        ({"own": {}}, {}),
        ({"own": {"width": 40, "coef0": -1.0}}, {}),
        ({"own": {"width": 2.5, "coef0": 1.0}}, {}),
        ({}, {"keys": np.array([0.5])}),
        ({}, {"keys": np.array([[1]])}),
        ({}, {"keys": np.array([-1])}),
        ({}, {"keys": np.array([40])}),  # (1, 0)
        ({}, {"keys": np.array([41])}),  # (1, 1)
        ({}, {"keys": np.array([1600])}),  # (40, 0)
        ({}, {"keys": np.array([1, 1])}),
        ({"class": "Beside"}, {}),
        ({"own": {"width": 40, "coef0": -0.25}}, {}),
        ({"parts": 3}, {}),
    ],
    ids=str,
)
def test_damaged_state(change, arrays):
    expansion = Polynomial(2).expansion(binary())
    header, found = EXPANSIONS.state(expansion)
    assert EXPANSIONS.restore(header, found).n_columns == expansion.n_columns
    with pytest.raises(InputError):
        EXPANSIONS.restore(header | change, found | arrays)


@pytest.mark.parametrize("terms", [None, 1.0, [1.0, 1.0], [1.0, -1.0, 1.0], ["x", 1.0, 1.0]])
def test_damaged_terms(terms):
    header, arrays = EXPANSIONS.state(UpToPairs.learn(binary(), (1.0, 2.0, 3.0)))
    EXPANSIONS.restore(header, arrays)
    with pytest.raises(InputError):
        EXPANSIONS.restore(header | {"own": {"width": 40, "terms": terms}}, arrays)


@pytest.mark.parametrize("degree", [2, 3])
def test_a_constant_that_overflows(degree):
    expansion = Polynomial(degree, 1e200 if degree == 2 else 1e110).expansion(binary())
    assert np.isinf(expansion.squared_norms(binary())).all()


@pytest.mark.parametrize("columns", [[-1, 0], [0, 40], [0]])
def test_damaged_columns(columns):
    header, arrays = EXPANSIONS.state(Columns(Linear(), [0, 39]).expansion(binary()))
    EXPANSIONS.restore(header, arrays)
    with pytest.raises(InputError):
        EXPANSIONS.restore(header, arrays | {"columns": np.array(columns)})


def test_parts_that_do_not_fit():
    header, arrays = EXPANSIONS.state((Linear() + 1).expansion(binary()))
    header["parts"][1]["own"]["width"] = 39
    with pytest.raises(InputError, match="same tokens"):
        EXPANSIONS.restore(header, arrays)
