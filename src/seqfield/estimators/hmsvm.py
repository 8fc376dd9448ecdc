"""`HMSVM`: hidden Markov support vector machines, max-margin Markov networks."""

from __future__ import annotations

from typing import Any

from seqfield.estimators._base import Fit, seed_of
from seqfield.estimators._descent import Watch, descent_facts, following
from seqfield.estimators._dual import DualLesson
from seqfield.estimators._files import register
from seqfield.estimators._kernel import (
    KernelEstimator,
    eta_of,
    eta_param,
    explicit_param,
    fitted_kernels,
    gram_dtype_param,
    grams_of,
    inducing_param,
    n_inducing_param,
    told_part,
    transitions_param,
)
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import parameters, real, whole, word
from seqfield.functions import Learned
from seqfield.solvers.margin import MARGINS, SLACKS, MaxMargin
from seqfield.solvers.support import Support


@register
@parameters
class HMSVM(KernelEstimator):
    """Hidden Markov support vector machine: the known labelling must win with a margin.

    `fit` minimises 1/2 |f|^2 + C sum_i w_i slack_i over functions f. Let y be any labelling of
    sequence i other than the known one, at Hamming distance h from it. Each y has the constraint

        F(known) - F(y) >= 1 - slack_i     (margin="unit")
                        >= h - slack_i     (margin="hamming", a max-margin Markov network)
                        >= 1 - slack_i / h (margin="slack")

    The scores are not probabilities; ``calibrate=True`` adds probabilities. Missing labels cut a
    sequence into parts, and the parts with labels are learned. If the gram matrix exceeds
    ``gram_budget``, as many of the needed rows are kept as the budget allows.

    Attributes
    ----------
    classes_ : labels in column order
    C_ : the weight of the slacks in this fit
    support_ : the labellings that the model consists of (`print` it); not in model files
    transitions_ : (S, S) transition scores
    objective_ : primal value; gap_ : proven upper bound on its distance from the optimum,
        by exact decoding. With slack="labelling" the gap is infinite as long as a labelling outside
        the working sets violates its margin
    n_iter_ : passes over the data
    path_ : primal, dual and gap after each pass (`seqfield.solvers.margin.Pass`), not in model
        files
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

    C: float | None = real(
        default=None,
        help=(
            "weight of the slacks; raise it to fit training labels more closely. None is 2 "
            "divided by the mean of k(x, x) over the distinct training tokens"
        ),
        above=0,
        words=(None,),
        kw_only=False,
    )
    slack: str = word(
        default="l1",
        help=(
            'the kind of slacks. "l1" has one slack for each sequence, and "l2" uses its square. '
            '"hard" has no slack, for data that can be separated. "labelling" has one for every '
            "labelling of every sequence, for short sequences and few labels"
        ),
        words=tuple(SLACKS),
    )
    margin: str = word(
        default="hamming",
        help=(
            "the margin by which the known labelling must win, as in the formulas above. "
            '"slack" is slower: its decoding takes O(l^2 S^2)'
        ),
        words=tuple(MARGINS),
    )
    eta: float = eta_param()
    transitions: bool = transitions_param()
    explicit: Any = explicit_param()
    n_inducing: int | None = n_inducing_param()
    inducing: str = inducing_param()
    gram_dtype: str = gram_dtype_param()
    max_iter: int = whole(default=500, help="largest number of passes over the data", low=1)
    tol: float = real(
        default=0.01,
        help="stop when the gap is at most this share of the objective",
        low=0,
    )

    @property
    def probabilistic(self) -> bool:
        """False: the scores only rank labellings."""
        return False

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        (kernel,) = fitted_kernels(self.kernel, lesson)
        lesson = told_part(lesson, type(self).__name__)
        grams = grams_of(self, seed_of(self))
        dual = DualLesson.of(lesson, kernel, grams, eta_of(self, lesson))
        C = self.C
        if C is None:
            scale = float(kernel.diagonal(dual.tokens.x).mean())
            C = 2.0 / scale if scale > 0 else 1.0
        solver = MaxMargin(
            C=float(C),
            slack=self.slack,
            margin=self.margin,
            max_iter=self.max_iter,
            tol=self.tol,
            seed=seed_of(self),
            n_jobs=self.n_jobs,
            numbers=lesson.numbers,
        )
        with following(self.max_iter, show=lesson.show) as callback:
            found = solver.minimise(dual.problem(dual.lesson), callback)
        theta, facts = descent_facts(None, found.minimum, Watch(), self._remedy)
        facts |= {"C_": C, "n_tokens_": int(dual.tokens.x.shape[0]), "path_": found.passes}
        facts["support_"] = Support.of_labellings(
            found.support, lesson.targets, lesson.numbers, lesson.labels.names
        )
        return Fit(dual.function(theta), facts)

    @property
    def _remedy(self) -> str:
        if self.slack == "hard":
            return "perhaps no function separates these data; use slack='l1', or raise max_iter"
        return "raise max_iter or tol, or lower C"
