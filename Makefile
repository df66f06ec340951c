# Everything that can be done with this checkout. `make` lists it.
#
#   PYTHON   the Python to build .venv with (3.10 or newer)
#   TORCH    what pip installs torch from, e.g. make setup TORCH="torch torchvision"
#   BUDGET   seconds of measuring in the demo
#   JOBS     processes that run tests side by side
#   ARGS     passed on to pytest, e.g. make test ARGS="-k plan -x"

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.14.1 torchvision==0.29.1
BUDGET ?= 130
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup data demo test check docs format bench gpu-check clean
.PHONY: bench-packages bench-noise bench-search bench-growth bench-oracle bench-peers bench-limit bench-diagnosis

help: ## list the targets
	@echo "usage: make TARGET"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with torch, hasten and the tools (5.5 GB; once)

$(READY): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "hasten needs Python 3.10 or newer: make setup PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "no .venv could be made: is python3-venv installed?"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[torch,demo,test,check]'
	@touch $@

data: $(READY) ## write the demo's image set to examples/data
	@$(BIN)/python examples/make_data.py

demo: data ## tune examples/image_classification.py (five minutes)
	$(BIN)/hasten tune --budget $(BUDGET) examples/image_classification.py --epochs 40

test: $(READY) ## all tests that are neither slow nor for a GPU (under ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(READY) ## lint, formatting and types
	$(BIN)/ruff check src tests examples benchmarks docs
	$(BIN)/ruff format --check src tests examples benchmarks docs
	$(BIN)/mypy
	$(BIN)/python docs/make_pages.py --check

docs: $(READY) ## write docs/optimisations from the docstrings of the units
	$(BIN)/python docs/make_pages.py

format: $(READY) ## put all files into the standard format
	$(BIN)/ruff format src tests examples benchmarks
	$(BIN)/ruff check --fix src tests examples benchmarks

bench: bench-noise bench-search bench-growth bench-oracle bench-peers bench-limit bench-diagnosis ## every benchmark, and the slow tests (hours)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -s $(ARGS)

WORKLOADS := jpeg cnn vit gpt lstm vae

bench-packages: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'

bench-noise: bench-packages ## why turns: verdicts under busy cores (two minutes)
	$(BIN)/python benchmarks/noise.py

bench-search: bench-packages ## how close the search comes to the best on made-up loops (five minutes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/search_quality.py --seeds 8

bench-growth: bench-packages ## what grows with what (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/growth.py

bench-oracle: bench-packages ## hasten's plan against every combination (hours; goes on where it stopped)
	for name in $(WORKLOADS); do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/oracle.py $$name; done
	$(BIN)/python benchmarks/oracle.py --report

bench-peers: bench-packages ## against what people use today (hours; goes on where it stopped)
	for name in $(WORKLOADS); do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peers.py $$name; done
	$(BIN)/python benchmarks/peers.py --report

bench-diagnosis: bench-packages ## planted time, ceilings, peers, and every finding on its script (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/anatomy.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/diagnosis_peers.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/findings.py

bench-limit: bench-packages ## how far tuned scripts are from what the machine allows (half an hour)
	for name in $(WORKLOADS); do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/limit.py $$name; done
	$(BIN)/python benchmarks/limit.py --report

gpu-check: $(READY) ## what only a machine with a GPU can show
	$(BIN)/python benchmarks/gpu_check.py

clean: ## remove .venv, caches and the demo's data
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis examples/data
