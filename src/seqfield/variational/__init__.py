"""Variational inference: a problem to a Gaussian that approximates its posterior."""
