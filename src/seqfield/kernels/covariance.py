"""The covariance G of a kernel at given tokens, as something to multiply with.

G can be a matrix, a factor, explicit features, or the kernel evaluated again for each product. In
all cases a model needs three things: products G V, some columns of G, and in the end the function
G A in a form that can be evaluated at new tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.kernels._base import Floats, Kernel
from seqfield.kernels._pairs import check_finite
from seqfield.kernels.explicit import Expansion
from seqfield.kernels.functions import Expanded, Function, Span
from seqfield.kernels.gram import apply, check_some, product
from seqfield.kernels.lowrank import Landmarks, landmarks, nystrom, pivoted_cholesky
from seqfield.linalg.thin import thin_root

Ints = NDArray[np.int64]


class Covariance(ABC):
    """G (n, n) over n tokens."""

    size: int
    #: relative rounding error of squared norms
    noise = 1e-10

    @abstractmethod
    def multiply(self, v: Floats) -> Floats:
        """G V."""

    @abstractmethod
    def columns(self, chosen: Ints) -> Floats:
        """G[:, chosen]."""

    @abstractmethod
    def function(self, coefficients: Floats) -> Function:
        """The function x -> sum_j k(x, x_j) a_j for coefficients A (n, C)."""

    def rows_times(self, rows: Ints, v: Floats) -> Floats:
        """G[rows] V."""
        return self.columns(rows).T @ v

    def columns_times(self, chosen: Ints, v: Floats) -> Floats:
        """G[:, chosen] V."""
        return self.columns(chosen) @ v


class Matrix(Covariance):
    """The gram matrix held in memory: a product reads n^2 numbers."""

    def __init__(self, kernel: Kernel, tokens: Any, gram: NDArray[Any], n_jobs: int | None) -> None:
        self.kernel, self.tokens, self.gram, self.n_jobs = kernel, tokens, gram, n_jobs
        self.size = len(gram)
        if gram.dtype == np.float32:
            self.noise = 1e-5

    def multiply(self, v: Floats) -> Floats:
        """G V, summed in float64."""
        return product(self.gram, v, self.n_jobs)

    def columns(self, chosen: Ints) -> Floats:
        """G[:, chosen], read as rows."""
        return self.gram[chosen].astype(np.float64).T

    def function(self, coefficients: Floats) -> Function:
        """Over the tokens that have a coefficient."""
        return span(self.kernel, self.tokens, coefficients)


class OnDemand(Covariance):
    """No matrix is held: every product evaluates the kernel again, in blocks."""

    def __init__(self, kernel: Kernel, tokens: Any, n_jobs: int | None) -> None:
        self.kernel, self.tokens, self.n_jobs = kernel, tokens, n_jobs
        self.size = int(tokens.shape[0])
        check_some(kernel, tokens, n_jobs)

    def multiply(self, v: Floats) -> Floats:
        """G V."""
        return apply(self.kernel, self.tokens, self.tokens, v, self.n_jobs)

    def columns(self, chosen: Ints) -> Floats:
        """G[:, chosen]."""
        return self.kernel(self.tokens[chosen], self.tokens).T

    def function(self, coefficients: Floats) -> Function:
        """Over the tokens that have a coefficient."""
        return span(self.kernel, self.tokens, coefficients)


class Factored(Covariance):
    """G = Phi Phi' with features of the tokens, dense or sparse: a product costs 2 nnz(Phi) C."""

    def __init__(self, features: Any) -> None:
        self.features = features
        # scipy multiplies fastest by rows, so both Phi and its transpose are kept in CSR
        self._transposed = features.T.tocsr() if sp.issparse(features) else features.T
        self.size = int(features.shape[0])

    def multiply(self, v: Floats) -> Floats:
        """Phi (Phi' V)."""
        return np.asarray(self.features @ self.weights(v))

    def weights(self, v: Floats) -> Floats:
        """Phi' V, the weights of features of a function with coefficients V."""
        return np.asarray(self._transposed @ v)

    def columns(self, chosen: Ints) -> Floats:
        """G[:, chosen]."""
        few, every = self.features[chosen], self.features
        if sp.issparse(few):
            # the chosen tokens have few of the many features
            used = np.unique(few.indices)
            few, every = few[:, used].toarray(), every[:, used]
        return np.asarray(every @ few.T)

    def rows_times(self, rows: Ints, v: Floats) -> Floats:
        """G[rows] V."""
        return np.asarray(self.features[rows] @ self.weights(v))

    def columns_times(self, chosen: Ints, v: Floats) -> Floats:
        """G[:, chosen] V."""
        return np.asarray(self.features @ (self.features[chosen].T @ v))


class Explicit(Factored):
    """Features that the kernel's expansion writes out."""

    def __init__(self, expansion: Expansion, tokens: Any) -> None:
        self.expansion = expansion
        with np.errstate(over="ignore"):
            check_finite(expansion.squared_norms(tokens))
        super().__init__(expansion.transform(tokens))

    def function(self, coefficients: Floats) -> Function:
        """The function, held as weights of the features."""
        return Expanded(self.expansion, self.weights(coefficients))


class LowRank(Factored):
    """Features from a few landmark tokens."""

    def __init__(self, found: Landmarks, tokens: Any, n_jobs: int | None) -> None:
        self.found = found
        super().__init__(found.features(tokens, n_jobs))

    @classmethod
    def choose(
        cls,
        kernel: Kernel,
        tokens: Any,
        rank: int,
        *,
        rng: np.random.Generator | None = None,
        n_jobs: int | None = None,
    ) -> LowRank:
        """Landmarks chosen greedily (pivoted Cholesky), or drawn at random if ``rng`` is given."""
        check_some(kernel, tokens, n_jobs)
        if rng is not None:
            return cls(nystrom(kernel, tokens, rank, rng), tokens, n_jobs)
        chosen = pivoted_cholesky(kernel, tokens, rank).chosen
        if not len(chosen):
            raise InputError(
                "a kernel must be positive semi-definite and not zero: all k(x, x) <= 0"
            )
        return cls(landmarks(kernel, tokens[np.sort(chosen)]), tokens, n_jobs)

    def function(self, coefficients: Floats) -> Function:
        """Over the landmarks: phi(x) w = k(x, z) (dual w)."""
        kernel, tokens, dual = self.found
        return Span(kernel, tokens, dual @ self.weights(coefficients))


class Root(NamedTuple):
    """A dense root (n, r) of G = root root'.

    At a new token x the function root b has the value k(x, z) (dual b), with the kept tokens z.
    """

    kernel: Kernel
    root: Floats
    tokens: Any
    dual: Floats

    @classmethod
    def of(cls, kernel: Kernel, tokens: Any, gram: Floats) -> Root:
        """The root of a gram matrix; tokens in the span of other tokens are left out."""
        root, kept = thin_root(gram)
        # root[kept] is lower triangular and root[kept] root[kept]' = k(z, z)
        dual = scipy.linalg.solve_triangular(root[kept], np.eye(len(kept)), trans=1, lower=True)
        return cls(kernel, root, tokens[kept], dual)

    def function(self, b: Floats) -> Span:
        """The function root b, for b (r, C)."""
        return Span(self.kernel, self.tokens, self.dual @ b)


def span(kernel: Kernel, tokens: Any, coefficients: Floats) -> Span:
    """The function over the tokens whose coefficients are not all 0."""
    kept = np.flatnonzero(coefficients.any(axis=1))
    return Span(kernel, tokens[kept], coefficients[kept])
