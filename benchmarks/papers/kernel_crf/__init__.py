"""The kernel CRF experiments of Lafferty, Liu and Zhu (2004)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DECODINGS = ("posterior", "viterbi")


def as_is(kernel: Any) -> Callable[[Any, Any], Any]:
    """A fitted kernel as a function, which an estimator does not fit again.

    What a graph is costs much more than a fit, and is the same for all models over one pool.
    """
    return lambda x, z: kernel(x, z)
