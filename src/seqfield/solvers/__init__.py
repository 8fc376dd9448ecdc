"""Solvers: find the minimum of an objective, or solve a special problem."""

from seqfield.solvers._base import Callback, Minimum, Solver, Step
from seqfield.solvers.lbfgs import LBFGS
from seqfield.solvers.newton import NewtonCG
from seqfield.solvers.owlqn import OWLQN
from seqfield.solvers.sgd import SGD

__all__ = ["LBFGS", "OWLQN", "SGD", "Callback", "Minimum", "NewtonCG", "Solver", "Step"]
