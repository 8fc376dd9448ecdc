"""The labels and transitions that a label scheme forbids, as scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqfield.chain.scores import ChainScores
from seqfield.data.schemes import Allowed

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Constraint:
    """Forbidden starts, transitions and ends, as scores that are 0 or -inf."""

    start: Floats
    pairs: Floats
    end: Floats

    @classmethod
    def of(cls, allowed: Allowed) -> Constraint:
        """The constraint of boolean tables, which are True for what is allowed."""
        return cls(*(np.where(part, 0.0, -np.inf) for part in allowed))

    def impose(self, scores: ChainScores) -> ChainScores:
        """The scores, with -inf for forbidden starts, transitions and ends."""
        start = self.start if scores.start is None else self.start + scores.start
        end = self.end if scores.end is None else self.end + scores.end
        return ChainScores(
            scores.node, scores.edge + self.pairs, scores.offsets, start, end, check=False
        )
