# Sets up, runs, checks and measures Stoker. `make` alone lists the targets.
# Everything is installed into .venv, again only when pyproject.toml has changed.

BIN := .venv/bin
RUNTIME := .venv/.installed
DEVELOPMENT := .venv/.installed-development
# Of `make test`; given there, and not by chance in the environment.
TESTS :=

.DEFAULT_GOAL := help
.PHONY: help install demo up test test-slow lint fmt bench workloads peers clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

install: $(RUNTIME) ## create .venv with the API, the worker and the command `stoker`

demo: $(RUNTIME) ## the whole story in a minute: train, stop, restart and succeed on real data
	@$(BIN)/python benchmarks/demo.py

up: $(RUNTIME) ## start API, worker and exporter in this terminal
	@$(BIN)/stoker up

test: $(if $(TESTS),$(DEVELOPMENT),lint) ## every check, and every test but those of test-slow; of a part without lint: TESTS=tests/store
	@$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations=25 $(TESTS)

test-slow: $(DEVELOPMENT) ## what takes minutes: scripts of real libraries, 50 kills, whole workloads, searches, pages that install
	@$(BIN)/python -m pytest -m minutes --durations=25 $(TESTS)

lint: $(DEVELOPMENT) ## style, types and the rules of who may import whom
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

fmt: $(DEVELOPMENT) ## put the code into its one format
	@$(BIN)/ruff check --quiet --fix
	@$(BIN)/ruff format --quiet

bench: $(RUNTIME) ## measure this machine: rules, loading, training, checkpoints, memory plans, the service, the demo
	@$(BIN)/python -m benchmarks --json benchmarks/results

workloads: $(DEVELOPMENT) ## train every spec of examples on real data, in a home of their own
	@$(BIN)/python -m benchmarks.examples

peers: $(RUNTIME) ## install what `make bench` compares with and needs an environment of its own
	@.ci/install worker,peers .venv/peers

clean: ## remove the environment and everything that was generated
	rm -rf .venv .demo dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): pyproject.toml
	@echo "Installing Stoker into .venv (the first time takes a minute or two)"
	@.ci/install worker,samples,boards,filters,scripts
	@touch $@

$(DEVELOPMENT): pyproject.toml
	@echo "Installing Stoker and its development tools into .venv"
	@.ci/install worker,samples,scripts,boards,molecules,panels,export,filters,postgres,test,dev
	@touch $(RUNTIME) $@
