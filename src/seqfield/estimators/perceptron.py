"""`StructuredPerceptron`: the averaged perceptron for sequences, primal and dual."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield.chain import ChainScores
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._kernel import KernelEstimator
from seqfield.estimators._linear import LinearEstimator
from seqfield.labels import Targets
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import DualProblem, LinearProblem
from seqfield.sequences import Sequences
from seqfield.solvers._base import Callback, Minimum
from seqfield.solvers.perceptron import Perceptron


@register
class StructuredPerceptron(LinearEstimator, KernelEstimator):
    """Averaged perceptron for sequences, over explicit features or with a kernel.

    Fast to train and often nearly as accurate as a CRF. Its scores are not probabilities:
    ``calibrate=True`` adds some.

    Parameters
    ----------
    features : see `CRF`
    average : use the mean of the weights over all steps; False uses the last ones
    max_iter : epochs; training ends early when an epoch makes no mistake
    observed_only, transitions, scheme, on_violation, classes, missing_label, warm_start,
    early_stopping, validation_fraction : see `CRF`; early stopping watches the token error
    patience : epochs without gain after which early stopping gives up
    calibrate : fit one temperature of the scores on held-out folds, for probabilities; see `CRF`
    random_state : seed for the order of the sequences and held-out choices
    n_jobs, verbose : see `CRF`; an epoch itself runs on one thread
    kernel : the dual form with a kernel of `seqfield.kernels` or its name; None is the primal form
    eta, explicit, gram_budget, gram_dtype : see `GPSC`; for the dual form alone, in which every
        feature has a weight with every label, whatever ``observed_only`` says

    Attributes
    ----------
    theta_ : all weights (primal form); transitions_ : (S, S) transition scores
    kernel_, n_tokens_, n_kept_ : see `GPSC` (dual form)
    n_iter_ : epochs done
    objective_ : share of tokens that the last epoch labelled wrongly before learning from them

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.StructuredPerceptron(random_state=0).fit(X, y)
    >>> model.predict([["the", "dog", "sat"]])
    [['D', 'N', 'V']]
    """

    average: bool
    max_iter: int

    def __init__(
        self,
        features: Any = None,
        *,
        average: bool = True,
        max_iter: int = 20,
        observed_only: bool = True,
        transitions: bool = True,
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 3,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
        kernel: Any = None,
        eta: float = 1.0,
        explicit: bool | Literal["auto"] = "auto",
        gram_budget: float = 6.0,
        gram_dtype: Literal["float64", "float32"] = "float64",
    ) -> None:
        self._store(locals())

    @property
    def probabilistic(self) -> bool:
        """Its scores only rank labellings."""
        return False

    def _recipe(self, data: Sequences) -> Recipe:
        epochs = number("max_iter", self.max_iter, low=1, whole=True)
        seed = int(self._random().randint(2**31 - 1))
        return Recipe(Perceptron(epochs, self.average, seed))

    # --- one of two forms -----------------------------------------------------------------------

    def _form(self) -> Any:
        """The base whose way of scoring, and of keeping what was learned, is that of the model."""
        return LinearEstimator if self.kernel is None else KernelEstimator

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        if self.kernel is not None and self.warm_start:
            raise CapabilityError("the dual form has no warm_start: leave it or the kernel out")
        self._form()._fit(self, data, targets, weights)

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        prepared: Sequences = self._form()._prepare(self, data, targets, weights)
        if self.kernel is not None:
            self._prepare_dual()
        return prepared

    def _solve(
        self, optimiser: Perceptron, goal: Objective, theta: Floats, callback: Callback
    ) -> tuple[Minimum, None]:
        rest = goal.data, goal.targets, goal.weights, goal.constraint
        architecture: Any = self._architecture
        kind = LinearProblem.of if self.kernel is None else DualProblem
        return optimiser.minimise(kind(architecture, *rest), theta, callback), None

    def _finish(self, goal: Objective, theta: Floats, result: Minimum, found: Any) -> None:
        super()._finish(goal, theta, result, found)
        if self.kernel is not None:
            self._keep_dual(theta)

    def _scores(self, data: Sequences) -> ChainScores:
        scores: ChainScores = self._form()._scores(self, data)
        return scores

    @property
    def _n_draws(self) -> int:
        return 1

    def _draws(self, data: Sequences) -> list[ChainScores]:
        return [self._scores(data)]

    @property
    def transitions_(self) -> Floats:
        """Transition scores (S, S) from row label to column label, without constraints."""
        check_is_fitted(self, "classes_")
        steps: Floats = self._form().transitions_.fget(self)
        return steps

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        state: tuple[dict[str, Any], dict[str, NDArray[Any]]] = self._form()._state(self)
        return state

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        if ("kernels" in header) != (self.kernel is not None):
            raise InputError("primal weights with a kernel, or the other way round")
        self._form()._restore(self, header, arrays)
