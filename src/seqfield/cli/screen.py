"""What commands print for people: tables, facts and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from seqfield.cli.wording import RUNNING, in_options

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


def console(*, record: bool = False) -> Console:
    """The screen; text is printed as it is, without reading marks into it."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, record=record)


def announce_compilation() -> None:
    """Say so if this run has to compile loops, which takes a while and happens once for each."""
    from seqfield._compile import on_compilation

    on_compilation(
        lambda: typer.echo("Compiling inner loops, once: this may take half a minute.", err=True)
    )


def show(screen: Console, title: str, *parts: RenderableType) -> None:
    """Print parts under a title, and an empty line."""
    screen.print(title, style="bold")
    for part in parts:
        screen.print(part)
    screen.print()


def table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table; the columns named in ``numbers`` are set flush right."""
    from rich import box
    from rich.table import Table

    right = set(numbers)
    out = Table(
        box=box.SIMPLE_HEAD, show_header=any(columns), show_edge=False, padding=(0, 1, 0, 0)
    )
    for column in columns:
        flush = column in right
        out.add_column(column, justify="right" if flush else "left", no_wrap=flush, overflow="fold")
    return out


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and their values."""
    out = table("", "")
    for row in rows:
        out.add_row(*row)
    return out


def fixed(number: float) -> str:
    """Four decimals.

    >>> fixed(0.5), fixed(float("nan"))
    ('0.5000', '-')
    """
    return "-" if number != number else f"{number:.4f}"


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show each Python warning as one line on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        tell("warning", message)


def tell(kind: str, message: str) -> None:
    """Say something on standard error, in the words of the running command."""
    typer.echo(f"{kind}: {in_options(message, RUNNING.get())}", err=True)
