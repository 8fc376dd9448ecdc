"""Checks of plain arguments, with messages that name the argument."""

from __future__ import annotations

import math
import numbers
from typing import Any

from seqfield.errors import InputError


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
) -> Any:
    """``value``, if it is a finite (whole) number between low and high; else an `InputError`.

    >>> number("n", 3, low=1, whole=True)
    3
    >>> number("c2", "x", low=0)
    Traceback (most recent call last):
    seqfield.errors.InputError: c2 must be a number of at least 0, got 'x'
    """
    kind: Any = numbers.Integral if whole else numbers.Real
    right_kind = isinstance(value, kind) and not isinstance(value, bool)
    if right_kind and math.isfinite(value) and low <= value <= high:
        return value
    wanted = "a whole number" if whole else "a number"
    if low > -math.inf and high < math.inf:
        wanted += f" from {low:g} to {high:g}"
    elif low > -math.inf:
        wanted += f" of at least {low:g}"
    raise InputError(f"{name} must be {wanted}, got {value!r}")
