"""Approximate leave-one-out against refits and ten-fold cross-validation.

    SEQFIELD_DATA=... OPENBLAS_NUM_THREADS=1 python -m benchmarks.speed.leave_one_out [--n 500]

A CRF on random sentences of esp.train (9 labels), processor seconds of one thread: a fit,
`leave_one_out_proba`, `cross_val_proba` in ten folds, and all refits, estimated from some that
start from the weights of all sentences. Then the mean -log p(y | x) of a sentence in the fit and
left out, that of tokens left out and out of fold, and of the refitted sentences the mean error of
the approximation and of none.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import seqfield as sf
from benchmarks._data import spanish
from benchmarks._process import timed

cpu = partial(timed, clock=time.process_time)


def refit(model: sf.CRF, X: list[Any], y: list[Any], i: int) -> float:
    """log p(y | x) of sentence i by a model without it."""
    twin = copy.copy(model).set_params(warm_start=True)
    twin.fit(X, y, sample_weight=np.arange(len(X)) != i)
    return float(twin.log_likelihood(X[i : i + 1], y[i : i + 1])[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=500, help="sentences")
    parser.add_argument("--refits", type=int, default=20, help="sentences to leave out truly")
    parser.add_argument("--c2", type=float, default=1.0, help="penalty")
    args = parser.parse_args(arguments)
    data, rng = spanish(as_published=True).train, np.random.default_rng(0)
    X, y = data.pick(rng.permutation(len(data.y))[: args.n])
    plain = sf.CRF(c2=args.c2, n_jobs=1)
    small = sf.CRF(n_jobs=1).fit(X[:5], y[:5])
    sf.leave_one_out_proba(small, X[:5], y[:5])  # loops are compiled when first used
    model, fit_s = cpu(lambda: plain.fit(X, y))
    left, left_s = cpu(lambda: sf.leave_one_out_proba(model, X, y))
    folds, folds_s = cpu(lambda: sf.cross_val_proba(plain, X, y, cv=10))
    some = rng.permutation(args.n)[: args.refits]
    tight = copy.copy(model).set_params(tol=1e-7, max_iter=2000)
    true, true_s = cpu(lambda: np.array([refit(tight, X, y, int(i)) for i in some]))
    print(f"{args.n} sentences, {sum(map(len, X))} tokens, {len(model.theta_)} weights")
    print(f"fit {fit_s:.1f} s, leave-one-out {left_s:.1f} s, ten folds {folds_s:.1f} s, ", end="")
    print(f"{args.n} refits {true_s * args.n / len(some):.0f} s")
    before = model.log_likelihood(X, y)
    tokens = [sf.metrics.token_nll(y, p, model.classes_, mean=True) for p in (left.proba, folds)]
    print(f"-log p(y | x): {-before.mean():.3f} in the fit, {-left.log_likelihood.mean():.3f} out")
    print(f"of tokens: {tokens[0]:.4f} left out, {tokens[1]:.4f} out of fold")
    errors = [np.abs(v[some] - true).mean() for v in (left.log_likelihood, before)]
    print(f"error on {len(some)} refitted: {errors[0]:.3f}, in the fit {errors[1]:.3f}")


if __name__ == "__main__":
    main()
