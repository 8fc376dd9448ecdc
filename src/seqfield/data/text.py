"""Text in and out of files: encodings, byte order marks, gzip, and one step to replace a file."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import IO, Any

from seqfield.errors import FormatError, InputError
from seqfield.persist import write_atomically

Source = str | os.PathLike[str] | IO[Any]
Target = str | os.PathLike[str] | IO[str]

#: marks at the beginning of a file and the encodings that they tell, longer marks first
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_GZIP = b"\x1f\x8b"


def name_of(file: Any) -> str:
    """What messages call a path or an open file."""
    if isinstance(file, str | os.PathLike):
        return os.fspath(file)
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else "<text>"


def read_text(source: Source, encoding: str | None = "utf-8") -> tuple[str, str]:
    """The name (for messages) and the decoded text of a file, without its byte order mark.

    gzip is recognised by its first bytes, and expected of a path that ends in ``.gz``. A byte order
    mark says more than ``encoding``. With None the text must be UTF-8, and messages do not advise
    another encoding.
    """
    name, data = name_of(source), _content(source)
    if isinstance(data, bytes):
        if data.startswith(_GZIP) or (name.endswith(".gz") and not hasattr(source, "read")):
            data = _gunzip(data, name)
        data = _decoded(data, encoding, name)
    text: str = data
    if "\0" in text:
        raise _no_text(text.encode("utf-8", "replace"), encoding, name)
    return name, text.removeprefix("\ufeff")


def _content(source: Source) -> Any:
    """What a file holds: bytes, or text if it is a text file."""
    name = name_of(source)
    if isinstance(source, str | os.PathLike):
        try:
            return Path(source).read_bytes()
        except OSError as error:
            raise FormatError(error.strerror or str(error), path=name) from error
        except ValueError as error:  # such as a null byte in the name
            raise FormatError(f"not a path: {error}", path=name) from error
    if not hasattr(source, "read"):
        raise InputError(f"expected a path or an open file, got {source!r}")
    try:
        return source.read()
    except UnicodeDecodeError as error:
        told = f"not {error.encoding}: open the file with the right encoding="
        raise FormatError(told, path=name) from error


def _decoded(data: bytes, encoding: str | None, name: str) -> str:
    told = next((by for mark, by in _MARKS if data.startswith(mark)), None)
    used = told or encoding or "utf-8"
    try:
        return data.decode(used)
    except UnicodeDecodeError as error:
        if b"\0" in data and told is None:
            raise _no_text(data, encoding, name) from error
        line = data.count(b"\n", 0, error.start) + 1
        bad = data[error.start : error.start + 1].hex()
        message = f"not {used}: byte 0x{bad} cannot be decoded"
        if encoding is not None:
            other = "latin-1" if codecs.lookup(used).name.startswith("utf-8") else "utf-8"
            message += f"; name the right encoding, such as encoding={other!r}"
        raise FormatError(message, path=name, line=line) from error
    except (LookupError, UnicodeError) as error:
        raise FormatError(str(error), path=name) from error


def _no_text(data: bytes, encoding: str | None, name: str) -> FormatError:
    """The error about NUL bytes: every second byte of ASCII characters in UTF-16 is one."""
    message = "not a text file: it holds NUL bytes"
    if encoding is not None:
        late = data[1::2].count(0) > data[::2].count(0)
        message += f". If it is UTF-16, say encoding={'utf-16-le' if late else 'utf-16-be'!r}"
    line = data.count(b"\n", 0, data.index(0)) + 1
    return FormatError(message, path=name, line=line)


def _gunzip(data: bytes, name: str) -> bytes:
    import gzip
    import zlib

    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"damaged gzip file: {error}", path=name) from error


def cannot_hold(error: UnicodeEncodeError, encoding: str) -> InputError:
    """The error about a character that an encoding lacks."""
    # no encoding has half of a character
    remedy = error.reason if "surrogate" in error.reason else "choose another encoding="
    return InputError(f"{encoding.upper()} cannot hold {error.object[error.start]!r}: {remedy}")


def write_text(target: Target, text: str, encoding: str = "utf-8") -> None:
    """Write text to a path, in one step or not at all, or to an open text file.

    A path that ends in ``.gz`` is written by gzip.
    """
    if not isinstance(target, str | os.PathLike):
        if not hasattr(target, "write"):
            raise InputError(f"expected a path or an open text file, got {target!r}")
        try:
            target.write(text)
        except TypeError as error:
            raise InputError(f"{name_of(target)}: open it as a text file: {error}") from error
        return
    try:
        data = text.encode(encoding)
    except UnicodeEncodeError as error:
        raise cannot_hold(error, encoding) from error
    except LookupError as error:
        raise InputError(str(error)) from error
    if name_of(target).endswith(".gz"):
        import gzip

        data = gzip.compress(data, mtime=0)  # the same text makes the same file
    write_atomically(target, data)
