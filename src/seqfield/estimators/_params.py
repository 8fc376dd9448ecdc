"""Parameters of estimators: one table for validation, docstring, command line and documentation.

A parameter is declared once, in the body of its estimator:

    c2: float = real(default=1.0, help="weight of the squared norm", low=0)

`parameters` makes the constructor of these declarations, and the section of the docstring; `table`
gives them back; `check` raises an `InputError` for a value that is not possible.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
from typing import Any, TypeVar, dataclass_transform

from seqfield._checks import choice, number
from seqfield.errors import InputError

T = TypeVar("T")
#: characters of a line of a docstring, and the indent of what is said of a parameter
WIDTH, INDENT = 96, " " * 4


@dataclasses.dataclass(frozen=True)
class Param:
    """What a parameter may be, and what it is for.

    ``kind`` is "number", "whole", "flag", "word" or "any". ``words`` are strings, booleans or None
    that are possible too (for "word", the only ones), ``accepts`` classes whose instances are.
    """

    default: Any
    help: str
    kind: str = "any"
    words: tuple[Any, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    accepts: tuple[type, ...] = ()
    functions: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise an `InputError` for a value that is not possible."""
        if self.kind == "any" or (self.accepts and isinstance(value, self.accepts)):
            return
        if self.functions and callable(value) and not isinstance(value, type):
            return
        if self.kind == "flag":
            choice(name, value, (True, False))
        elif self.kind == "word":
            self._check_word(name, value)
        elif not any(value is w or (isinstance(value, str) and value == w) for w in self.words):
            self._check_number(name, value)

    def _check_word(self, name: str, value: Any) -> None:
        try:
            choice(name, value, self.words)
        except InputError as error:
            more = [f"an instance of {one.__name__}" for one in self.accepts]
            more += ["a function"] * self.functions
            if not more:
                raise
            wanted = ", ".join([*map(repr, self.words), *more])
            raise InputError(f"{name} must be one of {wanted}, got {value!r}") from error

    def _check_number(self, name: str, value: Any) -> None:
        try:
            number(name, value, low=self.low, high=self.high, whole=self.kind == "whole")
        except InputError as error:
            if not self.words:
                raise
            also = ", or ".join(map(repr, self.words))
            before, _, got = str(error).rpartition(", got ")
            raise InputError(f"{before}, or {also}, got {got}") from error
        if value <= self.above:
            raise InputError(f"{name} must be above {self.above:g}, got {value!r}")

    @property
    def form(self) -> str:
        """What it may be, in words."""
        parts = [f'"{w}"' if isinstance(w, str) else repr(w) for w in self.words]
        if self.kind in ("number", "whole"):
            parts.append("a whole number" if self.kind == "whole" else "a number")
            if self.above > -math.inf:
                parts[-1] += f" above {self.above:g}"
            elif self.low > -math.inf and self.high < math.inf:
                parts[-1] += f" from {self.low:g} to {self.high:g}"
            elif self.low > -math.inf:
                parts[-1] += f" of at least {self.low:g}"
        parts += ["True", "False"] if self.kind == "flag" else []
        parts += [f"a `{one.__name__}`" for one in self.accepts]
        parts += ["a function"] * self.functions
        return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def real(
    *,
    default: Any,
    help: str,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    words: tuple[Any, ...] = (),
    kw_only: bool = True,
) -> Any:
    """A number; ``words`` may stand in its place."""
    return _field(Param(default, help, "number", words, low, high, above), kw_only)


def whole(
    *,
    default: Any,
    help: str,
    low: float = -math.inf,
    high: float = math.inf,
    words: tuple[Any, ...] = (),
    kw_only: bool = True,
) -> Any:
    """A whole number."""
    return _field(Param(default, help, "whole", words, low, high), kw_only)


def flag(*, default: bool, help: str) -> Any:
    """True or False."""
    return _field(Param(default, help, "flag"))


def word(
    *,
    default: Any,
    help: str,
    words: tuple[Any, ...],
    accepts: tuple[type, ...] = (),
    functions: bool = False,
) -> Any:
    """One of a few words, an instance of some classes, or a function."""
    return _field(Param(default, help, "word", words, accepts=accepts, functions=functions))


def anything(*, default: Any, help: str, kw_only: bool = True) -> Any:
    """What the estimator itself looks at."""
    return _field(Param(default, help), kw_only)


def features_param(*, kw_only: bool = True) -> Any:
    """How tokens become features."""
    return anything(
        default=None,
        help=(
            "a feature encoder such as `Template`, a path of a CRF++ template, or None to choose "
            "by the form of X: numbers are taken as they are, dicts and lists of strings are "
            "attributes, strings and token rows (tuples) get word and spelling features in a "
            "window"
        ),
        kw_only=kw_only,
    )


def _field(param: Param, kw_only: bool = True) -> Any:
    return dataclasses.field(default=param.default, kw_only=kw_only, metadata={"param": param})


@dataclass_transform(kw_only_default=True, field_specifiers=(real, whole, flag, word, anything))
def parameters(cls: type[T]) -> type[T]:
    """Class decorator: the constructor and the docstring of the declared parameters."""
    out = dataclasses.dataclass(eq=False, repr=False)(cls)
    if out.__doc__ and "Attributes\n" in out.__doc__:
        text, _, rest = inspect.cleandoc(out.__doc__).partition("Attributes\n")
        out.__doc__ = f"{text}{described(out)}\n\nAttributes\n{rest}"
    return out


def table(cls: type) -> dict[str, Param]:
    """The parameters of an estimator: those given by place, then its own, then shared ones."""
    owner = {name: k for k, kind in enumerate(reversed(cls.__mro__)) for name in _declared(kind)}
    found = {field.name: field for field in dataclasses.fields(cls)}
    order = sorted(found, key=lambda name: (found[name].kw_only, -owner[name]))
    return {name: found[name].metadata["param"] for name in order}


def own(cls: type, base: type) -> list[str]:
    """The parameters that a class declares beyond those of a base."""
    shared = {field.name for field in dataclasses.fields(base)}
    return [name for name in table(cls) if name not in shared]


def _declared(kind: type) -> list[str]:
    return [name for name in vars(kind).get("__annotations__", {}) if not name.startswith("_")]


def check(model: Any) -> None:
    """Raise an `InputError` for the first parameter that is not possible."""
    for name, param in table(type(model)).items():
        param.check(name, getattr(model, name))


def described(cls: type) -> str:
    """The section of the docstring."""
    lines = ["Parameters", "----------"]
    for name, param in table(cls).items():
        form = f"{param.form}, " if param.form else ""
        lines.append(f"{name} : {form}default {param.default!r}")
        lines += textwrap.wrap(
            param.help,
            WIDTH - 4,
            initial_indent=INDENT,
            subsequent_indent=INDENT,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
