"""Words and their spelling, after the feature sets of Altun (2005, appendix B)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from seqfield._checks import number
from seqfield.errors import InputError
from seqfield.features._base import ENCODERS, TokenEncoder, pack_strings, unpack_strings
from seqfield.features._vocabulary import MAX_COLUMNS, Line, Values, Vocabulary, columns_of
from seqfield.features.window import centred
from seqfield.persist import Arrays, Header, State
from seqfield.sequences import Offsets, Sequences

_SENT_INI = "SENT INI"

#: tests of a word, of which yes-or-no attributes are made. SENT INI is no test of a word
_TESTS: dict[str, Callable[[str], bool]] = {
    "ALL CAPS": str.isupper,
    "CAP INI": lambda word: word[:1].isupper(),
    "CONTAINS DOT": lambda word: "." in word,
    "CONTAINS HYPEN": lambda word: "-" in word,
    "CONTAINS DIGIT": lambda word: any(map(str.isdigit, word)),
    "DOT END": lambda word: word.endswith("."),
    "ENDS WITH ING": lambda word: word.lower().endswith("ing"),
    "ENDS WITH ED": lambda word: word.lower().endswith("ed"),
    "ENDS WITH EN": lambda word: word.lower().endswith("en"),
    "ENDS WITH LY": lambda word: word.lower().endswith("ly"),
    "ENDS WITH ER": lambda word: word.lower().endswith("er"),
    "ENDS WITH EST": lambda word: word.lower().endswith("est"),
    "ENDS WITH TH": lambda word: word.lower().endswith("th"),
    "BEGINS WITH WH": lambda word: word.lower().startswith("wh"),
}

#: the yes-or-no attributes of Table B.2; an attribute holds if all its parts hold
_NER: list[tuple[str, ...]] = [
    (_SENT_INI,),
    ("CAP INI", _SENT_INI),
    ("CAP INI", "DOT END"),
    ("CAP INI", "CONTAINS DOT"),
    ("CAP INI", "CONTAINS HYPEN"),
    ("CAP INI", "CONTAINS DIGIT"),
    ("CONTAINS DOT", "CONTAINS DIGIT"),
    ("CONTAINS DOT", "CONTAINS HYPEN"),
    ("CONTAINS DIGIT", "CONTAINS HYPEN"),
    ("ALL CAPS",),
    ("CAP INI",),
    ("CONTAINS DIGIT",),
    ("DOT END",),
]

#: the attributes of Table B.2 and of Table B.3
_POS = _NER + [(test,) for test in _TESTS if test.startswith(("ENDS", "BEGINS"))]

_ATTRIBUTES: dict[str | None, list[tuple[str, ...]]] = {None: [], "ner": _NER, "pos": _POS}


def first_letter(word: str) -> str:
    """The kind of the first character: upper, lower, letter (without case), digit or other.

    >>> [first_letter(word) for word in ("Casa", "casa", "日本", "3rd", "...", "")]
    ['upper', 'lower', 'letter', 'digit', 'other', 'other']
    """
    c = word[:1]
    if c.isupper():
        return "upper"
    if c.islower():
        return "lower"
    if c.isalpha():
        return "letter"
    return "digit" if c.isdigit() else "other"


def _ending(word: str) -> str:
    return word[-1:]


#: the attributes that have a value
_VALUED: dict[str, Callable[[str], str]] = {
    "TYPE FIRST LETTER": first_letter,
    "ENDINGS ONE": _ending,
}

# the value of a yes-or-no attribute that holds: it adds nothing to the name
_YES = ""


@ENCODERS.register
class Words(TokenEncoder):
    """Words and spelling attributes in a window around each token.

    Tokens are rows of strings (tuples), or plain strings. The feature sets of Altun (2005,
    appendix B) are ``window=1, spelling=None`` (S1), ``window=1`` (S2) and the default (S3).

    Parameters
    ----------
    window : number of tokens in the window: 1, 3, 5, ... Raise it if labels depend on more distant
        words
    spelling : "ner" (attributes of Table B.2, for names), "pos" (these and the attributes of Table
        B.3, for parts of speech), or None (words alone)
    column : number of the column that holds the word, from 0
    columns : whether to use the values of the other columns too, such as part-of-speech tags
    min_freq : drop features that training data have fewer times than this, a whole number of at
        least 1. Raise it for a smaller model

    Notes
    -----
    The tables list names only. Here they mean:

    - CUR WORD is the word itself, named ``word``. Beyond the ends of a sequence it is ``_B-1``,
      ``_B-2``, ... and ``_B+1``, ``_B+2``, ..., and the attributes give no feature there;
    - SENT INI: the token is the first of its sequence;
    - TYPE FIRST LETTER: the kind of the first character, see `first_letter`;
    - ENDINGS ONE: the last character as it is written;
    - CAP INI: the first character is an upper-case letter;
    - ALL CAPS: the word has a letter and no lower-case letter, such as "A", "EFE" and "R-12";
    - CONTAINS DIGIT, CONTAINS DOT, CONTAINS HYPEN [sic]: anywhere in the word;
    - DOT END: the last character is a dot. The word "." contains a dot and ends with a dot;
    - names of two parts, such as CAP INI DOT END: both parts hold;
    - ENDS WITH ... and BEGINS WITH WH ignore case. The whole word may match ("Ed" ends with ED).

    >>> words = Words(window=3, spelling="ner").fit([["La", "casa"]])
    >>> words.names()[:4]
    ['ENDINGS ONE[0]=a', 'word[-1]=_B-1', 'word[0]=La', 'TYPE FIRST LETTER[0]=upper']
    >>> unseen = words.transform([["Los"]])  # a new word still has its spelling
    >>> [words.names()[k] for k in unseen.x.indices]
    ['word[-1]=_B-1', 'TYPE FIRST LETTER[0]=upper', 'SENT INI[0]', 'CAP INI SENT INI[0]',
     'CAP INI[0]', 'word[+1]=_B+1']
    """

    def __init__(
        self,
        window: int = 3,
        spelling: str | None = "ner",
        column: int = 0,
        columns: bool = True,
        min_freq: int = 1,
    ) -> None:
        self.window = window
        self.spelling = spelling
        self.column = column
        self.columns = columns
        self.min_freq = min_freq

    def _prepare(self, n_columns: int) -> None:
        """Set up all except the vocabulary, for rows of n_columns strings."""
        if self.spelling not in _ATTRIBUTES:
            raise InputError(f'spelling must be "ner", "pos" or None, got {self.spelling!r}')
        number("min_freq", self.min_freq, low=1, whole=True)
        number("column", self.column, whole=True)
        number("number of columns", n_columns, low=1, high=MAX_COLUMNS, whole=True)
        if not 0 <= self.column < n_columns:
            raise InputError(f"no column {self.column} for the word: rows have {n_columns} columns")
        self.n_columns_ = n_columns if self.columns else self.column + 1
        others = [c for c in range(n_columns) if self.columns and c != self.column]
        self._used = [self.column, *others]
        valued = list(_VALUED) if self.spelling else []
        stems = [f"{name}{{}}=" for name in ("word", *(f"col{c}" for c in others), *valued)]
        stems += [" ".join(parts) + "{}" for parts in _ATTRIBUTES[self.spelling]]
        lines = [
            Line(0, "U", (stem.format(at), ""), ((d, c),), beyond=c == 0)
            for d, at in centred(self.window).items()
            for c, stem in enumerate(stems)
        ]
        reach = self.window // 2
        self._node, self._values = Vocabulary(lines, reach), Values(reach)

    def _learn(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        first = tokens[0]
        self._prepare(len(first) if isinstance(first, list | tuple) else 1)
        columns = self._columns(tokens, offsets)
        for column in columns:
            self._values.add(dict.fromkeys(column))
        if self.spelling:
            self._values.add([_YES])
            for value in _VALUED.values():
                self._values.add(dict.fromkeys(map(value, dict.fromkeys(columns[0]))))
        codes = self._codes(columns, offsets)
        return Sequences(self._node.learn(codes, offsets, self.min_freq), offsets)

    def _apply(self, tokens: list[Any], offsets: Offsets) -> Sequences:
        codes = self._codes(self._columns(tokens, offsets), offsets)
        return Sequences(self._node.apply(codes, offsets), offsets)

    def _columns(self, tokens: list[Any], offsets: Offsets) -> list[list[str]]:
        """The used columns as lists of strings; the column of the word comes first."""
        try:
            columns = columns_of(tokens, offsets, self.n_columns_)
        except InputError as error:
            raise InputError(
                f"every token must be a row of {self.n_columns_} strings, but {error}"
            ) from None
        return [columns[c] for c in self._used]

    def _codes(self, columns: list[list[str]], offsets: Offsets) -> np.ndarray:
        """Codes (C, N) of the columns and the attributes, -1 where there is no feature."""
        codes = self._values.encode(columns)
        if not self.spelling:
            return codes
        # an attribute is computed once for each distinct word
        index = {word: k for k, word in enumerate(dict.fromkeys(columns[0]))}
        at = np.fromiter(map(index.__getitem__, columns[0]), np.int32, len(columns[0]))
        initial = np.zeros(len(at), bool)
        initial[offsets[:-1]] = True
        holds = {_SENT_INI: initial}
        for name in {part for parts in _ATTRIBUTES[self.spelling] for part in parts} - {_SENT_INI}:
            holds[name] = np.fromiter(map(_TESTS[name], index), bool, len(index))[at]
        code = self._values.code
        more = [
            np.array([code(value(word)) for word in index], np.int32)[at]
            for value in _VALUED.values()
        ]
        for parts in _ATTRIBUTES[self.spelling]:
            both = np.logical_and.reduce([holds[part] for part in parts])
            more.append(np.where(both, np.int32(code(_YES)), np.int32(-1)))
        return np.concatenate([codes, np.stack(more)])

    def sizes(self) -> tuple[int, int]:
        """Numbers of node and edge features."""
        return len(self._node.combos), 0

    def names(self) -> list[str]:
        """Feature names such as ``word[-1]=casa``, ``col1[0]=NC`` and ``CAP INI[+1]``."""
        return self._node.names(self._values)

    def state(self) -> State:
        """Header and arrays for a model file."""
        header = self.get_params() | {"n_columns": self.n_columns_}
        return State(header, {"node": self._node.combos} | pack_strings(self._values.learned()))

    @classmethod
    def restore(cls, header: Header, arrays: Arrays) -> Self:
        """A fitted encoder from a model file; every code is range-checked."""
        self = cls(**{name: header[name] for name in cls().get_params()})
        self._prepare(header["n_columns"])
        self._values.restore(unpack_strings(arrays["bytes"], arrays["ends"]))
        self._node.restore(arrays["node"], len(self._values.table))
        return self
