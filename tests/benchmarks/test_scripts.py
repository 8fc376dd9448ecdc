"""Every benchmark starts, is in the index, and is called by names that exist."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest
from benchmarks._process import alone

ROOT = Path(__file__).parents[2]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


FILES = {
    module_of(path): path
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
    if 'if __name__ == "__main__"' in path.read_text("utf-8")
}
WHOLE = re.compile(r"-m (benchmarks[.\w]*\w)")


def test_there_are_benchmarks():
    assert len(FILES) > 10


@pytest.mark.parametrize("name", FILES)
def test_help(name, capsys):
    path = FILES[name]
    if path.name == "__main__.py":
        name += ".__main__"
    if name == "benchmarks.speed.gpu":
        pytest.importorskip("jax")
    main = importlib.import_module(name).main
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "usage:" in shown
    # what each option does
    options = re.split(r"\n  (?=-)", shown)[1:]
    assert options
    assert all(len(option.split()) > 2 for option in options), shown


@pytest.mark.parametrize("name", FILES)
def test_usage_says_how_it_is_run(name):
    assert f"python -m {name} " in FILES[name].read_text("utf-8").replace("\n", " ")


def test_index():
    text = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    assert set(WHOLE.findall(text)) == set(FILES)


@pytest.mark.parametrize("place", ["Makefile", "docs/results.md", "docs/tutorial.md"])
def test_commands_name_benchmarks(place):
    text = (ROOT / place).read_text("utf-8")
    found = set(WHOLE.findall(text))
    assert found
    assert found <= set(FILES)
    assert not re.findall(r"benchmarks/[\w/]+\.py", text)


@pytest.mark.skipif(not os.environ.get("SEQFIELD_DATA"), reason="needs SEQFIELD_DATA")
@pytest.mark.parametrize(
    ("module", "time", "arguments"),
    [
        ("crf", "iteration", ("--part", "train_seqfield_1", "--quick", "--model", "m.sf")),
        (
            "online",
            "epoch",
            ("--who", "seqfield, 1 thread", "--learner", "averaged perceptron", "--epochs", 3),
        ),
    ],
)
def test_parts_that_watch_training(module, time, arguments, tmp_path):
    """They hang on to private names of the library, which may move."""
    given = [tmp_path / one if one == "m.sf" else one for one in arguments]
    assert alone(f"benchmarks.speed.{module}", *given, "--n", 20)[time] > 0
