"""`CRF`: the linear-chain conditional random field."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from seqfield._checks import number
from seqfield.architectures.linear import Linear
from seqfield.errors import CapabilityError, InputError
from seqfield.estimators._files import register
from seqfield.estimators._linear import Floats, LinearEstimator
from seqfield.estimators._objective import Objective
from seqfield.estimators._progress import progress
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.optimisers._base import Result, Step
from seqfield.optimisers.lbfgs import LBFGS
from seqfield.optimisers.owlqn import OWLQN
from seqfield.optimisers.sgd import SGD
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences


@register
class CRF(LinearEstimator):
    """Linear-chain conditional random field over explicit features.

    Minimises sum_i w_i loss(y_i, x_i) + c1 |theta|_1 + c2 / 2 |theta|^2.

    Parameters
    ----------
    features : a feature encoder such as `Template`, a path of a CRF++ template, or None to choose
        by the form of X: numbers are taken as they are, dicts and lists of strings are attributes,
        strings and token rows (tuples) get word and spelling features in a window
    loss : "log" for -log p(y | x), or "softmax_margin", which adds ``cost`` to the score of each
        wrong label while training
    cost : the cost of "softmax_margin"
    c1, c2 : weights of the L1 and the L2 penalty (CRFsuite's ``c2`` is half of this one)
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
    random_state : seed for the held-out choice and the shuffling of "sgd"
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

    def __init__(
        self,
        features: Any = None,
        *,
        loss: Literal["log", "softmax_margin"] = "log",
        cost: float = 1.0,
        c1: float = 0.0,
        c2: float = 1.0,
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
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self.features = features
        self.loss = loss
        self.cost = cost
        self.c1 = c1
        self.c2 = c2
        self.solver = solver
        self.observed_only = observed_only
        self.transitions = transitions
        self.scheme = scheme
        self.on_violation = on_violation
        self.classes = classes
        self.missing_label = missing_label
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        prior, loss, optimiser = ElasticNet(self.c1, self.c2), self._loss(), self._optimiser()
        again = self.warm_start and hasattr(self, "theta_")
        if not again:
            self._architecture = Linear.build(
                data,
                targets,
                len(self._labels),
                observed=self.observed_only,
                transitions=self.transitions and self.features_.transitions_,
            )
        theta = self.theta_ if again else np.zeros(self._architecture.n_parameters)
        held: Objective | None = None

        def objective(chosen: Any, penalty: ElasticNet) -> Objective:
            return Objective(
                self._architecture,
                loss,
                penalty,
                data[chosen],
                targets[chosen],
                weights[chosen],
                self._constraint,
                self.n_jobs,
            )

        train = np.arange(len(data))
        if self.early_stopping:
            train, rest = self._split(len(data))
            held = objective(rest, ElasticNet(0.0, 0.0))
        goal = objective(train, prior)
        watch = _Watch(held, self.patience)
        with progress("training", optimiser.max_iter, show=bool(self.verbose)) as report:

            def callback(step: Step) -> bool:
                report(step.iteration, f"objective {step.value:.6g}")
                return watch(step)

            result = optimiser.minimise(goal, theta, callback)
        self._finish(goal, watch.best_of(result), result)

    def _finish(self, goal: Objective, theta: Floats, result: Result) -> None:
        if theta is not result.theta:
            value, gradient = goal.value_and_grad(theta)
            value += goal.l1 * float(np.abs(theta).sum())
        else:
            value, gradient = result.value, result.gradient
        self.theta_ = theta
        self.n_iter_ = result.n_iter
        self.objective_ = value
        self.gap_ = goal.gap(theta, gradient)
        if not result.converged:
            warnings.warn(
                f"no convergence in {result.n_iter} iterations (objective {value:.6g}, at most "
                f"{self.gap_:.2g} above its optimum): raise max_iter, or raise c2 or tol",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _loss(self) -> LogLoss:
        if self.loss == "log":
            return LogLoss()
        if self.loss == "softmax_margin":
            return LogLoss(number("cost", self.cost, low=0))
        raise InputError(f"loss must be 'log' or 'softmax_margin', got {self.loss!r}")

    def _optimiser(self) -> LBFGS | OWLQN | SGD:
        if self.solver not in ("auto", "lbfgs", "owlqn", "sgd"):
            raise InputError(f"solver must be auto, lbfgs, owlqn or sgd, got {self.solver!r}")
        if self.c1 > 0 and self.solver not in ("auto", "owlqn"):
            raise CapabilityError(
                f"solver {self.solver!r} cannot handle the L1 penalty c1={self.c1}: use 'owlqn'"
            )
        most = 20 if self.solver == "sgd" else 500
        if self.max_iter is not None:
            most = number("max_iter", self.max_iter, low=1, whole=True)
        number("tol", self.tol, low=0)
        if self.solver == "sgd":
            return SGD(max_iter=most, seed=int(self._random().randint(2**31 - 1)))
        # without an L1 penalty OWL-QN is L-BFGS with needless projections
        kind = OWLQN if self.c1 > 0 else LBFGS
        return kind(max_iter=most, tol=self.tol, n_jobs=self.n_jobs)

    def _random(self) -> np.random.RandomState:
        try:
            state: np.random.RandomState = check_random_state(self.random_state)
            return state
        except ValueError as error:
            raise InputError(f"random_state: {error}") from error

    def _split(self, n: int) -> tuple[Any, Any]:
        """Sequences to train on and sequences held out."""
        n_held = round(n * number("validation_fraction", self.validation_fraction, low=0, high=1))
        if not 0 < n_held < n:
            raise InputError(
                f"validation_fraction={self.validation_fraction} of {n} sequences leaves none "
                "to hold out or none to train on"
            )
        order = self._random().permutation(n)
        return np.sort(order[n_held:]), np.sort(order[:n_held])


class _Watch:
    """Remembers the best weights on held-out data; says when to give up."""

    def __init__(self, held: Objective | None, patience: int) -> None:
        self.held, self.patience = held, patience
        self.best: tuple[float, int, Floats] | None = None

    def __call__(self, step: Step) -> bool:
        if self.held is None:
            return False
        value = self.held.value(step.theta)
        if self.best is None or value < self.best[0]:
            self.best = value, step.iteration, step.theta.copy()
        return step.iteration - self.best[1] >= self.patience

    def best_of(self, result: Result) -> Floats:
        return result.theta if self.best is None else self.best[2]
