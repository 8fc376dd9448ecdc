"""Predictions and gold labels of sequences, as flat arrays over all tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield.data.schemes import NO_SPANS, Span, reading, spans
from seqfield.labels import SETS, is_missing, nested
from seqfield.predictions import LabelDistribution, SpanConfidence
from seqfield.sequences import Offsets

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Rows = list[list[Any]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Gold and predicted labels of n sequences with N tokens in all, and their probabilities.

    ``labels`` are the model's S labels in column order, then gold labels that it does not know.
    ``gold`` and ``predicted`` hold one list for each sequence, ``gold_codes`` and ``codes`` (N,)
    the same as places in ``labels``; a gold label that is missing is None, its code -1.
    ``proba`` (N, S) is None for a model without probabilities; ``log_gold`` and ``log_shown`` (n,)
    are the log-probabilities of the gold and of the predicted labelling, None without a
    distribution of whole labellings; ``found`` are the predicted spans with their probabilities,
    likewise. ``scheme`` is that of the spans: None for any, "none" if the labels are no spans.
    """

    labels: list[Hashable]
    n_classes: int
    offsets: Offsets
    gold: Rows
    predicted: Rows
    gold_codes: Codes
    codes: Codes
    scheme: str | None = NO_SPANS
    proba: Floats | None = None
    log_gold: Floats | None = None
    log_shown: Floats | None = None
    found: list[list[SpanConfidence]] | None = None

    @property
    def known(self) -> NDArray[np.bool_]:
        """Tokens with a gold label (N,)."""
        return np.greater_equal(self.gold_codes, 0)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Tokens whose gold label was predicted (N,)."""
        return np.equal(self.gold_codes, self.codes)

    @property
    def graded(self) -> NDArray[np.bool_]:
        """Tokens whose gold label the model knows (N,). Scores of probabilities use only these."""
        return self.known & (self.gold_codes < self.n_classes)

    @property
    def confidence(self) -> Floats | None:
        """Probability of the predicted label of each token (N,)."""
        return None if self.proba is None else self.proba[np.arange(len(self.codes)), self.codes]

    @property
    def has_spans(self) -> bool:
        """Whether the labels are read as spans."""
        return self.scheme != NO_SPANS

    def in_row(self, per_token: NDArray[Any]) -> Floats:
        """Sums over the tokens of each sequence (n, ...)."""
        sums: Floats = np.add.reduceat(per_token.astype(np.float64), self.offsets[:-1], axis=0)
        return sums

    def spans(self) -> tuple[list[set[Span]], list[set[Span]]]:
        """Gold and predicted spans of each sequence; both are empty for an unlabelled sequence."""
        labelled = self.in_row(self.known) > 0
        # a None between sequences ends every span, so one pass reads all sequences
        starts = self.offsets[:-1] + np.arange(len(labelled))
        found = []
        for rows in (self.gold, self.predicted):
            flat = list(chain.from_iterable([*row, None] for row in rows))
            sets: list[set[Span]] = [set() for _ in rows]
            triples = spans(flat, self.scheme)
            at = np.searchsorted(starts, [a for _, a, _ in triples], "right") - 1
            first = starts[at]
            for (kind, a, b), i, start in zip(triples, at.tolist(), first.tolist(), strict=True):
                if labelled[i]:
                    sets[i].add((kind, a - start, b - start))
            found.append(sets)
        return found[0], found[1]


def compare(
    model: Any,
    X: Any,
    y: Any,
    scheme: str = "auto",
    step: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Label X with the model, and compare the result with the gold labels y.

    ``step`` is called with the name of each step. ``scheme`` is the label scheme of the spans: a
    name, "auto" to count spans if all labels look like spans, or "none".

    >>> import seqfield as sf
    >>> X, y = [["a", "b"], ["b"]], [["x", "y"], ["z"]]
    >>> model = sf.CRF().fit([["a", "b"], ["b", "a"]], [["x", "y"], ["y", "x"]])
    >>> compare(model, X, y).labels, compare(model, X, y).right.tolist()
    (['x', 'y', 'z'], [True, True, False])
    """
    step("labels")
    data = model.encode(X)
    rows = [
        [None if is_missing(v, model.missing_label) or isinstance(v, SETS) else v for v in row]
        for row in nested(y, data.offsets)
    ]
    classes = model.classes_.tolist()
    met = {v for row in rows for v in row} - {None, *classes}
    labels = [*classes, *sorted(met, key=str)]
    place = {None: -1} | {label: k for k, label in enumerate(labels)}
    how = reading(labels, scheme)
    parts, at = [], 0
    for said in model.distributions(data):
        parts.append(_asked(model, said, rows[at : at + len(said)], how, step))
        at += len(said)
    gold = np.fromiter((place[v] for row in rows for v in row), np.int64, data.n_tokens)
    found = {name: _joined([part[name] for part in parts]) for name in parts[0]}
    return Comparison(
        labels=labels,
        n_classes=len(classes),
        offsets=data.offsets,
        gold=rows,
        gold_codes=gold,
        scheme=how,
        **found,
    )


def _asked(
    model: Any,
    said: LabelDistribution,
    rows: Rows,
    scheme: str | None,
    step: Callable[[str], None],
) -> dict[str, Any]:
    """All that a report asks of a block of sequences, which are scored once."""
    predicted = said.best()
    out: dict[str, Any] = {"predicted": predicted, "codes": said.codes().astype(np.int64)}
    if model.has_probabilities:
        step("probabilities")
        out["proba"] = said.proba
        if model.joint:
            known = set(said.labels.names)
            own = [[v if v in known else None for v in row] for row in rows]
            out["log_gold"] = said.log_prob(own)
            out["log_shown"] = said.log_prob(predicted)
            if scheme != NO_SPANS:
                step("spans")
                out["found"] = said.spans()
    return out


def _joined(parts: list[Any]) -> Any:
    """Answers of all blocks, one after the other."""
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    return np.concatenate(parts)
