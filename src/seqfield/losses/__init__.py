"""From chain scores and labels to a value and its score gradient. A loss never sees features."""

from seqfield.losses._base import Loss, ScoreGradient, ScoreTangent
from seqfield.losses.exponential import ExponentialLoss
from seqfield.losses.log import LogLoss
from seqfield.losses.marginal import MarginalLoss

__all__ = [
    "ExponentialLoss",
    "LogLoss",
    "Loss",
    "MarginalLoss",
    "ScoreGradient",
    "ScoreTangent",
]
