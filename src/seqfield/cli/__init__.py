"""The command line: train, tag, eval, inspect and demo."""

from seqfield.cli.app import main

__all__ = ["main"]
