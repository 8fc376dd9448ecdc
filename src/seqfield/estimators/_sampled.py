"""What estimators share that average predictions over functions drawn from a posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqfield.errors import InputError
from seqfield.estimators._descent import Floats
from seqfield.estimators._kernel import KernelEstimator


class SampledEstimator(KernelEstimator):
    """Base of estimators that predict by posterior draws.

    Fitted attributes: ``n_samples_``, how many.
    """

    n_samples: int

    def _keep_posterior(self, basis: Any, mean: Floats, draws: Floats, root_eta: float) -> None:
        """Keep the posterior mean, draws (k, P), and what they leave open."""
        self._keep_draws(basis, np.vstack([mean, draws]), root_eta)

    @property
    def n_samples_(self) -> int:
        """Posterior draws that predictions are averaged over."""
        return self._n_draws

    def _restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, arrays)
        if self._remainder is None:
            raise InputError("no posterior draws")
