"""Abstention: keep what is confident enough to be right as often as asked for."""

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
    """What is kept at a threshold: its precision, share and number in the held-out data.

    An infinite threshold keeps nothing; its precision is nan.
    """

    threshold: float
    precision: float
    coverage: float
    n: int


class _Items(NamedTuple):
    """Tokens, spans or sequences with known labels: confidence, whether right, and sequence."""

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
    """The smallest threshold of confidence above which enough decoded labels are right.

    Parameters
    ----------
    model : a fitted model with probabilities
    X, y : held-out sequences, in any form that the model takes
    precision : the wanted share of right ones among those kept
    unit : what is kept or left out. ``"token"``: labels, by the probability of the decoded one.
        ``"span"``: decoded spans, by the exact probability of all of it. ``"sequence"``: whole
        labellings, by the probability of the decoded one
    level : None, or how sure it shall be, such as 0.9, that the precision holds for new sequences

    If no threshold will do, the result is infinite: it keeps nothing.

    Without a level it is the smallest threshold whose precision on these data is high enough. The
    precision goes up and down with the threshold, most of all where few are kept, and thresholds
    above the one returned may have less. In new data it will be below the wanted one about half of
    the time, and where the result rests on few (``n``) it means little.

    With a level the precision of new sequences is high enough with that probability over the
    held-out data. Sequences are taken to be independent, while within one all may depend on each
    other: lower bounds of precision are those of Clopper and Pearson for the effective number of
    independent tokens (spans), which the spread of errors over sequences tells (Korn and Graubard
    1998). Thresholds of a fixed grid are tested from strict to lenient until one fails, from two
    starting points that share 1 - level. For ``unit="sequence"`` this is exact, for the others an
    approximation: the risk may be a little above 1 - level where a few sequences are far longer
    than the others and wrong as a whole. Few errors in few sequences show little, so the threshold
    may lie well above the one without a level, or be infinite.

    Missing labels and sets of candidates are skipped: such tokens, spans in them or next to them,
    and whole sequences that have them.

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
    # "it is right" as the one prediction, with its confidence for a probability
    curve = precision_by_coverage(
        [items.right.tolist()],
        [np.column_stack([items.confidence, 1.0 - items.confidence])],
        [True, False],
        labels=[[True] * len(items.right)],
    )
    enough = curve.threshold[curve.precision >= precision]
    return float(enough[-1]) if len(enough) else math.inf


def _shown(items: _Items, precision: float, risk: float) -> float:
    """The smallest threshold whose precision is shown to be high enough, or inf."""
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
            # the last one before the first that fails
            found = min(found, float(tested[np.logical_and.accumulate(good)][-1]))
    return found


def _lower_bound(items: _Items, threshold: float, risk: float) -> float:
    """What the precision at a threshold is at least, but for a risk; 0 if nothing is known."""
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
