from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import seqfield as sf
from seqfield import metrics
from seqfield.errors import InputError, LabelError, SchemeError
from seqfield.report import intervals as module
from seqfield.report import learning_curve, render, report_content, write_report
from seqfield.report.columns import THRESHOLDS, parts
from seqfield.report.comparison import compare
from seqfield.report.content import content_of, texts
from seqfield.report.intervals import intervals, resampled, sums

from ..support.reports import HOSTILE, by_key, embedded, invented, unpacked

EXACT = {"rtol": 1e-12, "atol": 1e-15}


@pytest.fixture(scope="module")
def data():
    X, y = sf.load_ingredients("test")
    return X[100:150], y[100:150]


@pytest.fixture(scope="module")
def model():
    X, y = sf.load_ingredients("test")
    return sf.CRF(scheme="BIO", c2=0.5).fit(X[:80], y[:80])


@pytest.fixture(scope="module")
def gappy(data):
    """Gold labels with one that the model does not know, missing ones and an unlabelled row."""
    y = [list(row) for row in data[1]]
    y[0][0], y[1][0], y[2][0], y[3] = "B-MOOD", None, {"B-NAME", "B-QTY"}, None
    return y


@pytest.fixture(scope="module")
def content(model, data, gappy):
    return embedded(render(report_content(model, data[0], gappy, n_boot=20)))


@pytest.fixture(scope="module")
def compared(model, data, gappy):
    return compare(model, data[0], gappy)


def own(gappy):
    """Gold labels as probabilities can be compared by: without the one that is unknown."""
    hidden = {"B-MOOD": None}
    return [row and [v if isinstance(v, set) else hidden.get(v, v) for v in row] for row in gappy]


# --- numbers --------------------------------------------------------------------------------------


def test_headlines_are_the_metrics(model, data, gappy, content):
    X, known = data[0], own(gappy)
    predicted, proba, classes = model.predict(X), model.predict_proba(X), model.classes_
    spans = metrics.span_scores(gappy, predicted, None)
    labelled = [i for i, row in enumerate(gappy) if row is not None]
    likelihood = model.log_likelihood(
        [X[i] for i in labelled],
        [[None if isinstance(v, set) else v for v in known[i]] for i in labelled],
    )
    expected = {
        "token_accuracy": metrics.token_accuracy(gappy, predicted),
        "sequence_accuracy": 1 - metrics.sequence_error(gappy, predicted),
        "span_precision": spans.precision,
        "span_recall": spans.recall,
        "span_f1": spans.f1,
        "nll_per_token": metrics.token_nll(known, proba, classes, mean=True),
        "ece": metrics.ece(known, proba, classes, labels=predicted),
        "brier": metrics.brier(known, proba, classes),
        "joint_nll_per_sequence": -likelihood.mean(),
    }
    found = {key: metric["value"] for key, metric in by_key(content).items()}
    assert found == pytest.approx(expected, rel=1e-12)
    for metric in content["metrics"]:
        assert metric["low"] <= metric["high"]
    assert content["data"]["labelled"] == sum(
        v is not None for row in judge_rows(gappy) for v in row
    )


def judge_rows(gappy):
    return [[None if isinstance(v, set) else v for v in row or []] for row in gappy]


def test_labels_and_confusion(model, data, gappy, content):
    predicted = model.predict(data[0])
    names = content["labels"]
    assert names == [*model.classes_.tolist(), "B-MOOD"]
    counts = metrics.confusion_matrix(gappy, predicted, names)
    for a, b, c in content["confusion"]:
        assert c == counts[a, b] > 0
    assert sum(c for *_, c in content["confusion"]) == counts.sum()
    per_label = metrics.per_label(gappy, predicted)
    rows = {names[row["label"]]: row for row in content["per_label"]}
    assert rows.keys() == per_label.keys()
    for name, row in rows.items():
        assert [row[k] for k in ("precision", "recall", "f1", "support")] == list(per_label[name])
    assert rows["B-MOOD"]["confidence"] is None  # never predicted
    k = names.index("B-NAME")
    sure = [
        p[t, k]
        for row, own, p in zip(gappy, predicted, model.predict_proba(data[0]), strict=True)
        for t, label in enumerate(own)
        if label == "B-NAME" and row is not None and isinstance(row[t], str)
    ]
    assert rows["B-NAME"]["confidence"] == pytest.approx(np.mean(sure), rel=1e-12)
    by_type = metrics.span_scores(gappy, predicted, None).by_type
    assert {row["kind"]: row["f1"] for row in content["span_types"]} == {
        kind: scores.f1 for kind, scores in by_type.items()
    }


def test_reliability_of_all_and_of_each_label(model, data, gappy, content):
    known, predicted = own(gappy), model.predict(data[0])
    proba, classes = model.predict_proba(data[0]), model.classes_.tolist()

    def same(found, y):
        bins = metrics.reliability(y, proba, classes, labels=predicted)
        for part, expected in zip(found, bins, strict=True):
            assert (part is None) == (expected["count"] == 0)
            if part is not None:
                np.testing.assert_allclose(part, list(expected), rtol=0, atol=1e-6)

    same(content["reliability"]["overall"], known)
    for name, bins in zip(classes, content["reliability"]["by_label"], strict=True):
        given = [
            row and [v if label == name else None for v, label in zip(row, labels, strict=True)]
            for row, labels in zip(known, predicted, strict=True)
        ]
        same(bins, given)


def test_coverage_is_the_curve_at_each_threshold(model, data, gappy, content):
    # a gold label that the model does not know is wrong at any confidence
    proba = [np.column_stack([p, np.zeros(len(p))]) for p in model.predict_proba(data[0])]
    curve = metrics.precision_by_coverage(
        gappy, proba, [*model.classes_.tolist(), "B-MOOD"], model.predict(data[0])
    )
    kept, right = content["coverage"]["kept"], content["coverage"]["right"]
    assert content["coverage"]["thresholds"] == THRESHOLDS.tolist()
    assert (np.diff(THRESHOLDS) > 0).all()
    for k, least in enumerate(THRESHOLDS):
        n = int((curve.threshold >= least).sum())
        assert kept[k] / kept[0] == pytest.approx(curve.coverage[n - 1] if n else 0, rel=1e-12)
        if n:
            assert right[k] / kept[k] == pytest.approx(curve.precision[n - 1], rel=1e-12)
    assert right[0] / kept[0] == pytest.approx(by_key(content)["token_accuracy"]["value"])


def test_columns_of_tokens(model, data, content, compared):
    seen, proba = content["sequences"], np.vstack(model.predict_proba(data[0]))
    assert seen["words"] == [[word for (word,) in row] for row in data[0]]
    np.testing.assert_array_equal(unpacked(seen["labels"]), compared.codes)
    np.testing.assert_array_equal(unpacked(seen["gold"]).astype(int) - 1, compared.gold_codes)
    top, p = unpacked(seen["top"]), unpacked(seen["p"])
    ends = np.cumsum(unpacked(seen["kept"]))
    level = unpacked(seen["level"])
    for t, (a, b) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        labels, gold = top[a:b].tolist(), compared.gold_codes[t]
        assert labels[0] == compared.codes[t]
        assert len(set(labels)) == len(labels) <= 5
        if 0 <= gold < proba.shape[1]:
            assert gold in labels[:2]
        # all others that are worth it, in falling order, up to five
        others = [k for k in labels[1:] if k != gold]
        worth = [k for k in np.argsort(-proba[t]) if k not in (labels[0], gold)]
        worth = [k for k in worth if proba[t, k] >= 0.0005][: 5 - len(labels) + len(others)]
        assert others == worth
        np.testing.assert_array_equal(p[a:b], parts(proba[t, labels]))
        confidence = proba[t, labels[0]]
        assert level[t] == sum(confidence >= least for least in THRESHOLDS) - 1
    np.testing.assert_allclose(unpacked(seen["surprise"]), -compared.log_gold, rtol=1e-6, atol=1e-6)
    labelling = np.exp(model.log_likelihood(data[0], model.predict(data[0])))
    np.testing.assert_allclose(unpacked(seen["labelling"]), labelling, rtol=1e-6)


def test_spans_are_those_of_the_model(model, data, content, compared):
    seen, found = content["sequences"]["spans"], model.predict_spans(data[0])
    assert unpacked(seen["counts"]).tolist() == [len(row) for row in found]
    flat = [span for row in found for span in row]
    assert [seen["kinds"][k] for k in unpacked(seen["kind"])] == [span.kind for span in flat]
    assert unpacked(seen["start"]).tolist() == [span.start for span in flat]
    assert unpacked(seen["end"]).tolist() == [span.end for span in flat]
    p = np.array([span.probability for span in flat])
    np.testing.assert_array_equal(unpacked(seen["p"]), parts(p))
    assert unpacked(seen["right"]).sum() == sum(
        len(a & b) for a, b in zip(*compared.spans(), strict=True)
    )


# --- intervals ------------------------------------------------------------------------------------


def test_resamples_are_metrics_of_drawn_sequences(monkeypatch):
    compared = replace(invented(6, 4, ["O", "B-a", "I-a"], seed=1), scheme=None)
    proba, n_boot = np.split(compared.proba, compared.offsets[1:-1]), 25
    drawn = np.random.default_rng(3).integers(6, size=(n_boot, 6))
    rows = []
    for chosen in drawn:
        y, guess, p = (
            [part[i] for i in chosen] for part in (compared.gold, compared.predicted, proba)
        )
        spans = metrics.span_scores(y, guess, None)
        rows.append(
            {
                "token_accuracy": metrics.token_accuracy(y, guess),
                "sequence_accuracy": 1 - metrics.sequence_error(y, guess),
                "span_precision": spans.precision,
                "span_recall": spans.recall,
                "span_f1": spans.f1,
                "nll_per_token": metrics.token_nll(y, p, compared.labels, mean=True),
                "ece": metrics.ece(y, p, compared.labels, labels=guess),
                "brier": metrics.brier(y, p, compared.labels),
                "joint_nll_per_sequence": -compared.log_gold[chosen].mean(),
            }
        )
    expected = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    found = resampled(sums(compared), n_boot, np.random.default_rng(3))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, err_msg=key, **EXACT)
    ends = {
        k: np.sort(v)[[math.ceil(n_boot * q) - 1 for q in (0.025, 0.975)]]
        for k, v in expected.items()
    }
    monkeypatch.setattr(module, "HELD", 18)  # blocks of three resamples
    scores = intervals(compared, n_boot, random_state=3)
    for key, (low, high) in ends.items():
        value = scores[key].value
        if key == "ece":
            low, high = max(0, 2 * value - high), max(0, 2 * value - low)
        np.testing.assert_allclose(scores[key][1:], [low, high], err_msg=key, **EXACT)


def test_interval_covers_the_truth_as_often_as_it_says():
    # the accuracy over endless data is known: that of guessing by the most probable label
    truth = invented(40_000, 5, ["a", "b", "c"], seed=99).right.mean()
    hits = 0
    for seed in range(100):
        score = intervals(invented(60, 5, ["a", "b", "c"], seed), 200)["token_accuracy"]
        hits += score.low <= truth <= score.high
    assert 88 <= hits <= 100  # 95 expected, with a standard deviation of 2.2


def test_an_impossible_gold_label_is_infinitely_surprising():
    compared = invented(5, 2, ["a", "b"])
    proba = np.tile([1.0, 0.0], (10, 1))
    compared = replace(compared, proba=proba, codes=np.zeros(10, int), predicted=[["a", "a"]] * 5)
    scores = intervals(compared, 50)
    assert scores["nll_per_token"].value == math.inf
    assert scores["nll_per_token"].high == math.inf
    page = embedded(render({"title": "", **content_of(compared, compared.gold, scores)}))
    assert by_key(page)["nll_per_token"]["value"] == "Infinity"


def test_without_resamples_there_is_no_interval(model, data):
    one = compare(model, data[0][:1], data[1][:1])
    for scores in (intervals(compare(model, *data), n_boot=0), intervals(one)):
        assert math.isnan(scores["token_accuracy"].low)
        assert scores["token_accuracy"].value > 0
    with pytest.raises(InputError, match="n_boot must be a whole number"):
        intervals(compare(model, *data), n_boot=-1)


# --- other models and data ------------------------------------------------------------------------


def test_models_without_probabilities(data):
    model = sf.StructuredPerceptron(random_state=0, max_iter=5).fit(*data)
    content = report_content(model, *data, n_boot=5)
    assert {m["group"] for m in content["metrics"]} == {"Labels", "Spans"}
    assert content["coverage"] is content["reliability"] is None
    assert not {"p", "level", "surprise", "labelling", "spans"} & content["sequences"].keys()
    assert "confidence" not in content["per_label"][0]
    render(content)


@pytest.mark.filterwarnings("ignore:no convergence")
def test_models_without_a_joint_distribution(data):
    X, y = data[0][:12], data[1][:12]
    model = sf.GPSL("linear", max_iter=3, random_state=0).fit(X, y)
    content = report_content(model, X, y, n_boot=5)
    assert "joint_nll_per_sequence" not in by_key(content)
    assert not {"labelling", "spans"} & content["sequences"].keys()
    nll = metrics.token_nll(y, model.predict_proba(X), model.classes_)
    assert unpacked(content["sequences"]["surprise"]).sum() == pytest.approx(nll, rel=1e-5)
    assert content["features"] is None


def test_weights_and_cliques(model, data, content):
    assert content["features"]["what"] == "feature"
    weights = {(w.label, w.feature): w.value for w in model.top_weights(len(model.theta_))}
    for name, row in zip(model.classes_, content["features"]["labels"], strict=True):
        for feature, value in [*row["high"], *row["low"]]:
            assert value == pytest.approx(weights[name, feature], rel=1e-3)
        for part, low in (("high", False), ("low", True)):
            expected = [w.value for w in model.top_weights(12, label=name, lowest=low)]
            expected = [value for value in expected if value < 0] if low else expected
            assert [value for _, value in row[part]] == pytest.approx(expected, rel=1e-3)
    kernel = sf.KernelCRF("linear", n_cliques=4, random_state=0).fit(data[0][:20], data[1][:20])
    found = report_content(kernel, data[0][:20], data[1][:20], n_boot=2)["features"]
    assert found["what"] == "training token"
    listed = [value for row in found["labels"] for part in row.values() for _, value in part]
    assert sorted(listed) == pytest.approx(sorted(c.coefficient for c in kernel.cliques_), rel=1e-3)


def test_sequences_without_labels(model, data):
    content = embedded(render(report_content(model, data[0], [None] * len(data[0]), n_boot=5)))
    assert content["data"]["labelled"] == content["coverage"]["kept"][0] == 0
    assert content["confusion"] == content["per_label"] == []
    assert {m["value"] for m in content["metrics"] if m["group"] != "Spans"} == {None}


def test_labels_of_any_kind_and_numeric_data():
    X, y = sf.make_galaxy(20, random_state=0)
    model = sf.CRF().fit(X, y)
    content = report_content(model, X, y, n_boot=2)
    assert content["labels"] == [str(label) for label in model.classes_]
    assert content["span_types"] is None
    assert content["sequences"]["words"][0][:3] == ["0", "1", "2"]
    render(content)


def test_scheme(model, data):
    assert report_content(model, *data, scheme="none", n_boot=2)["span_types"] is None
    spans = metrics.span_scores(data[1], model.predict(data[0]), "BIO")
    found = by_key(report_content(model, *data, scheme="BIO", n_boot=2))
    assert found["span_f1"]["value"] == pytest.approx(spans.f1)
    with pytest.raises(SchemeError, match="unknown label scheme"):
        report_content(model, *data, scheme="BIZ")
    strange = [["what" if label == "O" else label for label in row] for row in data[1]]
    assert report_content(model, data[0], strange, n_boot=2)["span_types"] is None


def test_texts(compared):
    two = replace(compared, offsets=np.array([0, 2, 3]))
    words = [["a", "b"], ["c"]]
    assert texts([[("a", "DT"), ("b", "NN")], [("c", "X")]], None, two) == words
    assert texts([[{"n": 1, "w": "a"}, {"w": "b"}], [{"w": "c"}]], None, two) == words
    assert texts([[["a", "x"], ["b"]], [{"c", "d"}]], None, two) == words
    assert texts(np.zeros((3, 2)), None, two) == [["0", "1"], ["0"]]
    assert texts(None, [["x", 1], ["y"]], two) == [["x", "1"], ["y"]]
    with pytest.raises(LabelError, match="sequence 1: X has 1 tokens but tokens has 2"):
        texts(None, [["x", "y"], ["z", "z"]], two)


# --- the page -------------------------------------------------------------------------------------


def test_everything_supplied_is_escaped(tmp_path, data):
    y = [["</script><b>"] * 3 + ["&lt;"] * (len(HOSTILE) - 3)]
    model = sf.CRF().fit([HOSTILE, HOSTILE], y * 2)
    path = tmp_path / "r.html"
    write_report(model, [HOSTILE], y, path, title="</title><script>1", n_boot=2)
    page = path.read_text("utf-8")
    assert embedded(page)["sequences"]["words"] == [HOSTILE]
    assert page.count("<script") == page.count("</script>") == 2
    for mark in ("<img", "<b>", "</title><script>", "<!--<"):
        assert mark not in page
    assert "{{" not in page.replace("`\\\\\\u0026amp;{{script}}", "")


def test_text_that_utf8_cannot_hold(tmp_path):
    X, y = [["a\\\udc80", "b"]], [["x", "y"]]
    write_report(sf.CRF().fit(X, y), X, y, tmp_path / "r.html", n_boot=2)
    assert embedded((tmp_path / "r.html").read_text("utf-8"))["sequences"]["words"] == X


def test_the_page_needs_nothing_else(content):
    page = render(content)
    policy = page[page.index("Content-Security-Policy") :].split(">")[0]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for mark in ("http://", "https://", "@import", "url(", "innerHTML", "eval("):
        names = page.replace("http://www.w3.org/2000/svg", "")
        assert mark not in names


# --- learning curve -------------------------------------------------------------------------------


def test_learning_curve(tmp_path, data):
    X, y = data[0][:33], data[1][:33]
    held = data[0][33:], data[1][33:]
    model = sf.HMM().fit(X, y)
    told = []
    curve = learning_curve(model, X, y, *held, n_boot=10, step=told.append)
    assert curve["sizes"] == [2, 4, 8, 16, 33]
    assert told[0] == "learning from 33 sequences"
    accuracy = metrics.token_accuracy(held[1], model.predict(held[0]))
    assert curve["scores"]["token_accuracy"][-1][0] == pytest.approx(accuracy)
    assert curve["scores"].keys() == {"token_accuracy", "span_f1", "nll_per_token"}
    write_report(model, *held, tmp_path / "r.html", learning_curve=(X, y), n_boot=10)
    assert embedded((tmp_path / "r.html").read_text("utf-8"))["learning"] == curve


def test_learning_curve_names_the_true_place(model, data):
    y = [list(row) for row in data[1]]
    y[7] = ["I-NAME"] * len(y[7])
    with pytest.raises(SchemeError, match="sequence 7, position 0"):
        learning_curve(model, data[0], y, *data)
    with pytest.raises(InputError, match="at least two training sequences"):
        learning_curve(model, data[0][:1], data[1][:1], *data)
