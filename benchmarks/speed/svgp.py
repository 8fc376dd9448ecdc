"""Memory and time of StructuredSVGP as data grow.

    python -m benchmarks.speed.svgp [--tokens 1000000]

Synthetic sequences of about 25 tokens (16 numbers each, 5 labels of a hidden Markov chain), 100
inducing tokens, batches of 100 sequences, steps of natural gradient, one pass over the data. Each
size is fitted in a process of its own; memory is its peak beyond what it had with the data
loaded. The likelihood is per token of 2,000 sequences that were not seen.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from benchmarks._process import alone, answer, forget_peak, memory_mib, seconds
from benchmarks._table import header, row

LABELS, WIDTH, LENGTH = 5, 16, 25


def draw(n_tokens: int, seed: int) -> tuple[np.ndarray, list[list[int]], np.ndarray]:
    """Tokens, label rows and lengths."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(LABELS, WIDTH))
    lengths = np.full(n_tokens // LENGTH, LENGTH)
    stay = rng.random((len(lengths), LENGTH)) < 0.8
    other = rng.integers(LABELS, size=stay.shape)
    labels = other.copy()
    for t in range(1, LENGTH):
        labels[:, t] = np.where(stay[:, t], labels[:, t - 1], other[:, t])
    x = centres[labels.ravel()] + 1.5 * rng.normal(size=(labels.size, WIDTH))
    return x, labels.tolist(), lengths


def fit(n_tokens: int) -> dict[str, Any]:
    warnings.simplefilter("ignore", ConvergenceWarning)
    kernel = 4.0 * sf.kernels.RBF(5.0)
    small = draw(2000 * LENGTH, 2)
    few = sf.StructuredSVGP(kernel, 100, batch_size=100, max_iter=1, random_state=0)
    few.fit(small[0][:2500], small[1][:100], lengths=small[2][:100])  # loads what is compiled
    x, y, lengths = draw(n_tokens, 1)
    forget_peak()
    before = memory_mib("VmRSS")
    model = sf.StructuredSVGP(kernel, 100, batch_size=100, max_iter=1, random_state=0)
    took = seconds(partial(model.fit, x, y, lengths=lengths))
    used = memory_mib("VmHWM") - before
    nll = -model.log_likelihood(small[0], small[1], lengths=small[2]).sum() / small[0].shape[0]
    return {"data": x.nbytes / 2**20, "memory": used, "seconds": took, "nll": nll}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of the largest size")
    parser.add_argument("--one", action="store_true", help="this size alone, answer as JSON")
    args = parser.parse_args(arguments)
    if args.one:
        answer(fit(args.tokens))
        return
    header("tokens", "data, MiB", "memory of the fit, MiB", "seconds", "NLL a new token")
    for n in (args.tokens // 100, args.tokens // 10, args.tokens):
        found = alone(__spec__.name, "--tokens", n, "--one")
        row(
            f"{n:,}",
            f"{found['data']:.0f}",
            f"{found['memory']:.0f}",
            f"{found['seconds']:.1f}",
            f"{found['nll']:.4f}",
        )


if __name__ == "__main__":
    main()
