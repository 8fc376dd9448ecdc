"""Calibration of any estimator, by cross-validation or on held-out sequences."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from seqfield import metrics
from seqfield._checks import choice, number
from seqfield.errors import InputError
from seqfield.estimators._base import SequenceEstimator, held_out, random_of, scored
from seqfield.predictions.calibration import Calibration, HeldOut, fit_calibration
from seqfield.sequences import as_sequences

METHODS = ("temperature", "platt", "vector")
#: number of folds in which `calibration_gain` judges a calibration
N_FOLDS = 5


class Quality(NamedTuple):
    """Quality of probabilities: the mean -log p of the gold label, the calibration error of the
    decoded label, and the Brier score."""

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

    Calibration rescales the chain scores so that the labels of held-out tokens get the most
    probability. ``method`` says how:

    - "temperature" divides all scores by one number. The decoded labels stay as they are.
    - "platt" also adds an offset for each label.
    - "vector" also has a slope for each label. Use it if there are thousands of tokens.

    If ``cv`` is a number of folds, a fresh copy is fitted to X and y. The scaling is fitted to the
    scores of held-out folds: each fold is scored by a fit to the other folds. This takes cv + 1
    fits.

    With ``cv="prefit"`` the given model is not fitted again. X and y must then be sequences that
    the model was **not** trained on: a model is always too sure of its own training data.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> model = sf.calibrate(sf.StructuredPerceptron(random_state=0), X, y)
    >>> [p] = model.predict_proba([["salt"]])
    """
    choice("method", method, METHODS)
    if cv == "prefit":
        lesson = model.lesson(X, y, sample_weight=sample_weight, lengths=lengths)
        found = fit_calibration([scored(model, model.scorer, lesson)], method)
        return _rescaled(model, found, method)
    number("cv", cv, low=2, whole=True)
    if lengths is not None:
        X, lengths = as_sequences(X, lengths), None
    out = clone(model).set_params(calibrate=False)
    out.fit(X, y, sample_weight=sample_weight)
    folds = held_out(out, out.lesson(X, y, sample_weight=sample_weight), random_of(out), int(cv))
    return _rescaled(out, fit_calibration(folds, method), method)


def _rescaled(model: SequenceEstimator, found: Calibration, method: str) -> SequenceEstimator:
    """A copy of a fitted model with this calibration; a new fit of the copy calibrates again."""
    out = copy.copy(model)
    out.calibration_, out.calibrate = found, method
    return out


def calibration_gain(
    model: SequenceEstimator, X: Any, y: Any, *, method: str = "temperature"
) -> Gain:
    """What a fitted model gains from calibration on held-out X and y.

    The gain is measured in five folds of X and y. Each fold is judged with a scaling that was
    fitted to the other folds. The model itself is not fitted again.
    """
    choice("method", method, METHODS)
    data, rows = model.encode(X), list(y)
    if len(data) < 2:
        raise InputError("calibration is judged on held-out parts: it needs at least two sequences")
    lesson = model.lesson(data, rows)
    held = scored(model, model.scorer, lesson)
    order = random_of(model).permutation(len(data))
    proba: list[Any] = [None] * len(data)
    labels = list(proba)
    for fold in np.array_split(order, min(N_FOLDS, len(data))):
        rest, fold = np.setdiff1d(order, fold), np.sort(fold)
        part = HeldOut(
            [s.select(rest)[1] for s in held.draws], held.targets[rest], held.weights[rest]
        )
        scaled = _rescaled(model, fit_calibration([part], method), method)
        said = scaled.distribution_of([scores.select(fold)[1] for scores in held.draws])
        for i, p, label in zip(fold, said.marginals(), said.best(), strict=True):
            proba[i], labels[i] = p, label
    after = _quality(rows, proba, labels, model.classes_)
    if not model.has_probabilities:
        return Gain(None, after)
    now = model.distribution_of(held.draws)
    return Gain(_quality(rows, now.marginals(), now.best(), model.classes_), after)


def _quality(y: list[Any], proba: list[Any], labels: list[Any], classes: Any) -> Quality:
    return Quality(
        metrics.token_nll(y, proba, classes, mean=True),
        metrics.ece(y, proba, classes, labels=labels),
        metrics.brier(y, proba, classes),
    )
