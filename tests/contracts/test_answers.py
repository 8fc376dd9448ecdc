"""Whatever is asked of a model, the answers agree: with one another, and with enumeration."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import seqfield as sf
from seqfield.data.schemes import spans
from seqfield.errors import CapabilityError, LabelError

from ..support.estimators import (
    BIO,
    JOINT,
    LENGTHS,
    PROBABILISTIC,
    WORDS,
    X,
    Y,
    every,
    fingerprint,
    fitted,
    has,
    is_average,
    labellings,
    lawful,
    likeliest,
    make,
    quiet,
    speaking,
    where,
)

pytestmark = quiet


@every
def test_shapes_and_ranges(name):
    model = fitted(name)
    assert model.classes_.tolist() == ["L0", "L1", "L2"]
    predicted = model.predict(X)
    assert isinstance(predicted, list)
    assert [len(row) for row in predicted] == LENGTHS
    assert all(isinstance(row, list) and type(v) is str for row in predicted for v in row)
    for told in [fitted(name, **speaking(name))] + [model] * (name in PROBABILISTIC):
        probabilities = told.predict_proba(X)
        assert [p.shape for p in probabilities] == [(length, 3) for length in LENGTHS]
        for p in probabilities:
            np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
            assert (p >= 0).all()
    model = fitted(name, **speaking(name))
    assert model.log_likelihood(X, Y).shape == (len(X),)
    assert (model.log_likelihood(X, Y) <= 0).all()


QUESTIONS = {
    "nbest": lambda said: said.nbest(2),
    "sample": lambda said: said.sample(2),
    "log_prob": lambda said: said.log_prob(said.best()),
    "entropy": lambda said: said.entropy(),
    "confidence": lambda said: said.confidence(),
    "spans": lambda said: said.spans(),
    "likely_spans": lambda said: said.likely_spans(),
    "span_prob": lambda said: said.span_prob([[("PER", 0, 1)]] * len(said)),
    "pattern_prob": lambda said: said.pattern_prob([[(0, ["O"])]] * len(said)),
}
OF_LABELS = {
    "marginals": lambda said: said.marginals(),
    "proba": lambda said: said.proba,
    "posterior decoding": lambda said: said.best("posterior"),
}


@where(lambda name: name not in PROBABILISTIC)
@pytest.mark.parametrize("question", QUESTIONS | OF_LABELS)
def test_scores_are_not_handed_out_as_probabilities(name, question):
    said = fitted(name, "words").distribution(WORDS)
    with pytest.raises(CapabilityError, match="calibrate=True"):
        (QUESTIONS | OF_LABELS)[question](said)
    assert said.best() == fitted(name, "words").predict(WORDS)


@where(lambda name: name not in JOINT)
@pytest.mark.parametrize("question", [*QUESTIONS, "given"])
def test_who_has_no_distribution_of_labellings_says_so(name, question):
    said = fitted(name, "words").distribution(WORDS)
    ask = QUESTIONS | {"given": lambda said: said.given([None] * len(said))}
    with pytest.raises(CapabilityError, match="inference='chain'"):
        ask[question](said)
    for ask in OF_LABELS.values():
        ask(said)


# --- against enumeration --------------------------------------------------------------------------


def tiny(length):
    return [np.random.default_rng(length).normal(size=(length, 4))]


@every
def test_probabilities_of_all_labellings_sum_to_one(name):
    model = fitted(name, **speaking(name))
    for length in (1, 2, 4):
        x = tiny(length)
        found = labellings(model, length)
        logs = model.log_likelihood(x * len(found), found)
        assert np.exp(logs).sum() == pytest.approx(1.0, rel=1e-10)
        # marginals are sums over labellings
        index = np.array([[model.classes_.tolist().index(v) for v in y] for y in found])
        want = np.zeros((length, 3))
        for p, codes in zip(np.exp(logs), index, strict=True):
            want[np.arange(length), codes] += p
        np.testing.assert_allclose(model.predict_proba(x)[0], want, rtol=1e-9, atol=1e-12)
        # predict is the best of them, and the n-best list is all of them in order
        top = likeliest(model, x)[0] if is_average(model) else found[int(np.argmax(logs))]
        assert model.predict(x)[0] == top
        best = model.distribution(x).nbest(n=len(found) + 5)[0]
        assert len(best) == len(found)
        np.testing.assert_allclose([p for _, p in best], np.sort(logs)[::-1], rtol=1e-9)


@every
def test_entropy_and_confidence_are_those_of_all_labellings(name):
    model = fitted(name, **speaking(name))
    for length in (1, 3):
        x = tiny(length)
        said, found = model.distribution(x), labellings(model, length)
        logs = model.log_likelihood(x * len(found), found)
        entropy = -np.exp(logs) @ logs
        # of an average it is estimated by 32 drawn labellings
        spread = np.sqrt(np.exp(logs) @ (logs + entropy) ** 2 / 32)
        rest = {"abs": 5 * spread} if is_average(model) else {"rel": 1e-9}
        assert said.entropy()[0] == pytest.approx(entropy, **rest)
        sure = said.confidence()
        assert sure.entropy[0] == said.entropy()[0]
        first, second = np.sort(np.exp(logs))[:-3:-1]
        assert sure.margin[0] == pytest.approx(first - second, rel=1e-9)
        own = np.exp(model.log_likelihood(x, said.best())[0])
        assert sure.probability[0] == pytest.approx(own, rel=1e-12)


KNOWN = {
    "a label": [None, "L1", None],
    "candidates and a label": [{"L0", "L2"}, None, "L2"],
    "nothing": [None, None, None],
    "candidates": [{"L0", "L1"}, {"L1", "L2"}, None],
}


@every
@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_what_is_given_conditions_every_answer(name, known):
    model, x = fitted(name, **speaking(name)), tiny(3)
    found = labellings(model, 3)
    p = np.exp(model.log_likelihood(x * len(found), found))

    def agrees(row):
        pairs = zip(row, known, strict=True)
        return all(k is None or v == k or (isinstance(k, set) and v in k) for v, k in pairs)

    p = np.where([agrees(row) for row in found], p, 0.0)
    p /= p.sum()
    said = model.distribution(x).given([known])
    names = model.classes_.tolist()
    want = np.zeros((3, 3))
    for q, row in zip(p, found, strict=True):
        want[np.arange(3), [names.index(v) for v in row]] += q
    np.testing.assert_allclose(said.proba, want, rtol=1e-9, atol=1e-12)
    with np.errstate(divide="ignore"):
        logs = np.array([said.log_prob([row])[0] for row in found])
        np.testing.assert_allclose(np.exp(logs), p, rtol=1e-9, atol=1e-14)
    listed = {tuple(row): np.exp(log) for row, log in said.nbest(30)[0]}
    assert all(agrees(row) for row in listed)
    for row, q in zip(found, p, strict=True):
        assert listed.get(tuple(row), 0.0) == pytest.approx(q, rel=1e-9, abs=1e-14)
    if not is_average(model):
        assert said.best()[0] == found[int(p.argmax())]
        kept = p[p > 0]
        assert said.entropy()[0] == pytest.approx(-kept @ np.log(kept), rel=1e-8, abs=1e-12)
    assert agrees(said.best()[0])
    assert all(agrees(row) for row in said.sample(20, random_state=0)[0])
    [[pair]] = said.pattern_prob([[(0, ["L0", {"L1", "L2"}])]])
    mass = sum(q for q, row in zip(p, found, strict=True) if row[0] == "L0" and row[1] != "L0")
    assert pair == pytest.approx(mass, rel=1e-9, abs=1e-12)
    # one thing after the other is both at once
    step = model.distribution(x).given([[known[0], None, None]]).given([[None, *known[1:]]])
    np.testing.assert_allclose(step.proba, want, rtol=1e-9, atol=1e-12)


@every
def test_what_is_given_may_be_impossible(name):
    model = fitted(name, "words", scheme="BIO", **speaking(name))
    said = model.distribution(WORDS[:1])
    rest = [None] * (len(WORDS[0]) - 2)
    with pytest.raises(LabelError, match=r"sequence 0: .* forbid every labelling"):
        said.given([["O", "I-PER", *rest]])
    with pytest.raises(LabelError, match="'X' at sequence 0, position 1"):
        said.given([["O", "X", *rest]])
    held = said.given([["B-PER", "I-PER", *rest]])
    assert held.best()[0][:2] == ["B-PER", "I-PER"]
    assert lawful(held.best())


@every
def test_spans_are_sums_over_labellings(name):
    model = fitted(name, "words", scheme="BIO", **speaking(name))
    x = [WORDS[0][:3]]
    said = model.distribution(x)
    found = [row for row in labellings(model, 3) if lawful([row])]
    p = np.exp(model.log_likelihood(x * len(found), found))
    assert p.sum() == pytest.approx(1.0, rel=1e-9)
    want: dict = {}
    for q, row in zip(p, found, strict=True):
        for span in spans(row):
            want[span] = want.get(span, 0.0) + q
    keys = list(want)
    np.testing.assert_allclose(said.span_prob([keys])[0], [want[k] for k in keys], rtol=1e-8)
    likely = {(s.kind, s.start, s.end): s.probability for s in said.likely_spans(0.01)[0]}
    assert likely.keys() == {key for key, q in want.items() if q >= 0.01}
    for key, q in likely.items():
        assert q == pytest.approx(want[key], rel=1e-8)
    for span in said.spans()[0]:
        assert span.probability == pytest.approx(want[tuple(span[:3])], rel=1e-8)
    assert [[s[:3] for s in row] for row in said.spans()] == [spans(row) for row in said.best()]
    assert model.predict_spans(x) == said.spans()


# --- among themselves -----------------------------------------------------------------------------


@every
def test_methods_ask_the_distribution(name):
    model = fitted(name, "words", **speaking(name))
    said = model.distribution(WORDS)
    assert said.best() == model.predict(WORDS)
    assert said.best("posterior") == model.predict(WORDS, decoding="posterior")
    assert [said.labels.names[k] for k in said.codes()] == [v for row in said.best() for v in row]
    for a, b in zip(said.marginals(), model.predict_proba(WORDS), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(said.proba, np.vstack(said.marginals()))
    np.testing.assert_array_equal(said.log_prob(BIO), model.log_likelihood(WORDS, BIO))
    assert said.spans() == model.predict_spans(WORDS)
    assert len(said) == len(WORDS)
    assert said.classes.tolist() == model.classes_.tolist()
    parts = list(model.distributions(WORDS))
    assert [row for part in parts for row in part.best()] == said.best()
    np.testing.assert_array_equal(np.vstack([part.proba for part in parts]), said.proba)
    single = said.pattern_prob([[(0, [v]) for v in said.labels.names]] * len(said))
    for a, p in zip(single, said.marginals(), strict=True):
        np.testing.assert_allclose(a, p[0], rtol=1e-9, atol=1e-12)


@every
def test_nbest(name):
    model = fitted(name, **speaking(name))
    best = model.distribution(X).nbest(n=7)
    predicted = model.predict(X)
    assert not is_average(model) or predicted == likeliest(model, X)
    for x, labels, row in zip(X, predicted, best, strict=True):
        assert is_average(model) or row[0][0] == labels
        logs = [p for _, p in row]
        assert all(a >= b for a, b in zip(logs[:-1], logs[1:], strict=True))
        assert len({tuple(y) for y, _ in row}) == len(row) == min(7, 3 ** len(x))
        got = model.log_likelihood([x] * len(row), [y for y, _ in row])
        np.testing.assert_allclose(got, logs, rtol=1e-9, atol=1e-12)
    plain = model.distribution(X).nbest()
    assert [len(row) for row in plain] == [min(5, 3**length) for length in LENGTHS]


@every
def test_samples_follow_the_distribution(name):
    model = fitted(name, **speaking(name))
    x = [X[0][:1].repeat(3, axis=0) * [[1.0], [0.2], [-0.5]], X[1]]
    n = 6000
    drawn = model.distribution(x).sample(n=n, random_state=3)
    assert [len(rows) for rows in drawn] == [n, n]
    found = labellings(model, 3)
    p = np.exp(model.log_likelihood(x[:1] * len(found), found))
    counts = {tuple(y): 0 for y in found}
    for y in drawn[0]:
        counts[tuple(y)] += 1
    observed = np.array([counts[tuple(y)] for y in found])
    # chi squared over the labellings that are expected often enough, the rest in one cell
    rare = n * p < 10
    o = np.append(observed[~rare], observed[rare].sum())
    e = np.append(n * p[~rare], n * p[rare].sum())
    keep = e > 5
    statistic = ((o - e)[keep] ** 2 / e[keep]).sum()
    cells = int(keep.sum())
    assert cells > 5
    assert statistic < cells + 5 * np.sqrt(2 * cells)
    marginal = model.predict_proba(x)[1]
    share = np.mean([[[v == c for c in model.classes_] for v in y] for y in drawn[1]], axis=0)
    np.testing.assert_allclose(share, marginal, atol=5 * 0.5 / np.sqrt(n))


@every
def test_samples_depend_on_the_seed_alone(name):
    model = copy.copy(fitted(name, **speaking(name)))
    said = model.distribution(X)
    first = said.sample(n=5, random_state=1)
    assert first == said.sample(n=5, random_state=1)
    assert first == model.set_params(n_jobs=2).distribution(X).sample(n=5, random_state=1)
    assert first != said.sample(n=5, random_state=2)
    assert [len(rows) for rows in said.sample()] == [1] * len(X)
    generator = np.random.default_rng(1)
    assert first == said.sample(n=5, random_state=generator)
    assert first != said.sample(n=5, random_state=generator)
    legacy = [said.sample(5, random_state=np.random.RandomState(k)) for k in (1, 1, 2)]
    assert legacy[0] == legacy[1] != legacy[2]


@every
def test_posterior_decoding_takes_the_likeliest_label_of_each_token(name):
    # with a penalty the two ways to decode differ
    model = fitted(name, **speaking(name), **({"c2": 5.0} if has(name, "c2") else {}))
    assert model.predict(X, decoding="posterior") == likeliest(model, X)
    assert model.predict(X, decoding="viterbi") == model.predict(X)


@every
def test_score_is_token_accuracy(name):
    model = fitted(name)
    right = np.concatenate(Y) == np.concatenate(model.predict(X))
    assert model.score(X, Y) == pytest.approx(right.mean(), rel=1e-14)
    weights = np.arange(1.0, len(X) + 1)
    repeated = [i for i, w in enumerate(weights) for _ in range(int(w))]
    want = model.score([X[i] for i in repeated], [Y[i] for i in repeated])
    assert model.score(X, Y, sample_weight=weights) == pytest.approx(want, rel=1e-12)
    holes = [[None if t % 2 else v for t, v in enumerate(row)] for row in Y]
    holes[1] = None
    rows = zip(holes, model.predict(X), strict=True)
    known = [a == b for row, p in rows if row for a, b in zip(row, p, strict=True) if a]
    assert model.score(X, holes) == pytest.approx(np.mean(known), rel=1e-14)
    ones = np.ones(len(X))
    assert model.score(X, holes, sample_weight=ones) == pytest.approx(np.mean(known), rel=1e-12)


@every
def test_sequences_do_not_influence_each_other(name):
    for model in (fitted(name), fitted(name, **speaking(name))):
        whole = fingerprint(model)
        single = np.concatenate([fingerprint(model, [x]) for x in X])
        np.testing.assert_allclose(single, whole, rtol=1e-12, atol=1e-15)
        assert model.predict(X[::-1])[::-1] == model.predict(X)


@every
def test_log_likelihood_sums_over_what_is_not_known(name):
    model = fitted(name, **speaking(name))
    x = X[int(np.argmax(LENGTHS))][:4]
    held = ["L0", None, {"L1", "L2"}, "L1"]
    full = [["L0", a, b, "L1"] for a in ("L0", "L1", "L2") for b in ("L1", "L2")]
    want = np.logaddexp.reduce(model.log_likelihood([x] * 6, full))
    assert model.log_likelihood([x], [held])[0] == pytest.approx(want, rel=1e-10)
    assert model.log_likelihood([x], [None])[0] == pytest.approx(0.0, abs=1e-12)


@every
def test_labels_the_model_does_not_know_are_an_error_in_every_question(name):
    model = fitted(name, **speaking(name))
    foreign = [["L9", *row[1:]] for row in Y]
    said = model.distribution(X)
    for ask in (model.score, model.log_likelihood):
        with pytest.raises(LabelError, match="'L9' at sequence 0, position 0"):
            ask(X, foreign)
    for ask in (said.log_prob, said.given):
        with pytest.raises(LabelError, match="'L9' at sequence 0, position 0"):
            ask(foreign)
    with pytest.raises(LabelError, match="'L9'"):
        sf.calibrate(model, X, foreign, cv="prefit")


def test_the_way_to_predict_may_be_set_after_the_fit():
    """Of what is asked of the model, and of its calibration too."""
    later = copy.copy(fitted("GPSL")).set_params(inference="chain")
    chain = make("GPSL", inference="chain").fit(X, Y)
    np.testing.assert_array_equal(fingerprint(later), fingerprint(chain))
    a, b = (sf.calibrate(model, X, Y, cv="prefit") for model in (later, chain))
    assert a.calibration_.temperature == b.calibration_.temperature
    a, b = (sf.confidence.calibration_gain(model, X, Y) for model in (later, chain))
    assert a == b
