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


# Sums may be reordered and products fused, so that inner loops use vector instructions. Nothing
# is assumed about NaN or infinity: -inf is a score like any other. A compiled function always
# sums in the same order, so results do not depend on the number of threads.
FAST = {"reassoc", "contract", "nsz"}


def loop(function: F) -> F:
    """Compile a function of arrays and scalars; the compiled code runs without the GIL."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True, fastmath=FAST)(function))
    except RuntimeError as error:
        # numba found no folder for its cache: compile anew in each process instead of failing
        if "cannot cache" not in str(error):
            raise
        return cast(F, numba.njit(nogil=True, fastmath=FAST)(function))


def is_cold(function: Any) -> bool:
    """True if no compiled form of a loop's module is on disk yet: its first call will take long."""
    folder = getattr(getattr(function, "stats", None), "cache_path", None)
    module = function.__module__.rpartition(".")[2]
    version = "".join(map(str, sys.version_info[:2]))
    return folder is None or not any(Path(folder).glob(f"{module}.*.py{version}.nbi"))


def inlined(function: F) -> F:
    """Compile a small function that other loops call; inlined by LLVM, no cache of its own."""
    return cast(F, numba.njit(nogil=True, fastmath=FAST)(function))
