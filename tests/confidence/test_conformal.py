"""Label and span sets: the rule by brute force, the promise by leaving out and by simulation."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import seqfield as sf
from seqfield.chain.reference import enumerate_labellings
from seqfield.confidence.conformal import CoverageWarning, SpanSets, TokenSets
from seqfield.data.schemes import spans
from seqfield.errors import CapabilityError, InputError, LabelError

from ..support.stored import Stored

NAMES = ["a", "b", "c", "d"]
WAYS = [(per, score) for per in ("token", "sequence") for score in ("threshold", "cumulative")]


STORED = Stored(NAMES)


def corpus(n, rng, sharp=2.0, shared=1.5, longest=8):
    """Probabilities and labels. The tokens of a sequence share how far they are from the truth."""
    X, y = [], []
    for length in rng.integers(1, longest + 1, n):
        labels = rng.integers(4, size=length)
        pull = sharp + shared * rng.normal()
        scores = pull * np.eye(4)[labels] + rng.normal(size=(length, 4))
        X.append(np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True))
        y.append([NAMES[k] for k in labels])
    return X, y


def label_score(p, label, score):
    """The score of one label of one token, from the words of the documentation."""
    if label == NAMES[int(np.argmax(p))]:
        return 0.0
    own = p[NAMES.index(label)]
    return 1.0 - own if score == "threshold" else sum(sorted(p[p > own], reverse=True))


def covered(sets, y):
    """Share of covered tokens of each sequence."""
    return np.array(
        [np.mean([g in s for g, s in zip(a, b, strict=True)]) for a, b in zip(y, sets, strict=True)]
    )


def achieved(shares, per):
    return shares if per == "token" else shares == 1.0


@pytest.mark.parametrize(("per", "score"), WAYS)
@pytest.mark.parametrize("coverage", [0.3, 0.5, 0.75, 0.9])
def test_the_threshold_is_the_smallest_that_fulfils_the_rule(per, score, coverage):
    for seed in range(5):
        X, y = corpus(9, np.random.default_rng(seed), longest=4)
        scores = [
            [label_score(p, g, score) for p, g in zip(*pair, strict=True)]
            for pair in zip(X, y, strict=True)
        ]
        if per == "sequence":
            scores = [[max(row)] for row in scores]
        alpha = 1 - Fraction(str(coverage))
        for limit in sorted({v for row in scores for v in row}):
            losses = [Fraction(sum(v > limit for v in row), len(row)) for row in scores]
            if (sum(losses) + 1) / Fraction(len(y) + 1) <= alpha:
                break
        else:
            limit = np.inf
        sets = TokenSets(STORED, coverage, per=per, score=score).fit(X, y)
        assert sets.threshold_ == pytest.approx(limit, rel=1e-12)
        assert sets.n_sequences_ == 9


@pytest.mark.parametrize(("per", "score"), WAYS)
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.875])
def test_the_promise_holds_exactly_when_each_sequence_in_turn_is_the_new_one(per, score, coverage):
    # exchangeable: each of n + 1 sequences is as likely to be the new one; so this must hold for
    # the mean over them, whatever they are
    for seed in range(8):
        X, y = corpus(9, np.random.default_rng(seed), sharp=0.5, longest=5)
        found = []
        for i in range(9):
            rest = [k for k in range(9) if k != i]
            sets = TokenSets(STORED, coverage, per=per, score=score)
            sets.fit([X[k] for k in rest], [y[k] for k in rest])
            found += achieved(covered(sets.predict([X[i]]), [y[i]]), per).tolist()
        assert np.mean(found) >= coverage - 1e-12


@pytest.mark.parametrize(("per", "score"), WAYS)
def test_coverage_of_dependent_tokens(per, score):
    rng, coverage, n = np.random.default_rng(0), 0.9, 60
    means = []
    for _ in range(80):
        X, y = corpus(n + 20, rng)
        sets = TokenSets(STORED, coverage, per=per, score=score).fit(X[:n], y[:n])
        means.append(achieved(covered(sets.predict(X[n:]), y[n:]), per).mean())
    error = np.std(means) / np.sqrt(len(means))
    assert coverage - 3 * error <= np.mean(means) <= coverage + 2 / (n + 1) + 3 * error


def test_tokens_are_not_exchangeable():
    """Short sequences that are hard: pooled tokens promise what single sequences do not hold."""
    rng, coverage, n = np.random.default_rng(1), 0.9, 100
    ours, naive = [], []
    for _ in range(40):
        short = corpus(n, rng, sharp=0.0, shared=0.0, longest=1)
        long = corpus(n, rng, sharp=4.0, shared=0.0, longest=1)
        X = [
            x if k % 2 else np.repeat(z, 20, axis=0)
            for k, (x, z) in enumerate(zip(short[0], long[0], strict=True))
        ]
        y = [g if k % 2 else h * 20 for k, (g, h) in enumerate(zip(short[1], long[1], strict=True))]
        sets = TokenSets(STORED, coverage).fit(X[: n // 2], y[: n // 2])
        ours.append(covered(sets.predict(X[n // 2 :]), y[n // 2 :]).mean())
        scores = np.sort(
            [
                label_score(p, g, "threshold")
                for pair in zip(X[: n // 2], y[: n // 2], strict=True)
                for p, g in zip(*pair, strict=True)
            ]
        )
        sets.threshold_ = scores[int(np.ceil(coverage * (len(scores) + 1))) - 1]
        naive.append(covered(sets.predict(X[n // 2 :]), y[n // 2 :]).mean())
    error = np.std(ours) / np.sqrt(len(ours))
    assert np.mean(ours) >= coverage - 3 * error
    assert np.mean(naive) < 0.75


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("score", ["threshold", "cumulative"])
def test_single_tokens_have_the_sets_of_mapie(score, coverage):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        classes_ = STORED.classes_
        n_features_in_ = 4

        def __sklearn_is_fitted__(self):
            return True

        def fit(self, X, y):
            return self

        def predict(self, X):
            return self.classes_[X.argmax(axis=1)]

        def predict_proba(self, X):
            return X

    class Ones(np.random.RandomState):
        """Takes the randomisation out of the cumulative score: labels before the right one."""

        def uniform(self, low=0.0, high=1.0, size=None):
            return np.ones(size)

    X, y = corpus(250, np.random.default_rng(3), sharp=0.4, shared=0.5, longest=1)
    sets = TokenSets(STORED, coverage, score=score).fit(X[:150], y[:150])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = SplitConformalClassifier(
            Given(),
            confidence_level=coverage,
            conformity_score={"threshold": "lac", "cumulative": "aps"}[score],
            prefit=True,
            random_state=Ones(0),
        )
        theirs.conformalize(np.vstack(X[:150]), np.concatenate(y[:150]))
        inside = theirs.predict_set(np.vstack(X[150:]))[1][:, :, 0]
    found = [sets_of[0] for sets_of in sets.predict(X[150:])]
    assert len(set(found)) > 4
    assert (inside.sum(axis=1) > 0).all()  # theirs may be empty, ours hold the decoded label
    assert found == [frozenset(np.array(NAMES)[row]) for row in inside]


def test_cumulative_scores_by_hand():
    p = np.array([[0.5, 0.125, 0.25, 0.125], [0.25, 0.25, 0.5, 0.0]])
    sets = TokenSets(STORED, 0.5, score="cumulative")
    sets.fit([p, p, p], [["a", None], ["c", None], ["b", None]])
    # the scores are 0, 0.5 and 0.75; two of three sequences make 2 / (3 + 1)
    assert sets.threshold_ == 0.5
    assert sets.predict([p]) == [[frozenset("ac"), frozenset("ca")]]
    sets.threshold_ = 0.75
    assert sets.predict([p]) == [[frozenset("abc"), frozenset("cab")]]


@pytest.mark.parametrize(("per", "score"), WAYS)
def test_sets_grow_with_the_coverage(per, score):
    X, y = corpus(120, np.random.default_rng(4))
    before = [[frozenset([label]) for label in row] for row in STORED.predict(X)]
    for coverage in (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98):
        sets = TokenSets(STORED, coverage, per=per, score=score).fit(X[:80], y[:80]).predict(X)
        for old, new in zip(before, sets, strict=True):
            assert all(a <= b for a, b in zip(old, new, strict=True))
        before = sets
    assert max(len(s) for row in before for s in row) > 1


def test_sets_hold_the_decoded_labels_of_a_chain():
    X, y = sf.load_ingredients("train")
    model = sf.CRF(scheme="BIO", max_iter=30).fit(X[:80], y[:80])
    assert any(
        model.classes_[p.argmax(axis=1)].tolist() != row
        for p, row in zip(model.predict_proba(X[80:]), model.predict(X[80:]), strict=True)
    )
    for score in ("threshold", "cumulative"):
        sets = TokenSets(model, 0.8, score=score).fit(X[80:300], y[80:300])
        for found, labels in zip(sets.predict(X[300:]), model.predict(X[300:]), strict=True):
            assert all(label in s for label, s in zip(labels, found, strict=True))


def test_what_is_not_known_is_skipped():
    X, y = corpus(40, np.random.default_rng(5), longest=4)
    plain = TokenSets(STORED, 0.8).fit(X, y)
    twice = [np.vstack([p, p]) for p in X]
    for missing in (None, {"a", "b"}):
        sets = TokenSets(STORED, 0.8)
        sets.fit([*twice, X[0]], [*([*row, *[missing] * len(row)] for row in y), None])
        assert (sets.threshold_, sets.n_sequences_) == (plain.threshold_, 40)
    sets = TokenSets(Stored(NAMES, -100), 0.8).fit(twice, [[*row, *[-100] * len(row)] for row in y])
    assert sets.threshold_ == plain.threshold_


def test_too_few_sequences_give_all_labels():
    X, y = corpus(9, np.random.default_rng(6))
    assert TokenSets(STORED, 0.9, per="sequence").fit(X, y).threshold_ <= 1.0
    sets = TokenSets(STORED, 0.9)
    with pytest.warns(CoverageWarning, match="8 labelled sequences are too few for .* 0.8888"):
        sets.fit(X[:8], y[:8])
    assert set(sets.predict(X)[0]) == {frozenset(NAMES)}


@pytest.mark.parametrize(
    ("arguments", "y", "message"),
    [
        ({"coverage": 1.5}, [["a"]], "coverage must be a number from 0 to 1"),
        ({"score": "x"}, [["a"]], "score must be 'threshold' or 'cumulative', got 'x'"),
        ({"per": "span"}, [["a"]], "per must be 'token' or 'sequence', got 'span'"),
        ({}, [["z"]], "label 'z' at sequence 0, position 0"),
        ({}, [["a", "b"]], "sequence 0: X has 1 tokens but y has 2 labels"),
        ({}, [[None]], "y holds no known label"),
    ],
)
def test_bad_input_is_named(arguments, y, message):
    with pytest.raises(InputError, match=message):
        TokenSets(STORED, **arguments).fit([np.full((1, 4), 0.25)], y)


def test_before_fit():
    for sets in (TokenSets(STORED), SpanSets(STORED)):
        with pytest.raises(NotFittedError):
            sets.predict([np.full((1, 4), 0.25)])


# --- spans ----------------------------------------------------------------------------------------

TAGS = ["B-x", "I-x", "B-y", "O"]


@pytest.fixture(scope="module")
def chain():
    """A small CRF and sequences that are short enough for enumeration."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(length, 3)) for length in rng.integers(1, 6, 30)]
    weights = rng.normal(size=(3, 4))
    y = [[TAGS[k] for k in (x @ weights + rng.gumbel(size=(len(x), 4))).argmax(1)] for x in X]
    y[20], y[21] = ["O"] * len(X[20]), [None] * len(X[21])
    return sf.CRF().fit(X[:10], y[:10]), X[10:], y[10:]


def span_table(model, x):
    """The probability of every span of one sequence, by listing labellings."""
    [scores] = model.distribution([x]).joint.draws
    found, names = enumerate_labellings(scores), model.classes_.tolist()
    table = {}
    for codes, p in zip(found.labels, found.probabilities, strict=True):
        for span in spans([names[k] for k in codes]):
            table[span] = table.get(span, 0.0) + p
    return table


@pytest.mark.parametrize("coverage", [0.3, 0.6, 0.8, 0.9])
def test_span_sets_by_enumeration(chain, coverage):
    model, X, y = chain
    tables = [span_table(model, x) for x in X]
    gold = [(t, spans(row)) for t, row in zip(tables, y, strict=True) if spans(row)]
    assert 0 < len(gold) < len(X) - 1
    for limit in sorted({t[s] for t, row in gold for s in row}, reverse=True):
        missed = [np.mean([t[s] < limit for s in row]) for t, row in gold]
        if (sum(missed) + 1) / (len(gold) + 1) <= 1 - coverage + 1e-12:
            break
    sets = SpanSets(model, coverage).fit(X, y)
    assert sets.n_sequences_ == len(gold)
    assert sets.threshold_ == pytest.approx(limit, rel=1e-8)
    for found, table in zip(sets.predict(X), tables, strict=True):
        likely = {s: p for s, p in table.items() if p >= limit * (1 - 1e-7)}
        assert {s[:3] for s in found} == set(likely)
        for *span, p in found:
            assert p == pytest.approx(likely[tuple(span)], rel=1e-9)


@pytest.mark.parametrize("coverage", [0.5, 0.8])
def test_the_promise_of_span_sets_when_each_sequence_in_turn_is_the_new_one(chain, coverage):
    model, X, y = chain
    keep = [i for i, row in enumerate(y) if spans(row)][:12]
    shares = []
    for i in keep:
        rest = [k for k in keep if k != i]
        sets = SpanSets(model, coverage).fit([X[k] for k in rest], [y[k] for k in rest])
        found = {s[:3] for s in sets.predict([X[i]])[0]}
        shares.append(np.mean([s in found for s in spans(y[i])]))
    assert coverage - 1e-12 <= np.mean(shares)


def test_a_coverage_of_spans_out_of_reach_names_the_one_within(chain):
    model, X, y = chain
    n = sum(bool(spans(row)) for row in y)
    with pytest.raises(
        CapabilityError, match=f"0.99 cannot be reached with {n} sequences"
    ) as error:
        SpanSets(model, 0.99).fit(X, y)
    reach = float(str(error.value).split(": ")[1].split()[0])
    assert n / (n + 1) - 1e-4 < reach <= n / (n + 1)
    assert SpanSets(model, reach).fit(X, y).threshold_ >= 1e-4
    with pytest.raises(CapabilityError, match=r"probability 0\.5 or more") as error:
        SpanSets(model, 0.9, floor=0.5).fit(X, y)
    reach = float(str(error.value).split(": ")[1].split()[0])
    assert reach < 0.9
    assert SpanSets(model, reach, floor=0.5).fit(X, y).threshold_ >= 0.5
    with pytest.raises(CapabilityError):
        SpanSets(model, reach + 2e-4, floor=0.5).fit(X, y)


def test_spans_whose_ends_are_not_known_are_skipped(chain):
    model, X, y = chain
    # a missing label beside a span, and a sequence of its own
    x = np.vstack([X[0], np.ones((3, 3))])
    more = [*X, x, np.ones((3, 3))]
    labels = [*y, [*y[0], "O", "B-y", None], [None, "B-x", "O"]]
    wanted = SpanSets(model, 0.7).fit([*X, x], [*y, [*y[0], "O", "O", "O"]])
    found = SpanSets(model, 0.7).fit(more, labels)
    assert (found.threshold_, found.n_sequences_) == (wanted.threshold_, wanted.n_sequences_)


def test_bad_spans_and_models_are_named(chain):
    model, X, y = chain
    with pytest.raises(InputError, match="floor must be a number from 1e-06 to 1"):
        SpanSets(model, floor=0).fit(X, y)
    with pytest.raises(InputError, match="coverage must be a number from 0 to 1"):
        SpanSets(model, -1).fit(X, y)
    with pytest.raises(LabelError, match="y holds no span"):
        SpanSets(model).fit(X[:2], [["O"] * len(x) for x in X[:2]])
    scores_only = sf.StructuredPerceptron(random_state=0).fit(X, y)
    with pytest.raises(CapabilityError, match="calibrate=True"):
        SpanSets(scores_only).fit(X, y)
    with pytest.raises(CapabilityError, match="calibrate=True"):
        TokenSets(scores_only).fit(X, y)
    with pytest.raises(CapabilityError):
        SpanSets(sf.GPSL().fit(X[:10], y[:10])).fit(X, y)


def test_training_sequences_serve_with_left_out_probabilities():
    """In-sample probabilities promise too much; left-out ones keep the promise on new sequences."""
    X, y = sf.load_ingredients("train")
    new = sf.load_ingredients("test")
    model = sf.CRF(c2=0.1).fit(X[:120], y[:120])
    left = sf.leave_one_out_proba(model, X[:120], y[:120]).proba
    naive = sf.conformal.TokenSets(model, 0.95).fit(X[:120], y[:120])
    honest = sf.conformal.TokenSets(model, 0.95).fit(X[:120], y[:120], proba=left)

    def covered(sets):
        rows = zip(sets.predict(new[0]), new[1], strict=True)
        return np.mean([np.mean([g in s for s, g in zip(*row, strict=True)]) for row in rows])

    assert covered(naive) < 0.9
    assert covered(honest) > 0.93
    with pytest.raises(InputError, match="one row for each token"):
        sf.conformal.TokenSets(model).fit(X[:120], y[:120], proba=left[:3])
    with pytest.raises(InputError, match="columns, but the model has"):
        sf.conformal.TokenSets(model).fit(X[:120], y[:120], proba=[p[:, :2] for p in left])
