"""Compiled loops of clique selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from seqfield._compile import inlined, loop

STEPS = 20


@inlined
def _tilted(p: Any, z: Any) -> Any:
    """log(p e^z + 1 - p), and the share of the term p e^z.

    This share is the marginal p after a change of the score by z.
    """
    # p = 0 and p = 1 stay the same for every z, where exponentials would underflow
    if p <= 0.0:
        return 0.0, 0.0
    if p >= 1.0:
        return z, 1.0
    top = max(z, 0.0)
    mine, other = p * np.exp(z - top), (1.0 - p) * np.exp(-top)
    return np.log(mine + other) + top, mine / (mine + other)


@inlined
def _risk(a: Any, h: Any, rows: Any, p: Any, q: Any, w: Any, linear: Any, square: Any) -> Any:
    """Change of the risk at coefficient a, with its slope and its curvature."""
    value = a * linear + 0.5 * a * a * square
    slope = linear + a * square
    curve = square
    for u in range(rows.shape[0]):
        x = h[rows[u]]
        log, now = _tilted(p[u], a * x)
        value += w[u] * (log - a * q[u] * x)
        slope += w[u] * x * (now - q[u])
        curve += w[u] * x * x * now * (1.0 - now)
    return value, slope, curve


@loop
def mean_field_gains(
    h: Any, rows: Any, free: Any, held: Any, w: Any, own: Any, c2: Any, numbers: Any, out: Any
) -> None:
    """out[k, c] = the largest decrease of the risk for candidate k in column c.

    The candidates are functions h (m, n). The method is Newton's method. A step is halved if it
    does not lower the risk.
    """
    for c in range(free.shape[1]):
        p, q = free[:, c].copy(), held[:, c].copy()
        for k in range(h.shape[0]):
            linear, square = c2 * own[k, c], c2 * h[k, numbers[k]]
            a = 0.0
            value, slope, curve = _risk(a, h[k], rows, p, q, w, linear, square)
            for _ in range(STEPS):
                if slope * slope <= 1e-12 * max(curve, 1e-300):
                    break
                step = -slope / max(curve, 1e-300)
                found = False
                for _ in range(STEPS):
                    new, new_slope, new_curve = _risk(a + step, h[k], rows, p, q, w, linear, square)
                    if new < value:
                        found = True
                        break
                    step *= 0.5
                if not found:
                    break
                a += step
                value, slope, curve = new, new_slope, new_curve
            out[k, c] = -value
