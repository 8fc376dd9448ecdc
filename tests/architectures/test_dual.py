"""Functions that grow: what is read from a store is what the coefficients say."""

from __future__ import annotations

from functools import cached_property

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.architectures.dual import GIB, Dual, Growing, Store, add_at, has_row, read_scores
from seqfield.errors import BudgetError, InputError
from seqfield.kernels import RBF, Linear, Polynomial
from seqfield.kernels.covariance import Explicit, LowRank, Matrix, OnDemand
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import DualProblem
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers.margin import MaxMargin
from seqfield.solvers.perceptron import Perceptron

S = 3
RNG = np.random.default_rng(0)
OFFSETS = offsets_of(RNG.integers(1, 6, 14))
TOKENS = RNG.normal(size=(30, 4))
BINARY = sp.csr_array((RNG.random((30, 8)) < 0.4).astype(np.int8))
#: more tokens than distinct ones
ROWS = RNG.integers(30, size=OFFSETS[-1])
LABELS = RNG.integers(S, size=OFFSETS[-1]).astype(np.int32)
LONGEST = int(np.diff(OFFSETS).max())
KERNELS = {"linear": Linear(), "quadratic": Polynomial(2), "rbf": RBF(1.3)}
STORES = [
    ("linear", "explicit"),
    ("linear", "matrix"),
    ("linear", "rows"),
    ("quadratic", "explicit"),
    ("quadratic", "matrix"),
    ("rbf", "matrix"),
    ("rbf", "rows"),
    ("rbf", "landmarks"),
]
every = pytest.mark.parametrize(("kernel", "store"), STORES)


@numba.njit
def add(store, tokens, changes):
    for k in range(len(tokens)):
        add_at(store, tokens[k], changes[k])


@numba.njit
def read(store, n, s):
    out = np.empty((n, s))
    for t in range(n):
        read_scores(store, t, out[t])
    return out


@numba.njit
def have(store, n):
    out = np.empty(n, np.bool_)
    for t in range(n):
        out[t] = has_row(store, t)
    return out


def tokens_of(kernel):
    return BINARY if kernel == "quadratic" else TOKENS


def covariance(kernel, store):
    k, x = KERNELS[kernel], tokens_of(kernel)
    if store == "explicit":
        return Explicit(k.expansion(x, np.inf), x)
    if store == "matrix":
        return Matrix(k, x, k(x), 1)
    if store == "landmarks":
        return LowRank.choose(k, x, 12)
    return OnDemand(k, x, 1)


def gram_of(kernel, store):
    cov = covariance(kernel, store)
    return cov.multiply(np.eye(cov.size))


def dual(kernel, store, eta=1.0, n_rows=LONGEST + 2):
    """Room for few gram rows where those are computed."""
    budget = 8.0 * 30 * n_rows if store == "rows" else 1e9
    return Dual(S, covariance(kernel, store), eta, budget)


def sequences():
    return Sequences(ROWS[:, None].astype(float), OFFSETS)


def filled(growing, part):
    """The store after random changes at some tokens, and the coefficients they make."""
    rng = np.random.default_rng(part)
    tokens = rng.integers(OFFSETS[part], OFFSETS[part + 1], size=4)
    changes = rng.normal(size=(4, S)) * (rng.random((4, S)) < 0.7)
    if growing.store.slot.size:
        growing.fetch(ROWS[tokens])
    add(growing.store, tokens, changes)
    beta = np.zeros((30, S))
    np.add.at(beta, ROWS[tokens], changes)
    return beta


@every
@pytest.mark.parametrize("eta", [0.0, 1.0, 2.5])
def test_values_are_products_with_the_gram_matrix(kernel, store, eta):
    found = dual(kernel, store, eta)
    theta = np.random.default_rng(1).normal(size=found.n_parameters)
    table, transitions = found.lift(theta)
    beta, delta = theta[: 30 * S].reshape(30, S), theta[30 * S :].reshape(S, S)
    np.testing.assert_allclose(table, gram_of(kernel, store) @ beta, atol=1e-10)
    np.testing.assert_array_equal(transitions, eta * delta)
    for part, want in zip(found.split(theta), (beta, delta), strict=True):
        np.testing.assert_array_equal(part, want)


def test_parts_of_theta_are_views():
    found = dual("linear", "matrix")
    theta = np.zeros(found.n_parameters)
    beta, delta = found.split(theta)
    beta += 1.0
    delta += 2.0
    np.testing.assert_array_equal(theta, np.append(np.ones(30 * S), np.full(S * S, 2.0)))


@every
def test_a_function_starts_at_zero(kernel, store):
    growing = Growing(dual(kernel, store), sequences())
    np.testing.assert_array_equal(read(growing.store, len(ROWS), S), 0.0)
    assert have(growing.store, len(ROWS)).all() == (store != "rows")
    np.testing.assert_array_equal(growing.store.rows, ROWS)
    np.testing.assert_array_equal(growing.offsets, OFFSETS)


@every
def test_changes_at_tokens_are_read_at_all_tokens(kernel, store):
    growing, beta = Growing(dual(kernel, store), sequences()), np.zeros((30, S))
    gram = gram_of(kernel, store)
    for part in range(len(OFFSETS) - 1):
        beta += filled(growing, part)
        got = read(growing.store, len(ROWS), S)
        np.testing.assert_allclose(got, (gram @ beta)[ROWS], atol=1e-10)


class Kept(DualProblem):
    """A problem whose function can be looked at afterwards."""

    @cached_property
    def grown(self):
        return super().zero()

    def zero(self):
        return self.grown


def kept(architecture):
    targets = Targets(LABELS, None, OFFSETS)
    weights = np.random.default_rng(2).integers(1, 5, len(OFFSETS) - 1) / 2.0
    return Kept(architecture, sequences(), targets, weights)


METHODS = {
    "l1 hamming": MaxMargin(C=0.5, tol=0.05),
    "l2 unit": MaxMargin(C=0.5, slack="l2", margin="unit", tol=0.05),
    "l1 slack": MaxMargin(C=0.5, margin="slack", tol=0.05),
    "perceptron": Perceptron(5, average=False),
}


@every
@pytest.mark.parametrize("method", METHODS)
def test_learning_keeps_the_store_equal_to_the_coefficients(kernel, store, method):
    architecture = dual(kernel, store, eta=0.7)
    problem = kept(architecture)
    if method == "perceptron":
        found = METHODS[method].minimise(problem, np.zeros(architecture.n_parameters))
    else:
        found = METHODS[method].minimise(problem).minimum
    beta, delta = architecture.split(found.theta)
    assert beta.any()
    assert delta.any()
    held: Store = problem.grown.store
    gram = gram_of(kernel, store)
    np.testing.assert_allclose(read(held, len(ROWS), S), (gram @ beta)[ROWS], atol=1e-9)
    if store in ("explicit", "landmarks"):
        weights = architecture.covariance.weights(beta)
        np.testing.assert_allclose(held.weights, weights, atol=1e-9)
        np.testing.assert_array_equal(held.scratch, 0.0)
        assert held.table.size == held.gram.size == 0
    else:
        np.testing.assert_allclose(held.table, (gram @ beta).T, atol=1e-9)
        assert held.weights.size == held.scratch.size == 0


@every
def test_gradients_by_coefficients_agree_with_differences(kernel, store):
    rng, targets = np.random.default_rng(3), Targets(LABELS, None, OFFSETS)
    weights, prior = np.ones(len(OFFSETS) - 1), ElasticNet(0.0, 0.3)
    architecture = dual(kernel, store, eta=0.7)
    goal = Objective(architecture, LogLoss(), prior, sequences(), targets, weights, None, 1)
    theta, d = 0.1 * rng.normal(size=(2, architecture.n_parameters))
    slope = (goal.value(theta + 1e-5 * d) - goal.value(theta - 1e-5 * d)) / 2e-5
    assert goal.value_and_grad(theta)[1] @ d == pytest.approx(slope, rel=1e-6)


def test_the_dual_perceptron_starts_at_zero():
    problem = kept(dual("linear", "matrix"))
    with pytest.raises(InputError, match="starts at zero"):
        Perceptron(1).minimise(problem, np.ones(problem.architecture.n_parameters))


# --- gram rows ---------------------------------------------------------------------------------


def check_rows(growing, gram):
    """No row has the place of another, and all are right."""
    slot = growing.store.slot
    held = np.flatnonzero(slot >= 0)
    assert len(np.unique(slot[held])) == len(held) <= len(growing.store.gram)
    np.testing.assert_allclose(growing.store.gram[slot[held]], gram[held], atol=1e-12)


@pytest.mark.parametrize("n_rows", [LONGEST, LONGEST + 1, 2 * LONGEST + 3, 29, 30, 1000])
def test_fetched_rows_are_there_and_right_whatever_was_dropped(n_rows):
    rng, gram = np.random.default_rng(n_rows), gram_of("rbf", "rows")
    growing = Growing(dual("rbf", "rows", n_rows=n_rows), sequences())
    assert growing.store.gram.shape == (min(n_rows, 30), 30)
    growing.store.gram[:] = np.nan
    for _ in range(200):
        wanted = rng.integers(30, size=rng.integers(1, LONGEST + 1))
        growing.fetch(wanted)
        assert (growing.store.slot[wanted] >= 0).all()
        check_rows(growing, gram)
    np.testing.assert_array_equal(have(growing.store, len(ROWS)), growing.store.slot[ROWS] >= 0)


def test_rows_are_computed_once_while_there_is_room():
    asked = []

    class Counted(OnDemand):
        def columns(self, chosen):
            asked.extend(chosen.tolist())
            return super().columns(chosen)

    cov = Counted(KERNELS["rbf"], TOKENS, 1)
    growing = Growing(Dual(S, cov, 1.0, 8.0 * 30 * 30), sequences())
    for wanted in ([3, 1, 3], [1, 2], [7, 3, 1, 2], [7, 7]):
        growing.fetch(np.array(wanted))
    assert sorted(asked) == [1, 2, 3, 7]


def test_all_rows_but_those_of_one_sequence_stay():
    growing = Growing(dual("rbf", "rows", n_rows=LONGEST + 4), sequences())
    first = np.arange(4)
    growing.fetch(first)
    for begin in range(4, 26, LONGEST):
        growing.fetch(np.arange(begin, min(begin + LONGEST, 30)))
        np.testing.assert_array_equal(growing.store.slot[first], np.arange(4))
    assert (growing.store.slot >= 0).sum() <= LONGEST + 4


def test_asking_twice_for_what_is_missing_is_enough_for_any_sequence():
    """The first time may drop other rows of the same sequence."""
    rng, twice = np.random.default_rng(5), 0
    growing = Growing(dual("rbf", "rows", n_rows=LONGEST + 2), sequences())
    slot = growing.store.slot
    for _ in range(200):
        rows = rng.integers(30, size=LONGEST)
        for _ in range(2):
            missing = rows[slot[rows] < 0]
            if len(missing):
                growing.fetch(missing)
                twice += (slot[rows] < 0).any()
        assert (slot[rows] >= 0).all()
    assert twice > 0


# --- budgets and arguments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "store", "need", "what"),
    [
        ("rbf", "rows", 8 * 30 * LONGEST, f"gram rows of a sequence of {LONGEST} tokens"),
        ("linear", "explicit", 2 * 8 * S * 4, "weights of 4 features"),
    ],
)
def test_what_exceeds_the_budget_is_told_with_a_remedy(kernel, store, need, what):
    cov = covariance(kernel, store)
    Growing(Dual(S, cov, 1.0, need), sequences())
    with pytest.raises(BudgetError, match=f"^{what} need {need / GIB:.3g} GiB; .*gram_budget="):
        Growing(Dual(S, cov, 1.0, need - 1), sequences())


@pytest.mark.parametrize("eta", [-1.0, np.nan, np.inf, "one"])
def test_a_wrong_eta_is_named(eta):
    with pytest.raises(InputError, match="eta"):
        Dual(S, covariance("linear", "matrix"), eta)
