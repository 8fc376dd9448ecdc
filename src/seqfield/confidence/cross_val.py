"""Out-of-fold probabilities: each sequence gets them from a model that was fitted without it."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold

from seqfield._checks import number
from seqfield._parallel import run
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._base import SequenceEstimator
from seqfield.estimators._lesson import Law
from seqfield.labels import LabelSet, nested
from seqfield.progress import progress
from seqfield.sequences import Offsets, Sequences, as_sequences, check_offsets, offsets_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Task(NamedTuple):
    """Sequences, one row of labels for each, and all labels in column order."""

    X: Any
    rows: list[Any]
    labels: LabelSet

    def pick(self, chosen: Ints) -> tuple[Any, list[Any]]:
        """Some sequences and their labels."""
        X = self.X[chosen] if isinstance(self.X, Sequences) else [self.X[i] for i in chosen]
        return X, [self.rows[i] for i in chosen]


def task_of(model: Any, X: Any, y: Any, lengths: Any = None) -> Task:
    """X and y in forms that can be cut into folds, and the labels of a fit to all of X and y."""
    if lengths is not None or getattr(X, "ndim", None) == 2:
        X = as_sequences(X, lengths)
    X, offsets = (X, X.offsets) if isinstance(X, Sequences) else _listed(X)
    rows = nested(y, offsets, flat=lengths is not None)
    last = estimator_of(model)[1]
    law = Law.of(last)
    rows = law.repaired(rows)
    return Task(X, rows, law.learn(rows))


def estimator_of(model: Any) -> tuple[str, Any]:
    """The estimator itself, or the last step of a pipeline, and the prefix of its parameters."""
    name, last = model.steps[-1] if hasattr(model, "steps") else ("", model)
    if not isinstance(last, SequenceEstimator):
        raise CapabilityError(f"model must be an estimator of seqfield, or end in one: {model!r}")
    return f"{name}__" if name else "", last


def cross_val_proba(
    model: Any,
    X: Any,
    y: Any,
    *,
    cv: Any = 5,
    groups: Any = None,
    sample_weight: Any = None,
    lengths: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = None,
) -> list[Floats]:
    """Out-of-fold p(y_t = j | x): each sequence is scored by a model that was fitted without it.

    The result is a list of (T, S) arrays. The columns are all labels, in the order of ``classes_``
    of a model that is fitted to all of X and y. If the training part of a fold lacks a label, the
    label is declared to the model of this fold.

    In each fold, features are learned from the training part alone. A word that occurs only in the
    held-out part is then unknown, as a new word is in use. `Sequences` that are already encoded
    keep their features.

    Parameters
    ----------
    model : an estimator, or a scikit-learn pipeline that ends in an estimator. The model is not
        changed, and need not be fitted
    X, y, lengths : sequences and labels as in ``fit``. Labels may be missing. Sequences whose y is
        None take part in training if the model can use them
    cv : the number of folds, a scikit-learn splitter, or a list of pairs. A pair holds the numbers
        of the training sequences and of the held-out sequences. The pairs must hold out each
        sequence once
    groups : (n,) group of each sequence; sequences of the same group are held out together
    sample_weight : (n,) weight of each sequence in training
    random_state : seed of the shuffle before the sequences are cut into folds
    n_jobs : how many folds are fitted at the same time, with one thread for each; -1 uses all
        cores. None fits one fold at a time, with the threads of the model

    If the model has ``verbose=True``, the progress of the folds is shown.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> X, y = X[:60], y[:60]
    >>> model = sf.CRF()
    >>> proba = sf.cross_val_proba(model, X, y, cv=3)
    >>> proba[0].shape == sf.CRF().fit(X, y).predict_proba(X)[0].shape
    True
    """
    task = task_of(model, X, y, lengths)
    return folds_proba(model, task, cv, groups, sample_weight, random_state, n_jobs)


def folds_proba(
    model: Any,
    task: Task,
    cv: Any = 5,
    groups: Any = None,
    sample_weight: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = None,
) -> list[Floats]:
    """`cross_val_proba` of a task."""
    n = len(task.rows)
    prefix, last = estimator_of(model)
    weights = None if sample_weight is None else np.asarray(sample_weight)
    if weights is not None and weights.shape != (n,):
        raise InputError(f"sample_weight must have one entry for each of {n} sequences")
    folds = _folds(n, cv, groups, random_state)
    # folds that run at the same time get one thread each
    threads = {} if n_jobs is None else {"n_jobs": 1}
    options = {"classes": task.labels.names, "verbose": False} | threads
    out: list[Floats] = [np.empty((0, 0))] * n

    def fold(k: int) -> None:
        train, test = folds[k]
        own = clone(model).set_params(**{prefix + name: v for name, v in options.items()})
        weighted = {} if weights is None else {f"{prefix}sample_weight": weights[train]}
        own.fit(*task.pick(train), **weighted)
        for i, proba in zip(test, own.predict_proba(task.pick(test)[0]), strict=True):
            out[i] = proba
        report(k + 1, "")

    with progress("folds", len(folds), show=bool(last.verbose)) as report:
        run(fold, range(len(folds)), n_jobs)
    return out


def _folds(n: int, cv: Any, groups: Any, random_state: Any) -> list[tuple[Ints, Ints]]:
    """Training and held-out sequences of each fold."""
    if isinstance(cv, numbers.Number):
        n_folds = number("cv", cv, low=2, high=n, whole=True)
        shuffled = KFold(n_folds, shuffle=True, random_state=random_state)
        cv = shuffled if groups is None else GroupKFold(n_folds)
    if hasattr(cv, "split"):
        cv = cv.split(np.zeros((n, 1)), None, groups)
    if not isinstance(cv, Iterable):
        raise InputError(
            f"cv must be a number of folds, a splitter or pairs of indices, got {cv!r}"
        )
    every = np.arange(n)
    folds = [(every[np.asarray(train)], every[np.asarray(test)]) for train, test in cv]
    times = np.zeros(n, np.int64)
    for k, (train, test) in enumerate(folds):
        np.add.at(times, test, 1)
        both = np.intersect1d(train, test)
        if len(both):
            raise InputError(f"fold {k} both trains on sequence {both[0]} and holds it out")
    if (times != 1).any():
        i = int(np.argmax(times != 1))
        raise InputError(
            f"sequence {i} is held out {times[i]} times: cv must hold out every sequence once"
        )
    return folds


def _listed(X: Any) -> tuple[list[Any], Offsets]:
    """X as a list, and the offsets of its sequences."""
    try:
        rows = list(X)
        sizes = [row.shape[0] if hasattr(row, "shape") else len(row) for row in rows]
    except TypeError as error:
        raise InputError(f"X must be a list of sequences of tokens: {error}") from error
    offsets = offsets_of(sizes)
    check_offsets(offsets, sum(sizes))
    return rows, offsets
