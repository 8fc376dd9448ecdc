"""The known labels of sequences that a model has decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqfield.data.schemes import Span, spans
from seqfield.errors import LabelError
from seqfield.labels import Codes, LabelSet, nested
from seqfield.predictions import LabelDistribution
from seqfield.sequences import Offsets

Rows = list[list[Any]]
T = TypeVar("T")


def said(model: Any, X: Any) -> Iterator[LabelDistribution]:
    """The distributions of X from a model or a pipeline, in blocks of whole sequences."""
    last, X = _last(model, X)
    found: Iterator[LabelDistribution] = last.distributions(X)
    return found


def _last(model: Any, X: Any) -> tuple[Any, Any]:
    """The estimator, or the last step of a pipeline, and X in the form that it takes."""
    if not hasattr(model, "steps"):
        return model, X
    return model[-1], model[:-1].transform(X) if len(model) > 1 else X


class Gold(NamedTuple):
    """The decoded labels of sequences, and their known labels.

    ``codes`` (decoded) and ``known`` (N,) are indices into ``classes_``. In ``known``, -1 stands
    for a missing label or a set of candidates. ``rows`` holds the known labels of each sequence,
    with None where ``known`` has -1.
    """

    labels: LabelSet
    codes: Codes
    known: Codes
    offsets: Offsets
    rows: Rows

    @classmethod
    def asked(
        cls, model: Any, X: Any, y: Any, ask: Callable[[LabelDistribution, Rows], T]
    ) -> tuple[Gold, list[T]]:
        """The gold labels y with the decoded labels, and the answers of each block of sequences.

        ``ask`` gets the distribution of a block, and the known labels. Only one block is in memory
        at a time, because the blocks of a model with many draws are large.
        """
        last, X = _last(model, X)
        data, labels = last.encode(X), last.labels_
        known = labels.encode(nested(y, data.offsets), last.missing_label).codes
        if (known < 0).all():
            raise LabelError("y holds no known label to compare with")
        names = [*labels.names, None]  # -1 is the last place
        flat = [names[k] for k in known.tolist()]
        rows = [flat[a:b] for a, b in pairwise(data.offsets.tolist())]
        codes, answers, at = [], [], 0
        for part in last.distributions(data):
            codes.append(part.codes())
            answers.append(ask(part, rows[at : at + len(part)]))
            at += len(part)
        return cls(labels, np.concatenate(codes), known, data.offsets, rows), answers

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Number of each token's sequence (N,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def certain(row: list[Any], start: int, end: int) -> bool:
    """Whether the known labels decide if there is a span from start to end.

    The labels must be known in the span and at the two tokens around it: these tokens could belong
    to a longer span.
    """
    return None not in row[max(start - 1, 0) : end + 1]


def gold_spans(row: list[Any]) -> list[Span]:
    """The spans of gold labels that are certain.

    >>> gold_spans(["B-NP", "I-NP", "O", "B-VP", None])
    [('NP', 0, 2)]
    """
    return [span for span in spans(row) if certain(row, *span[1:])]
