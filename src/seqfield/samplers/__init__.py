"""Samplers: draws from the posterior of an objective."""
