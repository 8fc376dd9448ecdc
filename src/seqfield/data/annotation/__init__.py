"""Files of annotation tools: JSON lines of doccano, tasks of Label Studio.

Both tools mark characters of a text. The text of a sequence is its words (the first column of token
rows) with a space between any two; the tokens themselves go along with it, so that labels come back
to exactly these. Offsets count characters, from 0, the end exclusive.

Labels of a span scheme are written as their spans. Other labels, such as parts of speech, are
written as one span for each token, with the label as its type; they are read back with
``scheme=None``. A span without a type (of labels such as B and I alone) has the type ``_``.
"""

from seqfield.data.annotation._reading import read_doccano, read_labelstudio
from seqfield.data.annotation._writing import (
    Marked,
    doccano_records,
    dumped,
    labelstudio_tasks,
    write_doccano,
    write_labelstudio,
)

__all__ = [
    "Marked",
    "doccano_records",
    "dumped",
    "labelstudio_tasks",
    "read_doccano",
    "read_labelstudio",
    "write_doccano",
    "write_labelstudio",
]
