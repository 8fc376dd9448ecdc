"""A sequence as the text that an annotation tool shows."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Any, NamedTuple

#: type of spans that have none: tools need a name
NAMELESS = "_"
_WORD = re.compile(r"\S+")


class Text(NamedTuple):
    """A text, its tokens as they were given, and where these begin and end in it."""

    text: str
    tokens: list[Any]
    starts: list[int]
    ends: list[int]

    @classmethod
    def joined(cls, words: list[str], tokens: list[Any]) -> Text:
        """The words with a space between any two.

        >>> Text.joined(["Ana", "sang"], ["Ana", "sang"])
        Text(text='Ana sang', tokens=['Ana', 'sang'], starts=[0, 4], ends=[3, 8])
        """
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))[:-1]
        ends = [start + len(word) for start, word in zip(starts, words, strict=True)]
        return cls(" ".join(words), tokens, starts, ends)

    @classmethod
    def split(cls, text: str) -> Text:
        """A text that is split at white space; its tokens are one-column rows.

        >>> Text.split(" Ana  sang")
        Text(text=' Ana  sang', tokens=[('Ana',), ('sang',)], starts=[1, 6], ends=[4, 10])
        """
        words = list(_WORD.finditer(text))
        tokens = [(word.group(),) for word in words]
        return cls(text, tokens, [word.start() for word in words], [word.end() for word in words])

    def characters(self, start: int, end: int) -> tuple[int, int]:
        """The characters of the tokens from start to end."""
        return self.starts[start], self.ends[end - 1]

    def touched(self, a: int, b: int) -> tuple[int, int]:
        """The tokens that have characters from a to b; none if their start is not below the end.

        >>> Text.split("Ana sang").touched(2, 4)
        (0, 1)
        """
        return bisect_right(self.ends, a), bisect_left(self.starts, b)
