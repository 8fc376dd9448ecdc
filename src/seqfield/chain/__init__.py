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

__all__ = [
    "ChainScores",
    "Marginals",
    "Others",
    "Paths",
    "Tangent",
    "count_distribution",
    "entropy",
    "expectation",
    "hamming_augmented",
    "log_partition",
    "log_prob",
    "marginals",
    "nbest",
    "others",
    "posterior_decode",
    "sample",
    "subtract_path",
    "tangent",
    "viterbi",
    "viterbi_by_distance",
]
