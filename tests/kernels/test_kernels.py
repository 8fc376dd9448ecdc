"""One battery over every kernel class and over kernels made of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from seqfield.errors import CapabilityError, InputError
from seqfield.kernels import (
    KERNELS,
    RBF,
    Callable,
    Columns,
    Constant,
    Graph,
    InverseFrequency,
    Kernel,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    Power,
    Precomputed,
    Product,
    RationalQuadratic,
    Scaled,
    Sum,
    as_kernel,
)
from seqfield.kernels.gram import gram

WIDTH = 6


def inner(x, z):
    return (x @ z.T).toarray() if sp.issparse(x) else x @ z.T


def tokens(seed=0, n=14):
    """Rows with zeros, an empty row and equal rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, WIDTH)) * (rng.random((n, WIDTH)) < 0.6)
    x[2] = 0.0
    x[5] = x[1]
    return x


#: kernels of rows of any numbers
CASES = {
    "linear": Linear(),
    "constant": Constant(2.5),
    "constant 0": Constant(0.0),
    "polynomial": Polynomial(3, 0.5),
    "homogeneous": Polynomial(2, 0.0),
    "rbf": RBF(1.3),
    "matern 1/2": Matern(1.5, 0.5),
    "matern 3/2": Matern(1.5, 1.5),
    "matern 5/2": Matern(1.5, 2.5),
    "rational quadratic": RationalQuadratic(1.2, 0.7),
    "cosine": Normalized(Linear()),
    "normalised polynomial": Normalized(Polynomial(2, 0.7)),
    "normalised sum": Normalized(2.0 * Linear() + 0.3 * RBF(0.9)),
    "sum": Sum(Linear(), RBF(0.8)),
    "product": Product(Polynomial(2, 0.3), Matern(1.1)),
    "scaled": Scaled(RBF(1.0), 3.0),
    "scaled by 0": Scaled(RBF(1.0), 0.0),
    "power": Power(Normalized(Polynomial(1, 0.4)), 3),
    "columns": Columns(RBF(0.9), [0, 2, 3]),
    "slice": Columns(Polynomial(2, 0.2), slice(1, None, 2)),
    "columns of columns": Columns(Columns(RBF(0.9), [1, 2]), [5, -2, 3]),
    "thesis": Linear() + 5 * Normalized(Linear()) ** 3,
    "many": (RBF(1.1) + 0.5) * Matern(0.7) ** 2 + 2 * Columns(Linear(), slice(0, 2)),
    "rare features": InverseFrequency(Linear() + 2.0 * RBF(0.9), 0.3).fit(tokens()),
    "callable": Callable(inner),
    "callable in sum": 0.5 * Callable(inner) + RBF(1.0),
}
cases = pytest.mark.parametrize("kernel", CASES.values(), ids=CASES.keys())


def test_every_class_is_in_the_battery():
    found = set()

    def visit(kernel):
        found.add(type(kernel).__name__)
        for part in kernel.parts().values():
            visit(part)

    for kernel in CASES.values():
        visit(kernel)
    # these two know only tokens they were given, and have tests of their own
    assert found == set(KERNELS) - {"Precomputed", "Graph"}


@cases
def test_is_a_covariance(kernel):
    x = tokens()
    g = kernel(x)
    np.testing.assert_array_equal(np.isfinite(g), True)
    np.testing.assert_allclose(g, g.T, rtol=0, atol=1e-13)
    values = np.linalg.eigvalsh(g)
    assert values[0] >= -1e-13 * max(values[-1], 1.0) * len(g)


@cases
def test_diagonal(kernel):
    for x in (tokens(), sp.csr_array(tokens())):
        np.testing.assert_allclose(kernel.diagonal(x), np.diagonal(kernel(x)), rtol=1e-12)


@cases
def test_diagonal_derivatives(kernel):
    x = tokens(n=70)  # more rows than a block
    found = kernel.diagonal_derivatives(x)
    expected = [np.diagonal(d) for d in kernel.derivatives(x)]
    assert len(found) == len(expected) == len(kernel.log_parameters)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@cases
def test_sparse_equals_dense(kernel):
    x, z = tokens(), tokens(1, 9)
    dense = kernel(x, z)
    for form in (sp.csr_array, sp.csr_matrix, sp.csc_array):
        np.testing.assert_allclose(kernel(form(x), form(z)), dense, rtol=1e-12, atol=1e-13)


@cases
def test_binary_sparse_equals_dense(kernel):
    x = (np.random.default_rng(3).random((12, WIDTH)) < 0.4).astype(np.float64)
    sparse = sp.csr_array(x.astype(np.int8))
    np.testing.assert_allclose(kernel(sparse), kernel(x), rtol=1e-13, atol=1e-13)


@cases
def test_rectangle_is_a_block_of_the_square(kernel):
    x = tokens()
    square = kernel(x)
    # the root of a distance of 0 that rounding makes 1e-16 would show here: rows 1 and 5 are equal
    np.testing.assert_allclose(kernel(x[:5], x[3:]), square[:5, 3:], rtol=1e-12, atol=1e-13)


@cases
def test_derivatives(kernel):
    for x, z in ((tokens(), None), (tokens(), tokens(4, 8))):
        found = kernel.derivatives(x, z)
        at = kernel.log_parameters
        assert len(found) == len(at) == len(kernel.parameter_names)
        step = 1e-5
        for p, derivative in enumerate(found):
            e = step * (np.arange(len(at)) == p)
            up, down = kernel.with_log_parameters(at + e), kernel.with_log_parameters(at - e)
            expected = (up(x, z) - down(x, z)) / (2 * step)
            size = max(np.abs(expected).max(), 1.0)
            np.testing.assert_allclose(derivative, expected, rtol=0, atol=1e-8 * size)


@cases
def test_log_parameters(kernel):
    at = kernel.log_parameters
    before = repr(kernel)
    moved = kernel.with_log_parameters(at + 0.5)
    np.testing.assert_allclose(moved.log_parameters, at + 0.5, rtol=0, atol=1e-14)
    assert repr(kernel) == before
    assert moved.parameter_names == kernel.parameter_names
    np.testing.assert_allclose(
        moved.with_log_parameters(at)(tokens()), kernel(tokens()), rtol=1e-12, atol=1e-13
    )


@cases
def test_scikit_learn_conventions(kernel):
    copy = clone(kernel)
    assert copy is not kernel
    assert repr(copy) == repr(kernel)
    x = tokens()
    np.testing.assert_array_equal(copy.fit(x)(x), kernel.fit(x)(x))
    copy.set_params(**kernel.get_params(deep=False))
    assert repr(copy) == repr(kernel)


@cases
def test_value_is_fresh(kernel):
    x = tokens()
    first = kernel(x)
    kept = first.copy()
    first[:] = 7.0
    np.testing.assert_array_equal(kernel(x), kept)


@cases
def test_state(kernel):
    fitted = kernel.fit(tokens())
    if not kernel.trusted:
        with pytest.raises(CapabilityError, match="model files hold no code"):
            KERNELS.state(fitted)
        return
    copy = KERNELS.restore(*KERNELS.state(fitted))
    assert type(copy) is type(kernel)
    x = tokens()
    np.testing.assert_array_equal(copy.fit(x)(x), kernel.fit(x)(x))
    assert copy.parameter_names == kernel.parameter_names


@cases
def test_fit_keeps_the_values(kernel):
    before = repr(kernel)
    np.testing.assert_array_equal(kernel.fit(tokens())(tokens()), kernel(tokens()))
    assert repr(kernel) == before


@cases
def test_expansion(kernel):
    """Where there are features, their inner products are the kernel: also of new tokens."""
    rng = np.random.default_rng(0)
    x, z = ((rng.random((n, WIDTH)) < 0.5).astype(np.float64) for n in (9, 20))
    x[3] = 0.0
    for form in (np.asarray, sp.csr_array):
        a, b = form(x), form(z)
        expansion = kernel.expansion(a)
        if expansion is None:
            continue
        here, there = expansion.transform(a), expansion.transform(b)
        assert sp.issparse(here) == sp.issparse(a)
        assert here.shape == (9, expansion.n_columns)
        here, there = (f.toarray() if sp.issparse(f) else f for f in (here, there))
        np.testing.assert_allclose(here @ here.T, kernel(a), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(there @ here.T, kernel(b, a), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(expansion.squared_norms(b), kernel.diagonal(b), rtol=1e-12)


@pytest.mark.parametrize("kernel", [RBF(), Matern(), RationalQuadratic()], ids=repr)
def test_distances_far_from_the_origin(kernel):
    """|x|^2 + |z|^2 - 2 x . z alone would lose all digits of the distance to those of the norms."""
    # such numbers have exact sums with the offsets
    near, new = (np.round(x * 1024) / 1024 for x in (tokens(n=40), tokens(1, 9)))
    fitted = kernel.fit(near)
    for offset in (2.0**27, -(2.0**30) * np.arange(WIDTH)):
        far = kernel.fit(near + offset)
        np.testing.assert_allclose(far.length_scale, fitted.length_scale, rtol=1e-12)
        for x, z in ((near, None), (new, near), (near[:5], near)):
            moved = None if z is None else z + offset
            np.testing.assert_allclose(far(x + offset, moved), fitted(x, z), rtol=1e-11)
        whole = gram(far, near + offset, budget=1e9)
        np.testing.assert_array_equal(whole, whole.T)
        # rows 1 and 5 are equal
        assert whole[1, 5] == 1.0
        some = Columns(far, [0, 3])(near + offset)
        np.testing.assert_allclose(some, Columns(fitted, [0, 3])(near), rtol=1e-11)


def test_distances_beside_an_outlier():
    """One token far from all others must not cost them their digits."""
    x = tokens(n=40)
    wanted = RBF(1.0)(x[1:])
    for outlier in (0, 7, 39):
        rest = np.delete(np.arange(40), outlier)
        far = x.copy()
        far[rest], far[outlier] = x[1:], 1e9
        np.testing.assert_allclose(RBF(1.0)(far)[np.ix_(rest, rest)], wanted, rtol=1e-12)


# --- values ---------------------------------------------------------------------------------------


def test_values_by_hand():
    x, z = np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])
    inner_, squares = 1.0, 13.0
    for kernel, expected in (
        (Linear(), inner_),
        (Constant(3.0), 3.0),
        (Polynomial(3, 2.0), 27.0),
        (RBF(2.0), np.exp(-squares / 8)),
        (Matern(2.0, 0.5), np.exp(-np.sqrt(squares) / 2)),
        (
            Matern(2.0, 1.5),
            (1 + np.sqrt(3 * squares) / 2) * np.exp(-np.sqrt(3 * squares) / 2),
        ),
        (
            Matern(2.0, 2.5),
            (1 + np.sqrt(5 * squares) / 2 + 5 * squares / 12) * np.exp(-np.sqrt(5 * squares) / 2),
        ),
        (RationalQuadratic(2.0, 0.5), (1 + squares / 4) ** -0.5),
        (Normalized(Linear()), inner_ / np.sqrt(50)),
        (2 * Linear() + 1, 3.0),
        (Linear() * 3 * Constant(2.0), 6.0),
        (Polynomial(1, 1.0) ** 4, 16.0),
        (Columns(Linear(), [1]), -2.0),
    ):
        np.testing.assert_allclose(kernel(x, z), [[expected]], rtol=1e-14, err_msg=repr(kernel))


@pytest.mark.parametrize("exponent", range(1, 12))
def test_powers(exponent):
    x = np.array([[2.0], [3.0], [-1.0]])
    np.testing.assert_array_equal((Linear() ** exponent)(x), (x @ x.T) ** exponent)


def test_zero_rows_are_unlike_all():
    g = Normalized(Linear())(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(g, np.diag([0.0, 1.0, 0.0]))


def test_no_cosine_of_what_is_no_covariance():
    """A negative k(x, x) has no root; it must not pass for a token without features."""
    x = np.array([[0.0], [1.0], [2.0]])
    kernel = Normalized(Callable(lambda x, z: np.where(x == 2, -1.0, 1.0) * (x @ z.T)))
    for use in (kernel, kernel.diagonal):
        with pytest.raises(InputError, match=r"not positive semi-definite: -4 for row 2"):
            use(x)
    with pytest.raises(InputError, match="for row 1"):
        kernel(x[:2], x[1:])
    # but what rounding leaves of 0 is 0
    kernel = Normalized(Callable(lambda x, z: x @ z.T - 1e-15 * (x == z.T)))
    np.testing.assert_array_equal(kernel.diagonal(x), [0.0, 1.0, 1.0])
    assert kernel(x[:0]).shape == (0, 0)


def test_equal_rows_have_no_distance():
    """However large the norms: the root of a rounding error would be 1e-8 of them."""
    x = np.random.default_rng(0).normal(size=(40, 60)) + 1e3
    assert (Matern(1.0, 0.5)(x[:20], x.copy())[np.arange(20), np.arange(20)] == 1.0).all()


@pytest.mark.parametrize("data", [np.int8, np.float64])
def test_sparse_rows_are_never_dense(data):
    """200 x 10,000,000 in dense form would be 16 GB."""
    rng = np.random.default_rng(0)
    n, width = 200, 10_000_000
    columns = rng.integers(0, width, (n, 20))
    columns[:, :5] = rng.integers(0, 10, (n, 5))
    x = sp.csr_array(
        (np.ones(n * 20, data), (np.repeat(np.arange(n), 20), columns.ravel())), shape=(n, width)
    )
    x.data[:] = 1  # where two fell together
    kernel = RBF().fit(x) + Normalized(Polynomial(2))
    compact = x[:, np.unique(x.indices)].toarray().astype(np.float64)
    np.testing.assert_allclose(kernel(x), kernel(compact), rtol=1e-12, atol=1e-13)


def test_sparse_forms_that_are_not_canonical():
    """Unsorted columns, a column twice and stored zeros mean what they say."""
    x = sp.csr_array(
        (np.array([1.0, 2.0, 3.0, 0.0, 1.0]), np.array([2, 0, 2, 1, 1]), np.array([0, 3, 5])),
        shape=(2, 4),
    )
    np.testing.assert_array_equal(Linear()(x), [[20.0, 0.0], [0.0, 1.0]])


def test_sparse_form_with_room_after_its_entries():
    x = sp.csr_array(np.array([[1.0, 2.0], [0.0, 1.0]]))
    x.data, x.indices = np.append(x.data, [7.0, 7.0]), np.append(x.indices, [0, 0])
    np.testing.assert_array_equal(Linear()(x), [[5.0, 2.0], [2.0, 1.0]])
    assert len(x.data) == 5


# --- length scales --------------------------------------------------------------------------------


def test_auto_is_the_median_distance():
    x = np.array([[0.0], [1.0], [1.0], [3.0]])  # distances of distinct rows: 1, 2, 3
    kernel = 2 * Normalized(RBF()) + Matern()
    fitted = kernel.fit(x)
    assert fitted.left.kernel.kernel.length_scale == fitted.right.length_scale == 2.0
    assert kernel.right.length_scale == "auto"
    assert kernel.parameter_names == ["left.scale"]
    assert fitted.parameter_names == [
        "left.scale",
        "left.kernel.kernel.length_scale",
        "right.length_scale",
    ]
    assert RBF().fit(sp.csr_array(x)).length_scale == 2.0


def test_auto_looks_at_a_fixed_sample():
    x = np.random.default_rng(0).normal(size=(3000, 4))
    scale = RBF().fit(x).length_scale
    assert scale == RBF().fit(x).length_scale
    exact = np.median(np.linalg.norm(x[:, None] - x[:500], axis=2))
    assert abs(scale / exact - 1) < 0.05  # 125,000 distances of 500 rows


def test_auto_of_one_distinct_row_is_1():
    assert RBF().fit(np.ones((3, 2))).length_scale == 1.0


def test_auto_must_be_fitted():
    for use in (RBF(), RBF().diagonal, RBF().derivatives):
        with pytest.raises(InputError, match=r"set by fit\(x\)"):
            use(tokens())


# --- operators and names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (Linear() + 5 * Normalized(Linear()) ** 3, "Linear() + 5.0 * Normalized(Linear()) ** 3"),
        ((Linear() + RBF(1.0)) * Linear(), "(Linear() + RBF(length_scale=1.0)) * Linear()"),
        (Linear() + (Linear() + Linear()), "Linear() + (Linear() + Linear())"),
        ((2 * Linear()) ** 2, "(2.0 * Linear()) ** 2"),
        ((Linear() ** 2) ** 3, "(Linear() ** 2) ** 3"),
        (2 * (Linear() + 1), "2.0 * (Linear() + Constant())"),
        (3.0 + Linear(), "Constant(value=3.0) + Linear()"),
        (np.float64(2) * Polynomial(3, 0.5), "2.0 * Polynomial(degree=3, coef0=0.5)"),
        (Linear() * np.int64(2), "2.0 * Linear()"),
        (Columns(RBF(), "w="), "Columns(RBF(), columns='w=')"),
        (Callable(inner), "Callable(inner)"),
        (Graph(), "Graph()"),
        (Graph(n_components=5), "Graph(n_components=5)"),
    ],
)
def test_repr(kernel, written):
    assert repr(kernel) == written
    if "=" not in written or "w=" in written:
        assert repr(eval(written)) == written


@pytest.mark.parametrize("other", ["x", None, True, [1.0]])
def test_operators_refuse(other):
    with pytest.raises(TypeError):
        Linear() + other
    with pytest.raises(TypeError):
        other * Linear()


def test_nested_parameters():
    kernel = 2 * RBF(1.0)
    kernel.set_params(kernel__length_scale=3.0)
    assert kernel.kernel.length_scale == 3.0
    assert kernel.get_params()["kernel__length_scale"] == 3.0


def test_parameter_order():
    kernel = 2 * RationalQuadratic(3.0, 4.0) + Constant(0.0) + Polynomial(2, 5.0)
    assert kernel.parameter_names == [
        "left.left.scale",
        "left.left.kernel.length_scale",
        "left.left.kernel.alpha",
        "right.coef0",
    ]
    np.testing.assert_allclose(np.exp(kernel.log_parameters), [2, 3, 4, 5], rtol=1e-14)


@pytest.mark.parametrize("values", [[], [0.0, 1.0], [np.nan], [np.inf], [800.0]])
def test_bad_log_parameters(values):
    with pytest.raises(InputError):
        RBF(1.0).with_log_parameters(values)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("linear", Linear()),
        ("poly2", Polynomial(2)),
        ("poly3", Polynomial(3)),
        ("rbf", RBF()),
        ("matern", Matern()),
        ("rational_quadratic", RationalQuadratic()),
        ("cosine", Normalized(Linear())),
    ],
)
def test_names(name, kernel):
    assert repr(as_kernel(name)) == repr(kernel)
    assert as_kernel(kernel) is kernel


def test_functions_are_kernels():
    assert as_kernel(inner).function is inner


@pytest.mark.parametrize("thing", ["rbff", None, 3, Linear, ["linear"]])
def test_no_kernel(thing):
    with pytest.raises(InputError, match="a kernel is"):
        as_kernel(thing)


def test_trust():
    assert (Linear() + 2 * RBF(1.0)).trusted
    assert not Precomputed(np.eye(2)).trusted
    assert not (Normalized(Callable(inner)) ** 2 + Linear()).trusted


# --- bad arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        Constant(-1.0),
        Constant(np.nan),
        Polynomial(0),
        Polynomial(2.5),
        Polynomial(True),
        Polynomial(2, -1.0),
        RBF(0.0),
        RBF(-1.0),
        RBF("median"),
        RBF(None),
        Matern(1.0, 2.0),
        Matern(1.0, "x"),
        RationalQuadratic(1.0, 0.0),
        RationalQuadratic(np.inf),
        Scaled(Linear(), -1.0),
        Power(Linear(), 0),
        Power(Linear(), 1.5),
        Normalized("linear"),
        Sum(Linear(), None),
        Linear() + 2 * RBF(0.0),
        Callable("x"),
    ],
    ids=repr,
)
def test_bad_arguments(kernel):
    x = tokens()
    for use in (kernel, kernel.diagonal, kernel.derivatives, kernel.fit):
        with pytest.raises(InputError):
            use(x)


@pytest.mark.parametrize("x", [np.zeros(3), [["a"]], np.zeros((2, 2, 2))])
def test_bad_tokens(x):
    with pytest.raises(InputError, match="kernels take"):
        Linear()(x)


def test_widths_must_agree():
    with pytest.raises(InputError, match="of 3 and of 4 features"):
        Linear()(np.zeros((2, 3)), np.zeros((2, 4)))


def test_abstract():
    with pytest.raises(TypeError):
        Kernel()


# --- model files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        None,
        [],
        {},
        {"class": "os.system", "own": {}, "parts": {}},
        {"class": ["Linear"], "own": {}, "parts": {}},
        {"class": "_Stationary", "own": {"length_scale": 1.0}, "parts": {}},
        {"class": "Linear", "own": {"x": 1}, "parts": {}},
        {"class": "RBF", "own": {}, "parts": {}},
        {"class": "RBF", "own": {"length_scale": [1.0]}, "parts": {}},
        {"class": "RBF", "own": {"length_scale": -1.0}, "parts": {}},
        {"class": "Normalized", "own": {}, "parts": {}},
        {"class": "Normalized", "own": {}, "parts": {"kernel": None}},
        {"class": "Linear", "own": {}, "parts": {"kernel": {}}},
        {"class": "Callable", "own": {"function": "print"}, "parts": {}},
        {"class": "Precomputed", "own": {}, "parts": {}},
        {"class": "Columns", "own": {}, "parts": {"kernel": KERNELS.state(Linear()).header}},
    ],
    ids=str,
)
def test_damaged_state(header):
    with pytest.raises(InputError):
        KERNELS.restore(header, {})


@pytest.mark.parametrize(
    "columns", [np.array([-1]), np.array([0.5]), np.zeros((1, 1), np.int64)], ids=str
)
def test_damaged_columns(columns):
    header, _ = KERNELS.state(Columns(Linear(), [0]))
    with pytest.raises(InputError):
        KERNELS.restore(header, {"columns": columns})


def test_columns_of_a_file_are_checked_at_use():
    header, arrays = KERNELS.state(Columns(Linear(), [0, 9]))
    with pytest.raises(InputError, match="no column 9: tokens have 6"):
        KERNELS.restore(header, arrays)(tokens())


@pytest.mark.parametrize("gram", [np.zeros((2, 3)), np.eye(2, dtype=np.float32), np.zeros(4)])
def test_damaged_gram(gram):
    header, _ = KERNELS.state(Precomputed(np.eye(2)))
    with pytest.raises(InputError):
        KERNELS.restore(header, {"gram": gram})
