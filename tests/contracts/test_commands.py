"""Every command works with every learner, from a small file of columns."""

from __future__ import annotations

import json
import re

import pytest

import seqfield as sf
from seqfield.cli.learners import CLASSES

from ..support.commands import run
from ..support.estimators import BIO, NAMES, NEW_BIO, NEW_WORDS, WORDS, quiet
from ..support.reports import embedded

pytestmark = quiet

#: learners by the name of their class
LEARNERS = {name: learner for learner, name in CLASSES.items()}
#: options that keep fits small
SMALL = {
    "GPStruct": ("--n-steps", "20", "--n-chains", "2", "--n-samples", "8"),
    "StructuredSVGP": ("--max-iter", "5", "--n-inducing", "20", "--n-samples", "8"),
    "SequenceBoost": ("--max-iter", "60"),
    "AdaBoost": ("--max-iter", "60"),
    "KernelCRF": ("--n-cliques", "20"),
    "GPSL": ("--max-iter", "10"),
}
every = pytest.mark.parametrize("name", LEARNERS)


def test_every_estimator_is_a_learner():
    assert LEARNERS.keys() == {*NAMES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    sf.write_conll(folder / "train.txt", WORDS, BIO)
    sf.write_conll(folder / "new.txt", NEW_WORDS, NEW_BIO)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """Models by name, each trained once; plain ones and those that have probabilities."""
    made = {}

    def get(name, *options):
        if (name, *options) not in made:
            path = folder / f"{name}{len(made)}.sf"
            said = run("train", folder / "train.txt", "-o", path, "--learner", LEARNERS[name],
                       "--scheme", "BIO", *SMALL.get(name, ()), *options)  # fmt: skip
            made[name, *options] = path, said.stdout
        return made[name, *options]

    return get


def told(name, trained):
    """A model with probabilities of whole labellings."""
    plain = sf.load(trained(name)[0])
    options = () if plain.has_probabilities else ("--calibrate",)
    return trained(name, *options, *(() if plain.joint else ("--inference", "chain")))[0]


@every
def test_train(name, trained):
    path, said = trained(name)
    model = sf.load(path)
    assert type(model).__name__ == name
    assert model.scheme == "BIO"
    assert model.score(WORDS, BIO) > 0.7
    for word in ("sequences", "tokens", "labels", "iterations", "seconds"):
        assert word in said


def columns(text):
    """The last column of a file, by sequence."""
    parts = text.strip("\n").split("\n\n")
    rows = [[line for line in part.split("\n") if not line.startswith("# ")] for part in parts]
    return [[line.split()[-1] for line in part] for part in rows]


@every
def test_tag(name, trained, folder):
    path = told(name, trained)
    model = sf.load(path)
    best = model.predict(NEW_WORDS)
    assert columns(run("tag", path, folder / "new.txt").stdout) == best
    sure = columns(run("tag", path, folder / "new.txt", "--confidence").stdout)
    assert [[f"{float(v):.4f}" for v in row] for row in sure] == sure
    several = run("tag", path, folder / "new.txt", "--nbest", "2").stdout
    assert columns(several)[::2] == [row[0][0] for row in model.distribution(NEW_WORDS).nbest(2)]
    doubtful = columns(run("tag", path, folder / "new.txt", "--min-confidence", "0.9").stdout)
    kept = [
        (a, b)
        for row, own in zip(doubtful, best, strict=True)
        for a, b in zip(row, own, strict=True)
    ]
    assert all(a in ("?", b) for a, b in kept)
    likely = columns(run("tag", path, folder / "new.txt", "--decoding", "posterior").stdout)
    assert likely == model.predict(NEW_WORDS, decoding="posterior")


@every
@pytest.mark.parametrize("form", ["jsonl", "labelstudio", "doccano"])
def test_tag_as_json(name, form, trained, folder):
    for path in {trained(name)[0], told(name, trained)}:
        text = run("tag", path, folder / "new.txt", "--format", form).stdout
        records = (
            json.loads(text) if form == "labelstudio" else list(map(json.loads, text.splitlines()))
        )
        assert len(records) == len(NEW_WORDS)
        if form == "jsonl":
            model = sf.load(path)
            assert [one["labels"] for one in records] == model.predict(NEW_WORDS)
            known = [one["probability"] is not None for one in records]
            assert all(known) == (model.has_probabilities and model.joint)


@every
def test_eval(name, trained, folder):
    for path in {trained(name)[0], told(name, trained)}:
        model = sf.load(path)
        found = json.loads(run("eval", path, folder / "new.txt", "--json").stdout)
        assert found["token_accuracy"] == pytest.approx(model.score(NEW_WORDS, NEW_BIO), rel=1e-9)
        assert ("ece" in found) == model.has_probabilities
        shown = run("eval", path, folder / "new.txt").stdout
        assert "token accuracy" in shown
        assert ("Brier score" in shown) == model.has_probabilities


@every
@pytest.mark.parametrize("method", ["temperature", "platt", "vector"])
def test_calibrate(name, method, trained, folder, tmp_path):
    out = tmp_path / "m.sf"
    said = run("calibrate", trained(name)[0], folder / "new.txt", "-o", out, "--method", method)
    model = sf.load(out)
    assert model.has_probabilities
    assert (model.calibration_.slopes is not None) == (method == "vector")
    assert re.search(r"NLL per token +\S+ +\d", said.stdout)


@every
def test_report(name, trained, folder, tmp_path):
    for k, path in enumerate({trained(name)[0], told(name, trained)}):
        out = tmp_path / f"{k}.html"
        run("report", path, folder / "new.txt", "-o", out, "--learning-curve", folder / "train.txt")
        content = embedded(out.read_text("utf-8"))
        assert content["learning"]["sizes"][-1] == len(WORDS)
        assert content["data"]["sequences"] == len(NEW_WORDS)


@every
@pytest.mark.parametrize("unit", ["sequence", "token", "span"])
def test_suggest(name, unit, trained, folder):
    path = told(name, trained)
    text = run("suggest", path, folder / "new.txt", "-n", "3", "--unit", unit, "--format", "jsonl")
    records = list(map(json.loads, text.stdout.splitlines()))
    want = sf.active.rank(sf.load(path), NEW_WORDS, n=3, unit=unit)
    assert [one["score"] for one in records] == pytest.approx([one.score for one in want])
    plain = run("suggest", path, folder / "new.txt", "-n", "3", "--unit", unit).stdout
    assert plain.startswith("# 1 ") or not want


@every
def test_inspect(name, trained):
    text = run("inspect", trained(name)[0], "--top", "3").stdout
    assert name in text
    assert "B-LOC" in text
    model = sf.load(trained(name)[0])
    assert ("Strongest transitions" in text) == hasattr(model, "theta_")


def test_a_perceptron_with_a_kernel(folder, tmp_path):
    """It has no weights of features to count or to show."""
    out = tmp_path / "m.sf"
    said = run(
        "train", folder / "train.txt", "-o", out, "--learner", "perceptron", "--kernel", "poly2"
    )
    assert "weights" not in said.stdout
    assert "weights" not in run("inspect", out).stdout
