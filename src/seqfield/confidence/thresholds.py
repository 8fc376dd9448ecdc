"""Abstention: keep only predictions whose confidence is high enough for a wanted precision."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri, stdtrit

from seqfield._checks import number
from seqfield.confidence._gold import Gold, certain
from seqfield.data.schemes import spans
from seqfield.errors import InputError, LabelError
from seqfield.metrics import precision_by_coverage

Floats = NDArray[np.float64]
Unit = Literal["token", "span", "sequence"]


class Threshold(NamedTuple):
    """A threshold, and the precision, share and number of what it keeps in the held-out data.

    An infinite threshold keeps nothing, and its precision is nan.
    """

    threshold: float
    precision: float
    coverage: float
    n: int


class _Items(NamedTuple):
    """Tokens, spans or sequences with known labels: confidence, whether right, sequence number."""

    confidence: Floats
    right: NDArray[np.bool_]
    sequence: NDArray[np.int64]


def threshold_for_precision(
    model: Any,
    X: Any,
    y: Any,
    precision: float = 0.95,
    *,
    unit: Unit = "token",
    level: float | None = None,
) -> Threshold:
    """The smallest threshold of confidence above which the precision is high enough.

    Parameters
    ----------
    model : a fitted model with probabilities
    X, y : held-out sequences, in any form that the model takes
    precision : the wanted share of right predictions among those that are kept
    unit : what is kept or left out. ``"token"``: single labels, by the probability of the decoded
        label. ``"span"``: decoded spans, by the exact probability of the whole span.
        ``"sequence"``: whole labellings, by the probability of the decoded labelling
    level : None, or the probability, such as 0.9, that the precision holds for new sequences

    If no threshold reaches the precision, the result is infinite: such a threshold keeps nothing.

    Without a level, the result is the smallest threshold whose precision on these data is high
    enough. The precision does not always rise with the threshold, above all where few predictions
    are kept. A higher threshold may therefore have a lower precision. On new data the precision
    will be below the wanted one about half of the time. If few predictions are kept (``n``), the
    result means little.

    With a level, the precision on new sequences is high enough with this probability over the
    held-out data. The method assumes independent sequences. Tokens and spans within a sequence may
    depend on each other. The lower bounds of the precision are those of Clopper and Pearson, for
    the effective number of independent tokens (spans). This number is estimated from the spread of
    errors over sequences (Korn and Graubard 1998). Thresholds of a fixed grid are tested from
    strict to lenient until one fails. There are two starting points, which share the risk
    1 - level.

    For ``unit="sequence"`` the level is exact. For the other units it is approximate: the risk may
    be a little above 1 - level. This happens if a few sequences are far longer than the others and
    wrong as a whole. A few sequences with few errors are weak evidence. The threshold may then be
    far above the one without a level, or infinite.

    Missing labels and sets of candidates are skipped. A token with one is skipped, and so is a
    span that has one in it or next to it. With ``unit="sequence"`` the whole sequence is skipped.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> model = sf.CRF().fit(X[:400], y[:400])
    >>> found = sf.threshold_for_precision(model, X[400:], y[400:], 0.95)
    >>> sure = sf.threshold_for_precision(model, X[400:], y[400:], 0.95, level=0.9)
    >>> found.coverage > sure.coverage > 0.5
    True
    """
    number("precision", precision, low=0.01, high=1)
    if level is not None:
        number("level", level, low=0.5, high=0.9999)
    if unit not in _ITEMS:
        raise InputError(f"unit must be one of {', '.join(map(repr, _ITEMS))}, got {unit!r}")
    items = _ITEMS[unit](model, X, y)
    if level is None:
        threshold = _smallest(items, precision)
    else:
        threshold = _shown(items, precision, 1.0 - level)
    right = items.right[items.confidence >= threshold]
    if not len(right):
        return Threshold(math.inf, math.nan, 0.0, 0)
    return Threshold(threshold, float(right.mean()), len(right) / len(items.right), len(right))


def _smallest(items: _Items, precision: float) -> float:
    """The smallest threshold whose empirical precision is high enough, or inf."""
    # the prediction is always "right", and the confidence is its probability
    curve = precision_by_coverage(
        [items.right.tolist()],
        [np.column_stack([items.confidence, 1.0 - items.confidence])],
        [True, False],
        labels=[[True] * len(items.right)],
    )
    enough = curve.threshold[curve.precision >= precision]
    return float(enough[-1]) if len(enough) else math.inf


def _shown(items: _Items, precision: float, risk: float) -> float:
    """The smallest threshold whose lower bound of the precision is high enough, or inf."""
    # where a calibrated model surely reaches the precision, and where one that is too sure may
    starts = [precision, 1.0 - (1.0 - precision) / 10.0]
    steps = 1.0 / (1.0 + np.exp(-np.linspace(-10.0, 10.0, 81)))
    grid = np.unique([0.0, *steps, *starts])[::-1]
    bounds = [_lower_bound(items, t, risk / len(starts)) for t in grid]
    passed = np.array(bounds) >= precision
    found = math.inf
    for start in starts:
        tested, good = grid[grid <= start], passed[grid <= start]
        if good[0]:
            # the result is the last threshold before the first failure
            found = min(found, float(tested[np.logical_and.accumulate(good)][-1]))
    return found


def _lower_bound(items: _Items, threshold: float, risk: float) -> float:
    """Lower bound of the precision at a threshold, wrong with the given risk; 0 without data."""
    keep = items.confidence >= threshold
    kept = np.bincount(items.sequence[keep]).astype(np.float64)
    wrong = np.bincount(items.sequence[keep], weights=~items.right[keep])
    n, n_wrong = kept.sum(), wrong.sum()
    if n_wrong == n:
        return 0.0
    # if each sequence is right or wrong as a whole
    effective = n**2 / (kept**2).sum()
    if n_wrong:
        # Var(share) = share (1 - share) / effective = sum_i (wrong_i - share kept_i)^2 / n^2
        share = n_wrong / n
        spread = ((wrong - share * kept) ** 2).sum()
        seen = min(share * (1.0 - share) * n**2 / spread, n) if spread else n
        # that variance is no better known than from the sequences with errors
        trust = (ndtri(risk) / stdtrit(np.count_nonzero(wrong), risk)) ** 2
        effective = max(min(effective, seen), trust * seen)
    errors = effective * n_wrong / n
    return float(betaincinv(effective - errors, errors + 1.0, risk))


def _tokens(model: Any, X: Any, y: Any) -> _Items:
    gold, proba = Gold.asked(model, X, y, lambda part, _: part.proba)
    known = np.flatnonzero(gold.known >= 0)
    p = np.vstack(proba)[known, gold.codes[known]]
    return _Items(p, (gold.codes == gold.known)[known], gold.sequence[known])


def _spans(model: Any, X: Any, y: Any) -> _Items:
    known, parts = Gold.asked(model, X, y, lambda part, _: part.spans())
    listed, found = [row for part in parts for row in part], []
    for i, (row, decoded) in enumerate(zip(known.rows, listed, strict=True)):
        gold = set(spans(row))
        for kind, start, end, p in decoded:
            if certain(row, start, end):
                found.append((p, (kind, start, end) in gold, i))
    sure, right, sequence = np.array(found, dtype=np.float64).reshape(-1, 3).T
    return _Items(sure, right.astype(bool), sequence.astype(np.int64))


def _sequences(model: Any, X: Any, y: Any) -> _Items:
    gold, parts = Gold.asked(model, X, y, lambda part, _: np.exp(part.log_prob(part.best())))
    first = gold.offsets[:-1]
    known = np.flatnonzero(np.logical_and.reduceat(gold.known >= 0, first))
    if not len(known):
        raise LabelError("no sequence has all of its labels: precision needs some that do")
    right = np.logical_and.reduceat(gold.known == gold.codes, first)
    return _Items(np.concatenate(parts)[known], right[known], known)


_ITEMS = {"token": _tokens, "span": _spans, "sequence": _sequences}
