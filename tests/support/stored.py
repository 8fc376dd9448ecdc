"""A model that takes probabilities for observations."""

from __future__ import annotations

import numpy as np

from seqfield.chain import ChainScores
from seqfield.labels import LabelSet
from seqfield.predictions import LabelDistribution
from seqfield.predictions.average import Average
from seqfield.sequences import Sequences, offsets_of


class Stored:
    """X holds of each sequence the probabilities (T, S) of its labels, which are independent."""

    def __init__(self, names, missing_label=None):
        self.labels_, self.missing_label = LabelSet(names), missing_label
        self.classes_ = self.labels_.array

    def encode(self, X):
        """The probabilities as features."""
        if isinstance(X, Sequences):
            return X
        return Sequences(np.vstack(X), offsets_of([len(x) for x in X]))

    def distributions(self, X):
        """Two blocks where there are two sequences or more, as of a model with many draws."""
        data = self.encode(X)
        for part in np.array_split(np.arange(len(data)), 2):
            if len(part):
                yield self.distribution(data[part])

    def distribution(self, X):
        """Chains without transitions, whose node scores are log p."""
        data, s = self.encode(X), len(self.labels_)
        with np.errstate(divide="ignore"):
            scores = ChainScores(np.log(data.x), np.zeros((s, s)), data.offsets)
        said = LabelDistribution(self.labels_, Average([scores]), missing_label=self.missing_label)
        said.proba = data.x  # to the last bit
        return said

    def predict(self, X):
        return [row for said in self.distributions(X) for row in said.best()]
