"""Maximum margins against the list of all labellings and another solver."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.architectures.dual import Dual
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.errors import BudgetError, InputError
from seqfield.kernels import Linear
from seqfield.kernels.covariance import Explicit, Matrix, OnDemand
from seqfield.labels import LabelSet, Targets
from seqfield.objectives.problems import DualProblem
from seqfield.sequences import Sequences, offsets_of
from seqfield.solvers import margin as module
from seqfield.solvers.margin import MaxMargin, known_runs

from ..support.margins import MARGINS, SLACKS, Listed, lawful
from ..support.problems import gold_labels, law

TIGHT = {"tol": 1e-9, "max_iter": 5_000}
#: lengths of the sequences by the number of labels
LENGTHS = {2: (4, 1, 3, 2, 2), 3: (1, 2, 3)}
WEIGHTS = np.array([0.7, 1.6, 1.0, 0.5, 1.3])
EVERYTHING = Allowed(*(np.ones(shape, bool) for shape in (3, (3, 3), 3)))


# --- problems, and everything about them by the list of all labellings -------------------------


def data(s=3, lengths=None, *, apart=1.0, width=3, allowed=None, seed=0):
    """Tokens around a corner for each label."""
    rng = np.random.default_rng([seed, s])
    y = [gold_labels(rng, l, s, allowed) for l in lengths or LENGTHS[s]]
    X = [rng.normal(size=(len(row), width)) + apart * np.eye(s, width)[row] for row in y]
    return X, [row.tolist() for row in y]


def objective(X, y, s, *, store="explicit", weights=None, allowed=None, eta=1.0):
    """The problem over explicit features, a gram matrix, or few of its rows at a time."""
    x, lengths = np.vstack(X), [len(row) for row in X]
    cov = {
        "explicit": lambda: Explicit(Linear().expansion(x, np.inf), x),
        "matrix": lambda: Matrix(Linear(), x, x @ x.T, 1),
        "rows": lambda: OnDemand(Linear(), x, 1),
    }[store]()
    budget = 8.0 * len(x) * (max(lengths) + 1) if store == "rows" else 1e9
    numbered = Sequences(np.arange(len(x), dtype=float)[:, None], offsets_of(lengths))
    targets = LabelSet(range(s)).encode(y)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    constraint = None if allowed is None else Constraint.of(allowed)
    dual = Dual(s, cov, eta, budget)
    return DualProblem(dual, numbered, targets, weights, constraint)


def solve(goal, slack="l1", margin="hamming", *, callback=None, **wanted):
    method = MaxMargin(slack=slack, margin=margin, **TIGHT | wanted)
    return method.minimise(goal, callback)


def weights_of(goal, theta, X):
    """w as in `Listed`."""
    beta, delta = goal.architecture.split(theta)
    eta = goal.architecture.eta
    return np.concatenate([(np.vstack(X).T @ beta).ravel(), np.sqrt(eta) * delta.ravel()])


def coefficients(listed, result):
    found = result.support
    return listed.coefficients((i, labels.tolist(), alpha) for i, alpha, _, labels in found)


class Case:
    """A problem that is solved and listed."""

    def __init__(self, slack, margin, *, s=3, C=0.8, eta=1.0, scheme=False, seed=0, **wanted):
        allowed = law(s) if scheme else None
        apart = 5.0 if slack == "hard" else 1.0
        self.X, self.y = data(s, apart=apart, allowed=allowed, seed=seed)
        weights = WEIGHTS[: len(self.X)]
        self.goal = objective(self.X, self.y, s, weights=weights, allowed=allowed, eta=eta)
        self.listed = Listed(self.X, self.y, s, margin, cost=C * weights, allowed=allowed, eta=eta)
        self.C, self.slack = C, slack
        self.result = solve(self.goal, slack, margin, C=C, **wanted)
        self.w = weights_of(self.goal, self.result.minimum.theta, self.X)


every = pytest.mark.parametrize("slack", SLACKS)
each = pytest.mark.parametrize("margin", MARGINS)


# --- the optimum -------------------------------------------------------------------------------


@every
@each
@pytest.mark.parametrize("s", [2, 3])
@pytest.mark.parametrize(
    "wanted",
    [{}, {"C": 0.05}, {"C": 8.0, "seed": 1}, {"scheme": True}, {"eta": 4.0}, {"eta": 0.0}],
    ids=str,
)
def test_optimum_is_that_of_another_solver(slack, margin, s, wanted):
    case = Case(slack, margin, s=s, **wanted)
    want, result = case.listed.optimum(slack), case.result
    assert result.minimum.converged
    assert result.minimum.value == pytest.approx(want, rel=1e-6)
    assert result.minimum.gap <= 1e-9 * result.minimum.value
    assert result.minimum.value - result.minimum.gap <= want * (1 + 1e-12)


@every
@each
@pytest.mark.parametrize("tol", [0.5, 0.1, 1e-3])
def test_gap_bounds_the_distance_from_the_optimum(slack, margin, tol):
    best = Case(slack, margin).result.minimum.value
    result = Case(slack, margin, tol=tol).result
    assert result.minimum.converged
    assert 1e-9 * best < result.minimum.gap <= tol * result.minimum.value
    assert -1e-9 * best <= result.minimum.value - best <= result.minimum.gap + 1e-9 * best


@every
@each
@pytest.mark.parametrize("scheme", [False, True])
def test_value_and_gap_are_those_of_the_listed_problem(slack, margin, scheme):
    """Also far from the optimum."""
    case = Case(slack, margin, scheme=scheme, tol=0.1, eta=0.6)
    alpha, listed = coefficients(case.listed, case.result), case.listed
    np.testing.assert_allclose(listed.v.T @ alpha, case.w, atol=1e-12)
    primal, dual = listed.primal(case.w, slack), listed.dual(alpha, slack)
    assert case.result.minimum.value == pytest.approx(primal, rel=1e-10)
    assert case.result.minimum.gap == pytest.approx(primal - dual, rel=1e-10)


@every
@each
def test_scores_are_those_of_the_support(slack, margin):
    case = Case(slack, margin, eta=0.6, tol=1e-3)
    w = case.listed.v.T @ coefficients(case.listed, case.result)
    table, transitions = case.goal.architecture.lift(case.result.minimum.theta)
    np.testing.assert_allclose(table, np.vstack(case.X) @ w[:9].reshape(3, 3), atol=1e-12)
    np.testing.assert_allclose(transitions, np.sqrt(0.6) * w[9:].reshape(3, 3), atol=1e-12)


# --- conditions of the optimum -----------------------------------------------------------------


@each
@pytest.mark.parametrize("s", [2, 3])
def test_one_slack_a_sequence_leaves_no_coefficient_off_the_worst_labellings(margin, s):
    case = Case("l1", margin, s=s)
    alpha, listed = coefficients(case.listed, case.result), case.listed
    xi, sums, gap = listed.slacks(case.w), listed.sums(alpha), case.result.minimum.gap + 1e-12
    assert (xi > 0.01).any()
    assert (alpha >= 0).all()
    assert (sums <= listed.cost * (1 + 1e-12)).all()
    # both are parts of the gap, and all of its parts are above 0
    assert (alpha * (xi[listed.sequence] - listed.asked(case.w)) <= gap).all()
    assert ((listed.cost - sums) * xi <= gap).all()
    np.testing.assert_allclose(sums[xi > 0.01], listed.cost[xi > 0.01], rtol=1e-6)


@each
@pytest.mark.parametrize("s", [2, 3])
def test_squared_slacks_are_sums_of_coefficients(margin, s):
    case = Case("l2", margin, s=s)
    alpha, listed = coefficients(case.listed, case.result), case.listed
    xi, sums, gap = listed.slacks(case.w), listed.sums(alpha), case.result.minimum.gap + 1e-12
    assert (xi > 0.01).any()
    assert (alpha >= 0).all()
    assert (alpha * (xi[listed.sequence] - listed.asked(case.w)) <= gap).all()
    assert (listed.cost * (xi - sums / (2 * listed.cost)) ** 2 <= gap).all()
    np.testing.assert_allclose(sums, 2 * listed.cost * xi, atol=1e-4)


@each
@pytest.mark.parametrize("s", [2, 3])
def test_a_slack_for_each_labelling_is_paid_by_its_own_coefficient(margin, s):
    case = Case("labelling", margin, s=s)
    alpha, listed = coefficients(case.listed, case.result), case.listed
    asked, cost, gap = (
        listed.asked(case.w),
        listed.cost[listed.sequence],
        case.result.minimum.gap + 1e-12,
    )
    assert (asked > 0.01).any()
    assert (alpha >= 0).all()
    assert (alpha <= cost).all()
    assert ((cost - alpha) * np.maximum(asked, 0.0) <= gap).all()
    assert (alpha * np.maximum(-asked, 0.0) <= gap).all()
    np.testing.assert_array_equal(alpha[asked > 0.01], cost[asked > 0.01])


@each
@pytest.mark.parametrize("s", [2, 3])
def test_hard_margins_hold_and_those_of_the_support_with_no_room(margin, s):
    case = Case("hard", margin, s=s)
    alpha, listed = coefficients(case.listed, case.result), case.listed
    reached = listed.v @ case.w / listed.need
    assert reached.min() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(reached[alpha > 1e-3], 1.0, atol=1e-3)
    assert (alpha > 1e-3).any()
    # scaled to reach all margins it is feasible and has the value that is told
    scaled = case.w / reached.min()
    assert (listed.v @ scaled >= listed.need * (1 - 1e-12)).all()
    assert case.result.minimum.value == pytest.approx(0.5 * scaled @ scaled, rel=1e-9)


# --- the way there -----------------------------------------------------------------------------


@every
@each
def test_duals_never_fall_and_stay_below_primals(slack, margin):
    case = Case(slack, margin, s=2)
    passes = case.result.passes
    duals, primals = np.array([p.dual for p in passes]), np.array([p.primal for p in passes])
    assert len(passes) == case.result.minimum.n_iter > 3
    assert (np.diff(duals) >= -1e-13).all()
    assert (primals >= duals - 1e-12).all()
    np.testing.assert_array_equal([p.gap for p in passes], primals - duals)
    assert passes[-1].primal == case.result.minimum.value
    assert passes[-1].gap == case.result.minimum.gap


@pytest.mark.parametrize("slack", ["l1", "l2", "hard"])
@each
def test_every_pass_tells_the_primal_value_of_its_function(slack, margin):
    steps = []

    def callback(step):
        steps.append((step.iteration, step.theta.copy(), step.value))

    case = Case(slack, margin, callback=callback)
    assert [k for k, _, _ in steps] == list(range(1, case.result.minimum.n_iter + 1))
    for (_, theta, value), told in zip(steps, case.result.passes, strict=True):
        w = weights_of(case.goal, theta, case.X)
        share = np.min(case.listed.v @ w / case.listed.need)
        want = np.inf if slack == "hard" and share <= 0 else case.listed.primal(w, slack)
        assert value == told.primal == pytest.approx(want, rel=1e-9)
    np.testing.assert_array_equal(steps[-1][1], case.result.minimum.theta)


@pytest.mark.parametrize("slack", ["l1", "l2", "hard"])
def test_it_stops_at_the_first_gap_within_tol(slack):
    result = Case(slack, "hamming", tol=1e-4).result
    within = [p.gap <= 1e-4 * p.primal for p in result.passes if np.isfinite(p.gap)]
    assert within == [False] * (len(within) - 1) + [True]
    assert len(within) > 2


@every
def test_too_few_passes_are_no_convergence(slack):
    result = Case(slack, "hamming", max_iter=2).result
    assert not result.minimum.converged
    assert result.minimum.n_iter == len(result.passes) == 2


def test_callback_stops():
    result = Case("l1", "hamming", callback=lambda step: step.iteration == 3).result
    assert result.minimum.n_iter == 3
    assert not result.minimum.converged


@each
def test_numbers_of_supported_sequences_are_told(margin):
    case = Case("l1", margin, s=2, C=0.2, seed=2)
    sums = case.listed.sums(coefficients(case.listed, case.result))
    assert case.result.passes[-1].n_support == np.count_nonzero(sums)


def test_an_infinite_gap_is_no_convergence_of_hard_margins():
    X, y = data(2, (3, 3, 2), apart=2.0, seed=7)
    result = solve(objective(X, y, 2), "hard", tol=0.01)
    assert result.passes[0].gap == np.inf
    assert result.minimum.converged
    assert result.minimum.gap <= 0.01 * result.minimum.value < np.inf


@each
def test_an_infinite_gap_is_no_convergence_of_slacks_for_labellings(margin):
    case = Case("labelling", margin, tol=0.01)
    assert case.result.passes[0].gap == np.inf
    assert case.result.minimum.n_iter > 1
    assert case.result.minimum.gap <= 0.01 * case.result.minimum.value < np.inf


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_violations_by_rounding_alone_do_not_keep_the_gap_infinite(seed):
    """Margins of single wrong labels are met up to rounding, and so are those of several."""
    for c in np.random.default_rng(seed).uniform(0.5, 2.0, (20, 3)):
        goal = objective([np.diag(c)], [[0, 1, 0]], 2, eta=0.0)
        result = solve(goal, "labelling", C=10.0, tol=0.01, max_iter=200)
        assert result.minimum.value == pytest.approx(result.passes[-1].dual, rel=0.01)
        assert result.minimum.converged


@each
def test_inseparable_data_are_no_convergence_of_hard_margins(margin):
    X = [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.array([[0.5, 0.5]])]
    result = solve(objective(X, [[0], [0], [1]], 2), "hard", margin, max_iter=50)
    assert not result.minimum.converged
    assert result.minimum.value == result.minimum.gap == np.inf


@each
def test_labellings_with_equal_features_have_no_hard_margin(margin):
    x = np.array([[1.0, -2.0]] * 4)
    goal = objective([np.eye(2), x], [[0, 1], [0, 0, 1, 0]], 2)  # as 0, 1, 0, 0 would be
    with pytest.raises(InputError, match=r"sequence 1: .*slack='l1'"):
        solve(goal, "hard", margin)
    assert np.isfinite(solve(goal, "l1", margin).minimum.value)


def test_too_many_labellings_with_slacks_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    with pytest.raises(
        BudgetError, match=r"slack='labelling'.* 4 labellings of sequence \d .*'l1'"
    ):
        Case("labelling", "hamming", C=0.01)
    assert Case("l1", "hamming", C=0.01).result.minimum.converged


@every
@each
def test_fewer_visits_do_not_change_the_optimum(slack, margin, monkeypatch):
    want = Case(slack, margin, s=2).result
    monkeypatch.setattr(module, "REPEATS", 0)
    got = Case(slack, margin, s=2).result
    assert got.minimum.n_iter > want.minimum.n_iter
    assert got.minimum.value == pytest.approx(
        want.minimum.value, abs=got.minimum.gap + want.minimum.gap
    )


@every
@each
def test_dropped_labellings_do_not_change_the_optimum(slack, margin, monkeypatch):
    dropped, repack = [], module.loops.repack

    def counted(old, new, *rest):
        repack(old, new, *rest)
        dropped.append((old.held - new.held).sum())

    want = Case(slack, margin, C=8.0, seed=3).result
    monkeypatch.setattr(module, "PATIENCE", 1)
    monkeypatch.setattr(module.loops, "repack", counted)
    got = Case(slack, margin, C=8.0, seed=3).result
    assert sum(dropped) > 0
    assert got.minimum.value == pytest.approx(
        want.minimum.value, abs=got.minimum.gap + want.minimum.gap
    )


# --- special cases -----------------------------------------------------------------------------


@every
@each
def test_single_tokens_of_two_labels(slack, margin):
    X, y = data(2, (1,) * 5, apart=5.0 if slack == "hard" else 0.5)
    y[0], y[1] = [0], [1]
    result = solve(objective(X, y, 2), slack, margin)
    listed = Listed(X, y, 2, margin, cost=1.0)
    assert result.minimum.value == pytest.approx(listed.optimum(slack), rel=1e-6)


@every
@each
def test_labels_that_never_occur_are_rivals_too(slack, margin):
    X, y = data(2, (2, 3, 1), apart=5.0 if slack == "hard" else 1.0)
    result = solve(objective(X, y, 4), slack, margin)
    assert result.minimum.value == pytest.approx(
        Listed(X, y, 4, margin, cost=1.0).optimum(slack), rel=1e-6
    )
    assert result.minimum.value > solve(objective(X, y, 2), slack, margin).minimum.value * 1.001


ONE_WAY = Allowed(np.array([True, False]), ~np.eye(2, dtype=bool), np.ones(2, bool))


@every
@each
def test_a_sequence_with_one_lawful_labelling_asks_for_nothing(slack, margin):
    X, y = data(2, (3, 1, 2))
    y = [[0, 1, 0], [0], [0, 1]]
    result = solve(objective(X, y, 2, allowed=ONE_WAY), slack, margin)
    assert result.minimum.converged
    assert (result.minimum.value, result.minimum.gap, result.minimum.n_iter) == (0.0, 0.0, 1)
    assert result.support == []
    np.testing.assert_array_equal(result.minimum.theta, 0.0)


@every
@each
def test_support_is_lawful(slack, margin):
    allowed = law(3)
    case = Case(slack, margin, scheme=True, seed=1)
    found = case.result.support
    assert len(found) > 2
    for i, alpha, _, labels in found:
        assert alpha > 0
        assert lawful(labels, allowed)
        assert labels.tolist() != case.y[i]


# --- labels that are not known -----------------------------------------------------------------


def plain_runs(codes, offsets):
    out = []
    for a, b in zip(offsets[:-1], offsets[1:], strict=True):
        begin = None
        for t in range(a, b):
            if codes[t] < 0:
                begin = None
            elif begin is None:
                begin = t
                out.append([t, t + 1])
            else:
                out[-1][1] = t + 1
    return out


@pytest.mark.parametrize("seed", range(20))
def test_known_runs_are_those_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, 6, rng.integers(1, 8)))
    codes = rng.integers(-1, 3, offsets[-1]).astype(np.int32)
    codes[rng.random(len(codes)) < rng.random()] = -1
    begin, end = known_runs(Targets(codes, None, offsets))
    assert list(map(list, zip(begin, end, strict=True))) == plain_runs(codes, offsets)


def with_gaps(y, seed):
    rng = np.random.default_rng(seed)
    unknown = (None, {0, 2})
    y = [[unknown[rng.integers(2)] if rng.random() < 0.3 else v for v in row] for row in y]
    y[0][1] = None
    return y


def parts(X, y, allowed):
    """The runs of known labels as sequences, whose they are, and what each of them allows."""
    out = [], [], [], []
    for i, (x, row) in enumerate(zip(X, y, strict=True)):
        codes = np.array([v if isinstance(v, int) else -1 for v in row])
        for a, b in plain_runs(codes, [0, len(row)]):
            start = allowed.start if a == 0 else EVERYTHING.start
            end = allowed.end if b == len(row) else EVERYTHING.end
            own = Allowed(start, allowed.pairs, end)
            for held, one in zip(out, (x[a:b], codes[a:b].tolist(), i, own), strict=True):
                held.append(one)
    return out


@pytest.mark.parametrize("slack", ["l1", "l2", "labelling"])
@each
@pytest.mark.parametrize("scheme", [False, True])
def test_sequences_fall_apart_where_labels_are_not_known(slack, margin, scheme):
    allowed = law(3) if scheme else None
    X, y = data(3, (4, 3, 5, 2), allowed=allowed)
    y = with_gaps(y, 0)
    x, known, whose, tables = parts(X, y, allowed or EVERYTHING)
    assert len(known) > 4
    assert 1 < max(map(len, known)) < 4
    weights = WEIGHTS[:4]
    result = solve(objective(X, y, 3, weights=weights, allowed=allowed), slack, margin)
    listed = Listed(x, known, 3, margin, cost=weights[whose], allowed=tables)
    assert result.minimum.value == pytest.approx(listed.optimum(slack), rel=1e-6)
    offsets = offsets_of([len(row) for row in X])
    for i, _, begin, labels in result.support:
        assert offsets[i] <= begin <= begin + len(labels) <= offsets[i + 1]
        own = y[i][begin - offsets[i] : begin - offsets[i] + len(labels)]
        assert all(isinstance(v, int) for v in own)


# --- stores, order, threads --------------------------------------------------------------------


@every
@each
def test_explicit_features_gram_matrix_and_gram_rows_agree(slack, margin):
    X, y = data(3, (3, 2, 4, 1, 3), apart=5.0 if slack == "hard" else 1.0)
    goals = [objective(X, y, 3, store=store) for store in ("explicit", "matrix", "rows")]
    results = [solve(goal, slack, margin) for goal in goals]
    for goal, result in zip(goals[1:], results[1:], strict=True):
        assert result.minimum.value == pytest.approx(
            results[0].minimum.value, abs=result.minimum.gap + results[0].minimum.gap
        )
        w = weights_of(goal, result.minimum.theta, X)
        np.testing.assert_allclose(w, weights_of(goals[0], results[0].minimum.theta, X), atol=1e-4)


def many(seed=0):
    return data(3, tuple(np.random.default_rng(seed).integers(1, 5, 20)), seed=seed)


@pytest.mark.parametrize("slack", ["l1", "l2"])
@each
def test_order_does_not_change_the_optimum(slack, margin):
    X, y = many()
    goal = objective(X, y, 3)
    a, b = (solve(goal, slack, margin, C=0.1, tol=1e-7, seed=seed) for seed in (0, 1))
    assert not np.array_equal(a.minimum.theta, b.minimum.theta)
    assert a.minimum.value == pytest.approx(b.minimum.value, abs=a.minimum.gap + b.minimum.gap)
    # |f - optimum|^2 / 2 <= gap
    far = np.linalg.norm(
        weights_of(goal, a.minimum.theta, X) - weights_of(goal, b.minimum.theta, X)
    )
    assert far <= np.sqrt(2 * a.minimum.gap) + np.sqrt(2 * b.minimum.gap)


@pytest.mark.parametrize("store", ["explicit", "matrix", "rows"])
@each
def test_threads_and_the_same_seed_change_no_bit(store, margin):
    X, y = many()
    goal = objective(X, y, 3, store=store)
    wanted = {"C": 0.1, "tol": 1e-3, "seed": 3}
    one, two, again = (solve(goal, "l1", margin, n_jobs=k, **wanted) for k in (1, 2, 1))
    for other in (two, again):
        np.testing.assert_array_equal(one.minimum.theta, other.minimum.theta)
        assert one.passes == other.passes


@pytest.mark.parametrize("slack", ["l1", "l2", "labelling"])
@each
def test_a_weight_of_two_is_the_sequence_twice(slack, margin):
    X, y = data(3)
    goals = (
        objective(X, y, 3, weights=[1.0, 1.0, 2.0]),
        objective([*X, X[2]], [*y, y[2]], 3),
        objective(X, y, 3),
    )
    weighted, twice, once = (solve(goal, slack, margin, C=0.05) for goal in goals)
    assert weighted.minimum.value == pytest.approx(
        twice.minimum.value, abs=weighted.minimum.gap + twice.minimum.gap
    )
    assert weighted.minimum.value > once.minimum.value * 1.01
