"""What the commands do with files: nothing is lost, nothing is taken for what it is not."""

from __future__ import annotations

import gzip
import json
import os
import subprocess

import pytest

import seqfield as sf

from ..support.commands import ENVIRONMENT, PROGRAM, process, refused, run

SALT = "2 B-QTY\ncups B-UNIT\nflour B-NAME\n\nsalt B-NAME\n\nsugar B-NAME\n\n"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    X, y = sf.load_ingredients("train")
    sf.CRF(scheme="BIO", n_jobs=1).fit(X[:60], y[:60]).save(folder / "m.sf")
    sf.write_conll(folder / "d.txt", X[60:80], y[60:80])
    sf.write_conll(folder / "p.txt", X[60:80])
    (folder / "template").write_text("U0:%x[0,0]\nB\n")
    return folder


@pytest.fixture
def files(kept, tmp_path):
    """A copy that may be lost."""
    for path in kept.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


# --- outputs that are inputs ----------------------------------------------------------------------

COMMANDS = {
    "train": ("train", "d.txt", "-o", "d.txt"),
    "train, its template": ("train", "d.txt", "--template", "template", "-o", "template"),
    "train, its test": ("train", "d.txt", "--test", "p.txt", "-o", "p.txt"),
    "tag": ("tag", "m.sf", "p.txt", "-o", "p.txt"),
    "tag, its model": ("tag", "m.sf", "p.txt", "-o", "m.sf"),
    "suggest": ("suggest", "m.sf", "p.txt", "-o", "p.txt"),
    "suggest, its model": ("suggest", "m.sf", "p.txt", "-o", "m.sf"),
    "calibrate": ("calibrate", "m.sf", "d.txt", "-o", "d.txt"),
    "calibrate, its model": ("calibrate", "m.sf", "d.txt", "-o", "m.sf"),
    "report": ("report", "m.sf", "d.txt", "-o", "d.txt"),
    "report, its model": ("report", "m.sf", "d.txt", "-o", "m.sf"),
    "report, its curve": ("report", "m.sf", "d.txt", "--learning-curve", "p.txt", "-o", "p.txt"),
}


def _links(folder, name, how):
    """Another name of a file."""
    if how == "spelling":
        return os.path.join(folder, "..", folder.name, name)
    other = folder / "other"
    other.symlink_to(folder / name) if how == "symlink" else os.link(folder / name, other)
    return other


@pytest.mark.parametrize("how", ["name", "spelling", "symlink", "hard link"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_is_an_input_is_refused(files, monkeypatch, command, how):
    monkeypatch.chdir(files)
    name = COMMANDS[command][-1]
    output = name if how == "name" else _links(files, name, how)
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    text = refused(*COMMANDS[command][:-1], output)
    assert text.startswith(f"{output}: cannot write: it is the input")
    assert "choose another name" in text
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_standard_input_may_be_the_output(files):
    before = (files / "p.txt").read_bytes()
    with (files / "p.txt").open("rb") as stream:
        done = process("tag", files / "m.sf", "-o", files / "p.txt", stdin=stream)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"it is the input" in done.stderr
    assert (files / "p.txt").read_bytes() == before


def test_an_output_that_is_there_is_replaced_as_before(files):
    run("tag", files / "m.sf", files / "p.txt", "-o", files / "d.txt")
    assert (files / "d.txt").read_text() == run("tag", files / "m.sf", files / "p.txt").stdout


# --- closed streams -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "tag m.sf",
        "suggest m.sf",
        "eval m.sf -",
        "report m.sf -",
        "calibrate m.sf - -o o.sf",
        "train - -o o.sf",
        "train d.txt --test - -o o.sf",
    ],
)
def test_closed_standard_input(files, command):
    line = " ".join([*PROGRAM, command, "<&-"])
    done = subprocess.run(line, shell=True, cwd=files, env=ENVIRONMENT, capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"standard input is closed: name a file to read\n"
    assert not (files / "o.sf").exists()


@pytest.mark.parametrize("command", ["tag m.sf p.txt", "suggest m.sf p.txt"])
def test_closed_standard_output(files, command):
    line = " ".join([*PROGRAM, command, ">&-"])
    done = subprocess.run(line, shell=True, cwd=files, env=ENVIRONMENT, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"standard output is closed: name a file with --output\n"


# --- missing labels -------------------------------------------------------------------------------


def test_train_takes_a_label_for_a_missing_one(tmp_path):
    source, out = tmp_path / "d.txt", tmp_path / "m.sf"
    source.write_text(SALT.replace("cups B-UNIT", "cups ?"))
    run("train", source, "-o", out, "--missing", "?", "-q")
    X, y = sf.read_conll(source, missing="?")
    assert y[0][1] is None
    assert sf.load(out).classes_.tolist() == ["B-NAME", "B-QTY"]
    assert (sf.load(out).theta_ == sf.CRF().fit(X, y).theta_).all()


def test_train_warns_of_the_sign_for_no_label(tmp_path):
    source, out = tmp_path / "d.txt", tmp_path / "m.sf"
    source.write_text(SALT.replace("cups B-UNIT", "cups ?"))
    text = run("train", source, "-o", out, "-q").stderr
    assert text.startswith(f"warning: {source}:2: the label '?' ")
    assert "--missing '?'" in text
    assert "?" in sf.load(out).classes_
    assert run("train", source, "-o", out, "--missing", "?", "-q").stderr == ""


def test_what_tag_gives_up_trains(files):
    out = files / "out.txt"
    run("tag", files / "m.sf", files / "p.txt", "--min-confidence", 0.9, "-o", out)
    assert "?" in out.read_text()
    run("train", out, "-o", files / "n.sf", "--missing", "?", "-q")
    assert "?" not in sf.load(files / "n.sf").classes_


@pytest.mark.parametrize("scheme", ["auto", "none"])
def test_eval_leaves_missing_labels_out(files, scheme):
    known, some = files / "known.txt", files / "some.txt"
    known.write_text("2 B-QTY\n\nsalt O\n")
    some.write_text("2 B-QTY\nx ?\n\nsalt O\n")
    options = ("--json", "--scheme", scheme)
    found = json.loads(run("eval", files / "m.sf", some, "--missing", "?", *options).stdout)
    model = sf.load(files / "m.sf")
    X, y = sf.read_conll(some, missing="?")
    assert found["token_accuracy"] == model.score(X, y)
    assert found["unknown_labels"] == []
    assert found["joint_nll_per_sequence"] == pytest.approx(-model.log_likelihood(X, y).mean())
    result = run("eval", files / "m.sf", some, *options)
    assert json.loads(result.stdout)["unknown_labels"] == ["?"]
    assert "--missing '?'" in result.stderr


def test_report_and_calibrate_leave_missing_labels_out(files):
    some, out = files / "some.txt", files / "n.sf"
    X, y = sf.read_conll(files / "d.txt")
    y[0][0] = y[3][1] = None
    sf.write_conll(some, X, y)
    run("report", files / "m.sf", some, "--missing", "?", "-o", files / "r.html")
    run("calibrate", files / "m.sf", some, "--missing", "?", "-o", out)
    own = sf.calibrate(sf.load(files / "m.sf"), X, y, cv="prefit")
    assert sf.load(out).calibration_.temperature == pytest.approx(
        own.calibration_.temperature, rel=1e-9
    )
    text = run("calibrate", files / "m.sf", some, "-o", out, code=2).stderr
    assert "--missing '?'" in text


# --- files of other kinds -------------------------------------------------------------------------


def test_tabs(files):
    source, out = files / "tabs.txt", files / "n.sf"
    source.write_text(SALT.replace(" ", "\t").replace("cups", "big cups"))
    run("train", source, "-o", out, "-q")
    assert "word[0]=big cups" in sf.load(out).features_.names()
    lines = run("tag", out, source).stdout.splitlines()
    assert lines[1] == "big cups\tB-UNIT\tB-UNIT"
    [first, *_] = run("tag", out, source, "--nbest", 1).stdout.split("\n\n")
    assert first.splitlines()[2] == "big cups\tB-UNIT\tB-UNIT"
    lines = run("tag", out, source, "--min-confidence", 0).stdout.splitlines()
    assert lines[1] == "big cups\tB-UNIT\tB-UNIT"
    text = run("suggest", out, source, "-n", 3).stdout
    assert "\nbig cups\tB-UNIT\tB-UNIT\t0." in text


def test_blanks_in_what_is_to_be_tagged(files):
    source, out = files / "tabs.txt", files / "n.sf"
    source.write_text(SALT.replace(" ", "\t").replace("cups", "big cups"))
    run("train", source, "-o", out, "-q")
    result = run("tag", out, input="big cups\n")
    assert "end the lines with a tab" in result.stderr
    result = run("tag", out, input="big cups\t\n")
    assert result.stdout.startswith("big cups\tB-")
    assert result.stderr == ""
    assert run("tag", out, input="cups\n").stderr == ""
    assert run("tag", files / "m.sf", input="cups O\n").stderr == ""


def test_names_of_outputs(files):
    out = files / "out.txt.gz"
    run("tag", files / "m.sf", files / "p.txt", "-o", out)
    assert gzip.decompress(out.read_bytes()).decode() == (
        run("tag", files / "m.sf", files / "p.txt").stdout
    )
    for command in ("tag", "suggest"):
        options = (files / "m.sf", files / "p.txt", "-o", files / "out.conllu")
        assert "choose another name" in refused(command, *options)
        run(command, *options, "--format", "jsonl")


def test_labels_with_blanks_are_written_with_tabs(files):
    X, y = sf.load_ingredients("train")
    model = sf.CRF(n_jobs=1).fit(X[:20], [[f"a {label}" for label in row] for row in y[:20]])
    model.save(files / "n.sf")
    found = run("tag", files / "n.sf", input="2\ncups\n").stdout
    assert found == "2\ta B-QTY\ncups\ta B-UNIT\n\n"


def test_labels_that_no_column_holds_are_refused(files):
    X, y = sf.load_ingredients("train")
    model = sf.CRF(n_jobs=1).fit(X[:20], [[f"{label}\n" for label in row] for row in y[:20]])
    model.save(files / "n.sf")
    for options in ((), ("--nbest", 2), ("--min-confidence", 0)):
        text = refused("tag", files / "n.sf", *options, input="2\ncups\n")
        assert "cannot be written in a column" in text
    assert "cannot be written" in refused("suggest", files / "n.sf", input="2\ncups\n")
    assert run("tag", files / "n.sf", "--format", "jsonl", input="2\ncups\n").stdout


def test_document_starts_are_skipped_with_a_note(files):
    source = files / "start.txt"
    source.write_text("-DOCSTART- O\n\n" + SALT)
    result = run("train", source, "-o", files / "n.sf", "-q")
    assert result.stderr == f"note: {source}: 1 -DOCSTART- line is left out\n"
    assert "word[0]=-DOCSTART-" not in sf.load(files / "n.sf").features_.names()
    result = run("tag", files / "m.sf", source)
    assert result.stdout.startswith("2 B-QTY ")
    assert "-DOCSTART-" in result.stderr


def test_comments(files):
    source = files / "comments.txt"
    source.write_text("# a note\n" + SALT.replace("cups", "# another note\ncups"))
    refused("train", source, "-o", files / "n.sf", "-q")
    run("train", source, "-o", files / "n.sf", "--comment", "#", "-q")
    X, y = sf.read_conll(source, comment="#")
    assert (sf.load(files / "n.sf").theta_ == sf.CRF().fit(X, y).theta_).all()
    lines = run("tag", files / "m.sf", source, "--comment", "#").stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["2", "cups", "flour"]
    text = run("suggest", files / "m.sf", source, "--comment", "#", "--unit", "token").stdout
    assert " line 4 cups: " in text
    for command in ("eval", "report", "calibrate"):
        output = () if command == "eval" else ("-o", files / "out")
        run(command, files / "m.sf", source, "--comment", "#", *output)


def test_errors_name_lines_below_comments(files):
    source = files / "comments.txt"
    source.write_text("# a\n2 B-QTY\n# b\ncups I-UNIT\n\nsalt O\n")
    options = ("--scheme", "BIO", "--comment", "#", "-o", files / "n.sf", "-q")
    assert refused("train", source, *options).startswith(f"{source}:4: ")
    # standard input cannot be read again, but it need not be
    data = source.read_bytes()
    assert refused("train", "-", *options, input=data).startswith("<stdin>:4: ")


def test_headings_are_warned_of(files):
    source = files / "heading.txt"
    source.write_text("token label\n" + SALT)
    text = run("train", source, "-o", files / "n.sf", "-q").stderr
    assert text.startswith(f"warning: {source}:1: the label 'label' ")


def test_conllu(files):
    source, out = files / "a.conllu", files / "n.sf"
    words = [("the", "DET", "DT"), ("cat", "NOUN", "NN"), ("sat", "VERB", "VBD")]
    lines = [f"{k}\t{w}\t_\t{u}\t{x}\t_\t_\t_\t_\t_" for k, (w, u, x) in enumerate(words, 1)]
    source.write_text("# text\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n" + "\n".join(lines) + "\n\n")
    result = run("train", source, "-o", out, "-q")
    assert sf.load(out).classes_.tolist() == ["DET", "NOUN", "VERB"]
    assert sf.load(out).features_.n_columns_ == 1
    assert "UPOS" in result.stderr
    assert "with --label" in result.stderr
    tagged = run("tag", out, source).stdout.splitlines()
    assert tagged[:3] == [f"{line}\t{u}" for line, (_, u, _) in zip(lines, words, strict=True)]
    text = run("suggest", out, source, "-n", 1, "--unit", "token").stdout
    assert text.splitlines()[0].split()[3] == "line"
    assert json.loads(run("eval", out, source, "--json").stdout)["token_accuracy"] == 1
    record = json.loads(run("tag", out, source, "--format", "jsonl").stdout)
    assert record["tokens"] == ["the", "cat", "sat"]
    run("train", source, "-o", out, "--label", 4, "--columns", "1,3", "-q")
    assert sf.load(out).classes_.tolist() == ["DT", "NN", "VBD"]
    assert "col1[0]=NOUN" in sf.load(out).features_.names()
    assert run("tag", out, source).stdout.splitlines()[0].endswith("\tDT")


def test_comma_separated_values(files):
    source = files / "a.csv"
    source.write_text("2,B-QTY\ncups,B-UNIT\n")
    assert "commas" in refused("train", source, "-o", files / "n.sf")


def test_encodings_are_named_by_their_option(files):
    source, out = files / "latin.txt", files / "n.sf"
    source.write_bytes((SALT + "caf\u00e9 B-NAME\n").encode("latin-1"))
    text = refused("train", source, "-o", out)
    assert text.startswith(f"{source}:9: not utf-8: byte 0xe9")
    assert "--encoding latin-1" in text
    assert "encoding=" not in text
    run("train", source, "-o", out, "--encoding", "latin-1", "-q")
    assert "word[0]=caf\u00e9" in sf.load(out).features_.names()
    source.write_bytes(SALT.encode("utf-16-be"))
    assert "--encoding utf-16-be" in refused("train", source, "-o", out)
    source.write_bytes(SALT.encode("utf-16"))
    run("train", source, "-o", out, "-q")
    assert "word[0]=cups" in sf.load(out).features_.names()


@pytest.mark.parametrize("name", ["hex", "rot13", "base64"])
def test_an_encoding_must_be_one_of_text(tmp_path, name):
    text = run("train", "no.txt", "-o", tmp_path / "m.sf", "--encoding", name, code=2).stderr
    assert f"'--encoding': {name} is not an encoding of text" in text


@pytest.mark.parametrize("where", ["-", "file"])
def test_labels_that_the_encoding_lacks(tmp_path, where):
    source, model = tmp_path / "a.txt", tmp_path / "m.sf"
    source.write_text("a é\nb 日\n\na é\n", encoding="utf-8")
    run("train", source, "-o", model, "-q")
    new, out = tmp_path / "new.txt", tmp_path / "out.txt"
    new.write_text("a\nb\n", encoding="latin-1")
    options = ("-o", where if where == "-" else out, "--encoding", "cp1252")
    assert "CP1252 cannot hold '日': choose another --encoding" in refused(
        "tag", model, new, *options
    )
    assert not out.exists()
