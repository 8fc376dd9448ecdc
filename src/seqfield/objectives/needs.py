"""Needs: what a method requires of architecture, loss and prior.

A solver, sampler or variational method has ``needs``, a tuple of `Need`. `check` tests all needs
before any computation. Its error names each need that is not met, and an alternative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from seqfield.architectures._base import Architecture, LiftsMany, Touches
from seqfield.architectures.dual import Dual
from seqfield.architectures.inducing import Inducing
from seqfield.architectures.linear import Linear
from seqfield.architectures.lookup import Lookup
from seqfield.architectures.neighbours import Neighbours
from seqfield.architectures.rooted import Rooted
from seqfield.errors import CapabilityError
from seqfield.losses._base import Loss, TwiceDifferentiable
from seqfield.losses.log import LogLoss
from seqfield.priors import ElasticNet


class Parts(NamedTuple):
    """Architecture, loss and prior for a method. A method with its own criterion gets no loss."""

    architecture: object
    loss: Loss | None = None
    prior: ElasticNet = ElasticNet(0.0, 0.0)


@runtime_checkable
class HasParts(Protocol):
    """An objective, or the problem of a special solver."""

    @property
    def parts(self) -> Parts:
        """Architecture, loss and prior."""
        ...


@dataclass(frozen=True)
class Need:
    """A requirement of a method: its name, a test of the parts, and a remedy if the test fails.

    >>> Need("no L1 penalty", lambda parts: parts.prior.c1 == 0.0, "use OWLQN").told
    'no L1 penalty: use OWLQN'
    """

    name: str
    holds: Callable[[Parts], bool]
    instead: str

    @property
    def told(self) -> str:
        """The need and the remedy."""
        return f"{self.name}: {self.instead}"


class Needy(Protocol):
    """Any method that has needs."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The requirements of the method."""
        ...


def check(method: Needy, problem: object) -> None:
    """Raise a `CapabilityError` that names every need that is not met.

    ``problem`` is an objective, a special problem, or `Parts`. For a plain function without parts
    there is nothing to check.
    """
    parts = problem.parts if isinstance(problem, HasParts) else problem
    if not isinstance(parts, Parts):
        return
    missing = [need.told for need in (*method.needs, SHARED) if not need.holds(parts)]
    if missing:
        raise CapabilityError(f"{type(method).__name__} needs " + "; and ".join(missing))


def _shared(parts: Parts) -> bool:
    if parts.loss is None or not isinstance(parts.architecture, Architecture):
        return True
    return parts.architecture.stationary or not parts.loss.stationary


def _of(*kinds: type) -> Callable[[Parts], bool]:
    """A test whether the architecture is of one of these kinds."""
    return lambda parts: isinstance(parts.architecture, kinds)


#: a need of the loss: `check` tests it for every method
SHARED = Need(
    "one matrix of transition scores for all positions, as the loss does",
    _shared,
    "leave edge features out, or use LogLoss",
)

# --- architectures ------------------------------------------------------------------------------

SCORES = Need(
    "an architecture that scores chains",
    _of(Architecture),
    "use one such as Linear; Neighbours and Inducing have methods of their own",
)
PLAIN = Need(
    "parameters with the plain inner product",
    lambda parts: isinstance(parts.architecture, Architecture) and parts.architecture.plain,
    "use Rooted, a root of the gram matrix, in place of Gram; or LBFGS or NewtonCG",
)
TOUCHES = Need(
    "an architecture that knows the few weights a batch touches",
    _of(Touches),
    "use Linear, or another solver such as LBFGS",
)
LIFTS_MANY = Need(
    "an architecture that lifts many points at once",
    _of(LiftsMany),
    "use Rooted, or the sampler NoUTurn",
)
TABLE = Need(
    "the score table itself as parameters",
    lambda parts: type(parts.architecture) is Lookup,
    "use Lookup; the kernels belong to the atoms",
)
ROOTED = Need("a root of the gram matrix", _of(Rooted), "use Rooted")
LINEAR = Need("explicit features", _of(Linear), "use Linear")
DUAL = Need("a function that grows at a few tokens at a time", _of(Dual), "use Dual")
LINEAR_OR_DUAL = Need(
    "explicit features, or a function that grows at a few tokens at a time",
    _of(Linear, Dual),
    "use Linear or Dual",
)
NO_EDGE_FEATURES = Need(
    "no edge features, for which it has no weak learners",
    lambda parts: not isinstance(parts.architecture, Linear) or parts.architecture.edge is None,
    "use a template with a plain B line",
)
NEIGHBOURS = Need("labels given their neighbours' labels", _of(Neighbours), "use Neighbours")
INDUCING = Need("functions known at inducing tokens", _of(Inducing), "use Inducing")

# --- losses -------------------------------------------------------------------------------------

LOSS = Need("a loss", lambda parts: parts.loss is not None, "give one such as LogLoss")
OWN_CRITERION = Need(
    "neither a loss nor a prior, as it has a criterion of its own",
    lambda parts: parts.loss is None and parts.prior == ElasticNet(0.0, 0.0),
    "leave both out, or use a solver such as LBFGS",
)
ADDITIVE = Need(
    "an additive loss, a sum over sequences that can be cut into minibatches",
    lambda parts: parts.loss is not None and parts.loss.additive,
    "use solver='lbfgs'",
)
LIKELIHOOD = Need(
    "an additive loss, whose exponential is a product over sequences",
    lambda parts: parts.loss is not None and parts.loss.additive,
    "use LogLoss",
)
LOG_LIKELIHOOD = Need(
    "the log-likelihood of the chain, without a cost",
    lambda parts: parts.loss is None or parts.loss == LogLoss(),
    "leave the loss out, or use Hamiltonian or NoUTurn",
)
LOG_LOSS = Need(
    "the log loss", lambda parts: isinstance(parts.loss, LogLoss), "use LogLoss, or LBFGS"
)
TWICE = Need(
    "a loss with second derivatives (tangent and free)",
    lambda parts: isinstance(parts.loss, TwiceDifferentiable),
    "use LogLoss, or a solver such as LBFGS",
)

# --- priors -------------------------------------------------------------------------------------

NO_L1 = Need(
    "no L1 penalty (c1=0)",
    lambda parts: parts.prior.c1 == 0.0,
    "use OWLQN for an L1 penalty",
)
NO_PRIOR = Need(
    "no penalty (c1=0, c2=0), as it has a prior of its own",
    lambda parts: parts.prior == ElasticNet(0.0, 0.0),
    "leave the prior out",
)
