"""A report on a model, as one HTML file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from seqfield.progress import progress
from seqfield.report import learning
from seqfield.report.content import report_content
from seqfield.report.learning import learning_curve
from seqfield.report.page import render, write_page

__all__ = ["learning_curve", "render", "report_content", "write_page", "write_report"]

#: the largest number of steps that `report_content` reports
N_STEPS = 5


def write_report(
    model: Any,
    X: Any,
    y: Any,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    scheme: str = "auto",
    n_boot: int = 1000,
    tokens: list[list[str]] | None = None,
    learning_curve: tuple[Any, Any] | None = None,
    verbose: bool = False,
) -> None:
    """Write a report on the performance of a model on labelled sequences, as one HTML file.

    The file is written atomically: it is complete, or it is not there.

    Parameters
    ----------
    model : a fitted estimator. If it has no probabilities, the report leaves out the parts that
        need them
    X, y : sequences and their gold labels; None is a missing label
    path : the file to write
    title, scheme, n_boot, tokens : as in `report_content`
    learning_curve : None, or (X_train, y_train) to show how the scores grow with the training data.
        It costs about twice as much as one fit
    verbose : whether to show progress

    >>> import seqfield as sf, tempfile, pathlib
    >>> X, y = sf.load_ingredients("test")
    >>> model = sf.CRF(scheme="BIO").fit(X[:50], y[:50])
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> write_report(model, X[50:], y[50:], path, title="Recipes")
    >>> "<title>Recipes" in path.read_text("utf-8")
    True
    """
    with steps(show=verbose, curve=learning_curve is not None) as step:
        content = report_content(
            model, X, y, title=title, scheme=scheme, n_boot=n_boot, tokens=tokens, step=step
        )
        if learning_curve is not None:
            content["learning"] = learning.learning_curve(
                model, *learning_curve, X, y, scheme=scheme, n_boot=n_boot, step=step
            )
    write_page(content, path)


@contextmanager
def steps(*, show: bool, curve: bool) -> Iterator[Callable[[str], None]]:
    """Progress of a report: a function to be called with the name of the next step."""
    total = N_STEPS + len(learning.SHARES) * curve
    with progress("report", total, show=show) as told:
        done = count()
        yield lambda text: told(next(done), text)
