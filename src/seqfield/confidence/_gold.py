"""What is known of the labels of sequences that a model has decoded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.data.schemes import Span, spans
from seqfield.errors import LabelError
from seqfield.labels import Codes, LabelSet, nested
from seqfield.predictions import LabelDistribution
from seqfield.sequences import Offsets, offsets_of


def said(model: Any, X: Any) -> Iterator[LabelDistribution]:
    """What a model, or a pipeline that ends in one, says of X: in blocks of whole sequences."""
    last = _last(model)
    if last is not model and len(model) > 1:
        X = model[:-1].transform(X)
    found: Iterator[LabelDistribution] = last.distributions(X)
    return found


def _last(model: Any) -> Any:
    """The estimator itself, or the last step of a pipeline."""
    return model[-1] if hasattr(model, "steps") else model


class Gold(NamedTuple):
    """What a model says of sequences, decoded, beside what is known of their labels.

    ``codes`` and ``known`` (N,) are places in ``classes_``; a label that is missing, or one of
    several, is -1. ``rows`` holds the known labels of each sequence, None where ``known`` has -1.
    """

    labels: LabelSet
    codes: Codes
    known: Codes
    offsets: Offsets

    @classmethod
    def of(cls, model: Any, parts: list[LabelDistribution], y: Any) -> Gold:
        """The gold labels y beside decoded ones."""
        codes = np.concatenate([part.codes() for part in parts])
        offsets = offsets_of(np.concatenate([np.diff(part.offsets) for part in parts]))
        labels = LabelSet(model.classes_.tolist())
        rows = nested(y, offsets)
        known = labels.encode(rows, _last(model).missing_label).codes
        if (known < 0).all():
            raise LabelError("y holds no known label to compare with")
        return cls(labels, codes, known, offsets)

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Number of each token's sequence (N,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def rows(self) -> list[list[Any]]:
        """Gold labels of each sequence."""
        names = [*self.labels.names, None]  # -1 is the last place
        flat = [names[k] for k in self.known.tolist()]
        return [flat[a:b] for a, b in pairwise(self.offsets.tolist())]


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
