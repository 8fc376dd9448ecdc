"""Features that are combinations of column values: their codes, plans and vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from seqfield.errors import InputError
from seqfield.features import _intern
from seqfield.features._base import by_frequency
from seqfield.sequences import Offsets, place_of

#: limits far above what anybody needs: a larger number is a mistake
MAX_REACH, MAX_COLUMNS = 1000, 10000


class Line(NamedTuple):
    """One kind of feature: its line in a template, U or B, literal pieces, (row, column) macros.

    If ``beyond`` is False, a macro that looks beyond an end of the sequence gives no feature.
    """

    number: int
    kind: str
    pieces: tuple[str, ...]
    macros: tuple[tuple[int, int], ...]
    beyond: bool = True

    def render(self, values: list[str]) -> str:
        """The feature's name, as CRF++ would write it."""
        return "".join(a + b for a, b in zip(self.pieces, [*values, ""], strict=True))


class Values:
    """Codes of column values, in one table for all columns. The first 2k codes are the symbols
    for positions beyond the ends of a sequence."""

    def __init__(self, reach: int, values: Iterable[str] = ()) -> None:
        symbols = [f"_B-{k}" for k in range(reach, 0, -1)]
        symbols += [f"_B+{k}" for k in range(1, reach + 1)]
        self.reach = reach
        self.table = {value: k for k, value in enumerate(symbols)}
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Give new values new codes."""
        for value in values:
            self.table.setdefault(value, len(self.table))

    def restore(self, values: list[str]) -> None:
        """Add the values of a model file, which must be distinct."""
        self.add(values)
        if len(self.table) != len(values) + 2 * self.reach:
            raise InputError("damaged feature table: a value is listed twice")

    def code(self, value: str) -> int:
        """The value's code, -1 if it was not learned."""
        return self.table.get(value, -1)

    def encode(self, columns: list[list[str]]) -> np.ndarray:
        """Codes (C, N), -1 for values not learned."""
        return encode(columns, self.code)

    def learned(self) -> list[str]:
        """Values in code order, without the boundary symbols."""
        return list(self.table)[2 * self.reach :]


def encode(columns: list[list[str]], code: Callable[[str], int]) -> np.ndarray:
    """Codes (C, N). ``code`` is called once for each distinct value, which is fast."""
    out = np.empty((len(columns), len(columns[0])), np.int32)
    for k, column in enumerate(columns):
        known = {value: code(value) for value in set(column)}
        out[k] = np.fromiter(map(known.__getitem__, column), np.int32, len(column))
    return out


def columns_of(tokens: list[Any], offsets: Offsets, need: int) -> list[list[str]]:
    """The first ``need`` columns of token rows; a plain string is a row of one column.

    The message of an error starts with the place. The caller adds what a token must be.
    """
    rows = tokens
    kinds = set(map(type, tokens))
    if all(issubclass(kind, str) for kind in kinds):
        rows = [(token,) for token in tokens]
    # a string among rows would be split into characters
    elif not all(issubclass(kind, list | tuple) for kind in kinds):
        want = str if isinstance(tokens[0], str) else list | tuple
        raise _bad_row(tokens, offsets, [isinstance(token, want) for token in tokens])
    try:
        columns = [[row[c] for row in rows] for c in range(need)]
    except IndexError:
        raise _bad_row(tokens, offsets, [len(row) >= need for row in rows]) from None
    try:
        strings = all(isinstance(value, str) for column in columns for value in set(column))
    except TypeError:  # not even hashable
        strings = False
    if not strings:
        good = [all(isinstance(value, str) for value in row[:need]) for row in rows]
        raise _bad_row(tokens, offsets, good)
    return columns


def _bad_row(tokens: list[Any], offsets: Offsets, good: list[bool]) -> InputError:
    bad = good.index(False)
    i, t = place_of(bad, offsets)
    return InputError(f"the token at sequence {i}, position {t} is {tokens[bad]!r}")


def plan(lines: list[Line], reach: int) -> np.ndarray:
    """Lines as integers for the compiled loops: group, number of macros, reach, (row, column)*."""
    groups: dict[tuple[str, ...], int] = {}
    width = 3 + 2 * max((len(line.macros) for line in lines), default=0)
    out = np.zeros((len(lines), width), np.int32)
    for j, line in enumerate(lines):
        group = groups.setdefault(line.pieces, len(groups))
        # loops count the codes of boundary symbols from the reach; this makes all of them negative
        first = reach if line.beyond else -reach - 1
        cells = [group, len(line.macros), first]
        cells += [value for macro in line.macros for value in macro]
        out[j, : len(cells)] = cells
    return out


class Vocabulary:
    """The known combinations of values for lines of one kind (U or B), and a look-up table."""

    def __init__(self, lines: list[Line], reach: int) -> None:
        self.lines = lines
        self.plan = plan(lines, reach)
        self.width = 1 + max((len(line.macros) for line in lines), default=0)
        self.combos = np.zeros((0, self.width), np.int32)
        self._table: np.ndarray | None = None

    def learn(self, codes: np.ndarray, offsets: Offsets, min_freq: int) -> sp.csr_array:
        """Learn the combinations of codes (C, N); return the matrix of those that are kept."""
        indices, combos = _intern.learn(codes, offsets, self.plan, self.width)
        counts = np.bincount(indices[indices >= 0], minlength=len(combos))
        order, remap = by_frequency(counts, min_freq)
        self.combos, self._table = np.ascontiguousarray(combos[order]), None
        return binary(indices, remap, len(order))

    def apply(self, codes: np.ndarray, offsets: Offsets) -> sp.csr_array:
        """The matrix of the known combinations."""
        if self._table is None:
            self._table = _intern.build_table(self.combos)
        indices = _intern.look_up(codes, offsets, self.plan, self._table, self.combos)
        same = np.arange(len(self.combos), dtype=np.int32)
        return binary(indices, same, len(same))

    def names(self, values: Values) -> list[str]:
        """Names of the known combinations."""
        by_group = {int(row[0]): line for row, line in zip(self.plan, self.lines, strict=True)}
        strings = list(values.table)
        out = []
        for group, *codes in self.combos.tolist():
            line = by_group[group]
            out.append(line.render([strings[code] for code in codes[: len(line.macros)]]))
        return out

    def restore(self, combos: np.ndarray, n_values: int) -> None:
        """Take combinations from a model file; every number is range-checked."""
        if combos.dtype != np.int32 or combos.ndim != 2 or combos.shape[1] != self.width:
            raise InputError("damaged feature table: wrong shape")
        n_groups = int(self.plan[:, 0].max(initial=-1)) + 1
        group, codes = combos[:, 0], combos[:, 1:]
        if (combos < 0).any() or (group >= n_groups).any() or (codes >= n_values).any():
            raise InputError("damaged feature table: it names a line or value that does not exist")
        self.combos, self._table = combos.copy(), None


def binary(indices: np.ndarray, remap: np.ndarray, width: int) -> sp.csr_array:
    """CSR matrix of ones, from a table (N, J) of old indices and the new index of each."""
    indptr, kept = _intern.compress(indices, remap)
    data = np.ones(len(kept), np.int8)
    return sp.csr_array((data, kept, indptr), shape=(len(indptr) - 1, width))
