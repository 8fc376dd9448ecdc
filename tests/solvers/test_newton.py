"""Newton's method against L-BFGS, on all architectures."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.architectures.kernel import Gram
from seqfield.architectures.linear import Linear
from seqfield.architectures.rooted import Rooted
from seqfield.errors import CapabilityError
from seqfield.labels import LabelSet, Targets
from seqfield.linalg.factor import eigen_factor
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.newton import NewtonCG

TIGHT = 1e-12
LOG = LogLoss()


def problem(kind, seed=0, n=60, s=3, c2=0.05, missing=0.0, loss=LOG, stay=0.0):
    """The same CRF in three coordinates."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 9, n))
    y = rng.integers(s, size=offsets[-1])
    for t in range(1, len(y)):
        if rng.random() < stay:
            y[t] = y[t - 1]
    x = rng.normal(size=(len(y), 6))
    x[np.arange(len(y)), y] += 1.5
    rows = [part.tolist() for part in np.split(y, offsets[1:-1])]
    targets = LabelSet(range(s)).encode(rows)
    if missing:
        mask = np.arange(s) == y[:, None]
        mask[rng.random(len(y)) < missing] = True
        codes = np.where(mask.all(axis=1), -1, y).astype(np.int32)
        targets = Targets(codes, mask, offsets)
    gram = x @ x.T
    root, _ = eigen_factor(gram)
    architecture = {
        "linear": lambda: Linear.build(Sequences(x, offsets), targets, s, observed=False),
        "rooted": lambda: Rooted(s, root),
        "gram": lambda: Gram(s, len(gram), lambda v: gram @ v),
    }[kind]()
    rows = x if kind == "linear" else np.arange(len(y), dtype=float)[:, None]
    data = Sequences(rows, offsets)
    weights = rng.uniform(0.5, 2.0, n)
    return Objective(architecture, loss, ElasticNet(0.0, c2), data, targets, weights, None, 1)


def minimise(optimiser, goal):
    steps = []
    result = optimiser.minimise(
        goal,
        np.zeros(goal.architecture.n_parameters),
        lambda step: steps.append(step.value) or False,
    )
    return result, np.array(steps)


@pytest.mark.parametrize("kind", ["linear", "rooted", "gram"])
@pytest.mark.parametrize("cost", [0.0, 1.0])
def test_same_optimum_as_lbfgs_in_few_iterations(kind, cost):
    goal = problem(kind, loss=LogLoss(cost))
    want, _ = minimise(LBFGS(max_iter=2000, tol=TIGHT), goal)
    found, values = minimise(NewtonCG(tol=TIGHT), goal)
    assert found.converged
    assert found.value == pytest.approx(want.value, rel=1e-11)
    assert goal.gap(found.theta, found.gradient) <= TIGHT * found.value
    assert found.n_iter <= 10
    assert 3 * found.n_iter < want.n_iter
    assert (np.diff(values) < 0).all()
    a, b = (goal.dual(r.theta) for r in (found, want))
    np.testing.assert_allclose(a, b, atol=1e-4)


def test_all_coordinates_take_the_same_steps():
    paths = [minimise(NewtonCG(tol=1e-8), problem(kind))[1] for kind in ("rooted", "gram")]
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-9)


def test_the_end_is_more_than_linear():
    goal = problem("rooted", c2=1.0)
    best = minimise(NewtonCG(tol=1e-15), goal)[0]
    errors = minimise(NewtonCG(tol=TIGHT), goal)[1] - best.value
    errors = errors[errors > 1e-11 * best.value]
    ratios = errors[1:] / errors[:-1]
    assert len(ratios) >= 2
    assert (np.diff(ratios) < 0).all()
    assert ratios[-1] < 0.01


@pytest.mark.parametrize("kind", ["linear", "rooted", "gram"])
def test_missing_labels_and_negative_curvature(kind):
    goal = problem(kind, missing=0.6, seed=3)
    theta = 3.0 * np.random.default_rng(0).normal(size=goal.architecture.n_parameters)
    if kind == "gram":
        theta = goal.value_and_grad(np.zeros_like(theta))[1]
    else:  # far from the optimum the second derivative is indefinite
        h = goal.curvature(theta)(np.eye(len(theta)))
        assert np.linalg.eigvalsh(h)[0] < 0
    start, _ = goal.value_and_grad(theta)
    found = NewtonCG(tol=TIGHT).minimise(goal, theta)
    assert found.value < start
    square = found.gradient @ goal.dual(found.gradient)
    assert square < 1e-8
    from_zero = minimise(NewtonCG(tol=TIGHT), goal)[0]
    want = minimise(LBFGS(max_iter=2000, tol=TIGHT), goal)[0]
    assert from_zero.value == pytest.approx(want.value, rel=1e-8)


def test_block_curvature_is_damped():
    """Strongly coupled labels: the block form is too small along them, yet the value falls."""
    goal = problem("rooted", stay=0.95, n=80, c2=0.3)
    want, _ = minimise(NewtonCG(tol=TIGHT), goal)
    found, values = minimise(NewtonCG(max_iter=500, tol=1e-9, block=True), goal)
    assert found.converged
    assert (np.diff(values) < 0).all()
    assert found.value == pytest.approx(want.value, rel=1e-8)
    assert found.n_iter > want.n_iter


def test_what_is_missing_is_named():
    goal = problem("rooted", loss=MarginalLoss())
    with pytest.raises(CapabilityError, match="MarginalLoss gives no second derivative"):
        goal.curvature(np.zeros(goal.architecture.n_parameters))
    with pytest.raises(CapabilityError, match=r"NewtonCG needs .*second derivatives.*use LogLoss"):
        minimise(NewtonCG(), goal)


def test_limits():
    goal = problem("rooted")
    found, values = minimise(NewtonCG(max_iter=2, tol=TIGHT), goal)
    assert not found.converged
    assert found.n_iter == len(values) == 2
    at_once = NewtonCG().minimise(goal, minimise(NewtonCG(tol=TIGHT), goal)[0].theta)
    assert at_once.n_iter == 0
    stopped = NewtonCG(tol=TIGHT).minimise(
        goal, np.zeros(goal.architecture.n_parameters), lambda step: True
    )
    assert stopped.n_iter == 1


@pytest.mark.parametrize(("gap", "converged"), [(1e-4, True), (np.inf, True), (1e6, False)])
def test_a_halt_is_an_optimum_only_if_the_gap_does_not_deny_it(gap, converged):
    goal = problem("rooted")
    goal.gap = lambda theta, gradient: gap
    result, _ = minimise(NewtonCG(tol=1e-12), goal)
    assert (result.converged, result.stuck) == (converged, not converged)


@pytest.mark.parametrize(("kernel", "scale"), [("linear", 1e3), ("poly2", 10.0), ("poly3", 10.0)])
def test_features_of_large_values_have_the_same_optimum_by_both(kernel, scale):
    X, y = sf.make_galaxy(10, random_state=0)
    X = [scale * x for x in X]
    want = sf.GPSC(kernel, solver="newton", n_jobs=1).fit(X, y)
    assert want.gap_ < 1e-2
    found = sf.GPSC(kernel, n_jobs=1).fit(X, y)
    assert found.objective_ == pytest.approx(want.objective_, rel=1e-3)
    assert found.gap_ < 1e-2 * found.objective_


@pytest.mark.parametrize("solver", ["lbfgs", "newton"])
def test_an_optimum_that_rounding_hides_is_told(solver):
    X, y = sf.make_galaxy(10, random_state=0)
    # one that is in use already is no remedy
    remedy = "; or use solver='newton'" if solver == "lbfgs" else "raise the penalty"
    what = rf"no longer falls.*Scale the features.*{remedy}$"
    with pytest.warns(ConvergenceWarning, match=what):
        model = sf.GPSC("poly3", solver=solver, n_jobs=1).fit([1e4 * x for x in X], y)
    assert model.gap_ > model.objective_
