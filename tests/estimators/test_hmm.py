"""`HMM`: against hand counts, enumeration of the joint, and scikit-learn's naive Bayes."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.naive_bayes import GaussianNB, MultinomialNB

import seqfield as sf
from seqfield import chain
from seqfield.architectures.emissions import FLOOR
from seqfield.chain.reference import enumerate_labellings
from seqfield.errors import CapabilityError, InputError, LabelError, ModelFileError
from seqfield.estimators import hmm
from seqfield.persist import read_model

from ..support.model_files import forge

LENGTHS = [3, 1, 4, 2, 4, 3]
S = 3


def data(kind, seed=0, lengths=LENGTHS, width=4):
    """Sequences whose labels 0, 1, 2 show in the features."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in lengths:
        labels = rng.integers(S, size=length)
        if kind == "multinomial":
            x = rng.poisson(0.7 + 2.0 * np.eye(S, width)[labels]).astype(float)
        else:
            x = rng.normal(size=(length, width)) + 1.5 * np.eye(S, width)[labels]
        X.append(x)
        y.append(labels.tolist())
    return X, y


def partly(y):
    """The labels with holes, candidate sets and one sequence without any label."""
    y = [list(row) for row in y]
    y[0][1] = None
    y[2][0], y[2][3] = {0, y[2][0]}, None
    y[4] = None
    y[5][2] = {0, 1, 2} - {(y[5][2] + 1) % 3}
    return y


TABLE = [*product(range(S), repeat=2), *((None, k) for k in range(S)), (0, None), (2, None)]
TABLE.remove((1, 0))
KINDS = ["multinomial", "gaussian"]
both = pytest.mark.parametrize("kind", KINDS)


def log_emission(model, x, j):
    """log p(x | j) of one token, term by term."""
    if model.emission_ == "multinomial":
        return sum(v * model.log_emission_[f, j] for f, v in enumerate(x))
    m, v = model.means_[:, j], model.variances_[:, j]
    return float(np.sum(-0.5 * np.log(2 * np.pi * v) - (x - m) ** 2 / (2 * v)))


def log_joint(model, x, y):
    """log p(x, y) of one sequence, factor by factor."""
    steps = [model.log_start_[y[0]], model.log_end_[y[-1]]]
    steps += [model.log_transitions_[i, j] for i, j in zip(y[:-1], y[1:], strict=True)]
    return sum(steps) + sum(log_emission(model, row, j) for row, j in zip(x, y, strict=True))


def options(row, length):
    """All labellings that agree with what is known."""
    sets = [
        range(S) if v is None else v if isinstance(v, set) else [v] for v in row or [None] * length
    ]
    return [list(y) for y in product(*sets)]


def log_prior(model, X, weights):
    """Sum over the pseudo-counts of their log-probabilities."""
    logs = np.concatenate([model.log_start_, model.log_transitions_.ravel(), model.log_end_])
    value = model.alpha_transitions * logs[logs > -np.inf].sum()
    if model.emission_ == "multinomial":
        return value + model.alpha * model.log_emission_.sum()
    tokens = np.vstack(X)
    w = np.repeat(weights, [len(x) for x in X])
    mean = np.average(tokens, axis=0, weights=w)[:, None]
    variance = np.average((tokens - mean[:, 0]) ** 2, axis=0, weights=w)[:, None]
    m, v = model.means_, model.variances_
    terms = np.log(2 * np.pi * v) + (variance + (mean - m) ** 2) / v
    return value - model.alpha * terms.sum() / 2


def objective(model, X, y, weights):
    value = -log_prior(model, X, weights)
    for x, row, w in zip(X, y, weights, strict=True):
        value -= w * np.logaddexp.reduce([log_joint(model, x, z) for z in options(row, len(x))])
    return value


# --- counts --------------------------------------------------------------------------------------


def test_parameters_are_smoothed_counts():
    X = [np.array([[2, 0], [0, 1], [1, 1]]), np.array([[3, 0]])]
    y = [["a", "b", "a"], ["a"]]
    model = sf.HMM(alpha=0.5, alpha_transitions=0.25).fit(X, y)
    # label a has features 2+1+3 and 1, label b 0 and 1
    want = [[Fraction(13, 16), Fraction(1, 4)], [Fraction(3, 16), Fraction(3, 4)]]
    np.testing.assert_allclose(np.exp(model.log_emission_), np.array(want, float), rtol=1e-14)
    # starts: a twice; after a: a 0, b 1, stop 2; after b: a 1, b 0, stop 0
    np.testing.assert_allclose(np.exp(model.log_start_), [2.25 / 2.5, 0.25 / 2.5], rtol=1e-14)
    after = [[0.25 / 3.75, 1.25 / 3.75], [1.25 / 1.75, 0.25 / 1.75]]
    np.testing.assert_allclose(np.exp(model.log_transitions_), after, rtol=1e-14)
    np.testing.assert_allclose(np.exp(model.log_end_), [2.25 / 3.75, 0.25 / 1.75], rtol=1e-14)
    assert model.n_iter_ == 1
    assert model.objective_ == pytest.approx(objective(model, X, [[0, 1, 0], [0]], [1, 1]))


def test_gaussian_parameters_are_moments_with_alpha_more_tokens():
    X = [np.array([[1.5, 0.0], [4.0, 0.0]]), np.array([[2.5, -6.0], [0.5, 1.0], [1.0, 1.0]])]
    y = [["a", "b"], ["a", "a", "b"]]
    weights = [1.0, 2.0]
    alpha = 0.5
    model = sf.HMM(alpha=alpha).fit(X, y, sample_weight=weights)
    tokens = np.vstack([X[0], X[1], X[1]])
    labels = np.array(["a", "b"] + 2 * ["a", "a", "b"])
    overall, spread = tokens.mean(axis=0), tokens.var(axis=0)
    for j, label in enumerate("ab"):
        own = tokens[labels == label]
        n = len(own) + alpha
        mean = (own.sum(axis=0) + alpha * overall) / n
        squares = ((own - mean) ** 2).sum(axis=0) + alpha * (spread + (overall - mean) ** 2)
        np.testing.assert_allclose(model.means_[:, j], mean, rtol=1e-13)
        np.testing.assert_allclose(model.variances_[:, j], squares / n, rtol=1e-13)


def test_the_model_is_a_proper_distribution():
    """Starts sum to one, so do the outcomes after a label, and so do all lengths together."""
    X, y = data("multinomial")
    for scheme in (None, TABLE):
        lawful = [row for row in y if row[-1] != 1 and (1, 0) not in pairs(row)]
        assert lawful
        kept = [x for x, row in zip(X, y, strict=True) if row in lawful]
        model = sf.HMM(scheme=scheme, classes=[0, 1, 2]).fit(kept, lawful)
        start, steps, end = map(np.exp, (model.log_start_, model.log_transitions_, model.log_end_))
        assert start.sum() == pytest.approx(1, rel=1e-14)
        np.testing.assert_allclose(steps.sum(axis=1) + end, 1, rtol=1e-14)
        # sum over l of p(length l) = start' (I - A)^-1 end
        assert start @ np.linalg.solve(np.eye(S) - steps, end) == pytest.approx(1, rel=1e-12)
        np.testing.assert_allclose(np.exp(model.log_emission_).sum(axis=0), 1, rtol=1e-14)


def pairs(row):
    return set(zip(row[:-1], row[1:], strict=True))


# --- the posterior -------------------------------------------------------------------------------


@both
def test_posterior_against_enumeration_of_the_joint(kind):
    X, y = data(kind)
    model = sf.HMM(emission=kind).fit(X, y)
    for x, row in zip(X, y, strict=True):
        found = options(None, len(x))
        joint = np.array([log_joint(model, x, z) for z in found])
        p = np.exp(joint - np.logaddexp.reduce(joint))
        want = np.einsum("k,kts->ts", p, np.eye(S)[np.array(found)])
        np.testing.assert_allclose(model.predict_proba([x])[0], want, rtol=1e-9, atol=1e-14)
        got = model.log_likelihood([x], [row])[0]
        assert got == pytest.approx(np.log(p[found.index(row)]), rel=1e-9, abs=1e-12)
        assert model.predict([x])[0] == found[int(np.argmax(joint))]
        scores = enumerate_labellings(model.function_.scores(sf.Sequences(x)))
        np.testing.assert_allclose(scores.scores, joint, rtol=1e-11, atol=1e-11)


@both
def test_naive_bayes_on_sequences_of_length_one(kind):
    X, y = data(kind, lengths=[1] * 60)
    test, _ = data(kind, seed=1, lengths=[1] * 20)
    model = sf.HMM(emission=kind, alpha=0.3 if kind == "multinomial" else hmm.LEAST).fit(X, y)
    prior = np.exp(model.log_start_ + model.log_end_)
    prior /= prior.sum()
    if kind == "multinomial":
        other = MultinomialNB(alpha=0.3, class_prior=prior)
    else:
        other = GaussianNB(var_smoothing=0.0, priors=prior)
    other.fit(np.vstack(X), np.concatenate(y))
    got = np.concatenate(model.predict_proba(test))
    np.testing.assert_allclose(got, other.predict_proba(np.vstack(test)), rtol=0, atol=1e-8)
    if kind == "multinomial":
        np.testing.assert_allclose(model.log_emission_, other.feature_log_prob_.T, rtol=1e-13)
    else:
        np.testing.assert_allclose(model.means_, other.theta_.T, rtol=1e-8)
        np.testing.assert_allclose(model.variances_, other.var_.T, rtol=1e-8)


# --- EM ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:no convergence")
@both
@pytest.mark.parametrize("scheme", [None, TABLE])
def test_em_never_raises_the_objective(kind, scheme):
    X, y = data(kind, lengths=LENGTHS * 4)
    y = [*partly(y[:6]), *([None if t else v for t, v in enumerate(row)] for row in y[6:])]
    if scheme is not None:
        y = [None if row is None else lawful_part(row) for row in y]
    weights = np.linspace(0.5, 2, len(X))
    settings = {"emission": kind, "scheme": scheme, "classes": [0, 1, 2], "tol": 0}
    model = sf.HMM(**settings, max_iter=1, warm_start=True)
    values = []
    for _ in range(40):
        model.fit(X, y, sample_weight=weights)
        assert model.n_iter_ == 1
        assert model.objective_ == pytest.approx(objective(model, X, y, weights), rel=1e-11)
        values.append(model.objective_)
    assert (np.diff(values) <= 1e-13 * abs(values[-1])).all()
    assert values[0] - values[-1] > 1e-3 * abs(values[-1])
    if scheme is not None:
        assert model.log_transitions_[1, 0] == model.log_end_[1] == -np.inf
    # in one go it is the same
    once = sf.HMM(**settings, max_iter=40)
    once.fit(X, y, sample_weight=weights)
    assert once.objective_ == pytest.approx(values[-1], rel=1e-12)


def lawful_part(row):
    """The row with unknown labels where TABLE would be broken."""
    out = list(row)
    for t in range(len(out)):
        if out[t] == 1 or (isinstance(out[t], set) and t + 1 == len(out)):
            out[t] = None
    return out


@pytest.mark.filterwarnings("ignore:no convergence")
@both
def test_one_step_of_em_against_enumeration(kind):
    X, y = data(kind)
    y, weights = partly(y), np.linspace(0.5, 2, len(X))
    model = sf.HMM(emission=kind, alpha=0.2, max_iter=1, warm_start=True)
    model.fit(X, y, sample_weight=weights)
    start, steps, end = np.full(S, 0.1), np.full((S, S), 0.1), np.full(S, 0.1)
    labels = np.zeros((sum(LENGTHS), S))
    a = 0
    for x, row, w in zip(X, y, weights, strict=True):
        found = options(row, len(x))
        joint = np.array([log_joint(model, x, z) for z in found])
        for z, p in zip(found, w * np.exp(joint - np.logaddexp.reduce(joint)), strict=True):
            start[z[0]] += p
            end[z[-1]] += p
            np.add.at(steps, (z[:-1], z[1:]), p)
            np.add.at(labels, (np.arange(a, a + len(z)), z), p)
        a += len(x)
    model.fit(X, y, sample_weight=weights)
    total = steps.sum(axis=1) + end
    np.testing.assert_allclose(np.exp(model.log_start_), start / start.sum(), rtol=1e-10)
    np.testing.assert_allclose(np.exp(model.log_transitions_), steps / total[:, None], rtol=1e-10)
    np.testing.assert_allclose(np.exp(model.log_end_), end / total, rtol=1e-10)
    tokens = np.vstack(X)
    if kind == "multinomial":
        counts = tokens.T @ labels + 0.2
        np.testing.assert_allclose(np.exp(model.log_emission_), counts / counts.sum(0), rtol=1e-10)
    else:
        w = np.repeat(weights, LENGTHS)
        overall = np.average(tokens, axis=0, weights=w)
        want = (tokens.T @ labels + 0.2 * overall[:, None]) / (labels.sum(axis=0) + 0.2)
        np.testing.assert_allclose(model.means_, want, rtol=1e-10, atol=1e-14)


@both
def test_em_without_any_label_improves_a_good_start(kind):
    X, y = data(kind, lengths=[8] * 150)
    truth = np.concatenate(y)
    model = sf.HMM(emission=kind, alpha=1.0, warm_start=True, max_iter=500).fit(X[:3], y[:3])
    bare = sf.Sequences(np.vstack(X), np.arange(0, 1201, 8))
    before = np.mean(np.concatenate(model.predict(X)) == truth)
    evidence = chain.log_partition(model.function_.scores(bare, model.n_jobs)).sum()
    model.fit(X, [None] * len(X))
    assert model.n_iter_ > 3
    assert chain.log_partition(model.function_.scores(bare, model.n_jobs)).sum() > evidence + 50
    assert np.mean(np.concatenate(model.predict(X)) == truth) > before + 0.02
    with pytest.raises(LabelError, match=r"every label is missing.*warm_start"):
        sf.HMM(emission=kind, classes=[0, 1, 2]).fit(X, [None] * len(X))


@both
def test_known_labels_are_counted_in_one_pass(kind, monkeypatch):
    X, y = data(kind)
    weights = np.linspace(0.5, 2, len(X))
    monkeypatch.setattr(chain, "marginals", None)  # no expectation is needed
    model = sf.HMM(emission=kind, warm_start=True).fit(X, y, sample_weight=weights)
    assert model.n_iter_ == 1
    assert model.objective_ == pytest.approx(objective(model, X, y, weights), rel=1e-12)
    # a warm start changes nothing, whatever came before
    other = sf.HMM(emission=kind, warm_start=True).fit(X[::-1], y[::-1])
    other.fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(other.log_transitions_, model.log_transitions_)
    assert other.objective_ == model.objective_


@pytest.mark.filterwarnings("ignore:no convergence")
@both
def test_weight_two_is_duplication_in_em_too(kind):
    X, y = data(kind)
    y = partly(y)
    settings = {"emission": kind, "alpha": 1.0, "tol": 0, "max_iter": 5}
    a = sf.HMM(**settings).fit(X, y, sample_weight=[1, 1, 2, 1, 2, 1])
    b = sf.HMM(**settings).fit([*X, X[2], X[4]], [*y, y[2], y[4]])
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-12)
    np.testing.assert_allclose(a.log_transitions_, b.log_transitions_, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:no convergence")
def test_em_starts_from_what_is_known():
    """As a model that was counted on the labelled sequences alone."""
    X, y = data("multinomial")
    y = [*y[:3], None, [None] * 4, None]
    warm = sf.HMM(max_iter=1, warm_start=True).fit(X[:3], y[:3]).fit(X, y)
    cold = sf.HMM(max_iter=1).fit(X, y)
    np.testing.assert_allclose(cold.log_emission_, warm.log_emission_, rtol=1e-13)
    np.testing.assert_allclose(cold.log_transitions_, warm.log_transitions_, rtol=1e-13)


def test_no_convergence_is_a_warning_where_the_user_is():
    X, y = data("gaussian")
    with pytest.warns(ConvergenceWarning, match="no convergence in 2 iterations") as caught:
        model = sf.HMM(max_iter=2, tol=0).fit(X, partly(y))
    assert model.n_iter_ == 2
    assert caught[0].filename == __file__


def test_warm_start_under_another_scheme():
    """Neither is what was allowed before kept, nor what was forbidden."""
    X, y = data("gaussian")
    y = [lawful_part(row) for row in y]
    free = sf.HMM(warm_start=True, classes=[0, 1, 2]).fit(X, y)
    assert np.isfinite(free.log_transitions_).all()
    free.set_params(scheme=TABLE).fit(X, y)
    assert free.log_transitions_[1, 0] == -np.inf
    assert np.isneginf(free.log_transitions_).sum() == 1
    y[0] = [1, 0, None]
    free.set_params(scheme=None).fit(X, y)
    assert np.isfinite(free.log_transitions_).all()


# --- schemes and classes -------------------------------------------------------------------------


@both
def test_what_a_scheme_forbids_gets_no_probability(kind):
    X, _ = data(kind)
    y = [[0, 2, 2], [2], [{0, 1}, {0, 1}, None, 0], [0, 0], [None] * 4, [1, 1, 2]]
    model = sf.HMM(emission=kind, scheme=TABLE).fit(X, y)
    assert np.isneginf(model.log_transitions_).tolist() == [
        [False, False, False],
        [True, False, False],
        [False, False, False],
    ]
    assert np.isneginf(model.log_end_).tolist() == [False, True, False]
    total = np.exp(model.log_transitions_).sum(axis=1) + np.exp(model.log_end_)
    np.testing.assert_allclose(total, 1, rtol=1e-13)
    assert model.objective_ == pytest.approx(objective(model, X, y, np.ones(6)), rel=1e-11)


@both
@pytest.mark.parametrize("missing", [False, True])
def test_a_label_that_was_never_seen(kind, missing):
    X, y = data(kind)
    labels = [0, 1, 2, 3]
    # nothing may follow label 3, not even the end
    for scheme in (None, list(product([0, 1, 2, None], repeat=2))):
        model = sf.HMM(emission=kind, classes=labels, scheme=scheme)
        model.fit(X, partly(y) if missing else y)
        for p in model.predict_proba(X):
            np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
        if scheme is not None:
            assert max(p[:, 3].max() for p in model.predict_proba(X)) == 0
        if not missing and kind == "multinomial":
            np.testing.assert_allclose(np.exp(model.log_emission_[:, 3]), 0.25, rtol=1e-14)
        if not missing and kind == "gaussian":
            tokens = np.vstack(X)
            np.testing.assert_allclose(model.means_[:, 3], tokens.mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(model.variances_[:, 3], tokens.var(axis=0), rtol=1e-12)


# --- kinds of emissions and forms of X -----------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "want"),
    [
        (np.array([[1.0, 0.0], [2.0, 3.0]]), "multinomial"),
        (np.array([[1.0, 0.5], [2.0, 3.0]]), "gaussian"),
        (np.array([[1.0, -1.0], [2.0, 3.0]]), "gaussian"),
        (sp.csr_array([[1.0, 0.5], [2.0, 3.0]]), "multinomial"),
        (sp.csr_array([[1.0, -1.0], [2.0, 3.0]]), "gaussian"),
        (sp.csr_array(np.array([[True, False], [True, True]])), "multinomial"),
    ],
)
def test_automatic_choice(x, want):
    model = sf.HMM().fit([x], [["a", "b"]])
    assert model.emission_ == want
    assert hasattr(model, "log_emission_") == (want == "multinomial")
    assert hasattr(model, "means_") == hasattr(model, "variances_") == (want == "gaussian")
    model.fit([np.array([[0.5, 1.0], [2.0, 3.0]])], [["a", "b"]])
    assert model.emission_ == "gaussian"
    assert not hasattr(model, "log_emission_")


@both
@pytest.mark.parametrize("missing", [False, True])
def test_sparse_and_dense_agree(kind, missing):
    X, y = data(kind, lengths=[5] * 20)
    X = [np.where(np.abs(x) > 1.2, x, 0) for x in X]
    y = partly(y) if missing else y
    sparse = [sp.csr_array(x) for x in X]
    density = sum(x.nnz for x in sparse) / sum(x.size for x in X)
    assert 0.1 < density < 0.5  # else it is taken as dense
    a = sf.HMM(emission=kind).fit(X, y)
    b = sf.HMM(emission=kind).fit(sparse, y)
    assert a.n_iter_ == b.n_iter_
    assert a.objective_ == pytest.approx(b.objective_, rel=1e-12)
    for model, form in ((a, sparse), (b, X), (b, sparse)):
        got = np.concatenate(model.predict_proba(form))
        np.testing.assert_allclose(got, np.concatenate(a.predict_proba(X)), rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:no convergence")
@both
@pytest.mark.parametrize("missing", [False, True])
def test_sparse_stays_sparse(kind, missing):
    n, d = 2000, 200_000
    rng = np.random.default_rng(0)
    values = rng.integers(1, 3, 5 * n) * (1.0 if kind == "multinomial" else -1.0)
    x = sp.csr_array((values, rng.integers(d, size=5 * n), np.arange(0, 5 * n + 1, 5)), (n, d))
    y = [["a", "b", None if missing else "a", "b"]] * (n // 4)
    X = sf.Sequences(x, np.arange(0, n + 1, 4))
    sf.HMM(max_iter=1).fit(X, y).predict(X)  # compile
    tracemalloc.start()
    model = sf.HMM(max_iter=1).fit(X, y)
    model.predict(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.emission_ == kind
    assert peak < 1e8  # a dense x would take 3.2e9 bytes


def test_a_large_offset_of_the_values_changes_nothing():
    X, y = data("gaussian")
    # whole multiples of 2^-20, so that the offset is added without rounding
    X = [np.round(x * 2**20) / 2**20 for x in X]
    far = [x + 2.0**24 for x in X]
    a, b = sf.HMM().fit(X, y), sf.HMM().fit(far, y)
    np.testing.assert_allclose(b.variances_, a.variances_, rtol=1e-8)
    got = np.concatenate(b.predict_proba(far))
    np.testing.assert_allclose(got, np.concatenate(a.predict_proba(X)), rtol=0, atol=1e-7)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_a_feature_that_does_not_vary_changes_nothing(form):
    X, y = data("gaussian")
    X = [np.where(x > 0.7, x, 0) for x in X]
    wide = [np.hstack([x, np.full((len(x), 1), 0.1), np.zeros((len(x), 1))]) for x in X]
    a = sf.HMM(emission="gaussian").fit([form(x) for x in X], y)
    b = sf.HMM(emission="gaussian").fit([form(x) for x in wide], y)
    # not even if it has another value later
    later = [x + np.array([0, 0, 0, 0, 7.0, -3.0]) for x in wide]
    want = np.concatenate(a.predict_proba([form(x) for x in X]))
    for test in (wide, later):
        got = np.concatenate(b.predict_proba([form(x) for x in test]))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-10)


def test_a_label_seen_once_has_a_variance():
    X, y = [np.array([[0.5], [1.5], [3.0]])], [["a", "a", "b"]]
    model = sf.HMM(alpha=hmm.LEAST).fit(X, y)
    overall = np.var([0.5, 1.5, 3.0])
    assert model.variances_[0, 1] == pytest.approx(FLOOR * overall, rel=1e-12)
    assert np.isfinite(model.predict_proba(X)[0]).all()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_negative_values_are_not_counts(form):
    X = [form(np.array([[1.0, 2.0]])), form(np.array([[1.0, 0.0], [3.0, -0.5]]))]
    message = r"-0.5 at sequence 1, position 1, column 1: .*emission='gaussian'"
    with pytest.raises(InputError, match=message) as caught:
        sf.HMM(emission="multinomial").fit(X, [["a"], ["a", "b"]])
    assert caught.value.place == (1, 1)
    model = sf.HMM().fit([form(np.array([[1.0, 2.0], [0.0, 1.0]]))], [["a", "b"]])
    with pytest.raises(InputError, match=message):
        model.predict(X)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"alpha": 0}, "alpha must be a number of at least 1e-10, got 0"),
        ({"alpha": "x"}, "alpha must be"),
        ({"alpha_transitions": 0.0}, "alpha_transitions must be a number of at least 1e-10"),
        ({"alpha_transitions": float("nan")}, "alpha_transitions must be"),
        ({"emission": "poisson"}, "emission must be .*'poisson'"),
        ({"emission": None}, "emission must be .*None"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1"),
        ({"max_iter": None}, "max_iter must be"),
        ({"tol": -1.0}, "tol must be"),
        ({"n_jobs": 0}, "n_jobs must be"),
    ],
)
def test_bad_arguments(wanted, message):
    X, y = data("gaussian")
    with pytest.raises(InputError, match=message):
        sf.HMM(**wanted).fit(X, y)


def test_edge_features_are_refused():
    x = np.eye(3)
    with pytest.raises(CapabilityError, match=r"edge features.*HMM"):
        sf.HMM().fit(sf.Sequences(x, None, x), [["a", "b", "a"]])


@pytest.mark.parametrize(("kind", "size"), [("gaussian", 1e200), ("multinomial", 1e308)])
def test_values_too_large(kind, size):
    X, y = [np.array([[size], [0.0], [size]])], [["a", "b", "a"]]
    with pytest.raises(InputError, match="too large"):
        sf.HMM(emission=kind).fit(X, y)


# --- files ---------------------------------------------------------------------------------------


@both
def test_files_keep_what_is_forbidden(kind, tmp_path):
    X, _ = data(kind)
    y = [[0, 2, 2], [2], [0, 0, 1, 2], [0, 0], [2, 0, 0, 0], [1, 1, 2]]
    model = sf.HMM(emission=kind, scheme=TABLE).fit(X, y)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    names = ["log_start_", "log_transitions_", "log_end_"]
    names += ["log_emission_"] if kind == "multinomial" else ["means_", "variances_"]
    for name in names:
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert again.log_transitions_[1, 0] == -np.inf
    assert again.emission_ == kind


def damages(kind):
    yield "function/start", lambda a: a[:-1]
    yield "function/end", lambda a: a[:, None]
    yield "function/pairs", lambda a: a[:1]
    yield "function/pairs", lambda a: a * np.nan
    for name in ["log_emission"] if kind == "multinomial" else ["means", "variances"]:
        yield f"function/{name}", lambda a: a[1:]
        yield f"function/{name}", lambda a: a.T
        yield f"function/{name}", lambda a: None
    if kind == "gaussian":
        yield "function/variances", lambda a: a * 0.0


@both
def test_damaged_files(kind, tmp_path):
    X, y = data(kind)
    path = tmp_path / "m.sf"
    sf.HMM(emission=kind).fit(X, y).save(path)
    header, arrays = read_model(path)
    for name, damage in damages(kind):
        wrong = damage(arrays[name])
        parts = {k: v for k, v in arrays.items() if k != name}
        forge(path, header, parts if wrong is None else parts | {name: wrong})
        with pytest.raises(ModelFileError, match="damaged"):
            sf.load(path)
    for emission in ("poisson", None, ["gaussian"]):
        forge(path, header | {"function": header["function"] | {"emission": emission}}, arrays)
        with pytest.raises(ModelFileError, match="damaged"):
            sf.load(path)
    forge(path, header, arrays)
    sf.load(path)
