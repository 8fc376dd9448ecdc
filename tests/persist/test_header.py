"""The header of a model file: plain JSON, formats, labels, and nothing that runs code."""

from __future__ import annotations

import builtins
import json
import pickle
import sys

import numpy as np
import pytest
from safetensors.numpy import save as make_safetensors

import seqfield as sf
from seqfield import persist
from seqfield.errors import ModelFileError

from ..support.model_files import (
    KINDS,
    ROWS,
    File,
    model_of,
    signed,
)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.sf"
    model_of("words").save(path)
    return path


@pytest.mark.parametrize("number", [3, 4, 999, 10**30])
def test_a_newer_format_is_named(saved, number):
    file = File(saved.read_bytes())
    saved.write_bytes(file.bytes(file.header | {"format": number, "class": ["unknown", "shape"]}))
    with pytest.raises(ModelFileError) as caught:
        sf.load(saved)
    message = str(caught.value)
    assert f"written in format {number}" in message
    assert "reads format 2" in message
    assert "newer seqfield" in message


def test_a_format_before_the_first_release(saved):
    file = File(saved.read_bytes())
    saved.write_bytes(file.bytes(file.header | {"format": 1}))
    with pytest.raises(ModelFileError, match="format 1 by an unreleased version"):
        sf.load(saved)


@pytest.mark.parametrize("number", [None, "2", 2.0, True, [], -1, 0])
def test_a_format_that_never_was(saved, number):
    file = File(saved.read_bytes())
    saved.write_bytes(file.bytes(file.header | {"format": number}))
    with pytest.raises(ModelFileError, match=r"m\.sf: not a seqfield model file"):
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
    good = json.dumps({"checksum": "0" * 64, "format": 2})
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
        make_safetensors({"a": np.ones(3)}, metadata={"seqfield": "null"}),
        make_safetensors({}, metadata={"other": good}),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match="other: not a seqfield model file"):
            sf.load(path)
    for text in ('{"format": 2}', '{"format": 2, "checksum": 3}', '{"format": 2, "checksum": ""}'):
        path.write_bytes(make_safetensors({}, metadata={"seqfield": text}))
        with pytest.raises(ModelFileError, match="other: damaged: the checksum does not fit"):
            sf.load(path)
    path.write_bytes(signed(make_safetensors({}, metadata={"seqfield": good})))
    with pytest.raises(ModelFileError, match="other: damaged: 'class'"):
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

    def only_known(name, *arguments, **named):
        assert name in sys.modules, f"{name} was imported for a file"
        return real(name, *arguments, **named)

    real = builtins.__import__
    for module, names in ((pickle, ("load", "loads", "Unpickler")), (np, ("load",)),
                          (builtins, ("eval", "exec"))):  # fmt: skip
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    monkeypatch.setattr(builtins, "__import__", only_known)
    found = {kind: sf.load(tmp_path / f"{kind}.sf") for kind in KINDS}
    monkeypatch.undo()
    assert all(isinstance(model, sf.CRF) for model in found.values())


def test_the_header_is_plain_json(saved):
    file = File(saved.read_bytes())
    assert file.header["format"] == 2
    assert len(file.header["checksum"]) == 64
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
