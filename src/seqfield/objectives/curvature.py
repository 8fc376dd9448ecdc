"""Second derivatives of an objective as products with vectors: H = c2 I + J' W J.

J is the linear map from theta to scores. W is block diagonal over sequences: it is the covariance
of node indicators and transition counts under p(y | x, theta). Where labels are missing, the
covariance given the known labels is subtracted. No matrix is ever formed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqfield._parallel import run
from seqfield.architectures._base import AnyArchitecture, collect_each, lift_each
from seqfield.chain import ChainScores, marginals, sample
from seqfield.labels import Targets
from seqfield.losses._base import ScoreTangent, TwiceDifferentiable, covariance

Floats = NDArray[np.float64]

#: step of the finite differences for third derivatives, relative to the largest change of a score
STEP = 1e-3
#: number of labellings summed for one draw, which is nearly Gaussian with covariance W
LABELLINGS = 16
#: largest count of numbers in the pullbacks that are in memory at the same time
PULLED = 2**24

#: a function of a direction of scores
Along = Callable[[Floats, Floats], ScoreTangent]


class Covariance(Protocol):
    """The matrix W of one shard."""

    def __call__(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """W times a direction of scores."""
        ...

    def third(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """The derivative of d' W d with respect to the scores."""
        ...


@runtime_checkable
class Drawable(Protocol):
    """A matrix W from which random vectors of covariance W can be drawn."""

    def draw(self, rng: np.random.Generator) -> ScoreTangent:
        """Draw a random vector of covariance W."""
        ...


class Full:
    """W with all pairs of positions within each sequence. A product takes one tangent pass."""

    def __init__(self, scores: ChainScores, weights: Floats) -> None:
        self.scores, self.weights = scores, weights

    def __call__(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """W times a direction of scores."""
        return covariance(self.scores, self.weights, d_node, d_edge)

    def third(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """The derivative of d' W d with respect to the scores."""

        def at(scores: ChainScores) -> ScoreTangent:
            return covariance(scores, self.weights, d_node, d_edge)

        return _third(at, self.scores, d_node, d_edge)

    def draw(self, rng: np.random.Generator) -> ScoreTangent:
        """sqrt(w_i / m) sum_j (indicators of y_j - their mean), m labellings y_j ~ p(y | x).

        W is the covariance of these indicators, and so of the draw, for every m. A larger m brings
        the draw closer to a Gaussian.
        """
        scores, s = self.scores, self.scores.n_labels
        root = np.sqrt(self.weights / LABELLINGS)
        mean = marginals(
            scores, pairs="sum" if scores.stationary else "each", weights=LABELLINGS * root
        )
        assert mean.pairs is not None
        y = sample(scores, LABELLINGS, random_state=rng).astype(np.int64)
        lengths, n = np.diff(scores.offsets), scores.n_tokens
        scale = np.repeat(root, lengths)
        node = np.bincount((np.arange(n) * s + y).ravel(), minlength=n * s).reshape(n, s)
        later = np.ones(n, bool)
        later[scores.offsets[:-1]] = False
        t = np.flatnonzero(later)
        pair = y[:, t - 1] * s + y[:, t]
        d_node = scale[:, None] * (node - LABELLINGS * mean.node)
        if scores.stationary:
            weights = np.broadcast_to(scale[t], pair.shape)
            count = np.bincount(pair.ravel(), weights.ravel(), s * s)
            return ScoreTangent(d_node, count.reshape(s, s) - mean.pairs)
        each = np.bincount((t * s * s + pair).ravel(), minlength=n * s * s).reshape(n, s, s)
        return ScoreTangent(d_node, scale[:, None, None] * (each - LABELLINGS * mean.pairs))


class Observed:
    """W where labels are missing: a difference of two covariances.

    It is the covariance under p(y | x) minus the covariance given the known labels. The difference
    may be indefinite, so no random vector with this covariance need exist.
    """

    def __init__(
        self, loss: TwiceDifferentiable, scores: ChainScores, targets: Targets, weights: Floats
    ) -> None:
        self.loss, self.scores, self.targets, self.weights = loss, scores, targets, weights

    def __call__(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """W times a direction of scores."""
        return self.loss.tangent(self.scores, self.targets, self.weights, d_node, d_edge)

    def third(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """The derivative of d' W d with respect to the scores."""

        def at(scores: ChainScores) -> ScoreTangent:
            return self.loss.tangent(scores, self.targets, self.weights, d_node, d_edge)

        return _third(at, self.scores, d_node, d_edge)


def _third(
    at: Callable[[ChainScores], ScoreTangent],
    scores: ChainScores,
    d_node: Floats,
    d_edge: Floats,
) -> ScoreTangent:
    """The derivative of d' W d with respect to the scores, from W d at any scores.

    It equals the derivative of W d along d, because third derivatives of a function are symmetric.
    """
    eps = STEP / max(1e-300, np.abs(d_node).max(), np.abs(d_edge).max())
    up, down = (
        at(
            ChainScores(
                scores.node + r * d_node,
                scores.edge + r * d_edge,
                scores.offsets,
                scores.start,
                scores.end,
                check=False,
            )
        )
        for r in (eps, -eps)
    )
    return ScoreTangent((up.node - down.node) / (2 * eps), (up.edge - down.edge) / (2 * eps))


class Block:
    """W without covariances between positions (Altun 2005, 5.3.4).

    It is diag(P) - P P' for the label of a token, and the same for the pair of labels at a
    position. Only known labels and known pairs count.
    """

    def __init__(self, scores: ChainScores, targets: Targets, weights: Floats) -> None:
        found = marginals(scores, pairs="each")
        assert found.pairs is not None
        self.node, self.pairs = found.node, found.pairs
        self.scores, self.of_sequences = scores, weights
        known = targets.mask(scores.n_labels).sum(axis=1) == 1
        self.known, self.both = known.astype(np.float64), known.astype(np.float64)
        self.both[1:] *= self.known[:-1]
        self.weights = np.repeat(weights, np.diff(scores.offsets))

    def __call__(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """W times a direction of scores."""
        # (diag(p) - p p') d = p (d - p . d)
        node = self.node * (d_node - (self.node * d_node).sum(axis=1, keepdims=True))
        pairs = self.pairs * d_edge
        pairs -= self.pairs * pairs.sum(axis=(1, 2), keepdims=True)
        return self._weighted(self.weights, node, pairs)

    def third(self, d_node: Floats, d_edge: Floats) -> ScoreTangent:
        """The derivative of d' W d with respect to the scores."""
        # d' W d = sum_t p . d^2 - (p . d)^2 over tokens and pairs. Its derivative with respect to
        # p is d^2 - 2 d (p . d). The full covariance is the derivative of p by the scores.
        node = d_node * (d_node - 2.0 * (self.node * d_node).sum(axis=1, keepdims=True))
        mean = (self.pairs * d_edge).sum(axis=(1, 2), keepdims=True)
        node, edge = self._of_known(node, d_edge * (d_edge - 2.0 * mean))
        return covariance(self.scores, self.of_sequences, node, edge)

    def draw(self, rng: np.random.Generator) -> ScoreTangent:
        """Draw a Gaussian: sqrt(p) z - p (sqrt(p) . z) has the covariance diag(p) - p p'."""
        node = np.sqrt(self.node) * rng.normal(size=self.node.shape)
        pairs = np.sqrt(self.pairs) * rng.normal(size=self.pairs.shape)
        return self._weighted(
            np.sqrt(self.weights),
            node - self.node * node.sum(axis=1, keepdims=True),
            pairs - self.pairs * pairs.sum(axis=(1, 2), keepdims=True),
        )

    def _weighted(self, weights: Floats, node: Floats, pairs: Floats) -> ScoreTangent:
        node, each = self._of_known(weights[:, None] * node, weights[:, None, None] * pairs)
        return ScoreTangent(node, each.sum(axis=0) if self.scores.stationary else each)

    def _of_known(self, node: Floats, pairs: Floats) -> tuple[Floats, Floats]:
        """Put zeros at tokens with an unknown label, and at pairs that contain such a token."""
        return self.known[:, None] * node, self.both[:, None, None] * pairs


class Curvature:
    """The product v -> H v at a point; v is (n,) or (k, n).

    Products have the same representation as gradients.
    """

    def __init__(
        self,
        architecture: AnyArchitecture,
        c2: float,
        designs: list[object],
        covariances: list[Covariance],
        n_jobs: int | None = None,
    ) -> None:
        self.architecture, self.c2, self.n_jobs = architecture, c2, n_jobs
        self._designs, self._covariances = designs, covariances

    def __call__(self, v: Floats) -> Floats:
        """H v."""
        rows = np.atleast_2d(v)
        products = self._by_row(rows, [one.__call__ for one in self._covariances])
        return (products + self.c2 * rows).reshape(v.shape)

    def third(self, v: Floats) -> Floats:
        """The derivative of v' H v with respect to theta, for each row of v (k, n)."""
        return self._by_row(v, [one.third for one in self._covariances])

    @property
    def drawable(self) -> bool:
        """Whether random vectors of covariance W can be drawn."""
        return all(isinstance(one, Drawable) for one in self._covariances)

    def draws(self, n: int, rng: np.random.Generator) -> Floats:
        """Draw n random vectors of covariance J' W J (n, n_parameters)."""
        out = np.empty((n, self.architecture.n_parameters))
        for row in out:
            own = rng.spawn(len(self._designs))
            row[:] = self._pull([partial(self._drawn, own)])[0]
        return out

    def _drawn(self, rngs: list[np.random.Generator], k: int) -> ScoreTangent:
        """Draw a random vector whose covariance is W of shard k."""
        own = self._covariances[k]
        assert isinstance(own, Drawable)
        return own.draw(rngs[k])

    def _by_row(self, rows: Floats, of: list[Along]) -> Floats:
        """J' u for each row v, where u is computed shard by shard from the score direction J v.

        ``of`` holds one function for each shard.
        """
        numbers = self.architecture.n_parameters * len(self._designs)
        size = max(1, PULLED // max(1, numbers))
        out = np.empty_like(rows)
        for a in range(0, len(rows), size):
            lifted = lift_each(self.architecture, rows[a : a + size])
            out[a : a + size] = self._pull([partial(self._along, one, of) for one in lifted])
        return out

    def _along(self, lifted: Any, of: list[Along], k: int) -> ScoreTangent:
        """Apply the function of shard k to the score direction of shard k."""
        direction = self.architecture.scores(lifted, self._designs[k])
        return of[k](direction.node, direction.edge)

    def _pull(self, makes: list[Callable[[int], ScoreTangent]]) -> Floats:
        """J' u for score vectors u. Each u is computed shard by shard."""
        n = len(self._designs)

        def work(item: int) -> Floats:
            make, k = makes[item // n], item % n
            return self.architecture.pullback(self._designs[k], *make(k))

        parts = run(work, range(n * len(makes)), self.n_jobs)
        split = [parts[a : a + n] for a in range(0, len(parts), n)]
        several = [list(zip(self._designs, own, strict=True)) for own in split]
        return collect_each(self.architecture, several)
