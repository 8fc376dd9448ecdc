"""The estimators: short presets of architecture, loss and optimiser."""

from seqfield.estimators._files import load
from seqfield.estimators.crf import CRF

__all__ = ["CRF", "load"]
