"""The examples of CONTRIBUTING are run as they stand."""

import doctest
from pathlib import Path

from seqfield.data.conll import READERS
from seqfield.features import ENCODERS
from seqfield.kernels import KERNELS

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_examples(monkeypatch):
    for family in (ENCODERS, KERNELS):  # what the page registers is gone afterwards
        monkeypatch.setattr(family, "_classes", dict(family._classes))
    monkeypatch.setitem(READERS, ".slashed", None)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert found.attempted > 20
    assert found.failed == 0
