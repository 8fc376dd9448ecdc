"""`KernelCRF`: kernel conditional random fields with clique selection."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from seqfield.architectures.atoms import Atom, Atoms
from seqfield.architectures.lookup import Lookup
from seqfield.errors import InputError
from seqfield.estimators._base import Fit, random_of
from seqfield.estimators._descent import (
    Floats,
    Merit,
    descent_facts,
    early_stopping_param,
    following,
    patience_param,
    validation_fraction_param,
    watched,
)
from seqfield.estimators._files import register
from seqfield.estimators._kernel import (
    KernelEstimator,
    eta_of,
    eta_param,
    fitted_kernels,
    gram_dtype_param,
    grams_of,
    told_part,
    transitions_param,
)
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import anything, parameters, real, whole, word
from seqfield.functions import KernelFunction, Learned
from seqfield.kernels.tokens import Tokens
from seqfield.losses.log import LogLoss
from seqfield.priors import ElasticNet
from seqfield.sequences import place_of
from seqfield.solvers.greedy import Greedy, Round
from seqfield.solvers.pickers import Cliques, MeanField, steepness

ADVICE = (
    "Train on fewer sequences, give more with gram_budget=, or halve the need with "
    'gram_dtype="float32"'
)


class Clique(NamedTuple):
    """A chosen clique: the number of the kernel, the first equal training token (sequence,
    position), the label or pair of labels, and the coefficient."""

    kernel: int
    place: tuple[int, int]
    labels: tuple[Any, ...]
    coefficient: float


@register
@parameters
class KernelCRF(KernelEstimator):
    """Kernel conditional random field with greedily chosen cliques.

    A vertex clique adds k(x_t, .) to the score of one label. An edge clique adds it to the score of
    one pair of labels (edge[t] scores the pair that ends at token t). Each round adds the clique
    with the best selection score, and fits all coefficients again. The model always has
    transition scores that do not depend on the position.

    Attributes
    ----------
    classes_ : labels in column order
    path_ : a `Round` for each round: number of cliques, regularised risk, log loss; not in model
        files
    cliques_ : the chosen cliques (`Clique`) in order, not in model files
    n_iter_ : rounds done; best_iter_ : rounds kept
    kernel_, transitions_, objective_, n_tokens_, n_kept_ : as in `GPSC`

    >>> import seqfield as sf
    >>> X, y = sf.make_galaxy(20, random_state=0)
    >>> model = sf.KernelCRF(sf.kernels.RBF(0.35), n_cliques=10).fit(X, y)
    >>> model.n_kept_ <= 10, model.path_[-1].risk < model.path_[0].risk
    (True, True)
    """

    kernel: Any = anything(
        default=None,
        help=(
            "a kernel, a name or a function as in `GPSC`, or a list of these. With a list, the "
            "scores are a sum of one part for each kernel, and each round takes the best clique "
            "of every kernel"
        ),
        kw_only=False,
    )
    cliques: str = word(
        default="vertex",
        help=(
            'which cliques can be chosen. "vertex" is tokens with one label; "vertex+edge" is '
            "also tokens with a pair of labels"
        ),
        words=("vertex", "vertex+edge"),
    )
    n_cliques: int = whole(
        default=100,
        help="largest number of cliques; more cliques fit better, and make prediction slower",
        low=1,
    )
    gain: str = word(
        default="gradient",
        help=(
            'selection score of a candidate. "gradient" is the size of the functional gradient; '
            'it takes one product with the gram matrix for all candidates. "meanfield" is the '
            "fall of the risk with the best coefficient, if tokens were independent"
        ),
        words=("gradient", "meanfield"),
    )
    gain_tol: float = real(
        default=0.0,
        help="stop when a round lowers the regularised risk by less than this",
        low=0,
    )
    c2: float = real(
        default=1.0,
        help="weight of the squared norm; raise it if the model fits training labels too closely",
        low=0,
    )
    eta: float = eta_param()
    transitions: bool = transitions_param()
    early_stopping: bool = early_stopping_param()
    validation_fraction: float = validation_fraction_param()
    patience: int = patience_param(10, "rounds")
    tol: float = real(default=1e-5, help="relative tolerance of each refit", low=0)
    gram_dtype: str = gram_dtype_param()

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        edges = self.cliques == "vertex+edge"
        if edges and not self.transitions:
            raise InputError(
                "transitions=False is a model of single tokens, which has no use for edge cliques: "
                "take cliques='vertex'"
            )
        kernels = fitted_kernels(self.kernel, lesson, several=True)
        lesson = told_part(lesson, type(self).__name__)
        tokens, s = Tokens.of(lesson.data), lesson.n_labels
        n, grams = int(tokens.x.shape[0]), grams_of(self, 0, ADVICE)
        share = 1.0 / len(kernels)
        covs = [grams.covariance(kernel, tokens.x, share=share) for kernel in kernels]
        table = Lookup(s, n, edges=edges)
        most = min(self.n_cliques, len(kernels) * table.n_columns * n)
        grams.check_atoms(most, n)
        solver = Greedy(
            Atoms(s, covs, eta=eta_of(self, lesson), free=True, edges=edges),
            ElasticNet(0.0, self.c2),
            Cliques(steepness if self.gain == "gradient" else MeanField(self.n_jobs)),
            max_iter=most,
            max_atoms=most,
            gain_tol=self.gain_tol,
            tol=self.tol,
        )

        def merit(held: Lesson) -> Merit:
            return held.objective(table, LogLoss(), n_jobs=self.n_jobs).value

        numbered = lesson._replace(data=tokens.numbered())
        train, watch = watched(numbered, self, random_of(self), merit)
        goal = train.objective(table, LogLoss(), n_jobs=self.n_jobs)
        with following(most, show=lesson.show, watch=watch) as callback:
            minimum, found = solver.minimise(goal, callback)
        best_iter = watch.best_of(minimum)[1]
        path = found.rounds[:best_iter]
        # without a chosen clique the model is its transitions
        begin = Round(0, found.start, minimum.value, minimum.value)
        last = path[-1] if path else begin
        minimum = minimum._replace(value=last.risk, gradient=None)
        _, facts = descent_facts(None, minimum, watch, "raise the penalty c2, or tol")
        chosen, kept = found.atoms[: last.n_atoms], found.coefficients(best_iter)
        coefficients = np.zeros((len(covs), n, table.n_columns))
        for atom, value in zip(chosen, kept, strict=True):
            coefficients[atom.kernel, atom.rows[0], atom.columns[0]] = value
        parts = [cov.function(part) for cov, part in zip(covs, coefficients, strict=True)]
        facts |= {"path_": path, "n_tokens_": n, "cliques_": _told(chosen, kept, tokens, lesson)}
        return Fit(KernelFunction(kernels, parts, last.transitions, edges), facts)


def _told(atoms: list[Atom], coefficients: Floats, tokens: Tokens, lesson: Lesson) -> list[Clique]:
    """The chosen cliques, with the names of their labels."""
    names, s, out = lesson.labels.names, lesson.n_labels, []
    for atom, value in zip(atoms, coefficients, strict=True):
        column = atom.columns[0]
        labels: tuple[Any, ...] = (names[column],) if column < s else ()
        if column >= s:
            labels = tuple(names[k] for k in divmod(column - s, s))
        i, t = place_of(int(tokens.first[atom.rows[0]]), tokens.offsets)
        out.append(Clique(atom.kernel, (int(lesson.numbers[i]), t), labels, float(value)))
    return out
