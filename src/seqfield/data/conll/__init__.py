"""Column files: one token a line, columns parted by tabs or blanks, an empty line between
sequences."""

from seqfield.data.conll._reading import (
    CONLLU,
    READERS,
    Document,
    read_conll,
    read_document,
    reader,
)
from seqfield.data.conll._writing import joined, write_conll

__all__ = [
    "CONLLU",
    "READERS",
    "Document",
    "joined",
    "read_conll",
    "read_document",
    "reader",
    "write_conll",
]
