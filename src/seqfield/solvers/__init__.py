"""Solvers: an objective, or a named problem, to its minimum."""
