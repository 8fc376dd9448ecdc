"""A hidden Markov model: p(x_t | label), and the probabilities of starts, steps and stops."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np

from seqfield._parallel import run
from seqfield.architectures.emissions import KINDS, Gaussian, Multinomial
from seqfield.chain import ChainScores
from seqfield.errors import CapabilityError, InputError
from seqfield.functions._base import LEARNED, Floats, Learned, Shape, checked
from seqfield.persist import Arrays, Header, State
from seqfield.sequences import Sequences

#: tokens scored in one piece
PIECE = 2**14


class Steps(NamedTuple):
    """One number for each start (S,), transition (S, S) and stop (S,)."""

    start: Floats
    pairs: Floats
    end: Floats

    def plus(self, other: Steps) -> Steps:
        """The sums of both."""
        return Steps(*(a + b for a, b in zip(self, other, strict=True)))

    def dot(self, logs: Steps) -> float:
        """sum c log p; what never happens counts for nothing, even if it is forbidden."""
        both = zip(self, logs, strict=True)
        return float(sum(c[c > 0] @ log[c > 0] for c, log in both))

    def log_shares(self) -> Steps:
        """log p(start), log p(j | i), log p(stop | i) of counts; -inf for a count of zero."""
        after = np.column_stack([self.pairs, self.end])
        total = after.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            start = np.log(self.start) - np.log(self.start.sum())
            # a label that the scheme lets nothing follow has no shares
            after = np.log(after) - np.log(np.where(total > 0, total, 1.0))
        return Steps(start, np.ascontiguousarray(after[:, :-1]), after[:, -1].copy())


@LEARNED.register
@dataclass(frozen=True, eq=False)
class EmissionFunction(Learned):
    """Emissions and the logarithms of the probabilities of steps."""

    emission: Multinomial | Gaussian
    steps: Steps

    @property
    def transitions(self) -> Floats:
        """log p(j | i) (S, S) from row label to column label."""
        return self.steps.pairs

    def scores(self, data: Sequences, n_jobs: int | None = None) -> ChainScores:
        """log p(x, y), whose chain distribution is p(y | x)."""
        refuse_edges(data)
        self.emission.check(data)
        pieces = [slice(k, k + PIECE) for k in range(0, data.n_tokens, PIECE)]
        node = run(lambda rows: self.emission.scores(data.x[rows]), pieces, n_jobs)
        start, pairs, end = self.steps
        return ChainScores(np.concatenate(node), pairs, data.offsets, start, end)

    def state(self) -> State:
        """Header and arrays for a model file."""
        arrays: Arrays = dict(vars(self.emission))
        # files hold finite numbers: what is forbidden is marked
        for name, part in self.steps._asdict().items():
            possible = np.isfinite(part)
            arrays[name] = np.where(possible, part, 0.0)
            arrays[f"{name}.possible"] = possible.astype(np.uint8)
        return State({"emission": self.emission.kind}, arrays)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, shape: Shape) -> Self:
        """The function of what `state` gave."""
        s, d = shape
        kind = KINDS[header["emission"]]
        emission = kind(*(checked(field.name, arrays, (d, s)) for field in fields(kind)))
        if isinstance(emission, Gaussian) and (emission.variances <= 0).any():
            raise InputError("a variance is not positive")
        steps = []
        for name, size in zip(Steps._fields, ((s,), (s, s), (s,)), strict=True):
            possible = checked(f"{name}.possible", arrays, size)
            steps.append(np.where(possible == 0.0, -np.inf, checked(name, arrays, size)))
        return cls(emission, Steps(*steps))


def refuse_edges(data: Sequences) -> None:
    """Raise a `CapabilityError` for data with edge features."""
    if data.edge is not None:
        raise CapabilityError(
            "X has edge features, which an HMM cannot use: leave them out, or train a CRF"
        )
