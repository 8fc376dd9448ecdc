"""Long columns of numbers as short text, and the data of the list of sequences."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield.report.comparison import Comparison

#: probabilities are stored as whole numbers of 1 / UNIT
UNIT = 10_000

#: labels kept for each token, and the smallest probability that is kept
N_TOP, LEAST = 5, 0.0005

#: thresholds of the slider: steps of 0.01, and smaller steps near 1
THRESHOLDS = np.array(
    [
        *(k / 100 for k in range(99)),
        *(round(1 - k * step, 6) for step in (1e-3, 1e-4, 1e-5) for k in range(10, 1, -1)),
        0.99999,
    ]
)

_KINDS = {"u1": "u8", "u2": "u16", "u4": "u32", "f4": "f32"}


def column(values: Any, kind: str | None = None) -> dict[str, str]:
    """Numbers as base64 of a little-endian array, of the smallest type that holds them.

    >>> column([1, 2, 300])
    {'u16': 'AQACACwB'}
    """
    array = np.asarray(values)
    if kind is None:
        top = int(array.max(initial=0))
        kind = next(k for k in ("u1", "u2", "u4") if top < 256 ** int(k[1]))
    data = array.astype(f"<{kind}").tobytes()
    return {_KINDS[kind]: base64.b64encode(data).decode("ascii")}


def parts(p: Any) -> NDArray[np.float64]:
    """Probabilities as whole numbers of units. Only exact 0 and 1 give 0 and all units.

    >>> parts([0.0, 1e-9, 0.25, 1 - 1e-9, 1.0]).tolist()
    [0.0, 1.0, 2500.0, 9999.0, 10000.0]
    """
    exact = np.asarray(p, dtype=np.float64)
    return np.clip(np.rint(exact * UNIT), exact > 0, UNIT - (exact < 1))


def level_of(confidence: Any) -> NDArray[np.int64]:
    """The index of the highest threshold that each confidence reaches.

    >>> THRESHOLDS[level_of([0.0, 0.1234, 0.99, 0.9995, 1.0])].tolist()
    [0.0, 0.12, 0.99, 0.9995, 0.99999]
    """
    place: NDArray[np.int64] = np.searchsorted(THRESHOLDS, confidence, side="right") - 1
    return place


def drawn(compared: Comparison, words: list[list[str]]) -> dict[str, Any]:
    """The sequences as columns over tokens.

    Codes are indices into the labels. ``gold`` is the code plus 1, or 0 without a gold label. For
    each token, ``top`` and ``p`` hold ``kept`` labels: the predicted label, the gold label if it
    differs, and then the most probable other labels.
    """
    out: dict[str, Any] = {
        "words": words,
        "lengths": column(np.diff(compared.offsets)),
        "gold": column(compared.gold_codes + 1),
        "labels": column(compared.codes),
    }
    if compared.proba is not None:
        out |= _likely(compared, compared.proba)
    if compared.log_shown is not None:
        out["labelling"] = column(np.exp(compared.log_shown), "f4")
    if compared.found is not None:
        out["spans"] = _spans(compared, compared.found)
    return out


def surprise(compared: Comparison) -> NDArray[np.float64] | None:
    """-log p(gold labels) of each sequence (n,): of the whole labelling, or summed over tokens."""
    if compared.log_gold is not None:
        return 0.0 - compared.log_gold
    if compared.proba is None:
        return None
    graded = compared.graded
    nll = np.zeros(len(graded))
    with np.errstate(divide="ignore"):
        nll[graded] = -np.log(compared.proba[graded, compared.gold_codes[graded]])
    return compared.in_row(nll)


def _likely(compared: Comparison, proba: NDArray[np.float64]) -> dict[str, Any]:
    at, graded = np.arange(len(proba)), compared.graded
    rank = proba.copy()
    rank[at[graded], compared.gold_codes[graded]] += 1.0
    rank[at, compared.codes] += 2.0  # the predicted one comes first, then the gold one
    n = min(N_TOP, proba.shape[1])
    few = np.argpartition(-rank, n - 1, axis=1)[:, :n]
    few = np.take_along_axis(few, np.argsort(-np.take_along_axis(rank, few, 1), axis=1), 1)
    keep = np.take_along_axis(rank, few, 1) >= LEAST
    p = np.take_along_axis(proba, few, 1)
    nll = surprise(compared)
    return {
        "kept": column(keep.sum(axis=1)),
        "top": column(few[keep]),
        "p": column(parts(p[keep])),
        "level": column(level_of(p[:, 0])),
        "surprise": column(nll, "f4"),
    }


def _spans(compared: Comparison, found: list[list[Any]]) -> dict[str, Any]:
    kinds = sorted({span.kind for row in found for span in row})
    place = {kind: k for k, kind in enumerate(kinds)}
    flat = [span for row in found for span in row]
    gold, _ = compared.spans()
    right = [tuple(span[:3]) in own for row, own in zip(found, gold, strict=True) for span in row]
    return {
        "kinds": kinds,
        "counts": column([len(row) for row in found]),
        "kind": column([place[span.kind] for span in flat]),
        "start": column([span.start for span in flat]),
        "end": column([span.end for span in flat]),
        "p": column(parts([span.probability for span in flat])),
        "right": column(np.array(right, dtype=np.int64)),
    }
