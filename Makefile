# make demo   sets everything up and shows what seqfield does
# make test   sets everything up and runs lint, types, layers and all tests
# with SEQFIELD_DATA set:
# make bench  compares speed with python-crfsuite
# make papers reproduces the four NLP tasks; make thesis the primal learners, make kernels the
# kernel models, make margins the maximum margins, make pseudo GPSL, make graybox GPstruct and the
# variational models (each over an hour), make active what to label next

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint check bench papers thesis kernels margins pseudo graybox active clean

demo: $(VENV)/.installed
	$(BIN)/seqfield demo

test: lint check

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# one thread of BLAS for each of the two processes: more would fight over the cores
check: export OPENBLAS_NUM_THREADS = 1
check: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=15

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/speed/crf.py
	$(BIN)/python benchmarks/speed/online.py
	$(BIN)/python benchmarks/speed/primal.py
	$(BIN)/python benchmarks/speed/kernel.py
	$(BIN)/python benchmarks/speed/margin.py

papers: $(VENV)/.installed
	$(BIN)/python benchmarks/papers/four_tasks.py

thesis: $(VENV)/.installed
	$(BIN)/python benchmarks/papers/thesis_primal.py

kernels: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/papers/gpsc.py ner
	$(BIN)/python benchmarks/papers/gpsc.py sparse
	$(BIN)/python benchmarks/papers/gpsc.py prosody --figures docs
	$(BIN)/python benchmarks/papers/kcrf.py --figures docs

margins: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/papers/hmsvm.py four
	$(BIN)/python benchmarks/papers/hmsvm.py ner
	$(BIN)/python benchmarks/papers/hmsvm.py prosody
	$(BIN)/python benchmarks/papers/hmsvm.py support

pseudo: $(VENV)/.installed-bench
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/gpsl.py table
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/gpsl.py folds
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/gpsl.py missing --figures docs
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/gpsl.py time

graybox: $(VENV)/.installed-bench
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/graybox.py small
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/graybox.py large
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/graybox.py speed
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/papers/graybox.py evaluations

active: $(VENV)/.installed-bench
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/active.py --figures docs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) -e ".[dev]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml | $(BIN)/python
	$(PIP) -e ".[bench]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
