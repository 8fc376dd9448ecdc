"""What kernel estimators share: their kernels, and the covariance of training tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.errors import BudgetError, CapabilityError, InputError, LabelError
from seqfield.estimators._base import SequenceEstimator
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import anything, flag, parameters, real, whole, word
from seqfield.functions import DrawnFunction, KernelFunction, Learned, NeighbourFunction
from seqfield.kernels import RBF, Graph, Kernel, Linear, Normalized, Power, Scaled, Sum, as_kernel
from seqfield.kernels.covariance import Covariance, Explicit, LowRank, Matrix, OnDemand, Root
from seqfield.kernels.gram import ADVICE, gram
from seqfield.kernels.graph import diagnose
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
GIB = 2.0**30
#: ways to choose inducing tokens of a low-rank covariance
INDUCING = ("pivoted", "random")


@parameters
class KernelEstimator(SequenceEstimator):
    """Base of estimators whose scores are functions in the span of kernels."""

    learns: ClassVar[tuple[type[Learned], ...]] = (KernelFunction,)
    kernel: Any = anything(
        default=None,
        help=(
            'a kernel of `seqfield.kernels`, a name such as "rbf" or "poly2", or a function '
            "(x, z) -> (N, M). None is linear plus twice the squared cosine for features that are "
            "0 or 1, and RBF for other features"
        ),
        kw_only=False,
    )
    gram_budget: float = real(default=6.0, help="most memory of gram matrices, in GiB", low=0)

    @property
    def kernel_(self) -> Any:
        """The fitted kernel, or a list of them if several were given."""
        kernels = kernels_of(self.scorer)
        return kernels if isinstance(self.kernel, list | tuple) else kernels[0]

    @property
    def transitions_(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""
        return self.scorer.transitions

    @property
    def n_kept_(self) -> int:
        """Tokens at which prediction evaluates the kernel."""
        return kept_by(self.scorer)


def eta_of(model: Any, lesson: Lesson) -> float:
    """The variance of transition scores; 0 if there are none."""
    return float(model.eta) if model.transitions and lesson.encoder.transitions_ else 0.0


def kernels_of(function: Learned) -> list[Kernel]:
    """The kernels of a function."""
    assert isinstance(function, KernelFunction | DrawnFunction | NeighbourFunction)
    return function.kernels


def kept_by(function: Learned) -> int:
    """Tokens at which a function evaluates its kernels."""
    assert isinstance(function, KernelFunction | DrawnFunction | NeighbourFunction)
    return function.n_kept


def fitted_kernels(given: Any, lesson: Lesson, *, several: bool = False) -> list[Kernel]:
    """The kernels of an argument ``kernel``, with what they take from the tokens."""
    listed = given if isinstance(given, list | tuple) else [given]
    if not listed or (len(listed) > 1 and not several):
        what = "a kernel or a list of them" if several else "one kernel"
        raise InputError(f"kernel must be {what}, got {given!r}")
    names, x = lesson.encoder.names(), lesson.data.x
    kernels = [as_kernel(default_kernel(lesson.data) if k is None else k) for k in listed]
    fitted = [kernel.fit(x, names) for kernel in kernels]
    for kernel in fitted:
        for graph, seen in _graphs(kernel, x):
            diagnose(graph, seen, lesson.targets.codes)
    return fitted


def told_part(lesson: Lesson, name: str) -> Lesson:
    """The sequences of which something is known: others only shape the kernel."""
    if lesson.data.edge is not None:
        raise CapabilityError(
            f"{name} cannot use edge features: leave them out of X or the template, or use CRF"
        )
    kept = lesson.told
    if not len(kept):
        raise LabelError("y tells nothing: every label is missing or any of them may be right")
    return lesson if len(kept) == len(lesson.data) else lesson.part(kept)


def default_kernel(data: Sequences) -> Kernel:
    """The kernel if none is given."""
    if zero_one(data.x):
        # single features, and pairs of them on equal terms for rich and for poor tokens
        return Sum(Linear(), Scaled(Power(Normalized(Linear()), 2), 2.0))
    return RBF()


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


def some_sequences(data: Sequences, most: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    """Random sequences of at most so many tokens in all; if none is as short, the shortest."""
    order = rng.permutation(len(data))
    order = order[data.lengths[order] <= most]
    if not len(order):
        return np.array([data.lengths.argmin()])
    n = int(np.searchsorted(data.lengths[order].cumsum(), most, "right"))
    return np.sort(order[:n])


@dataclass(frozen=True)
class Grams:
    """How the covariance of tokens is held: as a gram matrix, by features, or by few tokens.

    ``budget`` is in GiB. ``seed`` is for inducing tokens that are chosen at random, None for those
    that are chosen by pivots.
    """

    budget: float
    dtype: str = "float64"
    explicit: bool | str = False
    n_inducing: int | None = None
    seed: int | None = None
    n_jobs: int | None = None
    advice: str = ADVICE

    @property
    def bytes(self) -> float:
        """The budget in bytes."""
        return float(self.budget) * GIB

    def check(self, need: float, what: str, remedy: str) -> None:
        """Raise a `BudgetError` if ``need`` bytes are too many."""
        if need > self.bytes:
            raise BudgetError(
                f"{what} {need / GIB:.3g} GiB; the budget is {self.budget:g} GiB. {remedy}, or "
                "give more with gram_budget="
            )

    def covariance(
        self, kernel: Kernel, x: Any, *, on_demand: bool = False, share: float = 1.0
    ) -> Covariance:
        """The covariance at tokens x, in the form that the arguments ask for; where a gram matrix
        is too large, ``on_demand`` allows for kernel values computed as they are needed."""
        if self.n_inducing is not None:
            return self.low_rank(kernel, x)
        budget = share * self.bytes
        if self.explicit:
            found = self._expanded(kernel, x, budget)
            if found is not None:
                return found
        try:
            matrix = gram(
                kernel,
                x,
                budget=budget,
                dtype=self.dtype,
                n_jobs=self.n_jobs,
                advice=self.advice,
            )
        except BudgetError:
            if not on_demand:
                raise
            return OnDemand(kernel, x, self.n_jobs)
        return Matrix(kernel, x, matrix, self.n_jobs)

    def root(self, kernel: Kernel, x: Any) -> Root:
        """The same as a dense root."""
        if self.n_inducing is not None:
            found = self.low_rank(kernel, x)
            return Root(kernel, found.features, found.found.tokens, found.found.dual)
        n = x.shape[0]
        # the matrix, its root, the kept rows of that, their inverse and what it is solved from
        need = 5 * 8.0 * n**2
        self.check(
            need,
            f"a posterior over {n} tokens needs five matrices of {n} x {n},",
            "Use n_inducing=, fewer sequences",
        )
        return Root.of(kernel, x, gram(kernel, x, budget=need, n_jobs=self.n_jobs))

    def low_rank(self, kernel: Kernel, x: Any) -> LowRank:
        """Features from few tokens."""
        rank, n = self.n_inducing, x.shape[0]
        assert rank is not None
        self.check(
            2 * 8.0 * n * min(rank, n),
            f"features of {n} tokens from {rank} inducing tokens need",
            "Use a smaller n_inducing",
        )
        rng = None if self.seed is None else np.random.default_rng(self.seed)
        return LowRank.choose(kernel, x, rank, rng=rng, n_jobs=self.n_jobs)

    def check_atoms(self, most: int, width: int) -> None:
        """Raise a `BudgetError` if this many functions of so many numbers each take too much."""
        # the array doubles as it grows, and new ones are there before they are taken in
        self.check(
            3 * 8.0 * most * width,
            f"{most} functions of {width} numbers each need",
            "Keep fewer, refit the new ones alone (update='new' of GPSC)",
        )

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


def grams_of(model: Any, seed: int, advice: str = ADVICE) -> Grams:
    """What the parameters of an estimator ask for."""
    explicit, n_inducing = getattr(model, "explicit", False), getattr(model, "n_inducing", None)
    if explicit is True and n_inducing is not None:
        raise InputError(
            "explicit=True and n_inducing= are two forms of the same covariance: choose one"
        )
    random = getattr(model, "inducing", "") == "random"
    return Grams(
        model.gram_budget,
        getattr(model, "gram_dtype", "float64"),
        explicit,
        n_inducing,
        seed if random else None,
        model.n_jobs,
        advice,
    )


# --- parameters that several of them have -------------------------------------------------------


def eta_param() -> Any:
    """The variance of transition scores."""
    return real(
        default=1.0,
        help=(
            "prior variance of transition scores, in units of the kernel. Lower it if the data "
            "are few and neighbouring labels may agree by chance"
        ),
        low=0,
    )


def transitions_param() -> Any:
    """Whether there are transition scores."""
    return flag(
        default=True,
        help="False leaves transition scores out: tokens are then labelled one by one",
    )


def explicit_param() -> Any:
    """Whether to train on features that stand for the kernel."""
    return word(
        default="auto",
        help=(
            "train on explicit features instead of a gram matrix; the model is the same. The "
            "kernel must have such features: linear, and degrees 2 and 3 on sparse 0/1 features. "
            '"auto" does so where it is faster'
        ),
        words=(True, False, "auto"),
    )


def n_inducing_param() -> Any:
    """How many tokens a low-rank covariance is made of."""
    return whole(
        default=None,
        help=(
            "number of inducing tokens, whose features approximate the kernel; None takes the "
            "kernel itself. Give it if the gram matrix is too large"
        ),
        low=1,
        words=(None,),
    )


def inducing_param() -> Any:
    """How inducing tokens are chosen."""
    return word(
        default="pivoted",
        help=(
            'how inducing tokens are chosen: "pivoted" greedily, by pivoted Cholesky, or "random" '
            "(Nystrom)"
        ),
        words=INDUCING,
    )


def gram_dtype_param() -> Any:
    """The type of gram matrices."""
    return word(
        default="float64",
        help='type of gram matrices: "float32" takes half of the memory; sums are in float64',
        words=("float64", "float32"),
    )
