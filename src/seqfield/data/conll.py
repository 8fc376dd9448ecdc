"""Column files: one token a line, columns parted by spaces or tabs, an empty line between
sequences.

Only the ASCII space and the tab part columns: other white space (such as U+3000, the
ideographic space) is a token like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import IO, Any

from seqfield.errors import FormatError

Row = tuple[str, ...]
_BLANKS = re.compile("[ \t]+")


def read_conll(
    source: str | os.PathLike[str] | IO[Any],
    *,
    label: int | None = -1,
    encoding: str = "utf-8",
    comment: str | None = None,
) -> tuple[list[list[Row]], list[list[str]] | None]:
    """Read a column file into token rows and labels.

    Parameters
    ----------
    source : path or open file (text or binary; gzip is recognised by a name ending in ``.gz``)
    label : the column that holds the label; ``None`` if the file has none
    encoding : of the file; a byte that does not decode is an error that names its line
    comment : lines starting with this string are skipped (off by default: ``#`` is a token
        in many corpora)

    Returns
    -------
    X : list of sequences, each a list of rows, each a tuple of column strings
    y : list of label lists, or None if ``label`` is None

    >>> import io
    >>> X, y = read_conll(io.StringIO("the DT B\\ncat NN I\\n\\nruns VB O\\n"))
    >>> X
    [[('the', 'DT'), ('cat', 'NN')], [('runs', 'VB')]]
    >>> y
    [['B', 'I'], ['O']]
    """
    name, text = _read_text(source, encoding)
    raw = _normalised(text).split("\n")
    skip = None if comment is None else [line.startswith(comment) for line in raw]
    kept = raw if skip is None else [line for line, out in zip(raw, skip, strict=True) if not out]
    lines = [line for line in kept if line]
    if not lines:
        raise FormatError("no tokens: the file has no non-empty line", path=name)
    counts = list(map(str.count, lines, repeat(" ")))
    width = counts[0] + 1
    if counts.count(counts[0]) != len(counts):
        bad = next(k for k, count in enumerate(counts) if count != counts[0])
        raise FormatError(
            f"{counts[bad] + 1} column{'s' * (counts[bad] > 0)} where lines before have {width}",
            path=name,
            line=_line_number(raw, skip, bad),
        )
    # One split over the whole file, then strided slices: no Python loop over tokens.
    cells = " ".join(lines).split(" ")
    columns = [cells[c::width] for c in range(width)]
    labels = None
    if label is not None:
        if not -width <= label < width:
            raise FormatError(
                f"no column {label}: lines have {width} columns",
                path=name,
                line=_line_number(raw, skip, 0),
            )
        labels = columns.pop(label)
        if not columns:
            raise FormatError(
                "only one column: it is the label, and no column is left to learn from",
                path=name,
                line=_line_number(raw, skip, 0),
            )
    rows = list(zip(*columns, strict=True))
    cuts = _cuts(kept)
    X = [rows[a:b] for a, b in pairwise(cuts)]
    if labels is None:
        return X, None
    return X, [labels[a:b] for a, b in pairwise(cuts)]


def write_conll(
    stream: IO[str], X: Iterable[Sequence[Row]], extra: Iterable[Sequence[Sequence[str]]]
) -> None:
    """Write rows with extra columns (such as labels) after their own.

    >>> import sys
    >>> write_conll(sys.stdout, [[("the",), ("cat",)]], [[("B", "0.9"), ("I", "0.8")]])
    the B 0.9
    cat I 0.8
    <BLANKLINE>
    """
    for rows, cells in zip(X, extra, strict=True):
        for row, more in zip(rows, cells, strict=True):
            stream.write(" ".join((*row, *more)))
            stream.write("\n")
        stream.write("\n")


def line_of(
    source: str | os.PathLike[str],
    place: tuple[int, int],
    *,
    encoding: str = "utf-8",
    comment: str | None = None,
) -> int:
    """The line of a file that holds the token at ``place`` = (sequence, position)."""
    raw = _normalised(_read_text(source, encoding)[1]).split("\n")
    skip = None if comment is None else [line.startswith(comment) for line in raw]
    kept = raw if skip is None else [line for line, out in zip(raw, skip, strict=True) if not out]
    return _line_number(raw, skip, _cuts(kept)[place[0]] + place[1])


def _read_text(source: str | os.PathLike[str] | IO[Any], encoding: str) -> tuple[str, str]:
    """The name (for messages) and the decoded text of a file."""
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        try:
            raw = Path(source).read_bytes()
        except OSError as error:
            raise FormatError(error.strerror or str(error), path=name) from error
        data: bytes | str = _gunzip(raw, name) if name.endswith(".gz") else raw
    else:
        name = str(getattr(source, "name", "<text>"))
        data = source.read()
    if isinstance(data, str):
        return name, data
    try:
        return name, data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        bad = data[error.start : error.start + 1].hex()
        raise FormatError(
            f"not {encoding}: byte 0x{bad} cannot be decoded; name the right encoding",
            path=name,
            line=line,
        ) from error
    except LookupError as error:
        raise FormatError(str(error), path=name) from error


def _gunzip(data: bytes, name: str) -> bytes:
    import gzip
    import zlib

    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"damaged gzip file: {error}", path=name) from error


def _normalised(text: str) -> str:
    """Text with single spaces between columns, none at line ends, and \\n line ends."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\t" in text or "  " in text:
        text = _BLANKS.sub(" ", text)
    if text[:1] == " " or text[-1:] == " " or " \n" in text or "\n " in text:
        text = "\n".join([line.strip(" ") for line in text.split("\n")])
    return text


def _cuts(lines: list[str]) -> list[int]:
    """Offsets of the sequences among the non-empty lines."""
    empty = [k for k, line in enumerate(lines) if not line]
    # the k-th empty line comes after as many tokens as lines before it, less k empty ones
    cuts = dict.fromkeys([0, *(at - k for k, at in enumerate(empty)), len(lines) - len(empty)])
    return list(cuts)


def _line_number(raw: list[str], skip: list[bool] | None, token: int) -> int:
    """The number in the file of the line of a token."""
    at = [k for k, line in enumerate(raw) if line and not (skip and skip[k])]
    return at[token] + 1
