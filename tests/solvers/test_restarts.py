"""Perturbed restarts on functions with valleys."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.solvers._base import Minimum, Step
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.restarts import Restarts


class Valleys:
    """sum (x^2 - 1)^2 + tilt x: a valley near -1 that is deeper than the one near 1, for each x."""

    def __init__(self, n=1, tilt=0.3):
        self.n, self.tilt = n, tilt

    def value_and_grad(self, x):
        value = ((x**2 - 1) ** 2 + self.tilt * x).sum()
        return float(value), 4 * x * (x**2 - 1) + self.tilt

    def gap(self, x, gradient):
        return np.inf

    def dual(self, x):
        return x


SHALLOW = 0.9  # a start in the shallower valley


def test_a_restart_leaves_a_valley():
    goal = Valleys()
    alone = LBFGS(tol=1e-10).minimise(goal, np.array([SHALLOW]))
    assert alone.theta[0] > 0
    left = 0
    for seed in range(10):
        found = Restarts(LBFGS(tol=1e-10), 1, 3.0, seed).minimise(goal, np.array([SHALLOW]))
        assert found.n_iter > alone.n_iter
        left += found.theta[0] < 0 and found.value < alone.value - 0.5
    assert 1 <= left < 10


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 10.0])
def test_never_worse_than_the_first_run(scale):
    helped = 0
    for seed in range(20):
        begin = np.random.default_rng(100 + seed).normal(size=4)
        goal = Valleys(4)
        first = LBFGS(tol=1e-8).minimise(goal, begin)
        again = Restarts(LBFGS(tol=1e-8), n=3, scale=scale, seed=seed).minimise(goal, begin)
        assert again.value <= first.value
        assert again.value == pytest.approx(goal.value_and_grad(again.theta)[0], rel=1e-12)
        np.testing.assert_allclose(again.gradient, goal.value_and_grad(again.theta)[1])
        helped += again.value < first.value - 0.1
    if scale >= 1.0:
        assert helped > 3
    if scale <= 0.01:
        assert helped == 0


def test_no_restart_is_the_inner_optimiser():
    goal, begin = Valleys(3), np.array([0.5, -0.2, 2.0])
    a, b = LBFGS().minimise(goal, begin), Restarts(LBFGS(), n=0).minimise(goal, begin)
    np.testing.assert_array_equal(a.theta, b.theta)
    assert (a.value, a.n_iter, a.converged) == (b.value, b.n_iter, b.converged)


class Scripted:
    """An inner optimiser whose runs end at given values."""

    tol, max_iter = 0.01, 7

    def __init__(self, *values):
        self.values, self.starts = list(values), []

    def minimise(self, objective, theta, callback=None):
        value = self.values[len(self.starts)]
        self.starts.append(theta.copy())
        steps = 0
        for steps in (1, 2):
            if callback is not None and callback(Step(steps, theta, value)):
                break
        return Minimum(np.full(len(theta), value), value, None, steps, value > 1.0)


def test_it_goes_on_from_the_best_until_there_is_no_gain():
    inner = Scripted(10.0, 8.0, 8.5, 1.0)
    result = Restarts(inner, n=5, scale=1e-3).minimise(None, np.ones(3))
    assert result.value == 8.0
    assert result.converged
    assert result.n_iter == 6
    assert len(inner.starts) == 3
    np.testing.assert_array_equal(inner.starts[0], 1.0)
    np.testing.assert_allclose(inner.starts[1], 10.0, rtol=0.01)
    np.testing.assert_allclose(inner.starts[2], 8.0, rtol=0.01)
    assert len(np.unique(inner.starts[2])) == 3


def test_a_gain_below_the_tolerance_is_kept_and_is_the_last():
    inner = Scripted(10.0, 9.99, 1.0)
    assert Restarts(inner, n=5).minimise(None, np.ones(2)).value == 9.99
    assert len(inner.starts) == 2


def test_at_most_n_restarts():
    inner = Scripted(10.0, 8.0, 6.0, 4.0)
    assert Restarts(inner, n=2).minimise(None, np.ones(2)).value == 6.0
    assert Restarts(inner, n=2).max_iter == 21


def test_iterations_are_counted_through_and_a_callback_stops_all():
    seen = []
    inner = Scripted(10.0, 8.0, 6.0, 4.0)

    def callback(step):
        seen.append(step.iteration)
        return len(seen) == 3

    result = Restarts(inner, n=3).minimise(None, np.ones(2), callback)
    assert seen == [1, 2, 3]
    assert len(inner.starts) == 2
    assert result.n_iter == 3


def test_weights_at_zero_stay_there():
    """A weight that an L1 penalty has put to zero is not perturbed."""
    inner = Scripted(10.0, 8.0, 8.0)
    plain = inner.minimise

    def minimise(objective, theta, callback=None):
        result = plain(objective, theta, callback)
        return result._replace(theta=result.theta * [1.0, 0.0, 1.0])

    inner.minimise = minimise
    Restarts(inner, n=2).minimise(None, np.ones(3))
    assert inner.starts[1][1] == inner.starts[2][1] == 0.0
    assert inner.starts[1][0] != 10.0


def test_the_seed_decides():
    goal, begin = Valleys(4), np.ones(4)
    a, b, c = (Restarts(LBFGS(), n=3, scale=2.0, seed=k).minimise(goal, begin) for k in (0, 0, 5))
    np.testing.assert_array_equal(a.theta, b.theta)
    assert not np.array_equal(a.theta, c.theta)
