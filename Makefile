PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests run in two worker processes; with more than one thread each they would fight over the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: test demo lint types slow setup clean

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[data,metrics,mri,dev]'
	touch $@

test: setup lint types
	$(BIN)/pytest -n 2 -m 'not slow'

# The demonstration runs alone and may use every core.
demo: export OMP_NUM_THREADS = $(shell nproc)
demo: setup
	$(BIN)/diffem fit digits -o runs/digits

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

slow: setup
	$(BIN)/pytest -m slow

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
