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

    `fit` minimises sum_i w_i loss(y_i, x_i) + c1 |theta|_1 + c2 / 2 |theta|^2, where theta are the
    weights and w_i is the weight of sequence i.

    Attributes
    ----------
    classes_ : labels in column order
    features_ : the fitted feature encoder
    function_ : the learned function
    theta_ : all weights; transitions_ : (S, S) transition scores
    n_iter_ : iterations done; best_iter_ : the iteration whose weights are kept
    objective_ : final value of the objective
    gap_ : proven upper bound on objective_ minus the optimum (infinite if c2 is 0)

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
            'the loss. "log" is -log p(y | x). "softmax_margin" is the log loss with ``cost`` '
            "added to the score of each wrong label in training. It lowers the error; use "
            'calibrate=True to get right probabilities. "marginal" is the mean of '
            "-log p(y_t | x) over the tokens of a sequence. Use it if single labels matter. It is "
            'not convex, so it starts from the optimum of the log loss. "exp" is the loss of '
            "boosting, log sum_i w_i pi^l_i (1 / p(y_i | x_i) - 1)"
        ),
        words=("log", "softmax_margin", "marginal", "exp"),
        accepts=(Loss,),
    )
    cost: float = real(
        default=1.0,
        help='cost of a wrong label in loss="softmax_margin"; raise it for wider margins',
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
            'most restarts of loss="marginal" near the best point, as long as they improve it; '
            "each restart takes another descent"
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
            'fits training labels too closely. "auto" is 1. For loss="marginal" it is '
            '1 / mean length, and for loss="exp" 1 / number of sequences'
        ),
        low=0,
        words=("auto",),
    )
    solver: str | Solver = word(
        default="auto",
        help=(
            'the optimiser: "lbfgs", "owlqn" (for c1 > 0), or "sgd" (for large data). "auto" is '
            "OWL-QN if c1 > 0, and L-BFGS if c1 is 0"
        ),
        words=("auto", "lbfgs", "owlqn", "sgd"),
        accepts=(Solver,),
    )
    max_iter: int | None = whole(
        default=None,
        help='largest number of iterations; None is 500, or 20 epochs of "sgd"',
        low=1,
        words=(None,),
    )
    tol: float = real(
        default=1e-5,
        help="stop when the objective falls by less than this share; lower it for a closer optimum",
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
        if theta.any():  # the weights of a warm start may be the best on held-out data
            watch(Step(0, theta, float("nan")))
        with following(solver.max_iter or 1, show=lesson.show, watch=watch) as callback:
            found = solver.minimise(goal, theta, callback)
        remedy = "raise max_iter, or the penalty or tol"
        theta, facts = descent_facts(goal, found, watch, remedy)
        return Fit(LinearFunction(architecture, theta), facts)

    def optimum(self, lesson: Lesson) -> tuple[Objective, Floats]:
        """The objective that the fit minimised over a lesson, and the final weights."""
        prior = ElasticNet(self.c1, self._c2(lesson.data))
        function = self._weights()
        goal = lesson.objective(function.architecture, self._loss(), prior, self.n_jobs)
        return goal, function.theta

    def _c2(self, data: Sequences) -> float:
        """The L2 weight; "auto" scales the weight 1 of the log loss to this loss."""
        if self.c2 != "auto":
            return float(self.c2)
        # a sum over tokens becomes a sum of means over tokens, or one mean over sequences
        if self.loss == "marginal":
            return 1.0 / (data.n_tokens / len(data))
        return 1.0 / len(data) if self.loss == "exp" else 1.0

    def _begin(self, goal: Objective, theta: Floats) -> Floats:
        """The starting point, given the present weights (zeros at first)."""
        if self.loss != "marginal" or theta.any():
            return theta
        # the log loss is convex, and its optimum is a good starting point; its sum gives each
        # token the weight 1, here it is 1 / l, so the penalty is scaled by the mean length
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
            # with small data, large batches would give an epoch too few steps
            size = max(1, min(32, n // 100))
            return SGD(max_iter=most, batch_size=size, seed=seed_of(self))
        # without an L1 penalty OWL-QN is L-BFGS with needless projections
        kind = OWLQN if self.c1 > 0 else LBFGS
        descent = kind(max_iter=most, tol=self.tol, n_jobs=self.n_jobs)
        if plain or self.loss != "marginal":
            return descent
        return Restarts(descent, self.n_restarts, seed=seed_of(self))
