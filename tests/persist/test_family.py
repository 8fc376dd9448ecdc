"""Families: the classes that model files may name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import seqfield as sf
from seqfield import persist
from seqfield.errors import CapabilityError, InputError

from ..support.model_files import (
    BIO,
    ROWS,
    X,
    Y,
)


class Point(NamedTuple):
    x: int
    y: int = 0

    def state(self):
        return persist.State({"x": self.x}, {"y": np.array([self.y])})

    @classmethod
    def restore(cls, header, arrays, high=10):
        if header["x"] > high:
            raise InputError("too high")
        return cls(header["x"], int(arrays["y"][0]))


def family():
    out = persist.Family("shape")
    assert out.register(Point) is Point
    return out


def test_a_family_goes_there_and_back():
    shapes = family()
    header, arrays = shapes.state(Point(3, 4))
    assert header == {"class": "Point", "x": 3}
    assert shapes.restore(header, arrays) == Point(3, 4)
    with pytest.raises(InputError, match="too high"):
        shapes.restore(header, arrays, 2)
    assert list(shapes) == ["Point"]


@pytest.mark.parametrize("name", [None, "Popen", "", ["Point"], 3])
def test_a_family_refuses_other_names(name):
    with pytest.raises(InputError, match=r"unknown shape .*; known are Point"):
        family().restore({"class": name, "x": 3}, {})


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        (None, {}),
        ([], {}),
        ({"class": "Point"}, {}),
        ({"class": "Point", "x": "3"}, {}),
        ({"class": "Point", "x": 3}, {}),
        ({"class": "Point", "x": 3}, {"y": np.zeros(0)}),
        ({"class": "Point", "x": 3}, {"y": np.array([np.inf])}),
        ({"class": "Point", "x": 3}, {"y": np.array([np.nan])}),
    ],
    ids=str,
)
def test_a_family_names_what_is_damaged(header, arrays):
    with pytest.raises(InputError, match="damaged shape"):
        family().restore(header, arrays)


def test_a_family_has_one_class_of_a_name():
    shapes = family()
    shapes.register(Point)
    other = type("Point", (), {"__module__": "elsewhere"})
    with pytest.raises(InputError, match="there is a shape Point already"):
        shapes.register(other)
    assert shapes.named("Point") is Point


def test_what_is_not_registered_is_not_saved(tmp_path):
    """It could not be loaded, or another class of the same name would be."""

    class Words(sf.Words):
        pass

    class Polynomial(sf.kernels.Polynomial):
        pass

    for model, name, family in (
        (sf.CRF(features=Words(), n_jobs=1).fit(ROWS, BIO), "encoder Words", "ENCODERS"),
        (sf.GPSC(Polynomial(), n_jobs=1).fit(X, Y), "kernel Polynomial", "KERNELS"),
    ):
        message = rf"the {name} cannot be saved: .* Put @{family}\.register above the class"
        with pytest.raises(CapabilityError, match=message):
            model.save(tmp_path / "m.sf")
    assert not list(tmp_path.iterdir())
