"""Variational EM: its bound by textbook formulas, below the exact evidence, never falling, and
what holds where it has converged."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.linalg
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp, softmax

from seqfield.architectures.neighbours import Neighbours
from seqfield.errors import InputError
from seqfield.kernels import RBF
from seqfield.kernels._pairs import Pairs
from seqfield.labels import Targets
from seqfield.linalg.thin import thin_root
from seqfield.losses.pseudo import Terms
from seqfield.posteriors.bound import by_gram
from seqfield.sequences import Sequences, offsets_of
from seqfield.variational import _sweeps
from seqfield.variational.em import VariationalEM
from seqfield.variational.problems import NeighbourProblem

AMPLITUDES = ("fixed", "shared", "label")
DISTANCES = [(), (-1,), (-1, 1), (-2, -1, 1, 2), (3,)]
TIGHT = {"tol": 1e-13, "max_iter": 3000, "amplitude": "fixed"}


class Case(NamedTuple):
    """Distinct tokens, the row of each token among them, labels and weights."""

    x: Any
    gram: Any
    rows: Any
    targets: Targets
    weights: Any
    distances: tuple[int, ...]
    s: int

    @property
    def terms(self):
        return Terms.of(self.targets, self.distances, self.weights, self.s)


def case(seed, distances=(-1, 1), *, s=3, n=6, scale=1.0, missing=0.2, told=1.0, weighted=True):
    """Labels that follow the token's place as far as ``told``; some tokens occur more than once."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 6, n))
    total = int(offsets[-1])
    d = max(3, 2 * total // 3)
    x = rng.normal(size=(d, 2))
    rows = rng.permutation(np.concatenate([np.arange(d), rng.integers(d, size=total - d)]))
    y = np.where(rng.random(total) < told, np.digitize(x[rows, 0], [-0.4, 0.4]) % s, 0)
    y = np.where(rng.random(total) < told, y, rng.integers(s, size=total))
    codes = np.where(rng.random(total) < missing, -1, y).astype(np.int32)
    gram = scale * (RBF(0.6)(x) + 0.05 * np.eye(d))
    weights = rng.uniform(0.5, 2.0, n) if weighted else np.ones(n)
    return Case(x, gram, rows, Targets(codes, None, offsets), weights, distances, s)


def goal(given, root=None, rest=0.0):
    root = np.linalg.cholesky(given.gram) if root is None else root
    data = Sequences(given.rows[:, None].astype(np.float64), given.targets.offsets)
    architecture = Neighbours(given.s, root, given.distances, rest)
    return NeighbourProblem.of(architecture, data, given.targets, given.weights)


def fit(given, root=None, rest=0.0, **wanted):
    return VariationalEM(**{"n_jobs": 1} | wanted).fit(goal(given, root, rest))


def covariances(gram, a, precisions):
    return [
        np.linalg.inv(np.linalg.inv(a[q] * gram) + np.diag(precisions[:, q])) for q in range(len(a))
    ]


def kl(m, v, prior):
    """KL divergence of N(m, v) from N(0, prior)."""
    inverse = np.linalg.inv(prior)
    dets = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(v)[1]
    return 0.5 * (np.trace(inverse @ v) + m @ inverse @ m - len(m) + dets)


def exponents(given, m, v, steps, variances):
    """m + v / 2 of each term, and the mean of its label, term by term."""
    out, gold = [], []
    terms = given.terms
    for t, y, near in zip(terms.tokens, terms.gold, terms.neighbours, strict=True):
        mean, half = m[given.rows[t]].copy(), 0.5 * v[given.rows[t]]
        for d, there in enumerate(near):
            if there < given.s:
                mean += steps[d, there]
                half = half + 0.5 * variances[d, there]
        out.append(mean + half)
        gold.append(mean[y])
    return np.array(out), np.array(gold)


def bound(given, a, m, precisions, steps, variances):
    """Bound (12), with the constants of its KL terms."""
    every = covariances(given.gram, a, precisions)
    v = np.stack([np.diagonal(one) for one in every], axis=1)
    z, gold = exponents(given, m, v, steps, variances)
    total = float(given.terms.weights @ (gold - logsumexp(z, axis=1)))
    for q, one in enumerate(every):
        total -= kl(m[:, q], one, a[q] * given.gram)
    for mean, variance in zip(steps.ravel(), variances.ravel(), strict=True):
        total -= kl(np.array([mean]), np.array([[variance]]), np.eye(1))
    return total


def state(given, found):
    """Amplitudes, means at the tokens, lambda, and the transitions' means and variances."""
    m = np.sqrt(found.amplitudes) * (np.linalg.cholesky(given.gram) @ found.means)
    return found.amplitudes, m, found.precisions, found.steps, found.step_variances


# --- the bound ---------------------------------------------------------------------------------


@pytest.mark.parametrize("amplitude", AMPLITUDES)
@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_bound_equals_textbook_formulas(distances, amplitude):
    for seed in range(3):
        given = case(seed, distances, told=0.8)
        result = fit(given, max_iter=3, tol=0.0, amplitude=amplitude)
        found = result
        assert bound(given, *state(given, found)) == pytest.approx(found.bounds[-1], rel=1e-10)
        assert result.bound == found.bounds[-1]
        assert len(found.bounds) == result.n_iter + 1
        assert (found.amplitudes != 1.0).any() == (amplitude != "fixed")


def test_first_bound_is_that_of_the_prior():
    given = case(0)
    n, s = len(given.gram), given.s
    prior = np.ones(s), np.zeros((n, s)), np.zeros((n, s)), np.zeros((2, s, s)), np.ones((2, s, s))
    found = fit(given, max_iter=1)
    assert found.bounds[0] == pytest.approx(bound(given, *prior), rel=1e-12)


def test_amplitudes_multiply_the_gram_matrix():
    given = case(0, scale=3.0)
    for amplitude in ("shared", "label"):
        found = fit(given, amplitude=amplitude, tol=1e-8)
        a, m, precisions, steps, variances = state(given, found)
        every = covariances(given.gram, a, precisions)
        for q, lower in enumerate(found.factors):
            inner = np.linalg.inv(lower @ lower.T)
            root = np.sqrt(a[q]) * np.linalg.cholesky(given.gram)
            np.testing.assert_allclose(root @ inner @ root.T, every[q], rtol=1e-8, atol=1e-12)
        assert len(set(a.tolist())) == (1 if amplitude == "shared" else given.s)
        # the same state is no fixed point of amplitude 1
        assert bound(given, np.ones(given.s), m, precisions, steps, variances) < found.bounds[-1]


@pytest.mark.parametrize("amplitude", AMPLITUDES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0, 1e4])
def test_bound_never_falls(scale, amplitude):
    for seed in range(4):
        given = case(seed, DISTANCES[seed], n=4, scale=scale, told=0.5 + 0.1 * seed)
        bounds = np.array(fit(given, amplitude=amplitude, tol=1e-7, max_iter=15).bounds)
        assert (np.diff(bounds) >= -1e-10 * np.abs(bounds[1:])).all()
        assert bounds[-1] > bounds[0]


def test_bound_rises_where_the_parallel_fixed_point_lowers_it():
    given = case(0, scale=100.0)
    a, m, precisions, steps, variances = state(given, fit(given, amplitude="fixed"))
    precisions = np.zeros_like(precisions)
    plain = [bound(given, a, m, precisions, steps, variances)]
    for _ in range(10):
        every = covariances(given.gram, a, precisions)
        v = np.stack([np.diagonal(one) for one in every], axis=1)
        p = softmax(exponents(given, m, v, steps, variances)[0], axis=1)
        precisions = np.zeros_like(precisions)
        rows = given.rows[given.terms.tokens]
        np.add.at(precisions, rows, given.terms.weights[:, None] * p)
        plain.append(bound(given, a, m, precisions, steps, variances))
    assert np.diff(plain).min() < -10.0
    for amplitude in AMPLITUDES:
        bounds = np.array(fit(given, amplitude=amplitude).bounds)
        assert np.diff(bounds).min() >= -1e-10 * np.abs(bounds).max()


@pytest.mark.parametrize("amplitude", AMPLITUDES)
def test_what_a_root_leaves_out_counts_with_its_variance(amplitude):
    """As a function of its own at each token, of which nothing is learned."""
    given = case(0, told=0.8)
    n = len(given.gram)
    rest = np.random.default_rng(0).uniform(0.0, 2.0, (n, 1))
    found = fit(given, rest=rest, max_iter=4, tol=0.0, amplitude=amplitude)
    a, m, precisions, steps, variances = state(given, found)
    every = covariances(given.gram, a, precisions)
    v = np.stack([np.diagonal(one) for one in every], axis=1) + a * rest
    z, gold = exponents(given, m, v, steps, variances)
    z0, gold0 = exponents(given, m, v - a * rest, steps, variances)
    change = given.terms.weights @ (gold - logsumexp(z, axis=1) - gold0 + logsumexp(z0, axis=1))
    want = bound(given, a, m, precisions, steps, variances) + float(change)
    assert found.bounds[-1] == pytest.approx(want, rel=1e-10)
    assert (np.diff(found.bounds) >= -1e-10 * abs(want)).all()


@pytest.mark.parametrize("own", [False, True])
def test_each_label_may_have_a_root_of_its_own(own):
    given = case(1, told=0.8)
    root = np.linalg.cholesky(given.gram)
    shared = fit(given, root, tol=1e-9, max_iter=300, amplitude="fixed")
    # the same gram matrix by another root, and one that is narrower
    turned = root @ np.linalg.qr(np.random.default_rng(0).normal(size=root.shape))[0]
    roots = [root, turned, root[:, :-2] if own else turned]
    apart = fit(given, roots, tol=1e-9, max_iter=300, amplitude="fixed")
    if not own:
        assert apart.bound == pytest.approx(shared.bound, rel=1e-7)
        return
    found = apart
    assert not found.means[-2:, 2].any()
    m = np.stack([roots[q] @ found.means[: roots[q].shape[1], q] for q in range(3)], axis=1)
    v = np.empty_like(m)
    total = 0.0
    for q, each in enumerate(roots):
        lower = found.factors[q][: each.shape[1], : each.shape[1]]
        covariance = np.linalg.inv(lower @ lower.T)
        v[:, q] = np.diagonal(each @ covariance @ each.T)
        total -= kl(found.means[: each.shape[1], q], covariance, np.eye(each.shape[1]))
    z, gold = exponents(given, m, v, found.steps, found.step_variances)
    total += float(given.terms.weights @ (gold - logsumexp(z, axis=1)))
    for mean, variance in zip(found.steps.ravel(), found.step_variances.ravel(), strict=True):
        total -= kl(np.array([mean]), np.array([[variance]]), np.eye(1))
    assert found.bounds[-1] == pytest.approx(total, rel=1e-9)


# --- the evidence ------------------------------------------------------------------------------


def small(codes, lengths, distances, gram, s=2, rows=None):
    codes = np.array(codes, np.int32)
    rows = np.arange(len(codes)) if rows is None else np.array(rows)
    targets = Targets(codes, None, offsets_of(lengths))
    return Case(None, np.array(gram), rows, targets, np.ones(len(lengths)), distances, s)


def by_quadrature(given, n_nodes):
    """log p(y) of two labels: their functions and transitions count by their differences alone,
    which have twice the variance."""
    n, r = len(given.gram), len(given.distances)
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    size = n + 2 * r
    z = np.stack(np.meshgrid(*[nodes] * size, indexing="ij"), axis=-1).reshape(-1, size)
    logs = np.log(weights / weights.sum())
    mass = sum(np.meshgrid(*[logs] * size, indexing="ij")).ravel()
    f = np.sqrt(2.0) * z[:, :n] @ np.linalg.cholesky(given.gram).T
    steps = np.sqrt(2.0) * z[:, n:].reshape(len(z), r, 2)
    total, terms = mass, given.terms
    for t, y, near in zip(terms.tokens, terms.gold, terms.neighbours, strict=True):
        score = f[:, given.rows[t]].copy()
        for d, there in enumerate(near):
            score += 0.0 if there == 2 else steps[:, d, there]
        total = total + log_expit(score if y == 1 else -score)
    return float(logsumexp(total))


EXACT = {
    "one token": small([1], [1], (), [[1.0]]),
    "one token of large variance": small([1], [1], (), [[20.0]]),
    "the same token four times": small([1, 1, 0, 1], [4], (), [[3.0]], rows=[0] * 4),
    "two tokens": small([1, 0], [2], (), [[2.0, 1.2], [1.2, 1.5]]),
    "transitions": small([1, 0], [2], (-1,), [[2.0, 1.2], [1.2, 1.5]]),
    "transitions of one token": small([1, 0, 1, 0, 0], [3, 2], (-1,), [[0.7]], rows=[0] * 5),
    "both neighbours": small([1, 1, 0], [3], (-1, 1), [[0.7]], rows=[0] * 3),
    "a missing label": small(
        [1, -1, 0, 0], [4], (-1,), [[1.0, 0.3], [0.3, 1.0]], rows=[0, 1, 1, 0]
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_bound_is_below_the_exact_evidence_of_two_labels(name):
    given = EXACT[name]
    few = {1: 60, 2: 60, 3: 40, 4: 22, 5: 14}[len(given.gram) + 2 * len(given.distances)]
    want = by_quadrature(given, few)
    assert by_quadrature(given, few - 4) == pytest.approx(want, abs=2e-3)
    found = fit(given, **TIGHT).bounds
    assert max(found) <= want - 2e-3
    assert found[-1] > found[0]


@pytest.mark.parametrize("distances", [(), (-1,), (-1, 1)], ids=str)
@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_bound_is_below_a_monte_carlo_estimate_of_the_evidence_of_three_labels(scale, distances):
    gram = scale * np.array([[1.0, 0.4], [0.4, 1.3]])
    given = small([2, 0, 0, 1, 2], [3, 2], distances, gram, s=3, rows=[0, 1, 1, 0, 0])
    rng = np.random.default_rng(0)
    draws = 200_000
    f = np.linalg.cholesky(gram) @ rng.normal(size=(draws, 2, 3))
    steps = rng.normal(size=(draws, len(distances), 3, 3))
    logs, terms = np.zeros(draws), given.terms
    for t, y, near in zip(terms.tokens, terms.gold, terms.neighbours, strict=True):
        score = f[:, given.rows[t]].copy()
        for d, there in enumerate(near):
            score += 0.0 if there == 3 else steps[:, d, there]
        logs += score[:, y] - logsumexp(score, axis=1)
    p = np.exp(logs)
    error = p.std() / p.mean() / np.sqrt(draws)
    assert error < 0.02
    found = fit(given, **TIGHT).bounds[-1]
    assert found <= np.log(p.mean()) + 4 * error
    assert found > np.log(p.mean()) - 5.0


def test_bound_is_tight_where_the_prior_leaves_nothing_open():
    given = small([2, 0, 0, 1], [4], (), 1e-6 * np.eye(4), s=3)
    assert fit(given, **TIGHT).bounds[-1] == pytest.approx(4 * np.log(1 / 3), abs=1e-5)


# --- where it has converged --------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("distances", DISTANCES, ids=str)
def test_converged_state_is_stationary(distances, scale):
    given = case(1, distances, scale=scale, told=0.8)
    result = fit(given, **TIGHT)
    assert result.converged
    found, terms = result, given.terms
    a, m, precisions, steps, variances = state(given, found)
    v = np.stack([np.diagonal(one) for one in covariances(given.gram, a, precisions)], axis=1)
    p = softmax(exponents(given, m, v, steps, variances)[0], axis=1) * terms.weights[:, None]
    counts, known = np.zeros_like(m), np.zeros_like(m)
    rows = given.rows[terms.tokens]
    np.add.at(counts, rows, p)
    np.add.at(known, (rows, terms.gold), terms.weights)
    np.testing.assert_allclose(precisions, counts, atol=1e-5)
    np.testing.assert_allclose(variances, 1.0 / (1.0 + terms.scatter(p)), atol=1e-5)
    np.testing.assert_allclose(found.residuals, known - counts, atol=1e-12)
    # half the square of the gradient is at most what is left to gain over the means
    root = np.linalg.cholesky(given.gram)
    gold = np.zeros_like(p)
    gold[np.arange(len(p)), terms.gold] = terms.weights
    slopes = root.T @ (known - counts) - found.means, terms.scatter(gold - p) - steps
    left = 0.5 * sum(float(np.square(slope).sum()) for slope in slopes)
    assert left <= 1e-8 * abs(found.bounds[-1])
    np.testing.assert_allclose(np.linalg.solve(given.gram, m), known - counts, atol=5e-3)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_no_change_of_a_converged_state_raises_the_bound(scale):
    given = case(2, (-1, 1), scale=scale, told=0.8)
    found = fit(given, **TIGHT)
    a, m, precisions, steps, variances = state(given, found)
    best, rng = bound(given, a, m, precisions, steps, variances), np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for which in range(5):
            for _ in range(6):
                pushed = [m, precisions, steps, variances]
                on = [which in (k, 4) for k in range(4)]
                for k in range(4):
                    noise = size * rng.normal(size=pushed[k].shape)
                    if on[k]:
                        # lambda and variances stay above 0
                        pushed[k] = pushed[k] * np.exp(noise) if k % 2 else pushed[k] + noise
                assert bound(given, a, *pushed) <= best + 1e-8 * abs(best)


def test_equal_tokens_may_be_kept_apart():
    given = case(3, told=0.7)
    root = np.linalg.cholesky(given.gram)
    apart = given._replace(rows=np.arange(len(given.rows)))
    assert len(apart.rows) > len(root)
    for amplitude in ("fixed", "shared"):
        a = fit(given, root, tol=1e-10, max_iter=500, amplitude=amplitude)
        b = fit(apart, root[given.rows], tol=1e-10, max_iter=500, amplitude=amplitude)
        assert a.bound == pytest.approx(b.bound, rel=1e-8)
        np.testing.assert_allclose(a.steps, b.steps, atol=1e-4)
        np.testing.assert_allclose(a.means @ a.means.T, b.means @ b.means.T, atol=1e-3)


@pytest.mark.parametrize("amplitude", ["shared", "label"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_no_change_of_a_learned_amplitude_raises_the_bound(scale, amplitude):
    """By a tenth up or down, with the function that goes with it, and all else as it is."""
    for seed in range(2):
        given = case(seed, told=0.8, scale=scale)
        result = fit(given, amplitude=amplitude, tol=1e-7, max_iter=300)
        assert result.converged
        a, m, *rest = state(given, result)
        best = bound(given, a, m, *rest)
        every = np.eye(given.s) if amplitude == "label" else np.ones((1, given.s))
        for which in every:
            for change in (-0.1, 0.1):
                factor = np.exp(change * which)
                assert bound(given, a * factor, m * factor, *rest) <= best + 1e-4 * abs(best)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_learned_amplitudes_have_the_larger_bound(scale):
    for seed in range(2):
        given = case(seed, told=0.8, scale=scale, n=4)
        fixed, shared, label = (
            fit(given, amplitude=amplitude, tol=1e-7, max_iter=300).bounds[-1]
            for amplitude in AMPLITUDES
        )
        assert shared >= fixed - 1e-6 * abs(fixed)
        assert label >= fixed - 1e-6 * abs(fixed)


def largest(given, start):
    """The bound at amplitude 1 by a maximiser that knows nothing of it."""
    a, shapes = np.ones(given.s), [part.shape for part in start]
    cuts = np.cumsum([part.size for part in start])[:-1]

    def loss(z):
        m, precisions, steps, variances = (
            part.reshape(shape) for part, shape in zip(np.split(z, cuts), shapes, strict=True)
        )
        return -bound(given, a, m, np.exp(precisions), steps, np.exp(variances))

    m, precisions, steps, variances = start
    z = np.concatenate([m.ravel(), np.log(precisions).ravel(), steps.ravel()])
    z = np.concatenate([z, np.log(variances).ravel()])
    for _ in range(5):  # it gives up early, as differences are no derivatives
        z = minimize(loss, z, method="BFGS", options={"gtol": 1e-7, "maxiter": 2000}).x
    return -loss(z)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_no_other_maximiser_finds_a_larger_bound(scale):
    gram = scale * np.array([[1.0, 0.4], [0.4, 1.3]])
    given = small([1, 0, 0, 1, 1], [3, 2], (-1,), gram, rows=[0, 1, 1, 0, 0])
    result = fit(given, **TIGHT)
    assert result.converged
    _, *there = state(given, result)
    n, s = given.gram.shape[0], given.s
    anywhere = np.zeros((n, s)), np.ones((n, s)), np.zeros((1, s, s)), np.ones((1, s, s))
    for start in (there, anywhere):
        assert largest(given, start) <= result.bound + 1e-6 * abs(result.bound)


@pytest.mark.parametrize("scale", [1e6, 1e9])
def test_a_large_kernel_does_not_stop_at_the_prior(scale):
    """One label at a time, every step there lowers the bound."""
    for seed in range(3):
        given = case(seed, n=4, scale=scale, told=0.8)
        few = fit(given, amplitude="fixed")
        more = fit(given, amplitude="fixed", max_iter=100)
        assert few.bound > 1.5 * more.bound
        assert few.converged == (few.n_iter < 50)
        # a coordinate that is known costs about half the logarithm of its variance
        assert -more.bound < given.s * len(given.gram) * np.log(scale)


def test_refused_steps_are_no_convergence(monkeypatch):
    monkeypatch.setattr(_sweeps, "HALVINGS", 1)
    monkeypatch.setattr(_sweeps, "MORE_HALVINGS", 0)
    result = fit(case(0, scale=1e6, told=0.8), amplitude="fixed", max_iter=5)
    assert (result.n_iter, result.converged) == (5, False)


# --- low rank ----------------------------------------------------------------------------------


@pytest.mark.parametrize("amplitude", AMPLITUDES)
def test_a_thin_root_does_what_a_full_one_does(amplitude):
    given = case(4, told=0.8, n=10)
    gram = given.x @ given.x.T + 0.5
    thin = thin_root(gram).root
    full = np.linalg.cholesky(gram + 1e-10 * np.eye(len(gram)))
    assert thin.shape[1] <= 5 < full.shape[1]
    a = fit(given, thin, amplitude=amplitude, tol=1e-11, max_iter=1000)
    b = fit(given, full, amplitude=amplitude, tol=1e-11, max_iter=1000)
    assert a.bound == pytest.approx(b.bound, rel=1e-6)
    np.testing.assert_allclose(
        np.sqrt(a.amplitudes) * (thin @ a.means),
        np.sqrt(b.amplitudes) * (full @ b.means),
        atol=2e-3,
    )


# --- kernel parameters -------------------------------------------------------------------------


def slope(value, step=1e-3):
    """Central difference at 0, extrapolated to step 0."""
    coarse = (value(step) - value(-step)) / (2 * step)
    fine = (value(step / 2) - value(-step / 2)) / step
    return (4 * fine - coarse) / 3


@pytest.mark.parametrize("distances", [(), (-1, 1)], ids=str)
def test_derivative_by_the_gram_matrix_equals_differences(distances):
    given = case(5, distances, told=0.8)
    root = np.linalg.cholesky(given.gram)
    scores = Neighbours(given.s, root, distances)
    d_gram = by_gram(scores, fit(given, **TIGHT), range(given.s))
    np.testing.assert_allclose(d_gram, d_gram.T, atol=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(3):
        towards = rng.normal(size=(len(root), 3))
        towards = 0.1 * towards @ towards.T

        def value(step, towards=towards):
            return fit(given._replace(gram=given.gram + step * towards), **TIGHT).bound

        assert np.vdot(d_gram, towards) == pytest.approx(slope(value, 1e-2), rel=1e-3)


@pytest.mark.parametrize("kernel", [RBF(0.8), 2.0 * RBF(0.5)], ids=str)
def test_derivative_by_kernel_parameters_equals_differences(kernel):
    given = case(6, told=0.8)
    jitter = 0.01 * np.eye(len(given.x))

    def at(phi):
        here = kernel.with_log_parameters(phi)
        return given._replace(gram=here(given.x) + jitter)

    phi = kernel.log_parameters
    scores = Neighbours(given.s, np.linalg.cholesky(at(phi).gram), given.distances)
    d_gram = by_gram(scores, fit(at(phi), **TIGHT), range(given.s))
    derivatives = kernel._derivatives(Pairs(given.x))
    assert len(phi) >= 1
    for unit, d in zip(np.eye(len(phi)), derivatives, strict=True):

        def value(step, unit=unit):
            return fit(at(phi + step * unit), **TIGHT).bound

        assert np.vdot(d_gram, d) == pytest.approx(slope(value, 1e-2), rel=1e-3, abs=1e-5)


# --- what else it is asked ---------------------------------------------------------------------


def test_starting_point_and_callback():
    given = case(7)
    first = fit(given, **TIGHT)
    seen = []

    def callback(step):
        seen.append((step.iteration, step.value))
        return step.iteration == 3

    problem = goal(given)
    zero = np.zeros(problem.architecture.n_parameters)
    stopped = VariationalEM(tol=0.0, n_jobs=1).fit(problem, zero, callback)
    assert [k for k, _ in seen] == [1, 2, 3]
    assert [v for _, v in seen] == [-b for b in stopped.bounds[1:]]
    assert not zero.any()
    start = first.theta.copy()
    again = VariationalEM(amplitude="fixed", n_jobs=1).fit(problem, start)
    np.testing.assert_array_equal(start, first.theta)
    assert again.bounds[0] > stopped.bounds[0]
    assert again.bound == pytest.approx(first.bound, rel=1e-6)


def test_numbers_that_float64_cannot_hold_are_told():
    given = case(0)
    for scale in (1e60, np.inf, np.nan):
        with pytest.raises(InputError, match="below 1e\\+100"):
            fit(given, np.full((len(given.gram), 1), scale))


def test_sweeps_that_are_not_enough_are_told():
    result = fit(case(8, scale=10.0), max_iter=2, tol=1e-12)
    assert (result.n_iter, result.converged) == (2, False)


def test_a_weight_of_two_is_the_sequence_twice():
    given = case(9, told=0.8, weighted=False)
    first = given.targets.offsets[1]
    codes = np.concatenate([given.targets.codes, given.targets.codes[:first]])
    offsets = np.append(given.targets.offsets, len(codes))
    twice = given._replace(
        rows=np.concatenate([given.rows, given.rows[:first]]),
        targets=Targets(codes, None, offsets),
        weights=np.ones(len(offsets) - 1),
    )
    weighted = given._replace(weights=np.array([2.0] + [1.0] * (len(given.weights) - 1)))
    a, b = fit(weighted, **TIGHT), fit(twice, **TIGHT)
    assert a.bound == pytest.approx(b.bound, rel=1e-9)
    assert a.bound != pytest.approx(fit(given, **TIGHT).bound, rel=1e-3)
    np.testing.assert_allclose(a.precisions, b.precisions, atol=1e-5)


def test_rows_without_a_term_stay_at_the_prior():
    given = case(10, told=0.8, missing=0.0)
    codes = given.targets.codes.copy()
    lost = given.rows == given.rows[0]
    codes[lost] = -1
    found = fit(given._replace(targets=Targets(codes, None, given.targets.offsets)))
    assert not found.precisions[given.rows[0]].any()
    assert not found.residuals[given.rows[0]].any()
    keep = np.delete(np.arange(len(given.gram)), given.rows[0])
    number = np.zeros(len(given.gram), np.int64)
    number[keep] = np.arange(len(keep))
    fewer = given._replace(
        gram=given.gram[np.ix_(keep, keep)],
        rows=number[given.rows],
        targets=Targets(codes, None, given.targets.offsets),
    )
    assert fit(fewer).bounds[-1] == pytest.approx(found.bounds[-1], rel=1e-6)


@pytest.mark.parametrize("amplitude", AMPLITUDES)
@pytest.mark.parametrize("spread", [1.0, 30.0, 1000.0])
def test_the_default_tolerance_comes_to_the_optimum(spread, amplitude):
    """Also where the features, and so the curvatures of the bound, are of very different sizes."""
    given = case(3, told=0.8, n=20)
    root = np.column_stack([given.x * [spread, 1.0], np.full(len(given.x), np.sqrt(spread))])
    found = fit(given, root, amplitude=amplitude)
    best = fit(given, root, **TIGHT | {"tol": 1e-10, "amplitude": amplitude})
    assert found.converged
    assert found.bound == pytest.approx(best.bound, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_amplitudes_that_could_grow_do(seed):
    """None that is a little larger or smaller is worth more than those that were learned."""
    given = case(seed, n=30, missing=0.0)
    root = given.x
    learned = fit(given, root, **TIGHT | {"amplitude": "label", "tol": 1e-10})
    a = learned.amplitudes
    for factor in (0.7, 1.4):
        for q in range(given.s):
            if a[q] > 1e-3:
                roots = [np.sqrt(a[k] * (factor if k == q else 1.0)) * root for k in range(given.s)]
                moved = fit(given, roots, **TIGHT)
                assert moved.bound < learned.bound + 1e-6 * abs(learned.bound)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12, 1e18, 1e24])
def test_the_factor_of_a_large_kernel(scale):
    """H = I + A' A, whose identity is lost in rounding, by the singular values of A."""
    rng = np.random.default_rng(0)
    a = np.sqrt(scale) * rng.normal(size=(9, 3)) @ rng.normal(size=(3, 6))  # of rank 3
    lower = _sweeps.lower_of(a)
    assert (np.diagonal(lower) > 0).all()
    np.testing.assert_array_equal(lower, np.tril(lower))
    want = np.log1p(np.linalg.svd(a, compute_uv=False)[:3] ** 2).sum()
    assert 2 * np.log(np.diagonal(lower)).sum() == pytest.approx(want, rel=1e-3)


def test_a_factor_that_lapack_does_not_find(monkeypatch):
    given = case(0)
    want = fit(given)
    monkeypatch.setattr(scipy.linalg.lapack, "dpotrf", lambda h, **_: (h, 1))
    assert fit(given).bound == pytest.approx(want.bound, rel=1e-9)


@pytest.mark.parametrize("scale", [1e16, 1e25, 1e50, 1e90])
def test_kernels_beyond_rounding_do_not_pass_for_solved(scale):
    result = fit(case(0, n=12, scale=scale), amplitude="fixed")
    assert not result.converged
    assert np.isfinite(result.bound)
