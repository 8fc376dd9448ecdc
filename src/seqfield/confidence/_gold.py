"""What is known of the labels of sequences that a model has decoded."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.data.schemes import Span, spans
from seqfield.errors import LabelError
from seqfield.labels import Codes, LabelSet, nested
from seqfield.sequences import Offsets, offsets_of


class Decoded(NamedTuple):
    """Decoded labels of N tokens by their place in ``classes_``, and the offsets of sequences."""

    names: LabelSet
    codes: Codes
    offsets: Offsets

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Number of each token's sequence (N,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def decode(model: Any, X: Any) -> Decoded:
    """The model's labels of X."""
    names, rows = LabelSet(model.classes_.tolist()), model.predict(X)
    return Decoded(names, names.encode(rows).codes, offsets_of([len(row) for row in rows]))


def gold_codes(model: Any, decoded: Decoded, y: Any) -> Codes:
    """Gold labels (N,) by their place in ``classes_``; -1 where missing or one of several."""
    rows = nested(y, decoded.offsets)
    codes = decoded.names.encode(rows, getattr(model, "missing_label", None)).codes
    if (codes < 0).all():
        raise LabelError("y holds no known label to compare with")
    return codes


def gold_rows(model: Any, decoded: Decoded, y: Any) -> list[list[Any]]:
    """Gold labels of each sequence, None where `gold_codes` has -1."""
    codes = gold_codes(model, decoded, y)
    names = [*decoded.names.names, None]  # -1 is the last place
    flat = [names[k] for k in codes.tolist()]
    return [flat[a:b] for a, b in zip(decoded.offsets[:-1], decoded.offsets[1:], strict=True)]


def certain(row: list[Any], start: int, end: int) -> bool:
    """Whether the labels say if there is a span from start to end: they are known there and at
    the two tokens around it, which could belong to a longer span."""
    return None not in row[max(start - 1, 0) : end + 1]


def gold_spans(row: list[Any]) -> list[Span]:
    """The spans of gold labels that are certain.

    >>> gold_spans(["B-NP", "I-NP", "O", "B-VP", None])
    [('NP', 0, 2)]
    """
    return [span for span in spans(row) if certain(row, *span[1:])]
