"""The tagger to begin with: the best of a few Gaussian-process models by held-out folds."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.chain import ChainScores
from seqfield.errors import InputError
from seqfield.estimators._base import Floats, SequenceEstimator
from seqfield.estimators._calibration import fit_temperature, held_out, held_out_nll
from seqfield.estimators._files import register
from seqfield.estimators._kernel import zero_one
from seqfield.estimators.gpsc import GPSC
from seqfield.kernels import RBF, InverseFrequency, Kernel, Linear, Normalized
from seqfield.kernels.gram import distinct
from seqfield.labels import Targets
from seqfield.progress import progress
from seqfield.sequences import Sequences

#: distinct tokens beyond which only the linear kernel is tried: others need a gram matrix
MOST_TOKENS = 15_000
#: prior variance of transition scores: in small data neighbours agree by chance
ETA = 0.3
#: how much more rare features weigh in the curved kernel
RARITY = 0.1


class Candidate(NamedTuple):
    """A setting of `GPSC`: the curved kernel or the linear one, the cost of a wrong label in the
    loss (0: log loss), and c2."""

    curved: bool
    cost: float
    c2: float


#: what is tried if nothing else is asked for
CANDIDATES = (
    Candidate(True, 4.0, 1.0),
    Candidate(True, 2.0, 3.0),
    Candidate(True, 0.0, 1.0),
    Candidate(False, 4.0, 1.0),
    Candidate(False, 8.0, 0.1),
)


class Tried(NamedTuple):
    """A candidate, the mean -log p(y_t | x) of tokens held out, and its temperature."""

    candidate: Candidate
    nll: float
    temperature: float


@register
class Tagger(SequenceEstimator):
    """The tagger to begin with, for tens to a few thousand sequences: nothing to tune.

    It fits `GPSC` in a few settings (linear or curved kernel, log loss or one that asks for a
    margin), each without every fold of the sequences in turn, takes the one that gives held-out
    tokens the most probability at its best temperature, and fits that to all of them. Its
    probabilities are calibrated by the same folds. Cost: ``n_folds`` fits for each, and one.

    The curved kernel is linear plus five times the cubed cosine for features that are 0 or 1, with
    rare ones weighing a little more, and RBF for others; with more than 15,000 distinct tokens it
    is left out.

    Parameters
    ----------
    candidates : settings to try, each (curved, cost, c2): whether its kernel is the curved one, the
        cost of a wrong label in the loss (0 is the log loss), and c2. None: (True, 4, 1),
        (True, 2, 3), (True, 0, 1), (False, 4, 1) and (False, 8, 0.1)
    n_folds : folds of sequences; with fewer labelled sequences, as many as these
    features, scheme, on_violation, classes, missing_label, max_iter, tol, random_state, n_jobs,
    verbose : as in `CRF`

    Attributes
    ----------
    classes_ : labels in column order
    chosen_ : the fitted `GPSC`
    tried_ : every candidate with its held-out negative log-likelihood (not in model files)

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> tagger = sf.Tagger(random_state=0).fit(X[:40], y[:40])
    >>> tagger.predict([["2", "cups", "flour"]])
    [['B-QTY', 'B-UNIT', 'B-NAME']]
    """

    warm_start = False
    candidates: Any
    n_folds: int
    max_iter: int
    tol: float
    chosen_: GPSC
    tried_: list[Tried]

    def __init__(
        self,
        *,
        features: Any = None,
        candidates: Any = None,
        n_folds: int = 5,
        scheme: Any = None,
        on_violation: Literal["raise", "repair"] = "raise",
        classes: Any = None,
        missing_label: Any = None,
        max_iter: int = 500,
        tol: float = 1e-5,
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: bool | int = False,
    ) -> None:
        self._store(locals())

    @property
    def n_iter_(self) -> int:
        """Iterations of the last fit."""
        return self.chosen_.n_iter_

    @property
    def objective_(self) -> float:
        """Final value of its objective."""
        return self.chosen_.objective_

    @property
    def kernel_(self) -> Any:
        """The kernel of the chosen model."""
        return self.chosen_.kernel_

    @property
    def n_tokens_(self) -> int:
        """Its distinct training tokens."""
        return self.chosen_.n_tokens_

    @property
    def n_kept_(self) -> int:
        """Tokens where prediction evaluates the kernel."""
        return self.chosen_.n_kept_

    def _fit(self, data: Sequences, targets: Targets, weights: Floats) -> None:
        number("n_folds", self.n_folds, low=2, whole=True)
        blank: NDArray[np.bool_] = np.all(targets.mask(len(self._labels)), axis=1)
        n_told = int(np.count_nonzero(np.add.reduceat(~blank, targets.offsets[:-1])))
        n_folds = max(2, min(self.n_folds, n_told))
        seed = self._random().randint(2**31)  # all of them get the same folds
        curved = _curved(data)
        candidates = [c for c in self._candidates() if curved is not None or not c.curved]
        if not candidates:
            raise InputError(
                f"more than {MOST_TOKENS:,} distinct tokens: candidates with the linear kernel only"
            )
        self.tried_ = []
        with progress("choosing", len(candidates), show=bool(self.verbose)) as report:
            for k, candidate in enumerate(candidates):
                model = self._member(candidate, curved)
                rng = np.random.RandomState(seed)
                folds = held_out(model, data, targets, weights, rng, n_folds)
                temperature = fit_temperature(folds)
                nll = held_out_nll(folds, temperature) / max(1.0, _known(targets, weights, blank))
                self.tried_.append(Tried(candidate, nll, temperature))
                report(k + 1, f"NLL per token {nll:.4f}")
        best = min(self.tried_, key=lambda tried: tried.nll)
        self.chosen_ = self._member(best.candidate, curved)
        self.chosen_._fit(data, targets, weights)
        self.temperature_ = best.temperature

    def _candidates(self) -> list[Candidate]:
        given = CANDIDATES if self.candidates is None else self.candidates
        try:
            found = [Candidate(*one) for one in given]
        except TypeError:
            found = []
        if not found:
            raise InputError(f"candidates must be a list of (curved, cost, c2), got {given!r}")
        for one in found:
            number("cost", one.cost, low=0)
            number("c2", one.c2, low=0)
        return found

    def _member(self, candidate: Candidate, curved: Kernel | None) -> GPSC:
        """A model that shares what is known of features and labels."""
        model = GPSC(
            curved if candidate.curved else Linear(),
            loss="softmax_margin" if candidate.cost else "log",
            cost=candidate.cost,
            c2=candidate.c2,
            eta=ETA,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=self.random_state,
            n_jobs=self.n_jobs,
            verbose=self.verbose,
        )
        return self._share(model)

    def _share(self, model: GPSC) -> GPSC:
        model.features_, model.n_features_in_ = self.features_, self.n_features_in_
        model._labels, model.classes_ = self._labels, self.classes_
        model._constraint = self._constraint
        model._scale(None)
        if hasattr(self, "_used"):
            model._used = self._used
        return model

    def _scores(self, data: Sequences) -> ChainScores:
        return self.chosen_._scores(data)

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        header, arrays = self.chosen_._state()
        loss = {name: getattr(self.chosen_, name) for name in ("loss", "cost", "c2", "eta")}
        return {"settings": loss, "model": header}, arrays

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        settings = dict(header["settings"])
        self.chosen_ = self._share(GPSC(**settings))
        self.chosen_._restore(header["model"], arrays)
        self.chosen_.kernel = self.chosen_.kernel_


def default_tagger(**params: Any) -> Tagger:
    """The tagger to begin with: a `Tagger` with these parameters."""
    return Tagger(**params)


def _known(targets: Targets, weights: Floats, blank: NDArray[np.bool_]) -> float:
    """Weight of the tokens of which something is known."""
    return float(np.repeat(weights, np.diff(targets.offsets)) @ ~blank)


def _curved(data: Sequences) -> Kernel | None:
    """The curved kernel for such features; None if there are too many distinct tokens for it."""
    if len(distinct(data.x)[0]) > MOST_TOKENS:
        return None
    if not zero_one(data.x):
        return RBF()
    return InverseFrequency(Linear() + 5.0 * Normalized(Linear()) ** 3, RARITY)
