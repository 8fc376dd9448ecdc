import numpy as np
import pytest
import seqeval.metrics as peer
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

from seqfield.data.schemes import convert, spans
from seqfield.errors import LabelError, SchemeError
from seqfield.metrics import SpanScores, span_f1, span_scores

TAGS = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}
# conlleval's tables of the (previous tag, tag) between which a chunk ends, and starts.
ENDS = {"BB", "BO", "IB", "IO", "EE", "EI", "EO"}
STARTS = {"BB", "IB", "OB", "OI", "EE", "EI", "OE"}
# The published script knows no S, nor B straight after E (it was made for schemes with one of B
# and E); the versions in use for BIOES add these.
ENDS_BIOES = ENDS | {"EB", "ES", "BS", "IS", *("S" + tag for tag in "BIEOS")}
STARTS_BIOES = STARTS | {"EB", "SB", "SE", "SI", *(tag + "S" for tag in "BIEOS")}


def split(label):
    tag, _, kind = label.partition("-")
    return tag, kind


def conlleval(y_true, y_pred, extended):
    """Chunks in the gold labels, found and correct: counted line by line, as the script does."""
    ends, starts = (ENDS_BIOES, STARTS_BIOES) if extended else (ENDS, STARTS)

    def ended(before, now):
        return before[0] + now[0] in ends or (before[0] != "O" and before[1] != now[1])

    def started(before, now):
        return before[0] + now[0] in starts or (now[0] != "O" and before[1] != now[1])

    lines = [
        (split(t), split(p))
        for true, pred in zip(y_true, y_pred, strict=True)
        for t, p in [*zip(true, pred, strict=True), ("O", "O")]
    ]
    n_true = n_pred = n_correct = 0
    in_correct = False
    last_true = last_pred = ("O", "")
    for true, pred in lines:
        true_ended, pred_ended = ended(last_true, true), ended(last_pred, pred)
        if in_correct:
            if true_ended and pred_ended and last_true[1] == last_pred[1]:
                in_correct = False
                n_correct += 1
            elif true_ended != pred_ended or true[1] != pred[1]:
                in_correct = False
        true_started, pred_started = started(last_true, true), started(last_pred, pred)
        if true_started and pred_started and true[1] == pred[1]:
            in_correct = True
        n_true += true_started
        n_pred += pred_started
        last_true, last_pred = true, pred
    return n_true, n_pred, n_correct


def noisy(rng, name, n=4, valid=False):
    """Random labels and a guess that keeps most of them."""
    labels = np.array(["O", *(f"{tag}-{kind}" for kind in "XY" for tag in TAGS[name])])
    y_true, y_pred = [], []
    for _ in range(n):
        true = rng.choice(labels, size=rng.integers(0, 12))
        pred = np.where(rng.random(len(true)) < 0.75, true, rng.choice(labels, size=len(true)))
        pair = [true.tolist(), pred.tolist()]
        if valid:
            pair = [convert(row, name, name) for row in pair]
        y_true.append(pair[0])
        y_pred.append(pair[1])
    return y_true, y_pred


@pytest.mark.parametrize("valid", [False, True])
@pytest.mark.parametrize("name", TAGS)
def test_equals_conlleval_and_seqeval(name, valid):
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(1500):
        y_true, y_pred = noisy(rng, name, valid=valid)
        got = span_scores(y_true, y_pred, name)
        n_true, n_pred, n_correct = conlleval(y_true, y_pred, extended=name == "BIOES")
        assert (got.n_true, got.n_pred, got.n_correct) == (n_true, n_pred, n_correct)
        if n_true and n_pred:
            expected = precision_recall_fscore_support(
                y_true, y_pred, average="micro", zero_division=0
            )
            assert (*got[:3], n_true) == pytest.approx(tuple(expected), abs=1e-14)
        for row in [*y_true, *y_pred]:
            assert spans(row) == [(k, s, e + 1) for k, s, e in get_entities(row)]
        hits += n_correct
    assert hits > 1000


def test_by_type_against_seqeval():
    rng = np.random.default_rng(12)
    for _ in range(300):
        y_true, y_pred = noisy(rng, "BIO")
        got = span_scores(y_true, y_pred)
        if not got.n_true:
            continue
        report = peer.classification_report(y_true, y_pred, output_dict=True, zero_division=0)
        assert set(got.by_type) == set(report) - {"micro avg", "macro avg", "weighted avg"}
        for kind, scores in got.by_type.items():
            assert (*scores[:3], scores.n_true) == pytest.approx(
                tuple(report[kind].values()), abs=1e-14
            )
        for field in ("n_true", "n_pred", "n_correct"):
            assert sum(getattr(s, field) for s in got.by_type.values()) == getattr(got, field)


def test_bilou_scores_like_bioes():
    rng = np.random.default_rng(13)
    to_bilou = {"E": "L", "S": "U"}
    for _ in range(300):
        y = noisy(rng, "BIOES")
        bilou = [[[to_bilou.get(t[0], t[0]) + t[1:] for t in row] for row in rows] for rows in y]
        assert span_scores(*bilou, scheme="BILOU") == span_scores(*y, scheme="BIOES")
        assert span_scores(*bilou, scheme=None) == span_scores(*y, scheme="BIOES")


def test_by_hand():
    y_true = [["B-X", "I-X", "O", "B-Y"], ["B-X"]]
    y_pred = [["B-X", "I-X", "O", "B-X"], ["B-X"]]
    x = SpanScores(2 / 3, 1.0, 0.8, 2, 3, 2, {})
    y = SpanScores(0.0, 0.0, 0.0, 1, 0, 0, {})
    assert span_scores(y_true, y_pred) == SpanScores(2 / 3, 2 / 3, 2 / 3, 3, 3, 2, {"X": x, "Y": y})


def test_spans_do_not_cross_sequences():
    assert span_scores([["B-X"], ["I-X"]], [["B-X"], ["I-X"]]).n_true == 2


def test_bare_tags():
    scores = span_scores([["B", "I", "O"]], [["B", "I", "I"]])
    assert (scores.n_true, scores.n_pred, scores.n_correct) == (1, 1, 0)
    assert set(scores.by_type) == {""}


def test_nothing_found_is_zero():
    assert span_scores([["O", "O"]], [["O", "O"]]) == SpanScores(0.0, 0.0, 0.0, 0, 0, 0, {})
    assert span_f1([], []) == 0.0
    assert span_f1([["B-X"]], [["O"]]) == 0.0


def test_missing_labels_count_as_o():
    scores = span_scores([["B-X", None, "I-X"], None], [["B-X", "O", None], ["B-X"]])
    assert (scores.n_true, scores.n_pred, scores.n_correct) == (2, 1, 1)


def test_bad_input_is_named():
    with pytest.raises(LabelError, match="sequence 1: 1 gold labels, but 2 predicted"):
        span_scores([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(SchemeError, match="'S-X' is not a BIO label"):
        span_scores([["O"]], [["S-X"]])
