"""Checks of plain arguments, with messages that name the argument."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from seqfield.errors import InputError

#: the largest score. Larger ones have rounding errors near 1, and probabilities come from
#: differences of scores
LARGEST = 1e15


def choice(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Return ``value`` if it is in ``allowed`` (strings, booleans, None); else raise an
    `InputError`.

    >>> choice("solver", "lbfgs", ("lbfgs", "newton"))
    'lbfgs'
    >>> choice("solver", "adam", ("lbfgs", "newton"))
    Traceback (most recent call last):
    seqfield.errors.InputError: solver must be one of 'lbfgs', 'newton', got 'adam'
    """
    if isinstance(value, np.bool_):
        value = bool(value)
    # 1 is not True here, and an array is equal to nothing
    if any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        return value
    raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
) -> Any:
    """Return ``value`` if it is a finite (whole) number from low to high; else raise an
    `InputError`.

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


def generator(random_state: Any) -> np.random.Generator:
    """The random numbers of a seed or generator, or an `InputError`."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InputError(
            "random_state must be None, a whole number of at least 0 or a generator of NumPy, got "
            f"{random_state!r}"
        ) from error


def score_size(size: float, remedy: str = "scale the features or the kernel, or lower eta") -> None:
    """Raise an `InputError` if scores are too large to give probabilities.

    ``remedy`` ends the message: it says what the user can do.
    """
    if not size < LARGEST:  # refuses NaN too
        raise InputError(f"scores of the size {size:.3g} overflow: {remedy}")
