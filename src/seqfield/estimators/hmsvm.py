"""`HMSVM`: hidden Markov support vector machines, max-margin Markov networks."""

from __future__ import annotations

from typing import Any, Literal

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._kernel import KernelEstimator
from seqfield.estimators._support import Support
from seqfield.labels import Targets
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import DualProblem
from seqfield.sequences import Sequences
from seqfield.solvers._base import Callback, Minimum
from seqfield.solvers.margin import MARGINS, SLACKS, Margins, MaxMargin

CHOICES = {
    "slack": tuple(SLACKS),
    "margin": tuple(MARGINS),
    "landmarks": ("pivoted", "random"),
}


@register
class HMSVM(KernelEstimator):
    """Hidden Markov support vector machine: the known labelling shall win with a margin.

    Minimises 1/2 |f|^2 + C sum_i w_i slack_i over functions f, where all labellings y other than
    the known one of sequence i, at Hamming distance h from it, have

        F(known) - F(y) >= 1 - slack_i     (margin="unit")
                        >= h - slack_i     (margin="hamming", a max-margin Markov network)
                        >= 1 - slack_i / h (margin="slack")

    Its scores are not probabilities: ``calibrate=True`` adds some.

    Parameters
    ----------
    kernel, features : as in `GPSC`
    C : weight of the slacks; None is 2 / mean of k(x, x) over the distinct training tokens
    slack : "l1": one a sequence; "l2": its square; "hard": none, for data that can be separated;
        "labelling": one for every labelling of every sequence, for short sequences and few labels
    margin : what the known labelling shall win by; "slack" decodes in O(l^2 S^2)
    eta, transitions, explicit, n_landmarks, landmarks, gram_budget, gram_dtype : as in `GPSC`;
        where the gram matrix exceeds the budget, the rows that are needed are kept as far as it
        goes
    scheme, on_violation, classes, missing_label, calibrate, random_state, n_jobs, verbose : as in
        `CRF`. A sequence falls apart where labels are missing: the parts with labels are learned
    max_iter : passes over the data
    tol : stop when the gap is at most this share of the objective

    Attributes
    ----------
    classes_ : labels in column order
    C_ : the weight of the slacks that was used
    support_ : the labellings that the model consists of (`print` it); not in model files
    transitions_ : (S, S) transition scores
    objective_ : primal value; gap_ : its proven distance from the optimum at most, by exact
        decoding (with slack="labelling" only once no labelling outside of the working sets violates
        its margin; infinite before)
    path_ : primal, dual and gap after each pass (`seqfield.solvers.margin.Pass`)
    kernel_, n_tokens_, n_kept_ : as in `GPSC`

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.HMSVM("linear", margin="hamming").fit(X, y)
    >>> model.predict([["the", "dog", "sat"]])
    [['D', 'N', 'V']]
    >>> model.gap_ <= 0.01 * model.objective_
    True
    """

    C: float | None
    slack: str
    margin: str
    max_iter: int
    tol: float
    _gold: Targets

    def __init__(
        self,
        kernel: Any = None,
        C: float | None = None,
        *,
        features: Any = None,
        slack: Literal["l1", "l2", "labelling", "hard"] = "l1",
        margin: Literal["unit", "hamming", "slack"] = "hamming",
        eta: float = 1.0,
        transitions: bool = True,
        explicit: bool | Literal["auto"] = "auto",
        n_landmarks: int | None = None,
        landmarks: Literal["pivoted", "random"] = "pivoted",
        gram_budget: float = 6.0,
        gram_dtype: Literal["float64", "float32"] = "float64",
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int = 500,
        tol: float = 0.01,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    @property
    def probabilistic(self) -> bool:
        """Its scores only rank labellings."""
        return False

    @property
    def _remedy(self) -> str:
        if self.slack == "hard":
            return "perhaps no function separates these data; use slack='l1', or raise max_iter"
        return "raise max_iter or tol, or lower C"

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        self._check_choices(CHOICES)
        if self.C is not None and number("C", self.C, low=0) == 0:
            raise InputError("C must be above 0, got 0")
        super()._fit(data, targets, weights)

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        numbered = super()._prepare(data, targets, weights)
        self._prepare_dual()
        self._gold, self.C_ = targets, self.C
        if self.C is None:
            scale = float(self._kernels[0].diagonal(self._tokens.x).mean())
            self.C_ = 2.0 / scale if scale > 0 else 1.0
        return numbered

    def _recipe(self, data: Sequences) -> Recipe:
        method = MaxMargin(
            C=float(number("C", self.C_, low=0)),
            slack=self.slack,
            margin=self.margin,
            max_iter=number("max_iter", self.max_iter, low=1, whole=True),
            tol=number("tol", self.tol, low=0),
            seed=int(self._random().randint(2**31 - 1)),
            n_jobs=self.n_jobs,
            numbers=self._used,
        )
        return Recipe(method)

    def _solve(
        self, optimiser: MaxMargin, goal: Objective, theta: Floats, callback: Callback
    ) -> tuple[Minimum, Margins]:
        problem = DualProblem(
            self._architecture, goal.data, goal.targets, goal.weights, goal.constraint
        )
        found = optimiser.minimise(problem, callback)
        return found.minimum, found

    def _finish(self, goal: Objective, theta: Floats, result: Minimum, found: Margins) -> None:
        super()._finish(goal, theta, result, found)
        self.path_ = found.passes
        self.support_ = Support.of_labellings(
            found.support, self._gold, self._used, self._labels.names
        )
        self._keep_dual(theta)
        del self._gold
