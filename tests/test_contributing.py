"""The examples of CONTRIBUTING are run as they stand."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_examples():
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert found.attempted > 20
    assert found.failed == 0
