"""Column files that are written: what comes back, and what is refused."""

from __future__ import annotations

import gzip
import io
import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqfield as sf
from seqfield.data.conll import joined, read_conll, read_document, write_conll
from seqfield.errors import InputError, LabelError

WORDS = [["Ana", "sang"], ["no"]]
LABELS = [["B-PER", "O"], ["O"]]


def written(X, y=None, **options):
    out = io.StringIO()
    write_conll(out, X, y, **options)
    return out.getvalue()


def test_labels_are_one_column():
    assert written(WORDS, LABELS) == "Ana B-PER\nsang O\n\nno O\n\n"
    rows = [[("Ana", "NP"), ("sang", "V")], [("no", "I")]]
    assert written(rows, LABELS) == "Ana NP B-PER\nsang V O\n\nno I O\n\n"
    assert written([list(map(list, row)) for row in rows], LABELS) == written(rows, LABELS)
    assert written(WORDS) == "Ana\nsang\n\nno\n\n"


@pytest.mark.parametrize(
    "X",
    [
        [[("Ana",), ("sang",)], [("no",)]],
        [[("Ana", "a\u3000", "1"), ("sang", "\x0b", "2")], [("no", "\u00a0", "3")]],
        [[("New York", "x"), ("is  big", "y")], [("#", "z z")]],
    ],
)
def test_what_is_written_comes_back(tmp_path, X):
    text = written(X, LABELS)
    assert read_conll(io.StringIO(text)) == (X, LABELS)
    for name in ("a.txt", "a.txt.gz"):
        write_conll(tmp_path / name, X, LABELS)
        assert read_conll(tmp_path / name) == (X, LABELS)
        write_conll(str(tmp_path / name), X, LABELS, encoding="utf-16")
        assert read_conll(tmp_path / name) == (X, LABELS)
    assert gzip.decompress((tmp_path / "a.txt.gz").read_bytes()).decode("utf-16") == text


# no blanks alone, no letters that part lines or columns: those are refused
CELL = st.text(
    st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1
).filter(lambda cell: cell == cell.strip(" ") and not cell.startswith("\ufeff"))


@given(st.data())
def test_whatever_is_written_comes_back(data):
    width = data.draw(st.integers(1, 3))
    row = st.tuples(*[CELL] * width)
    X = data.draw(st.lists(st.lists(row, min_size=1, max_size=3), min_size=1, max_size=3))
    label = st.one_of(st.none(), CELL.filter(lambda cell: cell != "?"))
    y = [data.draw(st.lists(label, min_size=len(rows), max_size=len(rows))) for rows in X]
    text = io.StringIO(written(X, y))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqfield.data.conll._reading._HEADINGS", set())
        assert read_conll(text, missing="?") == (X, y)


def test_a_single_column():
    assert written(WORDS) == "Ana\nsang\n\nno\n\n"
    X = [[("New York",), ("is",)], [("big",)]]
    assert written(X) == "New York\t\nis\t\n\nbig\t\n\n"
    assert read_conll(io.StringIO(written(X)), label=None) == (X, None)


def test_labels_of_other_kinds_are_written_as_text():
    y = [[1, np.int64(2)], [0.5]]
    assert written(WORDS, y) == "Ana 1\nsang 2\n\nno 0.5\n\n"
    assert written(WORDS, [np.array([True, False]), (np.str_("x"),)]) == (
        "Ana True\nsang False\n\nno x\n\n"
    )
    assert written(WORDS, [pd.Series(["a", "b"]), pd.Series(["c"])]) == "Ana a\nsang b\n\nno c\n\n"


def test_missing_labels():
    y = [["B-PER", None], None]
    assert written(WORDS, y) == "Ana B-PER\nsang ?\n\nno ?\n\n"
    text = written(WORDS, y, missing="_")
    assert text == "Ana B-PER\nsang _\n\nno _\n\n"
    assert read_conll(io.StringIO(text), missing="_")[1] == [["B-PER", None], [None]]
    assert written(WORDS, [["?", "O"], ["O"]]).startswith("Ana ?\n")  # a label, if none is missing


REFUSED = {
    "a string": ("Ana sang", None, "X is the string 'Ana sang'"),
    "a list of strings": (["Ana", "sang"], None, "sequence 0 of X is the string 'Ana'"),
    "no sequences": ([], None, "no sequences"),
    "an empty sequence": ([["a"], []], None, "sequence 1 is empty"),
    "dicts": ([["a"], [{"w": "b"}]], None, "sequence 1, position 0: .* got {'w': 'b'}"),
    "numbers": ([np.eye(2)], None, "sequence 0, position 0"),
    "a number in a row": ([[("a", 3)]], None, "sequence 0, position 0: .* got"),
    "no columns": ([[()]], None, "sequence 0, position 0"),
    "more columns": ([[("a",), ("b", "c")]], None, "sequence 0, position 1: 2 columns .* has 1"),
    "strings and rows": ([["a", ("b", "c")]], None, "sequence 0, position 1: 2 columns"),
    "an empty token": ([["a", ""]], [["x", "y"]], "sequence 0, position 1: '' cannot be read"),
    "a blank": ([["a"], [" "]], [["x"], ["y"]], "sequence 1, position 0: ' ' cannot"),
    "a blank at an end": ([["a "]], [["x"]], "position 0: 'a ' cannot"),
    "a tab": ([["a\tb"]], [["x"]], r"'a\\tb' cannot"),
    "a line end": ([["a\nb"]], [["x"]], r"'a\\nb' cannot"),
    "a carriage return": ([["a\r"]], [["x"]], r"'a\\r' cannot"),
    "NUL": ([["a\0"]], [["x"]], r"'a\\x00' cannot"),
    "a byte order mark": ([["\ufeffa"]], [["x"]], "'\\\\ufeffa' cannot"),
    "a document start": ([["a", "-DOCSTART-"]], [["x", "y"]], "position 1: '-DOCSTART-' cannot"),
    "an empty label": ([["a"]], [[""]], "sequence 0, position 0: '' cannot"),
    "too few labels": ([["a", "b"]], [["x"]], "sequence 0: X has 2 tokens but y has 1"),
    "too many rows": ([["a"]], [["x"], ["y"]], "X has 1 sequences but y has 2"),
    "a string of labels": ([["a", "b"]], ["xy"], r"y\[0\] must be a list of labels"),
    "candidates": ([["a"]], [[{"x", "y"}]], "set of candidates at sequence 0, position 0"),
    "a tuple as label": ([["a"]], [[("x",)]], "label .* at sequence 0, position 0"),
    "NaN": ([["a"]], [[float("nan")]], "NaN at sequence 0, position 0"),
    "a label like a missing one": ([["a", "b"]], [["?", None]], "'?' is both a label"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_again_is_refused(tmp_path, name):
    X, y, message = REFUSED[name]
    path = tmp_path / "a.txt"
    path.write_text("precious")
    with pytest.raises(InputError, match=message):
        write_conll(path, X, y)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["a.txt"]
    out = io.StringIO()
    with pytest.raises(InputError, match=message):
        write_conll(out, X, y)
    assert out.getvalue() == ""


def test_labels_are_to_blame_by_name():
    for y in ([[{"x", "y"}]], [[("x",)]], [["x", "y"]]):
        with pytest.raises(LabelError):
            written([["a"]], y)


@pytest.mark.parametrize("missing", ["", "a b\n", " ", None, 3])
def test_what_cannot_stand_for_a_missing_label(missing):
    with pytest.raises(InputError, match="missing"):
        written([["a"]], [[None]], missing=missing)


def test_places_that_cannot_be_written(tmp_path):
    for target in (None, 3, [["a"]]):
        with pytest.raises(InputError, match="path or an open text file"):
            write_conll(target, [["a"]])
    with pytest.raises(InputError, match="text file"):
        write_conll(io.BytesIO(), [["a"]])
    for name in ("a.conllu", "a.conllu.gz"):
        with pytest.raises(InputError, match=r"\.conllu"):
            write_conll(tmp_path / name, [["a"]])
    with pytest.raises(sf.SeqfieldError, match="cannot write"):
        write_conll(tmp_path / "none" / "a.txt", [["a"]])
    with pytest.raises(InputError, match="ASCII cannot hold 'é'"):
        write_conll(tmp_path / "a.txt", [["café"]], encoding="ascii")
    with pytest.raises(InputError, match="unknown encoding"):
        write_conll(tmp_path / "a.txt", [["a"]], encoding="no-such")
    assert not any(tmp_path.iterdir())


def test_rows_of_a_file_with_more_columns():
    text = "New York\tB-LOC\nis\tO\n\n"
    found = read_document(io.StringIO(text))
    cells = [[("B-LOC", "0.9000"), ("O", "0.5000")]]
    assert joined(found.rows, cells, found.separator) == (
        "New York\tB-LOC\t0.9000\nis\tO\t0.5000\n\n"
    )
