"""Span label schemes: BIO (IOB2), IOB1, BIOES (IOBES) and BILOU.

A label is a tag and a type, split at the first dash: ``B-NP`` is tag B of type NP, a bare ``B`` has
the empty type. Inside this module every scheme speaks one alphabet, O B I E S; BILOU's L and U are
read as E and S. A sequence is taken to lie between two O's, so what may start or end a sequence
needs no rules of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqfield.errors import SchemeError

Span = tuple[str, int, int]
Label = TypeVar("Label", str, str | None)

_TAGS = "OBIES"
#: says that labels are no spans
NO_SPANS = "none"
#: tags of all schemes, and what to call their labels
_ANY = "BIOESLU", "span"
_LETTERS = {tag: k for k, tag in enumerate(_TAGS)} | {"L": 3, "U": 4}
# conlleval: a span goes on where an opening tag meets a continuing one of the same type.
_OPENS = np.isin(list(_TAGS), ["B", "I"])
_CONTINUES = np.isin(list(_TAGS), ["I", "E"])


class Allowed(NamedTuple):
    """Which labels may start a sequence, follow one another (row, then column), and end it."""

    start: NDArray[np.bool_]
    pairs: NDArray[np.bool_]
    end: NDArray[np.bool_]


class SpanCodes(NamedTuple):
    """What labels mean for spans: the number of their kind (S,), -1 outside of spans; whether a
    label of the same kind may follow, and whether it may follow such a one."""

    kind: NDArray[np.int64]
    opens: NDArray[np.bool_]
    continues: NDArray[np.bool_]
    kinds: list[str]

    @property
    def tables(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """The three arrays."""
        return self.kind, self.opens, self.continues


class _Codes(NamedTuple):
    """Labels as numbers: the tag's place in `_TAGS`, the type's place in `types`."""

    tag: NDArray[np.int8]
    kind: NDArray[np.int64]
    types: list[str]


def _read(labels: Sequence[str | None], tags: str, name: str) -> _Codes:
    types: dict[str, int] = {"": 0}
    codes: dict[str | None, tuple[int, int]] = {None: (0, 0)}
    for label in dict.fromkeys(labels):
        if label is None:
            continue
        tag, dash, kind = label.partition("-") if isinstance(label, str) else ("", "", "")
        if not tag or tag not in tags or len(tag) > 1 or (dash and (tag == "O" or not kind)):
            raise SchemeError(
                f"{label!r} is not a {name} label: expected O, or one of "
                f"{', '.join(tags.replace('O', ''))} alone or followed by a dash and a type"
            )
        codes[label] = _LETTERS[tag], types.setdefault(kind, len(types))
    pairs = np.array([codes[label] for label in labels], dtype=np.int64).reshape(-1, 2)
    return _Codes(pairs[:, 0].astype(np.int8), pairs[:, 1], list(types))


@dataclass(frozen=True)
class Scheme:
    """One label scheme; get it by name from `get_scheme`.

    `free` holds the tags that may follow one another whatever the types, as (from, to); `same`
    those that need one and the same type. `apart` spells the first, inner, last and only tag of a
    span, `touching` those of a span that begins where one of its own type has just ended.
    """

    name: str
    tags: str
    free: tuple[str, str]
    same: tuple[str, str]
    apart: str
    touching: str
    _table: NDArray[np.bool_] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # table[a, b, s]: tag b may follow tag a; s = 1 where their types agree
        table = np.zeros((len(_TAGS), len(_TAGS), 2), dtype=bool)
        for (before, after), agree in ((self.free, (0, 1)), (self.same, (1,))):
            rows, columns = ([_LETTERS[c] for c in letters] for letters in (before, after))
            table[np.ix_(rows, columns, agree)] = True
        object.__setattr__(self, "_table", table)

    def transitions(self, labels: Sequence[str]) -> Allowed:
        """Which of these labels may start, follow one another and end.

        >>> get_scheme("BIO").transitions(["O", "B-NP", "I-NP"]).pairs.astype(int)
        array([[1, 1, 0],
               [1, 1, 1],
               [1, 1, 1]])
        """
        tag, kind, _ = _read(labels, self.tags, self.name)
        same = np.equal.outer(kind, kind).astype(np.intp)
        return Allowed(
            start=self._table[0, tag, 0],
            pairs=self._table[tag[:, None], tag[None, :], same],
            end=self._table[tag, 0, 0],
        )

    def violations(self, labels: Sequence[str | None]) -> list[int]:
        """Positions whose step from the one before is not allowed; a bad end is the last position.

        A missing label (None) could be any, so steps into and out of it are not judged.

        >>> get_scheme("BIOES").violations(["O", "I-NP", "E-NP", "B-NP"])
        [1, 3]
        """
        tag, kind, _ = _read(labels, self.tags, self.name)
        tag, kind = np.pad(tag, 1), np.pad(kind, 1, constant_values=-1)
        known = np.array([True, *(label is not None for label in labels), True])
        allowed = self._table[tag[:-1], tag[1:], (kind[:-1] == kind[1:]).astype(np.intp)]
        bad = np.flatnonzero(~allowed & known[:-1] & known[1:])
        found: list[int] = np.unique(np.minimum(bad, len(labels) - 1)).tolist()
        return found

    def repair(self, labels: Sequence[Label]) -> list[Label]:
        """Labels of the same spans that the scheme allows; what is allowed already is kept.

        >>> get_scheme("BIO").repair(["O", "I-NP", "I-NP", "I-VP"])
        ['O', 'B-NP', 'I-NP', 'B-VP']
        """
        return convert(labels, self, self) if self.violations(labels) else list(labels)

    def encode(self, spans: Iterable[Span], length: int) -> list[str]:
        """Labels of a sequence with these spans (in order, not overlapping).

        >>> get_scheme("IOB1").encode([("NP", 0, 2), ("NP", 2, 3)], 4)
        ['I-NP', 'I-NP', 'B-NP', 'O']
        """
        labels, before = ["O"] * length, ("", -1)
        for kind, start, end in spans:
            first, inner, last, only = tuple(
                self.touching if before == (kind, start) else self.apart
            )
            size = end - start
            letters = only if size == 1 else first + inner * (size - 2) + last
            labels[start:end] = [f"{c}-{kind}" if kind else c for c in letters]
            before = kind, end
        return labels


_SCHEMES = (
    Scheme("BIO", "BIO", ("BIO", "BO"), ("BI", "I"), "BIIB", "BIIB"),
    Scheme("IOB1", "IOB", ("BIO", "IO"), ("BI", "B"), "IIII", "BIIB"),
    Scheme("BIOES", "BIOES", ("OES", "OBS"), ("BI", "IE"), "BIES", "BIES"),
    Scheme("BILOU", "BILOU", ("OLU", "OBU"), ("BI", "IL"), "BILU", "BILU"),
)
_BY_NAME = {scheme.name: scheme for scheme in _SCHEMES}
_ALIASES = {"IOB2": "BIO", "IOBES": "BIOES"}


def get_scheme(name: str | Scheme) -> Scheme:
    """The scheme of this name, in any case: BIO (IOB2), IOB1, BIOES (IOBES) or BILOU.

    >>> get_scheme("iob2").name
    'BIO'
    """
    if isinstance(name, Scheme):
        return name
    key = str(name).upper()
    try:
        return _BY_NAME[_ALIASES.get(key, key)]
    except KeyError:
        known = ", ".join([*_BY_NAME, *_ALIASES])
        raise SchemeError(f"unknown label scheme {name!r}; known are {known}") from None


def spans(labels: Sequence[str | None], scheme: str | Scheme | None = None) -> list[Span]:
    """The (type, start, end) of every span, `end` exclusive, by the rules of conlleval.

    The rules read labels of all schemes, valid or not; naming one only makes labels foreign to it
    an error. A missing label (None) counts as O.

    >>> spans(["B-NP", "I-NP", "O", "I-VP", "I-NP"])
    [('NP', 0, 2), ('VP', 3, 4), ('NP', 4, 5)]
    """
    if scheme is None:
        tags, name = _ANY
    else:
        tags, name = (found := get_scheme(scheme)).tags, found.name
    tag, kind, types = _read(labels, tags, name)
    goes_on = _OPENS[tag[:-1]] & _CONTINUES[tag[1:]] & (kind[:-1] == kind[1:])
    starts, ends = tag > 0, tag > 0
    starts[1:] &= ~goes_on
    ends[:-1] &= ~goes_on
    first, last = np.flatnonzero(starts), np.flatnonzero(ends)
    triples = zip(kind[first].tolist(), first.tolist(), (last + 1).tolist(), strict=True)
    return [(types[k], start, end) for k, start, end in triples]


def reading(labels: Sequence[Any], scheme: str) -> str | None:
    """The scheme by which to read labels as spans: None for any, or `NO_SPANS`.

    ``scheme`` is a name, "auto" (spans if all labels look like such) or "none".

    >>> reading(["B-NP", "O"], "auto"), reading(["NN", "O"], "auto"), reading(["O"], "bio")
    (None, 'none', 'BIO')
    """
    if scheme.lower() == NO_SPANS:
        return NO_SPANS
    if scheme.lower() != "auto":
        return get_scheme(scheme).name
    try:
        spans(labels)
    except SchemeError:
        return NO_SPANS
    return None


def span_codes(labels: Sequence[str]) -> SpanCodes:
    """The tables by which `spans` reads these labels.

    >>> codes = span_codes(["B-NP", "I-NP", "O"])
    >>> codes.kinds, codes.kind.tolist(), codes.continues.tolist()
    (['NP'], [0, 0, -1], [False, True, False])
    """
    tag, kind, types = _read(labels, *_ANY)
    used, number = np.unique(kind[tag > 0], return_inverse=True)
    out = np.full(len(labels), -1)
    out[tag > 0] = number
    return SpanCodes(out, _OPENS[tag], _CONTINUES[tag], [types[k] for k in used])


def convert(labels: Sequence[Label], source: str | Scheme, target: str | Scheme) -> list[Label]:
    """The same spans in another scheme; missing labels (None) stay missing.

    >>> convert(["B-NP", "I-NP", "B-NP", "O"], "BIO", "BIOES")
    ['B-NP', 'E-NP', 'S-NP', 'O']
    """
    coded = get_scheme(target).encode(spans(labels, source), len(labels))
    return [old if old is None else new for old, new in zip(labels, coded, strict=True)]


def table_transitions(
    table: Iterable[tuple[Hashable, Hashable]] | Mapping[Any, Iterable[Hashable]],
    labels: Sequence[Hashable],
) -> Allowed:
    """Transitions from a table: (from, to) pairs, or a dict from a label to those that may follow.

    None stands for the start as `from` and for the end as `to`. A table without a start allows
    every start, one without an end every end.

    >>> table_transitions([(None, "a"), ("a", "b"), ("b", "a")], ["a", "b"])
    Allowed(start=array([ True, False]), pairs=array([[False, True], [ True, False]]),
            end=array([ True, True]))
    """
    if isinstance(table, Mapping):
        table = [(a, b) for a, after in table.items() for b in _collection(a, after)]
    size = len(labels)
    index = {label: k for k, label in enumerate(labels)} | {None: size}
    full = np.zeros((size + 1, size + 1), dtype=bool)
    for before, after in map(_pair, table):
        for label in (before, after):
            if label not in index:
                raise SchemeError(f"the table of transitions names an unknown label: {label!r}")
        full[index[before], index[after]] = True
    start, end = full[size, :size], full[:size, size]
    return Allowed(
        start=start if start.any() else ~start,
        pairs=full[:size, :size],
        end=end if end.any() else ~end,
    )


def _pair(entry: Any) -> tuple[Hashable, Hashable]:
    # a string of two letters is no pair of labels
    given = () if isinstance(entry, str) or not isinstance(entry, Iterable) else tuple(entry)
    if len(given) != 2 or not all(isinstance(label, Hashable) for label in given):
        raise SchemeError(f"a table of transitions has pairs (from, to) of labels, not {entry!r}")
    return given


def _collection(label: Hashable, after: Any) -> Iterable[Hashable]:
    # a string would silently be taken for its letters
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise SchemeError(f"what may follow {label!r} must be a list or set of labels: {after!r}")
    return after
