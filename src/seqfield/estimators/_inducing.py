"""Inducing tokens of `StructuredSVGP`: all distinct tokens, or some that stand for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.decomposition import TruncatedSVD

from seqfield.architectures.inducing import is_dense
from seqfield.errors import CapabilityError, InputError
from seqfield.kernels import Kernel, Precomputed
from seqfield.kernels.gram import distinct
from seqfield.kernels.lowrank import pivoted_cholesky
from seqfield.sequences import Sequences

#: tokens that inducing inputs are chosen from, and dimensions in which sparse ones are compared
POOL, DIMENSIONS = 20_000, 50


def inducing_tokens(
    kernel: Kernel, data: Sequences, n: int, how: str, rng: np.random.RandomState
) -> Any:
    """At most n tokens: "pivoted" by pivoted Cholesky, "kmeans" by clusters."""
    some = np.arange(data.n_tokens)
    if len(some) > POOL:
        some = np.sort(rng.choice(len(some), POOL, replace=False))
    x = data.x[some]
    x = x[distinct(x)[0]]
    if kernel.diagonal(x).max() <= 0.0:
        raise InputError(
            "a kernel must be positive semi-definite and not zero: all k(x, x) <= 0. Give it "
            "features and scales that are not all zero"
        )
    if x.shape[0] <= n:
        return x
    if how == "pivoted":
        return x[np.sort(pivoted_cholesky(kernel, x, n).chosen)]
    seed = int(rng.randint(2**31 - 1))
    kind = MiniBatchKMeans if x.shape[0] > 5000 else KMeans
    clusters = kind(n, random_state=seed, n_init=1)
    if is_dense(x):
        means = clusters.fit(x).cluster_centers_
        return np.asarray(means[distinct(means)[0]])
    # the nearest tokens: a mean of sparse tokens is not sparse
    flat = x.astype(np.float64)
    if x.shape[1] > DIMENSIONS:
        flat = TruncatedSVD(DIMENSIONS, random_state=seed).fit_transform(flat)
    far = clusters.fit_transform(flat)
    return x[np.unique(far.argmin(axis=0))]


def check_space(kernel: Kernel, *, inducing: str, learn_inducing: bool) -> None:
    """Raise a `CapabilityError` if tokens that are no points shall be averaged or moved."""
    if not _has_numbers(kernel):
        return
    for name, given, asks in (
        ("inducing", inducing, inducing == "kmeans"),
        ("learn_inducing", learn_inducing, learn_inducing),
    ):
        if asks:
            raise CapabilityError(
                f"{name}={given!r} takes tokens between others, and those of a Precomputed kernel "
                "are numbers of rows: use inducing='pivoted' and learn_inducing=False"
            )


def _has_numbers(kernel: Kernel) -> bool:
    """Whether tokens are numbers of rows."""
    return isinstance(kernel, Precomputed) or any(map(_has_numbers, kernel.parts().values()))
