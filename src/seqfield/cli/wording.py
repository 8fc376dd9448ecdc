"""Messages of the library in the words of the command line: arguments become options."""

from __future__ import annotations

import inspect
import re
import shlex
import typing
from contextvars import ContextVar
from enum import Enum
from typing import Any, NamedTuple

from seqfield.cli.learners import OPTIONS

#: the command that runs
RUNNING: ContextVar[Any] = ContextVar("RUNNING", default=None)

#: a value as messages write it: quoted, numbers in brackets, or a word
_VALUE = r"'[^']*'|\"[^\"]*\"|\([-\d, ]*\)|[\w.+-]*\w"
# a name within a path, a quotation or a longer name is none
_ARGUMENT = re.compile(rf"(?<![\w'\"/.\\-])([A-Za-z]\w*)(?:=({_VALUE})?|(?![\w'\"/.=\\-]))")
_MUST_BE = re.compile(r"(?:^|(?<=: ))([a-z]\w*)(?= must be\b)")


class Option(NamedTuple):
    """An option: the values of its argument that it stands for, if it takes none itself; and the
    values that it takes, if these are few."""

    name: str
    stands_for: dict[str, str] | None
    choices: frozenset[str] | None


def in_options(text: str, command: Any) -> str:
    """A message in which arguments that are options of the command are called like these.

    ``name='value'`` and ``name=`` are taken for arguments, names that are no words (``max_iter``,
    ``c2``), and what a message begins with that says what it must be. Arguments and values that the
    command does not have stay as they are.
    """
    if command is None:
        return text
    options = _options(command)

    def renamed(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        option = options.get(name)
        if option is None:
            return _in_training(name, value) or found[0]
        if "=" not in found[0]:
            is_word = name.isalpha()
            return name if is_word else option.name
        return _said(option, value) or found[0]

    text = _ARGUMENT.sub(renamed, text)
    return _MUST_BE.sub(lambda found: _name(options, found[1]), text)


def _in_training(name: str, value: str | None) -> str | None:
    """What other commands call a parameter that a model is trained with; None if it is no such."""
    from seqfield.cli.learners import expanded, settings
    from seqfield.cli.train import train

    if value is None or name not in settings().keys() | {"calibrate"}:
        return None
    said = _said(_options(expanded(train))[name], value)
    return said and f"train {said}"


def _name(options: dict[str, Option], argument: str) -> str:
    return options[argument].name if argument in options else argument


def _said(option: Option, value: str | None) -> str | None:
    """An option with a value; None if it cannot have it."""
    if value is None:
        return option.name
    if option.stands_for is not None:
        return option.stands_for.get(value)
    if value in ("True", "False", "None"):
        typed = value.lower()
        return f"{option.name} {typed}" if typed in (option.choices or ()) else None
    if value.startswith("("):  # a list of numbers: the first one may look like an option
        return f"{option.name}={value[1:-1].replace(' ', '')}"
    plain = value.strip("'\"")
    if option.choices is not None and plain not in option.choices:
        return None
    return f"{option.name} {shlex.quote(plain)}"


def _choices(kind: Any) -> frozenset[str] | None:
    """The values of an option of this type, if these are few."""
    for one in typing.get_args(kind) or (kind,):  # it may be optional
        if isinstance(one, type) and issubclass(one, Enum):
            return frozenset(str(choice.value) for choice in one)
    return None


def _options(command: Any) -> dict[str, Option]:
    """The options of a command by the arguments that they stand for."""
    kinds = typing.get_type_hints(inspect.unwrap(command.callback))
    renamed = {name: argument for argument, name in OPTIONS.items()}
    out = {}
    for param in command.params:
        names = sorted((name for name in param.opts if name.startswith("-")), key=len)
        if not names:
            continue
        own = names[-1].removeprefix("--")
        argument = renamed.get(own, own.removeprefix("no-").replace("-", "_"))
        flags = None
        if param.is_flag:
            # one that is called otherwise, or begins with "no", is for False
            off = own in renamed or own.startswith("no-")
            flags = {str(not off): names[-1]}
            if param.secondary_opts:
                flags["False"] = param.secondary_opts[0]
        out[argument] = Option(names[-1], flags, _choices(kinds.get(param.name)))
    return out
