"""GPstruct and structured sparse variational GPs (Galliani, Dezfouli, Bonilla and Quadrianto 2017).

    SEQFIELD_DATA=... python -m benchmarks.papers.gpstruct small [--task chunking] [--model SVGP]
    SEQFIELD_DATA=... python -m benchmarks.papers.gpstruct large [--task basenp]
    SEQFIELD_DATA=... python -m benchmarks.papers.gpstruct speed [--engine jax --chains 128]
    SEQFIELD_DATA=... python -m benchmarks.papers.gpstruct evaluations

small: Tables 2 and 3, token error and NLL on the five published folds of the four tasks, linear
kernels, eta = 1. large: 500 sentences for training and 323 for testing of base NP and chunking,
five random splits (seeds 0 to 4; the paper's own are not published), 25 epochs. speed: seconds a
thousand steps of elliptical slice sampling, against pygpstruct as it was measured on two cores.
evaluations: the test NLL by the number of likelihoods (or gradients) that a sampler has looked at.
Nothing is tuned on test labels.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from benchmarks._data import TASKS, crfpp, published_folds, random_split
from benchmarks._process import seconds
from benchmarks._table import header, row, with_sd
from seqfield.data.datasets import load_fold_task

Make = Callable[..., Any]
#: error and NLL of the paper's tables
THEIRS = {
    "GP-ESS": {
        "basenp": (5.1, 887), "chunking": (8.5, 704), "segmentation": (14.9, 316),
        "japanesene": (5.6, 806),
    },
    "GP-VAR-T": {
        "basenp": (5.6, 622), "chunking": (9.4, 407), "segmentation": (14.5, 255),
        "japanesene": (5.4, 339),
    },
    "GP-VAR-P": {
        "basenp": (5.2, 603), "chunking": (9.0, 587), "segmentation": (15.3, 298),
        "japanesene": (5.6, 411),
    },
}  # fmt: skip
LARGE = {"basenp": ("5.15", "1266", "4.50", "1356"), "chunking": ("8.60", "2511", "7.20", "1863")}
#: seconds a thousand steps of pygpstruct
PYGPSTRUCT = {"segmentation": 1.55, "chunking": 7.2, "basenp": 33.5}


def sampled(**params: Any) -> sf.GPStruct:
    return sf.GPStruct("linear", random_state=0, **params)


def variational(**params: Any) -> sf.StructuredSVGP:
    return sf.StructuredSVGP("linear", random_state=0, **params)


MODELS: dict[str, tuple[str, Make]] = {
    "GPstruct, HMC": ("GP-ESS", partial(sampled, n_steps=60)),
    "SVGP, chain": ("GP-VAR-T", variational),
    "SVGP, piecewise": ("GP-VAR-P", partial(variational, likelihood="piecewise")),
    # the paper's inducing inputs
    "SVGP, chain, k-means": ("GP-VAR-T", partial(variational, inducing="kmeans")),
}


def measures(model: Any, X: Any, y: Any) -> tuple[float, float]:
    """Token error % and NLL."""
    nll = sf.metrics.token_nll(y, model.predict_proba(X), model.classes_)
    return 100 * sf.metrics.token_error(y, model.predict(X)), nll


def small(tasks: list[str], models: dict[str, tuple[str, Make]], n_folds: int) -> None:
    header("task", "model", "token error % (sd)", "NLL", "paper", "s a fit", "R-hat")
    for name in tasks:
        task = load_fold_task(name)
        for label, (theirs, make) in models.items():
            found, took, agreed = [], [], []
            for X, y, X_test, y_test in published_folds(task, n_folds):
                model = make(classes=range(len(task.labels)))
                took.append(seconds(partial(model.fit, X, y)))
                found.append(measures(model, X_test, y_test))
                agreed.append(getattr(model, "r_hat_", np.nan))
            error, nll = np.array(found).T
            paper = "{} {}, {}".format(theirs, *THEIRS[theirs][name])
            worst = f"{np.max(agreed):.2f}"
            told = f"{nll.mean():.0f}", paper, f"{np.median(took):.1f}", worst
            row(name, label, with_sd(error), *told)


def large(tasks: list[str]) -> None:
    header("task", "model", "token error %", "NLL", "paper's error %", "paper's NLL", "s a fit")
    for task, (error, nll, crf_error, crf_nll) in LARGE.items():
        if task not in tasks:
            continue
        data = crfpp(task, "test")
        models = {
            "SVGP, chain": (partial(variational, max_iter=25), error, nll),
            "CRF, c2=1": (partial(sf.CRF, observed_only=False), crf_error, crf_nll),
        }
        for label, (make, *theirs) in models.items():
            found, took = [], []
            for seed in range(5):
                X, y, X_test, y_test = random_split(data, 500, 323, seed)
                model = make(classes=data.classes)
                took.append(seconds(partial(model.fit, X, y)))
                found.append(measures(model, X_test, y_test))
            mean = np.mean(found, axis=0)
            usual = f"{np.median(took):.1f}"
            row(task, label, f"{mean[0]:.2f}", f"{mean[1]:.0f}", *theirs, usual)


def speed(tasks: list[str], engine: str, n_chains: int) -> None:
    """Two chains on two threads, or many on a device."""
    header("task", "s a thousand steps (median of five)", "pygpstruct", "times faster")
    for name in tasks:
        if name not in PYGPSTRUCT:
            continue
        task, theirs = load_fold_task(name), PYGPSTRUCT[name]
        X, y, _, _ = published_folds(task, 1)[0]
        make = partial(
            sampled,
            sampler="ess",
            n_chains=n_chains,
            n_samples=2,
            engine=engine,
            classes=range(len(task.labels)),
        )
        n, took = 1500, []
        for _ in range(6):
            # a fit of a few steps tells what the rest takes
            few, many = (seconds(partial(make(n_steps=k).fit, X, y)) for k in (4, n))
            took.append((many - few) / (n_chains * (n - 4)) * 1000)
        mine = float(np.median(took[1:]))
        row(name, f"{mine:.3f}", theirs, f"{theirs / mine:.1f}")


def evaluations(n_folds: int) -> None:
    """Mean of at most three folds of segmentation."""
    header("sampler", "steps", "evaluations", "test NLL", "log-likelihood of training labels")
    task = load_fold_task("segmentation")
    settings = [("hmc", n) for n in (10, 20, 40, 80)]
    settings += [("ess", n) for n in (1000, 5000, 20_000, 50_000)]
    for sampler, n in settings:
        found = []
        for X, y, X_test, y_test in published_folds(task, min(3, n_folds)):
            model = sampled(
                sampler=sampler, n_steps=n, n_chains=2, classes=range(len(task.labels))
            ).fit(X, y)
            nll = measures(model, X_test, y_test)[1]
            found.append((model.n_evaluations_, nll, model.log_likelihoods_.mean()))
        looked, nll, inside = np.mean(found, axis=0)
        row(sampler, n, f"{looked:.0f}", f"{nll:.1f}", f"{inside:.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("small", "large", "speed", "evaluations"))
    parser.add_argument(
        "--task", default="", help="only tasks whose name contains this (not evaluations)"
    )
    parser.add_argument("--model", default="", help="only models whose name contains this (small)")
    parser.add_argument("--engine", default="numba", help="of the samplers (speed, small)")
    parser.add_argument("--chains", type=int, default=2, help="of elliptical slices (speed, small)")
    parser.add_argument("--steps", type=int, default=10_000, help="of elliptical slices (small)")
    parser.add_argument(
        "--folds", type=int, default=5, help="the first ones alone (small, evaluations)"
    )
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    tasks = [task for task in TASKS if args.task in task]
    if args.part == "small":
        slices = {"n_steps": args.steps, "n_chains": args.chains, "engine": args.engine}
        make = partial(sampled, sampler="ess", **slices)
        models = {"GPstruct, elliptical slices": ("GP-ESS", make)} | MODELS
        models = {name: model for name, model in models.items() if args.model in name}
        small(tasks, models, args.folds)
    elif args.part == "speed":
        speed(tasks, args.engine, args.chains)
    elif args.part == "large":
        large(tasks)
    else:
        evaluations(args.folds)


if __name__ == "__main__":
    main()
