"""Triangular solutions against products."""

from __future__ import annotations

import numpy as np
import pytest

from seqfield.linalg.triangular import solve_upper, solve_upper_transposed


@pytest.mark.parametrize("n", [0, 1, 2, 7, 40])
def test_in_a_corner_of_a_larger_matrix(n):
    rng = np.random.default_rng(n)
    # below the diagonal and outside of the corner nothing must be read
    whole = np.full((n + 3, n + 5), np.nan)
    r = np.triu(rng.normal(size=(n, n))) + 5.0 * np.eye(n)
    upper = np.triu_indices(n)
    whole[:n, :n][upper] = r[upper]
    for solve, matrix in ((solve_upper, r), (solve_upper_transposed, r.T)):
        b = rng.normal(size=n)
        x = b.copy()
        solve(whole, x)
        np.testing.assert_allclose(matrix @ x, b, atol=1e-12)
