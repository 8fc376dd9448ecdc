"""`KernelCRF`: kernel conditional random fields with clique selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from seqfield._checks import number
from seqfield.architectures.atoms import Atom, Atoms
from seqfield.architectures.lookup import Lookup
from seqfield.errors import InputError
from seqfield.estimators._descent import Floats, Recipe
from seqfield.estimators._files import register
from seqfield.estimators._kernel import KernelEstimator
from seqfield.kernels.covariance import Covariance
from seqfield.labels import Targets
from seqfield.objectives.objective import Objective
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, place_of
from seqfield.solvers._base import Callback, Minimum
from seqfield.solvers.greedy import Greedy, Round, Selection
from seqfield.solvers.pickers import Cliques, MeanField, steepness

CHOICES = {"cliques": ("vertex", "vertex+edge"), "gain": ("gradient", "meanfield")}


class Clique(NamedTuple):
    """A chosen clique: the kernel's number, the first training token like it (sequence, position),
    its label or pair of labels, and its coefficient."""

    kernel: int
    place: tuple[int, int]
    labels: tuple[Any, ...]
    coefficient: float


@register
class KernelCRF(KernelEstimator):
    """Kernel conditional random field with greedily chosen cliques.

    A vertex clique adds k(x_t, .) to the score of one label, an edge clique to that of one pair of
    labels (edge[t] scores the pair that ends at token t). The clique that promises most comes in,
    all coefficients are fitted again, and so on. Position-independent transitions are always there.

    Parameters
    ----------
    kernel : a kernel, a name or a function as in `GPSC`, or a list of them; the function is then
        a sum of one part for each, and each round takes the best clique of every kernel
    features : as in `CRF`
    cliques : "vertex" or "vertex+edge"
    n_cliques : how many to take
    gain : "gradient": by the size of the functional gradient (one product with the gram matrix for
        all candidates); "meanfield": by the fall of the risk with the candidate's best coefficient,
        tokens taken as independent
    gain_tol : stop when a round lowers the regularised risk by less than this
    c2 : weight of the squared norm; eta : variance of transition scores
    transitions : False is kernel logistic regression
    early_stopping, validation_fraction, patience : as in `CRF`, in rounds
    tol : relative tolerance of each refit
    gram_budget, gram_dtype : as in `GPSC`
    scheme, on_violation, classes, missing_label, calibrate, random_state, n_jobs, verbose : as in
        `CRF`

    Attributes
    ----------
    path_ : a `Round` for each round: number of cliques, regularised risk, log loss
    cliques_ : the chosen cliques (`Clique`) in order, of a model just fitted
    kernel_, transitions_, objective_, n_tokens_, n_kept_ : as in `GPSC`

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.KernelCRF(sf.kernels.RBF(0.35), n_cliques=10).fit(X, y)
    >>> model.n_kept_ <= 10, model.path_[-1].risk < model.path_[0].risk
    (True, True)
    """

    several_kernels = True
    advice = (
        "Train on fewer sequences, give more with gram_budget=, or halve the need with "
        'gram_dtype="float32"'
    )
    cliques: str
    n_cliques: int
    gain: str
    gain_tol: float
    c2: float
    tol: float
    path_: list[Round]
    cliques_: list[Clique]
    _covs: list[Covariance]

    def __init__(
        self,
        kernel: Any = None,
        *,
        features: Any = None,
        cliques: Literal["vertex", "vertex+edge"] = "vertex",
        n_cliques: int = 100,
        gain: Literal["gradient", "meanfield"] = "gradient",
        gain_tol: float = 0.0,
        c2: float = 1.0,
        eta: float = 1.0,
        transitions: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        tol: float = 1e-5,
        gram_budget: float = 6.0,
        gram_dtype: Literal["float64", "float32"] = "float64",
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        calibrate: bool | Literal["temperature", "platt", "vector"] = False,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    def _prepare(self, data: Sequences, targets: Targets, weights: Floats) -> Sequences:
        self._check_choices(CHOICES)
        if self.cliques == "vertex+edge" and not self.transitions:
            raise InputError(
                "transitions=False is a model of single tokens, which has no use for edge cliques: "
                "take cliques='vertex'"
            )
        numbered = super()._prepare(data, targets, weights)
        share = self._budget / len(self._kernels)
        self._covs = [self._covariance(kernel, budget=share) for kernel in self._kernels]
        edges = self.cliques == "vertex+edge"
        self._architecture = Lookup(len(self._labels), self.n_tokens_, edges=edges)
        return numbered

    def _recipe(self, data: Sequences) -> Recipe:
        there = len(self._kernels) * self._architecture.n_columns * self.n_tokens_
        most = min(number("n_cliques", self.n_cliques, low=1, whole=True), there)
        self._check_atoms(most, self.n_tokens_)
        gain = steepness if self.gain == "gradient" else MeanField(self.n_jobs)
        atoms = Atoms(
            len(self._labels),
            self._covs,
            eta=self._given_eta(),
            free=True,
            edges=self._architecture.edges,
        )
        greedy = Greedy(
            atoms,
            ElasticNet(0.0, number("c2", self.c2, low=0)),
            Cliques(gain),
            max_iter=most,
            max_atoms=most,
            gain_tol=number("gain_tol", self.gain_tol, low=0),
            tol=number("tol", self.tol, low=0),
        )
        return Recipe(greedy)

    def _merit(self, held: Objective) -> Callable[[Floats], float]:
        return held.value

    def _solve(
        self, optimiser: Greedy, goal: Objective, theta: Floats, callback: Callback
    ) -> tuple[Minimum, Selection]:
        found = optimiser.minimise(goal, callback)
        return found.minimum, found.selection

    def _finish(self, goal: Objective, theta: Floats, result: Minimum, found: Selection) -> None:
        self.path_ = found.rounds[: self.best_iter_]
        # if nothing was worth choosing the transitions are the model
        start = Round(0, found.start, result.value, result.value)
        last = self.path_[-1] if self.path_ else start
        kept = found.coefficients(self.best_iter_)
        result = result._replace(theta=theta, value=last.risk)
        super()._finish(goal, theta, result, found)
        chosen = found.atoms[: last.n_atoms]
        n, c = self.n_tokens_, self._architecture.n_columns
        coefficients = np.zeros((len(self._covs), n, c))
        for atom, value in zip(chosen, kept, strict=True):
            coefficients[atom.kernel, atom.rows[0], atom.columns[0]] = value
        functions = [
            covariance.function(part)
            for covariance, part in zip(self._covs, coefficients, strict=True)
        ]
        self._keep(functions, last.transitions[None], edges=self._architecture.edges)
        self.cliques_ = self._told(chosen, kept)
        del self.theta_, self._architecture, self._covs, self._tokens

    def _told(self, atoms: list[Atom], coefficients: Floats) -> list[Clique]:
        """Cliques by the names of their labels."""
        names, s = self._labels.names, len(self._labels)
        first, offsets = self._tokens.first, self._tokens.offsets
        out = []
        for atom, value in zip(atoms, coefficients, strict=True):
            column = atom.columns[0]
            labels: tuple[Any, ...] = (names[column],) if column < s else ()
            if column >= s:
                labels = tuple(names[k] for k in divmod(column - s, s))
            i, t = place_of(int(first[atom.rows[0]]), offsets)
            place = int(self._used[i]), t
            out.append(Clique(atom.kernel, place, labels, float(value)))
        return out
