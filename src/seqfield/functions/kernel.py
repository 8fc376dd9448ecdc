"""Functions in the span of kernels: a point estimate, or draws from a posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.functions._base import LEARNED, Floats, Learned, Shape
from seqfield.functions.remainder import Remainder
from seqfield.kernels import KERNELS, Kernel
from seqfield.kernels.covariance import Root
from seqfield.kernels.functions import FUNCTIONS, Function, Span
from seqfield.persist import Arrays, Header, State, prefixed, under
from seqfield.sequences import Sequences


@LEARNED.register
@dataclass(frozen=True, eq=False)
class KernelFunction(Learned):
    """A sum of parts, one for each kernel, and transition scores ``steps`` (S, S).

    Parts have S columns, or with ``edges`` S + S^2: the last ones are added to the transitions into
    the token.
    """

    kernels: list[Kernel]
    parts: list[Function]
    steps: Floats
    edges: bool = False

    @property
    def n_kept(self) -> int:
        """Tokens at which prediction evaluates the kernels."""
        return sum(part.n_tokens for part in self.parts)

    @property
    def transitions(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""
        return self.steps

    def values(self, x: Any, n_jobs: int | None = None) -> Floats:
        """The summed values of the parts at tokens x (N, D)."""
        total = self.parts[0].values(x, n_jobs)
        for part in self.parts[1:]:
            total += part.values(x, n_jobs)
        return total

    def scores(self, data: Sequences, n_jobs: int | None = None) -> ChainScores:
        """Chain scores of encoded data, without constraints."""
        s, edge, values = len(self.steps), self.steps, self.values(data.x, n_jobs)
        if self.edges:
            edge = edge + values[:, s:].reshape(-1, s, s)
        return ChainScores(np.ascontiguousarray(values[:, :s]), edge, data.offsets, check=False)

    def state(self) -> State:
        """Header and arrays for a model file."""
        header, arrays = parts_state(self.kernels, self.parts)
        return State(header | {"edges": self.edges}, arrays | {"steps": self.steps})

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, shape: Shape) -> Self:
        """The function of what `state` gave; every index is range-checked."""
        s, edges = shape.n_labels, bool(header["edges"])
        steps = _steps(arrays, (s, s))
        kernels, parts = restored_parts(header, arrays, shape, s + edges * s * s)
        return cls(kernels, parts, steps, edges)


@LEARNED.register
@dataclass(frozen=True, eq=False)
class DrawnFunction(Learned):
    """A point estimate and draws from the posterior, over which predictions average.

    ``span`` has S columns for the point estimate, and then S for each draw; ``steps``
    (1 + draws, S, S) are their transition scores. ``remainder`` is the uncertainty at new tokens,
    given the values at the kept ones.
    """

    span: Span
    steps: Floats
    remainder: Remainder

    @classmethod
    def of(
        cls,
        basis: Root,
        every: Floats,
        n_labels: int,
        *,
        root_eta: float,
        seed: int,
        variance: float = 1.0,
    ) -> Self:
        """From coordinates (1 + draws, r S + S^2) of a root, the point estimate first; ``variance``
        is the scale of the kernel in the prior."""
        s, r = n_labels, basis.root.shape[1]
        # (1 + draws, r, S) -> r rows of coefficients for each estimate side by side
        b = every[:, : r * s].reshape(-1, r, s).transpose(1, 0, 2).reshape(r, -1)
        steps = np.zeros((len(every), s * s))
        steps[:, : every.shape[1] - r * s] = root_eta * every[:, r * s :]
        span = basis.function(b)
        remainder = Remainder(span.kernel, span.tokens, variance, seed)
        return cls(span, steps.reshape(-1, s, s), remainder)

    @property
    def kernels(self) -> list[Kernel]:
        """The one kernel."""
        return [self.span.kernel]

    @property
    def n_kept(self) -> int:
        """Tokens at which prediction evaluates the kernel."""
        return self.span.n_tokens

    @property
    def n_draws(self) -> int:
        """How many draws there are."""
        return len(self.steps) - 1

    @property
    def transitions(self) -> Floats:
        """Transition scores (S, S) of the point estimate."""
        return np.asarray(self.steps[0])

    def scores(self, data: Sequences, n_jobs: int | None = None) -> ChainScores:
        """Chain scores of the point estimate."""
        s = self.steps.shape[1]
        values = self._columns(slice(0, s)).values(data.x, n_jobs)
        return ChainScores(np.ascontiguousarray(values), self.steps[0], data.offsets, check=False)

    def draws(self, data: Sequences, n_jobs: int | None = None) -> list[ChainScores]:
        """Chain scores of each draw, with a draw of what it leaves open at these tokens."""
        s = self.steps.shape[1]
        values = self._columns(slice(s, None)).values(data.x, n_jobs)
        self.remainder.add(values, data)
        return [
            ChainScores(
                np.ascontiguousarray(values[:, k * s : (k + 1) * s]),
                steps,
                data.offsets,
                check=False,
            )
            for k, steps in enumerate(self.steps[1:])
        ]

    def _columns(self, columns: slice) -> Span:
        return self.span._replace(coefficients=self.span.coefficients[:, columns])

    def state(self) -> State:
        """Header and arrays for a model file."""
        header, arrays = parts_state([self.span.kernel], [self.span])
        return State(header | {"remainder": self.remainder.state()}, arrays | {"steps": self.steps})

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, shape: Shape) -> Self:
        """The function of what `state` gave; every index is range-checked."""
        s, n = shape.n_labels, len(arrays["steps"])
        if n < 2:
            raise InputError("no posterior draws")
        steps = _steps(arrays, (n, s, s))
        _, parts = restored_parts(header, arrays, shape, s * n)
        if len(parts) != 1 or not isinstance(parts[0], Span):
            raise InputError("posterior draws need one function of kept tokens")
        span = parts[0]
        return cls(span, steps, Remainder.restored(header["remainder"], span.kernel, span.tokens))


def parts_state(kernels: list[Kernel], parts: list[Function]) -> State:
    """Kernels and functions over them for a model file."""
    header: dict[str, Any] = {"kernels": [], "functions": []}
    arrays: Arrays = {}
    for k, (kernel, function) in enumerate(zip(kernels, parts, strict=True)):
        states = ("kernel", KERNELS.state(kernel)), ("function", FUNCTIONS.state(function))
        for name, (own, held) in states:
            header[name + "s"].append(own)
            arrays |= prefixed(f"{name}{k}", held)
    return State(header, arrays)


def restored_parts(
    header: Header, arrays: Arrays, shape: Shape, n_columns: int
) -> tuple[list[Kernel], list[Function]]:
    """What `parts_state` gave."""
    kernels: list[Kernel] = []
    parts: list[Function] = []
    for k, (own, function) in enumerate(zip(header["kernels"], header["functions"], strict=True)):
        kernel = KERNELS.restore(own, under(f"kernel{k}", arrays))
        found = under(f"function{k}", arrays)
        part = FUNCTIONS.restore(function, found, kernel, shape.n_features, n_columns)
        if isinstance(part, Span) and part.n_tokens:
            kernel.diagonal(part.tokens[:1])  # a kernel that does not fit fails here
        kernels.append(kernel)
        parts.append(part)
    if not parts:
        raise InputError("no functions")
    return kernels, parts


def _steps(arrays: Arrays, shape: tuple[int, ...]) -> Floats:
    steps = np.asarray(arrays["steps"], np.float64)
    if steps.shape != shape or not np.isfinite(steps).all():
        raise InputError("transition scores of the wrong shape or not finite")
    return steps
