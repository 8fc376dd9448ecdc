"""Scores in the span of chosen atoms: kernel functions at single places.

A place is a token's row in a score column, or a transition; an atom is a set of places, and its
function h has <f, h> = sum of f's values at them (the reproducing property). So a vertex clique
(t, y) is one place, the coordinate (t, sigma, tau) of GPSC is (t, sigma) with the transition
(sigma, tau), an edge clique is a row in one of the S^2 edge columns, and a whole labelled sequence
is all its places at once.

Atoms are orthonormalised as they come, so |theta|^2 is the squared norm of the function and the
refit is well scaled; the span and all values are those of the atoms themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.architectures.lookup import Lookup, LookupDesign, Values
from seqfield.kernels.covariance import Covariance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Atom(NamedTuple):
    """A kernel's number and the places (columns, rows) of an atom in the wide table.

    Row n + j of column i < S is the transition from label i to label j.
    """

    kernel: int
    columns: tuple[int, ...]
    rows: tuple[int, ...]


class _Group:
    """Orthonormal functions q on some columns of the wide table, and the atoms they come from."""

    def __init__(self, kernel: int, columns: tuple[int, ...], height: int, noise: float) -> None:
        self.kernel, self.columns, self.height = kernel, np.array(columns), height
        #: an atom of which no more than this share is outside the span of the others adds nothing
        self.noise = noise
        #: the group's part of the wide table
        self.here = slice(columns[0], columns[-1] + 1)
        self.index = np.zeros(0, np.int64)  # numbers of the group's atoms
        # q_j are the rows; h_j = sum_i q_i r[i, j]
        self._q = np.empty((4, len(columns) * height))
        self._r = np.zeros((4, 4))

    @property
    def q(self) -> Floats:
        """(p, columns x height)."""
        return self._q[: len(self.index)]

    @property
    def r(self) -> Floats:
        """(p, p) upper triangular."""
        p = len(self.index)
        return self._r[:p, :p]

    def places(self, atom: Atom) -> Ints:
        """An atom's places in the rows of q."""
        column = np.searchsorted(self.columns, atom.columns)
        return np.asarray(column * self.height + np.array(atom.rows), np.int64)

    def add(self, atoms: list[Atom], h: Floats, first: int) -> list[Atom]:
        """Take atoms with functions h (d, m) in; those that are not in the span of the others,
        which get the numbers from ``first`` on."""
        at = [self.places(atom) for atom in atoms]
        # <h_i, q_j> and <h_i, h_j>, by the reproducing property
        onto = np.array([self.q[:, place].sum(axis=1) for place in at])
        inner = np.array([h[:, place].sum(axis=1) for place in at])
        chosen, factor = _independent(inner - onto @ onto.T, self.noise * np.diagonal(inner))
        old, new = len(self.index), len(self.index) + len(chosen)
        self._grow(new)
        # h = onto q + factor q_new
        turn = scipy.linalg.solve_triangular(factor, np.eye(len(chosen)), lower=True)
        self._q[old:new] = turn @ (h[chosen] - onto[chosen] @ self.q)
        self._r[:old, old:new] = onto[chosen].T
        self._r[old:new, old:new] = factor.T
        self.index = np.append(self.index, np.arange(first, first + len(chosen)))
        return [atoms[k] for k in chosen]

    def _grow(self, p: int) -> None:
        if p <= len(self._q):
            return
        size = max(p, 2 * len(self._q))
        q, r = np.empty((size, self._q.shape[1])), np.zeros((size, size))
        q[: len(self._q)], r[: len(self._r), : len(self._r)] = self._q, self._r
        self._q, self._r = q, r


class Atoms(Lookup):
    """The span of atoms of one or several kernels, on top of a fixed function.

    theta = [weights of the orthonormal functions, in order of the atoms | sqrt(eta) B].

    Parameters
    ----------
    covariances : one for each kernel, over the same n tokens
    eta : scale of the transitions in the kernel
    free : True if every transition has a weight of its own besides the atoms
    edges : True if the table has S^2 edge columns after the S node columns
    joint : True if atoms may have places in several node columns, which are then not orthogonal
        to one another
    """

    def __init__(
        self,
        n_labels: int,
        covariances: list[Covariance],
        *,
        eta: float = 1.0,
        free: bool = False,
        edges: bool = False,
        joint: bool = False,
    ) -> None:
        super().__init__(n_labels, covariances[0].size, edges=edges)
        self.covariances, self.eta, self.joint = covariances, eta, joint
        self.n_pairs = n_labels**2 if free and eta > 0 else 0
        self.height = self.size + n_labels
        self.atoms: list[Atom] = []
        self.offset: Values | None = None
        self._groups: dict[tuple[int, tuple[int, ...]], _Group] = {}
        self.n_parameters = self.n_pairs

    def empty(self) -> Atoms:
        """The same without atoms and without an offset."""
        return Atoms(
            self.n_labels,
            self.covariances,
            eta=self.eta,
            free=self.n_pairs > 0,
            edges=self.edges,
            joint=self.joint,
        )

    def add(self, atoms: list[Atom]) -> int:
        """Take atoms in, leaving out those in the span of the others; how many were new."""
        by_group: dict[tuple[int, tuple[int, ...]], list[Atom]] = {}
        every = tuple(range(self.n_labels))
        for atom in atoms:
            columns = every if self.joint and atom.columns[0] in every else atom.columns[:1]
            by_group.setdefault((atom.kernel, columns), []).append(atom)
        before = len(self.atoms)
        for key, some in by_group.items():
            noise = self.covariances[key[0]].noise
            group = self._groups.setdefault(key, _Group(*key, self.height, noise))
            self.atoms += group.add(some, self._functions(group, some), len(self.atoms))
        self.n_parameters = len(self.atoms) + self.n_pairs
        return len(self.atoms) - before

    def _functions(self, group: _Group, atoms: list[Atom]) -> Floats:
        """Values (d, columns x height) of the atoms' functions."""
        out = np.zeros((len(atoms), len(group.columns), self.height))
        rows = np.unique([row for atom in atoms for row in atom.rows if row < self.size])
        if len(rows):
            columns = self.covariances[group.kernel].columns(rows)
        for k, atom in enumerate(atoms):
            for c, row in zip(np.searchsorted(group.columns, atom.columns), atom.rows, strict=True):
                if row < self.size:
                    out[k, c, : self.size] += columns[:, np.searchsorted(rows, row)]
                else:
                    out[k, c, row] += self.eta
        return out.reshape(len(atoms), -1)

    def lift(self, theta: Floats) -> Values:
        """The values of the function with these weights."""
        table, steps = self.values(theta, list(self._groups.values()))
        steps += self.transitions(theta)
        if self.offset is not None:
            table += self.offset.table
            steps += self.offset.transitions
        return Values(table, steps)

    def of_kernel(self, theta: Floats, kernel: int) -> Values:
        """The values of one kernel's part of it."""
        return self.values(theta, [g for g in self._groups.values() if g.kernel == kernel])

    def values(self, theta: Floats, groups: list[_Group]) -> Values:
        """The values of what some groups contribute."""
        wide = np.zeros((self.n_columns, self.height))
        for group in groups:
            values = theta[group.index] @ group.q
            wide[group.here] += values.reshape(-1, self.height)
        n = self.size
        return Values(np.ascontiguousarray(wide[:, :n].T), wide[: self.n_labels, n:].copy())

    def collect(self, parts: list[tuple[LookupDesign, Floats]]) -> Floats:
        """The gradient by theta."""
        found = self.gather(parts)
        wide = self._wide(found)
        gradient = np.empty(self.n_parameters)
        for group in self._groups.values():
            gradient[group.index] = group.q @ wide[group.here].ravel()
        if self.n_pairs:
            gradient[len(self.atoms) :] = np.sqrt(self.eta) * found.transitions.ravel()
        return gradient

    def _wide(self, values: Values) -> Floats:
        """Values as the wide table (columns, n + S)."""
        wide = np.zeros((self.n_columns, self.height))
        wide[:, : self.size] = values.table.T
        wide[: self.n_labels, self.size :] = values.transitions
        return wide

    def at_atoms(self, values: Values) -> Floats:
        """<f, h_j> for each atom, given the values of f."""
        wide, out = self._wide(values), np.empty(len(self.atoms))
        for group in self._groups.values():
            flat = wide[group.here].ravel()
            out[group.index] = [flat[group.places(self.atoms[k])].sum() for k in group.index]
        return out

    def project(self, values: Values) -> Floats:
        """The weights of the projection of f onto the atoms' span, given the values of f."""
        out, at_atoms = np.zeros(self.n_parameters), self.at_atoms(values)
        for group in self._groups.values():
            # <f, h_j> = sum_i <f, q_i> r[i, j]
            out[group.index] = scipy.linalg.solve_triangular(
                group.r, at_atoms[group.index], trans="T"
            )
        return out

    def coefficients(self, weights: Floats) -> Floats:
        """The coefficients of the first atoms in the function with these weights of theirs."""
        out = np.zeros(len(weights))
        for group in self._groups.values():
            # the first atoms' functions are combinations of the first orthonormal ones
            here = group.index[group.index < len(weights)]
            r = np.ascontiguousarray(group.r[: len(here), : len(here)])
            out[here] = scipy.linalg.solve_triangular(r, weights[here], check_finite=False)
        return out

    def transitions(self, theta: Floats) -> Floats:
        """The free part of the transition scores (S, S), without that of the atoms."""
        s = self.n_labels
        if not self.n_pairs:
            return np.zeros((s, s))
        return np.asarray(np.sqrt(self.eta) * theta[len(self.atoms) :].reshape(s, s))


def _independent(gram: Floats, least: Floats) -> tuple[list[int], Floats]:
    """Numbers of functions with this gram matrix (what others do not explain of it) that have more
    than the least square norm outside the span of those before, in order, and the lower Cholesky
    factor of theirs."""
    chosen: list[int] = []
    factor = np.zeros((len(gram), len(gram)))
    for k in range(len(gram)):
        p = len(chosen)
        row = np.zeros(0)
        if p:
            row = scipy.linalg.solve_triangular(factor[:p, :p], gram[k, chosen], lower=True)
        rest = gram[k, k] - row @ row
        if rest > least[k]:
            factor[p, :p], factor[p, p] = row, np.sqrt(rest)
            chosen.append(k)
    p = len(chosen)
    return chosen, factor[:p, :p]
