"""Labels that are probably wrong, found by models that were fitted without them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from seqfield.confidence.cross_val import Task, estimator_of, folds_proba, task_of
from seqfield.confidence.leave_one_out import leave_one_out_proba
from seqfield.errors import InputError
from seqfield.labels import Targets

Floats = NDArray[np.float64]


class SuspectLabel(NamedTuple):
    """A given label, the most probable other label, and the probability of the given label.

    ``score`` is the quality of the given label, from 0 (worst) to 1. Suspects are ranked by it.
    """

    sequence: int
    position: int
    label: Any
    suggestion: Any
    probability: float
    score: float


def label_errors(
    model: Any,
    X: Any,
    y: Any,
    *,
    proba: list[Floats] | None = None,
    method: Literal["cross_val", "leave_one_out"] = "cross_val",
    score: Literal["self_confidence", "normalized_margin"] = "self_confidence",
    unit: Literal["token", "sequence"] = "token",
    cv: Any = 5,
    groups: Any = None,
    sample_weight: Any = None,
    lengths: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = None,
) -> list[SuspectLabel]:
    """Given labels that are probably wrong, most suspicious first.

    A token is suspect if its given label is not the most probable label. The probabilities come
    from a model that was fitted without the sequence of this token. The label of a suspect token
    may be wrong, or right and difficult: a person must decide. Missing labels are skipped. For a
    set of candidates the sum of their probabilities counts. If ``on_violation="repair"`` changes a
    label, the repaired label is judged.

    Parameters
    ----------
    model : an estimator
    X, y, lengths : sequences and labels as in ``fit``
    proba : out-of-sample probabilities, if you have them already, with the columns of
        `cross_val_proba`
    method : how the probabilities are computed if ``proba`` is None. One way is `cross_val_proba`,
        which also takes cv, groups, sample_weight, random_state and n_jobs. The other way is
        `leave_one_out_proba`, which fits the model only if it is not fitted
    score : how labels are ranked. "self_confidence" is the probability of the given label.
        "normalized_margin" is this probability minus that of the best other label, moved to the
        range from 0 to 1
    unit : what is listed. "token" gives all suspect tokens. "sequence" gives the worst token of
        every sequence with known labels, even if this token is not suspect. Sequences are then
        ranked by the lowest score of their tokens

    >>> import seqfield as sf
    >>> X = 5 * [["the", "cat", "sat"], ["a", "dog", "ran"], ["the", "dog", "sat"]]
    >>> y = [["D", "N", "V"] for _ in X]
    >>> y[6][1] = "V"
    >>> sf.label_errors(sf.CRF(), X, y)
    [SuspectLabel(sequence=6, position=1, label='V', suggestion='N', probability=..., score=...)]
    """
    if score not in ("self_confidence", "normalized_margin"):
        raise InputError(f"score must be 'self_confidence' or 'normalized_margin', got {score!r}")
    if unit not in ("token", "sequence"):
        raise InputError(f"unit must be 'token' or 'sequence', got {unit!r}")
    task = task_of(model, X, y, lengths)
    if proba is None and method == "cross_val":
        proba = folds_proba(model, task, cv, groups, sample_weight, random_state, n_jobs)
    elif proba is None and method == "leave_one_out":
        fitted = model
        if not hasattr(model, "classes_"):
            weighted = {} if sample_weight is None else {"sample_weight": sample_weight}
            fitted = clone(model).fit(task.X, task.rows, **weighted)
        proba = leave_one_out_proba(fitted, task.X, task.rows, sample_weight=sample_weight).proba
    elif proba is None:
        raise InputError(f"method must be 'cross_val' or 'leave_one_out', got {method!r}")
    targets = task.labels.encode(task.rows, estimator_of(model)[1].missing_label)
    return _ranked(task, proba, targets, score, every=unit == "sequence")


def _ranked(
    task: Task, proba: list[Floats], targets: Targets, score: str, *, every: bool
) -> list[SuspectLabel]:
    """Suspect tokens, or the worst token of every sequence."""
    p = _stacked(proba, targets, len(task.labels))
    given = targets.mask(p.shape[1])
    tokens, known = np.arange(len(p)), ~given.all(axis=1)
    inside = np.minimum((p * given).sum(axis=1), 1.0)
    outside = np.where(given, -1.0, p)
    best = outside.argmax(axis=1)
    quality = inside
    if score == "normalized_margin":
        quality = 0.5 * (inside - outside[tokens, best] + 1.0)
    found = np.flatnonzero(known & (every | ~given[tokens, p.argmax(axis=1)]))
    found = found[np.argsort(quality[found], kind="stable")]
    sequence = np.searchsorted(targets.offsets, found, side="right") - 1
    if every:
        first = np.sort(np.unique(sequence, return_index=True)[1])
        found, sequence = found[first], sequence[first]
    places = zip(sequence.tolist(), (found - targets.offsets[sequence]).tolist(), strict=True)
    return [
        SuspectLabel(
            i, t, task.rows[i][t], task.labels.names[best[k]], float(inside[k]), float(quality[k])
        )
        for (i, t), k in zip(places, found.tolist(), strict=True)
    ]


def _stacked(proba: list[Floats], targets: Targets, n_labels: int) -> Floats:
    """Probabilities of all tokens (N, S), their shapes checked."""
    lengths = np.diff(targets.offsets)
    if len(proba) != len(lengths):
        raise InputError(f"X has {len(lengths)} sequences but proba has {len(proba)}")
    parts = [np.asarray(part, np.float64) for part in proba]
    for i, part in enumerate(parts):
        if part.shape != (lengths[i], n_labels):
            raise InputError(
                f"sequence {i}: probabilities of shape {part.shape}, expected "
                f"{(int(lengths[i]), n_labels)}"
            )
    return np.concatenate(parts)
