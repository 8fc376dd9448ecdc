"""Small random problems for all losses, and derivatives by differences."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple
from zlib import crc32

import numpy as np

from seqfield.chain import ChainScores
from seqfield.chain.reference import enumerate_labellings
from seqfield.labels import Targets
from seqfield.sequences import offsets_of

LENGTHS = [1, 4, 2, 3]
KNOWN = ("full", "missing", "candidates", "mixed")
EDGES = ("stationary", "positional")
ENDS = ("plain", "start", "end", "start and end")
FORBIDDEN = (False, True)
WEIGHTS = ("ones", "weights", "zeros")
GRID = list(product(KNOWN, EDGES, ENDS, FORBIDDEN, WEIGHTS))


class Case(NamedTuple):
    scores: ChainScores
    targets: Targets
    weights: np.ndarray


def make(known, edges, ends, forbidden, weights, *, n_labels=3, scale=1.0):
    """A random problem in which every sequence has an allowed labelling that fits its targets."""
    seed = crc32(repr((known, edges, ends, forbidden, weights, n_labels, scale)).encode())
    rng = np.random.default_rng(seed)
    offsets = offsets_of(LENGTHS)
    n, s = int(offsets[-1]), n_labels
    node = scale * rng.normal(size=(n, s))
    edge = scale * rng.normal(size=(s, s) if edges == "stationary" else (n, s, s))
    start = scale * rng.normal(size=s) if "start" in ends else None
    end = scale * rng.normal(size=s) if "end" in ends else None
    if forbidden:
        edge[..., 0, 0] = edge[..., 1, 2] = -np.inf
        node[2, 1] = node[6, 2] = -np.inf
        for part in (start, end):
            if part is not None:
                part[1] = -np.inf
    scores = ChainScores(node, edge, offsets, start, end)
    gold = np.concatenate([_one_path(scores, i, rng) for i in range(len(LENGTHS))])
    mask = np.arange(s) == gold[:, None]
    if known in ("missing", "mixed"):
        mask[rng.random(n) < 0.4] = True
        mask[offsets[1] : offsets[2]] = True  # a sequence of which nothing is known
    if known in ("candidates", "mixed"):
        mask |= (rng.random(n) < 0.5)[:, None] & (rng.random((n, s)) < 0.5)
    codes = np.where(mask.sum(axis=1) == 1, mask.argmax(axis=1), -1).astype(np.int32)
    targets = Targets(codes, None if known == "full" else mask, offsets)
    w = {
        "ones": np.ones(len(LENGTHS)),
        "weights": rng.uniform(0.2, 3.0, len(LENGTHS)),
        "zeros": np.array([0.0, 1.5, 0.0, 2.0]),
    }[weights]
    return Case(scores, targets, w)


def _one_path(scores, i, rng):
    """A labelling of sequence i that the scores allow."""
    found = enumerate_labellings(scores, i)
    return found.labels[rng.choice(np.flatnonzero(found.scores > -np.inf))]


def differences(loss, case):
    """The score gradient by central differences: node and edge part."""
    s, out = case.scores, {}
    for name, part in (("node", s.node), ("edge", s.edge)):
        numeric = np.zeros(part.shape)
        for at in np.ndindex(part.shape):
            if part[at] == -np.inf:
                continue
            ends = []
            for step in (1e-4, -1e-4, 5e-5, -5e-5):
                moved = part.copy()
                moved[at] += step
                parts = {"node": s.node, "edge": s.edge} | {name: moved}
                scores = ChainScores(**parts, offsets=s.offsets, start=s.start, end=s.end)
                ends.append(loss(scores, case.targets, case.weights).value)
            # two central differences, extrapolated to step 0
            coarse, fine = (ends[0] - ends[1]) / 2e-4, (ends[2] - ends[3]) / 1e-4
            numeric[at] = (4 * fine - coarse) / 3
        out[name] = numeric
    return out["node"], out["edge"]


def along(case, seed, reach=3.0):
    """Scores and targets on a random straight line, as a function of the place on it."""
    rng, s = np.random.default_rng(seed), case.scores
    d_node = rng.normal(size=s.node.shape) * reach
    d_edge = rng.normal(size=s.edge.shape) * reach

    def at(r):
        scores = ChainScores(s.node + r * d_node, s.edge + r * d_edge, s.offsets, s.start, s.end)
        return Case(scores, case.targets, case.weights)

    return at, d_node, d_edge
