"""Kernels of columns, of functions and of given numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from seqfield.errors import InputError
from seqfield.kernels import KERNELS, RBF, Callable, Columns, Linear, Normalized, Precomputed

NAMES = ["w=a", "tag=N", "w=b", "tag=V", "w"]


def test_prefix():
    x = np.random.default_rng(0).normal(size=(5, 5))
    kernel = Linear() + 2 * Columns(RBF(), "tag=")
    fitted = kernel.fit(x, NAMES)
    np.testing.assert_array_equal(fitted.right.kernel.columns, [1, 3])
    assert kernel.right.kernel.columns == "tag="
    # the length scale is that of the chosen columns
    assert fitted.right.kernel.kernel.length_scale == RBF().fit(x[:, [1, 3]]).length_scale
    expected = x @ x.T + 2 * RBF().fit(x[:, [1, 3]])(x[:, [1, 3]])
    np.testing.assert_allclose(fitted(x), expected, rtol=1e-13)
    copy = KERNELS.restore(*KERNELS.state(fitted))
    np.testing.assert_array_equal(copy(x), fitted(x))
    np.testing.assert_array_equal(clone(fitted)(x), fitted(x))


def test_new_parameters_keep_the_fit():
    x = np.random.default_rng(0).normal(size=(5, 5))
    fitted = Columns(RBF(), "tag=").fit(x, NAMES)
    moved = fitted.with_log_parameters([np.log(3.0)])
    np.testing.assert_allclose(moved(x), RBF(3.0)(x[:, [1, 3]]), rtol=1e-13)


def test_prefix_within_a_prefix():
    kernel = Columns(Columns(Linear(), "w=b"), "w").fit(np.eye(5), NAMES)
    np.testing.assert_array_equal(np.diagonal(kernel(np.eye(5))), [0, 0, 1, 0, 0])


def test_prefix_that_matches_nothing():
    with pytest.raises(InputError, match=r"no feature name starts with 'x='; the first: 'w=a'"):
        Columns(Linear(), "x=").fit(np.eye(5), NAMES)


@pytest.mark.parametrize("names", [None, ["a"]])
def test_prefix_without_names(names):
    with pytest.raises(InputError, match="needs feature names"):
        Columns(Linear(), "w").fit(np.eye(5), names)


def test_prefix_before_fit():
    kernel = Columns(Linear(), "w")
    with pytest.raises(InputError, match="fit the kernel first"):
        kernel(np.eye(5))


@pytest.mark.parametrize(
    "columns",
    ["tag=", "", slice(1, 3), slice(None, None, -2), slice(np.int64(-2), None), [0, -1], []],
    ids=repr,
)
def test_columns_as_given_come_back_from_a_file(columns):
    header, arrays = KERNELS.state(Columns(Linear(), columns))
    again = KERNELS.restore(json.loads(json.dumps(header)), arrays)
    assert type(again.columns) is (np.ndarray if columns == [] else type(columns))
    for width in (5, 4):  # what a slice or a number from the end stands for depends on the data
        x, names = np.eye(width), NAMES[:width]
        found = again.fit(x, names).columns
        np.testing.assert_array_equal(found, Columns(Linear(), columns).fit(x, names).columns)


@pytest.mark.parametrize(
    "columns",
    [
        None,
        1,
        {},
        {"slice": [0, 1]},
        {"slice": [0, 1, 0]},
        {"slice": [0, 1, 0.5]},
        {"slice": [0, "x", None]},
        {"slice": [True, 1, None]},
        {"slice": "abc"},
        {"slice": [0, 1, None], "more": 1},
        [0.5],
        [[1]],
        [True],
        ["a"],
        [-(2**70)],
    ],
    ids=repr,
)
def test_damaged_columns_as_given(columns):
    header, _ = KERNELS.state(Columns(Linear(), "w"))
    for own in ({"columns": columns}, {"columns": "w", "more": 1}, {"other": "w"}):
        with pytest.raises(InputError):
            KERNELS.restore(header | {"own": own}, {})


@pytest.mark.parametrize("columns", [slice("a", "b"), slice(0, 2, 0), slice(0.5, None)], ids=repr)
def test_bad_slices(columns):
    with pytest.raises(InputError, match=r"Columns: .* slice"):
        Columns(Linear(), columns)(np.eye(3))


@pytest.mark.parametrize("columns", [[0.5], [[1]], None, ["a"]])
def test_bad_columns(columns):
    with pytest.raises(InputError, match="a slice, a list of whole numbers or a prefix"):
        Columns(Linear(), columns)(np.eye(3))


@pytest.mark.parametrize("column", [3, -4])
def test_columns_out_of_range(column):
    with pytest.raises(InputError, match=f"no column {column}: tokens have 3"):
        Columns(Linear(), [0, column])(np.eye(3))


def test_no_columns():
    np.testing.assert_array_equal(Columns(Linear(), [])(np.eye(3)), np.zeros((3, 3)))


def test_function_takes_what_comes():
    seen = []

    def function(x, z):
        seen.append((type(x), type(z)))
        return np.ones((x.shape[0], z.shape[0]), int)

    x = sp.csr_array(np.eye(3))
    np.testing.assert_array_equal(Callable(function)(x, x[:2]), np.ones((3, 2)))
    assert seen == [(sp.csr_array, sp.csr_array)]


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csr_matrix])
@pytest.mark.parametrize("other", [np.asarray, sp.csr_array, sp.csr_matrix])
def test_function_gets_tokens_of_one_form(form, other):
    """That of z, which the tokens of training are."""
    seen = []

    def function(x, z):
        seen.append((type(x), type(z)))
        return x @ z.T

    x = np.eye(3)
    np.testing.assert_array_equal(Callable(function)(form(x), other(x[:2])), x[:, :2])
    assert seen == [2 * (type(other(x)),)]


def test_function_may_give_a_sparse_matrix():
    kernel = Callable(lambda x, z: x @ z.T)
    np.testing.assert_array_equal(kernel(sp.csr_array(np.eye(3))), np.eye(3))


def test_function_gets_numbers_that_can_be_summed():
    """Binary attributes are int8, which 200 of them would overflow."""
    x = sp.csr_array(np.ones((3, 200), np.int8))
    np.testing.assert_array_equal(Callable(lambda x, z: x @ z.T)(x), np.full((3, 3), 200.0))
    np.testing.assert_array_equal(Callable(lambda x, z: x @ z.T).diagonal(x), np.full(3, 200.0))


def test_function_of_a_ragged_list():
    with pytest.raises(InputError, match="the kernel function must give real numbers"):
        Callable(lambda x, z: [[1.0, 2.0], [3.0]])(np.eye(2))


def test_function_of_a_wrong_shape():
    with pytest.raises(InputError, match=r"shape \(3,\), but the tokens need \(3, 3\)"):
        Callable(lambda x, z: np.ones(3))(np.eye(3))


def test_function_of_a_wrong_type():
    with pytest.raises(InputError, match="must give real numbers"):
        Callable(lambda x, z: np.ones((3, 3), complex))(np.eye(3))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_function_gives_nan(value):
    def function(x, z):
        return np.where((x @ z.T)[:, :] == 6.0, value, 1.0)

    x = np.array([[1.0], [2.0], [3.0]])
    with pytest.raises(InputError, match=f"gave {value} for rows 1 and 2"):
        Callable(function)(x)


def test_diagonal_of_a_function():
    x = np.random.default_rng(0).normal(size=(100, 3))
    kernel = Normalized(Callable(lambda x, z: x @ z.T + 1))
    np.testing.assert_array_equal(kernel.diagonal(x), 1.0)
    np.testing.assert_allclose(kernel.kernel.diagonal(x), (x**2).sum(1) + 1, rtol=1e-13)


GRAM = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])


def test_precomputed():
    kernel = Precomputed(GRAM)
    x = np.array([[2], [0], [2]])
    fitted = kernel.fit(x)
    np.testing.assert_array_equal(fitted(x), GRAM[np.ix_([2, 0, 2], [2, 0, 2])])
    np.testing.assert_array_equal(fitted(x, [[1]]), [[0.5], [1.0], [0.5]])
    np.testing.assert_array_equal(fitted(sp.csr_array(x), [[1]]), [[0.5], [1.0], [0.5]])
    np.testing.assert_array_equal(fitted.diagonal(x), [1.0, 2.0, 1.0])
    np.testing.assert_array_equal(KERNELS.restore(*KERNELS.state(fitted))(x), fitted(x))
    np.testing.assert_allclose(
        Normalized(kernel)(x, [[1]]), [[0.5 / np.sqrt(2)], [0.5], [0.5 / np.sqrt(2)]], rtol=1e-14
    )
    assert kernel.derivatives(x) == []


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones(4), "square"),
        (np.ones((0, 0)), "square"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "gram is nan at row 0, column 1"),
        (np.array([[1.0, 0.5], [0.5001, 1.0]]), "not symmetric"),
    ],
)
def test_bad_gram(gram, message):
    with pytest.raises(InputError, match=message):
        Precomputed(gram).fit([[0]])


@pytest.mark.parametrize(
    "gram",
    [[["a"]], [[1, 2], [3]], np.eye(2, dtype=complex), sp.csr_array(np.eye(2) * 1j), None, "gram"],
    ids=["text", "ragged", "complex", "sparse complex", "none", "a word"],
)
def test_gram_that_is_no_matrix_of_numbers(gram):
    for use in (Precomputed(gram).fit, Precomputed(gram), Precomputed(gram).diagonal):
        with pytest.raises(InputError, match="Precomputed: gram must be"):
            use([[0]])


def test_gram_in_other_forms():
    x = np.array([[2], [0], [2]])
    for gram in (sp.csr_array(GRAM), sp.coo_matrix(GRAM), GRAM.tolist(), GRAM.astype(np.float32)):
        kernel = Precomputed(gram)
        for one in (kernel, kernel.fit(x), clone(kernel), KERNELS.restore(*KERNELS.state(kernel))):
            np.testing.assert_array_equal(one(x), GRAM[np.ix_([2, 0, 2], [2, 0, 2])])
            np.testing.assert_array_equal(one.diagonal(x), [1.0, 2.0, 1.0])


def test_rounding_is_no_asymmetry():
    Precomputed(np.array([[1.0, 0.5], [0.5 + 1e-10, 1.0]])).fit([[0]])


@pytest.mark.parametrize("token", [-1, 3, 0.5, np.nan])
def test_bad_numbers(token):
    with pytest.raises(InputError, match="not a whole number from 0 to 2"):
        Precomputed(GRAM)([[0.0], [token]])
    with pytest.raises(InputError, match="row 1"):
        Precomputed(GRAM).fit([[0.0], [token]])


def test_one_number_a_token():
    with pytest.raises(InputError, match="got 2 columns"):
        Precomputed(GRAM)([[0, 1]])
