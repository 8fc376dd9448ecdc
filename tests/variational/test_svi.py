"""Stochastic variational inference: the ELBO and all of its derivatives against quadrature, below
the evidence and close to it, minibatches, and both ways to step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import seqfield as sf
from seqfield.architectures.inducing import Inducing
from seqfield.chain import ChainScores
from seqfield.errors import CapabilityError
from seqfield.kernels import RBF, Linear, Scaled, Sum
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.losses.piecewise import PiecewiseLoss
from seqfield.sequences import Sequences, offsets_of
from seqfield.variational import _elbo
from seqfield.variational._elbo import elbo, moments_of
from seqfield.variational._expectations import (
    BlackBox,
    Bound,
    ChainLikelihood,
    Moments,
    by_reparameterisation,
    information,
)
from seqfield.variational.gaussians import (
    Gaussians,
    Natural,
    divergence,
    divergence_gradient,
    natural_steps,
)
from seqfield.variational.problems import InducingProblem
from seqfield.variational.svi import Adam, StochasticVariational, _Drift, _State, _Watch

from ..support.quadrature import FAR, chain_values, exact, log_evidence

CHAIN = ChainLikelihood(LogLoss(), None)
KERNEL = Sum(Scaled(RBF(1.1), 0.8), Scaled(Linear(), 0.2))
ETA = 0.6
#: a tolerance that lets no fit stop before its last epoch
NEVER = -1.0


def problem(lengths=(2, 1, 2, 2), m=3, seed=0, kernel=KERNEL, eta=ETA, **wanted):
    """Four short sequences, so that quadrature is exact, and fewer inducing tokens than tokens."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(lengths)
    x = rng.normal(size=(int(offsets[-1]), 2))
    z = x.copy() if m is None else rng.normal(size=(m, 2))
    targets = Targets(rng.integers(2, size=len(x)).astype(np.int32), None, offsets)
    return Inducing(2, kernel, z, eta, **wanted), Sequences(x, offsets), targets


MODEL, DATA, TARGETS = problem()
WEIGHTS = np.array([1.0, 0.5, 2.0, 1.0])


def gaussians(k=1, m=3, seed=0):
    rng = np.random.default_rng([seed, k, m])
    roots = np.tril(0.2 * rng.normal(size=(k, 2, m, m)))
    np.einsum("...ii->...i", roots)[...] = rng.uniform(0.4, 0.9, (k, 2, m))
    return Gaussians(
        rng.normal(size=k),
        0.5 * rng.normal(size=(k, m, 2)),
        roots,
        0.5 * rng.normal(size=(2, 2)),
        rng.uniform(0.2, 0.6, (2, 2)),
    )


def textbook_moments(q, model, data, c):
    """(15) to (18): b = A m and k(x, x) - A k(Z, x) + A S A', with m, S of the values at Z."""
    gram = model.root @ model.root.T
    means, covariances = [], []
    for a, b in pairwise(data.offsets.tolist()):
        k = model.kernel(data.x[a:b], model.tokens)
        project = k @ np.linalg.inv(gram)
        left = model.kernel(data.x[a:b]) - project @ k.T + model.nugget * np.eye(b - a)
        means.append(project @ model.root @ q.means[c])
        covariances.append([])
        for root in q.roots[c]:
            own = model.root @ root @ root.T @ model.root.T
            covariances[-1].append(left + project @ own @ project.T)
    return Moments.of(
        data.offsets,
        np.vstack(means),
        [np.array(c) for c in covariances],
        q.steps,
        q.step_variances,
    )


def exact_elbo(q, model=MODEL, data=DATA, targets=TARGETS, weights=WEIGHTS):
    """By quadrature, with the bound of the divergence of a mixture."""
    total = -divergence(q, model.eta)
    for c, pi in enumerate(q.weights):
        total += pi * exact(textbook_moments(q, model, data, c), targets, weights).values.sum()
    return float(total)


def settings(**wanted):
    return StochasticVariational(**wanted)


@pytest.fixture
def by_quadrature(monkeypatch):
    """ELBOs whose expectations are exact: the function of targets and weights that sets them."""

    def put(targets=TARGETS, weights=WEIGHTS):
        monkeypatch.setattr(
            _elbo, "by_reparameterisation", lambda moments, *_: exact(moments, targets, weights)
        )

    put()
    return put


def exactly(q, model=MODEL, data=DATA, **wanted):
    bound = CHAIN.bound(TARGETS, WEIGHTS)
    batch = model.lay_out(data)
    return elbo(q, model, batch, bound, settings(**wanted), np.random.default_rng(0))


def extrapolated(at, step=1e-2):
    coarse = (at(step) - at(-step)) / (2 * step)
    fine = (at(step / 2) - at(-step / 2)) / step
    return (4 * fine - coarse) / 3


def moved(part, place, step):
    out = part.copy()
    out[place] += step
    return out


# --- the ELBO ----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
def test_moments_equal_textbook_formulas(k):
    q, batch = gaussians(k), MODEL.lay_out(DATA)
    for c in range(k):
        got, _ = moments_of(q, batch, c)
        want = textbook_moments(q, MODEL, DATA, c)
        np.testing.assert_allclose(got.means, want.means, rtol=1e-8, atol=1e-10)
        for a, b in zip(got.roots, want.roots, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
        np.testing.assert_array_equal(got.steps, q.steps)
        np.testing.assert_array_equal(got.step_variances, q.step_variances)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_elbo_with_exact_expectations(k, by_quadrature):
    q = gaussians(k)
    assert exactly(q).value == pytest.approx(exact_elbo(q), rel=1e-8)


@pytest.mark.parametrize("k", [1, 2])
def test_derivatives_by_q_equal_differences(k, by_quadrature):
    q = gaussians(k)
    found, kl = exactly(q), divergence_gradient(q, ETA)
    for name in ("means", "steps", "step_variances"):
        part, slope = getattr(q, name), getattr(found, name) - getattr(kl, name)
        for place in [(0,) * part.ndim, (part.shape[0] - 1, *[1] * (part.ndim - 1))]:
            want = extrapolated(
                lambda h, n=name, v=part, at=place: exact_elbo(q._replace(**{n: moved(v, at, h)}))
            )
            assert slope[place] == pytest.approx(want, rel=1e-5, abs=1e-6), name
    own = q.roots @ q.roots.transpose(0, 1, 3, 2)
    slope = found.covariances - kl.covariances
    for c, j, a, b in [(0, 0, 1, 1), (k - 1, 1, 2, 0), (0, 1, 0, 0)]:

        def at(h, c=c, j=j, a=a, b=b):
            given = moved(own, (c, j, a, b), h)
            if a != b:
                given = moved(given, (c, j, b, a), h)
            return exact_elbo(q._replace(roots=np.linalg.cholesky(given)))

        got = slope[c, j, a, b] + (slope[c, j, b, a] if a != b else 0.0)
        assert got == pytest.approx(extrapolated(at, 3e-3), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("k", [1, 2])
def test_derivatives_by_kernel_parameters_equal_differences(k, by_quadrature):
    q, p = gaussians(k), KERNEL.log_parameters
    found = exactly(q)
    got = MODEL.by_parameters(MODEL.lay_out(DATA), found.phi, found.rest)
    want = [
        extrapolated(
            lambda h, i=i: exact_elbo(
                q, MODEL.with_kernel(KERNEL.with_log_parameters(moved(p, i, h)))
            )
        )
        for i in range(len(p))
    ]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert np.abs(want).min() > 0.01


@pytest.mark.parametrize("k", [1, 2])
def test_derivatives_by_inducing_tokens_equal_differences(k, by_quadrature):
    q = gaussians(k)
    found = exactly(q)
    got = MODEL.by_tokens(MODEL.lay_out(DATA), found.phi)
    for place in ((0, 0), (1, 1), (2, 0)):
        want = extrapolated(
            lambda h, at=place: exact_elbo(q, MODEL.with_kernel(KERNEL, moved(MODEL.tokens, at, h)))
        )
        assert got[place] == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_a_prior_that_is_fixed_has_no_derivatives(by_quadrature):
    q = gaussians()
    found = exactly(q, learn_kernel=False)
    assert not found.phi.any()
    assert not any(part.any() for part in found.rest)
    whole = exactly(q)
    np.testing.assert_array_equal(found.means, whole.means)
    assert whole.phi.any()
    assert settings().moves(MODEL)
    assert not settings(learn_kernel=False).moves(MODEL)
    assert settings(learn_kernel=False, learn_inducing=True).moves(MODEL)
    plain = Inducing(2, Linear(), MODEL.tokens[:2], 1.0)
    assert not settings().moves(plain)


@pytest.mark.parametrize(
    "wanted",
    [
        {"natural": True, "n_mc": 4},
        {"natural": False, "n_mc": 10},
        {"gradient": "score", "natural": False, "n_mc": 800},
    ],
    ids=["curvature", "reparam", "score"],
)
def test_estimates_are_unbiased(wanted, monkeypatch):
    """Of the ELBO, its derivatives by the kernel's parameters, by inducing tokens and by q."""
    q, batch = gaussians(), MODEL.lay_out(DATA)
    if wanted.get("gradient") == "score":
        bound = BlackBox(chain_values).bound(TARGETS, WEIGHTS)
    else:
        bound = CHAIN.bound(TARGETS, WEIGHTS)
    rng, rows = np.random.default_rng(0), []

    def row(found):
        return np.concatenate(
            [
                [found.value],
                MODEL.by_parameters(batch, found.phi, found.rest),
                MODEL.by_tokens(batch, found.phi).ravel(),
                found.means.ravel(),
                found.covariances.ravel(),
                found.steps.ravel(),
            ]
        )

    for _ in range(120):
        rows.append(row(elbo(q, MODEL, batch, bound, settings(**wanted), rng)))
    monkeypatch.setattr(
        _elbo, "by_reparameterisation", lambda moments, *_: exact(moments, TARGETS, WEIGHTS)
    )
    want = row(exactly(q))
    error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
    off = np.abs(np.mean(rows, axis=0) - want) / error
    assert off.max() < FAR
    # the ELBO and the kernel's parameters are told from zero
    assert np.abs(want / error)[0] > 50
    assert np.abs(want / error)[1:4].max() > 10


def test_batches_average_to_the_whole(by_quadrature):
    q = gaussians()
    whole = exactly(q)
    by_kernel = MODEL.by_parameters(MODEL.lay_out(DATA), whole.phi, whole.rest)
    values, means, covariances, kernel = [], [], [], []
    for i in range(4):
        by_quadrature(TARGETS[[i]], 4.0 * WEIGHTS[[i]])
        found = exactly(q, data=DATA[[i]])
        values.append(found.value)
        means.append(found.means)
        covariances.append(found.covariances)
        kernel.append(MODEL.by_parameters(MODEL.lay_out(DATA[[i]]), found.phi, found.rest))
    assert np.mean(values) == pytest.approx(whole.value, rel=1e-10)
    np.testing.assert_allclose(np.mean(means, axis=0), whole.means, atol=1e-12)
    np.testing.assert_allclose(np.mean(covariances, axis=0), whole.covariances, atol=1e-12)
    np.testing.assert_allclose(np.mean(kernel, axis=0), by_kernel, atol=1e-12)
    assert np.ptp(values) > 0.5


@pytest.mark.parametrize("natural", [True, False])
def test_all_tokens_as_inducing_tokens_are_the_full_gaussian(natural):
    """Over the values of all tokens, written out densely, with the same noise."""
    model, data, targets = problem(m=None, kernel=Scaled(RBF(0.9), 1.4), nugget=0.0)
    n = data.n_tokens
    q, bound = gaussians(m=n), CHAIN.bound(targets, WEIGHTS)
    wanted = settings(natural=natural, n_mc=6)
    found = elbo(q, model, model.lay_out(data), bound, wanted, np.random.default_rng(3))
    gram = model.kernel(data.x)
    root = np.linalg.cholesky(gram)
    means = root @ q.means[0]
    full = [root @ c @ c.T @ root.T for c in q.roots[0]]
    blocks = [np.stack([own[a:b, a:b] for own in full]) for a, b in pairwise(data.offsets.tolist())]
    moments = Moments.of(data.offsets, means, blocks, q.steps, q.step_variances)
    bent = bound.curvature if natural else None
    want = by_reparameterisation(moments, bound.gradient, 6, np.random.default_rng(3), bent)
    value = want.values.sum()
    for j in range(2):
        inverse = np.linalg.inv(gram)
        dets = np.linalg.slogdet(gram)[1] - np.linalg.slogdet(full[j])[1]
        squares = means[:, j] @ inverse @ means[:, j]
        value -= 0.5 * (np.trace(inverse @ full[j]) + squares - n + dets)
    ratio = q.step_variances / ETA
    value -= 0.5 * (ratio + q.steps**2 / ETA - 1.0 - np.log(ratio)).sum()
    assert found.value == pytest.approx(value, rel=1e-7)
    np.testing.assert_allclose(found.means[0], root.T @ want.means, atol=1e-6)
    np.testing.assert_allclose(found.steps, want.steps, atol=1e-6)
    for j in range(2):
        dense = np.zeros((n, n))
        for (a, b), part in zip(pairwise(data.offsets.tolist()), want.covariances, strict=True):
            dense[a:b, a:b] = part[j]
        np.testing.assert_allclose(found.covariances[0, j], root.T @ dense @ root, atol=1e-6)


# --- mixtures ----------------------------------------------------------------------------------


def test_equal_components_are_one_gaussian_less_the_known_gap(by_quadrature):
    q = gaussians()
    twice = q._replace(
        logits=np.array([0.4, -0.3]),
        means=np.repeat(q.means, 2, axis=0),
        roots=np.repeat(q.roots, 2, axis=0),
    )
    gap = 2 * 3 / 2 * (1.0 - np.log(2.0))
    a, b = exactly(q), exactly(twice)
    assert b.value == pytest.approx(a.value - gap, rel=1e-9)
    np.testing.assert_allclose(b.means.sum(axis=0), a.means[0], atol=1e-10)
    np.testing.assert_allclose(b.phi, a.phi, atol=1e-10)
    np.testing.assert_allclose(b.steps, a.steps, atol=1e-10)
    for x, y in zip(a.rest, b.rest, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-10)


@pytest.mark.filterwarnings("ignore:no convergence")
def test_a_mixture_rises_above_where_one_gaussian_starts():
    found = {k: run(natural=False, n_components=k, max_iter=40, learning_rate=0.1) for k in (1, 2)}
    start = found[1].elbos[:1].mean()
    assert found[2].elbos[0] < start  # by the gap, with the noise of a few draws
    assert exact_elbo(found[2].q) > exact_elbo(Gaussians.prior(1, 3, 2, ETA, None)) + 0.05
    assert np.ptp(found[2].q.logits) > 0.0
    assert found[2].q.means.shape == (2, 3, 2)


# --- the evidence ------------------------------------------------------------------------------


def prior_moments(model, data, targets):
    own = [np.stack([model.kernel(data.x)] * 2)]
    zero = np.zeros((2, 2))
    return Moments.of(
        targets.offsets, np.zeros((len(data.x), 2)), own, zero, np.full((2, 2), model.eta)
    )


def one_sequence(m=None):
    return problem(lengths=(2,), m=m, seed=4, kernel=Scaled(RBF(1.0), 1.5), eta=1.0, nugget=0.0)


@pytest.mark.parametrize("m", [1, None])
def test_the_bound_is_never_above_the_evidence(m):
    model, data, targets = one_sequence(m)
    evidence = log_evidence(prior_moments(model, data, targets), targets)
    bounds = []
    for k, seed in ((1, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (3, 6)):
        q = gaussians(k, model.size, seed)
        bounds.append(exact_elbo(q, model, data, targets, np.ones(1)))
    prior = Gaussians.prior(1, model.size, 2, 1.0, np.random.default_rng(0))
    bounds.append(exact_elbo(prior, model, data, targets, np.ones(1)))
    assert max(bounds) < evidence
    assert evidence < 0.0


def run(model=MODEL, data=DATA, targets=TARGETS, weights=WEIGHTS, **wanted):
    chosen = {"tol": NEVER, "learn_kernel": False} | wanted
    likelihood = chosen.pop("likelihood", CHAIN)
    problem = InducingProblem(model, data, targets, weights, likelihood)
    return StochasticVariational(**chosen).fit(problem)


def without_noise(model, data, targets):
    """The best bound of a Gaussian, by natural gradients of exact expectations."""
    q = Gaussians.prior(1, model.size, 2, model.eta, np.random.default_rng(0))
    steps, batch = Natural(2, model.size), model.lay_out(data)
    for _ in range(80):
        found = exact(moments_of(q, batch, 0)[0], targets, np.ones(1))
        covariances = np.stack(
            [batch.phi.T @ found.covariances[0][j] @ batch.phi for j in range(2)]
        )
        means, roots = steps.step(q, (batch.phi.T @ found.means)[None], covariances[None], 0.2)
        table, variances = natural_steps(q, model.eta, found.steps, found.step_variances, 0.2)
        q = Gaussians(q.logits, means, roots, table, variances)
    return exact_elbo(q, model, data, targets, np.ones(1))


@pytest.mark.parametrize("natural", [True, False])
def test_a_fit_comes_close_to_the_evidence(natural):
    model, data, targets = one_sequence()
    evidence = log_evidence(prior_moments(model, data, targets), targets)
    best = without_noise(model, data, targets)
    given = {"max_iter": 60, "n_mc": 20} if natural else {"max_iter": 400, "n_mc": 4}
    result = run(model, data, targets, np.ones(1), natural=natural, learning_rate=0.02, **given)
    bound = exact_elbo(result.q, model, data, targets, np.ones(1))
    prior = Gaussians.prior(1, model.size, 2, 1.0, np.random.default_rng(0))
    assert exact_elbo(prior, model, data, targets, np.ones(1)) < evidence - 0.3
    assert evidence - 0.1 < best < evidence
    assert best - 0.03 < bound < best + 1e-6


def test_the_bound_of_longer_sequences_is_below_the_evidence_and_close():
    """The evidence by draws from the prior, at three tokens and two, transitions between them."""
    rng = np.random.default_rng(5)
    offsets = np.array([0, 3, 5])
    x = rng.normal(size=(5, 2))
    targets = Targets(np.array([0, 1, 1, 0, 0], np.int32), None, offsets)
    model, data = Inducing(2, RBF(0.8), x, 1.0), Sequences(x, offsets)
    n = 200_000
    f = np.einsum("ab,kbs->kas", model.root, rng.normal(size=(n, 5, 2)))
    t = rng.normal(size=(n, 2, 2))
    box = BlackBox(chain_values).bound(targets, np.ones(2))
    p = np.exp(box.values(f, t).sum(axis=1))
    evidence, error = np.log(p.mean()), p.std() / np.sqrt(n) / p.mean()
    assert error < 0.01
    q = run(model, data, targets, np.ones(2), max_iter=40, n_mc=20).q
    wanted = settings(gradient="score", natural=False, n_mc=20_000, learn_kernel=False)
    bound = elbo(q, model, model.lay_out(data), box, wanted, rng).value
    assert evidence - 0.25 < bound < evidence + 4 * error


# --- steps -------------------------------------------------------------------------------------


def far_apart(wanted, n=200):
    """The final ELBO of make_galaxy(8), by many draws."""
    X, y = sf.make_galaxy(8, random_state=0)
    data = Sequences(np.vstack(X), offsets_of([len(x) for x in X]))
    codes = np.concatenate(y)
    targets = Targets((codes == codes.max()).astype(np.int32), None, data.offsets)
    model = Inducing(2, RBF(0.35), data.x[::5], 1.0)
    result = run(model, data, targets, np.ones(8), **wanted)
    fitted = result
    bound = CHAIN.bound(targets, np.ones(8))
    chosen = settings(natural=False, n_mc=n, learn_kernel=False)
    batch = model.lay_out(data)
    return elbo(fitted.q, model, batch, bound, chosen, np.random.default_rng(9)).value


def test_natural_gradients_and_adam_end_at_the_same_bound():
    natural = far_apart({"natural": True, "max_iter": 40})
    adam = far_apart({"natural": False, "max_iter": 250, "learning_rate": 0.05, "n_mc": 4})
    assert natural == pytest.approx(adam, abs=2.5)
    assert natural > -70.0


def coupled(strength, size=3, n=4, seed=0):
    """A quadratic log-likelihood of one sequence that all labels and transitions share: each of
    them alone explains it. Its bound, data, and exact expectation up to a constant."""
    rng = np.random.default_rng(seed)
    share = np.sign(rng.normal(size=2 * n + 4))
    precision = strength * np.outer(share, share) + 0.1 * np.eye(len(share))
    top = rng.normal(size=len(share))

    def gradient(f, t):
        away = np.concatenate([f.ravel(), t.ravel()]) - top
        slope = -precision @ away
        return (
            np.array([0.5 * away @ slope]),
            slope[: 2 * n].reshape(n, 2),
            slope[2 * n :].reshape(2, 2),
        )

    def curvature(f, t, rng):
        rows = [np.arange(n) * 2 + j for j in range(2)]
        nodes = np.stack([precision[np.ix_(own, own)] for own in rows])
        return [nodes], np.diagonal(precision)[2 * n :].reshape(2, 2)

    model = Inducing(2, RBF(1.0), rng.normal(size=(size, 2)), ETA)
    batch = model.lay_out(Sequences(rng.normal(size=(n, 2))))

    def by_means(q):
        """The ELBO as a function of the means alone."""
        value = gradient(batch.phi @ q.means[0], q.steps)[0][0]
        return value - 0.5 * (np.vdot(q.means, q.means) + np.vdot(q.steps, q.steps) / ETA)

    def values(f, t):
        return np.stack([gradient(*one)[0] for one in zip(f, t, strict=True)])

    bound = Bound(values, gradient, curvature)
    return model, batch, bound, by_means


@pytest.mark.parametrize("strength", [0.0, 0.3, 30.0])
def test_a_step_of_natural_gradient_is_as_long_as_the_elbo_says(strength):
    """Labels and transitions that are moved each as if the others stood still go too far."""
    model, batch, bound, value = coupled(strength)
    rng = np.random.default_rng(0)
    q = gaussians()
    found = elbo(q, model, batch, bound, settings(n_mc=2), rng)
    state = _State(settings(), model, rng)
    state.q, state.n_steps = q, 2
    kept = Natural(2, 3)
    kept.precisions = np.stack([np.linalg.inv(root @ root.T) for root in q.roots[0]])
    state._naturals.precisions = kept.precisions.copy()
    means, _ = kept.step(q, found.means, found.covariances, 0.5)
    steps, _ = natural_steps(q, ETA, found.steps, found.step_variances, 0.5)
    d_means, d_steps = means - q.means, steps - q.steps

    def along(part):
        return value(q._replace(means=q.means + part * d_means, steps=q.steps + part * d_steps))

    # the peak of a parabola through three points
    down, mid, up = along(-1.0), along(0.0), along(1.0)
    want = 0.5 * (down - up) / (down - 2.0 * mid + up)
    got = state._peak(batch, bound, found, d_means, d_steps)
    assert got == pytest.approx(want, rel=1e-6)
    if strength == 30.0:
        assert along(1.0) < along(0.0) - 1.0
    # alone they would be in place after two steps of a half
    assert (got > 1.5) == (strength == 0.0)
    state._natural(batch, bound, found, 1.0)
    part = min(1.0, 0.5 * want)
    np.testing.assert_allclose(state.q.means, q.means + part * d_means, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(state.q.steps, q.steps + part * d_steps, rtol=1e-6, atol=1e-9)
    assert value(state.q) > value(q)


def test_steps_that_share_everything_settle():
    """At the one maximum, which the ELBO never falls on the way to."""
    model, batch, bound, value = coupled(30.0)
    state = _State(settings(n_mc=2), model, np.random.default_rng(0))
    state.q = gaussians()
    state._naturals.precisions = np.stack(
        [np.linalg.inv(root @ root.T) for root in state.q.roots[0]]
    )
    values = [value(state.q)]
    for _ in range(400):
        found = elbo(state.q, model, batch, bound, state.settings, state.rng)
        state.n_steps = 2  # a rate that does not fall
        state._natural(batch, bound, found, 1.0)
        values.append(value(state.q))
    assert np.diff(values).min() > -1e-9 * abs(values[0])
    # the maximum, from the derivatives of a quadratic at zero and at each unit vector
    size = state.q.means.size

    def slope(x):
        q = state.q._replace(means=x[:size].reshape(1, 3, 2), steps=x[size:].reshape(2, 2))
        _, d_f, d_t = bound.gradient(batch.phi @ q.means[0], q.steps)
        by_means = batch.phi.T @ d_f - q.means[0]
        return np.concatenate([by_means.ravel(), (d_t - q.steps / ETA).ravel()])

    first = slope(np.zeros(size + 4))
    second = np.stack([slope(one) - first for one in np.eye(size + 4)])
    best = np.linalg.solve(-second, first)
    top = value(
        state.q._replace(means=best[:size].reshape(1, 3, 2), steps=best[size:].reshape(2, 2))
    )
    assert top - values[0] > 50.0
    assert top - 0.05 < values[-1] < top


def test_the_first_step_of_adam_goes_uphill_everywhere(monkeypatch):
    """By its rate in every coordinate, or by a factor where it goes by logarithms."""
    rate, seen = 1e-3, []
    state = _State(settings(natural=False, n_components=2, learning_rate=rate), MODEL, np.random)
    state.q = before = gaussians(2)
    monkeypatch.setattr(
        _elbo, "by_reparameterisation", lambda moments, *_: exact(moments, TARGETS, WEIGHTS)
    )
    state.settings = settings(natural=False, n_components=2, learning_rate=rate)
    given = InducingProblem(MODEL, DATA, TARGETS, WEIGHTS, CHAIN)
    state.step(given, np.arange(4), 4)
    after = state.q
    assert state.elbos == [pytest.approx(exact_elbo(before), rel=1e-8)]
    for name in ("means", "steps", "logits"):
        part = getattr(before, name)
        change = getattr(after, name) - part
        np.testing.assert_allclose(np.abs(change), rate, rtol=1e-4)
        for place in [(0,) * part.ndim, (1,) * part.ndim]:
            slope = extrapolated(
                lambda h, n=name, v=part, at=place: exact_elbo(
                    before._replace(**{n: moved(v, at, h)})
                )
            )
            assert np.sign(change[place]) == np.sign(slope), (name, place)
            seen.append(slope)
    change = np.log(after.step_variances / before.step_variances)
    np.testing.assert_allclose(np.abs(change), rate, rtol=1e-4)
    v = before.step_variances
    slope = extrapolated(lambda h: exact_elbo(before._replace(step_variances=moved(v, (0, 1), h))))
    assert np.sign(change[0, 1]) == np.sign(slope)
    diagonal = np.log(np.einsum("ksmm->ksm", after.roots) / np.einsum("ksmm->ksm", before.roots))
    np.testing.assert_allclose(np.abs(diagonal), rate, rtol=1e-4)
    change = after.roots - before.roots
    for place in ((0, 0, 1, 1), (1, 1, 2, 0), (0, 1, 2, 1)):
        slope = extrapolated(
            lambda h, at=place: exact_elbo(before._replace(roots=moved(before.roots, at, h)))
        )
        assert np.sign(change[place]) == np.sign(slope), place
    np.testing.assert_array_equal(np.triu(after.roots, 1), 0.0)
    assert exact_elbo(after) > exact_elbo(before)
    # the prior waits for the second step
    assert state.architecture is MODEL
    state.step(given, np.arange(4), 4)
    assert state.architecture is not MODEL
    change = state.architecture.kernel.log_parameters - KERNEL.log_parameters
    np.testing.assert_allclose(np.abs(change), rate, rtol=1e-4)


def test_adam_is_that_of_kingma_and_ba():
    rng = np.random.default_rng(0)
    adam, m, v = Adam((3,)), np.zeros(3), np.zeros(3)
    for t in range(1, 8):
        g = rng.normal(size=3)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        want = 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(adam.step(g, 0.05), want, rtol=1e-10)


class Recorder:
    """A likelihood that remembers of which sequences it was asked, and their weights."""

    differentiable, bends = True, CHAIN.bends

    def __init__(self):
        self.asked = []

    def bound(self, targets, weights):
        self.asked.append((targets.codes.tolist(), weights.tolist()))
        return CHAIN.bound(targets, weights)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_every_sequence_is_in_one_batch_of_an_epoch(size):
    """With weights that make up for the others."""
    recorder, own = Recorder(), np.array([1.0, 0.5, 2.0, 1.25])
    result = run(weights=own, likelihood=recorder, batch_size=size, max_iter=3, n_mc=2)
    n_batches = len(recorder.asked) // 3
    assert n_batches == -(-4 // size)
    orders = []
    for epoch in range(3):
        seen = []
        for codes, weights in recorder.asked[epoch * n_batches : (epoch + 1) * n_batches]:
            assert len(weights) <= size
            # weights are all different: they tell which sequences these are
            inside = [own.tolist().index(w * len(weights) / 4) for w in weights]
            assert codes == TARGETS[np.array(inside)].codes.tolist()
            seen += inside
        assert sorted(seen) == [0, 1, 2, 3]
        orders.append(seen)
    assert len(result.elbos) == 3 * n_batches
    if size == 1:
        assert len({tuple(order) for order in orders}) > 1


def test_results_depend_on_the_seed_alone():
    for wanted in ({"batch_size": 2}, {"natural": False, "n_components": 2}):
        a, b, c = (run(seed=seed, max_iter=4, n_mc=2, **wanted) for seed in (0, 0, 1))
        np.testing.assert_array_equal(a.mean, b.mean)
        np.testing.assert_array_equal(a.elbos, b.elbos)
        assert not np.array_equal(a.elbos, c.elbos)


def test_theta_is_the_posterior_mean():
    found = run(natural=False, n_components=2, max_iter=5, n_mc=2)
    q = found.q
    mean = np.einsum("k,kms->ms", q.weights, q.means)
    np.testing.assert_allclose(found.mean, np.concatenate([mean.ravel(), q.steps.ravel()]))
    assert found.bound == found.elbos[-1]


def test_callbacks_are_told_of_each_epoch_and_may_stop_it():
    seen = []

    def callback(step):
        seen.append((step.iteration, step.value))
        return step.iteration == 3

    problem = InducingProblem(MODEL, DATA, TARGETS, WEIGHTS, CHAIN)
    result = settings(n_mc=2, batch_size=2).fit(problem, callback)
    elbos = result.elbos
    assert [i for i, _ in seen] == [1, 2, 3]
    np.testing.assert_allclose([v for _, v in seen], -elbos.reshape(3, 2).mean(axis=1))
    assert result.n_iter == 3
    assert not result.converged


def test_convergence_is_ten_epochs_without_a_rise():
    watch = _Watch(1e-3)
    assert not any(watch(float(v)) for v in range(-100, -40))
    assert [watch(-40.0) for _ in range(40)].index(True) >= 9
    watch = _Watch(0.1)
    said = [watch(v) for v in [-100.0] * 10 + [-95.0] * 10]
    assert said[:19] == [False] * 19
    assert said[19]
    watch = _Watch(0.01)
    assert not [watch(v) for v in [-100.0] * 10 + [-95.0] * 10][-1]


def test_a_fall_is_no_convergence():
    for falling in (
        -100.0 - np.arange(60.0),
        -np.exp(np.arange(60.0)),
        -((1.0 + np.arange(60)) ** 3),
    ):
        assert stopped_at(falling) is None
    rng = np.random.default_rng(0)
    assert stopped_at(-600 - 2 * np.arange(100.0) + 2 * rng.normal(size=100)) is None


def test_a_fit_that_no_longer_rises_has_converged():
    result = run(max_iter=200, tol=1e-2, n_mc=8)
    assert result.converged
    assert 20 <= result.n_iter < 200
    assert not run(max_iter=19, tol=1e-2, n_mc=2).converged


def test_learned_kernels_and_tokens_raise_the_bound():
    """From a length scale that is too short, or from tokens where no others are."""
    rng = np.random.default_rng(0)
    offsets = offsets_of([5] * 6)
    x = rng.normal(size=(30, 1))
    targets = Targets((x[:, 0] > 0).astype(np.int32), None, offsets)
    data = Sequences(x, offsets)

    def end(scale, z, **wanted):
        model = Inducing(2, RBF(scale), np.array(z)[:, None], 0.0)
        given = {"max_iter": 50, "n_mc": 4, "learning_rate": 0.1} | wanted
        fitted = run(model, data, targets, np.ones(6), **given)
        return fitted.elbos[-20:].mean(), fitted.architecture, model

    spread = np.linspace(-2.0, 2.0, 9)
    fixed, same, model = end(0.15, spread)
    learned, now, _ = end(0.15, spread, learn_kernel=True)
    assert learned > fixed + 2.0
    assert same is model
    assert now.kernel.length_scale > 0.3
    np.testing.assert_array_equal(now.tokens, model.tokens)
    fixed, _, model = end(1.0, [2.5, 3.0])
    learned, now, _ = end(1.0, [2.5, 3.0], learn_inducing=True)
    assert learned > fixed + 2.0
    assert now.kernel.length_scale == 1.0
    assert np.abs(now.tokens).min() < np.abs(model.tokens).min() - 0.3


def test_other_likelihoods():
    wanted = {"max_iter": 25, "n_mc": 8}
    for likelihood, extra in (
        (ChainLikelihood(PiecewiseLoss(), None), {}),
        (BlackBox(chain_values), {"gradient": "score", "natural": False, "n_mc": 60}),
    ):
        given = wanted | {"likelihood": likelihood, "learning_rate": 0.1} | extra
        elbos = run(**given).elbos
        assert np.isfinite(elbos).all()
        assert elbos[-8:].mean() > elbos[:2].mean()


@pytest.mark.parametrize(
    "wanted", [{}, {"natural": False}, {"natural": False, "gradient": "score"}]
)
def test_without_transitions_they_stay_at_zero(wanted):
    model = Inducing(2, KERNEL, MODEL.tokens, 0.0)
    found = run(model, max_iter=4, n_mc=4, **wanted)
    assert not found.q.steps.any()
    assert not found.q.step_variances.any()
    assert np.isfinite(found.elbos).all()
    assert found.q.means.any()


def test_derivatives_that_the_likelihood_has_not_are_named():
    box = BlackBox(chain_values)
    with pytest.raises(CapabilityError, match="with derivatives: use gradient='score'"):
        run(likelihood=box, natural=False)
    with pytest.raises(CapabilityError, match=r"of one sign .*: use natural=False"):
        run(likelihood=box, gradient="score")
    with pytest.raises(CapabilityError, match=r"one component .*: use natural=False"):
        run(n_components=2)


def stopped_at(values, tol=1e-4):
    watch = _Watch(tol)
    return next((k for k, value in enumerate(values, 1) if watch(value)), None)


def test_a_slow_rise_under_noise_goes_on():
    """As of Adam far from its end: each epoch gains a quarter of the noise of one."""
    early = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rising = -600 + np.log1p(np.arange(400)) * 20 + 2 * rng.normal(size=400)
        early += (stopped_at(rising) or 400) < 200
    assert early <= 2


@pytest.mark.parametrize("value", [-6.0, -60.0, -600.0, -6e4])
def test_a_flat_bound_ends_it(value):
    """Whatever it is as a part of noise, where a nat more is all that noise could hide."""
    rng = np.random.default_rng(0)
    ends = [stopped_at(value + rng.normal(size=200), 1e-3) for _ in range(20)]
    assert None not in ends
    assert np.median(ends) <= 40


@pytest.mark.parametrize("tol", [1e-3, 1e-2])
def test_noise_that_could_hide_a_rise_goes_on(tol):
    """As of Adam in its first hundred epochs: of -290 one nat an epoch, under a noise of 30."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert stopped_at(-340 + np.arange(100.0) + 30 * rng.normal(size=100), tol) is None


def test_no_tolerance_is_never_met():
    assert stopped_at(np.full(300, -10.0), 0.0) is None
    assert stopped_at(-10.0 - np.arange(300.0), 0.0) is None
    assert stopped_at(np.full(300, -10.0), 1e-9) == 20


def test_a_kernel_moves_while_its_steps_have_one_sign():
    drift = _Drift(0.1)
    for epoch in range(10):
        drift(np.array([0.0, 0.1 * epoch]))
        assert not drift.moving  # ten epochs are needed to tell
    drift(np.array([0.0, 1.0]))
    assert drift.moving
    for _ in range(10):
        drift(np.array([0.0, 0.9]))
    assert not drift.moving
    # to and fro
    for epoch in range(30):
        drift(np.array([0.0, 0.9 + 0.1 * (epoch % 2)]))
        assert not drift.moving
    none = _Drift(0.1)
    for _ in range(30):
        none(np.zeros(0))
    assert not none.moving


def test_a_fit_ends_once_its_kernel_rests():
    """From a scale so small that the bound has nothing to tell at first."""
    rng = np.random.default_rng(0)
    x, offsets = rng.normal(size=(60, 1)), offsets_of([5] * 12)
    targets = Targets((x[:, 0] > 0).astype(np.int32), None, offsets)
    model = Inducing(2, Scaled(RBF(1.0), 1e-4), np.linspace(-2.0, 2.0, 9)[:, None], 0.0)
    given = {"max_iter": 40, "tol": 0.1, "n_mc": 8, "learning_rate": 0.05}
    problem = model, Sequences(x, offsets), targets, np.ones(12)
    assert run(*problem, **given).converged
    result = run(*problem, learn_kernel=True, **given)
    assert not result.converged
    assert result.moving
    rise = result.architecture.kernel.log_parameters - model.kernel.log_parameters
    assert np.abs(rise).max() > 0.5


# --- labels of which some are missing ----------------------------------------------------------


def all_labellings(scores):
    """Every labelling of one sequence, and its probability."""
    n, s = scores.node.shape
    every = np.array(list(np.ndindex(*[s] * n)))
    path = scores.node[np.arange(n), every].sum(axis=1)
    path += scores.edge[every[:, :-1], every[:, 1:]].sum(axis=1)
    p = np.exp(path - path.max())
    return every, p / p.sum()


def exact_information(scores, allowed):
    """Covariances of means given what is known: of indicators (S, T, T), of transitions (S, S)."""
    every, p = all_labellings(scores)
    n, s = scores.node.shape
    cells = np.where(allowed[np.arange(n), every], -1, every)
    node = (every[:, :, None] == np.arange(s)).astype(float)
    pairs = np.zeros((len(every), s, s))
    for t in range(1, n):
        np.add.at(pairs, (np.arange(len(every)), every[:, t - 1], every[:, t]), 1.0)
    for part in (node, pairs):
        for cell in np.unique(cells, axis=0):
            own = (cells == cell).all(axis=1)
            part[own] = np.tensordot(p[own] / p[own].sum(), part[own], 1)
        part -= np.tensordot(p, part, 1)
    return np.einsum("y,yaj,ybj->jab", p, node, node), np.einsum("y,yij->ij", p, pairs**2)


#: known alone, missing alone, one of two
KNOWLEDGE = {
    "known": [[0], [2], [1], [1]],
    "missing": [[0], [0, 1, 2], [1], [0, 1, 2]],
    "candidates": [[0, 2], [0], [0, 1, 2], [1, 2]],
    "nothing": [[0, 1, 2]] * 4,
}


@pytest.mark.parametrize("name", KNOWLEDGE)
def test_information_equals_enumeration(name):
    allowed = np.array([[k in own for k in range(3)] for own in KNOWLEDGE[name]])
    # a known label would have been told, whichever it is
    allowed[allowed.sum(axis=1) == 1] = False
    rng = np.random.default_rng(0)
    scores = ChainScores(rng.normal(size=(4, 3)), rng.normal(size=(3, 3)))
    want, want_steps = exact_information(scores, allowed)
    found = [information(scores, allowed, np.array([0.7]), rng, 8) for _ in range(600)]
    nodes, steps = np.array([one[0][0] for one in found]), np.array([one[1] for one in found])
    for got, right in ((nodes, 0.7 * want), (steps, 0.7 * want_steps)):
        error = got.std(axis=0, ddof=1) / np.sqrt(len(got))
        assert (np.abs(got.mean(axis=0) - right) <= FAR * error + 1e-12).all()
    assert np.linalg.eigvalsh(nodes).min() > -1e-12
    if name == "nothing":
        assert max(np.abs(nodes).max(), steps.max()) < 1e-20
    if name == "known":
        node, _ = LogLoss().curvature(scores, None, np.array([0.7]), np.random.default_rng(3), 8)
        same, _ = information(scores, allowed, np.array([0.7]), np.random.default_rng(3), 8)
        np.testing.assert_allclose(same[0], node[0], atol=1e-12)


def test_sequences_are_informed_on_by_themselves():
    """Two at once, with weights, under a table of forbidden transitions."""
    rng = np.random.default_rng(1)
    edge = rng.normal(size=(3, 3))
    edge[0, 2] = -np.inf
    node, allowed = rng.normal(size=(5, 3)), np.zeros((5, 3), bool)
    allowed[[1, 3]] = True
    weights = np.array([0.5, 2.0])
    both = ChainScores(node, edge, np.array([0, 3, 5]))
    parts = [
        (w, *exact_information(ChainScores(node[a:b], edge), allowed[a:b]))
        for w, a, b in ((0.5, 0, 3), (2.0, 3, 5))
    ]
    found = [information(both, allowed, weights, rng, 8) for _ in range(600)]
    for i, (w, want, _) in enumerate(parts):
        got = np.array([one[0][i] for one in found])
        error = got.std(axis=0, ddof=1) / np.sqrt(len(got))
        assert (np.abs(got.mean(axis=0) - w * want) <= FAR * error + 1e-12).all()
    got = np.array([one[1] for one in found])
    error = got.std(axis=0, ddof=1) / np.sqrt(len(got))
    want = sum(w * steps for w, _, steps in parts)
    assert (np.abs(got.mean(axis=0) - want) <= FAR * error + 1e-12).all()


def test_which_likelihoods_bend_where_labels_are_missing():
    offsets, codes = np.array([0, 3]), np.array([0, -1, 1], np.int32)
    missing = Targets(codes, np.array([[1, 0, 0], [1, 1, 1], [0, 1, 0]], bool), offsets)
    sets = Targets(codes, np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0]], bool), offsets)
    for loss, bends in ((LogLoss(), (1, 1)), (PiecewiseLoss(), (1, 0)), (MarginalLoss(), (0, 0))):
        for targets, wanted in zip((missing, sets), bends, strict=True):
            found = ChainLikelihood(loss, None).bound(targets, np.ones(1)).curvature
            assert (found is not None) == bool(wanted)


def test_where_no_peak_is_ahead_a_step_goes_all_the_way():
    """Of a log-likelihood that bends upwards more than the prior bends down."""
    model, batch, bound, value = coupled(-30.0)
    rng, q = np.random.default_rng(0), gaussians()
    found = elbo(q, model, batch, bound, settings(n_mc=2, natural=False), rng)
    state = _State(settings(), model, rng)
    state.q, state.n_steps = q, 2
    up = found.means - q.means
    assert state._peak(batch, bound, found, up, np.zeros((2, 2))) == np.inf
    assert state._peak(batch, bound, found, -up, np.zeros((2, 2))) == 0.0
    state._natural(batch, bound, found._replace(covariances=0.0 * found.covariances), 1.0)
    assert value(state.q) > value(q) + 1.0
