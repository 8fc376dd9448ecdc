"""How many files and functions of the library three walks go through, and who imports whom.

* train: `seqfield train` of a CRF on a column file;
* tag: `seqfield tag --confidence`, from a line of the file to a printed probability;
* gpsc: `GPSC.fit` and `predict_proba`.

Only what runs in Python is seen: compiled loops count as part of their callers.

    python -m benchmarks.walks [--names] [--imports]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import seqfield as sf

ROOT = Path(sf.__file__).parent
LINES = "2 QTY\ncups UNIT\nflour NAME\n\n1 QTY\npinch UNIT\nof O\nsalt NAME\n\n"


@contextmanager
def seen() -> Iterator[set[tuple[str, str]]]:
    """The functions (file, name) of the library that are called."""
    found: set[tuple[str, str]] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            if "<" not in name:
                found.add((code.co_filename, name))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def command(*words: str) -> Callable[[], None]:
    def run() -> None:
        from seqfield.cli.app import app

        with redirect_stdout(TextIOWrapper(BytesIO())):
            app(list(words), standalone_mode=False)

    return run


def classify() -> None:
    X, y = sf.make_galaxy(4, random_state=0)
    sf.GPSC(sf.kernels.RBF(0.35), n_jobs=1).fit(X, y).predict_proba(X)


def walks(folder: Path) -> dict[str, Callable[[], None]]:
    text, model = folder / "lines.txt", folder / "model.sf"
    text.write_text(LINES)
    train = command("train", str(text), "-o", str(model), "-q", "--jobs", "1")
    return {
        "train": train,
        "tag": command("tag", str(model), str(text), "--confidence"),
        "gpsc": classify,
    }


def imports() -> dict[str, set[str]]:
    """The packages and modules at the top that each of them imports."""
    out: dict[str, set[str]] = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        top = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for line in path.read_text("utf-8").splitlines():
            if match := re.match(r"\s*(?:from|import) seqfield\.(\w+)", line):
                out[top].add(match.group(1))
    return {top: found - {top} for top, found in sorted(out.items())}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", action="store_true", help="also list files and functions")
    parser.add_argument("--imports", action="store_true", help="also print the import graph")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for run in walks(Path(folder)).values():
            run()  # compiled loops are looked up the first time
        for name, run in walks(Path(folder)).items():
            with seen() as found:
                run()
            files = {file for file, _ in found}
            print(f"{name}: {len(files)} files, {len(found)} functions")
            for file, function in sorted(found) if args.names else ():
                print(f"    {Path(file).relative_to(ROOT)}: {function}")
    if args.imports:
        for top, used in imports().items():
            print(f"{top}: {' '.join(sorted(used))}")


if __name__ == "__main__":
    main()
