"""Compiled loops add up in the order they are written in."""

from __future__ import annotations

import numpy as np

from seqfield._compile import inlined, loop, on_compilation
from seqfield.cli.screen import announce_compilation


@inlined
def _doubled(a, out):
    total = 0.0
    for k in range(a.shape[0]):
        out[k] = 2.0 * a[k]
        total += a[k]
    return total


@loop
def doubled(a, out):
    return _doubled(a, out)


def test_sums_keep_their_order():
    """Else the last bits would depend on where the two arrays lie in memory."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=1001) * 10.0 ** rng.integers(-8, 8, 1001)
    total = 0.0
    for v in a.tolist():
        total += v
    assert total != a.sum()  # the order matters
    out = np.empty_like(a)
    assert doubled(a, out) == total
    np.testing.assert_array_equal(out, 2.0 * a)


def test_commands_say_when_loops_are_compiled(capsys):
    """Once for each command, and only if there is something to compile."""
    announce_compilation()

    @inlined
    def added(a, b):
        return a + b

    assert capsys.readouterr().err == ""
    assert added(1, 2) == 3
    assert "ompiling inner loops" in capsys.readouterr().err
    assert added(1, 2) == 3
    assert added(1.0, 2) == 3
    assert capsys.readouterr().err == ""
    announce_compilation()
    assert added(1.0, 2.0) == 3
    assert "ompiling inner loops" in capsys.readouterr().err
    announce_compilation()
    on_compilation(None)
    assert added(1, 2.0) == 3
    assert capsys.readouterr().err == ""
