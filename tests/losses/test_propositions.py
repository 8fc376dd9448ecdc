"""The four bounds of Altun (2005) on risks that are counted over all labellings."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.chain import ChainScores
from seqfield.chain.reference import enumerate_labellings
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.solvers.boosting import Boosting

from ..support.losses import EDGES, LENGTHS, make
from ..support.problems import Brute, linear_problem, problem

SCALES = (0.02, 0.1, 0.3, 1.0, 3.0, 10.0)


def cases(n=40):
    """Random chains with known labels; a bias of the gold labels so that some are right."""
    for scale in SCALES:
        for edges in EDGES:
            for k in range(n):
                case = make("full", edges, "plain", False, "weights", scale=scale * (1 + k / 97))
                node = case.scores.node.copy()
                node[np.arange(len(node)), case.targets.codes] += scale * (k % 7) / 2
                yield case._replace(scores=ChainScores(node, case.scores.edge, case.scores.offsets))


def everything(case):
    return [enumerate_labellings(case.scores, i) for i in range(len(LENGTHS))]


def gold_of(case):
    return np.split(case.targets.codes, case.scores.offsets[1:-1])


def check(lefts, rights):
    """The bound holds everywhere, says something, and is tight somewhere."""
    lefts, rights = np.array(lefts), np.array(rights)
    assert (lefts <= rights * (1 + 1e-12) + 1e-13).all()
    assert (lefts > 0).mean() > 0.5
    assert (lefts == 0).any()
    ratio = rights[lefts > 0] / lefts[lefts > 0]
    assert ratio.min() < 2.0


def test_1_log_loss_bounds_the_zero_one_risk():
    lefts, rights = [], []
    for case in cases():
        for found, y, loss in zip(
            everything(case),
            gold_of(case),
            LogLoss().values(case.scores, case.targets),
            strict=True,
        ):
            best = found.labels[np.argmax(found.scores)]
            lefts.append(np.log(2) * (best != y).any())
            rights.append(loss)
    check(lefts, rights)
    # no larger constant will do
    assert (np.array(lefts) * 1.1 > np.array(rights)).any()


def test_2_marginal_loss_bounds_the_hamming_risk_of_max_marginal_decoding():
    lefts, rights = [], []
    for case in cases():
        losses = MarginalLoss().values(case.scores, case.targets)
        for found, y, loss in zip(everything(case), gold_of(case), losses, strict=True):
            best = found.node(3).argmax(axis=1)
            lefts.append(np.log(2) * (best != y).mean())
            rights.append(loss)
    check(lefts, rights)
    assert (np.array(lefts) * 1.1 > np.array(rights)).any()


@pytest.mark.parametrize("pi", [1.0, 0.5])
def test_3_exponential_loss_bounds_the_weighted_rank_risk(pi):
    lefts, rights = [], []
    for case in cases():
        rank = 0.0
        for w, found, y in zip(case.weights, everything(case), gold_of(case), strict=True):
            at = (found.labels == y).all(axis=1)
            above = (found.scores >= found.scores[at]) & ~at
            rank += w * pi ** len(y) * above.sum()
        lefts.append(rank)
        rights.append(np.exp(ExponentialLoss(pi)(*case).value))
    check(lefts, rights)


@pytest.mark.parametrize("bound", ["loose", "tight", "exact"])
def test_4_the_product_of_normalisers_bounds_the_rank_risk(bound):
    """D_0 is that of algorithm 3, and D follows (3.15) labelling by labelling."""
    lefts = []
    for seed in range(6):
        for scheme in (False, True):
            goal = problem(["binary", "counts"][seed % 2], 3, scheme=scheme, seed=seed)
            brute = Brute(goal, pi=0.8)
            # w(l) / ((|Y| - 1) sum_j w(l_j)): a distribution over wrong labellings
            sizes = np.bincount(brute.sequence, minlength=len(brute.weights))
            length_weight = 0.8 ** np.diff(goal.data.offsets)
            w = np.where(sizes > 0, length_weight / np.maximum(sizes, 1), 1e-3)
            w /= w @ sizes
            goal.weights = brute.weights = w
            result = Boosting(
                bound=bound, max_iter=25, smoothing=0.0, cap=5.0, length_weight=1.0
            ).minimise(linear_problem(goal), goal.start())
            theta, product = goal.start(), 1.0
            d = brute.parts(theta)
            assert d.sum() == pytest.approx(1.0, rel=1e-12)
            for r in result.rounds:
                d *= np.exp(r.step * brute.u[:, r.weight])
                z = d.sum()
                d /= z
                product *= z
                theta[r.weight] += r.step
                assert z < 1.0
                assert product == pytest.approx(np.exp(r.log_loss), rel=1e-8)
                rank = brute.rank_risk(theta)
                assert rank <= product * (1 + 1e-9)
                lefts.append(rank)
    assert len(lefts) > 100
    assert (np.array(lefts) > 0).mean() > 0.3
