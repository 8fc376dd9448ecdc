"""Column files: what is accepted, and that every complaint names its line."""

import gzip
import io
import os
from pathlib import Path

import pytest

from seqfield.data.conll import read_conll
from seqfield.errors import FormatError


def read(text, **options):
    return read_conll(io.StringIO(text), **options)


@pytest.mark.parametrize(
    "text",
    [
        "a X\nb Y\n\nc Z\n",
        "a X\nb Y\n\nc Z",  # no line end at the end
        "\n\na X\nb Y\n\n\n\nc Z\n\n\n",  # empty lines anywhere
        "a X\nb \t Y\n \t \nc  Z\n",  # tabs, runs of blanks, a line of blanks
        "a\tX\nb \t Y \n \t \n c\t\tZ\t\n",  # tabs with blanks around them, runs of tabs
        "  a X  \nb Y\t\n\n\tc Z\n",  # blanks at line ends
        "a X\r\nb Y\r\n\r\nc Z\r\n",  # Windows
        "\ufeffa X\nb Y\n\nc Z\n",  # byte order mark
    ],
)
def test_layouts(text):
    assert read(text) == ([[("a",), ("b",)], [("c",)]], [["X", "Y"], ["Z"]])


def test_only_space_and_tab_part_columns():
    X, y = read("\u3000 B\n\u00a0x I\n\x0b O\n")
    assert X == [[("\u3000",), ("\u00a0x",), ("\x0b",)]]
    assert y == [["B", "I", "O"]]


def test_label_column():
    assert read("a L b\n", label=1) == ([[("a", "b")]], [["L"]])
    assert read("a b\n", label=None) == ([[("a", "b")]], None)
    assert read("L a\n", label=-2) == ([[("a",)]], [["L"]])


def test_comments_are_tokens_unless_named():
    text = "# # O\n# x O\na b O\n\n# c O\n"
    assert [len(rows) for rows in read(text)[0]] == [3, 1]
    assert read(text, comment="# ") == ([[("a", "b")]], [["O"]])


@pytest.mark.parametrize(
    ("text", "options", "line", "message"),
    [
        ("a X\nb\n", {}, 2, "1 column where lines before have 2"),
        ("\n\na X\n\nb c Y\n", {}, 5, "3 columns"),
        ("# c\na X\n# d\nb c Y\n", {"comment": "#"}, 4, "3 columns"),
        ("\nX\nY\n", {}, 2, "only one column"),
        ("\n\na X\n", {"label": 5}, 3, "no column 5"),
        ("a X\n", {"label": -3}, 1, "no column -3"),
        ("", {}, None, "no tokens"),
        ("\n \n\t\n", {}, None, "no tokens"),
        ("# a\n", {"comment": "#"}, None, "no tokens"),
    ],
)
def test_malformed_files_name_the_line(text, options, line, message):
    with pytest.raises(FormatError, match=message) as caught:
        read(text, **options)
    assert caught.value.line == line
    place = "<text>:" if line is None else f"<text>:{line}:"
    assert str(caught.value).startswith(place)


def test_bytes_that_do_not_decode(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("a X\n\ncaf\u00e9 Y\n".encode("latin-1"))
    with pytest.raises(FormatError, match="not utf-8: byte 0xe9") as caught:
        read_conll(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert read_conll(path, encoding="latin-1")[0][1] == [("caf\u00e9",)]
    with pytest.raises(FormatError, match="unknown encoding"):
        read_conll(path, encoding="no-such-code")


def test_files(tmp_path):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"a X\n"))
    assert read_conll(path) == ([[("a",)]], [["X"]])
    plain = tmp_path / "x.txt"
    plain.write_bytes(path.read_bytes())
    assert read_conll(plain) == ([[("a",)]], [["X"]])
    with path.open("rb") as file:
        assert read_conll(file) == ([[("a",)]], [["X"]])
    path.write_bytes(gzip.compress(b"a X\n" * 1000)[:-20])
    with pytest.raises(FormatError, match="damaged gzip"):
        read_conll(path)
    path.write_bytes(b"a X\n")
    with pytest.raises(FormatError, match="damaged gzip"):
        read_conll(path)
    with pytest.raises(FormatError, match="No such file"):
        read_conll(tmp_path / "none.txt")
    with pytest.raises(FormatError, match="directory"):
        read_conll(tmp_path)


@pytest.mark.skipif(not os.environ.get("SEQFIELD_DATA"), reason="needs SEQFIELD_DATA")
@pytest.mark.parametrize(
    ("name", "sentences", "tokens", "n_labels"),
    [
        ("conll2000/train.txt.gz", 8936, 211727, 22),
        ("conll2000/test.txt.gz", 2012, 47377, 19),
        ("conll2002/esp.train.gz", 8323, 264715, 9),
        ("conll2002/esp.testa.gz", 1915, 52923, 9),
        ("conll2002/esp.testb.gz", 1517, 51533, 9),
        ("crfpp/seg/train.data", 36, 965, 2),
        ("crfpp/seg/test.data", 19, 981, 2),
        ("crfpp/JapaneseNE/train.utf8.data", 216, 4772, 17),
        ("crfpp/JapaneseNE/test.utf8.data", 500, 12678, 18),
    ],
)
def test_corpora_have_their_published_sizes(name, sentences, tokens, n_labels):
    X, y = read_conll(Path(os.environ["SEQFIELD_DATA"]) / name)
    assert len(X) == len(y) == sentences
    assert sum(map(len, X)) == sum(map(len, y)) == tokens
    assert len({label for row in y for label in row}) == n_labels
