"""The kernel CRF experiments (Lafferty, Liu and Zhu 2004): figures 2-4 and tables 1-3.

    SEQFIELD_DATA=... python -m benchmarks.papers.kernel_crf [--part protein] [--tiny]

Prints markdown tables beside the paper's numbers; progress goes to standard error. The galaxy is
drawn anew for each trial; the proteins are other chains than the paper's, so there the relations
are to be compared. Penalties are fixed, or chosen on training chains only.

    --figures FOLDER also writes galaxy.png, galaxy_gain.png and protein_risk.png (matplotlib).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.kernel_crf.curves import curves, times
from benchmarks.papers.kernel_crf.gain import gain
from benchmarks.papers.kernel_crf.galaxy import galaxy
from benchmarks.papers.kernel_crf.protein import protein
from seqfield.kernels.graph import GraphWarning

PARTS = {"galaxy": galaxy, "gain": gain, "protein": protein, "curves": curves, "time": times}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="all by default")
    parser.add_argument("--tiny", action="store_true", help="small slices: a smoke test")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write PNG files there")
    args = parser.parse_args(arguments)
    # what the graphs are worth is printed
    warnings.simplefilter("ignore", GraphWarning)
    for name, part in PARTS.items():
        if args.part in (None, name):
            wall, cpu = time.perf_counter(), time.process_time()
            part(args.tiny, args.figures)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"({name}: {wall:.0f} s, of which {cpu:.0f} s on the processor.)\n", flush=True)


if __name__ == "__main__":
    main()
