"""Writing column files that can be read again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from seqfield.data.conll._reading import CONLLU, START, Row
from seqfield.data.text import Target, name_of, write_text
from seqfield.errors import InputError, LabelError
from seqfield.labels import SETS, nested
from seqfield.sequences import Offsets, listed, offsets_of, place_of

#: what no cell may be: empty, with blanks at its ends, or with what parts lines or columns
_UNREADABLE = re.compile(r"\Z| |.*(?: \Z|[\t\n\r\0])", re.DOTALL)


def write_conll(
    target: Target, X: Any, y: Any = None, *, missing: str = "?", encoding: str = "utf-8"
) -> None:
    """Write sequences as a column file that `read_conll` reads again.

    Columns are parted by blanks. If a token or a label holds a blank, they are parted by tabs, and
    a tab ends the lines of a single column. What could not be read again is an error that names its
    place.

    Parameters
    ----------
    target : path (written in one step, or left as it was; gzip if it ends in ``.gz``) or open text
        file
    X : sequences of words or of token rows (tuples or lists of strings)
    y : a list of label lists, written as the last column; a sequence may have None. Without it
        the columns of X alone are written. Labels that are numbers are read again as text
    missing : what is written for a label that is None; ``read_conll(..., missing="?")`` makes
        it None again
    encoding : of the file, if target is a path

    >>> import sys
    >>> write_conll(sys.stdout, [["Ana", "sang"], ["no"]], [["B-PER", None], ["O"]])
    Ana B-PER
    sang ?
    <BLANKLINE>
    no O
    <BLANKLINE>
    """
    if name_of(target).endswith(CONLLU):
        raise InputError(
            f"{name_of(target)}: a column file whose name ends in .conllu would be read as "
            "CoNLL-U: choose another name"
        )
    sequences = [list(rows) for rows in listed(X)]
    offsets = offsets_of([len(rows) for rows in sequences])
    if (np.diff(offsets) == 0).any():
        i = int(np.argmin(np.diff(offsets)))
        raise InputError(f"sequence {i} is empty: every sequence needs at least one token")
    rows = [_row(token, k, offsets) for k, token in enumerate(_flat(sequences))]
    width = len(rows[0])
    for k, row in enumerate(rows):
        if len(row) != width:
            raise InputError(f"{_at(k, offsets)}: {len(row)} columns where the first has {width}")
    if y is not None:
        names = _names(_flat(nested(y, offsets)), missing, offsets)
        rows = [(*row, name) for row, name in zip(rows, names, strict=True)]
    separator = _separator(rows, offsets)
    end = "\t" if separator == "\t" and len(rows[0]) == 1 else ""
    lines = [separator.join(row) + end for row in rows]
    blocks = ["\n".join(lines[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    write_text(target, "".join(f"{block}\n\n" for block in blocks), encoding)


def joined(X: Iterable[Sequence[Row]], cells: Iterable[Sequence[Row]], separator: str = " ") -> str:
    """The text of a column file: rows that were read from one, each with more cells at its end.

    >>> joined([[("the",), ("cat",)]], [[("B", "0.9"), ("I", "0.8")]])
    'the B 0.9\\ncat I 0.8\\n\\n'
    """
    lines = []
    for rows, more in zip(X, cells, strict=True):
        lines += [separator.join((*row, *own)) for row, own in zip(rows, more, strict=True)]
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


def _flat(rows: list[list[Any]]) -> list[Any]:
    return [token for row in rows for token in row]


def _row(token: Any, k: int, offsets: Offsets) -> Row:
    """A token as a row of strings."""
    row = (token,) if isinstance(token, str) else token
    if isinstance(row, list | tuple) and row and all(isinstance(cell, str) for cell in row):
        return tuple(row)
    raise InputError(
        f"{_at(k, offsets)}: a token must be a string or a row of strings, got {token!r}"
    )


def _names(labels: list[Any], missing: Any, offsets: Offsets) -> Iterator[str]:
    """Labels as text."""
    if not isinstance(missing, str) or _UNREADABLE.match(missing):
        raise InputError(f"missing must be text for a column, such as '?', got {missing!r}")
    if None in labels and missing in labels:
        raise LabelError(f"{missing!r} is both a label and what missing= says: choose another one")
    for k, label in enumerate(labels):
        plain = label.item() if isinstance(label, np.generic) else label
        if isinstance(plain, SETS):
            raise LabelError(
                f"a set of candidates at {_at(k, offsets)} cannot be written in one column"
            )
        if plain is not None and not isinstance(plain, str | int | float):
            raise LabelError(f"label {label!r} at {_at(k, offsets)} must be a string or a number")
        if plain != plain:
            raise LabelError(f"label is NaN at {_at(k, offsets)}: a missing label is None")
        yield missing if plain is None else str(plain)


def _separator(rows: list[Row], offsets: Offsets) -> str:
    """What can part the columns of these rows."""
    distinct = {cell for row in rows for cell in row}
    bad = {cell for cell in distinct if _UNREADABLE.match(cell)}
    for k, row in enumerate(rows):
        first = row[0]
        wrong = [cell for cell in row if cell in bad] if bad else []
        if wrong or first == START or (k == 0 and first.startswith("\ufeff")):
            raise InputError(
                f"{_at(k, offsets)}: {(wrong or [first])[0]!r} cannot be read again from a column "
                "file: change it, or leave it out"
            )
    return "\t" if any(" " in cell for cell in distinct) else " "


def _at(k: int, offsets: Offsets) -> str:
    i, t = place_of(k, offsets)
    return f"sequence {i}, position {t}"
