import json
import math
import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.csgraph import laplacian as reference_laplacian
from sklearn.base import clone
from sklearn.neighbors import kneighbors_graph

from seqfield.errors import BudgetError, CapabilityError, InputError
from seqfield.kernels import KERNELS, RBF, Columns, _neighbours, graph
from seqfield.kernels.explicit import EXPANSIONS
from seqfield.kernels.graph import Diagnosis, ExtensionWarning, Graph, GraphWarning, diagnose

SEED = 5


def cloud(n=300, d=3):
    return np.random.default_rng(SEED).normal(size=(n, d))


def weights_of(x, k=10):
    near = kneighbors_graph(x, k)
    return near.maximum(near.T).toarray()


def close(found, wanted, tolerance):
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


def relative_rms(found, wanted):
    return np.sqrt(np.mean(np.square(found - wanted)) / np.mean(np.square(wanted)))


# --- values -------------------------------------------------------------------------------------


def test_galaxy_kernel_is_the_inverse():
    x = cloud()
    l = reference_laplacian(weights_of(x))
    wanted = 10 * np.linalg.inv(l + 1e-6 * np.eye(300))
    close((10 * Graph()).fit(x)(x), wanted, 1e-8)


@pytest.mark.parametrize("normalized", [False, True])
def test_inverse_beside_the_constant(normalized):
    # the constant, 1 / shift, would hide errors in all the rest
    x = cloud()
    l = reference_laplacian(weights_of(x), normed=normalized)
    name = "normalized" if normalized else "combinatorial"
    found = Graph(laplacian=name, shift=0.01).fit(x)(x)
    close(found, np.linalg.inv(l + 0.01 * np.eye(300)), 1e-11)


@pytest.mark.parametrize("normalized", [False, True])
def test_diffusion_is_the_matrix_exponential(normalized):
    x = cloud(120)
    l = reference_laplacian(weights_of(x), normed=normalized)
    name = "normalized" if normalized else "combinatorial"
    found = Graph(laplacian=name, transform="diffusion", time=0.7).fit(x)(x)
    close(found, scipy.linalg.expm(-0.7 * l), 1e-11)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_heat_weights(metric):
    x = cloud(120)
    k = Graph(6, weights="heat", metric=metric, shift=0.1).fit(x)
    near = kneighbors_graph(x, 6, mode="distance", metric=metric)
    near.data = np.exp(-np.square(near.data) / (2 * np.median(near.data) ** 2))
    l = reference_laplacian(near.maximum(near.T).toarray())
    close(k(x), np.linalg.inv(l + 0.1 * np.eye(120)), 1e-10)


def options():
    for laplacian in ("combinatorial", "normalized"):
        for transform in ("inverse", "diffusion"):
            for weights in ("binary", "heat"):
                yield {"laplacian": laplacian, "transform": transform, "weights": weights}


@pytest.mark.parametrize("choice", list(options()))
def test_positive_semidefinite_also_beside_the_graph(choice):
    x, new = cloud(80), cloud(120)[80:]
    k = Graph(5, shift=0.1, **choice).fit(x)
    with pytest.warns(ExtensionWarning):
        gram = k(np.vstack([x, new]))
    assert np.array_equal(gram, gram.T)
    values = np.linalg.eigvalsh(gram)
    assert values[0] >= -1e-10 * values[-1]
    assert np.allclose(k.diagonal(x), np.diagonal(gram)[:80], rtol=1e-12)
    assert k.trusted


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
@pytest.mark.parametrize("way", ["_lanczos", "_inverse_lanczos"])
def test_truncated_is_the_leading_part_of_the_full_spectrum(laplacian, way, monkeypatch):
    x = np.vstack([cloud(350), cloud(250) + 50.0])  # two connected parts
    full = Graph(laplacian=laplacian, shift=1e-3).fit(x)._spectrum
    if way == "_inverse_lanczos":
        monkeypatch.setattr(_neighbours, "_lanczos", lambda *_: None)
    m = 30
    k = Graph(laplacian=laplacian, shift=1e-3, n_components=m).fit(x)
    assert k._spectrum.vectors.shape == (600, m)
    assert np.allclose(k._spectrum.values, full.values[:m], rtol=0, atol=1e-8)
    assert (k._spectrum.values[:2] == 0).all()
    part = full.vectors[:, :m] / np.sqrt(full.values[:m] + 1e-3)
    close(k(x), part @ part.T, 1e-6)


def test_wrong_eigenvectors_are_found_out(monkeypatch):
    def wrong(matrix, constants, m, lift):
        return np.ones(m), np.linalg.qr(cloud(600, m))[0]

    x = cloud(600)
    wanted = Graph(n_components=20, shift=0.1).fit(x)(x)
    monkeypatch.setattr(_neighbours, "_lanczos", wrong)
    close(Graph(n_components=20, shift=0.1).fit(x)(x), wanted, 1e-6)
    monkeypatch.setattr(_neighbours, "_inverse_lanczos", wrong)
    close(Graph(n_components=20, shift=0.1).fit(x)(x), wanted, 1e-6)
    monkeypatch.setattr(_neighbours, "_dense", wrong)
    with pytest.raises(CapabilityError, match="n_components"):
        Graph(n_components=20).fit(x)


def test_double_eigenvalues_are_all_found():
    angle = np.random.default_rng(SEED).permutation(600) * (2 * np.pi / 600)
    x = np.column_stack([np.cos(angle), np.sin(angle)])
    values = Graph(2, n_components=21).fit(x)._spectrum.values
    # a ring: 2 - 2 cos(2 pi j / n), each twice but the first
    j = (np.arange(21) + 1) // 2
    assert np.allclose(values, 2 - 2 * np.cos(2 * np.pi * j / 600), rtol=0, atol=1e-9)


def test_number_of_eigenvectors(monkeypatch):
    monkeypatch.setattr(_neighbours, "ALL_UP_TO", 550)
    assert len(Graph().fit(cloud(540))._spectrum.values) == 540
    monkeypatch.setattr(_neighbours, "SMOOTHEST", 40)
    assert len(Graph().fit(cloud(600))._spectrum.values) == 40
    assert len(Graph(n_components=99).fit(cloud(50))._spectrum.values) == 50
    assert len(Graph(n_components=1, shift=0.5).fit(cloud(50))._spectrum.values) == 1


def test_sparse_tokens_give_the_same():
    x = cloud(200, 6) * (np.random.default_rng(1).random((200, 6)) < 0.7)
    new = x[:5] + 0.01
    for weights in ("binary", "heat"):
        dense, sparse = (
            Graph(weights=weights, shift=0.1).fit(tokens) for tokens in (x, sp.csr_matrix(x))
        )
        assert sp.issparse(sparse._graph.pool)
        close(sparse(sp.csr_array(x)), dense(x), 1e-10)
        # either kind of token is found in either graph
        assert sparse.in_graph(x).all()
        assert dense.in_graph(sp.csc_array(x)).all()
        with pytest.warns(ExtensionWarning):
            close(sparse(sp.csr_array(new), sp.csr_array(x)), dense(new, x), 1e-10)


def test_equal_tokens_are_one():
    x = cloud(60)
    k = Graph(5, shift=0.1).fit(x)
    order = np.random.default_rng(0).integers(0, 60, 150)
    many = Graph(5, shift=0.1).fit(np.vstack([x, x[order]]))
    assert len(many._graph) == 60
    assert np.array_equal(many(x), k(x))
    rows = k._basis(graph.as_rows(x))
    assert np.array_equal(k._basis(graph.as_rows(x[order])), rows[order])
    close(k(x[order], x), k(x)[order], 1e-14)
    # -0.0 is 0.0
    x[0] = 0.0
    k = Graph(5, shift=0.1).fit(x)
    assert np.array_equal(k(-x[:1], x), k(x[:1], x))
    # stored zeros and integers are the same tokens
    ones = sp.csr_array(np.eye(12, dtype=np.int64))
    k = Graph(5, shift=0.1, metric="cosine").fit(ones)
    stored = sp.csr_array((np.array([1, 0]), np.array([0, 3]), np.array([0, 2])), shape=(1, 12))
    assert k.in_graph(stored).all()


def test_deterministic():
    x = cloud(700)
    for choice in ({"n_components": 25}, {}):
        first, second = (Graph(shift=0.1, **choice).fit(x)(x) for _ in range(2))
        assert np.array_equal(first, second)


def test_in_other_kernels():
    x = cloud(60)
    k = (RBF(1.0) + 0.5 * Columns(Graph(5, shift=0.1), [0, 2])).fit(x)
    wanted = RBF(1.0)(x) + 0.5 * Graph(5, shift=0.1).fit(x[:, [0, 2]])(x[:, [0, 2]])
    close(k(x), wanted, 1e-12)


# --- tokens that are not in the graph -----------------------------------------------------------


def test_extension_is_flagged():
    x = cloud(60)
    k = Graph(5, shift=0.1).fit(x)
    new = np.vstack([x[:3], x[:2] + 0.01])
    assert k.in_graph(new).tolist() == [True, True, True, False, False]
    assert k.components(new).tolist() == [0, 0, 0, -1, -1]
    with pytest.warns(ExtensionWarning, match="2 of 5 tokens are not in the graph") as caught:
        gram = k(new, x)
    assert "y None" in str(caught[0].message)
    # a product of another height may round otherwise
    np.testing.assert_allclose(gram[:3], k(x[:3], x), rtol=1e-13)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        k(x)


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
def test_a_near_copy_has_nearly_the_row_of_its_neighbourhood(laplacian):
    x = cloud(400, 2)
    k = Graph(8, laplacian=laplacian, shift=0.05, n_components=15).fit(x)
    with pytest.warns(ExtensionWarning):
        found = k(x + 1e-7, x)
    assert relative_rms(found, k(x)) < 0.15
    # better than another token of the cloud by far
    assert relative_rms(found, k(x)) < 0.2 * relative_rms(k(x)[::-1], k(x))


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
@pytest.mark.parametrize("weights", ["binary", "heat"])
def test_smooth_functions_of_a_ring_extend_between_tokens(laplacian, weights):
    angle = np.arange(400) * (2 * np.pi / 400)
    between = angle[:50] + np.pi / 400  # half way, with as many neighbours on either side

    def ring(at):
        return np.column_stack([np.cos(at), np.sin(at)])

    k = Graph(8, laplacian=laplacian, weights=weights, n_components=9, shift=1e-3).fit(ring(angle))
    with pytest.warns(ExtensionWarning):
        found = k._basis(graph.as_rows(ring(between)))
    # the functions are cos(j a) and sin(j a): continue them by least squares at the tokens
    j = np.arange(5)
    wanted = np.hstack([np.cos(np.outer(between, j)), np.sin(np.outer(between, j))])
    at = np.hstack([np.cos(np.outer(angle, j)), np.sin(np.outer(angle, j))])
    fit = np.linalg.lstsq(at, k._spectrum.vectors, rcond=None)[0]
    assert np.abs(at @ fit - k._spectrum.vectors).max() < 1e-8
    # relative to the constant, which for the normalised Laplacian goes with the root of the degree
    wanted = wanted @ fit
    assert np.abs(found / found[:, :1] - wanted / wanted[:, :1]).max() < 1e-2


def test_rough_functions_are_bounded():
    x = cloud(100)
    k = Graph(5).fit(x)
    with pytest.warns(ExtensionWarning):
        found = k._basis(graph.as_rows(x + 0.05))
    # means of neighbours, at most doubled
    assert np.abs(found).max() <= 2 * np.abs(k._spectrum.vectors).max()


def test_far_tokens_with_heat_weights_are_0():
    for laplacian in ("combinatorial", "normalized"):
        k = Graph(5, weights="heat", laplacian=laplacian).fit(cloud(60))
        with pytest.warns(ExtensionWarning):
            assert (k(np.full((1, 3), 1e6), cloud(60)) == 0).all()


# --- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", list(options()))
def test_derivatives_by_differences(choice):
    x = cloud(60)
    k = Graph(5, shift=0.3, time=0.7, **choice).fit(x)
    assert k.parameter_names == ["shift" if choice["transform"] == "inverse" else "time"]
    step = 1e-5
    up, down = (k.with_log_parameters(k.log_parameters + s) for s in (step, -step))
    assert up._spectrum is k._spectrum  # not computed again
    wanted = (up(x, x[:7]) - down(x, x[:7])) / (2 * step)
    (found,) = k.derivatives(x, x[:7])
    close(found, wanted, 1e-8)
    (diagonal,) = k.diagonal_derivatives(x)
    assert np.allclose(diagonal, np.diagonal(k.derivatives(x)[0]), rtol=1e-12)


def test_time_0_is_fixed():
    x = cloud(40)
    k = Graph(5, transform="diffusion", time=0.0).fit(x)
    close(k(x), np.eye(40), 1e-12)
    assert k.parameter_names == []
    assert k.derivatives(x) == []
    assert k.diagonal_derivatives(x) == []


def test_a_clone_is_not_fitted_and_fit_changes_nothing():
    k = Graph(5)
    fitted = k.fit(cloud(40))
    for one in (k, clone(fitted)):
        with pytest.raises(CapabilityError, match=r"call fit\(x\)"):
            one(cloud(40))
    assert fitted.get_params() == k.get_params()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_neighbors": 0}, "n_neighbors"),
        ({"n_neighbors": 2.5}, "n_neighbors"),
        ({"shift": 0.0}, "shift must be above 0"),
        ({"time": -1.0}, "time"),
        ({"n_components": 0}, "n_components"),
        ({"laplacian": "x"}, "laplacian must be 'combinatorial' or 'normalized', got 'x'"),
        ({"transform": "x"}, "transform"),
        ({"weights": None}, "weights"),
        ({"metric": "x"}, "metric"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(InputError, match=message):
        Graph(**arguments).fit(cloud(40))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("d", [3, 30])
def test_distances_that_overflow(form, metric, d):
    x = cloud(40, d)
    kernel = Graph(metric=metric)
    with pytest.raises(InputError, match=r"distances of row 0 overflow.* scale the features"):
        kernel.fit(form(1e200 * x))
    fitted = kernel.fit(form(x))
    with (
        pytest.warns(ExtensionWarning),
        pytest.raises(InputError, match=r"distances of row 0 overflow"),
    ):
        fitted(form(1e200 * x))


def test_too_few_tokens():
    x = np.repeat(cloud(10), 5, axis=0)
    with pytest.raises(InputError, match="n_neighbors=10 needs more than 10 distinct tokens"):
        Graph().fit(x)
    assert Graph(9, shift=0.1).fit(x)(x).shape == (50, 50)


def test_other_width():
    with pytest.raises(InputError, match="2 features, but the graph has 3"):
        Graph(5).fit(cloud(40))(cloud(40, 2))


def test_budget(monkeypatch):
    monkeypatch.setattr(graph, "BUDGET", 32 * 600 * 100)
    with pytest.raises(BudgetError, match=r"600 distinct tokens need .* GiB"):
        Graph().fit(cloud(600))
    Graph(n_components=20).fit(cloud(600))
    with pytest.raises(BudgetError, match="n_components="):
        Graph(n_components=120).fit(cloud(600))


# --- connected parts and labels -----------------------------------------------------------------


def test_connected_parts():
    x = np.vstack([cloud(30), cloud(20) + 100.0])
    k = Graph(5, shift=1e-6).fit(x)
    assert k.components(x).tolist() == [0] * 30 + [1] * 20
    # the parts know nothing of each other, exactly enough for a shift this small
    assert np.abs(k(x[:30], x[30:])).max() < 1e-12
    with pytest.raises(InputError, match="2 connected parts, so n_components=1 is too few"):
        Graph(5, n_components=1).fit(x)


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
def test_tokens_without_neighbours(laplacian):
    x = np.vstack([cloud(40), np.full((1, 3), 1e6)])
    with pytest.warns(GraphWarning, match="1 of 41 distinct tokens are so far"):
        k = Graph(5, weights="heat", laplacian=laplacian, shift=0.5).fit(x)
    gram = k(x)
    assert np.allclose(gram[40], np.append(np.zeros(40), 2.0))


def test_diagnosis_of_smooth_and_of_random_labels():
    x = cloud(500, 2)
    k = Graph().fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smooth = diagnose(k, x, (x[:, 0] > 0).astype(int))
    assert isinstance(smooth, Diagnosis)
    assert smooth.agreement > 0.85
    assert smooth.chance == pytest.approx(0.5, abs=0.01)
    assert (smooth.n_components, smooth.n_unlabelled_components) == (1, 0)
    rng = np.random.default_rng(1)
    with pytest.warns(GraphWarning, match="tells nothing about the labels"):
        random = diagnose(k, x, rng.integers(0, 3, 500))
    assert abs(random.agreement - random.chance) < 3 * random.standard_error


def test_diagnosis_by_hand():
    # a path of four tokens with the labels 0 0 1 -
    x = np.array([[0.0], [1.0], [2.1], [3.3]])
    k = Graph(1).fit(x)
    assert k._graph.weights.nnz == 6
    found = diagnose(k, x, [0, 0, 1, -1])  # too few to warn
    assert found[:4] == (pytest.approx(1 / 2), pytest.approx(5 / 9), 1, 0)
    # equal tokens of unequal labels count by their shares: labels 0, half 0 half 1
    twice = x[[0, 1, 1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        found = diagnose(k, twice, [0, 0, 1])
    assert found[:2] == (pytest.approx(0.5), pytest.approx(0.75**2 + 0.25**2))


def test_standard_error_is_that_of_random_labels():
    x = cloud(120, 2)
    k = Graph(4).fit(x)
    rng = np.random.default_rng(2)
    # unequal shares, where pairs that share a token depend on each other
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        found = [diagnose(k, x, rng.permutation(np.arange(120) < 24).astype(int))]
        found += [diagnose(k, x, (rng.random(120) < 0.2).astype(int)) for _ in range(300)]
    spread = np.std([one.agreement for one in found[1:]])
    assert 0.7 < found[0].standard_error / spread < 1.4


def test_diagnosis_of_parts_without_labels():
    x = np.vstack([cloud(60), cloud(20) + 100.0, cloud(25) - 100.0])
    k = Graph(8).fit(x)
    codes = np.full(105, -1)
    codes[:60] = x[:60, 0] > 0
    with pytest.warns(GraphWarning) as caught:
        found = diagnose(k, x, codes)
    assert (found.n_components, found.n_unlabelled_components) == (3, 2)
    messages = [str(one.message) for one in caught]
    assert len(messages) == 2
    assert "2 of the 3 connected parts" in messages[0]
    assert "45 distinct tokens" in messages[0]
    assert "falls apart into 3 connected parts, but there are 2 labels" in messages[1]


def test_diagnosis_without_labels_and_with_one():
    x = cloud(60)
    k = Graph(5).fit(x)
    with pytest.warns(GraphWarning, match="no labelled token"):
        found = diagnose(k, x, np.full(60, -1))
    assert math.isnan(found.agreement)
    codes = np.full(60, -1)
    codes[3] = 0
    found = diagnose(k, x, codes)
    assert math.isnan(found.agreement)
    assert found.chance == 1.0
    assert diagnose(k, x, np.zeros(60, int))[:2] == (1.0, 1.0)
    for bad in (np.zeros(59, int), np.zeros(60)):
        with pytest.raises(InputError, match="60 whole numbers"):
            diagnose(k, x, bad)


# --- features and model files -------------------------------------------------------------------


def test_expansion():
    x = cloud(100)
    k = Graph(5, shift=0.1, n_components=20).fit(x)
    features = k.expansion(x)
    phi = features.transform(x)
    assert phi.shape == (100, features.n_columns) == (100, 20)
    close(phi @ phi.T, k(x), 1e-12)
    assert np.allclose(features.squared_norms(x), k.diagonal(x), rtol=1e-12)
    scaled = (10 * k).expansion(x).transform(x)
    close(scaled @ scaled.T, 10 * k(x), 1e-12)
    sparse = Graph(5, shift=0.1, n_components=20).fit(sp.csr_array(x))
    assert sp.issparse(sparse.expansion(sp.csr_array(x)).transform(sp.csr_array(x)))
    assert k.expansion(x[:19]) is None
    with pytest.raises(BudgetError, match="20 graph features of 100 tokens"):
        k.expansion(x, budget=1000)
    again = EXPANSIONS.restore(*EXPANSIONS.state(features))
    assert np.array_equal(again.transform(x), phi)
    header, arrays = EXPANSIONS.state(features)
    header["own"] = RBF(1.0).state().header
    with pytest.raises(InputError, match="damaged kernel: Graph takes"):
        EXPANSIONS.restore(header, arrays)


def through_json(state):
    header, arrays = state
    return json.loads(json.dumps(header)), {name: np.array(v) for name, v in arrays.items()}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("choice", list(options()))
def test_restored_is_the_same(sparse, choice):
    x = cloud(80)
    x = sp.csr_array(x) if sparse else x
    k = Graph(5, shift=0.1, n_components=30, **choice).fit(x)
    again = KERNELS.restore(*through_json(KERNELS.state(k)))
    assert repr(again) == repr(k)
    assert np.array_equal(again(x), k(x))
    with pytest.warns(ExtensionWarning):
        new = again(x * 1.01, x)
    with pytest.warns(ExtensionWarning):
        assert np.array_equal(new, k(x * 1.01, x))
    assert np.array_equal(again.components(x), k.components(x))
    unfitted = KERNELS.restore(*through_json(KERNELS.state(Graph(7))))
    assert unfitted.get_params() == Graph(7).get_params()


def damages():
    def set_to(name, at, value):
        def damage(arrays):
            arrays[name][at] = value

        return damage

    def replace(name, make):
        def damage(arrays):
            arrays[name] = make(arrays[name])

        return damage

    yield set_to("graph/pool/indices", 0, 99)
    yield set_to("graph/pool/indices", 0, -1)
    yield set_to("graph/pool/indptr", 3, 10**6)
    yield set_to("graph/pool/indptr", 0, 1)
    yield set_to("graph/pool/data", 2, np.nan)
    yield set_to("graph/pool/shape", 0, 7)
    yield set_to("graph/pool/shape", 1, -3)
    yield replace("graph/pool/indices", lambda v: v.astype(np.float64))
    yield replace("graph/pool/data", lambda v: np.ones_like(v))  # all tokens equal
    yield set_to("graph/weights/indices", 0, 80)
    yield set_to("graph/weights/data", 0, 3.0)  # not symmetric
    yield replace("graph/weights/data", lambda v: -v)
    yield replace("graph/weights/data", lambda v: v[:-1])
    yield replace("graph/weights/shape", lambda v: v + 1)
    yield set_to("graph/width", 0, 0.0)
    yield set_to("graph/width", 0, -1.0)
    yield replace("graph/width", lambda v: v[:0])
    yield set_to("spectrum/values", 3, np.inf)
    yield set_to("spectrum/values", 3, -1.0)
    yield replace("spectrum/values", lambda v: v[::-1].copy())
    yield replace("spectrum/values", lambda v: v[:-1])
    yield set_to("spectrum/vectors", (3, 3), np.nan)
    yield replace("spectrum/vectors", lambda v: v[:-1])
    yield replace("spectrum/vectors", lambda v: v.ravel())
    yield replace("spectrum/vectors", lambda v: v.astype(np.float32))
    for name in ("graph/width", "graph/pool/indptr", "spectrum/values"):
        yield lambda arrays, name=name: arrays.pop(name)


@pytest.mark.parametrize("damage", list(damages()))
def test_damaged_arrays_are_refused(damage):
    k = Graph(5, shift=0.1, weights="heat").fit(sp.csr_array(cloud(80)))
    header, arrays = through_json(KERNELS.state(k))
    KERNELS.restore(header, arrays)
    damage(arrays)
    with pytest.raises(InputError, match="damaged"):
        KERNELS.restore(header, arrays)


def test_damaged_headers_are_refused():
    header, arrays = through_json(KERNELS.state(Graph(5).fit(cloud(80))))
    for name, value in [("n_neighbors", 100), ("weights", "heat"), ("metric", 3), ("shift", 0)]:
        with pytest.raises(InputError):
            KERNELS.restore(header | {"own": header["own"] | {name: value}}, arrays)
    del header["own"]["metric"]
    with pytest.raises(InputError, match="damaged"):
        KERNELS.restore(header, arrays)
