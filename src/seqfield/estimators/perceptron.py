"""`StructuredPerceptron`: the averaged perceptron for sequences, primal and dual."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from seqfield.architectures._base import Architecture
from seqfield.errors import CapabilityError
from seqfield.estimators._base import Fit, random_of, seed_of
from seqfield.estimators._descent import (
    Merit,
    Watch,
    descent_facts,
    following,
    patience_param,
    watched,
)
from seqfield.estimators._dual import DualLesson
from seqfield.estimators._files import register
from seqfield.estimators._kernel import (
    eta_of,
    explicit_param,
    fitted_kernels,
    gram_dtype_param,
    grams_of,
    kept_by,
    kernels_of,
    told_part,
)
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._linear import LinearEstimator
from seqfield.estimators._params import anything, flag, parameters, real, whole
from seqfield.functions import KernelFunction, Learned, LinearFunction
from seqfield.losses.log import LogLoss
from seqfield.objectives.problems import DualProblem, LinearProblem
from seqfield.solvers._base import Floats, Minimum, Step
from seqfield.solvers.perceptron import Perceptron

REMEDY = "raise max_iter"


@register
@parameters
class StructuredPerceptron(LinearEstimator):
    """Averaged perceptron for sequences, over explicit features or with a kernel.

    It is fast to train, and often nearly as accurate as a CRF. The scores are not probabilities;
    ``calibrate=True`` adds probabilities.

    Attributes
    ----------
    classes_ : labels in column order
    theta_ : all weights (primal form); transitions_ : (S, S) transition scores
    kernel_, n_tokens_, n_kept_ : as in `GPSC` (dual form)
    n_iter_ : epochs done; best_iter_ : the epoch whose weights are kept
    objective_ : share of wrong tokens in the last epoch, each decoded before it was learned from

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.StructuredPerceptron(random_state=0).fit(X, y)
    >>> model.predict([["the", "dog", "sat"]])
    [['D', 'N', 'V']]
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (LinearFunction, KernelFunction)
    average: bool = flag(
        default=True,
        help="use the mean of the weights over all steps; False uses the last weights",
    )
    max_iter: int = whole(
        default=20,
        help="largest number of epochs; training stops early after an epoch without a mistake",
        low=1,
    )
    patience: int = patience_param(3, "epochs")
    kernel: Any = anything(
        default=None,
        help=(
            "a kernel of `seqfield.kernels`, or its name, for the dual form. None is the primal "
            "form, over explicit features. The dual form ignores observed_only: every feature has "
            "a weight with every label"
        ),
    )
    eta: float = real(default=1.0, help="scale of transitions in the dual form", low=0)
    explicit: Any = explicit_param()
    gram_budget: float = real(
        default=6.0,
        help="most memory, in GiB, for the gram matrices of the dual form",
        low=0,
    )
    gram_dtype: str = gram_dtype_param()

    @property
    def probabilistic(self) -> bool:
        """False: the scores only rank labellings."""
        return False

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        if self.kernel is not None:
            return self._learn_dual(lesson)
        architecture = self._architecture(lesson, start)
        train, watch = self._watched(lesson, architecture)
        theta = np.zeros(architecture.n_parameters)
        theta = start.theta if isinstance(start, LinearFunction) else theta
        if theta.any():  # the weights of a warm start may be the best on held-out data
            watch(Step(0, theta, float("nan")))
        problem = LinearProblem.of(
            architecture, train.data, train.targets, train.weights, train.constraint
        )
        found = self._run(problem, theta, lesson.show, watch)
        theta, facts = descent_facts(None, found, watch, REMEDY)
        return Fit(LinearFunction(architecture, theta), facts)

    def _learn_dual(self, lesson: Lesson) -> Fit:
        if self.warm_start:
            raise CapabilityError("the dual form has no warm_start: leave it or the kernel out")
        (kernel,) = fitted_kernels(self.kernel, lesson)
        lesson = told_part(lesson, type(self).__name__)
        grams = grams_of(self, seed_of(self))
        dual = DualLesson.of(lesson, kernel, grams, eta_of(self, lesson))
        train, watch = self._watched(dual.lesson, dual.architecture)
        theta = np.zeros(dual.architecture.n_parameters)
        found = self._run(dual.problem(train), theta, lesson.show, watch)
        theta, facts = descent_facts(None, found, watch, REMEDY)
        return Fit(dual.function(theta), facts | {"n_tokens_": dual.tokens.x.shape[0]})

    def _watched(
        self, lesson: Lesson, architecture: Architecture[Any, Any]
    ) -> tuple[Lesson, Watch]:
        """Early stopping watches the token error."""

        def merit(held: Lesson) -> Merit:
            return held.objective(architecture, LogLoss(), n_jobs=self.n_jobs).error

        return watched(lesson, self, random_of(self), merit)

    def _run(
        self, problem: LinearProblem | DualProblem, theta: Floats, show: bool, watch: Watch
    ) -> Minimum:
        solver = Perceptron(self.max_iter, self.average, seed_of(self))
        with following(self.max_iter, show=show, watch=watch) as callback:
            return solver.minimise(problem, theta, callback)

    @property
    def kernel_(self) -> Any:
        """The fitted kernel of the dual form."""
        return kernels_of(self._dual())[0]

    @property
    def n_kept_(self) -> int:
        """Tokens at which prediction evaluates the kernel (dual form)."""
        return kept_by(self._dual())

    def _dual(self) -> KernelFunction:
        check_is_fitted(self, "function_")
        if not isinstance(self.function_, KernelFunction):
            raise AttributeError("the primal form has no kernel")
        return self.function_
