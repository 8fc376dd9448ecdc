"""How sure a model is of spans, of patterns of labels and of whole labellings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.chain import ChainScores
from seqfield.data.schemes import SpanCodes, span_codes, spans
from seqfield.errors import InputError, LabelError
from seqfield.estimators import _average
from seqfield.sequences import Sequences, offsets_of

if TYPE_CHECKING:
    from seqfield.labels import LabelSet

Floats = NDArray[np.float64]


class SpanConfidence(NamedTuple):
    """A span, ``end`` exclusive, and the probability that it is one of y's, all of it."""

    kind: str
    start: int
    end: int
    probability: float


class SequenceConfidence(NamedTuple):
    """Of each sequence (n,): the probability of its decoded labelling, the entropy (nats) of
    p(y | x), and how much more probable the best labelling is than the second best."""

    probability: Floats
    entropy: Floats
    margin: Floats


class Confidence:
    """Exact probabilities of events in p(y | x), for estimators that have such a distribution."""

    n_jobs: int | None
    missing_label: Any
    _labels: LabelSet

    if TYPE_CHECKING:

        def _encode(self, X: Any, lengths: Any = None) -> Sequences: ...
        def _blocks(self, data: Sequences) -> Iterator[list[ChainScores]]: ...
        def _joint(self, chains: list[ChainScores]) -> list[ChainScores]: ...
        def _decode(self, chains: list[ChainScores], decoding: Any) -> list[Any]: ...

    def predict_spans(
        self, X: Any, *, lengths: Any = None, decoding: str = "viterbi"
    ) -> list[list[SpanConfidence]]:
        """The spans of the decoded labels, each with its probability.

        The probability is that of the whole span, its ends included: the sum over all labellings
        that have it.

        >>> import seqfield as sf
        >>> X, y = sf.load_ingredients("train")
        >>> [span] = sf.CRF().fit(X, y).predict_spans([["flour"]])[0]
        >>> span.kind, span.start, span.end
        ('NAME', 0, 1)
        """
        data, out = self._encode(X, lengths), []
        codes = self._span_codes()
        for chains in self._blocks(data):
            found = [spans(row) for row in self._decode(chains, decoding)]
            rows = self._rows(found, codes, chains[0].offsets)
            p = _average.span_prob(self._joint(chains), codes, rows, self.n_jobs).tolist()
            probabilities = iter(p)
            out += [[SpanConfidence(*span, next(probabilities)) for span in row] for row in found]
        return out

    def span_proba(self, X: Any, spans: Any, *, lengths: Any = None) -> list[Floats]:
        """The probability of each span (kind, start, end) in ``spans[i]`` of sequence i."""
        data = self._encode(X, lengths)
        codes = self._span_codes()
        listed = _for_each("spans", spans, len(data))
        out: list[Floats] = []
        for chains in self._blocks(data):
            own = listed[len(out) : len(out) + chains[0].n_sequences]
            rows = self._rows(own, codes, chains[0].offsets, len(out))
            p = _average.span_prob(self._joint(chains), codes, rows, self.n_jobs)
            out += _split(p, own)
        return out

    def likely_spans(
        self, X: Any, min_probability: float = 0.1, *, lengths: Any = None
    ) -> list[list[SpanConfidence]]:
        """Every span of at least that probability, decoded or not, by start, end and kind.

        No more than 1 / min_probability of them hold any one token.
        """
        data = self._encode(X, lengths)
        codes = self._span_codes()
        number("min_probability", min_probability, low=1e-6, high=1.0)
        out: list[list[SpanConfidence]] = []
        for chains in map(self._joint, self._blocks(data)):
            n = chains[0].n_sequences
            found = _average.likely_spans(chains, codes, min_probability, self.n_jobs)
            i, k, first, last = found.rows.T
            a = chains[0].offsets[i]
            listed: list[list[SpanConfidence]] = [[] for _ in range(n)]
            columns = (x.tolist() for x in (i, k, first - a, last + 1 - a, found.probability))
            for at, kind, start, end, p in zip(*columns, strict=True):
                listed[at].append(SpanConfidence(codes.kinds[kind], start, end, p))
            out += [sorted(row, key=lambda s: (s.start, s.end, s.kind)) for row in listed]
        return out

    def pattern_proba(self, X: Any, patterns: Any, *, lengths: Any = None) -> list[Floats]:
        """The probability of each pattern (start, labels) in ``patterns[i]`` of sequence i: that
        the labels from ``start`` on are these. None is any label, a set one of several.

        >>> import seqfield as sf
        >>> X, y = sf.load_ingredients("train")
        >>> model = sf.CRF().fit(X, y)
        >>> pattern = (0, ["B-QTY", {"B-UNIT", "I-UNIT"}])
        >>> [p] = model.pattern_proba([["2", "cups", "flour"]], [[pattern]])
        >>> bool(p[0] > 0.9)
        True
        """
        data = self._encode(X, lengths)
        listed = _for_each("patterns", patterns, len(data))
        sizes = np.diff(data.offsets)
        first, masks = [], []
        for i, row in enumerate(listed):
            for start, labels in _tuples("pattern", "(start, labels)", i, row, 2):
                _inside("pattern", i, start, start + len(labels), int(sizes[i]))
                first.append(int(start))
                masks.append(self._labels.encode([labels], self.missing_label).mask(self._n_labels))
        out: list[Floats] = []
        at = done = 0
        for chains in map(self._joint, self._blocks(data)):
            own = listed[done : done + chains[0].n_sequences]
            n = sum(map(len, own))
            begin = np.repeat(chains[0].offsets[:-1], list(map(len, own)))
            tokens = begin + np.array(first[at : at + n], dtype=np.int64)
            p = _average.window_prob(chains, tokens, masks[at : at + n], self.n_jobs)
            out += _split(p, own)
            at, done = at + n, done + len(own)
        return out

    def sequence_confidence(self, X: Any, *, lengths: Any = None) -> SequenceConfidence:
        """How sure the model is of each whole labelling.

        Where p(y | x) is an average over posterior draws, its entropy is estimated by drawn
        labellings and the margin is that of `predict_nbest`.

        >>> import seqfield as sf
        >>> X, y = sf.load_ingredients("train")
        >>> sure, unsure = sf.CRF().fit(X, y).sequence_confidence([["flour"], ["in", "ti"]]).entropy
        >>> bool(sure < unsure)
        True
        """
        data = self._encode(X, lengths)
        parts = []
        for raw in self._blocks(data):
            chains = self._joint(raw)
            decoded = self._labels.encode(self._decode(raw, "viterbi"))
            log_p = _average.log_prob(chains, decoded, self.n_jobs)
            best = _average.nbest(chains, 2, self.n_jobs)
            two = [[np.exp(p) for _, p in row] + [0.0] for row in best]
            margin = [row[0] - row[1] for row in two]
            parts.append((np.exp(log_p), _average.entropy(chains, self.n_jobs), margin))
        return SequenceConfidence(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def _n_labels(self) -> int:
        return len(self._labels)

    def _span_codes(self) -> SpanCodes:
        return span_codes(self._labels.names)

    def _rows(self, listed: list[Any], codes: SpanCodes, offsets: Any, before: int = 0) -> Any:
        """Spans of each sequence as rows (sequence, kind, first token, last token)."""
        place = {name: k for k, name in enumerate(codes.kinds)}
        out = []
        for i, row in enumerate(listed):
            a, size = int(offsets[i]), int(offsets[i + 1] - offsets[i])
            for kind, start, end in _tuples("span", "(kind, start, end)", before + i, row, 3):
                if not isinstance(kind, str) or kind not in place:
                    raise LabelError(
                        f"sequence {before + i}: {kind!r} is no kind of span of the model's: "
                        f"{', '.join(codes.kinds) or 'it has none'}"
                    )
                _inside("span", before + i, start, end, size)
                out.append((i, place[kind], a + start, a + end - 1))
        return out


def _for_each(name: str, given: Any, n: int) -> list[Any]:
    """One list for each of n sequences."""
    rows = [list(row) for row in given]
    if len(rows) != n:
        raise InputError(f"{name} must have one list for each of {n} sequences, got {len(rows)}")
    return rows


def _tuples(what: str, form: str, i: int, row: list[Any], size: int) -> list[Any]:
    for one in row:
        if not isinstance(one, tuple | list) or len(one) < size:
            raise InputError(f"sequence {i}: a {what} must be {form}, got {one!r}")
    return [one[:size] for one in row]


def _inside(what: str, i: int, start: Any, end: Any, size: int) -> None:
    if not (isinstance(start, int | np.integer) and 0 <= start < end <= size):
        raise InputError(
            f"sequence {i}: the {what} from {start!r} to {end!r} is not within its {size} tokens"
        )


def _split(p: Floats, listed: list[Any]) -> list[Floats]:
    """Probabilities of all, by sequence."""
    return np.split(p, offsets_of(list(map(len, listed)))[1:-1]) if listed else []
