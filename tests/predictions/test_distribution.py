"""All that is asked of p(y | x), also given some labels, against enumeration and each other."""

import warnings
from itertools import product

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.chain import ChainScores
from seqfield.chain.constraint import Constraint
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import get_scheme, spans
from seqfield.errors import CapabilityError, InputError, LabelError, SchemeError
from seqfield.estimators._base import constrained
from seqfield.labels import LabelSet
from seqfield.predictions import LabelDistribution
from seqfield.predictions.average import Average
from seqfield.predictions.calibration import tempered

rng = np.random.default_rng(0)
NAMES = ["B-x", "I-x", "B-y", "O"]
X = [rng.normal(size=(length, 3)) for length in (3, 5, 1, 4, 2, 4)]
Y = [[NAMES[k] for k in rng.integers(4, size=len(x))] for x in X]


@pytest.fixture(scope="module", params=["crf", "perceptron", "average"])
def model(request):
    if request.param == "crf":
        return sf.CRF().fit(X, Y)
    if request.param == "perceptron":
        return sf.StructuredPerceptron(calibrate=True, random_state=0).fit(X, Y)
    made = sf.GPStruct(n_steps=20, n_chains=2, n_samples=4, random_state=0)
    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):
        return made.fit(X, Y)


def distribution(model, x):
    """Every labelling of a sequence with its probability."""
    draws = constrained(model.function_.draws(model.encode([x])), model.constraint_)
    if model.calibration_ is not None:
        draws = [tempered(scores, model.calibration_.temperature) for scores in draws]
    found = [enumerate_labellings(scores) for scores in draws]
    names = model.classes_.tolist()
    rows = [[names[k] for k in codes] for codes in found[0].labels]
    return rows, np.mean([part.probabilities for part in found], axis=0)


def test_spans(model):
    for x, row in zip(X, model.predict_spans(X), strict=True):
        rows, p = distribution(model, x)
        assert [span[:3] for span in row] == spans(model.predict([x])[0])
        for *span, probability in row:
            wanted = p[[tuple(span) in spans(labels) for labels in rows]].sum()
            assert probability == pytest.approx(wanted, rel=1e-9)
    again = model.distribution(X).span_prob(model.predict_spans(X))
    flat = [span.probability for row in model.predict_spans(X) for span in row]
    np.testing.assert_allclose(np.concatenate(again), flat, rtol=1e-12)


def test_likely_spans(model):
    for x, row in zip(X, model.distribution(X).likely_spans(0.05), strict=True):
        rows, p = distribution(model, x)
        wanted = {}
        for labels, probability in zip(rows, p, strict=True):
            for span in spans(labels):
                wanted[span] = wanted.get(span, 0.0) + probability
        wanted = {span: v for span, v in wanted.items() if v >= 0.05}
        assert [span[:3] for span in row] == sorted(wanted, key=lambda s: (s[1], s[2], s[0]))
        for span in row:
            assert span.probability == pytest.approx(wanted[span[:3]], rel=1e-9)


def test_patterns(model):
    patterns = [
        [(0, [{"B-x", "O"}, None, "I-x"]), (1, ["O"])],
        *[[] for _ in X[1:-1]],
        [(1, [None])],
    ]
    found = model.distribution(X).pattern_prob(patterns)
    rows, p = distribution(model, X[0])
    first = [r[0] in ("B-x", "O") and r[2] == "I-x" for r in rows]
    np.testing.assert_allclose(
        found[0], [p[first].sum(), p[[r[1] == "O" for r in rows]].sum()], rtol=1e-9
    )
    assert [len(row) for row in found] == [2, 0, 0, 0, 0, 1]
    assert found[-1][0] == pytest.approx(1.0)


def test_whole_labellings(model):
    found = model.distribution(X).confidence()
    for i, x in enumerate(X):
        rows, p = distribution(model, x)
        decoded = model.predict([x])[0]
        assert found.probability[i] == pytest.approx(p[rows.index(decoded)], rel=1e-9)
        entropy = -(p * np.log(p)).sum()
        if model.function_.n_draws == 1:
            best = np.sort(p)[::-1]
            assert found.margin[i] == pytest.approx(best[0] - best[1], rel=1e-9, abs=1e-12)
            assert found.entropy[i] == pytest.approx(entropy, rel=1e-9)
        else:  # 32 draws of -log p
            sd = np.sqrt((p * (np.log(p) + entropy) ** 2).sum() / 32)
            assert abs(found.entropy[i] - entropy) < 4 * sd + 1e-12


def test_one_label_in_all_is_sure():
    found = sf.CRF(classes=["a", "b"]).fit([[[1.0]], [[0.0]]], [["a"], ["b"]])
    assert found.distribution([[[1.0]]]).confidence().margin[0] > 0


def test_what_is_no_span_of_the_model():
    model = sf.CRF().fit(X, Y)
    none = [[] for _ in X[1:]]
    with pytest.raises(LabelError, match=r"sequence 0: 'z' is not a kind of span .* x, y"):
        model.distribution(X).span_prob([[("z", 0, 1)], *none])
    with pytest.raises(InputError, match="sequence 0: the span from 2 to 4 is not within its 3"):
        model.distribution(X).span_prob([[("x", 2, 4)], *none])
    with pytest.raises(InputError, match="must be \\(kind, start, end\\), got 'x'"):
        model.distribution(X).span_prob([["x"], *none])
    with pytest.raises(InputError, match="one list for each of 6 sequences"):
        model.distribution(X).span_prob([])
    with pytest.raises(InputError, match="from -1 to 0 is not within"):
        model.distribution(X).pattern_prob([[(-1, ["O"])], *none])
    with pytest.raises(InputError, match="min_probability"):
        model.distribution(X).likely_spans(0)
    with pytest.raises(SchemeError, match="'c' is not a span label"):
        sf.CRF().fit([[[0.0], [1.0]]], [["B", "c"]]).predict_spans([[[0.0]]])


def test_models_without_a_joint_distribution_say_so():
    gpsl = sf.GPSL("linear", max_iter=3, learn_kernel=False, tol=1.0).fit(X, Y)
    with pytest.raises(CapabilityError):
        gpsl.predict_spans(X)
    with pytest.raises(CapabilityError, match="calibrate=True"):
        sf.StructuredPerceptron().fit(X, Y).distribution(X).confidence()


# --- given some labels -------------------------------------------------------------------------

SCHEMES = {
    None: ["B-x", "I-x", "B-y", "O"],
    "BIO": ["I-x", "B-x", "O", "B-y"],
    "IOB1": ["O", "B-x", "I-x", "I-y"],
    "BIOES": ["B-x", "I-x", "E-x", "S-x", "O"],
    "BILOU": ["B-x", "I-x", "L-x", "U-x", "O"],
}
OFFSETS = np.array([0, 1, 4, 8])
#: (chains, whether they weigh differently, temperature)
FORMS = {
    "chain": (1, False, None),
    "tempered chain": (1, False, 2.5),
    "average": (3, False, None),
    "weighted average": (3, True, None),
    "tempered average": (3, True, 2.5),
}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_form = pytest.mark.parametrize("form", FORMS)
every_seed = pytest.mark.parametrize("seed", range(3))


class Listed:
    """Chains of three sequences, and the oracle: every labelling, by each chain."""

    def __init__(self, scheme, form, seed=0):
        n, weighted, self.temperature = FORMS[form]
        rng = np.random.default_rng(seed)
        self.names, s = SCHEMES[scheme], len(SCHEMES[scheme])
        self.draws = [
            ChainScores(1.5 * rng.normal(size=(8, s)), 1.5 * rng.normal(size=(s, s)), OFFSETS)
            for _ in range(n)
        ]
        if scheme is not None:
            law = Constraint.of(get_scheme(scheme).transitions(self.names))
            self.draws = constrained(self.draws, law)
        self.weights = rng.dirichlet(np.ones(n), size=3).T if weighted else None
        self.rows = [
            [tuple(self.names[k] for k in y) for y in product(range(s), repeat=int(length))]
            for length in np.diff(OFFSETS)
        ]
        #: sequence, chain, labelling
        self.plain, self.p = (
            [
                np.array(
                    [enumerate_labellings(tempered(one, t), i).probabilities for one in self.draws]
                )
                for i in range(3)
            ]
            for t in (1.0, self.temperature or 1.0)
        )

    @property
    def said(self):
        labels, average = LabelSet(self.names), Average(self.draws, self.weights, 1)
        return LabelDistribution(labels, average, temperature=self.temperature)

    def given(self, *known):
        """Of each sequence the conditional probabilities of its labellings, and its averaged
        conditional marginals (T, S) before the temperature."""
        out = []
        for i, rows in enumerate(self.rows):
            fits = np.array([all(agrees(y, one[i]) for one in known) for y in rows])
            w = np.full(len(self.draws), 1.0) if self.weights is None else self.weights[:, i]
            joint = w[:, None] * self.p[i] * fits
            here = joint.sum(axis=1) / joint.sum()  # p(chain | known)
            each = self.plain[i] * fits
            mean = here @ (each / each.sum(axis=1, keepdims=True))
            out.append((joint.sum(axis=0) / joint.sum(), self.singles(i, mean)))
        return out

    def singles(self, i, p):
        """Marginals (T, S) of probabilities of all labellings."""
        one = [[[k == name for name in self.names] for k in y] for y in self.rows[i]]
        return np.tensordot(p, np.array(one, float), axes=1)

    def known(self, rng):
        """Something that is true of a labelling that is possible: labels, sets and gaps."""
        out = []
        for rows, p in zip(self.rows, self.p, strict=True):
            y = rows[rng.choice(len(rows), p=p.mean(axis=0))]
            more = [str(name) for name in rng.permutation(self.names)[:2]]
            kinds = rng.integers(3, size=len(y))
            row = [[None, k, {k, *more}][kind] for k, kind in zip(y, kinds, strict=True)]
            out.append(row if rng.random() < 0.8 else None)
        return out


def agrees(y, known):
    """Whether a labelling has what is known of it."""
    if known is None:
        return True
    each = zip(y, known, strict=True)
    return all(v is None or (k in v if isinstance(v, set) else k == v) for k, v in each)


def check_all(listed, said, *known):
    """Everything that is asked of a conditional distribution, against enumeration."""
    found = listed.given(*known)
    alone = len(listed.draws) == 1
    best, most = said.best(), said.best("posterior")
    two, every = said.nbest(2), said.nbest(700)
    entropy, sure = said.entropy(), said.confidence()
    for i, (p, single) in enumerate(found):
        rows = listed.rows[i]
        place = {y: k for k, y in enumerate(rows)}
        wanted = listed.singles(i, p)
        np.testing.assert_allclose(said.marginals()[i], wanted, atol=1e-12)
        # the best labellings
        if alone:
            assert tuple(best[i]) == rows[int(p.argmax())]
            top = [rows[k] for k in np.argsort(-p)[:2] if p[k] > 0]
            assert [tuple(y) for y, _ in two[i]] == top
        for got, values in ((best[i], single), (most[i], wanted)):
            assert p[place[tuple(got)]] > 0
            if alone and got is best[i]:
                continue
            # the best product or sum of marginals among all that is possible
            with np.errstate(divide="ignore"):
                of = np.log(values) if got is best[i] else values
            merit = {
                y: sum(of[t, listed.names.index(k)] for t, k in enumerate(y))
                for y, q in zip(rows, p, strict=True)
                if q > 0
            }
            assert merit[tuple(got)] == pytest.approx(max(merit.values()), rel=1e-9)
        assert sorted(y for y, q in zip(rows, p, strict=True) if q > 0) == sorted(
            tuple(y) for y, _ in every[i]
        )
        logs = [q for _, q in every[i]]
        assert logs == sorted(logs, reverse=True)
        np.testing.assert_allclose(
            np.exp(logs), [p[place[tuple(y)]] for y, _ in every[i]], rtol=1e-9
        )
        # how sure it is
        q = p[p > 0]
        h = -(q * np.log(q)).sum()
        sd = 0.0 if alone else np.sqrt((q * (np.log(q) + h) ** 2).sum() / 32)
        assert abs(entropy[i] - h) < 4 * sd + 1e-9
        assert sure.entropy[i] == entropy[i]
        assert sure.probability[i] == pytest.approx(p[place[tuple(best[i])]], rel=1e-9)
    check_labellings(listed, said, found)
    check_events(listed, said, found)


def check_labellings(listed, said, found):
    """log p of labellings, also of one that is known in part."""
    for at in range(0, max(map(len, listed.rows)), 7):
        chosen = [at % len(rows) for rows in listed.rows]
        y = [list(rows[k]) for rows, k in zip(listed.rows, chosen, strict=True)]
        got = said.log_prob(y)
        want = [p[k] for (p, _), k in zip(found, chosen, strict=True)]
        np.testing.assert_allclose(np.exp(got), want, rtol=1e-9)
        assert (np.isneginf(got) == (np.array(want) == 0)).all()
    partly = [None, [None, set(listed.names[:2]), None], [listed.names[1], None, None, None]]
    want = [
        sum(q for y, q in zip(rows, p, strict=True) if agrees(y, row))
        for row, rows, (p, _) in zip(partly, listed.rows, found, strict=True)
    ]
    np.testing.assert_allclose(np.exp(said.log_prob(partly)), want, rtol=1e-9, atol=1e-15)


def check_events(listed, said, found):
    """Spans and patterns."""
    asked = [
        [(0, [listed.names[0]]), (0, [None])],
        [],
        [(1, [set(listed.names[:3]), None, listed.names[1]])],
    ]
    got = said.pattern_prob(asked)
    decoded, likely = said.spans(), said.likely_spans(0.05)
    again = said.span_prob(decoded)
    for i, (p, _) in enumerate(found):
        rows = listed.rows[i]
        want = [
            p[[agrees(y[start : start + len(row)], row) for y in rows]].sum()
            for start, row in asked[i]
        ]
        np.testing.assert_allclose(got[i], want, rtol=1e-9, atol=1e-15)
        of = {}
        for y, q in zip(rows, p, strict=True):
            for span in spans(y):
                of[span] = of.get(span, 0.0) + q
        assert [span[:3] for span in decoded[i]] == spans(said.best()[i])
        for listing in (decoded[i], likely[i]):
            for span in listing:
                assert span.probability == pytest.approx(of[span[:3]], rel=1e-9)
        np.testing.assert_allclose(again[i], [span.probability for span in decoded[i]], rtol=1e-12)
        wanted = sorted(span for span, q in of.items() if q >= 0.05)
        assert sorted(span[:3] for span in likely[i]) == wanted


@every_scheme
@every_form
def test_nothing_known_changes_nothing(scheme, form):
    listed = Listed(scheme, form)
    said = listed.said
    for known in ([None] * 3, [[None], [None, set(listed.names), None], None]):
        check_all(listed, said.given(known), known)
        assert said.given(known).best() == said.best()
        np.testing.assert_array_equal(said.given(known).proba, said.proba)
        np.testing.assert_array_equal(said.given(known).entropy(), said.entropy())


@every_scheme
@every_form
@every_seed
def test_given_is_the_conditional_distribution(scheme, form, seed):
    listed = Listed(scheme, form, seed)
    known = listed.known(np.random.default_rng(seed))
    check_all(listed, listed.said.given(known), known)


@every_scheme
@every_form
@every_seed
def test_given_twice_is_given_both(scheme, form, seed):
    listed = Listed(scheme, form, seed)
    rng = np.random.default_rng(seed + 10)
    first = listed.known(rng)
    said = listed.said.given(first)
    # what comes second is possible under the first
    second = [
        [None if rng.random() < 0.5 else k for k in rows[rng.choice(len(rows), p=p)]]
        for rows, (p, _) in zip(listed.rows, listed.given(first), strict=True)
    ]
    check_all(listed, said.given(second), first, second)
    check_all(listed, said, first)  # the first one is as it was


@every_form
def test_samples_of_a_conditional_distribution(form):
    listed = Listed("BIO", form, 4)
    known = [None, [None, "B-x", None], [{"O", "B-y"}, None, None, "I-x"]]
    n = 4000
    drawn = listed.said.given(known).sample(n, random_state=0)
    for rows, (p, _), some in zip(listed.rows, listed.given(known), drawn, strict=True):
        assert len(some) == n
        count = np.bincount([rows.index(tuple(y)) for y in some], minlength=len(rows))
        assert (count[p == 0] == 0).all()
        assert (np.abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9).all()


@pytest.mark.parametrize("n", [1, 3])
def test_correcting_one_token_decodes_the_rest_again(n):
    """Neighbours like to agree: one label that is made known brings the others along."""
    node = np.array([[0.3, 0.0], [0.3, 0.0], [0.3, 0.0], [0.0, 0.1]])
    draws = [ChainScores(node + 0.01 * k, 4.0 * np.eye(2), [0, 3, 4]) for k in range(n)]
    said = LabelDistribution(LabelSet(["a", "b"]), Average(draws, None, 1))
    assert said.best() == [["a", "a", "a"], ["b"]]
    right = said.given([[None, None, "b"], None])
    assert right.best() == right.best("posterior") == [["b", "b", "b"], ["b"]]
    assert said.best() == [["a", "a", "a"], ["b"]]
    assert right.given([["a", None, None], None]).best()[0][0] == "a"
    assert right.marginals()[0][2].tolist() == [0.0, 1.0]
    # what is said of the other sequence is not touched
    np.testing.assert_allclose(right.marginals()[1], said.marginals()[1], rtol=1e-12)


def test_a_correction_shows_in_the_predictions_of_a_model():
    X1, y1 = sf.load_ingredients("train")
    said = sf.CRF(scheme="BIO", n_jobs=1).fit(X1, y1).distribution([["2", "cups", "flour"]])
    assert said.best() == [["B-QTY", "B-UNIT", "B-NAME"]]
    assert said.given([[None, "B-NAME", None]]).best() == [["B-QTY", "B-NAME", "I-NAME"]]


@every_form
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name is not None])
def test_impossible_labels_name_their_sequence(scheme, form):
    said = Listed(scheme, form).said
    bad = {
        "BIO": ["O", "I-x", None],
        "IOB1": [{"O", "I-y"}, "B-x", None],
        "BIOES": [None, None, "I-x"],
        "BILOU": ["L-x", None, None],
    }[scheme]
    with pytest.raises(LabelError, match=r"^sequence 1: .*constraints forbid") as error:
        said.given([None, bad, None])
    assert error.value.place == (1, 0)
    with pytest.raises(LabelError, match=r"^sequence 2: "):
        said.given([None, None, [*bad[:2], None, None] if bad[2] is None else [None, *bad]])


@every_form
def test_labels_that_contradict_what_is_known_are_impossible(form):
    said = Listed(None, form).said.given([["O"], None, [None, {"O", "B-x"}, None, None]])
    with pytest.raises(LabelError, match=r"^sequence 0: "):
        said.given([["B-x"], None, None])
    with pytest.raises(LabelError, match=r"^sequence 2: "):
        said.given([None, None, [None, {"I-x", "B-y"}, None, None]])
    assert said.given([None, None, [None, {"I-x", "O"}, None, None]]).best()[2][1] == "O"


def test_chains_that_know_better_weigh_more():
    """Of two chains that are each sure of one label, what is known tells which one is right."""
    labels = LabelSet(["a", "b"])
    draws = [
        ChainScores([[9.0 * sign, 0.0], [0.0, 0.0]], 2.5 * sign * np.eye(2)) for sign in (1, -1)
    ]
    said = LabelDistribution(labels, Average(draws, None, 1))
    for name, one in zip("ab", draws, strict=True):
        alone = LabelDistribution(labels, Average([one], None, 1))
        known = [[name, None]]
        got, want = (part.given(known).marginals()[0][1] for part in (said, alone))
        np.testing.assert_allclose(got, want, atol=1e-3)
        assert abs(want[0] - 0.5) > 0.4


def test_expected_right_labels_obey_what_is_known():
    """A label that is ruled out would be the best bridge between the two sides of the middle."""
    names = ["x", "y", "a", "b", "c", "u", "w"]
    lawful = ["xx", "yy", "uu", "ww", "xa", "au", "aw", "ub", "wb", "by", "xc", "cy"]
    edge = np.full((7, 7), -np.inf)
    for pair in lawful:
        edge[names.index(pair[0]), names.index(pair[1])] = 0.0
    draws = []
    for path in ("xxxauuu", "xxxawww", "uuubyyy", "wwwbyyy"):
        node = np.zeros((7, 7))
        node[np.arange(7), [names.index(k) for k in path]] = 30.0
        draws.append(ChainScores(node, edge))
    said = LabelDistribution(LabelSet(names), Average(draws, None, 1))
    assert said.best("posterior") == [list("xxxcyyy")]
    found = said.given([[None] * 3 + [{"a", "b"}] + [None] * 3])
    (got,) = found.best("posterior")
    assert got[3] in "ab"
    (p,) = found.marginals()
    right = sum(p[t, names.index(k)] for t, k in enumerate(got))
    assert right == pytest.approx(2.75, rel=1e-9)  # as of xxxauuu; xxxcyyy would have 3


# --- models that have no probabilities, or none of labellings ----------------------------------

KNOWN = [["O", None, {"B-x", "B-y"}], *[None] * 5]


@pytest.mark.parametrize("scheme", [None, "BIO"])
def test_scores_alone_can_be_decoded_given_labels(scheme):
    y1 = [get_scheme("BIO").repair(row) for row in Y]
    model = sf.StructuredPerceptron(scheme=scheme, random_state=0).fit(X, y1)
    said = model.distribution(X).given(KNOWN)
    draws = constrained(model.function_.draws(model.encode(X)), model.constraint_)
    for i, row in enumerate(said.best()):
        found = enumerate_labellings(draws[0], i)
        rows = [[model.classes_[k] for k in codes] for codes in found.labels]
        fits = [agrees(labels, KNOWN[i]) for labels in rows]
        assert row == rows[int(np.where(fits, found.scores, -np.inf).argmax())]
    none = [[] for _ in X]
    for ask in (
        said.marginals,
        lambda: said.best("posterior"),
        lambda: said.log_prob(y1),
        said.entropy,
        said.confidence,
        said.nbest,
        said.sample,
        said.spans,
        said.likely_spans,
        lambda: said.span_prob(none),
        lambda: said.pattern_prob(none),
        said.given([None] * 6).marginals,
    ):
        with pytest.raises(CapabilityError, match=r"StructuredPerceptron.*calibrate=True"):
            ask()
    calibrated = sf.StructuredPerceptron(scheme=scheme, calibrate=True, random_state=0).fit(X, y1)
    assert calibrated.distribution(X).given(KNOWN).best() == said.best()


def test_refined_probabilities_of_single_labels_cannot_be_conditioned():
    gpsl = sf.GPSL("linear", max_iter=3, learn_kernel=False, tol=1.0).fit(X, Y)
    assert gpsl.inference == "refine"
    said = gpsl.distribution(X)
    for known in (KNOWN, [None] * 6):
        with pytest.raises(CapabilityError, match="inference='chain'"):
            said.given(known)
    assert len(said.marginals()) == 6
    chain = gpsl.set_params(inference="chain").fit(X, Y).distribution(X).given(KNOWN)
    assert chain.best()[0][0] == "O"


# --- forms and errors --------------------------------------------------------------------------


@every_form
def test_it_tells_what_it_is(form):
    said = Listed("BIO", form).said
    of = "" if FORMS[form][0] == 1 else ", average of 3 chains"
    assert repr(said) == f"LabelDistribution(n=3, tokens=8{of})"
    assert len(said) == 3
    assert said.classes.tolist() == SCHEMES["BIO"]
    np.testing.assert_array_equal(said.offsets, OFFSETS)
    given = said.given([["O"], None, None])
    assert (repr(given), len(given)) == (repr(said), 3)
    assert given.classes.tolist() == SCHEMES["BIO"]


def test_blocks_say_what_the_whole_says(model):
    whole, parts = model.distribution(X), list(model.distributions(X))
    assert sum(map(len, parts)) == len(whole) == len(X)
    assert [row for part in parts for row in part.best()] == whole.best() == model.predict(X)
    assert whole.labels.names == model.classes_.tolist()
    np.testing.assert_array_equal(np.concatenate(whole.marginals()), whole.proba)
    codes = np.concatenate([[model.labels_.index[v] for v in row] for row in whole.best()])
    np.testing.assert_array_equal(whole.codes(), codes)


NONE = [[], [], []]
BAD = {
    "decoding": (lambda d: d.best("beam"), InputError, "decoding must be one of"),
    "decoding of spans": (lambda d: d.spans("beam"), InputError, "decoding must be one of"),
    "no labellings": (lambda d: d.nbest(0), InputError, "n must be a whole number"),
    "half a labelling": (lambda d: d.nbest(1.5), InputError, "n must be a whole number"),
    "no samples": (lambda d: d.sample(0), InputError, "n must be a whole number"),
    "probability": (lambda d: d.likely_spans(1.5), InputError, "min_probability must be"),
    "sequences of y": (lambda d: d.log_prob([["O"]]), LabelError, "3 sequences but y has 1"),
    "tokens of y": (lambda d: d.given([["O", "O"], None, None]), LabelError, "sequence 0: X has 1"),
    "no y": (lambda d: d.given(None), LabelError, "y is None"),
    "y of another kind": (lambda d: d.given(3), LabelError, "y must be a list of label lists"),
    "row of y": (lambda d: d.given(["O", None, None]), LabelError, r"y\[0\] must be a list"),
    "unknown label": (
        lambda d: d.given([["Q"], None, None]),
        LabelError,
        "label 'Q' at sequence 0",
    ),
    "no candidates": (lambda d: d.given([[set()], None, None]), LabelError, "empty set"),
    "spans of sequences": (lambda d: d.span_prob([[]]), InputError, "one list for each of 3"),
    "no spans": (lambda d: d.span_prob(None), InputError, "spans must have one list for each of 3"),
    "spans of no list": (
        lambda d: d.span_prob([3, [], []]),
        InputError,
        "spans must have one list",
    ),
    "kind": (lambda d: d.span_prob([[("z", 0, 1)], [], []]), LabelError, "sequence 0: 'z' is no"),
    "start": (
        lambda d: d.span_prob([[], [("x", "a", 2)], []]),
        InputError,
        "the span from 'a' to 2",
    ),
    "end": (lambda d: d.span_prob([[], [("x", 0, "b")], []]), InputError, "the span from 0 to 'b'"),
    "half an end": (lambda d: d.span_prob([[], [("x", 0, 1.5)], []]), InputError, "from 0 to 1.5"),
    "empty span": (lambda d: d.span_prob([[], [("x", 1, 1)], []]), InputError, "not within its 3"),
    "pattern": (lambda d: d.pattern_prob([["O"], [], []]), InputError, r"must be \(start, labels"),
    "no patterns": (lambda d: d.pattern_prob(3), InputError, "patterns must have one list for"),
    "start of a pattern": (
        lambda d: d.pattern_prob([[("a", ["O"])], [], []]),
        InputError,
        "sequence 0: the pattern from 'a'",
    ),
    "labels of a pattern": (
        lambda d: d.pattern_prob([[(0, "O")], [], []]),
        InputError,
        r"sequence 0: a pattern must be \(start, labels\), got \(0, 'O'\)",
    ),
    "number of a pattern": (
        lambda d: d.pattern_prob([[(0, 7)], [], []]),
        InputError,
        r"sequence 0: a pattern must be \(start, labels\), got \(0, 7\)",
    ),
    "long pattern": (
        lambda d: d.pattern_prob([[], [], [(2, [None] * 3)]]),
        InputError,
        "sequence 2: the pattern from 2 to 5 is not within its 4 tokens",
    ),
    "label of a pattern": (
        lambda d: d.pattern_prob([[], [(0, ["O", "Q"])], []]),
        LabelError,
        "label 'Q' at sequence 1, position 1 is not",
    ),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("form", ["chain", "average"])
def test_wrong_arguments_are_named(what, form):
    ask, kind, message = BAD[what]
    said = Listed("BIO", form).said
    with pytest.raises(kind, match=message):
        ask(said)
    with pytest.raises(kind, match=message):
        ask(said.given([["O"], None, None]))


def test_nothing_asked_is_nothing_said():
    said = Listed("BIO", "average").said
    for found in (said.span_prob(NONE), said.pattern_prob(NONE)):
        assert [len(part) for part in found] == [0, 0, 0]


@pytest.mark.parametrize("seed", ["x", -1, 1.5])
def test_a_seed_that_is_none_is_named(model, seed):
    with pytest.raises(InputError, match=r"random_state must be .*, got"):
        model.distribution(X).sample(2, random_state=seed)
