"""Covariances and functions against the gram matrix."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.errors import InputError
from seqfield.kernels import RBF, Graph, Kernel, Linear, Normalized, Polynomial, Precomputed
from seqfield.kernels.covariance import Explicit, Factored, LowRank, Matrix, OnDemand, span
from seqfield.kernels.functions import (
    FUNCTIONS,
    Expanded,
    Span,
    matrix_state,
    restore_matrix,
)

N, WIDTH = 30, 6
RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(N, WIDTH))
BINARY = sp.csr_array((RNG.random((N, WIDTH)) < 0.4).astype(np.int8))
NEW = {"dense": RNG.normal(size=(9, WIDTH)), "binary": sp.csr_array(RNG.random((9, WIDTH)) < 0.4)}
GRAPH = Graph(n_neighbors=4, n_components=12).fit(DENSE)


def matrix(kernel, x, dtype=np.float64):
    return Matrix(kernel, x, kernel(x).astype(dtype), 1)


# each with the gram matrix that it stands for
FORMS = {
    "matrix": (lambda: matrix(RBF(1.0), DENSE), RBF(1.0), DENSE),
    "sparse matrix": (lambda: matrix(Polynomial(2), BINARY), Polynomial(2), BINARY),
    "on demand": (lambda: OnDemand(RBF(1.0), DENSE, 1), RBF(1.0), DENSE),
    "sparse on demand": (lambda: OnDemand(Polynomial(2), BINARY, 1), Polynomial(2), BINARY),
    "linear": (lambda: Explicit(Linear().expansion(DENSE), DENSE), Linear(), DENSE),
    "pairs": (lambda: Explicit(Polynomial(2).expansion(BINARY), BINARY), Polynomial(2), BINARY),
    "graph": (lambda: Explicit(GRAPH.expansion(DENSE), DENSE), GRAPH, DENSE),
    "inducing": (lambda: LowRank.choose(RBF(1.0), DENSE, N), RBF(1.0), DENSE),
    "random inducing": (
        lambda: LowRank.choose(Polynomial(2), BINARY, N, rng=np.random.default_rng(1)),
        Polynomial(2),
        BINARY,
    ),
}
every = pytest.mark.parametrize("form", FORMS)


@every
def test_products_and_columns_are_those_of_the_gram_matrix(form):
    build, kernel, x = FORMS[form]
    covariance, gram = build(), kernel(x)
    assert covariance.size == N
    scale = np.abs(gram).max()
    for width in (1, 3, 40):
        v = np.random.default_rng(width).normal(size=(N, width))
        np.testing.assert_allclose(covariance.multiply(v), gram @ v, atol=1e-6 * scale)
        rows = np.array([4, 0, 17, 4])
        got = covariance.rows_times(rows, v)
        np.testing.assert_allclose(got, gram[rows] @ v, atol=1e-6 * scale)
        got = covariance.columns_times(rows, v[:4])
        np.testing.assert_allclose(got, gram[:, rows] @ v[:4], atol=1e-6 * scale)
    for chosen in ([3], [7, 2, 29], [5, 5], []):
        got = covariance.columns(np.array(chosen, np.int64))
        assert got.shape == (N, len(chosen))
        np.testing.assert_allclose(got, gram[:, chosen], atol=1e-6 * scale)
        assert got.dtype == np.float64


@every
def test_function_at_training_tokens_and_at_new_ones(form):
    build, kernel, x = FORMS[form]
    if form == "graph":
        new, context = x[::3], DENSE  # others are not in the graph
    else:
        new, context = (NEW["binary"] if sp.issparse(x) else NEW["dense"]), x
    covariance = build()
    a = np.random.default_rng(2).normal(size=(N, 4))
    a[::2] = 0.0
    function = covariance.function(a)
    np.testing.assert_allclose(function.values(x, 1), covariance.multiply(a), atol=1e-8)
    want = kernel(new, context) @ a
    # features of all landmarks leave out directions below 1e-10 of the largest
    atol = 1e-4 if "inducing" in form else 1e-8
    np.testing.assert_allclose(function.values(new, 1), want, atol=atol * np.abs(want).max())
    kept = 0 if isinstance(covariance, Explicit) else (N if "inducing" in form else N // 2)
    assert function.n_tokens <= kept if "random" in form else function.n_tokens == kept


def test_float32_matrix_sums_in_float64():
    gram = RBF(1.0)(DENSE).astype(np.float32)
    covariance = matrix(RBF(1.0), DENSE, np.float32)
    v = np.random.default_rng(0).normal(size=(N, 3))
    want = gram.astype(np.float64) @ v
    np.testing.assert_allclose(covariance.multiply(v), want, rtol=1e-13)
    np.testing.assert_array_equal(covariance.columns(np.array([1, 2])), gram[:, [1, 2]])


@pytest.mark.parametrize("sparse", [False, True])
def test_factored(sparse):
    phi = np.where(RNG.random((N, 9)) < 0.5, RNG.normal(size=(N, 9)), 0.0)

    class Plain(Factored):
        def function(self, coefficients):
            raise NotImplementedError

    covariance = Plain(sp.csr_array(phi) if sparse else phi)
    v = RNG.normal(size=(N, 2))
    np.testing.assert_allclose(covariance.multiply(v), phi @ (phi.T @ v), rtol=1e-10)
    np.testing.assert_allclose(covariance.weights(v), phi.T @ v, rtol=1e-10)
    np.testing.assert_allclose(
        covariance.columns(np.array([8, 1])), phi @ phi[[8, 1]].T, atol=1e-12
    )
    assert isinstance(covariance.columns(np.array([8, 1])), np.ndarray)


def test_many_attributes_in_common():
    """More than an int8, the type of binary attributes, can count."""
    x = sp.csr_array(np.ones((3, 200), np.int8))
    covariance = Explicit(Linear().expansion(x), x)
    np.testing.assert_array_equal(covariance.columns(np.array([0])), np.full((3, 1), 200.0))
    np.testing.assert_array_equal(covariance.multiply(np.eye(3)), np.full((3, 3), 200.0))


@pytest.mark.parametrize("rank", [1, 5, 12])
def test_fewer_landmarks(rank):
    """Exact at the landmarks; the rest of G is at least as large (Nystrom)."""
    gram = RBF(1.0)(DENSE)
    covariance = LowRank.choose(RBF(1.0), DENSE, rank)
    approximate = covariance.multiply(np.eye(N))
    assert np.linalg.eigvalsh(gram - approximate).min() > -1e-8
    assert np.linalg.matrix_rank(approximate, tol=1e-8) == rank
    assert covariance.function(np.ones((N, 1))).n_tokens == rank
    exact = np.isclose(np.diag(approximate), 1.0, atol=1e-8)
    assert exact.sum() == rank


def drawn_or_chosen(kernel, x, rank):
    for rng in (None, np.random.default_rng(0)):
        yield lambda rng=rng: LowRank.choose(kernel, x, rank, rng=rng)


@pytest.mark.parametrize("rank", [4, 37])
def test_landmarks_of_what_is_no_covariance(rank):
    wrong = np.eye(37)
    wrong[0, 1] = wrong[1, 0] = 5.0
    for choose in drawn_or_chosen(Precomputed(wrong), np.arange(37)[:, None], rank):
        with pytest.raises(InputError, match="not positive semi-definite: 5 for tokens 0 and 1"):
            choose()


def test_landmarks_of_a_kernel_that_overflows():
    x = np.full((20, 3), 1.0)
    x[11] = 1e3
    for choose in drawn_or_chosen(Polynomial(80), x, 5):
        with pytest.raises(InputError, match="the kernel is inf for tokens 11 and 11"):
            choose()


@pytest.mark.parametrize("kernel", [Linear(), Normalized(Linear()), Linear() + 1.0], ids=repr)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_features_that_overflow(kernel, form):
    x = form(np.where(np.arange(N) == 7, 1e160, 1.0)[:, None] * (DENSE + 9.0))
    expansion = kernel.expansion(x)
    with pytest.raises(InputError, match="the kernel is inf for tokens 7 and 7"):
        Explicit(expansion, x)
    trained = Explicit(expansion, x[:7]).function(np.full((7, 2), 1e150))
    trained.values(x[:7])
    with pytest.raises(InputError, match="7"):
        trained.values(x)


def test_values_that_are_large_are_no_overflow():
    """Their sum is infinite, none of them is."""
    x = np.full((40, 1), 1e153)
    function = Expanded(Linear().expansion(x), np.full((1, 1), 1e154))
    np.testing.assert_allclose(function.values(x), 1e307, rtol=1e-12)


def test_landmarks_are_drawn_by_the_generator():
    def drawn(seed):
        return LowRank.choose(RBF(1.0), DENSE, 5, rng=np.random.default_rng(seed)).found.tokens

    np.testing.assert_array_equal(drawn(0), drawn(0))
    assert not np.array_equal(drawn(0), drawn(1))


class _Counting(Kernel):
    """Remembers how many tokens it was evaluated at."""

    def __init__(self):
        self.seen = []

    def _value(self, pairs):
        self.seen.append(pairs.shape)
        return RBF(1.0)._value(pairs)

    def _derivatives(self, pairs):
        return []

    def _diagonal(self, x):
        return np.ones(x.shape[0])


def test_span_keeps_tokens_with_a_coefficient_alone():
    kernel = _Counting()
    a = np.zeros((N, 3))
    a[[2, 11]] = [[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]]
    function = span(kernel, DENSE, a)
    np.testing.assert_array_equal(function.tokens, DENSE[[2, 11]])
    np.testing.assert_array_equal(function.coefficients, a[[2, 11]])
    function.values(NEW["dense"])
    assert {shape[1] for shape in kernel.seen} <= {1, 2}
    assert sum(rows for rows, width in kernel.seen if width == 2) == 9


@pytest.mark.parametrize("x", [DENSE, BINARY], ids=["dense", "sparse"])
def test_span_of_nothing_is_zero(x):
    function = span(RBF(1.0), x, np.zeros((N, 3)))
    assert function.n_tokens == 0
    np.testing.assert_array_equal(function.values(x[:4]), np.zeros((4, 3)))


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [DENSE, BINARY, sp.csr_array(DENSE), DENSE[:0]])
def test_matrices_come_back(x):
    again = restore_matrix(*matrix_state(x))
    assert again.shape == x.shape
    assert sp.issparse(again) == sp.issparse(x)
    assert again.dtype == x.dtype
    if sp.issparse(x):
        again, x = again.toarray(), x.toarray()
    np.testing.assert_array_equal(again, x)


def put(name, index, value):
    def change(header, arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def cut(name):
    def change(header, arrays):
        arrays[name] = arrays[name][:-1]

    return change


def head(**changes):
    return lambda header, arrays: header.update(changes)


BAD_SPARSE = {
    "NaN": put("data", 3, np.nan),
    "column out of range": put("indices", 3, WIDTH),
    "negative column": put("indices", 3, -1),
    "row starts that fall": put("indptr", 2, 10**6),
    "first row start": put("indptr", 0, 1),
    "last row start": put("indptr", -1, 1),
    "short data": cut("data"),
    "short columns": cut("indices"),
    "short row starts": cut("indptr"),
    "more rows": head(shape=[N + 1, WIDTH]),
    "fewer columns": head(shape=[N, 1]),
}
BAD_DENSE = {
    "NaN": put("data", (0, 0), np.nan),
    "infinity": put("data", (1, 2), np.inf),
    "short": cut("data"),
    "another shape": head(shape=[WIDTH, N]),
}


@pytest.mark.parametrize(
    ("x", "change"),
    [(sp.csr_array(DENSE), c) for c in BAD_SPARSE.values()]
    + [(DENSE, c) for c in BAD_DENSE.values()],
    ids=[*BAD_SPARSE, *(f"dense, {name}" for name in BAD_DENSE)],
)
def test_damaged_matrices_are_refused(x, change):
    header, arrays = matrix_state(x)
    header, arrays = dict(header), dict(arrays)
    change(header, arrays)
    with pytest.raises(InputError):
        restore_matrix(header, arrays)


@every
def test_functions_come_back(form):
    build, kernel, x = FORMS[form]
    function = build().function(np.random.default_rng(3).normal(size=(N, 4)))
    again = FUNCTIONS.restore(*FUNCTIONS.state(function), kernel, WIDTH, 4)
    assert type(again) is type(function)
    np.testing.assert_array_equal(again.values(x), function.values(x))
    with pytest.raises(InputError, match="coefficients"):
        FUNCTIONS.restore(*FUNCTIONS.state(function), kernel, WIDTH, 5)
    with pytest.raises(InputError, match="fit"):
        FUNCTIONS.restore(*FUNCTIONS.state(function), kernel, WIDTH + 1, 4)
    header, arrays = FUNCTIONS.state(function)
    bad = arrays["coefficients"].copy()
    bad[0, 0] = np.nan
    with pytest.raises(InputError, match="finite"):
        FUNCTIONS.restore(header, {**arrays, "coefficients": bad}, kernel, WIDTH, 4)
    with pytest.raises(InputError, match="fit"):
        FUNCTIONS.restore(header, {**arrays, "coefficients": bad[1:]}, kernel, WIDTH, 4)


def test_kinds_of_function():
    assert isinstance(FORMS["pairs"][0]().function(np.ones((N, 1))), Expanded)
    assert isinstance(FORMS["inducing"][0]().function(np.ones((N, 1))), Span)
