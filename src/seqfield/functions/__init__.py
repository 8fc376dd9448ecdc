"""What a model learned, as an object: scores of new data, and a state for model files."""

from seqfield.functions._base import Learned, Shape
from seqfield.functions.emission import EmissionFunction
from seqfield.functions.kernel import DrawnFunction, KernelFunction
from seqfield.functions.linear import BoostedFunction, LinearFunction
from seqfield.functions.neighbour import NeighbourFunction

#: kinds of functions in model files, by name
FUNCTIONS: dict[str, type[Learned]] = {
    kind.__name__: kind
    for kind in (
        LinearFunction,
        BoostedFunction,
        KernelFunction,
        DrawnFunction,
        EmissionFunction,
        NeighbourFunction,
    )
}

__all__ = [
    "FUNCTIONS",
    "BoostedFunction",
    "DrawnFunction",
    "EmissionFunction",
    "KernelFunction",
    "Learned",
    "LinearFunction",
    "NeighbourFunction",
    "Shape",
]
