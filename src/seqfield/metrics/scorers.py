"""Scorers for scikit-learn's `scoring=`: functions of (estimator, X, y); higher is better."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from seqfield.errors import InputError
from seqfield.metrics.calibration import brier, ece, token_nll
from seqfield.metrics.span import span_f1
from seqfield.metrics.token import sequence_error, share, token_accuracy, token_error

Scorer = Callable[[Any, Any, Any], float]
Metric = Callable[..., float]

# Scorers are sent to other processes, so each is a module-level function or a partial of one.


def _of_labels(metric: Metric, sign: float, estimator: Any, X: Any, y: Any) -> float:
    return sign * metric(y, estimator.predict(X))


def _of_proba(metric: Metric, sign: float, estimator: Any, X: Any, y: Any) -> float:
    return sign * metric(y, estimator.predict_proba(X), estimator.classes_)


def _log_likelihood(estimator: Any, X: Any, y: Any) -> float:
    values = np.asarray(estimator.log_likelihood(X, y), dtype=np.float64)
    return share(values.sum(), values.size)


SCORERS: dict[str, Scorer] = {
    "token_accuracy": partial(_of_labels, token_accuracy, 1.0),
    "neg_token_error": partial(_of_labels, token_error, -1.0),
    "neg_sequence_error": partial(_of_labels, sequence_error, -1.0),
    "span_f1": partial(_of_labels, partial(span_f1, scheme=None), 1.0),
    "neg_token_nll": partial(_of_proba, partial(token_nll, mean=True), -1.0),
    "neg_brier": partial(_of_proba, brier, -1.0),
    "neg_ece": partial(_of_proba, ece, -1.0),
    "log_likelihood": _log_likelihood,
}


def get_scorer(name: str) -> Scorer:
    """The scorer of this name, for `cross_val_score` and `GridSearchCV`.

    >>> class Constant:
    ...     def predict(self, X):
    ...         return [["a"] * len(x) for x in X]
    >>> get_scorer("token_accuracy")(Constant(), [[1, 2]], [["a", "b"]])
    0.5
    """
    try:
        return SCORERS[name]
    except KeyError:
        raise InputError(f"unknown scorer {name!r}; known are {', '.join(SCORERS)}") from None
