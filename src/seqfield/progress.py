"""Progress of long work: a bar with remaining time, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Report(Protocol):
    """Called with the number of steps done and a short text."""

    def __call__(self, done: int, text: str) -> None:
        """Show the state."""


#: work shorter than this is not worth a bar
PATIENCE = 2.0


@contextmanager
def progress(title: str, total: int, *, show: bool) -> Iterator[Report]:
    """A bar on standard error that appears once the work has taken two seconds."""
    if not show:
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("at most"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bar.add_task(title, total=total, text="")
    begin, shown = time.monotonic(), False

    def report(done: int, text: str) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begin > PATIENCE:
            bar.start()
            shown = True
        bar.update(task, completed=done, text=text)

    try:
        yield report
    finally:
        if shown:
            bar.stop()
