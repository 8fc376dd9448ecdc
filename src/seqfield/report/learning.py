"""Learning curves: scores of a model on growing shares of the training data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone

from seqfield.errors import InputError
from seqfield.labels import SETS, is_missing
from seqfield.report.comparison import compare
from seqfield.report.intervals import Score, intervals
from seqfield.sequences import Sequences

SHARES = (1.0, 0.5, 0.25, 0.12, 0.06)
CURVES = ("token_accuracy", "span_f1", "nll_per_token")


def learning_curve(
    model: Any,
    X_train: Any,
    y_train: Any,
    X: Any,
    y: Any,
    *,
    scheme: str = "auto",
    n_boot: int = 1000,
    random_state: int = 0,
    step: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Scores on (X, y) of clones of ``model``, fitted on 6 % to all of the training sequences.

    Each share contains the smaller shares. Shares of fewer than two sequences are left out, and so
    are those that are too small for the model, such as for folds or early stopping. The cost is
    about twice that of one fit on all sequences.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("test")
    >>> curve = learning_curve(sf.HMM().fit(X, y), X[:40], y[:40], X[40:], y[40:])
    >>> curve["sizes"], len(curve["scores"]["token_accuracy"])
    ([2, 5, 10, 20, 40], 5)
    """
    if len(y_train) < 2:
        raise InputError("a learning curve needs at least two training sequences")
    order = np.random.default_rng(random_state).permutation(len(y_train))
    classes = _labels(model, y_train)
    points: dict[int, dict[str, Score]] = {}
    # the fit on all sequences, in their own order, comes first: an error then names the true place
    for share in SHARES:
        size = round(share * len(order))
        if size < 2:
            break
        step(f"learning from {size:,} sequences")
        chosen = np.sort(order[:size])
        part = clone(model).set_params(**{"classes": classes, "verbose": False} | _cold(model))
        try:
            part.fit(_some(X_train, chosen), _some(y_train, chosen))
        except InputError:
            if not points:
                raise
            break  # all of the data can be learned from, and so few of them cannot
        points[size] = intervals(compare(part, X, y, scheme), n_boot)
    sizes = sorted(points)
    keys = [key for key in CURVES if key in points[sizes[-1]]]
    return {"sizes": sizes, "scores": {key: [list(points[n][key]) for n in sizes] for key in keys}}


def _cold(model: Any) -> dict[str, Any]:
    """Every fit begins anew, whatever the model does."""
    return {"warm_start": False} if "warm_start" in model.get_params(deep=False) else {}


def _some(rows: Any, chosen: Any) -> Any:
    return rows[chosen] if isinstance(rows, Sequences) else [rows[i] for i in chosen]


def _labels(model: Any, y: Any) -> list[Any]:
    """The labels of the model and of y: a small share of the data may lack some."""
    met: dict[Any, None] = dict.fromkeys(model.classes_.tolist())
    for row in y:
        for label in row if row is not None else ():
            if not is_missing(label, model.missing_label):
                met.update(dict.fromkeys(label if isinstance(label, SETS) else [label]))
    return list(met)
