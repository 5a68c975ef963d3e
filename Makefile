# Two commands to begin with: `make demo` and `make test`. Both install what is missing and say what.
PYTHON ?= python3
VENV := .venv/bin

# Where the environment forbids it, every process of ours would compile the program anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help server server-stop site man reference install install-mysql install-kafka install-browser demo demo-move demo-feed test every versions models soak airflow airflow-stop check bench bench-feed clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Install what is missing: uv, locked dependencies, Java, MariaDB
	@$(PYTHON) -m sandbox.install python java archive mariadb

install-mysql: ## Fetch MySQL's programs into a folder of their own
	@$(PYTHON) -m sandbox.install mysql

install-kafka: ## Fetch the jars of Apache Kafka, and of Spark's connector to it, into folders of their own
	@$(PYTHON) -m sandbox.install python java kafka

install-browser: ## Install a browser without a window, unless one is there
	@$(PYTHON) -m sandbox.install python browser

demo: install ## Change a live table of 1,000,000 rows and prove the result (VREPLICATION_DEMO_ROWS, VREPLICATION_DEMO_FLAVOR)
	@$(VENV)/python -m sandbox.demo

demo-move: install install-mysql ## Move three live tables from MariaDB to MySQL, back, and there again (VREPLICATION_DEMO_DIRECTION)
	@$(VENV)/python -m sandbox.demo_move

demo-feed: install install-mysql install-kafka ## Feed MariaDB and MySQL through Kafka into a third server, scaled and killed under load
	@$(VENV)/python -m sandbox.demo_feed

test: ## Install what is missing and run all tests, on MariaDB and on MySQL
	@$(PYTHON) -m sandbox.install python java archive bytecode mariadb postgres keyring mysql kafka prometheus shells chromium browser
	@$(VENV)/pytest tests -n 3 --dist loadgroup --no-loadscope-reorder

every: ## All tests with all their cases, on both servers: about twice the time of `make test`
	@$(MAKE) test VREPLICATION_EVERY_CASE=1

versions: install install-mysql install-kafka ## A part of the tests on other versions of the servers (SERVERS="mariadb-11.8 mysql-8.0")
	@$(PYTHON) -m sandbox.versions $(or $(SERVERS),$(shell $(PYTHON) -m sandbox.versions)) || true
	@$(VENV)/python -m tests.versions $(SERVERS)

models: ## Explore the models of the protocol within larger bounds: some minutes, no server
	@$(PYTHON) -m sandbox.install python
	@VREPLICATION_EVERY_CASE=1 VREPLICATION_MODELS=large $(VENV)/pytest tests/models --timeout 3600

soak: install install-mysql install-kafka ## kill -9 and hard cases as often as wanted, on both servers (KILLS=30 GROUPS=75 SEED=1)
	@$(VENV)/python -m tests.soak $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(SOAK)
	@VREPLICATION_HARD_GROUPS=$(or $(GROUPS),75) VREPLICATION_HARD_SEED=$(or $(SEED),11) \
	  VREPLICATION_EVERY_CASE=1 $(VENV)/pytest tests/integration/test_flow_hard.py -n 2 --timeout 0 -s
	@rm -f .sandbox/feed-soak; mkdir -p .sandbox
	@VREPLICATION_FEED_SEEDS=$(or $(KILLS),30) VREPLICATION_FEED_TABLE=$(CURDIR)/.sandbox/feed-soak VREPLICATION_EVERY_CASE=1 $(VENV)/pytest -n 2 \
	  --timeout 0 $(foreach each,producer sources snapshot faults broker_faults leaderless,tests/integration/test_feed_$(each).py); \
	  code=$$?; $(VENV)/python -m tests.support.soaked .sandbox/feed-soak; exit $$code

server: install ## A private server with an empty database, for docs/tutorial.md (VREPLICATION_DEMO_FLAVOR)
	@$(VENV)/python -m sandbox.own_server start

server-stop: ## End what `make server` started, with all that is on it
	@$(VENV)/python -m sandbox.own_server stop

airflow: install ## Airflow with two private servers under a live workload: http://127.0.0.1:8080 (AIRFLOW_PORT)
	@$(PYTHON) -m sandbox.install postgres
	@$(VENV)/python -m sandbox.airflow_demo start

airflow-stop: ## End what `make airflow` started
	@$(VENV)/python -m sandbox.airflow_demo stop

reference: ## Write docs/reference.md anew, from the registry of workflow kinds
	@$(VENV)/python -m sandbox.reference

site: ## Build the documentation site from docs/ into build/site; a broken link fails
	@$(PYTHON) -m sandbox.install python
	@$(VENV)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/site && echo build/site/index.html

man: ## Write the manual page from the program's own parser: build/man/vreplication.1
	@$(PYTHON) -m sandbox.install python
	@$(VENV)/sphinx-build -q -W --keep-going -b man -d build/doctrees docs build/man && echo build/man/vreplication.1

check: ## Lint, formatting, types and the fast tests: under a minute
	@$(PYTHON) -m sandbox.install python
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/pytest -q tests/unit

bench: install install-mysql ## Measure us, and us beside gh-ost, spirit and pt-online-schema-change (bench/README.md)
	@$(PYTHON) -m sandbox.install charts
	@$(VENV)/python -m bench

bench-feed: install install-mysql install-kafka ## Measure a change feed beside Debezium, about a quarter of an hour (FEED="--only all", bench/README.md)
	@$(VENV)/python -m bench.feed $(FEED)

clean: ## Remove what demo and tests left: .sandbox, caches (not .venv)
	@rm -rf .sandbox .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
