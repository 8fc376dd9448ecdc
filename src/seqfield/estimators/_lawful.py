"""Training labels against the scheme: mend them, or name the first place that breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import choice
from seqfield.data.schemes import Allowed, get_scheme
from seqfield.errors import SchemeError
from seqfield.labels import SETS, Targets, is_missing


def repaired(rows: list[Any], scheme: Any, on_violation: str, missing_label: Any) -> list[Any]:
    """Label rows, mended where they break a scheme with a name if the user asked for it."""
    choice("on_violation", on_violation, ("raise", "repair"))
    if on_violation == "raise" or not isinstance(scheme, str):
        return rows
    found = get_scheme(scheme)
    out = []
    for row in rows:
        # what is not known exactly is left to the others
        vague = [is_missing(v, missing_label) or isinstance(v, SETS) for v in row]
        plain = [None if skip else v for v, skip in zip(row, vague, strict=True)]
        fixed = found.repair(plain)
        out.append([v if skip else f for v, f, skip in zip(row, fixed, vague, strict=True)])
    return out


def check_lawful(rows: list[Any], targets: Targets, allowed: Allowed, *, mendable: bool) -> None:
    """Raise a `SchemeError` at the first place that breaks the scheme."""
    for i, t in _violations(targets, allowed):
        before = repr(rows[i][t - 1]) if t > 0 else "the start"
        after = repr(rows[i][t]) if t < len(rows[i]) else "the end"
        at = min(t, len(rows[i]) - 1)
        raise SchemeError(
            f"sequence {i}, position {at}: {after} after {before} is not allowed by the scheme"
            + ("; on_violation='repair' mends such places" if mendable else ""),
            place=(i, at),
        )


def _violations(targets: Targets, allowed: Allowed) -> list[tuple[int, int]]:
    """Places (sequence, position) where no choice of the known labels obeys the tables.

    Position l of a sequence of length l stands for its end. One place for each sequence.
    """
    out = []
    mask = targets.mask(len(allowed.start))
    for i in _suspects(targets, allowed):
        a, b = targets.offsets[i], targets.offsets[i + 1]
        reach = mask[a] & allowed.start
        t = 0
        while reach.any() and t + 1 < b - a:
            t += 1
            reach = (reach @ allowed.pairs) & mask[a + t]
        if not reach.any():
            out.append((int(i), t))
        elif not (reach & allowed.end).any():
            out.append((int(i), int(b - a)))
    return out


def _suspects(targets: Targets, allowed: Allowed) -> NDArray[np.int64]:
    """Sequences that may break the tables: with all labels known, exactly those that do."""
    y, first, last = targets.codes, targets.offsets[:-1], targets.offsets[1:] - 1
    bad = y < 0
    bad[1:] |= ~allowed.pairs[y[:-1], y[1:]]
    bad[first] = (y[first] < 0) | ~allowed.start[y[first]]
    bad[last] |= ~allowed.end[y[last]]
    return np.flatnonzero(np.add.reduceat(bad, first))
