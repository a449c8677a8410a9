# `make test` and `make check` need nothing but python3 and make: the first target builds .venv.
# uv is used where it is present; otherwise venv and pip install the same versions from requirements.lock.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMP := .venv/.installed
UV := $(shell command -v uv 2>/dev/null)
PYTHON ?= python3
# for two cores: with four, a third of them was idle, because two or three workers watch daemons and containers wait
PYTEST_WORKERS ?= 5
# in the order of tests/conftest.py, not the largest groups first
SPREAD := -n $(PYTEST_WORKERS) --dist loadgroup --no-loadscope-reorder
PYTEST_ARGS ?=

# PEERS_ARGS chooses what the peers' harness measures; GROWTH is how many finished tasks fill the tables.
PEERS_ARGS ?= --systems accsd_pull,accsd,pgqueuer,chancy,graphile_worker,pg_boss --reps 3 --backlog-jobs 60000
GROWTH ?= 10000000

.PHONY: help install test test-quick soak calendar lint check demo bench bench-schedules web-bench screenshots vendor-web schema reference lock lock-check format clean chaos

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | while IFS=$$'\t' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

install: $(STAMP) ## make .venv with .venv/bin/accsd

ifdef UV
$(STAMP): pyproject.toml uv.lock
	uv sync --quiet --locked
	@touch $@
else
$(STAMP): pyproject.toml requirements.lock tools/make_venv.py
	$(PYTHON) tools/make_venv.py .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@
endif

test: install ## every test but those of `make soak`; on a second PostgreSQL, if it is there, what may differ
	room=$$(tools/quick_tmp.sh); [ -z "$$room" ] || export TMPDIR=$$room; \
	$(BIN)/pytest $(SPREAD) $(PYTEST_ARGS)

test-quick: install ## what to run all day: unit, db on PostgreSQL 18, cli
	room=$$(tools/quick_tmp.sh); [ -z "$$room" ] || export TMPDIR=$$room; \
	$(BIN)/pytest -q $(SPREAD) -m "not soak and not slow" -k "not pg15" $(PYTEST_ARGS) tests/unit tests/db tests/cli

soak: install ## what takes minutes to hours: floods of a million lines, hostile input at length, herds of schedules, chaos, all SQL on both versions
	room=$$(tools/quick_tmp.sh); [ -z "$$room" ] || export TMPDIR=$$room; \
	$(BIN)/pytest -m soak -rP $(PYTEST_ARGS)

calendar: install ## schedules in all zones that differ, through twenty years, against an oracle: most of an hour
	$(BIN)/pytest -m soak -rP -k calendar_of_all_zones $(PYTEST_ARGS) tests/unit/test_recurrence_oracle.py

SEED ?= 1
MINUTES ?= 5
POSTGRES ?= 18
CHAOS_ARGS ?=

chaos: install ## a fleet under seeded faults, and a verdict: 5 minutes and what follows (SEED=1 MINUTES=5 POSTGRES=18|15)
	room=$$(tools/quick_tmp.sh); [ -z "$$room" ] || export TMPDIR=$$room; \
	$(BIN)/python -m tests.chaos --seed $(SEED) --minutes $(MINUTES) --postgres $(POSTGRES) $(CHAOS_ARGS)

lint: install lock-check ## format, lint, strict types, import contracts
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

check: lint ## the same, and the fast tests
	$(BIN)/pytest -q tests/unit

demo: install ## two jobs, a power cut and a machine that is woken: one minute, nothing else needed
	@$(BIN)/accsd demo

bench: install ## against the peers, in full tables, with many idle agents, in containers: an hour, on a machine that does nothing else
	$(BIN)/python bench/peers/run_peers.py --no-default-configs --no-ceiling $(PEERS_ARGS)
	$(BIN)/python -m bench.growth --tasks $(GROWTH)
	$(BIN)/python -m bench.long_drain
	$(BIN)/python -m bench.idle_agents
	$(BIN)/python -m bench.containers

bench-schedules: install ## how late schedules and events are, what they cost, and beside peers whose processes are killed: 40 minutes
	$(BIN)/python -m bench.on_time
	$(BIN)/python -m bench.schedules
	$(BIN)/python bench/peers/run_schedules.py

# Both with --keep FOLDER use one database.
WEB_ARGS ?=
BROWSER_ARGS ?=

web-bench: install ## the gateway's budgets beside 1,000,000 jobs, what it uses idle, what ten streams cost a claim, and the page in a slow browser for an hour: 2 hours, 20 GB
	$(BIN)/python -m bench.web $(WEB_ARGS)
	$(BIN)/python -m bench.web_browser $(BROWSER_ARGS)

screenshots: install ## docs/pictures: the page, light and dark, as the tests' studio fills it
	room=$$(tools/quick_tmp.sh); [ -z "$$room" ] || export TMPDIR=$$room; \
	$(BIN)/python tools/make_screenshots.py $(PICTURES)

vendor-web: install ## bring the page's libraries again (npm), and compare
	$(BIN)/python tools/vendor_web.py && $(BIN)/python tools/vendor_web.py --compare

schema: ## assemble schema.sql from the files in schema/
	$(PYTHON) tools/make_schema.py

reference: install ## write docs/reference from the code
	$(BIN)/python tools/make_reference.py

format: install ## rewrite the code in the house format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

EXPORT := uv export --quiet --frozen --no-emit-project --no-header

lock: ## resolve again: uv.lock, and requirements.lock for machines without uv
	uv lock
	$(EXPORT) --output-file requirements.lock

# Both lock files must name the same versions, and no package index but PyPI.
lock-check:
	@if grep -ohE '(https?|file)://[^/" ]*' uv.lock | grep -vxE 'https://(pypi\.org|files\.pythonhosted\.org)'; then \
		echo 'uv.lock names another host than PyPI' >&2; exit 1; fi
ifdef UV
	@uv lock --quiet --check
	@$(EXPORT) | cmp -s - requirements.lock || { echo 'requirements.lock differs from uv.lock: run make lock' >&2; exit 1; }
endif

clean: ## remove what was built
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
