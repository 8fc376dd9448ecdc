"""Inducing tokens: Phi and Q by textbook formulas, and their derivatives by differences."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.architectures.inducing import NUGGET, Inducing, inducing_root, is_dense
from seqfield.errors import InputError
from seqfield.kernels import RBF, Linear, Scaled, Sum, as_kernel
from seqfield.linalg.factor import JITTER
from seqfield.sequences import Sequences

OFFSETS = np.array([0, 3, 4, 8])
KERNELS = {
    "rbf": RBF(1.3),
    "scaled linear": Scaled(Linear(), 0.7),
    "sum": Sum(Scaled(RBF(0.9), 1.7), Scaled(Linear(), 0.3)),
}
every = pytest.mark.parametrize("name", KERNELS)


def case(name, *, sparse=False, m=4, width=6, seed=0, **wanted):
    """An architecture and eight tokens; fewer inducing tokens than features, so that a linear
    kernel has rank enough."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(8, width)), rng.normal(size=(m, width))
    if sparse:
        x, z = (sp.csr_matrix(np.where(rng.random(a.shape) < 0.5, a, 0.0)) for a in (x, z))
    return Inducing(3, KERNELS[name], z, 1.0, **wanted), Sequences(x, OFFSETS)


def shifted_gram(kernel, z):
    """k(Z, Z) with the first jitter, which is always added."""
    gram = kernel(z)
    return gram + JITTER[3] * np.diagonal(gram).mean() * np.eye(len(gram))


# --- values ------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("sparse", [False, True])
def test_phi_and_q_equal_textbook_formulas(name, sparse):
    model, data = case(name, sparse=sparse)
    kernel, z = model.kernel, model.tokens
    batch = model.lay_out(data)
    k = kernel(data.x, z)
    inverse = np.linalg.inv(shifted_gram(kernel, z))
    assert batch.phi.shape == (8, 4)
    np.testing.assert_allclose(batch.phi @ batch.phi.T, k @ inverse @ k.T, rtol=1e-8, atol=1e-10)
    # whitened: Phi v has the mean k(x, Z) k(Z, Z)^-1 u of u = L v
    v = np.random.default_rng(1).normal(size=(4, 3))
    np.testing.assert_allclose(batch.phi @ v, k @ inverse @ (model.root @ v), rtol=1e-8, atol=1e-9)
    assert [q.shape for q in batch.rest] == [(3, 3), (1, 1), (4, 4)]
    for (a, b), q in zip(pairwise(OFFSETS.tolist()), batch.rest, strict=True):
        want = kernel(data.x[a:b]) - k[a:b] @ inverse @ k[a:b].T
        np.testing.assert_allclose(q, want + model.nugget * np.eye(b - a), rtol=1e-8, atol=1e-10)
        assert np.linalg.eigvalsh(q).min() > 0.0


@every
def test_root_is_that_of_the_gram_matrix(name):
    model, _ = case(name)
    gram = shifted_gram(model.kernel, model.tokens)
    np.testing.assert_allclose(model.root @ model.root.T, gram, rtol=1e-12)
    np.testing.assert_array_equal(model.root, np.tril(model.root))
    assert model.size == 4
    assert model.n_parameters == 4 * 3 + 9


def test_all_tokens_as_inducing_tokens_leave_nothing_open():
    _, data = case("rbf")
    model = Inducing(2, RBF(1.3), data.x, 1.0)
    batch = model.lay_out(data)
    gram = RBF(1.3)(data.x)
    np.testing.assert_allclose(batch.phi @ batch.phi.T, gram, atol=1e-8)
    for q in batch.rest:
        np.testing.assert_allclose(q, model.nugget * np.eye(len(q)), atol=1e-9)
    assert model.nugget == pytest.approx(NUGGET, rel=1e-12)
    few = Inducing(2, RBF(1.3), data.x[:4], 1.0).lay_out(data)
    assert max(q.max() for q in few.rest) > 0.1


def test_nugget_is_a_part_of_the_first_mean_variance_and_stays():
    model, data = case("scaled linear")
    mean = np.diagonal(model.kernel(model.tokens)).mean()
    assert model.nugget == pytest.approx(NUGGET * mean, rel=1e-12)
    other = model.with_kernel(Scaled(Linear(), 50.0))
    assert other.nugget == model.nugget
    assert other.kernel.scale == 50.0
    assert other.tokens is model.tokens
    none = case("scaled linear", nugget=0.0)[0]
    assert none.nugget == 0.0
    for with_it, without in zip(model.lay_out(data).rest, none.lay_out(data).rest, strict=True):
        np.testing.assert_allclose(
            with_it - without, model.nugget * np.eye(len(with_it)), atol=1e-14
        )


def test_a_token_of_no_variance_is_covered_by_the_nugget():
    """A row of zeros has k(x, x) = 0 under a linear kernel."""
    model, data = case("scaled linear")
    x = data.x.copy()
    x[[1, 3]] = 0.0
    for q in model.lay_out(Sequences(x, OFFSETS)).rest:
        assert np.isfinite(np.linalg.cholesky(q)).all()


def test_tokens_that_are_equal():
    model, data = case("rbf")
    same = Sequences(np.repeat(data.x[:1], 8, axis=0), OFFSETS)
    for q in model.lay_out(same).rest:
        assert np.isfinite(np.linalg.cholesky(q)).all()


def test_batches_are_laid_out_sequence_by_sequence():
    model, data = case("sum")
    whole = model.lay_out(data)
    one = model.lay_out(data[[2]])
    np.testing.assert_allclose(one.phi, whole.phi[4:], rtol=1e-12)
    np.testing.assert_allclose(one.rest[0], whole.rest[2], rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(one.offsets, [0, 4])


def test_other_tokens_and_kernels():
    model, data = case("rbf")
    z = model.tokens + 0.5
    moved = model.with_kernel(RBF(2.0), z)
    fresh = Inducing(3, RBF(2.0), z, 1.0)
    np.testing.assert_array_equal(moved.root, fresh.root)
    np.testing.assert_array_equal(moved.lay_out(data).phi, fresh.lay_out(data).phi)
    assert (moved.eta, moved.n_labels) == (1.0, 3)


def test_dense_and_sparse_tokens_are_the_same():
    sparse, data = case("sum", sparse=True)
    dense = Inducing(3, sparse.kernel, sparse.tokens.toarray(), 1.0)
    a, b = sparse.lay_out(data), dense.lay_out(Sequences(data.x.toarray(), OFFSETS))
    np.testing.assert_allclose(a.phi, b.phi, rtol=1e-9, atol=1e-12)
    assert is_dense(dense.tokens)
    assert not is_dense(sparse.tokens)


# --- jitter ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rbf", "sum"])
def test_repeated_tokens_have_a_root(name):
    rng = np.random.default_rng(0)
    z = np.repeat(rng.normal(size=(5, 3)), 3, axis=0)
    kernel = KERNELS[name]
    root, gram = inducing_root(kernel, z), kernel(z)
    mean = np.diagonal(gram).mean()
    added = root @ root.T - gram
    np.testing.assert_allclose(added, np.diag(np.diagonal(added)), atol=1e-12 * mean)
    assert (np.diagonal(added) <= 1.001e-6 * mean).all()
    model = Inducing(2, kernel, z, 1.0)
    data = Sequences(rng.normal(size=(4, 3)))
    batch = model.lay_out(data)
    distinct = Inducing(2, kernel, z[::3], 1.0).lay_out(data)
    np.testing.assert_allclose(batch.phi @ batch.phi.T, distinct.phi @ distinct.phi.T, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_a_kernel_of_low_rank_has_a_root(scale):
    z = np.random.default_rng(0).normal(size=(12, 2))
    kernel = Scaled(Linear(), scale)
    root = inducing_root(kernel, z)
    gram = kernel(z)
    np.testing.assert_allclose(root @ root.T, gram, atol=1.001e-6 * np.diagonal(gram).mean())
    data = Sequences(np.random.default_rng(1).normal(size=(6, 2)))
    batch = Inducing(2, kernel, z, 1.0).lay_out(data)
    # the tokens span the space
    np.testing.assert_allclose(
        batch.phi @ batch.phi.T, kernel(data.x), rtol=1e-4, atol=1e-6 * scale
    )
    assert np.isfinite(np.linalg.cholesky(batch.rest[0])).all()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, z: 1.0 + np.abs(x[:, :1] - z[:, :1].T),  # off the diagonal larger than on it
        lambda x, z: -x @ z.T,
        lambda x, z: np.zeros((len(x), len(z))),
    ],
    ids=["indefinite", "negative", "zero"],
)
def test_what_is_no_covariance_is_refused(function):
    z = np.random.default_rng(0).normal(size=(5, 2))
    with pytest.raises(InputError, match="positive semi-definite"):
        Inducing(2, as_kernel(function), z, 1.0)


# --- derivatives -------------------------------------------------------------------------------


def functional(model, data, a, b):
    """<A, Phi> + sum_i <B_i, k(x_i, x_i)>"""
    batch = model.lay_out(data)
    total = np.vdot(a, batch.phi)
    for own, (first, last) in zip(b, pairwise(data.offsets.tolist()), strict=True):
        total += np.vdot(own, model.kernel(data.x[first:last]))
    return float(total)


def extrapolated(at, step=1e-3):
    """at'(0) by central differences."""
    coarse = (at(step) - at(-step)) / (2 * step)
    fine = (at(step / 2) - at(-step / 2)) / step
    return (4 * fine - coarse) / 3


def weights_of(data, m, seed=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(8, m)), [rng.normal(size=(t, t)) for t in data.lengths]


@every
@pytest.mark.parametrize("sparse", [False, True])
def test_derivatives_by_kernel_parameters(name, sparse):
    model, data = case(name, sparse=sparse)
    a, b = weights_of(data, 4)
    p = model.kernel.log_parameters
    assert len(p)

    def at(i):
        def moved(step):
            values = p.copy()
            values[i] += step
            kernel = model.kernel.with_log_parameters(values)
            return functional(model.with_kernel(kernel), data, a, b)

        return moved

    want = [extrapolated(at(i)) for i in range(len(p))]
    got = model.by_parameters(model.lay_out(data), a, b)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8)
    assert np.abs(want).min() > 0.05
    # at fixed Phi: the two parts are derivatives by Phi and by k(x, x) alone
    zero = [np.zeros_like(own) for own in b]
    by_phi = model.by_parameters(model.lay_out(data), a, zero)
    by_own = model.by_parameters(model.lay_out(data), np.zeros_like(a), b)
    np.testing.assert_allclose(by_phi + by_own, got, rtol=1e-10)


@every
def test_derivatives_by_inducing_tokens(name):
    model, data = case(name)
    a, b = weights_of(data, 4)
    want = np.empty(model.tokens.shape)
    for place in np.ndindex(want.shape):

        def at(step, place=place):
            z = model.tokens.copy()
            z[place] += step
            return functional(model.with_kernel(model.kernel, z), data, a, b)

        want[place] = extrapolated(at)
    got = model.by_tokens(model.lay_out(data), a)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    assert np.abs(want).max() > 0.1


def test_derivatives_by_inducing_tokens_in_a_column_without_spread():
    model, data = case("rbf")
    z = model.tokens.copy()
    z[:, 2] = 0.25
    model = model.with_kernel(model.kernel, z)
    a, b = weights_of(data, 4)

    def at(step):
        moved = z.copy()
        moved[1, 2] += step
        return functional(model.with_kernel(model.kernel, moved), data, a, b)

    got = model.by_tokens(model.lay_out(data), a)
    assert got[1, 2] == pytest.approx(extrapolated(at), rel=1e-5)


def test_derivatives_by_covariances():
    """By k(x, Z) and by k(Z, Z), entry by entry of the latter in symmetric pairs."""
    model, data = case("sum")
    batch = model.lay_out(data)
    a, _ = weights_of(data, 4)
    by_k, by_gram = model.pull_covariances(batch, a)
    k, gram = model.kernel(data.x, model.tokens), model.root @ model.root.T

    def value(k, gram):
        return np.vdot(a, np.linalg.solve(np.linalg.cholesky(gram), k.T).T)

    rng = np.random.default_rng(0)
    for _ in range(4):
        d = rng.normal(size=k.shape)
        want = extrapolated(lambda step, d=d: value(k + step * d, gram))
        assert np.vdot(by_k, d) == pytest.approx(want, rel=1e-8)
        d = rng.normal(size=gram.shape)
        d = d + d.T
        want = extrapolated(lambda step, d=d: value(k, gram + step * d), 1e-4)
        assert np.vdot(by_gram, d) == pytest.approx(want, rel=1e-7)
    np.testing.assert_array_equal(by_gram, by_gram.T)
