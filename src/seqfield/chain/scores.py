"""`ChainScores`: the scores that architectures give to losses and to inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.sequences import check_offsets, rows_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ChainScores:
    """Scores of n sequences with N tokens in all and S labels: a linear-chain model of labels.

    Parameters
    ----------
    node : (N, S) score of each label at each token
    edge : transition scores. (S, S): entry (i, j) scores label j after label i, at all tokens.
        (N, S, S): ``edge[t]`` scores the pair (y_{t-1}, y_t), and the entry of a sequence's first
        token is ignored
    offsets : (n + 1,) whole numbers from 0 to N. Sequence i is the tokens
        ``offsets[i]:offsets[i + 1]``. None: all tokens are one sequence
    start, end : (S,) scores of the first and of the last label of a sequence, or None for 0

    A score is a finite number, or ``-inf`` to forbid a label or a transition. The log-probability
    of a labelling is the sum of its scores minus log Z.

    >>> import numpy as np
    >>> scores = ChainScores(np.zeros((3, 2)), np.zeros((2, 2)), [0, 2, 3])
    >>> scores.n_sequences, scores.n_labels
    (2, 2)
    """

    node: Floats
    edge: Floats
    offsets: Integers
    start: Floats | None = None
    end: Floats | None = None

    def __init__(
        self,
        node: Any,
        edge: Any,
        offsets: Any = None,
        start: Any = None,
        end: Any = None,
        *,
        check: bool = True,
    ) -> None:
        put = object.__setattr__
        put(self, "node", _real("node", node))
        put(self, "edge", _real("edge", edge).astype(np.float64, copy=False))
        if self.node.ndim != 2:
            raise InputError(f"node must be a numeric (N, S) array, got shape {self.node.shape}")
        if offsets is None:
            offsets = [0, self.node.shape[0]]
        put(self, "offsets", whole("offsets", offsets).astype(np.int64, copy=False))
        put(self, "start", None if start is None else _real("start", start).astype(np.float64))
        put(self, "end", None if end is None else _real("end", end).astype(np.float64))
        if check:
            self._check()

    @property
    def n_tokens(self) -> int:
        """N, the number of tokens in all sequences."""
        return int(self.node.shape[0])

    @property
    def n_labels(self) -> int:
        """S, the number of labels."""
        return int(self.node.shape[1])

    @property
    def n_sequences(self) -> int:
        """n, the number of sequences."""
        return len(self.offsets) - 1

    @property
    def stationary(self) -> bool:
        """True if all positions have the same transition scores: edge is (S, S)."""
        return self.edge.ndim == 2

    def select(self, sequences: Any) -> tuple[Integers, ChainScores]:
        """The tokens of chosen sequences (an index array), and the scores of these sequences."""
        rows, offsets = rows_of(self.offsets, sequences)
        edge = self.edge if self.stationary else self.edge[rows]
        return rows, ChainScores(self.node[rows], edge, offsets, self.start, self.end, check=False)

    def _check(self) -> None:
        check_offsets(self.offsets, self.n_tokens)
        s = self.n_labels
        if s == 0:
            raise InputError("node has no columns: there must be at least one label")
        if self.edge.shape not in ((s, s), (self.n_tokens, s, s)):
            raise InputError(
                f"edge must be ({s}, {s}) or ({self.n_tokens}, {s}, {s}) to go with node "
                f"{self.node.shape}, got {self.edge.shape}"
            )
        for name, part in (("start", self.start), ("end", self.end)):
            if part is not None and part.shape != (s,):
                raise InputError(f"{name} must have shape ({s},), got {part.shape}")
        for name in ("node", "edge", "start", "end"):
            part = getattr(self, name)
            if part is not None and not (part < np.inf).all():
                place = tuple(int(k) for k in np.argwhere(~(part < np.inf))[0])
                raise InputError(
                    f"{name}{list(place)} is {part[place]}: scores must be finite or -inf"
                )


def whole(name: str, values: Any) -> NDArray[Any]:
    """An array of whole numbers, of any integer type."""
    array = np.asarray(values)
    if array.dtype.kind == "f" and (array == np.rint(array)).all():
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise InputError(f"{name} must be whole numbers, got {array.dtype}")
    return array


def _real(name: str, values: Any) -> NDArray[Any]:
    """An array of real numbers; float32 stays as it is."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} is not an array: {error}") from error
    if array.dtype.kind not in "iubf":
        raise InputError(f"{name} must be a numeric array, got {array.dtype}")
    return array
