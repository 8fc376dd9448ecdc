"""`CRF`: the linear-chain conditional random field."""

from __future__ import annotations

import numpy as np

from seqfield.errors import CapabilityError
from seqfield.estimators._base import Fit, random_of, seed_of
from seqfield.estimators._descent import Floats, Merit, descent_facts, following, watched
from seqfield.estimators._files import register
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._linear import LinearEstimator
from seqfield.estimators._params import parameters, real, whole, word
from seqfield.functions import Learned, LinearFunction
from seqfield.losses._base import Loss
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences
from seqfield.solvers._base import Solver, Step
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.owlqn import OWLQN
from seqfield.solvers.restarts import Restarts
from seqfield.solvers.sgd import SGD


@register
@parameters
class CRF(LinearEstimator):
    """Linear-chain conditional random field over explicit features.

    Minimises sum_i w_i loss(y_i, x_i) + c1 |theta|_1 + c2 / 2 |theta|^2.

    Attributes
    ----------
    classes_ : labels in column order
    features_ : the fitted feature encoder
    function_ : what was learned
    theta_ : all weights; transitions_ : (S, S) transition scores
    n_iter_ : iterations done; best_iter_ : the iteration whose weights are kept
    objective_ : final value
    gap_ : proven bound on objective_ minus the optimum (infinite if c2 is 0)

    >>> import seqfield as sf
    >>> X = [["the", "cat", "sat"], ["a", "dog"]]
    >>> y = [["D", "N", "V"], ["D", "N"]]
    >>> model = sf.CRF(c2=0.1).fit(X, y)
    >>> model.predict([["the", "dog", "sat"]])
    [['D', 'N', 'V']]
    >>> model.predict_proba([["the", "dog"]])[0].shape
    (2, 3)
    """

    loss: str | Loss = word(
        default="log",
        help=(
            '"log" is -log p(y | x). "softmax_margin" is the same with ``cost`` added to the '
            "score of each wrong label while training; it lowers the error, and calibrate=True "
            'gives the probabilities back. "marginal" is the mean over the tokens of a sequence '
            "of -log p(y_t | x), which aims at single labels; it is not convex, so it starts from "
            'the optimum of the log loss. "exp" is log sum_i w_i pi^l_i (1 / p(y_i | x_i) - 1), '
            "the loss of boosting"
        ),
        words=("log", "softmax_margin", "marginal", "exp"),
        accepts=(Loss,),
    )
    cost: float = real(
        default=1.0,
        help='what a wrong label costs in loss="softmax_margin"; raise it to ask for wider margins',
        low=0,
    )
    length_weight: float = real(
        default=1.0,
        help=(
            'pi of loss="exp": a sequence of length l weighs pi^l. Lower it if long sequences '
            "dominate"
        ),
        low=1e-100,
        high=1,
    )
    n_restarts: int = whole(
        default=1,
        help=(
            'how often loss="marginal" may start again near the best point while it improves; '
            "each restart costs another descent"
        ),
        low=0,
    )
    c1: float = real(
        default=0.0,
        help=(
            "weight of the L1 penalty. Above 0 most weights become zero; raise it for smaller "
            "models"
        ),
        low=0,
    )
    c2: float | str = real(
        default="auto",
        help=(
            "weight of the L2 penalty, which is twice the c2 of CRFsuite. Raise it if the model "
            'fits training labels too closely. "auto" is 1; for "marginal" 1 / mean length, for '
            '"exp" 1 / number of sequences'
        ),
        low=0,
        words=("auto",),
    )
    solver: str | Solver = word(
        default="auto",
        help=(
            'how the minimum is found: "lbfgs", "owlqn" (for c1 > 0), "sgd" (for large data), or '
            '"auto": L-BFGS or OWL-QN by c1'
        ),
        words=("auto", "lbfgs", "owlqn", "sgd"),
        accepts=(Solver,),
    )
    max_iter: int | None = whole(
        default=None,
        help='most iterations; None is 500, or 20 epochs of "sgd"',
        low=1,
        words=(None,),
    )
    tol: float = real(
        default=1e-5,
        help="relative fall of the objective at which to stop; lower it for a closer optimum",
        low=0,
    )

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        architecture, loss = self._architecture(lesson, start), self._loss()
        prior = ElasticNet(self.c1, self._c2(lesson.data))
        solver = self._solver(len(lesson.data))

        def merit(held: Lesson) -> Merit:
            return held.objective(architecture, loss, n_jobs=self.n_jobs).value

        train, watch = watched(lesson, self, random_of(self), merit)
        goal = train.objective(architecture, loss, prior, self.n_jobs)
        theta = np.zeros(architecture.n_parameters)
        theta = start.theta if isinstance(start, LinearFunction) else theta
        theta = self._begin(goal, theta)
        if theta.any():  # what is there already may be the best on held-out data
            watch(Step(0, theta, float("nan")))
        with following(solver.max_iter or 1, show=lesson.show, watch=watch) as callback:
            found = solver.minimise(goal, theta, callback)
        remedy = "raise max_iter, or the penalty or tol"
        theta, facts = descent_facts(goal, found, watch, remedy)
        return Fit(LinearFunction(architecture, theta), facts)

    def optimum(self, lesson: Lesson) -> tuple[Objective, Floats]:
        """The objective over a lesson, which the fit minimised, and the weights it ended at."""
        prior = ElasticNet(self.c1, self._c2(lesson.data))
        function = self._weights()
        goal = lesson.objective(function.architecture, self._loss(), prior, self.n_jobs)
        return goal, function.theta

    def _c2(self, data: Sequences) -> float:
        """The L2 weight; "auto" is the one that is to this loss what 1 is to the log loss."""
        if self.c2 != "auto":
            return float(self.c2)
        # a sum over tokens becomes a sum of means over tokens, or one mean over sequences
        if self.loss == "marginal":
            return 1.0 / (data.n_tokens / len(data))
        return 1.0 / len(data) if self.loss == "exp" else 1.0

    def _begin(self, goal: Objective, theta: Floats) -> Floats:
        """Where to start, given the weights that are there (zeros at first)."""
        if self.loss != "marginal" or theta.any():
            return theta
        # the log loss is convex and its optimum a good place to start; in a sum over tokens each
        # of them weighs one, here 1 / l, so the penalty is scaled by the mean length
        penalty = ElasticNet(*(goal.mean_length * c for c in (goal.prior.c1, goal.prior.c2)))
        like = goal.with_loss(LogLoss(), penalty)
        return self._solver(goal.n_sequences, plain=True).minimise(like, theta).theta

    def _loss(self) -> Loss:
        if isinstance(self.loss, Loss):
            return self.loss
        if self.loss == "marginal":
            return MarginalLoss()
        if self.loss == "exp":
            return ExponentialLoss(self.length_weight)
        return LogLoss(self.cost if self.loss == "softmax_margin" else 0.0)

    def _solver(self, n: int, plain: bool = False) -> Solver:
        if isinstance(self.solver, Solver):
            return self.solver
        if self.c1 > 0 and self.solver not in ("auto", "owlqn"):
            raise CapabilityError(
                f"solver {self.solver!r} cannot handle the L1 penalty c1={self.c1}: use 'owlqn'"
            )
        most = self.max_iter or (20 if self.solver == "sgd" else 500)
        if self.solver == "sgd":
            # small data need small batches, or an epoch has too few steps
            size = max(1, min(32, n // 100))
            return SGD(max_iter=most, batch_size=size, seed=seed_of(self))
        # without an L1 penalty OWL-QN is L-BFGS with needless projections
        kind = OWLQN if self.c1 > 0 else LBFGS
        descent = kind(max_iter=most, tol=self.tol, n_jobs=self.n_jobs)
        if plain or self.loss != "marginal":
            return descent
        return Restarts(descent, self.n_restarts, seed=seed_of(self))
