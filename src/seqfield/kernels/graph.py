"""`Graph`: a kernel over the labelled and unlabelled tokens of a nearest-neighbour graph.

The eigenvectors u_j of the graph's Laplacian, in the order of their eigenvalues l_j, are functions
on the tokens from smooth to rough. Let r be a falling function. The kernel

    k(x, z) = sum_j r(l_j) u_j(x) u_j(z)

prefers functions that change little between neighbours. So unlabelled tokens say where labels may
change. The kernel knows the tokens that it was fitted with. Any other token is placed by its
neighbours, with a warning. The spectrum does not depend on the parameters of r and is computed
once.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import BudgetError, CapabilityError, InputError
from seqfield.kernels._base import KERNELS, Floats, Kernel
from seqfield.kernels._neighbours import Neighbours, Spectrum
from seqfield.kernels._pairs import Pairs, Rows, as_matrix, as_rows
from seqfield.kernels.explicit import EXPANSIONS, Expansion
from seqfield.persist import Arrays, Header, State, prefixed, under

Ints = NDArray[np.int64]

#: the largest memory in bytes for an eigendecomposition
BUDGET = 4 * 2**30

#: constructor arguments with a few possible values
CHOICES = {
    "laplacian": ("combinatorial", "normalized"),
    "transform": ("inverse", "diffusion"),
    "weights": ("binary", "heat"),
    "metric": ("euclidean", "cosine"),
}


class ExtensionWarning(UserWarning):
    """Tokens outside the graph are placed by their neighbours, which is approximate."""


class GraphWarning(UserWarning):
    """The graph says little or nothing about the labels."""


@KERNELS.register
class Graph(Kernel):
    """Graph kernel: sum_j r(l_j) u_j(x) u_j(z) over the Laplacian's spectrum of a neighbour graph.

    Parameters
    ----------
    n_neighbors : a whole number of at least 1. Two tokens are neighbours if one is among the
        n_neighbors nearest tokens of the other. Raise it if the graph falls apart
    laplacian : "combinatorial" for D - W, or "normalized" for I - D^-1/2 W D^-1/2. Use "normalized"
        in many dimensions, where some tokens are neighbours of hundreds of others
    transform : "inverse" for r(l) = 1 / (l + shift), or "diffusion" for r(l) = exp(-time l)
    shift : parameter of "inverse", above 0; can be learned. A function that is constant on a
        connected part of the graph has prior variance 1 / shift
    time : parameter of "diffusion", at least 0; can be learned. Raise it for smoother functions
    n_components : how many of the smoothest eigenvectors to keep, at least 1. None keeps all for up
        to 3,000 distinct tokens, else 300. Lower it to save time and memory
    weights : weights W between neighbours: "binary" for 1, or "heat" for exp(-d^2 / (2 s^2)), where
        s is the median distance of neighbours
    metric : "euclidean" or "cosine"

    Call `fit` with all tokens, labelled and unlabelled, dense or CSR. Equal tokens count as one.
    Costs for n distinct tokens and m eigenvectors:

    * neighbours: at most O(n^2 D) time, less in few dimensions;
    * all eigenvectors: O(n^3) time and 32 n^2 bytes;
    * m eigenvectors: about 100 m products with the graph and 32 n m bytes;
    * the fitted kernel: the tokens, the graph and 8 n m bytes;
    * features of N tokens: 8 N m bytes.

    If the eigenvectors need more than 4 GiB, a `BudgetError` is raised.

    The kernel of the galaxy experiment of Lafferty, Zhu and Liu (2004) is ``10 * Graph()``.

    >>> x = np.array([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]])
    >>> k = Graph(n_neighbors=2, shift=0.1).fit(x)
    >>> k(x[:2], x[[1, 2, 3]]).round(2)
    array([[3.23, 3.23, 0.  ],
           [3.55, 3.23, 0.  ]])
    >>> k.components(x).tolist(), k.in_graph([[1.0], [1.5]]).tolist()
    ([0, 0, 0, 1, 1, 1], [True, False])
    """

    _positive = ("shift", "time")
    _graph: Neighbours
    _spectrum: Spectrum

    def __init__(
        self,
        n_neighbors: int = 10,
        *,
        laplacian: str = "combinatorial",
        transform: str = "inverse",
        shift: float = 1e-6,
        time: float = 1.0,
        n_components: int | None = None,
        weights: str = "binary",
        metric: str = "euclidean",
    ) -> None:
        self.n_neighbors = n_neighbors
        self.laplacian = laplacian
        self.transform = transform
        self.shift = shift
        self.time = time
        self.n_components = n_components
        self.weights = weights
        self.metric = metric

    def _check(self) -> None:
        number("Graph: n_neighbors", self.n_neighbors, low=1, whole=True)
        if number("Graph: shift", self.shift, low=0) == 0:
            raise InputError("Graph: shift must be above 0, else constants have infinite variance")
        number("Graph: time", self.time, low=0)
        if self.n_components is not None:
            number("Graph: n_components", self.n_components, low=1, whole=True)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                wanted = " or ".join(repr(choice) for choice in allowed)
                raise InputError(f"Graph: {name} must be {wanted}, got {getattr(self, name)!r}")

    def _free(self) -> list[str]:
        used = "shift" if self.transform == "inverse" else "time"
        return [name for name in super()._free() if name == used]

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, x: Any, names: list[str] | None = None) -> Self:
        """The kernel on the graph of these tokens: all of them, labelled or not."""
        self.check()
        out = copy.copy(self)
        normalized = self.laplacian == "normalized"
        heat = self.weights == "heat"
        out._graph = Neighbours.learn(as_matrix(x), int(self.n_neighbors), self.metric, heat)
        out._spectrum = Spectrum.learn(out._graph, normalized, self.n_components, BUDGET)
        isolated = int((out._graph.degrees == 0).sum())
        if isolated:
            warnings.warn(
                f"{isolated} of {len(out._graph)} distinct tokens are so far from all others that "
                'their weights are 0: nothing is learned about them. Use weights="binary"',
                GraphWarning,
                stacklevel=2,
            )
        return out

    def _fitted(self) -> tuple[Neighbours, Spectrum]:
        if not hasattr(self, "_graph"):
            raise CapabilityError(
                "a graph kernel knows only the tokens that it was fitted with: call fit(x) with "
                "all tokens, labelled and unlabelled, and use the kernel that fit returns"
            )
        return self._graph, self._spectrum

    def in_graph(self, x: Any) -> NDArray[np.bool_]:
        """Whether each token is in the graph (N,). Others are placed by their neighbours."""
        return np.asarray(self._fitted()[0].locate(as_matrix(x)) >= 0)

    def components(self, x: Any) -> Ints:
        """The number of the connected part of each token (N,), -1 if it is not in the graph."""
        graph, _ = self._fitted()
        numbers = graph.locate(as_matrix(x))
        return np.where(numbers >= 0, graph.parts[numbers], -1)

    # --- values ---------------------------------------------------------------------------------

    def _basis(self, rows: Rows) -> Floats:
        """u_j(x) (N, m); a fresh array."""
        graph, spectrum = self._fitted()
        # looked up once for all tokens, not once for each block; so there is one warning
        numbers = rows.keep(graph, self._locate).astype(np.int64)
        out = spectrum.vectors[numbers]
        others = numbers < 0
        if others.any():
            out[others] = spectrum.extend(graph, rows.matrix[others])
        return out

    def _locate(self, x: Any) -> Floats:
        numbers = self._graph.locate(x)
        others = int((numbers < 0).sum())
        if others:
            warnings.warn(
                f"{others} of {len(numbers)} tokens are not in the graph and are placed by their "
                "neighbours, which is approximate. For exact results, give them to fit as "
                "unlabelled sequences (y None)",
                ExtensionWarning,
                stacklevel=2,
            )
        return numbers.astype(np.float64)

    def _response(self) -> Floats:
        """r(l) of each eigenvalue"""
        l = self._fitted()[1].values
        if self.transform == "inverse":
            return 1.0 / (l + self.shift)
        return np.exp(-self.time * l)

    def _slopes(self) -> list[Floats]:
        """dr/dlog p of each eigenvalue, for each free parameter p"""
        l = self._fitted()[1].values
        if self.transform == "inverse":
            # shift dr/dshift = -shift / (l + shift)^2
            slope = -self.shift / np.square(l + self.shift)
        else:
            # time dr/dtime = -time l exp(-time l)
            slope = -self.time * l * np.exp(-self.time * l)
        return [slope for _ in self._free()]

    def _both(self, pairs: Pairs) -> tuple[Floats, Floats]:
        left = self._basis(pairs.left_rows)
        same = pairs.right_rows is pairs.left_rows
        return left, left if same else self._basis(pairs.right_rows)

    def _value(self, pairs: Pairs) -> Floats:
        left, right = self._both(pairs)
        root = np.sqrt(self._response())
        scaled = left * root
        # one array on both sides gives an exactly symmetric product
        return np.asarray(scaled @ (scaled if right is left else right * root).T)

    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        left, right = self._both(pairs)
        return [(left * slope) @ right.T for slope in self._slopes()]

    def _diagonal(self, x: Any) -> Floats:
        return np.square(self._basis(as_rows(x))) @ self._response()

    def diagonal_derivatives(self, x: Any) -> list[Floats]:
        """dk(x, x)/dlog p of each row (N,) for each free parameter."""
        self.check()
        squares = np.square(self._basis(as_rows(x)))
        return [squares @ slope for slope in self._slopes()]

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """u_j(x) sqrt(r(l_j)); None if there are more such features than tokens."""
        _, spectrum = self._fitted()
        n, m = as_matrix(x).shape[0], len(spectrum.values)
        if m > n:
            return None
        if 8 * n * m > budget:
            raise BudgetError(
                f"the {m} graph features of {n} tokens need {8 * n * m / 2**30:.3g} GiB; the "
                f"budget is {budget / 2**30:.3g} GiB. Use fewer with n_components="
            )
        return GraphFeatures(self)

    # --- model files ----------------------------------------------------------------------------

    def _own(self) -> State:
        header, _ = super()._own()
        graph, spectrum = getattr(self, "_graph", None), getattr(self, "_spectrum", None)
        if graph is None or spectrum is None:
            return State(header, {})
        return State(
            header, prefixed("graph", graph.arrays()) | prefixed("spectrum", spectrum.arrays())
        )

    def _load(self, header: Header, arrays: Arrays) -> None:
        super()._load(header, arrays)
        self.check()  # what follows relies on the arguments
        if not arrays:
            return
        heat = self.weights == "heat"
        k = int(self.n_neighbors)
        self._graph = Neighbours.restore(under("graph", arrays), k, self.metric, heat)
        normalized = self.laplacian == "normalized"
        self._spectrum = Spectrum.restore(under("spectrum", arrays), len(self._graph), normalized)


@EXPANSIONS.register
class GraphFeatures(Expansion):
    """u_j(x) sqrt(r(l_j)) of a fitted `Graph`."""

    def __init__(self, kernel: Graph) -> None:
        self.kernel = kernel
        graph, spectrum = kernel._fitted()
        self.width, self.n_columns = graph.pool.shape[1], len(spectrum.values)

    def _transform(self, x: Any) -> Any:
        out = self.kernel._basis(as_rows(x))
        out *= np.sqrt(self.kernel._response())
        return sp.csr_array(out) if sp.issparse(x) else out

    def _squared_norms(self, x: Any) -> Floats:
        return self.kernel._diagonal(x)

    def _own(self) -> State:
        return self.kernel.state()

    @classmethod
    def _load(cls, own: Header, arrays: Arrays, parts: list[Expansion]) -> Self:
        return cls(Graph.restore(own, arrays))


class Diagnosis(NamedTuple):
    """How well the labels agree with the graph."""

    agreement: float  #: share of neighbour pairs with equal labels; NaN if no pair has two labels
    chance: float  #: what labels that do not depend on the graph would give
    n_components: int  #: connected parts of the graph
    n_unlabelled_components: int  #: those without any labelled token
    standard_error: float  #: of the agreement, for labels that do not depend on the graph


def diagnose(graph: Graph, x: Any, codes: Any) -> Diagnosis:
    """Compare the labels of neighbours; warn if the fitted graph says nothing about the labels.

    ``codes`` (N,) holds the label of each token of x, or -1 if it is not known. If equal tokens
    have several labels, each label has a share. Warnings are `GraphWarning`.

    >>> x = np.linspace(0, 1, 40)[:, None]
    >>> found = diagnose(Graph(n_neighbors=3).fit(x), x, np.arange(40) // 20)
    >>> found.agreement > 0.9, found.chance, found.n_components
    (True, 0.5, 1)
    """
    neighbours, _ = graph._fitted()
    x, codes = as_matrix(x), np.asarray(codes)
    if codes.shape != (x.shape[0],) or codes.dtype.kind not in "iu":
        raise InputError(f"codes must be {x.shape[0]} whole numbers, one for each token")
    numbers = neighbours.locate(x)
    known = (numbers >= 0) & (codes >= 0)
    labels, which = np.unique(codes[known], return_inverse=True)
    counts = np.zeros((len(neighbours), len(labels)))
    np.add.at(counts, (numbers[known], which), 1.0)
    labelled = counts.sum(axis=1) > 0
    agreement, chance, error = _agreement(neighbours.weights, counts, labelled)
    n_parts = int(neighbours.parts.max()) + 1
    reached = np.zeros(n_parts, bool)
    reached[neighbours.parts[labelled]] = True
    left_out = int((~reached[neighbours.parts]).sum())
    # with few labels the standard error is too large for a warning
    if len(labels) > 1 and agreement <= chance + 2.0 * error and 4.0 * error < 1.0 - chance:
        _warn(
            f"the graph tells nothing about the labels: {agreement:.1%} of neighbours have equal "
            f"labels, and chance gives {chance:.1%}. Use other features, metric= or n_neighbors="
        )
    if left_out:
        _warn(
            f"{n_parts - reached.sum()} of the {n_parts} connected parts of the graph have no "
            f"labelled token: nothing is learned about the {left_out} distinct tokens in them. "
            "Use a larger n_neighbors="
        )
    if n_parts > len(labels) > 0:
        _warn(
            f"the graph falls apart into {n_parts} connected parts, but there are {len(labels)} "
            "labels: what one part learns does not help another. Use a larger n_neighbors="
        )
    return Diagnosis(agreement, chance, n_parts, n_parts - int(reached.sum()), error)


def _agreement(weights: Any, counts: Floats, labelled: NDArray[np.bool_]) -> tuple[float, ...]:
    """Agreement of neighbours, chance, and the standard error under chance."""
    edges = weights[labelled][:, labelled] > 0
    q = counts[labelled]
    q /= q.sum(axis=1, keepdims=True)  # each token's share of each label
    pairs = edges.nnz / 2
    if not pairs:
        return math.nan, math.nan if not len(q) else float(np.square(q.mean(axis=0)).sum()), 0.0
    agreement = float((q * (edges.astype(np.float64) @ q)).sum()) / edges.nnz
    p, second = q.mean(axis=0), q.T @ q / len(q)
    chance = float(p @ p)
    # pairs that share a token are not independent: with p = E q and M = E q q' a pair has variance
    # |M|^2 - (p' p)^2, and sum_i d_i (d_i - 1) ordered pairs of pairs have covariance
    # p' M p - (p' p)^2
    d = np.diff(edges.indptr).astype(np.float64)
    variance = pairs * (np.square(second).sum() - chance**2)
    variance += (d * (d - 1)).sum() * (p @ second @ p - chance**2)
    return agreement, chance, math.sqrt(max(variance, 0.0)) / pairs


def _warn(message: str) -> None:
    warnings.warn(message, GraphWarning, stacklevel=3)
