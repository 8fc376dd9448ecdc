"""L-BFGS, OWL-QN and SGD against scipy, on quadratics and on small CRFs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from seqfield.architectures.linear import Linear
from seqfield.errors import InputError
from seqfield.labels import LabelSet
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers import lbfgs
from seqfield.solvers._base import History, Stall
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.owlqn import OWLQN
from seqfield.solvers.sgd import SGD

TIGHT = 1e-14


class Quadratic:
    """1/2 x'Ax - b'x, plus c1 |x|_1, with A = Q diag(eigenvalues) Q'."""

    def __init__(self, eigenvalues, seed=0, l1=0.0):
        rng = np.random.default_rng(seed)
        n = len(eigenvalues)
        q, _ = np.linalg.qr(rng.normal(size=(n, n)))
        self.a = (q * eigenvalues) @ q.T
        self.b = rng.normal(size=n)
        self.low, self.l1, self.calls = min(eigenvalues), l1, 0
        self.prior = ElasticNet(l1, self.low)

    def value_and_grad(self, theta):
        self.calls += 1
        product = self.a @ theta
        return 0.5 * float(theta @ product) - float(self.b @ theta), product - self.b

    def pseudo_gradient(self, theta, gradient):
        return self.prior.pseudo_gradient(theta, gradient)

    def gap(self, theta, gradient):
        return self.prior.gap(theta, gradient)

    def dual(self, theta):
        return theta

    def start(self):
        return np.zeros(len(self.b))


def crf(c1=0.0, c2=1.0, cost=0.0, seed=0, n=30, observed=True, n_jobs=1):
    """A small CRF over sparse features of which many do not matter."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, n)
    offsets = offsets_of(lengths)
    total = int(offsets[-1])
    y = rng.integers(3, size=total)
    x = (rng.random((total, 12)) < 0.2).astype(float)
    x[np.arange(total), y] += rng.random(total) < 0.7
    data = Sequences(sp.csr_array(x), offsets)
    rows = [part.tolist() for part in np.split(y, offsets[1:-1])]
    targets = LabelSet(range(3)).encode(rows)
    linear = Linear.build(data, targets, 3, observed=observed)
    weights = rng.uniform(0.5, 2.0, n)
    loss = LogLoss(cost)
    goal = Objective(linear, loss, ElasticNet(c1, c2), data, targets, weights, None, n_jobs)
    goal.start = lambda: np.zeros(linear.n_parameters)
    return goal


def total(goal, theta):
    return goal.value_and_grad(theta)[0] + goal.l1 * np.abs(theta).sum()


def scipy_optimum(goal):
    """The optimum by L-BFGS-B; with L1 over x = p - n, p and n >= 0."""
    n = len(goal.start())
    options = {"maxiter": 20000, "maxfun": 100000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30}
    if goal.l1 == 0:
        found = minimize(
            goal.value_and_grad, goal.start(), jac=True, method="L-BFGS-B", options=options
        )
        return found.x, float(found.fun)

    def split(z):
        value, gradient = goal.value_and_grad(z[:n] - z[n:])
        return value + goal.l1 * z.sum(), np.concatenate([gradient, -gradient]) + goal.l1

    found = minimize(
        split,
        np.zeros(2 * n),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (2 * n),
        options=options,
    )
    return found.x[:n] - found.x[n:], float(found.fun)


SMOOTH = {
    "identity": lambda: Quadratic(np.ones(5)),
    "one dimension": lambda: Quadratic(np.array([3.0])),
    "well conditioned": lambda: Quadratic(np.linspace(1, 5, 20)),
    "ill conditioned": lambda: Quadratic(np.geomspace(1e-2, 1e2, 30)),
    "crf": lambda: crf(),
    "crf, weak penalty": lambda: crf(c2=0.01),
    "crf, strong penalty": lambda: crf(c2=100.0),
    "crf, all pairs": lambda: crf(observed=False),
    "softmax margin": lambda: crf(cost=1.0),
}
SPARSE = {
    "identity": lambda: Quadratic(np.ones(8), l1=0.5),
    "well conditioned": lambda: Quadratic(np.linspace(1, 5, 20), l1=0.3),
    "ill conditioned": lambda: Quadratic(np.geomspace(1e-1, 1e1, 30), l1=0.2),
    "crf": lambda: crf(c1=1.0),
    "crf, strong": lambda: crf(c1=8.0),
    "crf, weak c2": lambda: crf(c1=1.0, c2=0.01),
    "crf, all pairs": lambda: crf(c1=2.0, observed=False),
    "softmax margin": lambda: crf(c1=1.0, cost=0.5),
}


@lru_cache
def solved(kind, name):
    goal = (SMOOTH if kind == "smooth" else SPARSE)[name]()
    return goal, *scipy_optimum(goal)


# --- against scipy -----------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [LBFGS, OWLQN])
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_optimum(solver, name):
    goal, x, value = solved("smooth", name)
    # OWL-QN steps back from each change of sign, so it needs more of them
    max_iter = 2000 if solver is LBFGS else 20000
    result = solver(tol=TIGHT, max_iter=max_iter).minimise(goal, goal.start())
    assert result.converged
    assert result.value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(result.theta, x, rtol=1e-4, atol=1e-5 * np.abs(x).max())
    check_result(goal, result)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_optimum(name):
    goal, x, value = solved("sparse", name)
    result = OWLQN(tol=TIGHT, max_iter=5000).minimise(goal, goal.start())
    assert result.converged
    assert result.value == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(result.theta, x, atol=2e-4 * np.abs(x).max())
    check_result(goal, result)


def check_result(goal, result):
    """A result says what it is."""
    smooth, gradient = goal.value_and_grad(result.theta)
    assert result.value == pytest.approx(smooth + goal.l1 * np.abs(result.theta).sum(), rel=1e-13)
    np.testing.assert_allclose(result.gradient, gradient, rtol=1e-12, atol=1e-12)
    assert isinstance(result.n_iter, int)


def test_closed_form_of_soft_thresholding():
    goal = Quadratic(np.ones(9), l1=0.4)
    result = OWLQN(tol=TIGHT).minimise(goal, goal.start())
    want = np.sign(goal.b) * np.maximum(np.abs(goal.b) - 0.4, 0.0)
    np.testing.assert_allclose(result.theta, want, atol=1e-7)
    np.testing.assert_array_equal(result.theta == 0.0, want == 0.0)


@pytest.mark.parametrize("name", SPARSE)
def test_owlqn_gives_exact_zeros(name):
    """Weights whose gradient is inside the L1 ball are 0.0, and the rest is stationary."""
    goal, x, _ = solved("sparse", name)
    theta = OWLQN(tol=TIGHT, max_iter=5000).minimise(goal, goal.start()).theta
    gradient = goal.value_and_grad(theta)[1]
    inside = np.abs(gradient) < goal.l1 * (1 - 1e-3)
    assert inside.any()
    assert (theta[inside] == 0.0).all()
    assert (theta != 0.0).any()
    alive = theta != 0.0
    np.testing.assert_allclose(
        gradient[alive], -goal.l1 * np.sign(theta[alive]), atol=2e-4 * goal.l1
    )
    np.testing.assert_array_equal(np.abs(x[inside]) < 1e-6, True)


def test_a_strong_l1_penalty_leaves_nothing():
    goal = crf(c1=1e4)
    result = OWLQN().minimise(goal, goal.start())
    assert not result.theta.any()
    assert result.converged
    assert result.n_iter == 0


def test_owlqn_can_leave_a_start_full_of_weights():
    goal, _, value = solved("sparse", "crf, strong")
    begin = np.random.default_rng(1).normal(size=len(goal.start()))
    result = OWLQN(tol=TIGHT, max_iter=5000).minimise(goal, begin)
    assert result.value == pytest.approx(value, rel=1e-8)
    assert (result.theta == 0.0).any()


@pytest.mark.parametrize("solver", [LBFGS, OWLQN])
def test_start_does_not_matter_and_is_not_changed(solver):
    goal, x, value = solved("smooth", "crf")
    begin = 3 * np.random.default_rng(0).normal(size=len(x))
    copy = begin.copy()
    result = solver(tol=TIGHT, max_iter=2000).minimise(goal, begin)
    np.testing.assert_array_equal(begin, copy)
    assert result.value == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("solver", [LBFGS, OWLQN])
def test_started_at_the_optimum_it_stays(solver):
    goal, x, _ = solved("smooth", "crf")
    result = solver(tol=1e-6).minimise(goal, x)
    assert result.n_iter == 0
    assert result.theta is x or np.array_equal(result.theta, x)


# --- stopping ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["smooth", "sparse"])
@pytest.mark.parametrize("name", ["crf", "ill conditioned", "softmax margin"])
def test_values_never_rise(kind, name):
    goal, _, _ = solved(kind, name)
    values = [total(goal, goal.start())]
    solver = (LBFGS if kind == "smooth" else OWLQN)(tol=1e-12, max_iter=300)

    def record(step):
        assert step.value == pytest.approx(total(goal, step.theta), rel=1e-13)
        assert step.iteration == len(values)
        values.append(step.value)
        return False

    result = solver.minimise(goal, goal.start(), record)
    assert (np.diff(values) <= 0).all()
    assert result.n_iter == len(values) - 1
    assert result.value == values[-1]


@pytest.mark.parametrize("kind", ["smooth", "sparse"])
def test_gap_bounds_the_distance_to_the_optimum(kind):
    """At many iterates and random points: value - optimum <= gap, and the bound gets tight."""
    for name in SMOOTH if kind == "smooth" else SPARSE:
        goal, x, value = solved(kind, name)
        best = min(value, OWLQN(tol=0.0, max_iter=5000).minimise(goal, x).value)
        points = [goal.start(), x]
        OWLQN(tol=1e-13, max_iter=400).minimise(
            goal, goal.start(), lambda step, points=points: points.append(step.theta.copy())
        )
        rng = np.random.default_rng(0)
        points += [x + size * rng.normal(size=len(x)) for size in (1e-6, 1e-3, 0.1, 1.0, 10.0)]
        gaps = []
        for theta in points:
            gap, value = goal.gap(theta, goal.value_and_grad(theta)[1]), total(goal, theta)
            room = 1e-12 * max(abs(best), abs(value))
            assert -room <= value - best <= gap + room, name
            gaps.append(gap)
        assert len(points) > 8
        assert min(gaps) < 1e-6 * abs(best), name


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("kind", ["smooth", "sparse"])
def test_tolerance_is_kept(kind, tol):
    goal, _, value = solved(kind, "crf")
    result = (LBFGS if kind == "smooth" else OWLQN)(tol=tol).minimise(goal, goal.start())
    assert result.converged
    assert result.value - value <= tol * abs(value)


def test_a_smaller_tolerance_takes_more_iterations():
    goal, _, _ = solved("smooth", "crf, weak penalty")
    counts = [LBFGS(tol=tol).minimise(goal, goal.start()).n_iter for tol in (1e-1, 1e-4, 1e-9)]
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("solver", [LBFGS, OWLQN])
@pytest.mark.parametrize("max_iter", [1, 3])
def test_too_few_iterations_are_said_so(solver, max_iter):
    goal, _, _ = solved("smooth", "crf")
    result = solver(max_iter=max_iter, tol=1e-12).minimise(goal, goal.start())
    assert (result.n_iter, result.converged) == (max_iter, False)
    check_result(goal, result)


@pytest.mark.parametrize("solver", [LBFGS, OWLQN, SGD])
@pytest.mark.parametrize("stop", [1, 2, 5])
def test_callback_stops(solver, stop):
    goal, _, _ = solved("smooth", "crf")
    seen = []

    def callback(step):
        seen.append((step.iteration, step.theta.copy()))
        return step.iteration >= stop

    result = solver().minimise(goal, goal.start(), callback)
    assert [iteration for iteration, _ in seen] == list(range(1, stop + 1))
    assert result.n_iter == stop
    np.testing.assert_array_equal(result.theta, seen[-1][1])


@pytest.mark.parametrize("solver", [LBFGS, OWLQN])
def test_without_c2_there_is_no_bound_but_it_stops(solver):
    goal = crf(c2=0.0, n=60)
    result = solver(tol=1e-6, max_iter=2000).minimise(goal, goal.start())
    assert result.converged
    assert goal.gap(result.theta, result.gradient) == np.inf
    assert result.value < 0.9 * total(goal, goal.start())


@pytest.mark.parametrize("solver", [LBFGS, OWLQN])
def test_a_flat_objective_stops_at_once(solver):
    goal = Quadratic(np.ones(3))
    goal.b[:] = 0.0
    result = solver().minimise(goal, goal.start())
    assert (result.n_iter, result.converged) == (0, True)


@pytest.mark.parametrize("solver", [LBFGS, OWLQN])
def test_infinite_values_on_the_way_are_stepped_back_from(solver):
    class Barrier(Quadratic):
        """-sum log(1 - x) - 3 sum x: infinite from 1 on, minimum at 2 / 3."""

        def value_and_grad(self, theta):
            if (theta >= 1).any():
                return np.inf, np.full(len(theta), np.nan)
            return float(-np.log1p(-theta).sum() - 3 * theta.sum()), 1 / (1 - theta) - 3

        def gap(self, theta, gradient):
            return np.inf

    result = solver(tol=1e-15).minimise(Barrier(np.ones(4)), np.zeros(4))
    np.testing.assert_allclose(result.theta, 2 / 3, rtol=1e-5)


# --- stochastic --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["crf", "softmax margin", "crf, all pairs"])
def test_sgd_reaches_one_per_cent(name):
    goal, _, value = solved("smooth", name)
    result = SGD(max_iter=60, batch_size=4).minimise(goal, goal.start())
    assert value - 1e-9 * abs(value) <= result.value <= 1.01 * value
    check_result(goal, result)
    assert result.n_iter == 60


def test_sgd_depends_on_its_seed_alone():
    goal, _, _ = solved("smooth", "crf")
    a, b, c = (
        SGD(max_iter=3, batch_size=8, seed=s).minimise(goal, goal.start()) for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(a.theta, b.theta)
    assert not np.array_equal(a.theta, c.theta)


@pytest.mark.parametrize("observed", [True, False])
def test_batches_add_up_to_the_whole(observed):
    """Values and gradients, the penalty included, over batches of any size."""
    goal = crf(n=29, observed=observed)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=len(goal.start()))
    want, slope = goal.value_and_grad(theta)
    for size, n_batches in ((1, 29), (4, 7), (29, 1), (1000, 1)):
        batches = goal.batches(size, rng)
        assert len(batches) == n_batches
        value, gradient = 0.0, np.zeros_like(theta)
        for part in goal.batch_gradients(theta, batches):
            own = theta[part.touched]
            assert len(np.unique(part.touched)) == len(part.touched) == len(part.gradient)
            value += part.value + 0.5 * part.penalty @ own**2
            gradient[part.touched] += part.gradient + part.penalty * own
        assert value == pytest.approx(want, rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-10)


def test_sgd_does_not_change_its_start():
    goal = crf()
    begin = np.ones(len(goal.start()))
    SGD(max_iter=1).minimise(goal, begin)
    np.testing.assert_array_equal(begin, 1.0)


# --- parts -------------------------------------------------------------------------------------


def test_history_is_exact_on_a_quadratic_of_few_dimensions():
    """With as many conjugate steps as dimensions the two-loop recursion is the inverse Hessian."""
    goal = Quadratic(np.array([1.0, 4.0, 9.0]))
    _, vectors = np.linalg.eigh(goal.a)
    history = History(size=3, n=3)
    for step in vectors.T:
        history.push(step, 0 * step, goal.a @ step, 0 * step)
    g = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(history.direction(g), -np.linalg.solve(goal.a, g), rtol=1e-12)
    assert len(history) == 3
    zero = np.zeros(3)
    history.push(vectors[:, 0], zero, -vectors[:, 0], zero)  # no positive curvature
    history.direction(g)
    assert len(history) == 2
    history.push(vectors[:, 0], zero, vectors[:, 0], zero)
    assert len(history) == 3
    history.clear()
    assert len(history) == 0
    np.testing.assert_array_equal(history.direction(g), -g)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_history_equals_the_two_loop_recursion_on_vectors(n_jobs):
    """More pairs than room, long vectors in several pieces, against the textbook form."""
    rng = np.random.default_rng(0)
    n, size = 150_001, 4
    curvatures = rng.uniform(0.5, 2.0, n)
    history = History(size, n, n_jobs)
    pairs = []
    g = rng.normal(size=n)
    for _ in range(7):
        s = rng.normal(size=n)
        history.push(g + s, g, curvatures * (g + s), curvatures * g)
        pairs = [*pairs, (s, curvatures * s)][-size:]
        history.direction(np.ones(n))  # another gradient in between changes nothing
        g = rng.normal(size=n)
        q, alphas = g.copy(), []
        for s, y in reversed(pairs):
            alphas.append((s @ q) / (s @ y))
            q -= alphas[-1] * y
        s, y = pairs[-1]
        q *= (s @ y) / (y @ y)
        for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
            q += (alpha - (y @ q) / (s @ y)) * s
        np.testing.assert_allclose(history.direction(g), -q, rtol=1e-9, atol=1e-11)


def test_stall_looks_back_a_period():
    stalled = Stall(tol=0.1, period=2)
    assert [stalled(v) for v in (100.0, 50.0, 40.0, 39.0, 38.0)] == [False] * 4 + [True]


def test_elastic_net():
    prior = ElasticNet(c1=2.0, c2=3.0)
    theta, gradient = np.array([0.0, 0.0, 1.0, -1.0]), np.array([1.0, -5.0, 0.5, 0.5])
    np.testing.assert_array_equal(prior.pseudo_gradient(theta, gradient), [0.0, -3.0, 2.5, -1.5])
    slope = np.ones(4)
    assert prior.smooth(theta) == prior.add_smooth(theta, slope) == 3.0
    np.testing.assert_array_equal(slope, 1.0 + 3.0 * theta)
    assert prior.gap(theta, gradient) == pytest.approx((9 + 6.25 + 2.25) / 6)
    assert ElasticNet(1.0, 0.0).gap(theta, gradient) == np.inf
    for bad in (-1.0, np.nan, np.inf):
        for name in ("c1", "c2"):
            with pytest.raises(InputError, match=f"{name} must be a number of at least 0"):
                ElasticNet(**{name: bad})


def test_no_bound_from_what_is_no_inner_product():
    prior, v = ElasticNet(0.0, 2.0), np.array([3.0, 4.0])
    with pytest.raises(InputError, match="not positive semi-definite"):
        prior.gap(v, v, lambda v: -v)
    # rounding takes a square of 0 below 0
    assert prior.gap(v, v, lambda v: -1e-17 * v, lambda v: 1e-12) == 0.0
    assert np.isnan(prior.gap(v, v, lambda v: np.nan * v))


# --- the bound needs a convex objective --------------------------------------------------------


def saddle():
    """Two chains a ? a and b ? b: zero weights are stationary, and not the optimum."""
    data = Sequences(np.ones((6, 1)), [0, 3, 6])
    targets = LabelSet("ab").encode([["a", None, "a"], ["b", None, "b"]])
    linear = Linear.build(data, targets, 2, observed=False)
    return Objective(
        linear, LogLoss(), ElasticNet(0.0, 0.01), data, targets, np.ones(2), None, 1
    ), linear.n_parameters


def test_no_bound_is_claimed_where_missing_labels_make_the_objective_not_convex():
    goal, n = saddle()
    zero = np.zeros(n)
    value, gradient = goal.value_and_grad(zero)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-12)
    lower = minimize(goal.value_and_grad, 0.1 * np.arange(n), jac=True, method="L-BFGS-B").fun
    assert lower < value - 0.5
    assert goal.gap(zero, gradient) >= value - lower


# --- halts far from the optimum ------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e14, 1e30])
def test_the_scale_of_the_objective_makes_no_difference(scale):
    goal = Quadratic(scale * np.geomspace(1.0, 1e3, 12))
    goal.b *= scale
    result = LBFGS(max_iter=400, tol=1e-10).minimise(goal, goal.start())
    assert result.converged
    assert 0 < result.n_iter < 60
    np.testing.assert_allclose(result.theta, np.linalg.solve(goal.a, goal.b), atol=1e-3)


class Lifted(Quadratic):
    """With a constant beside which no step counts, and a gap that is not its own."""

    def __init__(self, gap):
        super().__init__(np.geomspace(1.0, 1e5, 30))
        self.told = gap

    def value_and_grad(self, theta):
        value, gradient = super().value_and_grad(theta)
        return 1e9 + value, gradient

    def gap(self, theta, gradient):
        return self.told


@pytest.mark.parametrize("method", [LBFGS, OWLQN])
@pytest.mark.parametrize(("gap", "converged"), [(1e5, True), (np.inf, True), (1e8, False)])
def test_a_value_that_rests_is_an_optimum_only_if_the_gap_does_not_deny_it(method, gap, converged):
    goal = Lifted(gap)
    result = method(max_iter=400, tol=1e-5).minimise(goal, goal.start())
    assert (result.converged, result.stuck) == (converged, not converged)
    # where it is denied, it looks further before it gives up
    assert result.n_iter == (11 if converged else 55)


def test_a_line_search_that_fails_begins_anew_if_the_gap_denies_the_optimum(monkeypatch):
    made, taken = [], lbfgs.wolfe_step

    def failing(*given):
        made.append(given[0].calls)
        return None if len(made) == 5 else taken(*given)

    monkeypatch.setattr(lbfgs, "wolfe_step", failing)
    goal = Quadratic(np.geomspace(1.0, 10.0, 8))
    goal.low, goal.b = 1.0, 1e3 * goal.b
    found = LBFGS(max_iter=400, tol=1e-12).minimise(goal, goal.start())
    assert found.converged
    np.testing.assert_allclose(found.theta, np.linalg.solve(goal.a, goal.b), rtol=1e-3)
