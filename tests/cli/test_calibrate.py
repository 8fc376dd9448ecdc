import re

import pytest

import seqfield as sf

from ..support.commands import run


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    X, y = sf.load_ingredients("train")
    sf.CRF(c2=1e-3).fit(X[:60], y[:60]).save(folder / "crf.sf")
    sf.StructuredPerceptron(random_state=0).fit(X[:60], y[:60]).save(folder / "perceptron.sf")
    sf.write_conll(folder / "other.txt", X[60:160], y[60:160])
    return folder


@pytest.mark.parametrize("method", ["temperature", "platt", "vector"])
def test_calibrate(files, method, tmp_path):
    out = tmp_path / "better.sf"
    shown = run("calibrate", files / "crf.sf", files / "other.txt", "-o", out, "--method", method)
    [(before, after)] = re.findall(r"NLL per token +([\d.]+) +([\d.]+)", shown.stdout)
    assert float(after) < float(before)
    X, y = sf.load_ingredients("test")
    old, new = sf.load(files / "crf.sf"), sf.load(out)
    assert new.calibration_.temperature > 1
    assert new.notes_ == old.notes_

    def nll(model):
        return sf.metrics.token_nll(y, model.predict_proba(X), model.classes_)

    assert nll(new) < nll(old)


def test_scores_become_probabilities(files, tmp_path):
    out = tmp_path / "better.sf"
    shown = run("calibrate", files / "perceptron.sf", files / "other.txt", "-o", out)
    assert re.search(r"NLL per token +- +0\.\d+", shown.stdout)
    run("tag", out, files / "other.txt", "--confidence")


def test_bad_input(files, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_text("salt B-NAME\nx B-NOSUCH\n\nsalt B-NAME\n", encoding="utf-8")
    out = tmp_path / "m.sf"
    said = run("calibrate", files / "crf.sf", bad, "-o", out, code=2).stderr
    assert said.startswith(f"{bad}:2: label 'B-NOSUCH'")
    assert not out.exists()
    one = tmp_path / "one.txt"
    one.write_text("salt B-NAME\n", encoding="utf-8")
    said = run("calibrate", files / "crf.sf", one, "-o", out, code=2).stderr
    assert "at least two sequences" in said
    assert (
        "does not exist"
        in run("calibrate", files / "crf.sf", one, "-o", tmp_path / "no" / "m.sf", code=2).stderr
    )
