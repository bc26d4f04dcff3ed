# `make help` lists the targets. Nothing needs to be installed beforehand but Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
NPM := $(shell command -v npm)
JAVASCRIPT := $(VENV)/javascript
SHELL := /bin/bash
# Where it is set, each process that a test starts would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo up test test-all openapi chaos check format bench bench-course bench-train bench-platforms bench-scheduler bench-packing bench-everyday scale screenshots compose-try clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(INSTALLED): pyproject.toml client/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Trainyard needs Python 3.11 or newer; this is %s. Name another one: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	@echo "Setting up $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e client -e '.[train,test]'
	@touch $@

$(JAVASCRIPT)/.installed: dashboard/package.json dashboard/package-lock.json
	@echo "Installing what checks the pages' scripts into $(@D) (a few seconds, once)"
	@mkdir -p $(@D) && cp $^ $(@D) && rm -f $@
	@cd $(@D) && npm ci --loglevel=error --no-audit --no-fund >/dev/null && touch .installed || \
		echo "The tools in dashboard/package-lock.json could not be installed: npm says why above."

ifdef NPM
check format: $(JAVASCRIPT)/.installed
endif

demo: $(INSTALLED)  ## Start the platform, train a small GPT through all of it, show the result
	@$(BIN)/trainyard demo

up: $(INSTALLED)  ## Start the platform on this machine and leave it running
	@$(BIN)/trainyard up

check: $(INSTALLED)  ## Lint, types, import contracts, words of docstrings and of people's texts, scripts of pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy -p trainyard
	$(BIN)/lint-imports
	$(BIN)/python -m tests.language
	$(BIN)/python -m tests.wording
	@if [ ! -e $(JAVASCRIPT)/.installed ]; then \
		echo "Not checked: dashboard/static/**/*.js. That needs Node.js 20 or newer with npm."; \
	else \
		set -ex; (cd dashboard && ../$(JAVASCRIPT)/node_modules/.bin/biome ci --colors=off --error-on-warnings); \
		node dashboard/types/write_api.js docs/openapi.json $(JAVASCRIPT)/api.d.ts; \
		$(JAVASCRIPT)/node_modules/.bin/tsc --project dashboard; \
	fi

test: $(INSTALLED)  ## All but the slow tests, with real PostgreSQL and Valkey; 12 minutes on two cores
	@$(BIN)/python -m tests.install
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not slow"

test-all: $(INSTALLED)  ## The slow ones, too: every combination, rare faults, both databases throughout
	@$(BIN)/python -m tests.install
	$(BIN)/python -m pytest -n 3 --dist loadgroup --hypothesis-profile new-cases

openapi: $(INSTALLED)  ## Write docs/openapi.json and the client's views from the server's schemas
	$(BIN)/python -m api.write_openapi
	$(BIN)/python -m api.contract.client_views

chaos: $(INSTALLED)  ## Break a whole platform 50 times, count what was lost (ROUNDS=1000 SEED=7)
	$(BIN)/python -m tests.chaos --rounds $(or $(ROUNDS),50) $(if $(SEED),--seed $(SEED))

format: $(INSTALLED)  ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@if [ -e $(JAVASCRIPT)/.installed ]; then \
		cd dashboard && ../$(JAVASCRIPT)/node_modules/.bin/biome check --colors=off --write; fi

bench: $(INSTALLED)  ## Measure; writes docs/benchmarks.md (ONLY="--only memory" measures a part)
	$(BIN)/python -m benchmarks $(ONLY)

bench-course: $(INSTALLED)  ## Play a course's busiest hours (ONLY="--only opening"); writes docs/benchmarks-course.md
	$(BIN)/python -m benchmarks.course --chromium 10 $(ONLY)

bench-train: $(INSTALLED)  ## Measure our training loop against others (PAIRS=20); writes docs/benchmarks-training.md, or -gpus.md on GPUs
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.train --pairs $(or $(PAIRS),20)

bench-platforms: $(INSTALLED)  ## Measure Trainyard beside Slurm, Ray Jobs and MLflow; writes docs/benchmarks-platforms.md
	$(BIN)/python -m benchmarks.platforms $(ONLY)

bench-scheduler: $(INSTALLED)  ## Replay traces (TRACES=folder) under four rules; writes docs/benchmarks-scheduling.md
	$(BIN)/python -m benchmarks.scheduling $(TRACES)

bench-packing: $(INSTALLED)  ## Replay a course's week with leases of nodes and of GPUs; prints the table of docs/scheduling.md
	$(BIN)/python -m benchmarks.packing

bench-everyday: $(INSTALLED)  ## Do ten everyday tasks on the pages by script; prints the table of docs/dashboard.md
	$(BIN)/python -m benchmarks.everyday

scale: $(INSTALLED)  ## A thousand nodes and ten thousand jobs on this machine (MINUTES=60); writes docs/benchmarks-scale.md
	$(BIN)/python -m benchmarks.scale --minutes $(or $(MINUTES),60)

screenshots: $(INSTALLED)  ## Take the pictures of README and docs anew (docs/images)
	@$(BIN)/python -m tests.install
	$(BIN)/python -m tests.dashboard.pictures

compose-try:  ## Try docker-compose.yml from build to a trained job; needs a container engine
	@bash tests/standalone/try_compose.sh

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
