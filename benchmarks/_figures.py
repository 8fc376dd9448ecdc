"""Figures as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks._table import progress


def pyplot() -> Any:
    """Matplotlib without a screen, imported only where a figure is asked for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, folder: Path, name: str) -> None:
    figure.tight_layout()
    figure.savefig(folder / name, dpi=110)
    pyplot().close(figure)
    progress("wrote", folder / name)
