"""GPSC with engine="jax" finds the optimum that the compiled loops find, and says what it cannot.

Every shape is compiled anew, which takes longer than all else here: most cases share theirs.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.errors import BudgetError, CapabilityError, InputError
from seqfield.kernels import (
    RBF,
    Columns,
    Constant,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    RationalQuadratic,
)

from ..support.sequences import numbers

X, Y = numbers(n=16, seed=0)
X = [np.round(x) for x in X]  # tokens that are equal
BIO = [[{"L0": "O", "L1": "B-x", "L2": "I-x"}[v] for v in row] for row in Y]
RNG = np.random.default_rng(0)
WEIGHTS = RNG.random(len(X)) + 0.5
TOL = 1e-9
KERNEL = RBF(1.0)


def vague(y, share=0.3):
    """Labels of which some are missing and some are one of two."""
    names = sorted({v for row in y for v in row})
    rng = np.random.default_rng(1)

    def one(v):
        kind = rng.random()
        if kind < share:
            return None
        return {v, names[rng.integers(len(names))]} if kind < 2 * share else v

    return [[one(v) for v in row] for row in y]


def fit(engine, y=Y, kernel=KERNEL, x=X, weights=None, **parameters):
    model = sf.GPSC(kernel, engine=engine, explicit=False, n_jobs=1, tol=TOL, **parameters)
    return model.fit(x, y, sample_weight=weights)


def compare(y=Y, x=X, rtol=1e-8, atol=1e-5, **parameters):
    found, wanted = (fit(engine, y, x=x, **parameters) for engine in ("jax", "numba"))
    np.testing.assert_allclose(found.objective_, wanted.objective_, rtol=rtol)
    if np.isfinite(wanted.gap_):
        assert 0.0 <= found.gap_ <= max(TOL, rtol) * found.objective_
    else:
        assert found.gap_ == np.inf
    np.testing.assert_allclose(found.transitions_, wanted.transitions_, atol=atol)
    for p, q in zip(found.predict_proba(x), wanted.predict_proba(x), strict=True):
        np.testing.assert_allclose(p, q, atol=atol)
    assert found.n_kept_ == wanted.n_kept_
    assert found.predict(x) == wanted.predict(x)
    return found


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"loss": "softmax_margin", "cost": 2.0, "eta": 0.3},
        {"transitions": False, "c2": 0.1},
        {"y": BIO, "scheme": "BIO", "on_violation": "repair", "weights": WEIGHTS},
    ],
    ids=["plain", "margin", "no transitions", "scheme and weights"],
)
def test_same_optimum(parameters):
    compare(**parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"y": vague(Y), "weights": WEIGHTS},
        {"y": vague(BIO), "scheme": "BIO", "on_violation": "repair", "loss": "softmax_margin"},
    ],
    ids=["weights", "scheme and margin"],
)
def test_same_optimum_where_labels_are_missing(parameters):
    compare(atol=1e-4, **parameters)  # the loss is not convex and stops where it no longer falls


def test_gram_matrix_of_float32():
    model = compare(gram_dtype="float32", rtol=1e-6, atol=1e-3)
    assert model.gap_ <= 1e-6 * model.objective_


def test_what_is_not_safe_is_done_on_logarithms(monkeypatch):
    from seqfield.solvers import device

    forms = []

    def doubtful(*args):
        found, trial = original(*args)
        forms.append(args[-1])
        return (found if args[-1] else found.at[2].set(0.0)), trial

    original = device.try_step
    monkeypatch.setattr(device, "try_step", doubtful)
    compare()
    assert forms[:2] == [False, True]
    assert all(forms[1:])


def test_kernels_that_are_formed_on_the_host():
    """Sparse tokens, and kernels that are more than inner products; explicit "auto" means gram."""
    sparse = [sp.csr_array(x) for x in X]
    model = sf.GPSC(engine="jax", tol=TOL).fit(sparse, Y)
    wanted = sf.GPSC(explicit=False, tol=TOL).fit(sparse, Y)
    np.testing.assert_allclose(model.objective_, wanted.objective_, rtol=1e-8)


def test_gram_matrices_on_the_device():
    from seqfield.kernels._jax import OnDevice, formula

    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 4))
    x[4], x[7] = 0.0, x[6]
    v = rng.normal(size=(20, 3))
    kernel = (
        RBF(2.0) * Linear()
        + 3.0 * Normalized(Polynomial(2)) ** 2
        + Matern(1.5, 0.5)
        + Matern(1.5, 1.5)
        + Matern(1.5, 2.5)
        + RationalQuadratic(1.0, 0.7)
        + Normalized(Linear())
        + Constant(0.5)
    )
    assert formula(Columns(Linear(), slice(0, 2))) is None
    for one in (kernel, Columns(Linear(), slice(0, 2)).fit(x)):
        for dtype, tol in (("float64", 1e-12), ("float32", 1e-6)):
            found = OnDevice.of(one, x, budget=1e6, dtype=dtype, advice="")
            scale = np.abs(one(x)).max()
            np.testing.assert_allclose(found.multiply(v), one(x) @ v, atol=20 * scale * tol)
            chosen = np.array([19, 0, 7])
            np.testing.assert_allclose(found.columns(chosen), one(x)[:, chosen], atol=scale * tol)


def test_distances_far_from_the_origin_on_the_device():
    from seqfield.kernels._jax import OnDevice

    # such numbers have exact sums with the offset
    x = np.round(np.random.default_rng(0).normal(size=(20, 4)) * 1024) / 1024
    x[7] = x[6]
    scaled = 1e-20 * Linear()  # in a sum with distances, inner products stay those of the tokens
    kernel = RBF(2.0) + Matern(1.5, 0.5) + Normalized(RationalQuadratic(1.0, 0.7)) + scaled
    for offset in (0.0, 2.0**27):
        found = OnDevice.of(kernel, x + offset, budget=1e6, dtype="float64", advice="")
        near = kernel.left(x) + scaled(x + offset)
        np.testing.assert_allclose(found.multiply(np.eye(20)), near, rtol=1e-11)


def test_blocks_that_do_not_come_out_even(monkeypatch):
    from seqfield.kernels import _jax

    monkeypatch.setattr(_jax, "ROWS", 8)
    x = np.random.default_rng(0).normal(size=(21, 2))
    v = np.eye(21)
    for dtype, shape in (("float64", (1, 21, 21)), ("float32", (3, 8, 21))):
        for kernel in (RBF(1.0), Columns(RBF(1.0), slice(0, 2)).fit(x)):
            found = _jax.OnDevice.of(kernel, x, budget=1e6, dtype=dtype, advice="")
            assert found.blocks.shape == shape
            np.testing.assert_allclose(found.multiply(v), kernel(x), atol=1e-6)


@pytest.mark.parametrize(
    "parameters",
    [
        {"method": "sparse"},
        {"posterior": "laplace"},
        {"loss": "marginal"},
        {"solver": "newton"},
        {"explicit": True},
        {"n_inducing": 5},
    ],
    ids=lambda p: next(iter(p)),
)
def test_what_it_cannot_do(parameters):
    ((name, value),) = parameters.items()
    with pytest.raises(CapabilityError, match=f"set {name}=.* instead of {value!r}"):
        sf.GPSC("rbf", engine="jax", **parameters).fit(X, Y)


def test_wrong_name():
    with pytest.raises(InputError, match="engine must be one of 'numba', 'jax', got 'cuda'"):
        sf.GPSC("rbf", engine="cuda").fit(X, Y)


def test_gram_matrix_that_does_not_fit(monkeypatch):
    with pytest.raises(BudgetError, match=r"the budget is .* GiB"):
        fit("jax", gram_budget=1e-6)
    from seqfield.kernels import _jax

    small = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 1000, "bytes_in_use": 10})
    monkeypatch.setattr(_jax, "jax", SimpleNamespace(devices=lambda: [small]))
    with pytest.raises(BudgetError, match=r"which the device .* has not left"):
        fit("jax")


def test_device_without_float64(monkeypatch):
    from seqfield.linalg import _jax

    monkeypatch.setattr(_jax, "double", nullcontext)
    with pytest.raises(CapabilityError, match="computes in float64, which the device"):
        _jax.check_device.__wrapped__()


def test_kernel_that_is_not_finite():
    for engine in ("numba", "jax"):
        with pytest.raises(InputError, match="the kernel is inf for tokens"):
            fit(engine, kernel=Polynomial(200), x=[1e3 * x for x in X])


def test_no_convergence_and_use():
    model = sf.GPSC(RBF(1.0), engine="jax", max_iter=2)
    with pytest.warns(ConvergenceWarning, match="no convergence in 2 iterations"):
        model.fit(X, Y)
    assert clone(model).engine == "jax"
    assert model.n_iter_ == 2


def test_badly_scaled_features_end_as_on_the_cpu():
    x, y = sf.make_galaxy(40, random_state=0)
    far = [1e3 * row for row in x]
    models = [sf.GPSC("linear", engine=e, explicit=False).fit(far, y) for e in ("numba", "jax")]
    assert models[1].objective_ == pytest.approx(models[0].objective_, rel=1e-5)
    with pytest.warns(ConvergenceWarning, match="Scale the features"):
        sf.GPSC("linear", engine="jax", explicit=False).fit([1e8 * row for row in x], y)
