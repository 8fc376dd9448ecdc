"""The objective: architecture, loss and prior over a data set. Solvers minimise it."""

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

#: most scores of one shard in memory: 2**22 numbers are 32 MiB
SHARD_SCORES = 2**22
MAX_SHARDS = 16
#: below this number of tokens x labels^2, a batch ends before a second thread can start
THREADED = 2**22


class Shard(NamedTuple):
    """Some sequences, with their design, targets and weights.

    The architecture makes ``design`` and determines its type.
    """

    design: object
    targets: Targets
    weights: Floats


class Batch(NamedTuple):
    """A small shard for stochastic steps, with the L2 penalty of each weight that it touches."""

    shard: Shard
    penalty: Floats


class Part(NamedTuple):
    """The loss of a batch and its gradient, for the weights that the batch touches.

    ``touched`` holds the indices of these weights, ``penalty`` their L2 penalties.
    """

    value: float
    touched: NDArray[np.int32]
    gradient: Floats
    penalty: Floats


class Occupancies(NamedTuple):
    """Marginals (N, C) of labels under p(y | x) (``free``) and given the known labels (``held``).

    If edges have scores of their own, the columns also cover the pairs of labels that end at a
    token. ``weights`` (N,) are the weights of the tokens.
    """

    weights: Floats
    free: Floats
    held: Floats


class Objective:
    """value(theta) = sum_i w_i loss(scores_i(theta), y_i) + prior(theta).

    (A loss that is not additive combines its parts in its own way.)

    The data are cut into shards. The cuts do not depend on ``n_jobs``. Each shard is scored,
    differentiated and pulled back on one thread. The parts are added in the order of the shards.
    So the result is bit-identical for every ``n_jobs``.
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
        """Architecture, loss and prior, for the check of needs."""
        return Parts(self.architecture, self.loss, self.prior)

    @cached_property
    def _shards(self) -> list[Shard]:
        """The data as shards, for values and derivatives."""
        data, s = self.data, self.architecture.n_labels
        per_token = s if data.edge is None else s * s
        most = max(MAX_SHARDS, -(-data.n_tokens * per_token // SHARD_SCORES))
        n_shards = min(most, len(data), max(1, data.n_tokens // 2048))
        bounds = even_bounds(data.offsets, n_shards)
        return run(lambda bound: self._shard(np.arange(*bound)), bounds, self.n_jobs)

    def with_loss(self, loss: Loss, prior: ElasticNet) -> Self:
        """The same data under another loss and prior. The shards are reused."""
        shards, other = self._shards, copy.copy(self)
        other.loss, other.prior, other._shards = loss, prior, shards
        return other

    def over(self, architecture: AnyArchitecture, prior: ElasticNet) -> Self:
        """The same data under another architecture and its prior. The shards are reused.

        The new architecture must make the same designs.
        """
        shards, other = self._shards, copy.copy(self)
        other.architecture, other.prior, other._shards = architecture, prior, shards
        return other

    def on_one_thread(self) -> Self:
        """The same objective on one thread, with its shards made, for use by several threads.

        A thread of a pool must not wait for other threads of the same pool: it may wait forever.
        """
        shards, other = self._shards, copy.copy(self)
        other.n_jobs, other._shards = None, shards
        return other

    def restricted(self, chosen: NDArray[np.int64]) -> Restricted:
        """The objective as a function of the chosen weights. All other weights are zero."""
        return Restricted(self, chosen)

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.data)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens in a sequence."""
        return self.data.n_tokens / len(self.data)

    @property
    def l1(self) -> float:
        """Weight of the L1 penalty, which ``value_and_grad`` leaves out."""
        return self.prior.c1

    def gap(self, theta: Floats, gradient: Floats) -> float:
        """Bound on value minus optimum at theta. ``gradient`` is that of the smooth part."""
        # if some labels are not known exactly, the loss is a difference of two convex functions
        convex = self.loss.convex and self.targets.allowed is None
        if not convex:
            return np.inf
        return self.prior.gap(theta, gradient, self.dual, self.architecture.noise)

    def dual(self, vector: Floats) -> Floats:
        """The dual v*: <u, v> = u . v* in the inner product of the architecture.

        Gradients refer to the same inner product.
        """
        return self.architecture.dual(vector)

    def pseudo_gradient(self, theta: Floats, gradient: Floats) -> Floats:
        """Subgradient of the whole objective with the least norm."""
        return self.prior.pseudo_gradient(theta, gradient)

    def value_and_grad(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient of the objective without the L1 penalty."""
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
        """Values (k,) and gradients (k, n_parameters) at several points, for an additive loss.

        A product with a root reads the root once for all points.
        """
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
        """The value without the L1 penalty."""
        lifted = self.architecture.lift(theta)

        def work(shard: Shard) -> float:
            values = self.loss.values(self._scores(lifted, shard), shard.targets)
            return self.loss.total(values, shard.weights)

        values = np.array(run(work, self._shards, self.n_jobs))
        return self.loss.total(values, np.ones(len(values))) + self.prior.smooth(theta, self.dual)

    def curvature(self, theta: Floats, block: bool = False, *, fisher: bool = False) -> Curvature:
        """The second derivative at theta, as products with vectors.

        ``block`` leaves out all covariances between different positions. If some labels are not
        known exactly, the loss is a difference of two convex functions. Its second derivative may
        then be indefinite. ``fisher`` keeps only the first function: the covariance of p(y | x),
        without the known labels. This covariance is never indefinite.
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
        """Marginals of each token under p(y | x), and given the known labels."""
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
        """Weighted share of known labels that differ from the best labelling."""
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
        """Shuffled sequences in batches of about ``size``. One call serves all epochs.

        The penalty of a weight is divided among the batches that touch the weight. So the gradient
        of a batch concerns only touched weights, and the batches add up to the objective. Weights
        that no batch touches have no penalty here, but these weights stay at zero.
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
        """Value, and gradient with respect to the chosen weights."""
        theta = np.zeros(self._objective.architecture.n_parameters)
        theta[self._chosen] = part
        value, gradient = self._objective.value_and_grad(theta)
        return value, gradient[self._chosen]

    def gap(self, part: Floats, gradient: Floats) -> float:
        """Bound on value minus optimum over the chosen weights."""
        return self._objective.gap(part, gradient)

    def dual(self, vector: Floats) -> Floats:
        """The vector itself: weights have the plain inner product."""
        return vector
