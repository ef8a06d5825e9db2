# Every target makes the environment it needs; nothing has to be installed by hand.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
OUT ?= relbo-out
DATA ?=

export JAX_PLATFORMS ?= cpu

.DEFAULT_GOAL := help
.PHONY: help demo demo-fit test test-all bench docs lint mutants tables

help:
	@echo "make demo      install, run three experiments and a fit quickly, say where the report is"
	@echo "make test      install what the tests need and run them"
	@echo "make test-all  the same with the slow ones"
	@echo "make lint      ruff and pyright"
	@echo "make mutants   break the engine on purpose and see which test notices"
	@echo "make bench     benchmarks; with DATA=dir those that need data too"
	@echo "make docs      the documentation, in site/index.html"
	@echo "make tables    the tables of the experiments on images, from results/"

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'relbo needs Python 3.11 or newer: make PYTHON=/path/to/python')"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-relbo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# pip learnt dependency groups late, so the group is read by hand.
$(VENV)/.installed-%: pyproject.toml scripts/dependency_group.py $(VENV)/.installed-relbo
	$(BIN)/python scripts/dependency_group.py $* > $@.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $@.txt
	@rm $@.txt
	@touch $@

# Most of a quick run is compilation, which takes one core: two runs at a time.
demo: $(VENV)/.installed-relbo
	@$(MAKE) --no-print-directory --jobs=2 demo-funnel demo-co2 demo-hmm-forecast demo-fit
	$(BIN)/relbo report $(OUT)

demo-fit: $(VENV)/.installed-relbo
	$(BIN)/relbo fit examples/eight_schools.py:model --data examples/eight_schools.json --out $(OUT)/eight_schools

demo-%: $(VENV)/.installed-relbo
	$(BIN)/relbo reproduce $* --quick --protocol both --out $(OUT)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2

test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 -m "slow or not slow"

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
	@echo "make bench DATA=dir runs the benchmarks that need data as well"
endif

tables: $(VENV)/.installed-relbo
	$(BIN)/python scripts/tables.py

# Warnings are errors.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q docs site
	@echo "The pages are in site/index.html"
