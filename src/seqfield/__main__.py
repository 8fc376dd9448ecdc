"""``python -m seqfield`` is the same as ``seqfield``."""

from seqfield.cli import main

if __name__ == "__main__":
    main()
