"""What may be known of labels: missing ones, candidates, schemes, and labels that data lack."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import seqfield as sf
from seqfield.data.schemes import get_scheme
from seqfield.errors import SchemeError

from ..support.estimators import (
    BIO,
    CONVEX,
    JOINT,
    LENGTHS,
    NAMES,
    PROBABILISTIC,
    WORDS,
    X,
    Y,
    every,
    fingerprint,
    fitted,
    has,
    having,
    labellings,
    lawful,
    likelihood,
    make,
    quiet,
    same_optimum,
    speaking,
    tight,
    where,
)

pytestmark = quiet

# --- missing labels -------------------------------------------------------------------------------


def candidates(label):
    return sorted(label) if isinstance(label, set | frozenset) else [label]


@having("c1")
@pytest.mark.parametrize("observed_only", [True, False])
def test_missing_labels_train_on_the_marginal_likelihood(name, observed_only):
    """The objective is that of all labellings that agree with what is known, by enumeration."""
    X1, full = X[:6], [list(row) for row in Y[:6]]
    y1 = [list(row) for row in full]
    y1[0][0] = None
    y1[1][-1] = {"L0", "L2"}
    y1[2] = None
    y1[3][0] = frozenset({"L0", "L1", "L2"})
    model = tight(name, X1, y1, c2=0.5, observed_only=observed_only)
    want = model.c2 / 2 * model.theta_ @ model.theta_
    for x, row in zip(X1, y1, strict=True):
        row = [None] * len(x) if row is None else row
        options = [model.classes_.tolist() if v is None else candidates(v) for v in row]
        fits = [list(y) for y in product(*options)]
        want -= np.logaddexp.reduce(model.log_likelihood([x] * len(fits), fits))
    assert model.objective_ == pytest.approx(want, rel=1e-10)
    # stationary: no direction improves
    # stationary: no direction improves
    theta, function = model.theta_, model.function_
    for k in np.random.default_rng(0).choice(len(theta), 8, replace=False):
        for step in (1e-3, -1e-3):
            moved = theta.copy()
            moved[k] += step
            model.function_ = replace(function, theta=moved)
            value = model.c2 / 2 * moved @ moved - model.log_likelihood(X1, y1).sum()
            assert value > want - 1e-9


def holes():
    """Labels of which a third is missing, with candidates and a sequence without any."""
    y = [[None if (i + t) % 3 == 0 else v for t, v in enumerate(row)] for i, row in enumerate(Y)]
    y[1][2] = {"L0", "L2"}
    y[3][-1] = frozenset({"L0", "L1"})
    y[7] = None
    return y


@every
def test_labels_may_be_missing_or_candidates(name):
    model = make(name, **speaking(name)).fit(X, holes())
    assert model.classes_.tolist() == ["L0", "L1", "L2"]
    assert model.score(X, Y) > 0.5
    for p in model.predict_proba(X):
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-9)
    # they are no other model: holes tell less than labels
    full = fitted(name, **speaking(name))
    assert not np.array_equal(fingerprint(model), fingerprint(full))


@every
def test_ways_to_say_the_same_of_a_label(name):
    """A set of one is a label; a set of all, None and the missing label are nothing."""
    want = fingerprint(make(name).fit(X, holes()))
    other = holes()
    ways = [None, {"L0", "L1", "L2"}, "?", frozenset({"L0", "L1", "L2"})]
    for i, row in enumerate(other):
        if row is None:
            other[i] = ["?"] * len(X[i])
            continue
        for t, v in enumerate(row):
            row[t] = ways[(i + t) % 4] if v is None else {v} if isinstance(v, str) else v
    model = make(name, missing_label="?").fit(X, other)
    np.testing.assert_array_equal(fingerprint(model), want)


@where(lambda name: not has(name, "emission"))  # a generative model does learn from x alone
def test_an_unlabelled_sequence_changes_nothing(name):
    extra = [np.random.default_rng(0).normal(size=(5, 4))]
    # a kernel that takes nothing from the data, where there is one
    plain = {"kernel": sf.kernels.RBF(1.0)} if has(name, "kernel") else {}
    if name in CONVEX:
        same_optimum(tight(name, **plain), tight(name, X + extra, [*Y, None], **plain))
        return
    a, b = make(name, **plain).fit(X, Y), make(name, **plain).fit(X + extra, [*Y, None])
    # their way stays the same too: draws go by the seed, and the seed by nothing else
    np.testing.assert_array_equal(fingerprint(a), fingerprint(b))


@having("emission")
def test_an_unlabelled_sequence_changes_a_generative_model(name):
    extra = [np.random.default_rng(0).normal(size=(5, 4))]
    a, b = fitted(name), make(name).fit(X + extra, [*Y, None])
    assert not np.array_equal(fingerprint(a), fingerprint(b))


# --- constraints ----------------------------------------------------------------------------------

STRENGTHS = [
    pytest.param(name, params, id=f"{name}-{params}")
    for name in NAMES
    for params in ([{"c2": 0.01}, {"c2": 1e6}] if has(name, "c2") else [{}])
]


@pytest.mark.parametrize(("name", "params"), STRENGTHS)
def test_scheme_holds_everywhere(name, params):
    """Also with weights near zero, where unconstrained labels would be any."""
    model = fitted(name, "words", scheme="BIO", **params, **speaking(name))
    rng = np.random.default_rng(0)
    odd = [[(f"new{rng.integers(9)}", "XX") for _ in range(length)] for length in (1, 2, 5, 9)]
    for x in (WORDS, odd):
        said = model.distribution(x)
        assert lawful(said.best())
        assert lawful(said.best("posterior"))
        assert all(lawful(y for y, _ in best) for best in said.nbest(n=20))
        assert all(lawful(rows) for rows in said.sample(n=30, random_state=0))
    one = [[("and", "CC")]]
    assert set(np.array(model.classes_)[model.predict_proba(one)[0][0] > 0]) == {
        "O",
        "B-LOC",
        "B-PER",
    }
    plain = fitted(name, "words", scheme="BIO", **params)
    assert lawful(plain.predict(WORDS) + plain.predict(odd))


@every
def test_forbidden_labellings_have_probability_zero(name):
    model = fitted(name, "words", scheme="BIO", **speaking(name))
    x = [WORDS[0][:1] * 3]
    found = labellings(model, 3)
    logs = model.log_likelihood(x * len(found), found)
    legal = np.array([lawful([y]) for y in found])
    assert 0 < legal.sum() < len(found)
    assert (logs[~legal] == -np.inf).all()
    assert np.exp(logs[legal]).sum() == pytest.approx(1.0, rel=1e-10)
    # not fully known and yet impossible: nothing to sum over
    assert model.log_likelihood(x, [["I-PER", None, "O"]])[0] == -np.inf
    both = model.log_likelihood(x * 2, [[None, None, "O"], ["O", "I-PER", None]])
    assert both[1] == -np.inf
    assert np.isfinite(both[0])


@having("c2")
def test_scheme_holds_in_training(name):
    """The objective counts only lawful labellings, so it is lower than without the scheme."""
    model = tight(name, WORDS, BIO, scheme="BIO", c2=0.5)
    if hasattr(model, "theta_"):
        penalty = model.c2 / 2 * model.theta_ @ model.theta_
        want = penalty - model.log_likelihood(WORDS, BIO).sum()
        assert model.objective_ == pytest.approx(want, rel=1e-10)
    free = tight(name, WORDS, BIO, c2=0.5)
    assert model.objective_ < free.objective_


TABLE = [("L0", "L1"), ("L1", "L0"), ("L1", "L2"), ("L2", "L2"), (None, "L0"), ("L2", None)]


@every
@pytest.mark.parametrize(
    "table",
    [TABLE, tuple(TABLE), {"L0": ["L1"], "L1": {"L0", "L2"}, "L2": ["L2", None], None: ["L0"]}],
)
def test_explicit_table_of_transitions(name, table):
    X1 = [x for x in X if len(x) > 2]
    patterns = {3: ["L0", "L1", "L2"], 4: ["L0", "L1", "L2", "L2"]}
    X1 = [x[: 3 + k % 2] for k, x in enumerate(X1)]
    X1 = [x for x in X1 if len(x) in patterns]
    model = make(name, scheme=table, **speaking(name)).fit(X1, [patterns[len(x)] for x in X1])
    legal = set(TABLE)
    for rows in model.distribution(X1).sample(n=20, random_state=0):
        for row in rows:
            assert set(zip([None, *row], [*row, None], strict=True)) <= legal
    for row in model.predict(X1):
        assert set(zip([None, *row], [*row, None], strict=True)) <= legal


@every
def test_violations_in_training_labels_are_named(name):
    bad = [list(row) for row in BIO]
    i = next(k for k, row in enumerate(bad) if "I-PER" in row)
    t = bad[i].index("I-PER")
    bad[i][t - 1] = "O"
    with pytest.raises(SchemeError, match=rf"sequence {i}, position {t}: 'I-PER' after 'O'"):
        make(name, scheme="BIO").fit(WORDS, bad)
    with pytest.raises(SchemeError, match="on_violation='repair'"):
        make(name, scheme="BIO").fit(WORDS, bad)
    first = [list(row) for row in BIO]
    first[2][0] = "I-LOC"
    with pytest.raises(SchemeError, match="sequence 2, position 0: 'I-LOC' after the start"):
        make(name, scheme="BIO").fit(WORDS, first)
    table = [("L0", "L1"), ("L1", "L0"), ("L1", None)]
    with pytest.raises(SchemeError, match="sequence 0, position 2: the end after 'L0'"):
        make(name, scheme=table).fit([np.ones((3, 1))], [["L0", "L1", "L0"]])
    with pytest.raises(SchemeError, match=r"position 1: \{'L0'\} after 'L0' is not allowed"):
        make(name, scheme=table, on_violation="repair", classes=["L0", "L1"]).fit(
            [np.ones((2, 1))], [["L0", {"L0"}]]
        )


@every
def test_repair_mends_the_labels_and_only_them(name):
    bad = [list(row) for row in BIO]
    changed = 0
    for row in bad:
        for t, label in enumerate(row):
            if label == "B-PER" and t > 0 and row[t - 1] == "O":
                row[t] = "I-PER"
                changed += 1
    assert changed > 2
    copied = copy.deepcopy(bad)
    model = make(name, scheme="BIO", on_violation="repair").fit(WORDS, bad)
    assert bad == copied
    want = make(name, scheme="BIO").fit(WORDS, [get_scheme("BIO").repair(row) for row in bad])
    np.testing.assert_array_equal(fingerprint(model, WORDS), fingerprint(want, WORDS))


@every
def test_repair_may_need_labels_that_did_not_occur(name):
    """IOB1 labels have no B- where spans do not touch; as BIO each span begins with one."""
    iob = [["I" + v[1:] if v != "O" else v for v in row] for row in BIO]
    model = make(name, scheme="BIO", on_violation="repair").fit(WORDS, iob)
    assert {"B-PER", "I-PER", "B-LOC", "I-LOC", "O"} == set(model.classes_)
    assert lawful(model.predict(WORDS))


@every
@pytest.mark.parametrize("hole", [None, "?", {"B-PER", "B-LOC"}, {"O"}])
def test_repair_with_labels_that_are_not_known(name, hole):
    bad = [list(row) for row in BIO]
    i = next(k for k, row in enumerate(bad) if len(row) >= 4)
    bad[i] = ["I-PER", "I-PER", "O", hole, *bad[i][4:]]
    bad[i][4:] = ["O"] * len(bad[i][4:])
    model = make(name, scheme="BIO", on_violation="repair", missing_label="?").fit(WORDS, bad)
    assert lawful(model.predict(WORDS))


# --- classes --------------------------------------------------------------------------------------


@every
def test_classes_that_training_lacks(name):
    model = make(name, classes=["L3", "L2", "L1", "L0"], **speaking(name)).fit(X, Y)
    assert model.classes_.tolist() == ["L3", "L2", "L1", "L0"]
    p = model.predict_proba(X)
    assert all(part.shape[1] == 4 for part in p)
    never = model.log_likelihood(X, [["L3"] * length for length in LENGTHS])
    known = model.log_likelihood(X, Y)
    assert (never < known).mean() > (0.9 if name in PROBABILISTIC else 0.8)
    assert never.sum() < 2 * known.sum()
    plain = make(name, classes=["L0", "L1", "L2"]).fit(X, Y)
    np.testing.assert_array_equal(fingerprint(plain), fingerprint(fitted(name)))


@where(lambda name: name in PROBABILISTIC and name not in JOINT)
def test_pseudo_likelihood_of_a_label_that_training_lacks(name):
    model = make(name, classes=["L3", "L2", "L1", "L0"]).fit(X, Y)
    never = likelihood(model, X, [["L3"] * length for length in LENGTHS])
    assert (never < likelihood(model, X, Y)).mean() > 0.9


@every
def test_candidates_have_no_part_in_a_score(name):
    """Sets of candidates count no more than missing labels, also where sequences have weights."""
    model = fitted(name)
    vague = [list(row) for row in Y]
    blank = [list(row) for row in Y]
    for i in (0, 3):
        vague[i][0], blank[i][0] = {"L0", "L1"}, None
    weights = np.linspace(0.5, 2.0, len(X))
    assert model.score(X, vague) == model.score(X, blank)
    assert model.score(X, vague, weights) == model.score(X, blank, weights)
