"""What a model says of a batch of sequences: p(y | x), scored once, and how it is calibrated."""

from seqfield.predictions.calibration import Calibration
from seqfield.predictions.distribution import (
    LabelDistribution,
    SequenceConfidence,
    SpanConfidence,
)

__all__ = ["Calibration", "LabelDistribution", "SequenceConfidence", "SpanConfidence"]
