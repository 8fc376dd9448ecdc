"""Scores of labels, spans and probabilities, and scorers for model selection."""

from seqfield.metrics.calibration import (
    CoverageCurve,
    brier,
    ece,
    joint_nll,
    precision_by_coverage,
    reliability,
    reliability_by_label,
    token_nll,
)
from seqfield.metrics.scorers import SCORERS, get_scorer
from seqfield.metrics.span import SpanScores, span_f1, span_scores
from seqfield.metrics.token import (
    LabelScores,
    confusion_matrix,
    per_label,
    sequence_error,
    token_accuracy,
    token_error,
    transition_accuracy,
)

__all__ = [
    "SCORERS",
    "CoverageCurve",
    "LabelScores",
    "SpanScores",
    "brier",
    "confusion_matrix",
    "ece",
    "get_scorer",
    "joint_nll",
    "per_label",
    "precision_by_coverage",
    "reliability",
    "reliability_by_label",
    "sequence_error",
    "span_f1",
    "span_scores",
    "token_accuracy",
    "token_error",
    "token_nll",
    "transition_accuracy",
]
