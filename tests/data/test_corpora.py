"""Places in public corpora where things are known to go wrong."""

import os
from pathlib import Path

import pytest

import seqfield as sf
from seqfield.data.conll import read_document
from seqfield.errors import SchemeError

pytestmark = pytest.mark.skipif(not os.environ.get("SEQFIELD_DATA"), reason="needs SEQFIELD_DATA")


def test_the_label_that_breaks_the_scheme_in_spanish_is_named():
    path = Path(os.environ["SEQFIELD_DATA"]) / "conll2002" / "esp.train.gz"
    X, y = sf.read_conll(path)
    words = sf.Words(window=1, spelling=None, columns=False)
    with pytest.raises(SchemeError, match="'I-LOC' after the start") as caught:
        sf.CRF(words, scheme="BIO").fit(X, y)
    assert read_document(path).line(*caught.value.place) == 221619
    i, _ = caught.value.place
    near = slice(i - 50, i + 50)
    model = sf.CRF(words, scheme="BIO", on_violation="repair", c2=10.0, tol=0.1)
    model.fit(X[near], y[near])
    assert model.score(X[i : i + 1], [["B-LOC", *y[i][1:]]]) > 0.5
