# Every target makes .venv when it is missing, and brings it up to date when pyproject.toml or the kernel has changed.

# What the tests need. Not torch: it is large, and the tests that want it skip and say so (see test-torch).
EXTRAS ?= dev,onnx,parquet,opt,dask,notebook,docs
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/.installed

.DEFAULT_GOAL := help
# Tests start many processes; without caches of bytecode each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest --benchmark-disable
PARALLEL := -n $(WORKERS) --dist worksteal
.PHONY: help venv demo test test-all test-torch check docs docs-serve format bench validate validate-gpu clean
.PHONY: test-lowest constraints wheels

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY)  ## Make .venv, with the project installed editable

$(READY): pyproject.toml setup.py tools/venv.sh $(wildcard sim/base/*.py sim/base/*.pxd sim/kernel/*.py sim/kernel/*.pxd)
	@tools/venv.sh $(EXTRAS)
	@touch $@

demo: $(READY)  ## Inception v1 on a GPU under several policies: a table, a Gantt chart, a trace
	@mkdir -p out
	$(BIN)/sim compare scenarios/examples/quickstart.yaml \
	    --gantt out/quickstart.png --trace out/quickstart.trace.json.gz

test: $(READY)  ## Run the tests (WORKERS=2 at a time), about two minutes
	$(PYTEST) $(PARALLEL) -m "not slow"

# On a kernel that checks every index, so that one out of bounds is an error and no crash, or worse.
CHECKED := build/checked
test-all: $(CHECKED)/.built  ## ... with notebooks, published tables, whole sessions, and more examples of property tests
	HYPOTHESIS_PROFILE=full SIM_CHECKED_KERNEL=$(CHECKED) $(PYTEST) $(PARALLEL)

$(CHECKED)/.built: $(READY)
	SIM_CHECKED=1 $(BIN)/python setup.py -q build_ext --build-lib $(CHECKED) --build-temp $(CHECKED)/temp
	@touch $@

# From PyPI this brings CUDA along; an index of CPU builds is named with
# PIP_ARGS="--index-url https://download.pytorch.org/whl/cpu".
TORCH ?= torch==2.13.0
test-torch: $(READY)  ## The tests that want torch, of which a CPU build will do
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet $(PIP_ARGS) "$(TORCH)"
	$(PYTEST) -n 0 $$(grep -lE "(importorskip|find_spec)\(.torch.\)" tests/*/test_*.py)

check: $(READY)  ## Formatting, lint, types, layers, the site: what must hold before a commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs

# Strictly: a link that leads nowhere is an error. (With --quiet, MkDocs would not count them.)
docs: $(READY)  ## Build the documentation as a site, out/site/index.html; without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

docs-serve: docs  ## ... and show it on http://localhost:8000, where its search works
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory out/site

format: $(READY)  ## Format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# ARGS="benchmarks/bench_kernel.py -k layered" measures less.
bench: ARGS = benchmarks
bench: $(READY)  ## Measure what a simulated task costs, as a ratio to a raw SimPy timeout
	$(BIN)/python -m pytest $(ARGS) -n 0 -q -s -o python_files="bench_*.py"

validate: $(READY)  ## Sleeps and numpy kernels on real threads, compared with what was predicted
	status=0; for backend in timer threads; do \
	    $(BIN)/python -m validation --backend $$backend || status=1; \
	done; $(BIN)/python -m tools.pages validation && exit $$status

# On a machine with CUDA and torch; nothing is installed. PYTHON=... names its interpreter (3.11 or newer),
# ARGS=--dry-run lists the steps and what is missing. Under nine minutes; run again, it goes on with what is missing.
# Predictions before the measurement want simpy, which is pure Python: its wheel or folder on PYTHONPATH is enough.
# validation/README.md has the first half hour.
PYTHON ?= python3
validate-gpu:  ## The same on a GPU (PYTHON=python3 ARGS=--dry-run)
	PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 \
	    $(PYTHON) -m validation --backend cuda --limit 420 $(ARGS)

# Each extra whose oldest version is tested; notebooks only run with what is new.
LOWEST := .venv-lowest
TESTS ?= tests
test-lowest: | $(BIN)/uv  ## Run the tests with the oldest dependencies that pyproject.toml allows (TESTS=...)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct \
	    --editable '.[test,onnx,parquet,opt,dask]'
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal --benchmark-disable \
	    -W default::DeprecationWarning -W default::FutureWarning $(TESTS)

constraints: | $(BIN)/uv  ## Write down the newest dependencies, with which continuous integration runs
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --upgrade \
	    --custom-compile-command 'make constraints' -o tools/constraints.txt pyproject.toml \
	    --extra dev --extra onnx --extra parquet \
	    --extra opt --extra dask --extra notebook --extra docs

wheels: | $(BIN)/uv  ## Build the source distribution, the wheel for this Python and the pure wheel into dist/
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --python $(BIN)/python
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) SIM_PURE_WHEEL=1 $(BIN)/uv build --quiet --python $(BIN)/python \
	    --wheel dist/*.tar.gz

$(BIN)/uv: | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

clean:  ## Remove everything that can be made again
	rm -rf .venv .venv-lowest out build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks
	rm -rf *.egg-info sim/*/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
