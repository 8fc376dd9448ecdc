"""What every estimator promises, in the settings of kernel models that the battery, which takes
their defaults, does not come to."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import seqfield as sf
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import get_scheme
from seqfield.estimators._base import constrained
from seqfield.kernels import RBF, Graph, Linear

pytestmark = pytest.mark.filterwarnings(
    "ignore::seqfield.kernels.graph.ExtensionWarning", "ignore::seqfield.kernels.graph.GraphWarning"
)
NAMES = ("B-X", "I-X", "O")


def data(n=14, seed=0):
    """Numbers around a mean for each label; labels that a BIO scheme allows."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, 5, n):
        codes: list[int] = []
        for _ in range(length):
            inside = bool(codes) and codes[-1] < 2
            codes.append(int(rng.choice([0, 1, 2] if inside else [0, 2])))
        X.append(1.5 * np.eye(3)[codes] + rng.normal(size=(length, 3)))
        y.append([NAMES[k] for k in codes])
    return X, y


X, Y = data()
NEW, GOLD = data(6, seed=1)
KERNEL = RBF(1.5)
MODES = {
    "sparse": sf.GPSC(KERNEL, method="sparse", n_coordinates=12),
    "sequence": sf.GPSC(KERNEL, method="sequence", n_coordinates=8),
    "inducing": sf.GPSC(KERNEL, n_inducing=10),
    "explicit": sf.GPSC("linear", explicit=True),
    "float32": sf.GPSC(KERNEL, gram_dtype="float32"),
    "newton": sf.GPSC(KERNEL, solver="newton"),
    "margin": sf.GPSC(KERNEL, loss="softmax_margin", cost=2.0),
    "marginal": sf.GPSC(KERNEL, loss="marginal"),
    "marginal, sparse": sf.GPSC(KERNEL, loss="marginal", method="sparse", n_coordinates=12),
    "laplace": sf.GPSC(KERNEL, posterior="laplace", n_samples=6),
    "laplace, block": sf.GPSC(KERNEL, posterior="laplace", laplace="block", n_samples=6),
    "graph": sf.GPSC(Graph(3)),
    "edges": sf.KernelCRF(KERNEL, cliques="vertex+edge", n_cliques=10),
    "several kernels": sf.KernelCRF([KERNEL, Linear()], n_cliques=10),
    "mean field": sf.KernelCRF(KERNEL, gain="meanfield", n_cliques=6),
    "tokens alone": sf.KernelCRF(KERNEL, transitions=False, n_cliques=10),
    "inducing, sampled": sf.GPStruct(KERNEL, 8, n_inducing=6, n_samples=4),
    "slices": sf.GPStruct(KERNEL, 40, sampler="ess", n_samples=4),
    "piecewise": sf.StructuredSVGP(KERNEL, 6, likelihood="piecewise", max_iter=2, n_samples=4),
    "mixture": sf.StructuredSVGP(KERNEL, 6, n_components=2, max_iter=2, n_samples=4),
}
every = pytest.mark.parametrize("mode", MODES)


def fitted(mode, y=Y, **params):
    model = clone(MODES[mode]).set_params(**{"random_state": 0, "n_jobs": 1} | params)
    return model.fit(X, y)


@pytest.fixture(scope="module")
def models():
    made = {}

    def get(mode):
        if mode not in made:
            made[mode] = fitted(mode)
        return made[mode]

    return get


def listed(model, k):
    """All labellings of a new sequence and the mean of their probabilities over draws."""
    chains = constrained(model.function_.draws(model.encode(NEW)), model.constraint_)
    every = [enumerate_labellings(one, k) for one in chains]
    return every[0].labels, np.mean([one.probabilities for one in every], axis=0)


@every
@pytest.mark.filterwarnings("ignore:no convergence:sklearn.exceptions.ConvergenceWarning")
def test_everything_is_a_sum_over_labellings(mode, models):
    model = models(mode)
    proba, best = model.predict_proba(NEW), model.distribution(NEW).nbest(n=3)
    drawn = model.distribution(NEW).sample(n=200, random_state=0)
    logs = model.log_likelihood(NEW, GOLD)
    names = model.classes_.tolist()
    for k in range(len(NEW)):
        labels, p = listed(model, k)
        np.testing.assert_allclose(proba[k], np.tensordot(p, np.eye(3)[labels], 1), atol=1e-8)
        of = {tuple(names[c] for c in row): q for row, q in zip(labels, p, strict=True)}
        assert logs[k] == pytest.approx(np.log(of[tuple(GOLD[k])]), abs=1e-8)
        for row, log_p in best[k]:
            assert log_p == pytest.approx(np.log(of[tuple(row)]), abs=1e-8)
        first = of[tuple(best[k][0][0])]
        # of an average the lists of its draws are put together, which may miss the very best
        assert first == pytest.approx(p.max(), rel=1e-8) or model.function_.n_draws > 1
        share = np.mean([row == best[k][0][0] for row in drawn[k]])
        assert share == pytest.approx(first, abs=4.5 * np.sqrt(0.25 / 200))


@every
@pytest.mark.filterwarnings("ignore:no convergence:sklearn.exceptions.ConvergenceWarning")
def test_files(mode, models, tmp_path):
    model = models(mode)
    model.save(tmp_path / "model.sf")
    again = sf.load(tmp_path / "model.sf")
    for a, b in zip(again.predict_proba(NEW), model.predict_proba(NEW), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert again.predict(NEW) == model.predict(NEW)


@every
@pytest.mark.filterwarnings("ignore:no convergence:sklearn.exceptions.ConvergenceWarning")
def test_a_scheme_holds_and_labels_may_be_missing(mode):
    partial = [
        [None if (i + t) % 4 == 0 else v for t, v in enumerate(row)] for i, row in enumerate(Y)
    ]
    # what each label is must be said once all tokens of one may be missing
    model = fitted(mode, partial, scheme="BIO", classes=NAMES)
    allowed = get_scheme("BIO").transitions(list(NAMES))
    for row in model.predict(NEW) + [
        one for rows in model.distribution(NEW).sample(20) for one in rows
    ]:
        codes = [NAMES.index(v) for v in row]
        assert allowed.start[codes[0]]
        assert all(allowed.pairs[a, b] for a, b in zip(codes, codes[1:], strict=False))
    for p in model.predict_proba(NEW):
        np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)


def test_grid_search_over_parameters_of_a_kernel():
    model = sf.GPSC(RBF(1.0), classes=NAMES)
    grid = {"kernel": [RBF(0.01), RBF(1.5)], "c2": [0.3, 1.0]}
    search = GridSearchCV(model, grid, cv=2, scoring=sf.metrics.get_scorer("log_likelihood"))
    assert search.fit(X, Y).best_params_["kernel"].length_scale == 1.5
    nested = GridSearchCV(model, {"kernel__length_scale": [0.01, 1.5]}, cv=2)
    assert nested.fit(X, Y).best_params_ == {"kernel__length_scale": 1.5}
