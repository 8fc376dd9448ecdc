"""What a model learned, as an object: scores of new data, and a state for model files."""

from seqfield.functions._base import LEARNED, Learned, Shape
from seqfield.functions.emission import EmissionFunction
from seqfield.functions.kernel import DrawnFunction, KernelFunction
from seqfield.functions.linear import BoostedFunction, LinearFunction
from seqfield.functions.neighbour import NeighbourFunction

__all__ = [
    "LEARNED",
    "BoostedFunction",
    "DrawnFunction",
    "EmissionFunction",
    "KernelFunction",
    "Learned",
    "LinearFunction",
    "NeighbourFunction",
    "Shape",
]
