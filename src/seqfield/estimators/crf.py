"""`CRF`: the linear-chain conditional random field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from seqfield._checks import choice, number
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._linear import LinearEstimator
from seqfield.losses._base import Loss
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.owlqn import OWLQN
from seqfield.solvers.restarts import Restarts
from seqfield.solvers.sgd import SGD


@register
class CRF(LinearEstimator):
    """Linear-chain conditional random field over explicit features.

    Minimises sum_i w_i loss(y_i, x_i) + c1 |theta|_1 + c2 / 2 |theta|^2.

    Parameters
    ----------
    features : a feature encoder such as `Template`, a path of a CRF++ template, or None to choose
        by the form of X: numbers are taken as they are, dicts and lists of strings are attributes,
        strings and token rows (tuples) get word and spelling features in a window
    loss : "log" for -log p(y | x);
        "softmax_margin": the same with ``cost`` added to the score of each wrong label while
        training; it lowers the error, and ``calibrate=True`` gives the probabilities back;
        "marginal": the mean over a sequence's tokens of -log p(y_t | x), which aims at single
        labels; not convex, so it starts from the log loss's optimum;
        "exp": log sum_i w_i pi^l_i (1 / p(y_i | x_i) - 1), the loss of boosting
    cost : the cost of "softmax_margin"
    length_weight : pi of "exp", at most 1: a sequence of length l weighs pi^l
    n_restarts : how often "marginal" may start again near the best point, as long as it improves
    c1, c2 : weights of the L1 and the L2 penalty (CRFsuite's ``c2`` is half of this one). "auto"
        is 1, or what compares with it where the loss is on another scale: 1 / mean length for
        "marginal" and 1 / number of sequences for "exp"
    solver : "lbfgs", "owlqn" (for c1 > 0), "sgd", or "auto": L-BFGS or OWL-QN by c1
    observed_only : give weights only to (feature, label) and (label, label) pairs that occur in
        training; False gives all of them a weight
    transitions : False leaves transition weights out, as a template without a B line does
    scheme : None, or what holds in training and decoding: "BIO", "IOB1", "BIOES", "BILOU", or
        the allowed transitions as pairs (from, to), None standing for start or end
    on_violation : "raise" if training labels break the scheme, or "repair" them
    classes : all labels, if training data may lack some
    missing_label : a label that means "not known", besides None
    max_iter : iterations (default 500) or epochs of "sgd" (default 20)
    tol : relative tolerance of the objective at which to stop
    warm_start : start from the weights, labels and features of the last fit
    early_stopping : hold out ``validation_fraction`` of the sequences, keep the weights that are
        best on them and stop after ``patience`` iterations without gain
    calibrate : also fit one temperature of the scores on held-out folds (three more fits);
        "platt" adds an offset for each label, which may change the labels too
    random_state : seed for held-out choices, restarts and the shuffling of "sgd"
    n_jobs : threads, -1 for all cores; results are bit-identical for every number
    verbose : True shows progress on standard error

    Attributes
    ----------
    classes_ : labels in column order
    features_ : the fitted feature encoder
    theta_ : all weights; transitions_ : (S, S) transition scores
    n_iter_ : iterations done
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

    loss: str
    cost: float
    length_weight: float
    n_restarts: int
    c1: float
    c2: float | str
    solver: str
    max_iter: int | None
    tol: float

    def __init__(
        self,
        features: Any = None,
        *,
        loss: Literal["log", "softmax_margin", "marginal", "exp"] = "log",
        cost: float = 1.0,
        length_weight: float = 1.0,
        n_restarts: int = 1,
        c1: float = 0.0,
        c2: float | Literal["auto"] = "auto",
        solver: Literal["auto", "lbfgs", "owlqn", "sgd"] = "auto",
        observed_only: bool = True,
        transitions: bool = True,
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int | None = None,
        tol: float = 1e-5,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    def _recipe(self, data: Sequences) -> Recipe:
        prior, loss = ElasticNet(self.c1, self._c2(data)), self._loss()
        return Recipe(self._optimiser(len(data)), loss, prior)

    def _c2(self, data: Sequences) -> float:
        """The L2 weight; "auto" is the one that is to this loss what 1 is to the log loss."""
        if self.c2 != "auto":
            return float(number("c2", self.c2, low=0))
        # a sum over tokens becomes a sum of means over tokens, or one mean over sequences
        scale = {"marginal": data.n_tokens / len(data), "exp": len(data)}
        return 1.0 / scale.get(self.loss, 1.0)

    def _merit(self, held: Objective) -> Callable[[Floats], float]:
        return held.value

    def _start(self, goal: Objective, theta: Floats) -> Floats:
        if self.loss != "marginal" or theta.any():
            return theta
        # the log loss is convex and its optimum a good place to start; in a sum over tokens each
        # of them weighs one, here 1 / l, so the penalty is scaled by the mean length
        penalty = ElasticNet(*(goal.mean_length * c for c in (goal.prior.c1, goal.prior.c2)))
        like = goal.with_loss(LogLoss(), penalty)
        return self._optimiser(goal.n_sequences, plain=True).minimise(like, theta).theta

    def _loss(self) -> Loss:
        if self.loss == "log":
            return LogLoss()
        if self.loss == "softmax_margin":
            return LogLoss(number("cost", self.cost, low=0))
        if self.loss == "marginal":
            return MarginalLoss()
        if self.loss == "exp":
            return ExponentialLoss(self.length_weight)
        raise InputError(
            f"loss must be 'log', 'softmax_margin', 'marginal' or 'exp', got {self.loss!r}"
        )

    def _optimiser(self, n: int, plain: bool = False) -> LBFGS | OWLQN | SGD | Restarts:
        choice("solver", self.solver, ("auto", "lbfgs", "owlqn", "sgd"))
        if self.c1 > 0 and self.solver not in ("auto", "owlqn"):
            raise CapabilityError(
                f"solver {self.solver!r} cannot handle the L1 penalty c1={self.c1}: use 'owlqn'"
            )
        most = 20 if self.solver == "sgd" else 500
        if self.max_iter is not None:
            most = number("max_iter", self.max_iter, low=1, whole=True)
        number("tol", self.tol, low=0)
        if self.solver == "sgd":
            # small data need small batches, or an epoch has too few steps
            size, seed = max(1, min(32, n // 100)), int(self._random().randint(2**31 - 1))
            return SGD(max_iter=most, batch_size=size, seed=seed)
        # without an L1 penalty OWL-QN is L-BFGS with needless projections
        kind = OWLQN if self.c1 > 0 else LBFGS
        descent = kind(max_iter=most, tol=self.tol, n_jobs=self.n_jobs)
        times = number("n_restarts", self.n_restarts, low=0, whole=True)
        if plain or self.loss != "marginal":
            return descent
        return Restarts(descent, times, seed=int(self._random().randint(2**31 - 1)))
