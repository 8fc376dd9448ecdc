"""What an architecture gives: scores of parameters, and gradients by parameters of score gradients.

Some architectures can do more. Each such ability is a protocol of its own, and solvers name those
that they need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqfield.chain import ChainScores
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]
#: data laid out
D = TypeVar("D")
#: the same where it is only taken
In = TypeVar("In", contravariant=True)
#: what scores are read from
L = TypeVar("L")


@runtime_checkable
class Architecture(Protocol[D, L]):
    """A map from parameters theta (n_parameters,) to chain scores, and its transpose."""

    n_labels: int
    n_parameters: int

    @property
    def plain(self) -> bool:
        """Whether parameters have the plain inner product: then `dual` changes nothing."""
        ...

    @property
    def stationary(self) -> bool:
        """Whether all positions share one matrix of transition scores."""
        ...

    def design(self, data: Sequences) -> D:
        """Data laid out for `scores` and `pullback`."""
        ...

    def lift(self, theta: Floats) -> L:
        """What scores are read from: made once for all designs."""
        ...

    def scores(self, lifted: L, design: D, /) -> ChainScores:
        """Chain scores of laid-out data."""
        ...

    def pullback(self, design: D, d_node: Floats, d_edge: Floats) -> Floats:
        """A score gradient in the form that `collect` adds up."""
        ...

    def collect(self, parts: list[tuple[D, Floats]]) -> Floats:
        """The gradient (n_parameters,) of pullbacks, summed in the given order."""
        ...

    def dual(self, theta: Floats) -> Floats:
        """v* with <u, v> = u . v* in the inner product that gradients are in."""
        ...

    def noise(self, theta: Floats) -> float:
        """How far below 0 rounding may take a squared norm."""
        ...


#: an architecture whose designs and lifted values are its own business
AnyArchitecture: TypeAlias = Architecture[Any, Any]


@runtime_checkable
class Touches(Protocol[In]):
    """Knows which weights data touch: what a small batch costs depends on the batch alone."""

    def touched(self, design: In) -> NDArray[np.int32]:
        """The weights of a design; a pullback is the gradient by them, in their order."""
        ...


@runtime_checkable
class LiftsMany(Protocol[D, L]):
    """Lifts many points at once, and collects for them, in less time than one by one."""

    def lift_all(self, theta: Floats) -> list[L]:
        """`lift` of each row."""
        ...

    def collect_all(self, several: list[list[tuple[D, Floats]]]) -> Floats:
        """`collect` of each list."""
        ...


def lift_each(architecture: AnyArchitecture, rows: Floats) -> list[Any]:
    """`lift` of each row, at once where the architecture can."""
    if isinstance(architecture, LiftsMany):
        return architecture.lift_all(rows)
    return [architecture.lift(row) for row in rows]


def collect_each(
    architecture: AnyArchitecture, several: Iterable[list[tuple[Any, Floats]]]
) -> Floats:
    """`collect` of each list, at once where the architecture can."""
    if isinstance(architecture, LiftsMany):
        return architecture.collect_all(list(several))
    return np.asarray([architecture.collect(parts) for parts in several])
