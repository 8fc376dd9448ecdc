"""The kernel architectures against the linear one, each other and differences."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.architectures.kernel import Gram
from seqfield.architectures.linear import Linear
from seqfield.architectures.rooted import Rooted
from seqfield.errors import InputError
from seqfield.labels import LabelSet
from seqfield.linalg.factor import eigen_factor
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers.lbfgs import LBFGS

LOSSES = {"log": LogLoss(), "softmax margin": LogLoss(2.5), "marginal": MarginalLoss()}


def problem(seed=0, n=12, s=3, width=5):
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 6, n))
    y = rng.integers(s, size=offsets[-1])
    x = rng.normal(size=(offsets[-1], width))
    x[np.arange(len(y)), y] += 1.0
    rows = [part.tolist() for part in np.split(y, offsets[1:-1])]
    return x, offsets, LabelSet(range(s)).encode(rows), rng.uniform(0.5, 2.0, n)


def goal(architecture, rows, loss, offsets, targets, weights, c2=0.3):
    return Objective(
        architecture, loss, ElasticNet(0.0, c2), Sequences(rows, offsets), targets, weights, None, 1
    )


def rooted(root, eta=1.0):
    return Rooted(3, root, eta)


def in_gram(gram, eta=1.0):
    return Gram(3, len(gram), lambda v: gram @ v, eta)


def numbers(offsets):
    return np.arange(offsets[-1], dtype=float)[:, None]


def rbf(x):
    return np.exp(-0.3 * ((x[:, None] - x) ** 2).sum(-1))


@pytest.mark.parametrize("loss", ["log", "softmax margin"])
def test_linear_kernel_is_the_linear_model(loss):
    x, offsets, targets, weights = problem()
    root, dual = eigen_factor(x @ x.T)
    assert root.shape[1] == x.shape[1]
    linear = Linear.build(Sequences(x, offsets), targets, 3, observed=False)
    whitened, plain = rooted(root), in_gram(x @ x.T)
    tight = LBFGS(max_iter=5000, tol=1e-14)
    goals = (
        goal(linear, x, LOSSES[loss], offsets, targets, weights),
        goal(whitened, numbers(offsets), LOSSES[loss], offsets, targets, weights),
        goal(plain, numbers(offsets), LOSSES[loss], offsets, targets, weights),
    )
    a, b, c = (tight.minimise(g, np.zeros(g.architecture.n_parameters)) for g in goals)
    want = linear.score(a.theta, Sequences(x, offsets))
    for found, node, edge in ((b, *whitened.lift(b.theta)), (c, *plain.lift(c.theta))):
        assert found.value == pytest.approx(a.value, rel=1e-8)
        np.testing.assert_allclose(node, want.node, atol=1e-6)
        np.testing.assert_allclose(edge, want.edge, atol=1e-6)
    # scores by the gram matrix: F = G A
    coefficients = dual @ b.theta[: root.shape[1] * 3].reshape(-1, 3)
    np.testing.assert_allclose(x @ x.T @ coefficients, whitened.lift(b.theta).table, atol=1e-9)
    np.testing.assert_allclose(x @ x.T @ plain.coefficients(c.theta), want.node, atol=1e-6)


def test_both_take_the_same_steps():
    """Descent in the function space is descent in whitened coordinates."""
    x, offsets, targets, weights = problem(seed=4, n=40)
    gram = rbf(x)
    root, _ = eigen_factor(gram)
    pair = (
        goal(rooted(root, 0.5), numbers(offsets), LogLoss(), offsets, targets, weights),
        goal(in_gram(gram, 0.5), numbers(offsets), LogLoss(), offsets, targets, weights),
    )
    paths = []
    for one in pair:
        steps = []
        LBFGS(max_iter=8, tol=0.0).minimise(
            one,
            np.zeros(one.architecture.n_parameters),
            lambda step, into=steps: into.append(step.value) or False,
        )
        paths.append(steps)
    assert len(paths[0]) == 8
    np.testing.assert_allclose(paths[1], paths[0], rtol=1e-9)
    zeros = [np.zeros(one.architecture.n_parameters) for one in pair]
    gaps = [one.gap(z, one.value_and_grad(z)[1]) for one, z in zip(pair, zeros, strict=True)]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("eta", [0.0, 0.25, 4.0])
def test_gradient(loss, eta):
    x, offsets, targets, weights = problem(seed=1)
    root, _ = eigen_factor(rbf(x))
    one = goal(rooted(root, eta), numbers(offsets), LOSSES[loss], offsets, targets, weights)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=one.architecture.n_parameters)
    _, gradient = one.value_and_grad(theta)
    for k in rng.choice(len(theta), 12, replace=False):
        step = np.zeros_like(theta)
        step[k] = 1e-5
        slope = (one.value(theta + step) - one.value(theta - step)) / 2e-5
        assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def function(architecture, gram, rng):
    """A random function as the gram architecture's theta, with F = G A."""
    a = rng.normal(size=(len(gram), 3))
    b = rng.normal(size=architecture.n_parameters - 2 * a.size)
    return np.concatenate([a.ravel(), (gram @ a).ravel(), b])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("eta", [0.0, 0.25, 4.0])
def test_gradient_in_the_function_space(loss, eta):
    """The derivative along any function is its inner product with the gradient."""
    x, offsets, targets, weights = problem(seed=1)
    gram = rbf(x)
    one = goal(in_gram(gram, eta), numbers(offsets), LOSSES[loss], offsets, targets, weights)
    rng = np.random.default_rng(0)
    theta = function(one.architecture, gram, rng)
    _, gradient = one.value_and_grad(theta)
    half = gram.shape[0] * 3
    want = gram @ gradient[:half].reshape(-1, 3)
    np.testing.assert_allclose(gradient[half : 2 * half].reshape(-1, 3), want, rtol=1e-9)
    for _ in range(5):
        v = function(one.architecture, gram, rng)
        slope = (one.value(theta + 1e-5 * v) - one.value(theta - 1e-5 * v)) / 2e-5
        assert v @ one.dual(gradient) == pytest.approx(slope, rel=1e-6)


def test_equal_tokens_share_a_row():
    x, offsets, targets, weights = problem(seed=5)
    x = x.round()
    kept, inverse = np.unique(x, axis=0, return_inverse=True)
    assert len(kept) < len(x)
    tight = LBFGS(max_iter=2000, tol=1e-14)
    every = goal(in_gram(rbf(x)), numbers(offsets), LogLoss(), offsets, targets, weights)
    few = goal(
        in_gram(rbf(kept)), inverse[:, None].astype(float), LogLoss(), offsets, targets, weights
    )
    a, b = (tight.minimise(g, np.zeros(g.architecture.n_parameters)) for g in (every, few))
    assert a.value == pytest.approx(b.value, rel=1e-10)
    np.testing.assert_allclose(
        few.architecture.lift(b.theta).table[inverse],
        every.architecture.lift(a.theta).table,
        atol=1e-6,
    )


def test_norm_is_that_of_the_function_space():
    """|theta|^2 = tr(A' G A) + eta |B|^2, and T = eta B."""
    x, *_ = problem(seed=2)
    gram = (1 + x @ x.T) ** 2
    root, dual = eigen_factor(gram)
    rng = np.random.default_rng(3)
    whitened = rooted(root, 0.5)
    theta = rng.normal(size=whitened.n_parameters)
    a = dual @ theta[: root.shape[1] * 3].reshape(-1, 3)
    b = whitened.lift(theta).transitions / 0.5
    norm = np.trace(a.T @ gram @ a) + 0.5 * (b**2).sum()
    assert theta @ theta == pytest.approx(norm, rel=1e-9)
    plain = in_gram(gram, 0.5)
    same = np.concatenate([a.ravel(), (gram @ a).ravel(), np.sqrt(0.5) * b.ravel()])
    assert same @ plain.dual(same) == pytest.approx(norm, rel=1e-9)
    np.testing.assert_allclose(plain.lift(same).transitions, 0.5 * b, rtol=1e-12)


def test_what_is_no_gram_matrix_is_refused():
    for bad in (np.diag([1.0, -1.0]), np.zeros((2, 2))):
        with pytest.raises(InputError, match="positive semi-definite"):
            eigen_factor(bad)
