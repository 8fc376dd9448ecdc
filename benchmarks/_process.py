"""Time and memory of one measurement, alone in its process or in turns with others."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from benchmarks._table import progress

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def alone(module: str, *arguments: object, blas_threads: bool = True) -> dict[str, Any]:
    """What `python -m module arguments` answers, from a process of its own.

    blas_threads=False gives that process one thread of BLAS.
    """
    progress(" ", module, *arguments, "...")
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | ({} if blas_threads else ONE_THREAD),
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def answer(found: dict[str, Any]) -> None:
    """Tell the process that called `alone`."""
    print(json.dumps(found), flush=True)


def take_turns(works: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each piece of work gives in each round; a round does all of them once.

    Machines change their speed by the minute, so only numbers of one round can be compared.
    """
    found: dict[str, list[T]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(work())
    return found


def timed(work: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[T, float]:
    """What a piece of work gives, and its seconds."""
    begin = clock()
    return work(), clock() - begin


def seconds(work: Callable[[], object]) -> float:
    return timed(work)[1]


def peak_gib() -> float:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def memory_mib(what: str) -> float:
    """Memory of this process: VmRSS now, or VmHWM, the most since `forget_peak` (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
