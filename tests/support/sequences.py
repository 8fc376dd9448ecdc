"""Small training sets for the estimators."""

from __future__ import annotations

import numpy as np


def words(n=30, seed=0, noise=0.1, longest=6):
    """Token rows (word, tag) whose labels follow a chain and show in the words, more or less."""
    rng = np.random.default_rng(seed)
    steps = np.array([[0.2, 0.6, 0.2], [0.1, 0.3, 0.6], [0.5, 0.3, 0.2]])
    X, y = [], []
    for length in rng.integers(1, longest + 1, n):
        row, labels, k = [], [], int(rng.integers(3))
        for _ in range(length):
            shown = k if rng.random() > noise else int(rng.integers(3))
            row.append((f"w{shown}{rng.integers(4)}", f"t{rng.integers(2)}"))
            labels.append("ABC"[k])
            k = int(rng.choice(3, p=steps[k]))
        X.append(row)
        y.append(labels)
    return X, y


def numbers(n=40, seed=0, noise=1.0, longest=6, s=3):
    """Rows of numbers around a mean for each label."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, longest + 1, n):
        labels = rng.integers(s, size=length)
        X.append(2.0 * np.eye(s)[labels] + noise * rng.normal(size=(length, s)))
        y.append([f"L{k}" for k in labels])
    return X, y


def steps(n=40, s=3, width=5, longest=6, seed=0):
    """Rows of numbers, and labels that stay or move on to the next one."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, longest + 1, n):
        labels = (rng.integers(s) + np.cumsum(rng.random(length) < 0.6)) % s
        x = rng.normal(size=(length, width))
        x[np.arange(length), labels % width] += 1.0
        X.append(x)
        y.append(labels.tolist())
    return X, y


TEMPLATE = "U0:%x[0,0]\nU1:%x[-1,0]\nU2:%x[0,1]\nB"
EDGE_TEMPLATE = "U0:%x[0,0]\nB0:%x[0,1]"
