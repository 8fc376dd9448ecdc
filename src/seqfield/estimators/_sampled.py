"""What estimators share that average predictions over functions drawn from a posterior.

A drawn function is known at some tokens z. At others it is still random: given its values there it
has the mean k(x, z) G^-1 f and the covariance k(x, x) - k(x, z) G^-1 k(z, x), the same for every
label and draw. One draw of that remainder goes with each drawn function.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.estimators._descent import Floats
from seqfield.estimators._kernel import KernelEstimator
from seqfield.kernels import Kernel
from seqfield.kernels.functions import Span
from seqfield.linalg.factor import cholesky_factor, eigen_factor
from seqfield.sequences import Sequences

#: tokens of a sequence whose remainders are drawn together; longer ones are cut
LONGEST = 256
#: what is added to a remainder's covariance, as a part of k(x, x)
JITTER = 1e-8


class Remainder:
    """The covariance of functions at new tokens, given their values at the tokens z."""

    def __init__(self, kernel: Kernel, tokens: Any) -> None:
        self.kernel, self.tokens = kernel, tokens

    @cached_property
    def _dual(self) -> Floats:
        """D with D D' = k(z, z)^-1."""
        gram = self.kernel(self.tokens)
        try:
            return cholesky_factor(gram).dual
        except InputError:
            return eigen_factor(gram).dual

    def covariance(self, x: Any) -> Floats:
        """k(x, x) - k(x, z) k(z, z)^-1 k(z, x) (T, T)."""
        half = self.kernel(x, self.tokens) @ self._dual
        out: Floats = self.kernel(x) - half @ half.T
        return out

    def root(self, x: Any) -> Floats:
        """A root (T, T) of it."""
        out, prior = self.covariance(x), self.kernel.diagonal(x)
        for jitter in (JITTER, 1e2 * JITTER, 1e4 * JITTER):
            # no less than that much of it is left, whatever rounding takes
            shifted = out + np.diag(jitter * np.maximum(prior, prior.mean()))
            root, failed = scipy.linalg.lapack.dpotrf(shifted, lower=1, clean=1)
            if failed == 0:
                return np.asarray(root)
        return np.diag(np.sqrt(np.maximum(np.diagonal(out), 0.0)))


class SampledEstimator(KernelEstimator):
    """Base of estimators that predict by posterior draws.

    Fitted attributes: ``n_samples_``, how many.
    """

    n_samples: int
    _noise: int

    def _keep_posterior(self, basis: Any, mean: Floats, draws: Floats, root_eta: float) -> None:
        """Keep the posterior mean, draws (k, P), and a seed for what they leave open."""
        self._noise = int(self._random().randint(2**31 - 1))
        self._keep_draws(basis, np.vstack([mean, draws]), root_eta)
        self._know()

    def _know(self) -> None:
        span = self._functions[0]
        assert isinstance(span, Span)
        self._remainder = Remainder(self._kernels[0], span.tokens)

    @property
    def n_samples_(self) -> int:
        """Posterior draws that predictions are averaged over."""
        return self._n_draws

    def _drawn_values(self, data: Sequences, columns: slice) -> Floats:
        values = super()._drawn_values(data, columns)
        longest = min(LONGEST, int(data.lengths.max()))
        # row t belongs to the token t of a sequence, so that labels do not depend on what else is
        # labelled in the same call
        z = np.random.default_rng(self._noise).normal(size=(longest, values.shape[1]))
        for a, b in pairwise(data.offsets.tolist()):
            for first in range(a, b, LONGEST):
                part = slice(first, min(first + LONGEST, b))
                root = self._remainder.root(data.x[part])
                values[part] += root @ z[: len(root)]
        return values

    # --- files ----------------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        header, arrays = super()._state()
        return header | {"noise": self._noise}, arrays

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, arrays)
        self._noise = int(number("noise", header["noise"], low=0, whole=True))
        if len(self._steps) < 2 or not isinstance(self._functions[0], Span):
            raise InputError("no posterior draws")
        self._know()
