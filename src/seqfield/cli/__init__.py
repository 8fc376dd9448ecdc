"""The command line: train, tag, eval, inspect and demo."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the program on the arguments of this process."""
    try:
        from seqfield.cli.app import run

        run()
    except KeyboardInterrupt:  # so early that no command was there to take it
        sys.exit(130)
