"""python-crfsuite on CoNLL-2000 chunking, with the features of the CRF++ template."""

from __future__ import annotations

import re
from typing import Any

from benchmarks._data import chunking_template, conll2000


def items(X: list[Any]) -> list[list[list[str]]]:
    """Feature strings of every token, by an expansion that owes nothing to seqfield's."""
    lines = [
        (line.split(":")[0], re.findall(r"%x\[(-?\d+),(\d+)\]", line))
        for line in chunking_template().read_text().splitlines()
        if line.startswith("U")
    ]

    def value(rows: Any, t: int) -> str:
        if t < 0:
            return f"_B{t}"
        return f"_B+{t - len(rows) + 1}" if t >= len(rows) else rows[t]

    out = []
    for rows in X:
        columns = list(zip(*rows, strict=True))
        out.append(
            [
                [
                    name + ":" + "/".join(value(columns[int(c)], t + int(r)) for r, c in macros)
                    for name, macros in lines
                ]
                for t in range(len(rows))
            ]
        )
    return out


def trainer(algorithm: str, n: int | None, params: dict[str, Any], *, lists: bool = False) -> Any:
    """A trainer that has seen the first n sentences.

    They are fed one at a time, so that Python's copy of the strings does not count as CRFsuite's
    memory. lists=True has all of them in Python's lists first, as in CRFsuite's documentation.
    """
    import pycrfsuite

    X, y = conll2000("train", n)
    found = pycrfsuite.Trainer(algorithm=algorithm, verbose=False)
    features = items(X) if lists else (items([rows])[0] for rows in X)
    for rows, labels in zip(features, y, strict=True):
        found.append(rows, labels)
    found.set_params(params)
    return found


def tagger(model: str) -> Any:
    import pycrfsuite

    found = pycrfsuite.Tagger()
    found.open(model)
    return found
