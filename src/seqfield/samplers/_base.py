"""The common part of samplers: chains of draws from a posterior with the prior N(0, I), and
diagnostics of their mixing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from seqfield._checks import number
from seqfield._parallel import run
from seqfield.solvers._base import Callback, Floats, Step

#: scalars of a draw that the diagnostics use
WATCHED = ("log-likelihood", "squared norm")


class Draws(NamedTuple):
    """Draws (k, P) from all chains in turn, the watched scalars of every step after burn-in
    (chains, steps, 2), how often the likelihood was evaluated, and the steps of all chains."""

    theta: Floats
    watched: Floats
    n_evaluations: int
    n_iter: int = 0

    @property
    def mean(self) -> Floats:
        """The mean of the draws (P,)."""
        return np.asarray(self.theta.mean(axis=0))

    @property
    def log_likelihood(self) -> float:
        """Its mean over the steps after burn-in."""
        return float(self.watched[:, :, 0].mean())

    @property
    def still(self) -> list[int]:
        """The chains that never moved, if there were at least two steps."""
        if self.watched.shape[1] < 2:
            return []
        return np.flatnonzero((np.ptp(self.watched, axis=1) == 0.0).all(axis=1)).tolist()

    @property
    def effective_sample_size(self) -> float:
        """The smallest effective sample size of the watched scalars."""
        return min(map(effective_sample_size, self._telling))

    @property
    def r_hat(self) -> float:
        """The largest R-hat of the watched scalars.

        It is infinite if a chain never moved, unless there are too few steps to know.
        """
        largest = max(map(split_r_hat, self._telling))
        return float("inf") if self.still and not np.isnan(largest) else largest

    @property
    def _telling(self) -> list[Floats]:
        """The watched scalars, without a scalar that is constant although the chains move.

        For example, every log-likelihood is 0 if all labels are certain.
        """
        each = [self.watched[:, :, k] for k in range(len(WATCHED))]
        return [values for values in each if np.ptp(values) > 0.0] or each


class Move(NamedTuple):
    """The state of a chain after a step."""

    theta: Floats
    log_likelihood: float


class Plan(NamedTuple):
    """Steps of each chain, how many of them are burn-in, and the draws kept of all chains."""

    n_steps: int
    n_burnt: int
    n_chains: int
    n_samples: int

    @classmethod
    def of(cls, n_steps: int, burn_in: float, n_chains: int, n_samples: int) -> Plan:
        """From checked arguments; ``burn_in`` is a share of the steps."""
        n_steps = number("n_steps", n_steps, low=4, whole=True)
        n_burnt = int(number("burn_in", burn_in, low=0, high=0.99) * n_steps)
        n_chains = number("n_chains", n_chains, low=1, whole=True)
        n_samples = number("n_samples", n_samples, low=1, whole=True)
        return cls(n_steps, n_burnt, n_chains, min(n_samples, n_chains * (n_steps - n_burnt)))

    def kept(self, chain: int) -> NDArray[np.int64]:
        """The steps of a chain whose draws are kept: evenly spread, with the last step."""
        share = len(range(chain, self.n_samples, self.n_chains))
        spread = np.linspace(self.n_burnt, self.n_steps, share + 1)[1:]
        return np.unique(np.ceil(spread).astype(np.int64) - 1)


class Chain(NamedTuple):
    """The kept draws and watched scalars of one chain."""

    theta: Floats
    watched: Floats


class Recorder:
    """Keeps the draws and the watched scalars of one chain."""

    def __init__(self, plan: Plan, number_: int) -> None:
        self.plan, self._wanted = plan, set(plan.kept(number_).tolist())
        self._step = 0
        self._kept: list[Floats] = []
        self._watched: list[tuple[float, float]] = []

    def __call__(self, move: Move) -> None:
        """Record the next step."""
        if self._step >= self.plan.n_burnt:
            self._watched.append((move.log_likelihood, float(move.theta @ move.theta)))
        if self._step in self._wanted:
            self._kept.append(move.theta.copy())
        self._step, self._last = self._step + 1, move

    @property
    def chain(self) -> Chain:
        """The kept part of the chain.

        If the chain was stopped early, at least its last draw is kept, unless the plan wants none.
        """
        move = self._last
        kept = self._kept or [move.theta.copy()][: len(self._wanted)]
        watched = self._watched or [(move.log_likelihood, float(move.theta @ move.theta))]
        return Chain(np.array(kept), np.array(watched))


class Walker(Protocol):
    """The state of one chain."""

    @property
    def n_evaluations(self) -> int:
        """Likelihoods looked at so far."""
        ...


W = TypeVar("W", bound=Walker)


def run_chains(
    plan: Plan,
    chains: Sequence[W],
    moves: Callable[[W], Iterator[Move]],
    callback: Callback | None,
    n_jobs: int | None,
) -> Draws:
    """Run chains side by side on threads, and each of their products on one."""
    told = Teller(callback)

    def work(k: int) -> Chain:
        keep = Recorder(plan, k)
        for move in moves(chains[k]):
            keep(move)
            if told(move):
                break
        return keep.chain

    with threadpool_limits(1, user_api="blas"):
        found = run(work, range(len(chains)), n_jobs)
    n_evaluations = sum(chain.n_evaluations for chain in chains)
    return joined(found, n_evaluations, plan.n_steps * plan.n_chains)


def joined(chains: list[Chain], n_evaluations: int, n_iter: int) -> Draws:
    """The draws of several chains; their first draws first."""
    most = max(len(chain.theta) for chain in chains)
    theta = [chain.theta[k] for k in range(most) for chain in chains if k < len(chain.theta)]
    length = min(len(chain.watched) for chain in chains)
    watched = np.stack([chain.watched[:length] for chain in chains])
    return Draws(np.array(theta), watched, n_evaluations, n_iter)


class Teller:
    """Passes the steps of all chains to one callback."""

    def __init__(self, callback: Callback | None) -> None:
        self.callback, self.count = callback, 0

    def __call__(self, move: Move) -> bool:
        self.count += 1
        if self.callback is None:
            return False
        return self.callback(Step(self.count, move.theta, -move.log_likelihood))


def split_r_hat(values: Floats) -> float:
    """Split R-hat: potential scale reduction of chains (m, n), each cut into two halves.

    It is about 1 if the chains agree, and infinite if no chain moves.

    >>> rng = np.random.default_rng(0)
    >>> split_r_hat(rng.normal(size=(4, 1000))) < 1.01
    True
    >>> split_r_hat(rng.normal(size=(4, 1000)) + np.arange(4)[:, None]) > 1.5
    True
    """
    half = values.shape[1] // 2
    if half < 2:
        return float("nan")
    parts = np.vstack([values[:, :half], values[:, -half:]])
    # relative to the first value, so that rounding does not make a constant vary
    within = (parts - parts[:, :1]).var(axis=1, ddof=1).mean()
    between = parts.mean(axis=1).var(ddof=1)
    if within == 0.0:
        return float("inf")
    return float(np.sqrt((half - 1) / half + between / within))


def effective_sample_size(values: Floats) -> float:
    """Effective sample size: independent draws that give the mean as precisely as chains (m, n).

    The autocorrelations of all chains are summed in pairs while the pairs fall and stay positive
    (Geyer's initial monotone sequence). A chain that does not move counts as one draw at most.

    >>> rng = np.random.default_rng(0)
    >>> 3000 < effective_sample_size(rng.normal(size=(4, 1000))) < 5000
    True
    """
    m, n = values.shape
    if n < 4:
        return float("nan")
    moved = values - values[:, :1]  # exactly 0 for a chain that does not move
    centred = moved - moved.mean(axis=1, keepdims=True)
    size = 2 ** int(np.ceil(np.log2(2 * n)))
    power = np.abs(np.fft.rfft(centred, size, axis=1)) ** 2
    covariance = np.fft.irfft(power, size, axis=1)[:, :n].mean(axis=0) / n
    within = covariance[0] * n / (n - 1)
    if within == 0.0:
        return float(m)
    between = values.mean(axis=1).var(ddof=1) if m > 1 else 0.0
    total = within * (n - 1) / n + between
    rho = 1.0 - (within - covariance) / total
    rho[0] = 1.0
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0.0)
    pairs = pairs[: negative[0] if len(negative) else len(pairs)]
    time = max(-1.0 + 2.0 * np.minimum.accumulate(pairs).sum(), 1.0 / np.log10(m * n))
    n_still = int((np.ptp(values, axis=1) == 0.0).sum())
    # chains that do not move, with the weight 1 / m each, give the mean a variance of n_still / m^2
    return float(min(m * n / time, m * m / n_still) if n_still else m * n / time)
