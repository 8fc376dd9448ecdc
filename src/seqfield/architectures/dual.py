"""Functions in the span of the training tokens, which grow at a few tokens at a time.

theta = [beta | delta]: F(x, sigma) = sum_r beta(r, sigma) g(x, x_r) over the distinct tokens r, and
T = eta delta. Perceptrons and working sets change beta at some tokens of one sequence, and then
need the scores of the next sequence. So `Store` keeps an array up to date from which scores are
read. With explicit features it holds their weights. Otherwise it holds the values at all tokens,
which change by rows of the gram matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield._compile import inlined
from seqfield.architectures.lookup import Lookup, LookupDesign, Values
from seqfield.errors import BudgetError
from seqfield.kernels.covariance import Covariance, Factored, Matrix
from seqfield.kernels.gram import store
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
GIB = 2.0**30


class Store(NamedTuple):
    """A function as plain arrays that compiled loops read and change.

    With explicit features, ``weights`` (D, S) are used with the CSR matrix of features of the n
    distinct tokens; ``scratch`` has the same shape and is zero between uses. Without them,
    ``table`` (S, n) holds the values and ``gram`` holds rows of G. Row ``slot[r]`` belongs to token
    r; -1 means that it is not computed yet. The arrays of the other case are empty.
    """

    rows: Ints  # (N,) distinct token of each token
    indptr: Ints
    indices: NDArray[np.int32]
    values: Floats
    weights: Floats
    scratch: Floats
    slot: Ints
    gram: NDArray[Any]
    table: Floats
    eta: float


class Dual(Lookup):
    """theta = [beta | delta], F = G beta and T = eta delta.

    Parameters
    ----------
    covariance : G over the distinct tokens
    eta : scale of the transitions in the kernel, at least 0; with 0 there are no transitions
    budget : bytes for weights, or for computed rows of the gram matrix
    dtype : type of these rows
    """

    def __init__(
        self,
        n_labels: int,
        covariance: Covariance,
        eta: float = 1.0,
        budget: float = 4 * GIB,
        dtype: str = "float64",
    ) -> None:
        super().__init__(n_labels, covariance.size)
        self.covariance, self.budget, self.dtype = covariance, budget, np.dtype(dtype)
        self.eta = float(number("eta", eta, low=0))

    def lift(self, theta: Floats) -> Values:
        """F and T."""
        beta, delta = self.split(theta)
        return Values(self.covariance.multiply(beta), self.eta * delta)

    def split(self, theta: Floats) -> tuple[Floats, Floats]:
        """beta (n, S) and delta (S, S)."""
        return super().lift(theta)

    def collect(self, parts: list[tuple[LookupDesign, Floats]]) -> Floats:
        """The gradient by theta: [G E | eta E_T]."""
        e, e_transitions = self.gather(parts)
        return np.concatenate(
            [self.covariance.multiply(e).ravel(), self.eta * e_transitions.ravel()]
        )


class Growing:
    """A function that starts at zero, with `Store` up to date, and a cache of gram rows.

    Rows that do not fit into the cache are computed again each time. Sequences are visited in
    rounds, so a cache that drops the oldest row would drop each row just before its next use.
    """

    def __init__(self, dual: Dual, data: Sequences) -> None:
        self.offsets, self.dual = data.offsets, dual
        rows, s = data.x[:, 0].astype(np.int64), dual.n_labels
        none, no_table = np.zeros(0, np.int64), np.zeros((0, 0))
        cov, longest = dual.covariance, int(data.lengths.max())
        self._n_held = 0
        if isinstance(cov, Factored):
            x = sp.csr_array(cov.features)
            shape = (x.shape[1], s)
            self._check(2 * 8.0 * s * x.shape[1], f"weights of {x.shape[1]} features")
            self.store = Store(
                rows,
                x.indptr.astype(np.int64),
                x.indices.astype(np.int32),
                x.data.astype(np.float64),
                np.zeros(shape),
                np.zeros(shape),
                none,
                no_table,
                no_table,
                dual.eta,
            )
            return
        n = cov.size
        slot, gram = np.arange(n), getattr(cov, "gram", no_table)
        if not isinstance(cov, Matrix):
            row = float(dual.dtype.itemsize * n)
            self._check(row * longest, f"gram rows of a sequence of {longest} tokens")
            held = min(n, int(self.dual.budget / row))
            slot, gram = np.full(n, -1), np.empty((held, n), dual.dtype)
            self._spare = longest  # the last rows are used again for other tokens
        empty = np.zeros(0, np.int32)
        self.store = Store(
            rows, none, empty, np.zeros(0), no_table, no_table, slot, gram, np.zeros((s, n)),
            dual.eta,
        )  # fmt: skip

    def fetch(self, wanted: Ints) -> None:
        """Compute the gram rows of these tokens, of one sequence at most, unless cached."""
        slot, gram = self.store.slot, self.store.gram
        new = np.unique(wanted[slot[wanted] < 0])
        room = len(gram) - self._n_held
        if len(new) > room:
            self._n_held = max(0, len(gram) - self._spare)
            slot[slot >= self._n_held] = -1
            new = np.unique(wanted[slot[wanted] < 0])
        places = self._n_held + np.arange(len(new))
        rows = self.dual.covariance.columns(new).T
        store(
            gram[self._n_held : self._n_held + len(new)], rows, new.tolist(), range(gram.shape[1])
        )
        slot[new] = places
        self._n_held += len(new)

    def _check(self, need: float, what: str) -> None:
        if need > self.dual.budget:
            raise BudgetError(
                f"{what} need {need / GIB:.3g} GiB; the budget is {self.dual.budget / GIB:.3g} "
                "GiB. Use fewer or shorter sequences, or give more with gram_budget="
            )


@inlined
def read_scores(store: Any, t: Any, out: Any) -> None:
    """Scores (S,) of token t."""
    r = store.rows[t]
    if store.table.shape[0] > 0:
        for j in range(out.shape[0]):
            out[j] = store.table[j, r]
    else:
        read_weights(store, store.weights, r, out)


@inlined
def read_weights(store: Any, weights: Any, r: Any, out: Any) -> None:
    """Scores (S,) of distinct token r by weights of explicit features."""
    for j in range(out.shape[0]):
        out[j] = 0.0
    for k in range(store.indptr[r], store.indptr[r + 1]):
        v, w = store.values[k], weights[store.indices[k]]
        for j in range(out.shape[0]):
            out[j] += v * w[j]


@inlined
def add_at(store: Any, t: Any, change: Any) -> None:
    """beta(r, sigma) += change[sigma] at the distinct token r of token t."""
    r = store.rows[t]
    if store.table.shape[0] > 0:
        row = store.gram[store.slot[r]]
        for j in range(change.shape[0]):
            c, values = change[j], store.table[j]
            if c != 0.0:
                for q in range(values.shape[0]):
                    values[q] += c * row[q]
    else:
        for k in range(store.indptr[r], store.indptr[r + 1]):
            v, w = store.values[k], store.weights[store.indices[k]]
            for j in range(change.shape[0]):
                w[j] += v * change[j]


@inlined
def has_row(store: Any, t: Any) -> Any:
    """Whether the gram row that `add_at` needs for token t is in the cache."""
    return store.table.shape[0] == 0 or store.slot[store.rows[t]] >= 0
