"""The kinds of models that can be trained, and their options on the command line."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import typer


class Learner(StrEnum):
    """Kinds of models."""

    CRF = "crf"
    TAGGER = "tagger"
    PERCEPTRON = "perceptron"
    BOOST = "boost"
    HMM = "hmm"
    GPSC = "gpsc"
    KERNEL_CRF = "kernelcrf"
    HMSVM = "hmsvm"
    GPSL = "gpsl"
    GPSTRUCT = "gpstruct"
    SVGP = "svgp"


CLASSES = {
    Learner.CRF: "CRF",
    Learner.TAGGER: "Tagger",
    Learner.PERCEPTRON: "StructuredPerceptron",
    Learner.BOOST: "SequenceBoost",
    Learner.HMM: "HMM",
    Learner.GPSC: "GPSC",
    Learner.KERNEL_CRF: "KernelCRF",
    Learner.HMSVM: "HMSVM",
    Learner.GPSL: "GPSL",
    Learner.GPSTRUCT: "GPStruct",
    Learner.SVGP: "StructuredSVGP",
}


class Kernel(StrEnum):
    """Kernels that have a name."""

    LINEAR = "linear"
    POLY2 = "poly2"
    POLY3 = "poly3"
    RBF = "rbf"
    MATERN = "matern"
    RATIONAL_QUADRATIC = "rational_quadratic"
    COSINE = "cosine"


class Method(StrEnum):
    """Methods of GPSC."""

    DENSE = "dense"
    SPARSE = "sparse"
    SEQUENCE = "sequence"


class Sampler(StrEnum):
    """Samplers of GPstruct."""

    HMC = "hmc"
    NUTS = "nuts"
    ESS = "ess"


class Inference(StrEnum):
    """How GPSL predicts."""

    REFINE = "refine"
    CHAIN = "chain"


class Slack(StrEnum):
    """Soft margins of the HM-SVM."""

    L1 = "l1"
    L2 = "l2"
    LABELLING = "labelling"
    HARD = "hard"


class Margin(StrEnum):
    """What the known labelling shall win by."""

    UNIT = "unit"
    HAMMING = "hamming"
    SLACK = "slack"


class Loss(StrEnum):
    """Losses of the CRF."""

    LOG = "log"
    SOFTMAX_MARGIN = "softmax_margin"
    MARGINAL = "marginal"
    EXP = "exp"


class Solver(StrEnum):
    """Optimisers of the CRF."""

    AUTO = "auto"
    LBFGS = "lbfgs"
    OWLQN = "owlqn"
    SGD = "sgd"


class OnViolation(StrEnum):
    """What to do with labels that break the scheme."""

    RAISE = "raise"
    REPAIR = "repair"


#: options that are not called like the argument
OPTIONS = {"observed_only": "all-features", "n_cliques": "cliques", "C": "slack-weight"}
OPTIONS |= {"n_steps": "steps", "n_inducing": "inducing", "n_jobs": "jobs"}
OPTIONS |= {"random_state": "seed", "missing_label": "missing"}


def made(model: Any, learner: Learner, given: dict[str, Any]) -> Any:
    """The model with the options given; one that it does not have is an error, not ignored."""
    own = model.get_params(deep=False)
    told = {name: value for name, value in given.items() if value is not None}
    left = {"loss": "log", "cost": 1.0, "c1": 0.0, "solver": "auto", "observed_only": True}
    left |= {"early_stopping": False, "calibrate": False, "method": "dense"}
    left |= {"slack": "l1", "margin": "hamming", "sampler": "hmc", "inference": "refine"}
    for name, value in told.items():
        if name == "random_state" or value != left.get(name):
            if name in own:
                # every learner with a c2 has a value for it that is a good start
                model.set_params(**{name: own[name] if value == "auto" else value})
            elif name != "random_state":
                option = OPTIONS.get(name, name.replace("_", "-"))
                raise typer.BadParameter(f"--{option} has no meaning for --learner {learner.value}")
    return model
