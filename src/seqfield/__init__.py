"""seqfield labels sequences with confidence you can trust.

Forms of X
----------
* a list of (T_i, D) arrays, sparse matrices or data frames, or one of these with ``lengths=``:
  numeric features;
* a list of lists of feature dicts or of lists of feature strings: attributes;
* a list of lists of words (strings) or of token rows (tuples of columns, as `read_conll` gives):
  word and spelling features, or those that ``features=`` asks for;
* a `Sequences`.

A string, or a list of strings, is an error: it is not known what its tokens are.

Forms of y
----------
A list of label lists (or arrays, or columns of a data frame). Labels are of any hashable kind; None
(or ``missing_label``) is a missing label, a set holds candidates, and a sequence whose y is None is
unlabelled. With ``lengths=`` y may be one list of labels.

>>> import seqfield as sf
>>> X, y = sf.load_ingredients("train")
>>> model = sf.CRF().fit(X, y)
>>> model.predict([["2", "cups", "flour"]])
[['B-QTY', 'B-UNIT', 'B-NAME']]
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: public names and where they live; each is imported when first used
_HOMES = {
    "CRF": "seqfield.estimators",
    "GPSC": "seqfield.estimators",
    "GPSL": "seqfield.estimators",
    "GPStruct": "seqfield.estimators",
    "StructuredSVGP": "seqfield.estimators",
    "HMM": "seqfield.estimators",
    "AdaBoost": "seqfield.estimators",
    "HMSVM": "seqfield.estimators",
    "KernelCRF": "seqfield.estimators",
    "SequenceBoost": "seqfield.estimators",
    "StructuredPerceptron": "seqfield.estimators",
    "Tagger": "seqfield.estimators",
    "default_tagger": "seqfield.estimators",
    "load": "seqfield.estimators",
    "LabelDistribution": "seqfield.predictions",
    "SequenceConfidence": "seqfield.predictions",
    "SpanConfidence": "seqfield.predictions",
    "calibrate": "seqfield.confidence",
    "conformal": "seqfield.confidence",
    "threshold_for_precision": "seqfield.confidence",
    "cross_val_proba": "seqfield.confidence",
    "leave_one_out_proba": "seqfield.confidence",
    "label_errors": "seqfield.confidence",
    "confidence": "seqfield.confidence",
    "active": "seqfield.active",
    "report": "seqfield.report",
    "ChainScores": "seqfield.chain",
    "chain": "seqfield.chain",
    "features": "seqfield.features",
    "kernels": "seqfield.kernels",
    "losses": "seqfield.losses",
    "solvers": "seqfield.solvers",
    "metrics": "seqfield.metrics",
    "errors": "seqfield.errors",
    "SeqfieldError": "seqfield.errors",
    "Sequences": "seqfield.sequences",
    "Template": "seqfield.features",
    "Attributes": "seqfield.features",
    "Words": "seqfield.features",
    "Window": "seqfield.features",
    "EDGE": "seqfield.features",
    "read_conll": "seqfield.data.conll",
    "write_conll": "seqfield.data.conll",
    "read_doccano": "seqfield.data.annotation",
    "read_labelstudio": "seqfield.data.annotation",
    "write_doccano": "seqfield.data.annotation",
    "write_labelstudio": "seqfield.data.annotation",
    "load_ingredients": "seqfield.data.datasets",
    "make_digits": "seqfield.data.datasets",
    "make_galaxy": "seqfield.data.datasets",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'seqfield' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    value = home if home.__name__ == f"seqfield.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = [name for name in globals() if name.startswith("__")]
    return sorted({*own, *_HOMES})
