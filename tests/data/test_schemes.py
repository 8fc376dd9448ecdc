import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqfield.data.schemes import (
    convert,
    get_scheme,
    spans,
    table_transitions,
)
from seqfield.errors import SchemeError

TAGS = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES", "BILOU": "BILU"}
NAMES = list(TAGS)


def alphabet(name, kinds=("X", "Y")):
    return ["O", *(f"{tag}-{kind}" for kind in kinds for tag in TAGS[name])]


def sequences(name, max_size=12):
    return st.lists(st.sampled_from(alphabet(name)), max_size=max_size)


@st.composite
def span_lists(draw):
    """Spans in order, with gaps of any length, and the length of the sequence."""
    found, at = [], 0
    for gap, size, kind in draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(["", "X", "a-b"])),
            max_size=6,
        )
    ):
        found.append((kind, at + gap, at + gap + size))
        at += gap + size
    return found, at + draw(st.integers(0, 2))


def textbook(name, labels):
    """Whether the labels are exactly how the scheme's definition writes some set of spans."""

    def write(found, length):
        out = ["O"] * length
        for k, (kind, start, end) in enumerate(found):
            for t in range(start, end):
                first, last = t == start, t == end - 1
                touching = k > 0 and found[k - 1][0] == kind and found[k - 1][2] == start
                if name == "BIO":
                    tag = "B" if first else "I"
                elif name == "IOB1":
                    tag = "B" if first and touching else "I"
                else:
                    one, end_tag = ("S", "E") if name == "BIOES" else ("U", "L")
                    tag = one if first and last else "B" if first else end_tag if last else "I"
                out[t] = f"{tag}-{kind}"
        return out

    length = len(labels)
    cuts = range(length + 1)

    # every way to lay typed spans over the positions
    def layouts(at):
        yield []
        for start in cuts[at:-1]:
            for end in range(start + 1, length + 1):
                for kind, rest in itertools.product("XY", layouts(end)):
                    yield [(kind, start, end), *rest]

    return any(write(found, length) == labels for found in layouts(0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_valid_means_written_by_the_definition(name, length):
    scheme = get_scheme(name)
    for labels in itertools.product(alphabet(name), repeat=length):
        assert (not scheme.violations(labels)) == textbook(name, list(labels)), labels


@pytest.mark.parametrize("name", NAMES)
def test_transitions_agree_with_violations(name):
    scheme, labels = get_scheme(name), alphabet(name)
    allowed = scheme.transitions(labels)
    assert allowed.start.shape == allowed.end.shape == (len(labels),)
    rng = np.random.default_rng(0)
    for _ in range(300):
        path = rng.integers(len(labels), size=rng.integers(1, 8))
        bad = {0} if not allowed.start[path[0]] else set()
        bad |= {t for t in range(1, len(path)) if not allowed.pairs[path[t - 1], path[t]]}
        bad |= {len(path) - 1} if not allowed.end[path[-1]] else set()
        assert scheme.violations([labels[k] for k in path]) == sorted(bad)


def test_transitions_by_hand():
    allowed = get_scheme("IOBES").transitions(["O", "B-X", "I-X", "E-X", "S-X", "E-Y"])
    assert allowed.start.tolist() == [True, True, False, False, True, False]
    assert allowed.end.tolist() == [True, False, False, True, True, True]
    assert allowed.pairs.astype(int).tolist() == [
        [1, 1, 0, 0, 1, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 0],
    ]
    allowed = get_scheme("IOB1").transitions(["O", "B-X", "I-X", "B-Y", "I-Y"])
    assert allowed.start.tolist() == [True, False, True, False, True]
    assert allowed.end.all()
    assert allowed.pairs.astype(int).tolist() == [
        [1, 0, 1, 0, 1],
        [1, 1, 1, 0, 1],
        [1, 1, 1, 0, 1],
        [1, 0, 1, 1, 1],
        [1, 0, 1, 1, 1],
    ]


def test_bare_tags_have_the_empty_type():
    scheme = get_scheme("BIO")
    assert scheme.transitions(["B", "I", "O"]).pairs.astype(int).tolist() == [
        [1, 1, 1],
        [1, 1, 1],
        [1, 0, 1],
    ]
    # O has no type: it does not agree with the empty one
    assert get_scheme("IOB1").violations(["B", "I", "B", "O", "B"]) == [0, 4]
    assert scheme.repair(["I", "I", "O", "I"]) == ["B", "I", "O", "B"]
    assert spans(["B", "I", "O", "B", "B"]) == [("", 0, 2), ("", 3, 4), ("", 4, 5)]
    assert spans(["B", "I-X"]) == [("", 0, 1), ("X", 1, 2)]


def test_the_first_dash_splits():
    assert spans(["B-a-b", "I-a-b", "I-a"]) == [("a-b", 0, 2), ("a", 2, 3)]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_repair_gives_valid_labels_of_the_same_spans_and_settles(name, data):
    scheme = get_scheme(name)
    labels = data.draw(sequences(name))
    repaired = scheme.repair(labels)
    assert scheme.violations(repaired) == []
    assert spans(repaired, scheme) == spans(labels, scheme)
    assert scheme.repair(repaired) == repaired
    if not scheme.violations(labels):
        assert repaired == labels


@given(sequences("BIO"))
def test_repair_of_bio_changes_only_the_offending_labels(labels):
    scheme = get_scheme("BIO")
    bad = set(scheme.violations(labels))
    for t, (old, new) in enumerate(zip(labels, scheme.repair(labels), strict=True)):
        assert new == (f"B{old[1:]}" if t in bad else old)


def test_repair_by_hand():
    assert get_scheme("BIOES").repair(["I-X", "O", "B-X", "S-X", "E-Y", "B-Y", "I-Y"]) == [
        *("S-X", "O", "S-X", "S-X", "S-Y", "B-Y", "E-Y")
    ]
    assert get_scheme("IOB1").repair(["B-X", "I-X", "B-X", "B-Y"]) == ["I-X", "I-X", "B-X", "I-Y"]


def test_missing_labels_are_not_judged_and_stay_missing():
    scheme = get_scheme("BIO")
    assert scheme.violations(["B-X", None, "I-X", None]) == []
    assert scheme.repair([None, "I-X"]) == [None, "I-X"]
    assert scheme.repair(["I-X", None, "I-X"]) == ["B-X", None, "B-X"]
    assert spans(["B-X", None, "I-X"]) == [("X", 0, 1), ("X", 2, 3)]
    assert convert(["B-X", None, "B-X", "I-X"], "BIO", "BILOU") == ["U-X", None, "B-X", "L-X"]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(NAMES, NAMES)))
@given(drawn=span_lists())
def test_spans_survive_every_conversion(source, target, drawn):
    found, length = drawn
    labels = get_scheme(source).encode(found, length)
    assert get_scheme(source).violations(labels) == []
    assert spans(labels) == spans(labels, source) == found
    converted = convert(labels, source, target)
    assert get_scheme(target).violations(converted) == []
    assert spans(converted, target) == found
    assert convert(converted, target, source) == labels


def test_empty_sequences():
    for name in NAMES:
        scheme = get_scheme(name)
        assert scheme.violations([]) == []
        assert scheme.repair([]) == []
        assert scheme.transitions([]).pairs.shape == (0, 0)
    assert spans([]) == []


def test_names():
    assert get_scheme("iob2") is get_scheme("BIO")
    assert get_scheme("IobES") is get_scheme("bioes")
    scheme = get_scheme("BILOU")
    assert get_scheme(scheme) is scheme
    assert pickle.loads(pickle.dumps(scheme)) == copy.deepcopy(scheme) == scheme
    with pytest.raises(SchemeError, match=r"'BMES'.*BIO, IOB1, BIOES, BILOU, IOB2, IOBES"):
        get_scheme("BMES")


@pytest.mark.parametrize(
    "label", ["NN", "X-NP", "", "-NP", "B-", "O-NP", "b-NP", "BI-X", 3, "E-NP"]
)
def test_labels_of_another_form_are_named(label):
    scheme = get_scheme("BIO")
    for call in (scheme.transitions, scheme.violations, scheme.repair):
        with pytest.raises(SchemeError, match=f"{label!r} is not a BIO label"):
            call(["O", label])
    with pytest.raises(SchemeError, match=f"{label!r} is not a BIO label"):
        spans(["O", label], "BIO")


def test_without_a_scheme_spans_reads_all_of_them_but_nothing_else():
    assert spans(["B-X", "L-X", "U-X", "S-X", "E-X"]) == [
        *(("X", 0, 2), ("X", 2, 3), ("X", 3, 4), ("X", 4, 5))
    ]
    with pytest.raises(SchemeError, match="'NN' is not a span label"):
        spans(["NN"])


def test_table():
    labels = ["a", ("b", 1), 3]
    allowed = table_transitions({("a", 3), (3, "a"), (None, 3), ("a", None)}, labels)
    assert allowed.start.tolist() == [False, False, True]
    assert allowed.end.tolist() == [True, False, False]
    assert np.argwhere(allowed.pairs).tolist() == [[0, 2], [2, 0]]


def test_table_without_starts_and_ends_allows_all():
    allowed = table_transitions([("a", "b")], ["a", "b"])
    assert allowed.start.all()
    assert allowed.end.all()
    assert allowed.pairs.sum() == 1
    one_sided = table_transitions([(None, "a"), ("a", "b")], ["a", "b"])
    assert one_sided.start.tolist() == [True, False]
    assert one_sided.end.all()


@pytest.mark.parametrize("entry", [1, "ab", ("a", "b", "a"), (["a"], "b"), ()])
def test_a_table_has_pairs(entry):
    with pytest.raises(SchemeError, match=r"pairs .from, to. of labels, not "):
        table_transitions([("a", "b"), entry], ["a", "b"])


def test_table_as_a_dict():
    table = {None: ["a"], "a": {"a", "b"}, "b": [None]}
    pairs = [(None, "a"), ("a", "a"), ("a", "b"), ("b", None)]
    for got, want in zip(
        table_transitions(table, ["a", "b"]), table_transitions(pairs, ["a", "b"]), strict=True
    ):
        assert np.array_equal(got, want)
    with pytest.raises(SchemeError, match="follow 'a' must be a list or set of labels: 'b'"):
        table_transitions({"a": "b"}, ["a", "b"])


@pytest.mark.parametrize("pair", [("a", "z"), ("z", "a"), (None, "z"), ("z", None)])
def test_table_with_an_unknown_label(pair):
    with pytest.raises(SchemeError, match="unknown label: 'z'"):
        table_transitions([pair], ["a", "b"])


def test_table_of_a_scheme_is_the_scheme():
    labels = alphabet("BIOES")
    scheme = get_scheme("BIOES")
    table = [
        (a, b)
        for a, b in itertools.product([None, *labels], repeat=2)
        if not scheme_step_is_bad(scheme, a, b)
    ]
    for got, want in zip(table_transitions(table, labels), scheme.transitions(labels), strict=True):
        assert np.array_equal(got, want)


def scheme_step_is_bad(scheme, a, b):
    opening = {"I": "B", "E": "B"}
    closing = {"B": "E", "I": "E"}
    before = [] if a is None else [a] if a[0] not in opening else [opening[a[0]] + a[1:], a]
    after = [] if b is None else [b] if b[0] not in closing else [b, closing[b[0]] + b[1:]]
    return bool(scheme.violations([*before, *after]))
