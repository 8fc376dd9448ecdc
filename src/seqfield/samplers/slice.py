"""Slice sampling of a few parameters, one after the other (Neal 2003)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seqfield.solvers._base import Floats

#: the largest number of widenings of a bracket
WIDEN = 8


def slice_sample(
    log_density: Callable[[Floats], float],
    x: Floats,
    rng: np.random.Generator,
    width: float = 1.0,
) -> Floats:
    """One sweep of slice sampling over the coordinates of x.

    Each coordinate is drawn from the part of its line where the density is above a random share of
    the present density.

    >>> rng, x = np.random.default_rng(0), np.zeros(1)
    >>> draws = []
    >>> for _ in range(2000):
    ...     x = slice_sample(lambda x: -0.5 * float(x @ x), x, rng)
    ...     draws.append(x[0])
    >>> bool(abs(np.std(draws) - 1.0) < 0.1)
    True
    """
    x, now = x.copy(), log_density(x)
    for k in range(len(x)):
        level = now + np.log(1.0 - rng.random())

        def at(value: float, k: int = k) -> float:
            moved = x.copy()
            moved[k] = value
            return log_density(moved)

        low = x[k] - width * rng.random()
        high = low + width
        # the widenings are divided between the sides beforehand, so that moves are reversible
        left = int(rng.integers(WIDEN + 1))
        for _ in range(left):
            if not at(low) > level:
                break
            low -= width
        for _ in range(WIDEN - left):
            if not at(high) > level:
                break
            high += width
        while True:
            value = low + (high - low) * rng.random()
            found = at(value)
            if found > level or high - low < 1e-12:
                break
            low, high = (value, high) if value < x[k] else (low, value)
        if found > level:
            x[k], now = value, found
    return x
