"""The command line, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import seqfield as sf
from seqfield.cli.app import app

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(sf.__file__).parents[1])}
PROGRAM = [sys.executable, "-m", "seqfield"]


def run(*arguments: object, code: int = 0, **options: object):
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(a) for a in arguments], **options)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def process(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, **options)


def refused(*arguments: object, **options: object) -> str:
    """The one line that a command says when it fails."""
    result = run(*arguments, code=2, **options)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def write(path: Path, X, y) -> Path:
    """A file of tokens and labels in columns."""
    with path.open("w", encoding="utf-8") as file:
        sf.write_conll(file, X, [[(label,) for label in row] for row in y])
    return path
