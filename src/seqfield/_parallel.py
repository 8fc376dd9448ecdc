"""Running a function over fixed pieces of work on threads.

The pieces never depend on the number of threads and results come back in the order of the
pieces, so whatever is summed from them is bit-identical for every ``n_jobs``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from joblib import effective_n_jobs

from seqfield._checks import number
from seqfield.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[int, ThreadPoolExecutor] = {}
# threads do not survive a fork: a child makes its own pools
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


def check_jobs(n_jobs: int | None) -> None:
    """Raise an `InputError` unless n_jobs is a number of threads, -1 or None."""
    if n_jobs is not None and number("n_jobs", n_jobs, whole=True) == 0:
        raise InputError("n_jobs must be a number of threads, -1 for all cores, or None; got 0")


def run(
    function: Callable[[Item], Result], items: Iterable[Item], n_jobs: int | None = None
) -> list[Result]:
    """``[function(item) for item in items]`` on ``n_jobs`` threads (-1: all cores, None: one).

    >>> run(abs, [-1, 2, -3], n_jobs=2)
    [1, 2, 3]
    """
    check_jobs(n_jobs)
    todo = list(items)
    # asking joblib takes longer than a small piece of work
    threads = 1 if len(todo) < 2 else min(effective_n_jobs(n_jobs), len(todo))
    if threads == 1:
        return [function(item) for item in todo]
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="seqfield")
    return list(_pools[threads].map(function, todo))
