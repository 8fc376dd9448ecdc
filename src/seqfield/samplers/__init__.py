"""Samplers: an objective to draws from the posterior it stands for."""
