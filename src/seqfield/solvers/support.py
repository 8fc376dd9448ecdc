"""Support sequences of a maximum-margin model: labelled sequences and their coefficients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from seqfield.errors import InputError
from seqfield.labels import Targets
from seqfield.solvers.margin import Labelling


@dataclass(frozen=True)
class SupportSequence:
    """A labelling of training sequence ``sequence``, with its coefficient.

    At ``positions`` the labelling has ``labels``. Elsewhere it has the known labels.
    """

    sequence: int
    coefficient: float
    positions: tuple[int, ...]
    labels: tuple[Any, ...]


@dataclass(frozen=True)
class Support:
    """The support sequences of a fit.

    ``sequences`` holds every labelling with a coefficient other than 0. They are ordered by
    training sequence, then from the largest coefficient to the smallest. ``gold`` holds the known
    labels of the training sequences that have support sequences. ``n_sequences`` is the number of
    all training sequences.

    >>> one = SupportSequence(0, 0.5, (1,), ("V",))
    >>> print(Support([one], {0: ["D", "N"]}, 2).show(0, ["the", "cat"]))
         the  cat
           D    N
    0.5    .    V
    """

    sequences: list[SupportSequence]
    gold: dict[int, list[Any]]
    n_sequences: int

    @classmethod
    def of_labellings(
        cls, found: Iterable[Labelling], known: Targets, used: Any, names: list[Any]
    ) -> Support:
        """Make the support from coded labellings. ``used`` maps to the user's sequence numbers."""
        codes, offsets = known.codes, known.offsets
        sequences, gold = [], {}
        for i, coefficient, begin, labels in found:
            a, b, own = int(offsets[i]), int(offsets[i + 1]), int(used[i])
            where = np.flatnonzero(labels != codes[begin : begin + len(labels)])
            gold[own] = [names[code] if code >= 0 else None for code in codes[a:b]]
            positions = tuple((where + begin - a).tolist())
            changed = tuple(names[k] for k in labels[where])
            sequences.append(SupportSequence(own, coefficient, positions, changed))
        sequences.sort(key=lambda one: (one.sequence, -one.coefficient))
        return cls(sequences, gold, len(offsets) - 1)

    def __len__(self) -> int:
        return len(self.sequences)

    def of(self, sequence: int) -> list[SupportSequence]:
        """The support sequences of one training sequence."""
        return [one for one in self.sequences if one.sequence == sequence]

    @property
    def without(self) -> float:
        """Share of training sequences without support sequences."""
        return 1.0 - len(self.gold) / self.n_sequences

    @property
    def mean_count(self) -> float:
        """Mean number of support sequences, over training sequences that have any."""
        return len(self) / max(1, len(self.gold))

    @property
    def mean_distance(self) -> float:
        """Mean number of positions where a support sequence differs from the known labels."""
        return sum(len(one.positions) for one in self.sequences) / max(1, len(self))

    def show(self, sequence: int, tokens: Sequence[Any] | None = None, most: int = 10) -> str:
        """A table of one training sequence: its tokens, its labels, and its support sequences.

        The table shows the ``most`` support sequences with the largest coefficients. It shows
        their labels only where they differ from the known labels.
        """
        gold = self.gold.get(sequence)
        if gold is None:
            return f"sequence {sequence} has no support sequences"
        if tokens is not None and len(tokens) != len(gold):
            raise InputError(f"sequence {sequence} has {len(gold)} tokens, got {len(tokens)}")
        rows = [] if tokens is None else [["", *map(str, tokens)]]
        rows.append(["", *("?" if label is None else str(label) for label in gold)])
        for one in self.of(sequence)[:most]:
            here = dict(zip(one.positions, one.labels, strict=True))
            row = [str(here.get(t, ".")) for t in range(len(gold))]
            rows.append([f"{one.coefficient:.3g}", *row])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
        )

    def __str__(self) -> str:
        lines = [
            f"{len(self)} support sequences of {len(self.gold)} training sequences; "
            f"{100 * self.without:.1f} % of {self.n_sequences} have none",
            f"{self.mean_count:.2f} for each that has some, {self.mean_distance:.2f} positions "
            "from the known labels on average",
        ]
        groups = groupby(self.sequences, key=lambda one: one.sequence)
        largest = sorted(
            ((sum(one.coefficient for one in group), i) for i, group in groups), reverse=True
        )
        for _, i in largest[:3]:
            lines += ["", f"sequence {i}:", self.show(i, most=5)]
        return "\n".join(lines)
