"""The one decorator for compiled loops.

`loop` is ``numba.njit(cache=True, nogil=True)``, except that a package folder and a home folder
that cannot be written to (a read-only install) cost the on-disk cache, not the import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


# Products may be fused with sums. Nothing is assumed about NaN or infinity: -inf is a score like
# any other. Sums keep their order: of a loop that writes to one array and reads another, LLVM
# compiles a form for arrays that lie apart and one for arrays that may not, and which of them
# runs depends on where the arrays happen to lie; so would the last bits, if it might reorder the
# sums in one.
FIXED = {"contract", "nsz"}
# A loop that writes nothing but its sum has one form alone, in which sums may be reordered, so that
# it uses vector instructions: the order is another, but always the same.
REORDERED = FIXED | {"reassoc"}


def loop(function: F) -> F:
    """Compile a function of arrays and scalars; the compiled code runs without the GIL."""
    return _compiled(function, FIXED)


def summing_loop(function: F) -> F:
    """The same for long sums: its innermost loops may write to no array."""
    return _compiled(function, REORDERED)


def _compiled(function: F, fastmath: set[str]) -> F:
    try:
        return cast(F, numba.njit(cache=True, nogil=True, fastmath=fastmath)(function))
    except RuntimeError as error:
        # numba found no folder for its cache: compile anew in each process instead of failing
        if "cannot cache" not in str(error):
            raise
        return cast(F, numba.njit(nogil=True, fastmath=fastmath)(function))


def is_cold(function: Any) -> bool:
    """True if no compiled form of a loop's module is on disk yet: its first call will take long."""
    folder = getattr(getattr(function, "stats", None), "cache_path", None)
    module = function.__module__.rpartition(".")[2]
    version = "".join(map(str, sys.version_info[:2]))
    return folder is None or not any(Path(folder).glob(f"{module}.*.py{version}.nbi"))


def inlined(function: F) -> F:
    """Compile a small function that other loops call; inlined by LLVM, no cache of its own."""
    return cast(F, numba.njit(nogil=True, fastmath=FIXED)(function))
