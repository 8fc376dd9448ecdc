"""The tagger to begin with: its choice, and that it is the model it chose."""

import numpy as np
import pytest

import seqfield as sf
from seqfield.errors import InputError
from seqfield.estimators import tagger
from seqfield.estimators._base import held_out
from seqfield.kernels import RBF, InverseFrequency, Linear, Normalized
from seqfield.predictions.calibration import Calibration, fit_temperature

X, Y = (part[:25] for part in sf.load_ingredients("train"))
TEST = sf.load_ingredients("test")


@pytest.fixture(scope="module")
def model():
    return sf.Tagger(random_state=0, n_folds=3).fit(X, Y)


def test_the_best_of_the_candidates_is_taken(model):
    assert [tried.candidate for tried in model.tried_] == list(tagger.CANDIDATES)
    best = min(model.tried_, key=lambda tried: tried.nll)
    assert model.calibration_.temperature == best.temperature
    assert model.chosen_ == best.candidate
    assert isinstance(model.kernel_, Linear) != best.candidate.curved


def test_it_is_a_calibrated_gpsc(model):
    """The very labels and probabilities of the model by hand."""
    chosen = model.chosen_
    kernel = InverseFrequency(Linear() + 5.0 * Normalized(Linear()) ** 3, 0.1)
    same = sf.GPSC(
        kernel if chosen.curved else "linear",
        loss="softmax_margin" if chosen.cost else "log",
        cost=chosen.cost,
        c2=chosen.c2,
        eta=0.3,
    ).fit(X, Y)
    same.calibration_ = Calibration(model.calibration_.temperature)
    assert same.predict(TEST[0]) == model.predict(TEST[0])
    for a, b in zip(same.predict_proba(TEST[0]), model.predict_proba(TEST[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_likelihood_and_temperature_are_those_of_held_out_folds(model):
    rng = np.random.RandomState(0)
    seed = rng.randint(2**31)
    by_hand = sf.GPSC("linear", loss="softmax_margin", cost=4.0, eta=0.3).fit(X, Y)
    lesson = by_hand.lesson(X, Y)
    folds = held_out(by_hand, lesson, np.random.RandomState(seed), 3)
    [found] = [tried for tried in model.tried_ if tried.candidate == (False, 4.0, 1.0)]
    assert found.temperature == pytest.approx(fit_temperature(folds), rel=1e-6)
    own = [tempered_nll(part, found.temperature) for part in folds]
    assert found.nll == pytest.approx(sum(own) / lesson.data.n_tokens, rel=1e-6)


def tempered_nll(part, temperature):
    [scores] = part.draws
    p = sf.chain.marginals(
        sf.ChainScores(scores.node / temperature, scores.edge / temperature, scores.offsets)
    ).node
    return -np.log(p[np.arange(len(p)), part.targets.codes]).sum()


def test_files(model, tmp_path):
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    assert isinstance(again, sf.Tagger)
    for a, b in zip(again.predict_proba(TEST[0]), model.predict_proba(TEST[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.predict_spans(TEST[0]) == model.predict_spans(TEST[0])
    again.save(tmp_path / "again.sf")
    assert sf.load(tmp_path / "again.sf").chosen_ == model.chosen_


def test_curved_kernels_need_few_tokens(monkeypatch):
    monkeypatch.setattr(tagger, "MOST_TOKENS", 10)
    model = sf.Tagger(random_state=0, n_folds=2).fit(X, Y)
    assert [tried.candidate.curved for tried in model.tried_] == [False, False]

    with pytest.raises(InputError, match="more than 10 distinct tokens"):
        sf.Tagger(candidates=[(True, 0.0, 1.0)]).fit(X, Y)


def test_other_candidates():
    given = [(False, 0.0, 3.0), (False, 2.0, 1.0)]
    model = sf.Tagger(candidates=given, random_state=0, n_folds=2).fit(X, Y)
    assert [tuple(tried.candidate) for tried in model.tried_] == given
    for bad in ([], [(True,)], 3):
        with pytest.raises(InputError, match="candidates must be a list of"):
            sf.Tagger(candidates=bad).fit(X, Y)
    with pytest.raises(InputError, match="cost must be a number"):
        sf.Tagger(candidates=[(True, "x", 1.0)]).fit(X, Y)


def test_numbers_have_another_curved_kernel():
    x, y = sf.make_galaxy(12, random_state=0)
    model = sf.Tagger(random_state=0, n_folds=3).fit(x, y)
    assert isinstance(model.kernel_, RBF)
    assert model.score(*sf.make_galaxy(20, random_state=1)) > 0.75


def test_few_sequences():
    model = sf.default_tagger(random_state=0).fit(X[:2], Y[:2])
    assert len(model.predict(X[:3])) == 3
    with pytest.raises(InputError, match="at least 2 sequences with labels, got 1"):
        sf.Tagger().fit(X[:1], Y[:1])
    with pytest.raises(InputError, match="n_folds must be a whole number of at least 2"):
        sf.Tagger(n_folds=1).fit(X, Y)


def test_what_is_missing_is_not_counted():
    partly = [[None if t == 0 else label for t, label in enumerate(row)] for row in Y]
    partly[3] = None
    model = sf.Tagger(random_state=0, n_folds=2).fit(X, partly)
    assert all(0 < tried.nll < 3 for tried in model.tried_)
