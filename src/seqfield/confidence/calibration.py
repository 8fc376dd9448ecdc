"""Calibration of any estimator, by cross-validation or on held-out sequences."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from seqfield import metrics
from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.estimators._base import SequenceEstimator
from seqfield.estimators._calibration import held_out, scored
from seqfield.sequences import as_sequences

METHODS = ("temperature", "platt", "vector")
#: folds by which `calibration_gain` judges a calibration
N_FOLDS = 5


class Quality(NamedTuple):
    """How good probabilities are: mean -log p of the gold label, calibration error of the decoded
    label, and Brier score."""

    nll: float
    ece: float
    brier: float


class Gain(NamedTuple):
    """Probabilities before (None if the model had none) and after calibration."""

    before: Quality | None
    after: Quality


def calibrate(
    model: SequenceEstimator,
    X: Any,
    y: Any,
    *,
    method: str = "temperature",
    cv: int | str = 5,
    sample_weight: Any = None,
    lengths: Any = None,
) -> SequenceEstimator:
    """A calibrated copy of an estimator; the given one is not changed.

    Chain scores are rescaled so that held-out tokens get the most probability. ``method`` is
    "temperature" (one number, labels stay as they are), "platt" (with an offset for each label) or
    "vector" (with a slope for each as well; for thousands of tokens).

    With a number of folds as ``cv``, a fresh copy is fitted to X and y and the scaling to folds
    that fits to the other folds have not seen: cv + 1 fits. With ``cv="prefit"`` the model is kept
    as it is, and X and y must be sequences that it was **not** trained on: of its own training data
    it is always too sure.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> model = sf.calibrate(sf.StructuredPerceptron(random_state=0), X, y)
    >>> [p] = model.predict_proba([["salt"]])
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    if cv == "prefit":
        out = copy.copy(model)
    else:
        number("cv", cv, low=2, whole=True)
        if lengths is not None:
            X, lengths = as_sequences(X, lengths), None
        out = clone(model).set_params(calibrate=False)
        out.fit(X, y, sample_weight=sample_weight)
    data = out._encode(X, lengths)
    lesson = out._lessons(data, out._listed(y, data, lengths), sample_weight)
    if isinstance(cv, str):
        folds = [scored(out, *lesson)]
    else:
        folds = held_out(out, *lesson, out._random(), cv)
    out.calibrate = method  # fitted again, it is calibrated again
    out._scale(folds)
    return out


def calibration_gain(
    model: SequenceEstimator, X: Any, y: Any, *, method: str = "temperature"
) -> Gain:
    """What calibrating a fitted model on held-out X and y gains, judged on parts of them that the
    scaling has not seen either (five folds; the model itself is not fitted again)."""
    data, rows = model._encode(X), list(y)
    if len(data) < 2:
        raise InputError("calibration is judged on held-out parts: it needs at least two sequences")
    order = model._random().permutation(len(data))
    proba: list[Any] = [None] * len(data)
    labels = list(proba)
    for fold in np.array_split(order, min(N_FOLDS, len(data))):
        rest = np.setdiff1d(order, fold)
        scaled = calibrate(model, data[rest], [rows[i] for i in rest], method=method, cv="prefit")
        found = scaled.predict_proba(data[fold]), scaled.predict(data[fold])
        for i, p, label in zip(fold, *found, strict=True):
            proba[i], labels[i] = p, label
    after = _quality(rows, proba, labels, model.classes_)
    if not model.has_probabilities:
        return Gain(None, after)
    now = model.predict_proba(data), model.predict(data)
    return Gain(_quality(rows, *now, model.classes_), after)


def _quality(y: list[Any], proba: list[Any], labels: list[Any], classes: Any) -> Quality:
    return Quality(
        metrics.token_nll(y, proba, classes, mean=True),
        metrics.ece(y, proba, classes, labels=labels),
        metrics.brier(y, proba, classes),
    )
