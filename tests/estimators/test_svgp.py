"""StructuredSVGP: its posterior against sampling, likelihoods, inducing tokens, what it learns,
tells and refuses, files."""

from __future__ import annotations

import io
import re
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
import seqfield.progress
from seqfield.data.schemes import get_scheme
from seqfield.errors import BudgetError, CapabilityError, InputError, ModelFileError
from seqfield.estimators.svgp import TransitionsWarning
from seqfield.kernels import RBF, Linear, Normalized, Precomputed, Scaled

from ..support.sequences import numbers, words

pytestmark = pytest.mark.filterwarnings(
    "ignore:no convergence:sklearn.exceptions.ConvergenceWarning"
)

X, Y = numbers(n=12, seed=0, longest=5)
NEW = numbers(n=5, seed=1)[0]
STACKED = np.vstack(X)


def galaxy(n, seed, length=8):
    """Short pieces of spirals: rows of two numbers, labels 0 and 1."""
    x, y = sf.make_galaxy(n, random_state=seed)
    return [row[:length] for row in x], [list(row[:length]) for row in y]


GX, GY = galaxy(12, 3)
TRAIN, HELD, LABELS = GX[:7], GX[7:], GY[:7]


def make(kernel=None, **wanted):
    given = {"n_jobs": 1, "random_state": 0, "max_iter": 10, "n_mc": 4, "n_samples": 16}
    return sf.StructuredSVGP(RBF(1.0) if kernel is None else kernel, **given | wanted)


def exact(**wanted):
    """On all tokens of the short spirals, with a kernel that stays."""
    given = {"learn_kernel": False, "max_iter": 40, "n_mc": 10, "n_samples": 300}
    return make(RBF(0.5), **given | wanted)


def adam(**wanted):
    given = {"solver": "adam", "learning_rate": 0.05, "max_iter": 120, "tol": 0.0}
    return exact(**given | wanted)


def probabilities(model, X=NEW):
    return np.vstack(model.predict_proba(X))


def settled(model):
    """The bound of the last twenty steps."""
    return model.bounds_[-20:].mean()


def chain_log_likelihood(F, T, labels):
    """Of the chain itself, by the forward recursion."""
    path = F[:, np.arange(len(labels)), labels].sum(axis=1)
    path += T[:, labels[:-1], labels[1:]].sum(axis=1)
    forward = F[:, 0]
    for t in range(1, len(labels)):
        inner = forward[:, :, None] + T
        top = inner.max(axis=1)
        forward = F[:, t] + top + np.log(np.exp(inner - top[:, None]).sum(axis=1))
    top = forward.max(axis=1)
    return path - top - np.log(np.exp(forward - top[:, None]).sum(axis=1))


# --- the posterior -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled():
    """Probabilities of held-out tokens by Hamiltonian Monte Carlo."""
    model = sf.GPStruct(
        RBF(0.5), n_steps=2400, n_chains=2, n_samples=2400, random_state=0, n_jobs=1
    ).fit(TRAIN, LABELS)
    assert model.r_hat_ < 1.1
    return probabilities(model, HELD)


@pytest.mark.parametrize("solver", ["natural", "adam"])
def test_probabilities_agree_with_sampling(solver, sampled):
    """All tokens are inducing tokens: nothing is left but the shape of the posterior."""
    slow = {"n_samples": 4000}
    model = exact(**slow) if solver == "natural" else adam(max_iter=400, n_mc=50, **slow)
    model.fit(TRAIN, LABELS)
    assert model.n_kept_ == len(np.vstack(TRAIN))
    found = probabilities(model, HELD)
    assert np.abs(found - sampled).mean() < 0.03
    assert np.abs(found - sampled).max() < 0.1
    # which is far from knowing nothing
    assert np.abs(sampled - 0.5).mean() > 0.1


@pytest.mark.parametrize(("n", "seed"), [(8, 0), (8, 1), (20, 1)])
def test_default_settings_end_above_the_prior(n, seed):
    """The bound of the first step is that of the prior."""
    x, y = sf.make_galaxy(n, random_state=seed)
    model = sf.StructuredSVGP(RBF(0.35), 40, random_state=0, n_jobs=1, max_iter=15)
    model.fit(x, y)
    assert model.bound_ > model.bounds_[0] + 50.0
    assert model.score(x, y) > 0.85


def test_far_from_all_tokens_is_the_prior():
    model = make(Scaled(RBF(1.0), 4.0), n_samples=400, learn_kernel=False).fit(X, Y)
    p = probabilities(model, [np.full((1, 3), 1e3)])
    assert np.abs(p - 1.0 / 3.0).max() < 0.1  # three standard errors of 400 draws
    # each draw of them has a mind of its own
    rows = np.array(
        [draw.node[0] for draw in model.function_.draws(model.encode([np.full((1, 3), 1e3)]))]
    )
    assert rows.std() == pytest.approx(2.0, rel=0.15)


def test_latent_means_are_those_of_the_draws():
    model = exact(n_samples=500).fit(TRAIN, LABELS)
    data = model.encode(HELD, None)
    drawn = np.stack([one.node for one in model.function_.draws(data, model.n_jobs)])
    error = drawn.std(axis=0) / np.sqrt(500)
    assert (
        np.abs(drawn.mean(axis=0) - model.function_.scores(data, model.n_jobs).node) < 4.5 * error
    ).all()
    steps = np.stack([one.edge for one in model.function_.draws(data, model.n_jobs)])
    error = steps.std(axis=0) / np.sqrt(500)
    assert (np.abs(steps.mean(axis=0) - model.transitions_) < 4.5 * error).all()
    assert steps.std(axis=0).min() > 0.1
    # at inducing tokens nothing but the posterior is random: less than the prior, and not nothing
    spread = np.stack([one.node for one in model.function_.draws(model.encode(TRAIN))]).std(axis=0)
    assert 0.2 < spread.min() < spread.max() < 1.05


# --- likelihoods -------------------------------------------------------------------------------


def test_piecewise_likelihood(sampled):
    model = exact(likelihood="piecewise").fit(TRAIN, LABELS)
    assert model.score(TRAIN, LABELS) > 0.8
    assert np.abs(probabilities(model, HELD) - sampled).mean() < 0.15
    # every label has more terms than in the chain
    assert model.bounds_[0] < exact(max_iter=1).fit(TRAIN, LABELS).bounds_[0] - 10.0


def test_piecewise_transitions_are_not_counted_twice():
    """Labels that do not depend on anything: what each neighbour says of a label is how often it
    comes, and both together say no more."""
    rng = np.random.default_rng(0)
    y = [(rng.random(30) < 0.2).astype(int).tolist() for _ in range(30)]
    X = [np.full((30, 1), 0.01) for _ in y]
    often = np.concatenate(y).mean()
    model = sf.StructuredSVGP("linear", likelihood="piecewise", eta=4.0, random_state=0)
    found = probabilities(model.fit(X, y), X)[:, 1].reshape(30, 30)
    # (at both ends there is one neighbour alone)
    np.testing.assert_allclose(found[:, 1:-1], often, atol=0.01)


def test_a_function_that_is_the_chain_is_the_chain():
    """From the same values of the likelihood comes the same posterior."""
    wanted = {"gradient": "score", "max_iter": 4, "n_mc": 20}
    own = exact(likelihood=chain_log_likelihood, classes=[0, 1], **wanted).fit(TRAIN, LABELS)
    built_in = exact(**wanted).fit(TRAIN, LABELS)
    np.testing.assert_allclose(own.bounds_, built_in.bounds_, rtol=1e-8)
    np.testing.assert_allclose(
        probabilities(own, HELD), probabilities(built_in, HELD), rtol=1e-5, atol=1e-8
    )


def test_values_alone_land_near_derivatives(sampled):
    model = adam(
        likelihood=chain_log_likelihood, gradient="score", classes=[0, 1], n_mc=60, max_iter=80
    ).fit(TRAIN, LABELS)
    assert np.abs(probabilities(model, HELD) - sampled).mean() < 0.06
    assert settled(model) == pytest.approx(settled(adam(max_iter=80).fit(TRAIN, LABELS)), abs=3.0)


def test_a_likelihood_that_is_no_chain():
    """Labels by themselves, and how many of them are 1."""

    def counted(F, T, labels):
        margin = F[:, :, 1] - F[:, :, 0]
        p = 1.0 / (1.0 + np.exp(-margin))
        own = np.where(labels == 1, np.log(p + 1e-12), np.log1p(1e-12 - p)).sum(axis=1)
        return own - 0.5 * (p.sum(axis=1) - (labels == 1).sum()) ** 2

    given = {"gradient": "score", "classes": [0, 1], "transitions": False}
    model = adam(likelihood=counted, n_mc=40, max_iter=60, **given).fit(TRAIN, LABELS)
    assert np.isfinite(model.bounds_).all()
    assert settled(model) > model.bounds_[:3].mean() + 3.0
    assert model.score(TRAIN, LABELS) > 0.75


def test_a_function_is_told_which_labels_are_missing():
    seen = []

    def likelihood(F, T, labels):
        seen.append(labels.tolist())
        return -0.5 * (F**2).sum(axis=(1, 2))

    y = [[None, *row[1:]] for row in LABELS]
    given = {"gradient": "score", "classes": [1, 0], "transitions": False}
    exact(likelihood=likelihood, max_iter=1, **given).fit(TRAIN, y)
    want = [[-1, *(1 - k for k in row[1:])] for row in LABELS]
    assert sorted(seen) == sorted(want)  # codes are the order of classes


def alone(F, T, labels):
    """Of labels by themselves."""
    top = F.max(axis=2, keepdims=True)
    own = np.take_along_axis(F - top, labels[None, :, None], axis=2)[..., 0]
    return (own - np.log(np.exp(F - top).sum(axis=2))).sum(axis=1)


def test_a_function_without_transitions_is_told_of():
    given = {"gradient": "score", "classes": [0, 1], "max_iter": 2}
    with pytest.warns(TransitionsWarning, match=r"no notice of T: .*N\(0, 2\).*transitions=False"):
        exact(likelihood=alone, eta=2.0, **given).fit(TRAIN, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TransitionsWarning)
        exact(likelihood=alone, transitions=False, **given).fit(TRAIN, LABELS)
        exact(likelihood=alone, eta=0.0, **given).fit(TRAIN, LABELS)
        exact(likelihood=chain_log_likelihood, **given).fit(TRAIN, LABELS)
        # one sequence that tells is enough
        exact(likelihood=chain_log_likelihood, **given).fit(
            [row[:1] for row in TRAIN[1:]] + TRAIN[:1], [row[:1] for row in LABELS[1:]] + LABELS[:1]
        )


def test_what_a_function_must_return():
    for returned, message in (
        (lambda F, T, labels: np.zeros(3), "one number for each of 4 draws"),
        (lambda F, T, labels: np.full(len(F), np.nan), "not finite"),
        (lambda F, T, labels: [[1.0], [1.0, 2.0]], "must return an array of numbers"),
    ):
        model = make(likelihood=returned, gradient="score", classes=["L0", "L1", "L2"])
        with pytest.raises(InputError, match=message):
            model.fit(X, Y)


def test_what_goes_wrong_in_a_function_is_its_own():
    class Mine(Exception):
        pass

    def raises(F, T, labels):
        raise Mine("no such thing")

    def divides(F, T, labels):
        raise ZeroDivisionError("mine")

    def takes_two(F, T):
        return np.zeros(len(F))

    for likelihood, kind, message in (
        (raises, Mine, "^no such thing$"),
        (divides, ZeroDivisionError, "^mine$"),
        (takes_two, TypeError, "takes_two"),
    ):
        model = make(likelihood=likelihood, gradient="score", classes=["L0", "L1", "L2"])
        with pytest.raises(kind, match=message):
            model.fit(X, Y)


# --- what it learns ----------------------------------------------------------------------------


def test_a_bad_length_scale_is_learned():
    x, y = galaxy(10, 5, 12)
    given = {"n_inducing": 40, "max_iter": 50, "learning_rate": 0.1, "tol": 0.0}
    fixed = make(RBF(0.1), learn_kernel=False, **given).fit(x, y)
    learned = make(RBF(0.1), **given).fit(x, y)
    assert settled(learned) > settled(fixed) + 6.0
    assert learned.kernel_.length_scale > 0.3
    assert fixed.kernel_.length_scale == learned.kernel.length_scale == 0.1


def test_inducing_tokens_that_move_raise_the_bound():
    x, y = galaxy(10, 5, 12)
    given = {"n_inducing": 4, "max_iter": 60, "learning_rate": 0.05, "learn_kernel": False}
    fixed = make(RBF(0.5), **given, tol=0.0).fit(x, y)
    moved = make(RBF(0.5), learn_inducing=True, **given, tol=0.0).fit(x, y)
    assert settled(moved) > settled(fixed) + 1.0
    assert moved.n_kept_ == fixed.n_kept_ == 4
    assert moved.kernel_.length_scale == 0.5


def test_a_mixture_of_gaussians():
    one, two = (
        adam(max_iter=50).fit(TRAIN, LABELS),
        adam(max_iter=50, n_components=2).fit(TRAIN, LABELS),
    )
    assert settled(two) > two.bounds_[0] + 3.0
    # the bound of a mixture's divergence is the looser one: by less than M S / 2 (1 - log 2)
    gap = 56 * (1.0 - np.log(2.0))
    assert settled(two) > settled(one) - gap - 2.0
    assert np.abs(probabilities(two, HELD) - probabilities(one, HELD)).mean() < 0.1


def test_minibatches():
    model = exact(batch_size=3, max_iter=25).fit(TRAIN, LABELS)
    assert len(model.bounds_) == 3 * model.n_iter_
    assert model.bound_ == pytest.approx(model.bounds_[-3:].mean(), rel=1e-12)
    whole = exact().fit(TRAIN, LABELS)
    assert model.bounds_[-30:].mean() == pytest.approx(settled(whole), abs=3.0)
    assert np.abs(probabilities(model, HELD) - probabilities(whole, HELD)).mean() < 0.05


@pytest.mark.parametrize("wanted", [{"transitions": False}, {"eta": 0.0}], ids=str)
def test_without_transitions(wanted):
    for solver in ("natural", "adam"):
        model = make(solver=solver, **wanted).fit(X, Y)
        assert not model.transitions_.any()
        assert not model.function_.steps.any()
    assert make().fit(X, Y).transitions_.any()


def hide(y, share, seed=0):
    """Labels of which this share is missing."""
    rng = np.random.default_rng(seed)
    return [[None if rng.random() < share else k for k in row] for row in y]


def test_one_missing_label_makes_little_difference():
    """It does not throw the fit to steps that take far more epochs."""
    x, y = sf.make_galaxy(30, random_state=0)
    one = [[None, *y[0][1:]], *y[1:]]
    given = {"n_inducing": 50, "random_state": 0, "n_jobs": 1}
    model, whole = (sf.StructuredSVGP(RBF(0.35), **given).fit(x, labels) for labels in (one, y))
    assert settled(model) == pytest.approx(settled(whole), abs=3.0)
    assert model.n_iter_ < 2 * whole.n_iter_


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_natural_gradients_and_adam_agree_on_missing_labels(share):
    y = hide(LABELS, share)
    model = exact(max_iter=60, tol=0.0, solver="natural").fit(TRAIN, y)
    slow = adam(max_iter=400, n_mc=20).fit(TRAIN, y)
    assert settled(model) == pytest.approx(settled(slow), abs=0.7)
    assert settled(model) > model.bounds_[0] + 1.0


def test_probabilities_from_missing_labels_agree_with_sampling():
    """Though the Fisher information is not the second derivative."""
    y = hide(LABELS, 0.8)
    model = exact(n_samples=4000, solver="natural").fit(TRAIN, y)
    drawn = sf.GPStruct(
        RBF(0.5), n_steps=1500, n_chains=2, n_samples=1500, random_state=0, n_jobs=1
    )
    off = np.abs(probabilities(model, HELD) - probabilities(drawn.fit(TRAIN, y), HELD))
    assert off.mean() < 0.03
    assert off.max() < 0.1


def test_a_missing_label_is_a_set_of_all_labels():
    y = hide(LABELS, 0.2)
    sets = [[{0, 1} if k is None else k for k in row] for row in y]
    for solver in ("natural", "adam"):
        given = {"max_iter": 10, "solver": solver, "classes": [0, 1]}
        a, b = exact(**given).fit(TRAIN, y), exact(**given).fit(TRAIN, sets)
        np.testing.assert_allclose(a.bounds_, b.bounds_, rtol=1e-9)


def test_missing_labels_of_the_piecewise_likelihood():
    """Their pieces are left out, and the others have second derivatives of one sign."""
    y = hide(LABELS, 0.3)
    given = {"likelihood": "piecewise", "n_mc": 20}
    model = exact(max_iter=60, tol=0.0, solver="natural", **given).fit(TRAIN, y)
    slow = adam(max_iter=300, **given).fit(TRAIN, y)
    assert settled(model) == pytest.approx(settled(slow), abs=0.7)
    # candidates have not: "auto" knows
    sets = [[{"L0", "L1"} if k == "L0" else k for k in row] for row in Y]
    given = {"likelihood": "piecewise", "classes": ["L0", "L1", "L2"], "max_iter": 3}
    same = make(solver="adam", **given).fit(X, sets)
    np.testing.assert_array_equal(make(**given).fit(X, sets).bounds_, same.bounds_)


def test_a_sequence_without_labels_is_no_reason_for_adam():
    model = exact(max_iter=4, solver="natural").fit([*TRAIN, HELD[0]], [*LABELS, None])
    same = exact(max_iter=4).fit(TRAIN, LABELS)
    np.testing.assert_array_equal(model.bounds_, same.bounds_)


@pytest.mark.parametrize("solver", ["natural", "adam"])
def test_candidate_sets(solver):
    y = [[{"L0", "L1"} if k == "L0" else k for k in row] for row in Y]
    model = make(classes=["L0", "L1", "L2"], max_iter=30, solver=solver).fit(X, y)
    assert np.isfinite(model.bounds_).all()
    # label 0 is never told, but its rival is
    p = probabilities(model, X)
    truth = np.concatenate(Y)
    assert p[truth == "L2", 2].mean() > p[truth != "L2", 2].mean() + 0.2


def test_weights_of_sequences():
    weights = np.ones(len(X))
    weights[-1] = 0.0
    a = make().fit(X, Y, sample_weight=weights)
    b = make().fit(X[:-1], Y[:-1])
    np.testing.assert_array_equal(a.bounds_, b.bounds_)
    twice = make(max_iter=1).fit(X, Y, sample_weight=np.full(len(X), 2.0))
    once = make(max_iter=1).fit(X, Y)
    assert twice.bounds_[0] == pytest.approx(2.0 * once.bounds_[0], rel=1e-9)


# --- inducing tokens ---------------------------------------------------------------------------


def tokens_of(model):
    return model.function_.span.tokens


@pytest.mark.parametrize("inducing", ["pivoted", "kmeans"])
def test_as_many_inducing_tokens_as_asked_for(inducing):
    model = make(n_inducing=7, inducing=inducing).fit(X, Y)
    assert model.n_kept_ == 7
    assert tokens_of(model).shape == (7, 3)
    rows = {row.tobytes() for row in STACKED}
    inside = [row.tobytes() in rows for row in tokens_of(model)]
    assert all(inside) == (inducing == "pivoted")
    if inducing == "kmeans":
        low, high = STACKED.min(axis=0), STACKED.max(axis=0)
        assert ((tokens_of(model) >= low) & (tokens_of(model) <= high)).all()


def test_all_tokens_if_there_are_no_more():
    a, b = make(n_inducing=len(STACKED)).fit(X, Y), make(n_inducing=10_000).fit(X, Y)
    assert a.n_kept_ == b.n_kept_ == len(STACKED)
    np.testing.assert_array_equal(a.bounds_, b.bounds_)
    assert {row.tobytes() for row in tokens_of(a)} == {row.tobytes() for row in STACKED}


def test_equal_tokens_are_one_inducing_token():
    rounded = [np.round(x) for x in X]
    model = make(n_inducing=500).fit(rounded, Y)
    assert model.n_kept_ == len(np.unique(np.vstack(rounded), axis=0)) < len(STACKED)
    assert np.isfinite(model.bounds_).all()


@pytest.mark.parametrize("inducing", ["pivoted", "kmeans"])
def test_inducing_tokens_of_sparse_features_are_rows_of_the_data(inducing):
    x, y = words(n=20, seed=0)
    model = make(Normalized(Linear()), n_inducing=5, inducing=inducing).fit(x, y)
    assert 1 < model.n_kept_ <= 5
    assert sp.issparse(tokens_of(model))
    rows = {row.tobytes() for row in model.encode(x, None).x.toarray()}
    assert all(row.tobytes() in rows for row in tokens_of(model).toarray())


def test_sparse_tokens_of_many_features_are_compared_in_fewer():
    rng = np.random.default_rng(0)
    x = [sp.csr_matrix(rng.random((4, 90)) * (rng.random((4, 90)) < 0.1)) for _ in range(15)]
    y = [rng.choice(["a", "b"], size=4).tolist() for _ in x]
    model = make(Linear(), n_inducing=6, inducing="kmeans", max_iter=2).fit(x, y)
    assert 1 < model.n_kept_ <= 6
    rows = {row.tobytes() for one in x for row in one.toarray()}
    assert all(row.tobytes() in rows for row in tokens_of(model).toarray())


def test_sparse_and_dense_features_are_the_same():
    for wanted in ({}, {"solver": "adam"}):
        dense = make(RBF(1.3), n_inducing=500, **wanted).fit(X, Y)
        sparse = make(RBF(1.3), n_inducing=500, **wanted).fit([sp.csr_matrix(x) for x in X], Y)
        np.testing.assert_allclose(sparse.bounds_, dense.bounds_, rtol=1e-5)
        np.testing.assert_allclose(
            probabilities(sparse, [sp.csr_matrix(x) for x in NEW]), probabilities(dense), atol=1e-4
        )


def test_a_row_of_zeros_under_a_linear_kernel():
    x = [row.copy() for row in X]
    x[0][0] = x[3][-1] = 0.0
    model = make(Linear(), n_inducing=5).fit(x, Y)
    assert np.isfinite(model.bounds_).all()
    assert np.isfinite(probabilities(model, [np.zeros((2, 3))])).all()


# --- what it tells -----------------------------------------------------------------------------


def test_bounds_are_recorded():
    model = make(max_iter=6).fit(X, Y)
    assert model.bounds_.shape == (6,)
    assert model.n_iter_ == 6
    assert model.bound_ == model.bounds_[-1] == -model.objective_
    assert not hasattr(model, "n_tokens_")  # telling equal tokens apart would take a copy of x
    assert model.n_samples_ == 16
    assert not hasattr(model, "theta_")
    assert not hasattr(model, "_architecture")


def test_epochs_that_are_not_enough():
    with pytest.warns(
        ConvergenceWarning, match=r"no convergence in 3 iterations .*: raise max_iter or tol$"
    ):
        make(max_iter=3).fit(X, Y)


def test_a_bound_that_falls_is_no_convergence():
    for wanted in ({"max_iter": 25}, {"max_iter": 25, "tol": 1e9}):
        with pytest.warns(ConvergenceWarning, match=r"bound fell from -.*lower learning_rate"):
            model = make(RBF(0.5), solver="adam", learning_rate=2.0, n_inducing=20, **wanted).fit(
                *galaxy(20, 0, 10)
            )
        assert model.bound_ < 10.0 * model.bounds_[0]


@pytest.mark.filterwarnings("error")
def test_a_bound_that_cannot_rise_is_no_fall():
    """Labels that nothing tells apart, in batches of sequences of any length."""
    rng = np.random.default_rng(0)
    x = [np.full((n, 1), 1e-3) for n in rng.integers(1, 12, size=20)]
    y = [rng.integers(2, size=len(row)).tolist() for row in x]
    for seed in range(2):
        make("linear", eta=1e-3, max_iter=25, tol=0.1, batch_size=1, random_state=seed).fit(x, y)


def test_stopping():
    model = exact(max_iter=300, tol=1e-2).fit(TRAIN, LABELS)
    assert 20 <= model.n_iter_ < 300
    assert exact(max_iter=50, tol=0.0).fit(TRAIN, LABELS).n_iter_ == 50


def test_adam_does_not_stop_far_from_its_end():
    """Of 60 sequences it is on its way for hundreds of epochs, under much noise."""
    x, y = sf.make_galaxy(60, random_state=0)
    for wanted in ({"solver": "adam"}, {"gradient": "score"}):
        given = {"n_inducing": 40, "random_state": 0, "n_jobs": 1} | wanted
        with pytest.warns(ConvergenceWarning, match="no convergence in 100 iterations"):
            sf.StructuredSVGP(RBF(0.35), **given).fit(x, y)


def test_a_kernel_that_still_moves_is_no_convergence():
    """From a scale that is far too small the bound rises only once it has grown by much."""
    x, y = galaxy(20, 0, 10)
    given = {"n_inducing": 20, "max_iter": 60, "tol": 1e-2}
    with pytest.warns(ConvergenceWarning, match="kernel's parameters still move, raise max_iter"):
        model = make(1e-4 * RBF(0.35), **given).fit(x, y)
    assert model.n_iter_ == 60
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed = make(1e-4 * RBF(0.35), learn_kernel=False, **given).fit(x, y)
    assert fixed.n_iter_ < 60
    # the bound had not told
    assert settled(model) < settled(fixed) + 3.0


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_verbose(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sf.progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    make(verbose=True, max_iter=3).fit(X, Y)
    told = sys.stderr.getvalue()
    assert "training" in told
    assert re.search(r"ELBO -\d", told)
    assert "objective" not in told
    monkeypatch.setattr(sys, "stderr", Terminal())
    make(max_iter=3).fit(X, Y)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"n_inducing": 6, "inducing": "kmeans", "batch_size": 3},
        {"solver": "adam", "n_components": 2, "learn_inducing": True},
        {"gradient": "score"},
    ],
    ids=str,
)
def test_the_same_seed_is_the_same_model(wanted):
    given = {"max_iter": 4} | wanted
    a, b, c = (make(random_state=seed, **given).fit(X, Y) for seed in (5, 5, 6))
    np.testing.assert_array_equal(a.bounds_, b.bounds_)
    np.testing.assert_array_equal(probabilities(a), probabilities(b))
    assert not np.array_equal(a.bounds_, c.bounds_)
    assert not np.array_equal(probabilities(a), probabilities(c))


def test_number_of_jobs_changes_nothing():
    a, b = make(n_jobs=1, max_iter=4).fit(X, Y), make(n_jobs=2, max_iter=4).fit(X, Y)
    np.testing.assert_array_equal(a.bounds_, b.bounds_)
    np.testing.assert_array_equal(probabilities(a), probabilities(b))


def test_one_sequence_is_labelled_as_among_others():
    model = make().fit(X, Y)
    for x, p in zip(NEW, model.predict_proba(NEW), strict=True):
        np.testing.assert_allclose(model.predict_proba([x])[0], p, atol=1e-12)


BIO = ["B-A", "I-A", "O"]


@pytest.mark.parametrize("likelihood", ["chain", "piecewise"])
def test_labels_of_a_scheme_are_lawful(likelihood):
    rng = np.random.default_rng(0)
    x, y = [], []
    for _ in range(14):
        codes = [
            k for _ in range(3) for k in ([0, 1][: rng.integers(1, 3)] + [2] * rng.integers(3))
        ]
        x.append(1.2 * np.eye(3)[codes] + rng.normal(size=(len(codes), 3)))
        y.append([BIO[k] for k in codes])
    given = {"n_inducing": 30, "likelihood": likelihood, "eta": 0.1}
    model, free = make(scheme="BIO", **given).fit(x, y), make(**given).fit(x, y)
    # tokens that look as if they were inside, at the start and after O
    new = [1.5 * np.eye(3)[rng.choice([1, 2], size=6)] for _ in range(6)]
    scheme = get_scheme("BIO")
    assert any(scheme.repair(row) != row for row in free.predict(new))
    for decoding in ("viterbi", "posterior"):
        assert all(scheme.repair(row) == row for row in model.predict(new, decoding=decoding))
    p = model.predict_proba(new)
    assert max(row[0, 1] for row in p) == 0.0
    np.testing.assert_allclose(np.vstack(p).sum(axis=1), 1.0, rtol=1e-9)
    # it holds in training too
    assert model.bounds_[0] > free.bounds_[0] + 1.0


# --- files -------------------------------------------------------------------------------------

VARIANTS = {
    "plain": {},
    "few": {"n_inducing": 5, "inducing": "kmeans"},
    "mixture": {"n_components": 2},
    "moved": {"n_inducing": 5, "learn_inducing": True},
    "piecewise": {"likelihood": "piecewise"},
    "no transitions": {"transitions": False},
    "linear": {"kernel": Linear()},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_save_and_load(name, tmp_path):
    model = make(**{"max_iter": 3} | VARIANTS[name]).fit(X, Y)
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    np.testing.assert_array_equal(probabilities(again), probabilities(model))
    assert again.predict(NEW) == model.predict(NEW)
    np.testing.assert_array_equal(again.log_likelihood(X, Y), model.log_likelihood(X, Y))
    np.testing.assert_array_equal(again.transitions_, model.transitions_)
    for attribute in ("bound_", "n_kept_", "n_samples_"):
        assert getattr(again, attribute) == getattr(model, attribute)
    assert repr(again.kernel_) == repr(model.kernel_)
    assert not hasattr(again, "bounds_")
    again.save(tmp_path / "again.sf")
    assert (tmp_path / "again.sf").read_bytes() == (tmp_path / "m.sf").read_bytes()
    refit = clone(again).fit(X, Y)
    np.testing.assert_allclose(probabilities(refit), probabilities(model), atol=1e-9)


def test_a_function_of_the_user_is_in_no_file(tmp_path):
    model = make(
        likelihood=chain_log_likelihood, gradient="score", classes=["L0", "L1", "L2"], max_iter=2
    ).fit(X, Y)
    message = r"likelihood is a function or .*, which .* set_params\(likelihood='chain'\)"
    with pytest.raises(ModelFileError, match=message):
        model.save(tmp_path / "m.sf")
    assert list(tmp_path.iterdir()) == []
    before = probabilities(model)
    model.set_params(likelihood="chain").save(tmp_path / "m.sf")
    np.testing.assert_array_equal(probabilities(sf.load(tmp_path / "m.sf")), before)


def test_any_other_function_is_named_too(tmp_path):
    model = make(max_iter=2).fit(X, Y).set_params(scheme=len)
    with pytest.raises(ModelFileError, match="scheme is a function"):
        model.save(tmp_path / "m.sf")


# --- what it refuses ---------------------------------------------------------------------------

FUNCTION = {"likelihood": chain_log_likelihood, "gradient": "score", "classes": ["L0", "L1", "L2"]}
REFUSED = {
    "unknown likelihood": ({"likelihood": "tree"}, InputError, "likelihood must be .*'tree'"),
    "likelihood a number": ({"likelihood": 3}, InputError, "likelihood must be .*got 3"),
    "unknown gradient": ({"gradient": "exact"}, InputError, "gradient must be .*'exact'"),
    "unknown solver": ({"solver": "sgd"}, InputError, "solver must be .*'sgd'"),
    "unknown inducing": ({"inducing": "grid"}, InputError, "inducing must be .*'grid'"),
    "function with derivatives": (
        FUNCTION | {"gradient": "reparam"},
        CapabilityError,
        "gradient='score'",
    ),
    "function without classes": (FUNCTION | {"classes": None}, InputError, "classes="),
    "function with a scheme": (
        FUNCTION | {"scheme": [(a, b) for a in ("L0", "L1", "L2") for b in ("L0", "L1", "L2")]},
        CapabilityError,
        "scheme",
    ),
    "natural mixture": (
        {"solver": "natural", "n_components": 2},
        CapabilityError,
        "one component; use solver='adam'",
    ),
    "natural scores": (
        {"solver": "natural", "gradient": "score"},
        CapabilityError,
        "needs gradient='reparam'",
    ),
    "no inducing tokens": ({"n_inducing": 0}, InputError, "n_inducing must be .* at least 1"),
    "half an inducing token": ({"n_inducing": 2.5}, InputError, "n_inducing"),
    "no batch": ({"batch_size": 0}, InputError, "batch_size must be .* at least 1"),
    "no components": ({"n_components": 0}, InputError, "n_components"),
    "no draws": ({"n_mc": 0}, InputError, "n_mc"),
    "no samples": ({"n_samples": 0}, InputError, "n_samples"),
    "no epochs": ({"max_iter": 0}, InputError, "max_iter"),
    "negative rate": ({"learning_rate": -0.1}, InputError, "learning_rate"),
    "negative tolerance": ({"tol": -1e-3}, InputError, "tol"),
    "negative eta": ({"eta": -1.0}, InputError, "eta"),
    "two kernels": ({"kernel": [RBF(1.0), Linear()]}, InputError, "one kernel"),
    "little memory": ({"gram_budget": 1e-6}, BudgetError, "n_inducing or batch_size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_are_refused(name):
    wanted, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        make(**wanted).fit(X, Y)


def test_data_that_are_refused():
    with pytest.raises(CapabilityError, match="no candidates"):
        make(**FUNCTION).fit(X, [[{"L0", "L1"}, *row[1:]] for row in Y])
    sets = [[{"L0", "L1"}, *row[1:]] for row in Y]
    with pytest.raises(CapabilityError, match="'piecewise', no candidates; use solver='adam'"):
        make(solver="natural", likelihood="piecewise").fit(X, sets)
    with pytest.raises(CapabilityError, match="sparse features"):
        make(learn_inducing=True).fit([sp.csr_matrix(x) for x in X], Y)
    with pytest.raises(InputError, match="positive semi-definite"):
        make(lambda x, z: 1.0 + np.abs(x[:, :1] - z[:, :1].T), n_inducing=500).fit(X, Y)


@pytest.mark.parametrize("inducing", ["pivoted", "kmeans"])
def test_a_kernel_of_zeros_is_said_to_be_zero(inducing):
    given = {"n_inducing": 5, "inducing": inducing}
    with pytest.raises(InputError, match=r"not zero: all k\(x, x\) <= 0\. .*not all zero"):
        make(Linear(), **given).fit([0.0 * x for x in X], Y)
    with pytest.raises(InputError, match="not zero"):
        make(lambda x, z: np.zeros((len(x), len(z))), **given).fit(X, Y)


def test_tokens_that_are_numbers_of_rows_have_no_means():
    n = len(STACKED)
    given = Precomputed(RBF(1.0)(STACKED))
    rows = np.split(np.arange(n, dtype=float)[:, None], np.cumsum([len(x) for x in X])[:-1])
    for kernel in (given, 2.0 * given):
        for wanted, name in (
            ({"inducing": "kmeans"}, "inducing='kmeans'"),
            ({"learn_inducing": True}, "learn_inducing=True"),
        ):
            with pytest.raises(CapabilityError, match=f"{name} .*Precomputed"):
                make(kernel, n_inducing=10, **wanted).fit(rows, Y)
    assert make(given, n_inducing=10).fit(rows, Y).n_kept_ == 10


def distant(a, b):
    """Large for tokens that are far apart, and so no covariance."""
    return 1.0 - 0.3 * np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2)) ** 3


@pytest.mark.parametrize("solver", ["natural", "adam"])
@pytest.mark.parametrize("n", [2, 5])
def test_kernels_that_are_indefinite_away_from_inducing_tokens(n, solver):
    with pytest.raises(InputError, match=r"the kernel is not positive semi-definite: .* of -"):
        make(distant, n_inducing=n, solver=solver).fit(GX, GY)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("rate", "wanted"),
    [
        (5.0, {"solver": "adam", "n_inducing": 20}),
        (20.0, {"n_components": 2}),
        (20.0, {"gradient": "score"}),
        (100.0, {}),
        (1000.0, {"n_components": 2}),
    ],
    ids=str,
)
def test_learning_rates_that_are_far_too_large(rate, wanted):
    given = {"learning_rate": rate, "max_iter": 30, "tol": 0.0}
    with pytest.raises(InputError, match=r"lower .*learning_rate"):
        make(RBF(0.5), **given | wanted).fit(*galaxy(20, 0, 10))


@pytest.mark.parametrize("wanted", [{}, {"solver": "adam"}, {"gradient": "score"}], ids=str)
def test_scores_that_overflow(wanted):
    with pytest.raises(InputError, match=r"scores of the size 1e\+150 overflow.*lower eta"):
        make(eta=1e300, **wanted).fit(X, Y)
    with pytest.raises(InputError, match="overflow: scale the features"):
        make("linear", **wanted).fit([1e100 * x for x in X], Y)


def test_memory_is_that_of_inducing_tokens_and_one_batch():
    """Not of all tokens: half of the budget of 30 inducing tokens does for 20."""
    copies, s, longest = 4, 3, max(map(len, X))
    need = copies * s * 20**2 + longest * (20 * (s + 4) + 3 * 4 * s) + longest**2 * (6 * s + 3)
    need *= 8.0 / 2**30
    wanted = {"batch_size": 1, "max_iter": 1, "gram_budget": 1.01 * need}
    make(n_inducing=20, **wanted).fit(X, Y)
    with pytest.raises(BudgetError, match="over 30 inducing tokens"):
        make(n_inducing=30, **wanted).fit(X, Y)
    with pytest.raises(BudgetError, match="n_inducing"):
        make(n_inducing=20, **wanted | {"solver": "adam"}).fit(X, Y)


def peak(model, x, y):
    """The most bytes of arrays during a fit."""
    tracemalloc.start()
    try:
        model.fit(x, y)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        ([300, 5], {"n_mc": 10}),
        ([300, 5], {"n_mc": 10, "solver": "adam"}),
        ([20] * 50, {"missing": 0.5, "n_mc": 2}),
        ([150, 5], {"n_mc": 20, "gradient": "score"}),
        ([250, 5], {"n_components": 3}),
        ([90] * 12, {"batch_size": 6}),
        ([20] * 10, {"n_components": 8, "n_inducing": 100}),
    ],
    ids=str,
)
def test_memory_is_within_the_budget(lengths, wanted):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 2)) for n in lengths]
    y = [rng.integers(3, size=n).tolist() for n in lengths]
    given = {"n_inducing": 10, "max_iter": 2} | wanted
    y = hide(y, given.pop("missing", 0.0))
    make(**given).fit(x, y)  # what is compiled or imported is not counted
    need = peak(make(**given), x, y) / 2**30
    # what fits into the memory that is needed at all, and no more than twice that, is refused
    with pytest.raises(BudgetError, match="cut long sequences"):
        make(**given, gram_budget=0.95 * need).fit(x, y)
    make(**given, gram_budget=2.0 * need).fit(x, y)


def test_one_pass_over_many_batches_goes_most_of_the_way():
    """The first batches are all that is known so far, and weigh accordingly."""
    X, y = sf.make_galaxy(200, random_state=0)

    def bounds(epochs):
        model = sf.StructuredSVGP(
            RBF(0.5), 30, batch_size=5, learn_kernel=False, max_iter=epochs, random_state=0
        )
        return model.fit(X, y).bounds_

    once, settled = bounds(1), bounds(5)[-80:].mean()
    assert (settled - once[-8:].mean()) / (settled - once[0]) < 0.03


def large_features(scale, n=20):
    """Labels of a linear model, its features given in small units."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(5, 3))
    x = [rng.normal(size=(12, 5)) for _ in range(n)]
    y = [(row @ w + rng.gumbel(size=(12, 3))).argmax(axis=1).tolist() for row in x]
    return [scale * row for row in x], y


@pytest.mark.parametrize(
    ("data", "wanted", "share"),
    [
        (galaxy(20, 0, 10), {"kernel": RBF(0.5), "n_inducing": 20, "eta": 20.0}, 0.85),
        (galaxy(20, 0, 10), {"kernel": RBF(0.5), "n_inducing": 20, "eta": 1000.0}, 0.85),
        (large_features(255.0), {"kernel": "linear"}, 0.65),
    ],
    ids=["eta 20", "eta 1000", "features of hundreds"],
)
def test_steps_end_where_the_bound_would_fall(data, wanted, share):
    """Of a wide prior all probabilities are near 0 or 1, and second derivatives near zero."""
    model = sf.StructuredSVGP(**wanted, max_iter=40, random_state=0, n_jobs=1).fit(*data)
    assert model.bound_ > 0.2 * model.bounds_[0]
    assert model.score(*data) > share
