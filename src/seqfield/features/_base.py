"""What every feature encoder shares: tokens in, `Sequences` out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield._warn import warn
from seqfield.errors import InputError
from seqfield.sequences import Offsets, Sequences, is_frame, listed, offsets_of

State = tuple[dict[str, Any], dict[str, np.ndarray]]


# scikit-learn has no types, so its classes are Any to mypy
class Encoder(TransformerMixin, BaseEstimator, ABC):
    """Turns X into `Sequences`. Features are numbered by falling frequency: rows of frequent
    features lie together in memory."""

    #: False if the encoder says that the model must have no transition scores
    transitions_: bool = True

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the vocabulary."""
        self.fit_transform(X)
        return self

    @abstractmethod
    def fit_transform(self, X: Any, y: Any = None) -> Sequences:
        """Learn the vocabulary and encode X in one pass."""

    @abstractmethod
    def transform(self, X: Any) -> Sequences:
        """Encode X; features not in the vocabulary are dropped."""

    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Numbers of node and edge features."""

    @abstractmethod
    def names(self) -> list[str]:
        """Feature names in column order."""

    def edge_names(self) -> list[str]:
        """Names of the edge features in column order."""
        return []

    @abstractmethod
    def state(self) -> State:
        """Header and arrays from which `restore` rebuilds the fitted encoder."""

    @classmethod
    @abstractmethod
    def restore(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """A fitted encoder from what `state` gave."""

    def __sklearn_is_fitted__(self) -> bool:
        # constructor arguments are plain names, all that fitting sets has an underscore at an end
        return any(name.startswith("_") or name.endswith("_") for name in vars(self))


class TokenEncoder(Encoder):
    """An encoder of tokens: it learns a vocabulary from them."""

    def fit_transform(self, X: Any, y: Any = None) -> Sequences:
        """Learn the vocabulary and encode X in one pass."""
        return self._learn(*flatten(X))

    def transform(self, X: Any) -> Sequences:
        """Encode X; features not in the vocabulary are dropped."""
        check_is_fitted(self)
        return self._apply(*flatten(X))

    @abstractmethod
    def _learn(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        """Fit, and the training data encoded."""

    @abstractmethod
    def _apply(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        """Other data encoded."""


def check_options(min_freq: Any, hash_bits: Any) -> None:
    """Refuse options that no vocabulary can have."""
    number("min_freq", min_freq, low=1, whole=True)
    if hash_bits is not None:
        number("hash_bits", hash_bits, low=1, high=30, whole=True)


def flatten(X: Any) -> tuple[list[Any], Offsets]:
    """All tokens in one list, and the offsets of the sequences."""
    try:
        rows = [_tokens(sequence) for sequence in listed(X)]
    except TypeError as error:
        raise InputError(f"X must be a list of sequences of tokens: {error}") from error
    lengths = [len(row) for row in rows]
    if 0 in lengths:
        i = lengths.index(0)
        raise InputError(f"sequence {i} is empty: every sequence needs at least one token")
    return list(chain.from_iterable(rows)), offsets_of(lengths)


def _tokens(sequence: Any) -> list[Any]:
    """The tokens of one sequence; those of a data frame are its rows."""
    if isinstance(sequence, list):
        return sequence
    if is_frame(sequence):
        return list(map(tuple, sequence.to_numpy().tolist()))
    return list(sequence)


def by_frequency(counts: np.ndarray, min_freq: int) -> tuple[np.ndarray, np.ndarray]:
    """Old indices in the new order (falling count, ties by age), and new index of each old one.

    Features seen fewer than min_freq times are left out; their new index is -1.
    """
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= min_freq]
    if len(counts) and not len(order):
        told = f"min_freq={min_freq} leaves none of the {len(counts)} features: lower it"
        warn(told, UserWarning)
    remap = np.full(len(counts), -1, np.int32)
    remap[order] = np.arange(len(order), dtype=np.int32)
    return order, remap


def pack_strings(strings: list[str]) -> dict[str, np.ndarray]:
    """Strings as two arrays: UTF-8 bytes and offsets."""
    data = [s.encode("utf-8", "surrogatepass") for s in strings]
    return {
        "bytes": np.frombuffer(b"".join(data), dtype=np.uint8),
        "ends": np.cumsum([len(d) for d in data], dtype=np.int64),
    }


def unpack_strings(data: np.ndarray, ends: np.ndarray) -> list[str]:
    """The strings of `pack_strings`."""
    ends = np.concatenate([[0], np.asarray(ends, np.int64).ravel()])
    if ends.min() < 0 or ends[-1] != len(data) or (ends[1:] < ends[:-1]).any():
        raise InputError("damaged string table")
    raw = data.tobytes()
    try:
        # in ASCII text byte offsets are character offsets: decode once
        text = raw.decode("ascii")
        return [text[a:b] for a, b in pairwise(ends.tolist())]
    except UnicodeDecodeError:
        pass
    try:
        return [raw[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(ends.tolist())]
    except UnicodeDecodeError as error:
        raise InputError("damaged string table") from error
