# Two commands for a fresh machine: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install run test test-fast lint chaos wheel browser network bench baseline methods findings figures docs notebook races picture clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 12

install: .venv/installed  ## create .venv, with the command line at .venv/bin/straggler

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

run: install  ## compare synchronous and asynchronous SGD with one slow worker (one to two minutes)
	$(BIN)/python examples/one_slow_worker.py

lint: install  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser:  ## install Chromium for the browser tests if it is missing (Debian and Ubuntu)
	.ci/package chromium chromium chromium-browser google-chrome

network:  ## install iproute2 for the tests with several hosts, which are skipped without it (Debian and Ubuntu)
	-.ci/package iproute2 ip

test: lint browser network  ## check style and types, run all tests except `make chaos`
	$(BIN)/pytest -n 2 --dist worksteal -m "not chaos"

chaos: install network  ## run the longest tests: kill and stop workers under more methods and networks
	$(BIN)/pytest -n 2 --dist worksteal -m chaos

wheel: install  ## try the wheel in an empty environment of each supported Python (minutes; downloads torch)
	$(BIN)/pytest tests/test_wheel.py -m chaos

test-fast: install  ## run the tests that are not marked slow
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

bench: install  ## measure speed as ratios (on a quiet machine)
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/arrivals.py
	$(BIN)/python benchmarks/push_pull.py
	$(BIN)/python benchmarks/messages.py

baseline: install  ## compare with EPFL's six-epoch baselines, into docs/baselines.md
	$(BIN)/python examples/epfl_baseline.py --into docs/baselines.md

methods: install  ## measure error against the number of workers, into docs/methods.md (hours without results/methods)
	$(BIN)/straggler sweep examples/methods.toml
	$(BIN)/python examples/methods_tables.py

findings: install  ## redraw the studies' tables, figures and verdicts from their committed summaries
	for study in epfl epfl-jitter asu gap-aware unequal need-async control one-step; do $(BIN)/straggler study $$study --draw --into docs/findings.md || exit 1; done

figures: install  ## draw docs/figures/ again by the commands in docs/figures.md (minutes)
	$(BIN)/python .ci/draw_figures.py

docs: install  ## write the generated parts of the documents, and build the site into site/ (no network needed)
	$(BIN)/python -m straggler.config.listing
	$(BIN)/python .ci/generate_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html"

notebook: install  ## execute docs/notebook.ipynb again and keep its outputs (a minute)
	$(BIN)/python .ci/run_notebook.py

races: install  ## train the recorded races of the playground again (a minute)
	$(BIN)/python -m straggler.web.races

picture: install  ## draw the README's animated picture of a race, docs/race.svg
	$(BIN)/straggler playground --picture docs/race.svg

clean:  ## remove the environment and caches, keep the records in runs/
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
