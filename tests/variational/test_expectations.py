"""Expected log-likelihoods and their derivatives against quadrature: unbiased, and with how much
noise; likelihoods that are functions of the user's."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from scipy.special import logsumexp

from seqfield.chain import ChainScores
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.errors import InputError
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.losses.piecewise import PiecewiseLoss
from seqfield.variational._expectations import (
    BlackBox,
    ChainLikelihood,
    Moments,
    by_reparameterisation,
    by_scores,
    draw_noise,
    scores_of,
)

from ..support.quadrature import (
    FAR,
    chain_gradient,
    chain_values,
    exact,
)

# --- what is exact -----------------------------------------------------------------------------


OFFSETS = np.array([0, 2, 3])
TARGETS = Targets(np.array([0, 1, 0], np.int32), None, OFFSETS)
WEIGHTS = np.array([1.0, 1.5])
ONE = Targets(np.array([1, 1], np.int32), None, np.array([0, 2]))


def moments_for(targets, seed=0, spread=0.6, variances=None):
    """Random moments of scores of two labels."""
    rng = np.random.default_rng(seed)
    covariances = []
    for length in np.diff(targets.offsets):
        half = rng.normal(size=(2, length, length))
        own = half @ half.transpose(0, 2, 1) + 0.5 * np.eye(length)
        covariances.append(spread * own / np.einsum("sii->s", own)[:, None, None] * length)
    if variances is None:
        variances = spread * rng.uniform(0.5, 1.5, (2, 2))
    means = 0.7 * rng.normal(size=(targets.offsets[-1], 2))
    return Moments.of(targets.offsets, means, covariances, rng.normal(size=(2, 2)), variances)


MOMENTS, ALONE = moments_for(TARGETS), moments_for(ONE, seed=1)


def black_box(targets, weights):
    return BlackBox(chain_values).bound(targets, weights).values


def extrapolated(at, step=1e-2):
    coarse = (at(step) - at(-step)) / (2 * step)
    fine = (at(step / 2) - at(-step / 2)) / step
    return (4 * fine - coarse) / 3


def test_quadrature_is_accurate_and_its_derivatives_are_differences_of_its_value():
    fine, coarse = (exact(MOMENTS, TARGETS, WEIGHTS, n) for n in (30, 20))
    np.testing.assert_allclose(coarse.values, fine.values, rtol=1e-7)
    np.testing.assert_allclose(coarse.covariances[0], fine.covariances[0], atol=1e-6)
    covariances = [root @ root.transpose(0, 2, 1) for root in MOMENTS.roots]

    def value(means=MOMENTS.means, own=covariances, steps=MOMENTS.steps, w=MOMENTS.step_variances):
        return exact(Moments.of(OFFSETS, means, own, steps, w), TARGETS, WEIGHTS).values.sum()

    def moved(part, place, step):
        out = part.copy()
        out[place] += step
        return out

    for place in np.ndindex(3, 2):
        want = extrapolated(lambda h, at=place: value(means=moved(MOMENTS.means, at, h)))
        assert coarse.means[place] == pytest.approx(want, abs=1e-6)
    for place in np.ndindex(2, 2):
        want = extrapolated(lambda h, at=place: value(steps=moved(MOMENTS.steps, at, h)))
        assert coarse.steps[place] == pytest.approx(want, abs=1e-6)
        want = extrapolated(lambda h, at=place: value(w=moved(MOMENTS.step_variances, at, h)))
        assert coarse.step_variances[place] == pytest.approx(want, abs=1e-6)
    for j, (a, b) in product(range(2), ((0, 0), (1, 1), (0, 1))):

        def at(h, j=j, a=a, b=b):
            own = moved(covariances[0], (j, a, b), h)
            return value(own=[own if a == b else moved(own, (j, b, a), h), covariances[1]])

        got = coarse.covariances[0][j, a, b] * (1.0 if a == b else 2.0)
        assert got == pytest.approx(extrapolated(at), abs=1e-6)


def test_the_black_box_and_the_gradient_of_these_tests_are_the_chain():
    rng = np.random.default_rng(0)
    f, t = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
    want = LogLoss()(ChainScores(f, t, OFFSETS), TARGETS, WEIGHTS)
    values, d_f, d_t = chain_gradient(TARGETS, WEIGHTS)(f, t)
    assert values.sum() == pytest.approx(-want.value, rel=1e-12)
    np.testing.assert_allclose(d_f, -want.node, atol=1e-13)
    np.testing.assert_allclose(d_t, -want.edge, atol=1e-13)


# --- unbiased ----------------------------------------------------------------------------------


def flat(found):
    """The parts of an `Expected` as vectors."""
    return {
        "value": np.array([found.values.sum()]),
        "means": found.means.ravel(),
        "covariances": np.concatenate([part.ravel() for part in found.covariances]),
        "steps": found.steps.ravel(),
        "step_variances": found.step_variances.ravel(),
    }


def repeated(estimate, n, seed=0):
    """Each part of n independent estimates (n, ...)."""
    rng = np.random.default_rng(seed)
    found = [flat(estimate(rng)) for _ in range(n)]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def assert_unbiased(found, want, power=10.0):
    """No part is off by more than FAR standard errors, and each tells zero from what it is."""
    for name, goal in flat(want).items():
        error = found[name].std(axis=0, ddof=1) / np.sqrt(len(found[name]))
        off = np.abs(found[name].mean(axis=0) - goal) / error
        assert off.max() < FAR, (name, off)
        assert (np.abs(goal) / error).max() > power, (name, np.abs(goal) / error)


def test_reparameterised_estimates_are_unbiased():
    gradient = chain_gradient(TARGETS, WEIGHTS)
    found = repeated(lambda rng: by_reparameterisation(MOMENTS, gradient, 8, rng), 250)
    assert_unbiased(found, exact(MOMENTS, TARGETS, WEIGHTS))


def test_estimates_by_curvature_are_unbiased():
    bound = ChainLikelihood(LogLoss(), None).bound(TARGETS, WEIGHTS)

    def estimate(rng):
        return by_reparameterisation(MOMENTS, bound.gradient, 4, rng, bound.curvature)

    assert_unbiased(repeated(estimate, 150), exact(MOMENTS, TARGETS, WEIGHTS))


@pytest.mark.parametrize("control", [True, False])
def test_score_function_estimates_are_unbiased(control):
    values = black_box(TARGETS, WEIGHTS)
    found = repeated(lambda rng: by_scores(MOMENTS, values, 4000, rng, control=control), 80)
    assert_unbiased(found, exact(MOMENTS, TARGETS, WEIGHTS))


def test_with_almost_fixed_transitions():
    """Their derivatives are not told by draws that hardly move: those of scores are."""
    moments = moments_for(TARGETS, variances=np.full((2, 2), 1e-10))
    want = exact(moments, TARGETS, WEIGHTS)
    gradient, values = chain_gradient(TARGETS, WEIGHTS), black_box(TARGETS, WEIGHTS)
    for found in (
        repeated(lambda rng: by_reparameterisation(moments, gradient, 8, rng), 150),
        repeated(lambda rng: by_scores(moments, values, 300, rng), 80),
    ):
        for name in ("value", "means", "covariances"):
            error = found[name].std(axis=0, ddof=1) / np.sqrt(len(found[name]))
            off = np.abs(found[name].mean(axis=0) - flat(want)[name])
            assert (off < FAR * error).all(), name


def test_curvature_and_stein_estimates_have_one_mean():
    """On a longer chain, that no quadrature reaches."""
    targets = Targets(np.array([0, 1, 1, 0], np.int32), None, np.array([0, 4]))
    moments = moments_for(targets, seed=5)
    bound = ChainLikelihood(LogLoss(), None).bound(targets, np.ones(1))
    gradient = chain_gradient(targets, np.ones(1))
    a = repeated(lambda rng: by_reparameterisation(moments, gradient, 8, rng), 200)
    bent = repeated(
        lambda rng: by_reparameterisation(moments, bound.gradient, 4, rng, bound.curvature), 60, 1
    )
    for name in a:
        error = np.sqrt(sum(one[name].var(axis=0, ddof=1) / len(one[name]) for one in (a, bent)))
        assert (np.abs(a[name].mean(axis=0) - bent[name].mean(axis=0)) < FAR * error).all(), name


def test_few_draws_with_a_control_variate_are_unbiased_and_one_from_the_same_draws_is_not():
    want = flat(exact(ALONE, ONE, np.ones(1)))
    values = black_box(ONE, np.ones(1))
    found = repeated(lambda rng: by_scores(ALONE, values, 4, rng), 1500)
    for name in ("means", "covariances", "steps", "step_variances"):
        error = found[name].std(axis=0, ddof=1) / np.sqrt(1500)
        assert (np.abs(found[name].mean(axis=0) - want[name]) < FAR * error).all(), name
    # the same number of estimates whose factor comes from the draws that it is applied to
    rng = np.random.default_rng(0)
    noise = draw_noise(ALONE, 4 * 1500, rng, paired=False)
    l = values(*scores_of(ALONE, noise))[:, 0].reshape(1500, 4, 1)
    h = noise.steps.reshape(1500, 4, 4)
    factor = (l * h**2).sum(axis=1, keepdims=True) / (h**2).sum(axis=1, keepdims=True)
    same = ((l - factor) * h).mean(axis=1) / np.sqrt(ALONE.step_variances.ravel())
    error = same.std(axis=0, ddof=1) / np.sqrt(1500)
    assert (np.abs(same.mean(axis=0) - want["steps"]) / error).max() > 2 * FAR


# --- noise -------------------------------------------------------------------------------------


def test_control_variates_take_noise_away_and_derivatives_more():
    targets = Targets(np.array([0, 1, 1, 0, 1], np.int32), None, np.array([0, 5]))
    moments = moments_for(targets, seed=2)
    values, gradient = black_box(targets, np.ones(1)), chain_gradient(targets, np.ones(1))
    spread = {}
    for kind, estimate in {
        "plain": lambda rng: by_scores(moments, values, 20, rng, control=False),
        "control": lambda rng: by_scores(moments, values, 20, rng),
        "reparam": lambda rng: by_reparameterisation(moments, gradient, 20, rng),
    }.items():
        found = repeated(estimate, 120)
        spread[kind] = {name: part.var(axis=0, ddof=1).sum() for name, part in found.items()}
    for name in ("means", "covariances", "steps", "step_variances"):
        plain, control, reparam = (spread[k][name] for k in ("plain", "control", "reparam"))
        assert control < 0.5 * plain, (name, spread)
        assert reparam < 0.5 * control, (name, spread)


def test_draws_come_in_pairs():
    noise = draw_noise(MOMENTS, 5, np.random.default_rng(0), paired=True)
    assert noise.node.shape == (6, 3, 2)
    assert noise.steps.shape == (6, 2, 2)
    np.testing.assert_array_equal(noise.node[:3], -noise.node[3:])
    np.testing.assert_array_equal(noise.steps[:3], -noise.steps[3:])
    alone = draw_noise(MOMENTS, 5, np.random.default_rng(0), paired=False)
    assert alone.node.shape == (5, 3, 2)
    assert len(np.unique(np.abs(alone.node))) == 30


def test_a_linear_likelihood_has_no_noise_in_pairs():
    """What is odd in the draws cancels: value and derivatives by means are exact."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))

    def gradient(f, t):
        return np.array([np.vdot(a, f), np.vdot(b, t)]), a, b

    found = by_reparameterisation(MOMENTS, gradient, 2, rng)
    want = [np.vdot(a, MOMENTS.means), np.vdot(b, MOMENTS.steps)]
    np.testing.assert_allclose(found.values, want, rtol=1e-12)
    np.testing.assert_allclose(found.means, a, rtol=1e-12)
    for part in found.covariances:
        np.testing.assert_allclose(part, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.step_variances, 0.0, atol=1e-12)


def test_scores_of_noise():
    noise = draw_noise(MOMENTS, 30_000, np.random.default_rng(0), paired=False)
    f, t = scores_of(MOMENTS, noise)
    for (a, b), root in zip(pairwise(OFFSETS.tolist()), MOMENTS.roots, strict=True):
        for j in range(2):
            own = f[:, a:b, j] - MOMENTS.means[a:b, j]
            want = root[j] @ root[j].T
            error = np.sqrt((np.outer(*[np.diagonal(want)] * 2) + want**2) / len(own))
            assert (np.abs(own.T @ own / len(own) - want) < FAR * error).all()
            assert (np.abs(own.mean(axis=0)) < FAR * np.sqrt(np.diagonal(want) / len(own))).all()
    ratio = t.var(axis=0) / MOMENTS.step_variances
    assert (np.abs(ratio - 1.0) < FAR * np.sqrt(2.0 / len(t))).all()
    np.testing.assert_allclose(MOMENTS.inverses[0] @ MOMENTS.roots[0], [np.eye(2)] * 2, atol=1e-12)


# --- likelihoods -------------------------------------------------------------------------------


def test_a_black_box_that_is_the_chain():
    rng = np.random.default_rng(0)
    f, t = rng.normal(size=(5, 3, 2)), rng.normal(size=(5, 2, 2))
    chain = ChainLikelihood(LogLoss(), None).bound(TARGETS, WEIGHTS)
    own = BlackBox(chain_values).bound(TARGETS, WEIGHTS)
    want = chain.values(f, t)
    assert want.shape == (5, 2)
    np.testing.assert_allclose(own.values(f, t), want, rtol=1e-12)
    assert own.gradient is None
    assert own.curvature is None
    a, b = (by_scores(MOMENTS, one.values, 12, np.random.default_rng(1)) for one in (chain, own))
    for x, y in zip(flat(a).values(), flat(b).values(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


def test_values_and_gradients_of_a_chain():
    rng = np.random.default_rng(0)
    f, t = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
    for loss in (LogLoss(), PiecewiseLoss()):
        bound = ChainLikelihood(loss, None).bound(TARGETS, WEIGHTS)
        scores = ChainScores(f, t, OFFSETS)
        want = loss(scores, TARGETS, WEIGHTS)
        values, d_f, d_t = bound.gradient(f, t)
        assert values.shape == (2,)
        assert values.sum() == pytest.approx(-want.value, rel=1e-12)
        np.testing.assert_array_equal(d_f, -want.node)
        np.testing.assert_array_equal(d_t, -want.edge)
        got = bound.values(f[None], t[None])
        np.testing.assert_allclose(got[0], -WEIGHTS * loss.values(scores, TARGETS), rtol=1e-12)
        nodes, steps = bound.curvature(f, t, rng)
        assert [part.shape for part in nodes] == [(2, 2, 2), (2, 1, 1)]
        assert steps.shape == (2, 2)


def test_which_likelihoods_have_a_curvature():
    mask = np.array([[True, False], [True, True], [True, False]])
    partial = Targets(np.array([0, -1, 0], np.int32), mask, OFFSETS)
    for loss in (LogLoss(), PiecewiseLoss()):
        assert ChainLikelihood(loss, None).bound(TARGETS, WEIGHTS).curvature is not None
        assert ChainLikelihood(loss, None).bound(partial, WEIGHTS).curvature is not None
    assert ChainLikelihood(MarginalLoss(), None).bound(TARGETS, WEIGHTS).curvature is None


def test_constraints_hold_in_the_likelihood():
    """Label 1 never follows label 1, nor does it come first."""
    allowed = Allowed(
        np.array([True, False]), np.array([[True, True], [True, False]]), np.array([True, True])
    )
    bound = ChainLikelihood(LogLoss(), Constraint.of(allowed)).bound(TARGETS, WEIGHTS)
    rng = np.random.default_rng(0)
    f, t = rng.normal(size=(1, 3, 2)), rng.normal(size=(1, 2, 2))
    paths = f[0, 0, 0] + f[0, 1] + t[0, 0]  # after a first label 0
    want = [paths[1] - logsumexp(paths), 0.0]
    np.testing.assert_allclose(bound.values(f, t)[0], WEIGHTS * want, rtol=1e-12, atol=1e-14)
    _, d_f, d_t = bound.gradient(f[0], t[0])
    np.testing.assert_allclose(d_f[[0, 2]], 0.0, atol=1e-14)
    assert d_t[1, 0] == d_t[1, 1] == 0.0
    found = by_reparameterisation(MOMENTS, bound.gradient, 4, rng, bound.curvature)
    assert all(np.isfinite(part).all() for part in flat(found).values())


def test_what_a_black_box_is_given():
    seen = []

    def box(f, t, labels):
        seen.append((f.shape, t.shape, labels.tolist()))
        f[:], t[:], labels[:] = 0.0, 0.0, 0
        return np.arange(len(f))

    mask = np.array([[True, False], [True, True], [False, True]])
    targets = Targets(np.array([0, -1, 1], np.int32), mask, OFFSETS)
    f, t = np.ones((4, 3, 2)), np.ones((4, 2, 2))
    found = BlackBox(box).bound(targets, WEIGHTS).values(f, t)
    assert seen == [((4, 2, 2), (4, 2, 2), [0, -1]), ((4, 1, 2), (4, 2, 2), [1])]
    # whole numbers will do, and what it does to its arguments is its own business
    np.testing.assert_allclose(found, np.outer(np.arange(4.0), WEIGHTS))
    assert f.all()
    assert t.all()
    assert targets.codes.tolist() == [0, -1, 1]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda k: np.zeros((k, 1)), r"shape \(4,\); it returned shape \(4, 1\)"),
        (lambda k: np.zeros(k + 1), r"it returned shape \(5,\)"),
        (lambda k: 0.0, r"it returned shape \(\)"),
        (lambda k: None, r"it returned shape \(\)"),
        (lambda k: np.full(k, np.nan), "not finite"),
        (lambda k: np.array([0.0] * (k - 1) + [-np.inf]), "not finite numbers .* of 2 tokens"),
        (lambda k: np.zeros(k, complex), "not finite numbers"),
        (lambda k: np.zeros(k, object), "not finite numbers"),
        (lambda k: np.array(["a"] * k), "not finite numbers"),
        (lambda k: np.zeros(k, bool), "not finite numbers"),
    ],
    ids=["wide", "long", "number", "None", "NaN", "infinite", "complex", "object", "text", "bool"],
)
def test_what_a_black_box_may_not_return(returned, message):
    bound = BlackBox(lambda f, t, labels: returned(len(f))).bound(TARGETS, WEIGHTS)
    with pytest.raises(InputError, match=message):
        bound.values(np.zeros((4, 3, 2)), np.zeros((4, 2, 2)))
