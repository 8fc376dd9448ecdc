"""What there is to learn from: encoded sequences, and what is known of their labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield.architectures._base import Architecture
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed, get_scheme, table_transitions
from seqfield.errors import InputError, LabelError, SchemeError
from seqfield.features import Encoder
from seqfield.labels import SETS, LabelSet, Targets, is_missing
from seqfield.losses._base import Loss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_PENALTY = ElasticNet(0.0, 0.0)


class Lesson(NamedTuple):
    """Sequences that have a say, encoded, with what is known of their labels and their weights.

    ``numbers`` are those of the sequences in the user's X. ``show`` says whether progress is shown.
    """

    data: Sequences
    targets: Targets
    weights: Floats
    labels: LabelSet
    constraint: Constraint | None
    numbers: Ints
    encoder: Encoder
    show: bool = False

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return len(self.labels)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Tokens of which something is known (N,)."""
        return np.logical_not(self.targets.mask(self.n_labels).all(axis=1))

    @property
    def told(self) -> Ints:
        """Sequences of which something is known."""
        return np.flatnonzero(np.add.reduceat(self.known, self.targets.offsets[:-1]))

    def part(self, chosen: Any) -> Lesson:
        """Chosen sequences (an index array)."""
        return self._replace(
            data=self.data[chosen],
            targets=self.targets[chosen],
            weights=self.weights[chosen],
            numbers=self.numbers[chosen],
        )

    def objective(
        self,
        architecture: Architecture[Any, Any],
        loss: Loss,
        prior: ElasticNet = NO_PENALTY,
        n_jobs: int | None = None,
    ) -> Objective:
        """What a solver minimises on these sequences."""
        return Objective(
            architecture,
            loss,
            prior,
            self.data,
            self.targets,
            self.weights,
            self.constraint,
            n_jobs,
        )


class Law(NamedTuple):
    """What the user says of labels: the scheme, what to do where they break it, all labels there
    are, and what stands for a missing one."""

    scheme: Any
    on_violation: str
    classes: Any
    missing_label: Any

    @classmethod
    def of(cls, model: Any) -> Law:
        """The parameters of an estimator."""
        return cls(*(getattr(model, name) for name in cls._fields))

    def repaired(self, rows: list[Any]) -> list[Any]:
        """Label rows, mended where they break a scheme with a name if the user asked for it."""
        if self.on_violation == "raise" or not isinstance(self.scheme, str):
            return rows
        found = get_scheme(self.scheme)
        out = []
        for row in rows:
            # what is not known exactly is left to the others
            vague = [is_missing(v, self.missing_label) or isinstance(v, SETS) for v in row]
            plain = [None if skip else v for v, skip in zip(row, vague, strict=True)]
            fixed = found.repair(plain)
            out.append([v if skip else f for v, f, skip in zip(row, fixed, vague, strict=True)])
        return out

    def learn(self, rows: list[Any]) -> LabelSet:
        """All labels, in column order."""
        labels = LabelSet.learn(rows, self.missing_label)
        if self.classes is not None:
            declared = LabelSet(self.classes)
            extra = [name for name in labels.names if name not in declared.index]
            if extra:
                raise LabelError(f"label {extra[0]!r} occurs in y but not in classes=")
            labels = declared
        if len(labels) < 2:
            what = f"only the label {labels.names[0]!r}" if len(labels) else "no labels"
            raise LabelError(f"y holds {what}: training needs at least two labels")
        return labels

    def constraint(self, rows: list[Any], targets: Targets, labels: LabelSet) -> Constraint | None:
        """What the scheme forbids; labels that break it are a `SchemeError`."""
        allowed = self._allowed(labels)
        if allowed is None:
            return None
        mendable = self.on_violation == "raise" and isinstance(self.scheme, str)
        check_lawful(rows, targets, allowed, mendable=mendable)
        return Constraint.of(allowed)

    def _allowed(self, labels: LabelSet) -> Allowed | None:
        if self.scheme is None:
            return None
        if isinstance(self.scheme, str):
            return get_scheme(self.scheme).transitions(labels.names)
        if not isinstance(self.scheme, Iterable):
            raise InputError(f"scheme must be a name or pairs of labels, got {self.scheme!r}")
        return table_transitions(self.scheme, labels.names)


def lesson_of(
    law: Law,
    data: Sequences,
    rows: list[Any],
    labels: LabelSet,
    encoder: Encoder,
    sample_weight: Any = None,
) -> Lesson:
    """What to learn from: the sequences that have a say, checked against the scheme."""
    targets = labels.encode(rows, law.missing_label)
    constraint = law.constraint(rows, targets, labels)
    weights = checked_weights(sample_weight, len(data))
    out = Lesson(data, targets, weights, labels, constraint, np.arange(len(data)), encoder)
    return out if weights.all() else out.part(np.flatnonzero(weights))


def checked_weights(sample_weight: Any, n: int) -> Floats:
    """One weight for each of n sequences; 1 without any."""
    if sample_weight is None:
        return np.ones(n)
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must be numbers: {error}") from error
    if weights.shape != (n,):
        raise InputError(f"sample_weight must have one entry for each of {n} sequences")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InputError("sample_weight must be finite, not negative, and not all zero")
    return weights


def check_lawful(rows: list[Any], targets: Targets, allowed: Allowed, *, mendable: bool) -> None:
    """Raise a `SchemeError` at the first place that breaks the scheme."""
    for i, t in _violations(targets, allowed):
        before = repr(rows[i][t - 1]) if t > 0 else "the start"
        after = repr(rows[i][t]) if t < len(rows[i]) else "the end"
        at = min(t, len(rows[i]) - 1)
        raise SchemeError(
            f"sequence {i}, position {at}: {after} after {before} is not allowed by the scheme"
            + ("; on_violation='repair' mends such places" if mendable else ""),
            place=(i, at),
        )


def _violations(targets: Targets, allowed: Allowed) -> list[tuple[int, int]]:
    """Places (sequence, position) where no choice of the known labels obeys the tables.

    Position l of a sequence of length l stands for its end. One place for each sequence.
    """
    out = []
    mask = targets.mask(len(allowed.start))
    for i in _suspects(targets, allowed):
        a, b = targets.offsets[i], targets.offsets[i + 1]
        reach = mask[a] & allowed.start
        t = 0
        while reach.any() and t + 1 < b - a:
            t += 1
            reach = (reach @ allowed.pairs) & mask[a + t]
        if not reach.any():
            out.append((int(i), t))
        elif not (reach & allowed.end).any():
            out.append((int(i), int(b - a)))
    return out


def _suspects(targets: Targets, allowed: Allowed) -> NDArray[np.int64]:
    """Sequences that may break the tables: with all labels known, exactly those that do."""
    y, first, last = targets.codes, targets.offsets[:-1], targets.offsets[1:] - 1
    bad = y < 0
    bad[1:] |= ~allowed.pairs[y[:-1], y[1:]]
    bad[first] = (y[first] < 0) | ~allowed.start[y[first]]
    bad[last] |= ~allowed.end[y[last]]
    return np.flatnonzero(np.add.reduceat(bad, first))
