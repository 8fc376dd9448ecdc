# make demo   sets everything up and shows what seqfield does
# make test   sets everything up and runs lint, types, layers and all tests
# with SEQFIELD_DATA set (benchmarks/README.md says more):
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
	$(BIN)/python -m benchmarks.speed.crf
	$(BIN)/python -m benchmarks.speed.online
	$(BIN)/python -m benchmarks.speed.primal
	$(BIN)/python -m benchmarks.speed.kernel
	$(BIN)/python -m benchmarks.speed.margin

papers: $(VENV)/.installed
	$(BIN)/python -m benchmarks.papers.four_tasks

thesis: $(VENV)/.installed
	$(BIN)/python -m benchmarks.papers.primal

kernels: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.papers.gpsc ner
	$(BIN)/python -m benchmarks.papers.gpsc sparse
	$(BIN)/python -m benchmarks.papers.gpsc prosody --figures docs
	$(BIN)/python -m benchmarks.papers.kernel_crf --figures docs

margins: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.papers.hmsvm four
	$(BIN)/python -m benchmarks.papers.hmsvm ner
	$(BIN)/python -m benchmarks.papers.hmsvm prosody
	$(BIN)/python -m benchmarks.papers.hmsvm support

pseudo: $(VENV)/.installed-bench
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpsl table
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpsl folds
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpsl missing --figures docs
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpsl time

graybox: $(VENV)/.installed-bench
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpstruct small
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpstruct large
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpstruct speed
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.gpstruct evaluations

active: $(VENV)/.installed-bench
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.active_learning --figures docs

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
