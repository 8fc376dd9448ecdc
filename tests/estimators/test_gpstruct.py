"""GPStruct: averaged predictions by hand, what draws leave open, samplers, kernels, files."""

from __future__ import annotations

import io
import re
import sys
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield import chain, progress
from seqfield.chain import ChainScores
from seqfield.data.schemes import get_scheme
from seqfield.errors import (
    BudgetError,
    CapabilityError,
    InputError,
    LabelError,
    ModelFileError,
    SeqfieldError,
)
from seqfield.estimators import _base, gpstruct
from seqfield.functions import remainder as remainders
from seqfield.functions.remainder import JITTER, Remainder
from seqfield.kernels import RBF, Linear, Matern
from seqfield.labels import Targets
from seqfield.persist import read_model
from seqfield.posteriors import kernel_slice
from seqfield.posteriors.kernel_slice import sample_kernel
from seqfield.samplers import hamiltonian
from seqfield.samplers._base import effective_sample_size
from seqfield.sequences import Sequences, offsets_of

from ..support.model_files import forge
from ..support.samplers import unevenness
from ..support.sequences import numbers, words

X, Y = numbers(n=8, seed=0, longest=4)
NEW = numbers(n=4, seed=1, longest=5)[0]
SHORT = {"n_steps": 16, "n_chains": 2, "n_samples": 8, "random_state": 0, "n_jobs": 1}
# runs of a few steps are meant
pytestmark = pytest.mark.filterwarnings(
    "ignore:no convergence:sklearn.exceptions.ConvergenceWarning"
)


def make(kernel=None, **wanted):
    return sf.GPStruct(RBF(1.5) if kernel is None else kernel, **(SHORT | wanted))


@pytest.fixture(scope="module")
def model():
    return make().fit(X, Y)


def rbf(a, b, scale=1.5):
    square = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    return np.exp(-0.5 * square / scale**2)


def probabilities(model, X):
    return np.concatenate(model.predict_proba(X))


# --- predictions by hand -----------------------------------------------------------------------


def scores_by_hand(model, x, part=0):
    """Scores (draws, T, S) of one sequence, or of a part of it: what is known of each draw at x,
    and a draw of what is not, with the model's own random numbers."""
    z, a = model.function_.span.tokens, model.function_.span.coefficients
    s, k = len(model.classes_), len(model.function_.steps) - 1
    across = rbf(x, z)
    values = across @ a[:, s:]
    open_ = rbf(x, x) - across @ np.linalg.solve(rbf(z, z), across.T)
    root = np.linalg.cholesky(open_ + JITTER * np.eye(len(x)))
    noise = np.random.default_rng([model.function_.remainder.seed, 1, part]).normal(
        size=(len(x), k * s)
    )
    return (values + root @ noise).reshape(len(x), k, s).transpose(1, 0, 2)


def test_predictions_are_averages_over_draws(model):
    assert model.function_.steps.shape == (9, 3, 3)
    assert model.n_samples_ == 8
    found = model.predict_proba(NEW)
    log_likelihood = model.log_likelihood(NEW, [["L0"] * len(x) for x in NEW])
    for x, p, log_p in zip(NEW, found, log_likelihood, strict=True):
        node = scores_by_hand(model, x)
        each = [
            ChainScores(f, steps) for f, steps in zip(node, model.function_.steps[1:], strict=True)
        ]
        want = np.mean([chain.marginals(scores).node for scores in each], axis=0)
        np.testing.assert_allclose(p, want, rtol=1e-6)
        logs = [chain.log_prob(scores, np.zeros(len(x), int))[0] for scores in each]
        assert log_p == pytest.approx(logsumexp(logs) - np.log(8), rel=1e-6)
    # what draws leave open matters here
    values = model.function_.span.values(np.vstack(NEW))[:, 3:].reshape(-1, 8, 3)
    node = np.concatenate([scores_by_hand(model, x) for x in NEW], axis=1).transpose(1, 0, 2)
    assert np.abs(values - node).max() > 0.5


def test_labels_are_the_best_product_of_averaged_probabilities(model):
    want = [[model.classes_[k] for k in p.argmax(axis=1)] for p in model.predict_proba(NEW)]
    assert model.predict(NEW) == want
    assert model.predict(NEW, decoding="posterior") == want


def test_draws_at_training_tokens_are_those_of_the_chains():
    """Their log-likelihoods are the ones that the sampler saw."""
    model = make(n_samples=16, sampler="ess", eta=3.0).fit(X, Y)
    assert model.log_likelihoods_.shape == (2, 8)
    data = model.encode(X)
    y = model.labels_.encode(Y).codes
    found = [
        chain.log_prob(scores, y).sum() for scores in model.function_.draws(data, model.n_jobs)
    ]
    # the draws of the chains in turn; what is open at a known token has a spread of 1e-4
    np.testing.assert_allclose(found, model.log_likelihoods_.T.ravel(), atol=5e-3)


def test_mean_transitions(model):
    np.testing.assert_allclose(
        model.transitions_, model.function_.steps[1:].mean(axis=0), rtol=1e-12
    )
    a = model.function_.span.coefficients
    np.testing.assert_allclose(a[:, :3], a[:, 3:].reshape(len(a), 8, 3).mean(axis=1), atol=1e-10)
    free = make(transitions=False).fit(X, Y)
    assert not free.function_.steps.any()


# --- what draws leave open ---------------------------------------------------------------------


Z = np.vstack(X)


def test_remainder_by_its_formula():
    x = np.vstack([NEW[0], Z[:2] + 0.3])
    remainder = Remainder(RBF(1.5), Z)
    across = rbf(x, Z)
    want = rbf(x, x) - across @ np.linalg.solve(rbf(Z, Z), across.T)
    np.testing.assert_allclose(remainder.covariance(x), want, atol=1e-9)
    assert np.diagonal(want).min() > 0.05
    root = remainder.root(x)
    assert (np.triu(root, 1) == 0).all()
    np.testing.assert_allclose(root @ root.T, want + JITTER * np.eye(len(x)), atol=1e-9)


def test_remainder_where_everything_is_known_and_where_nothing_is():
    remainder = Remainder(2.5 * RBF(1.5), Z)
    assert np.abs(remainder.covariance(Z)).max() < 1e-9
    root = remainder.root(Z)
    assert np.abs(root @ root.T).max() < 3 * 2.5 * JITTER
    far = NEW[0] + 100.0
    np.testing.assert_allclose(remainder.covariance(far), 2.5 * rbf(far, far), atol=1e-12)
    root = remainder.root(far)
    np.testing.assert_allclose(root @ root.T, 2.5 * rbf(far, far), atol=1e-7)


def test_remainder_of_tokens_in_the_span_of_others():
    """A linear kernel of more tokens than features, the same token twice: singular matrices."""
    remainder = Remainder(Linear(), Z)
    assert np.abs(remainder.covariance(NEW[0])).max() < 1e-4
    few = Remainder(Linear(), Z[:2])
    x = np.vstack([NEW[0], NEW[0][:1]])
    basis = np.linalg.qr(Z[:2].T)[0]
    rest = x - x @ basis @ basis.T
    np.testing.assert_allclose(few.covariance(x), rest @ rest.T, atol=1e-9)
    root = few.root(x)
    np.testing.assert_allclose(root @ root.T, rest @ rest.T, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_remainder_of_a_kernel_of_any_size(scale):
    remainder = Remainder(scale * RBF(1.5), Z)
    want = scale * Remainder(RBF(1.5), Z).covariance(NEW[0])
    np.testing.assert_allclose(remainder.covariance(NEW[0]), want, atol=1e-9 * scale)
    root = remainder.root(NEW[0])
    np.testing.assert_allclose(root @ root.T, want, atol=1e-7 * scale)


def test_a_remainder_without_a_root_keeps_its_diagonal():
    class Indefinite(Remainder):
        def covariance(self, x):
            return np.array([[1.0, 2.0], [2.0, 1.0]])

    root = Indefinite(RBF(1.0), Z).root(Z[:2])
    np.testing.assert_array_equal(root, np.eye(2))


def test_a_remainder_that_rounding_made_negative():
    class Rounded(Remainder):
        def covariance(self, x):
            return np.array([[-1e-7, 0.0], [0.0, 1.0]])

    root = Rounded(RBF(1.0), Z).root(Z[:2])
    np.testing.assert_allclose(root @ root.T, np.diag([0.0, 1.0]), atol=1e-5)


# --- sequences and blocks ----------------------------------------------------------------------


def test_a_sequence_does_not_depend_on_others(model):
    whole = model.predict_proba(NEW)
    for k, x in enumerate(NEW):
        np.testing.assert_allclose(model.predict_proba([x])[0], whole[k], rtol=1e-9)
        np.testing.assert_allclose(model.predict_proba([*X, x])[-1], whole[k], rtol=1e-9)
    longest = max(NEW, key=len)
    part = model.predict_proba([longest[:1]])[0]
    assert not np.allclose(part[0], model.predict_proba([longest])[0][0])  # it has transitions


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_long_sequences_are_cut_where_remainders_are_drawn(model, longest, monkeypatch):
    """Pieces as if each were a sequence of its own, with its own random numbers, joined by the
    transitions."""
    monkeypatch.setattr(remainders, "LONGEST", longest)
    x = NEW[int(np.argmax([len(x) for x in NEW]))]
    pieces = [x[k : k + longest] for k in range(0, len(x), longest)]
    node = [scores_by_hand(model, part, k) for k, part in enumerate(pieces)]
    node = np.concatenate(node, axis=1)
    want = np.mean(
        [
            chain.marginals(ChainScores(f, steps)).node
            for f, steps in zip(node, model.function_.steps[1:], strict=True)
        ],
        axis=0,
    )
    np.testing.assert_allclose(model.predict_proba([x])[0], want, rtol=1e-6)
    among = model.predict_proba([x[:1], *NEW, x, x])
    np.testing.assert_allclose(among[-1], want, rtol=1e-6)
    np.testing.assert_allclose(among[-2], want, rtol=1e-6)


def test_far_tokens_of_a_long_sequence_are_independent():
    """Far from everything and from each other, whatever their distance is: P(y_s, y_t) is the
    product. Scores that came twice would make it larger by the variance of p, here 0.14."""
    model = make(16.0 * RBF(1.0), transitions=False, n_steps=260, n_samples=500, burn_in=0.04)
    model.fit(X, Y)
    x = 100.0 * (1.0 + np.arange(600.0))[:, None] + np.zeros(Z.shape[1])
    p = model.predict_proba([x])[0][:, 0]
    for s, t in [(0, 255), (0, 256), (255, 256), (0, 512), (256, 512), (87, 343), (87, 599)]:
        y = [None] * len(x)
        y[s] = y[t] = "L0"
        joint = np.exp(model.log_likelihood([x], [y]))[0]
        # five standard errors of a covariance of independent draws
        assert abs(joint - p[s] * p[t]) < 5.0 * 0.14 / np.sqrt(500)
    assert len(np.unique(p)) == len(p)


@pytest.mark.parametrize("drawn", [1, 100, 400])
def test_blocks_of_sequences_change_nothing(model, drawn, monkeypatch):
    X1 = [*NEW, *X]
    y1 = model.predict(X1)
    y1[0] = [None, *y1[0][1:]]
    calls = {
        "predict": lambda: model.predict(X1),
        "posterior": lambda: model.predict(X1, decoding="posterior"),
        "nbest": lambda: [row for part in model.distributions(X1) for row in part.nbest(3)],
        "score": lambda: model.score(X1, y1),
    }
    plain = {name: call() for name, call in calls.items()}
    p, log_p = probabilities(model, X1), model.log_likelihood(X1, y1)
    monkeypatch.setattr(_base, "DRAWN", drawn)
    assert len(list(model.distributions(X1))) > 1
    assert calls["predict"]() == plain["predict"]
    assert calls["posterior"]() == plain["posterior"]
    assert calls["score"]() == plain["score"]
    for got, want in zip(calls["nbest"](), plain["nbest"], strict=True):
        assert [y for y, _ in got] == [y for y, _ in want]
        np.testing.assert_allclose([v for _, v in got], [v for _, v in want], rtol=1e-9)
    np.testing.assert_allclose(probabilities(model, X1), p, rtol=1e-9)
    np.testing.assert_allclose(model.log_likelihood(X1, y1), log_p, rtol=1e-9)


def test_an_error_names_the_sequence_of_all_blocks(model, monkeypatch):
    monkeypatch.setattr(_base, "DRAWN", 1)
    y1 = model.predict(X)
    y1[3][0] = "unheard of"
    with pytest.raises(LabelError, match="sequence 3, position 0"):
        model.log_likelihood(X, y1)


def test_samples_in_blocks(model, monkeypatch):
    """They follow p(y | x) of each sequence, and go by the seed."""
    monkeypatch.setattr(_base, "DRAWN", 1)
    n, X1 = 3000, [NEW[0][:2], NEW[1][:2]]

    def sampled(seed):
        generator, blocks = np.random.default_rng(seed), list(model.distributions(X1))
        assert len(blocks) == 2
        return [row for said in blocks for row in said.sample(n, random_state=generator)]

    drawn = sampled(0)
    assert drawn == sampled(0)
    assert drawn != sampled(1)
    labels = model.classes_.tolist()
    for x, rows in zip(X1, drawn, strict=True):
        every = [list(y) for y in product(labels, repeat=2)]
        p = np.exp(model.log_likelihood([x] * 9, every))
        assert p.sum() == pytest.approx(1.0, rel=1e-12)
        share = np.array([rows.count(y) for y in every]) / n
        # five standard errors; the shares of one draw alone are much further off
        assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / n)).all()
    # the sequences are labelled by draws of their own: nothing makes them alike
    assert drawn[0] != drawn[1]


def test_a_generator_may_be_given_for_samples(model):
    generator = np.random.default_rng(3)
    first = model.distribution(NEW).sample(4, random_state=generator)
    assert first == model.distribution(NEW).sample(4, random_state=3)
    assert first != model.distribution(NEW).sample(4, random_state=generator)


# --- posteriors --------------------------------------------------------------------------------


def draws_of(model, X, n_chains):
    """Probabilities of the first label by each draw (chains, draws of each, N)."""
    each = [chain.marginals(scores).node[:, 0] for scores in model.function_.draws(model.encode(X))]
    return np.array(each).reshape(-1, n_chains, len(each[0])).transpose(1, 0, 2)


def three_tokens(transitions):
    """Three tokens, and one or two new ones, by 300,000 weighted draws of everything."""
    x = np.array([[0.0], [0.8], [2.0]])
    new = np.array([[-1.0], [3.2]])
    lengths = [2, 1] if transitions else [1, 1, 1]
    y, s = [0, 1, 1], 2
    rng, n = np.random.default_rng(0), 300_000
    every = np.vstack([x, new])
    root = np.linalg.cholesky(9.0 * rbf(every, every, 1.0) + 1e-10 * np.eye(5))
    f = (root @ rng.normal(size=(5, s * n))).reshape(5, s, n)
    t = np.sqrt(2.0) * rng.normal(size=(s, s, n)) * transitions

    def pair(i, j):
        """Log-probabilities (2, 2, n) of the labels of tokens i and j, one after the other."""
        joint = f[i][:, None] + t + f[j][None]
        return joint - logsumexp(joint, axis=(0, 1))

    if transitions:
        log_w = pair(0, 1)[y[0], y[1]] + (f[2] - logsumexp(f[2], axis=0))[y[2]]
        after = np.exp(pair(3, 4))
        want = np.array([after.sum(axis=1)[0], after.sum(axis=0)[0]])
        told = [new]
    else:
        log_w = sum((f[k] - logsumexp(f[k], axis=0))[y[k]] for k in range(3))
        want = softmax(f[3:], axis=1)[:, 0]
        told = [new[:1], new[1:]]
    w = np.exp(log_w)
    w /= w.sum()
    error = np.sqrt((w**2 * (want - (want @ w)[:, None]) ** 2).sum(axis=1))
    return np.split(x, np.cumsum(lengths)[:-1]), told, want @ w, error


@pytest.mark.parametrize("sampler", ["ess", "hmc"])
def test_without_data_draws_are_those_of_the_prior(sampler):
    """Scores of N(0, k(x, x)), transitions of N(0, eta)."""
    steps = {"ess": 2500, "hmc": 300}[sampler]
    rest = {"n_chains": 4, "n_samples": 10**6, "burn_in": 0.1, "eta": 3.0, "n_steps": steps}
    model = make(0.5 * RBF(1.5), sampler=sampler, **rest)
    model.fit(X[:3], Y[:3], sample_weight=np.full(3, 1e-9))
    scores = model.function_.draws(model.encode(X[:1]))
    for drawn, variance in (
        (np.array([one.edge.ravel() for one in scores]), 3.0),
        (np.array([one.node[0] for one in scores]), 0.5),
    ):
        by_chain = (drawn**2).reshape(-1, 4, drawn.shape[1]).transpose(2, 1, 0)
        size = sum(effective_sample_size(each) for each in by_chain)
        assert size > 2000
        assert (drawn**2).mean() == pytest.approx(variance, rel=4.5 * np.sqrt(2 / size))


@pytest.mark.parametrize("transitions", [False, True])
def test_probabilities_of_three_tokens(transitions):
    X1, new, want, error = three_tokens(transitions)
    y1 = [["a", "b"], ["b"]] if transitions else [["a"], ["b"], ["b"]]
    model = make(
        9.0 * RBF(1.0),
        n_steps=260,
        n_chains=6,
        n_samples=10**6,
        burn_in=0.2,
        eta=2.0,
        transitions=transitions,
    ).fit(X1, y1)
    each = draws_of(model, new, 6)
    size = np.array([effective_sample_size(each[:, :, k]) for k in range(each.shape[2])])
    assert size.min() > 400
    spread = np.sqrt(each.reshape(-1, each.shape[2]).var(axis=0) / size + error**2)
    found = probabilities(model, new)[:, 0]
    assert (np.abs(found - want) < 4.5 * spread).all()
    # without what the draws leave open it would not be so
    values = model.function_.span.values(np.vstack(new))[:, 2:].reshape(2, -1, 2)
    known = [
        ChainScores(f, steps, offsets_of([len(x) for x in new]))
        for f, steps in zip(values.transpose(1, 0, 2), model.function_.steps[1:], strict=True)
    ]
    short = np.mean([chain.marginals(scores).node[:, 0] for scores in known], axis=0)
    assert (np.abs(short - want) > 6.0 * spread).any()


def drawn_from_the_model(kernel, x, n_train, rng):
    """Scores at all tokens, transitions, and the labels of the first tokens in sequences of two."""
    root = np.linalg.cholesky(kernel(x) + 1e-9 * np.eye(len(x)))
    f, steps = root @ rng.normal(size=(len(x), 2)), np.sqrt(2.0) * rng.normal(size=(2, 2))
    scores = ChainScores(f[:n_train], steps, np.arange(0, n_train + 1, 2))
    codes = chain.sample(scores, 1, random_state=int(rng.integers(2**31)))[0]
    return f, steps, np.array(["a", "b"])[codes].reshape(-1, 2).tolist()


def told_of(node, steps):
    """The squared scores in all, and the log-probability of one labelling."""
    scores = ChainScores(node, steps)
    return float((node**2).sum()), float(chain.log_prob(scores, np.arange(len(node)) % 2)[0])


def ranks_at_new_tokens(kernels, variances, n):
    """Ranks, between 0 and 1, of what is `told_of` the scores that made the labels, at new tokens
    among those that the models draw there, (variances, n, 2). They are uniform if what the draws
    leave open has its due variance, which is multiplied here."""
    # near to the training tokens, where much is known, and far from them
    new, out = np.linspace(-30.0, 130.0, 160)[:, None], np.empty((len(variances), n, 2))
    for k in range(n):
        rng, kernel = np.random.default_rng([k, 17]), kernels[k % len(kernels)]
        x = np.vstack([rng.uniform(0.0, 100.0, (20, 1)), new])
        f, steps, y = drawn_from_the_model(kernel, x, 20, rng)
        truth = told_of(f[20:], steps)
        options = {"n_steps": 400, "sampler": "ess", "n_samples": 40, "random_state": k}
        model = make(kernel, eta=2.0, classes=["a", "b"], **options)
        model.fit(np.split(x[:20], 10), y)
        for row, variance in zip(out, variances, strict=True):
            model.function_.remainder.variance = variance
            drawn = model.function_.draws(model.encode([new]))
            told = np.array([told_of(scores.node, scores.edge) for scores in drawn])
            row[k] = ((told < truth).sum(axis=0) + 0.5) / (len(told) + 1)
    return out


def test_simulation_based_calibration_at_new_tokens():
    """A tenth more or less of the variance that draws leave open shows at once."""
    kernels = [4.0 * RBF(0.6), 2.0 * Matern(0.8, 1.5), RBF(0.4) + 3.0 * RBF(2.0)]
    right, less, more, none = ranks_at_new_tokens(kernels, (1.0, 0.9, 1.1, 0.0), 75)
    assert unevenness(right).max() < 3.0
    for wrong in (less, more, none):
        assert unevenness(wrong)[0] > 4.5


GALAXY = sf.make_galaxy(4, length=8, random_state=0)
OTHERS = sf.make_galaxy(3, length=8, random_state=1)[0]


def by_chains(n_chains, kernel=None, weights=None, **wanted):
    """Mean probabilities of each chain (chains, N)."""
    kernel = RBF(0.5) if kernel is None else kernel
    model = make(kernel, n_chains=n_chains, n_samples=60 * n_chains, **wanted)
    model.fit(*GALAXY, sample_weight=weights)
    return draws_of(model, OTHERS, n_chains).mean(axis=1)


def apart(a, b):
    """Mean squared distance of two estimates, in units of what their chains would let expect."""
    error = sum(part.var(axis=0, ddof=1) / len(part) for part in (a, b))
    return ((a.mean(axis=0) - b.mean(axis=0)) ** 2).mean() / error.mean()


@pytest.fixture(scope="module")
def reference():
    return by_chains(8, sampler="ess", n_steps=2500, burn_in=0.2)


def test_samplers_agree(reference):
    hmc = by_chains(6, sampler="hmc", n_steps=80, burn_in=0.3)
    nuts = by_chains(5, sampler="nuts", n_steps=36, burn_in=0.3)
    for one, other in ((reference, hmc), (reference, nuts), (hmc, nuts)):
        assert apart(one, other) < 5.0
    wrong = by_chains(8, 9.0 * RBF(0.5), sampler="ess", n_steps=1000, burn_in=0.2)
    assert apart(reference, wrong) > 12.0


def test_all_tokens_as_landmarks(reference):
    """Another root of the same matrix: the same posterior by other random numbers."""
    marked = by_chains(8, sampler="ess", n_steps=2500, burn_in=0.2, n_inducing=32)
    assert apart(reference, marked) < 5.0
    assert (reference != marked).all()
    # with strong data as well
    heavy = {"sampler": "ess", "n_steps": 2500, "burn_in": 0.2, "weights": np.full(4, 20.0)}
    plain, marked = (by_chains(8, **heavy, n_inducing=n) for n in (None, 32))
    assert apart(plain, marked) < 5.0
    assert apart(plain, reference) > 8.0


def test_landmarks():
    model = make(n_inducing=5).fit(X, Y)
    assert model.n_kept_ == 5
    assert model.n_tokens_ == len(Z)
    drawn = make(n_inducing=5, inducing="random").fit(X, Y)
    assert not np.allclose(probabilities(model, NEW), probabilities(drawn, NEW))
    # what is open given the landmarks, not given all tokens
    z = model.function_.span.tokens
    np.testing.assert_allclose(
        model.function_.remainder.covariance(Z),
        rbf(Z, Z) - rbf(Z, z) @ np.linalg.solve(rbf(z, z), rbf(z, Z)),
        atol=1e-8,
    )


def test_strong_data_are_learnt():
    """A thousand copies of each sequence leave no doubt, at the tokens themselves."""
    X1 = [np.array([[0.0], [3.0], [6.0]])]
    y1 = [["a", "b", "a"]]
    model = make(RBF(1.0), n_steps=60).fit(X1, y1, sample_weight=[1000.0])
    assert model.predict(X1) == y1
    assert model.predict_proba(X1)[0].max(axis=1).min() > 0.95
    away = model.predict_proba([np.array([[100.0]])])[0]
    assert 0.1 < away.min() < 0.9


# --- kernel parameters -------------------------------------------------------------------------


def from_the_model(length_scale, n=12, length=10, seed=0):
    """Labels drawn from the model with this kernel, of scores that are large."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 10.0, (n * length, 1))
    gram = 16.0 * rbf(x, x, length_scale) + 1e-8 * np.eye(len(x))
    f = np.linalg.cholesky(gram) @ rng.normal(size=(len(x), 2))
    scores = ChainScores(f, rng.normal(size=(2, 2)), offsets_of([length] * n))
    codes = chain.sample(scores, 1, random_state=seed)[0]
    return np.split(x, n), [["ab"[k] for k in row] for row in np.split(codes, n)]


@pytest.mark.parametrize("start", [0.25, 4.0])
def test_sampled_kernels_are_nearer_to_the_true_one(start):
    """From four times too short or too long, over three sets of data."""
    kernel, errors = 16.0 * RBF(start), []
    at = int(np.argmin(np.abs(kernel.log_parameters - np.log(start))))
    for seed in range(3):
        X1, y1 = from_the_model(1.0, seed=seed)
        options = {"sampler": "ess", "n_steps": 8, "random_state": seed, "evidence_tokens": 500}
        model = make(kernel, learn_kernel=True, **options).fit(X1, y1)
        found, used = model.kernel_samples_, model.kernel_.log_parameters
        assert found.shape == (40, 2)
        # the mean of the second half is used
        np.testing.assert_allclose(used, found[20:].mean(axis=0), rtol=1e-10)
        errors.append(abs(used[at]))
    assert np.mean(errors) < 0.6 * np.log(4.0)


def drawn_parameters(weights, rounds, kernel, monkeypatch):
    """Of three single tokens with the labels 0, 1 and 0."""
    monkeypatch.setattr(kernel_slice, "STEPS", 5)
    offsets = np.arange(4)
    return sample_kernel(
        kernel,
        THREE,
        Sequences(np.arange(3.0)[:, None], offsets),
        Targets(np.array([0, 1, 0], np.int32), None, offsets),
        np.asarray(weights, float),
        constraint=None,
        eta=1.0,
        n_labels=2,
        rng=np.random.default_rng(0),
        rounds=rounds,
    )[:, 0]


THREE = np.array([[0.0], [0.3], [0.6]])


def test_kernel_parameters_without_data_are_those_of_their_prior(monkeypatch):
    found = drawn_parameters([1e-9] * 3, 500, RBF(0.5), monkeypatch)
    size = effective_sample_size(found[None])
    assert size > 200
    assert abs(found.mean() - np.log(0.5)) < 4.5 / np.sqrt(size)
    assert abs(found.var() - 1.0) < 4.5 * np.sqrt(2 / size)


def test_kernel_parameters_given_data(monkeypatch):
    """Their moments on a grid; at each point the scores, of which differences matter alone, are
    integrated out by draws. The prior has the mean 0 and the spread 1."""
    weight, sign = 8.0, np.array([[1.0], [-1.0], [1.0]])
    z = np.random.default_rng(0).normal(size=(3, 40_000))
    grid, log_p = np.linspace(-4.5, 4.5, 91), []
    for phi in grid:
        gram = 2.0 * rbf(THREE, THREE, np.exp(phi)) + 1e-9 * np.eye(3)
        d = np.linalg.cholesky(gram) @ z
        log_each = -weight * np.logaddexp(0.0, -sign * d).sum(axis=0)
        log_p.append(logsumexp(log_each) - 0.5 * phi**2)
    p = softmax(log_p)
    mean = p @ grid
    spread = np.sqrt(p @ (grid - mean) ** 2)
    assert mean < -2.0
    assert spread < 0.5
    found = drawn_parameters([weight] * 3, 500, RBF(1.0), monkeypatch)[20:]
    size = effective_sample_size(found[None])
    assert size > 100
    assert abs(found.mean() - mean) < 4.5 * spread / np.sqrt(size)
    assert found.std() == pytest.approx(spread, rel=4.5 / np.sqrt(2 * size))


def test_kernels_without_parameters_cannot_be_sampled():
    with pytest.raises(InputError, match=r"learn_kernel=True: Linear.* no parameters"):
        make(Linear(), learn_kernel=True).fit(X, Y)
    with pytest.raises(InputError, match="evidence_tokens must be"):
        make(learn_kernel=True, evidence_tokens=0).fit(X, Y)


def test_samples_of_a_kernel_do_not_survive_a_fit_without():
    model = make(learn_kernel=True, evidence_tokens=9).fit(X, Y)
    assert hasattr(model, "kernel_samples_")
    assert not hasattr(model.set_params(learn_kernel=False).fit(X, Y), "kernel_samples_")


def test_kernels_are_sampled_on_some_sequences(monkeypatch):
    seen = []

    def fake(kernel, x, *arguments, **named):
        seen.append(len(x))
        return np.tile(kernel.log_parameters + 0.5, (4, 1))

    monkeypatch.setattr("seqfield.estimators.gpstruct.sample_kernel", fake)
    model = make(learn_kernel=True, evidence_tokens=9).fit(X, Y)
    assert 0 < seen[0] <= 9
    np.testing.assert_allclose(model.kernel_.log_parameters, RBF(1.5).log_parameters + 0.5)
    assert model.n_tokens_ == len(Z)
    assert not hasattr(make().fit(X, Y), "kernel_samples_")


# --- what it tells -----------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["ess", "hmc", "nuts"])
def test_diagnostics(sampler):
    model = make(sampler=sampler, n_steps=24, burn_in=0.25, n_chains=3, n_samples=10).fit(X, Y)
    assert model.n_samples_ == 10
    assert model.log_likelihoods_.shape == (3, 18)
    assert (model.log_likelihoods_ < 0).all()
    assert 1 <= model.effective_sample_size_ <= 3 * 18 * 3
    assert 0.9 < model.r_hat_ < 10
    assert model.n_evaluations_ >= 3 * 25
    assert model.n_iter_ == 72
    assert model.transitions_.shape == (3, 3)
    assert model.n_tokens_ == model.n_kept_ == len(Z)
    assert model.kernel_ == RBF(1.5) or repr(model.kernel_) == repr(RBF(1.5))
    # nothing of the training is left
    names = set(vars(model)) - set(model.get_params())
    assert all(re.fullmatch(r"[a-z]\w*_", name) for name in names)
    assert "theta_" not in names


def test_numbers_of_draws():
    for n_samples, n_chains, want in ((1, 3, 1), (2, 4, 2), (5, 2, 5), (10**6, 2, 16)):
        model = make(n_samples=n_samples, n_chains=n_chains, sampler="ess").fit(X, Y)
        assert model.n_samples_ == want
        assert len(model.function_.steps) == want + 1
        p = probabilities(model, NEW)
        np.testing.assert_allclose(p.sum(axis=1), 1.0)


def test_defaults_of_the_number_of_steps(monkeypatch):
    assert gpstruct.STEPS == {"ess": 5000, "hmc": 200, "nuts": 200}
    monkeypatch.setattr(gpstruct, "STEPS", {"ess": 12, "hmc": 8, "nuts": 8})
    for sampler, n in (("ess", 24), ("hmc", 16), ("nuts", 16)):
        assert make(n_steps=None, sampler=sampler).fit(X, Y).n_iter_ == n


def test_chains_that_disagree_are_told():
    X1, y1 = sf.make_galaxy(8, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"R-hat \d.*raise n_steps, or use sampler='hmc'"):
        model = make(RBF(0.35), sampler="ess", n_steps=40, n_chains=4).fit(X1, y1)
    assert model.r_hat_ > 1.1
    with pytest.warns(ConvergenceWarning, match=r"chains disagree .*raise n_steps$"):
        make(RBF(0.35), sampler="hmc", n_steps=4, n_chains=4, burn_in=0.0).fit(X1, y1)


@pytest.mark.parametrize("sampler", ["hmc", "nuts"])
def test_the_step_is_tuned_without_burn_in(sampler):
    X1, y1 = sf.make_galaxy(12, random_state=0)
    model = make(RBF(0.35), sampler=sampler, n_steps=30, burn_in=0.0, n_chains=1).fit(X1, y1)
    assert model.log_likelihoods_.shape == (1, 30)
    assert model.n_iter_ == 30
    assert len(np.unique(model.log_likelihoods_)) > 20
    assert model.score(X1, y1) > 0.85


@pytest.mark.parametrize("sampler", ["hmc", "nuts"])
def test_chains_that_never_move_are_told(sampler, monkeypatch, tmp_path):
    """A step of 1 where the likelihood is steep, never tuned."""
    monkeypatch.setattr(hamiltonian, "TUNED", 0)
    X1, y1 = sf.make_galaxy(12, random_state=0)
    what = (
        r"1 of 1 chains \(number 0\) never moved in 40 steps: raise burn_in or n_steps.* or lower"
    )
    with pytest.warns(ConvergenceWarning, match=what):
        model = make(RBF(0.35), sampler=sampler, n_steps=40, burn_in=0.0, n_chains=1).fit(X1, y1)
    assert model.r_hat_ == np.inf
    assert model.effective_sample_size_ == 1.0
    model.save(tmp_path / "model.sf")
    assert sf.load(tmp_path / "model.sf").r_hat_ == np.inf


def test_one_chain_that_never_moves_is_told(monkeypatch):
    """Whatever the others do, and wherever it stands."""
    whole = gpstruct.EllipticalSlice.sample

    def held(self, *arguments):
        draws = whole(self, *arguments)
        draws.watched[[1, 3]] = draws.watched[[1, 3], :1]
        return draws

    monkeypatch.setattr(gpstruct.EllipticalSlice, "sample", held)
    what = r"2 of 4 chains \(number 1, 3\) never moved in 20 steps: lower the scale"
    with pytest.warns(ConvergenceWarning, match=what):
        model = make(sampler="ess", n_steps=40, n_chains=4).fit(X, Y)
    assert model.r_hat_ == np.inf
    assert model.effective_sample_size_ <= 16 / 2


def test_steps_that_are_too_few_to_tell():
    with pytest.warns(ConvergenceWarning, match="too few steps to tell .*: raise n_steps"):
        model = make(n_steps=4).fit(X, Y)
    assert np.isnan(model.r_hat_)


@pytest.mark.parametrize("sampler", ["ess", "hmc", "nuts"])
def test_scores_that_overflow(sampler):
    with pytest.raises(InputError, match="overflow: scale the features"):
        make(Linear(), sampler=sampler).fit([1e100 * x for x in X], Y)
    with pytest.raises(InputError, match=r"1e\+50 overflow: .* lower eta"):
        make(sampler=sampler, eta=1e100).fit(X, Y)


@pytest.mark.filterwarnings("error")
def test_chains_that_agree_are_not():
    model = make(RBF(1.0), n_steps=150, n_chains=3).fit(X[:3], Y[:3])
    assert model.r_hat_ < 1.1


def test_the_same_seed_gives_the_same_model():
    for sampler in ("ess", "hmc", "nuts"):
        first = probabilities(make(sampler=sampler).fit(X, Y), NEW)
        again = probabilities(make(sampler=sampler, n_jobs=2).fit(X, Y), NEW)
        np.testing.assert_array_equal(again, first)
        other = probabilities(make(sampler=sampler, random_state=1).fit(X, Y), NEW)
        assert not np.allclose(other, first)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    make(verbose=True, learn_kernel=True, n_steps=8).fit(X, Y)
    text = sys.stderr.getvalue()
    assert "training" in text
    assert "objective" in text
    assert "kernel parameters" in text
    assert re.search(r"log-parameters -?\d", text)
    monkeypatch.setattr(sys, "stderr", Terminal())
    make(verbose=False).fit(X, Y)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"sampler": "gibbs"}, "sampler must be one of 'hmc', 'nuts', 'ess', got 'gibbs'"),
        ({"inducing": "best"}, "inducing must be one of"),
        ({"n_steps": 3}, "n_steps must be a whole number of at least 4, or None, got 3"),
        ({"n_steps": 10.5}, "n_steps must be"),
        ({"n_steps": "many"}, "n_steps must be"),
        ({"burn_in": 1}, "burn_in must be a number from 0 to 0.99, got 1"),
        ({"burn_in": -0.1}, "burn_in must be"),
        ({"burn_in": None}, "burn_in must be"),
        ({"n_chains": 0}, "n_chains must be a whole number of at least 1, got 0"),
        ({"n_samples": 0}, "n_samples must be"),
        ({"n_samples": 2.5}, "n_samples must be"),
        ({"eta": -1.0}, "eta must be"),
        ({"eta": "large"}, "eta must be"),
        ({"n_inducing": 0}, "n_inducing must be"),
        ({"n_inducing": 2.5}, "n_inducing must be"),
        ({"gram_budget": -1}, "gram_budget must be"),
        ({"kernel": "no such"}, "a kernel is .*got 'no such'"),
        ({"kernel": [RBF(), Linear()]}, "kernel must be one kernel"),
        ({"random_state": "x"}, "random_state"),
    ],
)
def test_bad_arguments(wanted, message):
    with pytest.raises(SeqfieldError, match=message):
        make(**wanted).fit(X, Y)


def test_bad_arguments_are_told_before_anything_is_done(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(sf.GPStruct, "_learn", never)
    for wanted in ({"sampler": "x"}, {"n_steps": 1}, {"burn_in": 2}, {"n_chains": -1}):
        with pytest.raises(InputError):
            make(**wanted).fit(X, Y)


def test_a_budget_that_is_too_small():
    n = len(Z)
    need = 5 * 8 * n**2 / 2**30
    with pytest.raises(BudgetError, match=rf"{n} x {n}.*n_inducing=.*gram_budget="):
        make(gram_budget=0.99 * need).fit(X, Y)
    make(gram_budget=1.01 * need).fit(X, Y)
    with pytest.raises(BudgetError, match=r"inducing tokens need.*gram_budget="):
        make(gram_budget=1e-9, n_inducing=4).fit(X, Y)


# --- labels that are not known, schemes --------------------------------------------------------


@pytest.mark.parametrize("sampler", ["ess", "hmc"])
def test_labels_that_are_not_known(sampler):
    """A set of all labels tells as much as none; a sequence without labels tells nothing."""
    holes = [list(row) for row in Y]
    i = next(k for k, row in enumerate(holes) if len(row) > 2)
    holes[i][1] = None
    model = make(sampler=sampler).fit(X, holes)
    sets = [list(row) for row in holes]
    sets[i][1] = {"L0", "L1", "L2"}
    again = make(sampler=sampler).fit([*X, NEW[0]], [*sets, None])
    np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))
    coded = [["?" if v is None else v for v in row] for row in holes]
    again = make(sampler=sampler, missing_label="?").fit(X, coded)
    np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))
    with pytest.raises(LabelError, match="y tells nothing"):
        make(classes=["L0", "L1"]).fit(X, [None] * len(X))
    assert model.log_likelihood(X[:1], [[None] * len(X[0])])[0] == pytest.approx(0.0, abs=1e-12)


def test_a_missing_label_is_averaged_over():
    """One token, far from others, of three: with its label, without it, or with two candidates."""
    X1 = [np.array([[0.0], [5.0], [10.0]])]
    found = {}
    for name, label in {"known": "a", "open": None, "two": {"a", "b"}}.items():
        model = make(
            4.0 * RBF(1.0),
            n_steps=1500,
            n_samples=400,
            sampler="ess",
            transitions=False,
            classes=["a", "b", "c"],
        ).fit(X1, [["b", label, "c"]])
        found[name] = model.predict_proba(X1)[0][1]
    # E[p(a) | a] of three labels by symmetry, and 1/3, each within 0.06; others are far from it
    np.testing.assert_allclose(found["open"], 1 / 3, atol=0.06)
    assert found["known"][0] > 0.5
    assert found["two"][2] < 0.25
    assert abs(found["two"][0] - found["two"][1]) < 0.1


@pytest.mark.parametrize("sampler", ["ess", "hmc", "nuts"])
def test_schemes(sampler):
    X1, plain = words(n=8, seed=0, noise=0.0)
    y1 = [[{"A": "B-X", "B": "I-X", "C": "O"}[v] for v in row] for row in plain]
    scheme = get_scheme("BIO")
    y1 = [scheme.repair(row) for row in y1]
    model = make(sampler=sampler, scheme="BIO").set_params(kernel=None).fit(X1, y1)
    for x in X1:
        assert not scheme.violations(model.predict([x])[0])
        assert not scheme.violations(model.predict([x], decoding="posterior")[0])
    assert all(
        not scheme.violations(row) for rows in model.distribution(X1).sample(5) for row in rows
    )
    x = X1[int(np.argmax([len(x) for x in X1]))][:2]
    every = [list(y) for y in product(model.classes_.tolist(), repeat=2)]
    logs = model.log_likelihood([x] * len(every), every)
    lawful = np.array([not scheme.violations(row) for row in every])
    assert (logs[~lawful] == -np.inf).all()
    assert np.exp(logs[lawful]).sum() == pytest.approx(1.0, rel=1e-10)
    # a label may also be missing under a scheme
    y1[0] = [None, *y1[0][1:]]
    model.fit(X1, y1)
    assert not scheme.violations(model.predict(X1[:1])[0])


def test_a_scheme_counts_in_training():
    """Where only one labelling is lawful the labels tell nothing: draws are those of the prior."""
    X1 = [np.array([[0.0], [1.0]]), np.array([[3.0]])]
    table = [("a", "b"), (None, "a"), ("b", None), ("a", None)]
    y1 = [["a", "b"], ["a"]]
    # a sequence of one is a, of two is a b: nothing else is lawful
    model = make(RBF(1.0), scheme=table, n_steps=24).fit(X1, y1)
    np.testing.assert_allclose(model.log_likelihoods_, 0.0, atol=1e-12)
    assert model.r_hat_ < 3.0  # chains move, though this one number does not
    np.testing.assert_allclose(model.log_likelihood(X1, y1), 0.0, atol=1e-12)
    free = make(RBF(1.0), n_steps=24).fit(X1, y1)
    assert free.log_likelihoods_.max() < -0.01


def test_sample_weights():
    """Of a sequence that counts for nothing, nothing is left."""
    weights = np.ones(len(X))
    weights[[1, 5]] = 0.0
    kept = np.flatnonzero(weights)
    model = make().fit(X, Y, sample_weight=weights)
    again = make().fit([X[i] for i in kept], [Y[i] for i in kept])
    np.testing.assert_array_equal(probabilities(model, NEW), probabilities(again, NEW))
    heavy = make().fit(X, Y, sample_weight=3.0 * np.ones(len(X)))
    assert not np.allclose(probabilities(heavy, NEW), probabilities(make().fit(X, Y), NEW))


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [{}, {"n_inducing": 4}, {"n_samples": 1}, {"sampler": "ess"}])
def test_files(wanted, tmp_path):
    model = make(**wanted).fit(X, Y)
    path = tmp_path / "model.sf"
    model.save(path)
    again = sf.load(path)
    assert isinstance(again, sf.GPStruct)
    np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))
    assert again.predict(NEW) == model.predict(NEW)
    assert again.distribution(NEW).nbest(3) == model.distribution(NEW).nbest(3)
    assert again.distribution(NEW).sample(5, random_state=0) == model.distribution(NEW).sample(
        5, random_state=0
    )
    np.testing.assert_array_equal(again.log_likelihood(X, Y), model.log_likelihood(X, Y))
    kept = ("n_samples_", "n_tokens_", "n_kept_", "effective_sample_size_", "r_hat_")
    for name in (*kept, "n_iter_", "n_evaluations_"):
        assert getattr(again, name) == getattr(model, name), name
    np.testing.assert_array_equal(again.transitions_, model.transitions_)
    for name in ("log_likelihoods_", "kernel_samples_"):  # too much for a file, it is said
        assert not hasattr(again, name)


def test_files_of_older_versions_have_no_counts(model, tmp_path):
    path = tmp_path / "model.sf"
    model.save(path)
    header, arrays = read_model(path)
    del header["facts"]["n_iter_"], header["facts"]["n_evaluations_"]
    forge(path, header, arrays)
    again = sf.load(path)
    assert not hasattr(again, "n_iter_")
    again.save(path)
    again = sf.load(path)
    np.testing.assert_array_equal(probabilities(again, NEW), probabilities(model, NEW))


def test_files_that_are_damaged(model, tmp_path):
    path = tmp_path / "model.sf"
    model.save(path)
    header, arrays = read_model(path)
    told = header["function"]["remainder"]
    damage = [told | {"seed": bad} for bad in (-1, "x", 1.5, None)]
    damage += [told | {"variance": bad} for bad in (-1.0, "x", None)]
    for bad in (*damage, {}, None, 3):
        forge(path, header | {"function": header["function"] | {"remainder": bad}}, arrays)
        with pytest.raises(ModelFileError):
            sf.load(path)
    facts = header["facts"]
    damage = [{"n_iter_": -1}, {"n_iter_": "x"}, {"n_evaluations_": 1.5}, {"fit": 1}]
    for bad in (*(facts | one for one in damage), None, 3):
        forge(path, header | {"facts": bad}, arrays)
        with pytest.raises(ModelFileError):
            sf.load(path)
    steps = arrays["function/steps"]
    wrong = {"NaN": steps * np.nan, "no draws": steps[:1], "other": steps[:4], "flat": steps[0]}
    for bad in wrong.values():
        forge(path, header, arrays | {"function/steps": np.ascontiguousarray(bad)})
        with pytest.raises(ModelFileError):
            sf.load(path)
    # one estimate alone fits its function, but there is nothing to average over
    one = arrays["function/function0/coefficients"][:, :3]
    few = {"function/steps": steps[:1].copy(), "function/function0/coefficients": one.copy()}
    forge(path, header, arrays | few)
    with pytest.raises(ModelFileError, match="no posterior draws"):
        sf.load(path)
    forge(path, header, arrays)
    np.testing.assert_array_equal(probabilities(sf.load(path), NEW), probabilities(model, NEW))


# --- chains on a device ------------------------------------------------------------------------


def test_chains_on_a_device():
    """Their posterior is that of the compiled chains."""
    rest = {"sampler": "ess", "n_samples": 200}
    one = make(engine="jax", n_steps=1500, n_chains=8, **rest).fit(X, Y)
    two = make(n_steps=4000, n_chains=4, **rest).fit(X, Y)
    assert one.r_hat_ < 1.1
    assert one.n_samples_ == 200
    assert one.log_likelihoods_.shape == (8, 750)
    assert one.log_likelihoods_.mean() == pytest.approx(two.log_likelihoods_.mean(), rel=0.05)
    assert np.abs(probabilities(one, NEW) - probabilities(two, NEW)).max() < 0.1


def test_more_chains_than_the_device_has_memory_for(monkeypatch):
    device_slice = pytest.importorskip("seqfield.samplers.device_slice")
    many = make(engine="jax", sampler="ess", n_chains=10**9, n_samples=4)
    what = rf"1000000000 chains .* {len(Z)} .*need at least \d.* GiB, .*lower n_chains, set n_ind"
    with pytest.raises(BudgetError, match=what):
        many.fit(X, Y)

    def full(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.")

    monkeypatch.setattr(device_slice, "start", full)
    with pytest.raises(BudgetError, match=r"2 chains .*more memory than .*lower n_chains"):
        make(engine="jax", sampler="ess").fit(X, Y)

    def wrong(*_):
        raise RuntimeError("INTERNAL: something else")

    monkeypatch.setattr(device_slice, "start", wrong)
    with pytest.raises(RuntimeError, match="something else"):
        make(engine="jax", sampler="ess").fit(X, Y)


@pytest.mark.parametrize("sampler", ["hmc", "nuts"])
def test_gradients_are_not_for_the_device(sampler):
    with pytest.raises(CapabilityError, match=f"set sampler='ess' instead of '{sampler}'"):
        make(engine="jax", sampler=sampler).fit(X, Y)


def test_the_device_needs_jax(monkeypatch):
    for name in ("seqfield.linalg._jax", "seqfield.chain._jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(CapabilityError, match="pip install"):
        make(engine="jax", sampler="ess").fit(X, Y)
