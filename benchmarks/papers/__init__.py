"""Experiments of published papers, with the numbers of the papers beside ours."""
