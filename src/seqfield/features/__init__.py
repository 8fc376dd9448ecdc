"""Turning tokens into feature matrices: templates, spelling, attributes, windows."""
