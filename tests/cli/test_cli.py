from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import seqfield as sf
from seqfield import metrics

from ..support.commands import ENVIRONMENT, PROGRAM, process, refused, run


def write(path: Path, X, y) -> Path:
    sf.write_conll(path, X, y)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def train_file(folder):
    X, y = sf.load_ingredients("train")
    return write(folder / "train.txt", X[:150], y[:150])


@pytest.fixture(scope="module")
def test_file(folder):
    X, y = sf.load_ingredients("train")
    return write(folder / "test.txt", X[150:200], y[150:200])


@pytest.fixture(scope="module")
def model_file(folder, train_file):
    run("train", train_file, "-o", folder / "m.sf", "--scheme", "bio", "--c2", "0.5", "-q")
    return folder / "m.sf"


@pytest.fixture
def pos_file(tmp_path):
    """Two feature columns; the label in the middle is no span label."""
    path = tmp_path / "pos.txt"
    path.write_text("the D x\ncat N x\nsat V y\n\na D x\ndog N z\n\n")
    return path


# --- the program itself ---------------------------------------------------------------------------


def test_version_and_help():
    assert run("--version").stdout == f"seqfield {sf.__version__}\n"
    text = run("--help").stdout
    for command in ("train", "tag", "eval", "inspect", "demo"):
        assert f"\n  {command} " in text
        assert "Usage" in run(command, "--help").stdout
    assert "# 1 -0.2231" in run("tag", "--help").stdout


def test_help_imports_nothing_heavy():
    code = "import sys, seqfield.cli.app; print({'numpy', 'numba', 'sklearn'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True)
    assert found.stdout.strip() == b"set()", found.stderr


# --- train ----------------------------------------------------------------------------------------


def test_train_is_the_library(train_file, model_file):
    X, y = sf.read_conll(train_file)
    own = sf.CRF(c2=0.5, scheme="BIO").fit(X, y)
    np.testing.assert_array_equal(sf.load(model_file).theta_, own.theta_)


LEARNERS = {
    "perceptron": sf.StructuredPerceptron(random_state=0, max_iter=3),
    "boost": sf.SequenceBoost(max_iter=3),
    "hmm": sf.HMM(max_iter=3),
    "crf": sf.CRF(max_iter=3),
}


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.filterwarnings("ignore:no convergence")
def test_train_other_learners(tmp_path, learner, train_file, test_file):
    X, y = sf.read_conll(train_file)
    own = LEARNERS[learner].fit(X, y)
    options = ("--learner", learner, "--max-iter", 3, "--test", test_file)
    shown = run("train", train_file, "-o", tmp_path / "m.sf", *options).stdout
    assert "token accuracy" in shown
    # scores that are no probabilities have no likelihood
    assert ("NLL per token" in shown) == own.probabilistic
    model = sf.load(tmp_path / "m.sf")
    assert type(model) is type(own)
    assert model.predict(X) == own.predict(X)


@pytest.mark.parametrize(
    ("options", "own"),
    [
        (("--learner", "gpsc", "--kernel", "poly2"), sf.GPSC("poly2", random_state=0)),
        (
            ("--learner", "gpsc", "--kernel", "linear", "--method", "sparse"),
            sf.GPSC("linear", method="sparse", random_state=0),
        ),
        (("--learner", "kernelcrf", "--n-cliques", 5), sf.KernelCRF(n_cliques=5, random_state=0)),
        (
            ("--learner", "hmsvm", "--slack", "l2", "--margin", "unit", "-C", 0.2, "--calibrate"),
            sf.HMSVM(C=0.2, slack="l2", margin="unit", calibrate=True, random_state=0),
        ),
        (
            ("--learner", "perceptron", "--kernel", "poly2", "--calibrate"),
            sf.StructuredPerceptron(kernel="poly2", calibrate=True, random_state=0),
        ),
        (
            ("--learner", "gpsl", "--kernel", "linear", "--max-iter", 5),
            sf.GPSL("linear", max_iter=5, random_state=0),
        ),
        (
            ("--learner", "gpstruct", "--kernel", "linear", "--sampler", "ess", "--n-steps", 40),
            sf.GPStruct("linear", 40, sampler="ess", random_state=0),
        ),
        (
            ("--learner", "svgp", "--kernel", "linear", "--n-inducing", 30, "--max-iter", 3),
            sf.StructuredSVGP("linear", 30, max_iter=3, random_state=0),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:no convergence")
def test_train_kernel_models(tmp_path, options, own, train_file):
    X, y = (part[:60] for part in sf.read_conll(train_file))
    sf.write_conll(tmp_path / "some.txt", X, y)
    shown = run("train", tmp_path / "some.txt", "-o", tmp_path / "m.sf", *options).stdout
    assert " tokens " in shown
    assert "token accuracy" in run("eval", tmp_path / "m.sf", tmp_path / "some.txt").stdout
    model = sf.load(tmp_path / "m.sf")
    for a, b in zip(model.predict_proba(X), own.fit(X, y).predict_proba(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert " tokens " in run("inspect", tmp_path / "m.sf").stdout


@pytest.mark.filterwarnings("ignore:no convergence")
def test_what_training_shows_of_posteriors(tmp_path, train_file):
    X, y = (part[:20] for part in sf.read_conll(train_file))
    source, model = write(tmp_path / "some.txt", X, y), tmp_path / "m.sf"
    given = ("train", source, "-o", model, "--kernel", "linear", "--learner")
    shown = run(*given, "svgp", "--n-inducing", 30, "--max-iter", 3).stdout
    own = sf.load(model)
    assert re.search(rf"bound +{own.bound_:.6g} ", shown)
    assert "objective" not in shown
    for text in (shown, run("inspect", model).stdout):
        assert re.search(r"inducing tokens +30\b", text)
    shown = run(*given, "gpstruct", "--sampler", "ess", "--n-steps", 40).stdout
    size = f"{sf.load(model).effective_sample_size_:,.0f}"
    assert re.search(rf"R-hat.*\n.*effective sample size +{size}", shown)
    assert "objective" in shown


def test_train_the_tagger(tmp_path, train_file, test_file):
    X, y = (part[:30] for part in sf.read_conll(train_file))
    source = write(tmp_path / "some.txt", X, y)
    shown = run("train", source, "-o", tmp_path / "m.sf", "--learner", "tagger").stdout
    assert "chosen" in shown
    assert "temperature" in shown
    model = sf.load(tmp_path / "m.sf")
    own = sf.Tagger(random_state=0).fit(X, y)
    for a, b in zip(model.predict_proba(X), own.predict_proba(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert " tokens " in run("inspect", tmp_path / "m.sf").stdout


def test_train_calibrated(tmp_path, train_file, test_file):
    model = tmp_path / "m.sf"
    run("train", train_file, "-o", model, "--learner", "perceptron", "-q")
    assert "train --calibrate" in refused("tag", model, test_file, "--confidence")
    assert run("tag", model, test_file).stdout
    text = run("train", train_file, "-o", model, "--learner", "perceptron", "--calibrate").stdout
    assert "temperature" in text
    assert run("tag", model, test_file, "--confidence").stdout


@pytest.mark.parametrize(
    ("learner", "option"),
    [
        ("hmm", ("--c1", 1)),
        ("perceptron", ("--loss", "exp")),
        ("hmm", ("--all-features",)),
        ("crf", ("--kernel", "rbf")),
        ("gpsc", ("--n-cliques", 3)),
        ("gpsc", ("--slack", "hard")),
        ("perceptron", ("--slack-weight", 3)),
        ("kernelcrf", ("--max-iter", 3)),
    ],
)
def test_an_option_without_meaning_is_refused(tmp_path, train_file, learner, option):
    out = tmp_path / "m.sf"
    text = run("train", train_file, "-o", out, "--learner", learner, *option, code=2).stderr
    assert f"{option[0]} has no meaning for --learner {learner}" in text
    assert not out.exists()


def test_a_flag_without_meaning_is_named_as_it_was_given(tmp_path, train_file):
    text = run("train", train_file, "-o", tmp_path / "m.sf", "--no-learn-kernel", code=2).stderr
    assert "Invalid value: --no-learn-kernel has no meaning for --learner crf" in text


@pytest.mark.parametrize(
    ("learner", "option", "told"),
    [
        ("crf", ("--solver", "adam"), "expected auto, lbfgs, owlqn or sgd for --learner crf"),
        ("crf", ("--max-iter", 0), "expected a whole number of at least 1 for --learner crf"),
        ("crf", ("--max-iter", 2.5), "expected a whole number of at least 1"),
        ("crf", ("--c2", -1), "expected auto or a number of at least 0"),
        ("crf", ("--c2", "nan"), "expected auto or a number of at least 0"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_plain_words(
    tmp_path, train_file, learner, option, told
):
    out = tmp_path / "m.sf"
    text = run("train", train_file, "-o", out, "--learner", learner, *option, code=2).stderr
    text = re.sub(r"\s+", " ", text)
    assert "None" not in text
    assert "instance" not in text
    assert f"for {option[0]}: {told}" in text
    assert not out.exists()


def test_a_whole_number_may_be_written_like_1e2(tmp_path, train_file):
    run("train", train_file, "-o", tmp_path / "m.sf", "--max-iter", "1e2", "-q")
    assert sf.load(tmp_path / "m.sf").max_iter == 100


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--cost", 2), "--cost has no effect without --loss softmax_margin"),
        (("--n-restarts", 2), "--n-restarts has no effect without --loss marginal"),
        (("--patience", 2), "--patience has no effect without --early-stopping"),
        (
            ("--learner", "boost", "--refit-c2", 2),
            "--refit-c2 has no effect without --refit log or --refit exp",
        ),
        (
            ("--learner", "gpsc", "--n-coordinates", 5),
            "--n-coordinates has no effect without --method sparse or --method sequence",
        ),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path, train_file, options, told):
    text = run("train", train_file, "-o", tmp_path / "m.sf", *options, code=2).stderr
    assert told in re.sub(r"\s+", " ", text)


def test_the_help_speaks_of_options_and_not_of_python():
    text = run("train", "--help").stdout
    words = set(re.findall(r"`\w*|\bNone\b|\bTrue\b|\bFalse\b|\b[a-z]+(?:_[a-z0-9]+)+\b", text))
    assert words == {"softmax_margin", "rational_quadratic"}


def test_train_passes_every_option_on(tmp_path, train_file):
    run(
        *("train", train_file, "-o", tmp_path / "m.sf", "--quiet", "--min-freq", 2, "--c1", 0.3),
        *("--c2", 0.2, "--loss", "softmax_margin", "--cost", 0.7, "--solver", "owlqn"),
        *("--all-features", "--scheme", "BIO", "--on-violation", "repair", "--max-iter", 300),
        *("--tol", 0.01, "--early-stopping", "--jobs", 1, "--seed", 5),
    )
    found = sf.load(tmp_path / "m.sf").get_params(deep=False)
    assert repr(found.pop("features")) == repr(sf.Words(min_freq=2))
    expected = sf.CRF(
        loss="softmax_margin",
        cost=0.7,
        c1=0.3,
        c2=0.2,
        solver="owlqn",
        observed_only=False,
        scheme="BIO",
        on_violation="repair",
        max_iter=300,
        tol=0.01,
        early_stopping=True,
        random_state=5,
    ).get_params(deep=False)
    expected.pop("features")
    assert found == expected


def test_train_summary_and_test_scores(tmp_path, train_file, test_file):
    result = run("train", train_file, "-o", tmp_path / "m.sf", "--test", test_file)
    model = sf.load(tmp_path / "m.sf")
    X, _ = sf.read_conll(train_file)
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if " " in line)
    assert rows["sequences"].strip() == "150"
    assert rows["tokens"].strip() == f"{sum(map(len, X)):,}"
    assert rows["labels"].strip() == str(len(model.classes_))
    assert rows["features"].strip() == f"{model.n_features_in_:,}"
    assert rows["weights"].split(",  ")[0].startswith(f"{len(model.theta_):,}, ")
    assert "above the optimum" in rows["gap"]
    assert {"iterations", "objective", "seconds", "model"} <= set(rows)
    accuracy = model.score(*sf.read_conll(test_file))
    assert f"token accuracy           {accuracy:.4f}" in result.stdout


def test_train_quiet_says_nothing(tmp_path, train_file):
    result = run("train", train_file, "-o", tmp_path / "m.sf", "--quiet")
    assert (result.stdout, result.stderr) == ("", "")


def test_train_model_does_not_depend_on_threads_or_progress(tmp_path, train_file):
    run("train", train_file, "-o", tmp_path / "a.sf", "--jobs", 1, "--quiet")
    run("train", train_file, "-o", tmp_path / "b.sf", "--jobs", 3)
    assert (tmp_path / "a.sf").read_bytes() == (tmp_path / "b.sf").read_bytes()


def test_train_chooses_columns_as_the_file_counts_them(tmp_path, pos_file):
    template = tmp_path / "template"
    template.write_text("U0:%x[0,0]\nU1:%x[0,1]\nB\n")
    options = ("--label", 1, "--columns", "2,0", "--template", template, "-q")
    run("train", pos_file, "-o", tmp_path / "m.sf", *options)
    model = sf.load(tmp_path / "m.sf")
    assert model.classes_.tolist() == ["D", "N", "V"]
    assert {"U0:x", "U1:cat"} <= set(model.features_.names())
    tagged = run("tag", tmp_path / "m.sf", pos_file, "--columns", "2,0").stdout
    assert tagged.splitlines()[:3] == ["the D x D", "cat N x N", "sat V y V"]


def test_train_from_stdin(tmp_path, train_file, model_file):
    options = ("--scheme", "bio", "--c2", "0.5", "-q")
    run("train", "-", "-o", tmp_path / "m.sf", *options, input=train_file.read_bytes())
    assert (tmp_path / "m.sf").read_bytes() == model_file.read_bytes()


def test_train_shows_no_convergence_as_one_line(tmp_path, train_file):
    result = run("train", train_file, "-o", tmp_path / "m.sf", "--max-iter", 2, "-q")
    assert result.stderr.startswith("warning: no convergence in 2 iterations")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "reason"),
    [("none/m.sf", "the folder"), (".", "not a regular file"), ("/dev/null", "not a regular file")],
)
def test_train_refuses_the_output_before_it_reads(tmp_path, place, reason):
    text = refused("train", tmp_path / "no such file", "-o", tmp_path / place)
    assert text.startswith(str(tmp_path / place) + ": cannot write")
    assert reason in text


def test_train_refuses_a_folder_it_may_not_write(tmp_path, train_file, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    text = refused("train", train_file, "-o", tmp_path / "m.sf")
    assert text == f"{tmp_path / 'm.sf'}: cannot write: permission denied\n"


def test_failed_training_keeps_the_model(tmp_path, train_file):
    output = tmp_path / "m.sf"
    output.write_bytes(b"precious")
    text = refused("train", train_file, "-o", output, "--scheme", "BIOES", "-q")
    assert text.startswith(f"{train_file}:2: sequence 0, position 1: 'B-UNIT' after 'B-QTY'")
    assert output.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["m.sf"]


def test_train_checks_the_test_file_before_training(tmp_path, train_file):
    other = tmp_path / "other.txt"
    other.write_text("a b B-QTY\n")
    options = ("-o", tmp_path / "m.sf", "--test", other)
    assert refused("train", train_file, *options).startswith(f"{other}:1: 2 feature columns, but")
    assert not (tmp_path / "m.sf").exists()


# --- tag ------------------------------------------------------------------------------------------


def test_tag_writes_columns_labels_and_confidence(model_file, test_file):
    X, y = sf.read_conll(test_file)
    model = sf.load(model_file)
    place = model.classes_.tolist().index
    expected = []
    for rows, gold, labels, p in zip(X, y, model.predict(X), model.predict_proba(X), strict=True):
        for t, (row, label) in enumerate(zip(rows, labels, strict=True)):
            expected.append(f"{row[0]} {gold[t]} {label} {p[t, place(label)]:.4f}")
        expected.append("")
    found = run("tag", model_file, test_file, "--confidence").stdout
    assert found == "\n".join(expected) + "\n"


def test_tag_does_not_look_at_the_gold_label(model_file):
    plain = run("tag", model_file, input="2\ncups\n\nsalt\n").stdout
    gold = run("tag", model_file, input="2 Q\ncups Q\n\nsalt Q\n").stdout
    assert plain.replace(" ", " Q ") == gold


def test_tag_posterior_decoding(model_file, test_file):
    X, _ = sf.read_conll(test_file)
    model = sf.load(model_file)
    best, likeliest = model.predict(X), model.predict(X, decoding="posterior")
    assert best != likeliest
    found = run("tag", model_file, test_file, "--decoding", "posterior").stdout
    assert [row.split()[-1] for row in found.split("\n") if row] == [*chain(*likeliest)]


def test_tag_nbest(model_file):
    found = run("tag", model_file, "--nbest", 2, "--confidence", input="2\ncups\n\nsalt\n").stdout
    blocks = found.rstrip("\n").split("\n\n")
    model = sf.load(model_file)
    X = [["2", "cups"], ["salt"]]
    proba, place = model.predict_proba(X), model.classes_.tolist().index
    expected = []
    for i, ranked in enumerate(model.distribution(X).nbest(2)):
        for rank, (labels, log_probability) in enumerate(ranked, 1):
            lines = [f"# {rank} {log_probability:.4f}"]
            for t, label in enumerate(labels):
                lines.append(f"{X[i][t]} {label} {proba[i][t, place(label)]:.4f}")
            expected.append("\n".join(lines))
    assert len(blocks) == 4
    assert blocks == expected
    assert run("tag", model_file, "--nbest", 2, "--decoding", "posterior", code=2).stdout == ""


def test_tag_batches_change_nothing(model_file, test_file, monkeypatch):
    whole = run("tag", model_file, test_file, "--confidence").stdout
    monkeypatch.setattr("seqfield.cli.tag.BATCH", 7)
    assert run("tag", model_file, test_file, "--confidence").stdout == whole


def test_tag_into_a_file_in_another_encoding(tmp_path, model_file):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes("2\ncafé\n".encode("utf-16"))
    options = ("-o", output, "--encoding", "utf-16")
    assert run("tag", model_file, source, *options).stdout == ""
    first, second = output.read_text("utf-16").split("\n")[:2]
    assert (first, second.split()[0]) == ("2 B-QTY", "café")


def test_tag_with_a_template_takes_more_columns(tmp_path, train_file):
    template = tmp_path / "template"
    template.write_text("U0:%x[0,0]\nB\n")
    run("train", train_file, "-o", tmp_path / "m.sf", "--template", template, "-q")
    assert run("tag", tmp_path / "m.sf", input="2 x y z\n").stdout == "2 x y z B-QTY\n\n"


def test_failed_tagging_keeps_the_output(tmp_path, model_file):
    output = tmp_path / "out.txt"
    output.write_text("precious")
    refused("tag", model_file, "-o", output, input="a b c d\n")
    assert output.read_text() == "precious"
    assert os.listdir(tmp_path) == ["out.txt"]


# --- eval -----------------------------------------------------------------------------------------


def test_eval_json_is_the_library(model_file, test_file):
    X, y = sf.read_conll(test_file)
    model = sf.load(model_file)
    predicted, proba = model.predict(X), model.predict_proba(X)
    report = json.loads(run("eval", model_file, test_file, "--json").stdout)
    spans = metrics.span_scores(y, predicted)
    assert report["sequences"] == 50
    assert report["token_accuracy"] == metrics.token_accuracy(y, predicted)
    assert report["sequence_accuracy"] == 1 - metrics.sequence_error(y, predicted)
    assert report["transition_accuracy"] == metrics.transition_accuracy(y, predicted)
    assert report["joint_nll_per_sequence"] == pytest.approx(-model.log_likelihood(X, y).mean())
    assert report["nll_per_token"] == metrics.token_nll(y, proba, model.classes_, mean=True)
    assert report["ece"] == metrics.ece(y, proba, model.classes_, labels=predicted)
    assert report["brier"] == metrics.brier(y, proba, model.classes_)
    assert report["spans"]["f1"] == spans.f1
    assert report["spans"]["by_type"]["NAME"]["recall"] == spans.by_type["NAME"].recall
    support = {label: scores["support"] for label, scores in report["labels"].items()}
    assert support["B-NAME"] == sum(row.count("B-NAME") for row in y)


def test_eval_tables(model_file, test_file):
    text = run("eval", model_file, test_file).stdout
    assert max(map(len, text.splitlines())) <= 80
    for part in ("NLL per token", "ECE", "Brier", "Spans", "all ", "NAME ", "Labels", "B-NAME "):
        assert part in text
    assert "Spans" not in run("eval", model_file, test_file, "--scheme", "none").stdout


def test_eval_counts_no_spans_in_other_labels(tmp_path, pos_file):
    run("train", pos_file, "-o", tmp_path / "m.sf", "--label", 1, "-q")
    report = run("eval", tmp_path / "m.sf", pos_file, "--label", 1, "--json").stdout
    assert json.loads(report)["spans"] is None


def test_eval_of_a_forbidden_labelling_is_valid_json(model_file):
    report = json.loads(run("eval", model_file, "-", "--json", input="a I-NAME\nb O\n").stdout)
    assert report["joint_nll_per_sequence"] is None


def test_eval_counts_unknown_labels_as_missed(model_file):
    text = run("eval", model_file, "-", "--json", input="salt B-NAME\nsalt B-NEW\n").stdout
    found = json.loads(text)
    assert found["unknown_labels"] == ["B-NEW"]
    assert found["token_accuracy"] == 0.5
    model = sf.load(model_file)
    p = model.predict_proba([["salt", "salt"]])[0][0, model.classes_.tolist().index("B-NAME")]
    assert found["nll_per_token"] == pytest.approx(-np.log(p), rel=1e-9)
    text = run("eval", model_file, "-", input="salt B-NAME\nsalt B-NEW\n").stdout
    assert "does not know count as missed: B-NEW" in text


def test_columns_are_remembered(tmp_path, train_file):
    X, y = sf.read_conll(train_file)
    rows = [
        f"x{t % 3} {word} {label}" if rows else ""
        for rows, labels in zip(X, y, strict=True)
        for t, ((word,), label) in enumerate([*zip(rows, labels, strict=True)])
    ]
    swapped, output = tmp_path / "swapped.txt", tmp_path / "m.sf"
    swapped.write_text("\n".join(rows) + "\n")
    run("train", swapped, "-o", output, "--columns", "1", "-q", "--max-iter", "20")
    found = json.loads(run("eval", output, swapped, "--json").stdout)
    assert found["token_accuracy"] > 0.8
    lines = run("tag", output, swapped).stdout.splitlines()
    assert lines[0].split(" ")[:3] == rows[0].split(" ")


# --- inspect --------------------------------------------------------------------------------------


def test_inspect_shows_weights(model_file):
    model = sf.load(model_file)
    text = run("inspect", model_file, "--top", 3).stdout
    assert "c2=0.5" in text
    assert f"{len(model.theta_):,}, 0.0% of them zero" in text
    [best] = model.top_weights(1, label="B-QTY")
    [worst] = model.top_weights(1, label="B-QTY", lowest=True)
    part = text.partition("Features of B-QTY\n")[2].splitlines()[2]
    assert f"{best.value:+.3f}  {best.feature}" in part
    assert f"{worst.value:+.3f}  {worst.feature}" in part
    i, j = np.unravel_index(model.transitions_.argmax(), model.transitions_.shape)
    part = text.partition("Strongest transitions\n")[2].splitlines()[2].split()
    assert part == [f"{model.transitions_.max():+.3f}", model.classes_[i], model.classes_[j]]


def test_inspect_one_label(model_file):
    text = run("inspect", model_file, "--label", "O").stdout
    assert "Features of O" in text
    assert "Features of B-QTY" not in text
    assert "'Q' is not one of the model's labels" in refused("inspect", model_file, "--label", "Q")


def test_inspect_marks_what_is_forbidden(model_file):
    text = run("inspect", model_file, "--transitions").stdout
    allowed, _, forbidden = text.partition("Forbidden")
    rows = {line.split()[0]: line for line in forbidden.splitlines()[1:] if line}
    assert "I-NAME" in rows["(start)"]
    assert "I-PREP" in rows["B-NAME"]
    assert "I-NAME" not in rows["B-NAME"]
    weights = sf.load(model_file).transitions_
    assert sum(line[:1] in "+-" for line in allowed.splitlines() if line) == (weights != 0).sum()


# --- demo -----------------------------------------------------------------------------------------


def test_demo():
    text = run("demo").stdout
    assert "\x1b" not in text
    for part in ("token accuracy", "span F1", "NLL per token", "calibration error", "B-NAME?"):
        assert part in text
    assert text.count("  seqfield ") + text.count("| seqfield ") == 3


# --- errors ---------------------------------------------------------------------------------------

BAD_FILES = {
    "empty": (b"\n\n", "{}: no tokens"),
    "ragged": (b"a O\n\nb\n", "{}:3: 1 column where lines before have 2"),
    "latin-1": (b"a O\nb O\ncaf\xe9 O\n", "{}:3: not utf-8: byte 0xe9"),
    "binary": (bytes(range(256)), "{}:"),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["train", "tag", "eval"])
def test_bad_files(tmp_path, model_file, command, name):
    content, message = BAD_FILES[name]
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    before = ("-o", tmp_path / "m.sf") if command == "train" else (model_file,)
    assert refused(command, *before, path).startswith(message.format(path))
    assert os.listdir(tmp_path) == ["bad.txt"]


@pytest.mark.parametrize("command", ["tag", "eval", "inspect"])
def test_bad_models(tmp_path, test_file, model_file, command):
    rest = () if command == "inspect" else (test_file,)
    garbage, cut = tmp_path / "garbage", tmp_path / "cut"
    garbage.write_bytes(np.random.default_rng(0).bytes(5000))
    cut.write_bytes(model_file.read_bytes()[:-100])
    for path in (tmp_path / "none", tmp_path, garbage, cut):
        assert refused(command, path, *rest).startswith(f"{path}: ")


def test_wrong_columns(tmp_path, model_file):
    path = tmp_path / "wide.txt"
    path.write_text("a b c\n")
    text = refused("tag", model_file, path)
    assert text.startswith(f"{path}:1: 3 feature columns, but the model was trained with 1 (or 2")
    assert refused("eval", model_file, path).startswith(f"{path}:1: 2 feature columns, but")
    assert "no column 7" in refused("tag", model_file, path, "--columns", 7)
    assert "no column 5" in refused("eval", model_file, path, "--label", 5)
    text = refused("train", path, "-o", tmp_path / "m.sf", "--columns", "0,2")
    assert text.startswith(f"{path}:1: column 2 is the label")


def test_model_without_columns(tmp_path, test_file):
    model = sf.CRF().fit([np.eye(2)], [["a", "b"]])
    model.save(tmp_path / "m.sf")
    assert "not made of columns of text" in refused("tag", tmp_path / "m.sf", test_file)


@pytest.mark.parametrize(
    "options",
    [
        ("--columns", "a"),
        ("--encoding", "no such"),
        ("--jobs", 0),
        ("--c2", -1),
        ("--solver", "newton"),
        ("--seed", 2**32),
    ],
)
def test_bad_options(tmp_path, train_file, options):
    result = run("train", train_file, "-o", tmp_path / "m.sf", *options, code=2)
    assert options[0] in result.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MemoryError("cannot allocate"), 2, "out of memory: cannot allocate\n"),
        (OSError(28, "No space left on device", "here"), 2, "here: No space left on device\n"),
        (sf.SeqfieldError("two\nlines"), 2, "two lines\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_while_training(tmp_path, train_file, monkeypatch, error, code, text):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(sf.CRF, "fit", fail)
    result = run("train", train_file, "-o", tmp_path / "m.sf", code=code)
    assert (result.stdout, result.stderr) == ("", text)


# --- as a process ---------------------------------------------------------------------------------


def test_round_trip_through_pipes(model_file):
    done = process("tag", model_file, "--confidence", input=b"2\ncups\nflour\n")
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [line.split() for line in done.stdout.decode().split("\n")[:3]]
    assert [row[:2] for row in rows] == [["2", "B-QTY"], ["cups", "B-UNIT"], ["flour", "B-NAME"]]
    assert all(0 < float(row[2]) <= 1 and len(row[2]) == 6 for row in rows)


def test_errors_of_a_process(model_file):
    done = process("tag", model_file, input=b"a\nb\n\n\xff\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"<stdin>:4: not utf-8: byte 0xff")
    assert done.stderr.count(b"\n") == 1
    done = process("tag", model_file, input=b"a\nb c\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"<stdin>:2: 2 columns where")


def test_a_reader_that_leaves_early(tmp_path, model_file, train_file):
    source = tmp_path / "long.txt"
    source.write_bytes(train_file.read_bytes() * 50)  # more than a pipe holds
    with subprocess.Popen(
        [*PROGRAM, "tag", str(model_file), str(source)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None and running.stderr is not None  # noqa: PT018
        assert running.stdout.readline() == b"2 B-QTY B-QTY\n"
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 1


# where tests run in the background, the shell has let interrupts be ignored
HEEDING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def _reads_input(pid):
    """Whether a process waits in read(0, ...); where nobody tells, it is given some seconds."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[:2] == ["0", "0x0"]
    except OSError:
        time.sleep(5)
        return True


def test_interrupt(tmp_path):
    # a reader of standard input waits until it is interrupted
    with subprocess.Popen(
        [sys.executable, "-c", HEEDING, *PROGRAM, "train", "-", "-o", str(tmp_path / "m.sf")],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        deadline = time.monotonic() + 60.0
        while not _reads_input(running.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        assert running.stdout is not None and running.stderr is not None  # noqa: PT018
        assert (running.stdout.read(), running.stderr.read()) == (b"", b"")
    assert not any(tmp_path.iterdir())


def test_a_gold_label_that_is_no_span_label_counts_as_missed(model_file, folder):
    X, y = sf.load_ingredients("test")
    odd = [["what" if label == "O" else label for label in row] for row in y[:20]]
    report = run("eval", model_file, write(folder / "odd.txt", X[:20], odd), "--json")
    found = json.loads(report.stdout)
    assert found["spans"] is None
    assert found["unknown_labels"] == ["what"]


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (("--offsets", "-1"), {"offsets": (-1,)}),
        (("--offsets=-2,-1, 1,2",), {"offsets": (-2, -1, 1, 2)}),
        (("--offsets", ""), {"offsets": ()}),
        (("--inference", "chain"), {"inference": "chain"}),
        (("--offsets", "1,-1", "--inference", "chain"), {"offsets": (1, -1), "inference": "chain"}),
    ],
)
@pytest.mark.filterwarnings("ignore:no convergence")
def test_train_gpsl_with_other_neighbours(tmp_path, train_file, options, given):
    X, y = (part[:20] for part in sf.read_conll(train_file))
    source, model = write(tmp_path / "some.txt", X, y), tmp_path / "m.sf"
    run(*("train", source, "-o", model, "--learner", "gpsl", "--kernel", "linear", "-q"), *options)
    own = sf.GPSL("linear", random_state=0, **given).fit(X, y)
    for a, b in zip(sf.load(model).predict_proba(X), own.predict_proba(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--offsets", "-1;1"), "whole numbers such as -1,1, got '-1;1'"),
        (("--offsets", "1,,2"), "whole numbers such as -1,1, got '1,,2'"),
        (("--offsets", "0.5"), "whole numbers such as -1,1"),
        (("--offsets", "0"), "different from 0"),
        (("--offsets", "1,1"), "from each other"),
        (("--offsets", "-1", "--inference", "chain"), "needs --offsets=-1,1"),
        (("--inference", "exact"), "is not one of 'refine', 'chain'"),
    ],
)
def test_neighbours_that_cannot_be_are_refused(tmp_path, train_file, options, told):
    out = tmp_path / "m.sf"
    text = run("train", train_file, "-o", out, "--learner", "gpsl", *options, code=2).stderr
    assert told in re.sub(r"[\s│]+", " ", text)
    assert not out.exists()


@pytest.mark.parametrize("option", [("--offsets", "-1"), ("--inference", "chain")])
def test_neighbours_have_a_meaning_for_gpsl_alone(tmp_path, train_file, option):
    out = tmp_path / "m.sf"
    text = run("train", train_file, "-o", out, *option, code=2).stderr
    assert f"{option[0]} has no meaning for --learner crf" in text
