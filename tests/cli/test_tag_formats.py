"""The tag command: abstaining, and formats other than columns."""

from __future__ import annotations

import io
import json
import warnings

import pytest

import seqfield as sf
from seqfield.data.schemes import spans

from ..support.commands import run


@pytest.fixture(scope="module")
def X():
    return sf.load_ingredients("train")[0][60:110]


@pytest.fixture(scope="module")
def files(tmp_path_factory, X):
    folder = tmp_path_factory.mktemp("tag")
    known, y = (part[:60] for part in sf.load_ingredients("train"))
    sf.CRF(scheme="BIO", n_jobs=1).fit(known, y).save(folder / "m.sf")
    tags = [["N" if label == "O" else label[-1] for label in row] for row in y]
    sf.CRF(max_iter=10, tol=1.0, n_jobs=1).fit(known, tags).save(folder / "pos.sf")
    asks = [["?" if label == "O" else "x" for label in row] for row in y]
    sf.CRF(max_iter=10, tol=1.0, n_jobs=1).fit(known, asks).save(folder / "asks.sf")
    sf.StructuredPerceptron(max_iter=2, random_state=0).fit(known, y).save(folder / "scores.sf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gpsl = sf.GPSL("linear", max_iter=3, random_state=0).fit(known[:20], y[:20])
    gpsl.save(folder / "gpsl.sf")
    sf.write_conll(folder / "in.txt", X)
    return folder


@pytest.fixture(scope="module")
def model(files):
    return sf.load(files / "m.sf")


def columns(text):
    """The columns after the word of each sequence."""
    return [
        [line.split(" ")[1:] for line in block.split("\n")]
        for block in text.rstrip("\n").split("\n\n")
    ]


# --- abstaining -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decoding", ["viterbi", "posterior"])
def test_spans_are_given_up_whole(files, model, X, decoding):
    options = ("--min-confidence", 0.8, "--decoding", decoding)
    found = columns(run("tag", files / "m.sf", files / "in.txt", *options).stdout)
    place = model.classes_.tolist().index
    n_given_up = 0
    for i, rows in enumerate(X):
        names = [cells[0] for cells in found[i]]
        want = model.predict([rows], decoding=decoding)[0]
        p = model.predict_proba([rows])[0]
        inside = set()
        for span in model.predict_spans([rows], decoding=decoding)[0]:
            inside |= set(range(span.start, span.end))
            own = names[span.start : span.end]
            if span.probability < 0.8:
                n_given_up += 1
                assert own == ["?"] * (span.end - span.start)
            else:
                assert own == want[span.start : span.end]
        for t in set(range(len(rows))) - inside:
            assert names[t] == ("O" if p[t, place("O")] >= 0.8 else "?")
        # what is left are whole spans of what was decoded
        assert set(spans([None if v == "?" else v for v in names])) <= set(spans(want))
    assert n_given_up > 0


def test_single_labels(files, X):
    model = sf.load(files / "pos.sf")
    options = ("--min-confidence", 0.6, "--confidence")
    found = columns(run("tag", files / "pos.sf", files / "in.txt", *options).stdout)
    place = model.classes_.tolist().index
    for cells, labels, p in zip(found, model.predict(X), model.predict_proba(X), strict=True):
        own = [p[t, place(label)] for t, label in enumerate(labels)]
        want = [label if q >= 0.6 else "?" for label, q in zip(labels, own, strict=True)]
        assert cells == [[v, f"{q:.4f}"] for v, q in zip(want, own, strict=True)]


def test_ends_of_the_scale(files):
    plain = run("tag", files / "m.sf", files / "in.txt").stdout
    assert run("tag", files / "m.sf", files / "in.txt", "--min-confidence", 0).stdout == plain
    everything = run("tag", files / "m.sf", files / "in.txt", "--min-confidence", 1).stdout
    assert {cells[0] for rows in columns(everything) for cells in rows} == {"?"}


def test_what_is_left_trains_a_model(files, tmp_path):
    out = tmp_path / "out.txt"
    run("tag", files / "m.sf", files / "in.txt", "--min-confidence", 0.9, "-o", out)
    X, y = sf.read_conll(out)
    model = sf.CRF(missing_label="?", tol=0.1).fit(X, y)
    assert "?" not in model.classes_


def test_abstaining_takes_probabilities(files):
    for name, message in [
        ("scores.sf", "train --calibrate"),
        ("gpsl.sf", "no joint distribution"),
        ("asks.sf", "the model has a label '?'"),
    ]:
        result = run("tag", files / name, files / "in.txt", "--min-confidence", 0.5, code=2)
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    run("tag", files / "m.sf", files / "in.txt", "--min-confidence", 1.5, code=2)


# --- formats --------------------------------------------------------------------------------------


def test_json_lines(files, model, X):
    text = run("tag", files / "m.sf", files / "in.txt", "--format", "jsonl").stdout
    place = model.classes_.tolist().index
    labels, proba = model.predict(X), model.predict_proba(X)
    found, sure = model.predict_spans(X), model.distribution(X).confidence().probability
    for i, record in enumerate(map(json.loads, text.splitlines())):
        assert list(record) == ["tokens", "labels", "probabilities", "spans", "probability"]
        assert record["tokens"] == [row[0] for row in X[i]]
        assert record["labels"] == labels[i]
        assert record["probabilities"] == pytest.approx(
            [proba[i][t, place(v)] for t, v in enumerate(labels[i])], rel=1e-9
        )
        assert [(s["kind"], s["start"], s["end"]) for s in record["spans"]] == spans(labels[i])
        assert [s["probability"] for s in record["spans"]] == pytest.approx(
            [s.probability for s in found[i]], rel=1e-9
        )
        assert record["probability"] == pytest.approx(sure[i], rel=1e-9)


def test_json_lines_of_what_is_given_up(files, model, X):
    options = ("--format", "jsonl", "--min-confidence", 0.8)
    text = run("tag", files / "m.sf", files / "in.txt", *options).stdout
    columned = run("tag", files / "m.sf", files / "in.txt", "--min-confidence", 0.8).stdout
    for line, cells in zip(text.splitlines(), columns(columned), strict=True):
        record = json.loads(line)
        names = [None if v == "?" else v for [v] in cells]
        assert record["labels"] == names
        assert [(s["kind"], s["start"], s["end"]) for s in record["spans"]] == spans(names)
        assert all(s["probability"] >= 0.8 for s in record["spans"])


def test_json_lines_of_models_that_cannot_tell(files, X):
    for name, known in [("scores.sf", False), ("gpsl.sf", True)]:
        model = sf.load(files / name)
        text = run("tag", files / name, files / "in.txt", "--format", "jsonl").stdout
        for labels, line in zip(model.predict(X), text.splitlines(), strict=True):
            record = json.loads(line)
            assert record["labels"] == labels
            assert (record["probabilities"] is not None) == known
            assert record["probability"] is None
            assert [s["probability"] for s in record["spans"]] == [None] * len(spans(labels))


@pytest.mark.parametrize("name", ["m.sf", "pos.sf", "scores.sf"])
def test_tools(files, X, name):
    labels = sf.load(files / name).predict(X)
    scheme = None if name == "pos.sf" else "BIO"
    text = run("tag", files / name, files / "in.txt", "--format", "labelstudio").stdout
    read = sf.read_labelstudio(io.StringIO(text), predictions=True, scheme=scheme)
    if name == "scores.sf":  # its labels obey no scheme
        assert [spans(row) for row in read[1]] == [spans(row) for row in labels]
    else:
        assert read == (X, labels)
    text = run("tag", files / name, files / "in.txt", "--format", "doccano").stdout
    assert sf.read_doccano(io.StringIO(text), scheme=scheme) == read


@pytest.mark.parametrize("form", ["jsonl", "labelstudio", "doccano"])
def test_batches_change_nothing(files, monkeypatch, form):
    arguments = ("tag", files / "m.sf", files / "in.txt", "--format", form)
    whole = run(*arguments).stdout
    monkeypatch.setattr("seqfield.cli.tag.BATCH", 7)
    parts = run(*arguments).stdout
    if form == "labelstudio":  # names of regions are those of the batch
        parts, whole = [
            sf.read_labelstudio(io.StringIO(text), predictions=True) for text in (parts, whole)
        ]
    assert parts == whole


@pytest.mark.parametrize(
    "options",
    [
        ("--nbest", 2, "--format", "jsonl"),
        ("--nbest", 2, "--min-confidence", 0.5),
        ("--confidence", "--format", "labelstudio"),
    ],
)
def test_options_that_exclude_each_other(files, options):
    assert run("tag", files / "m.sf", files / "in.txt", *options, code=2).stdout == ""
