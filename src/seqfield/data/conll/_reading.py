"""Reading column files.

If the first line that holds a token has a tab after it, tabs part the columns of the file, and
tokens may hold blanks. If it has none, blanks do. Only the ASCII space is a blank: other white
space (such as U+3000, the ideographic space) is a token like any other.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from operator import or_
from typing import Literal, NamedTuple, cast

from seqfield._warn import warn
from seqfield.data.text import Source, read_text
from seqfield.errors import FormatError, InputError

Row = tuple[str, ...]
Rows = list[list[Row]]
Labels = list[list[str | None]]
Column = int | Literal["auto"] | None

#: suffixes of CoNLL-U files; the number of their columns, and those of word and universal tag
CONLLU = (".conllu", ".conllu.gz")
WIDTH, FORM, UPOS = 10, 1, 3
#: lines of CoNLL-U that are no words: comments, ranges of multiword tokens, empty nodes
_NO_WORD = re.compile(r"#|\d+[-.]\d+\t")

#: the first column of a line between documents, in the files of the CoNLL tasks
START = "-DOCSTART-"
_STARTS = re.compile(rf"^[ \t]*{START}(?:[ \t].*)?$", re.MULTILINE)

_FIRST = re.compile(r"[^ \t\n][^\n]*")
_BLANKS = re.compile("[ \t]+")
_TABS = re.compile(" *\t[ \t]*")

#: how columns are called in first lines that name them: of labels, and of others
_HEADINGS = {"label", "labels", "tag", "tags", "ner", "pos", "upos", "xpos", "chunk", "iob", "bio"}
_HEADINGS |= {"gold", "entity", "class"}
_OTHERS = {"token", "tokens", "word", "words", "form", "text", "lemma", "id", "sentence"}
#: more labels than this of one name are no headings
_FEW = 2


#: the text of a file to column lines, each with its number in the file; "" parts sequences
Reader = Callable[[str], Iterable[tuple[int, str]]]
#: readers of other formats by the suffix of the file
READERS: dict[str, Reader] = {}


def reader(*suffixes: str) -> Callable[[Reader], Reader]:
    """Decorator: let `read_conll` and the commands read files with these suffixes.

    >>> @reader(".slashed")
    ... def slashed(text):
    ...     for number, line in enumerate(text.splitlines(), 1):
    ...         for token in line.split():
    ...             yield number, "\\t".join(token.rsplit("/", 1))
    ...         yield number, ""
    >>> list(slashed("the/DT cat/NN"))
    [(1, 'the\\tDT'), (1, 'cat\\tNN'), (1, '')]
    >>> READERS.pop(".slashed") is slashed
    True
    """

    def register(function: Reader) -> Reader:
        READERS.update(dict.fromkeys(suffixes, function))
        return function

    return register


@dataclass(frozen=True)
class Document:
    """What a column file holds.

    ``rows`` has a list of token rows for each sequence: all columns but the label's. ``labels`` has
    a list of labels for each, None in place of a missing one; it is None if no column was read as
    the label. ``lines`` has the line of each sequence's first token, ``notes`` what the reader of
    the file should know of it. ``separator`` parts its columns.
    """

    rows: Rows
    labels: Labels | None
    lines: list[int]
    notes: list[str]
    name: str
    separator: str
    _label: int | None
    _conllu: bool
    #: the lines of the file that were not left out; None if none was
    _numbers: list[int] | None = field(repr=False)

    def line(self, sequence: int, position: int = 0) -> int:
        """The line of a token.

        >>> import io
        >>> read_document(io.StringIO("\\na X\\nb Y\\n")).line(0, 1)
        3
        """
        first = self.lines[sequence]
        if self._numbers is None:
            return first + position
        return self._numbers[bisect_left(self._numbers, first) + position]

    def features(self, columns: Sequence[int] | None = None) -> Rows:
        """The rows with chosen columns in a chosen order, counted as in the file, from 0 on.

        Without ``columns`` all of them; of CoNLL-U the word alone.

        >>> import io
        >>> read_document(io.StringIO("the DT B\\n"), label=1).features([2, 0])
        [[('B', 'the')]]
        """
        if columns is None:
            if not self._conllu:
                return self.rows
            columns = [FORM]
        width = len(self.rows[0][0]) + (self._label is not None)
        places = []
        for column in columns:
            if not (isinstance(column, int) and 0 <= column < width):
                raise self.misfit(f"no column {column}: lines have {_columns(width)}, from 0 on")
            if column == self._label:
                raise self.misfit(f"column {column} is the label: it cannot be a feature")
            places.append(column - (self._label is not None and column > self._label))
        if not places:
            raise self.misfit("no columns are left to learn from")
        return [[tuple([row[k] for k in places]) for row in rows] for rows in self.rows]

    def misfit(self, message: str) -> FormatError:
        """An error about the columns: all lines have equally many, so the first one shows it."""
        return FormatError(message, path=self.name, line=self.lines[0])


def read_conll(
    source: Source,
    *,
    label: Column = "auto",
    columns: Sequence[int] | None = None,
    encoding: str = "utf-8",
    comment: str | None = None,
    missing: str | None = None,
) -> tuple[Rows, Labels | None]:
    """Read a column file into token rows and labels.

    Lines whose first column is ``-DOCSTART-`` part sequences and are no tokens. A file whose name
    ends in ``.conllu`` is read as CoNLL-U: tokens are its words (FORM), labels their universal tags
    (UPOS); comments, ranges of multiword tokens and empty nodes are left out.

    Parameters
    ----------
    source : path or open file (text or binary; gzip is recognised)
    label : the column that holds the label, counted from 0; negative numbers count from the end.
        "auto" is the last one, of CoNLL-U the universal tag; None if the file has no labels
    columns : the columns to make token rows of, in this order, counted as in the file; by default
        all but the label's, of CoNLL-U the word alone
    encoding : of the file; a byte that does not decode is an error that names its line. A byte
        order mark (UTF-8, UTF-16, UTF-32) says more
    comment : lines that start with this string are skipped (off by default: ``#`` is a token
        in many corpora)
    missing : a label that stands for one that is not known, such as "?": it becomes None

    Returns
    -------
    X : list of sequences, each a list of rows, each a tuple of column strings
    y : list of label lists, or None if ``label`` is None

    >>> import io
    >>> X, y = read_conll(io.StringIO("the DT B\\ncat NN I\\n\\nruns VB O\\n"))
    >>> X
    [[('the', 'DT'), ('cat', 'NN')], [('runs', 'VB')]]
    >>> y
    [['B', 'I'], ['O']]
    """
    found = read_document(source, label=label, encoding=encoding, comment=comment, missing=missing)
    return found.features(columns), found.labels


def read_document(
    source: Source,
    *,
    label: Column = "auto",
    encoding: str = "utf-8",
    comment: str | None = None,
    missing: str | None = None,
) -> Document:
    """Read a column file, or one that a `reader` knows, with what is known of its lines.

    The parameters are those of `read_conll`.
    """
    numbers: list[int] | None
    notes: list[str]
    if not (comment is None or (isinstance(comment, str) and comment)):
        raise InputError(f"comment must be the beginning of lines, such as '#', got {comment!r}")
    if isinstance(label, bool) or not (label in ("auto", None) or isinstance(label, int)):
        raise InputError(f"label must be the number of a column, 'auto' or None, got {label!r}")
    name, text = read_text(source, encoding)
    conllu = name.endswith(CONLLU)
    own = next((READERS[suffix] for suffix in READERS if name.endswith(suffix)), None)
    if own is not None:
        pairs = list(own(text))
        text, numbers, notes = "\n".join(line for _, line in pairs), [k for k, _ in pairs], []
    else:
        text, numbers, notes = _kept(text, comment, conllu)
    first = _FIRST.search(text)
    if first is None:
        raise FormatError("no tokens: the file has no non-empty line", path=name)
    separator = "\t" if conllu or "\t" in first.group() else " "
    tokens = _Tokens.of(_normalised(text, separator).split("\n"), name, numbers)
    columns = tokens.columns(separator)
    if label == "auto":
        label = UPOS if conllu else -1
        if conllu:
            notes.append("labels are UPOS, the column 3: choose another column with label=")
    _check_width(tokens, len(columns), label, conllu)
    flat: list[str] | None = None
    if label is not None:
        label %= len(columns)
        flat = columns.pop(label)
    rows = list(zip(*columns, strict=True))
    labels: Labels | None = None
    if flat is not None:
        _warn_of_headings(tokens, flat, rows)
        known = cast(list[str | None], flat)
        if missing is not None and missing in flat:
            known = [None if name == missing else name for name in flat]
        labels = [known[a:b] for a, b in pairwise(tokens.cuts)]
    X = [rows[a:b] for a, b in pairwise(tokens.cuts)]
    lines = [tokens.number(a) for a in tokens.cuts[:-1]]
    return Document(X, labels, lines, notes, name, separator, label, conllu, numbers)


class _Tokens(NamedTuple):
    """The lines of all tokens, and where they are in the file.

    Sequence i is the lines from ``cuts[i]`` to ``cuts[i + 1]``. Its first one comes after
    ``before[i]`` other lines that were not left out.
    """

    name: str
    lines: list[str]
    cuts: list[int]
    before: list[int]
    numbers: list[int] | None

    @classmethod
    def of(cls, raw: list[str], name: str, numbers: list[int] | None) -> _Tokens:
        """The tokens of all lines that were not left out."""
        cuts, before, end = [0], [], 0
        for at in [*[k for k, line in enumerate(raw) if not line], len(raw)]:
            if at > end:
                before.append(end)
                cuts.append(cuts[-1] + at - end)
            end = at + 1
        return cls(name, [line for line in raw if line], cuts, before, numbers)

    def number(self, token: int) -> int:
        """The line in the file of a token."""
        i = bisect_right(self.cuts, token) - 1
        at = self.before[i] + token - self.cuts[i]
        return at + 1 if self.numbers is None else self.numbers[at]

    def fail(self, message: str, token: int = 0) -> FormatError:
        """An error about a token's line."""
        return FormatError(message, path=self.name, line=self.number(token))

    def columns(self, separator: str) -> list[list[str]]:
        """The columns; every line must have as many as the first one."""
        counts = list(map(str.count, self.lines, repeat(separator)))
        width = counts[0] + 1
        if counts.count(counts[0]) != len(counts):
            bad = next(k for k, count in enumerate(counts) if count != counts[0])
            message = f"{_columns(counts[bad] + 1)} where lines before have {width}"
            raise self.fail(message + ", parted by tabs" * (separator == "\t"), bad)
        # one split over the whole file, then strided slices: no Python loop over tokens
        cells = separator.join(self.lines).split(separator)
        return [cells[c::width] for c in range(width)]


def _kept(text: str, comment: str | None, conllu: bool) -> tuple[str, list[int] | None, list[str]]:
    """The lines that hold tokens or part sequences, their numbers (None if these are all), and
    what to say of the others."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    notes: list[str] = []
    numbers = None
    if comment is not None or conllu:
        raw = text.split("\n")
        out = [comment is not None and line.lstrip(" \t").startswith(comment) for line in raw]
        if conllu:
            ranges = [_NO_WORD.match(line) is not None for line in raw]
            n = sum(line[:1] != "#" for line, left in zip(raw, ranges, strict=True) if left)
            notes += [f"{n} multiword tokens and empty nodes are left out"] * (n > 0)
            out = list(map(or_, out, ranges))
        numbers = [k for k, left in enumerate(out, 1) if not left]
        text = "\n".join([raw[k - 1] for k in numbers])
    if START in text:
        # an empty line in its place: no sequence goes on from one document to the next
        text, n = _STARTS.subn("", text)
        notes += [f"{n} {START} line{'s are' if n > 1 else ' is'} left out"] * (n > 0)
    return text, numbers, notes


def _normalised(text: str, separator: str) -> str:
    """Text with one separator between columns, and no blanks at line ends."""
    if separator == "\t":
        if " \t" in text or "\t " in text or "\t\t" in text:
            text = _TABS.sub("\t", text)
    elif "\t" in text or "  " in text:
        text = _BLANKS.sub(" ", text)
    for blank in {" ", separator}:
        ends = text[:1] == blank or text[-1:] == blank
        if ends or f"{blank}\n" in text or f"\n{blank}" in text:
            return "\n".join([line.strip(" \t") for line in text.split("\n")])
    return text


def _check_width(tokens: _Tokens, width: int, label: int | None, conllu: bool) -> None:
    """Refuse a number of columns that cannot be right."""
    if conllu and width != WIDTH:
        raise tokens.fail(f"CoNLL-U has {WIDTH} columns parted by tabs, got {width}")
    if label is not None and not -width <= label < width:
        raise tokens.fail(f"no column {label}: lines have {_columns(width)}")
    if width > 1:
        return
    commas = "commas, but no tabs or blanks, seem to part columns: write them parted by tabs"
    if label is not None:
        if "," in tokens.lines[0]:
            raise tokens.fail(commas)
        raise tokens.fail("only one column: it is the label, and no column is left to learn from")
    n = tokens.lines[0].count(",")
    if n and len(tokens.lines) > _FEW and all(line.count(",") == n for line in tokens.lines):
        warn(str(tokens.fail(commas)), UserWarning)


def _warn_of_headings(tokens: _Tokens, labels: list[str], rows: list[Row]) -> None:
    """Warn of a line that names the columns: else it is learned as a token with a label."""
    for name in set(labels):
        if not _all_in(_HEADINGS, name) or labels.count(name) > _FEW:
            continue
        at = labels.index(name)
        if at == 0 or any(_all_in(_HEADINGS | _OTHERS, cell) for cell in rows[at]):
            message = f"the label {name!r} seems to be the heading of a column: remove such lines"
            warn(str(tokens.fail(message, at)), UserWarning)


def _all_in(words: set[str], name: str) -> bool:
    """Whether all words of a name such as NER_TAG are among these."""
    return len(name) < 40 and words.issuperset(re.split("[ _-]", name.lower()))


def _columns(n: int) -> str:
    return f"{n} column{'' if n == 1 else 's'}"
