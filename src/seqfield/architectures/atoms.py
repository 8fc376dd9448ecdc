"""Scores in the span of chosen atoms: kernel functions at single places.

A place is a token's row in a score column, or a transition. An atom is a set of places. Its
function h has the reproducing property: <f, h> is the sum of the values of f at the places.
Examples:

* a vertex clique (t, y) is one place;
* the coordinate (t, sigma, tau) of GPSC is the place (t, sigma) and the transition (sigma, tau);
* an edge clique is a row in one of the S^2 edge columns;
* a whole labelled sequence is the set of all its places.

Atoms are orthonormalised as they come. So |theta|^2 is the squared norm of the function, and the
refit is well scaled. The span and all values stay those of the atoms. The orthonormal functions are
held as values at all tokens, or as coefficients in the atoms. In the second form values come from
products with the covariance, which are cheap if it has explicit features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from seqfield.architectures.lookup import Lookup, LookupDesign, Values
from seqfield.kernels.covariance import Covariance
from seqfield.linalg.triangular import solve_upper, solve_upper_transposed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: atoms of a group that are added at once: their values at all tokens need memory meanwhile
BATCH = 256


class Atom(NamedTuple):
    """A kernel's number and the places (columns, rows) of an atom in the wide table.

    Row n + j of column i < S is the transition from label i to label j.
    """

    kernel: int
    columns: tuple[int, ...]
    rows: tuple[int, ...]


class _Group:
    """Orthonormal functions q on some columns of the wide table, and the atoms that they span."""

    def __init__(self, kernel: int, columns: tuple[int, ...], height: int, noise: float) -> None:
        self.kernel, self.columns, self.height = kernel, np.array(columns), height
        #: an atom is left out if at most this share of it is outside the span of the others
        self.noise = noise
        #: the group's part of the wide table
        self.here = slice(columns[0], columns[-1] + 1)
        self.index = np.zeros(0, np.int64)  # numbers of the group's atoms
        self.places = np.zeros(0, np.int64)  # of all atoms, one after the other
        self._owner = np.zeros(0, np.int64)  # the atom of each place, in the order of index
        # h_j = sum_i q_i r[i, j]
        self._r = np.zeros((4, 4))

    @property
    def r(self) -> Floats:
        """(p, p) upper triangular."""
        p = len(self.index)
        return self._r[:p, :p]

    def add(self, atoms: list[Atom], h: Floats, first: int) -> list[Atom]:
        """Add atoms with functions h (d, m), except those in the span of others.

        Returns the added atoms, whose numbers start at ``first``.
        """
        at = [self._places(atom) for atom in atoms]
        # <h_i, q_j> and <h_i, h_j>, by the reproducing property
        onto = self._onto(at, h)
        inner = np.array([h[:, place].sum(axis=1) for place in at])
        chosen, factor = _independent(inner - onto @ onto.T, self.noise * np.diagonal(inner))
        old, new = len(self.index), len(self.index) + len(chosen)
        self._grow(new)
        # h = onto q + factor q_new
        self._r[:old, old:new] = onto[chosen].T
        self._r[old:new, old:new] = factor.T
        self._hold(h[chosen], onto[chosen], factor)
        self.index = np.append(self.index, np.arange(first, first + len(chosen)))
        sizes = [len(at[k]) for k in chosen]
        self.places = np.concatenate([self.places, *(at[k] for k in chosen)])
        self._owner = np.append(self._owner, np.repeat(np.arange(old, new), sizes))
        return [atoms[k] for k in chosen]

    def at_atoms(self, flat: Floats) -> Floats:
        """<f, h_j> for each atom, given the values of f in the group's part of the wide table."""
        found = np.bincount(self._owner, flat[self.places], len(self.index))
        return np.asarray(found, np.float64)

    def expand(self, weights: Floats) -> Floats:
        """The function with these weights, as coefficients in the group's part of the wide table:
        the coefficient of an atom is at each of its places."""
        each, size = self.coefficients(weights)[self._owner], len(self.columns) * self.height
        found = np.bincount(self.places, each, size)
        return np.asarray(found, np.float64).reshape(-1, self.height)

    def reduce(self, flat: Floats) -> Floats:
        """The transpose of the map from weights to values; ``flat`` is G times its argument."""
        return self.project(self.at_atoms(flat))

    def coefficients(self, weights: Floats) -> Floats:
        """The coefficients of the first atoms in the function that has these weights."""
        # sum_i w_i q_i = sum_j c_j h_j; the first atoms are combinations of the first functions
        out = weights.copy()
        solve_upper(self._r, out)
        return out

    def project(self, at_atoms: Floats) -> Floats:
        """<f, q_i>, given <f, h_j> = sum_i <f, q_i> r[i, j]."""
        out = at_atoms.copy()
        solve_upper_transposed(self._r, out)
        return out

    def _places(self, atom: Atom) -> Ints:
        """An atom's places in the group's part of the wide table."""
        column = np.searchsorted(self.columns, atom.columns)
        return np.asarray(column * self.height + np.array(atom.rows), np.int64)

    def _onto(self, at: list[Ints], h: Floats) -> Floats:
        """<h_i, q_j> of functions h with these places."""
        across = np.array([self.at_atoms(one) for one in h])
        return np.asarray(scipy.linalg.solve_triangular(self.r, across.T, trans="T").T)

    def _hold(self, h: Floats, onto: Floats, factor: Floats) -> None:
        """Does nothing: the coefficients are enough."""

    def _grow(self, p: int) -> None:
        if p > len(self._r):
            size = max(p, len(self._r) * 5 // 4)
            r = np.zeros((size, size))
            r[: len(self._r), : len(self._r)] = self._r
            self._r = r


class _Held(_Group):
    """A group that holds the values of its functions."""

    def __init__(self, kernel: int, columns: tuple[int, ...], height: int, noise: float) -> None:
        super().__init__(kernel, columns, height, noise)
        self._q = np.empty((4, len(columns) * height))  # q_j are the rows

    @property
    def q(self) -> Floats:
        """(p, columns x height)."""
        return self._q[: len(self.index)]

    def expand(self, weights: Floats) -> Floats:
        """The function with these weights in the group's part of the wide table, as values."""
        return np.asarray(weights @ self.q).reshape(-1, self.height)

    def reduce(self, flat: Floats) -> Floats:
        """The transpose of `expand`."""
        return np.asarray(self.q @ flat)

    def _onto(self, at: list[Ints], h: Floats) -> Floats:
        return np.array([self.q[:, place].sum(axis=1) for place in at])

    def _hold(self, h: Floats, onto: Floats, factor: Floats) -> None:
        old, new = len(self.index), len(self.index) + len(h)
        if new > len(self._q):
            q = np.empty((max(new, 2 * len(self._q)), self._q.shape[1]))
            q[:old] = self.q
            self._q = q
        turn = scipy.linalg.solve_triangular(factor, np.eye(len(h)), lower=True)
        self._q[old:new] = turn @ (h - onto @ self.q)


class Atoms(Lookup):
    """The span of atoms of one or several kernels, on top of a fixed function.

    theta = [weights of the orthonormal functions, in order of the atoms | sqrt(eta) B].

    Parameters
    ----------
    covariances : one for each kernel, over the same n tokens
    eta : scale of the transitions in the kernel
    free : True if every transition has its own weight, besides the atoms
    edges : True if the table has S^2 edge columns after the S node columns
    joint : True if atoms may have places in several node columns. Then functions on different
        columns are not orthogonal
    held : True to hold the values of all atoms at all tokens, which each evaluation reads twice.
        False to multiply by the covariances, of which only some rows and columns are then needed
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
        held: bool = True,
    ) -> None:
        super().__init__(n_labels, covariances[0].size, edges=edges)
        self.covariances, self.eta, self.joint, self.held = covariances, eta, joint, held
        self.n_pairs = n_labels**2 if free and eta > 0 else 0
        self.height = self.size + n_labels
        self.atoms: list[Atom] = []
        self.offset: Values | None = None
        self._groups: dict[tuple[int, tuple[int, ...]], _Group] = {}
        self.n_parameters = self.n_pairs

    def empty(self) -> Atoms:
        """A copy without atoms and without the fixed function."""
        return Atoms(
            self.n_labels,
            self.covariances,
            eta=self.eta,
            free=self.n_pairs > 0,
            edges=self.edges,
            joint=self.joint,
            held=self.held,
        )

    def add(self, atoms: list[Atom]) -> int:
        """Add atoms, except those in the span of others; returns how many were added."""
        by_group: dict[tuple[int, tuple[int, ...]], list[Atom]] = {}
        every = tuple(range(self.n_labels))
        for atom in atoms:
            columns = every if self.joint and atom.columns[0] in every else atom.columns[:1]
            by_group.setdefault((atom.kernel, columns), []).append(atom)
        before = len(self.atoms)
        for key, some in by_group.items():
            noise = self.covariances[key[0]].noise
            if key not in self._groups:
                self._groups[key] = (_Held if self.held else _Group)(*key, self.height, noise)
            group = self._groups[key]
            for begin in range(0, len(some), BATCH):
                batch = some[begin : begin + BATCH]
                self.atoms += group.add(batch, self._functions(group, batch), len(self.atoms))
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
        """The values of the part of the function that belongs to one kernel."""
        return self.values(theta, [g for g in self._groups.values() if g.kernel == kernel])

    def values(self, theta: Floats, groups: list[_Group]) -> Values:
        """The values of the part of the function that belongs to some groups."""
        n, s = self.size, self.n_labels
        wide = np.zeros((self.n_columns, self.height))
        if self.held:
            for group in groups:
                wide[group.here] += group.expand(theta[group.index])
            return Values(np.ascontiguousarray(wide[:, :n].T), wide[:s, n:].copy())
        out = Values(np.zeros((n, self.n_columns)), np.zeros((s, s)))
        for k, covariance in enumerate(self.covariances):
            own = [group for group in groups if group.kernel == k]
            wide[:] = 0.0
            for group in own:
                wide[group.here] += group.expand(theta[group.index])
            # F = G A, T = eta B
            rows = self._tokens(own)
            out.table[:] += covariance.columns_times(rows, wide[:, rows].T)
            out.transitions[:] += self.eta * wide[:s, n:]
        return out

    def collect(self, parts: list[tuple[LookupDesign, Floats]]) -> Floats:
        """The gradient by theta."""
        return self.pull(self.gather(parts))

    def pull(self, found: Values) -> Floats:
        """The gradient by theta, given that by the values."""
        gradient = np.empty(self.n_parameters)
        if self.n_pairs:
            gradient[len(self.atoms) :] = np.sqrt(self.eta) * found.transitions.ravel()
        wide = self._wide(found)
        for k, covariance in enumerate(self.covariances):
            own = [group for group in self._groups.values() if group.kernel == k]
            if not self.held:  # the values of G d and eta d_T at the places of atoms
                rows = self._tokens(own)
                wide[:, rows] = covariance.rows_times(rows, found.table).T
                wide[: self.n_labels, self.size :] = self.eta * found.transitions
            for group in own:
                gradient[group.index] = group.reduce(wide[group.here].ravel())
        return gradient

    def _tokens(self, groups: list[_Group]) -> Ints:
        """The rows of tokens among the places of groups."""
        if not groups:
            return np.zeros(0, np.int64)
        rows = np.concatenate([group.places for group in groups]) % self.height
        return np.flatnonzero(np.bincount(rows, minlength=self.height)[: self.size])

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
            out[group.index] = group.at_atoms(wide[group.here].ravel())
        return out

    def project(self, values: Values) -> Floats:
        """The weights of the projection of f onto the atoms' span, given the values of f."""
        out, at_atoms = np.zeros(self.n_parameters), self.at_atoms(values)
        for group in self._groups.values():
            out[group.index] = group.project(at_atoms[group.index])
        return out

    def coefficients(self, weights: Floats) -> Floats:
        """The coefficients of the first atoms in the function that has these weights."""
        out = np.zeros(len(weights))
        for group in self._groups.values():
            here = group.index[group.index < len(weights)]
            out[here] = group.coefficients(weights[here])
        return out

    def transitions(self, theta: Floats) -> Floats:
        """The free part of the transition scores (S, S), without the part of the atoms."""
        s = self.n_labels
        if not self.n_pairs:
            return np.zeros((s, s))
        return np.asarray(np.sqrt(self.eta) * theta[len(self.atoms) :].reshape(s, s))


def _independent(gram: Floats, least: Floats) -> tuple[list[int], Floats]:
    """Choose functions that are independent of the functions before them.

    ``gram`` is the gram matrix of the functions, outside the span of the earlier atoms. A function
    is chosen if its squared norm outside the span of those before is above ``least``. Returns the
    numbers of the chosen functions and the lower Cholesky factor of their gram matrix.
    """
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
