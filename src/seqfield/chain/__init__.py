"""Exact inference on chain scores."""

from seqfield.chain.api import (
    Marginals,
    Paths,
    entropy,
    log_partition,
    log_prob,
    marginals,
    nbest,
    posterior_decode,
    sample,
    viterbi,
)
from seqfield.chain.learning import (
    Others,
    Tangent,
    count_distribution,
    expectation,
    hamming_augmented,
    others,
    subtract_path,
    tangent,
    viterbi_by_distance,
)
from seqfield.chain.scores import ChainScores
from seqfield.chain.windows import Spans, likely_spans, span_prob, window_prob

__all__ = [
    "ChainScores",
    "Marginals",
    "Others",
    "Paths",
    "Spans",
    "Tangent",
    "count_distribution",
    "entropy",
    "expectation",
    "hamming_augmented",
    "likely_spans",
    "log_partition",
    "log_prob",
    "marginals",
    "nbest",
    "others",
    "posterior_decode",
    "sample",
    "span_prob",
    "subtract_path",
    "tangent",
    "viterbi",
    "viterbi_by_distance",
    "window_prob",
]
