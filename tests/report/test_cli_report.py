from __future__ import annotations

import pytest

import seqfield as sf
from seqfield import metrics

from ..support.commands import refused, run
from ..support.reports import by_key, embedded


def write(path, X, y):
    sf.write_conll(path, X, y)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def files(folder):
    """A model, what it was trained on, and other sequences."""
    X, y = sf.load_ingredients("test")
    model = sf.CRF(scheme="BIO").fit(X[:60], y[:60])
    model.save(folder / "recipes.sf")
    train, held = (
        write(folder / "train.txt", X[:60], y[:60]),
        write(folder / "held.txt", X[60:90], y[60:90]),
    )
    return folder / "recipes.sf", train, held


def test_report(folder, files):
    model, _, held = files
    out = folder / "out.html"
    assert run("report", model, held, "-o", out).stdout.startswith(f"{out}, ")
    content = embedded(out.read_text("utf-8"))
    assert content["title"] == "recipes on held.txt"
    X, y = sf.read_conll(held)
    accuracy = metrics.token_accuracy(y, sf.load(model).predict(X))
    assert by_key(content)["token_accuracy"]["value"] == pytest.approx(accuracy)
    assert "learning" not in content


def test_options(folder, files, monkeypatch):
    monkeypatch.chdir(folder)
    model, train, held = files
    run("report", model, held, "--title", "Mine", "--scheme", "none", "--learning-curve", train)
    content = embedded((folder / "report.html").read_text("utf-8"))
    assert content["title"] == "Mine"
    assert content["span_types"] is None
    assert content["learning"]["sizes"] == [4, 7, 15, 30, 60]


def test_refusals(folder, files, tmp_path):
    model, _, held = files
    missing = tmp_path / "no" / "out.html"
    assert "does not exist" in refused("report", model, held, "-o", missing)
    out = tmp_path / "out.html"
    assert "unknown label scheme" in refused("report", model, held, "-o", out, "--scheme", "x")
    bare = tmp_path / "bare.txt"
    bare.write_text("flour\n")
    assert refused("report", model, bare, "-o", out).startswith(f"{bare}:1: only one column")
    bad = tmp_path / "bad.txt"
    bad.write_text("1 B-QTY\ncup B-UNIT\n\nsalt I-NAME\n")
    said = refused("report", model, held, "-o", out, "--learning-curve", bad)
    assert said.startswith(f"{bad}:4: ")
    wide = tmp_path / "wide.txt"
    wide.write_text("1 x B-QTY\ncup y B-UNIT\n")
    said = refused("report", model, held, "-o", out, "--learning-curve", wide)
    assert said.startswith(f"{wide}:1: ")
    assert not out.exists()
