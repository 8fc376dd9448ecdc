"""Every error that a user can meet, under one base class.

All errors are `ValueError`s, as in scikit-learn. Code that catches `ValueError` keeps working.
"""

from __future__ import annotations


class SeqfieldError(ValueError):
    """Base class of every error raised on purpose by seqfield."""


class InputError(SeqfieldError):
    """X has a form, size or value that cannot be used; the message names the place.

    ``place`` is (sequence, position) if one token causes the error, else None.
    """

    def __init__(self, message: str, *, place: tuple[int, int] | None = None) -> None:
        self.place = place
        super().__init__(message)


class LabelError(InputError):
    """y does not match X, or y holds labels that cannot be used."""


class SchemeError(LabelError):
    """Labels break the label scheme or the table of allowed transitions."""


class FormatError(InputError):
    """A text file is malformed. The message starts with ``file:line:``."""

    def __init__(self, message: str, *, path: str = "<text>", line: int | None = None) -> None:
        self.path, self.line, self.reason = path, line, message
        super().__init__(f"{path}: {message}" if line is None else f"{path}:{line}: {message}")


class NoPathError(SeqfieldError):
    """A sequence has no labelling of non-zero probability under the constraints."""


class CapabilityError(SeqfieldError):
    """A method cannot do what was asked; the message names a method that can."""


class BudgetError(SeqfieldError):
    """The work needs more memory than the budget allows; the message names the size."""


class ModelFileError(SeqfieldError):
    """A model file is damaged, of a newer format, or not a model file at all."""


class OutputError(SeqfieldError):
    """A file cannot be written. What was there before is unchanged."""
