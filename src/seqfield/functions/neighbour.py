"""Labels given the labels around them: Gaussian functions of tokens and tables of steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from seqfield._checks import number
from seqfield._warn import warn
from seqfield.chain import ChainScores
from seqfield.errors import CapabilityError, InputError
from seqfield.functions._base import LEARNED, Floats, Learned, Shape, checked
from seqfield.functions.kernel import parts_state, restored_parts
from seqfield.functions.latent import Halves, labels_of
from seqfield.kernels import Kernel
from seqfield.kernels.functions import Span
from seqfield.labels import Targets
from seqfield.losses.pseudo import Refined, Terms, log_sum_exp, refine
from seqfield.persist import Arrays, Header, State, prefixed, under
from seqfield.sequences import Sequences

#: rounds of refining probabilities, besides one for each token of a sequence
ROUNDS = 5000
#: the largest offset
FARTHEST = 10**6


@LEARNED.register
@dataclass(frozen=True, eq=False)
class NeighbourFunction(Learned):
    """The Gaussian posterior of a pseudo-likelihood model, and how it predicts.

    ``spans`` are the means of the labels' functions, one for each kernel (their values add up);
    ``halves`` their covariances; ``amplitudes`` (S,) their scales; ``steps`` and ``step_variances``
    (R, S, S) the posterior of the tables, one for each of ``distances``. ``inference`` and
    ``half_variances`` are those of `GPSL`.
    """

    kernels: list[Kernel]
    spans: list[Span]
    halves: list[Halves]
    amplitudes: Floats
    steps: Floats
    step_variances: Floats
    distances: tuple[int, ...]
    inference: str = "refine"
    half_variances: bool = False

    @property
    def n_kept(self) -> int:
        """Tokens at which prediction evaluates the kernels."""
        return sum(span.n_tokens for span in self.spans)

    @property
    def transitions(self) -> Floats:
        """Scores (S, S) of a label (column) by the one before it (row); zeros if it has no say."""
        if -1 not in self.distances:
            return np.zeros((len(self.amplitudes),) * 2)
        return np.asarray(self.steps[self.distances.index(-1)])

    @property
    def has_chain(self) -> bool:
        """Whether there is a chain with the conditionals of the model."""
        return sorted(self.distances) == [-1, 1]

    def moments(self, data: Sequences, n_jobs: int | None = None) -> tuple[Floats, Floats]:
        """Means and variances (N, S) of the latent functions."""
        means = self.spans[0].values(data.x, n_jobs)
        for span in self.spans[1:]:
            means += span.values(data.x, n_jobs)
        variances = np.empty_like(means)
        for k, (span, halves) in enumerate(zip(self.spans, self.halves, strict=True)):
            own = labels_of(k, len(self.halves), len(self.amplitudes))
            variances[:, own] = self.amplitudes[own] * halves.variances(span, data.x)
        return means, variances

    def scores(self, data: Sequences, n_jobs: int | None = None) -> ChainScores:
        """Scores of the chain, or log-probabilities of single labels."""
        check_inference(self.inference, self.distances)
        means, variances = self.moments(data, n_jobs)
        if self.inference == "chain":
            node, steps = self._corrected(means, variances)
            before, after = (steps[self.distances.index(offset)] for offset in (-1, 1))
            # a chain with edges E has p(y_t | y_t-1 = i, y_t+1 = j) = softmax(f + E[i] + E[:, j]):
            # what is learned of E from either side, on equal terms
            edge = 0.5 * (before + after.T)
            return ChainScores(node, edge, data.offsets, check=False)
        p = self.refined(means, variances, data.offsets).probabilities
        node = np.log(np.maximum(p, 1e-300))
        return ChainScores(node, np.zeros((p.shape[1],) * 2), data.offsets, check=False)

    def refined(self, means: Floats, variances: Floats, offsets: NDArray[np.int64]) -> Refined:
        """Probabilities of single labels, those of their neighbours being open too."""
        node, steps = self._corrected(means, variances)
        rounds = ROUNDS + int(np.diff(offsets).max())
        found = refine(node, steps, offsets, self.distances, max_rounds=rounds)
        if not found.settled:
            remedy = "inference='chain' or fewer offsets" if self.has_chain else "fewer offsets"
            warn(
                f"the probabilities of some labels did not settle in {found.n_rounds} rounds: the "
                f"labels depend on each other too strongly. Use {remedy}",
                ConvergenceWarning,
            )
        return found

    def log_pseudo_likelihood(
        self, data: Sequences, targets: Targets, n_jobs: int | None = None
    ) -> Floats:
        """sum_t log p(y_t | x_t, the labels around it) of each sequence (n,)."""
        node, steps = self._corrected(*self.moments(data, n_jobs))
        terms = Terms.of(targets, self.distances, np.ones(len(data)), len(self.amplitudes))
        z = node[terms.tokens] + terms.gather(steps)
        p = z[np.arange(len(z)), terms.gold] - log_sum_exp(z)
        sequence = np.searchsorted(data.offsets, terms.tokens, "right") - 1
        return np.bincount(sequence, p, len(data)).astype(np.float64)

    def _corrected(self, means: Floats, variances: Floats) -> tuple[Floats, Floats]:
        """Scores of labels and of steps to predict with."""
        if not self.half_variances:
            return means, self.steps
        return means + 0.5 * variances, self.steps + 0.5 * self.step_variances

    def state(self) -> State:
        """Header and arrays for a model file."""
        header, arrays = parts_state(self.kernels, list(self.spans))
        own = {"amplitudes": self.amplitudes, "steps": self.steps}
        arrays |= own | {"step_variances": self.step_variances}
        for k, halves in enumerate(self.halves):
            arrays |= prefixed(f"halves{k}", halves._asdict())
        return State(header | {"distances": list(self.distances)}, arrays)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, shape: Shape) -> Self:
        """The function of what `state` gave; every index is range-checked."""
        s, distances = shape.n_labels, checked_distances(header["distances"])
        kernels, parts = restored_parts(header, arrays, shape, s)
        if len(kernels) not in (1, s):
            raise InputError("a number of kernels that is not that of labels")
        spans = [part for part in parts if isinstance(part, Span)]
        if len(spans) < len(parts):
            raise InputError("functions without kept tokens")
        halves = [
            Halves.restored(
                under(f"halves{k}", arrays), span.n_tokens, len(labels_of(k, len(kernels), s))
            )
            for k, span in enumerate(spans)
        ]
        tables = (len(distances), s, s)
        least = np.finfo(np.float64).tiny
        return cls(
            kernels,
            spans,
            halves,
            checked("amplitudes", arrays, (s,), low=least),
            checked("steps", arrays, tables),
            checked("step_variances", arrays, tables, low=least),
            distances,
        )


def check_inference(inference: str, distances: tuple[int, ...]) -> None:
    """Raise a `CapabilityError` for a chain where the offsets make none."""
    if inference == "chain" and sorted(distances) != [-1, 1]:
        raise CapabilityError(
            f"inference='chain' needs offsets=(-1, 1), got {distances}: use inference='refine'"
        )


def checked_distances(offsets: Any) -> tuple[int, ...]:
    """Offsets of a model of neighbours: whole numbers, none of them 0, none twice."""
    no_list = isinstance(offsets, str | bytes | bytearray) or not isinstance(offsets, Iterable)
    if no_list or (isinstance(offsets, np.ndarray) and offsets.ndim == 0):
        raise InputError(f"offsets must be whole numbers such as (-1, 1), got {offsets!r}")
    found = tuple(
        int(number("offsets", value, low=-FARTHEST, high=FARTHEST, whole=True)) for value in offsets
    )
    if 0 in found or len(set(found)) != len(found):
        raise InputError(f"offsets must be different from 0 and from each other, got {offsets!r}")
    return found
