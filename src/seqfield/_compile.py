"""The one decorator for compiled loops.

`loop` is ``numba.njit(cache=True, nogil=True)``, except that a package folder and a home folder
that cannot be written to (a read-only install) cost the on-disk cache, not the import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event

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


class _Listener(event.Listener):
    """Makes a call when numba compiles for the first time; what comes from the disk is compiled."""

    call: Callable[[], None] | None = None

    def on_start(self, event: Any) -> None:
        """Make the call, once."""
        call, self.call = self.call, None
        if call is not None:
            call()

    def on_end(self, event: Any) -> None:
        """Nothing is to be said when it is done."""


_LISTENER = _Listener()
# numba has no types
event.register("numba:compile", _LISTENER)  # type: ignore[no-untyped-call]


def on_compilation(call: Callable[[], None] | None) -> None:
    """Make a call when a loop is compiled from now on, the first time alone; None makes none."""
    _LISTENER.call = call


def inlined(function: F) -> F:
    """Compile a small function that other loops call; inlined by LLVM, no cache of its own."""
    return cast(F, numba.njit(nogil=True, fastmath=FIXED)(function))
