"""Markdown tables on standard output, and the numbers in their cells."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np


def header(*cells: object) -> None:
    row(*cells)
    row(*("---" for _ in cells))


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def progress(*words: object) -> None:
    """What is going on, on standard error."""
    print(*words, file=sys.stderr, flush=True)


def with_sd(values: Any, form: str = ".2f", ddof: int = 1) -> str:
    """Mean and standard deviation; the mean alone of one value."""
    if len(values) <= ddof:
        return f"{np.mean(values):{form}}"
    return _with(values, np.std(values, ddof=ddof), form)


def with_error(values: Any, form: str = ".2f") -> str:
    """Mean and standard error; the mean alone of one value."""
    if len(values) < 2:
        return f"{np.mean(values):{form}}"
    return _with(values, np.std(values, ddof=1) / np.sqrt(len(values)), form)


def _with(values: Any, spread: Any, form: str) -> str:
    return f"{np.mean(values):{form}} ({spread:{form.lstrip('+')}})"


def percent(share: float, form: str = ".2f") -> str:
    return f"{100 * share:{form}}"


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios of rounds: the machine may change its speed between rounds."""
    return median(a / b for a, b in zip(above, below, strict=True))
