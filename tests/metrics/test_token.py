import math
import pickle

import numpy as np
import pytest
import sklearn.metrics
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score

from seqfield import metrics
from seqfield.errors import InputError, LabelError

COMPARERS = [
    metrics.token_accuracy,
    metrics.token_error,
    metrics.sequence_error,
    metrics.transition_accuracy,
    metrics.confusion_matrix,
    metrics.per_label,
]


def corpus(seed, labels=("a", "b", "c"), missing=0.2, n=30):
    rng = np.random.default_rng(seed)
    y_true, y_pred = [], []
    for _ in range(n):
        size = int(rng.integers(0, 6))
        true = [labels[k] for k in rng.integers(len(labels), size=size)]
        y_pred.append([t if rng.random() < 0.7 else labels[0] for t in true])
        y_true.append([None if rng.random() < missing else t for t in true])
    return y_true, y_pred


def flat(y_true, y_pred):
    return [
        (t, p)
        for true, pred in zip(y_true, y_pred, strict=True)
        for t, p in zip(true, pred, strict=True)
        if t is not None
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("labels", [("a", "b", "c"), (0, 1, -1), (("x", 1), "y", 2)])
def test_against_plain_counting(seed, labels):
    y_true, y_pred = corpus(seed, labels)
    tokens = flat(y_true, y_pred)
    right = sum(t == p for t, p in tokens)
    assert metrics.token_accuracy(y_true, y_pred) == right / len(tokens)
    assert metrics.token_error(y_true, y_pred) == (len(tokens) - right) / len(tokens)

    judged = [flat([t], [p]) for t, p in zip(y_true, y_pred, strict=True)]
    judged = [pairs for pairs in judged if pairs]
    wrong = sum(any(t != p for t, p in pairs) for pairs in judged)
    assert metrics.sequence_error(y_true, y_pred) == wrong / len(judged)

    both = total = 0
    for true, pred in zip(y_true, y_pred, strict=True):
        for t in range(1, len(true)):
            if None in true[t - 1 : t + 1] or true[t - 1] == true[t]:
                continue
            total += 1
            both += true[t - 1 : t + 1] == pred[t - 1 : t + 1]
    assert metrics.transition_accuracy(y_true, y_pred) == both / total

    matrix = metrics.confusion_matrix(y_true, y_pred, labels)
    assert matrix.tolist() == [[tokens.count((a, b)) for b in labels] for a in labels]
    scores = metrics.per_label(y_true, y_pred)
    assert set(scores) == set(labels)
    for label in labels:
        k = labels.index(label)
        hit, support, guessed = matrix[k, k], matrix[k].sum(), matrix[:, k].sum()
        assert scores[label].support == support
        assert scores[label].precision == pytest.approx(hit / guessed if guessed else 0, abs=1e-15)
        assert scores[label].recall == pytest.approx(hit / support if support else 0, abs=1e-15)
        assert scores[label].f1 == pytest.approx(2 * hit / (support + guessed), abs=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_against_scikit_learn(seed):
    y_true, y_pred = corpus(seed)
    true, pred = zip(*flat(y_true, y_pred), strict=True)
    assert metrics.token_accuracy(y_true, y_pred) == sklearn.metrics.accuracy_score(true, pred)
    assert np.array_equal(
        metrics.confusion_matrix(y_true, y_pred), sklearn.metrics.confusion_matrix(true, pred)
    )
    report = sklearn.metrics.classification_report(true, pred, output_dict=True, zero_division=0)
    for label, scores in metrics.per_label(y_true, y_pred).items():
        assert list(scores) == pytest.approx(list(report[label].values()), abs=1e-15)


def test_labels_restrict_and_order_the_confusion_matrix():
    y_true, y_pred = [["a", "b", "c", "b"]], [["a", "c", "c", "a"]]
    assert metrics.confusion_matrix(y_true, y_pred).tolist() == [[1, 0, 0], [1, 0, 1], [0, 0, 1]]
    assert metrics.confusion_matrix(y_true, y_pred, ["b", "a"]).tolist() == [[0, 1], [0, 1]]
    assert metrics.confusion_matrix(y_true, y_pred, ["z"]).tolist() == [[0]]


def test_nothing_to_judge():
    for y_true, y_pred in [
        ([], []),
        ([[]], [[]]),
        ([[None, None]], [["a", "b"]]),
        ([None], [["a"]]),
    ]:
        assert math.isnan(metrics.token_accuracy(y_true, y_pred))
        assert math.isnan(metrics.token_error(y_true, y_pred))
        assert math.isnan(metrics.sequence_error(y_true, y_pred))
        assert math.isnan(metrics.transition_accuracy(y_true, y_pred))
        assert metrics.confusion_matrix(y_true, y_pred).shape == (0, 0)
        assert metrics.per_label(y_true, y_pred) == {}
    assert math.isnan(metrics.transition_accuracy([["a", "a"], ["b"]], [["a", "a"], ["b"]]))


def test_candidate_sets_are_skipped_and_abstentions_are_wrong():
    assert metrics.token_accuracy([["a", {"a", "b"}, "b"]], [["a", "c", None]]) == 0.5
    assert metrics.confusion_matrix([["a", "b"]], [["a", None]]).tolist() == [[1, 0], [0, 0]]
    assert metrics.per_label([["a", "b"]], [["a", None]])["b"].recall == 0.0


@pytest.mark.parametrize("metric", COMPARERS)
def test_lengths_are_checked(metric):
    with pytest.raises(LabelError, match="2 labelled sequences, but 1 predicted"):
        metric([["a"], ["a"]], [["a"]])
    with pytest.raises(LabelError, match="sequence 1: 2 gold labels, but 1 predicted"):
        metric([["a"], ["a", "b"]], [["a"], ["a"]])


class Prior(BaseEstimator):
    """Predicts the commonest label with its share as probability; enough to try the scorers on."""

    def __init__(self, smoothing=1.0):
        self.smoothing = smoothing

    def fit(self, X, y):
        self.classes_, counts = np.unique([t for row in y for t in row], return_counts=True)
        counts = counts + self.smoothing
        self.share_ = counts / counts.sum()
        return self

    def predict(self, X):
        return [[self.classes_[self.share_.argmax()]] * len(x) for x in X]

    def predict_proba(self, X):
        return [np.tile(self.share_, (len(x), 1)) for x in X]

    def log_likelihood(self, X, y):
        place = {label: k for k, label in enumerate(self.classes_)}
        return np.array([sum(np.log(self.share_[place[t]]) for t in row) for row in y])


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    sizes = rng.integers(2, 6, size=24)
    X = [list(range(n)) for n in sizes]
    return X, [["O" if rng.random() < 0.4 else "B-X" for _ in range(n)] for n in sizes]


def test_scorers_say_what_the_metrics_say(data):
    X, y = data
    model = Prior().fit(X, y)
    pred, proba, classes = model.predict(X), model.predict_proba(X), model.classes_
    want = {
        "token_accuracy": metrics.token_accuracy(y, pred),
        "neg_token_error": -metrics.token_error(y, pred),
        "neg_sequence_error": -metrics.sequence_error(y, pred),
        "span_f1": metrics.span_f1(y, pred),
        "neg_token_nll": -metrics.token_nll(y, proba, classes) / sum(map(len, y)),
        "neg_brier": -metrics.brier(y, proba, classes),
        "neg_ece": -metrics.ece(y, proba, classes),
        "log_likelihood": model.log_likelihood(X, y).mean(),
    }
    assert list(metrics.SCORERS) == list(want)
    for name, value in want.items():
        scorer = pickle.loads(pickle.dumps(metrics.get_scorer(name)))
        got = scorer(model, X, y)
        assert isinstance(got, float)
        assert got == pytest.approx(value, rel=1e-14), name


@pytest.mark.parametrize("name", metrics.SCORERS)
def test_scorers_serve_scikit_learn(name, data):
    X, y = data
    scorer = metrics.get_scorer(name)
    scores = cross_val_score(Prior(), X, y, cv=3, scoring=scorer)
    # without shuffling the folds are consecutive thirds
    for k, score in enumerate(scores):
        test = slice(8 * k, 8 * k + 8)
        rest = [i for i in range(24) if not test.start <= i < test.stop]
        model = Prior().fit([X[i] for i in rest], [y[i] for i in rest])
        assert score == pytest.approx(scorer(model, X[test], y[test]), rel=1e-14)
    search = GridSearchCV(Prior(), {"smoothing": [0.1, 1e4]}, cv=3, scoring=scorer, n_jobs=1)
    assert np.isfinite(search.fit(X, y).best_score_)


def test_a_better_fit_wins_the_search(data):
    X, y = data
    search = GridSearchCV(
        Prior(), {"smoothing": [1e4, 0.1]}, cv=3, scoring=metrics.get_scorer("log_likelihood")
    )
    assert search.fit(X, y).best_params_ == {"smoothing": 0.1}


def test_span_scorer_reads_every_scheme():
    class Same:
        def predict(self, X):
            return X

    score = metrics.get_scorer("span_f1")
    assert score(Same(), [["B-X", "L-X", "U-X"]], [["B-X", "L-X", "O"]]) == pytest.approx(2 / 3)


def test_unknown_scorer():
    with pytest.raises(InputError, match="unknown scorer 'f1'; known are token_accuracy, "):
        metrics.get_scorer("f1")
