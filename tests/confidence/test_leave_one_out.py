"""Approximate leave-one-out against refits, dense algebra, differences and enumeration."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from scipy.stats import spearmanr

import seqfield as sf
from seqfield.chain import ChainScores, marginals
from seqfield.chain.reference import enumerate_labellings
from seqfield.confidence import _left_out, choose_c2, leave_one_out_proba
from seqfield.confidence._left_out import LeftOut, covariances
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._base import constrained
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet

TEMPLATE = "U0:%x[0,0]\nU1:%x[-1,0]\nU2:%x[0,1]\nB"
EDGE_TEMPLATE = "U0:%x[0,0]\nB0:%x[0,1]"
TIGHT = {"tol": 1e-10, "max_iter": 5000, "n_jobs": 1}


def words(n=25, seed=0):
    """Token rows whose labels follow a chain and show in the words, more or less."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, 6, n):
        k = np.cumsum(rng.integers(2, size=length)) % 3
        shown = np.where(rng.random(length) < 0.9, k, rng.integers(3, size=length))
        X.append([(f"w{a}{rng.integers(4)}", f"t{rng.integers(2)}") for a in shown])
        y.append(["ABC"[a] for a in k])
    return X, y


def points(n=25, seed=0):
    rng = np.random.default_rng(seed)
    y = [rng.integers(3, size=length) for length in rng.integers(1, 6, n)]
    return [np.eye(3)[row] + rng.normal(size=(len(row), 3)) for row in y], [
        row.tolist() for row in y
    ]


def crf(template=TEMPLATE, **options):
    return sf.CRF(sf.Template(template), **({"c2": 1.0} | TIGHT | options))


def gpsc(**options):
    kernel = sf.kernels.RBF(1.0)
    return sf.GPSC(kernel, solver="newton", tol=1e-10, n_jobs=1, **options)


def refitted(model, X, y, i, weight=None):
    """The model without sequence i, its features and weights being those of all data."""
    own = np.ones(len(X)) if weight is None else np.array(weight, float)
    own[i] = 0.0
    twin = copy.deepcopy(model)
    twin.warm_start = isinstance(model, sf.CRF)
    return twin.fit(X, y, sample_weight=own)


def true_log_likelihood(model, X, y, weight=None):
    twins = (refitted(model, X, y, i, weight) for i in range(len(X)))
    return np.concatenate([m.log_likelihood([X[i]], [y[i]]) for i, m in enumerate(twins)])


def masked(y):
    return [[None if (i + t) % 4 == 0 else v for t, v in enumerate(r)] for i, r in enumerate(y)]


def candidates(y):
    return [[{"A", v} if (i + t) % 4 == 0 else v for t, v in enumerate(r)] for i, r in enumerate(y)]


def left_out(model, X, y, weight=None):
    """The algebra of a fitted CRF, and its objective."""
    lesson = model.lesson(X, y, sample_weight=weight)
    goal, _ = model.optimum(lesson)
    [scores] = constrained([model.function_.scores(lesson.data)], model.constraint_)
    args = (goal.architecture, lesson.data, lesson.targets, lesson.weights)
    return LeftOut(*args, goal.loss.free(scores, lesson.targets), goal.prior.c2), goal, args


# --- its parts --------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 4])
def test_covariances_match_enumeration(length):
    rng, s = np.random.default_rng(length), 3
    scores = ChainScores(rng.normal(size=(length, s)), rng.normal(size=(length, s, s)))
    scores.edge[:, 1, 2] = -np.inf
    # counts of pairs: some count several pairs, some share one
    n_counts, per_step = 4, 6
    steps = range(1, length)
    column = np.concatenate([rng.integers(s * s, size=per_step) for _ in steps] or [[]])
    k = np.concatenate([rng.integers(n_counts, size=per_step) for _ in steps] or [[]])
    value = rng.normal(size=len(k))
    column, k = column.astype(np.int64), k.astype(np.int64)
    ptr = np.concatenate([[0, 0], per_step * np.arange(1, length)])[: length + 1]
    found = enumerate_labellings(scores)
    f = np.zeros((len(found.labels), n_counts + length * s))
    f[:, n_counts:] = np.eye(s)[found.labels].reshape(len(f), -1)
    for t in steps:
        pair = found.labels[:, t - 1] * s + found.labels[:, t]
        for e in range(ptr[t], ptr[t + 1]):
            f[:, k[e]] += value[e] * (pair == column[e])
    mean = found.expect(f)
    covariance = found.expect(f[:, :, None] * f[:, None]) - np.outer(mean, mean)
    out, out_mean = np.zeros_like(covariance), np.zeros_like(mean)
    _, node, pairs = marginals(scores, pairs="each")
    covariances(node, pairs, ptr, k, column, value, out, out_mean)
    np.testing.assert_allclose(out_mean, mean, atol=1e-13)
    np.testing.assert_allclose(out, covariance, atol=1e-13)


@pytest.mark.parametrize("template", [TEMPLATE, EDGE_TEMPLATE])
@pytest.mark.parametrize("loss", ["log", "softmax_margin"])
def test_derivatives_of_one_sequence(template, loss):
    X, y = words(8)
    model = crf(template, loss=loss).fit(X, y)
    weight = np.linspace(0.5, 2.0, len(X))
    direct, goal, (architecture, *rest) = left_out(model, X, y, weight)
    i, theta = 3, model.theta_
    alone = Objective(
        architecture, goal.loss, ElasticNet(0.0, 0.0), *(part[[i]] for part in rest), None, 1
    )
    part = direct._part(i)
    gradient = np.zeros(len(theta))
    gradient[part.weights] = part.jacobian.T @ part.slope
    hessian = np.zeros((len(theta),) * 2)
    block = part.jacobian.T @ (part.jacobian.T @ part.covariance).T
    hessian[np.ix_(part.weights, part.weights)] = block
    eps, eye = 1e-5, np.eye(len(theta))
    up, down = ([alone.value_and_grad(theta + r * e) for e in eye] for r in (eps, -eps))
    slopes = [(a[0] - b[0]) / (2 * eps) for a, b in zip(up, down, strict=True)]
    curves = [(a[1] - b[1]) / (2 * eps) for a, b in zip(up, down, strict=True)]
    np.testing.assert_allclose(gradient, slopes, atol=1e-8)
    np.testing.assert_allclose(hessian, curves, atol=1e-8)


@pytest.mark.parametrize("template", [TEMPLATE, EDGE_TEMPLATE])
def test_direct_steps_match_dense_algebra(template):
    X, y = words(12)
    weight = np.linspace(0.5, 2.0, len(X))
    model = crf(template).fit(X, y, sample_weight=weight)
    direct, goal, (architecture, data, *_) = left_out(model, X, y, weight)
    direct.solve()
    h = goal.curvature(model.theta_)(np.eye(len(model.theta_)))
    for i in range(len(X)):
        part = direct._part(i)
        j = np.zeros((len(part.slope), len(h)))
        j[:, part.weights] = part.jacobian.toarray()
        step = np.linalg.solve(h - j.T @ part.covariance @ j, j.T @ part.slope)
        wanted = architecture.score(step, data[i])
        move = direct.move(i)
        np.testing.assert_allclose(move.node, wanted.node, atol=1e-7)
        edge = np.broadcast_to(wanted.edge, move.edge.shape)
        np.testing.assert_allclose(move.edge[1:], edge[1:], atol=1e-7)


def test_rare_weights_may_be_counted_as_unshared(monkeypatch):
    X, y = words(60)
    model = crf().fit(X, y)
    exact, before = leave_one_out_proba(model, X, y), model.log_likelihood(X, y)
    monkeypatch.setattr(_left_out, "LARGEST", 60)
    direct = left_out(model, X, y)[0]
    assert direct.feasible
    assert 1 < direct.rest <= _left_out.RARE
    error = leave_one_out_proba(model, X, y).log_likelihood - exact.log_likelihood
    assert 0 < np.abs(error).mean() < 0.05 * np.abs(exact.log_likelihood - before).mean()


@pytest.mark.parametrize("loss", ["log", "softmax_margin"])
def test_direct_and_conjugate_gradients_agree(loss, monkeypatch):
    X, y = words()
    model = crf(loss=loss).fit(X, y)
    direct = leave_one_out_proba(model, X, y)
    monkeypatch.setattr(_left_out, "LONGEST", 0)
    rough = leave_one_out_proba(model, X, y)
    change = np.abs(direct.log_likelihood - model.log_likelihood(X, y)).mean()
    assert np.abs(direct.log_likelihood - rough.log_likelihood).mean() < 0.01 * change
    monkeypatch.setattr("seqfield.confidence.leave_one_out.TOLERANCE", 1e-7)
    fine = leave_one_out_proba(model, X, y)
    np.testing.assert_allclose(fine.log_likelihood, direct.log_likelihood, atol=1e-6)
    np.testing.assert_allclose(np.vstack(fine.proba), np.vstack(direct.proba), atol=1e-6)


# --- against refits ---------------------------------------------------------------------------

CASES = {
    "crf": (crf, words, lambda y: y, None),
    "edge features": (partial(crf, EDGE_TEMPLATE), words, lambda y: y, None),
    "numbers": (partial(sf.CRF, c2=1.0, **TIGHT), points, lambda y: y, None),
    "softmax margin": (partial(crf, loss="softmax_margin"), words, lambda y: y, None),
    "weights": (crf, words, lambda y: y, np.linspace(0.3, 2.0, 25)),
    "missing": (crf, words, masked, None),
    "candidates": (crf, words, candidates, None),
    "gpsc": (gpsc, points, lambda y: y, None),
    "gpsc tokens": (partial(gpsc, transitions=False), points, lambda y: y, None),
}


@pytest.mark.parametrize("case", CASES)
def test_close_to_refits(case):
    make, data, change, weight = CASES[case]
    X, y = data()
    y = change(y)
    model = make().fit(X, y, sample_weight=weight)
    before = model.log_likelihood(X, y)
    found = leave_one_out_proba(model, X, y, sample_weight=weight).log_likelihood
    true = true_log_likelihood(model, X, y, weight)
    assert np.abs(found - true).mean() < 0.1 * np.abs(before - true).mean()
    assert spearmanr(found, true).statistic > 0.98


def test_probabilities_close_to_refits():
    X, y = words()
    model = crf(c2=3.0).fit(X, y)
    left, before = leave_one_out_proba(model, X, y), model.predict_proba(X)
    true = [refitted(model, X, y, i).predict_proba([X[i]])[0] for i in range(len(X))]
    error, moved = (
        np.abs(np.concatenate(p) - np.concatenate(true)).mean() for p in (left.proba, before)
    )
    assert error < 0.05 * moved


def test_error_vanishes_faster_than_the_change():
    X, y = words(15)
    left_over = []
    for c2 in (3.0, 30.0, 300.0):
        model = crf(c2=c2).fit(X, y)
        true = true_log_likelihood(model, X, y)
        found = leave_one_out_proba(model, X, y).log_likelihood
        change = np.abs(model.log_likelihood(X, y) - true).mean()
        left_over.append(np.abs(found - true).mean() / change)
    assert left_over[1] < 0.4 * left_over[0]
    assert left_over[2] < 0.2 * left_over[1]
    assert left_over[2] < 1e-3


def test_choice_of_c2_is_that_of_refits():
    X, y = words(18)
    rng = np.random.default_rng(0)
    y = [[v if rng.random() < 0.85 else "ABC"[rng.integers(3)] for v in row] for row in y]
    tried = [0.03, 0.3, 3.0, 30.0]
    chosen = choose_c2(crf(tol=1e-8), X, y, tried)
    true = [true_log_likelihood(crf(c2=c2, tol=1e-8).fit(X, y), X, y).mean() for c2 in tried]
    assert (chosen.c2, chosen.tried) == (0.3, tried)
    assert tried[int(np.argmax(true))] == 0.3
    np.testing.assert_allclose(chosen.log_likelihood[2:], true[2:], atol=0.02)


# --- what it takes and gives ------------------------------------------------------------------


def test_without_a_part_in_the_fit_nothing_changes():
    X, y = words()
    weight = np.ones(len(X))
    weight[3], y[5] = 0.0, None
    model = crf().fit(X, y, sample_weight=weight)
    left, before = leave_one_out_proba(model, X, y, sample_weight=weight), model.predict_proba(X)
    for i in (3, 5):
        np.testing.assert_allclose(left.proba[i], before[i], atol=1e-12)
    assert left.log_likelihood[3] == pytest.approx(model.log_likelihood(X[3:4], y[3:4])[0])
    assert left.log_likelihood[5] == pytest.approx(0.0, abs=1e-12)
    assert np.abs(left.proba[4] - before[4]).max() > 1e-3


@pytest.mark.parametrize("model", [crf(c2=10.0), gpsc(c2=10.0)], ids=["crf", "gpsc"])
def test_without_the_only_sequence_nothing_is_known(model):
    X, y = words(1) if isinstance(model, sf.CRF) else points(1)
    found = leave_one_out_proba(model.fit(X, y), X, y)
    np.testing.assert_allclose(found.proba[0], 1 / len(model.classes_), atol=1e-4)


def test_constraints_and_calibration_hold():
    X, y = sf.load_ingredients("train")
    X, y = X[:40], y[:40]
    model = sf.CRF(scheme="BIO", calibrate=True, random_state=0, n_jobs=1).fit(X, y)
    left = leave_one_out_proba(model, X, y)
    inside = [k for k, name in enumerate(model.classes_) if name.startswith("I-")]
    assert all((p[0, inside] == 0.0).all() for p in left.proba)
    assert np.isfinite(left.log_likelihood).all()
    plain = copy.copy(model)
    plain.calibration_ = None
    other = leave_one_out_proba(plain, X, y)
    # a temperature other than 1 shows
    assert model.calibration_.temperature != pytest.approx(1.0, abs=1e-3)
    assert np.abs(other.log_likelihood - left.log_likelihood).max() > 1e-3


def test_blocks_threads_and_forms_of_input(monkeypatch):
    X, y = points()
    model = sf.CRF(**TIGHT).fit(X, y)
    whole = leave_one_out_proba(model, X, y)
    model.n_jobs, model.verbose = 2, True
    before = dict(vars(model))
    monkeypatch.setattr("seqfield.confidence.leave_one_out.HELD", 50)
    lengths, flat = [len(row) for row in y], [v for row in y for v in row]
    blocks = leave_one_out_proba(model, np.vstack(X), flat, lengths=lengths)
    np.testing.assert_array_equal(whole.log_likelihood, blocks.log_likelihood)
    np.testing.assert_array_equal(np.vstack(whole.proba), np.vstack(blocks.proba))
    # the given model stays as it is
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())


@pytest.mark.parametrize(
    "model", [crf(), gpsc(), gpsc(n_inducing=20)], ids=["crf", "gpsc", "inducing"]
)
def test_models_from_files(model, tmp_path):
    X, y = words() if isinstance(model, sf.CRF) else points()
    model.fit(X, y).save(tmp_path / "model.sf")
    wanted = leave_one_out_proba(model, X, y).log_likelihood
    found = leave_one_out_proba(sf.load(tmp_path / "model.sf"), X, y).log_likelihood
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    assert (wanted < model.log_likelihood(X, y)).mean() > 0.8


@pytest.mark.parametrize(
    "model",
    [
        sf.CRF(c1=0.1, c2=1.0),
        sf.CRF(loss="marginal"),
        sf.CRF(early_stopping=True),
        sf.CRF(c2=0.0, tol=1e-2),
        sf.GPSC("rbf", method="sparse"),
        sf.GPSC("rbf", posterior="laplace"),
        sf.GPSC("rbf", n_inducing=5, inducing="random"),
        sf.HMM(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_others_are_refused(model):
    X, y = words() if isinstance(model, sf.HMM) else points()
    if isinstance(model, sf.HMM):
        X = [[row[0] for row in rows] for rows in X]
    model.fit(X, y)
    with pytest.raises(CapabilityError, match="leave_one_out_proba"):
        leave_one_out_proba(model, X, y)


def test_other_data_than_those_of_the_fit_are_refused():
    X, y = words(40)
    model = crf().fit(X[:30], y[:30])
    for wrong in ((X[10:], y[10:]), (X[:30], [["A"] * len(row) for row in y[:30]])):
        with pytest.raises(InputError, match="not at its optimum"):
            leave_one_out_proba(model, *wrong)
