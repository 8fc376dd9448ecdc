"""Model files: safetensors arrays and one JSON header. Loading runs no code.

The header lies in the safetensors metadata under ``seqfield``. A file is written next to its
final place, flushed to disk and moved over it in one step: whatever happens, the path holds the
old file or the new one.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save as make_safetensors

from seqfield.errors import ModelFileError

FORMAT = 1
Arrays = dict[str, NDArray[Any]]


def write_model(path: str | os.PathLike[str], header: dict[str, Any], arrays: Arrays) -> None:
    """Write a model file atomically."""
    # ASCII with escapes: even text that UTF-8 cannot hold (lone surrogates) comes back as it was
    text = json.dumps(header | {"format": FORMAT}, ensure_ascii=True, allow_nan=False)
    data = make_safetensors(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={"seqfield": text},
    )
    write_atomically(path, data)


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at ``path`` by one that holds ``data``, or leave it as it was."""
    target = Path(path)
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, "the file is read-only")
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise ModelFileError(
            f"{target}: cannot write: {error.strerror or error}; what was there is unchanged"
        ) from error


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a model file; anything wrong is a `ModelFileError`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"{os.fspath(path)}: cannot read: {error.strerror}") from error
    try:
        size = int.from_bytes(data[:8], "little")
        outer = json.loads(data[8 : 8 + size]) if len(data) > 8 + size else None
        header = json.loads(outer["__metadata__"]["seqfield"]) if outer else None
        if not isinstance(header, dict) or type(header.get("format")) is not int:
            raise KeyError("format")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"{os.fspath(path)}: not a seqfield model file") from error
    if header["format"] < 1:
        raise ModelFileError(f"{os.fspath(path)}: not a seqfield model file")
    if header["format"] > FORMAT:
        raise ModelFileError(
            f"{os.fspath(path)}: written in format {header['format']}, this version reads up to "
            f"{FORMAT}; a newer seqfield is needed"
        )
    try:
        arrays = parse_safetensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{os.fspath(path)}: damaged: {error}") from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelFileError(f"{os.fspath(path)}: damaged: {name} holds NaN or infinity")
    return header, arrays


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
    """A label as JSON: strings, numbers, booleans and None as they are, tuples tagged.

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
    """What `label_to_json` wrote."""
    if isinstance(thing, dict):
        return tuple(label_from_json(part) for part in thing["tuple"])
    if isinstance(thing, list):
        raise TypeError("a list is no label")
    return thing


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable where the system allows it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
