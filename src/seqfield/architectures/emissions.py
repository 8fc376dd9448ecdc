"""Emissions of a hidden Markov model, p(x_t | label), and learners of their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]

#: least variance within a label, relative to the feature's overall variance
FLOOR = 1e-9
#: overflow raises an error with a message, not a warning
HUGE = np.errstate(over="ignore", invalid="ignore")


@dataclass(frozen=True, eq=False)
class Multinomial:
    """log p(x_t | j) = sum_f x_tf log p(f | j)."""

    log_emission: Floats
    kind: ClassVar[str] = "multinomial"

    @HUGE
    def scores(self, x: Any) -> Floats:
        """log p(x_t | j) (N, S), without the terms that are the same for every label."""
        return np.asarray(x @ self.log_emission)

    @staticmethod
    def check(data: Sequences) -> None:
        """Raise an `InputError` at the first negative value."""
        values = data.x.data if sp.issparse(data.x) else data.x.ravel()
        if not (values < 0).any():
            return
        k = int(np.argmax(values < 0))
        if sp.issparse(data.x):
            row, column = (
                int(np.searchsorted(data.x.indptr, k, side="right")) - 1,
                data.x.indices[k],
            )
        else:
            row, column = divmod(k, data.n_features)
        i, t = data.place(row)
        raise InputError(
            f"x is {values[k]} at sequence {i}, position {t}, column {column}: multinomial "
            "emissions count features, which cannot be negative; train with emission='gaussian'",
            place=(i, t),
        )

    @staticmethod
    def learner(data: Sequences, per_token: Floats, alpha: float) -> _MultinomialLearner:
        """A learner of the parameters on given data."""
        Multinomial.check(data)
        return _MultinomialLearner(data.x, alpha)


class _MultinomialLearner:
    def __init__(self, x: Any, alpha: float) -> None:
        self.x, self.alpha = x, alpha

    @HUGE
    def best(self, labels: Any) -> Multinomial:
        # p(f | j) = (c_fj + alpha) / sum_f (c_fj + alpha)
        counts = _product(self.x, labels) + self.alpha
        return Multinomial(np.log(counts) - np.log(counts.sum(axis=0)))

    def log_prior(self, emission: Any) -> float:
        return self.alpha * float(emission.log_emission.sum())


@dataclass(frozen=True, eq=False)
class Gaussian:
    """log p(x_t | j) = -1/2 sum_f (log 2 pi v_fj + (x_tf - m_fj)^2 / v_fj)."""

    means: Floats
    variances: Floats
    kind: ClassVar[str] = "gaussian"

    @HUGE
    def scores(self, x: Any) -> Floats:
        """log p(x_t | j) (N, S)."""
        x, m, v = _filled(x), self.means, self.variances
        if not sp.issparse(x):
            # the square below is multiplied out; around the means no digits are lost
            centre = m.mean(axis=1)
            x, m = x - centre, m - centre[:, None]
        constant = (np.log(2 * np.pi * v) + m**2 / v).sum(axis=0)
        return np.asarray(x @ (m / v) - 0.5 * (_squares(x) @ (1 / v)) - 0.5 * constant)

    @staticmethod
    def check(data: Sequences) -> None:
        """Nothing to check: every finite number is allowed."""

    @staticmethod
    def learner(data: Sequences, per_token: Floats, alpha: float) -> _GaussianLearner:
        """A learner of the parameters on given data."""
        return _GaussianLearner(data.x, per_token, alpha)


class _GaussianLearner:
    @HUGE
    def __init__(self, x: Any, per_token: Floats, alpha: float) -> None:
        self.alpha = alpha
        share = per_token / per_token.sum()
        x = _filled(x)
        constant = _along(x.max(axis=0)) == _along(x.min(axis=0))
        # moments are taken around the overall mean, or around 0 so that sparse x stays sparse
        self.centre = np.zeros(x.shape[1]) if sp.issparse(x) else share @ x
        self.x = x if sp.issparse(x) else x - self.centre
        self.squares = _squares(self.x)
        self.mean = share @ self.x
        second = share @ self.squares
        rounding = np.finfo(float).eps * second
        # a constant feature says nothing: any variance will do if all labels share it
        self.variance = np.where(constant, 1.0, np.maximum(second - self.mean**2, rounding))
        self.floor = np.where(constant, 1.0, FLOOR * self.variance)

    @HUGE
    def best(self, labels: Any) -> Gaussian:
        # the moments of the label's tokens and of alpha average tokens
        a, mean = self.alpha, self.mean[:, None]
        n = labels.sum(axis=0) + a
        first = (_product(self.x, labels) + a * mean) / n
        second = (_product(self.squares, labels) + a * (self.variance[:, None] + mean**2)) / n
        # the best variance that is at least the floor: the likelihood has one maximum in it
        variances = np.maximum(second - first**2, self.floor[:, None])
        return Gaussian(first + self.centre[:, None], variances)

    def log_prior(self, emission: Any) -> float:
        # alpha E log p(x | j) over tokens x with the overall mean and variance
        v = emission.variances
        off = (self.mean + self.centre)[:, None] - emission.means
        spread = (self.variance[:, None] + off**2) / v
        return -0.5 * self.alpha * float((np.log(2 * np.pi * v) + spread).sum())


Kind = type[Multinomial] | type[Gaussian]
KINDS: dict[str, Kind] = {
    "multinomial": Multinomial,
    "gaussian": Gaussian,
}


def _product(x: Any, labels: Any) -> Floats:
    """X' Y (D, S) as a dense array."""
    out = x.T @ labels
    return np.asarray(out.toarray() if sp.issparse(out) else out)


def _filled(x: Any) -> Any:
    """x, as a dense array if at least half of it is not zero: that takes less memory."""
    return x.toarray() if sp.issparse(x) and 2 * x.nnz >= x.shape[0] * x.shape[1] else x


def _squares(x: Any) -> Any:
    return x.astype(np.float64).power(2) if sp.issparse(x) else x**2


def _along(row: Any) -> Floats:
    return np.asarray(row.toarray() if sp.issparse(row) else row).ravel()
