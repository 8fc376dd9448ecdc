"""The base classes of feature encoders, which turn tokens into `Sequences`."""

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
from seqfield.persist import Arrays, Family, Header, State
from seqfield.sequences import Offsets, Sequences, is_frame, listed, offsets_of

#: encoders that model files can hold
ENCODERS: Family[Encoder, []] = Family("encoder")


# scikit-learn has no types, so its classes are Any to mypy
class Encoder(TransformerMixin, BaseEstimator, ABC):
    """Base class of encoders: turns X into `Sequences`. Subclass it for a new encoder.

    A subclass must have ``transform`` and ``sizes``. If it learns from X, it must have
    ``fit_transform``, ``state`` and ``restore`` too. Names of all that it learns begin or end with
    an underscore.
    """

    #: False if a model with this encoder must have no transition scores
    transitions_: bool = True

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the vocabulary."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Sequences:
        """Learn the vocabulary and encode X in one pass."""
        return self.transform(X)

    @abstractmethod
    def transform(self, X: Any) -> Sequences:
        """Encode X; features not in the vocabulary are dropped."""

    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Numbers of node and edge features."""

    def names(self) -> list[str]:
        """Feature names in column order."""
        return [f"feature {k}" for k in range(self.sizes()[0])]

    def edge_names(self) -> list[str]:
        """Names of the edge features in column order."""
        return []

    def state(self) -> State:
        """Header and arrays from which `restore` rebuilds the fitted encoder."""
        return State({"params": self.get_params(deep=False)}, {})

    @classmethod
    def restore(cls, header: Header, arrays: Arrays) -> Self:
        """A fitted encoder from what `state` gave."""
        return cls(**header["params"])

    def __sklearn_is_fitted__(self) -> bool:
        learns = type(self).fit_transform is not Encoder.fit_transform
        # fitting sets only names that start or end with an underscore; arguments have none
        return not learns or any(n.startswith("_") or n.endswith("_") for n in vars(self))


class TokenEncoder(Encoder):
    """Base class of encoders that learn a vocabulary from tokens."""

    def fit_transform(self, X: Any, y: Any = None) -> Sequences:
        """Learn the vocabulary and encode X in one pass."""
        return self._learn(*flatten(X))

    def transform(self, X: Any) -> Sequences:
        """Encode X; features not in the vocabulary are dropped."""
        check_is_fitted(self)
        return self._apply(*flatten(X))

    @abstractmethod
    def _learn(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        """Learn from the training data, and encode them."""

    @abstractmethod
    def _apply(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        """Encode new data with what was learned."""


def check_options(min_freq: Any, hash_bits: Any) -> None:
    """Raise an `InputError` unless min_freq >= 1 and hash_bits is None or from 1 to 30."""
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
    """Old indices in the new order, and the new index of each old one.

    The new order is by falling count; equal counts keep their order. Features seen fewer than
    min_freq times are left out, and their new index is -1.
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
