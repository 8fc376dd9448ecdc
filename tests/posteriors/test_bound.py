"""Kernel parameters by the bound of GPSL: derivatives, what is learned, and exact roots."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from seqfield.errors import InputError
from seqfield.kernels import RBF, Columns, Linear, Matern, Polynomial, RationalQuadratic
from seqfield.kernels._pairs import Pairs
from seqfield.kernels.lowrank import pivoted_cholesky
from seqfield.kernels.tokens import Tokens
from seqfield.labels import Targets
from seqfield.posteriors import bound as _bound
from seqfield.posteriors.bound import Bound, by_data, exact_root, to_learn
from seqfield.sequences import Sequences, offsets_of

from ..support.sequences import numbers

X, Y = numbers(n=8, seed=0, longest=5)
STACKED = np.vstack(X)
OFFSETS = offsets_of([len(x) for x in X])
CODES = np.array([int(k[1]) for row in Y for k in row], np.int32)


def silent(n_done, text):
    pass


def problem(distances=(-1, 1), seed=0, codes=CODES):
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, len(X))
    tokens = Tokens.of(Sequences(STACKED, OFFSETS))
    return Bound(tokens, Targets(codes, None, OFFSETS), weights, distances, 3, 1)


# --- derivatives -------------------------------------------------------------------------------

SETS = {
    "one": [1.5 * RBF(0.8)],
    "one for each label": [1.5 * RBF(0.8), 0.5 * RBF(1.2), Matern(0.6)],
    "of different rank": [RBF(0.8), Polynomial(2, 0.7), 2.0 * Polynomial(1, 1.3)],
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("distances", [(), (-1, 1)], ids=str)
def test_derivatives_equal_differences(name, distances, monkeypatch):
    monkeypatch.setattr(_bound, "SWEEPS", 3000)
    monkeypatch.setattr(_bound, "VariationalEM", tight(_bound.VariationalEM))
    kernels, bound = SETS[name], problem(distances)
    pairs = Pairs(bound.tokens.x)
    _, gradients = bound(kernels, pairs)
    assert [len(g) for g in gradients] == [len(k.log_parameters) for k in kernels]
    for k, kernel in enumerate(kernels):
        for j, unit in enumerate(np.eye(len(kernel.log_parameters))):

            def value(step, k=k, kernel=kernel, unit=unit):
                moved = list(kernels)
                moved[k] = kernel.with_log_parameters(kernel.log_parameters + step * unit)
                return bound(moved, pairs)[0]

            coarse, fine = (value(h) - value(-h) for h in (2e-2, 1e-2))
            want = (8 * fine - coarse) / 12e-2
            assert gradients[k][j] == pytest.approx(want, rel=1e-3, abs=1e-4)


def tight(method):
    """The method to its end."""
    return lambda sweeps, tol, *rest: method(sweeps, 1e-12, *rest)


def test_equal_kernels_have_the_bound_of_one():
    bound, kernel = problem(), 1.5 * RBF(0.8)
    pairs = Pairs(bound.tokens.x)
    one, (whole,) = bound([kernel], pairs)
    each, parts = bound([kernel] * 3, pairs)
    assert each == pytest.approx(one, rel=1e-9)
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-5, atol=1e-8)


# --- the search --------------------------------------------------------------------------------


def test_scales_are_learned_if_asked_for():
    kernels = [2.0 * RBF(1.0) + 0.5, Linear(), Polynomial(2, 1.0)]
    names = [(p.kernel, p.name) for p in to_learn(kernels, scales=False)]
    assert names == [(0, "left.kernel.length_scale"), (2, "coef0")]
    names = [p.name for p in to_learn(kernels, scales=True)]
    assert names == ["left.scale", "left.kernel.length_scale", "right.value", "coef0"]


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_the_search_raises_the_bound_of_weighted_labels_some_of_which_are_missing(missing):
    codes = np.where(np.random.default_rng(1).random(len(CODES)) < missing, -1, CODES)
    bound = problem(codes=codes.astype(np.int32))
    pairs = Pairs(bound.tokens.x)
    for kernels in ([RBF(0.2)], [RBF(0.2), RBF(3.0), Matern(1.0)]):
        found = bound.maximise(kernels, to_learn(kernels, scales=False), silent)
        assert bound(found, pairs)[0] > bound(kernels, pairs)[0] + 0.01
    # what is not in the list stays
    kernels = [2.0 * RBF(0.2)]
    (found,) = bound.maximise(kernels, to_learn(kernels, scales=False), silent)
    assert found.scale == 2.0
    assert found.kernel.length_scale != 0.2


def test_a_parameter_at_the_limit_of_the_search_is_named(monkeypatch):
    monkeypatch.setattr(_bound, "REACH", 1.0)
    kernels = [1.0 * RBF(1.0)]
    wrong = np.random.default_rng(0).integers(3, size=len(CODES)).astype(np.int32)
    bound = problem(codes=wrong)
    with pytest.warns(ConvergenceWarning, match=r"kernel parameter scale ended at 0\.368"):
        bound.maximise(kernels, to_learn(kernels, scales=True)[:1], silent)
    with pytest.warns(ConvergenceWarning, match="scale of label 1 ended"):
        bound.maximise(kernels * 3, to_learn(kernels * 3, scales=True)[2:3], silent)


@pytest.mark.parametrize("length", [1e200, 1e-100])
def test_a_parameter_out_of_reach_is_refused(length):
    kernels = [RBF(length)]
    with pytest.raises(InputError, match=r"length_scale = 1e.* leads nowhere"):
        problem().maximise(kernels, to_learn(kernels, scales=False), silent)


# --- roots of low rank -------------------------------------------------------------------------


def tokens(n, width, seed=0):
    return np.random.default_rng(seed).normal(size=(n, width))


@pytest.mark.parametrize("kernel", [Linear(), Polynomial(2, 1.0), 3.0 * Linear() + 0.5], ids=str)
@pytest.mark.parametrize("sparse", [False, True])
def test_exact_root_of_a_kernel_of_low_rank(kernel, sparse):
    x = tokens(120, 3)
    x[::2] = 0.0  # of which half of those looked at first are
    given = sp.csr_array(x) if sparse else x
    found = exact_root(kernel, given, 60)
    np.testing.assert_allclose(found.root @ found.root.T, kernel(x), atol=1e-8)
    assert found.root.shape[1] == np.linalg.matrix_rank(kernel(x))
    new = tokens(5, 3, seed=1)
    phi = kernel(new, found.tokens) @ found.dual
    np.testing.assert_allclose(phi @ phi.T, kernel(new), rtol=1e-7)


def test_a_smooth_kernel_has_low_rank_too():
    x, kernel = tokens(400, 1), RBF(1.0)
    found = exact_root(kernel, x, 200)
    assert found.root.shape[1] < 40
    np.testing.assert_allclose(found.root @ found.root.T, kernel(x), atol=1e-9)


def test_kernels_of_full_rank_have_no_exact_root(monkeypatch):
    sizes = []

    def counted(kernel, x, rank):
        sizes.append(x.shape[0])
        return pivoted_cholesky(kernel, x, rank)

    monkeypatch.setattr(_bound, "pivoted_cholesky", counted)
    assert exact_root(RBF(0.3), tokens(120, 3), 60) is None
    assert exact_root(Linear(), tokens(3, 3), 1) is None
    assert exact_root(Linear(), tokens(120, 3), 0) is None
    # that a quarter of the tokens is looked at is all that it costs
    assert sizes == [30]
    # as many columns as are allowed may not be all
    assert exact_root(Linear(), tokens(120, 3), 3) is None
    assert exact_root(Linear(), np.zeros((120, 3)), 60) is None


def binary(n, width, seed=0):
    return (np.random.default_rng(seed).random((n, width)) < 0.3).astype(np.float64)


@pytest.mark.parametrize("kernel", [Linear(), 2.0 * Linear() + 1.0], ids=str)
@pytest.mark.parametrize("sparse", [False, True])
def test_few_features_are_a_low_rank_whatever_some_tokens_say(kernel, sparse):
    x = binary(240, 50)
    found = exact_root(kernel, sp.csr_array(x) if sparse else x, 120)
    np.testing.assert_allclose(found.root @ found.root.T, kernel(x), atol=1e-8)


def test_a_thorough_search_tries_every_rank_that_there_is_room_for():
    x, kernel = tokens(100, 8), Polynomial(2, 1.0)  # of rank 45, which no count of columns tells
    assert exact_root(kernel, x, 60) is None
    found = exact_root(kernel, x, 60, thorough=True)
    assert found.root.shape == (100, 45)
    np.testing.assert_allclose(found.root @ found.root.T, kernel(x), rtol=1e-7, atol=1e-7)
    assert exact_root(kernel, x, 40, thorough=True) is None
    assert exact_root(RBF(0.1), x, 60, thorough=True) is None


@pytest.mark.parametrize("length", [1e3, 1e-3])
def test_a_search_from_a_bad_start_finds_what_a_good_one_does(length):
    bound, found = problem(), []
    for start in (1.0, length):
        kernels = [RBF(start)]
        learned = bound.maximise(kernels, to_learn(kernels, scales=False), silent)
        found.append(bound(learned, Pairs(bound.tokens.x))[0])
    assert found[1] == pytest.approx(found[0], rel=1e-2)


def test_length_scales_by_the_data():
    x = np.array([[0.0, 5.0], [3.0, 5.0]])
    kernel = 2.0 * RBF(1e3) + Columns(Matern(7.0), [0]) * Linear()
    found = by_data(kernel.fit(x), x)
    assert [repr(found.left.kernel), repr(found.right.left.kernel)] == [
        "RBF(length_scale=3.0)",
        "Matern(length_scale=3.0)",
    ]
    assert kernel.left.kernel.length_scale == 1e3
    rational = RationalQuadratic(9.0, 0.5)
    assert by_data(rational, x).get_params() == {"alpha": 0.5, "length_scale": 3.0}


def test_a_search_that_is_cut_short_is_told(monkeypatch):
    monkeypatch.setattr(_bound, "SEARCH", 1)
    kernels = [RationalQuadratic(1.0, 1.0)]
    with pytest.warns(ConvergenceWarning, match="still rose after 1 iterations"):
        problem().maximise(kernels, to_learn(kernels, scales=False), silent)
