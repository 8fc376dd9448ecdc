"""Inference for p(y | x) that is one chain, or a weighted average of several chains.

An average over posterior draws f_s is not a chain: log p(y | x) = log sum_s w_s p(y | f_s). The
probability of a label is the weighted mean of its marginals. With one chain this is plain chain
inference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from seqfield import chain
from seqfield._checks import generator, number
from seqfield.chain import ChainScores, Spans
from seqfield.data.schemes import SpanCodes
from seqfield.errors import LabelError
from seqfield.labels import Codes, Targets

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NBest = list[list[tuple[Codes, float]]]

#: drawn labellings behind the entropy of an average
LABELLINGS = 32


@dataclass(frozen=True, eq=False)
class Average:
    """The average of chains over the same sequences.

    ``weights`` (draws, n) are the weights of the chains in each sequence; None means equal weights.
    """

    draws: list[ChainScores]
    weights: Floats | None = None
    n_jobs: int | None = None

    @property
    def offsets(self) -> Integers:
        """Where sequences begin and end."""
        return self.draws[0].offsets

    def marginals(self) -> Floats:
        """p(y_t = j | x) (N, S)."""
        parts = (chain.marginals(scores, n_jobs=self.n_jobs).node for scores in self.draws)
        return self._mean(parts, self._owner)

    def expectation(self, node: Floats, edge: Floats) -> Floats:
        """E[sum_t node_t(y_t) + edge(y_{t-1}, y_t)] of each sequence (n,)."""
        parts = (
            chain.expectation(scores, node, edge, n_jobs=self.n_jobs)[0] for scores in self.draws
        )
        return self._mean(parts, np.arange(len(self.offsets) - 1))

    def window_prob(self, first: Any, allowed: list[Any]) -> Floats:
        """P(y_t in A_t for all t) of each window."""
        parts = (
            chain.window_prob(scores, first, allowed, n_jobs=self.n_jobs) for scores in self.draws
        )
        owner = np.searchsorted(self.offsets, np.asarray(first, np.int64), "right") - 1
        return self._mean(parts, owner)

    def span_prob(self, codes: SpanCodes, spans: Any) -> Floats:
        """P(y has the span) of each row (sequence, kind, first token, last token)."""
        rows = np.asarray(spans, dtype=np.int64).reshape(-1, 4)
        parts = (chain.span_prob(scores, codes, rows, n_jobs=self.n_jobs) for scores in self.draws)
        return self._mean(parts, rows[:, 0])

    def likely_spans(self, codes: SpanCodes, least: float) -> Spans:
        """Every span of probability ``least`` or more."""
        parts = [
            chain.likely_spans(scores, codes, least, n_jobs=self.n_jobs) for scores in self.draws
        ]
        if len(self.draws) == 1:
            return parts[0]
        # a mean is not above the largest of its terms
        rows = np.unique(np.concatenate([part.rows for part in parts]), axis=0)
        p = self.span_prob(codes, rows)
        return Spans(rows[p >= least], p[p >= least])

    def log_prob(self, targets: Targets) -> Floats:
        """log p(y | x) of each sequence, summed over what is not known of y."""
        return self._log_mean([_log_prob(scores, targets, self.n_jobs) for scores in self.draws])

    def entropy(self) -> Floats:
        """Entropy of p(y | x) in nats; of an average by drawn labellings, without bias."""
        if len(self.draws) == 1:
            return chain.entropy(self.draws[0], n_jobs=self.n_jobs)
        # H = -E log p(y | x)
        total = np.zeros(len(self.offsets) - 1)
        for codes in self.sample(LABELLINGS, 0):
            total -= self.log_prob(Targets(codes, None, self.offsets))
        return total / LABELLINGS

    def viterbi(self) -> Codes:
        """The best labelling; of an average the one with the best product of averaged marginals
        that the constraints allow."""
        if len(self.draws) == 1:
            return chain.viterbi(self.draws[0], n_jobs=self.n_jobs).labels
        with np.errstate(divide="ignore"):
            return self._best_lawful(np.log(self.marginals()))

    def posterior_decode(self) -> Codes:
        """The labelling with the most expected right labels that the constraints allow."""
        if len(self.draws) == 1:
            return chain.posterior_decode(self.draws[0], n_jobs=self.n_jobs)
        return self._best_lawful(self.marginals())

    def nbest(self, n: int) -> NBest:
        """For each sequence n labellings with their log-probabilities, best first.

        For an average these are the best of all that are among the n best of some chain.
        """
        lists = [chain.nbest(scores, n, n_jobs=self.n_jobs) for scores in self.draws]
        if len(self.draws) == 1:
            return lists[0]
        out = []
        for i in range(len(self.offsets) - 1):
            union = {np.asarray(codes).tobytes(): codes for found in lists for codes, _ in found[i]}
            rows = np.array(list(union.values()))
            same = np.full(len(rows), i)
            here = [scores.select(same)[1] for scores in self.draws]
            weights = None if self.weights is None else self.weights[:, same]
            parts = [chain.log_prob(part, rows.ravel()) for part in here]
            logs = Average(here, weights)._log_mean(parts)
            order = np.argsort(-logs, kind="stable")[:n]
            out.append([(rows[j], float(logs[j])) for j in order])
        return out

    def sample(self, n: int, random_state: Any) -> NDArray[np.int32]:
        """n labellings of all sequences (n, N), each drawn from one of the chains."""
        if len(self.draws) == 1:
            return chain.sample(self.draws[0], n, random_state=random_state, n_jobs=self.n_jobs)
        number("n", n, low=1, whole=True)
        rng = generator(random_state)
        out = np.empty((n, len(self.draws[0].node)), dtype=np.int32)
        if self.weights is None:
            which = rng.integers(len(self.draws), size=n)
            for k in np.unique(which):
                seed = int(rng.integers(2**31 - 1))
                chosen = np.flatnonzero(which == k)
                out[chosen] = chain.sample(
                    self.draws[k], len(chosen), random_state=seed, n_jobs=self.n_jobs
                )
            return out
        # the chains weigh differently in each sequence, so each sequence chooses for itself
        ends, u = np.cumsum(self.weights, axis=0), rng.random((n, self.weights.shape[1]))
        each = (u[:, None, :] > ends[None, :-1]).sum(axis=1)[:, self._owner]
        for k, scores in enumerate(self.draws):
            own = chain.sample(scores, n, random_state=rng, n_jobs=self.n_jobs)
            out[each == k] = own[each == k]
        return out

    def given(self, known: Targets) -> Average:
        """p(y | x, known): the distribution of the labels that are still unknown.

        Known labels forbid all other labels at their tokens, so one chain stays one chain. In an
        average, a chain gets more weight if the known labels are more probable under it.
        """
        allowed = known.mask(self.draws[0].n_labels)
        if allowed.all():
            return self
        held = [_under(scores, allowed) for scores in self.draws]
        totals = [chain.log_partition(one, n_jobs=self.n_jobs, strict=False) for one in held]
        impossible = np.isneginf(totals).all(axis=0)
        if impossible.any():
            i = int(np.argmax(impossible))
            raise LabelError(
                f"sequence {i}: the model's constraints forbid every labelling with the known "
                "labels. Correct these labels, or leave them out",
                place=(i, 0),
            )
        if len(held) == 1:
            return Average(held, None, self.n_jobs)
        # log p(known | f_s)
        free = [chain.log_partition(scores, n_jobs=self.n_jobs) for scores in self.draws]
        logs = np.array(totals) - np.array(free)
        if self.weights is not None:
            with np.errstate(divide="ignore"):
                logs = logs + np.log(self.weights)
        return Average(held, softmax(logs, axis=0), self.n_jobs)

    @property
    def _owner(self) -> Integers:
        """The sequence of each token."""
        lengths = np.diff(self.offsets)
        return np.repeat(np.arange(len(lengths)), lengths)

    def _best_lawful(self, node: Floats) -> Codes:
        """The labelling with the best sum of node scores that the constraints allow."""
        like = self.draws[0]

        def lawful(part: Floats) -> Floats:
            return np.where(np.isneginf(part), -np.inf, 0.0)

        # labels that are known rule others out, whatever these would let their neighbours be
        node = np.where(np.isneginf(like.node), -np.inf, node)
        start, end = (None if part is None else lawful(part) for part in (like.start, like.end))
        scores = ChainScores(node, lawful(like.edge), like.offsets, start, end, check=False)
        return chain.viterbi(scores, n_jobs=self.n_jobs).labels

    def _mean(self, parts: Iterable[Floats], owner: Integers) -> Floats:
        """sum_s w_s part_s, with the weights of the sequence that owns each row."""
        if self.weights is not None:
            total: Any = 0.0
            for w, part in zip(self.weights, parts, strict=True):
                total = total + part * w[owner].reshape(-1, *[1] * (part.ndim - 1))
            return np.asarray(total)
        rest = iter(parts)  # one at a time, as each is as large as the scores of a draw
        first = next(rest)
        for part in rest:
            first += part
        return first / len(self.draws) if len(self.draws) > 1 else first

    def _log_mean(self, parts: list[Floats]) -> Floats:
        """log sum_s w_s exp(part_s) of each sequence."""
        if len(parts) == 1:
            return parts[0]
        if self.weights is not None:
            out: Floats = logsumexp(np.stack(parts), axis=0, b=self.weights)
            return out
        with np.errstate(divide="ignore"):
            out = logsumexp(np.stack(parts), axis=0) - np.log(len(parts))
        return out


def _log_prob(scores: ChainScores, targets: Targets, n_jobs: int | None) -> Floats:
    if targets.allowed is None:
        return chain.log_prob(scores, targets.codes, n_jobs=n_jobs)
    free = chain.log_partition(scores, n_jobs=n_jobs)
    held = chain.log_partition(scores, allowed=targets.allowed, n_jobs=n_jobs, strict=False)
    return held - free


def _under(scores: ChainScores, allowed: NDArray[np.bool_]) -> ChainScores:
    """Scores that forbid all but the allowed labels."""
    node = np.where(allowed, scores.node, -np.inf)
    return ChainScores(node, scores.edge, scores.offsets, scores.start, scores.end, check=False)
