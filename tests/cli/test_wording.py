"""Messages of the library in the words of the command line."""

from __future__ import annotations

import re

import pytest
import typer

import seqfield as sf
from seqfield.cli.app import app
from seqfield.cli.learners import expanded
from seqfield.cli.train import train as train_command
from seqfield.cli.wording import in_options
from seqfield.kernels._base import NAMES

from ..support.commands import refused, run

COMMANDS = typer.main.get_command(app).commands | {"train": expanded(train_command)}

SALT = "2 B-QTY\ncups B-UNIT\nflour B-NAME\n\nsalt B-NAME\n\nsugar B-NAME\n\n"


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        ("train", "use on_violation='repair'", "use --on-violation repair"),
        ("train", 'use on_violation="repair", or', "use --on-violation repair, or"),
        ("train", "fit it with calibrate=True", "fit it with --calibrate"),
        ("tag", "fit it with calibrate=True", "fit it with train --calibrate"),
        ("tag", "or inference='chain'", "or train --inference chain"),
        ("tag", "pass lengths=, the number", "pass lengths=, the number"),
        ("tag", "tol=None", "tol=None"),
        ("train", "use encoding=", "use --encoding"),
        ("train", "say encoding='latin-1'.", "say --encoding latin-1."),
        ("train", "c2 must be a number", "--c2 must be a number"),
        ("train", "a.txt:3: scheme must be a name", "a.txt:3: --scheme must be a name"),
        ("train", "raise max_iter or tol", "raise --max-iter or tol"),
        ("train", "lower c2", "lower --c2"),
        ("train", "needs offsets=(-1, 1), got", "needs --offsets=-1,1, got"),
        ("train", "give more with n_inducing=", "give more with --n-inducing"),
        ("train", "use n_inducing=30", "use --n-inducing 30"),
        ("train", "use C=1e-3 or", "use --slack-weight 1e-3 or"),
        ("train", "missing_label='?'", "--missing '?'"),
        ("train", "random_state: no", "--seed: no"),
        ("train", "give more with gram_budget=", "give more with --gram-budget"),
        ("train", "use transitions=False", "use --no-transitions"),
        ("train", "use learn_kernel=False", "use --no-learn-kernel"),
        ("train", "use learn_kernel=True", "use --learn-kernel"),
        ("train", "use observed_only=False", "use --all-features"),
        ("train", "use solver='newton'", "use --solver newton"),
        ("train", "take cliques='vertex'", "take --cliques vertex"),
        ("train", "explicit=True: no", "--explicit true: no"),
        ("train", "use inducing='pivoted'", "use --inducing pivoted"),
        # arguments and values that the command does not have
        ("train", "pass lengths=, the number", "pass lengths=, the number"),
        ("train", "use solver='conjugate'", "use solver='conjugate'"),
        ("train", "use solver='sgd'", "use --solver sgd"),
        ("train", "calibrate='platt'", "calibrate='platt'"),
        ("train", "columns=False", "columns=False"),
        ("train", "early_stopping=False", "early_stopping=False"),
        ("train", "c2=None", "c2=None"),
        # words and names that are no arguments
        ("train", "the scheme of the label", "the scheme of the label"),
        ("train", "label 'c2=3' at /tmp/c2=3/max_iter", "label 'c2=3' at /tmp/c2=3/max_iter"),
        ("train", "my_c2=3 or c2x=3", "my_c2=3 or c2x=3"),
        ("suggest", "per_token goes with unit='sequence'", "--per-token goes with --unit sequence"),
        ("tag", "decoding must be", "--decoding must be"),
    ],
)
def test_arguments_become_options(command, text, expected):
    assert in_options(text, COMMANDS[command]) == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_words(command):
    assert in_options("a: b must be c=3", COMMANDS[command])


def test_without_a_command_nothing_changes():
    assert in_options("c2=3", None) == "c2=3"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text(SALT)
    return path


def train(source, *options):
    return ("train", source, "-o", source.parent / "m.sf", *options)


def test_errors_of_train(source):
    source.write_text(SALT + "salt I-NAME\n")
    text = refused(*train(source, "--scheme", "BIO"))
    assert "--on-violation repair" in text
    assert "on_violation" not in text
    run(*train(source, "--scheme", "BIO", "--on-violation", "repair", "-q"))


def test_an_unknown_kernel_is_told_the_names(source):
    text = run(*train(source, "--learner", "gpsc", "--kernel", "foo"), code=2).stderr
    assert "--kernel" in text
    text = re.sub(r"[\s│]+", " ", text)
    assert "'foo' is not one of 'linear', 'poly2', 'poly3', 'rbf'" in text
    assert all(f"'{name}'" in text for name in NAMES)


def test_warnings_of_train(source):
    text = run(*train(source, "--max-iter", 1, "-q")).stderr
    assert "warning: no convergence" in text
    assert "max_iter" not in text
    assert "--max-iter" in text


def test_no_features_are_warned_of(source):
    text = run(*train(source, "--min-freq", 50, "-q")).stderr
    told = r"warning: --min-freq 50 leaves none of the \d+ features: lower it\n"
    assert re.fullmatch(told, text)
    template = source.parent / "template"
    template.write_text("U0:%x[0,0]\nB\n")
    text = run(*train(source, "--template", template, "--min-freq", 50, "-q")).stderr
    assert "--min-freq 50 leaves none" in text


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--c2", 1e9), "lower --c2"),
        (("--c1", 1e9), "lower --c1"),
        (("--learner", "gpsc", "--kernel", "linear", "--c2", 1e9), "lower --c2"),
    ],
)
@pytest.mark.filterwarnings("ignore:no convergence")
def test_one_label_for_all_tokens_is_warned_of(source, options, remedy):
    text = run(*train(source, *options, "-q")).stderr
    assert "warning: the model gives all tokens that it was trained on the label 'B-NAME'" in text
    assert remedy in text


def test_a_model_that_learned_is_not_warned_of(source):
    assert run(*train(source, "-q")).stderr == ""


def test_c2_auto(source):
    run(*train(source, "--c2", "auto", "-q"))
    assert sf.load(source.parent / "m.sf").c2 == "auto"
    run(*train(source, "--learner", "gpsc", "--kernel", "linear", "--c2", "auto", "-q"))
    assert sf.load(source.parent / "m.sf").c2 == 1.0
    text = run(*train(source, "--learner", "hmm", "--c2", "auto"), code=2).stderr
    assert "--c2 has no meaning" in text
    for bad in ("-1", "x", "nan", "inf"):
        text = run(*train(source, "--c2", bad), code=2).stderr
        assert "--c2" in text
        assert "auto" in text
