"""Model files of every estimator, written once, load for ever and predict what they did then.

The files lie in ``golden``, each with a JSON of new sequences and what the model said of them.
``tests/support/golden.py`` has the cases. A new estimator gets a case there; then

    python -m tests.support.golden

writes the files of cases that have none. Files that are there stay as they are: a change of the
library that cannot read them is wrong.
"""

from __future__ import annotations

import numpy as np
import pytest

import seqfield as sf
from seqfield.estimators._files import REGISTRY

from ..support import golden

FILES = sorted(path.stem for path in golden.FOLDER.glob("*.sf"))


def compare(model, X, expected):
    found = golden.told(model, X)
    for name in ("class", "function", "classes", "predict"):
        assert found[name] == expected[name]
    for p, wanted in zip(found["predict_proba"], expected["predict_proba"], strict=True):
        np.testing.assert_allclose(p, wanted, rtol=1e-9)


@pytest.mark.parametrize("case", FILES)
def test_golden_files_predict_what_they_did(case, tmp_path):
    X, expected = golden.read(case)
    model = sf.load(golden.FOLDER / f"{case}.sf")
    compare(model, X, expected)
    model.save(tmp_path / "again.sf")
    compare(sf.load(tmp_path / "again.sf"), X, expected)


def test_each_estimator_and_what_it_learns_has_a_file():
    assert set(FILES) == set(golden.CASES), "python -m tests.support.golden writes new ones"
    covered = {(one["class"], one["function"]) for one in (golden.read(case)[1] for case in FILES)}
    learned = {(name, f.__name__) for name, cls in REGISTRY.items() for f in cls.learns}
    assert covered == learned


def test_golden_files_are_small():
    assert max(path.stat().st_size for path in golden.FOLDER.iterdir()) < 16_000
