"""The evidence of kernel parameters: its gradient against differences, and its maximum."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import ConstantKernel

from seqfield.architectures.lookup import Lookup
from seqfield.errors import BudgetError, InputError
from seqfield.kernels import RBF, Linear, Polynomial
from seqfield.kernels.gram import distinct
from seqfield.labels import Targets
from seqfield.linalg.thin import thin_root
from seqfield.losses.log import LogLoss
from seqfield.objectives.objective import Objective
from seqfield.posteriors import evidence as _evidence
from seqfield.posteriors import laplace as _laplace
from seqfield.posteriors.evidence import KernelEvidence, Point, maximise_evidence
from seqfield.priors import ElasticNet
from seqfield.sequences import Sequences, offsets_of

S = 3


def evidence(
    kernel, *, missing=0.0, eta=0.7, c2=0.5, n=12, lengths=None, s=S, weighted=True, **options
):
    rng = np.random.default_rng(0)
    offsets = offsets_of(rng.integers(1, 6, n) if lengths is None else lengths)
    y = rng.integers(s, size=offsets[-1])
    x = rng.normal(size=(len(y), 3)).round()
    x[np.arange(len(y)), y] += 1.0
    first, inverse = distinct(x)
    assert len(first) < len(x)
    mask = np.arange(s) == y[:, None]
    mask[np.random.default_rng(1).random(len(y)) < missing] = True
    codes = np.where(mask.all(axis=1), -1, y).astype(np.int32)
    targets = Targets(codes, mask if missing else None, offsets)
    weights = rng.uniform(0.5, 2.0, len(offsets) - 1) if weighted else np.ones(len(offsets) - 1)
    objective = Objective(
        Lookup(s, len(first)),
        LogLoss(),
        ElasticNet(0.0, c2),
        Sequences(inverse[:, None].astype(float), offsets),
        targets,
        weights,
        None,
        1,
    )
    return KernelEvidence(kernel, x[first], objective, eta, tol=1e-13, **options), x, y


def slopes(found, phi, step=1e-2):
    """Central differences of the value, extrapolated to step 0."""
    out = []
    for unit in np.eye(len(phi)):
        ends = [found(phi + r * unit).value for r in (step, -step, step / 2, -step / 2)]
        coarse, fine = (ends[0] - ends[1]) / (2 * step), (ends[2] - ends[3]) / step
        out.append((4 * fine - coarse) / 3)
    return np.array(out)


@pytest.mark.parametrize("covariance", ["full", "block"])
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize(
    ("kernel", "eta"), [(2.0 * RBF(1.5), 0.7), (RBF(1.5), 0.0), (Linear(), 2.0)], ids=str
)
def test_gradient_equals_differences(kernel, eta, covariance, missing):
    found, *_ = evidence(kernel, eta=eta, missing=missing, covariance=covariance)
    phi = found.start
    assert len(phi) == len(kernel.log_parameters) + 1 + (eta > 0)
    want = slopes(found, phi)
    np.testing.assert_allclose(found(phi).gradient, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("covariance", ["full", "block"])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_draws_in_place_of_matrices(covariance, missing, monkeypatch):
    kernel, options = 2.0 * RBF(1.5), {"covariance": covariance, "missing": missing}
    exact = evidence(kernel, **options)[0]
    want = exact(exact.start)
    monkeypatch.setattr(_laplace, "EXACT", 0)
    points = [evidence(kernel, seed=seed, **options)[0](exact.start) for seed in range(16)]
    values, errors, gradients = map(np.array, zip(*points, strict=True))
    # the error that is told is how much values differ from seed to seed
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(np.std(values, ddof=1), rel=0.5)
    for got, true in ((values, want.value), (gradients, want.gradient)):
        error = np.std(got, axis=0, ddof=1) / np.sqrt(16)
        assert (np.abs(np.mean(got, axis=0) - true) < 4 * error).all()


def test_the_same_random_numbers_for_every_phi(monkeypatch):
    """Differences of the value are far more exact than the value."""
    exact = evidence(2.0 * RBF(1.5))[0]
    phi = exact.start
    step = 0.05 * np.ones(len(phi))
    want = exact(phi + step).value - exact(phi).value
    monkeypatch.setattr(_laplace, "EXACT", 0)
    found = evidence(2.0 * RBF(1.5))[0]
    here, there = found(phi), found(phi + step)
    assert abs(there.value - here.value - want) < 0.1 * here.error
    assert found(phi).value == pytest.approx(here.value, rel=1e-8)


def test_two_labels_and_no_chain_find_the_kernel_of_a_gaussian_process_classifier():
    found, x, y = evidence(
        2.0 * RBF(1.5), lengths=[1] * 40, s=2, eta=0.0, c2=1.0, n=40, weighted=False
    )
    # twice the scale: the difference of two functions has twice the variance
    kernel = ConstantKernel(4.0, (1e-3, 1e4)) * SklearnRBF(1.5, (1e-3, 1e3))
    want = GaussianProcessClassifier(kernel).fit(x, y)
    at_start = want.log_marginal_likelihood(kernel.theta)
    assert found(found.start).value == pytest.approx(at_start, rel=1e-5)
    best = maximise_evidence(found, found.start)
    assert best.value == pytest.approx(want.log_marginal_likelihood_value_, rel=1e-3)
    assert best.value > at_start


def test_the_best_point_is_kept():
    """Also when the gradient lies."""
    seen = []

    def lying(phi):
        seen.append((float(-(phi @ phi)), phi.copy()))
        return Point(seen[-1][0], 0.0, np.ones_like(phi))

    best = maximise_evidence(lying, np.array([-0.5, 0.2]), reach=1.0)
    assert best.n_evaluations == len(seen)
    assert best.value == max(value for value, _ in seen)
    np.testing.assert_array_equal(best.phi, next(p for v, p in seen if v == best.value))


def test_the_first_step_is_a_small_one():
    """Not to the end of the world: there the optimum is hard to find and tells nothing."""
    seen = []

    def steep(phi):
        seen.append(phi.copy())
        return Point(-500.0 * float((phi - 3.0) @ (phi - 3.0)), 0.0, -1000.0 * (phi - 3.0))

    best = maximise_evidence(steep, np.zeros(2))
    np.testing.assert_allclose(best.phi, 3.0, atol=1e-3)
    np.testing.assert_allclose(seen[1], 1.0)


def test_settings_and_budget():
    found, *_ = evidence(2.0 * RBF(1.5))
    kernel, c2, eta = found.settings(found.start + np.log(2.0))
    np.testing.assert_allclose(np.exp(kernel.log_parameters), [4.0, 3.0])
    assert (c2, eta) == pytest.approx((1.0, 1.4))
    with pytest.raises(BudgetError, match="7 matrices of"):
        evidence(2.0 * RBF(1.5), budget=1e3)
    with pytest.raises(InputError, match="full or block"):
        evidence(RBF(1.5), covariance="half")


def test_the_end_of_the_search_is_told(monkeypatch):
    found, *_ = evidence(2.0 * RBF(1.5))
    monkeypatch.setattr(_evidence, "REACH", 0.05)
    with pytest.warns(ConvergenceWarning) as caught:
        kernel, c2, eta = found.maximise()
    names, logs = (
        [*kernel.parameter_names, "c2", "eta"],
        [*kernel.log_parameters, *np.log([c2, eta])],
    )
    ends = np.abs(logs - found.start) > 0.0499
    assert ends.any()
    # no transitions at all are an answer, not the end of a search
    assert ends[-1]
    assert eta < 0.7
    ends[-1] = False
    assert len(caught) == 1
    for name, value, end in zip(names, np.exp(logs), ends, strict=True):
        assert (f"{name} = {value:.3g}" in str(caught[0].message)) == end


def test_thin_roots():
    x = np.random.default_rng(0).normal(size=(30, 4))
    root, kept = thin_root(x @ x.T)
    assert 4 <= root.shape[1] <= 6
    np.testing.assert_array_equal(kept[:4], np.arange(4))
    np.testing.assert_allclose(root @ root.T, x @ x.T, atol=1e-6)
    whole, kept = thin_root(RBF(0.5)(x))
    assert len(kept) == 30
    np.testing.assert_allclose(whole @ whole.T, RBF(0.5)(x), atol=1e-9)
    bad = [[[1.0, 2.0], [2.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]]
    for matrix in (np.zeros((2, 2)), *map(np.array, bad)):
        with pytest.raises(InputError, match="positive semi-definite"):
            thin_root(matrix)
    with pytest.raises(InputError, match="finite"):
        thin_root(np.array([[np.inf, 0.0], [0.0, 1.0]]))


def test_thin_roots_of_tokens_of_all_sizes():
    """Each diagonal entry to its own digits: what a root takes from a token is its variance."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    x[rng.random(40) < 0.3] *= 30.0
    x[7], x[8] = 0.0, 1e-3 * x[9]
    for kernel in (Polynomial(3), Polynomial(3, 0.0), Linear()):
        gram = kernel(x)
        root, kept = thin_root(gram)
        sizes = np.sqrt(np.diagonal(gram))
        error = np.abs(root @ root.T - gram)
        assert (error <= 1e-6 * sizes[:, None] * sizes).all()
        assert len(kept) < 30  # 20 monomials, and some that rounding adds
    assert not root[7].any()


def test_a_search_that_is_cut_short_is_told(monkeypatch):
    monkeypatch.setattr(_evidence, "SEARCH", 1)
    monkeypatch.setattr(_evidence, "EACH", 0)
    with pytest.warns(ConvergenceWarning, match="still rose after 1 iterations of the search"):
        evidence(2.0 * RBF(0.2))[0].maximise()
