# `make help` lists what can be made. Needs only make and Python 3.11 or newer: no root, no Java.

.DEFAULT_GOAL := help
.PHONY: help setup demo browser test docs compiled check soak matrix wheel-check lint format lock clean

# make setup PYTHON=/path/to/python3   to use another Python than the newest on the PATH
# make test ARGS="-k tokens"           to pass options on (test, compiled, soak, matrix, wheel-check, demo, lock)
PYTHON  :=
ARGS    :=
MINUTES := 60

BIN   := .venv/bin
READY := .venv/.ready

help: ## Show this help
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with Jeton and all it needs, a Java included if the machine has none

$(READY): pyproject.toml evaluation/pyproject.toml requirements.lock requirements-java.lock tools/setup.py
	@$(or $(PYTHON),python3) tools/setup.py $(if $(PYTHON),--python $(PYTHON))
	@touch $@

demo: $(READY) ## Show that Jeton and Spark work on this machine
	@$(BIN)/jeton demo $(ARGS)

browser: $(READY) ## Install a Chromium for the tests of the live page, where that takes no question
	@$(BIN)/python -m tools.browser

test: lint browser ## Check style, types and imports, then run all tests
	$(BIN)/pytest -n 2 $(ARGS)

docs: $(READY) ## Build the documentation site into build/site; links that lead nowhere are errors
	@$(BIN)/python tools/docs.py

soak: $(READY) ## Run the campaigns that CI leaves out, for MINUTES=60; ends with a table
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

matrix: $(READY) ## Run the tests on Spark on each PySpark and Python, classic and Connect: hours; ARGS=--quick
	@$(BIN)/python -m tools.matrix $(ARGS)

wheel-check: $(READY) ## Build the wheel, install it with each extra into empty environments, and run the examples
	@$(BIN)/python -m tools.wheel_check $(ARGS)

lint: $(READY) ## Check style, types, which floor imports which, dead code and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture
	$(BIN)/codespell

compiled: $(READY) ## Compile the modules on the path of a batch into build/compiled, and run the tests with them
	$(BIN)/python -m tools.compiled
	PYTHONPATH=build/compiled:evaluation $(BIN)/pytest -n 2 tests $(ARGS)

check: lint docs ## Check all that lint does, the site, and known holes in dependencies (asks the registry)
	$(BIN)/pip-audit --require-hashes --disable-pip -r requirements.lock

format: $(READY) ## Mend style in place
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(READY) ## Resolve the lock files anew; ARGS=--upgrade takes newer versions
	@$(BIN)/python tools/setup.py lock $(ARGS)

clean: ## Remove .venv and everything that tools left behind
	rm -rf .venv .venv-spark-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find src evaluation tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
