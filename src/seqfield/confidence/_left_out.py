"""The scores of each sequence without its part in the fit: one Newton step, solved directly.

The objective F = sum_i l_i + c2 / 2 |theta|^2 has the second derivative
H = c2 I + sum_i J_i' W_i J_i. J_i maps the weights to the coordinates of sequence i: the weights of
its edges, and the score of each label at each token. W_i is the covariance under p(y | x) of the
counts that belong to these coordinates. Let d_i be the derivative of l_i by the coordinates. The
Newton step to the optimum without l_i moves the coordinates by J_i (H - J_i' W_i J_i)^-1 J_i' d_i.

A weight is unshared if it occurs in one sequence alone. It is eliminated within this sequence. The
elimination is exact, because no other sequence has a part in its row of H. The most common shared
weights are kept in a dense matrix. If there are more, the others are treated as unshared: the
curvature from the other sequences is added to their c2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg.lapack
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield._compile import loop
from seqfield._parallel import run
from seqfield.architectures._maps import Table
from seqfield.architectures.linear import Linear, Tables
from seqfield.chain import ChainScores, marginals
from seqfield.errors import InputError
from seqfield.labels import Targets
from seqfield.linalg.krylov import conjugate_gradients
from seqfield.sequences import Sequences, even_bounds, offsets_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: most weights in the dense matrix: it takes 200 MB, and its inverse some five seconds of one core
LARGEST = 5000
#: most coordinates of a sequence: the size of some matrices is the square of this number
LONGEST = 3000
#: a weight in more sequences than this, and in more than 1 % of them, is never unshared
RARE = 10
#: residual of the steps, relative to the right-hand side
TOLERANCE = 1e-7
#: how many numbers of covariances are held in memory at once
HELD = 2**24


class Meetings(NamedTuple):
    """Every use of a weight at a token: the column that it scores and the value of the feature."""

    token: Ints
    weight: Ints
    column: Ints
    value: Floats

    @classmethod
    def of(cls, table: Table) -> Meetings:
        """In order of the tokens."""
        sizes = np.diff(table.starts)[table.indices]
        which = np.repeat(np.arange(len(sizes)), sizes)
        # the weights of each occurrence's feature, one after the other
        weight = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        weight += np.repeat(table.starts[table.indices], sizes)
        token = np.repeat(np.arange(len(table.indptr) - 1), np.diff(table.indptr))
        column = table.columns[weight].astype(np.int64)
        return cls(token[which], weight, column, table.values[which])

    def within(self, first: int, last: int) -> Meetings:
        """The meetings of a run of tokens; tokens are numbered from the first one of the run."""
        a, b = np.searchsorted(self.token, [first, last])
        token = self.token[a:b] - first
        return Meetings(token, self.weight[a:b], self.column[a:b], self.value[a:b])


class Part(NamedTuple):
    """The weights that occur in a sequence, and the derivatives of its loss.

    ``weights`` are sorted. ``jacobian`` (d, p) maps them to coordinates, edge weights first;
    ``edge`` are the meetings with edge weights, by coordinate. ``covariance`` (d, d) and ``slope``
    (d,) are the second and the first derivative of the loss by the coordinates.
    """

    weights: Ints
    jacobian: Any
    edge: Meetings
    covariance: Floats
    slope: Floats


class Reduced(NamedTuple):
    """A `Part` whose unshared weights are eliminated.

    It holds the places of the other weights in the matrix, their jacobian, the covariance, the
    slope, and the change of the coordinates by the unshared weights.
    """

    places: Ints
    jacobian: Any
    covariance: Floats
    slope: Floats
    own: Floats


class Move(NamedTuple):
    """Changes of a sequence's node (T, S) and edge scores (T, S, S)."""

    node: Floats
    edge: Floats


class LeftOut:
    """Newton steps for explicit features and the log loss, if all labels are known.

    Parameters
    ----------
    architecture, data, targets, weights : those of the fit
    scores : chain scores of the distribution whose covariance is the second derivative
    c2 : weight of the squared norm
    """

    def __init__(
        self,
        architecture: Linear,
        data: Sequences,
        targets: Targets,
        weights: Floats,
        scores: ChainScores,
        c2: float,
        n_jobs: int | None = None,
    ) -> None:
        tables: Tables = architecture.tables(data)
        self.n_labels, self.c2, self.n_jobs = architecture.n_labels, c2, n_jobs
        self.offsets, self.targets, self.weights = data.offsets, targets, weights
        self.node = Meetings.of(tables.node)
        self.edge = None
        if tables.edge is not None:
            found = Meetings.of(tables.edge)
            self.edge = found._replace(weight=found.weight + tables.edge_first)
        self.pairs = np.flatnonzero(tables.pair_weight >= 0)
        self.pair_weights = tables.pair_weight.ravel()[self.pairs]
        self.scores = scores
        met, self.sizes = self._counts(architecture.n_parameters)
        common = np.argsort(-met, kind="stable")[:LARGEST]
        self.common = np.sort(common[met[common] > 1])
        self.place = np.full(len(met), -1)
        self.place[self.common] = np.arange(len(self.common))
        #: in how many sequences the most common of the other weights occurs
        self.rest = int(met[self.place < 0].max(initial=0))
        # sum_i diag(J_i' W_i J_i) of the shared weights that are not in the dense matrix
        self.told = np.zeros(len(met))

    @property
    def feasible(self) -> bool:
        """Whether the matrices are small enough, and the weights outside of them rare enough."""
        rare = self.rest <= max(RARE, len(self.weights) / 100)
        return rare and int(self.sizes.max()) <= LONGEST

    def solve(self) -> None:
        """Set the inverse of H over the common weights."""
        every = range(len(self.weights))
        if self.rest > 1:
            for i in every:
                part = self._part(i)
                unshared = self.place[part.weights] < 0
                alone = part.jacobian[:, unshared].toarray()
                told = (alone * (part.covariance @ alone)).sum(axis=0)
                self.told[part.weights[unshared]] += told
        h = np.zeros((len(self.common),) * 2, order="F")
        h[np.diag_indices_from(h)] = self.c2
        cells = offsets_of(self.sizes**2)
        for a, b in even_bounds(cells, 1 + int(cells[-1]) // HELD):
            parts = run(lambda i: self._reduced(self._part(i)), every[a:b], self.n_jobs)
            for places, j, w, _, _ in parts:
                add_curvature(h, places, j.indptr, j.indices, j.data, w)
        self.inverse = h
        if len(h):
            root, failed = scipy.linalg.lapack.dpotrf(h, lower=1, overwrite_a=1)
            if failed:
                raise InputError("the second derivative is not positive definite: raise c2")
            self.inverse = scipy.linalg.lapack.dpotri(root, lower=1, overwrite_c=1)[0]

    def move(self, i: int) -> Move:
        """The change of the scores of sequence i if it is left out of the fit."""
        part = self._part(i)
        places, j, w, slope, own = self._reduced(part)
        a = block_of(self.inverse, places)

        # x = (A^-1 - J' W J)^-1 J' d, A the block of H^-1: x = A z with (I - J' W J A) z = J' d, in
        # the inner product u' A v; rows are [z | A z], because products with A are expensive
        def paired(z: Floats) -> Floats:
            return np.concatenate([z, z @ a], axis=-1)

        def without(rows: Floats) -> Floats:
            moved = j.T @ (w @ (j @ rows[:, len(a) :].T))
            return rows - paired(moved.T)

        def dual(row: Floats) -> Floats:
            return np.concatenate([row[len(a) :], np.zeros(len(a))])

        found = conjugate_gradients(without, paired(j.T @ slope), dual=dual, tol=TOLERANCE)
        change = own + j @ found.x[len(a) :]
        t, s, edge = int(self.offsets[i + 1] - self.offsets[i]), self.n_labels, part.edge
        n_edge = len(change) - t * s
        by_pair = np.zeros((t, s * s))
        np.add.at(by_pair, (edge.token, edge.column), edge.value * change[edge.weight])
        return Move(change[n_edge:].reshape(t, s), by_pair.reshape(t, s, s))

    def _counts(self, n: int) -> tuple[Ints, Ints]:
        """In how many sequences each of n weights occurs, and the coordinates of each sequence."""
        met = np.zeros(n, np.int64)
        met[self.pair_weights] = len(self.weights)
        sizes = self.n_labels * np.diff(self.offsets) + len(self.pairs)
        for part in (self.node, self.edge):
            if part is not None:
                sequence = np.searchsorted(self.offsets, part.token, side="right") - 1
                both = np.unique(sequence * n + part.weight)
                met += np.bincount(both % n, minlength=n)
                if part is self.edge:
                    sizes += np.bincount(both // n, minlength=len(sizes))
        return met, sizes

    def _part(self, i: int) -> Part:
        first, last, s = int(self.offsets[i]), int(self.offsets[i + 1]), self.n_labels
        t = last - first
        node, edge = self.node.within(first, last), self._edges(first, last)
        names, k = np.unique(edge.weight, return_inverse=True)
        edge, q = edge._replace(weight=k), len(names)
        w, mean = np.zeros((q + t * s,) * 2), np.zeros(q + t * s)
        ptr = np.searchsorted(edge.token, np.arange(t + 1))
        _, p, pairs = marginals(self.scores.select([i])[1], pairs="each")
        covariances(p, pairs, ptr, *edge[1:], w, mean)
        y = self.targets.codes[first:last].astype(np.int64)
        gold = np.zeros(q + t * s)
        gold[q + np.arange(t) * s + y] = 1.0
        hit = edge.column == (y[edge.token - 1] * s + y[edge.token])
        gold[:q] += np.bincount(k[hit], edge.value[hit], q)
        weights, column = np.unique(node.weight, return_inverse=True)
        rows = np.concatenate([q + node.token * s + node.column, np.arange(q)])
        columns = np.concatenate([column, len(weights) + np.arange(q)])
        values = np.concatenate([node.value, np.ones(q)])
        jacobian = sp.csc_array((values, (rows, columns)), shape=(len(gold), len(weights) + q))
        weights = np.concatenate([weights, names])
        scale = self.weights[i]
        return Part(weights, jacobian, edge, scale * w, scale * (mean - gold))

    def _edges(self, first: int, last: int) -> Meetings:
        """Meetings with edge weights of all tokens of a run except the first, in token order."""
        n, q = last - first - 1, len(self.pairs)
        token = np.repeat(np.arange(1, n + 1), q)
        steps = Meetings(
            token, np.tile(self.pair_weights, n), np.tile(self.pairs, n), np.ones(n * q)
        )
        if self.edge is None:
            return steps
        own = self.edge.within(first + 1, last)
        own = own._replace(token=own.token + 1)
        order = np.argsort(np.concatenate([steps.token, own.token]), kind="stable")
        pairs: Any = zip(steps, own, strict=True)
        return Meetings(*(np.concatenate(pair)[order] for pair in pairs))

    def _reduced(self, part: Part) -> Reduced:
        place = self.place[part.weights]
        shared, w, j = place >= 0, part.covariance, part.jacobian
        alone = j[:, ~shared].toarray()
        w_alone = w @ alone
        inner = alone.T @ w_alone
        # the precision of a weight without this sequence: c2 and the curvature of the others
        others = self.told[part.weights[~shared]] - np.diagonal(inner)
        precision = self.c2 + np.maximum(others, 0.0)
        # (W^-1 + J D^-1 J')^-1 = W - W J (D + J' W J)^-1 J' W
        w = w - w_alone @ np.linalg.solve(inner + np.diag(precision), w_alone.T)
        own = alone @ ((alone.T @ part.slope) / precision)
        return Reduced(place[shared], j[:, shared], w, part.slope, own)


@loop
def covariances(
    node: Any, pairs: Any, ptr: Any, k: Any, column: Any, value: Any, out: Any, mean: Any
) -> None:
    """Covariances (d, d) and means (d,) of counts of edges and indicators of labels.

    Count k[e] rises by value[e] if the labels at t - 1 and t are the pair column[e], for e from
    ptr[t] to ptr[t + 1]. ``out`` and ``mean`` are zero at first.
    """
    n, s = node.shape
    d = out.shape[0]
    q = d - n * s
    # moment[j, f] = E[f 1{y_t = j}], with the counts up to t
    moment, moved = np.zeros((s, d)), np.zeros((s, d))
    step = np.zeros((s, s))
    for t in range(n):
        at = q + t * s
        if t > 0:
            for i in range(s):
                for j in range(s):
                    step[i, j] = pairs[t, i, j] / node[t - 1, i] if node[t - 1, i] > 0.0 else 0.0
            for e in range(ptr[t], ptr[t + 1]):
                i, j = column[e] // s, column[e] % s
                rise = value[e] * step[i, j]
                for f in range(at):
                    out[k[e], f] += rise * moment[i, f]
            for j in range(s):
                moved[j, :at] = 0.0
                for i in range(s):
                    for f in range(at):
                        moved[j, f] += step[i, j] * moment[i, f]
            moment, moved = moved, moment
            for e in range(ptr[t], ptr[t + 1]):
                rise = value[e] * pairs[t, column[e] // s, column[e] % s]
                moment[column[e] % s, k[e]] += rise
                mean[k[e]] += rise
                for g in range(ptr[t], ptr[t + 1]):
                    if column[g] == column[e]:
                        out[k[e], k[g]] += 0.5 * rise * value[g]
        for j in range(s):
            for f in range(at):
                out[at + j, f] = moment[j, f]
            out[at + j, at + j] = 0.5 * node[t, j]
            for i in range(s):
                moment[i, at + j] = 0.0
            moment[j, at + j] = node[t, j]
            mean[at + j] = node[t, j]
    for f in range(d):
        for g in range(f + 1):
            # each pair was added from one side, or half from each of both sides
            out[f, g] += out[g, f] - mean[f] * mean[g]
            out[g, f] = out[f, g]


@loop
def add_curvature(
    matrix: Any, places: Any, starts: Any, rows: Any, values: Any, covariance: Any
) -> None:
    """Add J' W J to the lower triangle of a matrix, the columns of J (CSC) going to ``places``."""
    image = np.empty(covariance.shape[0])
    for a in range(places.shape[0]):
        image[:] = 0.0
        for k in range(starts[a], starts[a + 1]):
            for f in range(image.shape[0]):
                image[f] += values[k] * covariance[rows[k], f]
        for b in range(a, places.shape[0]):
            total = 0.0
            for k in range(starts[b], starts[b + 1]):
                total += values[k] * image[rows[k]]
            matrix[places[b], places[a]] += total


@loop
def block_of(matrix: Any, places: Any) -> Any:
    """Rows and columns at sorted places of a symmetric matrix, stored as a lower triangle."""
    n = places.shape[0]
    out = np.empty((n, n))
    for j in range(n):
        for i in range(j, n):
            out[i, j] = out[j, i] = matrix[places[i], places[j]]
    return out
