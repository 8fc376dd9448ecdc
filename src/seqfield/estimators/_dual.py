"""What the dual perceptron and maximum margins share: functions that grow at few tokens."""

from __future__ import annotations

from typing import NamedTuple

from seqfield.architectures.dual import Dual
from seqfield.estimators._kernel import Floats, Grams
from seqfield.estimators._lesson import Lesson
from seqfield.functions import KernelFunction
from seqfield.kernels import Kernel
from seqfield.kernels.tokens import Tokens
from seqfield.objectives.problems import DualProblem


class DualLesson(NamedTuple):
    """A lesson whose data are the numbers of distinct tokens, and functions over these."""

    lesson: Lesson
    tokens: Tokens
    kernel: Kernel
    architecture: Dual

    @classmethod
    def of(cls, lesson: Lesson, kernel: Kernel, grams: Grams, eta: float) -> DualLesson:
        """Where the gram matrix is too large, rows are kept as far as the budget goes."""
        tokens = Tokens.of(lesson.data)
        covariance = grams.covariance(kernel, tokens.x, on_demand=True)
        architecture = Dual(lesson.n_labels, covariance, eta, grams.bytes, grams.dtype)
        return cls(lesson._replace(data=tokens.numbered()), tokens, kernel, architecture)

    def problem(self, lesson: Lesson) -> DualProblem:
        """What the solver works on, for some sequences of this lesson."""
        return DualProblem(
            self.architecture, lesson.data, lesson.targets, lesson.weights, lesson.constraint
        )

    def function(self, theta: Floats) -> KernelFunction:
        """What prediction needs."""
        beta, delta = self.architecture.split(theta)
        part = self.architecture.covariance.function(beta)
        return KernelFunction([self.kernel], [part], self.architecture.eta * delta)
