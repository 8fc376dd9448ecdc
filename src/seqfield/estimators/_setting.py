"""What a fit of `GPSC` works with, dense or sparse."""

from __future__ import annotations

from typing import Any, NamedTuple

from seqfield.architectures.kernel import Gram
from seqfield.estimators._kernel import Floats, Grams
from seqfield.estimators._lesson import Lesson
from seqfield.functions import KernelFunction
from seqfield.kernels import Kernel
from seqfield.kernels.covariance import Covariance
from seqfield.kernels.tokens import Tokens
from seqfield.priors import ElasticNet


class Setting(NamedTuple):
    """The kernel with its parameters, c2 and eta, the lesson, its distinct tokens, and how their
    covariance is held."""

    kernel: Kernel
    c2: float
    eta: float
    lesson: Lesson
    tokens: Tokens
    grams: Grams

    @property
    def numbered(self) -> Lesson:
        """The lesson with the numbers of its tokens for data."""
        return self.lesson._replace(data=self.tokens.numbered())

    @property
    def prior(self) -> ElasticNet:
        """The squared norm."""
        return ElasticNet(0.0, self.c2)

    def covariance(self, *, on_demand: bool = False) -> Covariance:
        """That of the distinct tokens."""
        return self.grams.covariance(self.kernel, self.tokens.x, on_demand=on_demand)

    def gram(self, covariance: Covariance) -> Gram:
        """Functions in the span of the kernel at the distinct tokens."""
        return Gram(self.lesson.n_labels, covariance.size, covariance.multiply, self.eta)

    def function(self, covariance: Covariance, gram: Gram, theta: Floats) -> KernelFunction:
        """The function of parameters, for new tokens."""
        part = covariance.function(gram.coefficients(theta))
        return KernelFunction([self.kernel], [part], gram.lift(theta).transitions)

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of it."""
        return {"c2_": self.c2, "eta_": self.eta, "n_tokens_": int(self.tokens.x.shape[0])}
