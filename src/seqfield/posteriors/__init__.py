"""Posteriors from a fit: Laplace's method, the evidence, and the conditional remainder."""
