"""Architecture, loss and prior put together over a data set: what solvers minimise."""

from __future__ import annotations

import copy
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from seqfield._parallel import check_jobs, run
from seqfield.architectures._base import AnyArchitecture, LiftsMany, Touches
from seqfield.chain import ChainScores, marginals, viterbi
from seqfield.chain.constraint import Constraint
from seqfield.errors import CapabilityError
from seqfield.labels import Targets
from seqfield.losses._base import Loss, TwiceDifferentiable
from seqfield.objectives.curvature import Block, Covariance, Curvature, Full, Observed
from seqfield.objectives.needs import Parts
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, even_bounds

Floats = NDArray[np.float64]

#: scores of one shard in memory: 2**22 numbers are 32 MiB
SHARD_SCORES = 2**22
MAX_SHARDS = 16
#: below this many tokens x labels^2 a batch is done before a second thread has woken up
THREADED = 2**22


class Shard(NamedTuple):
    """A fixed run of sequences with what the objective needs of them.

    ``design`` is of the kind that the architecture makes.
    """

    design: object
    targets: Targets
    weights: Floats


class Batch(NamedTuple):
    """A small shard for stochastic steps, and the L2 weight of each weight it touches."""

    shard: Shard
    penalty: Floats


class Part(NamedTuple):
    """A batch's loss, the weights it touches, the loss's gradient by them, and their L2 weights."""

    value: float
    touched: NDArray[np.int32]
    gradient: Floats
    penalty: Floats


class Occupancies(NamedTuple):
    """Marginals (N, C) of labels, and where edges are scored of the pairs of labels that end at a
    token: under p(y | x), and given what is known of y. ``weights`` (N,) are the tokens'."""

    weights: Floats
    free: Floats
    held: Floats


class Objective:
    """value(theta) = sum_i w_i loss(scores_i(theta), y_i) + prior(theta).

    (A loss that is not additive puts its parts together in its own way.)
    Data are cut into shards that depend on the data alone. Each shard is scored, differentiated
    and pulled back on one thread, and the parts are added in order of the shards: the result is
    bit-identical for every ``n_jobs``.
    """

    def __init__(
        self,
        architecture: AnyArchitecture,
        loss: Loss,
        prior: ElasticNet,
        data: Sequences,
        targets: Targets,
        weights: Floats,
        constraint: Constraint | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.architecture, self.loss, self.prior = architecture, loss, prior
        self.constraint, self.n_jobs = constraint, n_jobs
        self.data, self.targets, self.weights = data, targets, weights
        check_jobs(n_jobs)

    @property
    def parts(self) -> Parts:
        """What it is made of, for the needs of solvers."""
        return Parts(self.architecture, self.loss, self.prior)

    @cached_property
    def _shards(self) -> list[Shard]:
        """The data laid out, for what needs gradients."""
        data, s = self.data, self.architecture.n_labels
        per_token = s if data.edge is None else s * s
        most = max(MAX_SHARDS, -(-data.n_tokens * per_token // SHARD_SCORES))
        n_shards = min(most, len(data), max(1, data.n_tokens // 2048))
        bounds = even_bounds(data.offsets, n_shards)
        return run(lambda bound: self._shard(np.arange(*bound)), bounds, self.n_jobs)

    def with_loss(self, loss: Loss, prior: ElasticNet) -> Self:
        """The same data under another loss and prior; nothing is laid out again."""
        shards, other = self._shards, copy.copy(self)
        other.loss, other.prior, other._shards = loss, prior, shards
        return other

    def over(self, architecture: AnyArchitecture, prior: ElasticNet) -> Self:
        """The same data under another architecture that lays them out alike, and its prior."""
        shards, other = self._shards, copy.copy(self)
        other.architecture, other.prior, other._shards = architecture, prior, shards
        return other

    def on_one_thread(self) -> Self:
        """The same, laid out, for use by several threads at once: one of a pool that waits for
        others of it may wait forever."""
        shards, other = self._shards, copy.copy(self)
        other.n_jobs, other._shards = None, shards
        return other

    def restricted(self, chosen: NDArray[np.int64]) -> Restricted:
        """The objective as a function of the chosen weights, all others being zero."""
        return Restricted(self, chosen)

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.data)

    @property
    def mean_length(self) -> float:
        """Tokens a sequence."""
        return self.data.n_tokens / len(self.data)

    @property
    def l1(self) -> float:
        """Weight of the L1 penalty, which ``value_and_grad`` leaves out."""
        return self.prior.c1

    def gap(self, theta: Floats, gradient: Floats) -> float:
        """Bound on value minus optimum at a point with the given smooth gradient."""
        # with labels not known exactly the loss is a difference of two convex functions
        convex = self.loss.convex and self.targets.allowed is None
        if not convex:
            return np.inf
        return self.prior.gap(theta, gradient, self.dual, self.architecture.noise)

    def dual(self, vector: Floats) -> Floats:
        """v* with <u, v> = u . v* in the architecture's inner product, which gradients are in."""
        return self.architecture.dual(vector)

    def pseudo_gradient(self, theta: Floats, gradient: Floats) -> Floats:
        """Subgradient of least norm of the whole objective."""
        return self.prior.pseudo_gradient(theta, gradient)

    def value_and_grad(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient of everything but the L1 penalty."""
        lifted = self.architecture.lift(theta)
        parts = run(partial(self._pull, lifted), self._shards, self.n_jobs)
        values, ones = np.array([part[0] for part in parts]), np.ones(len(parts))
        if not self.loss.additive:
            for part, share in zip(parts, self.loss.shares(values, ones), strict=True):
                np.multiply(part[1], share, out=part[1])
        gradient = self.architecture.collect(
            [(shard.design, part[1]) for shard, part in zip(self._shards, parts, strict=True)]
        )
        value = self.loss.total(values, ones)
        return value + self.prior.add_smooth(theta, gradient, self.dual), gradient

    def each_value_and_grad(self, thetas: Floats) -> tuple[Floats, Floats]:
        """Values (k,) and gradients (k, n_parameters) at several points at once, of an additive
        loss: products with a root read it once for all of them."""
        many = self.architecture
        if not isinstance(many, LiftsMany):
            raise CapabilityError(f"{type(many).__name__} does not lift many points at once")
        lifted = many.lift_all(thetas)
        todo = [(values, shard) for values in lifted for shard in self._shards]
        parts = run(lambda one: self._pull(*one), todo, self.n_jobs)
        designs, n = [shard.design for shard in self._shards], len(self._shards)
        several = [
            list(zip(designs, (part[1] for part in parts[i : i + n]), strict=True))
            for i in range(0, len(parts), n)
        ]
        gradients = many.collect_all(several)
        values = np.array([part[0] for part in parts]).reshape(-1, n).sum(axis=1)
        for k, theta in enumerate(thetas):
            values[k] += self.prior.add_smooth(theta, gradients[k], self.dual)
        return values, gradients

    def value(self, theta: Floats) -> float:
        """The value alone, without the L1 penalty."""
        lifted = self.architecture.lift(theta)

        def work(shard: Shard) -> float:
            values = self.loss.values(self._scores(lifted, shard), shard.targets)
            return self.loss.total(values, shard.weights)

        values = np.array(run(work, self._shards, self.n_jobs))
        return self.loss.total(values, np.ones(len(values))) + self.prior.smooth(theta, self.dual)

    def curvature(self, theta: Floats, block: bool = False, *, fisher: bool = False) -> Curvature:
        """The second derivative at theta, as products with vectors.

        ``block`` leaves out all covariances between different positions. With labels not known
        exactly the loss is a difference of two convex functions and its second derivative may be
        indefinite; ``fisher`` keeps the first of them alone, the covariance of p(y | x) free of
        what is known, which never is.
        """
        lifted, loss = self.architecture.lift(theta), self.loss
        if not isinstance(loss, TwiceDifferentiable):
            raise CapabilityError(
                f"{type(loss).__name__} gives no second derivative: Newton's method and the "
                "Laplace approximation need the log loss"
            )

        def work(shard: Shard) -> Covariance:
            scores, targets = self._scores(lifted, shard), shard.targets
            if block:
                return Block(loss.free(scores, targets), targets, shard.weights)
            if fisher or targets.allowed is None:
                return Full(loss.free(scores, targets), shard.weights)
            return Observed(loss, scores, targets, shard.weights)

        covariances = run(work, self._shards, self.n_jobs)
        designs = [shard.design for shard in self._shards]
        return Curvature(self.architecture, self.prior.c2, designs, covariances, self.n_jobs)

    def occupancies(self, theta: Floats) -> Occupancies:
        """What p(y | x) expects of each token, and what is known of it."""
        lifted = self.architecture.lift(theta)

        def both(shard: Shard) -> list[Floats]:
            scores = self._scores(lifted, shard)
            pairs: Literal["each"] | None = None if scores.stationary else "each"
            masks = (None, shard.targets.mask(scores.n_labels))
            found = [marginals(scores, allowed=mask, pairs=pairs) for mask in masks]
            return [
                p.node if p.pairs is None else np.hstack([p.node, p.pairs.reshape(len(p.node), -1)])
                for p in found
            ]

        free, held = zip(*run(both, self._shards, self.n_jobs), strict=True)
        weights = [np.repeat(s.weights, np.diff(s.targets.offsets)) for s in self._shards]
        return Occupancies(np.concatenate(weights), np.vstack(free), np.vstack(held))

    def error(self, theta: Floats) -> float:
        """Weighted share of known labels that the best labelling gets wrong."""
        lifted = self.architecture.lift(theta)

        def work(shard: Shard) -> tuple[float, float]:
            scores = self._scores(lifted, shard)
            known = shard.targets.mask(scores.n_labels)
            told = np.repeat(shard.weights, np.diff(scores.offsets)) * ~known.all(axis=1)
            right = known[np.arange(len(known)), viterbi(scores).labels]
            return float(told @ ~right), float(told.sum())

        wrong, told = np.sum(run(work, self._shards, self.n_jobs), axis=0)
        return float(wrong / max(told, 1e-300))

    def batches(self, size: int, rng: np.random.Generator) -> list[Batch]:
        """Shuffled sequences in batches of about ``size``, laid out once for all epochs.

        Each weight's penalty is shared out over the batches that touch it, so that a batch's
        gradient concerns touched weights alone and the batches still add up to the objective
        (up to the penalty of weights that no data touch, which stay at zero).
        """
        touched = self._touching.touched
        order = rng.permutation(len(self.data))
        chosen = np.array_split(order, max(1, round(len(order) / size)))
        shards = run(self._shard, chosen, self.n_jobs)
        times = np.zeros(self.architecture.n_parameters)
        for shard in shards:
            times[touched(shard.design)] += 1.0
        return [Batch(shard, self.prior.c2 / times[touched(shard.design)]) for shard in shards]

    def batch_gradients(self, theta: Floats, group: list[Batch]) -> list[Part]:
        """Values and gradients of some batches at the same theta."""
        lifted, touched = self.architecture.lift(theta), self._touching.touched

        def work(batch: Batch) -> Part:
            value, gradient = self._pull(lifted, batch.shard)
            return Part(value, touched(batch.shard.design), gradient, batch.penalty)

        tokens = sum(len(batch.shard.targets.codes) for batch in group)
        worth_it = tokens * self.architecture.n_labels**2 >= THREADED
        return run(work, group, self.n_jobs if worth_it else 1)

    @property
    def _touching(self) -> Touches[Any]:
        if not isinstance(self.architecture, Touches):
            kind = type(self.architecture).__name__
            raise CapabilityError(f"{kind} does not know which weights a batch touches")
        return self.architecture

    def _shard(self, chosen: NDArray[np.int64]) -> Shard:
        design = self.architecture.design(self.data[chosen])
        return Shard(design, self.targets[chosen], self.weights[chosen])

    def _scores(self, lifted: object, shard: Shard) -> ChainScores:
        scores = self.architecture.scores(lifted, shard.design)
        return scores if self.constraint is None else self.constraint.impose(scores)

    def _pull(self, lifted: object, shard: Shard) -> tuple[float, Floats]:
        value, d_node, d_edge = self.loss(self._scores(lifted, shard), shard.targets, shard.weights)
        return value, self.architecture.pullback(shard.design, d_node, d_edge)


class Restricted:
    """An objective as a function of some of its weights."""

    def __init__(self, objective: Objective, chosen: NDArray[np.int64]) -> None:
        self._objective, self._chosen = objective, chosen

    def value_and_grad(self, part: Floats) -> tuple[float, Floats]:
        """Value and gradient by the chosen weights."""
        theta = np.zeros(self._objective.architecture.n_parameters)
        theta[self._chosen] = part
        value, gradient = self._objective.value_and_grad(theta)
        return value, gradient[self._chosen]

    def gap(self, part: Floats, gradient: Floats) -> float:
        """Bound on value minus optimum over the chosen weights."""
        return self._objective.gap(part, gradient)

    def dual(self, vector: Floats) -> Floats:
        """Weights have the plain inner product."""
        return vector
