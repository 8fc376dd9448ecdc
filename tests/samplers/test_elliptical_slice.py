"""The compiled search along an ellipse against a plain one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqfield.architectures.rooted import Rooted
from seqfield.chain import _numba_total
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.labels import LabelSet
from seqfield.objectives.problems import WhitenedProblem
from seqfield.samplers.elliptical_slice import Likelihood
from seqfield.sequences import Sequences


def test_exp_all_is_the_exponential():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [-np.abs(rng.normal(size=500)) * 200, [0.0, -1e-300, -707.99, -1e4, -np.inf]]
    )
    found, room = x.copy(), np.empty(len(x), np.int64)
    _numba_total.exp_all(found, room)
    np.testing.assert_allclose(found[x >= -708], np.exp(x[x >= -708]), rtol=1e-13)
    assert (found[x < -708] == 0).all()


def problem(*, missing=False, law=False, s=3):
    rng = np.random.default_rng(1)
    offsets = np.array([0, 4, 5, 9])
    y = [rng.integers(s, size=n).tolist() for n in np.diff(offsets)]
    if missing:
        y[0][1], y[2][0] = None, {0, 1}
    targets = LabelSet(range(s)).encode(y, None)
    data = Sequences(rng.integers(6, size=9).astype(float)[:, None], offsets)
    every = np.ones((s, s), bool)
    constraint = Constraint.of(Allowed(every[0], every, every[0])) if law else None
    root = rng.normal(size=(6, 4))
    weights = np.array([1.0, 2.0, 0.5])
    return WhitenedProblem.of(Rooted(s, root, 1.0), data, targets, weights, constraint)


@pytest.mark.parametrize("size", [1.0, 400.0])
@pytest.mark.parametrize("law", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_a_slice_is_the_first_angle_above_the_level(missing, law, size):
    likelihood, rng = Likelihood(problem(missing=missing, law=law)), np.random.default_rng(2)
    looked = []
    for _ in range(20):
        f, g = rng.normal(size=(6, 3)), rng.normal(size=(3, 6)).astype(np.float32)
        steps, other = size * rng.normal(size=(2, 3, 3))
        along, uniforms = likelihood.along(f, g, steps, other), rng.random(100)
        level = along(1.0, 0.0) + math.log(rng.random())
        angle = 2 * math.pi * uniforms[0]
        low, high = angle - 2 * math.pi, angle
        for k in range(1, len(uniforms)):
            if along(math.cos(angle), math.sin(angle)) > level:
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = low + (high - low) * uniforms[k]
        before = likelihood.n_evaluations
        a, b, value = likelihood.slice(f, g, steps, other, level, uniforms)
        looked.append((likelihood.n_evaluations - before, k))
        np.testing.assert_allclose([a, b], [math.cos(angle), math.sin(angle)], atol=1e-9)
        assert value == pytest.approx(along(a, b), rel=1e-10)
        assert value > level
    if size == 1.0:
        assert all(n == k for n, k in looked)
    assert max(k for _, k in looked) > 2


def test_a_slice_that_never_rises_stays():
    likelihood, rng = Likelihood(problem()), np.random.default_rng(2)
    f, g = rng.normal(size=(6, 3)), rng.normal(size=(3, 6)).astype(np.float32)
    steps = rng.normal(size=(2, 3, 3))
    a, b, value = likelihood.slice(f, g, *steps, 1.0, rng.random(100))
    assert (a, b) == (1.0, 0.0)
    assert math.isnan(value)
