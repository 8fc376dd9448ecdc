"""The conditional remainder: the uncertainty of a function at new tokens, given known values.

Let f be the values at the tokens z of a function drawn from a Gaussian process. At new tokens x the
function has the mean k(x, z) k(z, z)^-1 f and the covariance k(x, x) - k(x, z) k(z, z)^-1 k(z, x).
The remainder is a Gaussian with mean 0 and this covariance. One draw of it is added to each
function that is drawn from a posterior.
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
from seqfield.kernels import Kernel
from seqfield.linalg.factor import cholesky_factor, eigen_factor
from seqfield.sequences import Sequences

Floats = NDArray[np.float64]

#: tokens of a sequence whose remainders are drawn jointly; longer sequences are cut into
#: independent parts
LONGEST = 256
#: jitter: the share of k(x, x) that is added to the variances of a remainder
JITTER = 1e-8
#: rounding may make a variance negative by at most this share of k(x, x)
ROUNDING = 1e-6


class Remainder:
    """The remainder at new tokens given values at ``tokens``, with the covariance of ``kernel``
    times ``variance``; ``seed`` fixes its draws."""

    def __init__(self, kernel: Kernel, tokens: Any, variance: float = 1.0, seed: int = 0) -> None:
        self.kernel, self.tokens = kernel, tokens
        self.variance, self.seed = float(variance), int(seed)

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
        """A root (T, T) of the covariance, with jitter."""
        out, prior = self.covariance(x), self.kernel.diagonal(x)
        if (np.diagonal(out) < -ROUNDING * np.maximum(prior, prior.mean())).any():
            raise InputError(
                "the kernel is not positive semi-definite: a token's variance given others is "
                f"{np.diagonal(out).min():.3g}"
            )
        for jitter in (JITTER, 1e2 * JITTER, 1e4 * JITTER):
            # the diagonal keeps at least the jitter, whatever rounding does
            shifted = out + np.diag(jitter * np.maximum(prior, prior.mean()))
            root, failed = scipy.linalg.lapack.dpotrf(shifted, lower=1, clean=1)
            if failed == 0:
                return np.asarray(root)
        return np.diag(np.sqrt(np.maximum(np.diagonal(out), 0.0)))

    def add(self, values: Floats, data: Sequences) -> None:
        """Add a draw of the remainder to each column of values at the data's tokens, in place."""
        longest, places = int(data.lengths.max()), list(pairwise(data.offsets.tolist()))
        for k, begin in enumerate(range(0, longest, LONGEST)):
            z = self._numbers(k, (min(LONGEST, longest - begin), values.shape[1]))
            places = [(a, b) for a, b in places if a + begin < b]
            for a, b in places:
                part = slice(a + begin, min(a + begin + LONGEST, b))
                root = self.root(data.x[part])
                values[part] += root @ z[: len(root)]

    def _numbers(self, part: int, shape: tuple[int, int]) -> Floats:
        """Random numbers for the tokens of a part; row t belongs to token t of the part.

        They are the same for every sequence, so the labels of a sequence do not depend on the other
        sequences.
        """
        # numbers that are independent of those that gave the functions
        z: Floats = np.random.default_rng([self.seed, 1, part]).normal(size=shape)
        z *= np.sqrt(self.variance)
        return z

    def state(self) -> dict[str, Any]:
        """For the header of a model file."""
        return {"variance": self.variance, "seed": self.seed}

    @classmethod
    def restored(cls, header: Any, kernel: Kernel, tokens: Any) -> Remainder:
        """The remainder of what `state` gave."""
        variance = number("variance", header["variance"], low=0)
        return cls(kernel, tokens, variance, number("seed", header["seed"], low=0, whole=True))
