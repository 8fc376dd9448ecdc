"""`LabelDistribution`: p(y | x) of a batch of sequences, and all that can be asked of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import choice, number
from seqfield.data.schemes import Span, SpanCodes, span_codes, spans
from seqfield.errors import CapabilityError, InputError, LabelError
from seqfield.labels import Codes, LabelSet, Targets, nested
from seqfield.predictions.average import Average
from seqfield.predictions.calibration import tempered
from seqfield.sequences import Offsets, offsets_of

Floats = NDArray[np.float64]
Decoding = Literal["viterbi", "posterior"]


class SpanConfidence(NamedTuple):
    """A span, ``end`` exclusive, and the probability that y has exactly this span."""

    kind: str
    start: int
    end: int
    probability: float


class SequenceConfidence(NamedTuple):
    """Of each sequence (n,): the probability of its decoded labelling, the entropy of p(y | x) in
    nats, and how much more probable the best labelling is than the second best."""

    probability: Floats
    entropy: Floats
    margin: Floats


class Limits(NamedTuple):
    """Why a model has no probabilities, or none of whole labellings; empty where it has them."""

    probabilities: str = ""
    joint: str = ""


NO_LIMITS = Limits()
WHOLE = (int, np.integer)
#: sequence, kind, first token, last token
Row = tuple[int, int, int, int]


class LabelDistribution:
    """What a model says of the labels of n sequences: p(y | x), scored once.

    ``model.distribution(X)`` gives it. Lists have one entry for each sequence, columns are in the
    order of ``classes``. Where the model averages over posterior draws, p(y | x) is the weighted
    average of their chains.

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> said = sf.CRF(scheme="BIO").fit(X, y).distribution([["2", "cups", "flour"]])
    >>> said.best()
    [['B-QTY', 'B-UNIT', 'B-NAME']]
    >>> said.given([[None, "B-NAME", None]]).best()  # a correction: the rest is decoded again
    [['B-QTY', 'B-NAME', 'I-NAME']]
    >>> [[span.kind for span in row] for row in said.spans()]
    [['QTY', 'UNIT', 'NAME']]
    """

    def __init__(
        self,
        labels: LabelSet,
        scores: Average,
        *,
        temperature: float | None = None,
        limits: Limits = NO_LIMITS,
        missing_label: Any = None,
    ) -> None:
        self.labels, self.limits = labels, limits
        self._scores, self._temperature, self._missing = scores, temperature, missing_label

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        draws = len(self._scores.draws)
        of = f", average of {draws} chains" if draws > 1 else ""
        return f"LabelDistribution(n={len(self)}, tokens={self.offsets[-1]}{of})"

    @property
    def classes(self) -> NDArray[Any]:
        """Labels in column order."""
        return self.labels.array

    @property
    def offsets(self) -> Offsets:
        """Sequence i has the tokens ``offsets[i]:offsets[i + 1]`` (n + 1,)."""
        return self._scores.offsets

    @cached_property
    def single(self) -> Average:
        """Chains whose marginals are the probabilities of single labels."""
        if self.limits.probabilities:
            raise CapabilityError(self.limits.probabilities)
        if self._temperature is None:
            return self._scores
        draws = [tempered(scores, self._temperature) for scores in self._scores.draws]
        return Average(draws, self._scores.weights, self._scores.n_jobs)

    @property
    def joint(self) -> Average:
        """The same chains, where they are a distribution of whole labellings."""
        if self.limits.joint:
            raise CapabilityError(self.limits.joint)
        return self.single

    # --- labels -----------------------------------------------------------------------------------

    def best(self, decoding: Decoding = "viterbi") -> list[list[Any]]:
        """The labels of each sequence.

        ``decoding="viterbi"`` gives the most probable labelling, ``"posterior"`` the one with the
        most expected right labels.
        """
        return self.labels.decode(self.codes(decoding), self.offsets)

    def codes(self, decoding: Decoding = "viterbi") -> Codes:
        """The same as places in ``classes``, over the tokens of all sequences (N,)."""
        choice("decoding", decoding, ("viterbi", "posterior"))
        return self._viterbi if decoding == "viterbi" else self.single.posterior_decode()

    def nbest(self, n: int = 5) -> list[list[tuple[list[Any], float]]]:
        """For each sequence its n best labellings with their log-probabilities, best first."""
        names = self.labels.names
        found = self.joint.nbest(n)
        return [[([names[k] for k in codes], p) for codes, p in best] for best in found]

    def sample(self, n: int = 1, random_state: Any = None) -> list[list[list[Any]]]:
        """For each sequence n labellings drawn from p(y | x)."""
        drawn = [
            self.labels.decode(row, self.offsets) for row in self.joint.sample(n, random_state)
        ]
        return [[draw[i] for draw in drawn] for i in range(len(self))]

    # --- probabilities ----------------------------------------------------------------------------

    def marginals(self) -> list[Floats]:
        """p(y_t = j | x): for each sequence a (T, S) array."""
        return np.split(self.proba, self.offsets[1:-1])

    @cached_property
    def proba(self) -> Floats:
        """The same over the tokens of all sequences (N, S)."""
        return self.single.marginals()

    def log_prob(self, y: Any) -> Floats:
        """log p(y | x) of each sequence (n,).

        Missing labels and candidate sets are summed over; a labelling that the scheme forbids has
        -inf.
        """
        return self.joint.log_prob(self.targets(y))

    def entropy(self) -> Floats:
        """Entropy of p(y | x) of each sequence in nats (n,); of an average it is estimated by 32
        drawn labellings, without bias."""
        return self.joint.entropy()

    def confidence(self) -> SequenceConfidence:
        """How sure the model is of each whole labelling."""
        joint = self.joint
        log_p = joint.log_prob(Targets(self._viterbi, None, self.offsets))
        two = [[np.exp(p) for _, p in row] + [0.0] for row in joint.nbest(2)]
        margin = np.array([row[0] - row[1] for row in two])
        return SequenceConfidence(np.exp(log_p), joint.entropy(), margin)

    def spans(self, decoding: Decoding = "viterbi") -> list[list[SpanConfidence]]:
        """The spans of the decoded labels, each with its exact probability.

        The probability is that of the whole span, its ends included: the sum over all labellings
        that have it.
        """
        found = [spans(row) for row in self.best(decoding)]
        p = iter([value for row in self.span_prob(found) for value in row.tolist()])
        return [[SpanConfidence(*span, next(p)) for span in row] for row in found]

    def likely_spans(self, min_probability: float = 0.1) -> list[list[SpanConfidence]]:
        """Every span of at least that probability, decoded or not, by start, end and kind.

        At most 1 / min_probability of them hold any one token.
        """
        number("min_probability", min_probability, low=1e-6, high=1.0)
        found = self.joint.likely_spans(self.span_codes, min_probability)
        i, k, first, last = found.rows.T
        a = self.offsets[i]
        out: list[list[SpanConfidence]] = [[] for _ in range(len(self))]
        columns = (x.tolist() for x in (i, k, first - a, last + 1 - a, found.probability))
        for at, kind, start, end, p in zip(*columns, strict=True):
            out[at].append(SpanConfidence(self.span_codes.kinds[kind], start, end, p))
        return [sorted(row, key=lambda s: (s.start, s.end, s.kind)) for row in out]

    def span_prob(self, spans: Any) -> list[Floats]:
        """The probability of each span (kind, start, end) in ``spans[i]`` of sequence i."""
        joint, listed = self.joint, _for_each("spans", spans, len(self))
        rows = _span_rows(listed, self.offsets, self.span_codes.kinds)
        return _split(joint.span_prob(self.span_codes, rows), listed)

    def pattern_prob(self, patterns: Any) -> list[Floats]:
        """The probability of each pattern (start, labels) in ``patterns[i]`` of sequence i: that
        the labels from ``start`` on are these. None is any label, a set one of several.

        >>> import seqfield as sf
        >>> X, y = sf.load_ingredients("train")
        >>> said = sf.CRF().fit(X, y).distribution([["2", "cups", "flour"]])
        >>> [p] = said.pattern_prob([[(0, ["B-QTY", {"B-UNIT", "I-UNIT"}])]])
        >>> bool(p[0] > 0.9)
        True
        """
        joint, listed = self.joint, _for_each("patterns", patterns, len(self))
        first, masks = [], []
        for i, row in enumerate(listed):
            a, size = int(self.offsets[i]), int(self.offsets[i + 1] - self.offsets[i])
            for start, labels in _tuples("pattern", "(start, labels)", i, row, 2):
                if not isinstance(labels, list | tuple | np.ndarray):
                    what = f"must be (start, labels), got {(start, labels)!r}"
                    raise InputError(f"sequence {i}: a pattern {what}")
                end = start + len(labels) if isinstance(start, WHOLE) else start
                _inside("pattern", i, start, end, size)
                first.append(a + int(start))
                masks.append(_mask(self.labels, labels, self._missing, (i, int(start))))
        return _split(joint.window_prob(first, masks), listed)

    def given(self, known: Any) -> LabelDistribution:
        """p(y | x, known): the same distribution once some labels are known.

        ``known`` has the form of y: one list for each sequence (or None), with None where nothing
        is known, a label, or a set of labels of which one is right. It may also be `Targets`. The
        result is exact. It can be decoded, asked for probabilities, and conditioned again.
        """
        targets = known if isinstance(known, Targets) else self.targets(known)
        if self.limits.joint:
            raise CapabilityError(self.limits.joint)
        scores = self._scores.given(targets)
        if self._temperature is not None and len(scores.draws) > 1:
            # how probable a chain finds what is known is a matter of calibrated probabilities
            scores = replace(scores, weights=self.single.given(targets).weights)
        return LabelDistribution(
            self.labels,
            scores,
            temperature=self._temperature,
            limits=self.limits,
            missing_label=self._missing,
        )

    def targets(self, y: Any) -> Targets:
        """Labels as codes and allowed sets; their lengths are checked."""
        return self.labels.encode(nested(y, self.offsets), self._missing)

    @cached_property
    def span_codes(self) -> SpanCodes:
        """Which labels begin, continue and end spans."""
        return span_codes(self.labels.names)

    @cached_property
    def _viterbi(self) -> Codes:
        return self._scores.viterbi()


def _span_rows(listed: list[list[Span]], offsets: Offsets, kinds: list[str]) -> list[Row]:
    """Spans (kind, start, end) of all sequences, as `Average.span_prob` takes them."""
    place = {name: k for k, name in enumerate(kinds)}
    rows = []
    for i, (row, (a, b)) in enumerate(zip(listed, pairwise(offsets.tolist()), strict=True)):
        for kind, start, end in _tuples("span", "(kind, start, end)", i, row, 3):
            if not isinstance(kind, str) or kind not in place:
                raise LabelError(
                    f"sequence {i}: {kind!r} is not a kind of span that the model knows. It knows "
                    f"{', '.join(kinds) or 'none'}"
                )
            _inside("span", i, start, end, b - a)
            rows.append((i, place[kind], a + start, a + end - 1))
    return rows


def _mask(names: LabelSet, labels: Any, missing: Any, at: tuple[int, int]) -> NDArray[np.bool_]:
    """Which labels a pattern at a place (sequence, position) allows (T, S)."""
    try:
        return names.encode([labels], missing).mask(len(names))
    except LabelError:
        # the error shall name the place in the sequence, not in the pattern
        names.encode([*[[]] * at[0], [*[None] * at[1], *labels]], missing)
        raise


def _for_each(name: str, given: Any, n: int) -> list[Any]:
    """One list for each of n sequences."""
    wanted = f"{name} must have one list for each of {n} sequences"
    try:
        rows = [list(row) for row in given]
    except TypeError:
        raise InputError(f"{wanted}, got {given!r}") from None
    if len(rows) != n:
        raise InputError(f"{wanted}, got {len(rows)}")
    return rows


def _tuples(what: str, form: str, i: int, row: list[Any], size: int) -> list[Any]:
    for one in row:
        if not isinstance(one, tuple | list) or len(one) < size:
            raise InputError(f"sequence {i}: a {what} must be {form}, got {one!r}")
    return [one[:size] for one in row]


def _inside(what: str, i: int, start: Any, end: Any, size: int) -> None:
    whole = isinstance(start, WHOLE) and isinstance(end, WHOLE)
    if not (whole and 0 <= start < end <= size):
        raise InputError(
            f"sequence {i}: the {what} from {start!r} to {end!r} is not within its {size} tokens"
        )


def _split(p: Floats, listed: list[Any]) -> list[Floats]:
    """Probabilities of all, by sequence."""
    return np.split(p, offsets_of(list(map(len, listed)))[1:-1]) if listed else []
