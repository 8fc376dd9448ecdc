"""p(y | x, known labels): the distribution of the open labels, given the known ones.

A known label forbids all other labels at its token, so one chain stays one chain. An average over
posterior draws f_s stays an average of chains. Draws under which the known labels are more
probable then have more weight: p(f_s | known) = p(known | f_s) / sum_r p(known | f_r).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from seqfield import chain
from seqfield.chain import ChainScores, Spans
from seqfield.data.schemes import SpanCodes
from seqfield.errors import LabelError
from seqfield.estimators._average import LABELLINGS
from seqfield.labels import Targets
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Posterior:
    """A weighted average of chains, over the labellings of n sequences that agree with the known
    labels. Every result is exact for a single chain."""

    draws: list[ChainScores]
    weights: Floats  # (draws, n)
    known: Targets
    n_jobs: int | None

    def marginals(self) -> Floats:
        """p(y_t = j | x, known) (N, S)."""
        parts = (chain.marginals(scores, n_jobs=self.n_jobs).node for scores in self.draws)
        return self._mean(parts, self._owner)

    def two_best(self) -> Floats:
        """Log-probabilities (2, n) of the best and the second best labelling.

        For an average, only labellings that are among the two best of some draw are compared.
        """
        found = [chain.nbest(scores, 2, n_jobs=self.n_jobs) for scores in self.draws]
        # a sequence with only one labelling lists it twice; `other` below is then False
        codes = np.array(
            [
                np.concatenate([row[min(k, len(row) - 1)][0] for row in own])
                for own in found
                for k in (0, 1)
            ]
        )
        logs = np.array([self._log_prob(row) for row in codes])
        best = codes[logs.argmax(axis=0)[self._owner], np.arange(codes.shape[1])]
        other = np.logical_or.reduceat(codes != best, self.known.offsets[:-1], axis=1)
        return np.array([logs.max(axis=0), np.where(other, logs, -np.inf).max(axis=0)])

    def entropy(self) -> Floats:
        """Joint entropy (nats) of all open labels (n,).

        For an average, drawn labellings give an unbiased estimate.
        """
        if len(self.draws) == 1:
            return chain.entropy(self.draws[0], n_jobs=self.n_jobs)
        rng = np.random.default_rng(0)
        # each labelling of a sequence comes from a draw of its own
        ends, u = np.cumsum(self.weights, axis=0), rng.random((LABELLINGS, self.weights.shape[1]))
        which = (u[:, None, :] > ends[None, :-1]).sum(axis=1)[:, self._owner]
        codes = np.empty(which.shape, dtype=np.int32)
        for s, scores in enumerate(self.draws):
            own = chain.sample(scores, LABELLINGS, random_state=rng, n_jobs=self.n_jobs)
            codes[which == s] = own[which == s]
        # H = -E log p(y | x, known)
        out: Floats = -np.mean([self._log_prob(row) for row in codes], axis=0)
        return out

    def expected_spans(self, codes: SpanCodes) -> Floats:
        """The expected number of spans (n,) that start at open tokens."""
        # a span starts at t if y_t is inside one that does not go on from t - 1
        inside = (codes.kind >= 0).astype(np.float64)
        same = np.equal.outer(codes.kind, codes.kind) & (codes.kind >= 0)
        goes_on = (same & codes.opens[:, None] & codes.continues).astype(np.float64)
        each = np.tile(inside, (self.draws[0].n_tokens, 1))
        parts = [
            chain.expectation(scores, each, -goes_on, n_jobs=self.n_jobs)[0]
            for scores in self.draws
        ]
        total = self._mean(parts, np.arange(self.weights.shape[1]))
        y, first = self.known.codes, self.known.offsets[:-1]
        if (y < 0).all():
            return total
        # at a token with a known label, only the label before it decides whether a span starts
        before = np.roll(self.marginals(), 1, axis=0)
        before[first] = 0.0
        starts = inside[y] - np.einsum("ti,ti->t", before, goes_on.T[y])
        return total - np.add.reduceat(np.where(y < 0, 0.0, starts), first)

    def likely_spans(self, codes: SpanCodes, least: float) -> Spans:
        """Every span of probability ``least`` or more."""
        parts = [
            chain.likely_spans(scores, codes, least, n_jobs=self.n_jobs) for scores in self.draws
        ]
        if len(self.draws) == 1:
            return parts[0]
        # a mean is at most its largest term, so spans found in no draw are below ``least``
        rows = np.unique(np.concatenate([part.rows for part in parts]), axis=0)
        each = (chain.span_prob(scores, codes, rows, n_jobs=self.n_jobs) for scores in self.draws)
        p = self._mean(each, rows[:, 0])
        return Spans(rows[p >= least], p[p >= least])

    @property
    def _owner(self) -> Integers:
        """The sequence of each token."""
        lengths = np.diff(self.known.offsets)
        return np.repeat(np.arange(len(lengths)), lengths)

    def _mean(self, parts: Iterable[Floats], owner: Integers) -> Floats:
        """sum_s w_s part_s; ``owner`` is the sequence of each row, whose weights count."""
        total: Any = 0.0
        for w, part in zip(self.weights, parts, strict=True):
            total = total + part * w[owner].reshape(-1, *[1] * (part.ndim - 1))
        return np.asarray(total)

    def _log_prob(self, codes: NDArray[np.int32]) -> Floats:
        """log p(y | x, known) (n,) of one labelling of all sequences."""
        parts = [chain.log_prob(scores, codes, n_jobs=self.n_jobs) for scores in self.draws]
        out: Floats = logsumexp(np.stack(parts), axis=0, b=self.weights)
        return out


def posteriors(
    model: Any, data: Sequences, known: Targets, numbers: Integers
) -> Iterator[Posterior]:
    """The posteriors of all sequences, in blocks as the model makes them.

    ``numbers`` are the numbers of the sequences in the user's pool; messages name them.
    """
    at = 0
    for free in map(model._joint, model._blocks(data)):
        own = np.arange(at, at + free[0].n_sequences)
        yield _posterior(free, known[own], numbers[own], model.n_jobs)
        at += len(own)


def _posterior(
    free: list[ChainScores], known: Targets, numbers: Integers, n_jobs: int | None
) -> Posterior:
    allowed = known.mask(free[0].n_labels)
    if allowed.all():
        return Posterior(free, np.full((len(free), len(numbers)), 1.0 / len(free)), known, n_jobs)
    held = [_under(scores, allowed) for scores in free]
    # log p(known | f_s)
    logs = np.array(
        [
            chain.log_partition(with_y, n_jobs=n_jobs, strict=False)
            - chain.log_partition(without, n_jobs=n_jobs)
            for with_y, without in zip(held, free, strict=True)
        ]
    )
    impossible = np.isneginf(logs).all(axis=0)
    if impossible.any():
        i = int(numbers[np.argmax(impossible)])
        raise LabelError(
            f"sequence {i} of the pool: the model's constraints forbid every labelling with the "
            "known labels. Correct these labels, or leave them out"
        )
    return Posterior(held, softmax(logs, axis=0), known, n_jobs)


def _under(scores: ChainScores, allowed: NDArray[np.bool_]) -> ChainScores:
    """Scores that forbid all but the allowed labels."""
    node = np.where(allowed, scores.node, -np.inf)
    return ChainScores(node, scores.edge, scores.offsets, scores.start, scores.end, check=False)
