"""Thousands of damaged model files, and a process that reads them.

The process has bounded memory, so that a crash, an endless loop or a huge allocation is a failed
test and not the end of the test run.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import signal
import sys
import warnings
from pathlib import Path

import numpy as np

import seqfield as sf
from seqfield.errors import ModelFileError, SeqfieldError
from seqfield.estimators._files import REGISTRY

from .model_files import KINDS, File, signed

MEMORY = 4 * 2**30  # address space of the reading process
SECONDS = 3  # for one file

VALUES = (None, -1, [], {}, "x", "1e309", True, 0, 1.5, 2**70, [None], {"tuple": [1]})


def places(tree, path=()):
    """Paths of all values of a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def replaced(tree, path, value):
    tree = copy.deepcopy(tree)
    at = tree
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = copy.deepcopy(value)
    return tree


def removed(tree, path):
    tree = copy.deepcopy(tree)
    at = tree
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return tree


def fresh(file, path, seen):
    """True the first time that a place of this meaning turns up in any kind of file."""
    own = {
        "features": file.header["features"]["class"],
        "function": file.header["function"]["node"]["dense"],
    }
    key = (
        own.get(str(path[0]).partition("/")[0]),
        *("*" if isinstance(k, int) else k for k in path),
    )
    return key not in seen and not seen.add(key)


def header_edits(file, seen):
    for path in places(file.header):
        if not fresh(file, path, seen):
            continue
        for value in VALUES:
            yield f"header{list(path)} = {value!r}", file.bytes(replaced(file.header, path, value))
        yield f"header{list(path)} removed", file.bytes(removed(file.header, path))
    for value in VALUES:
        yield f"header = {value!r}", file.bytes(value)
    names = [*REGISTRY, "os.system", "Words", "CRF()", ""]
    for name in names:
        for path in (("class",), ("features", "class")):
            yield f"header{path} = {name!r}", file.bytes(replaced(file.header, path, name))


def outer_edits(file, seen):
    for path in places(file.outer):
        if not fresh(file, path, seen):
            continue
        for value in (None, -1, [], {}, "x", "1e309", 2**70):
            yield (
                f"outer{list(path)} = {value!r}",
                file.bytes(outer=replaced(file.outer, path, value)),
            )
        yield f"outer{list(path)} removed", file.bytes(outer=removed(file.outer, path))
    for name, spec in file.outer.items():
        if name == "__metadata__" or not fresh(file, (name, "dtype and shape"), seen):
            continue
        size = spec["data_offsets"][1] - spec["data_offsets"][0]
        widths = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2,
                  "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
                  "C64": 8, "F128": 16}  # fmt: skip
        for dtype, width in widths.items():
            for shape in ([size // width], [size // width, 1]):
                new = spec | {"dtype": dtype, "shape": shape}
                yield f"{name} {dtype} {shape}", file.bytes(outer=file.outer | {name: new})
        for shape in ([2**40], [2**63], [-1], [2**32, 2**32], [0, 7], []):
            new = spec | {"shape": shape}
            yield f"{name} {shape}", file.bytes(outer=file.outer | {name: new})


def array_edits(file, rng, seen):
    arrays = file.arrays()
    for name, array in arrays.items():
        if not fresh(file, (name, "values"), seen):
            continue
        rest = {k: v for k, v in arrays.items() if k != name}
        yield f"{name} removed", file.with_arrays(rest)
        for other in (array[:-1], array[:0], array[::-1], np.zeros_like(array), array[None],
                      np.concatenate([array, array]), np.array(0.5), array.astype(np.float32),
                      array.astype(np.int8)):  # fmt: skip
            yield f"{name} {other.dtype}{other.shape}", file.with_arrays(rest | {name: other})
        bad = [np.nan, np.inf, -np.inf, 1e300, -1e308]
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            bad = {
                -1,
                -2,
                limits.max,
                limits.min,
                limits.max // 2,
                0,
                1,
                int(array.max(initial=0)) + 1,
            }
            bad = [v for v in sorted(bad) if limits.min <= v <= limits.max]
        for value in bad:
            for at in {0, array.size - 1, rng.randrange(max(array.size, 1))}:
                if array.size:
                    changed = array.copy()
                    changed.ravel()[at] = value
                    yield f"{name}[{at}] = {value}", file.with_arrays(rest | {name: changed})
            full = np.full_like(array, value)
            yield f"{name} all {value}", file.with_arrays(rest | {name: full})
    yield "an array more", file.with_arrays(arrays | {"extra": np.ones(3)})
    for part in ("start", "pairs", "end"):
        size = len(file.header["labels"])
        shape = (size, size) if part == "pairs" else size
        new = {f"allowed/{part}": np.ones(shape, np.uint8)}
        yield f"allowed/{part} alone", file.with_arrays(arrays | new)


def truncations(data, rng, n):
    for k in range(n):
        at = rng.randrange(len(data)) if k > 12 else min(k, len(data) - 1)
        yield f"cut at {at}", data[:at]
    yield "one byte more", data + b"\0"
    yield "twice", data + data


def flips(data, rng, n):
    header = 8 + int.from_bytes(data[:8], "little")
    for k in range(n):
        out = bytearray(data)
        end = header if k % 2 else len(data)
        for _ in range(1 + k % 3):
            out[rng.randrange(end)] = rng.randrange(256)
        yield f"flips {k}", signed(bytes(out))
    for at in range(8):
        for value in (0, 1, 0x7F, 0xFF):
            out = bytearray(data)
            out[at] = value
            yield f"size byte {at} = {value}", bytes(out)


def mutations(data, rng, seen):
    """Each kind gets what is random; what is systematic is spread over the kinds' own parts."""
    file = File(data)
    yield "unchanged", "", data
    yield "unchanged", "taken apart and put together", file.with_arrays(file.arrays())
    for group, found in (
        ("truncations", truncations(data, rng, 40)),
        ("flips", flips(data, rng, 120)),
        ("header", header_edits(file, seen)),
        ("outer", outer_edits(file, seen)),
        ("arrays", array_edits(file, rng, seen)),
    ):
        for what, mutated in found:
            yield group, what, mutated


def read(path, x):
    """What becomes of a file: refused, unusable for x by a typed error, or loaded."""
    try:
        model = sf.load(path)
    except ModelFileError:
        return "refused"
    try:
        labels, p = model.predict(x), model.predict_proba(x)
    except SeqfieldError:
        return "unusable"
    n = 4
    if len(labels) != n or [len(row) for row in labels] != [len(part) for part in p]:
        return f"wrong lengths: {labels}"
    known = set(model.labels_.names)
    if not all(label in known for row in labels for label in row):
        return f"wrong labels: {labels}"
    return "loaded"


class Timeout(BaseException):
    """Reading a file took too long."""


def _late(*_):
    raise Timeout


def watched(path, x):
    """`read`, with anything else that happens put in words."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(SECONDS)
    try:
        found = read(path, x)
    except Timeout:
        found = "too slow"
    except MemoryError:
        found = "MemoryError"
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return f"took {grown} MiB" if grown > 300 else found


def read_all(cases, folder, log):
    """Read files one by one; the log names each before it is read, should it end the process."""
    signal.signal(signal.SIGALRM, _late)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")  # damaged weights may overflow; that is not the point here
    path = Path(folder) / "mutated.sf"
    for kind in KINDS:  # warm up: compile before the clock runs
        model = sf.load(Path(folder) / f"{kind}.sf")
        model.predict_proba(KINDS[kind][0])
        model.predict(KINDS[kind][0])
    with open(log, "w") as stream:
        for kind, group, what, data in cases:
            path.write_bytes(data)
            stream.write(json.dumps([kind, group, what]) + "\n")
            stream.flush()
            stream.write(json.dumps(watched(path, KINDS[kind][0])) + "\n")


def damaged_cases(folder):
    seen = set()
    for kind in KINDS:
        data = (Path(folder) / f"{kind}.sf").read_bytes()
        rng = random.Random(kind)
        for group, what, mutated in mutations(data, rng, seen):
            yield kind, group, what, mutated


def huge_cases(folder):
    """Small files that ask for much."""

    def edited(kind, **changes):
        file = File((Path(folder) / f"{kind}.sf").read_bytes())
        header = file.header
        for path, value in changes.items():
            header = replaced(header, tuple(path.split("__")), value)
        return kind, "huge", str(changes), file.bytes(header)

    for n in (10**8, 10**12, 2**62):
        yield edited("dense", features__n_features=n)
        yield edited("dense", features__n_features=n, n_features=n)
        yield edited("dense", features__n_features=n, n_features=n, function__node__n_features=n)
        yield edited("dense", features__n_edge=n)
        yield edited("dense", function__edge__n_features=n)
        yield edited("sparse", function__node__n_features=n)
        yield edited("window", features__size=n + 1)
        yield edited("words", features__window=n + 1)
        yield edited("words", features__n_columns=n)
        yield edited("words", features__column=n)
        yield edited("template", features__text=f"U:%x[-{n},0]\nB0:%x[0,0]")
        yield edited("template", features__text=f"U:%x[0,{n}]\nB0:%x[0,0]")
    yield edited("hashed", features__hash_bits=30)
    yield edited("hashed", features__hash_bits=30, n_features=2**30)
    yield edited("attributes", features__hash_bits=30, n_features=2**30)
    yield edited("words", params__n_jobs=10**9)
    file = File((Path(folder) / "words.sf").read_bytes())
    deep = "[" * 100_000 + "]" * 100_000
    for text in (deep, '{"format": 2, "class": ' + deep + "}", "9" * 10_000, '{"format": 1e400}'):
        outer = file.outer | {"__metadata__": {"seqfield": text}}
        yield "words", "huge", text[:20], file.bytes(outer=outer)
    raw = deep.encode()
    yield "words", "huge", "deep outer", len(raw).to_bytes(8, "little") + raw + file.body
    many = {"class": "CRF", "labels": list(range(200_000))}
    yield "words", "huge", "many labels", file.bytes(file.header | many)


if __name__ == "__main__":
    which, folder, log = sys.argv[1:]
    read_all({"damaged": damaged_cases, "huge": huge_cases}[which](folder), folder, log)
