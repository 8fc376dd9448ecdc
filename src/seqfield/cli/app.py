"""The program: its commands, its version, and what an error looks like.

Libraries that take long to import are imported inside the commands: ``--help`` answers at once.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from seqfield import __version__
from seqfield.cli.calibrate import calibrate
from seqfield.cli.demo import demo
from seqfield.cli.evaluate import evaluate
from seqfield.cli.inspect import inspect
from seqfield.cli.learners import expanded
from seqfield.cli.report import report
from seqfield.cli.suggest import suggest
from seqfield.cli.tag import tag
from seqfield.cli.train import train
from seqfield.cli.wording import RUNNING, in_options
from seqfield.errors import SeqfieldError

FAILED, INTERRUPTED = 2, 130


class Commands(TyperGroup):
    """Commands whose errors end in one line on standard error and exit code 2."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """Find the command that is to run, and remember it for its messages."""
        name, command, rest = super().resolve_command(ctx, args)
        if name == "train":
            command = expanded(train)
        RUNNING.set(command)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        RUNNING.set(None)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has seen enough: typer ends quietly
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (SeqfieldError, OSError, UnicodeError, MemoryError) as error:
            typer.echo(in_options(_one_line(error), RUNNING.get()), err=True)
            raise typer.Exit(FAILED) from None
        finally:
            if "seqfield._compile" in sys.modules:  # what it announces is over with the command
                sys.modules["seqfield._compile"].on_compilation(None)


def _one_line(error: Exception) -> str:
    if isinstance(error, MemoryError):
        text = f"out of memory: {error}" if str(error) else "out of memory"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = str(error)
    return " ".join(text.split())


app = typer.Typer(
    name="seqfield",
    cls=Commands,
    help="Label sequences with confidence you can trust.",
    epilog="Start with: seqfield demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"seqfield {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


def _train() -> None:
    """Stands in the list of commands; its options are made when it is asked for."""


app.command("train", help=train.__doc__)(_train)
app.command("tag")(tag)
app.command("suggest")(suggest)
app.command("eval")(evaluate)
app.command("calibrate")(calibrate)
app.command("inspect")(inspect)
app.command("demo")(demo)
app.command("report")(report)


def run() -> None:
    """Run the program on the arguments of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a token's letters
    app(prog_name="seqfield")
