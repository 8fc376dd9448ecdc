"""Krylov methods against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.errors import InputError
from seqfield.linalg.krylov import (
    conjugate_gradients,
    dense,
    exact_log_determinant,
    inverse_root,
    lanczos_log_determinant,
    smallest_value,
)


def matrix(n=40, low=1.0, high=100.0, seed=0):
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    return (q * np.geomspace(low, high, n)) @ q.T


def test_each_right_hand_side_is_solved():
    a, rng = matrix(), np.random.default_rng(1)
    b = rng.normal(size=(5, 40)) * np.geomspace(1e-6, 1e6, 5)[:, None]
    b[2] = 0.0
    found = conjugate_gradients(lambda v: v @ a, b, tol=1e-12)
    want = np.linalg.solve(a, b.T).T
    np.testing.assert_allclose(found.x, want, rtol=1e-8, atol=1e-20)
    assert not found.negative.any()
    one = conjugate_gradients(lambda v: v @ a, b[3], tol=1e-12)
    assert one.x.shape == (40,)
    np.testing.assert_allclose(one.x, want[3], rtol=1e-8)


def test_rows_that_are_done_are_left_alone():
    a, rng = matrix(), np.random.default_rng(1)
    b, sizes = rng.normal(size=(3, 40)), []

    def multiply(v):
        sizes.append(len(v))
        return v @ a

    found = conjugate_gradients(multiply, b, tol=np.array([1e-2, 1e-6, 1e-10]))
    assert sizes[0] == 3
    assert sizes[-1] == 1
    assert len(sizes) == found.n_iter
    for row, right, tol in zip(found.x, b, [1e-2, 1e-6, 1e-10], strict=True):
        assert np.linalg.norm(a @ row - right) <= 1.01 * tol * np.linalg.norm(right)
        alone = conjugate_gradients(lambda v: v @ a, right, tol=tol)
        np.testing.assert_allclose(row, alone.x, atol=1e-6)


def test_other_inner_products():
    """G^-1 M is self-adjoint in <u, v> = u' G v."""
    g, m = matrix(seed=1), matrix(seed=2)
    a = np.linalg.solve(g, m)
    b = np.random.default_rng(3).normal(size=40)
    found = conjugate_gradients(lambda v: v @ a.T, b, dual=lambda v: g @ v, tol=1e-12)
    np.testing.assert_allclose(a @ found.x, b, rtol=1e-7, atol=1e-9)


def test_negative_curvature_ends_a_row():
    a = np.diag([2.0, -1.0, 1.0])
    b = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.5, 1.0]])
    found = conjugate_gradients(lambda v: v @ a, b)
    assert found.negative.tolist() == [True, False, True]
    np.testing.assert_allclose(found.x[0], b[0])  # at once: the direction itself
    np.testing.assert_allclose(found.x[1], [0.5, 0.0, 1.0])
    assert found.x[2] @ b[2] > 0  # later: what there is by then, still towards b


def test_log_determinant():
    a, rng = matrix(n=200), np.random.default_rng(0)
    want = np.linalg.slogdet(a)[1]
    assert exact_log_determinant(lambda v: v @ a, 200) == pytest.approx(want, rel=1e-12)
    probes = rng.choice([-1.0, 1.0], size=(64, 200))
    found = lanczos_log_determinant(lambda v: v @ a, probes, steps=80)
    exact = np.einsum("ki,ij,kj->k", probes, _log(a), probes)
    assert found.value == pytest.approx(exact.mean(), rel=1e-5)
    assert found.error == pytest.approx(exact.std(ddof=1) / 8, rel=1e-3)
    assert abs(found.value - want) < 4 * found.error


def _log(a):
    values, vectors = np.linalg.eigh(a)
    return (vectors * np.log(values)) @ vectors.T


def test_all_steps_are_exact_and_few_eigenvalues_end_early():
    # with all probes orthogonal, and the space exhausted, there is nothing random left
    a = np.diag([1.0, 1.0, 3.0, 3.0])
    probes = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) * 1.0
    calls = []

    def multiply(v):
        calls.append(len(v))
        return v @ a

    found = lanczos_log_determinant(multiply, probes, steps=4, tol=0.0)
    assert found.value == pytest.approx(2 * np.log(3.0), rel=1e-12)
    assert calls == [4, 4]


def test_groups_of_probes_give_the_same(monkeypatch):
    a, rng = matrix(n=30), np.random.default_rng(0)
    probes = rng.choice([-1.0, 1.0], size=(7, 30))
    whole = lanczos_log_determinant(lambda v: v @ a, probes, tol=0.0)
    monkeypatch.setattr("seqfield.linalg.krylov.BASIS", 2 * 30 * 30)
    parts = lanczos_log_determinant(lambda v: v @ a, probes, tol=0.0)
    assert whole.value == pytest.approx(parts.value, rel=1e-12)


def test_dense_and_what_is_not_positive():
    a = matrix(n=70)
    np.testing.assert_allclose(dense(lambda v: v @ a, 70), a, atol=1e-12)
    with pytest.raises(InputError, match="positive definite"):
        lanczos_log_determinant(lambda v: -v, np.ones((1, 3)))


def test_inverse_root():
    a, rng = matrix(n=200, high=1e4), np.random.default_rng(0)
    values, vectors = np.linalg.eigh(a)
    z = rng.normal(size=(3, 200))
    want = z @ (vectors / np.sqrt(values)) @ vectors.T
    np.testing.assert_allclose(inverse_root(lambda v: v @ a, z, tol=1e-12), want, atol=1e-6)
    loose = inverse_root(lambda v: v @ a, z)
    assert np.linalg.norm(loose - want) < 1e-3 * np.linalg.norm(want)
    with pytest.raises(InputError, match="not positive definite"):
        inverse_root(lambda v: v @ (a - 2.0 * np.eye(200)), z)


def test_smallest_value():
    a = matrix(n=300, low=0.5)
    found = smallest_value(lambda v: v @ a, 300)
    assert 0.5 - 1e-9 < found < 0.6
    assert smallest_value(lambda v: v @ (a - 1.0 * np.eye(300)), 300) < 0
