"""Column files in and out, and the options that say how to read them."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from seqfield.errors import CapabilityError, FormatError, LabelError, OutputError

Row = tuple[str, ...]
Rows = list[list[Row]]

#: a file name that stands for standard input or output
STREAM = "-"


def _known_encoding(name: str) -> str:
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise typer.BadParameter(str(error)) from None
    return name


def _numbers(text: str | None) -> str | None:
    if text is not None and not all(part.strip().isdecimal() for part in text.split(",")):
        raise typer.BadParameter("expected column numbers parted by commas, such as 0,1")
    return text


Columns = Annotated[
    str | None,
    typer.Option(
        metavar="0,1,...",
        callback=_numbers,
        help="The feature columns and their order, counted from 0; all but the label by default.",
    ),
]
LabelColumn = Annotated[
    int, typer.Option("--label", help="The column of the label; -1 is the last one.")
]
Encoding = Annotated[
    str, typer.Option(callback=_known_encoding, help="Character encoding of the files.")
]
ModelPath = Annotated[str, typer.Argument(metavar="MODEL", help="Model file.", show_default=False)]


def read(source: str, encoding: str, label: int | None) -> tuple[Rows, list[list[str]] | None]:
    """Token rows and labels of a column file, or of standard input if its name is ``-``."""
    from seqfield.data.conll import read_conll

    return read_conll(
        sys.stdin.buffer if source == STREAM else source, label=label, encoding=encoding
    )


def read_labelled(
    source: str, encoding: str, label: int, columns: str | None
) -> tuple[Rows, list[list[str]]]:
    """Rows of the chosen feature columns, and labels."""
    rows, y = read(source, encoding, label)
    assert y is not None
    return choose(rows, columns, label, source), y


def chosen(columns: str | None, model: Any) -> str | None:
    """The columns that the user named, or those the model was trained with."""
    noted = model.notes_.get("columns")
    return columns if columns is not None or not isinstance(noted, str) else _numbers(noted)


def choose(rows: Rows, columns: str | None, label: int | None, source: str) -> Rows:
    """The chosen columns of rows that the label's column was taken from.

    >>> choose([[("the", "DT")]], "2,0", 1, "a.txt")
    [[('DT', 'the')]]
    """
    if columns is None:
        return rows
    width = len(rows[0][0]) + (label is not None)
    # without a label, one beyond the last column: nothing moves
    gap = width if label is None else label % width
    places = []
    for column in map(int, columns.split(",")):
        if column >= width:
            raise _misfit(source, f"no column {column}: lines have {_columns(width)}, from 0 on")
        if column == gap:
            raise _misfit(source, f"column {column} is the label: it cannot be a feature")
        places.append(column - (column > gap))
    return [[tuple(row[k] for k in places) for row in sequence] for sequence in rows]


def check_columns(model: Any, rows: Rows, source: str, *, spare: bool) -> None:
    """Refuse rows that do not have the columns of the model's features.

    With ``spare`` there may be one more, the gold label: encoders take the first columns.
    """
    from seqfield.features import Words

    encoder = model.features_
    need: int | None = getattr(encoder, "n_columns_", None)
    if need is None:
        raise CapabilityError(
            f"the model's features ({type(encoder).__name__}) are not made of columns of text: "
            "use it from Python"
        )
    width = len(rows[0][0])
    if not isinstance(encoder, Words) or not encoder.columns:
        if width < need:
            raise _misfit(source, f"{_columns(width)}, but the model uses {need}")
    elif width != need and not (spare and width == need + 1):
        more = f" (or {need + 1}, the last one being the gold label)" if spare else ""
        raise _misfit(
            source, f"{_columns(width, 'feature ')}, but the model was trained with {need}{more}"
        )


def check_same(rows: Rows, source: str, others: Rows, other: str) -> None:
    """Refuse rows that do not have as many columns as others."""
    width, expected = len(rows[0][0]), len(others[0][0])
    if width != expected:
        raise _misfit(source, f"{_columns(width, 'feature ')}, but {other} has {expected}")


def check_output(path: str) -> None:
    """Refuse a place that cannot be written, before any work is done for it."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise OutputError(f"{path}: cannot write: not a regular file")
    if not target.parent.is_dir():
        raise OutputError(f"{path}: cannot write: the folder {target.parent} does not exist")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise OutputError(f"{path}: cannot write: permission denied")


def write(chunks: Iterable[str], path: str, encoding: str) -> None:
    """Write text to standard output as it comes, or to a file in one step at the end."""
    from seqfield.persist import write_atomically

    if path == STREAM:
        _encode(chunks, sys.stdout.buffer, encoding)
        sys.stdout.buffer.flush()
    else:
        memory = io.BytesIO()
        _encode(chunks, memory, encoding)
        write_atomically(path, memory.getvalue())


def _encode(chunks: Iterable[str], stream: BinaryIO, encoding: str) -> None:
    writer = codecs.getwriter(encoding)(stream)
    for chunk in chunks:
        writer.write(chunk)


@contextmanager
def about(source: str, encoding: str) -> Iterator[None]:
    """Name the file, and the line if it can be found again, in errors about its labels."""
    from seqfield.data.conll import line_of

    try:
        yield
    except LabelError as error:
        line = None
        if error.place is not None and source != STREAM:
            line = line_of(source, error.place, encoding=encoding)
        raise FormatError(str(error), path=_name(source), line=line) from error


def _name(source: str) -> str:
    return "<stdin>" if source == STREAM else source


def _columns(n: int, kind: str = "") -> str:
    return f"{n} {kind}column{'' if n == 1 else 's'}"


def _misfit(source: str, message: str) -> FormatError:
    # all lines of a file have the same number of columns, so the first one shows it
    return FormatError(message, path=_name(source), line=1)
