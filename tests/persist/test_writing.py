"""Writing files: in one step, or not at all."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import seqfield as sf
from seqfield import persist
from seqfield.cli.files import check_output
from seqfield.errors import ModelFileError, OutputError
from seqfield.losses.log import LogLoss
from seqfield.solvers.lbfgs import LBFGS

from ..support.model_files import (
    EDGED,
    KINDS,
    ROWS,
    model_of,
)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.sf"
    model_of("words").save(path)
    return path


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
    with pytest.raises(OutputError, match=rf"m\.sf: cannot write: {os.strerror(code)}"):
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
    with pytest.raises(OutputError, match="read-only"):
        model_of("dense").save(saved)
    saved.chmod(0o644)
    before = saved.read_bytes()
    saved.parent.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="cannot write"):
            model_of("dense").save(saved)
        assert saved.read_bytes() == before
    finally:
        saved.parent.chmod(0o755)


def test_a_file_marked_read_only_is_not_replaced(saved, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    before = saved.read_bytes()
    with pytest.raises(OutputError, match="read-only"):
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        for write in (partial(persist.write_atomically, data=b"new"), check_output):
            with pytest.raises(OutputError, match=f"{name}: cannot write: not a regular file"):
                write(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    old, link = tmp_path / "there" / "old", tmp_path / "link"
    old.write_bytes(b"old")
    link.symlink_to(old)
    persist.write_atomically(link, b"new")
    assert link.is_symlink()
    assert old.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "none/m.sf"])
def test_names_that_cannot_be(tmp_path, name):
    with pytest.raises(OutputError, match=r"cannot write: .*; what was there is unchanged"):
        persist.write_atomically(f"{tmp_path}/{name}", b"new")
    with pytest.raises(ModelFileError, match="cannot read: "):
        persist.read_model(f"{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_model_file(tmp_path):
    with pytest.raises(ModelFileError, match="cannot read: Is a directory"):
        persist.read_model(tmp_path)


def test_arrays_of_every_form_come_back(tmp_path):
    arrays = {
        "plain": np.arange(6.0).reshape(2, 3),
        "empty": np.zeros((0, 3), np.int32),
        "big-endian": np.arange(3, dtype=">i8"),
        "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "strided": np.arange(9, dtype=np.int8)[::3],
        "true": np.array([True, False]),
    }
    persist.write_model(tmp_path / "m.sf", {"a": "\ud800é"}, arrays)
    header, found = persist.read_model(tmp_path / "m.sf")
    assert header == {"a": "\ud800é"}
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype.name == array.dtype.name


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, 1j])
def test_a_header_that_json_cannot_hold(tmp_path, value):
    with pytest.raises(ModelFileError, match=r"m\.sf: not saved: "):
        persist.write_model(tmp_path / "m.sf", {"a": value}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [{"solver": LBFGS()}, {"loss": LogLoss()}], ids=str)
def test_an_object_for_a_parameter_is_named(given, tmp_path):
    [name] = given
    X, y = [["a", "b"], ["b"]], [["x", "y"], ["y"]]
    model = sf.CRF(**given).fit(X, y)
    with pytest.raises(ModelFileError, match=rf"^{name} is .*object.* set_params\({name}='"):
        model.save(tmp_path / "m.sf")
    assert list(tmp_path.iterdir()) == []
    model.set_params(**{name: sf.CRF().get_params()[name]}).save(tmp_path / "m.sf")
    assert sf.load(tmp_path / "m.sf").predict(X) == model.predict(X)
