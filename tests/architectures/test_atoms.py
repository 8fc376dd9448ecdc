"""Atoms against functions written out from their coefficients and the gram matrices."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.architectures import atoms
from seqfield.architectures.atoms import Atom, Atoms
from seqfield.architectures.lookup import Lookup, Values
from seqfield.kernels.covariance import Matrix
from seqfield.labels import LabelSet
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of

S, N = 3, 8


def grams(seed=0):
    x = np.random.default_rng(seed).normal(size=(N, 2))
    squares = ((x[:, None] - x) ** 2).sum(-1)
    return [np.exp(-0.4 * squares), (1 + x @ x.T) ** 2]


GRAMS = grams()


def covariances(n_kernels=1):
    return [Matrix(None, None, gram, 1) for gram in GRAMS[:n_kernels]]


def vertex(t, y, kernel=0):
    return Atom(kernel, (y,), (t,))


def edge(t, a, b, kernel=0):
    return Atom(kernel, (S + a * S + b,), (t,))


def coordinate(t, a, b):
    return Atom(0, (a, a), (t, N + b))


def sequence(rows, y):
    return Atom(0, (*y, *y[:-1]), (*rows, *(N + b for b in y[1:])))


SETS = {
    "vertices": ([vertex(0, 1), vertex(3, 1), vertex(3, 2), vertex(7, 0)], {}),
    "vertices and edges": (
        [vertex(2, 1), edge(2, 0, 1), edge(5, 0, 1), edge(5, 2, 2), vertex(6, 1)],
        {"edges": True},
    ),
    "coordinates": (
        [coordinate(0, 1, 2), coordinate(3, 1, 2), coordinate(3, 1, 1), vertex(3, 1)],
        {"eta": 0.7},
    ),
    "sequences": (
        [
            sequence((0, 4, 4), (1, 1, 2)),
            sequence((0, 4, 4), (1, 2, 2)),
            sequence((5,), (0,)),
            sequence((3, 3, 3, 3), (2, 2, 2, 2)),
        ],
        {"eta": 1.9, "joint": True},
    ),
    "free transitions": ([vertex(1, 0), vertex(4, 2)], {"free": True, "eta": 2.5}),
    "two kernels": (
        [vertex(1, 0), vertex(1, 0, 1), vertex(4, 0, 1), vertex(2, 2), vertex(2, 1, 1)],
        {"n_kernels": 2, "free": True, "eta": 0.3},
    ),
    "two kernels with edges": (
        [edge(1, 0, 1), edge(1, 0, 1, 1), vertex(1, 2, 1), edge(0, 0, 1), edge(7, 2, 0, 1)],
        {"n_kernels": 2, "free": True, "edges": True},
    ),
}
every = pytest.mark.parametrize("kind", SETS)


@pytest.fixture(params=[True, False], ids=["held", "products"])
def held(request):
    """Whether values are held or come from products with the covariances."""
    return request.param


def build(kind, held, *, parts=1):
    """The atoms of a set, taken in so many batches."""
    atoms, wanted = SETS[kind]
    wanted = dict(wanted)
    out = Atoms(S, covariances(wanted.pop("n_kernels", 1)), held=held, **wanted)
    for some in np.array_split(np.arange(len(atoms)), parts):
        assert out.add([atoms[k] for k in some]) == len(some)
    return out


def inner(a, b, eta):
    """<h_a, h_b> from the gram matrices alone."""
    if a.kernel != b.kernel:
        return 0.0
    total = 0.0
    for c, r in zip(a.columns, a.rows, strict=True):
        for d, q in zip(b.columns, b.rows, strict=True):
            if c == d and r < N and q < N:
                total += GRAMS[a.kernel][r, q]
            elif c == d and r == q:
                total += eta
    return total


def direct(architecture, coefficients, free):
    """The values of sum_j c_j h_j, and of the free transitions."""
    table, steps = np.zeros((N, architecture.n_columns)), np.array(free, dtype=float)
    for atom, value in zip(architecture.atoms, coefficients, strict=True):
        for c, r in zip(atom.columns, atom.rows, strict=True):
            if r < N:
                table[:, c] += value * GRAMS[atom.kernel][:, r]
            else:
                steps[c, r - N] += value * architecture.eta
    return table, steps


@every
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_norm_and_values_are_those_of_the_coefficients(kind, parts, held):
    """|theta|^2 = c' K c + eta |B|^2 with K of inner products of atoms; values by the sum."""
    architecture = build(kind, held, parts=parts)
    atoms, eta = architecture.atoms, architecture.eta
    assert sorted(atoms) == sorted(SETS[kind][0])
    rng = np.random.default_rng(1)
    for _ in range(3):
        theta = rng.normal(size=architecture.n_parameters)
        c = architecture.coefficients(theta[: len(atoms)])
        free = architecture.transitions(theta)
        gram = np.array([[inner(a, b, eta) for b in atoms] for a in atoms])
        norm = c @ gram @ c + (free**2).sum() / eta
        assert theta @ theta == pytest.approx(norm, rel=1e-9)
        values = architecture.lift(theta)
        table, steps = direct(architecture, c, free)
        np.testing.assert_allclose(values.table, table, atol=1e-11)
        np.testing.assert_allclose(values.transitions, steps, atol=1e-11)
        parts_of = [architecture.of_kernel(theta, k) for k in range(len(architecture.covariances))]
        np.testing.assert_allclose(sum(part.table for part in parts_of), table, atol=1e-11)
        np.testing.assert_allclose(
            sum(part.transitions for part in parts_of) + free, steps, atol=1e-11
        )


@every
def test_basis_is_orthonormal(kind, held):
    """<q_i, q_j> = delta_ij, by coefficients of q in the atoms and inner products of those."""
    architecture = build(kind, held, parts=2)
    atoms, p = architecture.atoms, len(architecture.atoms)
    gram = np.array([[inner(a, b, architecture.eta) for b in atoms] for a in atoms])
    c = np.array([architecture.coefficients(unit) for unit in np.eye(p)])
    np.testing.assert_allclose(c @ gram @ c.T, np.eye(p), atol=1e-9)
    # and by the reproducing property: <q_i, h_j> is the sum of the values of q_i at h_j's places
    pad = np.zeros(architecture.n_parameters - p)
    for i, unit in enumerate(np.eye(p)):
        values = architecture.values(
            np.append(unit, pad), [g for g in architecture._groups.values() if i in g.index]
        )
        at = np.array([reproduced(values, atom) for atom in atoms])
        own = [atoms[i].kernel == atom.kernel for atom in atoms]
        np.testing.assert_allclose(at[own], (c[i] @ gram)[own], atol=1e-9)


def reproduced(values, atom):
    pairs = zip(atom.columns, atom.rows, strict=True)
    return sum(values.table[r, c] if r < N else values.transitions[c, r - N] for c, r in pairs)


@every
def test_at_atoms_is_the_reproducing_property(kind, held):
    architecture = build(kind, held)
    rng = np.random.default_rng(2)
    values = Values(rng.normal(size=(N, architecture.n_columns)), rng.normal(size=(S, S)))
    want = [reproduced(values, atom) for atom in architecture.atoms]
    np.testing.assert_allclose(architecture.at_atoms(values), want, rtol=1e-12)


@pytest.mark.parametrize("kind", [k for k in SETS if "kernels" not in k and "free" not in k])
def test_projection(kind, held):
    """Of a function in the span it is the function; of any other the rest is orthogonal."""
    architecture = build(kind, held)
    rng = np.random.default_rng(3)
    theta = rng.normal(size=architecture.n_parameters)
    np.testing.assert_allclose(architecture.project(architecture.lift(theta)), theta, atol=1e-9)
    # a function with a coefficient at every place
    a, b = rng.normal(size=(N, architecture.n_columns)), rng.normal(size=(S, S))
    f = Values(GRAMS[0] @ a, architecture.eta * b)
    part = architecture.lift(architecture.project(f))
    rest = Values(f.table - part.table, f.transitions - part.transitions)
    assert np.abs(rest.table).max() > 0.1
    np.testing.assert_allclose(architecture.at_atoms(rest), 0.0, atol=1e-9)


@every
def test_coefficients_of_a_prefix(kind, held):
    """The first weights alone are a function of the first atoms alone."""
    architecture = build(kind, held, parts=2)
    rng = np.random.default_rng(4)
    p = len(architecture.atoms)
    for k in range(p + 1):
        weights = rng.normal(size=k)
        c = architecture.coefficients(weights)
        assert c.shape == (k,)
        whole = architecture.coefficients(np.append(weights, np.zeros(p - k)))
        np.testing.assert_allclose(whole[:k], c, atol=1e-12)
        np.testing.assert_allclose(whole[k:], 0.0, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 3, 256])
@pytest.mark.parametrize("together", [True, False])
def test_dependent_atoms_are_left_out(together, held, batch, monkeypatch):
    """A linear kernel of two features has two dimensions a column."""
    monkeypatch.setattr(atoms, "BATCH", batch)
    x = np.random.default_rng(5).normal(size=(N, 2))
    architecture = Atoms(S, [Matrix(None, None, x @ x.T, 1)], held=held)
    wanted = [vertex(t, y) for t in range(N) for y in range(S)]
    if together:
        assert architecture.add(wanted) == 2 * S
    else:
        assert [architecture.add([atom]) for atom in wanted] == [1] * 2 * S + [0] * (N - 2) * S
    assert sorted(architecture.atoms) == sorted(wanted[: 2 * S])
    assert architecture.n_parameters == 2 * S
    assert architecture.add([wanted[0], wanted[-1]]) == 0
    # a function with a coefficient at every token is in their span
    f = Values(x @ x.T @ np.random.default_rng(6).normal(size=(N, S)), np.zeros((S, S)))
    theta = architecture.project(f)
    np.testing.assert_allclose(architecture.lift(theta).table, f.table, atol=1e-8)


def test_a_token_of_zeros_is_left_out(held):
    gram = np.diag([1.0, 0.0, 2.0] + [1.0] * (N - 3))
    architecture = Atoms(S, [Matrix(None, None, gram, 1)], held=held)
    assert architecture.add([vertex(1, 0), vertex(2, 0)]) == 1
    assert architecture.atoms == [vertex(2, 0)]


def test_dependent_coordinates(held):
    """(t, a, b) - (t, a, c) - (u, a, b) + (u, a, c) = 0."""
    architecture = Atoms(S, covariances(), eta=0.5, held=held)
    four = [coordinate(t, 1, b) for t in (2, 5) for b in (0, 2)]
    assert architecture.add(four) == 3
    assert architecture.add([coordinate(4, 1, 0), coordinate(4, 1, 2)]) == 1


def test_empty_has_no_atoms(held):
    full = build("two kernels with edges", held)
    full.offset = Values(np.ones((N, full.n_columns)), np.ones((S, S)))
    empty = full.empty()
    assert (empty.atoms, empty.n_parameters, empty.offset) == ([], S * S, None)
    assert empty.held is held
    values = empty.lift(np.zeros(S * S))
    assert not values.table.any()
    assert not values.transitions.any()
    assert values.table.shape == (N, S + S * S)
    assert empty.add(full.atoms) == len(full.atoms)


def test_products_ask_for_the_tokens_of_atoms_alone():
    asked = []

    class Asked(Matrix):
        def columns_times(self, chosen, v):
            asked.append(("columns", chosen.tolist()))
            return super().columns_times(chosen, v)

        def rows_times(self, rows, v):
            asked.append(("rows", rows.tolist()))
            return super().rows_times(rows, v)

        def multiply(self, v):
            raise AssertionError

    architecture = Atoms(S, [Asked(None, None, GRAMS[0], 1)], held=False)
    architecture.add([coordinate(5, 1, 2), vertex(2, 0), vertex(2, 1)])
    objective(architecture).value_and_grad(np.ones(3))
    assert asked == [("columns", [2, 5]), ("rows", [2, 5])]


def objective(architecture, loss=None, seed=0):
    """Sequences over the N tokens with weights and labels that are not all known."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 5, 7))
    rows = [rng.integers(S, size=k).tolist() for k in np.diff(offsets)]
    rows[1][0] = None
    rows[2][-1] = {0, 2}
    numbers = rng.integers(N, size=offsets[-1])
    return Objective(
        architecture,
        loss or LogLoss(),
        ElasticNet(0.0, 0.3),
        Sequences(numbers[:, None].astype(float), offsets),
        LabelSet(range(S)).encode(rows),
        rng.uniform(0.5, 2.0, 7),
        None,
        1,
    )


@every
@pytest.mark.parametrize(
    "loss", [LogLoss(), LogLoss(1.5), MarginalLoss()], ids=["log", "margin", "marginal"]
)
@pytest.mark.parametrize("offset", [False, True])
def test_gradient(kind, loss, offset, held):
    architecture = build(kind, held)
    rng = np.random.default_rng(7)
    if offset:
        size = (N, architecture.n_columns)
        architecture.offset = Values(rng.normal(size=size), rng.normal(size=(S, S)))
    one = objective(architecture, loss)
    theta = rng.normal(size=architecture.n_parameters)
    value, gradient = one.value_and_grad(theta)
    assert value == pytest.approx(one.value(theta), rel=1e-12)
    for k in range(len(theta)):
        step = np.zeros_like(theta)
        step[k] = 1e-5
        slope = (one.value(theta + step) - one.value(theta - step)) / 2e-5
        assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("edges", [False, True])
def test_gradient_of_the_table_itself(edges):
    architecture = Lookup(S, N, edges=edges)
    one = objective(architecture)
    rng = np.random.default_rng(8)
    theta = rng.normal(size=architecture.n_parameters)
    assert len(theta) == N * (S + edges * S * S) + S * S
    _, gradient = one.value_and_grad(theta)
    for k in rng.choice(len(theta), 25, replace=False):
        step = np.zeros_like(theta)
        step[k] = 1e-5
        slope = (one.value(theta + step) - one.value(theta - step)) / 2e-5
        assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_edge_columns_are_transitions_into_the_token():
    """edge[t] = T + table[row of t, S:]; that of a sequence's first token plays no part."""
    architecture = Lookup(S, N, edges=True)
    rng = np.random.default_rng(9)
    values = Values(rng.normal(size=(N, S + S * S)), rng.normal(size=(S, S)))
    rows = np.array([3, 1, 1, 6])
    data = Sequences(rows[:, None].astype(float), np.array([0, 3, 4]))
    scores = architecture.scores(values, architecture.design(data))
    np.testing.assert_array_equal(scores.node, values.table[rows, :S])
    want = values.transitions + values.table[rows, S:].reshape(-1, S, S)
    np.testing.assert_array_equal(scores.edge, want)
