# Every target creates the environment it needs; nothing has to be installed by hand.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
OUT ?= relbo-out
DATA ?=

export JAX_PLATFORMS ?= cpu

.DEFAULT_GOAL := help
.PHONY: help demo test test-paper test-all test-pymc test-frames lint mutants bench docs tables architecture

help:
	@echo "make demo          install, show relbo in four pictures, print the path of their page"
	@echo "make test          install and run the quick tests of the library and the paper"
	@echo "make test-paper    the quick tests of the paper alone"
	@echo "make test-all      all tests, including the slow ones"
	@echo "make test-pymc     install PyMC and run the tests that need it"
	@echo "make test-frames   install polars and pyarrow and run the tests that need them"
	@echo "make lint          ruff and pyright"
	@echo "make mutants       break the engine on purpose and check that a test notices"
	@echo "make bench         benchmarks; with DATA=dir also those that need data"
	@echo "make docs          build the documentation into site/index.html"
	@echo "make tables        write the tables of the image experiments into the pages"
	@echo "make architecture  draw the picture of the rooms from the imports"

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'relbo needs Python 3.11 or newer: make PYTHON=/path/to/python')"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-relbo: pyproject.toml paper/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -e paper
	@touch $@

# Older versions of pip cannot install dependency groups.
$(VENV)/.installed-%: pyproject.toml scripts/dependency_group.py $(VENV)/.installed-relbo
	$(BIN)/python scripts/dependency_group.py $* > $@.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $@.txt
	@rm $@.txt
	@touch $@

# The parts run in turn: times would mean nothing otherwise, and their output would be mixed.
demo: $(VENV)/.installed-relbo
	@$(BIN)/python examples/demo.py --out $(OUT)

# Each worker begins with one half of the files, so that tests of a file share programs.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/with_pymc

test: $(VENV)/.installed-test
	$(PYTEST) tests
	$(PYTEST) paper/tests

test-paper: $(VENV)/.installed-test
	$(PYTEST) paper/tests

test-all: $(VENV)/.installed-test
	$(PYTEST) -m "slow or not slow" tests
	$(PYTEST) -m "slow or not slow" paper/tests

# PyMC changes settings of the process that imports it.
test-pymc: $(VENV)/.installed-test $(VENV)/.installed-pymc
	$(BIN)/python -m pytest -n 2 tests/with_pymc

test-frames: $(VENV)/.installed-test $(VENV)/.installed-frames
	$(BIN)/python -m pytest -n 2 tests/problem/test_arrays.py tests/commands/test_fit_command.py -k "arrays or parquet"

lint: $(VENV)/.installed-test $(VENV)/.installed-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

mutants: $(VENV)/.installed-test
	$(BIN)/python scripts/mutants.py

bench: $(VENV)/.installed-test
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/imports.py
ifneq ($(DATA),)
	$(BIN)/python benchmarks/densities.py --data-dir $(DATA)
	$(BIN)/python benchmarks/evidence.py --data-dir $(DATA)
else
	@echo "make bench DATA=dir also runs the benchmarks that need data"
endif

architecture: $(BIN)/python
	$(BIN)/python scripts/architecture.py

tables: $(VENV)/.installed-relbo
	$(BIN)/python paper/scripts/tables.py

# Warnings are errors. All pages are written again: what their code printed is kept in docs/_runs.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -E -a -W --keep-going -q docs site
	@echo "The documentation is in site/index.html"
