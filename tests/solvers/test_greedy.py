"""Greedy selection against functions written out, enumeration and differences."""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from seqfield.architectures.atoms import Atom, Atoms
from seqfield.architectures.kernel import Gram
from seqfield.architectures.lookup import Lookup
from seqfield.kernels.covariance import Matrix
from seqfield.labels import LabelSet
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers import greedy, pickers
from seqfield.solvers._base import History, Inverse
from seqfield.solvers._clique_loops import mean_field_gains
from seqfield.solvers.greedy import Greedy
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.pickers import Cliques, Coordinates, Labellings, MeanField, steepness

S, N, C2 = 3, 7, 0.4


class Problem(NamedTuple):
    """A tiny learning problem over N distinct tokens, and what a selection of it starts from."""

    objective: Objective
    grams: list
    rows: np.ndarray
    labels: list
    eta: float
    free: bool

    @property
    def offsets(self):
        return self.objective.data.offsets

    @property
    def edges(self):
        return self.objective.architecture.edges

    def atoms(self, held=True):
        covariances = [Matrix(None, None, gram, 1) for gram in self.grams]
        # joint is right for all sets of atoms, and needed for whole labellings
        settings = {"free": self.free, "edges": self.edges, "joint": not self.edges, "held": held}
        return Atoms(S, covariances, eta=self.eta, **settings)

    def start(self):
        return np.zeros(self.objective.architecture.n_parameters)

    def greedy(self, pick, *, held=True, **wanted):
        settings = {"max_iter": 200, "max_atoms": 200, "tol": 1e-13} | wanted
        return Greedy(self.atoms(held), ElasticNet(0.0, C2), pick, **settings)

    def select(self, pick, callback=None, **wanted):
        return self.greedy(pick, **wanted).minimise(self.objective, callback)

    # --- written out ----------------------------------------------------------------------------

    def values(self, atom):
        """The values of an atom's function: a table and transitions."""
        table = np.zeros((N, S + self.edges * S * S))
        steps = np.zeros((S, S))
        for c, r in zip(atom.columns, atom.rows, strict=True):
            if r < N:
                table[:, c] += self.grams[atom.kernel][:, r]
            else:
                steps[c, r - N] += self.eta
        return np.concatenate([table.ravel(), steps.ravel()])

    def at(self, theta, atom):
        """The sum of a function's values at the places of an atom: <f, h>."""
        table, steps = self.objective.architecture.lift(theta)
        pairs = zip(atom.columns, atom.rows, strict=True)
        return sum(table[r, c] if r < N else steps[c, r - N] for c, r in pairs)

    def function(self, selection, k):
        """After k rounds: one part for each kernel, the whole function, and its squared norm."""
        n_atoms = selection.rounds[k - 1].n_atoms if k else 0
        atoms, c = selection.atoms[:n_atoms], selection.coefficients(k)
        assert len(c) == n_atoms
        parts = np.zeros((len(self.grams), len(self.start())))
        for atom, value in zip(atoms, c, strict=True):
            parts[atom.kernel] += value * self.values(atom)
        norm = sum(value * self.at(parts[a.kernel], a) for a, value in zip(atoms, c, strict=True))
        whole = parts.sum(axis=0)
        if self.free and self.eta > 0 and k:
            steps = selection.rounds[k - 1].transitions
            whole[-S * S :] += steps.ravel()
            norm += (steps**2).sum() / self.eta
        return parts, whole, norm

    def derivative(self, parts, whole, atom):
        """Of the regularised risk by the coefficient of an atom, by differences."""
        h = self.values(atom)
        up, down = (self.objective.value(whole + e * h) for e in (1e-5, -1e-5))
        return (up - down) / 2e-5 + C2 * self.at(parts[atom.kernel], atom)

    def sequences(self):
        return [self.rows[a:b].tolist() for a, b in pairwise(self.offsets)]


def problem(seed=0, *, eta=0.6, n_kernels=1, free=False, edges=False, missing=False, n=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2))
    squares = ((x[:, None] - x) ** 2).sum(-1)
    grams = [np.exp(-0.5 * squares), (1 + x @ x.T) ** 2 / 4 + 0.2 * np.eye(N)][:n_kernels]
    offsets = offsets_of(rng.integers(1, 4, n))
    rows = np.concatenate([np.arange(N), rng.integers(N, size=max(0, offsets[-1] - N))])
    rows = rng.permutation(rows[: offsets[-1]])
    labels = [rng.integers(S, size=k).tolist() for k in np.diff(offsets)]
    if missing:
        labels[0][0] = None
        labels[-1][-1] = {0, 2}
    objective = Objective(
        Lookup(S, N, edges=edges),
        LogLoss(),
        ElasticNet(0.0, 0.0),
        Sequences(rows[:, None].astype(float), offsets),
        LabelSet(range(S)).encode(labels),
        rng.uniform(0.5, 2.0, n),
        None,
        1,
    )
    return Problem(objective, grams, rows, labels, eta, free)


def coordinates(p, size=2, rule="largest", seed=0, tol=1e-9):
    rng = np.random.RandomState(seed)
    return Coordinates(p.rows, p.offsets, size, rule, rng, tol)


def labellings(p, size=1, rule="largest", seed=0, tol=1e-9):
    rng = np.random.RandomState(seed)
    return Labellings(p.rows, p.offsets, size, rule, rng, tol)


def all_coordinates(p, i):
    """Every coordinate of a sequence."""
    rows = p.sequences()[i]
    inside = rows[:-1] if p.eta > 0 else []
    pairs = [Atom(0, (a, a), (r, N + b)) for r in inside for a in range(S) for b in range(S)]
    return pairs + [Atom(0, (a,), (r,)) for r in rows[len(inside) :] for a in range(S)]


def all_labellings(p, i):
    rows = p.sequences()[i]
    return [
        Atom(0, (*y, *y[:-1]), (*rows, *(N + b for b in y[1:])))
        for y in product(range(S), repeat=len(rows))
    ]


def all_cliques(p, kernel):
    columns = S + p.edges * S * S
    return [Atom(kernel, (c,), (r,)) for r in range(N) for c in range(columns)]


def dense(p):
    """The optimum over all functions."""
    gram = Gram(S, N, lambda v: p.grams[0] @ v, p.eta)
    goal = p.objective.over(gram, ElasticNet(0.0, C2))
    return LBFGS(max_iter=5000, tol=1e-15).minimise(goal, np.zeros(gram.n_parameters)), gram


CASES = {
    "coordinates": (coordinates, {}),
    "coordinates, missing labels": (coordinates, {"missing": True, "seed": 1}),
    "coordinates, no transitions": (coordinates, {"eta": 0.0}),
    "labellings": (labellings, {}),
    "labellings, missing labels": (labellings, {"missing": True, "seed": 2}),
    "vertex cliques": (lambda p: Cliques(), {"free": True}),
    "edge cliques": (lambda p: Cliques(), {"free": True, "edges": True, "missing": True}),
    "two kernels": (lambda p: Cliques(), {"free": True, "n_kernels": 2}),
    "two kernels with edges": (
        lambda p: Cliques(MeanField(1)),
        {"free": True, "n_kernels": 2, "edges": True},
    ),
    "mean field": (lambda p: Cliques(MeanField(1)), {"free": True, "missing": True}),
}
NEW = [case for case, (_, wanted) in CASES.items() if not wanted.get("free")]
every = pytest.mark.parametrize("case", CASES)


def run(case, **wanted):
    pick, settings = CASES[case]
    p = problem(**settings)
    result = p.select(pick(p), **wanted)
    return p, result, result.selection


# --- what is told of a selection ---------------------------------------------------------------


def check_told(p, result, found, exact=1e-9):
    """Risks, losses and coefficients of all rounds are those of one and the same function."""
    for k, told in enumerate(found.rounds, 1):
        _, whole, norm = p.function(found, k)
        loss = p.objective.value(whole)
        assert told.loss == pytest.approx(loss, rel=exact)
        assert told.risk == pytest.approx(loss + C2 / 2 * norm, rel=exact)
    np.testing.assert_allclose(result.minimum.theta, whole, atol=1e-7)
    assert result.minimum.value == found.rounds[-1].risk
    assert result.minimum.n_iter == len(found.rounds)


@every
def test_update_all(case):
    steps = []
    pick, settings = CASES[case]
    p = problem(**settings)
    result = p.select(pick(p), lambda step: steps.append(step) or False, max_iter=8)
    found = result.selection
    check_told(p, result, found)
    risks = [p.objective.value(p.start()), *(told.risk for told in found.rounds)]
    assert (np.diff(risks) < 1e-9).all()
    assert risks[-1] < risks[0] - 0.5
    assert [step.iteration for step in steps] == list(range(1, 9))
    # the last round is fitted again, as finely as wanted
    np.testing.assert_array_equal([step.value for step in steps[:-1]], risks[1:-1])
    assert risks[-1] <= steps[-1].value < risks[-2]
    # all weights are at their optimum: no derivative by the coefficient of an active atom is left
    parts, whole, _ = p.function(found, len(found.rounds))
    for atom in found.atoms:
        assert p.derivative(parts, whole, atom) == pytest.approx(0.0, abs=3e-4)


@pytest.mark.parametrize("case", NEW)
def test_update_new_changes_the_new_coefficients_alone(case, monkeypatch):
    monkeypatch.setattr(greedy, "SHARE", 0.0)  # every refit as fine as wanted
    p, result, found = run(case, update="new", max_iter=6)
    check_told(p, result, found)
    risks = [p.objective.value(p.start()), *(told.risk for told in found.rounds)]
    assert (np.diff(risks) < 0).all()
    for k in range(1, len(found.rounds) + 1):
        before, now = found.coefficients(k - 1), found.coefficients(k)
        np.testing.assert_array_equal(now[: len(before)], before)
        # those of the round are at their optimum given the others
        parts, whole, _ = p.function(found, k)
        for atom in found.atoms[len(before) : len(now)]:
            assert p.derivative(parts, whole, atom) == pytest.approx(0.0, abs=3e-4)


@pytest.mark.parametrize("case", NEW)
def test_update_last_is_new_and_then_all(case):
    _, _, new = run(case, update="new", max_iter=5)
    p, result, last = run(case, update="last", max_iter=5)
    assert len(last.rounds) == len(new.rounds) == 5
    for k in range(4):
        assert last.rounds[k].risk == new.rounds[k].risk
    assert set(last.atoms) <= set(new.atoms)
    assert last.rounds[-1].n_atoms == len(last.atoms) == len(last.coefficients(5))
    assert last.rounds[-1].risk < new.rounds[-1].risk - 1e-4
    _, whole, norm = p.function(last, 5)
    risk = p.objective.value(whole) + C2 / 2 * norm
    assert result.minimum.value == pytest.approx(risk, rel=1e-9)
    np.testing.assert_allclose(result.minimum.theta, whole, atol=1e-7)
    parts, whole, _ = p.function(last, 5)
    for atom in last.atoms:
        assert p.derivative(parts, whole, atom) == pytest.approx(0.0, abs=3e-4)


@pytest.mark.parametrize(
    ("case", "update"), [(case, "all") for case in CASES] + [(case, "new") for case in NEW]
)
def test_products_with_the_covariances_are_the_same_as_values_held(case, update, monkeypatch):
    monkeypatch.setattr(greedy, "SHARE", 0.0)  # every refit as fine as wanted
    runs = [run(case, update=update, max_iter=6, held=held)[1] for held in (True, False)]
    assert runs[0].selection.atoms == runs[1].selection.atoms
    np.testing.assert_allclose(runs[0].minimum.theta, runs[1].minimum.theta, atol=1e-5)
    risks = [[told.risk for told in result.selection.rounds] for result in runs]
    np.testing.assert_allclose(*risks, rtol=1e-8)


@pytest.mark.parametrize("update", ["all", "new"])
def test_a_refit_begins_where_the_last_one_has_ended(update, monkeypatch):
    """No function is evaluated twice in a row: only where a descent goes."""
    p = problem()
    seen, once = [], Objective.value_and_grad

    def spy(self, theta):
        seen.append(theta.copy())
        return once(self, theta)

    monkeypatch.setattr(Objective, "value_and_grad", spy)
    p.select(coordinates(p), max_iter=4, update=update)
    assert len(seen) > 10
    assert all(not np.array_equal(a, b) for a, b in pairwise(seen))


# --- all atoms are the dense model -------------------------------------------------------------


@pytest.mark.parametrize("update", ["all", "last"])
@pytest.mark.parametrize("size", [1, 4, 500])
@pytest.mark.parametrize("eta", [0.0, 0.6])
def test_all_coordinates_are_the_dense_model(update, size, eta):
    p = problem(eta=eta)
    result = p.select(coordinates(p, size, tol=1e-8), update=update)
    best, gram = dense(p)
    assert result.minimum.value == pytest.approx(best.value, rel=1e-9)
    table, steps = p.objective.architecture.lift(result.minimum.theta)
    want = gram.lift(best.theta)
    np.testing.assert_allclose(table, want.table, atol=1e-6)
    np.testing.assert_allclose(steps, want.transitions, atol=1e-6)


@pytest.mark.parametrize("gain", [steepness, MeanField(1)], ids=["gradient", "mean field"])
def test_all_vertex_cliques_are_the_dense_model(gain):
    p = problem(free=True)
    result = p.select(Cliques(gain))
    best, gram = dense(p)
    assert result.minimum.value == pytest.approx(best.value, rel=1e-9)
    table, steps = p.objective.architecture.lift(result.minimum.theta)
    want = gram.lift(best.theta)
    np.testing.assert_allclose(table, want.table, atol=1e-6)
    np.testing.assert_allclose(steps, want.transitions, atol=1e-6)


@pytest.mark.parametrize("update", ["all", "last"])
def test_all_labelled_sequences_are_the_dense_model(update):
    """The optimum is a combination of labelled sequences (representer theorem)."""
    p = problem()
    atoms = p.atoms()
    atoms.add([atom for i in range(len(p.labels)) for atom in all_labellings(p, i)])
    goal = p.objective.over(atoms, ElasticNet(0.0, C2))
    all_of_them = LBFGS(max_iter=5000, tol=1e-15).minimise(goal, np.zeros(atoms.n_parameters))
    best, _ = dense(p)
    assert all_of_them.value == pytest.approx(best.value, rel=1e-9)
    result = p.select(labellings(p, 2, tol=1e-8), update=update)
    if update == "all":
        assert result.minimum.value == pytest.approx(best.value, rel=1e-8)
    assert best.value - 1e-9 < result.minimum.value < best.value * 1.05


# --- what is picked ----------------------------------------------------------------------------


class Spy:
    """A picker that remembers what it picked."""

    def __init__(self, pick):
        self.pick, self.picked = pick, []

    def __call__(self, slopes, values):
        self.picked.append(self.pick(slopes, values))
        return self.picked[-1]


def spied(p, pick, rounds, **wanted):
    spy = Spy(pick)
    found = p.select(spy, max_iter=rounds, **wanted).selection
    return found, spy.picked[:rounds]


@pytest.mark.parametrize("update", ["all", "new"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("eta", [0.0, 0.6])
@pytest.mark.parametrize("size", [1, 3])
def test_coordinates_are_those_with_the_largest_derivatives(size, eta, missing, update):
    p = problem(seed=3, eta=eta, missing=missing)
    found, picked = spied(p, coordinates(p, size), 5, update=update)
    seen = set()
    for k, atoms in enumerate(picked):
        parts, whole, _ = p.function(found, k)
        by_sequence = []
        for i in range(len(p.labels)):
            all_of_it = dict.fromkeys(all_coordinates(p, i))
            by_sequence.append({a: abs(p.derivative(parts, whole, a)) for a in all_of_it})
        # the sequence with the largest derivative, and of it for each token and label the best next
        # label that is new
        best = max(by_sequence, key=lambda one: max(one.values()))
        tops = {}
        for a in best.keys() - seen:
            place = (len(a.rows), a.rows[0], a.columns[0])
            if place not in tops or best[a] > best[tops[place]]:
                tops[place] = a
        order = sorted(tops.values(), key=best.get, reverse=True)
        assert len(atoms) == min(size, len(order))
        got = sorted(best.get(a, 0.0) for a in atoms)
        np.testing.assert_allclose(got, sorted(best[a] for a in order[:size]), rtol=1e-4)
        assert not seen & set(atoms)
        seen |= set(atoms)


@pytest.mark.parametrize("rule", ["largest", "random"])
def test_rounds_of_several_sequences(rule):
    """A few of each, until there are enough and in proportion to those that are there."""
    p = problem(seed=3, n=12)
    pick = coordinates(p, 2, rule)
    pick.least, pick.growth = 3, 0.5
    found, picked = spied(p, pick, 5)
    n_atoms = [0, *(told.n_atoms for told in found.rounds)]
    for before, atoms in zip(n_atoms, picked, strict=False):
        wanted = max(3, 0.5 * before)
        assert wanted <= len(atoms) <= wanted + 2
    # of the first sequence the two with the largest derivatives
    parts, whole, _ = p.function(found, 0)
    got = sorted(abs(p.derivative(parts, whole, a)) for a in picked[0][:2])
    tops = []
    for i in range(12):
        best = {}
        for a in all_coordinates(p, i):
            place, value = (a.rows[0], a.columns[0]), abs(p.derivative(parts, whole, a))
            best[place] = max(value, best.get(place, 0.0))
        tops.append(sorted(best.values())[-2:])
    near = [np.allclose(got, one, rtol=1e-4) for one in tops]
    assert any(near)
    assert rule == "random" or near[int(np.argmax([one[-1] for one in tops]))]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_labellings_are_those_with_the_largest_derivatives(size, missing):
    p = problem(seed=4, missing=missing)
    found, picked = spied(p, labellings(p, size), 4, update="new")
    seen = set()
    for k, atoms in enumerate(picked):
        parts, whole, _ = p.function(found, k)
        best = []
        for i in range(len(p.labels)):
            slopes = {a: abs(p.derivative(parts, whole, a)) for a in all_labellings(p, i)}
            top = max(slopes, key=slopes.get)
            best.append((slopes[top], top))
        best = sorted(best, reverse=True)
        want = [a for _, a in best if a not in seen][:size]
        assert set(atoms) == set(want)
        seen |= set(atoms)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("n_kernels", [1, 2])
def test_cliques_are_those_with_the_largest_derivatives(n_kernels, edges, missing):
    p = problem(seed=5, n_kernels=n_kernels, edges=edges, missing=missing, free=True)
    found, picked = spied(p, Cliques(), 5)
    for k, atoms in enumerate(picked):
        parts, whole, _ = p.function(found, k)
        if k == 0:  # the free transitions are fitted before the first pick
            whole = first_transitions(p)
        assert [atom.kernel for atom in atoms] == list(range(n_kernels))
        for kernel, atom in enumerate(atoms):
            slopes = {a: abs(p.derivative(parts, whole, a)) for a in all_cliques(p, kernel)}
            assert atom == max(slopes, key=slopes.get)


def first_transitions(p):
    """The function with the free transitions alone."""
    atoms = p.atoms()
    goal = p.objective.over(atoms, ElasticNet(0.0, C2))
    steps = LBFGS(tol=1e-13).minimise(goal, np.zeros(S * S)).theta * np.sqrt(p.eta)
    return np.concatenate([np.zeros(len(p.start()) - S * S), steps])


@pytest.mark.parametrize("picker", [coordinates, labellings])
def test_random_sequences_go_by_the_seed(picker):
    p = problem(n=12)
    runs = [
        p.select(picker(p, 1, "random", seed), max_iter=6, update="new").selection.atoms
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]
    found, picked = spied(p, picker(p, 1, "random", 0), 4, update="new")
    # of the sequence it is the best that is taken
    candidates = all_coordinates if picker is coordinates else all_labellings
    for k, (atom,) in enumerate(picked):
        parts, whole, _ = p.function(found, k)
        rivals = []
        for i in range(12):
            slopes = {a: abs(p.derivative(parts, whole, a)) for a in candidates(p, i)}
            new = {a: v for a, v in slopes.items() if a not in [b for (b,) in picked[:k]]}
            rivals.append(max(new.values(), default=0.0))
        own = abs(p.derivative(parts, whole, atom))
        assert min(abs(own - v) for v in rivals) < 1e-6
    # and not always the best of all
    largest = p.select(picker(p, 1), max_iter=6, update="new").selection.atoms
    assert set(largest) != set(runs[0])


def test_an_atom_is_picked_once():
    for case in CASES:
        pick, settings = CASES[case]
        p = problem(**settings)
        _, picked = spied(p, pick(p), 15)
        atoms = [atom for some in picked for atom in some]
        assert len(atoms) == len(set(atoms)) > 5


# --- when it ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["all", "new"])
@pytest.mark.parametrize("most", [1, 5, 7])
def test_ends_at_so_many_atoms(most, update):
    p = problem()
    result = p.select(coordinates(p, 3), max_atoms=most, update=update)
    found = result.selection
    assert len(found.atoms) == found.rounds[-1].n_atoms == most
    assert len(found.rounds) == result.minimum.n_iter == -(-most // 3)


@pytest.mark.parametrize("most", [1, 4])
def test_ends_after_so_many_rounds(most):
    p = problem()
    assert p.select(coordinates(p, 3), max_iter=most).minimum.n_iter == most


def test_ends_if_told_to():
    p = problem()
    result = p.select(coordinates(p, 2), lambda step: step.iteration == 3)
    assert result.minimum.n_iter == 3


@pytest.mark.parametrize("tol", [0.5, 0.1])
def test_ends_where_all_derivatives_are_small(tol):
    p = problem()
    found, picked = spied(p, coordinates(p, 1, tol=tol), 200)
    assert 1 < len(found.rounds) < 60
    parts, whole, _ = p.function(found, len(found.rounds))
    every_one = [a for i in range(len(p.labels)) for a in all_coordinates(p, i)]
    assert max(abs(p.derivative(parts, whole, a)) for a in every_one) <= tol * (1 + 1e-4)
    for k, (atom,) in enumerate(picked[: len(found.rounds)]):
        parts, whole, _ = p.function(found, k)
        assert abs(p.derivative(parts, whole, atom)) > tol * (1 - 1e-4)


def test_ends_at_once_where_nothing_can_be_gained():
    p = problem()
    result = p.select(coordinates(p, 1, tol=1e6))
    assert (result.minimum.n_iter, result.selection.atoms, result.selection.rounds) == (0, [], [])
    assert result.minimum.value == pytest.approx(p.objective.value(p.start()), rel=1e-12)
    assert not result.minimum.theta.any()
    assert len(result.selection.coefficients(0)) == 0


@pytest.mark.parametrize("gain_tol", [0.3, 0.02])
def test_ends_after_a_small_gain(gain_tol):
    p = problem(free=True)
    found = p.select(Cliques(), gain_tol=gain_tol).selection
    start = p.objective.value(first_transitions(p))
    steps = first_transitions(p)[-S * S :]
    risks = [start + C2 / 2 * (steps @ steps) / p.eta, *(told.risk for told in found.rounds)]
    gains = -np.diff(risks)
    assert len(gains) > 1
    assert (gains[:-1] >= gain_tol - 1e-6).all()
    assert gains[-1] < gain_tol


def constant(size):
    """A gain that does not tell candidates apart."""
    return lambda slopes, values, kernel: np.full_like(slopes.own[kernel].table, size)


@pytest.mark.parametrize("size", [0.0, -0.0, np.nan])
def test_where_gains_underflow_the_steepest_clique_is_taken(size):
    p = problem(free=True, n_kernels=2, edges=True)
    steepest, found = (p.select(Cliques(gain)).selection for gain in (steepness, constant(size)))
    assert found.atoms == steepest.atoms
    assert len(found.atoms) > 20


def test_small_gains_do_not_end_the_selection():
    """Only derivatives tell what is rounding: gains may fall by any amount."""
    p, falling = problem(free=True), iter(0.1 ** np.arange(0.0, 2000.0, 10.0))

    def gain(slopes, values, kernel):
        return next(falling) * steepness(slopes, values, kernel)

    steepest, found = (p.select(Cliques(one)).selection for one in (steepness, gain))
    assert found.atoms == steepest.atoms


def test_what_is_rounding_goes_by_the_kernel():
    p = problem(free=True, n_kernels=2)
    large = p._replace(grams=[1e12 * p.grams[0], p.grams[1]])
    found = large.select(Cliques(), max_iter=3).selection
    assert [atom.kernel for atom in found.atoms] == [0, 1, 0, 1, 0, 1]


def test_cliques_outside_the_span_of_atoms():
    """Against least squares in a root of the gram matrices; columns and kernels do not mix."""
    p = problem(free=True, n_kernels=2, edges=True)
    x = np.random.default_rng(0).normal(size=(N, 2))
    p = p._replace(grams=[p.grams[0], x @ x.T])
    atoms = p.atoms()
    atoms.add([Atom(0, (0,), (2,)), Atom(1, (0,), (3,)), Atom(1, (0,), (5,)), Atom(1, (4,), (1,))])
    want = np.ones((2, N, S + S * S), bool)
    want[0, 2, 0] = False
    want[1, :, 0] = False  # two tokens span all linear functions of two features
    want[1, 1, 4] = False
    for kernel in (0, 1):
        np.testing.assert_array_equal(pickers.outside(atoms, kernel), want[kernel])


@pytest.mark.parametrize("gain", [steepness, MeanField(1)], ids=["gradient", "mean field"])
def test_picks_in_vain_do_not_end_the_selection(gain):
    """Most candidates are in the span of a few, and a coarse refit leaves derivatives there."""
    p, copies = problem(free=True), 30
    rows = np.arange(N * copies) % N
    sequences = np.array_split(rows, copies)
    known = LabelSet(range(S)).encode([[int(t % S) for t in row] for row in sequences])
    many = Objective(
        Lookup(S, len(rows)),
        LogLoss(),
        ElasticNet(0.0, 0.0),
        Sequences(np.arange(len(rows))[:, None].astype(float), offsets_of([N] * copies)),
        known,
        np.ones(copies),
        None,
        1,
    )
    # a large constant: what tells tokens apart is small beside what a coarse refit leaves
    gram = (1e5 + p.grams[0])[np.ix_(rows, rows)]
    atoms = Atoms(S, [Matrix(None, None, gram, 1)], eta=0.6, free=True)
    chosen = Greedy(atoms, ElasticNet(0.0, C2), Cliques(gain), 500, 500)
    result = chosen.minimise(many)
    dual = Gram(S, len(rows), lambda v: gram @ v, 0.6)
    best = LBFGS(max_iter=5000, tol=1e-12).minimise(
        many.over(dual, ElasticNet(0.0, C2)), np.zeros(dual.n_parameters)
    )
    assert len(result.selection.atoms) == S * N
    assert result.minimum.value == pytest.approx(best.value, rel=1e-4)


# --- the mean-field gain -----------------------------------------------------------------------


def occupancies(p, theta):
    """Marginals of labels and pairs by enumeration: free, and given what is known."""
    table, steps = p.objective.architecture.lift(theta)
    free = np.zeros((len(p.rows), S + p.edges * S * S))
    held = free.copy()
    for (a, b), known in zip(pairwise(p.offsets), p.labels, strict=True):
        rows = p.rows[a:b]
        options = [range(S) if v is None else (v if isinstance(v, set) else {v}) for v in known]
        logs, marks, lawful = [], [], []
        for y in product(range(S), repeat=b - a):
            score, mark = 0.0, np.zeros((b - a, free.shape[1]))
            for t, label in enumerate(y):
                score += table[rows[t], label]
                mark[t, label] = 1
                if t:
                    score += steps[y[t - 1], label]
                    if p.edges:
                        pair = S + y[t - 1] * S + label
                        score += table[rows[t], pair]
                        mark[t, pair] = 1
            logs.append(score)
            marks.append(mark)
            lawful.append(all(v in o for v, o in zip(y, options, strict=True)))
        w = np.exp(np.array(logs) - max(logs))
        free[a:b] = np.tensordot(w / w.sum(), marks, 1)
        w = w * lawful
        held[a:b] = np.tensordot(w / w.sum(), marks, 1)
    weights = np.repeat(p.objective.weights, np.diff(p.offsets))
    return free, held, weights


class Both:
    """Two gains at once: steepness goes on, the other is remembered."""

    def __init__(self):
        self.found = []

    def __call__(self, slopes, values, kernel):
        self.found.append(MeanField(1)(slopes, values, kernel))
        return steepness(slopes, values, kernel)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("n_kernels", [1, 2])
def test_mean_field_gain_is_the_minimum_of_its_formula(n_kernels, edges, missing):
    p = problem(seed=6, n_kernels=n_kernels, edges=edges, missing=missing, free=True)
    gain = Both()
    found = p.select(Cliques(gain), max_iter=3).selection
    for k in range(3):
        parts, whole, _ = p.function(found, k)
        if k == 0:
            whole = first_transitions(p)
        free, held, w = occupancies(p, whole)
        for kernel in range(n_kernels):
            got = gain.found[k * n_kernels + kernel]
            for atom in all_cliques(p, kernel)[:: 5 if edges else 2]:
                (t,), (c,) = atom.rows, atom.columns
                gram = p.grams[kernel]
                h, mine, gold = gram[p.rows, t], free[:, c], held[:, c]
                own = p.at(parts[kernel], atom)

                def change(a, h=h, mine=mine, gold=gold, own=own, square=gram[t, t], w=w):
                    moved = np.log1p(mine * np.expm1(a * h)) - a * gold * h
                    return w @ moved + C2 * a * own + C2 / 2 * a * a * square

                best = minimize_scalar(change, bracket=(-1.0, 1.0), tol=1e-12)
                assert got[t, c] == pytest.approx(-best.fun, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("n_kernels", [1, 2])
def test_mean_field_gain_is_exact_without_transitions(n_kernels):
    """Tokens are then independent: it is the fall of the risk with this one coefficient."""
    p = problem(seed=7, n_kernels=n_kernels, eta=0.0, free=True)
    gain = Both()
    found = p.select(Cliques(gain), max_iter=3).selection
    for k in range(3):
        parts, whole, norm = p.function(found, k)
        risk = p.objective.value(whole) + C2 / 2 * norm
        for kernel in range(n_kernels):
            for atom in all_cliques(p, kernel):
                h, own = p.values(atom), p.at(parts[kernel], atom)
                square = p.grams[kernel][atom.rows[0], atom.rows[0]]

                def after(a, h=h, own=own, square=square, whole=whole, norm=norm):
                    new = norm + 2 * a * own + a * a * square
                    return p.objective.value(whole + a * h) + C2 / 2 * new

                best = minimize_scalar(after, bracket=(-1.0, 1.0), tol=1e-10)
                got = gain.found[k * n_kernels + kernel][atom.rows[0], atom.columns[0]]
                assert got == pytest.approx(risk - best.fun, rel=1e-6, abs=1e-8)


def test_mean_field_gain_of_large_kernels():
    """exp(a h) would overflow in the first Newton step."""
    p = problem(seed=6, free=True)
    large = p._replace(grams=[1e6 * gram for gram in p.grams])
    gain = Both()
    large.select(Cliques(gain), max_iter=1)
    assert np.isfinite(gain.found[0]).all()
    assert (gain.found[0] > 0).any()


@pytest.mark.parametrize("p", [0.0, 1.0, -1e-17, 1.0 + 2.0**-52])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6])
def test_mean_field_gain_where_marginals_are_certain(scale, p):
    """log(p e^z + 1 - p) is 0 or z however large z is, so the risk is a parabola."""
    h, held, w = scale * np.array([[1.0, -0.5], [-0.5, 1.0]]), np.array([0.2, 0.7]), np.ones(2)
    own, out = np.zeros((2, 1)), np.zeros((2, 1))
    free = np.full((2, 1), p)
    mean_field_gains(h, np.arange(2), free, held[:, None], w, own, C2, np.arange(2), out)
    slope = h @ (round(p) - held)
    np.testing.assert_allclose(out[:, 0], slope**2 / (2 * C2 * scale), rtol=1e-12)


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_mean_field_gain_for_every_number_of_threads(n_jobs):
    p = problem(seed=6, free=True, edges=True)
    alone, many = (p.select(Cliques(MeanField(k)), max_iter=6).selection.atoms for k in (1, n_jobs))
    assert alone == many


# --- the inverse Hessian -----------------------------------------------------------------------


def quadratic(n=6, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n))
    return root @ root.T + 0.3 * np.eye(n), rng


def test_one_pair_gives_the_direction_of_the_history():
    a, rng = quadratic()
    inverse, history = Inverse(6), History(6, 6)
    g = rng.normal(size=6)
    np.testing.assert_array_equal(inverse.direction(g), -g)
    step = rng.normal(size=6)
    for one in (inverse, history):
        one.push(step, np.zeros(6), a @ step, np.zeros(6))
        assert len(one) == 1
    np.testing.assert_allclose(inverse.direction(g), history.direction(g), rtol=1e-10)


def test_pairs_of_the_same_scale_give_the_directions_of_the_history():
    """Where s'y / y'y is the same for all pairs the first guess is, too."""
    a, rng = quadratic()
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    a = 2.5 * np.eye(6) + np.zeros_like(a)
    inverse, history = Inverse(6), History(6, 6)
    for k in range(6):
        g = rng.normal(size=6)
        step = turn[k] * rng.uniform(0.5, 2.0)
        for one in (inverse, history):
            one.push(step, np.zeros(6), a @ step, np.zeros(6))
        np.testing.assert_allclose(inverse.direction(g), history.direction(g), rtol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "pairs"])
def test_exact_steps_on_a_quadratic_find_its_inverse(kind):
    """After n conjugate steps BFGS knows the inverse Hessian, whatever it began with."""
    a, rng = quadratic()
    n = len(a)
    approximation = Inverse(n) if kind == "dense" else History(n, n)
    theta, b = np.zeros(n), rng.normal(size=n)
    gradient = -b
    for _ in range(n):
        direction = approximation.direction(gradient)
        step = -(gradient @ direction) / (direction @ a @ direction)
        new = theta + step * direction
        approximation.push(new, theta, a @ new - b, gradient)
        theta, gradient = new, a @ new - b
    np.testing.assert_allclose(theta, np.linalg.solve(a, b), rtol=1e-8)
    for v in rng.normal(size=(4, n)):
        np.testing.assert_allclose(approximation.direction(v), -np.linalg.solve(a, v), rtol=1e-7)


def test_inverse_is_the_bfgs_formula():
    a, rng = quadratic()
    inverse, want = Inverse(6), None
    for _ in range(9):
        s = rng.normal(size=6)
        y = a @ s
        old, before = rng.normal(size=6), rng.normal(size=6)
        inverse.push(old + s, old, before + y, before)
        if want is None:
            want = np.eye(6) * (s @ y) / (y @ y)
        left = np.eye(6) - np.outer(s, y) / (s @ y)
        want = left @ want @ left.T + np.outer(s, s) / (s @ y)
    got = np.array([-inverse.direction(unit) for unit in np.eye(6)])
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)
    # a step without curvature teaches nothing
    inverse.push(s, np.zeros(6), -y, np.zeros(6))
    assert len(inverse) == 9
    np.testing.assert_array_equal(np.array([-inverse.direction(u) for u in np.eye(6)]), got)
    inverse.clear()
    assert len(inverse) == 0
    np.testing.assert_array_equal(inverse.direction(s), -s)


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.parametrize("kind", ["dense", "pairs"])
def test_widened(kind, at):
    """Old parameters stay in their places, new ones come in between and are on their own."""
    a, rng = quadratic(5)
    approximation = Inverse(5) if kind == "dense" else History(8, 5)
    for _ in range(4):
        s = rng.normal(size=5)
        approximation.push(s, np.zeros(5), a @ s, np.zeros(5))
    g = rng.normal(size=5)
    want = approximation.direction(g)
    wide = approximation.widened(at, 3)
    assert len(wide) == 4
    new = np.arange(at, at + 3)
    old = np.setdiff1d(np.arange(8), new)
    given = np.zeros(8)
    given[old] = g
    found = wide.direction(given)
    np.testing.assert_allclose(found[old], want, rtol=1e-9)
    np.testing.assert_array_equal(found[new], 0.0)
    given[new] = [1.0, -2.0, 4.0]
    found = wide.direction(given)
    np.testing.assert_allclose(found[old], want, rtol=1e-9)
    scale = -found[new] / given[new]
    assert scale[0] > 0
    np.testing.assert_allclose(scale, scale[0], rtol=1e-9)
    # it learns in all of them
    wide.push(np.ones(8), np.zeros(8), np.full(8, 2.0), np.zeros(8))
    np.testing.assert_allclose(wide.direction(np.full(8, 2.0)), -1.0, rtol=1e-9)
