"""Estimators to model files and back.

A fitted estimator is its parameters, its encoder and labels, what the scheme forbids, the function
that it learned, its calibration, and a few numbers that tell of the fit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from seqfield._checks import number
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.errors import CapabilityError, InputError, ModelFileError, SeqfieldError
from seqfield.estimators._params import table
from seqfield.features import ENCODERS, Encoder
from seqfield.functions import LEARNED, Shape
from seqfield.kernels import KERNELS, Kernel
from seqfield.labels import LabelSet
from seqfield.persist import (
    Arrays,
    label_from_json,
    label_to_json,
    prefixed,
    read_model,
    under,
    write_model,
)
from seqfield.predictions import Calibration

if TYPE_CHECKING:
    from seqfield.estimators._base import SequenceEstimator

#: estimators by name, for loading; a name that is not here is not loaded
REGISTRY: dict[str, type[SequenceEstimator]] = {}
#: numbers that a fit may leave, and model files keep
FACTS = (
    "C_",
    "best_iter_",
    "bound_",
    "c2_",
    "cost_",
    "effective_sample_size_",
    "eta_",
    "gap_",
    "log_evidence_",
    "log_evidence_error_",
    "n_chosen_",
    "n_evaluations_",
    "n_iter_",
    "n_tokens_",
    "objective_",
    "r_hat_",
)
#: those of them that are counts
COUNTS = ("best_iter_", "n_chosen_", "n_evaluations_", "n_iter_", "n_tokens_")


@dataclass(frozen=True)
class Given:
    """A kernel as it was given, without its arrays: the fitted one has the same. No header stands
    for the fitted kernel itself."""

    header: Any
    arrays: list[str]


def register(cls: type[Any]) -> type[Any]:
    """Class decorator: make an estimator loadable by its name."""
    REGISTRY[cls.__name__] = cls
    return cls


def save(model: SequenceEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator."""
    encoder: Encoder = model.features_
    features, feature_arrays = ENCODERS.state(encoder)
    function, arrays = LEARNED.state(model.function_)
    header = {
        "library": _version(),
        "class": type(model).__name__,
        "params": {k: _given(model, k, v) for k, v in model.get_params(deep=False).items()},
        "labels": [label_to_json(name) for name in model.labels_.names],
        "n_features": model.n_features_in_,
        "notes": model.notes_,
        "calibration": None if model.calibration_ is None else model.calibration_.state(),
        "features": features,
        "function": function,
        "facts": {name: _number(value) for name, value in _facts(model).items()},
    }
    arrays = prefixed("function", arrays) | prefixed("features", feature_arrays)
    if model.constraint_ is not None:
        for name, part in vars(model.constraint_).items():
            arrays[f"allowed/{name}"] = (part == 0.0).astype(np.uint8)
    write_model(path, header, arrays)


def load(path: str | os.PathLike[str]) -> SequenceEstimator:
    """Read a model file; anything wrong with it is a `ModelFileError`."""
    header, arrays = read_model(path)
    try:
        return _restored(header, arrays)
    except (
        SeqfieldError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ModelFileError(f"{os.fspath(path)}: damaged: {error}") from error


def _restored(header: dict[str, Any], arrays: Arrays) -> SequenceEstimator:
    name = header["class"]
    if name not in REGISTRY:
        raise InputError(f"unknown kind of model {name!r}")
    params = {k: _param_from_json(v) for k, v in header["params"].items()}
    model = REGISTRY[name](**params)
    labels = LabelSet(label_from_json(v) for v in header["labels"])
    shape = Shape(len(labels), int(header["n_features"]))
    model.labels_, model.classes_, model.n_features_in_ = labels, labels.array, shape.n_features
    model.notes_ = dict(header["notes"])
    model.calibration_ = None
    if header["calibration"] is not None:
        model.calibration_ = Calibration.restore(header["calibration"], len(labels))
    encoder = ENCODERS.restore(header["features"], under("features", arrays))
    if encoder.sizes()[0] != shape.n_features:
        raise InputError("wrong number of features")
    model.features_ = encoder
    model.constraint_ = _constraint(under("allowed", arrays), len(labels))
    model.function_ = LEARNED.restore(header["function"], under("function", arrays), shape)
    if type(model.function_) not in model.learns:
        raise InputError(f"{name} does not learn a {type(model.function_).__name__}")
    for fact, value in header["facts"].items():
        if fact not in FACTS:
            raise InputError(f"unknown number {fact!r}")
        setattr(model, fact, _restored_number(fact, value))
    if params.get("kernel") is not None:
        model.kernel = _with_fitted(model.kernel, getattr(model, "kernel_", None))
    return model


def _facts(model: SequenceEstimator) -> dict[str, float]:
    return {name: vars(model)[name] for name in FACTS if name in vars(model)}


def _number(value: float) -> Any:
    """A number for JSON, which has no word for those that are not finite."""
    plain = int(value) if isinstance(value, int | np.integer) else float(value)
    return plain if np.isfinite(plain) else str(plain)


def _restored_number(name: str, value: Any) -> Any:
    if name in COUNTS:
        return number(name, value, low=0, whole=True)
    return float(value) if value in ("inf", "-inf", "nan") else number(name, value)


def _constraint(arrays: Arrays, s: int) -> Constraint | None:
    if not arrays:
        return None
    parts = [arrays[name].astype(bool) for name in ("start", "pairs", "end")]
    if [part.shape for part in parts] != [(s,), (s, s), (s,)]:
        raise InputError("constraint tables of the wrong shape")
    return Constraint.of(Allowed(*parts))


def _given(model: SequenceEstimator, name: str, value: Any) -> Any:
    """A constructor parameter as JSON."""
    param = table(type(model))[name]
    own = callable(value) or isinstance(value, param.accepts)
    if own and not isinstance(value, Encoder | Kernel):
        raise ModelFileError(
            f"{name} is a function or an object, which model files cannot hold. Call "
            f"set_params({name}={param.default!r}) before save: what was fitted stays as it is, "
            "and so do predictions"
        )
    return _param_to_json(value)


def _param_to_json(value: Any) -> Any:
    """Constructor parameters as JSON; encoders by class and parameters."""
    if isinstance(value, Encoder):
        inner = {k: _param_to_json(v) for k, v in value.get_params(deep=False).items()}
        return {"encoder": type(value).__name__, "params": inner}
    if isinstance(value, Kernel):
        return _kernel_to_json(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return _param_to_json(value.item())
    kernels = isinstance(value, tuple) and any(isinstance(v, Kernel) for v in value)
    if kernels or isinstance(value, list | range | np.ndarray | set | frozenset):
        return {"list": [_param_to_json(v) for v in value]}
    if isinstance(value, dict):
        return {"items": [[_param_to_json(k), _param_to_json(v)] for k, v in value.items()]}
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None  # a generator's state is not part of the model
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": repr(value)}
    return label_to_json(value)


def _param_from_json(thing: Any) -> Any:
    if isinstance(thing, dict):
        if "encoder" in thing:
            inner = {k: _param_from_json(v) for k, v in thing["params"].items()}
            return ENCODERS.named(thing["encoder"])(**inner)
        if "kernel" in thing:
            return Given(thing["kernel"], thing.get("arrays", []))
        if "list" in thing:
            return [_param_from_json(v) for v in thing["list"]]
        if "items" in thing:
            return {_param_from_json(k): _param_from_json(v) for k, v in thing["items"]}
        if "float" in thing:
            return float(thing["float"])
    return label_from_json(thing)


def _kernel_to_json(kernel: Kernel) -> Any:
    """A kernel as given: its header and the names of its arrays, as the fitted kernel is saved with
    the same ones; no header for one that can be saved only when fitted."""
    try:
        header, arrays = KERNELS.state(kernel)
    except CapabilityError:
        return {"kernel": None}
    return {"kernel": header} | ({"arrays": sorted(arrays)} if arrays else {})


def _with_fitted(given: Any, fitted: Any) -> Any:
    """Kernels as given, with what the fitted ones hold for them; None fitted hold nothing."""
    if isinstance(given, list):
        several = fitted if isinstance(fitted, list) else [fitted] * len(given)
        return [_with_fitted(*pair) for pair in zip(given, several, strict=True)]
    if not isinstance(given, Given):
        return given
    # one kernel may be fitted for each label, on the same tokens
    one = fitted[0] if isinstance(fitted, list) else fitted
    held = {} if one is None else KERNELS.state(one).arrays
    # they differ in what they hold if the argument was changed after fitting
    if given.header is None or not set(given.arrays) <= set(held):
        return fitted
    return KERNELS.restore(given.header, {name: held[name] for name in given.arrays})


def _version() -> str:
    try:
        return version("seqfield")
    except PackageNotFoundError:
        return "unknown"
