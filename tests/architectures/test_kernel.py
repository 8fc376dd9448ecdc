"""The kernel architecture against the linear one and against differences."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.architectures.kernel import Kernel
from seqfield.architectures.linear import Linear
from seqfield.errors import InputError
from seqfield.estimators._objective import Objective
from seqfield.labels import LabelSet
from seqfield.linalg.factor import eigen_factor
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.optimisers.lbfgs import LBFGS
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of

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


@pytest.mark.parametrize("loss", ["log", "softmax margin"])
def test_linear_kernel_is_the_linear_model(loss):
    x, offsets, targets, weights = problem()
    factor = eigen_factor(x @ x.T)
    assert factor.root.shape[1] == x.shape[1]
    linear = Linear.build(Sequences(x, offsets), targets, 3, observed=False)
    kernel = Kernel(3, factor)
    tight = LBFGS(max_iter=5000, tol=1e-14)
    goals = (
        goal(linear, x, LOSSES[loss], offsets, targets, weights),
        goal(kernel, factor.root, LOSSES[loss], offsets, targets, weights),
    )
    a, b = (tight.minimise(g, np.zeros(g.architecture.n_parameters)) for g in goals)
    assert a.value == pytest.approx(b.value, rel=1e-8)
    want = linear.score(a.theta, Sequences(x, offsets))
    got = kernel.score(b.theta, Sequences(factor.root, offsets))
    np.testing.assert_allclose(got.node, want.node, atol=1e-6)
    np.testing.assert_allclose(got.edge, want.edge, atol=1e-6)
    # scores by the gram matrix: F = G A
    coefficients, _ = kernel.coefficients(b.theta)
    np.testing.assert_allclose(x @ x.T @ coefficients, got.node, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("eta", [0.0, 0.25, 4.0])
def test_gradient(loss, eta):
    x, offsets, targets, weights = problem(seed=1)
    gram = np.exp(-0.3 * ((x[:, None] - x) ** 2).sum(-1))
    factor = eigen_factor(gram)
    one = goal(Kernel(3, factor, eta), factor.root, LOSSES[loss], offsets, targets, weights)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=one.architecture.n_parameters)
    _, gradient = one.value_and_grad(theta)
    for k in rng.choice(len(theta), 12, replace=False):
        step = np.zeros_like(theta)
        step[k] = 1e-5
        slope = (one.value(theta + step) - one.value(theta - step)) / 2e-5
        assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_norm_is_that_of_the_function_space():
    """|theta|^2 = tr(A' G A) + eta |B|^2."""
    x, *_ = problem(seed=2)
    gram = (1 + x @ x.T) ** 2
    factor = eigen_factor(gram)
    kernel = Kernel(3, factor, eta=0.5)
    theta = np.random.default_rng(3).normal(size=kernel.n_parameters)
    a, b = kernel.coefficients(theta)
    norm = np.trace(a.T @ gram @ a) + 0.5 * (b**2).sum()
    assert theta @ theta == pytest.approx(norm, rel=1e-9)
    np.testing.assert_allclose(kernel.transitions(theta), 0.5 * b, rtol=1e-12)


def test_what_is_no_gram_matrix_is_refused():
    for bad in (np.diag([1.0, -1.0]), np.zeros((2, 2))):
        with pytest.raises(InputError, match="positive semi-definite"):
            eigen_factor(bad)
