"""Pickers choose the atoms of a greedy selection: coordinates, labelled sequences or cliques.

A picker takes each atom once. It takes no atom whose derivative is at most ``tol``. If a picker
finds no atoms, the selection ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield._parallel import run
from seqfield.architectures.atoms import Atom, Atoms
from seqfield.architectures.lookup import Values
from seqfield.chain import ChainScores, viterbi
from seqfield.solvers._clique_loops import mean_field_gains
from seqfield.solvers.greedy import Slopes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rule = Literal["largest", "random"]

#: number of candidates that are evaluated together
BLOCK = 64


@dataclass
class Coordinates:
    """Coordinates (t, sigma, tau) of one sequence (algorithm 8). At a last token: (t, sigma).

    The sequence is the one with the largest derivative, or a random one. For a random sequence,
    only its own tokens are evaluated. The ``size`` coordinates with the largest derivatives are
    taken.

    More sequences follow until there are ``least`` coordinates, and at least ``growth`` times the
    number of atoms. There are two reasons. A refit of all atoms costs more with more atoms. And a
    few coordinates from each of several sequences are better than many from one sequence.
    """

    rows: Ints  # the table row of each token
    offsets: Ints
    size: int
    rule: Rule
    rng: np.random.RandomState
    tol: float = 0.0
    least: int = 1
    growth: float = 0.0
    #: by table row (S, S + 1): which pairs are taken; the last column means no next label
    _taken: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def __call__(self, slopes: Slopes, values: Values) -> list[Atom]:
        """The next coordinates."""
        atoms: list[Atom] = []
        steps = slopes.transitions(0)
        wanted = max(self.least, self.growth * len(slopes.atoms.atoms))
        for i, nodes in self._sequences(slopes, steps):
            atoms += self._best(self._rows(i), nodes, steps, slopes.atoms)
            if len(atoms) >= wanted:
                break
        return atoms

    def _rows(self, i: int) -> Ints:
        return self.rows[self.offsets[i] : self.offsets[i + 1]]

    def _sequences(self, slopes: Slopes, steps: Floats) -> Iterator[tuple[int, Floats]]:
        """Sequences in the order in which they are tried, with derivatives at their tokens."""
        if self.rule == "random":
            for i in self.rng.permutation(len(self.offsets) - 1):
                yield i, slopes.rows(0, self._rows(i))
            return
        nodes = slopes.rows(0)
        # the largest or the least b gives max_tau |a + b_tau|
        high, low = np.abs(nodes + steps.max(axis=1)), np.abs(nodes + steps.min(axis=1))
        best = np.maximum(high, low).max(axis=1)[self.rows]
        last = self.offsets[1:] - 1
        best[last] = np.abs(nodes[self.rows[last]]).max(axis=1)
        for i in np.argsort(-np.maximum.reduceat(best, self.offsets[:-1]), kind="stable"):
            yield i, nodes[self._rows(i)]

    def _best(self, rows: Ints, nodes: Floats, steps: Floats, among: Atoms) -> list[Atom]:
        """The coordinates of a sequence with the largest derivatives."""
        # a last token has no next label; without transitions, no token has a next label
        bare = 1 if among.eta > 0 else len(rows)
        slopes, following = np.abs(nodes), np.full(nodes.shape, -1)
        pairs = np.abs(nodes[: len(rows) - bare, :, None] + steps)
        for t, row in enumerate(rows.tolist()):
            if row in self._taken and t < len(pairs):
                pairs[t][self._taken[row][:, :-1]] = -1.0
            elif row in self._taken:
                slopes[t, self._taken[row][:, -1]] = -1.0
        # only the best next label: if all S^2 transitions are in the span, others add nothing
        following[: len(rows) - bare] = pairs.argmax(axis=2)
        slopes[: len(rows) - bare] = pairs.max(axis=2)
        atoms: list[Atom] = []
        for k in np.argsort(-slopes.ravel(), kind="stable"):
            t, sigma = divmod(int(k), slopes.shape[1])
            if len(atoms) == self.size or slopes[t, sigma] <= self.tol:
                break
            tau = int(following[t, sigma])
            places = (int(rows[t]),) if tau < 0 else (int(rows[t]), among.size + tau)
            taken = self._taken.setdefault(places[0], np.zeros((len(steps), len(steps) + 1), bool))
            if not taken[sigma, tau]:  # a sequence may contain the same token twice
                taken[sigma, tau] = True
                atoms.append(Atom(0, (sigma,) * len(places), places))
        return atoms


@dataclass
class Labellings:
    """Labelled sequences (thesis 5.3.3).

    The derivative of a sequence with labels y is a sum over the places of y. So Viterbi decoding
    finds its largest and its least value. The picker takes the ``size`` sequences with the largest
    derivatives, or ``size`` random sequences.
    """

    rows: Ints
    offsets: Ints
    size: int
    rule: Rule
    rng: np.random.RandomState
    tol: float = 0.0
    #: sequence and labels of each atom picked so far
    labels: dict[Atom, tuple[int, NDArray[np.int32]]] = field(default_factory=dict)

    def __call__(self, slopes: Slopes, values: Values) -> list[Atom]:
        """The next labelled sequences."""
        nodes, steps = slopes.rows(0)[self.rows], slopes.transitions(0)
        both = [viterbi(ChainScores(sign * nodes, sign * steps, self.offsets)) for sign in (1, -1)]
        n_sequences = len(self.offsets) - 1
        order: Any = self.rng.permutation(n_sequences)
        best = np.maximum(both[0].score, both[1].score)
        if self.rule == "largest":
            order = np.argsort(-best, kind="stable")
        atoms: list[Atom] = []
        for i in order:
            up = both[0] if both[0].score[i] >= both[1].score[i] else both[1]
            atom = self._atom(i, up.labels, slopes.atoms.size)
            if len(atoms) < self.size and best[i] > self.tol and atom not in self.labels:
                own = up.labels[self.offsets[i] : self.offsets[i + 1]]
                self.labels[atom] = int(i), own
                atoms.append(atom)
        return atoms

    def _atom(self, i: int, labels: Any, n: int) -> Atom:
        a, b = self.offsets[i], self.offsets[i + 1]
        y, rows = labels[a:b].tolist(), self.rows[a:b].tolist()
        return Atom(0, (*y, *y[:-1]), (*rows, *(n + tau for tau in y[1:])))


class Gain(Protocol):
    """The quality of candidates."""

    def __call__(self, slopes: Slopes, values: Values, kernel: int) -> Floats:
        """A number (n, C) for every token and score column. Larger is better."""


def steepness(slopes: Slopes, values: Values, kernel: int) -> Floats:
    """The size of the functional gradient in the direction of each candidate."""
    return np.abs(slopes.rows(kernel))


@dataclass
class MeanField:
    """Mean-field gain: the decrease of the risk if one candidate enters with its best coefficient.

    Mean field means that tokens count as independent, with their present marginals. A candidate is
    a function h = k(x_t, .) in one score column. At token u, p_u is the marginal of the column,
    and q_u is its marginal given the known labels. The risk changes by
    sum_u w_u (log(1 + p_u (exp(a h_u) - 1)) - a q_u h_u) + c2 a f(t) + c2 / 2 a^2 k(x_t, x_t).
    This is a convex function of the coefficient a.
    """

    n_jobs: int | None = None

    def __call__(self, slopes: Slopes, values: Values, kernel: int) -> Floats:
        """The gain of each candidate (n, C)."""
        theta = np.concatenate([values.table.ravel(), values.transitions.ravel()])
        weights, free, held = slopes.objective.occupancies(theta)
        rows = np.asarray(slopes.objective.data.x[:, 0], np.int64)
        covariance, own = slopes.atoms.covariances[kernel], slopes.own[kernel].table
        out = np.zeros_like(own)

        def fill(begin: int) -> None:
            some = np.arange(begin, min(begin + BLOCK, len(own)))
            h = np.ascontiguousarray(covariance.columns(some).T)
            mean_field_gains(
                *(h, rows, free, held, weights, own[some], slopes.c2, some, out[begin:])
            )

        run(fill, range(0, len(own), BLOCK), self.n_jobs)
        return out


@dataclass
class Cliques:
    """Vertex and edge cliques: for each kernel, the clique with the largest gain.

    A derivative below ``tol`` times the first derivative of the kernel counts as a rounding error.
    There is no such limit for gains. One coefficient alone may gain almost nothing where all
    coefficients together gain much.
    """

    gain: Gain = steepness
    tol: float = 1e-9
    _first: dict[int, float] = field(default_factory=dict)
    #: by kernel (n, C): which candidates are left
    _left: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    _last: dict[int, Atom] = field(default_factory=dict)

    def __call__(self, slopes: Slopes, values: Values) -> list[Atom]:
        """The next cliques."""
        every = range(len(slopes.atoms.covariances))
        best = {kernel: self._best(slopes, values, kernel) for kernel in every}
        self._last = {kernel: atom for kernel, atom in best.items() if atom is not None}
        return list(self._last.values())

    def _best(self, slopes: Slopes, values: Values, kernel: int) -> Atom | None:
        """The best clique of a kernel, if there is one."""
        steep = steepness(slopes, values, kernel)
        least = self.tol * self._first.setdefault(kernel, float(steep.max()))
        left = self._left.setdefault(kernel, np.ones(steep.shape, bool))
        # after one useless pick, many may follow: a refit leaves small derivatives in the span
        if kernel in self._last and self._last[kernel] not in slopes.atoms.atoms:
            left &= outside(slopes.atoms, kernel)
        steep[~left] = 0.0
        if steep.max() <= least:
            return None
        gain = steep
        if self.gain is not steepness:
            gain = np.where(steep > least, self.gain(slopes, values, kernel), 0.0)
        # if all gains underflow, take the steepest candidate
        best = (gain if gain.max() > 0.0 else steep).argmax()
        row, column = (int(k) for k in np.unravel_index(best, gain.shape))
        left[row, column] = False
        return Atom(kernel, (column,), (row,))


def outside(atoms: Atoms, kernel: int) -> NDArray[np.bool_]:
    """Which cliques of a kernel (n, C) are not in the span of the present atoms."""
    covariance, n = atoms.covariances[kernel], atoms.size
    own = [(a.columns[0], a.rows[0]) for a in atoms.atoms if a.kernel == kernel]
    chosen = [np.array([r for k, r in own if k == c], np.int64) for c in range(atoms.n_columns)]
    factors = [_factor(covariance.columns(rows)[rows]) for rows in chosen]
    out = np.empty((n, atoms.n_columns), bool)
    for begin in range(0, n, BLOCK):
        some = np.arange(begin, min(begin + BLOCK, n))
        h = covariance.columns(some)
        square = h[some, some - begin]
        for c, (rows, factor) in enumerate(zip(chosen, factors, strict=True)):
            # |h|^2 is the sum of |L^-1 <h, atoms>|^2, for the part in the span, and of the rest
            part = h[rows[: len(factor)]]
            if len(part):
                part = scipy.linalg.solve_triangular(factor, part, lower=True)
            # twice the noise: doubtful cliques would be picked and then refused, one by one
            out[some, c] = square - (part * part).sum(axis=0) > 2 * covariance.noise * square
    return out


def _factor(gram: Floats) -> Floats:
    """The lower Cholesky factor, up to the row where the factorisation fails."""
    if not len(gram):
        return gram
    # atoms may be nearly dependent: rounding may end the factorisation before the last atom
    lower, failed = scipy.linalg.lapack.dpotrf(gram, lower=1)
    return np.asarray(lower[: failed - 1, : failed - 1] if failed else lower, np.float64)
