"""Every estimator has a table of its parameters: checked before any work, and told in full."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.errors import BudgetError, InputError
from seqfield.estimators._device import GPSC_ON_DEVICE, GPSTRUCT_ON_DEVICE
from seqfield.estimators._files import REGISTRY
from seqfield.estimators._params import check
from seqfield.solvers.greedy import Greedy

from ..support.estimators import (
    NAMES,
    TABLES,
    TIGHT,
    X,
    Y,
    every,
    has,
    having,
    make,
    numeric,
    own,
    where,
)

#: parameters of which the estimator itself looks at the values, and some that cannot be
LOOKED_AT = {
    "features": [5, "no/such/file", sf.Words],
    "scheme": [5, "BIX"],
    "classes": [3, ["L0", "L0", "L1", "L2"]],
    "random_state": ["x", -1],
    "kernel": [5, "no_such", [], sf.kernels.RBF],
    "offsets": ["x", 5, (0,), (1, 1), (0.5,)],
    "candidates": [3, [], [(True,)], [(True, -1.0, 1.0)], [(True, 1.0, "x")]],
}
#: parameters that may be anything
FREE = {"missing_label", "verbose"}


def wrong(param):
    """Values that a parameter cannot have."""
    if param.kind in ("number", "whole"):
        found = ["no such word", "", [1.0], math.nan, math.inf, True, 1j, object()]
        found += [2.5] if param.kind == "whole" else []
        found += [param.low - 1] if param.low > -math.inf else []
        found += [param.high + 1] if param.high < math.inf else []
        found += [param.above] if param.above > -math.inf else []
        found += [] if None in param.words else [None]
        return [value for value in found if not any(value is word for word in param.words)]
    if param.kind == "flag":
        return ["yes", 1, 0.0, None, np.array([True])]
    found = ["no such word", 3, [], object(), int]
    return found if None in param.words else [*found, None]


CASES = [
    pytest.param(name, key, id=f"{name}-{key}")
    for name in NAMES
    for key, param in TABLES[name].items()
    if param.kind != "any"
]
OWN_CASES = [
    pytest.param(name, key, id=f"{name}-{key}")
    for name in NAMES
    for key, param in TABLES[name].items()
    if param.kind == "any" and key not in FREE
]


@every
def test_every_parameter_is_in_the_table_and_explained(name):
    cls = REGISTRY[name]
    assert cls().get_params(deep=False).keys() == TABLES[name].keys()
    for key, param in TABLES[name].items():
        assert len(param.help) > 10, key
        assert cls().get_params(deep=False)[key] == param.default or param.default is None
        assert param.kind in ("number", "whole", "flag", "word", "any")
        assert param.kind == "any" or param.form


@every
def test_the_docstring_names_every_parameter_with_its_help(name):
    text = inspect.getdoc(REGISTRY[name])
    section = re.search(r"^Parameters\n-+\n(.*?)\n\nAttributes\n-+\n", text, re.M | re.S)
    assert section, text
    found = re.findall(r"^(\w+) : ", section[1], re.M)
    assert found == list(TABLES[name])
    flat = " ".join(section[1].split())
    for key, param in TABLES[name].items():
        assert " ".join(param.help.split()) in flat, key
        assert f"default {param.default!r}" in section[1]


@every
def test_the_defaults_pass(name):
    check(REGISTRY[name]())


@pytest.mark.parametrize(("name", "key"), CASES)
def test_a_value_that_cannot_be_is_named_before_any_work(name, key, monkeypatch):
    def work(*_, **__):
        raise AssertionError("work before the check")

    monkeypatch.setattr(REGISTRY[name], "_learn", work)
    monkeypatch.setattr("seqfield.estimators._base.resolve", work)
    for value in wrong(TABLES[name][key]):
        model = REGISTRY[name](**{key: value})
        with pytest.raises(InputError, match=rf"^{key} must be .*(got|;)") as caught:
            model.fit(X, Y)
        assert len(str(caught.value)) < 500
        assert not any(attribute.endswith("_") for attribute in vars(model))


@pytest.mark.parametrize(("name", "key"), OWN_CASES)
def test_what_the_estimator_looks_at_itself_is_named(name, key):
    for value in LOOKED_AT[key]:
        model = make(name, **{key: value})
        with pytest.raises(InputError, match=rf"{key}|{re.escape(str(value))}") as caught:
            model.fit(X, Y)
        assert len(str(caught.value)) < 500
        assert not any(attribute.endswith("_") for attribute in vars(model))


@every
@pytest.mark.parametrize("value", [0, "all", 1.5])
def test_threads(name, value):
    with pytest.raises(InputError, match="n_jobs must be"):
        make(name, n_jobs=value).fit(X, Y)


def words_of(param):
    return [word for word in param.words if isinstance(word, str)]


@every
def test_help_and_words_agree(name):
    """What the help puts in quotes is a word that the parameter takes, or one that another does."""
    every_word = {w for param in TABLES[name].values() for w in words_of(param)}
    others = {w for table in TABLES.values() for param in table.values() for w in words_of(param)}
    for key, param in TABLES[name].items():
        for word in re.findall(r'"(\w+)"', param.help):
            assert word in every_word or word not in others, (key, word)


@pytest.mark.parametrize(
    ("name", "on_device"), [("GPSC", GPSC_ON_DEVICE), ("GPStruct", GPSTRUCT_ON_DEVICE)]
)
def test_what_runs_on_a_device_is_said_by_parameters(name, on_device):
    for key, values in on_device.allowed.items():
        for value in values:
            TABLES[name][key].check(key, value)


# --- advice ---------------------------------------------------------------------------------------

PARAMETERS = {key for table in TABLES.values() for key in table}
#: features that no descent gets anywhere with, and too few steps
HARD = [1e9 * x for x in X]
LARGE = numeric(40, seed=3)


def advice(name, data, **settings):
    """The warnings of a fit that does not come to its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(name, **settings).fit(*data)
    return [str(one.message) for one in caught if one.category is ConvergenceWarning]


def check_advice(name, text):
    """Every parameter that a warning names is one of the estimator's, with a value it takes."""
    # other words are plain English as well
    named = {
        key
        for key in PARAMETERS
        if re.search(rf"\b{key}(=|\b)" if "_" in key else rf"\b{key}=", text)
    }
    named |= {"tol", "eta", "c2"} & {*re.findall(r"\w+", text)}
    assert named <= TABLES[name].keys(), text
    for key, value in re.findall(r"(\w+)=('\w+'|\w+)", text):
        TABLES[name][key].check(key, eval(value, {"__builtins__": {}}))


FEW = {"max_iter": 1, "n_steps": 4, "refit": "log"}
#: counts and choices end where they are told to; other ways come to an end of their own
DESCENDS = [
    name
    for name in NAMES
    if has(name, "n_steps")
    or (has(name, "max_iter", "tol") and not {"bound", "alpha"} & {*TABLES[name]})
]


@where(DESCENDS.__contains__)
def test_advice_after_too_few_iterations(name):
    found = advice(name, LARGE, **own(name, TIGHT | FEW))
    assert found
    for text in found:
        check_advice(name, text)


@having("n_cliques")
def test_advice_after_refits_that_do_not_converge(name, monkeypatch):
    monkeypatch.setattr("seqfield.estimators.kernel_crf.Greedy", partial(Greedy, refit_iter=1))
    [text] = advice(name, LARGE, n_cliques=5, tol=1e-13)
    check_advice(name, text)


@every
def test_advice_where_features_are_far_too_large(name):
    try:
        found = advice(name, (HARD, Y), **own(name, TIGHT))
    except InputError as error:  # scores that are too large
        found = [str(error)]
    for text in found:
        check_advice(name, text)


@having("gram_budget")
@pytest.mark.filterwarnings("ignore:no convergence:sklearn.exceptions.ConvergenceWarning")
def test_advice_where_memory_is_short(name):
    model = make(name, gram_budget=1e-9)
    try:
        model.fit(X, Y)
    except BudgetError as error:
        found = str(error)
    else:  # who needs no gram matrix, or keeps as much of it as there is room for
        assert model.score(X, Y) > 0.5
        return
    assert "gram_budget=" in found
    check_advice(name, found)
