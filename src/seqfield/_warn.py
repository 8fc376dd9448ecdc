"""Warnings that point at the user's line, however deep inside the library they arise."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the first call up the stack that is outside of this library."""
    frame, n = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("seqfield."):
        frame, n = frame.f_back, n + 1
    warnings.warn(message, category, stacklevel=n)
