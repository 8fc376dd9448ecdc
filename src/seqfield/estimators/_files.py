"""Estimators to model files and back.

An estimator gives ``_state()`` (header, arrays) and ``_restore(header, arrays)``; labels,
features, parameters and constraints are saved here for all of them.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from seqfield._checks import number
from seqfield.chain.constraint import Constraint
from seqfield.data.schemes import Allowed
from seqfield.errors import CapabilityError, InputError, ModelFileError, SeqfieldError
from seqfield.estimators._calibration import LIMIT
from seqfield.features import ENCODERS, Encoder
from seqfield.kernels import KERNELS, Kernel
from seqfield.labels import LabelSet
from seqfield.persist import (
    label_from_json,
    label_to_json,
    prefixed,
    read_model,
    under,
    write_model,
)

if TYPE_CHECKING:
    from seqfield.estimators._base import SequenceEstimator

#: estimators by name, for loading; a name that is not here is not loaded
REGISTRY: dict[str, type[SequenceEstimator]] = {}


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
    own, arrays = model._state()
    encoder: Encoder = model.features_
    features, feature_arrays = ENCODERS.state(encoder)
    header = {
        "library": _version(),
        "class": type(model).__name__,
        "params": {k: _given(model, k, v) for k, v in model.get_params(deep=False).items()},
        "labels": [label_to_json(name) for name in model._labels.names],
        "n_features": model.n_features_in_,
        "notes": model.notes_,
        "temperature": model.temperature_,
        "offsets": None if model.offsets_ is None else model.offsets_.tolist(),
        "slopes": None if model.slopes_ is None else model.slopes_.tolist(),
        "features": features,
        "model": own,
    }
    arrays = prefixed("model", arrays) | prefixed("features", feature_arrays)
    if model._constraint is not None:
        c = model._constraint
        for name, part in (("start", c.start), ("pairs", c.pairs), ("end", c.end)):
            arrays[f"allowed/{name}"] = (part == 0.0).astype(np.uint8)
    write_model(path, header, arrays)


def load(path: str | os.PathLike[str]) -> SequenceEstimator:
    """Read a model file; anything wrong with it is a `ModelFileError`."""
    header, arrays = read_model(path)
    try:
        name = header["class"]
        if name not in REGISTRY:
            raise InputError(f"unknown kind of model {name!r}")
        params = {k: _param_from_json(v) for k, v in header["params"].items()}
        model = REGISTRY[name](**params)
        model._labels = LabelSet(label_from_json(v) for v in header["labels"])
        model.classes_ = model._labels.array
        model.n_features_in_ = int(header["n_features"])
        model.notes_ = dict(header["notes"])
        model.temperature_ = _temperature(header.get("temperature"))
        model.offsets_ = _by_label("offset", header.get("offsets"), len(model._labels))
        model.slopes_ = _by_label("slope", header.get("slopes"), len(model._labels), low=0.0)
        encoder = ENCODERS.restore(header["features"], under("features", arrays))
        if encoder.sizes()[0] != model.n_features_in_:
            raise InputError("wrong number of features")
        model.features_ = encoder
        model._constraint = _constraint(under("allowed", arrays), len(model._labels))
        model._restore(header["model"], under("model", arrays))
        if params.get("kernel") is not None:
            model.kernel = _with_fitted(model.kernel, model.kernel_)
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
    return model


def _temperature(value: Any) -> float | None:
    return None if value is None else number("temperature", value, low=np.exp(-LIMIT) / 2)


def _by_label(name: str, values: Any, s: int, low: float = -np.inf) -> np.ndarray | None:
    if values is None:
        return None
    numbers = np.array([number(name, value, low=low) for value in values], np.float64)
    if numbers.shape != (s,):
        raise InputError(f"wrong number of {name}s")
    return numbers


def _constraint(arrays: dict[str, np.ndarray], s: int) -> Constraint | None:
    if not arrays:
        return None
    parts = [arrays[name].astype(bool) for name in ("start", "pairs", "end")]
    if [part.shape for part in parts] != [(s,), (s, s), (s,)]:
        raise InputError("constraint tables of the wrong shape")
    return Constraint.of(Allowed(*parts))


def _given(model: SequenceEstimator, name: str, value: Any) -> Any:
    """A constructor parameter as JSON."""
    if callable(value) and not isinstance(value, Encoder | Kernel):
        plain = inspect.signature(type(model)).parameters[name].default
        raise ModelFileError(
            f"{name} is a function, which model files cannot hold: "
            f"set_params({name}={plain!r}) keeps what was fitted, and predictions are the same"
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
    """Kernels as given, with what the fitted ones hold for them."""
    if isinstance(given, list):
        return [_with_fitted(*pair) for pair in zip(given, fitted, strict=True)]
    if not isinstance(given, Given):
        return given
    # one kernel may be fitted for each label, on the same tokens
    _, held = KERNELS.state(fitted[0] if isinstance(fitted, list) else fitted)
    # they differ in what they hold if the argument was changed after fitting
    if given.header is None or not set(given.arrays) <= set(held):
        return fitted
    return KERNELS.restore(given.header, {name: held[name] for name in given.arrays})


def _version() -> str:
    try:
        return version("seqfield")
    except PackageNotFoundError:
        return "unknown"
