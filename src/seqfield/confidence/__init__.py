"""What to do with probabilities: calibrate them, abstain by them, and look for wrong labels."""

from seqfield.confidence import conformal
from seqfield.confidence.calibration import Gain, Quality, calibrate, calibration_gain
from seqfield.confidence.cross_val import cross_val_proba
from seqfield.confidence.label_errors import SuspectLabel, label_errors
from seqfield.confidence.leave_one_out import (
    ChosenC2,
    LeaveOneOut,
    choose_c2,
    leave_one_out_proba,
)
from seqfield.confidence.thresholds import Threshold, threshold_for_precision

__all__ = [
    "ChosenC2",
    "Gain",
    "LeaveOneOut",
    "Quality",
    "SuspectLabel",
    "Threshold",
    "calibrate",
    "calibration_gain",
    "choose_c2",
    "conformal",
    "cross_val_proba",
    "label_errors",
    "leave_one_out_proba",
    "threshold_for_precision",
]
