"""Learned functions: what `state` gives comes back bit for bit, and damaged states are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.architectures._maps import DenseMap, SparseMap
from seqfield.architectures.emissions import Gaussian, Multinomial
from seqfield.architectures.linear import Linear
from seqfield.errors import InputError
from seqfield.functions import (
    LEARNED,
    BoostedFunction,
    DrawnFunction,
    EmissionFunction,
    KernelFunction,
    LinearFunction,
    NeighbourFunction,
    Shape,
)
from seqfield.functions.emission import Steps
from seqfield.functions.latent import Halves, labels_of
from seqfield.functions.remainder import Remainder
from seqfield.kernels import RBF, Polynomial
from seqfield.kernels import Linear as LinearKernel
from seqfield.kernels.covariance import Root
from seqfield.kernels.functions import Expanded, Span
from seqfield.sequences import Sequences

from ..support.files import removed, replaced

S, D = 3, 4
SHAPE = Shape(S, D)
OFFSETS = np.array([0, 3, 4, 9])
RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(9, D))
DATA = Sequences(DENSE, OFFSETS)
BINARY = Sequences(sp.csr_array((DENSE > 0).astype(np.int8)), OFFSETS)
EDGED = Sequences(sp.csr_array(DENSE * (DENSE > 0)), OFFSETS, sp.csr_array(DENSE[:, :2] > 0))
KEPT = RNG.normal(size=(5, D))


def normal(*size):
    return RNG.normal(size=size)


def sparse_map(n_features, n_columns):
    """Every other pair has a weight."""
    pattern = np.arange(n_features * n_columns).reshape(n_features, n_columns) % 2 == 0
    columns = [np.flatnonzero(row) for row in pattern]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    return SparseMap(starts.astype(np.int64), np.concatenate(columns).astype(np.int32), n_columns)


def linear(kind=LinearFunction, *, sparse=False, **rest):
    node = sparse_map(D, S) if sparse else DenseMap(D, S)
    edge = sparse_map(2, S * S) if sparse else None
    architecture = Linear(S, node, np.array([0, 1, 5, 8]), edge)
    return kind(architecture, normal(architecture.n_parameters), **rest)


def boosted():
    path = np.column_stack([[3.0, 0.0, 3.0], normal(3), normal(3), [1.0, 0.5, 0.25]])
    return linear(BoostedFunction, path=path, refitted="log")


def spanned(kernel, n_columns, tokens=KEPT):
    return Span(kernel, tokens, normal(tokens.shape[0], n_columns))


def kernel_function(*, edges=False):
    kernels = [RBF(0.7), 2.0 * LinearKernel()]
    width = S + edges * S * S
    return KernelFunction(kernels, [spanned(k, width) for k in kernels], normal(S, S), edges)


def expanded():
    kernel = Polynomial(2)
    expansion = kernel.expansion(BINARY.x)
    part = Expanded(expansion, normal(expansion.n_columns, S))
    return KernelFunction([kernel], [part], normal(S, S))


def drawn():
    span = spanned(RBF(0.7), 4 * S)
    return DrawnFunction(span, normal(4, S, S), Remainder(span.kernel, span.tokens, 0.8, seed=7))


def emission(kind):
    logs = np.log(RNG.dirichlet(np.ones(S + 1), size=S))
    start = np.array([-0.1, -np.inf, -3.0])
    steps = Steps(start, np.ascontiguousarray(logs[:, :S]), logs[:, S].copy())
    if kind == "gaussian":
        return EmissionFunction(Gaussian(normal(D, S), np.exp(normal(D, S))), steps)
    return EmissionFunction(Multinomial(-np.exp(normal(D, S))), steps)


def neighbours(n_kernels=1, distances=(-1, 1)):
    kernels = [RBF(0.5 + k) for k in range(n_kernels)]
    spans, halves = [], []
    for k, kernel in enumerate(kernels):
        basis = Root.of(kernel, KEPT, kernel(KEPT))
        own = labels_of(k, n_kernels, S)
        lowers = [np.linalg.cholesky(np.eye(5) + (v := normal(5, 5)) @ v.T) for _ in own]
        coefficients = np.zeros((5, S))
        coefficients[:, own] = normal(5, len(own))
        spans.append(basis.function(coefficients))
        halves.append(Halves.of(basis, lowers))
    tables = (len(distances), S, S)
    return NeighbourFunction(
        kernels,
        spans,
        halves,
        np.exp(normal(S)),
        normal(*tables),
        np.exp(normal(*tables)),
        distances,
    )


FUNCTIONS = {
    "linear": (linear(), DATA),
    "linear, sparse with edges": (linear(sparse=True), EDGED),
    "boosted": (boosted(), DATA),
    "kernel": (kernel_function(), DATA),
    "kernel with edges": (kernel_function(edges=True), DATA),
    "sparse tokens": (
        KernelFunction([RBF(1.0)], [spanned(RBF(1.0), S, BINARY.x[:5])], normal(S, S)),
        BINARY,
    ),
    "explicit features": (expanded(), BINARY),
    "drawn": (drawn(), DATA),
    "multinomial": (emission("multinomial"), BINARY),
    "gaussian": (emission("gaussian"), DATA),
    "neighbours": (neighbours(), DATA),
    "neighbours, a kernel each": (neighbours(S, (-2, -1, 1)), DATA),
    "no neighbours": (neighbours(1, ()), DATA),
}
every = pytest.mark.parametrize("name", FUNCTIONS)


def saved(name):
    """Header and arrays as a file gives them back: plain JSON, and rows one after the other."""
    header, arrays = LEARNED.state(FUNCTIONS[name][0])
    plain = {key: np.ascontiguousarray(array).copy() for key, array in arrays.items()}
    return json.loads(json.dumps(header)), plain


def same_scores(one, other):
    for part in ("node", "edge", "offsets", "start", "end"):
        a, b = getattr(one, part), getattr(other, part)
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_array_equal(a, b)


def test_every_kind_of_function_is_tried():
    kinds = {type(function).__name__ for function, _ in FUNCTIONS.values()}
    assert kinds == set(LEARNED)


# --- round trips -------------------------------------------------------------------------------


@every
def test_state_comes_back_bit_for_bit(name):
    function, data = FUNCTIONS[name]
    again = LEARNED.restore(*saved(name), SHAPE)
    assert type(again) is type(function)
    same_scores(again.scores(data, 1), function.scores(data, 1))
    assert again.n_draws == function.n_draws
    draws = again.draws(data, 1), function.draws(data, 1)
    assert len(draws[0]) == again.n_draws
    for a, b in zip(*draws, strict=True):
        same_scores(a, b)
    np.testing.assert_array_equal(again.transitions, function.transitions)


@every
def test_the_state_of_what_came_back_is_the_same(name):
    header, arrays = saved(name)
    header_again, arrays_again = LEARNED.state(LEARNED.restore(header, arrays, SHAPE))
    assert json.loads(json.dumps(header_again)) == header
    assert set(arrays_again) == set(arrays)
    for key, array in arrays.items():
        np.testing.assert_array_equal(arrays_again[key], array)
        assert arrays_again[key].dtype == array.dtype, key


def test_what_is_beside_the_scores_comes_back_too():
    boosting = LEARNED.restore(*saved("boosted"), SHAPE)
    np.testing.assert_array_equal(boosting.path, FUNCTIONS["boosted"][0].path)
    assert boosting.refitted == "log"
    for name in ("neighbours", "neighbours, a kernel each", "no neighbours"):
        function, data = FUNCTIONS[name]
        again = LEARNED.restore(*saved(name), SHAPE)
        assert again.distances == function.distances
        for a, b in zip(again.moments(data), function.moments(data), strict=True):
            np.testing.assert_array_equal(a, b)


def test_draws_differ_from_the_point_estimate_and_from_each_other():
    """Else their round trip would say nothing."""
    function, data = FUNCTIONS["drawn"]
    node = [one.node for one in (function.scores(data), *function.draws(data))]
    assert all((a != b).all() for k, a in enumerate(node) for b in node[:k])


# --- damage ------------------------------------------------------------------------------------


def damaged(array):
    """Arrays that cannot be, by what is wrong with them."""
    out = {"missing": None, "of another rank": array.ravel() if array.ndim > 1 else array[:, None]}
    out |= {"a number": np.zeros(()), "text": np.array(["x"])}
    if len(array):
        out |= {"short": array[:-1], "long": np.concatenate([array, array[-1:]])}
    if array.ndim > 1 and array.size:
        out |= {"narrow": array[:, :-1], "narrow at the end": array[..., :-1]}
    if array.dtype.kind == "f":
        for what, value in (("NaN", np.nan), ("infinite", np.inf)):
            if array.size:
                out[what] = array.copy()
                out[what].flat[-1] = value
    if array.dtype.kind == "i" and array.dtype.itemsize > 1 and array.size:  # others are values
        for what, value in (("too large", np.iinfo(array.dtype).max), ("negative", -1)):
            out[what] = array.copy()
            out[what].flat[array.size // 2] = value
    return out


@every
def test_damaged_arrays_are_input_errors(name):
    header, arrays = saved(name)
    tried = 0
    for key, array in arrays.items():
        if name == "explicit features" and key.startswith("kernel0"):
            continue  # the kernel is for training again
        for what, bad in damaged(array).items():
            if key == "path" and what in ("short", "long"):
                continue  # any number of rounds may be
            changed = {k: v for k, v in arrays.items() if k != key}
            if bad is not None:
                changed[key] = bad
            with pytest.raises(InputError):
                pytest.fail(f"{key} {what}: {LEARNED.restore(header, changed, SHAPE)}")
            tried += 1
    assert tried >= 6


BELOW = {
    "gaussian": ["variances"],
    "neighbours": ["amplitudes", "step_variances"],
    "neighbours, a kernel each": ["amplitudes", "step_variances"],
}


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, keys in BELOW.items() for k in keys])
@pytest.mark.parametrize("value", [0.0, -1e-3])
def test_variances_are_above_zero(name, key, value):
    header, arrays = saved(name)
    arrays[key].flat[1] = value
    with pytest.raises(InputError):
        LEARNED.restore(header, arrays, SHAPE)


@pytest.mark.parametrize("value", [-1.0, 1.5, 16.0, np.nan, np.inf])
def test_rounds_of_boosting_name_weights(value):
    header, arrays = saved("boosted")
    assert LEARNED.restore(header, arrays, SHAPE).theta.shape == (16,)
    arrays["path"][1, 0] = value
    with pytest.raises(InputError):
        LEARNED.restore(header, arrays, SHAPE)


@every
def test_headers_without_a_part_are_input_errors(name):
    header, arrays = saved(name)
    for key in header:
        with pytest.raises(InputError):
            pytest.fail(f"{key}: {LEARNED.restore(removed(header, (key,)), arrays, SHAPE)}")


@every
@pytest.mark.parametrize("shape", [(S + 1, D), (S - 1, D), (S, D + 1), (S, D - 1), (S, 0)])
def test_functions_of_another_shape_are_input_errors(name, shape):
    with pytest.raises(InputError):
        LEARNED.restore(*saved(name), Shape(*shape))


HEADERS = {
    "linear": [
        (("n_labels",), [S + 1, None, "3"]),
        (("class",), ["Popen", None, ["LinearFunction"]]),
        (("node",), [None, 3, [], {}]),
        (("node", "n_features"), [-1, 10**9, "x", None]),
        (("node", "dense"), [False]),
    ],
    "linear, sparse with edges": [
        (("node", "dense"), [True]),
        (("edge",), [None, 3, {}]),
        (("edge", "n_features"), [-1, 1, 3, "x", None]),
    ],
    "boosted": [(("refitted",), ["hinge", 3, ["log"]])],
    "kernel": [
        (("edges",), [True, "x"]),
        (("kernels",), [None, 3, [], {}]),
        (("kernels", 0), [None, "RBF", {}, {"class": "Popen"}]),
        (("kernels", 0, "own", "length_scale"), [-1.0, 0.0, "x", None]),
        (("functions",), [None, 3, [], {}]),
        (("functions", 0), [None, {}, {"class": "Popen"}]),
        (("functions", 0, "tokens", "shape"), [None, [5], [-5, -4], ["x", 4], [10**9, 4]]),
    ],
    "kernel with edges": [(("edges",), [False, 0, None])],
    "drawn": [
        (("remainder",), [None, 3, {}]),
        (("remainder", "seed"), [-1, 1.5, "x", None]),
        (("remainder", "variance"), [-1.0, "x", None]),
    ],
    "multinomial": [(("emission",), ["gaussian", "poisson", None, 3, ["multinomial"]])],
    "gaussian": [(("emission",), ["multinomial", "x"])],
    "neighbours": [
        (("distances",), [None, 1, "x", [], [0, 1], [1, 1], [1.5, 1], [-1], [1, 10**30]]),
        (("kernels",), [None, []]),
    ],
}


@pytest.mark.parametrize("name", HEADERS)
def test_damaged_headers_are_input_errors(name):
    header, arrays = saved(name)
    for path, values in HEADERS[name]:
        for value in values:
            changed = replaced(header, path, value)
            with pytest.raises(InputError):
                pytest.fail(f"{path} {value!r}: {LEARNED.restore(changed, arrays, SHAPE)}")


def test_neighbours_have_one_kernel_or_one_for_each_label():
    header, arrays = saved("neighbours, a kernel each")
    two = {key: header[key][:2] for key in ("kernels", "functions")}
    with pytest.raises(InputError, match="number of kernels"):
        LEARNED.restore(header | two, arrays, SHAPE)


def test_one_estimate_alone_has_no_draws():
    header, arrays = saved("drawn")
    arrays["steps"] = arrays["steps"][:1]
    arrays["function0/coefficients"] = arrays["function0/coefficients"][:, :S]
    with pytest.raises(InputError, match="no posterior draws"):
        LEARNED.restore(header, arrays, SHAPE)
