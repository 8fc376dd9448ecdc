"""Small model files that must load for ever, and what they predict.

Run from the root of the project, this writes the files of those cases that have none:

    python -m tests.support.golden

A file that is there is never written again. Each has a JSON beside it: sequences X, the labels and
the probabilities that the model gave them when it was saved.
"""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf
from seqfield.kernels import RBF, Columns, Linear, Matern, Polynomial, RationalQuadratic

FOLDER = Path(__file__).parents[1] / "persist" / "golden"

LINES = {
    "2/CD cups/NN flour/NN": "B-QTY B-UNIT B-NAME",
    "1/CD pinch/NN of/IN sea/NN salt/NN": "B-QTY B-UNIT O B-NAME I-NAME",
    "salt/NN": "B-NAME",
    "3/CD eggs/NN": "B-QTY B-NAME",
    "1/CD cup/NN brown/JJ sugar/NN": "B-QTY B-UNIT B-NAME I-NAME",
    "flour/NN": "B-NAME",
}
NEW_LINES = ["1/CD cup/NN of/IN salt/NN", "brown/JJ flour/NN", "Éclair/NN"]


def rows_of(line):
    return [tuple(token.split("/")) for token in line.split()]


WORDS = list(map(rows_of, LINES)), [labels.split() for labels in LINES.values()]
NEW_WORDS = list(map(rows_of, NEW_LINES))


def bags_of(rows):
    """Weighted attributes, and edge attributes."""
    return [{f"w={word}": 1.0, f"t={tag}": 0.5, sf.EDGE: [tag]} for word, tag in rows]


def strings_of(rows):
    return [[f"w={word}", f"t={tag}"] for word, tag in rows]


BAGS, NEW_BAGS = (list(map(bags_of, WORDS[0])), WORDS[1]), list(map(bags_of, NEW_WORDS))
STRINGS, NEW_STRINGS = (
    (list(map(strings_of, WORDS[0])), WORDS[1]),
    list(map(strings_of, NEW_WORDS)),
)


def points(lengths, seed):
    """Numbers that tell the labels a, b and c, more or less."""
    rng = np.random.default_rng(seed)
    y = [rng.integers(3, size=length) for length in lengths]
    X = [np.round(np.eye(3)[row][:, :2] + 0.4 * rng.normal(size=(len(row), 2)), 2) for row in y]
    return X, [["abc"[k] for k in row] for row in y]


POINTS, NEW_POINTS = points([3, 1, 4, 2, 3], 0), points([2, 1, 3], 1)[0]
SEED = {"random_state": 0, "n_jobs": 1}
TEMPLATE = "U0:%x[0,0]\nU1:%x[-1,1]/%x[0,1]\nB0:%x[0,1]\nB"

#: name: model, training data, new data. A name is an estimator's, with what is special after a dot
CASES = {
    "CRF": (
        partial(sf.CRF, sf.Template(TEMPLATE), scheme="BIO", calibrate="vector"),
        WORDS,
        NEW_WORDS,
    ),
    "CRF.attributes": (partial(sf.CRF, c1=0.01, c2=0.1), BAGS, NEW_BAGS),
    "StructuredPerceptron": (
        partial(sf.StructuredPerceptron, sf.Words(window=3), scheme="BIO", calibrate=True),
        WORDS,
        NEW_WORDS,
    ),
    "StructuredPerceptron.kernel": (
        partial(sf.StructuredPerceptron, kernel=Polynomial(2), explicit=False, calibrate="platt"),
        POINTS,
        NEW_POINTS,
    ),
    "SequenceBoost": (
        partial(sf.SequenceBoost, max_iter=10, calibrate=True),
        STRINGS,
        NEW_STRINGS,
    ),
    "AdaBoost": (
        partial(sf.AdaBoost, max_iter=10, neighbors=True, calibrate=True),
        STRINGS,
        NEW_STRINGS,
    ),
    "HMM": (partial(sf.HMM, scheme="BIO"), WORDS, NEW_WORDS),
    "HMM.numbers": (partial(sf.HMM, alpha=0.1), POINTS, NEW_POINTS),
    "HMSVM": (partial(sf.HMSVM, RBF(1.0), calibrate=True), POINTS, NEW_POINTS),
    "GPSC": (partial(sf.GPSC, 2.0 * RBF(1.0) + Columns(Linear(), [0])), POINTS, NEW_POINTS),
    "GPSC.laplace": (
        partial(sf.GPSC, Matern(1.5), posterior="laplace", n_samples=3),
        POINTS,
        NEW_POINTS,
    ),
    "GPSL": (partial(sf.GPSL, RBF(1.0), learn_kernel=False), POINTS, NEW_POINTS),
    "KernelCRF": (
        partial(
            sf.KernelCRF,
            RationalQuadratic(),
            features=sf.Window(3),
            cliques="vertex+edge",
            n_cliques=5,
        ),
        POINTS,
        NEW_POINTS,
    ),
    "GPStruct": (
        partial(sf.GPStruct, RBF(1.0), 8, n_chains=2, n_samples=3, calibrate=True),
        POINTS,
        NEW_POINTS,
    ),
    "StructuredSVGP": (
        partial(sf.StructuredSVGP, RBF(1.0), 4, max_iter=2, n_samples=3),
        POINTS,
        NEW_POINTS,
    ),
    "Tagger": (
        partial(sf.Tagger, scheme="BIO", candidates=[(True, 2.0, 1.0)], n_folds=2),
        WORDS,
        NEW_WORDS,
    ),
}


def told(model, X):
    """What a model says of X, as JSON has it: floats come back to the last bit."""
    return {
        "class": type(model).__name__,
        "function": type(model.function_).__name__,
        "classes": model.classes_.tolist(),
        "predict": model.predict(X),
        "predict_proba": [p.tolist() for p in model.predict_proba(X)],
    }


def read(case):
    """X and what is expected."""
    found = json.loads((FOLDER / f"{case}.json").read_text("utf-8"))
    kind, X = found.pop("tokens"), found.pop("X")
    if kind == "tuple":  # JSON has lists alone
        X = [list(map(tuple, rows)) for rows in X]
    return list(map(np.array, X)) if kind == "ndarray" else X, found


def write(case, folder=FOLDER):
    """A model file and its JSON."""
    make, data, X = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make(**SEED).fit(*data)
    given = {
        "tokens": type(X[0][0]).__name__,
        "X": [x.tolist() if isinstance(x, np.ndarray) else x for x in X],
    }
    text = json.dumps(given | told(model, X), indent=1)
    (folder / f"{case}.json").write_text(text + "\n", "utf-8")
    model.save(folder / f"{case}.sf")


def main():
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        if not (FOLDER / f"{case}.sf").exists():
            write(case)
            print(f"{case}: written")


if __name__ == "__main__":
    main()
