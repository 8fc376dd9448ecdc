"""Samplers draw from the posterior: likelihoods, moments, calibration, seeds and threads."""

from __future__ import annotations

import threading
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.stats import kstest

from seqfield import _parallel
from seqfield.architectures.lookup import Lookup
from seqfield.architectures.rooted import Rooted
from seqfield.chain import _numba_total
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.objectives.objective import Objective
from seqfield.samplers import elliptical_slice, hamiltonian
from seqfield.samplers._base import Draws, Plan, effective_sample_size, split_r_hat
from seqfield.samplers.device_slice import DeviceSlice
from seqfield.samplers.elliptical_slice import EllipticalSlice, Likelihood, Walk
from seqfield.samplers.hamiltonian import Hamiltonian, NoUTurn, Point, Points, StepSize, rotated
from seqfield.samplers.slice import slice_sample

from ..support.samplers import KINDS, PLAIN, objective, some, unevenness, whitened

SAMPLERS = {
    "ess": EllipticalSlice,
    "ess on a device": DeviceSlice,
    "hmc": Hamiltonian,
    "nuts": NoUTurn,
}
#: those that take the problem apart, instead of asking for gradients
OWN = ("ess", "ess on a device")
every = pytest.mark.parametrize("kind", SAMPLERS)
# every shape is compiled anew for a device, which takes longer than all else here
on_host = pytest.mark.parametrize("kind", ["ess", "hmc", "nuts"])


class Enumerated:
    """The objective of known labels by the list of all labellings, quick for many theta at once.

    Labellings of all sequences lie in one list; ``first`` says where those of each begin.
    """

    def __init__(self, goal):
        architecture, data = goal.architecture, goal.data
        s, rows = architecture.n_labels, data.x[:, 0].astype(int)
        cut, design, self.first, self.labels = architecture._cut, [], [], []
        for a, b in pairwise(data.offsets):
            self.first.append(len(design))
            for y in product(range(s), repeat=int(b - a)):
                row = np.zeros(architecture.n_parameters)
                for t, label in enumerate(y):
                    row[label:cut:s] += architecture.root[rows[a + t]]
                for q, r in pairwise(y) if architecture.root_eta else ():
                    row[cut + q * s + r] += architecture.root_eta
                design.append(row)
                self.labels.append(y)
        self.design, self.first = np.array(design), np.array(self.first)
        self.sizes = np.diff(np.append(self.first, len(design)))
        self.weights, self.n_parameters = goal.weights, architecture.n_parameters
        self.gold = self.find(np.split(goal.targets.codes, data.offsets[1:-1]))

    def find(self, rows):
        """Where these labels stand in the list."""
        return [
            at + self.labels[at : at + size].index(tuple(row))
            for at, size, row in zip(self.first, self.sizes, rows, strict=True)
        ]

    def each_value_and_grad(self, thetas):
        p, log_z, score = self._inference(thetas)
        value = (log_z - score[:, self.gold]) @ self.weights
        p *= np.repeat(self.weights, self.sizes)
        p[:, self.gold] -= self.weights
        return value, p @ self.design

    def _inference(self, thetas):
        score = thetas @ self.design.T
        top = np.maximum.reduceat(score, self.first, axis=1)
        p = np.exp(score - np.repeat(top, self.sizes, axis=1))
        z = np.add.reduceat(p, self.first, axis=1)
        p /= np.repeat(z, self.sizes, axis=1)
        return p, top + np.log(z), score

    def value_and_grad(self, theta):
        value, gradient = self.each_value_and_grad(theta[None])
        return float(value[0]), gradient[0]

    def draw_labels(self, theta, rng):
        p = self._inference(theta[None])[0][0]
        parts = np.split(np.arange(len(p)), self.first[1:])
        return [self.labels[rng.choice(part, p=p[part])] for part in parts]


class Gaussian:
    """A likelihood exp(-theta' diag(h) theta / 2)."""

    def __init__(self, precision):
        self.h = np.asarray(precision, float)

    def each_value_and_grad(self, thetas):
        return 0.5 * thetas**2 @ self.h, thetas * self.h

    def value_and_grad(self, theta):
        return 0.5 * float(theta**2 @ self.h), theta * self.h


def sample(sampler, goal, n_parameters, callback=None):
    """Draws of an objective, or of another energy with so many parameters."""
    if isinstance(sampler, EllipticalSlice | DeviceSlice):
        return sampler.sample(whitened(goal), callback)
    if isinstance(goal, Objective):
        return sampler.sample(goal, callback)
    return sampler.draw(goal, n_parameters, callback)


def draw(kind, goal, n_parameters, *, n_steps, n_chains, burn_in=0.2, seed=0, n_samples=10**9):
    """All draws after burn-in (chains, steps, parameters)."""
    plan = Plan.of(n_steps, burn_in, n_chains, n_samples)
    draws = sample(SAMPLERS[kind](plan, seed), goal, n_parameters)
    theta = draws.theta.reshape(-1, n_chains, n_parameters).transpose(1, 0, 2)
    return theta, draws


# --- what samplers are given -------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize(
    "options", [{}, {"missing": True}, {"law": True}, {"missing": True, "law": True}]
)
@pytest.mark.parametrize("s", [2, 5])
def test_gradients_of_several_points(s, options, eta):
    goal = some(s, eta=eta, **options)
    thetas = np.random.default_rng(1).normal(size=(3, goal.architecture.n_parameters))
    values, gradients = goal.each_value_and_grad(thetas)
    directions = np.random.default_rng(2).normal(size=thetas.shape)
    for theta, value, gradient, d in zip(thetas, values, gradients, directions, strict=True):
        one, its = goal.value_and_grad(theta)
        assert value == pytest.approx(one, rel=1e-13)
        np.testing.assert_allclose(gradient, its, rtol=1e-11, atol=1e-12)
        assert goal.value(theta) == pytest.approx(one, rel=1e-13)
        slope = (goal.value(theta + 1e-5 * d) - goal.value(theta - 1e-5 * d)) / 2e-5
        assert d @ gradient == pytest.approx(slope, rel=1e-6)


def test_gradients_of_several_points_and_shards():
    """4096 tokens and more are cut."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 320)
    total = int(lengths.sum())
    architecture = Rooted(3, rng.normal(size=(6, 4)), 2.0)
    rows, y = rng.integers(6, size=total), rng.integers(3, size=total)
    goal = objective(architecture, lengths, y, rows)
    assert len(goal._shards) > 2
    thetas = rng.normal(size=(2, architecture.n_parameters))
    values, gradients = goal.each_value_and_grad(thetas)
    for theta, value, gradient in zip(thetas, values, gradients, strict=True):
        one, its = goal.value_and_grad(theta)
        assert value == pytest.approx(one, rel=1e-13)
        np.testing.assert_allclose(gradient, its, rtol=1e-11)
    for jobs in (2, 3):
        goal.n_jobs = jobs
        for a, b in zip(goal.each_value_and_grad(thetas), (values, gradients), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_rooted_values(eta):
    """F = root b, T = sqrt(eta) B, and the transpose of that map."""
    rng = np.random.default_rng(0)
    architecture = Rooted(3, rng.normal(size=(5, 4)), eta)
    assert architecture.n_parameters == 12 + (9 if eta else 0)
    theta = rng.normal(size=(2, architecture.n_parameters))
    values = architecture.values(theta)
    for row, one in zip(theta, values, strict=True):
        f, steps = architecture.root @ row[:12].reshape(4, 3), np.zeros((3, 3))
        if eta:
            steps = np.sqrt(eta) * row[12:].reshape(3, 3)
        np.testing.assert_allclose(one, np.concatenate([f.ravel(), steps.ravel()]), rtol=1e-12)
        lifted = architecture.lift(row)
        np.testing.assert_allclose(lifted.table, f, rtol=1e-12)
        np.testing.assert_allclose(lifted.transitions, steps, rtol=1e-12)
    e = rng.normal(size=values.shape)
    assert (values * e).sum() == pytest.approx((theta * architecture.pull_values(e)).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("s", [2, 5])
@pytest.mark.parametrize("size", [1.0, 30.0, 400.0])
def test_likelihood_of_scores(s, kind, size):
    """Minus the objective over the table of scores, also with transitions of any range."""
    goal = some(s, **KINDS[kind])
    table = goal.over(Lookup(s, 8), PLAIN)
    rng, likelihood = np.random.default_rng(3), Likelihood(whitened(goal))
    f, g = rng.normal(size=(8, s)), rng.normal(size=(s, 8)).astype(np.float32)
    t, u = size * rng.normal(size=(2, s, s))
    if size == 400.0:  # more than the quick form takes
        assert np.ptp(t) > 250
        scores, known = likelihood._line(f, g, t, u)
        assert np.isnan(_numba_total.log_likelihood(*scores, 1.0, 0.0, t, *known, -np.inf))
    want = -table.value(np.concatenate([f.ravel(), t.ravel()]))
    assert likelihood.at(f, t) == pytest.approx(want, rel=1e-12)
    along = likelihood.along(f, g, t, u)
    for angle in (0.0, 0.4, 2.0, -1.3):
        a, b = np.cos(angle), np.sin(angle)
        moved = a * f + b * g.T.astype(float), a * t + b * u
        want = -table.value(np.concatenate([part.ravel() for part in moved]))
        assert along(a, b) == pytest.approx(want, rel=1e-11)
    assert likelihood.n_evaluations == 5


def test_likelihood_weighs_sequences():
    plain, heavy = (some(weights=w) for w in (np.ones(7), np.array([1, 1, 4, 1, 1, 1, 1.0])))
    alone = some(weights=np.eye(7)[2])
    f, t = np.random.default_rng(0).normal(size=(8, 3)), np.eye(3)
    values = [Likelihood(whitened(goal)).at(f, t) for goal in (plain, heavy, alone)]
    assert values[1] == pytest.approx(values[0] + 3 * values[2], rel=1e-12)
    assert values[2] < -0.1


@pytest.mark.parametrize("block", [1, 2**22])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_walk_knows_where_it_is(block, eta, monkeypatch):
    """The log-likelihood that goes with each draw is that of the draw, over many blocks."""
    monkeypatch.setattr(elliptical_slice, "BLOCK", block)
    goal = some(3, eta=eta)
    walk = Walk(whitened(goal), np.random.default_rng(0))
    seen = 0
    for move in walk.moves(60):
        # directions are made in single precision
        assert -move.log_likelihood == pytest.approx(goal.value(move.theta), rel=2e-6)
        seen += 1
    assert seen == 60
    assert 61 <= walk.n_evaluations < 600
    theta = np.full(goal.architecture.n_parameters, 0.3)
    kept = theta.copy()
    next(walk.moves(1, theta))
    np.testing.assert_array_equal(theta, kept)


def test_evaluations_are_counted():
    """Those of all chains: every gradient, every likelihood."""

    class Counting(Enumerated):
        n = 0

        def each_value_and_grad(self, thetas):
            Counting.n += len(thetas)
            return super().each_value_and_grad(thetas)

    goal = some(2, n=3)
    counting = Counting(goal)
    for kind in ("hmc", "nuts"):
        Counting.n = 0
        _, draws = draw(kind, counting, counting.n_parameters, n_steps=12, n_chains=3)
        assert draws.n_evaluations == Counting.n > 36
    _, draws = draw("ess", goal, counting.n_parameters, n_steps=12, n_chains=3)
    assert draws.n_evaluations >= 3 * 13


# --- the steps of Hamiltonian Monte Carlo ------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    return Enumerated(some(2, n=4, seed=4))


def point_at(goal, rng):
    def at(theta, p):
        return Point(theta, p, *goal.value_and_grad(theta))

    n = goal.n_parameters
    return at, at(rng.normal(size=n), rng.normal(size=n))


def test_enumeration_is_the_objective():
    for eta in (0.0, 0.7):
        goal = some(3, eta=eta)
        quick = Enumerated(goal)
        thetas = np.random.default_rng(1).normal(size=(4, goal.architecture.n_parameters))
        for a, b in zip(
            quick.each_value_and_grad(thetas), goal.each_value_and_grad(thetas), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_steps_are_reversible(small):
    at, start = point_at(small, np.random.default_rng(0))
    point = start
    for _ in range(7):
        point = rotated(point, 0.2, at)
    assert np.abs(point.theta - start.theta).max() > 0.5
    back = point
    for _ in range(7):
        back = rotated(back, -0.2, at)
    np.testing.assert_allclose(back.theta, start.theta, atol=1e-12)
    np.testing.assert_allclose(back.p, start.p, atol=1e-12)
    turned = point._replace(p=-point.p)
    for _ in range(7):
        turned = rotated(turned, 0.2, at)
    np.testing.assert_allclose(turned.theta, start.theta, atol=1e-12)
    np.testing.assert_allclose(turned.p, -start.p, atol=1e-12)


def test_steps_preserve_volume(small):
    """The Jacobian is symplectic, so its determinant is 1."""
    at, start = point_at(small, np.random.default_rng(1))
    n, size = small.n_parameters, 0.9

    def moved(z):
        new = rotated(at(z[:n], z[n:]), size, at)
        return np.concatenate([new.theta, new.p])

    z, h = np.concatenate([start.theta, start.p]), 1e-5
    jacobian = np.array([(moved(z + d) - moved(z - d)) / (2 * h) for d in h * np.eye(2 * n)]).T
    assert np.linalg.det(jacobian) == pytest.approx(1.0, abs=1e-6)
    form = np.block([[np.zeros((n, n)), np.eye(n)], [-np.eye(n), np.zeros((n, n))]])
    np.testing.assert_allclose(jacobian.T @ form @ jacobian, form, atol=1e-7)


def test_the_error_of_the_energy_is_of_second_order(small):
    errors = []
    for n in (8, 16, 32):
        each = []
        for seed in range(5):
            at, point = point_at(small, np.random.default_rng([2, seed]))
            energy = point.energy
            for _ in range(n):
                point = rotated(point, 1.0 / n, at)
            each.append(point.energy - energy)
        errors.append(np.abs(each).max())
    assert 1e-5 < errors[0] < 0.5
    for a, b in pairwise(errors):
        assert 3.5 < a / b < 4.5


def test_without_data_a_step_is_exact_whatever_its_size():
    rng = np.random.default_rng(0)
    theta, p = rng.normal(size=(2, 6))
    nothing = Gaussian(np.zeros(6))
    new = rotated(
        Point(theta, p, 0.0, np.zeros(6)),
        1.3,
        lambda theta, p: Point(theta, p, *nothing.value_and_grad(theta)),
    )
    np.testing.assert_allclose(new.theta, np.cos(1.3) * theta + np.sin(1.3) * p, rtol=1e-14)
    assert new.energy == pytest.approx(0.5 * (theta @ theta + p @ p), rel=1e-14)


def test_rows_move_as_single_points_do(small):
    rng = np.random.default_rng(0)
    theta, p = rng.normal(size=(2, 3, small.n_parameters))
    rows = rotated(
        Points(theta, p, *small.each_value_and_grad(theta)),
        0.4,
        lambda theta, p: Points(theta, p, *small.each_value_and_grad(theta)),
    )
    for k in range(3):
        one = rotated(
            Point(theta[k], p[k], *small.value_and_grad(theta[k])),
            0.4,
            lambda theta, p: Point(theta, p, *small.value_and_grad(theta)),
        )
        np.testing.assert_allclose(rows.theta[k], one.theta, rtol=1e-12)
        np.testing.assert_allclose(rows.p[k], one.p, rtol=1e-11, atol=1e-13)
        assert rows.energies[k] == pytest.approx(one.energy, rel=1e-12)


@pytest.mark.parametrize("accept", [0.7, 0.8, 0.9])
def test_the_step_size_reaches_the_share_of_accepted_proposals(accept):
    """A proposal that was taken is one that moved."""
    plan = Plan.of(1000, 0.5, 8, 10**9)
    precision = np.geomspace(1.0, 400.0, 30)
    draws = Hamiltonian(plan, 0, accept).draw(Gaussian(precision), 30)
    theta = draws.theta.reshape(-1, 8, 30)
    share = (theta[1:] != theta[:-1]).any(axis=2).mean()
    assert share == pytest.approx(accept, abs=0.05)


@pytest.mark.parametrize("accept", [0.6, 0.9])
def test_dual_averaging(accept):
    """A step of size h does as well as exp(-h)."""
    tuning = StepSize(0.7, accept)
    for _ in range(2000):
        tuning.learn(float(np.exp(-tuning.trial)))
    assert tuning.final == pytest.approx(-np.log(accept), rel=0.03)


def test_steps_are_bounded_where_everything_is_taken():
    tuning = StepSize(1.0, 0.8)
    for _ in range(200):
        tuning.learn(1.0)
    assert tuning.final == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("kind", ["hmc", "nuts"])
def test_a_likelihood_that_is_not_a_number_is_never_taken(kind):
    class Broken(Gaussian):
        def each_value_and_grad(self, thetas):
            values, gradients = super().each_value_and_grad(thetas)
            bad = thetas[:, 0] > 0.3
            return np.where(bad, np.nan, values), np.where(bad[:, None], np.nan, gradients)

        def value_and_grad(self, theta):
            values, gradients = self.each_value_and_grad(theta[None])
            return float(values[0]), gradients[0]

    # chains begin at draws of the prior: a seed for which all of these are good
    theta, _ = draw(kind, Broken(np.ones(2)), 2, n_steps=150, n_chains=2, burn_in=0.0, seed=8)
    assert np.isfinite(theta).all()
    assert -0.2 < theta[:, :, 0].max() <= 0.3
    assert len(np.unique(theta[0, :, 0])) > 20


# --- posteriors --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    """Three tokens in two sequences and two labels; its posterior's moments by 600,000 weighted
    draws of the prior."""
    root = np.array([[1.2, 0.0], [0.5, 1.0], [-0.8, 0.9]])
    goal = objective(Rooted(2, root, 1.0), [2, 1], [0, 1, 1], weights=[3.0, 2.0])
    quick, rng = Enumerated(goal), np.random.default_rng(0)
    theta = rng.normal(size=(600_000, 8))
    w = np.exp(-_values(quick, theta))
    w /= w.sum()
    g = functions(quick, theta)
    mean = w @ g
    variance = w @ (g - mean) ** 2
    error = np.sqrt((w**2) @ (g - mean) ** 2)
    # far from the prior, so that samplers have something to find
    assert np.abs(mean[:8]).max() > 0.4
    assert variance[:8].min() < 0.8
    assert error.max() < 0.02
    return goal, quick, mean, error


def _values(quick, theta):
    _, log_z, score = quick._inference(theta)
    return (log_z - score[:, quick.gold]) @ quick.weights


def functions(quick, theta):
    """Coordinates, their squares, some products, the squared norm and the log-likelihood."""
    squares = theta**2
    return np.column_stack(
        [
            theta,
            squares,
            theta[:, 0] * theta[:, 1],
            theta[:, 0] * theta[:, 5],
            squares.sum(axis=1),
            -_values(quick, theta),
        ]
    )


def standardised(theta, functions, want, error=0.0):
    """(found - wanted) / standard error for each function of draws (chains, steps, P), and the
    least number of independent draws among them."""
    m, n, p = theta.shape
    g = functions(theta.reshape(-1, p)).reshape(m, n, -1)
    sizes = np.array([effective_sample_size(g[:, :, k]) for k in range(g.shape[2])])
    each = g.reshape(m * n, -1)
    return (each.mean(axis=0) - want) / np.sqrt(each.var(axis=0) / sizes + error**2), sizes.min()


RUNS = {
    "ess": {"n_steps": 6000, "n_chains": 4, "burn_in": 0.05},
    "ess on a device": {"n_steps": 1000, "n_chains": 24, "burn_in": 0.1},
    "hmc": {"n_steps": 800, "n_chains": 60},
    "nuts": {"n_steps": 900, "n_chains": 4},
}


@every
def test_posterior_moments(kind, tiny):
    """All within 4.5 standard errors; a prior of 1.05 times the width is 7 away at least."""
    goal, quick, mean, error = tiny
    theta, draws = draw(kind, goal if kind in OWN else quick, 8, **RUNS[kind])
    z, size = standardised(theta, lambda theta: functions(quick, theta), mean, error)
    assert size > 1000
    assert np.abs(z).max() < 4.5
    # the scalars that are watched are those of the draws
    log_likelihoods = -_values(quick, theta.reshape(-1, 8)).reshape(theta.shape[:2])
    np.testing.assert_allclose(draws.watched[:, :, 0], log_likelihoods, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(draws.watched[:, :, 1], (theta**2).sum(axis=2), rtol=1e-12)
    # what the threshold is worth: the same draws, wider by a twentieth
    wide, _ = standardised(1.05 * theta, lambda theta: functions(quick, theta), mean, error)
    assert np.abs(wide).max() > 7.0


@pytest.mark.parametrize("kind", ["hmc", "nuts"])
def test_the_objective_itself_gives_the_same_draws(kind, tiny):
    """As the quick list of labellings, for as long as rounding lets them."""
    goal, quick, *_ = tiny
    a, b = (draw(kind, one, 8, n_steps=12, n_chains=2, burn_in=0.5)[0] for one in (goal, quick))
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def moments(theta):
    return np.column_stack([theta, theta**2, theta**4, theta[:, :1] * theta[:, 1:]])


@on_host
def test_without_data_draws_are_those_of_the_prior(kind):
    goal = some(2, n=4, rank=3, weights=np.full(4, 1e-9))
    p = goal.architecture.n_parameters
    plan = {"ess": (2500, 4), "hmc": (500, 20), "nuts": (400, 4)}[kind]
    one = goal if kind == "ess" else Enumerated(goal)
    theta, draws = draw(kind, one, p, n_steps=plan[0], n_chains=plan[1], seed=1)
    want = np.concatenate([np.zeros(p), np.ones(p), np.full(p, 3.0), np.zeros(p - 1)])
    z, size = standardised(theta, moments, want)
    assert size > 300
    assert np.abs(z).max() < 4.5
    assert draws.r_hat < 1.02
    apart = theta[:, ::4].reshape(-1)  # hardly dependent any more
    assert kstest(apart, "norm").pvalue > 1e-3
    assert kstest(1.2 * apart, "norm").pvalue < 1e-4


def test_slice_sampling_of_a_skewed_density():
    """Moments by quadrature; x - e^x is skewed, and y goes with the square of x."""

    def log_density(x, y):
        return 2.0 * x - 2.0 * np.exp(x) - 0.5 * (y - 0.3 * x**2) ** 2

    xs, ys = np.meshgrid(np.linspace(-11, 3, 700), np.linspace(-7, 42, 700), indexing="ij")
    density = np.exp(log_density(xs, ys))
    density /= density.sum()

    def functions(x):
        a, b = x[:, 0], x[:, 1]
        return np.column_stack([a, b, a**2, a**3, a * b, a > 0.3, b > 1.0])

    want = density.ravel() @ functions(np.column_stack([xs.ravel(), ys.ravel()]))
    for width, n in ((0.5, 6000), (1.0, 4000), (12.0, 4000)):
        rng, x, found = np.random.default_rng(0), np.zeros(2), []
        for _ in range(n):
            x = slice_sample(lambda x: float(log_density(*x)), x, rng, width)
            found.append(x)
        z, size = standardised(np.array(found)[None], functions, want)
        assert size > 150
        assert np.abs(z).max() < 4.5


def test_slice_sampling_at_an_edge():
    """A density that is zero outside of an interval: its mean and spread are those of the part."""
    rng, x, found = np.random.default_rng(0), np.array([0.5]), []
    for _ in range(6000):
        x = slice_sample(lambda x: np.log(x[0]) if 0 < x[0] < 1 else -np.inf, x, rng, 0.4)
        found.append(x)
    z, size = standardised(
        np.array(found)[None], lambda x: np.column_stack([x, x**2, x < 0.1]), [2 / 3, 0.5, 0.01]
    )
    assert size > 1000
    assert np.abs(z).max() < 4.5
    assert 0 < np.min(found) < np.max(found) < 1


def test_slice_sampling_leaves_its_start_alone():
    start = np.zeros(3)
    new = slice_sample(lambda x: -float(x @ x), start, np.random.default_rng(0))
    np.testing.assert_array_equal(start, np.zeros(3))
    assert (new != 0).all()


# --- simulation-based calibration --------------------------------------------------------------


SIMULATIONS = {"ess": 45, "hmc": 60, "nuts": 32}
CHAINS = {
    "ess": {"n_steps": 160, "n_chains": 1, "n_samples": 23, "burn_in": 0.2},
    "hmc": {"n_steps": 30, "n_chains": 12, "n_samples": 24, "burn_in": 0.5},
    "nuts": {"n_steps": 30, "n_chains": 1, "n_samples": 17, "burn_in": 0.4},
}


def ranks(kind, scale):
    """Ranks, between 0 and 1, of the squared norm and of the log-likelihood of the theta that made
    the labels, among draws from the posterior; uniform if both come from one model."""
    x = np.random.default_rng(5).uniform(0.0, 3.0, 12)
    gram = np.exp(-0.5 * (x[:, None] - x) ** 2) + 0.1 * np.eye(12)
    architecture = Rooted(3, np.linalg.cholesky(gram), 1.0)
    quick = Enumerated(objective(architecture, [4, 4, 4], np.zeros(12)))
    out = np.empty((SIMULATIONS[kind], 2))
    for k in range(len(out)):
        rng = np.random.default_rng([k, 11])
        truth = scale * rng.normal(size=quick.n_parameters)
        y = quick.draw_labels(truth, rng)
        quick.gold = quick.find(y)
        goal = objective(architecture, [4, 4, 4], np.concatenate(y)) if kind == "ess" else quick
        theta, _ = draw(kind, goal, quick.n_parameters, seed=k, **CHAINS[kind])
        both = np.vstack([truth, theta.reshape(-1, quick.n_parameters)])
        watched = np.column_stack([(both**2).sum(axis=1), -_values(quick, both)])
        out[k] = ((watched[1:] < watched[0]).sum(axis=0) + 0.5) / len(both)
    return out


@on_host
def test_simulation_based_calibration(kind):
    """A prior whose scale is a tenth off shows in the squared norm at once."""
    assert unevenness(ranks(kind, 1.0)).max() < 3.0
    assert unevenness(ranks(kind, 1.1))[0] > 4.5


# --- what is told of chains --------------------------------------------------------------------


def watched(*scalars):
    """Draws of which these scalars (chains, steps) were watched."""
    return Draws(np.zeros((1, 1)), np.stack(scalars, axis=-1), 0)


@pytest.mark.parametrize("value", [0.0, -0.1, 1e6 / 3.0])
@pytest.mark.parametrize("m", [1, 4])
def test_chains_that_stand_still(m, value):
    """Rounding in their means makes no difference."""
    for values in (np.full((m, 100), value), np.full((m, 101), value) + np.arange(m)[:, None]):
        assert split_r_hat(values) == np.inf
        assert 1 <= effective_sample_size(values) <= m
        draws = watched(values, 3.0 * values)
        assert draws.still == list(range(m))
        assert draws.r_hat == np.inf
        assert draws.effective_sample_size <= m


def test_one_chain_that_stands_still():
    """Also at a value that the others have in the mean, which R-hat would not see."""
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 4, 1000))
    one[2], two[2] = 0.0, 0.1
    assert split_r_hat(one) < 1.01
    draws = watched(one, two)
    assert draws.still == [2]
    assert draws.r_hat == np.inf
    assert draws.effective_sample_size <= 16
    two[2, 500] = 0.2  # a single move
    assert watched(one, two).still == []


def test_a_scalar_that_cannot_move_says_nothing():
    """Where the labels are sure in all draws, log-likelihoods are 0, and yet chains move."""
    moving = np.random.default_rng(0).normal(size=(4, 1000))
    draws = watched(np.zeros_like(moving), moving)
    assert draws.still == []
    assert draws.r_hat == split_r_hat(moving) < 1.01
    assert draws.effective_sample_size == effective_sample_size(moving) > 3000


def test_steps_too_few_to_say_that_a_chain_stands_still():
    for n in (1, 2, 3):
        draws = watched(np.zeros((2, n)), np.ones((2, n)))
        assert np.isnan(draws.r_hat)
        assert np.isnan(draws.effective_sample_size)
    assert watched(np.zeros((2, 1)), np.ones((2, 1))).still == []


@pytest.mark.parametrize("kind", ["hmc", "nuts"])
@pytest.mark.parametrize("burn_in", [0.0, 0.1])
def test_the_step_is_tuned_without_burn_in(kind, burn_in):
    """From draws of the prior a step of 1 goes down to where it is 20 times too large."""
    goal = Gaussian(np.full(30, 400.0))
    theta, draws = draw(kind, goal, 30, n_steps=30, n_chains=3, burn_in=burn_in)
    assert theta.shape == (3, 30 - int(30 * burn_in), 30)
    moved = (np.diff(theta, axis=1) != 0.0).any(axis=2).mean()
    assert moved > 0.5
    assert draws.still == []


# --- seeds and threads -------------------------------------------------------------------------


def sampled(kind, goal, **options):
    callback = options.pop("callback", None)
    sampler = SAMPLERS[kind](Plan.of(14, 0.5, 3, 9), **options)
    return sample(sampler, goal, goal.architecture.n_parameters, callback)


@every
def test_the_same_seed_gives_the_same_draws(kind):
    goal = some(3)
    a, b, c = (sampled(kind, goal, seed=k) for k in (0, 0, 1))
    np.testing.assert_array_equal(a.theta, b.theta)
    np.testing.assert_array_equal(a.watched, b.watched)
    assert a.n_evaluations == b.n_evaluations
    assert not (a.theta == c.theta).any()
    assert len(np.unique(a.theta[:3, 0])) == 3  # nor do chains repeat each other
    np.testing.assert_array_equal(a.mean, a.theta.mean(axis=0))
    assert a.log_likelihood == pytest.approx(a.watched[:, :, 0].mean(), rel=1e-14)
    assert a.n_iter == SAMPLERS[kind](Plan.of(14, 0.5, 3, 9)).max_iter == 42
    assert 3 * 15 < a.n_evaluations < 3 * 15 * 40


def test_callbacks_of_chains_on_a_device():
    """They see whole blocks of steps of all chains, and may stop after one."""
    goal, seen = some(3), []
    kind = "ess on a device"
    draws = sampled(kind, goal, callback=lambda step: seen.append(step) or False)
    assert [step.iteration for step in seen] == [30, 36, 42]  # where draws are kept
    assert seen[-1].value == pytest.approx(-draws.watched[:, -1, 0].mean(), rel=1e-12)
    stopped = sampled(kind, goal, callback=lambda step: True)
    assert stopped.n_iter == 30
    assert stopped.theta.shape == (3, goal.architecture.n_parameters)
    np.testing.assert_array_equal(stopped.watched, draws.watched[:, :3])


@pytest.mark.parametrize("kind", ["ess", "nuts"])
@pytest.mark.parametrize("law", [False, True])
def test_threads_change_nothing(kind, law):
    goal = some(3, law=law)
    results = [sampled(kind, goal, n_jobs=k) for k in (1, 2, None)]
    for draws in results[1:]:
        np.testing.assert_array_equal(draws.theta, results[0].theta)
        np.testing.assert_array_equal(draws.watched, results[0].watched)


def test_threads_belong_to_the_chains():
    goal = some(3, jobs=-1)
    alone, problem = goal.on_one_thread(), whitened(goal).on_one_thread()
    assert alone.n_jobs is problem.table.n_jobs is None
    assert alone._shards is goal._shards  # laid out once
    assert goal.n_jobs == -1


@pytest.mark.parametrize("kind", ["ess", "nuts"])
def test_chains_on_threads_do_not_wait_for_each_other(kind):
    """Enough tokens that the objective is cut into parts, for which it has threads of its own: if
    these came from the chains' pool, none would be left to work."""
    rng = np.random.default_rng(0)
    architecture = Rooted(2, rng.normal(size=(4, 2)))
    options = {"weights": np.full(90, 0.01), "jobs": 2}
    if kind == "ess":  # the quick form has no parts
        every = Allowed(np.ones(2, bool), np.ones((2, 2), bool), np.ones(2, bool))
        options["law"] = Constraint.of(every)
    goal = objective(
        architecture, [50] * 90, rng.integers(2, size=4500), rng.integers(4, size=4500), **options
    )
    assert len(goal._shards) == 2
    found = []

    def work():
        sampler = SAMPLERS[kind](Plan.of(4, 0.5, 2, 2), n_jobs=2)
        found.append(sample(sampler, goal, architecture.n_parameters))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20.0)
    stuck = thread.is_alive()
    if stuck:  # more threads let the others go on, and the process end
        pool = _parallel._pools[2]
        pool._max_workers += 4
        for _ in range(4):
            pool.submit(int)
        thread.join()
    assert not stuck
    assert found[0].theta.shape == (2, architecture.n_parameters)


@on_host
def test_callbacks_see_every_step_and_may_stop(kind):
    goal, seen = some(3), []
    sampled(kind, goal, callback=lambda step: seen.append(step.iteration) or False)
    assert sorted(seen) == list(range(1, 43))
    stopped = sampled(kind, goal, callback=lambda step: True)
    assert stopped.theta.shape == (3, goal.architecture.n_parameters)
    assert stopped.watched.shape == (3, 1, 2)


@on_host
def test_steps_that_are_told_are_those_of_the_draws(kind):
    goal, values = some(3), {}

    def callback(step):
        assert step.value == pytest.approx(goal.value(step.theta), rel=1e-5)
        values[step.iteration] = step.value
        return False

    draws = sampled(kind, goal, callback=callback)
    watched = -draws.watched[:, :, 0].ravel()
    assert np.isin(watched, list(values.values())).all()


def test_paths_of_many_steps_end_where_they_turn():
    """Against a stiff likelihood steps are small, and a path of NUTS is as long as it pays; the
    draws are those of the Gaussian posterior nevertheless."""
    precision = np.array([0.0, 1.0, 10.0, 100.0])
    theta, draws = draw("nuts", Gaussian(precision), 4, n_steps=300, n_chains=3)
    assert draws.n_evaluations > 6 * 900
    spread = 1.0 / (1.0 + precision)
    z, size = standardised(theta, lambda x: np.hstack([x, x**2]), np.append(np.zeros(4), spread))
    assert size > 150
    assert np.abs(z).max() < 4.5
    assert draws.n_evaluations < 900 * 2**hamiltonian.DEPTH


@pytest.mark.parametrize("kind", ["hmc", "nuts"])
def test_coarse_steps_sample_the_same_posterior(kind):
    """Where half of the proposals are lost, it matters with what probability each is taken."""
    precision = np.array([0.0, 3.0, 30.0])
    plan = Plan.of(*{"hmc": (1500, 0.3, 20, 10**9), "nuts": (2500, 0.2, 3, 10**9)}[kind])
    sampler = SAMPLERS[kind](plan, 0, accept=0.4)
    draws = sampler.draw(Gaussian(precision), 3)
    theta = draws.theta.reshape(-1, plan.n_chains, 3).transpose(1, 0, 2)
    spread = 1.0 / (1.0 + precision)
    z, size = standardised(theta, lambda x: np.hstack([x, x**2]), np.append(np.zeros(3), spread))
    assert size > 200
    assert np.abs(z).max() < 4.5
