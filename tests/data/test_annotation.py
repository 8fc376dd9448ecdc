"""Files of annotation tools: what is written comes back, and complaints name their line."""

from __future__ import annotations

import gzip
import io
import json

import numpy as np
import pytest

import seqfield as sf
from seqfield.data.schemes import get_scheme, spans
from seqfield.errors import FormatError, InputError, OutputError, SchemeError

WORDS = [["Ana", "Ruiz", "vive", "en", "Ávila"], ["¿", "Quién", "😀", "?"], ["no"]]
ROWS = [[(word, f"t{t}") for t, word in enumerate(row)] for row in WORDS]
SPANS = [[("PER", 0, 2), ("LOC", 4, 5)], [("PER", 1, 2), ("PER", 2, 3)], []]
TOOLS = {
    "doccano": (sf.write_doccano, sf.read_doccano),
    "labelstudio": (
        sf.write_labelstudio,
        lambda source, **options: sf.read_labelstudio(source, predictions=True, **options),
    ),
}


def labels(scheme):
    named = get_scheme(scheme)
    return [named.encode(row, len(words)) for row, words in zip(SPANS, WORDS, strict=True)]


def through(tool, X, y, **options):
    """What comes back of what is written."""
    write, read = TOOLS[tool]
    text = io.StringIO()
    write(text, X, y)
    return read(io.StringIO(text.getvalue()), **options)


# --- there and back -------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "BIOES", "BILOU"])
def test_labels_come_back(tool, scheme):
    y = labels(scheme)
    assert through(tool, WORDS, y, scheme=scheme) == (WORDS, y)
    assert through(tool, ROWS, y, scheme=scheme) == (ROWS, y)


@pytest.mark.parametrize("tool", TOOLS)
def test_spans_come_back(tool):
    X, y = through(tool, WORDS, SPANS)
    assert X == WORDS
    assert [spans(row) for row in y] == SPANS
    counted = [[("LOC", np.int64(0), np.int64(1), None)], [], []]
    assert through(tool, WORDS, counted)[1][0] == ["B-LOC", "O", "O", "O", "O"]


@pytest.mark.parametrize("tool", TOOLS)
def test_spans_without_a_type_come_back(tool):
    y = [["B", "I", "O", "B", "B"], ["O"] * 4, ["B"]]
    assert through(tool, WORDS, y) == (WORDS, y)


@pytest.mark.parametrize("tool", TOOLS)
def test_labels_of_single_tokens_come_back(tool):
    y = [["NP", "NP", "V", "P", "NP"], ["F", "PR", None, "F"], ["RN"]]
    assert through(tool, WORDS, y, scheme=None) == (WORDS, y)


@pytest.mark.parametrize("tool", TOOLS)
def test_words_with_blanks_come_back(tool):
    X = [["New York", "is", "  ", "\u3000", "tall\n"]]
    y = [["B-LOC", "O", "B-X", "I-X", "O"]]
    assert through(tool, X, y) == (X, y)


def test_a_corpus_comes_back(tmp_path):
    X, y = sf.load_ingredients("all")
    sf.write_doccano(tmp_path / "a.jsonl", X, y)
    assert sf.read_doccano(tmp_path / "a.jsonl") == (X, y)
    sf.write_labelstudio(tmp_path / "a.json", X, y)
    assert sf.read_labelstudio(tmp_path / "a.json", predictions=True) == (X, y)
    assert sf.read_labelstudio(tmp_path / "a.json") == (X, [None] * len(X))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    with (tmp_path / "a.jsonl").open("rb") as file:
        assert sf.read_doccano(tmp_path / "a.jsonl.gz") == sf.read_doccano(file)


def test_predictions_of_a_model():
    X, y = sf.load_ingredients("train")
    model = sf.CRF(max_iter=20, tol=0.1).fit(X[:60], y[:60])
    found, sure = model.predict_spans(X[60:64]), model.distribution(X[60:64]).confidence()
    text = io.StringIO()
    sf.write_labelstudio(text, X[60:64], found, scores=sure.probability, model_version="v1")
    tasks = json.loads(text.getvalue())
    for i, task in enumerate(tasks):
        [guess] = task["predictions"]
        assert guess["model_version"] == "v1"
        assert guess["score"] == sure.probability[i]
        assert [r["score"] for r in guess["result"]] == [one.probability for one in found[i]]
        for region in guess["result"]:
            a, b = region["value"]["start"], region["value"]["end"]
            assert task["data"]["text"][a:b] == region["value"]["text"]


# --- the formats ----------------------------------------------------------------------------------


def test_doccano_format():
    text = io.StringIO()
    sf.write_doccano(text, ROWS, SPANS, meta=[{"line": 3}, {"id": "x"}, {}])
    first, second, third = map(json.loads, text.getvalue().splitlines())
    assert first == {
        "id": 0,
        "text": "Ana Ruiz vive en Ávila",
        "label": [[0, 8, "PER"], [17, 22, "LOC"]],
        "tokens": [list(row) for row in ROWS[0]],
        "line": 3,
    }
    assert second["id"] == "x"
    assert (third["text"], third["label"]) == ("no", [])


def test_labelstudio_format():
    text = io.StringIO()
    names = {"from_name": "ner", "to_name": "words"}
    sf.write_labelstudio(text, WORDS[:2], [SPANS[0], None], **names, meta=[{"line": 3}, {}])
    done, bare = json.loads(text.getvalue())
    assert done["data"] == {"text": "Ana Ruiz vive en Ávila", "tokens": WORDS[0], "line": 3}
    [guess] = done["predictions"]
    assert "score" not in guess
    assert guess["result"][1] == {
        "id": "0-1",
        **names,
        "type": "labels",
        "value": {"start": 17, "end": 22, "text": "Ávila", "labels": ["LOC"]},
    }
    assert "predictions" not in bare


def test_what_doccano_exports():
    lines = [
        {"id": 7, "text": "EU rejects German call .", "label": [[11, 17, "MISC"], [0, 2, "ORG"]]},
        {"text": "Peter Blackburn", "labels": [[0, 15, "PER"]], "Comments": []},
        {
            "text": "in  Rome",
            "entities": [{"id": 1, "label": "LOC", "start_offset": 4, "end_offset": 8}],
            "relations": [],
        },
        {"text": "no labels yet"},
    ]
    source = io.StringIO("\ufeff" + "\r\n\n".join(map(json.dumps, lines)))
    X, y = sf.read_doccano(source)
    assert X[2] == [("in",), ("Rome",)]
    assert y == [["B-ORG", "O", "B-MISC", "O", "O"], ["B-PER", "I-PER"], ["O", "B-LOC"], None]


def region(start, end, *names, kind="labels"):
    return {"type": kind, "value": {"start": start, "end": end, "labels": list(names)}}


def task(*annotations, text="Ana vive en Roma"):
    return {"id": 1, "data": {"text": text}, "annotations": list(annotations), "predictions": []}


def test_what_label_studio_exports():
    first = {"result": [region(0, 3, "PER")], "was_cancelled": False}
    later = {"result": [region(12, 16, "LOC"), region(0, 0, kind="choices"), region(0, 3, "PER")]}
    skipped = {"result": [], "was_cancelled": True}
    tasks = [task(first, later, skipped), task(skipped), task(), task({"result": []})]
    X, y = sf.read_labelstudio(io.StringIO(json.dumps(tasks, indent=1)))
    assert X == [[("Ana",), ("vive",), ("en",), ("Roma",)]] * 4
    assert y == [["B-PER", "O", "O", "B-LOC"], None, None, ["O"] * 4]
    assert sf.read_labelstudio(io.StringIO(json.dumps(task(later)))) == (X[:1], y[:1])


def test_blanks_around_a_span_are_no_part_of_it():
    source = '{"text": "a  b c", "label": [[1, 5, "X"]]}'
    assert sf.read_doccano(io.StringIO(source))[1] == [["O", "B-X", "O"]]


def test_spans_that_cut_tokens_can_snap():
    source = '{"text": "abc de fgh", "label": [[2, 5, "X"], [8, 9, "Y"]]}'
    with pytest.raises(FormatError, match=r"<text>:1: the span 'c d' cuts a token of 'abc de'"):
        sf.read_doccano(io.StringIO(source))
    assert sf.read_doccano(io.StringIO(source), snap=True)[1] == [["B-X", "I-X", "B-Y"]]


# --- complaints -----------------------------------------------------------------------------------

GOOD = '{"text": "a b", "label": []}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: Expecting property name"),
        ("nope", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"text": "a", "label": [[0, ' + "9" * 5000 + ', "X"]]}', "not JSON"),
        ("[]", "the line must be a JSON object"),
        ("{}", "no 'text'"),
        ('{"text": 3}', "'text' must be a string, got 3"),
        ('{"text": " "}', "the text has no words"),
        ('{"text": "a", "label": {}}', "'label' must be a list"),
        ('{"text": "a", "label": [3]}', r"a span must be \[start, end, type\], got 3"),
        ('{"text": "a", "label": [[0, 1]]}', "a span must be"),
        ('{"text": "a", "label": [["0", 1, "X"]]}', "an offset must be a whole number, got '0'"),
        ('{"text": "a", "label": [[0.0, 1, "X"]]}', "an offset must be a whole number"),
        ('{"text": "a", "label": [[false, 1, "X"]]}', "an offset must be a whole number"),
        ('{"text": "a", "label": [[0, 1, null]]}', "the type of a span must be a string"),
        ('{"text": "a", "label": [[0, 1, ""]]}', "the type of a span must be a string"),
        ('{"text": "a", "label": [[0, 2, "X"]]}', "from 0 to 2 is not within its 1 characters"),
        ('{"text": "a", "label": [[-1, 1, "X"]]}', "not within"),
        ('{"text": "a", "label": [[1, 1, "X"]]}', "not within"),
        ('{"text": "a b", "label": [[1, 2, "X"]]}', "holds no token"),
        ('{"text": "ab", "label": [[0, 1, "X"]]}', "cuts a token"),
        ('{"text": "a b", "label": [[0, 3, "X"], [2, 3, "Y"]]}', "'X' and 'Y' overlap"),
        ('{"text": "a", "entities": [{"label": "X", "end_offset": 1}]}', "no 'start_offset'"),
        ('{"text": "a", "tokens": 3}', "'tokens' must be a list"),
        ('{"text": "a", "tokens": []}', "do not make up"),
        ('{"text": "a", "tokens": ["b"]}', "'tokens' do not make up the text"),
        ('{"text": "a", "tokens": [["a", 3]]}', "a token must be a string or a row of strings"),
        ('{"text": " a", "tokens": ["", "a"]}', "a token must be"),
    ],
)
def test_doccano_complaints(tmp_path, line, message):
    path = tmp_path / "x.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n", encoding="utf-8")
    with pytest.raises(FormatError, match=message) as caught:
        sf.read_doccano(path)
    assert str(caught.value).startswith(f"{path}:3: ")


OTHER = json.dumps(task())


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "not JSON: Expecting value"),
        ("[]", None, "no records"),
        (f"[\n{OTHER},\n{{]", 3, "not JSON"),
        (f"[\n{OTHER}\n{OTHER}]", 3, "the list of tasks is not ended"),
        (f"[{OTHER}\n", 2, "the list of tasks is not ended"),
        (f"[\n{OTHER},\n]", 3, "not JSON"),
        (f"[{OTHER}]\n\n x", 1, "text after its end"),
        (f"{OTHER}\n x", 2, "text after its end"),
        (f"[{OTHER},\n3]", 2, "task 1: it must be a JSON object, got 3"),
        (f"[{OTHER},\n\n{{}}]", 3, "task 1: no 'data'"),
        ('{"data": []}', 1, "task 0: data must be a JSON object"),
        ('{"data": {}}', 1, "task 0: no 'text'"),
        ('{"data": {"text": "a"}, "annotations": 3}', 1, "'annotations' must be a list"),
        ('{"data": {"text": "a"}, "annotations": [3]}', 1, "annotations must be a JSON object"),
        ('{"data": {"text": "a"}, "annotations": [{}]}', 1, "no 'result'"),
        (json.dumps(task({"result": 3})), 1, "'result' must be a list"),
        (json.dumps(task({"result": [3]})), 1, "a result must be a JSON object"),
        (json.dumps(task({"result": [{"type": "labels"}]})), 1, "no 'value'"),
        (json.dumps(task({"result": [{"type": "labels", "value": {}}]})), 1, "no 'start'"),
        (json.dumps(task({"result": [region(0, 3)]})), 1, r"one label, got \[\]"),
        (json.dumps(task({"result": [region(0, 3, "A", "B")]})), 1, "one label"),
        (json.dumps(task({"result": [region(0, 99, "A")]})), 1, "not within its 16 characters"),
        (json.dumps(task({"result": [region("0", 9, "A")]})), 1, "an offset must be"),
    ],
)
def test_labelstudio_complaints(tmp_path, text, line, message):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=message) as caught:
        sf.read_labelstudio(path)
    place = f"{path}: " if line is None else f"{path}:{line}: "
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize("read", [sf.read_doccano, sf.read_labelstudio])
def test_files_that_are_no_text(tmp_path, read):
    with pytest.raises(FormatError, match="No such file"):
        read(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b'{"text": "a"}\n\xe9')
    with pytest.raises(FormatError, match="latin:2: not utf-8"):
        read(tmp_path / "latin")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(FormatError, match=r"no records|not JSON"):
        read(tmp_path / "empty")
    with pytest.raises(SchemeError, match="unknown label scheme"):
        read(tmp_path / "empty", scheme="BIX")


@pytest.mark.parametrize("write", [sf.write_doccano, sf.write_labelstudio])
@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ([["a"], [{"w": "b"}]], None, "sequence 1, position 0: no word to show"),
        ([[np.zeros(2)]], None, "sequence 0, position 0: no word"),
        ([["a", ""]], None, "sequence 0, position 1: no word"),
        ([[("a", 3)]], None, "no word"),
        ([["a"]], [["O", "O"]], "sequence 0: X has 1 tokens but y has 2 labels"),
        ([["a"]], [["O"], ["O"]], "X has 1 sequences but y has 2"),
        ([["a"]], [[3]], "sequence 0, position 0: labels must be strings or None, got 3"),
        ([["a"]], [[{"A", "B"}]], "labels must be strings"),
        ([["a"]], [[("X", 0, 2)]], "sequence 0: the span .* is not within its 1 tokens"),
        ([["a"]], [[("X", 0.0, 1)]], "not within"),
        ([["a"]], [[("X", 0)]], "a span must be"),
        ([["a"]], [[(0, 1, "X")]], "a span must be"),
        ([["a\ud800"]], None, "UTF-8 cannot hold"),
        ("a b", None, "X is the string 'a b'"),
        (["a b"], None, "sequence 0 of X is the string 'a b'"),
        ([["a", "b"]], ["OO"], "sequence 0: y must be a list of labels or spans, got 'OO'"),
    ],
)
def test_what_cannot_be_written(tmp_path, write, X, y, message):
    path = tmp_path / "out"
    path.write_text("precious")
    with pytest.raises(InputError, match=message):
        write(path, X, y)
    assert path.read_text() == "precious"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_more_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="X has 1 sequences but meta has 2"):
        sf.write_doccano(tmp_path / "out", [["a"]], meta=[{}, {}])
    with pytest.raises(InputError, match="JSON cannot hold this record"):
        sf.write_doccano(tmp_path / "out", [["a"]], meta=[{"x": {1, 2}}])
    with pytest.raises(InputError, match="JSON cannot hold this record"):
        sf.write_labelstudio(tmp_path / "out", [["a"]], [[]], scores=[float("nan")])
    with pytest.raises(InputError, match="but scores has 2"):
        sf.write_labelstudio(tmp_path / "out", [["a"]], scores=[1.0, 2.0])
    with pytest.raises(OutputError, match="cannot write"):
        sf.write_doccano(tmp_path / "none" / "out", [["a"]])
    assert not list(tmp_path.iterdir())
