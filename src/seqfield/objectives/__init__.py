"""Objectives: architecture, loss and prior over data. Solvers and samplers work on objectives."""
