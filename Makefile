# share_spark: needs Python 3.11, and Java 17 or 21. `make` alone lists the commands.

PYTHON    ?= python3.11
SCENARIOS ?= tests/conformance/data/share_partition.jsonl.gz
VECTORS   ?= tests/conformance/data/combiner.jsonl
SEEDS     ?= 10000
FIRST     ?= 0
KILLS     ?= 60
CRASHES   ?= 30
PLAYS     ?= 100
SEED      ?= 1

# Each process keeps about one core busy, and has a session and a broker of its own.
TWO_AT_ONCE := -n 2 --dist worksteal

# The release of Spark in the environment, 4.0 or 4.2: `make clean test SPARK=4.2`.
SPARK     ?= 4.0

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.set-up

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-all test-fast sim torture chaos lint fmt bench scoreboard redis conformance broker cluster demo-cluster browser promtool clean python java

help: ## list the commands
	@echo "usage: make COMMAND"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | \
	  awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: $(STAMP) ## virtual environment and jars (every other command does it first)

demo: $(STAMP) ## the main job on real records: 336,776 flights through a share group
	$(BIN)/python jobs/demo.py

test: $(STAMP) ## all tests but those that take minutes, with a real Kafka broker
	$(BIN)/python -m pytest $(TWO_AT_ONCE)

test-all: $(STAMP) ## all tests
	$(BIN)/python -m pytest -m "" $(TWO_AT_ONCE)

test-fast: $(STAMP) ## the quick tests, without Spark and Kafka
	$(BIN)/python -m pytest -m "not spark and not kafka and not slow"

sim: $(STAMP) ## simulate engines that crash, pause and resume (SEEDS=10000, FIRST=0)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

torture: $(STAMP) ## all kinds of writers on one Delta table (PLAYS=100, FIRST=0)
	$(BIN)/python -m tests.torture --seeds $(PLAYS) --first $(FIRST)

chaos: $(STAMP) ## kill engines at every point, on the embedded log and on Kafka (KILLS=60, SEED=1)
	$(BIN)/python -m pytest -m long
	$(BIN)/python -m tests.chaos --kills $(KILLS) --seed $(SEED)

lint: $(STAMP) ## check format, rules, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(STAMP) ## format the code and sort its imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# Not --quiet: mkdocs would not see its own warnings.
docs: $(STAMP) ## the documentation as a site, in site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP) ## benchmarks against plain Spark and Kafka's own share groups
	$(BIN)/python -m tests.bench

scoreboard: $(STAMP) ## what crashes cost, here and in Kafka, Spark, Celery (CRASHES=30, SEED=1)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[scoreboard]'
	$(BIN)/python -m tests.scoreboard --kills $(CRASHES) --seed $(SEED)

conformance: $(STAMP) ## replay recordings of Kafka (SCENARIOS=... VECTORS=... for other files)
	$(BIN)/python -m tests.conformance --scenarios $(SCENARIOS) --vectors $(VECTORS)

broker: $(STAMP) ## a one-node Kafka 4.2 on a free port, until Ctrl-C
	@$(BIN)/python -m tests.support.broker

cluster: $(STAMP) ## a Spark standalone cluster of two executors on this machine, until Ctrl-C
	@$(BIN)/python -m tests.support.cluster

demo-cluster: $(STAMP) ## the demo on such a cluster, with the package as a wheel
	@rm -rf build/wheel
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	@$(BIN)/python -m tests.support.cluster jobs/demo.py

browser: ## as root on Debian: the headless Chromium for tests of the page
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core

redis: ## as root on Debian: the Redis that Celery has in the crash comparison
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends redis-server

promtool: ## as root on Debian: the promtool for tests of the alert rules
	apt-get update -qq
	at=$$(mktemp -d) && cd $$at && apt-get download -qq prometheus && \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool > promtool && \
	  install -m 755 promtool /usr/local/bin && rm -r $$at

clean: ## remove what was built here (not the cache of jars)
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: an environment that was not completed is made again the next time.
$(STAMP): pyproject.toml | python java
	@[ -f $@ ] || rm -rf $(VENV)
	@rm -f $@
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,demo,docs,spark$(subst .,,$(SPARK))]'
	$(BIN)/python -m share_spark.spark.jars
	-$(BIN)/share-spark prepare  # optional: without it everything starts slower
	@touch $@

python:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 with its venv module is needed, but '$(PYTHON)' is not that:" \
	    "install python3.11 and python3.11-venv, or name one with PYTHON=..." >&2; exit 1; }

java:
	@$(PYTHON) -c "$$FIND_JAVA" || exit 1

# Before there is an environment, and so without our package; the package checks again (jars.py).
define FIND_JAVA
import os, re, shutil, subprocess, sys
home = os.environ.get("JAVA_HOME")
java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
printed = subprocess.run([java, "-version"], capture_output=True, text=True).stderr if java else ""
found = re.search(r'version "(?:1\.)?(\d+)', printed)
if not found or int(found[1]) not in (17, 21):
    sys.exit("Java 17 is needed, but " + (f"{java} is version {found[1]}" if found else "none was found")
             + ": install it (for example openjdk-17-jre-headless), or set JAVA_HOME")
endef
export FIND_JAVA
