"""Support sequences: what a maximum-margin model consists of, and how it is told."""

from __future__ import annotations

import numpy as np
import pytest

import seqfield as sf
from seqfield.kernels import RBF
from seqfield.labels import is_missing
from seqfield.solvers.support import Support, SupportSequence

from ..support.margins import MARGINS, SLACKS
from ..support.sequences import numbers

every = pytest.mark.parametrize("slack", SLACKS)
each = pytest.mark.parametrize("margin", MARGINS)

FOUND = [
    SupportSequence(1, 0.5, (0, 2), ("A", "C")),
    SupportSequence(1, 0.25, (1,), ("A",)),
    SupportSequence(3, 0.125, (0,), ("B",)),
    SupportSequence(6, 2.0, (0, 1, 2), ("A", "A", "A")),
]
GOLD = {1: ["B", "B", "A"], 3: ["A", None], 6: ["C", "C", "C"]}
SUPPORT = Support(FOUND, GOLD, 8)
EMPTY = Support([], {}, 5)


def make(kernel="linear", **wanted):
    return sf.HMSVM(kernel, **{"random_state": 0, "n_jobs": 1} | wanted)


def chain(n=8, apart=1.0, seed=0):
    rng = np.random.default_rng(seed)
    y = [rng.integers(3, size=l).tolist() for l in np.append([1, 4], rng.integers(1, 5, n - 2))]
    X = [rng.normal(size=(len(row), 3)) + apart * np.eye(3)[row] for row in y]
    return X, y


# --- the table ---------------------------------------------------------------------------------


def test_counts_and_means():
    assert len(SUPPORT) == 4
    assert SUPPORT.of(1) == FOUND[:2]
    assert SUPPORT.of(3) == FOUND[2:3]
    assert SUPPORT.of(2) == []
    assert SUPPORT.without == pytest.approx(1 - 3 / 8)
    assert SUPPORT.mean_count == pytest.approx(4 / 3)
    assert SUPPORT.mean_distance == pytest.approx((2 + 1 + 1 + 3) / 4)


def test_nothing_has_counts_and_means_too():
    assert (len(EMPTY), EMPTY.without, EMPTY.mean_count, EMPTY.mean_distance) == (0, 1.0, 0.0, 0.0)
    assert str(EMPTY).startswith("0 support sequences of 0 training sequences; 100.0 % of 5")
    assert len(str(EMPTY).splitlines()) == 2


def test_show_has_rows_of_tokens_labels_and_differences():
    assert [line.split() for line in SUPPORT.show(1, ["the", "old", "cat"]).splitlines()] == [
        ["the", "old", "cat"],
        ["B", "B", "A"],
        ["0.5", "A", ".", "C"],
        ["0.25", ".", "A", "."],
    ]
    assert SUPPORT.show(1).splitlines() == [
        "      B  B  A",
        " 0.5  A  .  C",
        "0.25  .  A  .",
    ]


def test_show_aligns_long_tokens():
    lines = SUPPORT.show(6, ["a", "longer", "b"]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[-1].endswith("A       A  A")


@pytest.mark.parametrize(("most", "rows"), [(0, 1), (1, 2), (2, 3), (10, 3)])
def test_show_has_at_most_so_many(most, rows):
    lines = SUPPORT.show(1, most=most).splitlines()
    assert len(lines) == rows
    assert most == 0 or lines[1].split()[0] == "0.5"


def test_show_marks_labels_that_are_not_known():
    assert SUPPORT.show(3).splitlines()[0].split() == ["A", "?"]


def test_show_tells_that_there_are_none():
    assert SUPPORT.show(2) == "sequence 2 has no support sequences"


def test_print_tells_numbers_and_the_largest_sequences_first():
    lines = str(SUPPORT).splitlines()
    assert lines[0] == ("4 support sequences of 3 training sequences; 62.5 % of 8 have none")
    assert lines[1].startswith("1.33 for each that has some, 1.75 positions")
    assert [line for line in lines if line.startswith("sequence")] == [
        "sequence 6:",
        "sequence 1:",
        "sequence 3:",
    ]
    assert SUPPORT.show(6) in str(SUPPORT)


def test_print_tells_three_sequences_and_five_labellings_at_most():
    found = [SupportSequence(i, 1.0 + i, (0,), ("A",)) for i in range(5) for _ in range(7)]
    lines = str(Support(found, {i: ["B"] for i in range(5)}, 5)).splitlines()
    assert [line for line in lines if line.startswith("sequence")] == [
        f"sequence {i}:" for i in (4, 3, 2)
    ]
    assert sum(line.endswith("A") for line in lines) == 15


# --- the labellings of a fit -------------------------------------------------------------------


def whole(support, y, i):
    """Labels of the support sequences of sequence i."""
    for one in support.of(i):
        row = list(y[i])
        for t, label in zip(one.positions, one.labels, strict=True):
            row[t] = label
        yield one, row


def rebuilt(model, X, y):
    """Weights (D, S) and transitions (S, S) from the support sequences and the user's data."""
    s, index = len(model.classes_), {label: k for k, label in enumerate(model.classes_.tolist())}
    w, steps = np.zeros((X[0].shape[1], s)), np.zeros((s, s))
    for i in range(len(X)):
        for one, row in whole(model.support_, y, i):
            h = len(one.positions) if model.margin == "slack" else 1
            for labels, sign in ((y[i], 1), (row, -1)):
                codes = [index.get(v, -1) for v in labels if not isinstance(v, set)]
                assert len(codes) == len(labels)
                for t, k in enumerate(codes):
                    if t in one.positions:
                        w[:, k] += sign * one.coefficient * h * X[i][t]
                    if t > 0 and min(k, codes[t - 1]) >= 0:
                        steps[codes[t - 1], k] += sign * one.coefficient * h
    return w, steps


@every
@each
@pytest.mark.parametrize("eta", [1.0, 0.4])
def test_the_model_is_the_sum_of_its_support(slack, margin, eta):
    X, y = chain(apart=5.0 if slack == "hard" else 1.0)
    model = make(C=0.5, slack=slack, margin=margin, eta=eta, explicit=False).fit(X, y)
    assert len(model.support_) > 2
    w, steps = rebuilt(model, X, y)
    found = model.function_.scores(model.encode(X))
    np.testing.assert_allclose(found.node, np.vstack(X) @ w, atol=1e-10)
    np.testing.assert_allclose(model.transitions_, eta * steps, atol=1e-10)


@each
def test_sequences_keep_the_users_numbers_and_positions(margin):
    """Also where others have no weight or no labels, or are known in part."""
    X, y = chain(12, seed=1)
    weights = np.ones(12)
    weights[[0, 5]] = 0.0
    y[2] = None
    long = [i for i in range(12) if y[i] is not None and len(y[i]) > 2 and weights[i]]
    y[long[0]][1] = y[long[1]][0] = None
    model = make(C=0.5, margin=margin).fit(X, y, sample_weight=weights)
    support = model.support_
    assert support.n_sequences == 9
    named = {one.sequence for one in support.sequences}
    assert named.isdisjoint({0, 2, 5})
    assert {long[0], long[1], 11} <= named == set(support.gold)
    for one in support.sequences:
        assert support.gold[one.sequence] == y[one.sequence]
        assert list(one.positions) == sorted(set(one.positions))
        for t, label in zip(one.positions, one.labels, strict=True):
            assert not is_missing(y[one.sequence][t], None)
            assert label in (0, 1, 2)
            assert label != y[one.sequence][t]
    kept = [i for i in range(12) if weights[i] and y[i] is not None]
    w, steps = rebuilt(model, X, [y[i] if i in kept else [0] * len(x) for i, x in enumerate(X)])
    found = model.function_.scores(model.encode(X))
    np.testing.assert_allclose(found.node, np.vstack(X) @ w, atol=1e-10)
    np.testing.assert_allclose(model.transitions_, steps, atol=1e-10)


@each
@pytest.mark.parametrize("holes", [False, True])
def test_coefficients_fall_within_a_sequence_and_are_bounded(margin, holes):
    X, y = chain(12, seed=2)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 12)
    if holes:
        for row in y:
            row[len(row) // 2] = None if len(row) > 2 else row[len(row) // 2]
    model = make(C=0.5, margin=margin, tol=1e-4, max_iter=5000).fit(X, y, sample_weight=weights)
    order = [(one.sequence, -one.coefficient) for one in model.support_.sequences]
    assert order == sorted(order)
    n_runs = [1 + any(v is None for v in row) for row in y]
    for i in range(12):
        total = sum(one.coefficient for one in model.support_.of(i))
        assert total <= 0.5 * weights[i] * n_runs[i] * (1 + 1e-12)
    assert min(one.coefficient for one in model.support_.sequences) > 0
    assert max(len(model.support_.of(i)) for i in range(12)) > 1


def test_separable_data_need_less_with_a_large_c():
    X, y = numbers(30, noise=0.3)
    small, large = (make(C=C).fit(X, y) for C in (1e-3, 100.0))
    assert small.support_.without == 0.0
    assert large.support_.without > 0.5
    assert len(large.support_) < len(small.support_)
    # with little weight all slacks are paid in full, with much there are none
    for i in range(30):
        paid = sum(one.coefficient for one in small.support_.of(i))
        assert paid == pytest.approx(1e-3, rel=1e-9)
        assert sum(one.coefficient for one in large.support_.of(i)) < 50.0


def test_print_of_a_fit_shows_its_labels():
    X, y = numbers(10, noise=1.5)
    support = make(RBF(2.0)).fit(X, y).support_
    text = str(support)
    assert text.startswith(f"{len(support)} support sequences of {len(support.gold)} training")
    assert "L0" in text
    i = support.sequences[0].sequence
    tokens = [f"token{t}" for t in range(len(y[i]))]
    shown = support.show(i, tokens, most=1).splitlines()
    assert shown[0].split() == tokens
    assert shown[1].split() == y[i]
    one = support.of(i)[0]
    row = [dict(zip(one.positions, one.labels, strict=True)).get(t, ".") for t in range(len(y[i]))]
    assert shown[2].split() == [f"{one.coefficient:.3g}", *row]


def test_a_new_fit_has_its_own_support():
    X, y = numbers(10, noise=1.5)
    model = make().fit(X, y)
    before = model.support_
    model.fit(X[:5], y[:5])
    assert model.support_.n_sequences == 5
    assert before.n_sequences == 10
