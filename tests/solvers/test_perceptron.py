"""The averaged perceptron against one that lists all labellings and keeps all weights."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from seqfield.sequences import offsets_of
from seqfield.solvers.perceptron import Perceptron

from ..support.problems import gold_labels, law, linear_problem, make_goal


def problem(*, scheme=False, edges=False, partly=False, weighted=True, seed=0, n=12, s=3):
    """Whole features and weights in quarters: all sums are exact, and so are ties."""
    rng = np.random.default_rng(seed)
    allowed = law(s) if scheme else None
    offsets = offsets_of(np.append([1, 2, 3, 4], rng.integers(1, 5, n - 4)))
    y = np.concatenate([gold_labels(rng, l, s, allowed) for l in np.diff(offsets)])
    x = rng.integers(0, 3, (len(y), 4)) * (rng.random((len(y), 4)) < 0.4)
    x[np.arange(len(y)), y] += rng.random(len(y)) < 0.7
    mask = np.arange(s) == y[:, None]
    if partly:
        mask[rng.random(len(y)) < 0.3] = True
        mask |= rng.random(mask.shape) < 0.2
    codes = np.where(mask.sum(axis=1) == 1, mask.argmax(axis=1), -1)
    weights = rng.integers(1, 9, n) / 4 if weighted else np.ones(n)
    edge = (rng.random((len(y), 3)) < 0.5).astype(float) if edges else None
    return make_goal(
        x.astype(float), offsets, codes, s, allowed, weights, True, mask if partly else None, edge
    )


def listed(goal):
    """Of each sequence all labellings in the order of ties, their features, what is lawful."""
    a, s = goal.architecture, goal.architecture.n_labels
    x = goal.data.x.toarray()
    feature, label = a.node.names()
    mask = goal.targets.mask(s)
    out = []
    for first, end in zip(goal.data.offsets[:-1], goal.data.offsets[1:], strict=True):
        # ties go to the first label at the last token, then at the one before
        rows = [row[::-1] for row in product(range(s), repeat=int(end - first))]
        features, lawful, fits = [], [], []
        for row in rows:
            phi = np.zeros(a.n_parameters)
            for t, j in enumerate(row):
                on = label == j
                phi[: len(label)][on] += x[first + t, feature[on]]
                if t == 0:
                    continue
                pair = row[t - 1] * s + j
                phi[len(label) : len(label) + len(a.pairs)] += a.pairs == pair
                if a.edge is not None:
                    edge_feature, column = a.edge.names()
                    values = goal.data.edge.toarray()[first + t]
                    phi[len(label) + len(a.pairs) :] += (column == pair) * values[edge_feature]
            features.append(phi)
            total, c = 0.0, goal.constraint
            if c is not None:
                total = c.start[row[0]] + c.end[row[-1]]
                total += sum(c.pairs[i, j] for i, j in zip(row[:-1], row[1:], strict=True))
            lawful.append(total == 0.0)
            fits.append(all(mask[first + t, j] for t, j in enumerate(row)))
        out.append((np.array(rows), np.array(features), np.array(lawful), np.array(fits)))
    return out


def plain(goal, epochs, seed=0, start=None):
    """Last weights, mean over all weights there ever were, and mistakes of each epoch."""
    sequences = listed(goal)
    theta = np.zeros(goal.architecture.n_parameters) if start is None else start.copy()
    rng, history, mistakes = np.random.default_rng(seed), [theta.copy()], []
    for _ in range(epochs):
        mistakes.append(0)
        for i in rng.permutation(len(sequences)):
            rows, features, lawful, fits = sequences[i]
            scores = features @ theta
            best = np.argmax(np.where(lawful, scores, -np.inf))
            known = np.argmax(np.where(lawful & fits, scores, -np.inf))
            mistakes[-1] += int((rows[best] != rows[known]).sum())
            theta = theta + goal.weights[i] * (features[known] - features[best])
            history.append(theta)
        if mistakes[-1] == 0:
            break
    return theta, np.mean(history, axis=0), mistakes


CASES = {
    "plain": {},
    "one weight": {"weighted": False},
    "scheme": {"scheme": True},
    "edges": {"edges": True},
    "partly known": {"partly": True},
    "all at once": {"scheme": True, "edges": True, "partly": True},
    "four labels": {"s": 4, "edges": True},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_the_plain_perceptron(name, seed):
    goal = problem(**CASES[name], seed=seed)
    for epochs in (1, 2, 5):
        last, mean, mistakes = plain(goal, epochs, seed)
        got = Perceptron(epochs, average=False, seed=seed).minimise(
            linear_problem(goal), goal.start()
        )
        np.testing.assert_allclose(got.theta, last, rtol=1e-12, atol=1e-12)
        averaged = Perceptron(epochs, seed=seed).minimise(linear_problem(goal), goal.start())
        np.testing.assert_allclose(averaged.theta, mean, rtol=1e-12, atol=1e-12)
        assert np.abs(mean - last).max() > 0.01
        assert averaged.n_iter == got.n_iter == len(mistakes)
        assert averaged.value == got.value == mistakes[-1] / goal.data.n_tokens
        assert averaged.converged
        assert averaged.gradient is None


def test_the_order_comes_from_the_seed():
    goal = problem()
    a, b, c = (
        Perceptron(3, seed=k).minimise(linear_problem(goal), goal.start()).theta for k in (0, 0, 1)
    )
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_it_starts_anywhere_and_leaves_its_start_alone():
    goal = problem(edges=True)
    begin = np.random.default_rng(0).integers(-4, 5, len(goal.start())) / 4
    copy = begin.copy()
    last, mean, _ = plain(goal, 3, start=begin)
    got = Perceptron(3).minimise(linear_problem(goal), begin)
    np.testing.assert_array_equal(begin, copy)
    np.testing.assert_allclose(got.theta, mean, rtol=1e-12, atol=1e-12)
    got = Perceptron(3, average=False).minimise(linear_problem(goal), begin)
    np.testing.assert_allclose(got.theta, last, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(begin, copy)


@pytest.mark.parametrize("average", [True, False])
def test_it_ends_with_the_first_epoch_without_a_mistake(average):
    y = problem(n=20).targets
    goal = make_goal(np.eye(4)[y.codes], y.offsets, y.codes, 3)  # features tell the label
    values = []
    result = Perceptron(1000, average).minimise(
        linear_problem(goal), goal.start(), lambda step: values.append(step.value)
    )
    assert result.n_iter == len(values) < 20
    assert values[-1] == result.value == 0.0
    assert min(values[:-1]) > 0.0
    _, _, mistakes = plain(goal, 1000)
    np.testing.assert_allclose(values, np.array(mistakes) / goal.data.n_tokens)


def test_callback_sees_the_averaged_weights_and_stops():
    goal = problem()
    seen = []

    def callback(step):
        seen.append((step.iteration, step.theta.copy()))
        return step.iteration == 3

    result = Perceptron(10).minimise(linear_problem(goal), goal.start(), callback)
    assert [k for k, _ in seen] == [1, 2, 3]
    for epochs, theta in seen:
        np.testing.assert_allclose(theta, plain(goal, epochs)[1], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(result.theta, seen[-1][1])
    assert result.n_iter == 3
