"""The one decorator for compiled loops.

`loop` is ``numba.njit(cache=True, nogil=True)``, except that a package folder and a home folder
that cannot be written to (a read-only install) cost the on-disk cache, not the import.
"""

from __future__ import annotations

from collections.abc import Callable
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


def inlined(function: F) -> F:
    """Compile a small function that other loops call; inlined by LLVM, no cache of its own."""
    return cast(F, numba.njit(nogil=True, fastmath=FAST)(function))
