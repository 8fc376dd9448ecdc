"""CRF++ feature templates.

A template file has one template on each line; a line that starts with ``#`` is a comment. A macro
``%x[row,column]`` stands for the value of a column, ``row`` tokens after the current one. A line
that starts with ``U`` makes node features: ``U05:%x[-1,0]/%x[0,0]`` joins the values of column 0 at
the token before and at the current token. A line that starts with ``B`` makes edge features, which
score a label together with the label before it. A ``B`` line without macros asks for plain
transition scores. Beyond the ends of a sequence the value is ``_B-1``, ``_B-2``, ... and ``_B+1``,
``_B+2``, ...

As in CRF++, lines with the same literal text share their features: ``U:%x[-1,0]`` and
``U:%x[1,0]`` make a bag of words. CRF++ compares the joined text. Here values are compared one by
one, so the pairs ("a/b", "c") and ("a", "b/c") stay two features.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils import murmurhash3_32

from seqfield.errors import FormatError, InputError
from seqfield.features import _intern
from seqfield.features._base import (
    ENCODERS,
    TokenEncoder,
    check_options,
    pack_strings,
    unpack_strings,
)
from seqfield.features._vocabulary import (
    MAX_COLUMNS,
    MAX_REACH,
    Line,
    Values,
    Vocabulary,
    binary,
    columns_of,
    encode,
)
from seqfield.persist import Arrays, Header, State
from seqfield.sequences import Offsets, Sequences

_MACRO = re.compile(r"%x\[(-?\d+),(\d+)\]")


def parse_template(text: str, path: str = "<template>") -> list[Line]:
    """The lines of a template; a malformed line raises a `FormatError` that names it.

    >>> [line] = parse_template("# words\\nU01:%x[-1,0]/%x[0,0]")
    >>> line.kind, line.pieces, line.macros
    ('U', ('U01:', '/', ''), ((-1, 0), (0, 0)))
    """
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        if line[0] not in "UB":
            raise FormatError(f"a template starts with U or B: {line!r}", path=path, line=number)
        parts = _MACRO.split(line)
        pieces = tuple(parts[0::3])
        if any("%" in piece for piece in pieces):
            raise FormatError(
                f"malformed macro in {line!r}: expected %x[row,column]", path=path, line=number
            )
        macros = tuple((int(r), int(c)) for r, c in zip(parts[1::3], parts[2::3], strict=True))
        if any(abs(r) > MAX_REACH or c > MAX_COLUMNS for r, c in macros):
            raise FormatError(
                f"{line!r} looks more than {MAX_REACH} rows away or beyond column {MAX_COLUMNS}",
                path=path,
                line=number,
            )
        lines.append(Line(number, line[0], pieces, macros))
    if not lines:
        raise FormatError("the template has no lines: add one such as U00:%x[0,0]", path=path)
    return lines


@ENCODERS.register
class Template(TokenEncoder):
    """Features from a CRF++ template over token rows.

    Parameters
    ----------
    source : the path of a template file, or the text of a template. It is text if it has a line
        break or a macro in it
    min_freq : drop features that training data have fewer times than this, a whole number of at
        least 1. Raise it for a smaller model
    hash_bits : None, or a whole number from 1 to 30: features are then hashed into 2**hash_bits
        columns, and none are learned. Memory is bounded, but columns have no names, and two
        features may share a column. Use it if there are too many features for memory

    >>> X = [[("the", "DT"), ("cat", "NN")]]
    >>> template = Template("U0:%x[0,0]\\nU1:%x[-1,1]/%x[0,1]\\nB").fit(X)
    >>> template.names()
    ['U0:the', 'U1:_B-1/DT', 'U0:cat', 'U1:DT/NN']
    >>> template.transform(X).x.toarray()
    array([[1, 1, 0, 0],
           [0, 0, 1, 1]], dtype=int8)
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        min_freq: int = 1,
        hash_bits: int | None = None,
    ) -> None:
        self.source = source
        self.min_freq = min_freq
        self.hash_bits = hash_bits

    def _text(self) -> tuple[str, str]:
        """The text of the template, and its name in messages."""
        source = os.fspath(self.source)
        if "\n" in source or "%x[" in source:
            return source, "<template>"
        try:
            return Path(source).read_text(encoding="utf-8"), source
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise FormatError(f"cannot read the template: {reason}", path=source) from error

    def _prepare(self, text: str, path: str) -> None:
        check_options(self.min_freq, self.hash_bits)
        self.text_, self._path = text, path
        lines = parse_template(text, path)
        self._reach = max((abs(r) for line in lines for r, _ in line.macros), default=0)
        self.n_columns_ = 1 + max((c for line in lines for _, c in line.macros), default=0)
        # a B line without macros is the same for every token: plain transition scores
        self.transitions_ = any(line.kind == "B" for line in lines)
        node = [line for line in lines if line.kind == "U"]
        edge = [line for line in lines if line.kind == "B" and line.macros]
        self._node = Vocabulary(node, self._reach)
        self._edge = Vocabulary(edge, self._reach) if edge else None
        self._values = Values(self._reach)

    def _learn(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        self._prepare(*self._text())
        columns = self._columns(tokens, offsets)
        if self.hash_bits is not None:
            return self._hashed(columns, offsets)
        for column in columns:
            self._values.add(dict.fromkeys(column))
        codes = self._values.encode(columns)
        node = self._node.learn(codes, offsets, self.min_freq)
        edge = self._edge and self._edge.learn(codes, offsets, self.min_freq)
        return Sequences(node, offsets, edge)

    def _apply(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        columns = self._columns(tokens, offsets)
        if self.hash_bits is not None:
            return self._hashed(columns, offsets)
        codes = self._values.encode(columns)
        edge = self._edge and self._edge.apply(codes, offsets)
        return Sequences(self._node.apply(codes, offsets), offsets, edge)

    def _columns(self, tokens: list[Any], offsets: Offsets) -> list[list[str]]:
        """The used columns as lists of strings."""
        last = self.n_columns_ - 1
        try:
            return columns_of(tokens, offsets, last + 1)
        except InputError as error:
            lines = parse_template(self.text_)
            number = next((n.number for n in lines if last in (c for _, c in n.macros)), None)
            raise FormatError(
                f"the template uses column {last}, but {error}", path=self._path, line=number
            ) from None

    def _hashed(self, columns: list[list[str]], offsets: Offsets) -> Sequences:
        # codes are 31-bit hashes of the values, equal in every process
        codes = encode(columns, lambda value: murmurhash3_32(value) & 0x7FFFFFFF)

        def buckets(vocabulary: Vocabulary) -> sp.csr_array:
            n = 1 << int(self.hash_bits or 0)
            indices = _intern.hash_all(codes, offsets, vocabulary.plan, vocabulary.width, n)
            return binary(indices, np.arange(n, dtype=np.int32), n)

        edge = self._edge and buckets(self._edge)
        return Sequences(buckets(self._node), offsets, edge)

    def sizes(self) -> tuple[int, int]:
        """Numbers of node and edge features."""
        if self.hash_bits is not None:
            n = 1 << self.hash_bits
            return n, 0 if self._edge is None else n
        return len(self._node.combos), 0 if self._edge is None else len(self._edge.combos)

    def names(self) -> list[str]:
        """Feature names as CRF++ writes them."""
        if self.hash_bits is not None:
            return [f"hash:{k}" for k in range(1 << self.hash_bits)]
        return self._node.names(self._values)

    def edge_names(self) -> list[str]:
        """Names of the edge features."""
        if self._edge is None:
            return []
        if self.hash_bits is not None:
            return [f"hash:{k}" for k in range(1 << self.hash_bits)]
        return self._edge.names(self._values)

    def state(self) -> State:
        """Header and arrays for a model file."""
        header = {"text": self.text_, "min_freq": self.min_freq, "hash_bits": self.hash_bits}
        if self.hash_bits is not None:  # nothing was learned
            return State(header, {})
        arrays = {"node": self._node.combos}
        if self._edge is not None:
            arrays["edge"] = self._edge.combos
        return State(header, arrays | pack_strings(self._values.learned()))

    @classmethod
    def restore(cls, header: Header, arrays: Arrays) -> Self:
        """A fitted template from a model file; every code is range-checked."""
        self = cls(header["text"], int(header["min_freq"]), header["hash_bits"])
        self._prepare(header["text"], "<model file>")
        if self.hash_bits is not None:
            return self
        strings = unpack_strings(arrays["bytes"], arrays["ends"])
        self._values.restore(strings)
        size = len(self._values.table)
        self._node.restore(arrays["node"], size)
        if self._edge is not None:
            self._edge.restore(arrays["edge"], size)
        return self
