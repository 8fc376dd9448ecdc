"""Model files: thousands of damaged ones, interrupted writes, and nothing that runs code.

Damaged files are read in a process of its own with bounded memory, so that a crash, an endless
loop or a huge allocation is a failed test and not the end of the test run.
"""

from __future__ import annotations

import builtins
import copy
import errno
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors.numpy import save as make_safetensors

import seqfield as sf
from seqfield import persist
from seqfield.errors import ModelFileError, SeqfieldError
from seqfield.estimators._files import REGISTRY

from .support.files import places, removed, replaced

MEMORY = 4 * 2**30  # address space of the reading process
SECONDS = 3  # for one file

# --- model files of every kind -----------------------------------------------------------------

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


class File:
    """A model file taken apart: outer JSON, our header in it, and the arrays' bytes."""

    def __init__(self, data):
        size = int.from_bytes(data[:8], "little")
        self.outer = json.loads(data[8 : 8 + size])
        self.header = json.loads(self.outer["__metadata__"]["seqfield"])
        self.body = data[8 + size :]

    def bytes(self, header=None, outer=None, body=None):
        """The file with some part replaced; the string 1e309 stands for the number."""
        outer = copy.deepcopy(self.outer if outer is None else outer)
        if header is not None:
            text = json.dumps(header).replace('"1e309"', "1e309")
            outer["__metadata__"] = {"seqfield": text}
        text = json.dumps(outer).replace('"1e309"', "1e309").encode()
        return len(text).to_bytes(8, "little") + text + (self.body if body is None else body)

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
        return make_safetensors(
            {k: np.ascontiguousarray(v) for k, v in arrays.items()},
            metadata={"seqfield": json.dumps(self.header)},
        )


# --- mutations ---------------------------------------------------------------------------------

VALUES = (None, -1, [], {}, "x", "1e309", True, 0, 1.5, 2**70, [None], {"tuple": [1]})


def fresh(file, path, seen):
    """True the first time that a place of this meaning turns up in any kind of file."""
    own = {
        "features": file.header["features"]["class"],
        "model": file.header["model"]["node"]["dense"],
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
        yield f"flips {k}", bytes(out)
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
    known = set(model._labels.names)
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
        yield edited("dense", features__n_features=n, n_features=n, model__node__n_features=n)
        yield edited("dense", features__n_edge=n)
        yield edited("dense", model__edge__n_features=n)
        yield edited("sparse", model__node__n_features=n)
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
    for text in (deep, '{"format": 1, "class": ' + deep + "}", "9" * 10_000, '{"format": 1e400}'):
        outer = file.outer | {"__metadata__": {"seqfield": text}}
        yield "words", "huge", text[:20], file.bytes(outer=outer)
    raw = deep.encode()
    yield "words", "huge", "deep outer", len(raw).to_bytes(8, "little") + raw + file.body
    many = {"format": 1, "class": "CRF", "labels": list(range(200_000))}
    yield "words", "huge", "many labels", file.bytes(file.header | many)


def run_reader(which, folder):
    """Results [(kind, group, what, result)] of a process that reads the files."""
    for kind in KINDS:
        model_of(kind).save(Path(folder) / f"{kind}.sf")
    log = Path(folder) / f"{which}.log"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_persist", which, str(folder), str(log)],
        cwd=Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
    return [(*case, result) for case, result in zip(lines[::2], lines[1::2], strict=True)]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return run_reader("damaged", tmp_path_factory.mktemp("damaged"))


def judge(found, good=("loaded", "unusable", "refused")):
    """Fail with the cases that ended in another way."""
    bad = [(what, result) for _, _, what, result in found if result not in good]
    assert not bad, f"{len(bad)} of {len(found)}: {bad[:8]}"


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_load(damaged, kind):
    found = [case for case in damaged if case[:2] == (kind, "unchanged")]
    assert len(found) == 2
    judge(found, good=("loaded",))


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_files_are_refused(damaged, kind):
    found = [case for case in damaged if case[:2] == (kind, "truncations")]
    assert len(found) > 40
    judge(found, good=("refused",))


@pytest.mark.parametrize("kind", KINDS)
def test_files_with_flipped_bytes(damaged, kind):
    found = [case for case in damaged if case[:2] == (kind, "flips")]
    assert len(found) > 120
    judge(found)


@pytest.mark.parametrize("group", ["header", "outer", "arrays"])
def test_files_with_other_values(damaged, group):
    """Each loads to a model that predicts or gives a typed error, or is a `ModelFileError`."""
    found = [case for case in damaged if case[1] == group]
    assert len(found) > 400
    assert sum(result == "refused" for *_, result in found) > len(found) / 4
    judge(found)


def test_errors_name_the_file(tmp_path):
    """Whatever is wrong: with the safetensors layout, the header, the features or the weights."""
    model_of("words").save(tmp_path / "m.sf")
    file = File((tmp_path / "m.sf").read_bytes())
    arrays = file.arrays()
    theta, pairs = arrays["model/theta"], arrays["model/pairs"]
    path = tmp_path / "bad.sf"
    for data in (
        b"",
        file.bytes(body=file.body[:-1]),
        file.bytes(file.header | {"labels": ["a"]}),
        file.bytes(file.header | {"n_features": 3}),
        file.with_arrays(arrays | {"model/theta": theta[:-1]}),
        file.with_arrays(arrays | {"model/pairs": pairs + 10**6}),
        file.with_arrays(arrays | {"features/node": arrays["features/node"] - 1}),
        file.with_arrays(arrays | {"allowed/start": np.ones(2, np.uint8)}),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelFileError) as caught:
            sf.load(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_there_are_enough_damaged_files(damaged):
    assert len(damaged) > 2000
    refused = [case for case in damaged if case[3] == "refused"]
    assert len(refused) > 1000


def test_small_files_cannot_ask_for_much(tmp_path):
    """Neither time nor memory: what a file claims is checked before it is believed."""
    found = run_reader("huge", tmp_path)
    assert len(found) > 30
    judge(found)


INDEX_ARRAYS = {
    "words": ["model/pairs", "model/node.starts", "model/node.columns", "features/node",
              "features/ends"],
    "template": ["model/edge.starts", "model/edge.columns", "features/edge"],
    "attributes": ["features/ends", "features/edge_ends"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k, names in INDEX_ARRAYS.items() for n in names]
)
def test_every_index_is_range_checked(kind, name, tmp_path):
    model = model_of(kind)
    model.save(tmp_path / "m.sf")
    file = File((tmp_path / "m.sf").read_bytes())
    arrays = file.arrays()
    limits = np.iinfo(arrays[name].dtype)
    for at in range(arrays[name].size):
        for value in (-1, limits.max, limits.min, 10**6):
            changed = arrays[name].copy()
            changed.ravel()[at] = value
            (tmp_path / "bad.sf").write_bytes(file.with_arrays(arrays | {name: changed}))
            with pytest.raises(ModelFileError, match=r"range|order|twice|shape|table|damaged"):
                sf.load(tmp_path / "bad.sf")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_must_be_finite(value, tmp_path):
    model = model_of("words")
    model.theta_[3] = value
    model.save(tmp_path / "m.sf")
    with pytest.raises(ModelFileError, match="theta holds NaN or infinity"):
        sf.load(tmp_path / "m.sf")


# --- the header --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.sf"
    model_of("words").save(path)
    return path


@pytest.mark.parametrize("number", [2, 3, 999, 10**30])
def test_a_newer_format_is_named(saved, number):
    file = File(saved.read_bytes())
    saved.write_bytes(file.bytes(file.header | {"format": number, "class": ["unknown", "shape"]}))
    with pytest.raises(ModelFileError) as caught:
        sf.load(saved)
    message = str(caught.value)
    assert f"written in format {number}" in message
    assert "up to 1" in message
    assert "newer seqfield" in message


@pytest.mark.parametrize("number", [None, "1", 1.0, True, [], -1, 0])
def test_a_format_that_never_was(saved, number):
    file = File(saved.read_bytes())
    saved.write_bytes(file.bytes(file.header | {"format": number}))
    with pytest.raises(ModelFileError, match=r"m\.sf: "):
        sf.load(saved)


def test_unknown_kinds_are_named(saved):
    file = File(saved.read_bytes())
    saved.write_bytes(file.bytes(file.header | {"class": "subprocess.Popen"}))
    with pytest.raises(ModelFileError, match=r"unknown kind of model 'subprocess\.Popen'"):
        sf.load(saved)
    features = file.header["features"] | {"class": "Popen"}
    saved.write_bytes(file.bytes(file.header | {"features": features}))
    with pytest.raises(ModelFileError, match="Popen"):
        sf.load(saved)


def test_foreign_files(tmp_path):
    path = tmp_path / "other"
    for data in (
        b"",
        b"\0" * 8,
        b"\0" * 100,
        b"hello",
        b"\xff" * 64,
        pickle.dumps({"a": 1}),
        make_safetensors({"a": np.ones(3)}),
        make_safetensors({"a": np.ones(3)}, metadata={"seqfield": "{}"}),
        make_safetensors({"a": np.ones(3)}, metadata={"seqfield": "not JSON"}),
        make_safetensors({}, metadata={"seqfield": '{"format": 1}'}),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match="other: "):
            sf.load(path)


def test_unknown_keys_of_a_header_are_ignored(saved):
    """Room for later versions of the same format."""
    file = File(saved.read_bytes())
    saved.write_bytes(file.bytes(file.header | {"note": {"by": "someone"}}))
    assert sf.load(saved).predict(ROWS) == model_of("words").predict(ROWS)


def test_loading_runs_no_code(tmp_path, monkeypatch):
    for kind in KINDS:
        model_of(kind).save(tmp_path / f"{kind}.sf")
        sf.load(tmp_path / f"{kind}.sf")  # whatever is imported late is imported now

    def forbidden(*arguments, **named):
        raise AssertionError("code was run from a file")

    for module, names in ((pickle, ("load", "loads", "Unpickler")), (np, ("load",)),
                          (builtins, ("eval", "exec", "__import__"))):  # fmt: skip
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    found = {kind: sf.load(tmp_path / f"{kind}.sf") for kind in KINDS}
    monkeypatch.undo()
    assert all(isinstance(model, sf.CRF) for model in found.values())


def test_the_header_is_plain_json(saved):
    file = File(saved.read_bytes())
    assert file.header["format"] == 1
    assert file.header["class"] == "CRF"
    assert file.header["labels"] == ["B-x", "B-y", "I-x", "I-y", "O"]
    assert all(spec["dtype"] in ("F64", "I64", "I32", "U8")
               for name, spec in file.outer.items() if name != "__metadata__")  # fmt: skip


@pytest.mark.parametrize(
    "label", ["a", "é\n", "", 0, -1, 2**80, True, 0.5, -0.0, (), ("a", (1, None)), None]
)
def test_labels_go_there_and_back(label):
    text = json.dumps(persist.label_to_json(label))
    again = persist.label_from_json(json.loads(text))
    assert again == label
    assert type(again) is type(label)


@pytest.mark.parametrize("label", [b"a", float("nan"), float("inf"), frozenset("a"), 1j, object()])
def test_labels_that_cannot_be_saved(label):
    with pytest.raises(ModelFileError, match="cannot be saved"):
        persist.label_to_json(label)


# --- writing -----------------------------------------------------------------------------------

WRITER = """
import sys
from seqfield.persist import read_model, write_model
a, b = read_model(sys.argv[1]), read_model(sys.argv[2])
write_model(sys.argv[3], *a)
print("ready", flush=True)
while True:
    write_model(sys.argv[3], *b)
    write_model(sys.argv[3], *a)
"""


@pytest.mark.filterwarnings("ignore:no convergence:sklearn.exceptions.ConvergenceWarning")
def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    """kill -9 while a process saves two models in turn: the path holds one of them, whole."""
    x = [np.random.default_rng(0).normal(size=(2, 20000))]
    for name, label in (("a", "p"), ("b", "q")):
        sf.CRF(max_iter=1, n_jobs=1).fit(x, [[label, "r"]]).save(tmp_path / f"{name}.sf")
    whole = {name: (tmp_path / f"{name}.sf").read_bytes() for name in "ab"}
    folder = tmp_path / "target"
    folder.mkdir()
    target = folder / "m.sf"
    rng, seen, torn = random.Random(0), set(), 0
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for _ in range(15):
        command = [sys.executable, "-c", WRITER, *map(str, (tmp_path / "a.sf", tmp_path / "b.sf"))]
        with subprocess.Popen(
            [*command, str(target)], stdout=subprocess.PIPE, env=environment
        ) as child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.05))
            child.kill()
            child.wait()
        assert child.returncode == -signal.SIGKILL
        data = target.read_bytes()
        assert data in whole.values()
        seen.add(data)
        assert sf.load(target).classes_[1] == "r"
        others = [path for path in folder.iterdir() if path != target]
        torn += len(others)
        for path in others:  # what a killed process could not clean up is named after its target
            assert path.name.startswith(".m.sf.")
            path.unlink()
    assert torn, "no kill hit a write: the test shows nothing"


def failing(code):
    def fail(*arguments, **named):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("step", ["fsync", "replace", "chmod", "fdopen"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_failed_write_changes_nothing(tmp_path, monkeypatch, old, step, code):
    target = tmp_path / "m.sf"
    model, other = model_of("words"), model_of("dense")
    if old:
        other.save(target)
    before = target.read_bytes() if old else None
    monkeypatch.setattr(os, step, failing(code))
    with pytest.raises(ModelFileError, match=rf"m\.sf: cannot write: {os.strerror(code)}"):
        model.save(target)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == (["m.sf"] if old else [])
    if old:
        assert target.read_bytes() == before
    model.save(target)
    assert sf.load(target).predict(ROWS) == model.predict(ROWS)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_write_changes_nothing(saved, monkeypatch, error):
    def interrupt(*arguments):
        raise error

    before = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(error):
        model_of("dense").save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_the_folder_is_optional_to_sync(saved, monkeypatch):
    """Some systems cannot open folders: the file is there all the same."""
    real = os.open

    def no_folders(path, *arguments, **named):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "folders cannot be opened")
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", no_folders)
    model_of("dense").save(saved)
    assert sf.load(saved).predict(EDGED) == model_of("dense").predict(EDGED)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_read_only_places(saved):
    saved.chmod(0o444)
    with pytest.raises(ModelFileError, match="read-only"):
        model_of("dense").save(saved)
    saved.chmod(0o644)
    before = saved.read_bytes()
    saved.parent.chmod(0o555)
    try:
        with pytest.raises(ModelFileError, match="cannot write"):
            model_of("dense").save(saved)
        assert saved.read_bytes() == before
    finally:
        saved.parent.chmod(0o755)


def test_a_file_marked_read_only_is_not_replaced(saved, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    before = saved.read_bytes()
    with pytest.raises(ModelFileError, match="read-only"):
        model_of("dense").save(saved)
    assert saved.read_bytes() == before


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_are_kept(saved, mode):
    saved.chmod(mode)
    model_of("dense").save(saved)
    assert saved.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_of_a_new_file_follow_the_mask(tmp_path, mask):
    old = os.umask(mask)
    try:
        model_of("dense").save(tmp_path / "m.sf")
    finally:
        os.umask(old)
    assert (tmp_path / "m.sf").stat().st_mode & 0o777 == 0o666 & ~mask


def test_saving_twice_gives_the_same_bytes(tmp_path):
    for kind in KINDS:
        model = model_of(kind)
        model.save(tmp_path / "a.sf")
        model.save(tmp_path / "b.sf")
        assert (tmp_path / "a.sf").read_bytes() == (tmp_path / "b.sf").read_bytes()


@pytest.mark.parametrize("name", ["plain.sf", "with space", "é日本.sf", "no-suffix", "x" * 200])
def test_names_of_files(tmp_path, name):
    model = model_of("dense")
    model.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert sf.load(str(tmp_path / name)).predict(EDGED) == model.predict(EDGED)


if __name__ == "__main__":
    which, folder, log = sys.argv[1:]
    read_all({"damaged": damaged_cases, "huge": huge_cases}[which](folder), folder, log)
