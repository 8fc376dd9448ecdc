"""Kernels: covariance functions over tokens."""

from __future__ import annotations

from seqfield.kernels._base import KERNELS, Kernel, as_kernel
from seqfield.kernels.composite import (
    Callable,
    Power,
    Precomputed,
    Product,
    Scaled,
    Sum,
)
from seqfield.kernels.graph import Graph
from seqfield.kernels.standard import (
    RBF,
    Constant,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    RationalQuadratic,
)
from seqfield.kernels.views import Columns, InverseFrequency

__all__ = [
    "KERNELS",
    "RBF",
    "Callable",
    "Columns",
    "Constant",
    "Graph",
    "InverseFrequency",
    "Kernel",
    "Linear",
    "Matern",
    "Normalized",
    "Polynomial",
    "Power",
    "Precomputed",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Sum",
    "as_kernel",
]
