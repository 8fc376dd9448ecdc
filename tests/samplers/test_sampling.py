"""What samplers share: which steps are kept, and how well chains have mixed."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from scipy.signal import lfilter

from seqfield.errors import InputError
from seqfield.samplers._base import (
    Chain,
    Draws,
    Move,
    Plan,
    Recorder,
    Teller,
    effective_sample_size,
    joined,
    run_chains,
    split_r_hat,
)

# --- plans -------------------------------------------------------------------------------------


def test_a_plan_from_arguments():
    assert Plan.of(100, 0.25, 4, 30) == Plan(100, 25, 4, 30)
    assert Plan.of(10, 0.0, 1, 5) == Plan(10, 0, 1, 5)
    assert Plan.of(10, 0.99, 3, 1000) == Plan(10, 9, 3, 3)  # no more than there are
    assert Plan.of(np.int64(8), 0.5, np.int32(2), 8) == Plan(8, 4, 2, 8)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("n_steps", (3, 0.5, 4, 10)),
        ("n_steps", (10.5, 0.5, 4, 10)),
        ("burn_in", (10, 1.0, 4, 10)),
        ("burn_in", (10, -0.1, 4, 10)),
        ("burn_in", (10, "half", 4, 10)),
        ("n_chains", (10, 0.5, 0, 10)),
        ("n_samples", (10, 0.5, 4, 0)),
        ("n_samples", (10, 0.5, 4, None)),
    ],
)
def test_bad_plans(name, arguments):
    with pytest.raises(InputError, match=f"^{name} must be"):
        Plan.of(*arguments)


@pytest.mark.parametrize("n_chains", [1, 2, 3, 4, 7])
def test_kept_steps(n_chains):
    """As many as wanted over all chains, evenly spread over what is not burnt, the last among
    them."""
    for n_steps in (4, 5, 10, 33):
        for burn_in in (0.0, 0.3, 0.9):
            for n_samples in range(1, n_chains * n_steps + 3):
                plan = Plan.of(n_steps, burn_in, n_chains, n_samples)
                kept = [plan.kept(chain) for chain in range(n_chains)]
                free = n_steps - plan.n_burnt
                sizes = [len(steps) for steps in kept]
                assert sum(sizes) == min(n_samples, n_chains * free)
                assert max(sizes) - min(sizes) <= 1
                for steps in kept:
                    if not len(steps):
                        continue
                    assert steps[-1] == n_steps - 1
                    gaps = np.diff(np.append(plan.n_burnt - 1, steps))
                    assert gaps.min() >= 1
                    assert gaps.max() - gaps.min() <= 1


def test_kept_steps_by_hand():
    assert Plan.of(10, 0.5, 1, 5).kept(0).tolist() == [5, 6, 7, 8, 9]
    assert Plan.of(20, 0.5, 1, 2).kept(0).tolist() == [14, 19]
    assert Plan.of(20, 0.5, 2, 3).kept(0).tolist() == [14, 19]
    assert Plan.of(20, 0.5, 2, 3).kept(1).tolist() == [19]
    assert Plan.of(20, 0.5, 3, 2).kept(2).tolist() == []


# --- recording ---------------------------------------------------------------------------------


def moves(n, chain=0):
    return [Move(np.array([k, chain], float), -10.0 * k - chain) for k in range(n)]


def recorded(plan, number, n):
    keep = Recorder(plan, number)
    for move in moves(n, number):
        keep(move)
    return keep.chain


def test_recorder():
    plan = Plan.of(20, 0.5, 2, 4)
    chain = recorded(plan, 1, 20)
    np.testing.assert_array_equal(chain.theta, [[14, 1], [19, 1]])
    steps = np.arange(10, 20)
    np.testing.assert_array_equal(chain.watched, np.c_[-10.0 * steps - 1, steps**2 + 1])


def test_recorder_takes_copies():
    """Samplers change theta in place."""
    keep, theta = Recorder(Plan.of(4, 0.5, 1, 2), 0), np.zeros(1)
    for _ in range(4):
        theta += 1.0
        keep(Move(theta, 0.0))
    np.testing.assert_array_equal(keep.chain.theta, [[3], [4]])


@pytest.mark.parametrize("n", [1, 7, 10, 12, 15, 17])
def test_recorder_of_a_chain_that_was_stopped(n):
    chain = recorded(Plan.of(20, 0.5, 1, 2), 0, n)
    # 14 is the first that is wanted
    np.testing.assert_array_equal(chain.theta, [[min(n - 1, 14), 0]])
    steps = np.arange(10, n) if n > 10 else np.array([n - 1])
    np.testing.assert_array_equal(chain.watched, np.c_[-10.0 * steps, steps**2])


def test_a_chain_of_which_no_draw_is_wanted():
    """More chains than draws: the others are watched, and that is all."""
    plan = Plan.of(20, 0.5, 4, 2)
    chains = [recorded(plan, k, 20) for k in range(4)]
    draws = joined(chains, 0, 80)
    np.testing.assert_array_equal(draws.theta, [[19, 0], [19, 1]])
    assert draws.watched.shape == (4, 10, 2)
    stopped = joined([recorded(plan, k, 5) for k in range(4)], 0, 80)
    np.testing.assert_array_equal(stopped.theta, [[4, 0], [4, 1]])


def test_joined_takes_the_first_draws_first_and_cuts_what_is_watched():
    chains = [
        Chain(np.full((size, 1), k) + np.arange(size)[:, None] / 10, np.full((length, 2), k))
        for k, (size, length) in enumerate([(3, 8), (2, 6), (3, 7)])
    ]
    draws = joined(chains, 17, 99)
    assert draws.theta[:, 0].tolist() == [0.0, 1.0, 2.0, 0.1, 1.1, 2.1, 0.2, 2.2]
    assert draws.watched.shape == (3, 6, 2)
    assert draws.watched[:, 0, 0].tolist() == [0, 1, 2]
    assert draws.n_evaluations == 17
    assert draws.mean[0] == pytest.approx(draws.theta.mean())
    assert draws.log_likelihood == pytest.approx(1.0)
    assert draws.n_iter == 99


def test_the_worst_of_what_is_watched_counts():
    rng = np.random.default_rng(0)
    good, slow = rng.normal(size=(4, 500)), ar1(0.95, 4, 500, 1)
    slow += np.arange(4)[:, None]
    for k in (0, 1):
        watched = np.stack([good, slow][:: 1 - 2 * k], axis=2)
        draws = Draws(np.zeros((1, 1)), watched, 0)
        assert draws.r_hat == split_r_hat(slow) > 1.1
        assert draws.effective_sample_size == effective_sample_size(slow) < 200


class FakeChain:
    def __init__(self, number):
        self.number, self.n_evaluations, self.seen = number, 0, 0

    def moves(self):
        for move in moves(20, self.number):
            self.n_evaluations += 2
            self.seen += 1
            yield move


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_run_chains(n_jobs):
    plan, lock, steps = Plan.of(20, 0.5, 3, 6), threading.Lock(), []

    def callback(step):
        with lock:
            steps.append(step)
        return False

    chains = [FakeChain(k) for k in range(3)]
    draws = run_chains(plan, chains, FakeChain.moves, callback, n_jobs)
    assert draws.n_evaluations == 120
    assert draws.n_iter == 60
    np.testing.assert_array_equal(
        draws.theta, [[14, 0], [14, 1], [14, 2], [19, 0], [19, 1], [19, 2]]
    )
    assert sorted(step.iteration for step in steps) == list(range(1, 61))
    assert sorted(step.value for step in steps) == sorted(
        10.0 * t + k for t in range(20) for k in range(3)
    )


def test_run_chains_that_are_stopped():
    chains = [FakeChain(k) for k in range(2)]
    plan = Plan.of(20, 0.5, 2, 4)
    draws = run_chains(plan, chains, FakeChain.moves, lambda step: step.theta[0] >= 12, 1)
    assert [chain.seen for chain in chains] == [13, 13]
    np.testing.assert_array_equal(draws.theta, [[12, 0], [12, 1]])
    assert draws.watched.shape == (2, 3, 2)


def test_teller():
    assert Teller(None)(Move(np.zeros(1), 1.0)) is False
    told, teller = [], None
    teller = Teller(lambda step: told.append(step) or step.iteration == 2)
    assert [teller(move) for move in moves(3)] == [False, True, False]
    assert [(step.iteration, step.value) for step in told] == [(1, 0.0), (2, 10.0), (3, 20.0)]


# --- how well chains have mixed ----------------------------------------------------------------


def ar1(rho, m, n, seed):
    """Chains x_t = rho x_{t-1} + noise of variance 1 each, begun in their own distribution."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(m, n))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("m", [1, 4])
def test_effective_sample_size_of_known_autocorrelation(rho, m):
    """n (1 - rho) / (1 + rho); without its pairs, its sign or its factor of two the estimate
    misses by far more than 15 %."""
    n = 80_000 // m
    want = m * n * (1 - rho) / (1 + rho)
    for scale, shift in ((1.0, 0.0), (1e-3, 50.0)):
        got = effective_sample_size(scale * ar1(rho, m, n, 3) + shift)
        assert got == pytest.approx(want, rel=0.15)


def test_effective_sample_size_is_the_precision_of_the_mean():
    """The variance of means of many runs, whatever the formula."""
    rho, m, n = 0.8, 2, 400
    runs = [ar1(rho, m, n, [1, k]) for k in range(300)]
    means = np.array([run.mean() for run in runs])
    size = 1.0 / means.var()
    got = np.mean([effective_sample_size(run) for run in runs])
    assert got == pytest.approx(size, rel=0.25)  # 3 standard errors of a variance of 300


def test_effective_sample_size_of_an_odd_number_of_steps():
    x = ar1(0.6, 3, 10_001, 5)
    assert effective_sample_size(x) == pytest.approx(effective_sample_size(x[:, :-1]), rel=0.02)


def test_chains_that_disagree():
    x = ar1(0.5, 4, 1000, 7)
    apart = x + 10.0 * np.arange(4)[:, None]
    assert effective_sample_size(x) > 1000
    assert effective_sample_size(apart) < 8  # chains that stay apart are about one draw each
    assert split_r_hat(x) < 1.02
    assert split_r_hat(apart) > 5.0
    # one that disagrees is enough
    one = x.copy()
    one[2] += 2.0
    assert split_r_hat(one) > 1.1
    assert effective_sample_size(one) < 100


def test_chains_that_drift_alike():
    """Means of whole chains agree, halves do not."""
    x = ar1(0.2, 4, 1000, 8) + np.linspace(-2.0, 2.0, 1000)
    assert split_r_hat(x) > 1.3
    assert split_r_hat(x[:1]) > 1.3
    assert effective_sample_size(x) < 60


@pytest.mark.parametrize(("m", "n"), [(4, 100), (3, 51), (1, 8)])
def test_r_hat_by_its_formula(m, n):
    x = ar1(0.7, m, n, 9) + np.arange(m)[:, None]
    half = n // 2
    parts = [part for row in x for part in (row[:half], row[n - half :])]
    within = np.mean([np.var(part, ddof=1) for part in parts])
    between = half * np.var([np.mean(part) for part in parts], ddof=1)
    pooled = (half - 1) / half * within + between / half
    assert split_r_hat(x) == pytest.approx(np.sqrt(pooled / within), rel=1e-12)
    assert split_r_hat(3.0 * x - 5.0) == pytest.approx(split_r_hat(x), rel=1e-9)


def test_chains_that_stand_still():
    same = np.full((3, 40), 2.5)
    assert split_r_hat(same) == np.inf
    assert effective_sample_size(same) <= 3
    apart = same + np.arange(3)[:, None]
    assert split_r_hat(apart) == np.inf
    assert effective_sample_size(apart) <= 3


def test_chains_that_are_too_short_to_tell():
    assert np.isnan(split_r_hat(np.zeros((2, 3))))
    assert np.isfinite(split_r_hat(np.random.default_rng(0).normal(size=(2, 4))))
    assert np.isnan(effective_sample_size(np.zeros((2, 3))))
    assert np.isfinite(effective_sample_size(np.random.default_rng(0).normal(size=(2, 4))))
