"""Labels (any hashable objects), their codes 0..S-1, missing labels and candidate sets."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield.errors import InputError, LabelError
from seqfield.sequences import Offsets, is_column, offsets_of, place_of, rows_of

Codes = NDArray[np.int32]
UNKNOWN = -1
SETS = (set, frozenset)


@dataclass(frozen=True, eq=False)
class Targets:
    """What is known of the labels of N tokens.

    ``codes`` (N,) holds the code of each label, or -1 for a missing label or a candidate set.
    ``allowed`` (N, S) says which labels each token may have. It is None if every label is known.
    """

    codes: Codes
    allowed: NDArray[np.bool_] | None
    offsets: Offsets

    def __getitem__(self, chosen: Any) -> Targets:
        """The targets of chosen sequences (an index array)."""
        rows, offsets = rows_of(self.offsets, chosen)
        codes = self.codes[rows]
        if self.allowed is None or (codes >= 0).all():
            return Targets(codes, None, offsets)
        return Targets(codes, self.allowed[rows], offsets)

    def mask(self, n_labels: int) -> NDArray[np.bool_]:
        """``allowed`` as an array (N, S), made from the codes if it is None."""
        if self.allowed is not None:
            return self.allowed
        known: NDArray[np.bool_] = np.arange(n_labels) == self.codes[:, None]
        return known


class LabelSet:
    """The labels of a model in column order, with codes.

    >>> labels = LabelSet.learn([["B", "I", None], ["O"]])
    >>> labels.names
    ['B', 'I', 'O']
    >>> labels.encode([["I", {"B", "O"}]]).codes.tolist()
    [1, -1]
    """

    def __init__(self, names: Iterable[Hashable]) -> None:
        try:
            self.names: list[Any] = [_hashable(name) for name in names]
        except TypeError as error:
            raise LabelError(f"classes must be a list of labels: {error}") from error
        self.index: dict[Hashable, int] = {name: k for k, name in enumerate(self.names)}
        if len(self.index) != len(self.names):
            raise LabelError("classes must be a list of different labels: one is there twice")

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def learn(cls, y: Iterable[Any], missing_label: Any = None) -> LabelSet:
        """The labels that occur: sorted if they can be compared, else in order of appearance."""
        rows = [[] if row is None else _listed(row) for row in y]
        seen: dict[Hashable, None] = {}
        try:
            distinct = dict.fromkeys(chain.from_iterable(rows))
            plain = not any(v != v or isinstance(v, frozenset) for v in distinct)
        except TypeError:  # sets of candidates, or labels that cannot be used
            plain = False
        # without NaN, sets and unhashable labels, each distinct label is checked only once
        places: Iterable[tuple[int, int, Any]] = _placed(rows)
        if plain:
            places = [(0, 0, label) for label in distinct]
        for i, t, label in places:
            for one in label if isinstance(label, SETS) else (label,):
                if not is_missing(one, missing_label):
                    seen.setdefault(_hashable(one, i, t))
        names: list[Any] = list(seen)
        # labels of kinds that cannot be compared keep the order of first appearance
        with suppress(TypeError):
            names = sorted(names)
        return cls(names)

    @property
    def array(self) -> NDArray[Any]:
        """The labels as a one-dimensional array."""
        if all(isinstance(name, str) for name in self.names) or all(
            type(name) in (int, float) for name in self.names
        ):
            return np.array(self.names)
        out = np.empty(len(self), dtype=object)
        out[:] = self.names
        return out

    def encode(self, y: Sequence[Any], missing_label: Any = None) -> Targets:
        """Codes and allowed labels. An unknown label raises a `LabelError` that names its place."""
        if not isinstance(missing_label, Hashable):
            raise InputError(f"missing_label must be a hashable value, got {missing_label!r}")
        if missing_label in self.index:
            raise LabelError(f"{missing_label!r} is both a label and the missing label")
        rows = [_listed(row) for row in y]
        offsets = offsets_of([len(row) for row in rows])
        flat = list(chain.from_iterable(rows))
        try:
            codes = np.fromiter(map(self.index.__getitem__, flat), np.int32, len(flat))
        except (KeyError, TypeError):
            return self._encode_partial(flat, offsets, missing_label)
        return Targets(codes, None, offsets)

    def _encode_partial(self, flat: list[Any], offsets: Offsets, missing_label: Any) -> Targets:
        codes = np.full(len(flat), UNKNOWN, np.int32)
        allowed = np.zeros((len(flat), len(self)), dtype=bool)
        for t, label in enumerate(flat):
            if is_missing(label, missing_label):
                allowed[t] = True
                continue
            several = isinstance(label, SETS)
            options = list(label) if several else [label]
            if not options:
                raise LabelError(f"empty set of candidates at {_at(t, offsets)}")
            for one in options:
                code = self.index.get(_hashable(one, *place_of(t, offsets)))
                if code is None:
                    raise LabelError(
                        f"label {one!r} at {_at(t, offsets)} is not one of the model's "
                        f"{len(self)} labels. Declare labels that training data may lack with "
                        "classes=, or compare predictions with seqfield.metrics, where such a "
                        "label counts as missed",
                        place=place_of(t, offsets),
                    )
                allowed[t, code] = True
            if len(options) == 1:
                codes[t] = np.argmax(allowed[t])
        return Targets(codes, None if (codes >= 0).all() else allowed, offsets)

    def decode(self, codes: Codes, offsets: Offsets) -> list[list[Any]]:
        """Label lists from codes."""
        flat = list(map(self.names.__getitem__, codes.tolist()))
        return [flat[a:b] for a, b in pairwise(offsets)]


def nested(y: Any, offsets: Offsets, *, flat: bool = False) -> list[Any]:
    """y as a list with one entry for each sequence; lengths are checked against X.

    With ``flat``, y may be one list of N labels. This is for X given as one matrix with lengths.
    """
    if y is None:
        raise LabelError("y is None: training needs labels (None for single sequences is fine)")
    try:
        rows = None if isinstance(y, str) else _listed(y)
    except TypeError:
        rows = None
    if rows is None:
        raise LabelError(f"y must be a list of label lists, got {y!r}")
    n, total = len(offsets) - 1, int(offsets[-1])
    if flat and len(rows) == total and not any(_is_row(row) for row in rows):
        return [rows[a:b] for a, b in pairwise(offsets)]
    if len(rows) != n:
        raise LabelError(f"X has {n} sequences but y has {len(rows)}")
    lengths = np.diff(offsets)
    out = []
    for i, row in enumerate(rows):
        if row is None:
            out.append([None] * int(lengths[i]))
            continue
        if not _is_row(row):
            raise LabelError(f"y[{i}] must be a list of labels or None, got {row!r}")
        labels = _listed(row)
        if len(labels) != lengths[i]:
            raise LabelError(
                f"sequence {i}: X has {lengths[i]} tokens but y has {len(labels)} labels"
            )
        out.append(labels)
    return out


def is_missing(label: Any, missing_label: Any) -> bool:
    """True for None and for a label that equals ``missing_label`` (which may be NaN)."""
    if label is None:
        return True
    if missing_label is None or isinstance(label, SETS):
        return False
    if isinstance(missing_label, float) and np.isnan(missing_label):
        return bool(label != label)
    try:
        return label is missing_label or bool(label == missing_label)
    except (TypeError, ValueError):  # such as NA of pandas: neither equal nor not
        return False


def _listed(row: Any) -> list[Any]:
    """A list of Python objects from a list, tuple, array or column of labels.

    A gap in a column of a data frame is a missing label, however its library writes it.
    """
    if isinstance(row, np.ndarray):
        return list(row.tolist())
    if not is_column(row):
        return list(row)
    labels = row.tolist() if hasattr(row, "tolist") else row.to_list()
    gaps = row.isna() if hasattr(row, "isna") else ()
    if not any(gaps):
        return list(labels)
    return [None if gap else label for label, gap in zip(labels, gaps, strict=True)]


def _placed(rows: list[list[Any]]) -> Iterator[tuple[int, int, Any]]:
    for i, row in enumerate(rows):
        for t, label in enumerate(row):
            yield i, t, label


def _is_row(row: Any) -> bool:
    return isinstance(row, list | tuple | np.ndarray) or is_column(row)


def _hashable(label: Any, i: int | None = None, t: int | None = None) -> Hashable:
    place = "" if i is None else f" at sequence {i}, position {t}"
    if isinstance(label, np.generic):
        label = label.item()
    if _is_gap(label):
        name = "NaN" if isinstance(label, float) else label
        raise LabelError(
            f"label is {name}{place}: a missing label is None, or what missing_label= says"
        )
    if not isinstance(label, Hashable):
        raise LabelError(f"label {label!r}{place} is not hashable")
    try:
        hash(label)  # a tuple is hashable only if its parts are
    except TypeError:
        raise LabelError(f"label {label!r}{place} is not hashable") from None
    return label


def _is_gap(label: Any) -> bool:
    """True for NaN, and for what cannot even be compared with itself, such as NA of pandas."""
    if isinstance(label, str):
        return False
    try:
        return bool(label != label)
    except (TypeError, ValueError):
        return isinstance(label, Hashable)


def _at(token: int, offsets: Offsets) -> str:
    i, t = place_of(token, offsets)
    return f"sequence {i}, position {t}"
