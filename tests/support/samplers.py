"""Problems for samplers, and whether ranks of draws are uniform."""

from __future__ import annotations

import numpy as np

from seqfield.architectures.rooted import Rooted
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.labels import Targets
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.objectives.problems import WhitenedProblem
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of

PLAIN = ElasticNet(0.0, 0.0)
#: arguments of `some`
KINDS = {
    "known": {},
    "missing": {"missing": True},
    "law": {"law": True},
    "missing, law": {"missing": True, "law": True},
    "one weight": {"weights": np.ones(7)},
}


def objective(architecture, lengths, y, rows=None, *, weights=None, mask=None, law=None, jobs=None):
    """An objective whose token t has the row rows[t] of the architecture's table."""
    offsets = offsets_of(lengths)
    rows = np.arange(offsets[-1]) if rows is None else rows
    data = Sequences(np.asarray(rows, float)[:, None], offsets)
    codes = np.asarray(y, np.int32)
    if mask is not None:
        codes = np.where(mask.sum(axis=1) == 1, codes, -1).astype(np.int32)
    weights = np.ones(len(lengths)) if weights is None else np.asarray(weights, float)
    targets = Targets(codes, mask, data.offsets)
    return Objective(architecture, LogLoss(), PLAIN, data, targets, weights, law, jobs)


def some(s=3, *, seed=0, n=7, distinct=8, rank=5, eta=1.0, missing=False, law=False, **options):
    """A random problem: tokens that come several times, sequences of different weight."""
    rng = np.random.default_rng([seed, s])
    lengths = np.append(1, rng.integers(1, 7, n - 1))
    total = int(lengths.sum())
    rows, y = rng.integers(distinct, size=total), rng.integers(s, size=total)
    mask = None
    if missing:
        mask = (np.arange(s) == y[:, None]) | (rng.random((total, s)) < 0.3)
        mask[rng.random(total) < 0.2] = True
        mask[0], mask[1] = True, np.arange(s) == y[1]
    constraint = None
    if law:  # nothing begins with the last label, which follows the first and itself alone
        start, pairs = np.arange(s) < s - 1, np.ones((s, s), bool)
        pairs[1:-1, -1] = s == 2
        constraint = Constraint.of(Allowed(start, pairs, np.ones(s, bool)))
        y = np.minimum(y, s - 2)
        if mask is not None:
            mask[:, 0] = True
            y = np.zeros_like(y)
    options = {"weights": rng.uniform(0.3, 2.0, n)} | options
    root = rng.normal(size=(distinct, rank))
    return objective(Rooted(s, root, eta), lengths, y, rows, mask=mask, law=constraint, **options)


def unevenness(ranks):
    """How many standard errors mean and variance of ranks are from those of a uniform variable,
    the larger of the two."""
    n = len(ranks)
    mean = (ranks.mean(axis=0) - 0.5) * np.sqrt(12 * n)
    variance = (((ranks - 0.5) ** 2).mean(axis=0) - 1 / 12) * np.sqrt(180 * n)
    return np.maximum(np.abs(mean), np.abs(variance))


def whitened(goal):
    """What elliptical slices are given of an objective."""
    return WhitenedProblem.of(
        goal.architecture, goal.data, goal.targets, goal.weights, goal.constraint, goal.n_jobs
    )
