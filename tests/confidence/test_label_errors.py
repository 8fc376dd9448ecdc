"""Suspect labels against cleanlab, and on labels that were made wrong."""

from __future__ import annotations

import numpy as np
import pytest
from cleanlab.token_classification.filter import find_label_issues
from cleanlab.token_classification.rank import get_label_quality_scores

import seqfield as sf
from seqfield.confidence import SuspectLabel
from seqfield.errors import InputError

NAMES = ["A", "B", "C"]


def random_case(n=30, seed=0):
    """Words that tell nothing, labels, and probabilities that tend to the labels."""
    rng = np.random.default_rng(seed)
    codes = [rng.integers(3, size=length) for length in rng.integers(1, 7, n)]
    proba = [rng.dirichlet(np.ones(3), len(row)) + 0.5 * np.eye(3)[row] for row in codes]
    proba = [p / p.sum(axis=1, keepdims=True) for p in proba]
    return [["w"] * len(row) for row in codes], codes, proba


def named(codes):
    return [[NAMES[k] for k in row] for row in codes]


def flipped(n=150, share=0.03, seed=0):
    """Ingredient lines of which some labels are made wrong; where, as (sequence, position)."""
    X, y = sf.load_ingredients("train")
    rng = np.random.default_rng(seed)
    y = [list(row) for row in y[:n]]
    names = sorted({v for row in y for v in row})
    places = [(i, t) for i, row in enumerate(y) for t in range(len(row))]
    wrong = [places[k] for k in rng.choice(len(places), round(share * len(places)), False)]
    for i, t in wrong:
        y[i][t] = rng.choice([v for v in names if v != y[i][t]])
    return X[:n], y, set(wrong)


@pytest.mark.parametrize("score", ["self_confidence", "normalized_margin"])
def test_scores_and_order_of_cleanlab(score):
    X, codes, proba = random_case()
    suspects = sf.label_errors(sf.CRF(), X, named(codes), proba=proba, score=score)
    labels = [row.tolist() for row in codes]
    of_sentence, of_tokens = get_label_quality_scores(labels, proba, token_score_method=score)
    assert len(suspects) > 20
    for s in suspects:
        assert s.score == pytest.approx(of_tokens[s.sequence].iloc[s.position], abs=1e-12)
    assert [s.score for s in suspects] == sorted(s.score for s in suspects)
    # what cleanlab keeps of them comes in the same order
    kept = find_label_issues(labels, proba, return_indices_ranked_by=score, n_jobs=1)
    places = [(s.sequence, s.position) for s in suspects]
    assert len(kept) > 5
    assert [place for place in places if place in set(kept)] == kept
    worst = sf.label_errors(sf.CRF(), X, named(codes), proba=proba, score=score, unit="sequence")
    order = np.argsort(of_sentence, kind="stable")
    assert [s.sequence for s in worst] == order.tolist()
    assert [s.score for s in worst] == pytest.approx(of_sentence[order])


def test_suggestions():
    X, y = [["u", "v"], ["w"]], [["A", "B"], ["B"]]
    proba = [np.array([[0.1, 0.9], [0.2, 0.8]]), np.array([[0.7, 0.3]])]
    assert sf.label_errors(sf.CRF(), X, y, proba=proba) == [
        SuspectLabel(0, 0, "A", "B", 0.1, 0.1),
        SuspectLabel(1, 0, "B", "A", 0.3, 0.3),
    ]


def test_missing_labels_and_candidates():
    X, y = [["t"] * 4], [["A", None, {"A", "B"}, {"A", "C"}]]
    p = np.array([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.2, 0.1, 0.7], [0.1, 0.3, 0.6]])
    model = sf.CRF(classes=NAMES)
    (found,) = sf.label_errors(model, X, y, proba=[p])
    assert (found.position, found.label, found.suggestion) == (2, {"A", "B"}, "C")
    assert found.probability == pytest.approx(0.3)
    hidden = [["A", "?", {"A", "B"}, {"A", "C"}]]
    model.set_params(missing_label="?")
    assert sf.label_errors(model, X, hidden, proba=[p]) == [found]


def test_wrong_labels_are_found():
    X, y, wrong = flipped()
    model = sf.CRF(c2=0.3)
    ranked = {m: sf.label_errors(model, X, y, method=m) for m in ("cross_val", "leave_one_out")}
    places = {m: [(s.sequence, s.position) for s in rows] for m, rows in ranked.items()}
    n = len(wrong)
    for found in places.values():
        assert len(wrong & set(found[: 2 * n])) > 0.7 * n
        assert len(wrong & set(found)) > 0.9 * n
    first, second = (set(found[: 2 * n]) for found in places.values())
    assert len(first & second) > 0.75 * 2 * n
    assert all(y[s.sequence][s.position] == s.label != s.suggestion for s in ranked["cross_val"])


def test_leave_one_out_takes_a_fitted_model():
    X, y, _ = flipped(60)
    model = sf.CRF(c2=0.3).fit(X, y)
    proba = sf.leave_one_out_proba(model, X, y).proba
    found = sf.label_errors(model, X, y, method="leave_one_out")
    assert found == sf.label_errors(model, X, y, proba=proba)


def test_bad_arguments():
    X, codes, proba = random_case()
    y = named(codes)
    for options, message in (
        ({"method": "jackknife"}, "method must be"),
        ({"score": "entropy"}, "score must be"),
        ({"unit": "document"}, "unit must be"),
        ({"proba": proba[1:]}, "X has 30 sequences but proba has 29"),
        ({"proba": [p[:, :2] for p in proba]}, "sequence 0: probabilities of shape"),
    ):
        with pytest.raises(InputError, match=message):
            sf.label_errors(sf.CRF(), X, y, **options)
