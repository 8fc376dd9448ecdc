"""Model files, and how things are saved in them. Loading runs no code.

A file holds safetensors arrays and one JSON header. The header lies in the safetensors metadata
under ``seqfield``. It contains a checksum of the header and of the arrays.

Writing is atomic. A new file is written next to its final path, flushed to disk, and then moved
to that path in one step. Whatever happens, the path holds the old file or the new one.

An object that can be saved (`Saved`) gives a `State` and is rebuilt from this state. A `Family`
knows the classes of one kind by name. Parts of an object use the same `state` and `restore`.
Saving adds a prefix to the names of a part's arrays (`prefixed`); loading removes it (`under`).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as make_safetensors

from seqfield.errors import (
    CapabilityError,
    InputError,
    ModelFileError,
    OutputError,
    SeqfieldError,
)

FORMAT = 2
Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

#: placeholder for the checksum in the header while the checksum is computed
_BLANK = "0" * 64


class State(NamedTuple):
    """The saved form of an object: a header and arrays."""

    header: Header  #: plain JSON
    arrays: Arrays


class Saved(Protocol):
    """An object that can be saved.

    `restore` may take further arguments that were not saved, such as sizes to check.
    """

    def state(self) -> State:
        """Header and arrays from which `restore` rebuilds the object."""

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, *context: Any, **named: Any) -> Self:
        """Rebuild the object from the result of `state`. The range of each index is checked."""


S = TypeVar("S", bound=Saved)
P = ParamSpec("P")
C = TypeVar("C", bound=type[Any])


class Family(Generic[S, P]):
    """The classes of one kind that a model file may name. A file can name no other class.

    >>> class Point(NamedTuple):
    ...     x: int
    ...
    ...     def state(self):
    ...         return State({"x": self.x}, {})
    ...
    ...     @classmethod
    ...     def restore(cls, header, arrays):
    ...         return cls(int(header["x"]))
    >>> shapes = Family("shape")
    >>> Point = shapes.register(Point)
    >>> shapes.state(Point(3)).header
    {'class': 'Point', 'x': 3}
    >>> shapes.restore({"class": "Point", "x": 4}, {})
    Point(x=4)
    """

    def __init__(self, word: str) -> None:
        self.word = word
        self._classes: dict[str, type[S]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def register(self, cls: C) -> C:
        """Class decorator: allow model files to hold objects of this class."""
        known = self._classes.get(cls.__name__)
        # a notebook may define a class twice: the new class replaces the old one
        if known is not None and _home(known) != _home(cls):
            raise InputError(
                f"there is a {self.word} {cls.__name__} already, in {known.__module__}; "
                "give the class another name"
            )
        self._classes[cls.__name__] = cls
        return cls

    def named(self, name: Any) -> type[S]:
        """The class with this name. An unknown name raises an `InputError`."""
        if not isinstance(name, str) or name not in self._classes:
            known = ", ".join(sorted(self._classes))
            raise InputError(f"unknown {self.word} {name!r}; known are {known}")
        return self._classes[name]

    def state(self, thing: S) -> State:
        """The saved form of an object, with the name of its class."""
        cls = type(thing)
        if self._classes.get(cls.__name__) is not cls:
            raise CapabilityError(
                f"the {self.word} {cls.__name__} cannot be saved: model files hold registered "
                f"classes alone. Put @{self.word.upper()}S.register above the class"
            )
        header, arrays = thing.state()
        return State({"class": cls.__name__} | header, arrays)

    def restore(self, header: Any, arrays: Arrays, *context: P.args, **named: P.kwargs) -> S:
        """Rebuild an object from the result of `state`, or raise an `InputError`.

        No code from the file is run.
        """
        if not isinstance(header, dict):
            raise InputError(f"damaged {self.word}: a header is expected, got {header!r}")
        cls = self.named(header.get("class"))
        own = {name: value for name, value in header.items() if name != "class"}
        try:
            return cls.restore(own, arrays, *context, **named)
        except SeqfieldError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InputError(f"damaged {self.word} {cls.__name__}: {error!r}") from error


def write_model(path: str | os.PathLike[str], header: Header, arrays: Arrays) -> None:
    """Write a model file atomically."""
    # safetensors stores little-endian numbers, row by row
    plain = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        for name, array in arrays.items()
    }
    if bad := _not_finite(plain):
        raise ModelFileError(f"{os.fspath(path)}: not saved: {bad} holds NaN or infinity")
    try:
        # ASCII with escapes also keeps text that UTF-8 cannot hold (lone surrogates)
        blank = json.dumps(
            {"checksum": _BLANK, "format": FORMAT} | header, ensure_ascii=True, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{os.fspath(path)}: not saved: {error}") from error
    text = blank.replace(_BLANK, checksum(blank, plain), 1)
    write_atomically(path, make_safetensors(plain, metadata={"seqfield": text}))


def checksum(text: str, arrays: Arrays) -> str:
    """SHA-256 of a header and of the arrays by name.

    The header must hold zeros in the place of the checksum.
    """
    order = sorted(arrays)
    kinds = [[name, arrays[name].dtype.name, arrays[name].shape] for name in order]
    found = hashlib.sha256(f"{text}\n{json.dumps(kinds)}\n".encode())
    for name in order:
        found.update(arrays[name].reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def read_model(path: str | os.PathLike[str]) -> State:
    """Header and arrays of a model file. Any fault raises a `ModelFileError`."""
    text, arrays = _read(path)
    place = os.fspath(path)
    try:
        header = json.loads(text)
        if type(header["format"]) is not int or header["format"] < 1:
            raise ValueError("no such format")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{place}: not a seqfield model file") from error
    if header["format"] > FORMAT:
        raise ModelFileError(
            f"{place}: written in format {header['format']}, this version reads format "
            f"{FORMAT}; a newer seqfield is needed"
        )
    if header["format"] < FORMAT:
        raise ModelFileError(
            f"{place}: written in format {header['format']} by an unreleased version of "
            "seqfield; train the model again"
        )
    del header["format"]
    claimed = header.pop("checksum", None)
    blank = text.replace(str(claimed), _BLANK, 1)
    if checksum(blank, arrays) != claimed:
        raise ModelFileError(
            f"{place}: damaged: the checksum does not fit; copy the file again from its source"
        )
    if bad := _not_finite(arrays):
        raise ModelFileError(f"{place}: damaged: {bad} holds NaN or infinity")
    return State(header, arrays)


def _read(path: str | os.PathLike[str]) -> tuple[str, Arrays]:
    """The text of the header and the arrays of a file. Each is read once."""
    place = os.fspath(path)
    try:
        with open(path, "rb"):
            pass  # for a bad path, the error of safe_open does not give the reason
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise ModelFileError(f"{place}: cannot read: {_reason(error)}") from error
    try:
        with safe_open(place, framework="numpy") as file:
            text = (file.metadata() or {}).get("seqfield")
            names = [] if text is None else file.keys()
            arrays = {name: file.get_tensor(name) for name in names}
    # a number type that NumPy lacks raises neither of the first two errors
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(
            f"{place}: not a seqfield model file, or one that was cut short or damaged: {error}"
        ) from error
    if text is None:
        raise ModelFileError(f"{place}: not a seqfield model file")
    return text, arrays


def _not_finite(arrays: Arrays) -> str | None:
    """The name of an array that holds NaN or infinity, or None."""
    for name, array in arrays.items():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            return name
    return None


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to the file at ``path``. If writing fails, the old file stays unchanged.

    If ``path`` is a link, the link stays and its target file is replaced.
    """
    try:
        target = Path(os.path.realpath(path))
        there = target.exists()
        if there and not target.is_file():
            raise OSError("not a regular file")
        if there and not os.access(target, os.W_OK):
            raise OSError("the file is read-only")
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(name, target.stat().st_mode & 0o777 if there else 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        _sync_folder(target.parent)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise OutputError(
            f"{os.fspath(path)}: cannot write: {_reason(error)}; what was there is unchanged"
        ) from error


def prefixed(prefix: str, arrays: Arrays) -> Arrays:
    """Arrays renamed ``prefix/name``."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def under(prefix: str, arrays: Arrays) -> Arrays:
    """The arrays named ``prefix/name``, as ``name``.

    >>> under("a", {"a/x": 1, "b/x": 2})
    {'x': 1}
    """
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def label_to_json(label: Any) -> Any:
    """A label as JSON. Strings, numbers, booleans and None stay unchanged; tuples get a tag.

    >>> label_to_json(("a", 1))
    {'tuple': ['a', 1]}
    """
    if isinstance(label, tuple):
        return {"tuple": [label_to_json(part) for part in label]}
    if label is None or isinstance(label, str | bool | int):
        return label
    if isinstance(label, float) and np.isfinite(label):
        return label
    raise ModelFileError(
        f"label {label!r} cannot be saved: model files hold strings, numbers, booleans and tuples"
    )


def label_from_json(thing: Any) -> Any:
    """The label that `label_to_json` wrote."""
    if isinstance(thing, dict):
        return tuple(label_from_json(part) for part in thing["tuple"])
    if isinstance(thing, list):
        raise TypeError("a list is no label")
    return thing


def _home(cls: type[Any]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Flush the rename to disk, if the operating system supports this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
