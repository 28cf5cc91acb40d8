# Every target sets up .venv by itself from requirements.lock, once; it is made anew when the lock or pyproject changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
TOOLS := .tools
# Tests start hundreds of processes: they share what one of them has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-slow check format bench docs lock wheel-test sbom axe audit-deps clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Install everything into .venv; then .venv/bin/wholegrain is the command

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

demo: $(READY) ## Train every policy at ε = 4 on a real table and print what each protects
	$(BIN)/wholegrain demo

test: $(READY) ## Run the quick tests, which cover every privacy property: minutes
	$(BIN)/pytest -m "not slow" -n 2

test-slow: $(READY) ## Run the rest: long statistics, kills, real federations, reproduction, planted faults
	WHOLEGRAIN_TESTS=thorough $(BIN)/pytest -m "slow or thorough" --dist loadfile --no-loadscope-reorder

check: $(READY) ## Style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Rewrite the code in the house's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Run the benchmarks
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/gradients.py --quick --contestants plain ours ours-subject

docs: $(READY) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel-test: $(READY) ## Build the wheel, install it in a fresh environment and use it: minutes (TRY=python3.12: with another Python)
	$(BIN)/python tools/wheel_test.py $(TRY)

lock: $(READY) ## Resolve pyproject.toml into requirements.lock and requirements-hashed.lock; UPGRADE=--upgrade takes newer versions
	$(BIN)/uv pip compile pyproject.toml --extra data --extra flower --extra docs --extra dev --python-version 3.11 \
	    --custom-compile-command "make lock" --no-annotate --quiet $(UPGRADE) --output-file requirements.lock
	$(BIN)/uv pip compile requirements.lock --no-deps --generate-hashes --no-emit-package torch --python-version 3.11 \
	    --custom-compile-command "make lock" --no-annotate --quiet --output-file requirements-hashed.lock

$(TOOLS)/bin/pip-audit:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom pip-audit

sbom: $(READY) $(TOOLS)/bin/pip-audit ## List all that is installed in sbom.json (CycloneDX)
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible --of JSON -o sbom.json $(BIN)/python

axe: ## Install axe-core (npm) for the tests of accessibility
	npm install --no-audit --no-fund --prefix $(TOOLS) axe-core@4.14.0

audit-deps: $(TOOLS)/bin/pip-audit ## Look for known vulnerabilities of the pinned versions (needs a network)
	$(TOOLS)/bin/pip-audit --strict --no-deps --disable-pip --requirement requirements.lock

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) $(TOOLS) sbom.json site dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
