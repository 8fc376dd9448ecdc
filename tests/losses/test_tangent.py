"""Second derivatives of losses against differences of their gradients."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from seqfield.losses._base import TwiceDifferentiable
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss
from seqfield.losses.piecewise import PiecewiseLoss

from ..support.losses import EDGES, ENDS, FORBIDDEN, KNOWN, WEIGHTS, along, make


@pytest.mark.parametrize("cost", [0.0, 1.5])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("edges", EDGES)
def test_tangent_equals_differences_of_the_gradient(known, edges, cost):
    loss = LogLoss(cost)
    for key in product([known], [edges], ENDS, FORBIDDEN, WEIGHTS):
        case = make(*key)
        at, d_node, d_edge = along(case, seed=0, reach=1.0)
        got = loss.tangent(*case, d_node, d_edge)
        gradients = [loss(*at(r)) for r in (1e-4, -1e-4, 5e-5, -5e-5)]
        for name in ("node", "edge"):
            a, b, c, d = (getattr(g, name) for g in gradients)
            # two central differences, extrapolated to step 0
            want = (4 * (c - d) / 1e-4 - (a - b) / 2e-4) / 3
            np.testing.assert_allclose(
                getattr(got, name), want, atol=1e-9, rtol=1e-7, err_msg=f"{key} {name}"
            )


def test_equal_weights_need_no_edges_for_each_token():
    case = make("full", "stationary", "plain", False, "ones")
    _, d_node, d_edge = along(case, seed=1)
    one = LogLoss().tangent(case.scores, case.targets, 1.0 * case.weights, d_node, d_edge)
    two = LogLoss().tangent(case.scores, case.targets, 2.0 * case.weights, d_node, d_edge)
    assert one.edge.shape == (3, 3)
    np.testing.assert_allclose(two.node, 2 * one.node, rtol=1e-12)
    np.testing.assert_allclose(two.edge, 2 * one.edge, rtol=1e-12)


@pytest.mark.parametrize("loss", [MarginalLoss(), ExponentialLoss(), PiecewiseLoss()])
def test_the_log_loss_alone_is_twice_differentiable(loss):
    assert isinstance(LogLoss(), TwiceDifferentiable)
    assert not isinstance(loss, TwiceDifferentiable)
