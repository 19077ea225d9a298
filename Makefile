# make rescore | make test: from nothing. `make help` lists the rest.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMPS  := $(VENV)/.stamps
DEMO    := demo
# Processes of `make test`, each with a Spark session of its own: much of a small Spark job is one thread planning it.
WORKERS := 2

# The kernels' speed depends on these two; a shell may have set them for something else.
CLEAN_ENV := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup rescore test test-faults test-pages nightly-tests lint bench dist clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make rescore      set up, simulate a leaderboard history, ingest, fit, publish, print the top of the ranking
rescore: $(STAMPS)/jars
	@$(BIN)/python -m cbmm_spark.cli.demo $(DEMO) --config conf/local.toml --output text

## make test         set up and run the whole test-suite (PYTEST_ARGS="-k config" for a part of it)
test: $(STAMPS)/test $(STAMPS)/jars
	@$(BIN)/python -m pytest -m "not faults and not pages" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

## make test-faults  the tests that kill drivers and executors
test-faults: $(STAMPS)/test $(STAMPS)/jars
	@$(BIN)/python -m pytest -m faults $(PYTEST_ARGS)

## make test-pages   the commands of every page of docs/formats, from the first to a scored leaderboard
test-pages: $(STAMPS)/test $(STAMPS)/jars
	@$(BIN)/python -m pytest -m pages $(PYTEST_ARGS)

## make nightly-tests  both of the above, the second also where the first fails: for a job at night
nightly-tests: $(STAMPS)/test $(STAMPS)/jars
	@code=0; for part in faults pages; do $(BIN)/python -m pytest -m $$part $(PYTEST_ARGS) || code=1; done; exit $$code

## make lint         ruff and mypy
lint: $(STAMPS)/test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

## make bench        what the fit costs, measured (BENCH_ARGS=…)
bench: $(STAMPS)/test $(STAMPS)/jars
	@$(CLEAN_ENV) $(BIN)/python -m benchmarks $(BENCH_ARGS)

## make dist         dist/cbmm_spark.zip for spark-submit --py-files, and a wheel beside it
dist: $(STAMPS)/package dist/cbmm_spark.zip
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# Code and the files it reads: what the wheel holds as package data must be here too (tests/test_packaging.py).
dist/cbmm_spark.zip: $(shell find cbmm_spark -name '*.py' -o -name '*.properties')
	@mkdir -p dist && rm -f $@
	@$(PYTHON) -c "import pathlib, sys, zipfile; \
	archive = zipfile.ZipFile('$@', 'w', zipfile.ZIP_DEFLATED); \
	[archive.write(path) for path in sorted(sys.argv[1:])]; archive.close()" $^

## make setup        only set up
setup: $(STAMPS)/test $(STAMPS)/jars

## make clean        remove what the commands made, the environment too
clean:
	rm -rf $(VENV) $(DEMO) dist build spark-warehouse *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- setting up, each step once; a changed pyproject.toml installs anew ---------------------------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	"cbmm-spark needs Python 3.11 or newer, $(PYTHON) is %d.%d: install one and run make PYTHON=python3.11 …" % v[:2])'
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/package: pyproject.toml | $(STAMPS)/venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# The same step with what tests need: one run of pip instead of two where `make test` comes first.
$(STAMPS)/test: pyproject.toml | $(STAMPS)/venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $(STAMPS)/package $@

# `make test` asks for both; let the bigger installation go first, so that the smaller one has nothing to do.
$(STAMPS)/jars: | $(STAMPS)/package
	@$(BIN)/python -m cbmm_spark.spark.delta_jars
	@touch $@
