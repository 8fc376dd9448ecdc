"""GPSL: its posterior by textbook formulas, missing labels, what it tells and refuses, files."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_expit, logsumexp, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV

import seqfield as sf
from seqfield.architectures.neighbours import Neighbours
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import get_scheme
from seqfield.errors import (
    BudgetError,
    CapabilityError,
    InputError,
    ModelFileError,
    SeqfieldError,
)
from seqfield.estimators import _descent, gpsl
from seqfield.functions import neighbour
from seqfield.kernels import RBF, Linear
from seqfield.labels import Targets
from seqfield.linalg.thin import thin_root
from seqfield.losses.pseudo import refine
from seqfield.persist import read_model
from seqfield.sequences import offsets_of
from seqfield.variational.em import VariationalEM
from seqfield.variational.problems import NeighbourProblem

from ..support.files import places, replaced
from ..support.model_files import forge
from ..support.sequences import numbers

X, Y = numbers(n=12, seed=0, longest=5)
NEW = numbers(n=5, seed=1)[0]
STACKED = np.vstack(X)
LABELS = ["L0", "L1", "L2"]
OFFSETS = offsets_of([len(x) for x in X])
CODES = np.array([LABELS.index(k) for row in Y for k in row], np.int32)
TIGHT = {"tol": 1e-10, "max_iter": 1000}


def make(kernel=None, **wanted):
    given = {"n_jobs": 1, "learn_kernel": False, "random_state": 0}
    return sf.GPSL(RBF(1.0) if kernel is None else kernel, **given | wanted)


def probabilities(model, X=X):
    return np.vstack(model.predict_proba(X))


def by_hand(root, rows, codes, offsets, distances=(-1, 1), weights=None, s=3, **wanted):
    """The result of variational EM over the tokens with these rows of a root."""
    offsets = np.asarray(offsets)
    problem = NeighbourProblem(
        Neighbours(s, root, distances),
        np.asarray(rows, np.int64),
        Targets(np.asarray(codes, np.int32), None, offsets),
        np.ones(len(offsets) - 1) if weights is None else weights,
    )
    return VariationalEM(**{"n_jobs": 1} | wanted).fit(problem)


# --- the posterior -----------------------------------------------------------------------------


@pytest.mark.parametrize("amplitude", ["fixed", "shared", "label"])
@pytest.mark.parametrize("offsets", [(), (-1,), (-2, -1, 1, 2)], ids=str)
def test_fit_is_variational_em_over_a_root_of_the_gram_matrix(offsets, amplitude):
    model = make(offsets=offsets, amplitude=amplitude).fit(X, Y)
    root = thin_root(RBF(1.0)(STACKED)).root
    given = {"tol": 1e-4, "amplitude": amplitude}
    result = by_hand(root, np.arange(len(STACKED)), CODES, OFFSETS, offsets, **given)
    found = result
    assert model.bound_ == pytest.approx(found.bounds[-1], rel=1e-9)
    np.testing.assert_allclose(model.bounds_, found.bounds, rtol=1e-9)
    np.testing.assert_allclose(model.amplitudes_, found.amplitudes, rtol=1e-6)
    np.testing.assert_allclose(model.steps_, found.steps, atol=1e-6)
    np.testing.assert_allclose(model.step_variances_, found.step_variances, atol=1e-6)
    assert model.steps_.shape == (len(offsets), 3, 3)
    assert model.n_iter_ == result.n_iter
    assert (np.diff(model.bounds_) >= -1e-10 * abs(model.bound_)).all()
    assert model.objective_ == -model.bound_


@pytest.mark.parametrize("amplitude", ["fixed", "label"])
def test_latent_moments_equal_textbook_formulas(amplitude):
    kernel = 1.7 * RBF(0.7)
    model = make(kernel, amplitude=amplitude).fit(X, Y)
    gram = kernel(STACKED)
    root = thin_root(gram).root
    assert root.shape[1] == len(STACKED)
    rows = np.arange(len(STACKED))
    found = by_hand(root, rows, CODES, OFFSETS, tol=1e-4, amplitude=amplitude)
    a = found.amplitudes
    assert (a != 1.0).all() == (amplitude == "label")
    for tokens in (X, NEW):
        x = np.vstack(tokens)
        across, prior = kernel(x, STACKED), kernel.diagonal(x)
        latent = model.latent(tokens)
        assert [len(m) for m in latent.means] == [len(t) for t in tokens]
        means, variances = np.vstack(latent.means), np.vstack(latent.variances)
        for q in range(3):
            m = np.sqrt(a[q]) * root @ found.means[:, q]
            want = a[q] * across @ np.linalg.solve(a[q] * gram, m)
            np.testing.assert_allclose(means[:, q], want, rtol=1e-5, atol=1e-6)
            noise = np.diag(1.0 / found.precisions[:, q])
            taken = np.linalg.solve(a[q] * gram + noise, a[q] * across.T)
            want = a[q] * prior - a[q] * np.einsum("ij,ji->i", across, taken)
            np.testing.assert_allclose(variances[:, q], want, rtol=1e-5, atol=1e-6)
        assert (variances > 0).all()
        assert (variances <= a * prior[:, None] * (1 + 1e-9)).all()


def test_far_from_all_tokens_is_the_prior():
    model = make(2.5 * RBF(1.0), amplitude="label").fit(X, Y)
    latent = model.latent([np.full((2, 3), 1e3)])
    np.testing.assert_allclose(latent.means[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(latent.variances[0], [2.5 * model.amplitudes_] * 2, rtol=1e-12)


@pytest.mark.parametrize("half", [0.0, 0.5])
def test_probabilities_are_refined_scores(half):
    for offsets in ((), (-1, 1)):
        model = make(offsets=offsets, half_variances=half > 0).fit(X, Y)
        latent = model.latent(NEW)
        node = np.vstack(latent.means) + half * np.vstack(latent.variances)
        steps = model.steps_ + half * model.step_variances_
        want = refine(node, steps, offsets_of([len(x) for x in NEW]), offsets)
        assert want.settled
        assert latent.n_rounds == want.n_rounds
        np.testing.assert_allclose(probabilities(model, NEW), want.probabilities, rtol=1e-9)
        if not offsets:
            np.testing.assert_allclose(want.probabilities, softmax(node, axis=1), rtol=1e-12)


@pytest.mark.parametrize("amplitude", ["fixed", "shared"])
def test_a_kernel_of_few_features_equals_a_full_root(amplitude):
    model = make("linear", amplitude=amplitude, **TIGHT).fit(X, Y)
    gram = STACKED @ STACKED.T
    full = np.linalg.cholesky(gram + 1e-10 * np.trace(gram) / len(gram) * np.eye(len(gram)))
    rows = np.arange(len(STACKED))
    result = by_hand(full, rows, CODES, OFFSETS, amplitude=amplitude, **TIGHT)
    assert model.n_kept_ <= 6 < full.shape[1]
    assert model.bound_ == pytest.approx(result.bound, rel=1e-6)
    found = result
    want = np.sqrt(found.amplitudes) * (full @ found.means)
    np.testing.assert_allclose(np.vstack(model.latent(X).means), want, atol=1e-3)


@pytest.mark.parametrize("amplitude", ["fixed", "label"])
def test_a_kernel_of_low_rank_needs_no_gram_matrix(amplitude, monkeypatch):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(10, 3)) for _ in range(30)]
    y = [[f"L{np.digitize(v, [-0.5, 0.5])}" for v in row[:, 0]] for row in x]
    given = {"amplitude": amplitude, **TIGHT}
    few = make("linear", gram_budget=8.0 * 300**2 / 2**30, **given).fit(x, y)
    assert few.n_kept_ == 3
    monkeypatch.setattr(gpsl, "exact_root", lambda *_, **__: None)
    with pytest.raises(BudgetError):
        make("linear", gram_budget=8.0 * 300**2 / 2**30, **given).fit(x, y)
    whole = make("linear", **given).fit(x, y)
    assert few.bound_ == pytest.approx(whole.bound_, rel=1e-7)
    np.testing.assert_allclose(probabilities(few, NEW), probabilities(whole, NEW), atol=1e-6)
    for got, want in zip(few.latent(NEW)[:2], whole.latent(NEW)[:2], strict=True):
        np.testing.assert_allclose(np.vstack(got), np.vstack(want), rtol=1e-5, atol=1e-6)


def test_landmarks_are_for_kernels_of_high_rank():
    with pytest.raises(BudgetError, match="n_inducing"):
        make(RBF(0.1), gram_budget=1e-5).fit(X, Y)
    assert make("linear", gram_budget=1e-5).fit(X, Y).n_kept_ == 3


@pytest.mark.parametrize("inducing", ["pivoted", "random"])
def test_all_tokens_as_landmarks_are_the_exact_posterior(inducing):
    settings = {"amplitude": "fixed", "tol": 1e-11, "max_iter": 500}
    exact = make(RBF(0.7), **settings).fit(X, Y)
    model = make(RBF(0.7), n_inducing=len(STACKED), inducing=inducing, **settings).fit(X, Y)
    assert model.n_kept_ == exact.n_kept_ == len(STACKED)
    assert model.bound_ == pytest.approx(exact.bound_, rel=1e-6)
    for tokens in (X, NEW):
        a, b = exact.latent(tokens), model.latent(tokens)
        np.testing.assert_allclose(np.vstack(a.means), np.vstack(b.means), atol=1e-3)
        np.testing.assert_allclose(np.vstack(a.variances), np.vstack(b.variances), atol=1e-3)


@pytest.mark.parametrize("scale", [1e6, 1e12])
def test_a_large_kernel_is_fitted_or_said_not_to_be(scale):
    with pytest.warns(ConvergenceWarning, match="in 30 iterations"):
        model = make(scale * RBF(1.0), max_iter=30).fit(X, Y)
    # the prior has a bound of -scale / 2 a token; to know three functions at one takes about half
    # the logarithm of the scale for each
    assert model.bound_ > -1.5 * len(STACKED) * np.log(scale)
    assert (np.diff(model.bounds_) >= -1e-10 * abs(model.bound_)).all()
    assert model.score(X, Y) == 1.0


def test_few_landmarks_have_the_variance_that_they_leave_out():
    model = make(RBF(0.7), n_inducing=4, amplitude="fixed").fit(X, Y)
    assert model.n_kept_ == 4
    assert model.score(X, Y) > 0.5
    far = model.latent([np.full((1, 3), 1e3)])
    np.testing.assert_allclose(far.variances[0], 1.0, rtol=1e-12)
    variances = np.vstack(model.latent(X).variances)
    assert (variances > 0).all()
    assert (variances <= 1.0 + 1e-9).all()


def test_more_landmarks_have_the_larger_bound():
    """The greedy choice of few is part of that of more."""
    numbers_of_them = (1, 4, 10, 20, 30, len(STACKED))
    bounds = [make(RBF(0.7), n_inducing=n, **TIGHT).fit(X, Y).bound_ for n in numbers_of_them]
    exact = make(RBF(0.7), **TIGHT).fit(X, Y).bound_
    assert (np.diff(bounds) > -1e-8 * abs(exact)).all()
    assert bounds[1] < exact - 1.0
    assert bounds[-1] == pytest.approx(exact, rel=1e-7)


def test_bound_with_landmarks_is_below_the_evidence():
    # of two labels the difference alone counts, which has twice the variance
    x = np.array([[0.0], [100.0], [100.05]])
    kernel = 5.0 * RBF(1.0)
    root = np.linalg.cholesky(2.0 * kernel(x) + 1e-9 * np.eye(3))
    d = np.random.default_rng(0).normal(size=(200_000, 3)) @ root.T
    p = np.exp(log_expit(d * [1.0, 1.0, -1.0]).sum(axis=1))
    evidence, error = np.log(p.mean()), p.std() / p.mean() / np.sqrt(len(p))
    assert error < 0.01
    for n in (1, 2, 3, None):
        model = make(kernel, offsets=(), n_inducing=n, **TIGHT).fit([x], [["a", "a", "b"]])
        assert model.bound_ < evidence - 4 * error
        # what the bound counts is what prediction says
        means, (v,) = np.vstack(model.latent([x]).means), model.latent([x]).variances
        likelihood = means[[0, 1, 2], [0, 0, 1]] - logsumexp(means + 0.5 * v, axis=1)
        assert likelihood.sum() > model.bound_


def test_equal_tokens_are_one_row():
    rounded = [np.round(x) for x in X]
    model = make(RBF(1.0), amplitude="fixed", **TIGHT).fit(rounded, Y)
    assert model.n_tokens_ == len(np.unique(np.vstack(rounded), axis=0)) < len(STACKED)
    whole, rows = np.unique(np.vstack(rounded), axis=0, return_inverse=True)
    root = thin_root(RBF(1.0)(whole)).root[rows.ravel()]
    apart = by_hand(root, np.arange(len(STACKED)), CODES, OFFSETS, amplitude="fixed", **TIGHT)
    assert model.bound_ == pytest.approx(apart.bound, rel=1e-7)
    np.testing.assert_allclose(model.steps_, apart.steps, atol=1e-3)


# --- kernel parameters -------------------------------------------------------------------------


@pytest.mark.parametrize("amplitude", ["fixed", "shared"])
def test_learned_kernel_parameters_have_the_larger_bound(amplitude):
    before = make(RBF(1.0), amplitude=amplitude).fit(X, Y)
    after = make(RBF(1.0), amplitude=amplitude, learn_kernel=True).fit(X, Y)
    assert after.bound_ > before.bound_ + 0.1
    assert after.kernel_.length_scale != after.kernel.length_scale == 1.0
    given = make(RBF(after.kernel_.length_scale), amplitude=amplitude).fit(X, Y)
    assert given.bound_ == pytest.approx(after.bound_, rel=1e-6)


def test_a_scaled_kernel_does_not_vanish():
    """The bound favours small scales, so that of the kernel stays with that of the functions."""
    x, y = sf.make_galaxy(20, random_state=0)
    new, labels = sf.make_galaxy(30, random_state=1)
    model = make(1.0 * RBF(0.35), learn_kernel=True).fit(x, y)
    assert model.kernel_.scale == 1.0
    assert model.kernel_.kernel.length_scale != 0.35
    assert model.score(new, labels) > 0.85
    with pytest.warns(ConvergenceWarning, match="kernel parameter scale ended at"):
        learned = make(1.0 * RBF(0.35), learn_kernel=True, amplitude="shared").fit(x, y)
    assert learned.kernel_.scale < 0.01


def test_kernel_parameters_of_weighted_labels_some_of_which_are_missing():
    weights, y = np.random.default_rng(0).uniform(0.5, 2.0, len(X)), with_holes()
    bounds = [
        make(RBF(0.4), learn_kernel=learn, **TIGHT).fit(X, y, sample_weight=weights).bound_
        for learn in (False, True)
    ]
    assert bounds[1] > bounds[0] + 0.1


# --- a kernel for each label -------------------------------------------------------------------

OWN = [RBF(0.5), 2.0 * RBF(1.0), Linear()]


def same(a, b, tokens=NEW, rtol=1e-6):
    assert a.bound_ == pytest.approx(b.bound_, rel=rtol)
    np.testing.assert_allclose(probabilities(a, tokens), probabilities(b, tokens), atol=1e-5)
    for got, want in zip(a.latent(tokens)[:2], b.latent(tokens)[:2], strict=True):
        np.testing.assert_allclose(np.vstack(got), np.vstack(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [RBF(0.7), "linear"], ids=str)
@pytest.mark.parametrize(
    "wanted", [{}, {"n_inducing": 6}, {"amplitude": "label"}], ids=lambda v: "".join(v) or "plain"
)
def test_a_list_of_equal_kernels_is_one_kernel(wanted, kernel):
    one = make(kernel, **TIGHT | wanted).fit(X, Y)
    for many in (
        make([kernel] * 3, **TIGHT | wanted).fit(X, Y),
        make(kernel, kernel_per_label=True, **TIGHT | wanted).fit(X, Y),
    ):
        same(many, one)
        assert many.n_kept_ == 3 * one.n_kept_
        assert len(many.kernel_) == 3
        # an amplitude that vanishes does so until the bound no longer tells
        np.testing.assert_allclose(many.amplitudes_, one.amplitudes_, rtol=1e-3, atol=1e-6)


def test_each_label_has_its_kernel():
    model = make(OWN, **TIGHT).fit(X, Y)
    roots = [thin_root(kernel(STACKED)).root for kernel in OWN]
    rows = np.arange(len(STACKED))
    result = by_hand(roots, rows, CODES, OFFSETS, amplitude="fixed", **TIGHT)
    found = result
    assert model.bound_ == pytest.approx(result.bound, rel=1e-6)
    x = np.vstack(NEW)
    latent = model.latent(NEW)
    for q, kernel in enumerate(OWN):
        rank = roots[q].shape[1]
        gram, across = kernel(STACKED) + 1e-9 * np.eye(len(STACKED)), kernel(x, STACKED)
        m = roots[q] @ found.means[:rank, q]
        want = across @ np.linalg.lstsq(kernel(STACKED), m, rcond=1e-10)[0]
        np.testing.assert_allclose(np.vstack(latent.means)[:, q], want, atol=2e-3)
        taken = np.linalg.solve(gram + np.diag(1.0 / found.precisions[:, q]), across.T)
        want = kernel.diagonal(x) - np.einsum("ij,ji->i", across, taken)
        np.testing.assert_allclose(np.vstack(latent.variances)[:, q], want, atol=1e-3)
    assert [repr(k) for k in model.kernel_] == [repr(k) for k in OWN]
    # in the order of the labels
    turned = make(OWN[::-1], classes=LABELS[::-1], **TIGHT).fit(X, Y)
    assert turned.bound_ == pytest.approx(model.bound_, rel=1e-6)


def test_labels_learn_parameters_of_their_own():
    """The score of one is a line, that of another goes up and down."""
    rng = np.random.default_rng(0)
    x = [rng.uniform(-2.0, 2.0, size=(8, 1)) for _ in range(25)]
    y = [["abc"[np.argmax([2.0 * v, 4.0 * np.sin(5.0 * v), 0.0])] for (v,) in row] for row in x]
    shared = make(RBF(0.3), offsets=(), learn_kernel=True).fit(x, y)
    apart = make(RBF(0.3), offsets=(), learn_kernel=True, kernel_per_label=True).fit(x, y)
    lengths = [kernel.length_scale for kernel in apart.kernel_]
    assert lengths[0] > 3.0 * lengths[1]
    assert apart.bound_ > shared.bound_ + 1.0
    given = make([RBF(v) for v in lengths], offsets=()).fit(x, y)
    assert given.bound_ == pytest.approx(apart.bound_, rel=1e-6)


@pytest.mark.parametrize("kernels", [[RBF(1.0)] * 2, [RBF(1.0)] * 4, []], ids=len)
def test_a_wrong_number_of_kernels_is_refused(kernels):
    with pytest.raises(InputError, match="kernel must be"):
        make(kernels).fit(X, Y)
    assert len(make([RBF(1.0)]).fit(X, Y).kernel_) == 1


def test_a_kernel_without_parameters_has_none_to_learn():
    assert len(Linear().log_parameters) == 0
    a = make("linear", learn_kernel=True).fit(X, Y)
    b = make("linear").fit(X, Y)
    assert a.bound_ == b.bound_
    np.testing.assert_array_equal(probabilities(a), probabilities(b))


def test_kernel_parameters_from_few_tokens():
    x, y = X[:6], Y[:6]
    total = sum(map(len, x))
    few, whole, more = (
        make(learn_kernel=True, evidence_tokens=n).fit(x, y).kernel_.length_scale
        for n in (1, total, 10**6)
    )
    assert whole == more != few
    assert np.isfinite(few)


def test_learned_amplitudes_have_the_larger_bound():
    fixed, shared, label = (
        make(3.0 * RBF(1.0), amplitude=amplitude, **TIGHT).fit(X, Y)
        for amplitude in ("fixed", "shared", "label")
    )
    assert (fixed.amplitudes_ == 1.0).all()
    assert len(set(shared.amplitudes_.tolist())) == 1
    assert len(set(label.amplitudes_.tolist())) == 3
    assert shared.bound_ >= fixed.bound_ - 1e-6 * abs(fixed.bound_)
    assert label.bound_ >= shared.bound_ - 1e-6 * abs(fixed.bound_)


# --- missing labels and weights ----------------------------------------------------------------


def with_holes(seed=0, share=0.3):
    rng = np.random.default_rng(seed)
    return [[None if rng.random() < share else v for v in row] for row in Y]


@pytest.mark.parametrize("offsets", [(), (-1,), (-1, 1), (3,)], ids=str)
def test_a_missing_label_has_no_term_and_no_say_in_others(offsets):
    y = with_holes()
    model = make(offsets=offsets, amplitude="shared").fit(X, y)
    # sequences of which nothing is known are no part of it
    kept = [k for k, row in enumerate(y) if any(v is not None for v in row)]
    assert len(kept) < len(y) or any(None in y[k] for k in kept)
    x = np.vstack([X[k] for k in kept])
    codes = [-1 if v is None else LABELS.index(v) for k in kept for v in y[k]]
    root = thin_root(RBF(1.0)(x)).root
    ends = offsets_of([len(X[k]) for k in kept])
    result = by_hand(root, np.arange(len(x)), codes, ends, offsets, tol=1e-4)
    assert model.bound_ == pytest.approx(result.bound, rel=1e-9)
    np.testing.assert_allclose(model.steps_, result.steps, atol=1e-6)
    assert model.bound_ != pytest.approx(make(offsets=offsets).fit(X, Y).bound_, rel=1e-3)


def test_unlabelled_sequences_have_no_influence():
    a = make().fit(X, Y)
    b = make().fit([NEW[0], *X, *NEW[1:]], [None, *Y, *[[None] * len(x) for x in NEW[1:]]])
    assert a.bound_ == b.bound_
    assert a.n_tokens_ == b.n_tokens_
    np.testing.assert_array_equal(probabilities(a, NEW), probabilities(b, NEW))


def test_candidate_sets_count_as_missing():
    y = with_holes(1)
    rng = np.random.default_rng(2)
    sets = [{"L0", "L1"}, {"L1", "L2"}, frozenset(LABELS)]
    vague = [[sets[rng.integers(3)] if v is None else v for v in row] for row in y]
    assert any(isinstance(v, set) for row in vague for v in row)
    a, b = make(classes=LABELS).fit(X, y), make(classes=LABELS).fit(X, vague)
    assert b.bound_ == pytest.approx(a.bound_, rel=1e-6)
    np.testing.assert_allclose(probabilities(a, NEW), probabilities(b, NEW), atol=1e-4)
    np.testing.assert_allclose(
        b.log_pseudo_likelihood(X, vague), b.log_pseudo_likelihood(X, y), rtol=1e-12
    )
    one = make(classes=LABELS).fit(X, [[v if v is None else {v} for v in row] for row in y])
    assert one.bound_ == a.bound_


def test_labels_that_are_all_candidate_sets_are_refused():
    """As labels that are all missing are: nothing is learned from either."""
    with pytest.raises(InputError, match="label"):
        make(classes=LABELS).fit(X, [[None] * len(x) for x in X])
    with pytest.raises(InputError, match="label"):
        make(classes=LABELS).fit(X, [[{"L0", "L1"}] * len(x) for x in X])


def test_a_weight_of_two_is_the_sequence_twice():
    weights = np.ones(len(X))
    weights[[1, 4]] = 2.0
    a = make(**TIGHT).fit(X, Y, sample_weight=weights)
    b = make(**TIGHT).fit([*X, X[1], X[4]], [*Y, Y[1], Y[4]])
    assert a.bound_ == pytest.approx(b.bound_, rel=1e-8)
    np.testing.assert_allclose(probabilities(a, NEW), probabilities(b, NEW), atol=1e-4)
    assert a.bound_ != pytest.approx(make(**TIGHT).fit(X, Y).bound_, rel=1e-3)
    none = make(**TIGHT).fit(X, Y, sample_weight=[1.0] * 11 + [0.0])
    assert none.bound_ == make(**TIGHT).fit(X[:11], Y[:11]).bound_


# --- what it tells -----------------------------------------------------------------------------


def test_labels_are_the_most_probable_ones():
    model = make().fit(X, Y)
    for decoding in ("viterbi", "posterior"):
        got = np.concatenate(model.predict(NEW, decoding=decoding))
        np.testing.assert_array_equal(got, model.classes_[probabilities(model, NEW).argmax(axis=1)])
    np.testing.assert_allclose(probabilities(model, NEW).sum(axis=1), 1.0, rtol=1e-12)


BIO = ["B-A", "I-A", "O"]


@pytest.mark.parametrize("offsets", [(), (-1, 1)], ids=str)
def test_labels_of_a_scheme_are_lawful(offsets):
    rng = np.random.default_rng(0)
    x, y = [], []
    for _ in range(14):
        codes = [
            k for _ in range(3) for k in ([0, 1][: rng.integers(1, 3)] + [2] * rng.integers(3))
        ]
        x.append(1.2 * np.eye(3)[codes] + rng.normal(size=(len(codes), 3)))
        y.append([BIO[k] for k in codes])
    model = make(scheme="BIO", offsets=offsets).fit(x, y)
    free = make(offsets=offsets).fit(x, y)
    # tokens that look as if they were inside, at the start and after O
    new = [2.5 * np.eye(3)[rng.choice([1, 2], size=6)] for _ in range(6)]
    scheme = get_scheme("BIO")
    assert any(scheme.repair(row) != row for row in free.predict(new))
    for decoding in ("viterbi", "posterior"):
        assert all(scheme.repair(row) == row for row in model.predict(new, decoding=decoding))
    p = model.predict_proba(new)
    assert max(row[0, 1] for row in p) == 0.0
    np.testing.assert_allclose(np.vstack(p).sum(axis=1), 1.0, rtol=1e-9)
    # the scheme holds in decoding alone
    assert model.bound_ == free.bound_


@pytest.mark.parametrize("half", [0.0, 0.5])
@pytest.mark.parametrize("offsets", [(), (-1, 1), (-2, 5)], ids=str)
def test_log_pseudo_likelihood_equals_a_loop(offsets, half):
    model = make(offsets=offsets, half_variances=half > 0).fit(X, Y)
    y = with_holes(3)
    assert any(v is None for row in y for v in row)
    for labels in (Y, y):
        latent = model.latent(X)
        steps = model.steps_ + half * model.step_variances_
        want = []
        for row, m, v in zip(labels, latent.means, latent.variances, strict=True):
            total = 0.0
            for t, label in enumerate(row):
                if label is None:
                    continue
                z = m[t] + half * v[t]
                for d, distance in enumerate(offsets):
                    near = row[t + distance] if 0 <= t + distance < len(row) else None
                    if near is not None:
                        z = z + steps[d, LABELS.index(near)]
                total += z[LABELS.index(label)] - logsumexp(z)
            want.append(total)
        got = model.log_pseudo_likelihood(X, labels)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    flat = [v for row in Y for v in row]
    lengths = [len(x) for x in X]
    np.testing.assert_allclose(
        model.log_pseudo_likelihood(STACKED, flat, lengths=lengths),
        model.log_pseudo_likelihood(X, Y),
        rtol=1e-12,
    )


def test_there_is_no_joint_distribution():
    model = make().fit(X, Y)
    for ask in (
        lambda: model.distribution(NEW).nbest(3),
        lambda: model.distribution(NEW).sample(2, random_state=0),
        lambda: model.log_likelihood(X, Y),
    ):
        with pytest.raises(CapabilityError, match="log_pseudo_likelihood"):
            ask()


def test_transitions_are_the_table_of_the_label_before():
    for offsets, place in (((-1,), 0), ((1, -1), 1), ((-2, -1, 1), 1)):
        model = make(offsets=offsets).fit(X, Y)
        np.testing.assert_array_equal(model.transitions_, model.steps_[place])
        assert model.transitions_.any()
    for offsets in ((), (1,), (-2,)):
        np.testing.assert_array_equal(
            make(offsets=offsets).fit(X, Y).transitions_, np.zeros((3, 3))
        )


def test_transitions_learn_which_label_follows():
    rng = np.random.default_rng(0)
    y = [[f"L{(k + t) % 3}" for t in range(6)] for k in rng.integers(3, size=20)]
    x = [rng.normal(size=(6, 3)) for _ in y]
    before = make(offsets=(-1,)).fit(x, y)
    after = make(offsets=(1,)).fit(x, y)
    assert before.transitions_.argmax(axis=1).tolist() == [1, 2, 0]
    assert after.steps_[0].argmax(axis=1).tolist() == [2, 0, 1]


@pytest.mark.parametrize("way", [True, "platt"])
def test_calibration(way):
    model = make(calibrate=way).fit(X, Y)
    plain = make().fit(X, Y)
    assert model.calibration_.temperature > 0
    assert (model.calibration_.offsets is not None) == (way == "platt")
    p = probabilities(model, NEW)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-9)
    scores = np.log(probabilities(plain, NEW))
    if way == "platt":
        scores = scores + model.calibration_.offsets
    np.testing.assert_allclose(
        p, softmax(scores / model.calibration_.temperature, axis=1), atol=1e-9
    )
    got = np.concatenate(model.predict(NEW))
    np.testing.assert_array_equal(got, model.classes_[p.argmax(axis=1)])


def test_clone_and_search_over_offsets():
    model = make(offsets=(-1,))
    assert repr(clone(model).get_params()) == repr(model.get_params())
    grid = [(), (-1,), (-1, 1)]
    search = GridSearchCV(model, {"offsets": grid}, cv=2, error_score="raise").fit(X, Y)
    assert search.best_params_["offsets"] in grid
    assert len(search.best_estimator_.steps_) == len(search.best_params_["offsets"])


def test_offsets_of_any_kind_of_list():
    want = probabilities(make(offsets=(-1, 1)).fit(X, Y))
    for offsets in ([-1, 1], np.array([-1, 1]), range(-1, 2, 2)):
        np.testing.assert_array_equal(probabilities(make(offsets=offsets).fit(X, Y)), want)
    # their order is that of the tables alone
    turned = make(offsets=(1, -1)).fit(X, Y)
    np.testing.assert_allclose(probabilities(turned), want, atol=1e-4)


def test_number_of_jobs_changes_nothing():
    for wanted in ({}, {"learn_kernel": True}, {"n_inducing": 5}):
        x, y = X[:7], Y[:7]
        one, two = make(n_jobs=1, **wanted).fit(x, y), make(n_jobs=2, **wanted).fit(x, y)
        assert one.bounds_ == two.bounds_
        np.testing.assert_array_equal(probabilities(one, NEW), probabilities(two, NEW))


def test_sweeps_that_are_not_enough():
    with pytest.warns(ConvergenceWarning, match="in 1 iterations") as caught:
        make(max_iter=1, tol=1e-12).fit(X, Y)
    assert "penalty" not in str(caught[0].message)


def test_probabilities_that_do_not_settle(monkeypatch):
    model = make().fit(X, Y)
    monkeypatch.setattr(neighbour, "ROUNDS", 1 - max(map(len, NEW)))
    with pytest.warns(ConvergenceWarning, match=r"did not settle in 1 rounds.*fewer offsets"):
        p = probabilities(model, NEW)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)


def test_one_sequence_is_labelled_as_among_others():
    model = make().fit(X, Y)
    whole = model.predict_proba(NEW)
    for x, p in zip(NEW, whole, strict=True):
        np.testing.assert_allclose(model.predict_proba([x])[0], p, atol=1e-8)


# --- files -------------------------------------------------------------------------------------

VARIANTS = {
    "plain": {},
    "no offsets": {"offsets": ()},
    "long": {"offsets": (-2, -1, 1, 2), "amplitude": "label"},
    "inducing": {"n_inducing": 5},
    "linear": {"kernel": Linear()},
    "learned": {"learn_kernel": True},
    "calibrated": {"calibrate": "platt"},
    "kernels": {"kernel": OWN},
    "own parameters": {"kernel_per_label": True, "learn_kernel": True, "amplitude": "label"},
    "scheme": {"scheme": [(f"L{a}", f"L{b}") for a in range(3) for b in range(3) if a != b + 1]},
}


@pytest.fixture(scope="module")
def models():
    lawful = [["L0"] * len(x) for x in X[:6]] + [
        ["L1", "L2", "L2", "L2", "L2"][: len(x)] for x in X[6:]
    ]
    return {
        name: make(**wanted).fit(X, lawful if name == "scheme" else Y)
        for name, wanted in VARIANTS.items()
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_save_and_load(name, models, tmp_path):
    model = models[name]
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))
    assert again.predict(NEW) == model.predict(NEW)
    for got, want in zip(again.latent(NEW)[:2], model.latent(NEW)[:2], strict=True):
        np.testing.assert_array_equal(np.vstack(got), np.vstack(want))
    np.testing.assert_array_equal(
        again.log_pseudo_likelihood(X, Y), model.log_pseudo_likelihood(X, Y)
    )
    np.testing.assert_array_equal(again.transitions_, model.transitions_)
    for attribute in ("bound_", "n_kept_", "n_tokens_"):
        assert getattr(again, attribute) == getattr(model, attribute)
    assert not hasattr(again, "bounds_")
    assert tuple(again.offsets) == tuple(model.offsets)
    again.save(tmp_path / "again.sf")
    assert (tmp_path / "again.sf").read_bytes() == (tmp_path / "m.sf").read_bytes()


def test_a_loaded_model_can_be_trained_again(models, tmp_path):
    for name in ("plain", "inducing", "kernels"):
        models[name].save(tmp_path / "m.sf")
        again = clone(sf.load(tmp_path / "m.sf")).fit(X, Y)
        np.testing.assert_allclose(
            probabilities(again, NEW), probabilities(models[name], NEW), atol=1e-6
        )


def damaged(name, array):
    """Arrays that cannot be, by what is wrong with them."""
    out = {"deleted": None, "of another rank": array.ravel() if array.ndim > 1 else array[:, None]}
    if len(array):
        out |= {"short": array[:-1], "long": np.concatenate([array, array[-1:]])}
    if array.ndim > 1 and array.size:
        out |= {"narrow": array[:, :-1], "narrow at the end": array[..., :-1]}
    if array.dtype.kind == "f" and array.size:
        for what, value in (("NaN", np.nan), ("infinite", np.inf)):
            out[what] = array.copy()
            out[what].flat[-1] = value
    if name.endswith(("variances", "amplitudes")) and array.size:
        for what, value in (("negative", -1e-3), ("zero", 0.0)):
            out[what] = array.copy()
            out[what].flat[-1] = value
    return out


@pytest.mark.parametrize(
    "name", ["plain", "no offsets", "long", "inducing", "calibrated", "kernels"]
)
def test_damaged_arrays_are_refused(name, models, tmp_path):
    path = tmp_path / "m.sf"
    models[name].save(path)
    header, arrays = read_model(path)
    tried = set()
    for key, array in arrays.items():
        if not key.startswith("function/"):
            continue
        for what, bad in damaged(key, array).items():
            changed = {k: v for k, v in arrays.items() if k != key or bad is not None}
            if bad is not None:
                changed[key] = np.ascontiguousarray(bad)
            forge(path, header, changed)
            with pytest.raises(ModelFileError):
                pytest.fail(f"{key} {what}: {sf.load(path)}")
            tried.add((key, what))
    if name != "no offsets":
        assert ("function/step_variances", "negative") in tried
    assert ("function/amplitudes", "negative") in tried


def test_damaged_headers_are_refused_or_harmless(models, tmp_path):
    path = tmp_path / "m.sf"
    models["plain"].save(path)
    header, arrays = read_model(path)
    refused = 0
    for place in places(header["function"], ("function",)):
        for value in (None, "x", -1, [], 0, 1.5):
            forge(path, replaced(header, place, value), arrays)
            try:
                found = sf.load(path)
            except ModelFileError:
                refused += 1
                continue
            assert np.isfinite(probabilities(found, NEW)).all()
    assert refused > 10


# --- bad input ---------------------------------------------------------------------------------

BAD = {
    "offset 0": ({"offsets": (-1, 0, 1)}, "offsets must be different from 0"),
    "the same offset twice": ({"offsets": (-1, 1, -1)}, "offsets must be .*from each other"),
    "offsets text": ({"offsets": "-1"}, "offsets must be whole numbers"),
    "offsets texts": ({"offsets": ("-1", "1")}, "offsets must be a whole number"),
    "offsets bytes": ({"offsets": b"\x01"}, "offsets must be whole numbers"),
    "offsets an array of no dimension": ({"offsets": np.array(-1)}, "offsets must be whole"),
    "offsets a number": ({"offsets": -1}, "offsets must be whole numbers"),
    "no offsets at all": ({"offsets": None}, "offsets must be whole numbers"),
    "half an offset": ({"offsets": (-1.5,)}, "offsets must be a whole number"),
    "an offset in floating point": ({"offsets": (1.0,)}, "offsets must be a whole number"),
    "an offset that is true": ({"offsets": (True,)}, "offsets must be a whole number"),
    "offset NaN": ({"offsets": (float("nan"),)}, "offsets must be a whole number"),
    "unknown amplitude": ({"amplitude": "magic"}, "amplitude must be one of .*'magic'"),
    "no amplitude": ({"amplitude": None}, "amplitude must be one of"),
    "unknown landmarks": ({"inducing": "magic"}, "inducing must be one of .*'magic'"),
    "no landmarks": ({"n_inducing": 0}, "n_inducing must be"),
    "half a landmark": ({"n_inducing": 2.5}, "n_inducing must be"),
    "text landmarks": ({"n_inducing": "5"}, "n_inducing must be"),
    "no tokens": ({"evidence_tokens": 0}, "evidence_tokens must be"),
    "no sweep": ({"max_iter": 0}, "max_iter must be"),
    "negative tol": ({"tol": -1.0}, "tol must be"),
    "negative budget": ({"gram_budget": -1.0}, "gram_budget must be"),
    "several kernels": ({"kernel": [RBF(1.0), "linear"]}, "kernel"),
    "kernel unknown": ({"kernel": "magic"}, "one of linear, .*'magic'"),
    "calibrate": ({"calibrate": "magic"}, "calibrate must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    wanted, message = BAD[case]
    with pytest.raises(InputError, match=message):
        make(**wanted).fit(X, Y)


def test_a_kernel_parameter_out_of_reach():
    for kernel in (RBF(1e200), RBF(1.0) + 1e200 * RBF(1.0)):
        with pytest.raises(InputError, match="leads nowhere"):
            make(kernel, learn_kernel=True, amplitude="shared").fit(X, Y)


def test_an_offset_beyond_64_bits_is_refused():
    with pytest.raises(InputError, match="offsets"):
        make(offsets=(10**30,)).fit(X, Y)


def test_memory_beyond_the_budget():
    with pytest.raises(BudgetError, match="n_inducing"):
        make(gram_budget=1e-9).fit(X, Y)
    with pytest.raises(BudgetError, match="GiB"):
        make(gram_budget=1e-9, n_inducing=5).fit(X, Y)
    enough = 8.0 * (9 * 5**2 + 3 * len(STACKED) * 5) / 2**30 * 1.01
    with pytest.raises(BudgetError, match="n_inducing"):
        make(gram_budget=enough).fit(X, Y)
    assert make(gram_budget=enough, n_inducing=5).fit(X, Y).n_kept_ == 5


def test_a_budget_error_names_only_arguments_that_exist():
    x, y = numbers(n=12, seed=0, longest=5, s=2)
    n = sum(map(len, x))
    between = 8.0 * 4.5 * n**2 / 2**30  # enough for two functions, but not for the root
    with pytest.raises(BudgetError, match="n_inducing") as caught:
        make(gram_budget=between).fit(x, y)
    named = re.findall(r"(\w+)=", str(caught.value))
    assert set(named) <= set(make().get_params())


def test_edge_features_are_refused():
    edged = sf.Sequences(STACKED, OFFSETS, np.ones((len(STACKED), 1)))
    with pytest.raises(SeqfieldError, match="GPSL cannot use edge features"):
        make().fit(edged, Y)
    with pytest.raises(SeqfieldError, match="edge"):
        make().fit(X, Y).predict(edged)


def test_a_failed_fit_leaves_the_model_as_it_was():
    model = make().fit(X, Y)
    before = probabilities(model, NEW)
    with pytest.raises(InputError):
        model.set_params(offsets=(0,)).fit(X, Y)
    np.testing.assert_array_equal(probabilities(model, NEW), before)


def test_progress_shows_the_bound(monkeypatch):
    told = []

    @contextmanager
    def recorded(what, total, *, show):
        yield lambda done, text: told.append(text)

    monkeypatch.setattr(_descent, "progress", recorded)
    model = make(max_iter=3).fit(X, Y)
    assert told[-1] == f"bound {model.bound_:.6g}"


# --- a chain of the same conditionals ------------------------------------------------------------


def chain_model(**wanted):
    return make(inference="chain", **wanted).fit(X, Y)


def test_labels_of_the_chain_given_their_neighbours_are_those_of_the_model():
    model = chain_model()
    both = 0.5 * (model.steps_[0] + model.steps_[1].T)
    # what the two sides say of a pair is the same
    model.function_ = replace(model.function_, steps=np.stack([both, both.T]))
    x = max(NEW, key=len)
    [scores] = model.distribution([x]).joint.draws
    found = enumerate_labellings(scores)
    [means] = model.latent([x]).means
    of = {tuple(row): p for row, p in zip(found.labels.tolist(), found.probabilities, strict=True)}
    for labels in found.labels[::7].tolist():
        for t in range(len(x)):
            z = means[t].copy()
            if t > 0:
                z += model.steps_[0][labels[t - 1]]
            if t + 1 < len(x):
                z += model.steps_[1][labels[t + 1]]
            others = [of[(*labels[:t], q, *labels[t + 1 :])] for q in range(len(z))]
            np.testing.assert_allclose(np.array(others) / sum(others), softmax(z), rtol=1e-9)


def test_a_chain_has_all_that_joint_distributions_have(tmp_path):
    model = chain_model()
    x = NEW[:2]
    [best], *_ = model.distribution(x).nbest(n=1)
    assert model.log_likelihood(x[:1], [best[0]])[0] == pytest.approx(best[1], rel=1e-9)
    assert len(model.distribution(x).sample(3, random_state=0)[0]) == 3
    for offsets in ((-1, 1), (1, -1)):  # in either order
        same = chain_model(offsets=offsets)
        for a, b in zip(same.predict_proba(x), model.predict_proba(x), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
    model.save(tmp_path / "model.sf")
    again = sf.load(tmp_path / "model.sf")
    assert again.distribution(x).nbest() == model.distribution(x).nbest()
    model.set_params(inference="refine")
    with pytest.raises(CapabilityError, match="inference='chain'"):
        model.log_likelihood(x[:1], [best[0]])


def test_a_chain_needs_its_offsets():
    for offsets in ((-1,), (-2, -1, 1, 2), ()):
        with pytest.raises(CapabilityError, match=r"needs offsets=\(-1, 1\)"):
            make(inference="chain", offsets=offsets).fit(X, Y)
    model = make(offsets=(-1,)).fit(X, Y).set_params(inference="chain")
    with pytest.raises(CapabilityError, match=r"needs offsets=\(-1, 1\)"):
        model.predict(NEW)
    with pytest.raises(InputError, match="inference must be one of 'refine', 'chain'"):
        make(inference="magic").fit(X, Y)


# --- scales, budgets and settings that used to mislead ------------------------------------------

GALAXY = sf.make_galaxy(40, random_state=0)


def columns(scale, middle):
    """The galaxy's features in other units, and a constant."""
    return [
        np.column_stack([m + s * x[:, 0] for m, s in zip(middle, scale, strict=True)] + [x[:, -1]])
        for x in GALAXY[0]
    ]


SCALED = {
    "ten times": ([10 * x for x in GALAXY[0]], sf.kernels.Polynomial(3)),
    "a hundredth": ([0.01 * x for x in GALAXY[0]], "linear"),
    "units, linear": (columns((10.0, 4.0), (50.0, 20.0)), "linear"),
    "units, squares": (columns((10.0, 4.0), (50.0, 20.0)), "poly2"),
    "large kernel": (GALAXY[0], 1e4 * Linear()),
}


@pytest.mark.parametrize("name", SCALED)
def test_the_default_tolerance_comes_to_the_optimum(name):
    x, kernel = SCALED[name]
    found = make(kernel).fit(x, GALAXY[1])
    best = make(kernel, tol=1e-10, max_iter=3000).fit(x, GALAXY[1])
    assert found.bound_ == pytest.approx(best.bound_, rel=1e-3)


def test_features_of_large_values_are_learned_from():
    new = sf.make_galaxy(40, random_state=1)
    model = make(sf.kernels.Polynomial(3)).fit(*SCALED["ten times"][:1], GALAXY[1])
    assert model.score([10 * x for x in new[0]], new[1]) > 0.85


@pytest.mark.parametrize("power", [16, 25, 50])
def test_kernels_beyond_rounding_are_told(power):
    with pytest.warns(ConvergenceWarning, match="scale the kernel down"):
        make(10.0**power * RBF(0.5)).fit(X, Y)


def test_a_kernel_of_few_features_fits_into_a_small_budget():
    rng = np.random.default_rng(0)
    x = [(rng.random((20, 40)) < 0.3).astype(float) for _ in range(12)]
    y = [[f"L{int(v)}" for v in row[:, 0] + row[:, 1]] for row in x]
    n = 240
    # room for a posterior of rank 40, not for one of all tokens
    budget = 8.0 * (9 * 60**2 + 3 * n * 60) / 2**30
    few = make("linear", gram_budget=budget, **TIGHT).fit(x, y)
    assert few.n_kept_ == 40
    assert few.bound_ == pytest.approx(make("linear", **TIGHT).fit(x, y).bound_, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_kernel_parameters_by_sequences_that_fit(seed):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(400, 2)), rng.normal(size=(5, 2)), rng.normal(size=(300, 2))]
    y = [["a" if v > 0 else "b" for v in row[:, 0]] for row in x]
    given = {"n_inducing": 5, "learn_kernel": True, "random_state": seed, "max_iter": 3}
    given |= {"gram_budget": 8.0 * 30 * 60**2 / 2**30, "tol": 1.0}
    for limit in (1, 5, 60):  # no sequence is as short as the first: the shortest is taken
        make("rbf", evidence_tokens=limit, **given).fit(x, y)


def test_an_unfitted_model_has_no_kernel():
    with pytest.raises(NotFittedError):
        _ = make().kernel_


def test_moments_take_no_rounds_by_the_chain(monkeypatch):
    model = make(inference="chain").fit(X, Y)
    monkeypatch.setattr(neighbour, "refine", None)
    latent = model.latent(NEW)
    assert latent.n_rounds == 0
    assert len(latent.means) == len(NEW)


def test_what_does_not_settle_is_told_of_the_chain_if_there_is_one(monkeypatch):
    monkeypatch.setattr(neighbour, "ROUNDS", 1 - max(map(len, NEW)))
    for offsets, advice in (((1, -1), "Use inference='chain' or fewer"), ((-1, 2), "Use fewer")):
        model = make(offsets=offsets).fit(X, Y)
        with pytest.warns(ConvergenceWarning, match=advice) as caught:
            model.predict(NEW)
        assert caught[0].filename == __file__
