"""Column files in and out, and the options that say how to read them."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from seqfield.cli.screen import plain_warnings, tell
from seqfield.errors import CapabilityError, FormatError, InputError, LabelError, OutputError

if TYPE_CHECKING:
    from seqfield.data.conll import Document

Row = tuple[str, ...]
Rows = list[list[Row]]

#: a file name that stands for standard input or output
STREAM = "-"

#: written in place of a label that is not sure enough
ABSTAINED = "?"


def _known_encoding(name: str) -> str:
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        "".encode(name)
    except LookupError:  # such as hex, which makes bytes of bytes
        raise typer.BadParameter(f"{name} is not an encoding of text") from None
    return name


def _numbers(text: str | None) -> str | None:
    if text is not None and not all(part.strip().isdecimal() for part in text.split(",")):
        raise typer.BadParameter("expected column numbers parted by commas, such as 0,1")
    return text


def _prefix(text: str | None) -> str | None:
    if text == "":
        raise typer.BadParameter("expected the beginning of lines, such as #")
    return text


Columns = Annotated[
    str | None,
    typer.Option(
        metavar="0,1,...",
        callback=_numbers,
        help="The feature columns and their order, counted from 0; all but the label by default, "
        "of .conllu files the word.",
    ),
]
LabelColumn = Annotated[
    int | None,
    typer.Option(
        "--label",
        help="The column of the label, counted from 0; -1 is the last one. By default the last "
        "one, of .conllu files 3, the universal tag.",
        show_default=False,
    ),
]
Encoding = Annotated[
    str, typer.Option(callback=_known_encoding, help="Character encoding of the files.")
]
Comment = Annotated[
    str | None,
    typer.Option(
        metavar="PREFIX",
        callback=_prefix,
        help="Skip lines that begin with this, such as #.",
        show_default=False,
    ),
]
Missing = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL", help="A label that means: not known, such as ?.", show_default=False
    ),
]
ModelPath = Annotated[str, typer.Argument(metavar="MODEL", help="Model file.", show_default=False)]


class Labelled(NamedTuple):
    """Rows of the chosen columns, their labels, and the file that both come from."""

    X: Rows
    y: list[list[str | None]]
    document: Document


class Reading(NamedTuple):
    """How column files are to be read."""

    encoding: str
    comment: str | None
    label: int | None = None
    missing: str | None = None

    def tokens(self, source: str) -> Document:
        """A column file, or standard input if its name is ``-``, without a label's column."""
        return self._read(source, None)

    def labelled(self, source: str, columns: str | None) -> Labelled:
        """A labelled column file, or standard input if its name is ``-``."""
        document = self._read(source, "auto" if self.label is None else self.label)
        assert document.labels is not None
        return Labelled(choose(document, columns), document.labels, document)

    def _read(self, source: str, label: Any) -> Document:
        from seqfield.data.conll import read_document

        with plain_warnings():
            document = read_document(
                _all_input() if source == STREAM else source,
                label=label,
                encoding=self.encoding,
                comment=self.comment,
                missing=self.missing,
            )
        for note in document.notes:
            tell("note", f"{document.name}: {note}")
        return document


def standard_input() -> IO[bytes]:
    """The stream of bytes; an error if there is none."""
    if sys.stdin is None:
        raise InputError("standard input is closed: name a file to read")
    return sys.stdin.buffer


def _all_input() -> IO[bytes]:
    """All of standard input, with a name for messages."""
    stream: Any = io.BytesIO(standard_input().read())
    stream.name = "<stdin>"
    return cast(IO[bytes], stream)


def chosen(columns: str | None, model: Any) -> str | None:
    """The columns that the user named, or those the model was trained with."""
    noted = model.notes_.get("columns")
    return columns if columns is not None or not isinstance(noted, str) else _numbers(noted)


def choose(document: Document, columns: str | None) -> Rows:
    """The rows of a file with the chosen columns."""
    return document.features(None if columns is None else [int(k) for k in columns.split(",")])


def warn_of_abstentions(labelled: Labelled, known: Sequence[Any] = ()) -> None:
    """Warn of labels that `tag --min-confidence` writes for what is not known, unless the model
    knows them."""
    if ABSTAINED in known:
        return
    for i, row in enumerate(labelled.y):
        if ABSTAINED in row:
            document = labelled.document
            place = f"{document.name}:{document.line(i, row.index(ABSTAINED))}"
            tell(
                "warning",
                f"{place}: the label {ABSTAINED!r} is taken for a label like others: "
                f"--missing {ABSTAINED!r} makes it mean that the label is not known",
            )
            return


def check_columns(model: Any, X: Rows, document: Document, *, spare: bool) -> None:
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
    width = len(X[0][0])
    if not isinstance(encoder, Words) or not encoder.columns:
        if width < need:
            raise document.misfit(f"{_columns(width)}, but the model uses {need}")
    elif width != need and not (spare and width == need + 1):
        more = f" (or {need + 1}, the last one being the gold label)" if spare else ""
        raise document.misfit(
            f"{_columns(width, 'feature ')}, but the model was trained with {need}{more}"
        )
    if width > need and document.separator == " " and model.notes_.get("separator") == "\t":
        tell(
            "warning",
            f"{document.name}: blanks part its columns, and the last one is taken for gold labels, "
            "but the model was trained on a file with tabs. Where tokens hold blanks, end the "
            "lines with a tab",
        )


def check_same(labelled: Labelled, other: Labelled) -> None:
    """Refuse rows that do not have as many columns as others."""
    width, expected = len(labelled.X[0][0]), len(other.X[0][0])
    if width != expected:
        message = f"{_columns(width, 'feature ')}, but {other.document.name} has {expected}"
        raise labelled.document.misfit(message)


def check_output(path: str, *inputs: str | Path | None) -> None:
    """Refuse a place that cannot be written, or that is one of the inputs, before any work."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise OutputError(f"{path}: cannot write: not a regular file")
    if not target.parent.is_dir():
        raise OutputError(f"{path}: cannot write: the folder {target.parent} does not exist")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise OutputError(f"{path}: cannot write: permission denied")
    for source in inputs:
        if source is not None and _is_same(target, source):
            name = "standard input" if source == STREAM else source
            raise OutputError(f"{path}: cannot write: it is the input {name}: choose another name")


def _is_same(target: Path, source: str | Path) -> bool:
    """Whether two names, or one and standard input, are of one file."""
    try:
        given = os.fstat(standard_input().fileno()) if source == STREAM else os.stat(source)
        return os.path.samestat(target.stat(), given)
    except (OSError, ValueError):  # not there yet, or no file behind the stream
        return False


def separator(document: Document, model: Any, output: str) -> str:
    """What parts the columns of a file with the model's labels in the last one."""
    from seqfield.data.conll import CONLLU

    if output.endswith(CONLLU):
        raise InputError(
            f"{output}: cannot write CoNLL-U, whose labels are not in the last column: choose "
            "another name"
        )
    labels = [str(label) for label in model.classes_.tolist()]
    for label in labels:
        if label != label.strip(" ") or not label or re.search(r"[\t\n\r\0]", label):
            raise CapabilityError(
                f"the label {label!r} cannot be written in a column: use --format jsonl"
            )
    return "\t" if any(" " in label for label in labels) else document.separator


def write(chunks: Iterable[str], path: str, encoding: str) -> None:
    """Write text to standard output as it comes, or to a file in one step at the end."""
    from seqfield.data.text import cannot_hold, write_text

    if path != STREAM:
        write_text(path, "".join(chunks), encoding)
        return
    if sys.stdout is None:
        raise InputError("standard output is closed: name a file with --output")
    writer = codecs.getwriter(encoding)(sys.stdout.buffer)
    for chunk in chunks:
        try:
            writer.write(chunk)
        except UnicodeEncodeError as error:
            raise cannot_hold(error, encoding) from error
    sys.stdout.buffer.flush()


@contextmanager
def about(document: Document) -> Iterator[None]:
    """Name the file, and the line if it is known, in errors about its labels."""
    try:
        yield
    except LabelError as error:
        line = None if error.place is None else document.line(*error.place)
        raise FormatError(str(error), path=document.name, line=line) from error


def _columns(n: int, kind: str = "") -> str:
    return f"{n} {kind}column{'' if n == 1 else 's'}"
