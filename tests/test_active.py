"""What to label next, against sums over all labellings."""

from __future__ import annotations

import warnings
from itertools import chain, pairwise

import numpy as np
import pytest

import seqfield as sf
from seqfield.active import UNITS, RankedSequence, rank
from seqfield.chain import ChainScores
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import spans
from seqfield.errors import CapabilityError, InputError, LabelError, SchemeError
from seqfield.functions import LinearFunction
from seqfield.predictions import average

LABELS = ["O", "B-x", "I-x", "B-y"]


class Around(LinearFunction):
    """Four functions around one."""

    n_draws = 4

    def draws(self, data, n_jobs=None):
        scores, rng = self.scores(data, n_jobs), np.random.default_rng(5)
        size = data.n_features, scores.n_labels
        return [
            ChainScores(
                scores.node + data.x @ rng.normal(size=size),
                scores.edge + rng.normal(size=scores.edge.shape),
                scores.offsets,
            )
            for _ in range(self.n_draws)
        ]


class Several(sf.CRF):
    """A CRF that answers with the average of four models around it."""

    def _learn(self, lesson, start=None):
        found = super()._learn(lesson, start)
        return found._replace(function=Around(found.function.architecture, found.function.theta))


def sequences(n, seed, longest=4):
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, longest + 1, n):
        k = rng.integers(len(LABELS), size=length)
        # an I only after a B or an I of its kind
        for t in np.flatnonzero(k == 2):
            k[t] = 1 if t == 0 or k[t - 1] not in (1, 2) else 2
        X.append(np.eye(len(LABELS))[k] + rng.normal(size=(length, len(LABELS))))
        y.append([LABELS[j] for j in k])
    return X, y


def fitted(kind=sf.CRF, scheme="BIO"):
    X, y = sequences(40, 0)
    return kind(c2=1.0, scheme=scheme, n_jobs=1).fit(X, y)


POOL, GOLD = sequences(12, 1, longest=3)


def partial(seed=3):
    """Some labels known, some candidates, one sequence not at all."""
    rng = np.random.default_rng(seed)
    out = []
    for row in GOLD:
        kept = rng.random(len(row))
        out.append(
            [
                label if u < 0.4 else {label, "O"} if u < 0.6 else None
                for label, u in zip(row, kept, strict=True)
            ]
        )
    out[2] = None
    out[5] = GOLD[5]
    return out


class Oracle:
    """All labellings of one sequence that agree with what is known, and their probabilities."""

    def __init__(self, model, i, known=None):
        names = model.classes_.tolist()
        found = [enumerate_labellings(scores, i) for scores in model.distribution(POOL).joint.draws]
        rows = [tuple(names[k] for k in row) for row in found[0].labels]
        row = [None] * len(POOL[i]) if known is None else known
        sets = [set(names) if v is None else v if isinstance(v, set) else {v} for v in row]
        keep = [all(a in b for a, b in zip(y, sets, strict=True)) for y in rows]
        self.y = [y for y, kept in zip(rows, keep, strict=True) if kept]
        each = np.array([one.probabilities[keep] for one in found])
        self.p = each.mean(axis=0) / each.mean(axis=0).sum()
        # the two best of each draw
        self.seen = np.unique([np.argsort(-part, kind="stable")[:2] for part in each])
        self.is_open = [len(one) > 1 for one in sets]

    def expect(self, value):
        return sum(q * value(y) for q, y in zip(self.p, self.y, strict=True))

    def token(self, t):
        return {v: self.expect(lambda y, v=v: y[t] == v) for v in LABELS}

    def starts(self, y):
        return sum(self.is_open[start] for _, start, _ in spans(y))

    def entropy(self):
        return -sum(q * np.log(q) for q in self.p if q > 0)

    def value(self, strategy):
        best = np.sort(self.p[self.seen])[::-1]
        if strategy == "least_confidence":
            return 1 - best[0]
        if strategy == "margin":
            return 1 - (best[0] - (best[1] if len(best) > 1 else 0))
        if strategy == "sequence_entropy":
            return self.entropy()
        if strategy == "expected_spans":
            return self.expect(self.starts)
        tokens = [self.token(t).values() for t in np.flatnonzero(self.is_open)]
        return np.mean([-sum(q * np.log(q) for q in row if q > 0) for row in tokens])


@pytest.fixture(scope="module", params=[sf.CRF, Several])
def model(request):
    return fitted(request.param)


@pytest.fixture(scope="module", params=[False, True], ids=["nothing known", "some known"])
def known(request):
    return partial() if request.param else None


def oracles(model, known):
    rows = [None] * len(POOL) if known is None else known
    out = {i: Oracle(model, i, row) for i, row in enumerate(rows)}
    return {i: one for i, one in out.items() if any(one.is_open)}


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy", ["least_confidence", "margin", "token_entropy", "expected_spans"]
)
def test_strategies_are_sums_over_labellings(model, known, strategy):
    want = {i: one.value(strategy) for i, one in oracles(model, known).items()}
    found = rank(model, POOL, strategy, y=known)
    assert [one.sequence for one in found] == sorted(want, key=lambda i: -want[i])
    for one in found:
        assert one.score == pytest.approx(want[one.sequence], rel=1e-9, abs=1e-12)


def test_expected_spans_of_labels_that_break_the_scheme():
    model = fitted(scheme=None)
    known = [["I-x", *[None] * (len(row) - 1)] for row in GOLD]
    want = {i: one.value("expected_spans") for i, one in oracles(model, known).items()}
    for one in rank(model, POOL, "expected_spans", y=known):
        assert one.score == pytest.approx(want[one.sequence], rel=1e-9)


def test_sequence_entropy(known):
    model = fitted()
    want = {i: one.entropy() for i, one in oracles(model, known).items()}
    found = rank(model, POOL, y=known)
    assert [one.sequence for one in found] == sorted(want, key=lambda i: -want[i])
    for one in found:
        assert one.score == pytest.approx(want[one.sequence], rel=1e-9)


def test_sequence_entropy_of_an_average_is_estimated_without_bias(known, monkeypatch):
    monkeypatch.setattr(average, "LABELLINGS", 400)
    model = fitted(Several)
    every = oracles(model, known)
    for i, score in rank(model, POOL, y=known):
        mean, p = every[i].entropy(), every[i].p[every[i].p > 0]
        error = np.sqrt(p @ (np.log(p) + mean) ** 2 / 400)
        assert abs(score - mean) < 4 * error + 1e-9


def test_agreement_with_sequence_confidence():
    model = fitted()
    sure = model.distribution(POOL).confidence()
    for strategy, want in [
        ("least_confidence", 1 - sure.probability),
        ("margin", 1 - sure.margin),
        ("sequence_entropy", sure.entropy),
    ]:
        for one in rank(model, POOL, strategy):
            assert one.score == pytest.approx(want[one.sequence], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("strategy", ["sequence_entropy", "least_confidence", "expected_spans"])
def test_per_token(known, strategy):
    model = fitted()
    every = oracles(model, known)
    plain = {one.sequence: one.score for one in rank(model, POOL, strategy, y=known)}
    for one in rank(model, POOL, strategy, y=known, per_token=True):
        size = sum(every[one.sequence].is_open)
        value = plain[one.sequence]
        want = 1 - (1 - value) ** (1 / size) if strategy == "least_confidence" else value / size
        assert one.score == pytest.approx(want, rel=1e-9, abs=1e-12)


def test_token_entropy_is_per_token_already():
    model = fitted()
    one, other = (rank(model, POOL, "token_entropy", per_token=p) for p in (False, True))
    assert one == other


def test_ties_go_to_the_first_and_n_cuts():
    model = fitted()
    twice = [*POOL, *POOL]
    found = [one.sequence for one in rank(model, twice, "margin")]
    assert sorted(found) == list(range(len(twice)))
    assert all(b == a + len(POOL) for a, b in zip(found[::2], found[1::2], strict=True))
    for unit in UNITS:
        everything = rank(model, twice, unit=unit)
        assert rank(model, twice, unit=unit, n=3) == everything[:3]
        assert rank(model, twice, unit=unit, n=10**6) == everything
        scores = [one.score for one in everything]
        assert scores == sorted(scores, reverse=True)


def test_nothing_known_is_the_same_as_no_labels():
    model = fitted()
    empty = [[None] * len(row) for row in GOLD]
    for strategy in UNITS["sequence"]:
        plain = rank(model, POOL, strategy)
        assert rank(model, POOL, strategy, y=[None] * len(POOL)) == plain
        assert rank(model, POOL, strategy, y=empty) == plain


def test_what_is_labelled_is_never_ranked():
    model = fitted()
    some = [row if i % 2 else None for i, row in enumerate(GOLD)]
    sets = [[{label} for label in row] if i % 2 else None for i, row in enumerate(GOLD)]
    for unit, strategies in UNITS.items():
        for strategy in strategies:
            found = rank(model, POOL, strategy, unit=unit, y=some)
            assert found
            assert all(one.sequence % 2 == 0 for one in found)
            assert rank(model, POOL, strategy, unit=unit, y=GOLD) == []
            assert rank(model, POOL, strategy, unit=unit, y=sets) == found


def test_numbers_and_lengths():
    model = fitted()
    lengths = [len(x) for x in POOL]
    flat = [label if t % 2 else None for t, label in enumerate(chain(*GOLD))]
    nested = [flat[a:b] for a, b in pairwise(np.cumsum([0, *lengths]).tolist())]
    found = rank(model, np.vstack(POOL), y=flat, lengths=lengths)
    assert found == rank(model, POOL, y=nested)


def test_forbidden_labels_are_named():
    model = fitted()
    wrong: list = [None] * len(POOL)
    i = next(i for i, x in enumerate(POOL) if len(x) > 1)
    wrong[i] = ["O", "I-x", *[None] * (len(POOL[i]) - 2)]
    if len(POOL[i]) == 2:
        wrong[i] = [{"O", "B-y"}, "I-x"]
    with pytest.raises(LabelError, match=f"sequence {i} of the pool: the model's constraints"):
        rank(model, POOL, y=wrong)
    wrong[i] = ["O", "new", *[None] * (len(POOL[i]) - 2)]
    with pytest.raises(LabelError, match=f"label 'new' at sequence {i}, position 1"):
        rank(model, POOL, y=wrong)


# --- tokens and spans -----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", UNITS["token"])
def test_tokens(model, known, strategy):
    want = {}
    for i, one in oracles(model, known).items():
        for t in np.flatnonzero(one.is_open).tolist():
            p = one.token(t)
            top = sorted(p.values(), reverse=True)
            score = {
                "token_entropy": -sum(q * np.log(q) for q in top if q > 0),
                "least_confidence": 1 - top[0],
                "margin": 1 - (top[0] - top[1]),
            }[strategy]
            want[i, t] = score, max(p, key=lambda v, p=p: p[v]), top[0]
    found = rank(model, POOL, strategy, unit="token", y=known)
    assert [one[:2] for one in found] == sorted(want, key=lambda place: -want[place][0])
    for one in found:
        score, label, p = want[one[:2]]
        assert one.label == label
        np.testing.assert_allclose([one.score, one.probability], [score, p], rtol=1e-9, atol=1e-12)


def test_spans(model, known):
    want = {}
    for i, one in oracles(model, known).items():
        for kind, start, end in {span for y in one.y for span in spans(y)}:
            p = one.expect(lambda y, span=(kind, start, end): span in spans(y))
            if min(p, 1 - p) >= 0.05:
                want[i, start, end, kind] = p
    order = sorted(want, key=lambda at: (-round(min(want[at], 1 - want[at]), 12), at))
    kept: list = []
    for at in order:
        if not any(a[0] == at[0] and a[1] < at[2] and at[1] < a[2] for a in kept):
            kept.append(at)
    found = rank(model, POOL, unit="span", y=known)
    assert [(one.sequence, one.start, one.end, one.kind) for one in found] == kept
    for one, at in zip(found, kept, strict=True):
        assert one.probability == pytest.approx(want[at], rel=1e-9)
        assert one.score == pytest.approx(min(want[at], 1 - want[at]), rel=1e-9)


def test_no_spans_to_ask_about():
    model = fitted()
    X = [np.array([[30.0, 0.0, 0.0, 0.0]])]
    assert rank(model, X, unit="span") == []


# --- diversity ------------------------------------------------------------------------------------


def greedy(values, means, d, n, taken, cosine):
    """The same by going over all pairs each time."""
    chosen: list = []
    scores: list = []
    while len(chosen) < n:
        worth = {}
        for i in set(range(len(means))) - set(taken) - set(chosen):
            near = max([cosine(means[i], means[z]) ** 2 for z in [*taken, *chosen]], default=0.0)
            worth[i] = values.get(i, 0.0) ** (1 - d) * max(1 - near, 0.0) ** d
        best = max(sorted(worth), key=lambda i: round(worth[i], 12))
        chosen.append(best)
        scores.append(worth[best])
    return chosen, scores


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))


def rbf(a, b):
    return np.exp(-np.sum((a - b) ** 2) / 2)


@pytest.mark.parametrize("d", [0.3, 1.0])
@pytest.mark.parametrize(("kernel", "value"), [("linear", cosine), (sf.kernels.RBF(1.0), rbf)])
def test_diversity_is_greedy(d, kernel, value):
    model = fitted()
    y = [row if i in (1, 4) else None for i, row in enumerate(GOLD)]
    values = {one.sequence: one.score for one in rank(model, POOL, y=y)}
    means = [x.mean(axis=0) for x in POOL]
    found = rank(model, POOL, y=y, diversity=d, kernel=kernel, n=6)
    chosen, scores = greedy(values, means, d, 6, [1, 4], value)
    assert [one.sequence for one in found] == chosen
    assert [one.score for one in found] == pytest.approx(scores, rel=1e-9)
    assert scores == sorted(scores, reverse=True)
    if d == 1:
        assert rank(model, POOL, "diversity", y=y, kernel=kernel, n=6) == found


def test_diversity_leaves_out_what_is_labelled_also_where_all_is_like_it():
    model, n = fitted(), len(POOL)
    found = rank(model, [*POOL, *POOL], y=[*GOLD, *[None] * n], diversity=0.5)
    assert [one.sequence for one in found] == list(range(n, 2 * n))
    assert [one.score for one in found] == pytest.approx([0.0] * n, abs=1e-6)


def test_diversity_of_sparse_features_leaves_copies_to_the_end():
    X, y = sf.load_ingredients("train")
    model = sf.CRF(max_iter=20, tol=0.1).fit(X[:40], y[:40])
    pool = [*X[40:50], *X[40:50]]
    found = [one.sequence for one in rank(model, pool, diversity=0.5)]
    assert sorted(found) == list(range(20))
    assert {i % 10 for i in found[:10]} == set(range(10))


# --- models and arguments -------------------------------------------------------------------------


def test_a_model_without_joint_distribution():
    X, y = sequences(20, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sf.GPSL("linear", max_iter=5, random_state=0).fit(X, y)
    proba = model.predict_proba(POOL)
    want = [np.mean(-(p * np.log(p)).sum(axis=1)) for p in proba]
    for one in rank(model, POOL, "token_entropy"):
        assert one.score == pytest.approx(want[one.sequence], rel=1e-9)
    whole = [row if i < 3 else None for i, row in enumerate(GOLD)]
    assert len(rank(model, POOL, "token_entropy", y=whole)) == len(POOL) - 3
    assert len(rank(model, POOL, unit="token")) == sum(map(len, POOL))
    assert len(rank(model, POOL, "diversity", n=2)) == 2
    with pytest.raises(CapabilityError, match="GPSL does not have: use 'token_entropy'"):
        rank(model, POOL)
    with pytest.raises(CapabilityError, match="GPSL has no joint"):
        rank(model, POOL, "token_entropy", y=partial())
    with pytest.raises(CapabilityError, match="no joint"):
        rank(model, POOL, unit="span")


def test_a_model_without_probabilities():
    X, y = sequences(20, 0)
    model = sf.StructuredPerceptron(max_iter=2, random_state=0).fit(X, y)
    for unit, strategies in UNITS.items():
        for strategy in strategies:
            if strategy != "diversity":
                with pytest.raises(CapabilityError, match="calibrate=True"):
                    rank(model, POOL, strategy, unit=unit)
    assert rank(model, POOL, "diversity", n=1) == [RankedSequence(0, 1.0)]


def test_labels_that_are_no_spans():
    X, y = sequences(20, 0)
    model = sf.CRF(max_iter=5, tol=1.0).fit(
        X, [["N" if v == "O" else "V" for v in row] for row in y]
    )
    assert len(rank(model, POOL)) == len(POOL)
    for arguments in ({"strategy": "expected_spans"}, {"unit": "span"}):
        with pytest.raises(SchemeError, match="'N' is not a span label"):
            rank(model, POOL, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "word"}, "unit must be one of 'sequence', 'token', 'span', got 'word'"),
        ({"strategy": "best"}, "strategy must be one of 'sequence_entropy'"),
        ({"strategy": "diversity", "unit": "token"}, "for unit 'token'"),
        ({"n": 0}, "n must be a whole number of at least 1"),
        ({"n": 1.5}, "n must be a whole number"),
        ({"diversity": 1.1}, "diversity must be a number from 0 to 1"),
        ({"diversity": float("nan")}, "diversity must be a number from 0 to 1"),
        ({"diversity": 0.5, "unit": "token"}, "work only with unit='sequence'"),
        ({"per_token": True, "unit": "span"}, "work only with unit='sequence'"),
        ({"per_token": True, "strategy": "margin"}, "per_token has no meaning"),
        ({"kernel": "cubic", "diversity": 0.5}, "a kernel is"),
        ({"y": [None]}, "X has 12 sequences but y has 1"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        rank(fitted(), POOL, **arguments)


# --- does it help ---------------------------------------------------------------------------------


def f1_after_two_rounds(choose):
    """Span F1 on new lines with 35 labelled lines, of which 20 were chosen."""
    X, y = sf.load_ingredients("train")
    have, pool = list(range(15)), list(range(15, 400))
    for _ in range(3):
        model = sf.CRF(max_iter=40, tol=0.1, n_jobs=1)
        model.fit([X[i] for i in have], [y[i] for i in have])
        new = [pool[k] for k in choose(model, [X[i] for i in pool])]
        have, pool = have + new, [i for i in pool if i not in new]
    X_test, y_test = sf.load_ingredients("test")
    return sf.metrics.span_f1(y_test, model.predict(X_test))


def test_chosen_sequences_teach_more_than_random_ones():
    chosen = f1_after_two_rounds(lambda model, X: [one.sequence for one in rank(model, X, n=10)])
    rng = np.random.default_rng(0)
    drawn = [
        f1_after_two_rounds(lambda model, X: rng.choice(len(X), 10, replace=False))
        for _ in range(3)
    ]
    assert chosen > max(drawn) + 0.02
