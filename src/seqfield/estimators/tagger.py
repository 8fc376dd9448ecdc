"""`Tagger`: the best of a few Gaussian-process models, chosen on held-out folds."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.estimators._base import Fit, SequenceEstimator, held_out, random_of
from seqfield.estimators._files import register
from seqfield.estimators._kernel import kept_by, kernels_of, zero_one
from seqfield.estimators._lesson import Lesson
from seqfield.estimators._params import anything, parameters, real, whole, word
from seqfield.estimators.gpsc import GPSC
from seqfield.functions import KernelFunction, Learned
from seqfield.kernels import RBF, InverseFrequency, Kernel, Linear, Normalized
from seqfield.kernels.gram import distinct
from seqfield.predictions.calibration import (
    WAYS,
    Calibration,
    HeldOut,
    fit_calibration,
    fit_temperature,
    held_out_nll,
)
from seqfield.progress import progress
from seqfield.sequences import Sequences
from seqfield.solvers.lbfgs import LBFGS

#: with more distinct tokens only the linear kernel is tried: other kernels need a gram matrix
MOST_TOKENS = 15_000
#: prior variance of transition scores, small because neighbours in small data agree by chance
ETA = 0.3
#: how much larger the weight of rare features is in the curved kernel
RARITY = 0.1


class Candidate(NamedTuple):
    """A setting of `GPSC`: the curved kernel or the linear one, the cost of a wrong label in the
    loss (0: log loss), and c2."""

    curved: bool
    cost: float
    c2: float


#: the default candidates
CANDIDATES = (
    Candidate(True, 4.0, 1.0),
    Candidate(True, 2.0, 3.0),
    Candidate(True, 0.0, 1.0),
    Candidate(False, 4.0, 1.0),
    Candidate(False, 8.0, 0.1),
)


class Tried(NamedTuple):
    """A candidate, its mean -log p(y_t | x) on held-out tokens, and its temperature."""

    candidate: Candidate
    nll: float
    temperature: float


@register
@parameters
class Tagger(SequenceEstimator):
    """A tagger without parameters to tune. Start with it if you have tens to a few thousand
    sequences.

    `fit` compares a few settings of `GPSC` by cross-validation. A setting has a linear or a curved
    kernel, and the log loss or a loss with a margin. The chosen setting gives the labels of
    held-out tokens the most probability, at its best temperature. This setting is then fitted to
    all sequences. The same folds calibrate its probabilities. The cost is ``n_folds`` fits for each
    setting, and one more fit.

    For features that are 0 or 1, the curved kernel is linear plus five times the cubed cosine, and
    rare features have a little more weight. For other features it is RBF. With more than 15,000
    distinct tokens the curved kernel is not tried.

    Attributes
    ----------
    classes_ : labels in column order
    chosen_ : the chosen setting, (curved, cost, c2)
    tried_ : every candidate with its held-out negative log-likelihood (not in model files)
    kernel_, n_tokens_, n_kept_, n_iter_, objective_, gap_ : as in `GPSC`, of the chosen model

    >>> import seqfield as sf
    >>> X, y = sf.load_ingredients("train")
    >>> tagger = sf.Tagger(random_state=0).fit(X[:40], y[:40])
    >>> tagger.predict([["2", "cups", "flour"]])
    [['B-QTY', 'B-UNIT', 'B-NAME']]
    """

    learns: ClassVar[tuple[type[Learned], ...]] = (KernelFunction,)
    candidates: Any = anything(
        default=None,
        help=(
            "settings to try, each (curved, cost, c2). curved says whether the kernel is the "
            "curved one, cost is the cost of a wrong label (0 is the log loss), and c2 is as in "
            "`GPSC`. None is (True, 4, 1), (True, 2, 3), (True, 0, 1), (False, 4, 1) and "
            "(False, 8, 0.1)"
        ),
    )
    n_folds: int = whole(
        default=5,
        help="number of folds; at most the number of labelled sequences is used",
        low=2,
    )
    calibrate: Any = word(
        default=True,
        help=(
            "how to calibrate, on the folds that chose the setting. True or "
            '"temperature" fits one temperature. "platt" adds an offset for each label, "vector" '
            "also a slope for each label. False leaves the scores as they are"
        ),
        words=WAYS,
    )
    max_iter: int = whole(default=500, help="largest number of iterations of each fit", low=1)
    tol: float = real(
        default=1e-5, help="relative tolerance of each fit; lower it for closer optima", low=0
    )

    def _learn(self, lesson: Lesson, start: Learned | None = None) -> Fit:
        n_folds = max(2, min(self.n_folds, len(lesson.told)))
        seed = random_of(self).randint(2**31)  # all candidates get the same folds
        curved = _curved(lesson.data)
        candidates = [c for c in self._candidates() if curved is not None or not c.curved]
        if not candidates:
            raise InputError(
                f"more than {MOST_TOKENS:,} distinct tokens: candidates with the linear kernel only"
            )
        known = float(np.repeat(lesson.weights, lesson.data.lengths) @ lesson.known)
        tried: list[Tried] = []
        best: list[HeldOut] = []
        with progress("choosing", len(candidates), show=lesson.show) as report:
            for k, candidate in enumerate(candidates):
                model, rng = self._member(candidate, curved), np.random.RandomState(seed)
                folds = held_out(model, lesson, rng, n_folds)
                temperature = fit_temperature(folds)
                nll = held_out_nll(folds, temperature) / max(1.0, known)
                if not tried or nll < min(one.nll for one in tried):
                    best = folds
                tried.append(Tried(candidate, nll, temperature))
                report(k + 1, f"NLL per token {nll:.4f}")
        chosen = min(tried, key=lambda one: one.nll)
        found = self._member(chosen.candidate, curved)._learn(lesson)
        facts = found.facts | {"tried_": tried, "cost_": chosen.candidate.cost}
        return Fit(found.function, facts, self._calibration(chosen, best))

    def _calibration(self, chosen: Tried, folds: list[HeldOut]) -> Calibration | None:
        if not self.calibrate:
            return None
        if self.calibrate in (True, "temperature"):
            return Calibration(chosen.temperature)
        return fit_calibration(folds, self.calibrate)

    def _candidates(self) -> list[Candidate]:
        given = CANDIDATES if self.candidates is None else self.candidates
        try:
            found = [Candidate(*one) for one in given]
        except TypeError:
            found = []
        if not found:
            raise InputError(f"candidates must be a list of (curved, cost, c2), got {given!r}")
        for one in found:
            number("candidates: cost", one.cost, low=0)
            number("candidates: c2", one.c2, low=0)
        return found

    def _member(self, candidate: Candidate, curved: Kernel | None) -> GPSC:
        """The model of a candidate."""
        return GPSC(
            curved if candidate.curved else Linear(),
            loss="softmax_margin" if candidate.cost else "log",
            cost=candidate.cost,
            c2=candidate.c2,
            eta=ETA,
            solver=LBFGS(max_iter=self.max_iter, tol=self.tol, n_jobs=self.n_jobs),
            random_state=self.random_state,
            n_jobs=self.n_jobs,
        )

    @property
    def chosen_(self) -> Candidate:
        """The chosen setting."""
        return Candidate(not isinstance(self.kernel_, Linear), self.cost_, self.c2_)

    @property
    def kernel_(self) -> Any:
        """The kernel of the chosen model."""
        return kernels_of(self.scorer)[0]

    @property
    def n_kept_(self) -> int:
        """Tokens where prediction evaluates the kernel."""
        return kept_by(self.scorer)


def default_tagger(**params: Any) -> Tagger:
    """The default model: a `Tagger` with these parameters."""
    return Tagger(**params)


def _curved(data: Sequences) -> Kernel | None:
    """The curved kernel for these features; None if there are too many distinct tokens."""
    if len(distinct(data.x)[0]) > MOST_TOKENS:
        return None
    if not zero_one(data.x):
        return RBF()
    return InverseFrequency(Linear() + 5.0 * Normalized(Linear()) ** 3, RARITY)
