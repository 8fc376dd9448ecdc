"""The tutorial is run as it stands: every number in it is what its code gives."""

import doctest
from pathlib import Path

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"


def test_tutorial():
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(TUTORIAL), module_relative=False, optionflags=flags)
    assert found.attempted > 20
    assert found.failed == 0
