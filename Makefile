# Two commands for a fresh machine: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install run test test-fast lint chaos browser bench baseline methods findings clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 12

install: .venv/installed  ## make .venv with the command line at .venv/bin/straggler

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

run: install  ## eight workers, one slow: synchronous against asynchronous, in one to two minutes
	$(BIN)/python examples/one_slow_worker.py

lint: install  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser:  ## Chromium for the tests that open pages, from Debian if it is missing
	.ci/browser

test: lint browser  ## lint, types and all tests but the longest
	$(BIN)/pytest -n 2 --dist worksteal -m "not chaos"

chaos: install  ## the longest tests: workers killed and stopped under more methods, on more networks
	$(BIN)/pytest -n 2 --dist worksteal -m chaos

test-fast: install  ## the tests that take less than a minute together
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

bench: install  ## speed as ratios; run it on a quiet machine
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/arrivals.py
	$(BIN)/python benchmarks/push_pull.py

baseline: install  ## EPFL's six-epoch baselines beside ours
	$(BIN)/python examples/epfl_baseline.py --into docs/baselines.md

STALE := nag-asgd dc-asgd sa ga dana dana-ga
methods: install  ## error against the number of workers, eight methods, three seeds (hours)
	$(BIN)/python examples/methods_study.py --into docs/methods.md
	$(BIN)/python examples/methods_study.py --lr 0.01 --results results/methods-lr-0.01 --into docs/methods.md
	$(BIN)/python examples/methods_study.py --lr 0.002 --methods $(STALE) --results results/methods-lr-0.002
	$(BIN)/python examples/methods_study.py --lr 0.25 --methods ssgd dana-ga --results results/methods-lr-0.25
	$(BIN)/python examples/methods_study.py --tune results/methods results/methods-lr-0.01 results/methods-lr-0.002 \
	  results/methods-lr-0.25 --results results/methods-tuned --into docs/methods.md
	$(BIN)/python examples/methods_study.py --lr 0.01 --epochs 16 --workers 8 --methods sa ga \
	  --results results/methods-16-epochs --into docs/methods.md
	$(BIN)/python examples/methods_study.py --model asu-fashion --methods nag-asgd sa ga dana dana-ga --workers 8 \
	  --results results/methods-batchnorm --into docs/methods.md

findings: install  ## the three studies' tables, figures and verdicts from their committed summaries
	for study in epfl asu gap-aware; do $(BIN)/straggler study $$study --draw --into docs/findings.md || exit 1; done

clean:  ## remove what was built (records in runs/ stay)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
