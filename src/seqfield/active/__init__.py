"""What to label next: ranking a pool of unlabelled sequences, tokens or spans by a model.

>>> import seqfield as sf
>>> X, y = sf.load_ingredients("train")
>>> model = sf.CRF().fit(X[:50], y[:50])
>>> chosen = [one.sequence for one in sf.active.rank(model, X[50:], n=10, diversity=0.5)]
>>> len(chosen)
10
"""

from seqfield.active._ranking import UNITS, RankedSequence, RankedSpan, RankedToken, rank

__all__ = ["UNITS", "RankedSequence", "RankedSpan", "RankedToken", "rank"]
