"""`GPSC`: Gaussian-process sequence classification, dense and sparse."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from seqfield._checks import number
from seqfield.architectures.atoms import Atoms
from seqfield.architectures.kernel import Gram
from seqfield.architectures.lookup import Lookup, Values
from seqfield.errors import InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._kernel import KernelEstimator
from seqfield.estimators._objective import Objective
from seqfield.kernels.covariance import Covariance
from seqfield.labels import Targets
from seqfield.losses._base import Loss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.optimisers._base import Result
from seqfield.optimisers.greedy import Greedy, Selection
from seqfield.optimisers.lbfgs import LBFGS
from seqfield.optimisers.newton import NewtonCG
from seqfield.optimisers.pickers import Coordinates, Labellings
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences

CHOICES = {
    "method": ("dense", "sparse", "sequence"),
    "posterior": ("map", "laplace"),
    "loss": ("log", "softmax_margin", "marginal"),
    "pick": ("largest", "random"),
    "update": ("all", "new", "last"),
    "solver": ("lbfgs", "newton"),
}


@register
class GPSC(KernelEstimator):
    """Gaussian-process sequence classification.

    The scores of each label are a Gaussian process over tokens with the given kernel; those of
    transitions are independent with variance ``eta``. Minimises

        sum_i w_i loss(y_i, x_i) + c2 / 2 |f|^2

    over functions f: with c2 = 1 the MAP estimate under that prior.

    Parameters
    ----------
    kernel : a kernel of `seqfield.kernels`, a name such as "rbf" or "poly2", or a function
        (x, z) -> (N, M); None is RBF for dense features and linear plus quadratic for sparse ones
    features : as in `CRF`
    method : "dense": a coefficient for every distinct token and label;
        "sparse": coordinates (token, label pair) chosen greedily; prediction evaluates the kernel
        at the kept tokens alone;
        "sequence": the same in whole labelled sequences
    loss : "log", "softmax_margin" (with ``cost``) or "marginal", as in `CRF`
    c2 : weight of the squared norm
    eta : variance of transition scores, in units of the kernel
    transitions : False leaves them out: kernel logistic regression of single tokens
    explicit : train on features that stand for the kernel, where it has any (linear, and degree 2
        on sparse 0/1 features): the same model without a gram matrix. "auto": where that is faster
    n_landmarks : approximate the kernel by features from this many tokens, which are chosen by
        ``landmarks``: "pivoted" (greedily, by pivoted Cholesky) or "random" (Nystrom)
    n_coordinates : how many coordinates the sparse methods keep; a fraction is a share of the
        number of training tokens
    n_per_round : coordinates (or labelled sequences) taken in each round
    pick : of which sequence: the one with the "largest" derivative or a "random" one
    update : after each round refit "all" coefficients; or the "new" ones alone, which is cheaper;
        or the new ones in each round and all of them at the end ("last")
    slope_tol : stop before if no derivative is larger than this
    solver : "lbfgs" or "newton" (Newton's method with conjugate gradients) of the dense method
    gram_budget : the most GiB that a gram matrix may take
    gram_dtype : "float64", or "float32" for half of the memory; sums are in float64 always
    scheme, on_violation, classes, missing_label, calibrate, random_state, n_jobs, verbose : as in
        `CRF`
    max_iter, tol : iterations and relative tolerance of the solver

    Attributes
    ----------
    classes_ : labels in column order
    kernel_ : the kernel, with what it took from the data
    transitions_ : (S, S) transition scores
    objective_ : final value
    gap_ : proven bound on objective_ minus the optimum of the dense problem
    n_tokens_ : distinct training tokens; n_kept_ : tokens where prediction evaluates the kernel
    path_ : rounds of a sparse method (`seqfield.optimisers.greedy.Round`)

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.GPSC(sf.kernels.RBF(0.35)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    >>> sf.GPSC("rbf", method="sparse", n_coordinates=20).fit(X, y).n_kept_ <= 20
    True
    """

    cost: float
    c2: float
    n_coordinates: int | float
    n_per_round: int
    slope_tol: float
    max_iter: int
    tol: float
    _cov: Covariance

    def __init__(
        self,
        kernel: Any = None,
        *,
        features: Any = None,
        method: Literal["dense", "sparse", "sequence"] = "dense",
        loss: Literal["log", "softmax_margin", "marginal"] = "log",
        cost: float = 1.0,
        c2: float = 1.0,
        eta: float = 1.0,
        transitions: bool = True,
        explicit: bool | Literal["auto"] = "auto",
        n_landmarks: int | None = None,
        landmarks: Literal["pivoted", "random"] = "pivoted",
        n_coordinates: int | float = 0.25,
        n_per_round: int = 50,
        pick: Literal["largest", "random"] = "largest",
        update: Literal["all", "new", "last"] = "last",
        slope_tol: float = 1e-3,
        solver: Literal["lbfgs", "newton"] = "lbfgs",
        gram_budget: float = 6.0,
        gram_dtype: Literal["float64", "float32"] = "float64",
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int = 500,
        tol: float = 1e-5,
        calibrate: bool = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name, allowed[0]) not in allowed:
                found = getattr(self, name)
                raise InputError(f"{name} must be one of {', '.join(allowed)}, got {found!r}")
        super()._fit(data, targets, weights)

    def _prepare(self, data: Sequences, targets: Targets) -> Sequences:
        numbered, s = super()._prepare(data, targets), len(self._labels)
        dense = self.method == "dense"
        self._cov = self._covariance(self._kernels[0], on_demand=not dense)
        n = self._cov.size
        self._architecture = Gram(s, n, self._cov.multiply, self._eta) if dense else Lookup(s, n)
        return numbered

    def _recipe(self, data: Sequences) -> Recipe:
        if self.method == "dense":
            return Recipe(self._descent(), self._loss(), self._prior)
        size = number("n_per_round", self.n_per_round, low=1, whole=True)
        most = number("n_coordinates", self.n_coordinates, low=0)
        if not isinstance(most, int | np.integer):
            most = max(1, round(most * data.n_tokens))
        picker = Coordinates if self.method == "sparse" else Labellings
        pick = picker(
            data.x[:, 0].astype(np.int64),
            data.offsets,
            size,
            self.pick,
            self._random(),
            number("slope_tol", self.slope_tol, low=0),
        )
        if self.update != "new":
            columns = 1 if self.method == "sparse" else len(self._labels)
            self._check_atoms(most * columns)
        greedy = Greedy(
            Atoms(len(self._labels), [self._cov], eta=self._eta),
            self._prior,
            pick,
            max_iter=max(1, most),
            max_atoms=most,
            update=self.update,
            tol=number("tol", self.tol, low=0),
        )
        return Recipe(greedy, self._loss())

    @property
    def _prior(self) -> ElasticNet:
        return ElasticNet(0.0, number("c2", self.c2, low=0))

    def _loss(self) -> Loss:
        if self.loss == "marginal":
            return MarginalLoss()
        return LogLoss(number("cost", self.cost, low=0) if self.loss == "softmax_margin" else 0.0)

    def _descent(self) -> LBFGS | NewtonCG:
        most = number("max_iter", self.max_iter, low=1, whole=True)
        tol = number("tol", self.tol, low=0)
        kind = LBFGS if self.solver == "lbfgs" else NewtonCG
        return kind(max_iter=most, tol=tol, n_jobs=self.n_jobs)

    def _finish(self, goal: Objective, theta: Floats, result: Result) -> None:
        gram = self._architecture
        if self.method != "dense":
            gram = Gram(len(self._labels), self._cov.size, self._cov.multiply, self._eta)
            theta = self._as_dense(gram, goal.architecture.lift(theta), result.trace[0])
            goal = goal.over(gram, self._prior)
            value, gradient = goal.value_and_grad(theta)
            result = result._replace(theta=theta, value=value, gradient=gradient)
            self.path_ = result.trace[0].rounds
        super()._finish(goal, theta, result)
        steps = gram.lift(theta).transitions
        self._keep([self._cov.function(gram.coefficients(theta))], steps[None])
        del self.theta_, self._architecture, self._cov, self._tokens

    def _as_dense(self, gram: Gram, values: Values, found: Selection) -> Floats:
        """The chosen function as parameters of the dense problem, whose bound then holds."""
        # rows past the tokens are transitions
        wide = np.zeros((gram.size + gram.n_labels, gram.n_labels))
        for atom, value in zip(found.atoms, found.coefficients(len(found.rounds)), strict=True):
            np.add.at(wide, (np.array(atom.rows), np.array(atom.columns)), value)
        a, b = wide[: gram.size], wide[gram.size :].T
        pairs = np.sqrt(self._eta) * b.ravel()[gram.pairs]
        return np.concatenate([a.ravel(), values.table.ravel(), pairs])
