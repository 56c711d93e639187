PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
# Tests run in two worker processes, which would compete for the cores with more than one thread each.
export OMP_NUM_THREADS ?= 1

.PHONY: test demo docs lint types slow chaos flicker peers setup clean

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[data,metrics,mri,app,docs,dev]'
	touch $@

test: setup lint types
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow'

# The demonstration runs alone and may use every core.
demo: export OMP_NUM_THREADS = $(shell nproc)
demo: setup
	$(BIN)/diffem fit digits -o runs/digits

# The site, in site/; a warning is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

slow: setup
	$(BIN)/pytest -m slow

# Three hundred faults at random times: kills, full disks, damaged files, no memory.
chaos: setup
	$(BIN)/python -m benchmarks.chaos --faults 300

# The suite ten times while every core is kept busy by other work: no test may depend on time, load or luck.
flicker: setup
	$(BIN)/python -m benchmarks.flicker --runs 10

# deepinv, azula and diffusers need torchvision, which everything else does without, so they get their own environment:
# torch first, then the rest as pinned, without resolving dependencies, because that would install another torch.
peers: $(PEERS)/.done
	PYTHONPATH=src $(PEERS)/bin/python -m pytest tests/interop

$(PEERS)/.done: constraints-peers.txt constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement constraints-peers.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache site
