"""Confidence of spans, patterns and labellings against enumeration and each other."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import spans
from seqfield.errors import CapabilityError, InputError, LabelError, SchemeError
from seqfield.estimators._base import constrained
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
    with pytest.raises(LabelError, match="sequence 0: 'z' is no kind of span of the model's: x, y"):
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
