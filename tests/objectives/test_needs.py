"""Every method with every architecture, loss and prior: it works, or it says what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.architectures._base import Architecture, LiftsMany, Touches
from seqfield.architectures._jax import DeviceGram
from seqfield.architectures.atoms import Atom, Atoms
from seqfield.architectures.dual import Dual
from seqfield.architectures.inducing import Inducing
from seqfield.architectures.kernel import Gram
from seqfield.architectures.linear import Linear
from seqfield.architectures.lookup import Lookup
from seqfield.architectures.neighbours import Neighbours
from seqfield.architectures.rooted import Rooted
from seqfield.errors import CapabilityError
from seqfield.kernels import RBF
from seqfield.kernels._jax import OnDevice
from seqfield.kernels.covariance import Matrix
from seqfield.labels import Targets
from seqfield.losses._base import Loss, ScoreGradient
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.losses.piecewise import PiecewiseLoss
from seqfield.objectives import needs
from seqfield.objectives.needs import Need, Parts, check
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import DualProblem, LinearProblem, WhitenedProblem
from seqfield.priors import ElasticNet
from seqfield.samplers._base import Draws, Plan
from seqfield.samplers.device_slice import DeviceSlice
from seqfield.samplers.elliptical_slice import EllipticalSlice
from seqfield.samplers.hamiltonian import Hamiltonian, NoUTurn
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers._base import Minimum, Solver
from seqfield.solvers.boosting import Boosting
from seqfield.solvers.device import DeviceLBFGS
from seqfield.solvers.greedy import Greedy
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.margin import MaxMargin
from seqfield.solvers.newton import NewtonCG
from seqfield.solvers.owlqn import OWLQN
from seqfield.solvers.perceptron import Perceptron
from seqfield.solvers.pickers import Cliques, MeanField
from seqfield.solvers.restarts import Restarts
from seqfield.solvers.sgd import SGD
from seqfield.variational._expectations import ChainLikelihood
from seqfield.variational.em import VariationalEM
from seqfield.variational.problems import InducingProblem, NeighbourProblem
from seqfield.variational.svi import StochasticVariational

S, N = 2, 5
RNG = np.random.default_rng(0)
OFFSETS = offsets_of([3, 1, 4, 2])
TOTAL = int(OFFSETS[-1])
TOKENS = RNG.normal(size=(N, 2))
ROWS = np.arange(TOTAL) % N
GRAM = RBF(1.0)(TOKENS)
ROOT = np.linalg.cholesky(GRAM)
CODES = RNG.integers(S, size=TOTAL).astype(np.int32)
TARGETS = Targets(CODES, None, OFFSETS)
WEIGHTS = RNG.uniform(0.5, 2.0, 4)
NUMBERED = Sequences(ROWS[:, None].astype(float), OFFSETS)
POINTS = Sequences(TOKENS[ROWS], OFFSETS)
SPARSE = Sequences(sp.csr_array((RNG.random((TOTAL, 4)) < 0.5).astype(float)), OFFSETS)
EDGED = Sequences(SPARSE.x, OFFSETS, sp.csr_array((RNG.random((TOTAL, 2)) < 0.5).astype(float)))
COVARIANCE = Matrix(RBF(1.0), TOKENS, GRAM, 1)


def atoms(*, edges=False, some=True):
    found = Atoms(S, [COVARIANCE], eta=0.5, free=True, edges=edges)
    if some:
        found.add([Atom(0, (0,), (1,)), Atom(0, (1,), (3,))])
    return found


@cache  # every one is compiled anew
def on_device():
    covariance = OnDevice.of(RBF(1.0), TOKENS, budget=1e9, dtype="float64", n_jobs=1, advice="")
    return DeviceGram(S, covariance)


#: how each architecture is made, and the data that it lays out
ARCHITECTURES = {
    "linear": (lambda: Linear.build(SPARSE, TARGETS, S), SPARSE),
    "linear, dense": (lambda: Linear.build(POINTS, TARGETS, S), POINTS),
    "linear, edge features": (lambda: Linear.build(EDGED, TARGETS, S), EDGED),
    "table": (lambda: Lookup(S, N), NUMBERED),
    "table, edges": (lambda: Lookup(S, N, edges=True), NUMBERED),
    "gram": (lambda: Gram(S, N, lambda v: GRAM @ v, 0.5), NUMBERED),
    "gram on a device": (on_device, NUMBERED),
    "rooted": (lambda: Rooted(S, ROOT, 0.5), NUMBERED),
    "dual": (lambda: Dual(S, COVARIANCE, 0.5), NUMBERED),
    "atoms": (atoms, NUMBERED),
    "atoms, edges": (lambda: atoms(edges=True), NUMBERED),
    "neighbours": (lambda: Neighbours(S, ROOT, (-1, 1)), NUMBERED),
    "inducing": (lambda: Inducing(S, RBF(1.0), TOKENS[:3], 0.5), POINTS),
}


class Squared(Loss):
    """A user's own: half the squared distance of node scores from the labels' indicators."""

    def __call__(self, scores, targets, weights):
        far = scores.node - targets.mask(S)
        each = np.repeat(weights, np.diff(targets.offsets))[:, None] * far
        return ScoreGradient(0.5 * float((each * far).sum()), each, np.zeros_like(scores.edge))

    def values(self, scores, targets):
        far = scores.node - targets.mask(S)
        return 0.5 * np.add.reduceat((far**2).sum(axis=1), targets.offsets[:-1])


LOSSES = {
    "none": None,
    "log": LogLoss(),
    "softmax margin": LogLoss(1.0),
    "marginal": MarginalLoss(),
    "exponential": ExponentialLoss(),
    "piecewise": PiecewiseLoss(),
    "own": Squared(),
}
PRIORS = {
    "flat": ElasticNet(0.0, 0.0),
    "L2": ElasticNet(0.0, 0.7),
    "L1": ElasticNet(0.2, 0.0),
    "L1 and L2": ElasticNet(0.2, 0.7),
}


@dataclass(frozen=True)
class Slow(Solver):
    """A user's own: one step down the gradient."""

    needs = (needs.SCORES, needs.LOSS, needs.NO_L1)

    def minimise(self, objective, theta, callback=None):
        check(self, objective)
        _, gradient = objective.value_and_grad(theta)
        theta = theta - 1e-3 * gradient
        return Minimum(theta, *objective.value_and_grad(theta), 1, False)


PLAN = Plan.of(4, 0.5, 2, 2)
#: one iteration of each
METHODS = {
    "lbfgs": lambda a: LBFGS(max_iter=1),
    "owlqn": lambda a: OWLQN(max_iter=1),
    "newton": lambda a: NewtonCG(max_iter=1),
    "newton, block": lambda a: NewtonCG(max_iter=1, block=True),
    "sgd": lambda a: SGD(max_iter=1, batch_size=2),
    "restarts": lambda a: Restarts(LBFGS(max_iter=1), n=1),
    "own": lambda a: Slow(),
    "device": lambda a: DeviceLBFGS(max_iter=1),
    "perceptron": lambda a: Perceptron(max_iter=1),
    "boosting": lambda a: Boosting(max_iter=1),
    "margin": lambda a: MaxMargin(max_iter=1),
    "greedy": lambda a: greedy(a, Cliques()),
    "greedy, mean field": lambda a: greedy(a, Cliques(MeanField(1))),
    "ess": lambda a: EllipticalSlice(PLAN),
    "ess on a device": lambda a: DeviceSlice(PLAN),
    "hmc": lambda a: Hamiltonian(PLAN),
    "nuts": lambda a: NoUTurn(PLAN),
    "em": lambda a: VariationalEM(max_iter=1, n_jobs=1),
    "svi": lambda a: StochasticVariational(max_iter=1, n_mc=2),
}
SAMPLERS = (EllipticalSlice, DeviceSlice, Hamiltonian, NoUTurn)


def greedy(architecture, pick):
    edges = getattr(architecture, "edges", False)
    return Greedy(atoms(edges=edges, some=False), ElasticNet(0.0, 0.5), pick, 1, 1)


def run(method, architecture, loss, prior, data):
    """One iteration of a method on what it takes; theta, or draws of it."""
    check(method, Parts(architecture, loss, prior))
    rest = data, TARGETS, WEIGHTS
    if isinstance(method, VariationalEM):
        return method.fit(NeighbourProblem.of(architecture, *rest)).theta
    if isinstance(method, StochasticVariational):
        likelihood = ChainLikelihood(LogLoss(), None)
        return method.fit(InducingProblem(architecture, *rest, likelihood)).mean
    zero = np.zeros(architecture.n_parameters)
    if isinstance(method, Boosting):
        return method.minimise(LinearProblem.of(architecture, *rest), zero).minimum.theta
    if isinstance(method, MaxMargin):
        return method.minimise(DualProblem(architecture, *rest)).minimum.theta
    if isinstance(method, Perceptron):
        kind = DualProblem if isinstance(architecture, Dual) else LinearProblem.of
        return method.minimise(kind(architecture, *rest), zero).theta
    if isinstance(method, EllipticalSlice | DeviceSlice):
        return method.sample(WhitenedProblem.of(architecture, *rest, n_jobs=1)).theta
    objective = Objective(architecture, loss, prior, *rest, None, 1)
    if isinstance(method, SAMPLERS):
        return method.sample(objective).theta
    if isinstance(method, Greedy):
        return method.minimise(objective).minimum.theta
    return method.minimise(objective, zero).theta


def works(name, kind, loss, prior):
    """Whether a combination is one that makes sense: written down by hand."""
    flat, smooth = prior == "flat", prior in ("flat", "L2")
    if name == "em":
        return kind == "neighbours" and loss == "none" and flat
    if name == "svi":
        return kind == "inducing" and loss == "none" and flat
    if kind in ("neighbours", "inducing"):
        return False
    if name == "perceptron":
        return (kind.startswith("linear") or kind == "dual") and loss == "none" and flat
    if name == "boosting":
        return kind in ("linear", "linear, dense") and loss == "none" and flat
    if name == "margin":
        return kind == "dual" and loss == "none" and flat
    if name.startswith("ess"):
        return kind == "rooted" and loss in ("none", "log") and flat
    if loss == "none" or (loss == "piecewise" and "edge" in kind):
        return False
    plain = not kind.startswith("gram")
    return {
        "lbfgs": smooth,
        "restarts": smooth,
        "own": smooth,
        "owlqn": plain,
        "newton": smooth and loss in ("log", "softmax margin"),
        "newton, block": smooth and loss in ("log", "softmax margin"),
        "sgd": smooth and kind.startswith("linear") and loss != "exponential",
        "device": smooth and kind == "gram on a device" and loss in ("log", "softmax margin"),
        "greedy": kind.startswith("table") and flat,
        "greedy, mean field": kind.startswith("table") and flat,
        "hmc": kind == "rooted" and flat and loss != "exponential",
        "nuts": plain and flat and loss != "exponential",
    }[name]


NAMED = [need for need in vars(needs).values() if isinstance(need, Need)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_combination_works_or_says_what_is_needed(name, kind):
    make, data = ARCHITECTURES[kind]
    for loss, prior in product(LOSSES, PRIORS):
        architecture = make()
        method = METHODS[name](architecture)
        given = architecture, LOSSES[loss], PRIORS[prior], data
        if works(name, kind, loss, prior):
            assert np.isfinite(run(method, *given)).all(), (loss, prior)
            continue
        with pytest.raises(CapabilityError) as caught:
            run(method, *given)
        told = str(caught.value)
        assert told.startswith(f"{type(method).__name__} needs "), (loss, prior)
        parts = Parts(*given[:3])
        lacking = [n for n in (*method.needs, needs.SHARED) if not n.holds(parts)]
        assert lacking
        assert all(need.told in told for need in lacking)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_works_with_something(name):
    every = product(ARCHITECTURES, LOSSES, PRIORS)
    assert any(works(name, *combination) for combination in every)


def test_needs_are_checked_before_anything_is_computed():
    """Solvers check the objective that they are given, whoever called them."""

    class Silent(Objective):
        def value_and_grad(self, theta):
            raise AssertionError

        batches = curvature = each_value_and_grad = value = value_and_grad

    rest = SPARSE, TARGETS, WEIGHTS, None, 1
    bad = Silent(Linear.build(SPARSE, TARGETS, S), ExponentialLoss(), ElasticNet(1.0, 1.0), *rest)
    theta = np.zeros(bad.architecture.n_parameters)
    for method in (LBFGS(), NewtonCG(), SGD(), Restarts(LBFGS()), Slow(), DeviceLBFGS()):
        with pytest.raises(CapabilityError, match="needs"):
            method.minimise(bad, theta)
    for sampler in (Hamiltonian(PLAN), NoUTurn(PLAN)):
        with pytest.raises(CapabilityError, match="needs"):
            sampler.sample(bad)
    with pytest.raises(CapabilityError, match="needs the score table"):
        greedy(bad.architecture, Cliques()).minimise(bad)
    edged = LinearProblem.of(Linear.build(EDGED, TARGETS, S), EDGED, TARGETS, WEIGHTS)
    with pytest.raises(CapabilityError, match=r"no edge features.*plain B line"):
        Boosting().minimise(edged, np.zeros(edged.architecture.n_parameters))


def test_all_that_is_missing_is_told_with_what_to_use():
    parts = Parts(Gram(S, N, lambda v: GRAM @ v), ExponentialLoss(), ElasticNet(0.1, 0.0))
    with pytest.raises(CapabilityError) as caught:
        check(SGD(), parts)
    told = str(caught.value)
    assert "touches: use Linear" in told
    assert "minibatches: use solver='lbfgs'" in told
    assert "(c1=0): use OWLQN" in told
    assert [need.name in told for need in (needs.SCORES, needs.LOSS)] == [False, False]


def test_plain_functions_have_nothing_to_check():
    check(SGD(), object())


def test_needs_have_names_and_remedies():
    assert len({need.name for need in NAMED}) == len(NAMED) > 15
    for need in NAMED:
        assert need.name
        assert need.instead.split()[0] in ("use", "give", "leave")


def test_abilities_are_those_of_the_architectures():
    made = {kind: make() for kind, (make, _) in ARCHITECTURES.items()}
    scoring = {kind for kind, one in made.items() if isinstance(one, Architecture)}
    assert scoring == set(made) - {"neighbours", "inducing"}
    assert {k for k, one in made.items() if isinstance(one, Touches)} == {
        "linear",
        "linear, dense",
        "linear, edge features",
    }
    assert {kind for kind, one in made.items() if isinstance(one, LiftsMany)} == {"rooted"}
    for kind in scoring:
        one, data = made[kind], ARCHITECTURES[kind][1]
        theta = 0.1 * np.random.default_rng(1).normal(size=one.n_parameters)
        assert one.plain == (one.dual(theta) is theta), kind
        scores = one.scores(one.lift(theta), one.design(data))
        assert one.stationary == scores.stationary, kind


def test_draws_of_a_sampler_are_a_result_of_their_own():
    problem = WhitenedProblem.of(Rooted(S, ROOT, 0.5), NUMBERED, TARGETS, WEIGHTS, n_jobs=1)
    found = EllipticalSlice(PLAN).sample(problem)
    assert isinstance(found, Draws)
    assert found.n_iter == 8
    assert found.mean.shape == (problem.architecture.n_parameters,)
