from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from seqfield.errors import InputError
from seqfield.features import (
    ENCODERS,
    Attributes,
    Encoder,
    Numeric,
    Template,
    Window,
    Words,
    resolve,
)
from seqfield.sequences import Sequences


@pytest.mark.parametrize(
    ("X", "kind"),
    [
        (Sequences(np.eye(2)), Numeric),
        (np.eye(2), Numeric),
        (np.zeros((2, 3, 4)), Numeric),
        (sp.csr_array(np.eye(2)), Numeric),
        ([np.eye(2)], Numeric),
        ([np.eye(2, dtype=bool)], Numeric),
        ([sp.csr_array(np.eye(2))], Numeric),
        ([Sequences(np.eye(2))], Numeric),
        ([[[0.5, 1], [2, 3]]], Numeric),
        ([[(0.5, 1)]], Numeric),
        ([[{"w": "a"}]], Attributes),
        ([[{}]], Attributes),
        ([[["w=a"]]], Attributes),
        ([[[]]], Attributes),
        ([[{"w=a"}]], Attributes),
        ([["a", "b"]], Words),
        ([("a", "b")], Words),
        ([np.array(["a", "b"])], Words),
        ([[("a", "NN")]], Words),
    ],
)
def test_by_the_kind_of_tokens(X, kind):
    assert type(resolve(None, X)) is kind


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "no sequences: X is empty"),
        ([[]], "sequence 0 is empty"),
        (3, "list of sequences, got int"),
        ([3], "list of tokens, got int"),
        (["text"], "is the string 'text'"),
        ([[3]], "the token 3"),
        ([[None]], "the token None"),
        ([[("a", 3)]], "the token"),
    ],
)
def test_anything_else(X, message):
    with pytest.raises(InputError, match=message):
        resolve(None, X)


def test_given_features_are_cloned():
    encoder = Words(window=5).fit([["a"]])
    clone = resolve(encoder, [])
    assert clone is not encoder
    assert clone.get_params() == encoder.get_params()
    with pytest.raises(AttributeError):
        clone.names()


def test_template_sources(tmp_path):
    assert resolve("U:%x[0,0]", []).source == "U:%x[0,0]"
    encoder = resolve(tmp_path / "template", [])
    assert isinstance(encoder, Template)
    assert encoder.source == tmp_path / "template"


@pytest.mark.parametrize("features", [3, Words, ["U"], {}])
def test_what_is_not_an_encoder(features):
    with pytest.raises(InputError, match="features must be an encoder"):
        resolve(features, [["a"]])


def test_table_of_encoders():
    found = {name: ENCODERS.named(name) for name in ENCODERS}
    assert found == {cls.__name__: cls for cls in (Attributes, Numeric, Template, Window, Words)}
    assert all(issubclass(cls, Encoder) for cls in found.values())
