"""Numeric features: as they are, or together with those of neighbouring tokens."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.features._base import ENCODERS, Encoder
from seqfield.persist import Arrays, Header, State
from seqfield.sequences import Sequences, as_sequences

#: a limit far above what anybody needs: a larger window is a mistake
MAX_WINDOW = 1001


def centred(size: int) -> dict[int, str]:
    """Offsets of a centred window, and how feature names write them.

    >>> centred(3)
    {-1: '[-1]', 0: '[0]', 1: '[+1]'}
    """
    if (
        number("the odd size of a centred window", size, low=1, high=MAX_WINDOW, whole=True) % 2
        == 0
    ):
        raise InputError(f"a centred window has an odd size, got {size}")
    reach = size // 2
    return {d: f"[{d:+d}]" if d else "[0]" for d in range(-reach, reach + 1)}


@ENCODERS.register
class Numeric(Encoder):
    """Numeric X as it is. New data must have as many features as the training data.

    >>> encoder = Numeric().fit([np.zeros((2, 5)), np.zeros((3, 5))])
    >>> encoder.names()
    ['x0', 'x1', 'x2', 'x3', 'x4']
    >>> encoder.transform([np.zeros((1, 7))])
    Traceback (most recent call last):
    seqfield.errors.InputError: X has 7 features, the model was trained with 5
    """

    def fit_transform(self, X: Any, y: Any = None) -> Sequences:
        """Remember the number of features and encode X."""
        sequences = as_sequences(X)
        encoded = self._encode(sequences)
        self.n_features_in_, self.n_edge_ = _widths(sequences)
        return encoded

    def transform(self, X: Any) -> Sequences:
        """Encode X, which must have as many features as in training."""
        check_is_fitted(self)
        sequences = as_sequences(X)
        trained = self.n_features_in_, self.n_edge_
        for name, n, m in zip(("X", "edge"), _widths(sequences), trained, strict=True):
            if n != m:
                raise InputError(f"{name} has {n} features, the model was trained with {m}")
        return self._encode(sequences)

    def _encode(self, sequences: Sequences) -> Sequences:
        return sequences

    def sizes(self) -> tuple[int, int]:
        """Numbers of node and edge features."""
        return self.n_features_in_, self.n_edge_

    def names(self) -> list[str]:
        """x0, x1, ..."""
        return [f"x{k}" for k in range(self.n_features_in_)]

    def edge_names(self) -> list[str]:
        """e0, e1, ..."""
        return [f"e{k}" for k in range(self.n_edge_)]

    def state(self) -> State:
        """Header for a model file; there are no arrays."""
        return State(
            self.get_params() | {"n_features": self.n_features_in_, "n_edge": self.n_edge_}, {}
        )

    @classmethod
    def restore(cls, header: Header, arrays: Arrays) -> Self:
        """A fitted encoder from a model file."""
        self = cls(**{name: int(header[name]) for name in cls().get_params()})
        self.n_features_in_, self.n_edge_ = int(header["n_features"]), int(header["n_edge"])
        if min(self.n_features_in_, self.n_edge_) < 0:
            raise InputError("the number of features is negative")
        return self


@ENCODERS.register
class Window(Numeric):
    """Each token gets the numeric features of a centred window around it.

    Beyond the ends of a sequence, features are 0. For each offset except 0, one more column is 1 if
    the offset is beyond an end. So a model can distinguish a measured zero from a missing token.
    Sparse X stays sparse. Edge features are passed on as they are.

    Parameters
    ----------
    size : number of tokens in the window, an odd number from 1 to 1001. Raise it if labels depend
        on more distant tokens; the number of features grows with it

    >>> encoder = Window(size=3)
    >>> encoder.fit_transform([[[5.0], [6.0]]]).x
    array([[0., 5., 6., 1., 0.],
           [5., 6., 0., 0., 1.]])
    >>> encoder.names()
    ['x0[-1]', 'x0[0]', 'x0[+1]', 'end[-1]', 'end[+1]']
    """

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def _encode(self, sequences: Sequences) -> Sequences:
        x, offsets = sequences.x, sequences.offsets
        n = sequences.n_tokens
        first = np.repeat(offsets[:-1], sequences.lengths)
        last = np.repeat(offsets[1:], sequences.lengths)
        vstack: Any = np.vstack
        hstack: Any = np.hstack
        matrix: Any = np.array
        if sp.issparse(x):
            vstack, hstack = partial(sp.vstack, format="csr"), partial(sp.hstack, format="csr")
            matrix = sp.csr_array
        # row n holds the zeros for positions beyond an end
        padded = vstack([x, matrix(np.zeros((1, x.shape[1]), x.dtype))])
        blocks, ends = [], []
        for d in centred(self.size):
            rows = np.arange(n) + d
            beyond = (rows < first) | (rows >= last)
            blocks.append(padded[np.where(beyond, n, rows)])
            if d:
                ends.append(matrix(beyond[:, None].astype(x.dtype)))
        return Sequences(hstack(blocks + ends), offsets, sequences.edge)

    def sizes(self) -> tuple[int, int]:
        """Numbers of node and edge features."""
        return self.n_features_in_ * self.size + self.size - 1, self.n_edge_

    def names(self) -> list[str]:
        """x0[-1], ..., then end[-1], ..."""
        at = centred(self.size)
        plain = super().names()
        return [name + at[d] for d in at for name in plain] + [f"end{at[d]}" for d in at if d]


def _widths(sequences: Sequences) -> tuple[int, int]:
    edge = 0 if sequences.edge is None else int(sequences.edge.shape[1])
    return sequences.n_features, edge
