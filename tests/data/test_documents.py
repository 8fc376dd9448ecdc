"""Column files as users have them: tabs, comments, CoNLL-U, other encodings, headings."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import warnings
from pathlib import Path

import pytest

from seqfield.data.conll import read_conll, read_document
from seqfield.errors import FormatError, InputError


def read(text, **options):
    return read_conll(io.StringIO(text), **options)


# --- tabs -----------------------------------------------------------------------------------------


def test_tabs_part_columns_where_the_first_line_has_them():
    X, y = read("New York\tB-LOC\nis big\tO\n\nLos  Angeles \t B-LOC\n")
    assert X == [[("New York",), ("is big",)], [("Los  Angeles",)]]
    assert y == [["B-LOC", "O"], ["B-LOC"]]
    assert read("\n \n\tNew York\tB-LOC\n")[0] == [[("New York",)]]


def test_a_tab_at_the_end_says_that_blanks_part_nothing():
    assert read("New York\t\nis\n", label=None) == ([[("New York",), ("is",)]], None)
    with pytest.raises(FormatError, match="only one column"):
        read("a X\t\nb Y\n")
    assert read("\ta X\nb Y\t\n") == ([[("a",), ("b",)]], [["X", "Y"]])


@pytest.mark.parametrize("text", ["a\tX\nb Y\n", "a\tX\nb\t\n", "a\tb\tX\nc\t\tY\n"])
def test_a_line_without_its_tabs_is_refused(text):
    with pytest.raises(FormatError, match=r"columns? where lines before have .* tabs") as caught:
        read(text)
    assert caught.value.line == 2


# --- lines that are no tokens ---------------------------------------------------------------------


def test_document_starts_part_sequences_and_are_no_tokens():
    text = "-DOCSTART- -X- O\n\na N X\nb N Y\n-DOCSTART- -X- O\nc N Z\n"
    found = read_document(io.StringIO(text))
    assert found.rows == [[("a", "N"), ("b", "N")], [("c", "N")]]
    assert found.labels == [["X", "Y"], ["Z"]]
    assert found.lines == [3, 6]
    [note] = found.notes
    assert "2 -DOCSTART- lines" in note
    assert read("-DOCSTART-x O\na X\n")[0] == [[("-DOCSTART-x",), ("a",)]]
    assert read("a -DOCSTART-\nb X\n")[1] == [["-DOCSTART-", "X"]]
    with pytest.raises(FormatError, match="no tokens"):
        read("-DOCSTART- O\n")


def test_lines_of_tokens_are_counted_over_comments():
    text = "# one\n\n# two\na X\n# three\nb Y\n\n\nc Z\n#\n"
    found = read_document(io.StringIO(text), comment="#")
    assert found.rows == [[("a",), ("b",)], [("c",)]]
    assert found.lines == [4, 9]
    places = [(0, 0), (0, 1), (1, 0)]
    assert [found.line(*place) for place in places] == [4, 6, 9]
    plain = read_document(io.StringIO("\n\na X\nb Y\n\nc Z"))
    assert [plain.line(*place) for place in places] == [3, 4, 6]


def test_the_first_line_is_not_a_comment():
    assert read("#\tx\na b X\n", comment="#") == ([[("a", "b")]], [["X"]])
    assert read("# x\na b\tX\n", comment="#") == ([[("a b",)]], [["X"]])


@pytest.mark.parametrize("comment", ["", 3])
def test_comment_must_be_a_prefix(comment):
    with pytest.raises(InputError, match="comment must be"):
        read("a X\n", comment=comment)


# --- labels and columns ---------------------------------------------------------------------------


def test_missing_labels():
    text = "a X\nb ?\n\nc Y\n"
    assert read(text, missing="?")[1] == [["X", None], ["Y"]]
    assert read(text)[1] == [["X", "?"], ["Y"]]


def test_columns_are_counted_as_in_the_file():
    text = "a L b c\n"
    assert read(text, label=1, columns=[3, 0]) == ([[("c", "a")]], [["L"]])
    assert read(text, label=None, columns=[1]) == ([[("L",)]], None)
    for columns, message in [
        ([4], "no column 4: lines have 4 columns"),
        ([-1], "no column -1"),
        ([1], "column 1 is the label"),
        ([], "no columns"),
    ]:
        with pytest.raises(FormatError, match=message) as caught:
            read("\n" + text, label=1, columns=columns)
        assert caught.value.line == 2


@pytest.mark.parametrize("label", ["last", 1.0, True])
def test_label_must_be_a_column(label):
    with pytest.raises(InputError, match="label must be"):
        read("a X\n", label=label)


@pytest.mark.parametrize(
    ("text", "line", "label"),
    [
        ("token label\na X\nb Y\n\nc X\n", 1, "label"),
        ("\nWord POS Tag\na N X\nb N Y\n", 2, "Tag"),
        ("x NER_TAG\na X\n", 1, "NER_TAG"),
        ("a X\nb Y\n\ntoken ner\n\nc X\n", 4, "ner"),
        ("word pos\na X\n\nword pos\nb X\n", 1, "pos"),
    ],
)
def test_headings_are_warned_of(text, line, label):
    with pytest.warns(UserWarning, match=rf"<text>:{line}: .*label '{label}'"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "so NEG\ngood POS\nbad NEG\n\nfine POS\n",
        "a label\nb label\nc label\nd X\n",  # a label like others
        "token X\nlabel Y\n",  # words, not labels
    ],
)
def test_labels_like_others_are_not_taken_for_headings(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(text)
        read(text, label=None)


# --- other formats --------------------------------------------------------------------------------

CONLLU = """\
# sent_id = 1
# text = don't go
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tyou\tyou\tPRON\tPRP\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\tNER=O

1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz"])
def test_conllu_files_are_known_by_their_names(tmp_path, name):
    path = tmp_path / name
    data = CONLLU.encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    X, y = read_conll(path)
    assert X == [[("do",), ("n't",), ("go",)], [("10 000",)]]
    assert y == [["AUX", "PART", "VERB"], ["NUM"]]
    assert read_conll(path, label=4, columns=[1, 2]) == (
        [[("do", "do"), ("n't", "not"), ("go", "go")], [("10 000", "10000")]],
        [["VBP", "RB", "VB"], ["CD"]],
    )
    assert read_conll(path, label=-1)[1][0] == ["_", "_", "NER=O"]
    assert read_conll(path, label=None) == (X, None)
    found = read_document(path)
    assert found.lines == [4, 9]
    assert found.line(0, 2) == 7
    assert "label=" in " ".join(found.notes)
    assert not any("label=" in note for note in read_document(path, label=4).notes)


def test_conllu_lines_have_ten_columns(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("# x\n1\ta\tNOUN\n")
    with pytest.raises(FormatError, match="10 columns parted by tabs") as caught:
        read_conll(path)
    assert caught.value.line == 2


def test_comma_separated_values_are_refused():
    with pytest.raises(FormatError, match="commas") as caught:
        read("\nAna,B-PER\nsang,O\n")
    assert caught.value.line == 2
    assert read("1,000 X\n") == ([[("1,000",)]], [["X"]])


def test_comma_separated_values_without_labels_are_warned_of():
    with pytest.warns(UserWarning, match="<text>:1: .*commas"):
        read("Ana,B-PER\nsang,O\nwell,O\n", label=None)
    assert read("1,000\na\nb\n", label=None)[0] == [[("1,000",), ("a",), ("b",)]]


# --- encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])  # the mark says more than the caller
@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_byte_order_marks_are_recognised(tmp_path, mark, encoding):
    data = "caf\u00e9 X\nb Y\n".encode(mark)
    if mark == "utf-16-be":
        data = codecs.BOM_UTF16_BE + data
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    assert read_conll(path, encoding=encoding) == ([[("caf\u00e9",), ("b",)]], [["X", "Y"]])
    assert read_conll(io.BytesIO(data)) == ([[("caf\u00e9",), ("b",)]], [["X", "Y"]])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("word", ["caf\u00e9", "cafe", "\u65e5\u672c"])
def test_utf_16_without_a_mark_is_refused_by_name(tmp_path, encoding, word):
    path = tmp_path / "a.txt"
    path.write_bytes(f"{word} X\nb Y\n".encode(encoding))
    with pytest.raises(FormatError, match=f"encoding='{encoding}'"):
        read_conll(path)
    assert read_conll(path, encoding=encoding)[0] == [[(word,), ("b",)]]


def test_other_encodings_are_asked_for():
    data = "a X\ncaf\u00e9 X\n".encode("latin-1")
    with pytest.raises(FormatError, match=r"not utf-8: byte 0xe9 .*encoding='latin-1'") as caught:
        read_conll(io.BytesIO(data))
    assert caught.value.line == 2
    with pytest.raises(FormatError, match=r"not ascii: .*encoding='utf-8'"):
        read_conll(io.BytesIO("caf\u00e9 X\n".encode()), encoding="ascii")


def test_an_open_file_that_does_not_decode(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("caf\u00e9 X\n".encode("latin-1"))
    with path.open(encoding="utf-8") as file, pytest.raises(FormatError, match="encoding="):
        read_conll(file)


@pytest.mark.parametrize("source", [None, 3, ["a X\n"]])
def test_what_is_neither_a_path_nor_a_file(source):
    with pytest.raises(InputError, match="path or an open file"):
        read_conll(source)


@pytest.mark.skipif(not os.environ.get("SEQFIELD_DATA"), reason="needs SEQFIELD_DATA")
def test_a_treebank():
    folder = Path(os.environ["SEQFIELD_DATA"]) / "ud_english_ewt"
    X, y = read_conll(folder / "en_ewt-ud-dev.conllu.gz")
    assert (len(X), sum(map(len, X))) == (2001, 25147)
    assert len({label for row in y for label in row}) == 17
    assert {len(row) for row in X[0]} == {1}
