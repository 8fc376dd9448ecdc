"""Expected log-likelihoods under Gaussian scores, and their derivatives by means and covariances.

For a sequence of T tokens and each label f = b + R e, e ~ N(0, I), R R' = Sigma (T, T), and
transitions T = m + sqrt(w) e. Two estimators give derivatives by b and Sigma. Derivatives by all
other parameters follow by algebra:

* "reparam": E[df] by b and 1/2 E[df e'] R^-1 by Sigma (Stein's identity), df the derivative of the
  log-likelihood by the scores. Draws come in pairs e, -e, so that odd terms in e cancel.
* "score": E[l e] and 1/2 E[l (e e' - I)], whitened, from values l of the log-likelihood alone. A
  control variate a h, with h = e or e e' - I of mean zero, removes most of the noise. Its best
  factor a = E[l h^2] / E[h^2] for each entry is estimated on the other half of the draws, because a
  factor from the same draws would bias the result.

By Stein's identity, the derivative by Sigma is also half the mean second derivative of the
log-likelihood. For a chain that is minus the covariance of the labels' indicators. ``curvature``
estimates it from labellings that are drawn at each draw of scores. This estimate never has the
wrong sign, whatever the noise. Natural gradients add it to a precision, so they need the right
sign. With missing labels, the second derivative has either sign. Its mean over the labels that
might have been known, the Fisher information, has one sign and takes its place (`information`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqfield.chain import ChainScores, marginals, sample
from seqfield.chain.constraint import Constraint
from seqfield.errors import InputError
from seqfield.labels import Targets
from seqfield.losses._base import BendsByLabel, Loss
from seqfield.losses.log import LogLoss
from seqfield.solvers._base import Floats

#: values of the log-likelihood (k, n) at scores (k, N, S) and transitions (k, S, S)
Values = Callable[[Floats, Floats], Floats]
#: labellings drawn at each draw of scores
LABELLINGS = 8
#: log-likelihoods, their derivatives by scores and transitions at one draw
Gradient = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]
#: minus second derivatives by the scores of each sequence (S, T, T) and by transitions (S, S)
Curvature = Callable[[Floats, Floats, np.random.Generator], tuple[list[Floats], Floats]]


class Moments(NamedTuple):
    """Means (N, S) of the scores, and for each sequence a root of their covariance and its inverse
    (S, T, T) for each label; means and variances of transitions."""

    offsets: Any
    means: Floats
    roots: list[Floats]
    inverses: list[Floats]
    steps: Floats
    step_variances: Floats

    @classmethod
    def of(
        cls, offsets: Any, means: Floats, covariances: list[Floats], steps: Any, variances: Any
    ) -> Moments:
        """From covariances (S, T, T)."""
        roots: list[Any] = [np.linalg.cholesky(own) for own in covariances]
        inverses: list[Any] = [np.linalg.inv(root) for root in roots]
        return cls(offsets, means, roots, inverses, steps, variances)


class Expected(NamedTuple):
    """An estimate of the expected log-likelihood of each sequence (n,), and the derivatives of
    their sum by the means (N, S), the covariances (S, T, T), by means and variances of
    transitions."""

    values: Floats
    means: Floats
    covariances: list[Floats]
    steps: Floats
    step_variances: Floats


class Noise(NamedTuple):
    """Standard normal numbers behind scores (k, N, S) and transitions (k, S, S)."""

    node: Floats
    steps: Floats


def draw_noise(moments: Moments, k: int, rng: np.random.Generator, *, paired: bool) -> Noise:
    """k draws. If ``paired``, the second half is the first half with the opposite sign."""
    n = (k + 1) // 2 if paired else k
    node = rng.normal(size=(n, *moments.means.shape))
    steps = rng.normal(size=(n, *moments.steps.shape))
    if paired:
        node, steps = np.concatenate([node, -node]), np.concatenate([steps, -steps])
    return Noise(node, steps)


def scores_of(moments: Moments, noise: Noise) -> tuple[Floats, Floats]:
    """Scores (k, N, S) and transitions (k, S, S)."""
    f = np.empty_like(noise.node)
    for (a, b), root in zip(pairwise(moments.offsets.tolist()), moments.roots, strict=True):
        # (S, T, T) x (S, T, k)
        moved = root @ noise.node[:, a:b].transpose(2, 1, 0)
        f[:, a:b] = moments.means[a:b] + moved.transpose(2, 1, 0)
    return f, moments.steps + np.sqrt(moments.step_variances) * noise.steps


def by_reparameterisation(
    moments: Moments,
    gradient: Gradient,
    k: int,
    rng: np.random.Generator,
    curvature: Curvature | None = None,
) -> Expected:
    """The estimate from derivatives of the log-likelihood; k is rounded up to an even number."""
    noise = draw_noise(moments, k, rng, paired=True)
    f, t = scores_of(moments, noise)
    found = [gradient(*one) for one in zip(f, t, strict=True)]
    values = np.mean([one[0] for one in found], axis=0)
    d = np.stack([one[1] for one in found])
    d_steps = np.stack([one[2] for one in found])
    if curvature is not None:
        covariances, variances = _bends(curvature, f, t, rng)
        return Expected(values, d.mean(axis=0), covariances, d_steps.mean(axis=0), variances)
    covariances = []
    for (a, b), inverse in zip(pairwise(moments.offsets.tolist()), moments.inverses, strict=True):
        # E[df e'] for each label: (S, T, k) x (S, k, T)
        product = d[:, a:b].transpose(2, 1, 0) @ noise.node[:, a:b].transpose(2, 0, 1) / len(f)
        covariances.append(_symmetric(0.5 * (product @ inverse)))
    variances = 0.5 * (d_steps * noise.steps).mean(axis=0) / np.sqrt(moments.step_variances)
    return Expected(values, d.mean(axis=0), covariances, d_steps.mean(axis=0), variances)


def _bends(
    curvature: Curvature, f: Floats, t: Floats, rng: np.random.Generator
) -> tuple[list[Floats], Floats]:
    """Half the mean second derivatives; only their sum over the draws is kept in memory."""
    nodes, steps = curvature(f[0], t[0], rng)
    for one in zip(f[1:], t[1:], strict=True):
        more, more_steps = curvature(*one, rng)
        for total, part in zip(nodes, more, strict=True):
            total += part
        steps = steps + more_steps
    for total in nodes:
        total *= -0.5 / len(f)
    return nodes, -0.5 * steps / len(f)


def by_scores(
    moments: Moments, values: Values, k: int, rng: np.random.Generator, *, control: bool = True
) -> Expected:
    """The estimate from values of the log-likelihood alone."""
    noise = draw_noise(moments, max(4, k), rng, paired=False)
    found = values(*scores_of(moments, noise))
    means, covariances = np.empty_like(moments.means), []
    for i, (a, b) in enumerate(pairwise(moments.offsets.tolist())):
        e = noise.node[:, a:b].transpose(0, 2, 1)  # (k, S, T)
        inverse, own = moments.inverses[i], found[:, i]
        first = _estimate(own, e, control=control)
        square = e[..., :, None] * e[..., None, :] - np.eye(b - a)
        second = _estimate(own, square, control=control)
        # R^-T g, and 1/2 R^-T G R^-1
        means[a:b] = np.einsum("sqt,sq->ts", inverse, first)
        covariances.append(_symmetric(0.5 * inverse.transpose(0, 2, 1) @ second @ inverse))
    total, scale = found.sum(axis=1), np.sqrt(moments.step_variances)
    steps = _estimate(total, noise.steps, control=control) / scale
    squares = noise.steps**2 - 1.0
    variances = 0.5 * _estimate(total, squares, control=control) / moments.step_variances
    return Expected(found.mean(axis=0), means, covariances, steps, variances)


def _estimate(values: Floats, h: Floats, *, control: bool) -> Floats:
    """E[l h] from draws l (k,) and h (k, ...) of mean zero."""
    wide = values.reshape(-1, *([1] * (h.ndim - 1)))
    if not control:
        return np.asarray((wide * h).mean(axis=0))
    half, parts = len(h) // 2, []
    for own, other in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        square = h[other] ** 2
        factor = (wide[other] * square).sum(axis=0) / np.maximum(square.sum(axis=0), 1e-12)
        parts.append(((wide[own] - factor) * h[own]).sum(axis=0))
    return np.asarray((parts[0] + parts[1]) / len(h))


def _symmetric(matrices: Floats) -> Floats:
    return 0.5 * (matrices + matrices.swapaxes(-1, -2))


def information(
    scores: ChainScores,
    allowed: NDArray[np.bool_],
    weights: Floats,
    rng: np.random.Generator,
    n: int,
) -> tuple[list[Floats], Floats]:
    """Fisher information of partly known labels by the scores of each sequence, one label at a time
    (S, T, T), and by each transition (S, S).

    It is the covariance of E[indicators | known part of y] over y ~ p(y | x). The estimate from n
    such y is unbiased and always positive semi-definite. If all labels are known, these means are
    the indicators, and the information is minus the second derivative.
    """
    s, offsets = scores.n_labels, scores.offsets
    centred, counts = np.empty((n, *scores.node.shape)), np.empty((n, s, s))
    for k, y in enumerate(sample(scores, n, random_state=rng)):
        # if the drawn label is a candidate, only the candidate set would have been known
        told, inside = np.arange(s) == y[:, None], allowed[np.arange(len(y)), y]
        told[inside] = allowed[inside]
        # counts of transitions are multiplied by the root of the weight, so variances by the weight
        found = marginals(scores, allowed=told, pairs="sum", weights=np.sqrt(weights))
        centred[k], counts[k] = found.node, found.pairs
    centred -= centred.mean(axis=0)
    nodes = []
    for i, (a, b) in enumerate(pairwise(offsets.tolist())):
        own = centred[:, a:b].transpose(2, 1, 0)
        nodes.append(weights[i] / (n - 1) * (own @ own.transpose(0, 2, 1)))
    return nodes, counts.var(axis=0, ddof=1)


class Bound(NamedTuple):
    """A log-likelihood of given labels."""

    values: Values
    gradient: Gradient | None = None
    curvature: Curvature | None = None


class Likelihood(Protocol):
    """What labels are worth under scores."""

    @property
    def differentiable(self) -> bool:
        """Whether a bound has derivatives by the scores."""
        ...

    def bends(self, targets: Targets) -> bool:
        """Whether there are second derivatives of one sign, or what stands for them."""
        ...

    def bound(self, targets: Targets, weights: Floats) -> Bound:
        """For given labels, sequence i counting weights[i] times."""
        ...


class ChainLikelihood:
    """A loss over chain scores as a log-likelihood of draws of scores."""

    differentiable = True

    def __init__(self, loss: Loss, constraint: Constraint | None) -> None:
        self.loss, self.constraint = loss, constraint

    def bound(self, targets: Targets, weights: Floats) -> Bound:
        """For given labels, sequence i counting weights[i] times."""

        def scores(f: Floats, t: Floats) -> ChainScores:
            found = ChainScores(np.ascontiguousarray(f), t, targets.offsets, check=False)
            return found if self.constraint is None else self.constraint.impose(found)

        def values(f: Floats, t: Floats) -> Floats:
            pairs = zip(f, t, strict=True)
            return np.stack([-weights * self.loss.values(scores(*one), targets) for one in pairs])

        def gradient(f: Floats, t: Floats) -> tuple[Floats, Floats, Floats]:
            found = self.loss(scores(f, t), targets, weights)
            # the value of the whole batch is shared out, because only its sum is used
            each = np.full(len(weights), -found.value / len(weights))
            return each, -found.node, -found.edge

        def curvature(
            f: Floats, t: Floats, rng: np.random.Generator
        ) -> tuple[list[Floats], Floats]:
            if targets.allowed is not None and isinstance(self.loss, LogLoss):
                return information(scores(f, t), targets.allowed, weights, rng, LABELLINGS)
            assert isinstance(self.loss, BendsByLabel)
            return self.loss.curvature(scores(f, t), targets, weights, rng, LABELLINGS)

        return Bound(values, gradient, curvature if self.bends(targets) else None)

    def bends(self, targets: Targets) -> bool:
        """Whether there are second derivatives of one sign, or what stands for them.

        The piecewise likelihood has them if labels are known or missing, but not for candidate
        sets.
        """
        if not isinstance(self.loss, BendsByLabel):
            return False
        if isinstance(self.loss, LogLoss) or targets.allowed is None:
            return True
        n = targets.allowed.sum(axis=1)
        return not ((n > 1) & (n < targets.allowed.shape[1])).any()


class BlackBox:
    """A function (F, T, labels) -> values as a log-likelihood of draws of scores.

    It is called for each sequence with F (k, length, S), T (k, S, S) and label codes (length,),
    -1 where a label is not known, and returns k log-likelihoods.
    """

    differentiable = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def bends(self, targets: Targets) -> bool:
        """Nothing is known of it but its values."""
        return False

    def bound(self, targets: Targets, weights: Floats) -> Bound:
        """For given labels, sequence i counting weights[i] times."""

        def values(f: Floats, t: Floats) -> Floats:
            out = np.empty((len(f), len(weights)))
            for i, (a, b) in enumerate(pairwise(targets.offsets.tolist())):
                labels = np.where(targets.codes[a:b] >= 0, targets.codes[a:b], -1)
                out[:, i] = weights[i] * self._checked(f[:, a:b], t, labels)
            return out

        return Bound(values)

    def _checked(self, f: Floats, t: Floats, labels: Any) -> Floats:
        returned = self.function(f.copy(), t.copy(), labels.copy())
        try:
            found = np.asarray(returned)
        except ValueError as error:
            raise InputError(f"likelihood must return an array of numbers: {error}") from error
        if found.shape != (len(f),):
            raise InputError(
                f"likelihood must return one number for each of {len(f)} draws, shape "
                f"({len(f)},); it returned shape {found.shape}"
            )
        if found.dtype.kind not in "iuf" or not np.isfinite(found).all():
            raise InputError(
                "likelihood returned values that are not finite numbers for a sequence of "
                f"{len(labels)} tokens: log-likelihoods must be finite for all scores"
            )
        return found.astype(np.float64)
