"""The names that the package shows."""

import os
import subprocess
import sys
from pathlib import Path

import seqfield as sf

CODE = "import seqfield as sf; {}; print(*dir(sf))"


def names(code="pass"):
    environment = os.environ | {"PYTHONPATH": str(Path(sf.__file__).parents[1])}
    text = subprocess.run(
        [sys.executable, "-c", CODE.format(code)], env=environment, capture_output=True, check=True
    ).stdout.decode()
    return text.split()


def test_public_names_are_shown_once_and_nothing_else():
    for code in ("pass", "sf.read_conll, sf.CRF, sf.active"):
        found = names(code)
        assert len(found) == len(set(found))
        assert [name for name in found if not name.startswith("__")] == sorted(sf.__all__)


def test_every_name_is_there():
    for name in sf.__all__:
        assert getattr(sf, name) is not None
