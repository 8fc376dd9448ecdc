"""`rank`: what to label next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from seqfield._checks import number
from seqfield.active._spread import spread
from seqfield.data.schemes import SpanCodes
from seqfield.errors import CapabilityError, InputError, LabelError
from seqfield.kernels import as_kernel
from seqfield.labels import UNKNOWN, Targets, nested
from seqfield.predictions import LabelDistribution
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: strategies of each unit, the default first
UNITS = {
    "sequence": (
        "sequence_entropy",
        "least_confidence",
        "margin",
        "token_entropy",
        "expected_spans",
        "diversity",
    ),
    "token": ("token_entropy", "least_confidence", "margin"),
    "span": ("least_confidence",),
}
#: spans with min(p, 1 - p) below this are not ranked: the model is sure of them
LEAST_SPAN = 0.05
#: digits after the point that count when scores of spans are compared
DIGITS = 12


#: a strategy of one's own: what the model says of sequences to a score for each (n,)
Strategy = Callable[[LabelDistribution], Floats]


class RankedSequence(NamedTuple):
    """A sequence of the pool, and its score: higher is more useful to label."""

    sequence: int
    score: float


class RankedToken(NamedTuple):
    """A token of the pool, its score, and the model's guess with its probability."""

    sequence: int
    position: int
    score: float
    label: Any
    probability: float


class RankedSpan(NamedTuple):
    """A span of the pool (``end`` exclusive), its score, and the probability that it is a span of
    this kind."""

    sequence: int
    start: int
    end: int
    score: float
    kind: str
    probability: float


def rank(
    model: Any,
    X_pool: Any,
    strategy: str | Strategy | None = None,
    *,
    n: int | None = None,
    unit: str = "sequence",
    y: Any = None,
    per_token: bool = False,
    diversity: float = 0.0,
    kernel: Any = "linear",
    lengths: Any = None,
) -> list[Any]:
    """Rank sequences, tokens or spans of a pool by how useful their labels would be, best first.

    Of equal scores, the one that comes first in the pool is ranked first.

    Parameters
    ----------
    model : a fitted estimator
    X_pool : the pool: sequences in any form that the model takes
    strategy : how a sequence is scored. p is p(y | x, known labels), and a token is open if its
        label is not known:

        * ``"sequence_entropy"`` (default): the entropy of the whole labelling, in nats;
        * ``"least_confidence"``: 1 - p(best labelling);
        * ``"margin"``: 1 - (p(best labelling) - p(second best labelling));
        * ``"token_entropy"``: the entropy of a token's label, as a mean over open tokens;
        * ``"expected_spans"``: the expected number of spans that start at open tokens. Use it
          if most sequences of the pool have no span;
        * ``"diversity"``: how different the sequence is from those that are labelled or ranked
          before it. This one needs no probabilities.

        Tokens and spans have other strategies: see ``unit``. A function of your own takes a
        `LabelDistribution` and returns one score of at least 0 for each of its sequences.
    n : how many to return, at least 1; None returns all
    unit : what to rank:

        * ``"sequence"`` (default): whole sequences;
        * ``"token"``: open tokens, by ``"token_entropy"`` (default), ``"least_confidence"`` or
          ``"margin"`` of the label;
        * ``"span"``: spans that may be there or not, by min(p, 1 - p), where p is the exact
          probability of the span (``"least_confidence"``). Spans where this is below 0.05 are
          left out. Of spans that overlap, only the best ranked one is returned.
    y : known labels of the pool, as for ``fit``: None is a missing label, a set holds candidates.
        All probabilities are then conditional on the known labels, exactly. A sequence without
        open labels is never ranked
    per_token : divide by the number l of open tokens. Entropy and expected spans are divided by l,
        and the confidence is p(best labelling)^(1/l). Use False if every sequence costs the same
        to label: long sequences are then favoured. Use True if every token costs the same; noisy
        sequences may then be favoured, and no label removes noise
    diversity : from 0 (off, default) to 1. Raise it if the ranked sequences are labelled as one
        batch. It is the weight of being different from the sequences ranked before, and from those
        that ``y`` labels in full. The score is u^(1 - diversity) v^diversity, where u is the score
        of the strategy and v = 1 - max k^2 over these sequences; k is the normalised kernel of
        mean token features
    kernel : the kernel for ``diversity``: a kernel of `seqfield.kernels` or its name
    lengths : the lengths of the sequences, if X_pool is one matrix

    Returns
    -------
    list of `RankedSequence`, `RankedToken` or `RankedSpan`

    Time is linear in the size of the pool. With diversity, each ranked or labelled sequence costs
    O(n_pool) kernel values, so give n. For an average over posterior draws, the entropy is
    estimated from drawn labellings.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> model = sf.CRF().fit(X[:50], y[:50])
    >>> [first, second] = rank(model, X[50:], n=2)
    >>> first.score >= second.score
    True
    >>> [token] = rank(model, X[50:], n=1, unit="token")
    >>> word, = X[50 + token.sequence][token.position]
    >>> word, token.label
    ('optional', 'B-NOTE')
    """
    strategy = _checked(strategy, unit, per_token, diversity)
    if n is not None:
        number("n", n, low=1, whole=True)
    data: Sequences = model.encode(X_pool, lengths)
    known = _known(model, data, y, flat=lengths is not None)
    numbers = np.flatnonzero(np.minimum.reduceat(known.codes, known.offsets[:-1]) < 0)
    if not len(numbers):
        return []
    pool = _Pool(model, data[numbers], known[numbers], numbers)
    if unit == "token" and isinstance(strategy, str):
        return _tokens(pool, strategy, n)
    if unit == "span":
        return _spans(pool, n)
    values = np.zeros(len(data))
    if strategy == "diversity":
        diversity = 1.0
    else:
        # rounding may leave values slightly below 0
        values[numbers] = np.maximum(_values(pool, strategy, per_token), 0.0)
    if diversity == 0:
        order = numbers[np.argsort(-values[numbers], kind="stable")[:n]]
        worth = values[order]
    else:
        full = np.setdiff1d(np.arange(len(data)), numbers)
        most = len(numbers) if n is None else min(n, len(numbers))
        order, worth = spread(values, data, as_kernel(kernel), diversity, most, full)
    return list(map(RankedSequence, order.tolist(), worth.tolist()))


class _Pool(NamedTuple):
    """The sequences with open labels, and their numbers in the user's pool."""

    model: Any
    data: Sequences
    known: Targets
    numbers: Integers

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """Whether the label of each token is open (N,)."""
        return np.equal(self.known.codes, UNKNOWN)

    @property
    def n_open(self) -> Integers:
        """Number of open tokens of each sequence (n,)."""
        return np.add.reduceat(self.is_open.astype(np.int64), self.known.offsets[:-1])

    def said(self) -> Iterator[tuple[LabelDistribution, Targets]]:
        """What the model says of the open labels given the known ones, which follow, in blocks."""
        at = 0
        for free in self.model.distributions(self.data):
            known = self.known[np.arange(at, at + len(free))]
            try:
                yield (
                    free if known.mask(len(free.labels)).all() else free.given(known),
                    known,
                )
            except LabelError as error:
                if error.place is None:
                    raise
                i = int(self.numbers[at + error.place[0]])
                reason = str(error).partition(": ")[2]
                raise LabelError(f"sequence {i} of the pool: {reason}", place=(i, 0)) from error
            at += len(free)

    def proba(self) -> Floats:
        """p(y_t = j | x, known labels) (N, S)."""
        return np.vstack([one.proba for one, _ in self.said()])


def _checked(
    strategy: str | Strategy | None, unit: str, per_token: bool, diversity: float
) -> str | Strategy:
    """The strategy, or an `InputError` if it does not go with the other arguments."""
    if unit not in UNITS:
        raise InputError(f"unit must be one of {', '.join(map(repr, UNITS))}, got {unit!r}")
    if strategy is None:
        strategy = UNITS[unit][0]
    if callable(strategy) and unit == "sequence" and not per_token:
        number("diversity", diversity, low=0.0, high=1.0)
        return strategy
    if not isinstance(strategy, str) or strategy not in UNITS[unit]:
        wanted = ", ".join(map(repr, UNITS[unit]))
        raise InputError(f"strategy must be one of {wanted} for unit {unit!r}, got {strategy!r}")
    number("diversity", diversity, low=0.0, high=1.0)
    if unit != "sequence" and (diversity or per_token):
        raise InputError("diversity and per_token work only with unit='sequence'")
    if per_token and strategy in ("margin", "diversity"):
        raise InputError(f"per_token has no meaning for strategy {strategy!r}")
    return strategy


def _known(model: Any, data: Sequences, y: Any, *, flat: bool) -> Targets:
    """The known labels of the pool."""
    if y is None:
        codes = np.full(data.n_tokens, UNKNOWN, np.int32)
        return Targets(codes, np.ones((len(codes), len(model.classes_)), bool), data.offsets)
    targets: Targets = model.labels_.encode(nested(y, data.offsets, flat=flat), model.missing_label)
    return targets


# --- sequences ------------------------------------------------------------------------------------


def _values(pool: _Pool, strategy: str | Strategy, per_token: bool) -> Floats:
    """The score of each sequence of the pool (n,)."""
    if callable(strategy):
        return np.concatenate([_by_function(strategy, one) for one, _ in pool.said()])
    if strategy == "token_entropy":
        each = np.where(pool.is_open, entr(pool.proba()).sum(axis=1), 0.0)
        return np.add.reduceat(each, pool.known.offsets[:-1]) / pool.n_open
    if not pool.model.joint:
        raise CapabilityError(
            f"strategy {strategy!r} needs probabilities of whole labellings, which "
            f"{type(pool.model).__name__} does not have: use 'token_entropy' or 'diversity'"
        )
    size = pool.n_open if per_token else 1
    if strategy in ("least_confidence", "margin"):
        found = [row for one, _ in pool.said() for row in one.joint.nbest(2)]
        best, second = np.array(
            [[p for _, p in row] + [-np.inf] * (2 - len(row)) for row in found]
        ).T
        # 1 - p, exact also where p is close to 1
        doubt: Floats = -np.expm1(best / size)
        return doubt if strategy == "least_confidence" else doubt + np.exp(second)
    if strategy == "expected_spans":
        parts = [expected_spans(one, known) for one, known in pool.said()]
    else:
        parts = [one.entropy() for one, _ in pool.said()]
    return np.concatenate(parts) / size


def _by_function(strategy: Strategy, said: LabelDistribution) -> Floats:
    """The scores of a strategy of one's own."""
    found = np.asarray(strategy(said), np.float64)
    if found.shape != (len(said),) or not (np.isfinite(found) & (found >= 0.0)).all():
        raise InputError(
            f"the strategy must return one number of at least 0 for each of {len(said)} sequences"
        )
    return found


def expected_spans(said: LabelDistribution, known: Targets) -> Floats:
    """The expected number of spans (n,) that start at open tokens."""
    # a span starts at t if y_t is inside one that does not go on from t - 1
    codes: SpanCodes = said.span_codes
    inside = (codes.kind >= 0).astype(np.float64)
    same = np.equal.outer(codes.kind, codes.kind) & (codes.kind >= 0)
    goes_on = (same & codes.opens[:, None] & codes.continues).astype(np.float64)
    total = said.joint.expectation(np.tile(inside, (len(known.codes), 1)), -goes_on)
    y, first = known.codes, known.offsets[:-1]
    if (y < 0).all():
        return total
    # at a token whose label is known the one before it alone decides
    before = np.roll(said.proba, 1, axis=0)
    before[first] = 0.0
    starts = inside[y] - np.einsum("ti,ti->t", before, goes_on.T[y])
    return total - np.add.reduceat(np.where(y < 0, 0.0, starts), first)


# --- tokens and spans -----------------------------------------------------------------------------


def _tokens(pool: _Pool, strategy: str, n: int | None) -> list[RankedToken]:
    proba = pool.proba()
    names, guess, p = pool.model.classes_.tolist(), proba.argmax(axis=1), proba.max(axis=1)
    if strategy == "token_entropy":
        scores = entr(proba).sum(axis=1)
    elif strategy == "least_confidence":
        scores = 1.0 - p
    else:
        two = np.partition(proba, -2, axis=1)[:, -2:]
        scores = 1.0 - (two[:, 1] - two[:, 0])
    at = np.flatnonzero(pool.is_open)
    order = at[np.argsort(-scores[at], kind="stable")[:n]]
    sequence = np.searchsorted(pool.known.offsets, order, side="right") - 1
    position = order - pool.known.offsets[sequence]
    labels = [names[k] for k in guess[order].tolist()]
    columns = (pool.numbers[sequence], position, scores[order])
    return list(map(RankedToken, *(c.tolist() for c in columns), labels, p[order].tolist()))


def _spans(pool: _Pool, n: int | None) -> list[RankedSpan]:
    before, parts = 0, []
    for one, _ in pool.said():
        codes = one.span_codes
        rows, p = one.joint.likely_spans(codes, LEAST_SPAN)
        a = one.offsets[rows[:, 0]]
        where = (rows[:, 0] + before, rows[:, 2] - a, rows[:, 3] + 1 - a, rows[:, 1])
        parts.append(np.column_stack([*where, p]))
        before += len(one)
    found = np.vstack(parts)
    score = np.minimum(found[:, 4], 1.0 - found[:, 4])
    found, score = found[score >= LEAST_SPAN], score[score >= LEAST_SPAN]
    # two spans that exclude each other may have p and 1 - p: rounding must not decide the order
    order = np.lexsort((*found.T[3::-1], -score.round(DIGITS)))
    asked, out = np.zeros(pool.data.n_tokens, dtype=bool), []
    for k in order.tolist():
        i, start, end, kind = map(int, found[k, :4])
        tokens = slice(pool.known.offsets[i] + start, pool.known.offsets[i] + end)
        if asked[tokens].any():
            continue  # the label of the overlapping span says much about this one
        asked[tokens] = True
        place, guess = (int(pool.numbers[i]), start, end), codes.kinds[kind]
        out.append(RankedSpan(*place, float(score[k]), guess, float(found[k, 4])))
        if len(out) == n:
            break
    return out
