"""Windows and spans of a chain against enumeration of all labellings."""

import numpy as np
import pytest

from seqfield import chain
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import get_scheme, span_codes, spans
from seqfield.errors import InputError

LABELS = {
    "BIO": ["O", "B-x", "I-x", "B-y", "I-y"],
    "IOB1": ["O", "I-x", "B-x", "I-y"],
    "BIOES": ["O", "B-x", "I-x", "E-x", "S-x"],
    "BILOU": ["B-y", "O", "L-y", "I-y", "U-y", "U-x"],
    "bare": ["I", "O", "B"],
}


def random_scores(names, lengths, seed, *, moving=False, lawful=None):
    rng = np.random.default_rng(seed)
    s, n = len(names), sum(lengths)
    edge = 2 * rng.normal(size=(n, s, s) if moving else (s, s))
    start, end = rng.normal(size=(2, s))
    if lawful is not None:
        allowed = get_scheme(lawful).transitions(names)
        edge[..., ~allowed.pairs] = -np.inf
        start[~allowed.start] = -np.inf
        end[~allowed.end] = -np.inf
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return chain.ChainScores(2 * rng.normal(size=(n, s)), edge, offsets, start, end)


def all_spans(scores, names, i):
    """The probability of every span that some labelling of sequence i has."""
    found, out = enumerate_labellings(scores, i), {}
    for codes, p in zip(found.labels, found.probabilities, strict=True):
        for span in spans([names[k] for k in codes]):
            out[span] = out.get(span, 0.0) + p
    return out


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("name", LABELS)
def test_spans_against_enumeration(name, moving):
    names = LABELS[name]
    codes = span_codes(names)
    lawful = name if name in ("BIO", "BIOES") else None
    scores = random_scores(names, [3, 1, 4], 7, moving=moving, lawful=lawful)
    for i in range(3):
        wanted, a = all_spans(scores, names, i), int(scores.offsets[i])
        rows = [(i, codes.kinds.index(k), a + s, a + e - 1) for k, s, e in wanted]
        np.testing.assert_allclose(
            chain.span_prob(scores, codes, rows), list(wanted.values()), rtol=1e-10, atol=1e-14
        )


@pytest.mark.parametrize("least", [1e-6, 0.02, 0.3])
@pytest.mark.parametrize("name", LABELS)
def test_likely_spans_are_all_of_them(name, least):
    names = LABELS[name]
    codes = span_codes(names)
    scores = random_scores(names, [3, 1, 4, 2], 3)
    found = chain.likely_spans(scores, codes, least)
    got = {}
    for (i, k, first, last), p in zip(found.rows.tolist(), found.probability, strict=True):
        a = scores.offsets[i]
        got[i, codes.kinds[k], first - a, last + 1 - a] = p
    wanted = {
        (i, *span): p
        for i in range(4)
        for span, p in all_spans(scores, names, i).items()
        if p >= least
    }
    assert got.keys() == wanted.keys()
    np.testing.assert_allclose([got[key] for key in wanted], list(wanted.values()), rtol=1e-10)


def test_more_spans_than_tokens_are_found():
    names = LABELS["BIO"]
    scores = random_scores(names, [5], 1)
    found = chain.likely_spans(scores, span_codes(names), 1e-6)
    wanted = [p for p in all_spans(scores, names, 0).values() if p >= 1e-6]
    assert len(found.rows) == len(wanted) > 5


@pytest.mark.parametrize("moving", [False, True])
def test_windows_against_enumeration(moving):
    rng = np.random.default_rng(2)
    scores = random_scores("abc", [4, 2, 3], 5, moving=moving)
    first, sets, wanted = [], [], []
    for i in (2, 0, 1, 0):  # in any order
        a, b = scores.offsets[i : i + 2]
        for s in range(a, b):
            for e in range(s + 1, b + 1):
                allowed = rng.random((e - s, 3)) < 0.7
                found = enumerate_labellings(scores, i)
                inside = allowed[np.arange(e - s), found.labels[:, s - a : e - a]].all(axis=1)
                first.append(s)
                sets.append(allowed)
                wanted.append(found.probabilities[inside].sum())
    np.testing.assert_allclose(
        chain.window_prob(scores, first, sets), wanted, rtol=1e-10, atol=1e-14
    )


def test_no_queries():
    scores = random_scores(LABELS["BIO"], [2], 0)
    assert chain.window_prob(scores, [], []).shape == (0,)
    assert chain.span_prob(scores, span_codes(LABELS["BIO"]), []).shape == (0,)


def test_far_scores_lose_nothing():
    """A span whose labels have scores far apart, as in log space."""
    names = LABELS["BIO"]
    scores = random_scores(names, [4], 1)
    scores = chain.ChainScores(
        300 * scores.node, 300 * scores.edge, scores.offsets, scores.start, scores.end
    )
    codes, wanted = span_codes(names), all_spans(scores, names, 0)
    rows = [(0, codes.kinds.index(k), s, e - 1) for k, s, e in wanted]
    np.testing.assert_allclose(
        chain.span_prob(scores, codes, rows), list(wanted.values()), rtol=1e-9, atol=1e-300
    )


def test_results_do_not_depend_on_threads():
    names = LABELS["BIO"]
    scores = random_scores(names, [7] * 400, 4)
    one, two = (chain.likely_spans(scores, span_codes(names), 0.1, n_jobs=n) for n in (1, 2))
    np.testing.assert_array_equal(one.rows, two.rows)
    np.testing.assert_array_equal(one.probability, two.probability)


def test_a_probability_to_look_for_has_a_floor():
    with pytest.raises(InputError, match="least must be"):
        chain.likely_spans(random_scores("OB", [2], 0), span_codes(["O", "B"]), 0.0)
