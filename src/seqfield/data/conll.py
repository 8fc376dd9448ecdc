"""Column files: one token a line, columns parted by spaces or tabs, an empty line between
sequences.

Only the ASCII space and the tab part columns: other white space (such as U+3000, the
ideographic space) is a token like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
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
    lines, numbers, ends = _split_lines(text, comment)
    if not lines:
        raise FormatError("no tokens: the file has no non-empty line", path=name)
    width = lines[0].count(" ") + 1
    for line, number in zip(lines, numbers, strict=True):
        if line.count(" ") + 1 != width:
            raise FormatError(
                f"{line.count(' ') + 1} columns where the lines before have {width}",
                path=name,
                line=number,
            )
    # One split over the whole file, then strided slices: no Python loop over tokens.
    cells = " ".join(lines).split(" ")
    columns = [cells[c::width] for c in range(width)]
    labels = None
    if label is not None:
        if not -width <= label < width:
            raise FormatError(f"no column {label}: lines have {width} columns", path=name, line=1)
        labels = columns.pop(label)
        if not columns:
            raise FormatError(
                "only one column: it is the label, and no column is left to learn from",
                path=name,
                line=numbers[0],
            )
    rows = list(zip(*columns, strict=True))
    starts = [0, *ends[:-1]]
    X = [rows[a:b] for a, b in zip(starts, ends, strict=True)]
    if labels is None:
        return X, None
    return X, [labels[a:b] for a, b in zip(starts, ends, strict=True)]


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


def _read_text(source: str | os.PathLike[str] | IO[Any], encoding: str) -> tuple[str, str]:
    """The name (for messages) and the decoded text of a file."""
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        try:
            data: bytes | str = Path(source).read_bytes()
        except OSError as error:
            raise FormatError(error.strerror or str(error), path=name) from error
        if name.endswith(".gz"):
            data = _gunzip(data, name)
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


def _gunzip(data: bytes | str, name: str) -> bytes:
    import gzip
    import zlib

    try:
        return gzip.decompress(data)  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"damaged gzip file: {error}", path=name) from error


def _split_lines(text: str, comment: str | None) -> tuple[list[str], list[int], list[int]]:
    """Token lines with single spaces, their line numbers, and where each sequence ends."""
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\t" in text or "  " in text:
        text = _BLANKS.sub(" ", text)
    lines: list[str] = []
    numbers: list[int] = []
    ends: list[int] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" ")
        if comment is not None and line.startswith(comment):
            continue
        if line:
            lines.append(line)
            numbers.append(number)
        elif lines and (not ends or ends[-1] != len(lines)):
            ends.append(len(lines))
    if lines and (not ends or ends[-1] != len(lines)):
        ends.append(len(lines))
    return lines, numbers, ends
