"""Optimisers: each states what it needs of an objective and fails early if it is missing."""
