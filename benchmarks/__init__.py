"""What seqfield is worth, measured: run `python -m benchmarks...`; README.md lists them all."""
