"""Damaged model files are refused, or give a model whose answers are of the right form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import seqfield as sf
from seqfield.errors import ModelFileError

from ..support.model_files import (
    KINDS,
    File,
    model_of,
)


def run_reader(which, folder):
    """Results [(kind, group, what, result)] of a process that reads the files."""
    for kind in KINDS:
        model_of(kind).save(Path(folder) / f"{kind}.sf")
    log = Path(folder) / f"{which}.log"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.damaged_files", which, str(folder), str(log)],
        cwd=Path(__file__).parents[2],
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
    theta, pairs = arrays["function/theta"], arrays["function/pairs"]
    path = tmp_path / "bad.sf"
    for data in (
        b"",
        file.bytes(body=file.body[:-1]),
        file.bytes(file.header | {"labels": ["a"]}),
        file.bytes(file.header | {"n_features": 3}),
        file.with_arrays(arrays | {"function/theta": theta[:-1]}),
        file.with_arrays(arrays | {"function/pairs": pairs + 10**6}),
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
    "words": ["function/pairs", "function/node.starts", "function/node.columns", "features/node",
              "features/ends"],
    "template": ["function/edge.starts", "function/edge.columns", "features/edge"],
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
    """They are not saved, and not loaded either."""
    model = model_of("words")
    path = tmp_path / "m.sf"
    model.save(path)
    before = path.read_bytes()
    model.theta_[3] = value
    with pytest.raises(ModelFileError, match=r"m\.sf: not saved: function/theta holds NaN"):
        model.save(path)
    assert path.read_bytes() == before
    file = File(before)
    path.write_bytes(file.with_arrays(file.arrays() | {"function/theta": model.theta_}))
    with pytest.raises(ModelFileError, match=r"m\.sf: damaged: function/theta holds NaN"):
        sf.load(path)


def smallest(path):
    """A small model of most kinds of things that a file can hold, saved."""
    x = sp.csr_array(np.eye(3, dtype=np.int8))
    kernel = sf.kernels.Scaled(sf.kernels.Columns(sf.kernels.Linear(), [0, 2]), 2.0)
    model = sf.GPSC(kernel, n_jobs=1, max_iter=2).fit([x], [["a", "b", "a"]])
    model.save(path)
    return model


@pytest.mark.filterwarnings("ignore:no convergence:sklearn.exceptions.ConvergenceWarning")
def test_every_single_bit_counts(tmp_path):
    """Whichever bit of a file is flipped, the file is refused."""
    path = tmp_path / "m.sf"
    smallest(path)
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    assert data[size - 1 : size] == b" ", "no padding: the test shows less than it should"
    survivors = []
    for at in range(8 * len(data)):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            sf.load(path)
        except ModelFileError:
            continue
        survivors.append((at // 8, at % 8))
    assert not survivors, survivors
