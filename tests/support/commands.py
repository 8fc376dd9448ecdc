"""Running the commands: in this process, or as a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import seqfield as sf
from seqfield.cli.app import app

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(sf.__file__).parents[1])}
PROGRAM = [sys.executable, "-m", "seqfield"]


def run(*arguments: object, code: int = 0, **options: Any) -> Any:
    """The result of a command, whose exit code must be the one given."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(a) for a in arguments], **options)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def refused(*arguments: object, **options: Any) -> str:
    """The one line that a command says when it fails."""
    result = run(*arguments, code=2, **options)
    assert result.stdout == ""
    # loops that are not on disk yet are compiled, and that is announced
    said = [line for line in result.stderr.splitlines() if not line.startswith("Compiling ")]
    assert len(said) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return f"{said[0]}\n"


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A command as a process of its own."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, **options)
