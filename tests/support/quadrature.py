"""Expected log-likelihoods of short chains by quadrature over all labellings."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product

import numpy as np

from seqfield.variational._expectations import Expected

#: how many standard errors an unbiased estimate may be off
FAR = 4.5


@cache
def path_table(length, s):
    """All labellings (P, length), and what each adds up of the scores of tokens and labels and of
    transitions (P, length * S + S * S)."""
    paths = np.array(list(product(range(s), repeat=length)))
    table = np.zeros((len(paths), length * s + s * s))
    for p, path in enumerate(paths):
        for t, y in enumerate(path):
            table[p, t * s + y] += 1.0
            if t:
                table[p, length * s + path[t - 1] * s + y] += 1.0
    return paths, table


def normalised(scores):
    """log Z and probabilities along the last axis; scipy's take their time."""
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - top)
    z = e.sum(axis=-1, keepdims=True)
    return (top + np.log(z))[..., 0], e / z


def by_nodes(moments, targets, i, n_nodes):
    """Weights (Q,) and scores (Q, P) of all labellings of a sequence, less the right one's, at the
    nodes of Gauss-Hermite quadrature over these differences: at most three of them. Then which is
    the right one, and the labellings' table."""
    a, b = moments.offsets[i : i + 2].tolist()
    s, length, root = moments.means.shape[1], b - a, moments.roots[i]
    paths, table = path_table(length, s)
    gold = int((paths == targets.codes[a:b]).all(axis=1).argmax())
    covariance = np.zeros((table.shape[1],) * 2)
    for j in range(s):
        rows = np.arange(length) * s + j
        covariance[np.ix_(rows, rows)] = root[j] @ root[j].T
    last = np.arange(length * s, table.shape[1])
    covariance[last, last] = moments.step_variances.ravel()
    away = np.delete(table - table[gold], gold, axis=0)
    mean = away @ np.concatenate([moments.means[a:b].ravel(), moments.steps.ravel()])
    factor = np.linalg.cholesky(away @ covariance @ away.T)
    nodes, mass = np.polynomial.hermite_e.hermegauss(n_nodes)
    dims = len(away)
    assert dims <= 3
    z = np.stack(np.meshgrid(*[nodes] * dims, indexing="ij"), axis=-1).reshape(-1, dims)
    w = np.prod(np.meshgrid(*[mass / mass.sum()] * dims, indexing="ij"), axis=0).ravel()
    return w, np.insert(mean + z @ factor.T, gold, 0.0, axis=1), gold, table


def exact(moments, targets, weights, n_nodes=20):
    """`Expected` by quadrature; second derivatives by Stein's identity."""
    s = moments.means.shape[1]
    values, means, covariances = [], np.zeros_like(moments.means), []
    steps, step_variances = np.zeros((s, s)), np.zeros((s, s))
    for i, (a, b) in enumerate(pairwise(moments.offsets.tolist())):
        w, scores, gold, table = by_nodes(moments, targets, i, n_nodes)
        log_z, p = normalised(scores)
        values.append(-weights[i] * (w @ log_z))
        first = weights[i] * (table[gold] - (w @ p) @ table)
        inner = np.diag(w @ p) - (w[:, None] * p).T @ p
        second = -0.5 * weights[i] * table.T @ inner @ table
        size = (b - a) * s
        means[a:b] = first[:size].reshape(b - a, s)
        steps += first[size:].reshape(s, s)
        step_variances += np.diagonal(second)[size:].reshape(s, s)
        own = [np.arange(b - a) * s + j for j in range(s)]
        covariances.append(np.stack([second[np.ix_(rows, rows)] for rows in own]))
    return Expected(np.array(values), means, covariances, steps, step_variances)


def log_evidence(moments, targets, n_nodes=30):
    """log E[p(y)] of one sequence."""
    w, scores, _, _ = by_nodes(moments, targets, 0, n_nodes)
    return float(np.log(w @ np.exp(-normalised(scores)[0])))


def chain_values(f, t, labels):
    """Log-likelihoods (k,) of a labelling by enumeration: a black box that is the chain."""
    k, length, s = f.shape
    paths, table = path_table(length, s)
    scores = np.hstack([f.reshape(k, -1), t.reshape(k, -1)]) @ table.T
    gold = (paths == labels).all(axis=1).argmax()
    return scores[:, gold] - normalised(scores)[0]


def chain_gradient(targets, weights):
    """The same of a batch with derivatives by scores and transitions, at one draw."""

    def gradient(f, t):
        d_f, d_t, values = np.zeros_like(f), np.zeros_like(t), np.zeros(len(weights))
        for i, (a, b) in enumerate(pairwise(targets.offsets.tolist())):
            paths, table = path_table(b - a, f.shape[1])
            gold = (paths == targets.codes[a:b]).all(axis=1).argmax()
            scores = table @ np.concatenate([f[a:b].ravel(), t.ravel()])
            log_z, p = normalised(scores)
            values[i] = weights[i] * (scores[gold] - log_z)
            d = weights[i] * (table[gold] - p @ table)
            d_f[a:b] = d[: f[a:b].size].reshape(b - a, -1)
            d_t += d[f[a:b].size :].reshape(t.shape)
        return values, d_f, d_t

    return gradient
