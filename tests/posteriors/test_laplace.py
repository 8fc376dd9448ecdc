"""The Laplace approximation against dense algebra, scikit-learn and importance sampling."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from scipy.special import softmax
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.linear_model import LogisticRegression

import seqfield as sf
from seqfield.architectures.kernel import Gram
from seqfield.architectures.linear import Linear
from seqfield.architectures.rooted import Rooted
from seqfield.chain.constraint import Constraint
from seqfield.errors import CapabilityError, InputError
from seqfield.kernels import RBF
from seqfield.labels import Targets
from seqfield.linalg.factor import cholesky_factor
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.posteriors import laplace as _laplace
from seqfield.posteriors.laplace import log_evidence, posterior_samples
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers.newton import NewtonCG

FORMS = ("full", "block")


def goal(x, lengths, y, *, s=2, eta=1.0, c2=1.0, missing=None, c1=0.0, stay=0.0):
    offsets = offsets_of(lengths)
    codes, mask = np.asarray(y, np.int32), None
    if missing is not None:
        mask = (np.arange(s) == codes[:, None]) | missing[:, None]
        codes = np.where(missing, -1, codes).astype(np.int32)
    targets = Targets(codes, mask, offsets)
    architecture = Rooted(s, x, eta)
    data = Sequences(np.arange(len(x), dtype=float)[:, None], offsets)
    prior, ones = ElasticNet(c1, c2), np.ones(len(lengths))
    fixed = Constraint(np.zeros(s), stay * np.eye(s), np.zeros(s)) if stay else None
    return Objective(architecture, LogLoss(), prior, data, targets, ones, fixed, 1)


def fitted(one):
    zero = np.zeros(one.architecture.n_parameters)
    return NewtonCG(tol=1e-13).minimise(one, zero).theta


def small(seed=0, n=8, s=3, **options):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, n)
    y = rng.integers(s, size=lengths.sum())
    x = rng.normal(size=(len(y), 3))
    x[np.arange(len(y)), y] += 1.0
    return goal(x, lengths, y, s=s, **options)


def matrix(one, theta, form):
    return one.curvature(theta, form == "block")(np.eye(len(theta)))


@pytest.mark.parametrize("form", FORMS)
def test_evidence_by_its_formula(form, monkeypatch):
    one = small(c2=0.5)
    theta = fitted(one)
    h = matrix(one, theta, form)
    found = log_evidence(one, theta, covariance=form)
    assert found.log_det == pytest.approx(np.linalg.slogdet(h / 0.5)[1], rel=1e-10)
    assert found.value == pytest.approx(-one.value(theta) - 0.5 * found.log_det, rel=1e-12)
    assert found.error == 0.0
    monkeypatch.setattr(_laplace, "EXACT", 0)
    estimate = log_evidence(one, theta, covariance=form, seed=1)
    assert 0 < estimate.error < 0.6
    assert abs(estimate.value - found.value) < 4 * estimate.error
    assert log_evidence(one, theta, covariance=form, seed=1) == estimate


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exact", [0, 1500])
@pytest.mark.parametrize("unknown", [False, True])
def test_draws_have_the_inverse_as_covariance(form, exact, unknown, monkeypatch):
    monkeypatch.setattr(_laplace, "EXACT", exact)
    missing = np.random.default_rng(2).random(100) < 0.4
    one = small(c2=0.5)
    if unknown:
        one = small(c2=0.5, missing=missing[: one.data.n_tokens])
    theta = fitted(one)
    sigma = np.linalg.inv(matrix(one, theta, form))
    drawn = posterior_samples(one, theta, 800, np.random.default_rng(0), form)
    assert drawn.shape == (800, len(theta))
    centred = drawn - theta
    for v in np.vstack([np.eye(len(theta)), np.random.default_rng(1).normal(size=(8, len(theta)))]):
        along = centred @ v
        want = v @ sigma @ v
        assert abs(along.mean()) < 4 * np.sqrt(want / len(along))
        # the variance of a Gaussian's square is 2 variance^2
        assert abs(along.var() - want) < 4 * want * np.sqrt(2 / len(along))


def importance(one, theta, n=100_000, df=5, seed=0):
    """log p(y) by importance sampling from a Student t around the MAP estimate."""
    h = matrix(one, theta, "full")
    proposal = scipy.stats.multivariate_t(theta, 1.5 * np.linalg.inv(h), df=df, seed=seed)
    draws = proposal.rvs(n)
    # all draws at once: each is one more copy of the data
    x, offsets, c2 = one.architecture.root, one.data.offsets, one.prior.c2
    s = one.architecture.n_labels
    b = draws[:, : x.shape[1] * s].reshape(n, -1, s)
    node = np.einsum("td,kds->kts", x, b)
    steps = np.zeros((n, s, s))
    if one.constraint is not None:
        steps += one.constraint.pairs
    if one.architecture.root_eta > 0:
        steps += (one.architecture.root_eta * draws[:, x.shape[1] * s :]).reshape(n, s, s)
    log_p = np.zeros(n)
    known = np.where(one.targets.mask(s), 0.0, -np.inf)
    for a, e in zip(offsets[:-1], offsets[1:], strict=True):
        for sign, held in ((1.0, known), (-1.0, np.zeros_like(known))):
            message = node[:, a] + held[a]
            for t in range(a + 1, e):
                message = np.logaddexp.reduce(message[:, :, None] + steps, axis=1)
                message = message + node[:, t] + held[t]
            log_p += sign * np.logaddexp.reduce(message, axis=1)
    size = draws.shape[1]
    log_p += 0.5 * size * np.log(c2 / (2 * np.pi)) - 0.5 * c2 * (draws**2).sum(axis=1)
    ratio = log_p - proposal.logpdf(draws)
    high = ratio.max()
    w = np.exp(ratio - high)
    return high + np.log(w.mean()), w.std() / w.mean() / np.sqrt(n)


def coupled(copies=1, c2=0.5, length=8, unknown=0.0):
    """Few tokens whose labels stay: transitions are most of what is to be learned."""
    x = np.tile(np.array([[1.0], [-0.5]]), (length * copies, 1))[: length * copies]
    y = np.tile(np.repeat([0, 1], length // 2), copies)
    missing = np.random.default_rng(0).random(len(y)) < unknown if unknown else None
    return goal(x, [length] * copies, y, c2=c2, eta=1.0, missing=missing)


def staying(stay=2.0, n=8, eta=0.0, missing=None):
    """A sequence with a given score for staying, and a function of the place in it."""
    place = np.arange(n, dtype=float)[:, None]
    root = cholesky_factor(SklearnRBF(3.0)(place)).root
    return goal(root, [n], np.arange(n) >= n // 2, eta=eta, stay=stay, missing=missing)


@pytest.mark.parametrize("eta", [0.0, 0.25])
def test_evidence_against_importance_sampling(eta):
    """Labels that stay vary together: the block form leaves that out, and too little of the
    prior's volume is taken off."""
    one = staying(eta=eta)
    theta = fitted(one)
    truth, error = importance(one, theta)
    assert error < 0.01
    full, block = (log_evidence(one, theta, covariance=form).value for form in FORMS)
    assert -0.2 < full - truth < 0.0  # Laplace's own error
    assert block - truth > 0.2


@pytest.mark.parametrize(
    "make",
    [
        lambda: coupled(1, c2=1.0, unknown=0.5),
        lambda: coupled(12, c2=4.0, unknown=0.5),
        lambda: staying(0.0, eta=0.25, missing=np.array([0, 1, 1, 0, 0, 1, 1, 1], bool)),
    ],
)
def test_evidence_with_labels_missing_against_importance_sampling(make):
    """Tokens that nobody labelled tell less than if they had been."""
    one = make()
    theta = fitted(one)
    truth, error = importance(one, theta)
    assert error < 0.01
    found = log_evidence(one, theta)
    assert not found.fisher
    assert abs(found.value - truth) < 0.06
    # as if all tokens had been looked at: too much of the prior's volume is taken off
    h = one.curvature(theta, fisher=True)(np.eye(len(theta)))
    free = -one.value(theta) - 0.5 * np.linalg.slogdet(h / one.prior.c2)[1]
    assert free < truth - 0.4


@pytest.mark.parametrize("exact", [0, 1500])
@pytest.mark.parametrize("form", FORMS)
def test_without_transitions_a_token_without_a_label_is_no_token(form, exact, monkeypatch):
    monkeypatch.setattr(_laplace, "EXACT", exact)
    rng = np.random.default_rng(0)
    lengths = [1, 4, 5, 3]
    y, x = rng.integers(3, size=13), rng.normal(size=(13, 4))
    missing = np.ones(13, bool)
    missing[np.cumsum([0, *lengths[:-1]])] = False
    part = goal(x, lengths, y, s=3, eta=0.0, missing=missing)
    alone = goal(x[~missing], [1] * 4, y[~missing], s=3, eta=0.0)
    theta = fitted(alone)
    np.testing.assert_allclose(fitted(part), theta, atol=1e-6)
    want = log_evidence(alone, theta, covariance=form)
    assert log_evidence(part, theta, covariance=form).value == pytest.approx(want.value, rel=1e-6)


def test_no_minimum_no_observed_information():
    """Far from a minimum the second derivative has either sign: then what is free of labels is
    used, and told."""
    one = small(c2=0.01, missing=np.arange(100)[: small().data.n_tokens] % 3 > 0)
    theta = 3.0 * np.random.default_rng(0).normal(size=one.architecture.n_parameters)
    assert np.linalg.eigvalsh(matrix(one, theta, "full"))[0] < 0
    assert log_evidence(one, theta).fisher
    assert not log_evidence(one, fitted(one)).fisher


def test_block_evidence_with_learned_transitions():
    """A token's label counts once by itself and once in each pair."""
    one = coupled()
    theta = fitted(one)
    truth, error = importance(one, theta, n=50_000)
    assert error < 0.01
    full, block = (log_evidence(one, theta, covariance=form).value for form in FORMS)
    assert abs(full - truth) < 0.25
    assert abs(block - truth) > 1.5 * abs(full - truth)


@pytest.mark.parametrize(
    "models",
    [
        [lambda: coupled(1), lambda: coupled(12)],
        [lambda: coupled(c2=0.25), lambda: coupled(c2=8.0)],
        [lambda: staying(3.0), lambda: staying(0.0)],
    ],
    ids=["more data", "stronger prior", "weaker coupling"],
)
def test_evidence_comes_to_the_truth(models):
    errors = []
    for make in models:
        one = make()
        theta = fitted(one)
        truth, noise = importance(one, theta, n=50_000)
        assert noise < 0.01
        errors.append(abs(log_evidence(one, theta).value - truth))
    assert errors[1] < 0.07
    assert errors[1] < 0.4 * errors[0]


def single_tokens(s, n=30, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y = (x[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int)
    if s == 3:
        y += x[:, 1] > 0.7
    return x, y


def test_two_labels_and_no_chain_are_a_gaussian_process_classifier():
    x, y = single_tokens(2)
    kernel = 2.0 * SklearnRBF(1.3)
    want = GaussianProcessClassifier(kernel, optimizer=None).fit(x, y)
    root = cholesky_factor(SklearnRBF(1.3)(x)).root
    one = goal(root, [1] * len(y), y, eta=0.0)
    found = log_evidence(one, fitted(one))
    assert found.value == pytest.approx(want.log_marginal_likelihood_value_, rel=1e-5)
    block = log_evidence(one, fitted(one), covariance="block")
    assert block.value == pytest.approx(found.value, rel=1e-10)


def test_no_chain_is_multinomial_kernel_logistic_regression():
    x, y = single_tokens(3)
    root = cholesky_factor(SklearnRBF(1.3)(x)).root
    c2 = 0.2
    one = goal(root, [1] * len(y), y, s=3, eta=0.0, c2=c2)
    table, _ = one.architecture.lift(fitted(one))
    reference = LogisticRegression(C=1 / c2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    want = reference.fit(root, y).predict_proba(root)
    np.testing.assert_allclose(softmax(table, axis=1), want, atol=1e-5)


def test_every_root_of_a_linear_kernel_is_the_linear_model():
    one = small(c2=0.5)
    theta, x, numbers = fitted(one), one.architecture.root, one.data.x
    targets, offsets = one.targets, one.data.offsets
    linear = Linear.build(Sequences(x, offsets), targets, 3, observed=False)
    wide = Rooted(3, np.hstack([x, np.zeros_like(x)]))
    for architecture, rows in ((linear, x), (wide, numbers)):
        data = Sequences(rows, offsets)
        other = Objective(architecture, LogLoss(), one.prior, data, targets, one.weights, None, 1)
        best = fitted(other)
        assert other.value(best) == pytest.approx(one.value(theta), rel=1e-10)
        want = log_evidence(one, theta).value
        assert log_evidence(other, best).value == pytest.approx(want, rel=1e-9)


def test_new_tokens_are_those_of_scikit_learn():
    """Two labels, one token each: what is known of new tokens and what is not."""
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(60, 10)), rng.normal(size=(100, 10))
    y = (x @ rng.normal(size=10) > 0).astype(int)
    scale = 0.3 * np.sqrt(10)
    theirs = GaussianProcessClassifier(50.0 * SklearnRBF(scale), optimizer=None).fit(x, y)
    want = theirs.predict_proba(new)[:, 1]
    for c2 in (1.0, 0.5):  # the prior is the kernel over c2
        model = sf.GPSC(
            25.0 * c2 * RBF(scale),
            c2=c2,
            posterior="laplace",
            transitions=False,
            n_samples=4000,
            tol=1e-10,
            random_state=0,
        )
        model.fit([row[None] for row in x], [[label] for label in y.tolist()])
        found = np.vstack(model.predict_proba([row[None] for row in new]))[:, 1]
        # four standard errors of 4,000 draws; 0.2 without what new tokens leave open
        np.testing.assert_allclose(found, want, atol=4 * 0.5 / np.sqrt(4000))


def test_refusals():
    one = small()
    theta = fitted(one)
    with pytest.raises(InputError, match="full or block"):
        log_evidence(one, theta, covariance="half")
    for bad in (small(c2=0.0), small(c1=0.1)):
        with pytest.raises(CapabilityError, match="Gaussian prior"):
            log_evidence(bad, theta)
    gram = np.eye(one.data.n_tokens)
    other = one.over(Gram(3, len(gram), lambda v: gram @ v), one.prior)
    with pytest.raises(CapabilityError, match="root of the gram"):
        posterior_samples(other, theta, 1, np.random.default_rng(0))
