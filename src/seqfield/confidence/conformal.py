"""Conformal prediction: sets of labels or spans that hold the right one with a given coverage.

The method assumes that the calibration sequences and the new sequence are exchangeable, such as
independent draws from one source. The tokens within a sequence may depend on each other in any way,
so all counts are counts of sequences. The calibration sequences must not be training sequences. The
method assumes nothing about the model: a bad model has large sets. The coverage holds on average
over calibration samples and new sequences. It need not hold for each sequence or for each label.

Let a set hold all scores up to a limit, and let L_i(limit) be the share that the sets miss in
calibration sequence i. Conformal risk control takes the smallest limit with
(sum_i L_i + 1) / (n + 1) <= 1 - coverage. The expected share that is missed in a new sequence is
then at most 1 - coverage (Angelopoulos, Bates, Fisch, Lei and Schuster 2024). For a loss that is 0
or 1 this is split conformal prediction.
"""

from __future__ import annotations

import math
import warnings
from itertools import compress, pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield.confidence._gold import Gold, Rows, gold_spans, said
from seqfield.errors import CapabilityError, InputError, LabelError
from seqfield.predictions import LabelDistribution, SpanConfidence

Floats = NDArray[np.float64]

#: bound on rounding errors: of a sum of shares, or of one probability computed in two ways
ROUNDING = 1e-9


class CoverageWarning(UserWarning):
    """There are too few calibration sequences for the coverage, so all sets hold all labels."""


# scikit-learn has no types, so its classes are Any to mypy
class TokenSets(BaseEstimator):
    """Prediction sets: for each token a set of labels that holds the right label with a given
    coverage.

    Parameters
    ----------
    model : a fitted model with probabilities
    coverage : the promised share or probability. With ``per="token"`` it is the least expected
        share of the tokens of a new sequence whose label is in its set. With ``per="sequence"`` it
        is the least probability that all labels of a new sequence are in their sets
    score : the order in which labels enter a set. ``"threshold"``: a set holds all labels whose
        probability is above one threshold; such sets are small on average. ``"cumulative"``: a set
        holds the most probable labels until the sum of their probabilities exceeds a limit. Such a
        set is larger where the model is less sure of the token
    per : the unit of the coverage, "token" or "sequence"

    The decoded label (`predict` of the model) is the first in every set, so no set is empty. If the
    decoded labels alone reach the coverage, the sets hold no other labels. The sets then have the
    coverage of the decoded labels.

    With n calibration sequences, smaller sets cannot promise a coverage above n / (n + 1). Above
    this value each set holds all labels, and `fit` gives a `CoverageWarning`. Tokens with a missing
    label or a set of candidates are skipped, and so are sequences without a label. The promise then
    holds for labelled tokens.

    Fitted attributes: ``threshold_`` is the largest score in a set. The score of a label is 1 minus
    its probability, or the probability of all labels before it. The score of the decoded label is
    0. ``n_sequences_`` is the number of calibration sequences. `predict` needs only these
    attributes and the model.

    References: Angelopoulos et al., "Conformal Risk Control" (2024). The scores are those of
    Sadinle, Lei and Wasserman (2019), and of Romano, Sesia and Candes (2020) without randomisation.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> model = sf.CRF().fit(X[:400], y[:400])
    >>> sets = sf.conformal.TokenSets(model, coverage=0.95).fit(X[400:], y[400:])
    >>> [sorted(labels) for labels in sets.predict([["1", "pinch", "of", "saffron"]])[0]]
    [['B-QTY'], ['B-UNIT'], ['B-NAME', 'O'], ['B-NAME', 'I-NAME']]
    """

    threshold_: float
    n_sequences_: int

    def __init__(
        self,
        model: Any,
        coverage: float = 0.9,
        *,
        score: Literal["threshold", "cumulative"] = "threshold",
        per: Literal["token", "sequence"] = "token",
    ) -> None:
        self.model = model
        self.coverage = coverage
        self.score = score
        self.per = per

    def fit(self, X: Any, y: Any, *, proba: list[Floats] | None = None) -> Self:
        """Find the threshold on calibration sequences, in any form that the model takes.

        ``proba`` are probabilities from models that were not trained on these sequences. They come
        from `seqfield.cross_val_proba` or `seqfield.leave_one_out_proba`. With ``proba``, X and y
        may be the training data of the model. The coverage then holds as far as those models are
        similar to this model.
        """
        number("coverage", self.coverage, low=0, high=1)
        if self.score not in ("threshold", "cumulative"):
            raise InputError(f"score must be 'threshold' or 'cumulative', got {self.score!r}")
        if self.per not in ("token", "sequence"):
            raise InputError(f"per must be 'token' or 'sequence', got {self.per!r}")

        def ask(part: LabelDistribution, rows: Rows) -> Floats | None:
            return self._scores(part) if proba is None else None

        gold, scored = Gold.asked(self.model, X, y, ask)
        known = np.flatnonzero(gold.known >= 0)
        if proba is None:
            table = np.vstack([part for part in scored if part is not None])
        else:  # without a decoded label scores are too high, and sets too large
            table = self._of(_checked_proba(proba, gold))
        scores = table[known, gold.known[known]]
        _, sequence, sizes = np.unique(
            gold.sequence[known], return_inverse=True, return_counts=True
        )
        weights = 1.0 / sizes[sequence]
        if self.per == "sequence":  # the label of the worst score decides
            worst = np.zeros(len(sizes))
            np.maximum.at(worst, sequence, scores)
            scores, weights = worst, np.ones(len(sizes))
        self.n_sequences_ = len(sizes)
        self.threshold_ = smallest_limit(scores, weights, self.n_sequences_, self.coverage)
        if self.threshold_ == math.inf:
            warnings.warn(
                f"{self.n_sequences_} labelled sequences are too few for a coverage of "
                f"{self.coverage:g}, so all labels are in every set: use more sequences, or a "
                f"coverage of at most {_rounded_down(self.n_sequences_ / (self.n_sequences_ + 1))}",
                CoverageWarning,
                stacklevel=2,
            )
        return self

    def predict(self, X: Any) -> list[list[frozenset[Any]]]:
        """The set of labels of each token, for each sequence.

        The sets can be used as training labels: `fit` of a model reads a set as candidates.
        """
        check_is_fitted(self, "threshold_")
        out: list[list[frozenset[Any]]] = []
        for part in said(self.model, X):
            inside = self._scores(part) <= self.threshold_
            # equal sets share one object, which saves memory
            distinct, place = np.unique(inside, axis=0, return_inverse=True)
            sets = [frozenset(compress(part.labels.names, row)) for row in distinct.tolist()]
            flat = [sets[k] for k in place.ravel().tolist()]
            out += [flat[a:b] for a, b in pairwise(part.offsets.tolist())]
        return out

    def _scores(self, part: LabelDistribution) -> Floats:
        """Scores (N, S) of the labels; sets hold labels with low scores."""
        scores = self._of(part.proba)
        scores[np.arange(len(scores)), part.codes()] = 0.0
        return scores

    def _of(self, p: Floats) -> Floats:
        return _mass_before(p) if self.score == "cumulative" else 1.0 - p


def _checked_proba(proba: list[Floats], gold: Gold) -> Floats:
    """Probabilities as one array (N, S)."""
    sizes = np.diff(gold.offsets).tolist()
    if [len(block) for block in proba] != sizes:
        raise InputError("proba must have one row for each token of each sequence of X")
    flat = np.vstack(proba).astype(np.float64)
    if flat.shape[1] != len(gold.labels):
        raise InputError(
            f"proba has {flat.shape[1]} columns, but the model has {len(gold.labels)} labels"
        )
    return flat


class SpanSets(BaseEstimator):
    """Candidate spans: lists that hold, in expectation, a share ``coverage`` of the gold spans.

    Parameters
    ----------
    model : a fitted model with span labels and a distribution p(y | x) of whole labellings
    coverage : the least expected share of the gold spans of a new sequence that are candidates
    floor : the least probability of a candidate. The floor limits the length of the lists: at most
        1 / floor candidates hold any one token. Gold spans below the floor count as missed

    `predict` gives every span whose exact probability is at least ``threshold_``. A gold span is
    found only if its kind, start and end are all right. A decoded span below ``threshold_`` is not
    a candidate.

    Sequences without a gold span are left out of the calibration and of the promise. If they
    counted as found, the other sequences would have less coverage. A gold span is skipped if a
    label in it or next to it is missing, because its ends are then not known.

    If the floor or too few sequences make the coverage impossible, `fit` raises a
    `CapabilityError`. The message names the coverage that is possible.

    Fitted attributes: ``threshold_`` is the least probability of a candidate. ``n_sequences_`` is
    the number of calibration sequences with gold spans. `predict` needs only these attributes and
    the model.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> model = sf.CRF(scheme="BIO").fit(X[:400], y[:400])
    >>> sets = sf.conformal.SpanSets(model, coverage=0.95).fit(X[400:], y[400:])
    >>> [span[:3] for span in sets.predict([["2", "cups", "flour"]])[0]]
    [('QTY', 0, 1), ('UNIT', 1, 2), ('NAME', 1, 3), ('NAME', 2, 3)]
    """

    threshold_: float
    n_sequences_: int

    def __init__(self, model: Any, coverage: float = 0.9, *, floor: float = 1e-4) -> None:
        self.model = model
        self.coverage = coverage
        self.floor = floor

    def fit(self, X: Any, y: Any) -> Self:
        """Find the threshold on calibration sequences, in any form that the model takes.

        The cost is the computation of one probability for each gold span.
        """
        number("coverage", self.coverage, low=0, high=1)
        number("floor", self.floor, low=1e-6, high=1)

        def ask(part: LabelDistribution, rows: Rows) -> list[Floats]:
            return part.span_prob(map(gold_spans, rows))

        found = [p for part in Gold.asked(self.model, X, y, ask)[1] for p in part]
        sizes = np.array([len(p) for p in found])
        n = int(np.count_nonzero(sizes))
        if not n:
            raise LabelError("y holds no span: coverage needs some to be measured on")
        p, weights = np.concatenate(found), 1.0 / np.repeat(sizes, sizes)
        seen = p >= self.floor
        limit = smallest_limit(-p[seen], weights[seen], n, self.coverage)
        if limit == math.inf:
            raise CapabilityError(
                f"a coverage of {self.coverage:g} cannot be reached with {n} sequences that have "
                f"spans and candidates of probability {self.floor:g} or more: "
                f"{_rounded_down(weights[seen].sum() / (n + 1))} can"
            )
        self.n_sequences_ = n
        self.threshold_ = max(-limit * (1.0 - ROUNDING), self.floor)
        return self

    def predict(self, X: Any) -> list[list[SpanConfidence]]:
        """Candidate spans of each sequence with probabilities, sorted by start, end and kind."""
        check_is_fitted(self, "threshold_")
        parts = said(self.model, X)
        return [row for part in parts for row in part.likely_spans(self.threshold_)]


def smallest_limit(scores: Floats, weights: Floats, n: int, coverage: float) -> float:
    """The smallest limit with (sum_i L_i + 1) / (n + 1) <= 1 - coverage, or inf.

    L_i is 1 minus the sum of the weights of sequence i whose scores are at most the limit.

    >>> smallest_limit(np.array([0.3, 0.1, 0.2]), np.ones(3), 3, coverage=0.5)
    0.2
    """
    order = np.argsort(scores)
    # sum_i (1 - L_i) >= coverage (n + 1)
    found = np.cumsum(weights[order])
    k = int(np.searchsorted(found, coverage * (n + 1) * (1.0 - ROUNDING)))
    return float(scores[order[k]]) if k < len(order) else math.inf


def _mass_before(p: Floats) -> Floats:
    """For each label, the summed probability of all labels that are more probable (N, S)."""
    order = np.argsort(-p, axis=1, kind="stable")
    before = np.zeros_like(p)
    before[:, 1:] = np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)[:, :-1]
    out = np.empty_like(p)
    np.put_along_axis(out, order, before, axis=1)
    return out


def _rounded_down(share: float) -> str:
    """A share with four digits, rounded down so that it does not promise too much."""
    return f"{math.floor(share * 1e4) / 1e4:g}"
