"""CRF++ templates against an expansion by string formatting, one name at a time."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import seqfield
from seqfield.data.conll import read_conll
from seqfield.errors import FormatError, InputError
from seqfield.features.template import Template, parse_template

DATA = os.environ.get("SEQFIELD_DATA")
corpus = pytest.mark.skipif(DATA is None, reason="SEQFIELD_DATA is not set")

TEMPLATE = """
# words, four tokens to each side
U00:%x[-4,0]
U01:%x[0,0]
U02:%x[4,0]
U03:%x[-1,0]/%x[0,0]|%x[1,0]
  U04:%x[-3,1]/%x[3,2]

# a bag of the neighbours' tags: lines with the same text share features
U:%x[-1,1]
U:%x[1,1]
U:%x[1,1]
U05
U06:%x[0,1]%x[0,2]:end
B
B01:%x[0,1]
B02:%x[-1,1]/%x[2,0]
"""


def expand(text, kind, rows):
    """Names of the features of each token, written out as CRF++ would."""

    def value(row, column):
        if row < 0:
            return f"_B{row}"
        if row >= len(rows):
            return f"_B+{row - len(rows) + 1}"
        return rows[row][column]

    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line.startswith(kind) and line != "B"]
    return [
        [
            re.sub(r"%x\[(-?\d+),(\d+)\]", lambda m, t=t: value(t + int(m[1]), int(m[2])), line)
            for line in lines
        ]
        for t in range(len(rows))
    ]


def expand_all(text, kind, X):
    return [names for rows in X for names in expand(text, kind, rows)]


def random_rows(seed, n_words=6, n=30):
    r = random.Random(seed)
    alphabets = [[f"{c}{k}" for k in range(n_words)] for c in "wtc"]
    return [
        [tuple(r.choice(a) for a in alphabets) for _ in range(r.choice([1, 1, 2, 3, 5, 9]))]
        for _ in range(n)
    ]


def spelt(matrix, names):
    """Names of each row's features, with their counts."""
    return [
        Counter(names[k] for k in matrix.indices[a:b])
        for a, b in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    ]


def only(expected, known):
    return [Counter(name for name in names if name in known) for names in expected]


def same(a, b):
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a.indptr, b.indptr)
    np.testing.assert_array_equal(a.indices, b.indices)
    np.testing.assert_array_equal(a.data, b.data)


@pytest.mark.parametrize("min_freq", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_expansion(seed, min_freq):
    X = random_rows(seed)
    template = Template(TEMPLATE, min_freq=min_freq)
    learned = template.fit_transform(X)
    names, edge_names = template.names(), template.edge_names()
    assert len(set(names)) == len(names)
    assert len(set(edge_names)) == len(edge_names)
    for kind, matrix, known in (("U", learned.x, names), ("B", learned.edge, edge_names)):
        expected = expand_all(TEMPLATE, kind, X)
        counts = Counter(name for row in expected for name in row)
        assert set(known) == {name for name, n in counts.items() if n >= min_freq}
        assert spelt(matrix, known) == only(expected, set(known))
        falling = [counts[name] for name in known]
        assert falling == sorted(falling, reverse=True)
        assert matrix.dtype == np.int8
        assert matrix.indices.dtype == np.int32
    again = template.transform(X)
    same(again.x, learned.x)
    same(again.edge, learned.edge)


@pytest.mark.parametrize("seed", range(4))
def test_unseen_values_are_dropped(seed):
    template = Template(TEMPLATE).fit(random_rows(seed, n_words=4))
    X = random_rows(seed + 100, n_words=7)
    encoded = template.transform(X)
    names, edge_names = template.names(), template.edge_names()
    assert spelt(encoded.x, names) == only(expand_all(TEMPLATE, "U", X), set(names))
    assert spelt(encoded.edge, edge_names) == only(expand_all(TEMPLATE, "B", X), set(edge_names))
    assert encoded.x.shape == (encoded.n_tokens, len(names))


def test_a_feature_twice_at_one_token_counts_twice():
    encoded = Template("U:%x[-1,0]\nU:%x[1,0]").fit_transform([["a", "b", "a"]])
    assert encoded.x.toarray().max() == 2


def test_values_are_compared_one_by_one():
    template = Template("U:%x[0,0]/%x[0,1]").fit([[("a/b", "c"), ("a", "b/c")]])
    assert template.names() == ["U:a/b/c", "U:a/b/c"]


def test_a_value_spelt_like_a_boundary_symbol_is_that_symbol():
    template = Template("U:%x[-1,0]").fit([["_B-1", "x"]])
    assert template.names() == ["U:_B-1"]


@pytest.mark.parametrize(
    ("text", "transitions", "has_edge"),
    [
        ("U0:%x[0,0]", False, False),
        ("U0:%x[0,0]\nB", True, False),
        ("U0:%x[0,0]\nB5", True, False),
        ("U0:%x[0,0]\nB0:%x[0,0]", True, True),
        ("U0:%x[0,0]\nB\nB0:%x[0,0]", True, True),
    ],
)
def test_kinds_of_b_lines(text, transitions, has_edge):
    template = Template(text)
    encoded = template.fit_transform([["a", "b"]])
    assert template.transitions_ is transitions
    assert (encoded.edge is not None) is has_edge
    assert template.edge_names() == (["B0:a", "B0:b"] if has_edge else [])


def test_comments_and_blank_lines():
    lines = parse_template("# U9:%x[0,0]\n\n\tU1:%x[0,0] \r\n  # more\nB\n")
    assert [(line.number, line.kind, line.pieces) for line in lines] == [
        (3, "U", ("U1:", "")),
        (5, "B", ("B",)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("U0:%x[0,0]\nX1:%x[0,0]", "<template>:2: a template starts with U or B"),
        ("U0:%x[0]\n", "<template>:1: malformed macro"),
        ("#\nU0:%x[0,-1]\n", "<template>:2: malformed macro"),
        ("U0:%y[0,0]\n", "<template>:1: malformed macro"),
        ("U0:%x[a,0]\n", "<template>:1: malformed macro"),
        ("# nothing\n\n", "<template>: the template has no lines"),
    ],
)
def test_malformed_templates(text, message):
    with pytest.raises(FormatError, match=re.escape(message)):
        Template(text).fit([["a"]])


def test_missing_file_and_file_name_in_messages(tmp_path):
    path = tmp_path / "template"
    with pytest.raises(FormatError, match="cannot read the template"):
        Template(path).fit([["a"]])
    path.write_text("U0:%x[0,0]\n\nU1:%x[0,2]\nB\n")
    rows = [[("a", "b", "c")], [("a", "b", "c"), ("a", "b")]]
    with pytest.raises(FormatError) as caught:
        Template(path).fit(rows)
    assert str(caught.value).startswith(f"{path}:3: the template uses column 2")
    assert "sequence 1, position 1 is ('a', 'b')" in str(caught.value)
    template = Template(str(path)).fit(rows[:1])
    with pytest.raises(FormatError, match=r":3: .*sequence 0, position 0 is 'a'"):
        template.transform([["a"]])


@pytest.mark.parametrize("bad", [("b",), "bc", ("b", 3), ("b", None), ("b", ["c"]), {"b": "c"}])
def test_bad_rows_are_named(bad):
    with pytest.raises(InputError, match="sequence 1, position 2"):
        Template("U:%x[0,0]/%x[0,1]").fit([[("a", "b")], [("a", "b"), ["a", "b"], bad]])


@pytest.mark.parametrize("arguments", [{"min_freq": 0}, {"hash_bits": 0}, {"hash_bits": 31}])
def test_bad_arguments(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        Template("U:%x[0,0]", **arguments).fit([["a"]])


@pytest.mark.parametrize("X", [[], [[]], [["a"], []], 3])
def test_empty_input(X):
    with pytest.raises(InputError):
        Template("U:%x[0,0]").fit(X)


@pytest.mark.parametrize("hash_bits", [None, 10])
def test_state_round_trip(hash_bits):
    X = random_rows(0)
    template = Template(TEMPLATE, min_freq=2, hash_bits=hash_bits)
    learned = template.fit_transform(X)
    header, arrays = template.state()
    restored = Template.restore(json.loads(json.dumps(header)), arrays)
    assert restored.names() == template.names()
    assert restored.edge_names() == template.edge_names()
    assert restored.transitions_ == template.transitions_
    again = restored.transform(X)
    same(again.x, learned.x)
    same(again.edge, learned.edge)


@pytest.mark.parametrize("table", ["node", "edge"])
@pytest.mark.parametrize("spoil", ["group", "value", "negative", "shape", "dtype", "strings"])
def test_restore_checks_every_number(table, spoil):
    template = Template(TEMPLATE).fit(random_rows(0))
    header, arrays = template.state()
    combos = arrays[table].copy()
    if spoil == "group":
        combos[3, 0] = 100
    elif spoil == "value":
        combos[3, 1] = 10_000
    elif spoil == "negative":
        combos[3, 1] = -1
    elif spoil == "shape":
        combos = combos[:, :-1]
    elif spoil == "dtype":
        combos = combos.astype(np.int64)
    else:
        arrays = arrays | {"bytes": arrays["bytes"][:-1]}
    with pytest.raises(InputError):
        Template.restore(header, arrays | {table: combos})


def test_hashing_keeps_features_apart():
    X = random_rows(1)
    exact = Template(TEMPLATE).fit_transform(X).x
    hashed = Template(TEMPLATE, hash_bits=24)
    x = hashed.fit_transform(X).x
    assert x.shape == (exact.shape[0], 1 << 24)
    # with no collision there is one column for each feature, and the products are the same
    assert len(np.unique(x.indices)) == exact.shape[1]
    a, b = exact.astype(float), x.astype(float)
    np.testing.assert_array_equal((a @ a.T).toarray(), (b @ b.T).toarray())


def run(script, **environment):
    """Standard output of a Python process that imports this seqfield."""
    source = str(Path(seqfield.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=os.environ | {"PYTHONPATH": source} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("hash_bits", [None, 12])
def test_encoding_is_equal_in_every_process(hash_bits):
    script = (
        "from seqfield.features.template import Template\n"
        "X = [[('the', 'DT'), ('cat', 'NN'), ('naïve', 'JJ')], [('cat', 'NN')]]\n"
        f"x = Template('U:%x[-1,0]/%x[0,1]\\nU1:%x[0,0]', hash_bits={hash_bits}).fit_transform(X)\n"
        "print(x.x.indices.tolist())"
    )
    first, second = (run(script, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second
    assert len(first) > 10


@corpus
@pytest.mark.corpus
@pytest.mark.parametrize(
    ("folder", "file", "count"),
    [
        ("basenp", "train.data", 2143),
        ("chunking", "train.data", 2112),
        ("seg", "train.data", 691),
        ("JapaneseNE", "train.utf8.data", 6030),
    ],
)
def test_feature_counts_of_crfpp(folder, file, count):
    """What crf_learn -f 3 reports, divided by the number of labels."""
    path = Path(DATA) / "crfpp" / folder
    X, _ = read_conll(path / file)
    assert len(Template(path / "template", min_freq=3).fit(X).names()) == count


@corpus
@pytest.mark.corpus
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_speed_and_memory():
    # processor time: a busy machine must not fail the test
    script = f"""
import re, time
from pathlib import Path
from seqfield.data.conll import read_conll
from seqfield.features.template import Template
status = Path("/proc/self/status").read_text
X, _ = read_conll(Path({DATA!r}) / "conll2000" / "train.txt.gz")
template = Template(Path({DATA!r}) / "crfpp" / "chunking" / "template")
template.fit(X[:2]).transform(X[:2])
resident = int(re.search(r"VmRSS:\\s+(\\d+)", status())[1])
start = time.process_time()
template.fit_transform(X)
seconds = time.process_time() - start
peak = int(re.search(r"VmHWM:\\s+(\\d+)", status())[1])
print(seconds, (peak - resident) / 1000)
"""
    seconds, megabytes = map(float, run(script).split())
    assert seconds < 3
    assert megabytes < 700
