"""Model files of every kind, taken apart and put together again."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from safetensors import SafetensorError
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save as make_safetensors

import seqfield as sf
from seqfield import persist

RNG = np.random.default_rng(0)
X = [RNG.normal(size=(length, 3)) for length in (3, 1, 4, 2)]
Y = [["a", "b", "c"], ["a"], ["b", "c", "c", "a"], ["c", "b"]]
OFFSETS = [0, 3, 4, 8, 10]
ROWS = [[(f"w{k}é", "t") for k in range(len(x))] for x in X]
BIO = [["B-x", "I-x", "O"], ["O"], ["O", "B-x", "O", "O"], ["B-y", "I-y"]]
DICTS = [[{"w": w, "n": 0.5, sf.EDGE: [t]} for w, t in rows] for rows in ROWS]
TUPLES = [[(label, 1) for label in row] for row in Y]
EDGED = sf.Sequences(np.vstack(X), OFFSETS, np.vstack(X)[:, :2])
SPARSE = sf.Sequences(
    sp.csr_array(np.vstack(X) > 0), OFFSETS, sp.csr_array(np.vstack(X)[:, :2] > 0)
)
TEMPLATE = "U0:%x[0,0]\nU1:%x[-1,0]/%x[1,1]\nB0:%x[0,1]\nB"

KINDS = {
    "words": (ROWS, BIO, {"scheme": "BIO"}),
    "template": (ROWS, BIO, {"features": sf.Template(TEMPLATE)}),
    "hashed": (ROWS, BIO, {"features": sf.Template(TEMPLATE, hash_bits=4), "c1": 0.01}),
    "attributes": (DICTS, TUPLES, {}),
    "dense": (
        EDGED,
        Y,
        {"classes": ["c", "b", "a"], "scheme": [(p, q) for p in "abc" for q in "abc"]},
    ),
    "sparse": (SPARSE, Y, {"missing_label": -100}),
    "window": (X, Y, {"features": sf.Window(3)}),
}


def model_of(kind):
    x, y, wanted = KINDS[kind]
    return sf.CRF(c2=0.1, n_jobs=1, **wanted).fit(x, y)


def text_of(header):
    """A header as JSON; the string 1e309 stands for the number."""
    return json.dumps(header).replace('"1e309"', "1e309")


def signed(data):
    """The file with the checksum that fits what it holds, where it can be taken apart.

    What lies behind the checksum must hold against files that were made on purpose.
    """
    try:
        arrays = parse_safetensors(data)
        size = int.from_bytes(data[:8], "little")
        outer = json.loads(data[8 : 8 + size])
        text = outer["__metadata__"]["seqfield"]
        claimed = json.loads(text)["checksum"]
        blank = text.replace(claimed, "0" * 64, 1)
        right = persist.checksum(blank, arrays)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data
    outer["__metadata__"]["seqfield"] = blank.replace("0" * 64, right, 1)
    head = text_of(outer).encode()
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


def forge(path, header, arrays):
    """Write a file of whatever header and arrays, with the checksum that fits."""
    text = text_of({"checksum": "0" * 64, "format": persist.FORMAT} | header)
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    Path(path).write_bytes(signed(make_safetensors(plain, metadata={"seqfield": text})))


class File:
    """A model file taken apart: outer JSON, our header in it, and the arrays' bytes.

    What is put together again has the checksum that fits.
    """

    def __init__(self, data):
        size = int.from_bytes(data[:8], "little")
        self.outer = json.loads(data[8 : 8 + size])
        self.header = json.loads(self.outer["__metadata__"]["seqfield"])
        self.body = data[8 + size :]

    def bytes(self, header=None, outer=None, body=None):
        """The file with some part replaced."""
        outer = copy.deepcopy(self.outer if outer is None else outer)
        if header is not None:
            outer["__metadata__"] = {"seqfield": text_of(header)}
        text = text_of(outer).encode()
        body = self.body if body is None else body
        return signed(len(text).to_bytes(8, "little") + text + body)

    def arrays(self):
        out = {}
        types = {"F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1"}
        for name, spec in self.outer.items():
            if name != "__metadata__":
                a, b = spec["data_offsets"]
                out[name] = np.frombuffer(self.body[a:b], types[spec["dtype"]]).reshape(
                    spec["shape"]
                )
        return out

    def with_arrays(self, arrays):
        return signed(
            make_safetensors(
                {k: np.ascontiguousarray(v) for k, v in arrays.items()},
                metadata={"seqfield": json.dumps(self.header)},
            )
        )
