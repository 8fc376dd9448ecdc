"""What the battery of contracts shares: every estimator, small data, and models fitted once.

An estimator joins by being registered. Which tests apply to it follows from its table of parameters
and from what it declares: whether its scores are probabilities, and of whole labellings or not.
"""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import seqfield as sf
from seqfield.data.schemes import get_scheme
from seqfield.estimators._files import REGISTRY
from seqfield.estimators._params import table
from seqfield.functions import LinearFunction

NAMES = list(REGISTRY)
TABLES = {name: table(cls) for name, cls in REGISTRY.items()}
TIGHT = {"tol": 1e-13, "max_iter": 5000}
#: settings of small fits: an estimator takes those that it has
SMALL: dict[str, Any] = {
    "n_jobs": 1,
    "random_state": 0,
    "learn_kernel": False,
    # whatever the chains have reached: few draws of a posterior are averaged as many are
    "n_steps": 20,
    "n_chains": 1,
    "n_samples": 8,
    "n_mc": 4,
    "n_cliques": 25,
    "candidates": [(False, 0.0, 1.0), (True, 0.0, 1.0)],
    "n_folds": 2,
}
#: most iterations where one costs much: of boosting, of variational sweeps, of stochastic steps
MOST = {"bound": 60, "amplitude": 20, "n_mc": 5}
TEMPLATE = "U0:%x[0,0]\nU1:%x[-1,0]\nU2:%x[0,1]\nB"

every = pytest.mark.parametrize("name", NAMES)
quiet = pytest.mark.filterwarnings("ignore:no convergence:sklearn.exceptions.ConvergenceWarning")


# --- who can what -------------------------------------------------------------------------------


def has(name: str, *params: str) -> bool:
    """Whether an estimator has all of these parameters."""
    return TABLES[name].keys() >= {*params}


def own(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Those of the parameters that an estimator has."""
    return {key: value for key, value in params.items() if key in TABLES[name]}


def where(condition) -> pytest.MarkDecorator:
    """The estimators for which a condition of their name holds; there must be some."""
    found = [name for name in NAMES if condition(name)]
    assert found
    return pytest.mark.parametrize("name", found)


def having(*params: str) -> pytest.MarkDecorator:
    """The estimators that have all of these parameters."""
    return where(lambda name: has(name, *params))


def make(name: str, **wanted: Any):
    """An estimator with these parameters, small where nothing else is asked for."""
    assert has(name, *wanted), f"{name} has not all of {sorted(wanted)}"
    wanted = own(name, SMALL) | wanted
    if has(name, "n_inducing") and TABLES[name]["n_inducing"].default is not None:
        wanted = {"n_inducing": 20} | wanted  # every step factors a matrix for each label
    for key, most in MOST.items():
        if has(name, key):
            wanted["max_iter"] = min(wanted.get("max_iter", most), most)
    return REGISTRY[name](**wanted)


#: whose scores are log-probabilities, and who has a distribution of whole labellings, as they are
PROBABILISTIC = [name for name in NAMES if make(name).probabilistic or make(name).calibrate]
JOINT = [name for name in NAMES if make(name).joint]
#: who ends at an optimum, which is the same from every start
CONVEX = [name for name in NAMES if has(name, "c2") or has(name, "alpha")]
#: who takes features of edges
EDGES = [
    name
    for name in NAMES
    if issubclass(REGISTRY[name].learns[0], LinearFunction) and not has(name, "bound")
]


def speaking(name: str) -> dict[str, Any]:
    """Parameters with which an estimator has probabilities of whole labellings."""
    told = {} if name in PROBABILISTIC else {"calibrate": True}
    return told if name in JOINT else told | {"inference": "chain"}


def is_average(model) -> bool:
    """Whether p(y | x) is the average of several chains, whose best labelling is not looked for."""
    return model.function_.n_draws > 1


# --- data ---------------------------------------------------------------------------------------


def numeric(n=12, s=3, width=4, seed=0, longest=6):
    """Sequences of rows whose labels follow a chain and show in the features."""
    rng = np.random.default_rng(seed)
    steps = rng.dirichlet(np.ones(s), size=s)
    X, y = [], []
    for length in rng.integers(1, longest + 1, n):
        labels = [int(rng.integers(s))]
        for _ in range(length - 1):
            labels.append(int(rng.choice(s, p=steps[labels[-1]])))
        x = rng.normal(size=(length, width))
        x[np.arange(length), np.array(labels) % width] += 1.5
        X.append(x)
        y.append([f"L{k}" for k in labels])
    return X, y


def words(n=14, seed=0):
    """Token rows with BIO labels of two types."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        rows: list[tuple[str, str]] = []
        labels: list[str] = []
        for _ in range(rng.integers(1, 4)):
            kind = ("PER", "LOC")[rng.integers(2)]
            rows += [("and", "CC")] * int(rng.integers(0, 3))
            labels += ["O"] * (len(rows) - len(labels))
            size = int(rng.integers(1, 4))
            rows += [(f"{kind[0]}{rng.integers(4)}", "NP") for _ in range(size)]
            labels += [f"B-{kind}", *[f"I-{kind}"] * (size - 1)]
        X.append(rows)
        y.append(labels)
    return X, y


X, Y = numeric()
LENGTHS = [len(x) for x in X]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
WORDS, BIO = words()
NEW_WORDS, NEW_BIO = words(10, seed=1)
FORMS = {"dense": list, "sparse": lambda X: [sp.csr_array(np.where(x > 0.8, x, 0)) for x in X]}
EDGED = sf.Sequences(np.vstack(X), OFFSETS, np.vstack(X)[:, :2])
DATA = {"numbers": (X, Y), "words": (WORDS, BIO)}


def relabelled(labels):
    """The labels of the numbers, called otherwise."""
    return [[labels[int(v[1])] for v in row] for row in Y]


def changed(rows, i, t, value):
    """Label rows with one other label."""
    rows = [list(row) if row is not None else None for row in rows]
    rows[i][t] = value
    return rows


def lawful(rows, scheme="BIO"):
    return all(not get_scheme(scheme).violations(row) for row in rows)


# --- fitted models ------------------------------------------------------------------------------

_fitted: dict[str, Any] = {}


def fitted(name: str, data: str = "numbers", **wanted: Any):
    """A model that is fitted once for all tests; who changes it takes `fresh`."""
    key = f"{name} {data} {sorted(wanted.items(), key=lambda item: item[0])!r}"
    if key not in _fitted:
        _fitted[key] = make(name, **wanted).fit(*DATA[data])
    return _fitted[key]


def fresh(name: str, data: str = "numbers", **wanted: Any):
    """A copy of such a model."""
    return copy.deepcopy(fitted(name, data, **wanted))


def tight(name, X=X, y=Y, sample_weight=None, **wanted):
    """Trained to the optimum."""
    return make(name, **own(name, TIGHT), **wanted).fit(X, y, sample_weight=sample_weight)


# --- what they say ------------------------------------------------------------------------------


def fingerprint(model, X=X):
    """What a model says of X, as one array: probabilities, or places of labels without them."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    if last.has_probabilities:
        return np.concatenate([p.ravel() for p in model.predict_proba(X)])
    index = {label: k for k, label in enumerate(last.classes_.tolist())}
    return np.array([float(index[v]) for row in model.predict(X) for v in row])


def same_optimum(a, b, X=X):
    if hasattr(a, "objective_"):
        assert a.objective_ == pytest.approx(b.objective_, rel=1e-9)
    np.testing.assert_allclose(fingerprint(a, X), fingerprint(b, X), atol=1e-6)
    if hasattr(a, "theta_"):
        np.testing.assert_allclose(a.theta_, b.theta_, rtol=1e-6, atol=1e-6)


def likeliest(model, X):
    """The likeliest label of each token."""
    return [[model.classes_[k] for k in p.argmax(axis=1)] for p in model.predict_proba(X)]


def likelihood(model, *positional, **named):
    """The log-likelihood, or what takes its place."""
    use = model.log_likelihood if model.joint else model.log_pseudo_likelihood
    return use(*positional, **named)


def labellings(model, length):
    return [list(y) for y in product(model.classes_.tolist(), repeat=length)]
