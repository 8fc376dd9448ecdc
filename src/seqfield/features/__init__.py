"""Turning tokens into feature matrices: templates, spelling, attributes, windows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from seqfield.errors import InputError
from seqfield.features._base import ENCODERS, Encoder
from seqfield.features.attributes import EDGE, Attributes
from seqfield.features.spelling import Words
from seqfield.features.template import Template
from seqfield.features.window import Numeric, Window
from seqfield.sequences import Sequences, is_frame, listed

__all__ = [
    "EDGE",
    "ENCODERS",
    "Attributes",
    "Encoder",
    "Numeric",
    "Template",
    "Window",
    "Words",
    "resolve",
]


def resolve(features: Any, X: Any) -> Encoder:
    """An unfitted encoder for X: a clone of ``features``, or a default that depends on X.

    If ``features`` is a string or a path, it is the source of a `Template`. If it is None, the
    first token decides. Numbers are taken as they are (`Numeric`). A dict, list or set of strings
    gives `Attributes`. A string or a tuple of strings gives `Words`.

    >>> resolve(None, [[("la", "DA"), ("casa", "NC")]])
    Words()
    >>> resolve(None, [[{"w": "la"}, {"w": "casa"}]])
    Attributes()
    >>> resolve("U0:%x[0,0]", [["la", "casa"]])
    Template(source='U0:%x[0,0]')
    """
    if features is None:
        return _by_kind(X)
    if isinstance(features, str | os.PathLike):
        return Template(features)
    if not isinstance(features, Encoder):
        raise InputError(
            f"features must be an encoder such as Words(), or a template, got {features!r}"
        )
    encoder: Encoder = clone(features)
    return encoder


def _by_kind(X: Any) -> Encoder:
    if _is_numeric(X):
        return Numeric()
    if isinstance(X, Iterator):
        raise InputError(f"X is a {type(X).__name__}, which is used up by one look: pass a list")
    sequence = listed(X)[0]
    if _is_numeric(sequence):
        return Numeric()
    if is_frame(sequence):
        sequence = list(map(tuple, sequence.to_numpy().tolist()))
    try:
        token = next(iter(sequence))
    except StopIteration:
        raise InputError("sequence 0 is empty: every sequence needs at least one token") from None
    except TypeError:
        raise InputError(
            f"sequence 0 of X must be a list of tokens, got {type(sequence).__name__}"
        ) from None
    encoder = _by_token(token)
    if encoder is None:
        raise InputError(
            f"cannot tell how to make features of the token {token!r}: a token must be a row of "
            "numbers, a dict or list of features, a string or a tuple of strings. Else pass an "
            "encoder as features="
        )
    return encoder


def _by_token(token: Any) -> Encoder | None:
    if isinstance(token, str):
        return Words()
    if isinstance(token, dict | set | frozenset):
        return Attributes()
    if _is_numeric(token):
        return Numeric()
    if isinstance(token, list | tuple):
        if token and all(isinstance(v, int | float | np.number) for v in token):
            return Numeric()
        if all(isinstance(v, str) for v in token):
            return Attributes() if isinstance(token, list) or not token else Words()
    return None


def _is_numeric(thing: Any) -> bool:
    """True for numbers in an array, a matrix, a data frame or `Sequences`."""
    if isinstance(thing, Sequences) or sp.issparse(thing):
        return True
    if is_frame(thing):  # columns of several kinds make an array of objects
        array = thing.to_numpy()
        return all(isinstance(value, int | float | np.number) for value in array[:1].ravel())
    return isinstance(thing, np.ndarray) and thing.ndim > 0 and thing.dtype.kind in "biuf"
