"""Maximum margins by the list of all labellings."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import minimize

SLACKS = ("l1", "l2", "labelling", "hard")
MARGINS = ("unit", "hamming", "slack")


def lawful(labels, allowed):
    labels = np.asarray(labels)
    inner = allowed.pairs[labels[:-1], labels[1:]]
    return bool(allowed.start[labels[0]] and inner.all() and allowed.end[labels[-1]])


def features(x, labels, s, eta):
    on = np.eye(s)[list(labels)]
    return np.concatenate([(x.T @ on).ravel(), np.sqrt(eta) * (on[:-1].T @ on[1:]).ravel()])


class Listed:
    """The constraints need - v . w <= slack of all lawful labellings but the known ones.

    w are weights of node features (D, S) and of transitions (S, S); x may be a root of a gram
    matrix. ``cost`` is C w_i. ``allowed`` are tables for all sequences, or one for each.
    """

    def __init__(self, X, y, s, margin, *, cost, allowed=None, eta=1.0):
        self.cost = np.broadcast_to(np.asarray(cost, float), len(X))
        tables = allowed if isinstance(allowed, list) else [allowed] * len(X)
        self.labels, self.sequence, need, v = [], [], [], []
        for i, (x, gold, table) in enumerate(zip(X, y, tables, strict=True)):
            for labels in product(range(s), repeat=len(gold)):
                h = sum(a != b for a, b in zip(labels, gold, strict=True))
                if h == 0 or (table is not None and not lawful(labels, table)):
                    continue
                asked, factor = {"unit": (1, 1), "hamming": (h, 1), "slack": (h, h)}[margin]
                need.append(asked)
                v.append(factor * (features(x, gold, s, eta) - features(x, labels, s, eta)))
                self.labels.append(labels)
                self.sequence.append(i)
        self.need, self.v = np.array(need, float), np.array(v)

    def asked(self, w):
        """The slack that each labelling asks for; below 0 where there is room."""
        return self.need - self.v @ w

    def slacks(self, w):
        """The slack of each sequence."""
        out = np.zeros(len(self.cost))
        np.maximum.at(out, self.sequence, self.asked(w))
        return out

    def primal(self, w, slack):
        half = 0.5 * w @ w
        if slack == "hard":
            return half / np.min(self.v @ w / self.need) ** 2
        if slack == "labelling":
            return half + self.cost[self.sequence] @ np.maximum(self.asked(w), 0.0)
        return half + self.cost @ self.slacks(w) ** (2 if slack == "l2" else 1)

    def dual(self, alpha, slack):
        w, sums = self.v.T @ alpha, self.sums(alpha)
        ridge = (sums**2 / (4 * self.cost)).sum() if slack == "l2" else 0.0
        return self.need @ alpha - 0.5 * w @ w - ridge

    def sums(self, alpha):
        return np.bincount(self.sequence, alpha, len(self.cost))

    def coefficients(self, found):
        """The coefficient of each labelling, from (sequence, labels, coefficient)."""
        place = {key: k for k, key in enumerate(zip(self.sequence, self.labels, strict=True))}
        alpha = np.zeros(len(self.need))
        for i, labels, value in found:
            assert alpha[place[i, tuple(labels)]] == 0.0
            alpha[place[i, tuple(labels)]] = value
        return alpha

    def optimum(self, slack):
        """The primal by sequential least squares over w and the slacks."""
        m, d = self.v.shape
        whose = np.eye(len(self.cost))[self.sequence]
        own = {"hard": np.zeros((m, 0)), "labelling": np.eye(m)}.get(slack, whose)
        cost = self.cost[self.sequence] if slack == "labelling" else self.cost
        cost, power = cost[: own.shape[1]], 2 if slack == "l2" else 1
        table = np.hstack([self.v, own])

        def value(z):
            w, xi = z[:d], z[d:]
            return 0.5 * w @ w + cost @ xi**power, np.append(w, cost * power * xi ** (power - 1))

        found = minimize(
            value,
            np.append(np.zeros(d), np.full(len(cost), self.need.max())),
            jac=True,
            method="SLSQP",
            bounds=[(None, None)] * d + [(0, None)] * len(cost),
            constraints={
                "type": "ineq",
                "fun": lambda z: table @ z - self.need,
                "jac": lambda z: table,
            },
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        # with the slacks that these weights need: not below the optimum, whatever the solver did
        return self.primal(found.x[:d], slack)
