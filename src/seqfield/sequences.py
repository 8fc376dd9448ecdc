"""`Sequences`: sequences of different lengths as one matrix, and the offsets that cut it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from itertools import islice, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from seqfield.errors import InputError

Offsets = NDArray[np.int64]

_TEXT = (str, bytes, bytearray)
_UNORDERED = (Mapping, Set)
#: words of an example in a message, and characters of what it shows
_SHOWN, _WIDEST = 6, 40
NO_LENGTHS = (
    "X is one matrix: pass lengths=, the number of rows of each sequence, or a list of matrices"
)


class Sequences:
    """n sequences with N tokens in all, as one (N, D) matrix and offsets.

    Parameters
    ----------
    x : (N, D) node features, one row for each token; a dense array or a sparse matrix of finite
        numbers
    offsets : (n + 1,) whole numbers from 0 to N. Sequence i is the rows
        ``offsets[i]:offsets[i + 1]``, at least one. None: all rows are one sequence
    edge : (N, E) edge features, dense or sparse, or None. Row t is for the pair of labels
        (y_{t-1}, y_t). The row of a sequence's first token is not used

    An index (a number, a slice or an array of numbers) gives the chosen sequences as `Sequences`.

    >>> import numpy as np
    >>> batch = Sequences(np.eye(3), [0, 1, 3])
    >>> len(batch), batch.lengths.tolist(), batch[1].x.shape
    (2, [1, 2], (2, 3))
    """

    def __init__(self, x: Any, offsets: Any = None, edge: Any = None) -> None:
        self.x = _matrix(x, "x")
        cuts = np.asarray([0, self.x.shape[0]] if offsets is None else offsets)
        if cuts.dtype.kind not in "iu":
            raise InputError("offsets must be whole numbers")
        self.offsets: Offsets = cuts.astype(np.int64)
        check_offsets(self.offsets, self.x.shape[0])
        self.edge = None if edge is None else _matrix(edge, "edge")
        if self.edge is not None and self.edge.shape[0] != self.x.shape[0]:
            raise InputError(
                f"edge has {self.edge.shape[0]} rows, but x has {self.x.shape[0]}: "
                "edge needs one row for each token"
            )
        self._check_finite("x", self.x)
        if self.edge is not None:
            self._check_finite("edge", self.edge)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Sequences(n={len(self)}, tokens={self.n_tokens}, features={self.n_features})"

    @property
    def lengths(self) -> Offsets:
        """Length of each sequence (n,)."""
        return np.diff(self.offsets)

    @property
    def n_tokens(self) -> int:
        """N, the number of tokens in all sequences."""
        return int(self.x.shape[0])

    @property
    def n_features(self) -> int:
        """D, the number of node features."""
        return int(self.x.shape[1])

    def __getitem__(self, key: Any) -> Sequences:
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"there is no sequence {key} in a batch of {len(self)}")
            key = [int(key) % len(self)]
        chosen = np.arange(len(self))[key]
        rows: Any
        rows, offsets = rows_of(self.offsets, chosen)
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
        part = object.__new__(Sequences)
        part.x, part.offsets = self.x[rows], offsets
        part.edge = None if self.edge is None else self.edge[rows]
        return part

    def place(self, token: int) -> tuple[int, int]:
        """The number of the sequence of a row, and the position in it."""
        return place_of(token, self.offsets)

    def _check_finite(self, name: str, matrix: Any) -> None:
        values = matrix.data if sp.issparse(matrix) else matrix
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            if sp.issparse(matrix):
                k = int(np.argmax(~np.isfinite(values)))
                row = int(np.searchsorted(matrix.indptr, k, side="right")) - 1
                column = int(matrix.indices[k])
                value = values[k]
            else:
                row, column = (int(v) for v in np.argwhere(~np.isfinite(values))[0])
                value = values[row, column]
            i, t = self.place(row)
            raise InputError(
                f"{name} is {value} at sequence {i}, position {t}, column {column}: "
                "features must be finite numbers"
            )


def as_sequences(X: Any, lengths: Any = None) -> Sequences:
    """Convert numeric X of any accepted form to `Sequences`.

    X may be `Sequences`, a list of (T_i, D) arrays, sparse matrices or data frames, or a list of
    `Sequences`. X may also be one (N, D) matrix or data frame; then ``lengths`` holds the number of
    rows of each sequence.

    >>> import numpy as np
    >>> as_sequences([np.zeros((2, 3)), np.zeros((4, 3))])
    Sequences(n=2, tokens=6, features=3)
    """
    if isinstance(X, Sequences):
        return X
    if is_frame(X) and lengths is not None:
        X = _numbers(X)
    if sp.issparse(X) or (isinstance(X, np.ndarray) and X.dtype != object and X.ndim == 2):
        if lengths is None:
            raise InputError(NO_LENGTHS)
        return Sequences(X, checked_lengths(lengths, X.shape[0]))
    parts = [part.to_numpy() if is_frame(part) else part for part in listed(X)]
    if all(isinstance(part, Sequences) for part in parts):
        return _concatenate(parts)
    for i, part in enumerate(parts):
        if isinstance(part, list | tuple) and not part:
            raise InputError(f"sequence {i} is empty: every sequence needs at least one token")
        if getattr(part, "ndim", None) != 2 and not _is_rows(part):
            raise InputError(
                f"sequence {i} of X is not a (T, D) matrix: got {_describe(part)}. Token rows "
                "and strings need features=, see the documentation of X"
            )
    matrices = [part if hasattr(part, "ndim") else np.asarray(part, float) for part in parts]
    width = matrices[0].shape[1]
    for i, part in enumerate(matrices):
        if part.shape[0] == 0:
            raise InputError(f"sequence {i} is empty: every sequence needs at least one token")
        if part.shape[1] != width:
            raise InputError(
                f"sequence {i} has {part.shape[1]} features, but sequence 0 has {width}: all "
                "sequences need the same number"
            )
    return Sequences(_stack(matrices), offsets_of([part.shape[0] for part in matrices]))


def listed(X: Any) -> list[Any]:
    """The sequences of X in a list; text, and what has no order, is an error in their place.

    >>> listed(["2", "cups"])
    Traceback (most recent call last):
    seqfield.errors.InputError: sequence 0 of X is the string '2': a sequence is a list of tokens,
    and X is a list of sequences, such as [["2", "cups"]]
    """
    if is_frame(X):
        raise InputError(NO_LENGTHS)
    if isinstance(X, _TEXT):
        raise InputError(f"X is the string {_cut(X)}: {_instead([X])}")
    if isinstance(X, _UNORDERED):
        raise InputError(f"X is a {type(X).__name__}: pass a list of sequences")
    try:
        parts = list(X)
    except TypeError:
        raise InputError(f"X must be a list of sequences, got {_describe(X)}") from None
    if not parts:
        raise InputError("no sequences: X is empty")
    for i, part in enumerate(parts):
        if isinstance(part, _TEXT):
            raise InputError(f"sequence {i} of X is the string {_cut(part)}: {_instead(parts[i:])}")
        if isinstance(part, _UNORDERED):
            raise InputError(
                f"sequence {i} of X is a {type(part).__name__}: a sequence is a list of tokens"
            )
    return parts


def is_frame(thing: Any) -> bool:
    """True for a data frame: a table that can become an array, of whatever library."""
    return hasattr(thing, "to_numpy") and len(getattr(thing, "shape", ())) == 2


def is_column(thing: Any) -> bool:
    """True for a column of a data frame."""
    return hasattr(thing, "to_numpy") and len(getattr(thing, "shape", ())) == 1


def _numbers(frame: Any) -> NDArray[np.float64]:
    """The numbers of a data frame."""
    try:
        return np.asarray(frame.to_numpy(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"X is not a matrix of numbers: {error}. Text goes without lengths=: pass a list of "
            "data frames or of lists of words, one for each sequence"
        ) from error


def _instead(strings: list[Any]) -> str:
    """What to pass instead of strings: of the words of a line, or of words."""
    first = strings[0] if isinstance(strings[0], str) else strings[0].decode("utf-8", "replace")
    words = first.split()[:_SHOWN]
    if len(words) < 2:
        words = [one for one in islice(strings, _SHOWN) if isinstance(one, str) and one]
    words = words or ["2", "cups", "flour"]
    example = json.dumps([[word[:_WIDEST] for word in words]], ensure_ascii=False)
    return f"a sequence is a list of tokens, and X is a list of sequences, such as {example}"


def _cut(text: Any) -> str:
    plain = str(text) if isinstance(text, str) else bytes(text)
    return repr(plain) if len(plain) <= _WIDEST else f"{plain[:_WIDEST]!r}..."


def offsets_of(lengths: Any) -> Offsets:
    """Offsets (n + 1,) of sequences of the given lengths.

    >>> offsets_of([2, 1]).tolist()
    [0, 2, 3]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of(offsets: Offsets, chosen: Any) -> tuple[Offsets, Offsets]:
    """The token rows of chosen sequences (an index array) in order, and their new offsets.

    >>> [part.tolist() for part in rows_of(np.array([0, 2, 3, 6]), [2, 0])]
    [[3, 4, 5, 0, 1], [0, 3, 5]]
    """
    lengths = np.diff(offsets)[chosen]
    new = offsets_of(lengths)
    return np.arange(new[-1]) + np.repeat(offsets[chosen] - new[:-1], lengths), new


def checked_lengths(lengths: Any, n_tokens: int) -> Offsets:
    """Offsets of ``lengths``, which must be positive and add up to the number of rows."""
    counts = np.asarray(lengths)
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise InputError("lengths must be a list of whole numbers, one for each sequence")
    if counts.sum() != n_tokens:
        raise InputError(f"lengths add up to {counts.sum()}, but X has {n_tokens} rows")
    offsets = offsets_of(counts)
    check_offsets(offsets, n_tokens)
    return offsets


def check_offsets(offsets: Offsets, n_tokens: int) -> None:
    """Raise an `InputError` unless offsets cut n_tokens rows into non-empty sequences."""
    if offsets.ndim != 1 or len(offsets) < 2:
        raise InputError("no sequences: offsets must be (n + 1,) integers from 0 to N, n >= 1")
    if offsets[0] != 0 or offsets[-1] != n_tokens:
        raise InputError(
            f"offsets must run from 0 to {n_tokens}, got {offsets[0]} to {offsets[-1]}"
        )
    lengths = np.diff(offsets)
    if (lengths <= 0).any():
        i = int(np.argmax(lengths <= 0))
        raise InputError(f"sequence {i} is empty: every sequence needs at least one token")


def place_of(token: int, offsets: Offsets) -> tuple[int, int]:
    """Sequence and position of token number ``token``.

    >>> place_of(3, offsets_of([2, 4]))
    (1, 1)
    """
    i = int(np.searchsorted(offsets, token, side="right")) - 1
    return i, int(token - offsets[i])


def _matrix(x: Any, name: str) -> Any:
    """A dense float64 array, or CSR with int32 indices and int8 or float64 values."""
    if np.iscomplexobj(x):
        raise InputError(f"{name} holds complex numbers: features must be real")
    if sp.issparse(x):
        csr = sp.csr_array(x)
        if csr.ndim != 2:
            raise InputError(f"{name} must be a matrix")
        if csr.data.dtype != np.int8:
            csr = csr.astype(np.int8 if csr.data.dtype == bool else np.float64)
        return csr
    try:
        dense = np.ascontiguousarray(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not a matrix of numbers: {error}") from error
    if dense.ndim != 2:
        raise InputError(f"{name} must have two dimensions (tokens, features), got {dense.ndim}")
    return dense


def _concatenate(parts: list[Sequences]) -> Sequences:
    widths = {part.n_features for part in parts}
    if len(widths) > 1:
        raise InputError(f"sequences have different numbers of features: {sorted(widths)}")
    lengths: Iterable[Any] = np.concatenate([part.lengths for part in parts])
    bare = [part.edge is None for part in parts]
    if any(bare) and not all(bare):
        raise InputError(f"part {bare.index(True)} of X has no edge features, but others have")
    edge = None if bare[0] else _stack([part.edge for part in parts])
    return Sequences(_stack([part.x for part in parts]), offsets_of(lengths), edge)


def _stack(matrices: list[Any]) -> Any:
    """Matrices stacked by rows, sparse if any of them is sparse."""
    if any(sp.issparse(part) for part in matrices):
        return sp.vstack([sp.csr_array(part) for part in matrices], format="csr")
    return np.vstack(matrices)


def _is_rows(part: Any) -> bool:
    """True for a plain list of rows of numbers that all have the same length."""
    if not isinstance(part, list | tuple) or not part:
        return isinstance(part, list | tuple)
    return all(
        isinstance(row, list | tuple)
        and all(isinstance(v, int | float | np.number) for v in row)
        and len(row) == len(part[0])
        for row in part
    )


def _describe(thing: Any) -> str:
    shape = getattr(thing, "shape", None)
    return f"{type(thing).__name__}" + ("" if shape is None else f" of shape {shape}")


def even_bounds(offsets: Offsets, n: int) -> list[tuple[int, int]]:
    """Cut the sequences into at most n runs with about equally many tokens each.

    >>> even_bounds(np.array([0, 5, 6, 10, 12]), 2)
    [(0, 2), (2, 4)]
    """
    wanted = np.linspace(0, offsets[-1], n + 1)
    nearest = np.searchsorted((offsets[1:] + offsets[:-1]) / 2, wanted)
    return list(pairwise(np.unique(nearest).tolist()))
