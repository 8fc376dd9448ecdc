"""Features that the user computed: a dict or a list of strings for each token."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from numbers import Real
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils import murmurhash3_32

from seqfield.errors import InputError
from seqfield.features._base import (
    ENCODERS,
    TokenEncoder,
    by_frequency,
    check_options,
    pack_strings,
    unpack_strings,
)
from seqfield.persist import Arrays, Header, State
from seqfield.sequences import Offsets, Sequences, place_of

#: the key of a token's dict that holds its edge features
EDGE = "__edge__"

_SEVERAL = (list, tuple, set, frozenset)


@ENCODERS.register
class Attributes(TokenEncoder):
    """Features that the user gives for each token, as CRFsuite takes them.

    A token is a list, tuple or set of feature strings. Each has value 1, and a string listed twice
    counts twice. Or a token is a dict, whose values say what the features are:

    ==================  ====================================================
    ``{"w": "casa"}``   feature ``w=casa`` of value 1
    ``{"w": [a, b]}``   features ``w=a`` and ``w=b`` (any collection of strings)
    ``{"cap": True}``   feature ``cap`` of value 1; False is the same as no such key
    ``{"len": 4.5}``    feature ``len`` of value 4.5; 0 is the same as no such key
    ``"__edge__"``      a dict or list of edge features in the same forms, for the pair of
                        labels that ends at this token (`EDGE` is the name of the key)
    ==================  ====================================================

    Parameters
    ----------
    min_freq : drop features that training data have fewer times than this, a whole number of at
        least 1. Raise it for a smaller model
    hash_bits : None, or a whole number from 1 to 30: names are then hashed into 2**hash_bits
        columns, and none are learned. Memory is bounded, but columns have no names, and two
        features may share a column. Use it if there are too many features for memory

    >>> X = [[{"w": "la", "len": 2}, {"w": "casa", "len": 4, "__edge__": ["after la"]}]]
    >>> encoder = Attributes()
    >>> encoder.fit_transform(X).x.toarray()
    array([[2., 1., 0.],
           [4., 0., 1.]])
    >>> encoder.names(), encoder.edge_names()
    (['len', 'w=la', 'w=casa'], ['after la'])
    >>> encoder.transform([[["w=casa", "w=perro"]]]).x.toarray()
    array([[0, 0, 1]], dtype=int8)
    """

    def __init__(self, min_freq: int = 1, hash_bits: int | None = None) -> None:
        self.min_freq = min_freq
        self.hash_bits = hash_bits

    def _prepare(self) -> None:
        check_options(self.min_freq, self.hash_bits)

    def _learn(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        self._prepare()
        if self.hash_bits is not None:
            self._has_edge = any(isinstance(token, dict) and EDGE in token for token in tokens)
            return self._apply(tokens, offsets)
        node, edge = _Rows(_Learning()), _Rows(_Learning())
        _collect(tokens, offsets, node, edge)
        x, self._node = node.learned(self.min_freq)
        e, self._edge = edge.learned(self.min_freq)
        self._has_edge = len(self._edge) > 0
        return Sequences(x, offsets, e if self._has_edge else None)

    def _apply(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        if self.hash_bits is not None:
            # node and edge features share one cache: a hash does not depend on the kind
            hashed = _Hashing(self.hash_bits)
            node, edge, width = _Rows(hashed), _Rows(hashed), (1 << self.hash_bits,) * 2
        else:
            node, edge = _Rows(self._node), _Rows(self._edge)
            width = len(self._node), len(self._edge)
        _collect(tokens, offsets, node, edge)
        x = node.matrix(width[0])
        return Sequences(x, offsets, edge.matrix(width[1]) if self._has_edge else None)

    def sizes(self) -> tuple[int, int]:
        """Numbers of node and edge features."""
        if self.hash_bits is not None:
            n = 1 << self.hash_bits
            return n, n if self._has_edge else 0
        return len(self._node), len(self._edge)

    def names(self) -> list[str]:
        """Feature names in column order."""
        if self.hash_bits is not None:
            return [f"hash:{k}" for k in range(1 << self.hash_bits)]
        return list(self._node)

    def edge_names(self) -> list[str]:
        """Names of the edge features."""
        if not self._has_edge:
            return []
        if self.hash_bits is not None:
            return self.names()
        return list(self._edge)

    def state(self) -> State:
        """Header and arrays for a model file."""
        header = {
            "min_freq": self.min_freq,
            "hash_bits": self.hash_bits,
            "has_edge": self._has_edge,
        }
        if self.hash_bits is not None:
            return State(header, {})
        arrays = pack_strings(list(self._node))
        if self._has_edge:
            arrays |= {f"edge_{k}": v for k, v in pack_strings(list(self._edge)).items()}
        return State(header, arrays)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays) -> Self:
        """A fitted encoder from a model file."""
        self = cls(int(header["min_freq"]), header["hash_bits"])
        self._prepare()
        self._has_edge = bool(header["has_edge"])
        if self.hash_bits is None:
            self._node = _restored(arrays["bytes"], arrays["ends"])
            self._edge = _Known()
            if self._has_edge:
                self._edge = _restored(arrays["edge_bytes"], arrays["edge_ends"])
        return self


class _Known(dict[str, int]):
    """Columns by feature name, -1 for an unknown name."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        return cls((name, k) for k, name in enumerate(names))

    def __missing__(self, name: str) -> int:
        _check(name)
        return -1


class _Learning(_Known):
    """Gives an unknown name the next column."""

    def __missing__(self, name: str) -> int:
        _check(name)
        column = self[name] = len(self)
        return column


class _Hashing(_Known):
    """Gives an unknown name the column of its hash, equal in every process."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.mask = (1 << bits) - 1

    def __missing__(self, name: str) -> int:
        _check(name)
        column = self[name] = int(murmurhash3_32(name, positive=True)) & self.mask
        return column


def _check(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not a string")


class _Values(dict[str, int]):
    """Columns by value, for the features of one name. Each distinct pair is joined only once."""

    def __init__(self, name: str, codes: _Known) -> None:
        super().__init__()
        _check(name)
        self.stem, self.codes = name + "=", codes

    def __missing__(self, value: str) -> int:
        _check(value)
        column = self[value] = self.codes[self.stem + value]
        return column


class _Pairs(dict[str, _Values]):
    """`_Values` by name."""

    def __init__(self, codes: _Known) -> None:
        super().__init__()
        self.codes = codes

    def __missing__(self, name: str) -> _Values:
        values = self[name] = _Values(name, self.codes)
        return values


class _Rows:
    """Columns of the features of all tokens in one array, and the values other than 1."""

    def __init__(self, codes: _Known) -> None:
        self.codes = codes
        self.pairs = _Pairs(codes)
        self.columns = array("i")
        self.ends = array("q", [0])
        self.at = array("q")
        self.values = array("d")

    def add(self, features: Any) -> None:
        """Append the features of one token; a TypeError says what is wrong with them."""
        codes = self.codes
        if isinstance(features, dict):
            pairs, append = self.pairs, self.columns.append
            for name, value in features.items():
                kind = type(value)
                if kind is str:
                    append(pairs[name][value])
                elif kind is bool:
                    if value:
                        append(codes[name])
                elif kind is float or isinstance(value, Real | np.bool_):
                    self._add_number(name, float(value))
                elif isinstance(value, str):
                    append(pairs[name][value])
                elif isinstance(value, _SEVERAL):
                    self.columns.extend(map(pairs[name].__getitem__, value))
                else:
                    raise TypeError(
                        f"feature {name!r} is {value!r}: expected a string, number or list"
                    )
        elif isinstance(features, _SEVERAL):
            self.columns.extend(map(codes.__getitem__, features))
        else:
            raise TypeError(f"{features!r} is neither a dict nor a list of strings")
        self.ends.append(len(self.columns))

    def _add_number(self, name: str, number: float) -> None:
        if not math.isfinite(number):
            raise TypeError(f"feature {name!r} is {number}: features must be finite numbers")
        if number != 0:
            if number != 1:
                self.at.append(len(self.columns))
                self.values.append(number)
            self.columns.append(self.codes[name])

    def learned(self, min_freq: int) -> tuple[sp.csr_array, _Known]:
        """The matrix of the features seen at least min_freq times, and these features."""
        counts = np.bincount(np.asarray(self.columns), minlength=len(self.codes))
        order, remap = by_frequency(counts, min_freq)
        names = list(self.codes)
        return self.matrix(len(order), remap), _Known.of([names[k] for k in order])

    def matrix(self, width: int, remap: np.ndarray | None = None) -> sp.csr_array:
        """CSR matrix with sorted rows: int8 if all values are 1, else float64."""
        columns = np.array(self.columns, np.int32)
        if remap is not None:
            columns = remap[columns]
        data = np.ones(len(columns), np.float64 if self.at else np.int8)
        data[np.asarray(self.at)] = self.values
        kept = columns >= 0
        ends = np.concatenate([[0], np.cumsum(kept)])[np.asarray(self.ends)].astype(np.int32)
        x = sp.csr_array((data[kept], columns[kept], ends), shape=(len(ends) - 1, width))
        x.sort_indices()
        if not x.has_canonical_format:
            x = x.astype(np.float64)  # the sum of many ones does not fit int8
            x.sum_duplicates()
        return x


def _collect(tokens: list[Any], offsets: Offsets, node: _Rows, edge: _Rows) -> None:
    """Append the node and edge features of every token."""
    try:
        for token in tokens:
            if isinstance(token, dict) and EDGE in token:
                token = token.copy()
                edge.add(token.pop(EDGE))
            else:
                edge.ends.append(len(edge.columns))
            node.add(token)
    except (TypeError, OverflowError) as error:
        i, t = place_of(len(node.ends) - 1, offsets)  # the token whose row has no end yet
        raise InputError(f"the token at sequence {i}, position {t}: {error}") from None


def _restored(data: np.ndarray, ends: np.ndarray) -> _Known:
    strings = unpack_strings(data, ends)
    known = _Known.of(strings)
    if len(known) != len(strings):
        raise InputError("damaged feature table: a feature is listed twice")
    return known
