"""The estimators: short presets of architecture, loss and optimiser."""

from seqfield.estimators._files import load
from seqfield.estimators.boost import AdaBoost, SequenceBoost
from seqfield.estimators.crf import CRF
from seqfield.estimators.gpsc import GPSC
from seqfield.estimators.gpsl import GPSL
from seqfield.estimators.gpstruct import GPStruct
from seqfield.estimators.hmm import HMM
from seqfield.estimators.hmsvm import HMSVM
from seqfield.estimators.kernel_crf import KernelCRF
from seqfield.estimators.perceptron import StructuredPerceptron
from seqfield.estimators.svgp import StructuredSVGP
from seqfield.estimators.tagger import Tagger, default_tagger

__all__ = [
    "CRF",
    "GPSC",
    "GPSL",
    "HMM",
    "HMSVM",
    "AdaBoost",
    "GPStruct",
    "KernelCRF",
    "SequenceBoost",
    "StructuredPerceptron",
    "StructuredSVGP",
    "Tagger",
    "default_tagger",
    "load",
]
