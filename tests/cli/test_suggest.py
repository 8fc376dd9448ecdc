"""The suggest command writes what the library ranks."""

from __future__ import annotations

import io
import json
import os
import warnings

import numpy as np
import pytest

import seqfield as sf
from seqfield.active import rank

from ..support.commands import refused, run


@pytest.fixture(scope="module")
def X():
    return sf.load_ingredients("train")[0][60:160]


@pytest.fixture(scope="module")
def files(tmp_path_factory, X):
    folder = tmp_path_factory.mktemp("suggest")
    known, y = (part[:60] for part in sf.load_ingredients("train"))
    sf.CRF(scheme="BIO", n_jobs=1).fit(known, y).save(folder / "m.sf")
    tags = [["N" if label == "O" else "V" for label in row] for row in y]
    sf.CRF(max_iter=10, tol=1.0, n_jobs=1).fit(known, tags).save(folder / "pos.sf")
    sf.StructuredPerceptron(max_iter=2, random_state=0).fit(known, y).save(folder / "scores.sf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gpsl = sf.GPSL("linear", max_iter=3, random_state=0).fit(known[:20], y[:20])
    gpsl.save(folder / "gpsl.sf")
    # empty lines in front and in between
    text = "\n\n" + "\n\n\n".join("\n".join(row[0] for row in rows) for rows in X) + "\n"
    (folder / "pool.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(files):
    return sf.load(files / "m.sf")


def first_line(X, i):
    return 3 + sum(len(rows) + 2 for rows in X[:i])


def blocks(text):
    """Comment lines and columns of each sequence."""
    out = []
    for block in text.rstrip("\n").split("\n\n"):
        lines = block.split("\n")
        n = sum(line.startswith("# ") for line in lines)
        out.append((lines[:n], [line.split(" ") for line in lines[n:]]))
    return out


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ((), {}),
        (("--strategy", "margin"), {"strategy": "margin"}),
        (("--per-token",), {"per_token": True}),
        (("--diversity", 0.5), {"diversity": 0.5}),
        (("--strategy", "diversity"), {"strategy": "diversity"}),
    ],
)
def test_sequences(files, model, X, options, arguments):
    text = run("suggest", files / "m.sf", files / "pool.txt", "-n", 5, *options).stdout
    labels, proba = model.predict(X), model.predict_proba(X)
    place = model.classes_.tolist().index
    found = blocks(text)
    assert len(found) == 5
    for k, (one, (comments, rows)) in enumerate(
        zip(rank(model, X, n=5, **arguments), found, strict=True), 1
    ):
        i = one.sequence
        assert comments == [f"# {k} {one.score:.4f} line {first_line(X, i)}"]
        assert rows == [
            [word, label, f"{p[place(label)]:.4f}"]
            for (word,), label, p in zip(X[i], labels[i], proba[i], strict=True)
        ]


def test_lines_are_those_of_the_pool(files, X):
    text = run("suggest", files / "m.sf", files / "pool.txt", "-n", 200).stdout
    lines = (files / "pool.txt").read_text(encoding="utf-8").split("\n")
    found = blocks(text)
    assert len(found) == len(X)
    for [comment], rows in found:
        at = int(comment.split(" ")[-1]) - 1
        assert lines[at : at + len(rows)] == [row[0] for row in rows]


def test_pieces_change_nothing(files, monkeypatch):
    for options in ((), ("--unit", "token"), ("--unit", "span")):
        arguments = ("suggest", files / "m.sf", files / "pool.txt", "-n", 30, *options)
        whole = run(*arguments).stdout
        monkeypatch.setattr("seqfield.cli.suggest.BATCH", 7)
        assert run(*arguments).stdout == whole
        monkeypatch.undo()


def test_standard_input_is_the_same(files):
    data = (files / "pool.txt").read_bytes()
    whole = run("suggest", files / "m.sf", files / "pool.txt", "-n", 3).stdout
    assert run("suggest", files / "m.sf", "-n", 3, input=data).stdout == whole


def test_the_gold_label_is_kept_and_not_looked_at(files, X):
    gold = "\n\n".join("\n".join(f"{row[0]} gold" for row in rows) for rows in X)
    plain = "\n\n".join("\n".join(row[0] for row in rows) for rows in X)
    with_gold = run("suggest", files / "m.sf", "-n", 3, input=gold).stdout
    without = run("suggest", files / "m.sf", "-n", 3, input=plain).stdout
    assert with_gold.replace(" gold", "") == without
    for form in ("jsonl", "labelstudio", "doccano"):
        options = ("suggest", files / "m.sf", "-n", 3, "--format", form)
        assert run(*options, input=gold).stdout == run(*options, input=plain).stdout


def test_tokens(files, model, X):
    text = run("suggest", files / "m.sf", files / "pool.txt", "-n", 9, "--unit", "token").stdout
    found = blocks(text)
    ranked = rank(model, X, n=9, unit="token")
    want = {
        k: f"# {k} {one.score:.4f} line {first_line(X, one.sequence) + one.position} "
        f"{X[one.sequence][one.position][0]}: {one.label} {one.probability:.4f}"
        for k, one in enumerate(ranked, 1)
    }
    comments = [comment for lines, _ in found for comment in lines]
    assert sorted(comments) == sorted(want.values())
    assert len(found) == len({one.sequence for one in ranked})
    assert [int(lines[0].split(" ")[1]) for lines, _ in found] == sorted(
        int(lines[0].split(" ")[1]) for lines, _ in found
    )


def test_spans_as_json_lines(files, model, X):
    options = ("-n", 4, "--unit", "span", "--format", "jsonl")
    text = run("suggest", files / "m.sf", files / "pool.txt", *options).stdout
    records = [json.loads(line) for line in text.splitlines()]
    for k, (one, record) in enumerate(
        zip(rank(model, X, n=4, unit="span"), records, strict=True), 1
    ):
        assert record == {
            "rank": k,
            "score": one.score,
            "line": first_line(X, one.sequence) + one.start,
            "tokens": [row[0] for row in X[one.sequence][one.start : one.end]],
            "kind": one.kind,
            "start": one.start,
            "end": one.end,
            "probability": one.probability,
        }


def test_sequences_as_json_lines(files, model, X):
    options = ("-n", 2, "--format", "jsonl")
    text = run("suggest", files / "m.sf", files / "pool.txt", *options).stdout
    for one, line in zip(rank(model, X, n=2), text.splitlines(), strict=True):
        record, own = json.loads(line), [X[one.sequence]]
        assert record["score"] == one.score
        assert record["labels"] == model.predict(own)[0]
        assert record["spans"] == [span._asdict() for span in model.predict_spans(own)[0]]
        assert record["probability"] == pytest.approx(model.distribution(own).confidence()[0][0])


@pytest.mark.parametrize("form", ["labelstudio", "doccano"])
def test_tools_get_the_model_s_spans(files, model, X, form, tmp_path):
    out = tmp_path / "out"
    options = ("-n", 3, "--format", form, "-o", out)
    assert run("suggest", files / "m.sf", files / "pool.txt", *options).stdout == ""
    own = [X[one.sequence] for one in rank(model, X, n=3)]
    if form == "doccano":
        assert sf.read_doccano(out) == (own, model.predict(own))
        first = json.loads(out.read_text(encoding="utf-8").splitlines()[0])
    else:
        assert sf.read_labelstudio(out, predictions=True) == (own, model.predict(own))
        task = json.loads(out.read_text(encoding="utf-8"))[0]
        [guess] = task["predictions"]
        assert guess["score"] == pytest.approx(model.distribution(own).confidence().probability[0])
        first = task["data"]
    [best] = rank(model, X, n=1)
    assert (first["id"], first["rank"], first["score"]) == (best.sequence, 1, best.score)
    assert first["line"] == first_line(X, best.sequence)


def test_tokens_for_a_tool_come_back_as_partial_labels(files, model, X, tmp_path):
    out = tmp_path / "out.jsonl"
    options = ("-n", 6, "--unit", "token", "--format", "doccano", "-o", out)
    run("suggest", files / "m.sf", files / "pool.txt", *options)
    rows, y = sf.read_doccano(out, scheme=None)
    ranked = rank(model, X, n=6, unit="token")
    assert sum(label is not None for row in y for label in row) == 6
    for one in ranked:
        i = rows.index(X[one.sequence])
        assert y[i][one.position] == one.label


def test_labels_that_are_no_spans(files, X):
    text = run("suggest", files / "pos.sf", files / "pool.txt", "-n", 2, "--format", "doccano")
    rows, y = sf.read_doccano(io.StringIO(text.stdout), scheme=None)
    assert y == sf.load(files / "pos.sf").predict(rows)
    assert "'N' is not a span label" in refused(
        "suggest", files / "pos.sf", files / "pool.txt", "--unit", "span"
    )


def test_models_that_cannot_tell(files, tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("2\ncups\nflour\n\nsalt\n\n1\negg\n")
    arguments = (few, "-n", 2)
    assert "train --calibrate" in refused("suggest", files / "scores.sf", *arguments)
    text = run("suggest", files / "scores.sf", *arguments, "--strategy", "diversity").stdout
    assert {len(row) for _, rows in blocks(text) for row in rows} == {2}
    assert "use 'token_entropy'" in refused("suggest", files / "gpsl.sf", *arguments)
    for form in ("conll", "jsonl", "labelstudio"):
        options = ("--strategy", "token_entropy", "--format", form)
        assert run("suggest", files / "gpsl.sf", *arguments, *options).stdout


def test_nothing_to_ask_about(files, model, tmp_path):
    sure = tmp_path / "sure.txt"
    sure.write_text("2\n")
    assert np.max(model.predict_proba([["2"]])[0]) > 0.95
    arguments = ("suggest", files / "m.sf", sure, "--unit", "span", "--format")
    assert run(*arguments, "conll").stdout == ""
    assert run(*arguments, "jsonl").stdout == ""
    assert json.loads(run(*arguments, "labelstudio").stdout) == []


def test_complaints(files, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_text("a\nb c\n")
    assert refused("suggest", files / "m.sf", bad).startswith(f"{bad}:2: 2 columns")
    assert refused("suggest", files / "m.sf", input="a b c\n").startswith(
        "<stdin>:1: 3 feature columns"
    )
    assert refused("suggest", files / "m.sf", input="a\nb c\n").startswith("<stdin>:2: 2 columns")
    assert "No such file" in refused("suggest", files / "m.sf", tmp_path / "none")
    assert "--per-token has no meaning" in refused(
        "suggest", files / "m.sf", files / "pool.txt", "--per-token", "--strategy", "margin"
    )
    text = run("suggest", files / "m.sf", "--strategy", "best", code=2, input="a\n").stderr
    assert "--strategy must be one of sequence_entropy" in " ".join(text.split())
    run("suggest", files / "m.sf", "-n", 0, code=2, input="a\n")


def test_failure_keeps_the_output(files, tmp_path):
    out = tmp_path / "out.txt"
    out.write_text("precious")
    refused("suggest", files / "m.sf", "-o", out, input="a b c\n")
    assert out.read_text() == "precious"
    assert os.listdir(tmp_path) == ["out.txt"]
