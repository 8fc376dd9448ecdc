"""Bad input is an error that says what and where, for every estimator."""

from __future__ import annotations

import re
from itertools import chain

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import seqfield as sf
from seqfield.errors import LabelError, SeqfieldError

from ..support.estimators import (
    BIO,
    EDGED,
    EDGES,
    LENGTHS,
    NAMES,
    WORDS,
    X,
    Y,
    changed,
    every,
    fitted,
    has,
    make,
    quiet,
    speaking,
)

pytestmark = quiet


def with_value(value):
    rows = [x.copy() for x in X]
    rows[2][0, 3] = value
    return rows


class Fit:
    """A fit with parameters that not every estimator may have."""

    def __init__(self, X=X, y=Y, sample_weight=None, lengths=None, **wanted):
        self.data, self.wanted = (X, y), wanted
        self.rest = {"sample_weight": sample_weight, "lengths": lengths}

    def applies(self, name):
        return has(name, *self.wanted)

    def __call__(self, name):
        return make(name, **self.wanted).fit(*self.data, **self.rest)


class Use:
    """The use of a fitted model that speaks."""

    def __init__(self, method, *positional, data="numbers", wanted=None, **named):
        self.method, self.data, self.wanted = method, data, wanted or {}
        self.positional, self.named = positional, named

    def applies(self, name):
        return has(name, *self.wanted)

    def __call__(self, name):
        if self.wanted:
            model = make(name, **self.wanted).fit(X, Y)
        else:
            model = fitted(name, self.data, **speaking(name))
        return getattr(model, self.method)(*self.positional, **self.named)


class Say(Use):
    """A question to what a model says."""

    def __call__(self, name):
        said = fitted(name, self.data, **speaking(name)).distribution(X)
        return getattr(said, self.method)(*self.positional, **self.named)


class OfEdges(Use):
    """The use of a model of edge features."""

    def applies(self, name):
        return name in EDGES

    def __call__(self, name):
        return make(name).fit(EDGED, Y).predict(X)


class Anyone:
    """What needs no parameter."""

    def __init__(self, call):
        self.call = call

    def applies(self, name):
        return True

    def __call__(self, name):
        return self.call(name)


NAN, INF = float("nan"), float("inf")
WARM = {"warm_start": True}
BAD = [
    # X
    ("X empty", Fit(X=[], y=[]), "no sequences"),
    ("X None", Fit(X=None), "X must be a list"),
    ("X a number", Fit(X=3), "X must be a list"),
    ("X a string", Fit(X="abc"), "list of tokens"),
    ("X of strings", Fit(X=["abc"] * 12), "sequence 0 .* list of tokens"),
    ("X of numbers", Fit(X=[1, 2, 3]), "sequence 0 .* list of tokens"),
    ("X of numbers as tokens", Fit(X=[[1, 2], [3]]), "token 1"),
    ("X a vector", Fit(X=np.arange(12.0)), "sequence 0"),
    ("X of complex numbers", Fit(X=[x * 1j for x in X]), "complex|token"),
    ("X of objects", Fit(X=[[object()]]), "cannot tell .*object"),
    ("first sequence empty", Fit(X=[[], *X[1:]]), "sequence 0 is empty"),
    ("later sequence empty", Fit(X=[*X[:4], X[4][:0], *X[5:]]), "sequence 4 is empty"),
    ("later words empty", Fit(X=[*WORDS[:4], [], *WORDS[5:]], y=BIO), "sequence 4 is empty"),
    ("NaN", Fit(X=with_value(NAN)), "nan at sequence 2, position 0, column 3"),
    ("infinity", Fit(X=with_value(-INF)), "-inf at sequence 2, position 0, column 3"),
    ("another width", Fit(X=[*X[:3], X[3][:, :2], *X[4:]]), "sequence 3 has 2 features"),
    ("matrix alone", Fit(X=np.vstack(X)), "lengths="),
    ("wrong lengths", Fit(X=np.vstack(X), lengths=[1, 2]), "lengths add up to 3"),
    ("words with lengths", Fit(X=[["a"], ["b"]], lengths=[1, 1]), "features="),
    ("strings among rows", Fit(X=[[("a", "b"), "c"]], y=[["p", "q"]]), "sequence 0, position 1"),
    ("short row", Fit(X=[[("a", "b"), ("c",)]], y=[["p", "q"]]), "sequence 0, position 1"),
    ("numbers in rows", Fit(X=[[("a", "b"), ("c", 1)]], y=[["p", "q"]]), "sequence 0, position 1"),
    ("bad value in a dict", Fit(X=[[{"w": "a"}, {"w": {}}]], y=[["p", "q"]]), "position 1: .*'w'"),
    ("NaN in a dict", Fit(X=[[{"w": 1.0}, {"w": NAN}]], y=[["p", "q"]]), "position 1: .*finite"),
    ("key not a string", Fit(X=[[{"w": 1.0}, {3: "a"}]], y=[["p", "q"]]), "position 1: 3 is not"),
    ("number among strings", Fit(X=[[["a"], ["b", 3]]], y=[["p", "q"]]), "position 1: 3 is not"),
    # y
    ("y None", Fit(y=None), "y is None"),
    ("y a number", Fit(y=3), "y must be a list"),
    ("y short", Fit(y=Y[:-1]), "X has 12 sequences but y has 11"),
    ("y flat", Fit(y=list(chain.from_iterable(Y))), "X has 12 sequences but y has"),
    ("row short", Fit(y=[*Y[:4], Y[4][:-1], *Y[5:]]), "sequence 4: X has . tokens but y has"),
    ("row a string", Fit(y=["L0", *Y[1:]]), r"y\[0\] must be a list"),
    ("one label", Fit(y=[["a"] * length for length in LENGTHS]), "only the label 'a'"),
    ("no labels", Fit(y=[None] * 12), "no labels"),
    ("NaN label", Fit(y=changed(Y, 5, 0, NAN)), "NaN at sequence 5, position 0"),
    ("list as label", Fit(y=changed(Y, 5, 0, ["L0"])), "sequence 5, position 0 is not hashable"),
    ("empty candidates", Fit(y=changed(Y, 5, 0, set())), "empty .* sequence 5, position 0"),
    # weights
    ("weights short", Fit(sample_weight=[1, 2]), "sample_weight .* 12 sequences"),
    ("weights of two dimensions", Fit(sample_weight=np.ones((12, 1))), "sample_weight"),
    ("negative weight", Fit(sample_weight=[-1] + [1] * 11), "sample_weight .*not negative"),
    ("NaN weight", Fit(sample_weight=[NAN] + [1] * 11), "sample_weight .*finite"),
    ("zero weights", Fit(sample_weight=[0] * 12), "sample_weight .*not all zero"),
    ("text weights", Fit(sample_weight=["a"] * 12), "sample_weight"),
    # arguments
    ("c2 negative", Fit(c2=-0.1), "c2 must be a number of at least 0(, or .auto.)?, got -0.1"),
    ("c2 NaN", Fit(c2=NAN), "c2 must be"),
    ("c2 text", Fit(c2="strong"), "c2 must be .*'strong'"),
    ("c2 None", Fit(c2=None), "c2 must be .*None"),
    ("c1 infinite", Fit(c1=INF), "c1 must be"),
    ("c1 text", Fit(c1="1"), "c1 must be"),
    ("no cliques", Fit(n_cliques=0), "n_cliques must be a whole number of at least 1, got 0"),
    ("L1 with L-BFGS", Fit(c1=1.0, solver="lbfgs"), "'lbfgs' cannot handle .*c1=1.0: use 'owlqn'"),
    ("L1 with SGD", Fit(c1=1.0, solver="sgd"), "'sgd' cannot handle"),
    ("unknown solver", Fit(solver="magic"), "solver must be .*'magic'"),
    ("unknown loss", Fit(loss="hinge"), "loss must be .*'hinge'"),
    ("negative cost", Fit(loss="softmax_margin", cost=-1), "cost must be"),
    ("text cost", Fit(loss="softmax_margin", cost="1"), "cost must be"),
    (
        "no iterations",
        Fit(max_iter=0),
        "max_iter must be a whole number of at least 1(, or None)?, got 0",
    ),
    ("half an iteration", Fit(max_iter=2.5), "max_iter must be"),
    ("negative tolerance", Fit(tol=-1e-3), "tol must"),
    ("NaN tolerance", Fit(tol=NAN), "tol must"),
    ("text tolerance", Fit(tol="small"), "tol must"),
    ("no threads", Fit(n_jobs=0), "n_jobs"),
    ("text threads", Fit(n_jobs="all"), "n_jobs"),
    ("text seed", Fit(random_state="x"), "random_state"),
    ("nothing held out", Fit(early_stopping=True, validation_fraction=0.0), "validation_fraction"),
    ("all held out", Fit(early_stopping=True, validation_fraction=1.5), "validation_fraction"),
    ("text held out", Fit(early_stopping=True, validation_fraction="x"), "validation_fraction"),
    ("unknown scheme", Fit(X=WORDS, y=BIO, scheme="BIX"), "unknown label scheme 'BIX'.*BIOES"),
    ("scheme a number", Fit(scheme=5), "scheme"),
    ("labels foreign to the scheme", Fit(scheme="BIO"), "'L0' is not a BIO label"),
    ("table with an unknown label", Fit(scheme=[("L0", "L9")]), "unknown label: 'L9'"),
    ("table of single labels", Fit(scheme=["L0", "L1"]), "table|scheme|pairs"),
    ("scheme violated", Fit(X=WORDS, y=changed(BIO, 3, 0, "I-LOC"), scheme="BIO"), "sequence 3"),
    (
        "on_violation unknown",
        Fit(X=WORDS, y=BIO, scheme="BIO", on_violation="ignore"),
        "on_violation must be .*'ignore'",
    ),
    ("classes lack a label", Fit(classes=["L0", "L1"]), "'L2' occurs in y but not in classes="),
    ("classes twice", Fit(classes=["L0", "L0", "L1", "L2"]), "twice"),
    ("classes a number", Fit(classes=3), "classes"),
    ("missing label is a class", Fit(classes=["L0", "L1", "L2"], missing_label="L2"), "missing"),
    ("features a number", Fit(features=5), "features must be an encoder"),
    ("features a class", Fit(features=sf.Words), "features must be an encoder"),
    ("no such template", Fit(X=WORDS, y=BIO, features="no/such/file"), "no/such/file: cannot read"),
    ("malformed template", Fit(X=WORDS, y=BIO, features="U0:%x[0]\nB"), "<template>:1: malformed"),
    ("template of another kind", Fit(X=WORDS, y=BIO, features="X0:%x[0,0]"), ":1: .*U or B"),
    ("column too large", Fit(X=WORDS, y=BIO, features="B\nU:%x[0,7]"), ":2: .*column 7.*sequence"),
    ("template on numbers", Fit(features="U:%x[0,0]"), "sequence 0, position 0"),
    ("window on words", Fit(X=WORDS, y=BIO, features=sf.Window(3)), "sequence 0"),
    ("even window", Fit(features=sf.Window(2)), "odd size, got 2"),
    ("no frequency", Fit(X=WORDS, y=BIO, features=sf.Words(min_freq=0)), "min_freq must be"),
    (
        "too many bits",
        Fit(X=WORDS, y=BIO, features=sf.Template("U:%x[0,0]", hash_bits=99)),
        "hash_bits",
    ),
    # use
    ("predict fewer features", Use("predict", [np.ones((2, 3))]), "X has 3 features, .* with 4"),
    ("predict more features", Use("predict", [np.ones((2, 5))]), "X has 5 features, .* with 4"),
    ("predict words", Use("predict", [["a", "b"]]), "sequence 0"),
    ("predict nothing", Use("predict", []), "no sequences"),
    ("predict an empty list", Use("predict", [[]]), "sequence 0 is empty"),
    ("predict None", Use("predict", None), "X must be a list"),
    ("predict a number", Use("predict", 5), "X must be a list"),
    ("predict NaN", Use("predict", with_value(NAN)), "sequence 2, position 0, column 3"),
    ("predict a matrix", Use("predict", np.ones((2, 4))), "lengths="),
    ("predict numbers for words", Use("predict", X, data="words"), "sequence 0, position 0"),
    ("predict without edges", OfEdges("predict"), "edge"),
    ("predict with edges", Use("predict", EDGED), "edge"),
    ("unknown decoding", Use("predict", X, decoding="greedy"), "decoding must be .*'greedy'"),
    (
        "no labellings",
        Say("nbest", n=0),
        "n must be a whole number of at least 1, got 0",
    ),
    ("half a labelling", Say("nbest", n=1.5), "n must be"),
    ("negative samples", Say("sample", n=-1), "n must be"),
    ("score without y", Use("score", X, None), "y is None"),
    ("score unknown label", Use("score", X, changed(Y, 4, 0, "L9")), "'L9' at sequence 4, pos"),
    ("score short weights", Use("score", X, Y, sample_weight=[1.0]), "sample_weight"),
    ("likelihood short row", Use("log_likelihood", X, [Y[0][:0], *Y[1:]]), "sequence 0: X has"),
    ("likelihood unknown", Use("log_likelihood", X, changed(Y, 4, 0, "L9")), "'L9' at sequence 4"),
    (
        "warm start, other width",
        Use("fit", [np.ones((2, 3))], [["L0", "L1"]], wanted=WARM),
        "3 fea",
    ),
    ("warm start, other labels", Use("fit", X, changed(Y, 1, 0, "L9"), wanted=WARM), "'L9' at seq"),
    # files
    ("save unfitted", Anyone(lambda n: make(n).save("x.sf")), "not fitted"),
    ("save into no folder", Use("save", "/no/such/folder/m.sf"), "/folder/m.sf: cannot write"),
    ("save over a folder", Use("save", "/tmp"), "/tmp: cannot write"),
    (
        "load nothing",
        Anyone(lambda n: sf.load("/no/such/model.sf")),
        "/no/such/model.sf: cannot read",
    ),
    ("load a folder", Anyone(lambda n: sf.load("/tmp")), "/tmp: cannot read"),
    ("load text", Anyone(lambda n: sf.load(__file__)), "not a seqfield model file"),
]
CASES = [
    pytest.param(name, call, message, id=f"{what}-{name}")
    for what, call, message in BAD
    for name in NAMES
    if call.applies(name)
]


@pytest.mark.parametrize(("name", "call", "message"), CASES)
def test_bad_input(name, call, message):
    with pytest.raises((SeqfieldError, NotFittedError)) as caught:
        call(name)
    text = str(caught.value)
    assert re.search(message, text, re.DOTALL), text
    assert 10 < len(text) < 500


def test_bad_input_covers_enough():
    assert len(BAD) >= 40
    assert len({case[0] for case in BAD}) == len(BAD)
    assert all(any(call.applies(name) for name in NAMES) for _, call, _ in BAD)


@every
def test_label_errors_are_value_errors(name):
    with pytest.raises(ValueError, match="y is None"):
        make(name).fit(X, None)
    with pytest.raises(LabelError):
        make(name).fit(X, None)
