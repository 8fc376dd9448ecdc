"""A model file gives back what was saved, to the last bit."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import seqfield as sf
from seqfield.errors import CapabilityError, ModelFileError

from ..support.estimators import (
    BIO,
    EDGED,
    EDGES,
    NAMES,
    OFFSETS,
    TEMPLATE,
    WORDS,
    X,
    Y,
    every,
    fingerprint,
    fitted,
    has,
    likelihood,
    make,
    own,
    quiet,
    relabelled,
    where,
)

pytestmark = quiet

SPARSE_EDGED = sf.Sequences(
    sp.csr_array(np.vstack(X) > 0.5), OFFSETS, sp.csr_array(np.vstack(X)[:, :3] > 0)
)
DICTS = [[{"w": w, "t": t, "n": 0.5} for w, t in x] for x in WORDS]
EDGE_DICTS = [[{"w": w, "t": t, "n": 0.5, sf.EDGE: [f"t={t}"]} for w, t in x] for x in WORDS]
EDGE_TEMPLATE = "U0:%x[0,0]\nU1:%x[-1,0]/%x[1,1]\nB0:%x[0,1]\nB"
MODELS = {
    "dense": (X, Y, {}),
    "dense, shared arguments": (
        X,
        Y,
        {
            "classes": np.array(["L0", "L2", "L1", "LX"]),
            "missing_label": "?",
            "verbose": 0,
            "random_state": np.random.RandomState(0),
        },
    ),
    "sparse": ([sp.csr_array(np.where(x > 0.8, x, 0)) for x in X], Y, {}),
    "window": (X, Y, {"features": sf.Window(3)}),
    "words": (WORDS, BIO, {}),
    "words, arguments": (WORDS, BIO, {"features": sf.Words(window=5, spelling=None, min_freq=2)}),
    "template": (WORDS, BIO, {"features": sf.Template(TEMPLATE)}),
    "template text": (WORDS, BIO, {"features": TEMPLATE}),
    "template without transitions": (WORDS, BIO, {"features": "U:%x[0,0]"}),
    "hashed template": (WORDS, BIO, {"features": sf.Template(TEMPLATE, hash_bits=6)}),
    "attributes": (DICTS, BIO, {}),
    "hashed attributes": (DICTS, BIO, {"features": sf.Attributes(hash_bits=5)}),
    "scheme": (WORDS, BIO, {"scheme": "BIO", "on_violation": "repair"}),
    "table": (X, Y, {"scheme": list(product(["L0", "L1", "L2"], repeat=2))}),
    "table as a dict": (X, Y, {"scheme": {f"L{k}": ["L0", "L1", "L2"] for k in range(3)}}),
    "table as a set": (X, Y, {"scheme": set(product(["L0", "L1", "L2"], repeat=2))}),
    "int labels": (X, relabelled([5, -1, 2**70]), {}),
    "float labels": (X, relabelled([0.5, 1e-300, -2.0]), {}),
    "bool labels": (X, [[v == "L1" for v in row] for row in Y], {}),
    "tuple labels": (X, relabelled([("a", 1), ("b", (2, None)), ()]), {}),
    "mixed labels": (X, relabelled(["a", 1, ("b", True)]), {}),
    "labels not in ASCII": (X, relabelled(["日本", 'Ω\n\t"\\', ""]), {}),
    "declared ints": (X, relabelled([0, 1, 2]), {"classes": np.arange(4)}),
    "missing labels": (X, [[None, *row[1:]] for row in Y], {"missing_label": -100}),
    "infinite argument": (X, Y, {"missing_label": float("inf")}),
    "uncalibrated": (X, Y, {"calibrate": False}),
    "temperature": (X, Y, {"calibrate": True}),
    "platt": (WORDS, BIO, {"calibrate": "platt"}),
    "vector": (X, Y, {"calibrate": "vector"}),
}
#: with features of edges, for those who take them
EDGE_MODELS = {
    "dense edges": (EDGED, Y, {}),
    "sparse edges": (SPARSE_EDGED, Y, {}),
    "template with edges": (WORDS, BIO, {"features": sf.Template(EDGE_TEMPLATE, min_freq=2)}),
    "hashed edges": (WORDS, BIO, {"features": sf.Template(EDGE_TEMPLATE, hash_bits=6)}),
    "attributes of edges": (EDGE_DICTS, BIO, {}),
    "hashed attributes of edges": (EDGE_DICTS, BIO, {"features": sf.Attributes(hash_bits=5)}),
}
#: parameters that not all have
OWN = {"c1": 0.1, "c2": 0.2, "solver": "owlqn", "max_iter": 50, "tol": 1e-4, "eta": 0.5}
OWN |= {"refit": "log", "kernel": sf.kernels.RBF(1.5), "inference": "chain", "transitions": False}
CASES = [
    pytest.param(name, *case, id=f"{name}-{kind}")
    for name in NAMES
    for kind, case in (MODELS | (EDGE_MODELS if name in EDGES else {})).items()
]
CASES += [
    pytest.param(
        name,
        X,
        Y,
        own(name, OWN if has(name, "c1") else OWN | {"solver": "auto"})
        | ({"solver": "newton"} if has(name, "laplace") else {}),
        id=f"{name}-own",
    )
    for name in NAMES
]
CASES += [
    pytest.param(
        name, [sp.csr_array(x > 0) for x in X], Y, {"observed_only": False}, id=f"{name}-all pairs"
    )
    for name in NAMES
    if has(name, "observed_only")
]


def plain(value):
    """A parameter in the form a file gives back."""
    if isinstance(value, np.ndarray | list):
        return [plain(v) for v in value]
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return repr(value) if hasattr(value, "get_params") else value


def assert_same_answers(a, b, X, y):
    """All that two models say is the same, to the last bit."""
    np.testing.assert_array_equal(fingerprint(a, X), fingerprint(b, X))
    assert a.predict(X) == b.predict(X)
    assert a.score(X, y) == b.score(X, y)
    if not b.has_probabilities:
        return
    p, q = a.distribution(X), b.distribution(X)
    assert p.best("posterior") == q.best("posterior")
    np.testing.assert_array_equal(likelihood(a, X, y), likelihood(b, X, y))
    if b.joint:
        assert p.nbest(3) == q.nbest(3)
        assert p.sample(3, random_state=0) == q.sample(3, random_state=0)
        np.testing.assert_array_equal(p.entropy(), q.entropy())
        if y is BIO:
            assert p.spans() == q.spans()


@pytest.mark.parametrize(("name", "X1", "y1", "wanted"), CASES)
def test_save_and_load(name, X1, y1, wanted, tmp_path):
    model = make(name, **wanted).fit(X1, y1)
    path = tmp_path / "model.sf"
    model.save(path)
    again = sf.load(path)
    assert type(again) is type(model)
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.classes_.dtype == model.classes_.dtype
    assert [type(v) for v in again.classes_.tolist()] == [type(v) for v in model.classes_.tolist()]
    assert again.n_features_in_ == model.n_features_in_
    assert again.features_.names() == model.features_.names()
    assert again.features_.edge_names() == model.features_.edge_names()
    assert (again.calibration_ is None) == (model.calibration_ is None)
    if model.calibration_ is not None:
        assert again.calibration_.state() == model.calibration_.state()
    assert_same_answers(again, model, X1, y1)
    np.testing.assert_array_equal(again.function_.transitions, model.function_.transitions)
    if hasattr(model, "theta_"):
        np.testing.assert_array_equal(again.theta_, model.theta_)
    got, want = again.get_params(deep=False), model.get_params(deep=False)
    assert got.keys() == want.keys()
    for key in want:
        a = sorted(got[key]) if isinstance(want[key], set) else plain(got[key])
        assert a == plain(want[key]), key
    # saved again it is the same file, and it can be copied and trained again
    again.save(tmp_path / "again.sf")
    assert (tmp_path / "again.sf").read_bytes() == path.read_bytes()
    copied = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(fingerprint(copied, X1), fingerprint(model, X1))
    # parameters that were not the default came back; the state of a generator is not in the file
    if (wanted or X1 is X) and isinstance(model.random_state, int):
        refit = clone(again).fit(X1, y1)
        np.testing.assert_allclose(fingerprint(refit, X1), fingerprint(model, X1), atol=1e-3)


@where(lambda name: name not in EDGES)
@pytest.mark.parametrize("kind", EDGE_MODELS)
def test_who_has_no_use_for_edge_features_says_so(name, kind):
    X1, y1, wanted = EDGE_MODELS[kind]
    with pytest.raises(CapabilityError, match="edge features"):
        make(name, **wanted).fit(X1, y1)


@every
@pytest.mark.parametrize("method", ["temperature", "platt", "vector"])
def test_a_model_calibrated_later(name, method, tmp_path):
    model = sf.calibrate(fitted(name), X, Y, method=method, cv="prefit")
    model.save(tmp_path / "m.sf")
    assert_same_answers(sf.load(tmp_path / "m.sf"), model, X, Y)


@every
def test_a_loaded_model_does_not_need_the_template_file(name, tmp_path):
    source = tmp_path / "template"
    source.write_text(TEMPLATE)
    model = make(name, features=source).fit(WORDS, BIO)
    model.save(tmp_path / "m.sf")
    source.unlink()
    assert sf.load(tmp_path / "m.sf").predict(WORDS) == model.predict(WORDS)
    assert sf.load(str(tmp_path / "m.sf")).get_params()["features"] == str(source)


@every
@pytest.mark.parametrize("labels", [[b"a", b"b", b"c"], [1.0, 2.0, float("inf")]], ids=str)
def test_labels_that_files_cannot_hold(name, labels, tmp_path):
    model = make(name).fit(X, relabelled(labels))
    with pytest.raises(ModelFileError, match="cannot be saved"):
        model.save(tmp_path / "m.sf")
    assert list(tmp_path.iterdir()) == []
