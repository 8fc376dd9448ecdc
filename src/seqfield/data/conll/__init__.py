"""Column files: one token a line, columns parted by tabs or blanks, an empty line between
sequences."""

from seqfield.data.conll._reading import CONLLU, Document, read_conll, read_document
from seqfield.data.conll._writing import joined, write_conll

__all__ = ["CONLLU", "Document", "joined", "read_conll", "read_document", "write_conll"]
