"""Kernels that weigh features, against features that are weighed beforehand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import seqfield as sf
from seqfield.errors import InputError
from seqfield.kernels import (
    KERNELS,
    RBF,
    Columns,
    Graph,
    InverseFrequency,
    Linear,
    Normalized,
)
from seqfield.kernels.graph import GraphWarning


def binary(n=40, width=8, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.random((n, width)) < np.linspace(0.05, 0.9, width)).astype(float)


def factors(x, power):
    weights = ((np.count_nonzero(x, axis=0) + 1) / (len(x) + 1)) ** -power
    return weights * np.sqrt((x**2).sum() / ((x * weights) ** 2).sum())


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csr_matrix])
@pytest.mark.parametrize("inner", [Linear(), RBF(1.5), Linear() + 5.0 * Normalized(Linear()) ** 3])
def test_equals_the_kernel_of_weighted_features(form, inner):
    x, new = binary(), binary(5, seed=1)
    kernel, w = InverseFrequency(inner, 0.3).fit(form(x)), factors(x, 0.3)
    np.testing.assert_allclose(kernel(form(new), form(x)), inner(new * w, x * w), atol=1e-12)
    np.testing.assert_allclose(kernel.diagonal(form(new)), inner.diagonal(new * w), atol=1e-12)
    # rare features weigh more, and tokens as much as they did
    assert (np.diff(w) < 0).sum() > 4
    assert np.trace(InverseFrequency(Linear(), 0.3).fit(x)(x)) == pytest.approx((x**2).sum())


def test_power_0_is_the_kernel_itself():
    x = binary()
    np.testing.assert_allclose(InverseFrequency(RBF(2.0), 0.0).fit(x)(x), RBF(2.0)(x), atol=1e-14)


def test_what_it_is_made_of_is_fitted_on_weighted_features():
    x = binary()
    kernel = InverseFrequency(RBF("auto"), 0.5).fit(x)
    assert kernel.kernel.length_scale == RBF("auto").fit(x * factors(x, 0.5)).length_scale
    both = Columns(InverseFrequency(Linear(), 0.4), [1, 3, 5]).fit(x)
    w = factors(x[:, [1, 3, 5]], 0.4)
    np.testing.assert_allclose(both(x), (x[:, [1, 3, 5]] * w) @ (x[:, [1, 3, 5]] * w).T, atol=1e-12)


def test_tokens_without_any_feature():
    x = np.zeros((4, 3))
    np.testing.assert_array_equal(InverseFrequency(Linear()).fit(x)(x), 0.0)


def test_misuse():
    x = binary()
    with pytest.raises(InputError, match="fit the kernel first"):
        InverseFrequency(Linear())(x)
    with pytest.raises(InputError, match="tokens of 3 features, but fit had 8"):
        InverseFrequency(Linear()).fit(x)(x[:, :3])
    with pytest.raises(InputError, match="power must be a number of at least 0, got -1"):
        InverseFrequency(Linear(), -1).fit(x)


@pytest.mark.parametrize("weights", [np.ones((2, 2)), np.array([1.0, -1.0]), np.array([1, 2])])
def test_damaged_files(weights):
    header, arrays = KERNELS.state(InverseFrequency(Linear()).fit(binary()))
    assert set(arrays) == {"weights"}
    with pytest.raises(InputError, match="needs positive weights"):
        KERNELS.restore(header, {"weights": weights})


def test_in_a_model(tmp_path):
    x = [binary(6, seed=k) for k in range(10)]
    y = [["ab"[int(row[0] + row[1] + row[4] > 1)] for row in one] for one in x]
    w = factors(np.vstack(x), 0.4)
    model = sf.GPSC(InverseFrequency(Linear(), 0.4), tol=1e-12).fit(x, y)
    plain = sf.GPSC(Linear(), tol=1e-12).fit([one * w for one in x], y)
    for p, q in zip(model.predict_proba(x), plain.predict_proba([a * w for a in x]), strict=True):
        np.testing.assert_allclose(p, q, atol=1e-6)
    model.save(tmp_path / "m.sf")
    loaded = sf.load(tmp_path / "m.sf")
    for p, q in zip(loaded.predict_proba(x), model.predict_proba(x), strict=True):
        np.testing.assert_array_equal(p, q)
    again = loaded.fit(x[:5], y[:5]).predict_proba(x)
    fresh = sf.GPSC(InverseFrequency(Linear(), 0.4), tol=1e-12).fit(x[:5], y[:5])
    np.testing.assert_allclose(again[0], fresh.predict_proba(x)[0], atol=1e-12)


def test_a_graph_of_weighted_features_is_diagnosed():
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(10, 2)) * [1.0, rng.random() < 0.3] for _ in range(8)]
    y = [["ab"[int(row[0] > 0)] for row in one] for one in x]
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphWarning)  # all tokens are found in it
        model = sf.GPSC(InverseFrequency(Graph(5), 0.5)).fit(x, y)
    assert model.score(x, y) > 0.9
