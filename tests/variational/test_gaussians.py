"""Gaussians and mixtures of them: divergences by scipy and by sampling, their derivatives by
differences, draws, and natural gradients that land on exact posteriors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from seqfield.errors import InputError
from seqfield.variational.gaussians import (
    Gaussians,
    Natural,
    _mixture,
    divergence,
    divergence_gradient,
    inverse_root,
    natural_steps,
)

M, S, ETA = 3, 2, 1.7
GAP = 0.5 * M * S * (1.0 - np.log(2.0))


def gaussians(k, seed=0, m=M, s=S, apart=0.5):
    rng = np.random.default_rng([seed, k])
    roots = np.tril(0.4 * rng.normal(size=(k, s, m, m)))
    np.einsum("...ii->...i", roots)[...] = rng.uniform(0.3, 1.2, (k, s, m))
    return Gaussians(
        rng.normal(size=k),
        apart * rng.normal(size=(k, m, s)),
        roots,
        rng.normal(size=(s, s)),
        rng.uniform(0.2, 2.0, (s, s)),
    )


def covariances(q):
    return q.roots @ q.roots.transpose(0, 1, 3, 2)


def with_covariances(q, given):
    return q._replace(roots=np.linalg.cholesky(given))


def steps_divergence(q, eta):
    """KL of independent Gaussians from N(0, eta)."""
    total = 0.0
    for mean, variance in zip(q.steps.ravel(), q.step_variances.ravel(), strict=True):
        cross = 0.5 * np.log(2 * np.pi * eta) + 0.5 * (mean**2 + variance) / eta
        total += cross - norm(scale=np.sqrt(variance)).entropy()
    return total


def cross_entropy(mean, covariance):
    """-E log N(v; 0, I) under N(mean, covariance)."""
    return 0.5 * (len(mean) * np.log(2 * np.pi) + np.trace(covariance) + mean @ mean)


def log_density(q, v):
    """log q(v) of v (n, M, S)."""
    parts = [
        np.log(q.weights[k])
        + sum(
            multivariate_normal(q.means[k, :, j], covariances(q)[k, j]).logpdf(v[:, :, j])
            for j in range(v.shape[2])
        )
        for k in range(len(q.logits))
    ]
    return logsumexp(parts, axis=0)


# --- divergences -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("eta", [0.3, ETA])
def test_divergence_of_one_gaussian_is_exact(eta, seed):
    q = gaussians(1, seed)
    want = steps_divergence(q, eta)
    for j in range(S):
        mean, own = q.means[0, :, j], covariances(q)[0, j]
        want += cross_entropy(mean, own) - multivariate_normal(mean, own).entropy()
    assert divergence(q, eta) == pytest.approx(want, rel=1e-12)
    assert divergence_gradient(q, eta).value == pytest.approx(want, rel=1e-12)
    assert want > 0.0


def test_upper_roots_are_as_good():
    """Natural gradients leave them."""
    q = gaussians(1)
    upper = np.linalg.cholesky(covariances(q)[..., ::-1, ::-1])[..., ::-1, ::-1]
    assert not np.tril(upper, -1).any()
    turned = q._replace(roots=upper)
    np.testing.assert_allclose(covariances(turned), covariances(q), rtol=1e-12)
    assert divergence(turned, ETA) == pytest.approx(divergence(q, ETA), rel=1e-12)
    a, b = divergence_gradient(turned, ETA), divergence_gradient(q, ETA)
    np.testing.assert_allclose(a.covariances, b.covariances, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["lower", "upper", "diagonal", "lower apart", "upper apart"])
def test_inverse_of_a_triangular_root(kind):
    rng = np.random.default_rng(0)
    root = np.tril(rng.normal(size=(4, 4))) + 2.0 * np.eye(4)
    if "apart" in kind:  # the first value is independent of all others
        root[1:, 0] = 0.0
    if "upper" in kind:
        root = root.T.copy()
    if kind == "diagonal":
        root = np.diag(np.diagonal(root)).copy()
    np.testing.assert_allclose(inverse_root(root) @ root, np.eye(4), atol=1e-13)


def test_divergence_of_the_prior_is_zero():
    q = Gaussians.prior(1, M, S, ETA, np.random.default_rng(0))
    assert divergence(q, ETA) == pytest.approx(0.0, abs=1e-14)
    found = divergence_gradient(q, ETA)
    for part in found[1:]:
        np.testing.assert_allclose(part, 0.0, atol=1e-14)


def test_without_transitions_they_have_no_divergence():
    q = gaussians(1)
    found = divergence_gradient(q, 0.0)
    assert found.value == pytest.approx(divergence(q, ETA) - steps_divergence(q, ETA), rel=1e-12)
    assert not found.steps.any()
    assert not found.step_variances.any()
    prior = Gaussians.prior(1, M, S, 0.0, np.random.default_rng(0))
    assert not prior.step_variances.any()


@pytest.mark.parametrize("k", [2, 3])
def test_bound_of_a_mixture_equals_its_definition(k):
    q = gaussians(k)
    own = covariances(q)
    want = steps_divergence(q, ETA)
    for a in range(k):
        logs = [
            np.log(q.weights[b])
            + sum(
                multivariate_normal(q.means[b, :, j], own[a, j] + own[b, j]).logpdf(
                    q.means[a, :, j]
                )
                for j in range(S)
            )
            for b in range(k)
        ]
        cross = sum(cross_entropy(q.means[a, :, j], own[a, j]) for j in range(S))
        want += q.weights[a] * (cross + logsumexp(logs))
    assert divergence(q, ETA) == pytest.approx(want, rel=1e-12)
    assert divergence_gradient(q, ETA).value == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("apart", [0.1, 1.5])
@pytest.mark.parametrize("k", [2, 3])
def test_bound_of_a_mixture_is_above_its_divergence(k, apart):
    q = gaussians(k, apart=apart)
    v, _ = q.draw(20_000, np.random.default_rng(1))
    logs = log_density(q, v) - norm.logpdf(v).sum(axis=(1, 2))
    error = logs.std() / np.sqrt(len(v))
    bound = _mixture(q)[0]
    assert bound > logs.mean() + 5 * error
    # each component alone is off by the gap, and components are told apart no worse than fully
    assert bound < logs.mean() + GAP + np.log(k) + 5 * error


@pytest.mark.parametrize("seed", range(3))
def test_one_component_is_a_known_gap_below_its_bound(seed):
    q = gaussians(1, seed)
    exact = divergence(q, ETA) - steps_divergence(q, ETA)
    assert _mixture(q)[0] - exact == pytest.approx(GAP, rel=1e-10)


def test_two_equal_components_are_one():
    q = gaussians(1)
    for logits in ([0.0, 0.0], [1.3, -0.4]):
        twice = Gaussians(
            np.array(logits),
            np.repeat(q.means, 2, axis=0),
            np.repeat(q.roots, 2, axis=0),
            q.steps,
            q.step_variances,
        )
        assert _mixture(twice)[0] == pytest.approx(_mixture(q)[0], rel=1e-12)
        assert divergence(twice, ETA) == pytest.approx(divergence(q, ETA) + GAP, rel=1e-12)
        np.testing.assert_allclose(divergence_gradient(twice, ETA).logits, 0.0, atol=1e-13)


def test_components_far_apart_are_told_apart():
    """The bound is that of each component and the entropy of which it is."""
    q = gaussians(2)
    far = q._replace(means=q.means + np.array([-50.0, 50.0])[:, None, None])
    want = 0.0
    for k in range(2):
        one = far._replace(
            logits=np.zeros(1), means=far.means[k : k + 1], roots=far.roots[k : k + 1]
        )
        want += far.weights[k] * (np.log(far.weights[k]) + _mixture(one)[0])
    assert _mixture(far)[0] == pytest.approx(want, rel=1e-12)


def extrapolated(at, step=1e-3):
    coarse = (at(step) - at(-step)) / (2 * step)
    fine = (at(step / 2) - at(-step / 2)) / step
    return (4 * fine - coarse) / 3


@pytest.mark.parametrize("k", [1, 2, 3])
def test_derivatives_equal_differences(k):
    q = gaussians(k)
    found = divergence_gradient(q, ETA)
    for name in ("logits", "means", "steps", "step_variances"):
        part = getattr(q, name)
        for place in np.ndindex(part.shape):

            def at(step, name=name, part=part, place=place):
                moved = part.copy()
                moved[place] += step
                return divergence(q._replace(**{name: moved}), ETA)

            want = extrapolated(at)
            assert getattr(found, name)[place] == pytest.approx(want, rel=1e-7, abs=1e-8), name
    own = covariances(q)
    for c, j in np.ndindex(k, S):
        np.testing.assert_allclose(found.covariances[c, j], found.covariances[c, j].T, atol=1e-12)
        for a, b in zip(*np.tril_indices(M), strict=True):

            def at(step, c=c, j=j, a=a, b=b):
                moved = own.copy()
                moved[c, j, a, b] += step
                moved[c, j, b, a] += step if a != b else 0.0
                return divergence(with_covariances(q, moved), ETA)

            got = found.covariances[c, j, a, b] * (1.0 if a == b else 2.0)
            assert got == pytest.approx(extrapolated(at, 2e-4), rel=1e-6, abs=1e-8)


# --- draws -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
def test_draws_have_the_means_and_covariances_of_q(k):
    q, n = gaussians(k, 2, apart=1.0), 20_000
    v, steps = q.draw(n, np.random.default_rng(0))
    assert v.shape == (n, M, S)
    assert steps.shape == (n, S, S)
    mean = np.einsum("k,kms->ms", q.weights, q.means)
    # of all values together: labels are independent given the component
    flat = v.transpose(0, 2, 1).reshape(n, -1)
    want = np.zeros((M * S, M * S))
    for c in range(k):
        away = (q.means[c] - mean).T.ravel()
        block = np.zeros_like(want)
        for j in range(S):
            block[j * M : (j + 1) * M, j * M : (j + 1) * M] = covariances(q)[c, j]
        want += q.weights[c] * (block + np.outer(away, away))
    centred = flat - mean.T.ravel()
    assert (np.abs(centred.mean(axis=0)) < 4.5 * np.sqrt(np.diagonal(want) / n)).all()
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / np.sqrt(n)
    assert (np.abs(products.mean(axis=0) - want) < 4.5 * error).all()
    assert np.abs(want - np.diag(np.diagonal(want))).max() > 9 * error.max()
    error = np.sqrt(q.step_variances / n)
    assert (np.abs(steps.mean(axis=0) - q.steps) < 4.5 * error).all()
    ratio = steps.var(axis=0) / q.step_variances
    assert (np.abs(ratio - 1.0) < 4.5 * np.sqrt(2.0 / n)).all()
    # transitions of a draw are independent of its functions
    assert np.abs(np.corrcoef(steps[:, 0, 0], flat[:, 0])[0, 1]) < 4.5 / np.sqrt(n)


def test_draws_depend_on_the_seed_alone():
    q = gaussians(2)
    a, b, c = (q.draw(5, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])
    assert not np.array_equal(a[0], c[0])


def test_prior():
    rng = np.random.default_rng(0)
    one, three = Gaussians.prior(1, M, S, ETA, rng), Gaussians.prior(3, M, S, ETA, rng)
    assert not one.means.any()
    assert len(np.unique(three.means)) == 3 * M * S
    for q, k in ((one, 1), (three, 3)):
        np.testing.assert_allclose(q.weights, 1.0 / k)
        np.testing.assert_array_equal(q.roots, np.broadcast_to(np.eye(M), (k, S, M, M)))
        assert (q.step_variances == ETA).all()
        assert not q.steps.any()


# --- natural gradients -------------------------------------------------------------------------


def quadratic(seed=4):
    """Precisions and modes of a log-likelihood -1/2 (v - a)' P (v - a) for each label."""
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(S, M, M))
    return half @ half.transpose(0, 2, 1), rng.normal(size=(M, S))


def expected_derivatives(q, precisions, modes):
    """By means (1, M, S) and covariances (1, S, M, M) of E[log-likelihood]."""
    by_means = np.stack(
        [-precisions[j] @ (q.means[0, :, j] - modes[:, j]) for j in range(S)], axis=1
    )
    return by_means[None], -0.5 * precisions[None]


def started(q):
    """Natural gradients that begin at q."""
    out = Natural(S, M)
    out.precisions = np.stack([np.linalg.inv(own) for own in covariances(q)[0]])
    return out


@pytest.mark.parametrize("seed", range(3))
def test_one_whole_step_lands_on_the_posterior_of_a_quadratic(seed):
    q = gaussians(1, seed)
    precisions, modes = quadratic(seed)
    means, roots = started(q).step(q, *expected_derivatives(q, precisions, modes), 1.0)
    for j in range(S):
        posterior = np.linalg.inv(np.eye(M) + precisions[j])
        np.testing.assert_allclose(roots[0, j] @ roots[0, j].T, posterior, rtol=1e-9, atol=1e-12)
        want = posterior @ precisions[j] @ modes[:, j]
        np.testing.assert_allclose(means[0, :, j], want, rtol=1e-9, atol=1e-12)


def test_shorter_steps_go_straight_in_natural_parameters():
    """And get there in the end."""
    q = gaussians(1)
    precisions, modes = quadratic()
    steps, rate = started(q), 0.3
    for round in range(60):
        old = [np.linalg.inv(own) for own in covariances(q)[0]]
        means, roots = steps.step(q, *expected_derivatives(q, precisions, modes), rate)
        new = q._replace(means=means, roots=roots)
        if round < 3:
            for j in range(S):
                now = np.linalg.inv(covariances(new)[0, j])
                want = (1 - rate) * old[j] + rate * (np.eye(M) + precisions[j])
                np.testing.assert_allclose(now, want, rtol=1e-8, atol=1e-11)
                np.testing.assert_allclose(steps.precisions[j], want, rtol=1e-8, atol=1e-11)
                before = old[j] @ q.means[0, :, j]
                want = (1 - rate) * before + rate * precisions[j] @ modes[:, j]
                np.testing.assert_allclose(now @ means[0, :, j], want, rtol=1e-8, atol=1e-11)
        q = new
    for j in range(S):
        want = np.linalg.solve(np.eye(M) + precisions[j], precisions[j] @ modes[:, j])
        np.testing.assert_allclose(q.means[0, :, j], want, rtol=1e-7, atol=1e-9)


def test_the_first_step_is_from_the_prior():
    q = Gaussians.prior(1, M, S, ETA, np.random.default_rng(0))
    precisions, modes = quadratic()
    means, roots = Natural(S, M).step(q, *expected_derivatives(q, precisions, modes), 0.25)
    for j in range(S):
        want = np.linalg.inv(np.eye(M) + 0.25 * precisions[j])
        np.testing.assert_allclose(roots[0, j] @ roots[0, j].T, want, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            means[0, :, j], 0.25 * want @ precisions[j] @ modes[:, j], rtol=1e-9, atol=1e-12
        )


def test_a_stationary_point_stays():
    """Where the derivatives of the ELBO are zero."""
    q = gaussians(1)
    kl = divergence_gradient(q, ETA)
    means, roots = started(q).step(q, kl.means, kl.covariances, 0.7)
    np.testing.assert_allclose(means, q.means, atol=1e-12)
    np.testing.assert_allclose(roots @ roots.transpose(0, 1, 3, 2), covariances(q), rtol=1e-9)


def test_a_direction_that_leaves_the_cone_is_shortened():
    q = gaussians(1)
    by_means, _ = expected_derivatives(q, *quadratic())
    noise = np.zeros((1, S, M, M))
    noise[0, 0] = np.diag([40.0, -1.0, 3.0])  # the second label's step is whole
    steps = started(q)
    old = steps.precisions.copy()
    means, roots = steps.step(q, by_means, noise, 0.8)
    for j, halvings in ((0, None), (1, 0)):
        towards = np.eye(M) - 2.0 * noise[0, j]
        share, n = 0.8, 0
        while np.linalg.eigvalsh(old[j] + share * (towards - old[j])).min() <= 0.0:
            share, n = share / 2, n + 1
        assert (n > 0) if halvings is None else (n == halvings)
        new = old[j] + share * (towards - old[j])
        assert np.linalg.eigvalsh(new).min() > 0.0
        own = np.linalg.inv(new)
        np.testing.assert_allclose(roots[0, j] @ roots[0, j].T, own, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(steps.precisions[j], new, rtol=1e-10, atol=1e-12)
        moved = q.means[0, :, j] + share * own @ (by_means[0, :, j] - q.means[0, :, j])
        np.testing.assert_allclose(means[0, :, j], moved, rtol=1e-8)


def test_a_step_changes_nothing_that_is_given():
    q = gaussians(1)
    before = [part.copy() for part in q]
    by_means, by_covariances = expected_derivatives(q, *quadratic())
    started(q).step(q, by_means, by_covariances, 0.5)
    for part, same in zip(q, before, strict=True):
        np.testing.assert_array_equal(part, same)


def test_transitions_land_on_the_posterior_of_a_quadratic():
    q = gaussians(1)
    rng = np.random.default_rng(7)
    precision, mode = rng.uniform(0.5, 5.0, (S, S)), rng.normal(size=(S, S))
    by_means, by_variances = -precision * (q.steps - mode), -0.5 * precision
    means, variances = natural_steps(q, ETA, by_means, by_variances, 1.0)
    want = 1.0 / (1.0 / ETA + precision)
    np.testing.assert_allclose(variances, want, rtol=1e-12)
    np.testing.assert_allclose(means, want * precision * mode, rtol=1e-12)
    half = natural_steps(q, ETA, by_means, by_variances, 0.5)
    now = 1.0 / half[1]
    np.testing.assert_allclose(now, 0.5 / q.step_variances + 0.5 / want, rtol=1e-12)
    straight = 0.5 * q.steps / q.step_variances + 0.5 * precision * mode
    np.testing.assert_allclose(now * half[0], straight, rtol=1e-12)


def test_precisions_of_transitions_stay_positive():
    q = gaussians(1)
    means, variances = natural_steps(q, ETA, np.ones((S, S)), np.full((S, S), 100.0), 0.5)
    np.testing.assert_allclose(variances, 10.0 * q.step_variances, rtol=1e-12)
    np.testing.assert_allclose(means, q.steps + 0.5 * variances * (1.0 - q.steps / ETA), rtol=1e-12)


def test_without_transitions_none_move():
    q = gaussians(1)
    means, variances = natural_steps(q, 0.0, np.ones((S, S)), np.ones((S, S)), 0.5)
    np.testing.assert_array_equal(means, q.steps)
    np.testing.assert_array_equal(variances, q.step_variances)


def test_a_step_that_leads_nowhere_ends():
    """What is not a number is no direction, however small its share."""
    q = Gaussians.prior(1, M, S, 1.0, np.random.default_rng(0))
    d_covariances = np.zeros((1, S, M, M))
    d_covariances[0, 1, 0, 0] = np.nan
    with pytest.raises(InputError, match="no covariance for the scores of label 1"):
        Natural(S, M).step(q, np.zeros((1, M, S)), d_covariances, 0.5)
