"""Sequence boosting against sums over all labellings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import brentq, minimize_scalar

from seqfield.chain import ChainScores, count_distribution
from seqfield.chain.constraint import Constraint
from seqfield.errors import CapabilityError
from seqfield.sequences import offsets_of
from seqfield.solvers.boosting import Boosting

from ..support.problems import KINDS, Brute, design, law, linear_problem, make_goal, problem

BOUNDS = ("loose", "tight", "exact")
SMALL = list(product(KINDS, (2, 3, 4), (False, True)))
STEPS = (-4.0, -1.3, -0.4, -0.01, 0.02, 0.5, 1.1, 3.0)
every_bound = pytest.mark.parametrize("bound", BOUNDS)
small = pytest.mark.parametrize(("kind", "s", "scheme"), SMALL)


def boosting(**wanted):
    return Boosting(**{"cap": 5.0, "length_weight": 1.0} | wanted)


def rounds(optimiser, goal, n):
    """The first n rounds one by one: (round, theta before it, weight, state before it)."""
    state = optimiser.prepare(linear_problem(goal), goal.start())
    for r in range(n):
        k = optimiser.choose(state)
        if not state.gain[k] < 0:
            return
        yield r, state.theta.copy(), k, state
        chosen = state.sequences_of(k)
        step, trial = optimiser.step(state, k, chosen)
        state.apply(k, step, chosen, trial)


def chord_sum(state, k, step):
    """The tight bound of weight k by the state's table, over R."""
    a, b = state.first[k], state.first[k + 1]
    counts = (state.low[k] + np.arange(b - a)) * state.unit_of(k)
    total = state.distribution.sum()
    return 1.0 + (state.table[a:b] @ np.expm1(counts * step)) / total


def one_chord(state, k, step):
    """The loose bound of weight k by the state's table, over R."""
    a, b = state.first[k], state.first[k + 1]
    counts = (state.low[k] + np.arange(b - a)) * state.unit_of(k)
    low, high = counts[0], counts[-1]
    mean = state.table[a:b] @ counts / state.distribution.sum()
    s = (high - mean) / (high - low)
    return s * np.exp(step * low) + (1 - s) * np.exp(step * high)


# --- bounds ------------------------------------------------------------------------------------


@small
def test_loose_bound_above_tight_bound_above_z(kind, s, scheme):
    """In every round, for every weight and several steps."""
    goal = problem(kind, s, scheme=scheme)
    brute, seen = Brute(goal), 0
    for _, theta, _, state in rounds(boosting(bound="tight", smoothing=1e-3), goal, 15):
        alive = np.diff(state.first) > 1
        assert not brute.u[:, ~alive].any()
        for step in STEPS:
            z = brute.z(theta, step)
            for k in np.flatnonzero(alive):
                loose, tight = one_chord(state, k, step), chord_sum(state, k, step)
                assert loose >= tight * (1 - 1e-9)
                assert tight >= z[k] * (1 - 1e-9)
                seen += loose > tight * 1.001 > z[k]
    assert seen > 50


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize(("kind", "s", "scheme"), [k for k in SMALL if k[0] != "real"])
def test_bounds_of_whole_counts_equal_their_formulas(kind, s, scheme, observed):
    """Per-sequence and overall ranges of u found over all labellings."""
    goal = problem(kind, s, scheme=scheme, observed=observed)
    brute = Brute(goal)
    for _, theta, _, state in rounds(boosting(bound="exact", smoothing=0.0), goal, 15):
        if brute.risk(theta) < 1e-2:  # differences of nearly equal numbers
            break
        assert {state.unit_of(k) for k in range(len(theta))} == {1.0}
        alive = np.flatnonzero(np.diff(state.first) > 1)
        # sums are made anew once R has fallen by e^16; until then rounding is that of the first R
        rtol = 4.0 * np.exp(16.0) * np.finfo(float).eps
        for step in STEPS[::3]:
            tight, loose = brute.tight(theta, step)[alive], brute.loose(theta, step)[alive]
            got = [chord_sum(state, k, step) for k in alive]
            np.testing.assert_allclose(got, tight, rtol=rtol)
            got = [one_chord(state, k, step) for k in alive]
            np.testing.assert_allclose(got, loose, rtol=rtol)


def test_real_values_are_put_on_a_fine_grid():
    """The bounds of the grid are little above those of the exact ranges."""
    goal = problem("real", 3)
    brute = Brute(goal)
    for _, theta, k, state in rounds(boosting(bound="tight"), goal, 10):
        for step in (-0.5, 0.3):
            want = brute.tight(theta, step)[k]
            assert want * (1 - 1e-9) <= chord_sum(state, k, step) <= want * 1.2


@pytest.mark.parametrize(("kind", "s", "scheme"), [k for k in SMALL if k[0] != "real"])
def test_loose_step_is_the_closed_form(kind, s, scheme):
    for eps in (0.0, 1e-2):
        goal = problem(kind, s, scheme=scheme)
        brute = Brute(goal)
        optimiser = boosting(bound="loose", smoothing=eps, cap=3.0)
        for _, theta, chosen, state in rounds(optimiser, goal, 10):
            low, high, share = brute.pseudo_accuracy(theta)
            alive = high > low
            with np.errstate(divide="ignore", invalid="ignore"):
                want = np.log((-low * share + eps) / (high * (1 - share) + eps)) / (high - low)
            # where both are 0 the bound does not depend on the step
            want = np.where(alive & ~np.isnan(want), np.clip(want, -3.0, 3.0), 0.0)
            bounds = np.array([brute.loose(theta, step)[k] for k, step in enumerate(want)])
            matters = np.abs(bounds - 1) > 1e-9
            np.testing.assert_allclose(state.step[matters], want[matters], rtol=1e-6)
            gain = state.gain / state.distribution.sum()
            np.testing.assert_allclose(gain, np.minimum(bounds - 1, 0), rtol=1e-6, atol=1e-10)
            assert bounds[chosen] <= bounds.min() + 1e-9


@small
def test_the_chosen_weight_has_nearly_the_lowest_tight_bound(kind, s, scheme):
    goal = problem(kind, s, scheme=scheme)
    optimiser = boosting(bound="tight", smoothing=0.0)
    for _, theta, chosen, state in rounds(optimiser, goal, 10):
        total, lowest = state.distribution.sum(), []
        for k in range(len(theta)):
            if state.first[k + 1] - state.first[k] < 2:
                continue
            found = minimize_scalar(
                lambda x, k=k, state=state: chord_sum(state, k, x),
                bounds=(-5, 5),
                method="bounded",
                options={"xatol": 1e-9},
            )
            lowest.append(found.fun)
            # what is said of a step is so
            own = chord_sum(state, k, state.step[k]) - 1
            assert state.gain[k] / total == pytest.approx(own, rel=1e-6, abs=1e-9)
            assert abs(state.step[k]) <= optimiser.cap
        assert 1 + state.gain[chosen] / total <= min(lowest) + 0.1 * (1 - min(lowest)) + 1e-9


# --- descent -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("smoothing", "pi"), [(0.0, 1.0), (1e-3, 0.5)])
@every_bound
@small
def test_the_risk_is_told_truly_and_never_rises(kind, s, scheme, bound, smoothing, pi):
    goal = problem(kind, s, scheme=scheme, seed=3)
    brute = Brute(goal, pi)
    optimiser = boosting(bound=bound, smoothing=smoothing, length_weight=pi, max_iter=40)
    thetas, values = [], []

    def callback(step):
        thetas.append(step.theta.copy())
        values.append(step.value)
        return False

    result = optimiser.minimise(linear_problem(goal), goal.start(), callback)
    assert result.minimum.n_iter == len(result.rounds) == len(thetas) > 5
    assert values == [r.log_loss for r in result.rounds]
    np.testing.assert_array_equal(result.minimum.theta, thetas[-1])
    theta, last = goal.start(), np.log(brute.risk(goal.start()))
    for r, there in zip(result.rounds, thetas, strict=True):
        theta[r.weight] += r.step
        np.testing.assert_allclose(there, theta, rtol=1e-12, atol=1e-14)
        now = np.log(brute.risk(theta))
        if now < -25:  # 1 - p is below the float precision
            break
        assert r.log_loss == pytest.approx(now, abs=1e-10 + 1e-12 * np.exp(-now))
        assert now <= last + 1e-12
        last = now


def test_a_smaller_bound_learns_faster():
    """Over several problems the exact step does best and the loose bound worst."""
    ends = dict.fromkeys(BOUNDS, 0.0)
    for seed in range(8):
        goal = problem("counts", 3, n=20, seed=seed)
        for bound in BOUNDS:
            optimiser = boosting(bound=bound, smoothing=0.0, max_iter=15)
            ends[bound] += optimiser.minimise(linear_problem(goal), goal.start()).minimum.value
    assert ends["exact"] < ends["tight"] < ends["loose"]


@every_bound
def test_smoothing_shortens_steps(bound):
    goal = problem("binary", 3)
    steps = []
    for eps in (0.0, 1e-3, 1e-2, 1e-1, 1.0):
        state = (optimiser := boosting(bound=bound, smoothing=eps)).prepare(
            linear_problem(goal), goal.start()
        )
        optimiser.choose(state)
        k = 4  # whatever the smoothing chooses
        steps.append(abs(optimiser.step(state, k, state.sequences_of(k))[0]))
    assert all(a > b * 1.001 for a, b in zip(steps[:-1], steps[1:], strict=True))


@every_bound
def test_the_scale_of_real_features_does_not_matter(bound):
    """Ten times the values is a tenth of the steps, as long as the cap is out of the way."""
    paths = []
    for scale in (0.1, 1.0, 10.0):
        goal = problem("real", 3, seed=1)
        goal.data.x.data *= scale
        optimiser = boosting(bound=bound, smoothing=1e-2, cap=100.0, max_iter=12)
        paths.append(optimiser.minimise(linear_problem(goal), goal.start()).rounds)
    n = goal.architecture.node.n_weights
    assert sum(r.weight < n for r in paths[1]) > 3
    for path, scale in ((paths[0], 0.1), (paths[2], 10.0)):
        for r, plain in zip(path, paths[1], strict=True):
            assert r.weight == plain.weight
            own = scale if r.weight < n else 1.0
            assert r.step * own == pytest.approx(plain.step, rel=1e-5)
            assert r.log_loss == pytest.approx(plain.log_loss, rel=1e-6)


@every_bound
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_is_beyond_the_cap(kind, bound):
    for cap in (0.1, 1.0, 5.0):
        goal = problem(kind, 3, seed=2)
        optimiser = boosting(bound=bound, smoothing=0.0, cap=cap, max_iter=15)
        rounds = optimiser.minimise(linear_problem(goal), goal.start()).rounds
        assert max(abs(r.step) for r in rounds) <= cap
        assert len(rounds) == 15


# --- the exact step ----------------------------------------------------------------------------


def z_by_counts(state, goal, k):
    """Z and its slope from the distribution of the count of weight k, for whole features >= 0."""
    x, feature, label, pairs = design(goal)
    rows, s = state.rows, state.n_labels
    hits, pair_hits = np.zeros((len(x), s), int), np.zeros((s, s), int)
    if k < len(feature):
        hits[:, label[k]] = x[:, feature[k]]
    else:
        pair_hits.ravel()[pairs[k - len(feature)]] = 1
    scores = ChainScores(state.node, state.edge(), rows.offsets)
    p = np.exp(state.log_p)
    found = count_distribution(scores, hits, pair_hits)
    gold, parts = rows.gold, []
    for i, (a, b) in enumerate(zip(rows.offsets[:-1], rows.offsets[1:], strict=True)):
        y = gold[a:b]
        own = hits[np.arange(a, b), y].sum() + pair_hits[y[:-1], y[1:]].sum()
        chance = found[i].copy()
        chance[own] -= p[i]  # gold itself does not count
        parts.append((np.arange(len(chance)) - own, chance * np.exp(rows.log_weight[i]) / p[i]))

    def z(step):
        return sum(c @ np.exp(u * step) for u, c in parts)

    def slope(step):
        return sum(c @ (u * np.exp(u * step)) for u, c in parts)

    return lambda step: z(step) / z(0.0), slope


@pytest.mark.parametrize(("kind", "s", "scheme"), [k for k in SMALL if k[0][0] in "bc"])
def test_exact_step_is_the_near_side_of_the_minimiser(kind, s, scheme):
    goal = problem(kind, s, scheme=scheme, seed=5)
    brute, inside = Brute(goal), 0
    optimiser = boosting(bound="exact", smoothing=0.0, cap=5.0)
    for _, theta, k, state in rounds(optimiser, goal, 12):
        z, slope = z_by_counts(state, goal, k)
        for step in (-0.7, 0.4):
            assert z(step) == pytest.approx(brute.z(theta, step)[k], rel=1e-8)
        step, trial = optimiser.step(state, k, state.sequences_of(k))
        sign = np.sign(step)
        assert sign == -np.sign(slope(0.0))
        root = 5.0 * sign  # the cap, if Z falls all the way to it
        if slope(root) * sign > 0:
            root = brentq(slope, 0.0, root, xtol=1e-12)
        assert 0.0 < step / root <= 1 + 1e-9
        assert step == 5.0 * sign or abs(slope(step)) <= 0.1 * abs(slope(0.0)) + 1e-12
        assert 1 - z(step) >= 0.95 * (1 - z(root))
        inside += abs(root) < 5.0
        # the trial it brings along is the state after it
        theta[k] += step
        chosen = state.sequences_of(k)
        np.testing.assert_allclose(trial.log_p, brute.log_p(theta)[chosen], rtol=1e-9, atol=1e-12)
    assert inside >= 3


@small
def test_tight_step_is_the_minimiser_of_its_bound(kind, s, scheme):
    goal, inside = problem(kind, s, scheme=scheme, seed=5), 0
    optimiser = boosting(bound="tight", smoothing=0.0)
    for _, _, k, state in rounds(optimiser, goal, 12):
        step, trial = optimiser.step(state, k, state.sequences_of(k))
        assert trial is None
        sign = np.sign(step)
        found = minimize_scalar(
            lambda x, k=k, state=state: chord_sum(state, k, x),
            bounds=sorted((0.0, 5.0 * sign)),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert step == pytest.approx(found.x, rel=1e-4)
        inside += abs(step) < 5.0
    assert inside >= 3


@every_bound
@pytest.mark.parametrize("cap", [0.5, 5.0])
def test_a_feature_seen_on_one_side_only_steps_to_the_cap(bound, cap):
    """Feature 0 always has label 0: the more weight the better."""
    x = np.array([[1.0], [1.0], [0.0]])
    goal = make_goal(x, [0, 1, 2, 3], [0, 0, 1], 2)
    result = boosting(bound=bound, smoothing=0.0, cap=cap, max_iter=1).minimise(
        linear_problem(goal), goal.start()
    )
    assert result.rounds[0].weight == 0
    assert result.rounds[0].step == cap


@every_bound
def test_with_smoothing_one_side_is_bounded_by_it(bound):
    """(1 - e^-x) against eps (e^x + e^-x): e^x = sqrt((1 + eps) / eps)."""
    x = np.array([[1.0], [1.0]])
    goal = make_goal(x, [0, 1, 2], [0, 0], 2)
    eps = 0.01
    optimiser = boosting(bound=bound, smoothing=eps, cap=50.0, max_iter=1)
    step = optimiser.minimise(linear_problem(goal), goal.start()).rounds[0].step
    # u is -1 for the only wrong labelling: L = -1, U = 0, so (3.37) is log((1 + eps) / eps)
    want = np.log((1 + eps) / eps) if bound == "loose" else 0.5 * np.log((1 + eps) / eps)
    assert step == pytest.approx(want, rel=0.02)


# --- bookkeeping -------------------------------------------------------------------------------


@every_bound
@small
def test_kept_tables_equal_fresh_ones(kind, s, scheme, bound):
    goal = problem(kind, s, scheme=scheme, n=16, seed=7)
    optimiser = boosting(bound=bound, smoothing=1e-3, length_weight=0.9)
    for r, _, _, state in rounds(optimiser, goal, 25):
        if r not in (3, 12, 24) or state.log_p.max() > -1e-7:
            continue
        fresh = optimiser.prepare(linear_problem(goal), state.theta)
        np.testing.assert_allclose(state.log_p, fresh.log_p, rtol=1e-9)
        np.testing.assert_allclose(state.marginal, fresh.marginal, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.pair_sums, fresh.pair_sums, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.node, fresh.node, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.edge(), fresh.edge(), rtol=1e-12)
        rescale = np.exp(state.reference - fresh.reference)
        for name in ("table", "distribution", "inverse"):
            got, want = getattr(state, name) * rescale, getattr(fresh, name)
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max())
        optimiser.choose(fresh)
        gain = state.gain * rescale
        np.testing.assert_allclose(gain, fresh.gain, rtol=1e-6, atol=1e-8 * -fresh.gain.min())


def rare(n=60, seed=0, s=3, longest=4):
    """Many features, each in few sequences; transitions matter little."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(rng.integers(1, longest + 1, n))
    total = int(offsets[-1])
    y = rng.integers(s, size=total)
    word = np.where(rng.random(total) < 0.8, 8 * y + rng.integers(8, size=total), 24)
    x = sp.csr_array((np.ones(total), (np.arange(total), word)), shape=(total, 25)).toarray()
    return make_goal(x, offsets, y, s, None, rng.uniform(0.5, 2.0, n))


@every_bound
def test_only_sequences_with_the_feature_are_run_again(bound, monkeypatch):
    goal = rare()
    x, feature, _, _ = design(goal)
    offsets = goal.data.offsets
    holds = np.add.reduceat(x != 0, offsets[:-1]) > 0  # sequence, feature
    run = []
    optimiser = boosting(bound=bound, max_iter=40)
    kind = type(optimiser.prepare(linear_problem(goal), goal.start()))
    plain = kind.run

    def record(self, chosen, *rest):
        run.append(np.array(chosen))
        return plain(self, chosen, *rest)

    monkeypatch.setattr(kind, "run", record)
    result = optimiser.minimise(linear_problem(goal), goal.start())
    few = 0
    for r in result.rounds:
        if r.weight < len(feature):
            share = holds[:, feature[r.weight]].mean()
        else:
            share = (np.diff(offsets) > 1).mean()
        assert r.rerun == pytest.approx(share)
        few += share < 0.5
    assert few > 10
    # the first run is the start; no later one takes more than some round's sequences
    assert len(run[0]) == len(goal.data)
    sizes = {round(r.rerun * len(goal.data)) for r in result.rounds}
    assert {len(chosen) for chosen in run[1:]} <= sizes


@every_bound
def test_rare_features_keep_the_tables_true(bound):
    """Partial updates many times over."""
    goal = rare(seed=1)
    brute = Brute(goal)
    optimiser = boosting(bound=bound, smoothing=1e-5)
    for _, theta, k, state in rounds(optimiser, goal, 120):
        r = brute.risk(theta)
        assert state.distribution.sum() * np.exp(state.reference) == pytest.approx(r, rel=1e-7)
        assert chord_sum(state, k, 0.3) == pytest.approx(brute.tight(theta, 0.3)[k], rel=1e-6)


@every_bound
def test_long_sequences_change_the_unit_of_the_tables(bound):
    """R falls by many orders of magnitude on the way."""
    goal = rare(seed=2, longest=40)
    optimiser = boosting(bound=bound, smoothing=1e-5)
    references = []
    for _, _, _, state in rounds(optimiser, goal, 150):
        references.append(state.reference)
    assert len(set(references)) > 1
    assert state.log_p.max() < -1e-6
    fresh = optimiser.prepare(linear_problem(goal), state.theta)
    np.testing.assert_allclose(state.log_p, fresh.log_p, rtol=1e-8)
    rescale = np.exp(state.reference - fresh.reference)
    for name in ("table", "distribution", "inverse"):
        got, want = getattr(state, name) * rescale, getattr(fresh, name)
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7 * np.abs(want).max())


@every_bound
def test_the_same_for_any_number_of_threads(bound):
    goal = problem("counts", 3, n=30)
    runs = [
        boosting(bound=bound, max_iter=20, n_jobs=jobs).minimise(linear_problem(goal), goal.start())
        for jobs in (1, 1, 2)
    ]
    assert runs[0].rounds == runs[1].rounds == runs[2].rounds


def test_it_goes_on_from_where_it_was():
    goal = problem("counts", 3)
    whole = boosting(max_iter=14).minimise(linear_problem(goal), goal.start())
    half = boosting(max_iter=7).minimise(linear_problem(goal), goal.start())
    rest = boosting(max_iter=7).minimise(linear_problem(goal), half.minimum.theta)
    assert half.rounds == whole.rounds[:7]
    for a, b in zip(rest.rounds, whole.rounds[7:], strict=True):
        assert a.weight == b.weight
        np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_allclose(rest.minimum.theta, whole.minimum.theta, rtol=1e-6, atol=1e-9)


def test_start_is_not_changed_and_a_callback_stops():
    goal = problem("binary", 3)
    begin = np.full(len(goal.start()), 0.1)
    result = boosting().minimise(linear_problem(goal), begin, lambda step: step.iteration == 3)
    np.testing.assert_array_equal(begin, 0.1)
    assert result.minimum.n_iter == len(result.rounds) == 3


def test_tolerance_ends_it():
    goal = problem("binary", 3)
    counts = [
        boosting(max_iter=10_000, tol=tol, bound="tight")
        .minimise(linear_problem(goal), goal.start())
        .minimum.n_iter
        for tol in (1e-1, 1e-2, 1e-4)
    ]
    assert counts[0] < counts[1] < counts[2] < 10_000
    # features that tell nothing: no round at all
    goal = make_goal(np.ones((2, 1)), [0, 1, 2], [0, 1], 2)
    result = boosting().minimise(linear_problem(goal), goal.start())
    assert (result.minimum.n_iter, result.rounds) == (0, ())
    assert result.minimum.value == pytest.approx(np.log(2.0))


def test_all_certain_ends_it():
    goal = make_goal(np.eye(2), [0, 1, 2], [0, 1], 2)
    result = boosting(cap=100.0, smoothing=0.0).minimise(linear_problem(goal), goal.start())
    assert result.minimum.value < -30
    assert result.minimum.n_iter < 10
    assert np.isfinite(result.minimum.theta).all()


# --- partial labels and other units ------------------------------------------------------------


def tokens(n=14, s=3, seed=0, width=5):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, n)
    offsets = offsets_of(lengths)
    y = rng.integers(s, size=int(offsets[-1]))
    x = (rng.random((len(y), width)) < 0.3).astype(float)
    x[np.arange(len(y)), y] += rng.random(len(y)) < 0.6
    return x, offsets, y, rng.uniform(0.5, 2.0, n)


def same_path(a, b, rel=1e-7):
    assert [r.weight for r in a.rounds] == [r.weight for r in b.rounds]
    np.testing.assert_allclose(np.array(a.rounds), np.array(b.rounds), rtol=rel, atol=1e-9)
    assert len(a.rounds) > 5


@every_bound
@pytest.mark.parametrize("candidates", [False, True])
def test_an_unknown_label_cuts_its_sequence(bound, candidates):
    x, offsets, y, weights = tokens()
    rng = np.random.default_rng(1)
    hole = rng.random(len(y)) < 0.25
    hole[offsets[4] : offsets[5]] = True  # nothing known of a whole sequence
    mask = np.arange(3) == y[:, None]
    mask[hole] = [True, True, not candidates]
    whole = make_goal(x, offsets, np.where(hole, -1, y), 3, None, weights, False, mask)
    # the pieces, written out
    pieces, own = [], []
    for i, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        piece = []
        for t in range(a, b + 1):
            if t < b and not hole[t]:
                piece.append(t)
            elif piece:
                pieces.append(piece)
                own.append(i)
                piece = []
    kept = np.concatenate(pieces)
    cut = make_goal(
        x[kept], offsets_of([len(p) for p in pieces]), y[kept], 3, None, weights[own], False
    )
    assert len(set(own)) < len(own)
    optimiser = boosting(bound=bound, max_iter=20, length_weight=0.8)
    same_path(
        optimiser.minimise(linear_problem(whole), whole.start()),
        optimiser.minimise(linear_problem(cut), cut.start()),
    )


def test_the_law_of_starts_does_not_hold_where_a_sequence_was_cut():
    """? 2 1: label 2 may not start a sequence, but after an unknown one it may stand."""
    s = 3
    x, mask = np.eye(3), np.eye(3, dtype=bool)[[0, 2, 1]]
    mask[0] = True
    y = np.array([-1, 2, 1])
    goal = make_goal(x, [0, 3], y, s, law(s), None, False, mask)
    result = boosting(max_iter=5).minimise(linear_problem(goal), goal.start())
    assert np.isfinite([r.log_loss for r in result.rounds]).all()
    # lawful labellings of the piece: any pair but (1, 2) that does not end in 0
    state = boosting().prepare(linear_problem(goal), goal.start())
    assert state.log_p[0] == pytest.approx(-np.log(3 * 2 - 1))


@every_bound
@pytest.mark.parametrize("scheme", [False, True])
def test_tokens_alone_are_sequences_of_length_one(bound, scheme):
    """A constraint on transitions has no say."""
    x, offsets, y, weights = tokens(seed=2)
    goal = make_goal(x, offsets, y, 3, None, weights)
    if scheme:
        goal.constraint = Constraint.of(law(3))
    alone = make_goal(x, np.arange(len(y) + 1), y, 3, None, np.repeat(weights, np.diff(offsets)))
    optimiser = boosting(bound=bound, max_iter=20, length_weight=0.8)
    a = Boosting(**vars(optimiser) | {"unit": "token"}).minimise(linear_problem(goal), goal.start())
    b = optimiser.minimise(linear_problem(alone), alone.start())
    same_path(a, b)
    n = alone.architecture.node.n_weights
    np.testing.assert_allclose(a.minimum.theta[:n], b.minimum.theta[:n], rtol=1e-7)
    assert not a.minimum.theta[n:].any()


@every_bound
@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("holes", [True, False])
def test_neighbours_are_features_of_the_label_before(bound, observed, holes):
    x, offsets, y, weights = tokens(seed=3, n=20)
    s, n = 3, len(y)
    hole = np.zeros(n, bool)
    mask = None
    if holes:
        hole = np.random.default_rng(0).random(n) < 0.2
        mask = (np.arange(s) == y[:, None]) | hole[:, None]
    goal = make_goal(x, offsets, np.where(hole, -1, y), s, None, weights, observed, mask)
    before = np.zeros((n, s))
    for t in range(1, n):
        if t not in offsets and not hole[t - 1]:
            before[t, y[t - 1]] = 1.0
    both = np.hstack([x, before])[~hole]
    own = np.repeat(weights, np.diff(offsets))[~hole]
    alone = make_goal(both, np.arange(len(both) + 1), y[~hole], s, None, own, observed)
    if observed:
        assert alone.architecture.node.n_weights == len(goal.start())
    optimiser = boosting(bound=bound, max_iter=30)
    a = Boosting(**vars(optimiser) | {"unit": "neighbours"}).minimise(
        linear_problem(goal), goal.start()
    )
    b = optimiser.minimise(linear_problem(alone), alone.start())
    same_path(a, b)
    assert any(r.weight >= goal.architecture.node.n_weights for r in a.rounds)
    np.testing.assert_allclose(
        a.minimum.theta, b.minimum.theta[: len(a.minimum.theta)], rtol=1e-7, atol=1e-12
    )


def test_starting_weights_count_in_every_unit():
    x, offsets, y, weights = tokens(seed=4)
    goal = make_goal(x, offsets, y, 3, None, weights)
    theta = np.random.default_rng(0).normal(size=len(goal.start()))
    for unit in ("sequence", "token", "neighbours"):
        state = boosting(unit=unit).prepare(linear_problem(goal), theta)
        scores = goal.architecture.score(theta, goal.data)
        node = scores.node.copy()
        if unit == "neighbours":
            for t in range(1, len(y)):
                if t not in offsets:
                    node[t] += scores.edge[y[t - 1]]
        np.testing.assert_allclose(state.node, node, rtol=1e-12, atol=1e-14)


# --- what it cannot do -------------------------------------------------------------------------


def test_edge_features_are_refused():
    x, offsets, y, weights = tokens()
    edge = (np.random.default_rng(0).random((len(y), 2)) < 0.5).astype(float)
    goal = make_goal(x, offsets, y, 3, None, weights, edge=edge)
    with pytest.raises(CapabilityError, match="edge features"):
        boosting().minimise(linear_problem(goal), goal.start())
