"""How the learners of the thesis are tuned on development data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import seqfield as sf
from benchmarks._data import Corpus, Data
from benchmarks._table import progress

TOL = 1e-3  # relative, of the CRFs
Grid = dict[str, tuple[Any, ...]]
Make = Callable[..., Any]


@dataclass(frozen=True)
class Task:
    """Data, score and what to search: each grid starts from its middle value."""

    name: str
    data: Corpus
    metric: Callable[..., float]
    log: Grid
    marginal: Grid | None  # None: the choice of log
    exp: Grid
    rounds: tuple[int, ...]
    boost_weights: tuple[float, ...]
    epochs: tuple[int, ...]
    bound: str = "exact"
    max_step: float = 1.0
    iterations: int = 300  # of the CRFs at most
    options: dict[str, Any] = field(default_factory=dict)

    def measure(self, model: Any, part: Data) -> float:
        decoding = "posterior" if of_tokens(model) else "viterbi"
        return 100 * self.metric(part.y, model.predict(part.X, decoding=decoding))

    def encoded(self, name: str, features: Any) -> Task:
        """The same task with encoded features: the encoding is done once for all learners."""
        features.fit(self.data.train.X)
        data = Corpus(*(Data(features.transform(part.X), part.y) for part in self.data))
        return replace(self, name=f"{self.name} {name}", data=data)


@dataclass(frozen=True)
class Found:
    """A model, its score on development data and the choices that led to it."""

    model: Any
    dev: float
    chosen: dict[str, Any]


def of_tokens(model: Any) -> bool:
    """Whether the model's loss is that of single labels, as the marginal loss is."""
    return getattr(model, "loss", None) == "marginal"


def fit(task: Task, label: str, make: Make, **chosen: Any) -> Found:
    start = time.perf_counter()
    X, y = task.data.train
    model = make(**task.options, **chosen)
    # (2.18) divides the marginal loss of a sequence by its length, its gradient (2.20) does not:
    # here every token counts once
    model.fit(X, y, sample_weight=X.lengths if of_tokens(model) else None)
    dev = task.measure(model, task.data.dev)
    said = " ".join([task.name, label, *(f"{name}={value}" for name, value in chosen.items())])
    took = time.perf_counter() - start
    progress(f"{said}: development {dev:.2f}, {took:.1f} s")
    return Found(model, dev, chosen)


def search(task: Task, label: str, make: Make, grid: Grid) -> Found:
    """The best model on development data, varying one parameter after another."""
    chosen = {name: values[len(values) // 2] for name, values in grid.items()}
    tried: list[Found] = []
    for name, values in grid.items():
        for value in values:
            choice = chosen | {name: value}
            if all(found.chosen != choice for found in tried):
                tried.append(fit(task, label, make, **choice))
        best = max(tried, key=lambda found: found.dev)
        chosen = best.chosen
    return best


def boosted(task: Task, label: str, make: Make, weights: tuple[float, ...] = ()) -> Found:
    """Boosting with the length weight that is best after a quarter of the rounds, then stopped at
    its best round."""
    most, chosen = max(task.rounds), {}
    if len(weights) == 1:
        chosen = {"length_weight": weights[0]}
    elif weights:
        pilot, name = partial(make, max_iter=most // 4), f"{label}, {most // 4} rounds"
        chosen = search(task, name, pilot, {"length_weight": weights}).chosen
    whole = fit(task, label, partial(make, max_iter=most), **chosen).model
    found = []
    for n in task.rounds:
        model = whole.truncated(min(n, len(whole.path_)))
        found.append(Found(model, task.measure(model, task.data.dev), {"rounds": n, **chosen}))
    return max(found, key=lambda found: found.dev)


def sequence_models(task: Task) -> dict[str, Found]:
    crf = partial(sf.CRF, tol=TOL, max_iter=task.iterations, random_state=0)
    boost = partial(sf.SequenceBoost, bound=task.bound, max_step=task.max_step)
    perceptron = partial(sf.StructuredPerceptron, random_state=0)
    log = search(task, "log", partial(crf, loss="log"), task.log)
    grid = task.marginal or {name: (value,) for name, value in log.chosen.items()}
    return {
        "log": log,
        "marginal": search(task, "marginal", partial(crf, loss="marginal"), grid),
        "exp": search(task, "exp", partial(crf, loss="exp"), task.exp),
        "boosting": boosted(task, "boosting", boost, task.boost_weights),
        "perceptron": search(task, "perceptron", perceptron, {"max_iter": task.epochs}),
    }


def kept(model: Any) -> float:
    """Percentage of the weights that are not zero."""
    return 100 * np.count_nonzero(model.theta_) / model.theta_.size
