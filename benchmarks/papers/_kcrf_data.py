"""The protein chains of the kernel CRF experiments (Lafferty, Liu and Zhu 2004, section 6).

Profiles for the paper's RS126 are not public: the chains of the JPred4 training set that have one
stand in for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from seqfield.data.datasets import corpus_folder

N_TEST, MOST_CHAINS = 100, 10


class Chains(NamedTuple):
    """A profile (T, 20) for each chain, and its labels H, E, C."""

    X: list[np.ndarray]
    y: list[list[str]]

    def pick(self, chosen: Any) -> Chains:
        """The chains of an index array or a slice."""
        at = np.arange(len(self.y))[chosen]
        return Chains([self.X[i] for i in at], [self.y[i] for i in at])


class Draws(NamedTuple):
    """Training sets and the chains that all of them are tested on."""

    train: list[Chains]
    test: Chains


def proteins() -> Chains:
    """The 1,252 JPred4 domains with a profile, by the paper's L(x): 0 up to -5, 1 from 5 on."""
    with np.load(corpus_folder() / "protein_ss" / "jpred4_train_pssm.npz") as file:
        offsets, ss, pssm = file["offsets"], file["ss"], file["pssm"]
    profiles = np.clip(0.5 + pssm / 10.0, 0.0, 1.0)
    labels = [chr(code) for code in ss]
    places = list(pairwise(offsets))
    return Chains([profiles[a:b] for a, b in places], [labels[a:b] for a, b in places])


def draw(n_draws: int, n_test: int = N_TEST, seed: int = 0) -> Draws:
    """A fixed random test set, and draws of ten chains from the others.

    A training set of five chains is the first half of one of ten, so the two can be compared pair
    by pair.
    """
    chains, rng = proteins(), np.random.default_rng(seed)
    order = rng.permutation(len(chains.y))
    test, others = order[:n_test], order[n_test:]
    chosen = [rng.choice(others, MOST_CHAINS, replace=False) for _ in range(n_draws)]
    return Draws([chains.pick(at) for at in chosen], chains.pick(test))
