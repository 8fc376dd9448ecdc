"""What kernel estimators share: tokens and their covariance, scores of new tokens, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._checks import choice, number
from seqfield.architectures.dual import Dual
from seqfield.chain import ChainScores
from seqfield.errors import BudgetError, CapabilityError, InputError, LabelError
from seqfield.estimators._descent import DescentEstimator
from seqfield.kernels import (
    KERNELS,
    RBF,
    Graph,
    Kernel,
    Linear,
    Normalized,
    Power,
    Scaled,
    Sum,
    as_kernel,
)
from seqfield.kernels.covariance import Covariance, Explicit, LowRank, Matrix, OnDemand, Root
from seqfield.kernels.functions import FUNCTIONS, Function, Span
from seqfield.kernels.gram import ADVICE, check_dtype, gram
from seqfield.kernels.graph import diagnose
from seqfield.kernels.tokens import Tokens
from seqfield.labels import Targets
from seqfield.persist import prefixed, under
from seqfield.posteriors.remainder import Remainder
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
GIB = 2.0**30
#: numbers that a fit may leave, and model files keep
NUMBERS = (
    "C_",
    "bound_",
    "c2_",
    "eta_",
    "objective_",
    "gap_",
    "log_evidence_",
    "log_evidence_error_",
    "effective_sample_size_",
    "r_hat_",
)
#: what only some ways of fitting leave
OPTIONAL = ("path_", "n_chosen_", "cliques_", "support_", "log_evidence_", "log_evidence_error_")


def zero_one(x: Any) -> bool:
    """Whether all features are 0 or 1."""
    values = x.data if sp.issparse(x) else x
    return bool(((values == 0) | (values == 1)).all())


def _graphs(kernel: Kernel, x: Any) -> Iterator[tuple[Graph, Any]]:
    """The graph kernels in a fitted kernel, each with the tokens x as it sees them."""
    if isinstance(kernel, Graph):
        yield kernel, x
    for part in kernel.parts().values():
        yield from _graphs(part, kernel.seen(x))


class KernelEstimator(DescentEstimator):
    """Base of estimators whose scores are functions in the span of kernels.

    Fitted attributes: ``kernel_`` (the kernel with what it took from the data; a list if several
    were given), ``transitions_`` (S, S), ``n_tokens_`` (distinct training tokens) and
    ``n_kept_`` (tokens at which prediction evaluates the kernel).
    """

    warm_start = False
    #: what to do if a gram matrix is too large
    advice = ADVICE
    #: whether the function may be a sum of parts with a kernel each
    several_kernels = False
    kernel: Any
    eta: float
    transitions: bool
    explicit: bool | str = False
    n_landmarks: int | None = None
    landmarks: str = "pivoted"
    gram_budget: float
    gram_dtype: str
    _kernels: list[Kernel]
    _tokens: Tokens
    _cov: Covariance
    _functions: list[Function]
    _steps: Floats
    _edges: bool
    _remainder: Remainder | None = None

    # --- training -------------------------------------------------------------------------------

    def _check_choices(self, choices: Mapping[str, tuple[str, ...]]) -> None:
        """Raise an `InputError` for an argument that is none of its choices."""
        for name, allowed in choices.items():
            choice(name, getattr(self, name), allowed)

    def _some_sequences(self, data: Sequences, most: int) -> NDArray[np.int64]:
        """Random sequences of at most so many tokens in all; if none is as short, the shortest."""
        order = self._random().permutation(len(data))
        order = order[data.lengths[order] <= most]
        if not len(order):
            return np.array([data.lengths.argmin()])
        n = int(np.searchsorted(data.lengths[order].cumsum(), most, "right"))
        return np.sort(order[:n])

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        given = self.kernel if isinstance(self.kernel, list | tuple) else [self.kernel]
        if not given or (len(given) > 1 and not self.several_kernels):
            what = "one kernel" if not self.several_kernels else "a kernel or a list of them"
            raise InputError(f"kernel must be {what}, got {self.kernel!r}")
        check_dtype(self.gram_dtype)
        if choice("explicit", self.explicit, (True, False, "auto")) is True and self.n_landmarks:
            raise InputError("explicit=True and n_landmarks are two ways to the covariance: one")
        for name in OPTIONAL:
            self.__dict__.pop(name, None)
        if data.edge is not None:
            raise CapabilityError(
                f"{type(self).__name__} has no use for edge features: leave them out of X or the "
                "template, or use CRF"
            )
        names = self.features_.names()
        kernels = [as_kernel(self._default(data) if k is None else k) for k in given]
        self._kernels = [kernel.fit(data.x, names) for kernel in kernels]
        for kernel in self._kernels:
            for graph, x in _graphs(kernel, data.x):
                diagnose(graph, x, targets.codes)
        # where nothing is known the loss has no gradient; such tokens only shape the kernel
        told = np.add.reduceat(~targets.mask(len(self._labels)).all(axis=1), targets.offsets[:-1])
        kept = np.flatnonzero(told)
        if not len(kept):
            raise LabelError("y tells nothing: every label is missing or any of them may be right")
        if len(kept) < len(data):
            self._used = self._used[kept]
            data, targets, weights = data[kept], targets[kept], weights[kept]
        super()._fit(data, targets, weights)

    @staticmethod
    def _default(data: Sequences) -> Kernel:
        """The kernel if none is given."""
        if zero_one(data.x):
            # single features, and pairs of them on equal terms for rich and for poor tokens
            return Sum(Linear(), Scaled(Power(Normalized(Linear()), 2), 2.0))
        return RBF()

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        self._tokens = Tokens.of(data)
        self.n_tokens_ = int(self._tokens.x.shape[0])
        return self._tokens.numbered()

    @property
    def _budget(self) -> float:
        """Bytes that a gram matrix, or what stands for it, may take."""
        return float(number("gram_budget", self.gram_budget, low=0)) * GIB

    def _given_eta(self) -> float:
        """The scale of transitions as given; 0 if there are none."""
        eta = number("eta", self.eta, low=0)
        return float(eta) if self.transitions and self.features_.transitions_ else 0.0

    def _prepare_dual(self) -> None:
        """An architecture for optimisers that change few coefficients at a time."""
        self._cov = self._covariance(self._kernels[0], on_demand=True)
        self._architecture = Dual(
            len(self._labels), self._cov, self._given_eta(), self._budget, self.gram_dtype
        )

    def _keep_dual(self, theta: Floats) -> None:
        """What prediction needs of a function over that architecture; the rest may go."""
        beta, delta = self._architecture.split(theta)
        self._keep([self._cov.function(beta)], self._architecture.eta * delta[None])
        del self.theta_, self._architecture, self._cov, self._tokens

    def _covariance(
        self, kernel: Kernel, *, on_demand: bool = False, budget: float | None = None
    ) -> Covariance:
        """The covariance at the training tokens, in the form that the arguments ask for."""
        x, budget = self._tokens.x, self._budget if budget is None else budget
        if self.n_landmarks is not None:
            return self._low_rank(kernel)
        if self.explicit:
            found = self._expanded(kernel, x, budget)
            if found is not None:
                return found
        try:
            matrix = gram(
                kernel,
                x,
                budget=budget,
                dtype=self.gram_dtype,
                n_jobs=self.n_jobs,
                advice=self.advice,
            )
        except BudgetError:
            if not on_demand:
                raise
            return OnDemand(kernel, x, self.n_jobs)
        return Matrix(kernel, x, matrix, self.n_jobs)

    def _root(self, kernel: Kernel) -> Root:
        """The same as a dense root."""
        if self.n_landmarks is not None:
            found = self._low_rank(kernel)
            return Root(kernel, found.features, found.found.tokens, found.found.dual)
        x, n = self._tokens.x, self._tokens.x.shape[0]
        # the matrix, its root, the kept rows of that, their inverse and what it is solved from
        need = 5 * 8.0 * n**2
        if need > self._budget:
            raise BudgetError(
                f"a posterior over {n} tokens needs five matrices of {n} x {n}, "
                f"{need / GIB:.3g} GiB; the budget is {self.gram_budget:g} GiB. Use n_landmarks=, "
                "fewer sequences, or give more with gram_budget="
            )
        return Root.of(kernel, x, gram(kernel, x, budget=need, n_jobs=self.n_jobs))

    def _low_rank(self, kernel: Kernel) -> LowRank:
        rank = number("n_landmarks", self.n_landmarks, low=1, whole=True)
        n = self._tokens.x.shape[0]
        need = 2 * 8.0 * n * min(rank, n)
        if need > self._budget:
            raise BudgetError(
                f"features of {n} tokens from {rank} landmarks need {need / GIB:.3g} GiB; the "
                f"budget is {self.gram_budget:g} GiB. Use fewer landmarks, or give more with "
                "gram_budget="
            )
        seed = int(self._random().randint(2**31 - 1))
        rng = np.random.default_rng(seed) if self.landmarks == "random" else None
        return LowRank.choose(kernel, self._tokens.x, rank, rng=rng, n_jobs=self.n_jobs)

    def _expanded(self, kernel: Kernel, x: Any, budget: float) -> Covariance | None:
        """The covariance by explicit features, if there are any; "auto" wants a real saving."""
        n = x.shape[0]
        # a sparse product costs about four times as much a number as a dense one
        worth = budget if self.explicit is True else min(budget, 12.0 * n**2 / 8)
        try:
            expansion = kernel.expansion(x, worth)
        except BudgetError:
            if self.explicit is True:
                raise
            return None
        if expansion is None:
            if self.explicit is True:
                raise InputError(
                    f"explicit=True: {kernel!r} has no explicit features for this X (kernels of "
                    "degree 2 and 3 have them on sparse features that are 0 or 1)"
                )
            return None
        found = Explicit(expansion, x)
        size = found.features.nnz if hasattr(found.features, "nnz") else found.features.size
        return found if self.explicit is True or 8 * size < n**2 else None

    def _check_atoms(self, most: int, width: int) -> None:
        """Raise a `BudgetError` if this many functions of so many numbers each take too much."""
        # the array doubles as it grows, and new ones are there before they are taken in
        need = 3 * 8.0 * most * width / GIB
        if need > self._budget / GIB:
            raise BudgetError(
                f"{most} functions of {width} numbers each need {need:.3g} GiB, the budget is "
                f"{self.gram_budget:g} GiB: keep fewer, refit the new ones alone (update='new' of "
                "GPSC), or give more with gram_budget="
            )

    # --- use ------------------------------------------------------------------------------------

    def _keep(self, functions: list[Function], steps: Floats, *, edges: bool = False) -> None:
        """Set what prediction needs: functions of S (+ S^2) columns for each draw, whose values
        add up, and the transition scores (draws, S, S) of each."""
        self._functions, self._steps, self._edges = functions, steps, edges
        self._remainder = None

    def _keep_draws(
        self, basis: Root, every: Floats, root_eta: float, variance: float = 1.0
    ) -> None:
        """Set estimates (1 + draws, r S + S^2) in coordinates of a root: a point estimate first,
        then draws from a posterior, over which predictions are averaged; ``variance`` is the
        scale of the kernel in the prior."""
        s, r = len(self._labels), basis.root.shape[1]
        # (1 + draws, r, S) -> r rows of coefficients for each estimate side by side
        b = every[:, : r * s].reshape(-1, r, s).transpose(1, 0, 2).reshape(r, -1)
        steps = np.zeros((len(every), s * s))
        steps[:, : every.shape[1] - r * s] = root_eta * every[:, r * s :]
        span = basis.function(b)
        self._keep([span], steps.reshape(-1, s, s))
        seed = self._random().randint(2**31 - 1)
        self._remainder = Remainder(span.kernel, span.tokens, variance, seed)

    @property
    def kernel_(self) -> Any:
        """The fitted kernel, or a list of them if several were given."""
        return self._kernels if isinstance(self.kernel, list | tuple) else self._kernels[0]

    @property
    def transitions_(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""
        return np.asarray(self._steps[0])

    @property
    def n_kept_(self) -> int:
        """Tokens at which prediction evaluates the kernel."""
        return sum(function.n_tokens for function in self._functions)

    def _values(self, data: Sequences, columns: slice) -> Floats:
        """Values of the functions at the data's tokens."""
        parts = [
            function._replace(coefficients=function.coefficients[:, columns])
            for function in self._functions
        ]
        total = parts[0].values(data.x, self.n_jobs)
        for part in parts[1:]:
            total += part.values(data.x, self.n_jobs)
        return total

    def _scores(self, data: Sequences) -> ChainScores:
        s = len(self._labels)
        values = self._values(data, slice(0, s + self._edges * s * s))
        edge = self._steps[0]
        if self._edges:
            edge = edge + values[:, s:].reshape(-1, s, s)
        return ChainScores(np.ascontiguousarray(values[:, :s]), edge, data.offsets, check=False)

    @property
    def _n_draws(self) -> int:
        return max(1, len(self._steps) - 1)

    def _draws(self, data: Sequences) -> list[ChainScores]:
        if len(self._steps) == 1:
            return [self._scores(data)]
        s = len(self._labels)
        # the first columns are the point estimate's
        values = self._values(data, slice(s, None))
        if self._remainder is not None:
            self._remainder.add(values, data)
        return [
            ChainScores(
                np.ascontiguousarray(values[:, k * s : (k + 1) * s]),
                steps,
                data.offsets,
                check=False,
            )
            for k, steps in enumerate(self._steps[1:])
        ]

    # --- files ----------------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        header: dict[str, Any] = {"edges": self._edges, "tokens": self.n_tokens_}
        header |= {"kernels": [], "functions": []}
        found = {name: float(getattr(self, name)) for name in NUMBERS if hasattr(self, name)}
        # JSON has no word for those that are not finite
        header["numbers"] = {k: v if np.isfinite(v) else str(v) for k, v in found.items()}
        if self._remainder is not None:
            header["remainder"] = self._remainder.state()
        arrays: dict[str, NDArray[Any]] = {"steps": self._steps}
        for k, (kernel, function) in enumerate(zip(self._kernels, self._functions, strict=True)):
            states = ("kernel", KERNELS.state(kernel)), ("function", FUNCTIONS.state(function))
            for name, (own, held) in states:
                header[name + "s"].append(own)
                arrays |= prefixed(f"{name}{k}", held)
        return header, arrays

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        s, edges = len(self._labels), bool(header["edges"])
        steps = np.asarray(arrays["steps"], np.float64)
        if steps.ndim != 3 or steps.shape[1:] != (s, s) or not len(steps):
            raise InputError("transition scores of the wrong shape")
        if not np.isfinite(steps).all() or (edges and len(steps) > 1):
            raise InputError("transition scores that cannot be")
        n_columns = s + s * s if edges else s * len(steps)
        functions, self._kernels = [], []
        for k, (kernel, own) in enumerate(zip(header["kernels"], header["functions"], strict=True)):
            self._kernels.append(KERNELS.restore(kernel, under(f"kernel{k}", arrays)))
            found = under(f"function{k}", arrays)
            part = FUNCTIONS.restore(own, found, self._kernels[k], self.n_features_in_, n_columns)
            if isinstance(part, Span) and part.n_tokens:
                self._kernels[k].diagonal(part.tokens[:1])  # a kernel that does not fit fails here
            functions.append(part)
        if not functions:
            raise InputError("no functions")
        self._keep(functions, steps, edges=edges)
        if "remainder" in header:
            (span,) = functions
            if not isinstance(span, Span) or len(steps) < 2:
                raise InputError("no posterior draws")
            self._remainder = Remainder.restored(header["remainder"], span.kernel, span.tokens)
        self.n_tokens_ = int(header["tokens"])
        for name, value in header["numbers"].items():
            if name not in NUMBERS:
                raise InputError(f"unknown number {name!r}")
            finite = value not in ("inf", "-inf", "nan")
            setattr(self, name, float(number(name, value) if finite else value))
