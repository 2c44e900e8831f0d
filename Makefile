# PolyMQ's everyday commands. They need python3 (3.11 or newer) with venv, and nothing else: no
# root, no Java, no compiler. Everything that is installed goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN := $(BIN)/python -m

FOLDERS := core_log broker net remoting namesrv replication gateways spark_sink polymq
CHECKED := polymq packaging examples benchmarks tests interop_tests docs/site
# Four processes of tests, also on two processors: many wait for servers and Java machines.
# For a debugger: make test PARALLEL= TESTS="--pdb tests/broker".
PARALLEL := --numprocesses 4 --dist worksteal
QUICK := not slow and not spark and not java_clients
# Tests start some hundreds of servers: with what Python compiled of them, each is up in two thirds of
# the time. An environment that has it switched off (as images of containers do) does not mean them.
export PYTHONDONTWRITEBYTECODE :=
BUILD_INPUTS := pyproject.toml setup.py $(shell find $(FOLDERS) -path '*/kernels/*' \( -name '*.pyx' -o -name '*.pxd' -o -name '*.py' \))

.DEFAULT_GOAL := install
.PHONY: install wheel deb man demo test test-all coverage crash fuzz kills replica-kills model sabotage check run bench reference site clean help

help:  ## List the commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "PolyMQ needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What pip says while "Building editable" takes its time.
COMPILING := Where there is a C compiler, pip then builds the kernels, which takes about a minute.

# Each stamp is an installation with more in it than the one before.
$(VENV)/.installed: $(BUILD_INPUTS) | $(BIN)/python
	@echo "Installing PolyMQ into $(VENV). $(COMPILING)"
	$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-demo: $(BUILD_INPUTS) | $(BIN)/python
	@echo "Installing PolyMQ with what the demo needs: about 400 MB, most of it Spark. $(COMPILING)"
	$(PIP) install --editable '.[demo]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: $(BUILD_INPUTS) | $(BIN)/python
	@echo "Installing PolyMQ with what tests and checks need: about 450 MB. $(COMPILING)"
	$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-demo

$(VENV)/.installed-fuzz: $(BUILD_INPUTS) | $(BIN)/python
	@echo "Installing PolyMQ with what tests and the search for broken parsers need. $(COMPILING)"
	$(PIP) install --editable '.[fuzz]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-demo $(VENV)/.installed-dev

# Needs no extra but `docs`, so it is no step between the others.
$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.installed
	@echo "Installing what the documentation site is built with: about 60 MB."
	$(PIP) install --editable '.[docs]'
	@touch $@

$(VENV)/.installed-packaging: $(BUILD_INPUTS) | $(BIN)/python
	@echo "Installing PolyMQ with what packages are built with. $(COMPILING)"
	$(PIP) install --editable '.[packaging]'
	@touch $@ $(VENV)/.installed

install: $(VENV)/.installed  ## Install PolyMQ into .venv (editable).
	@$(BIN)/polymq doctor --brief

wheel: $(VENV)/.installed-packaging  ## Build the source distribution and a wheel, and try the wheel, in dist (needs a C compiler).
	$(BIN)/python packaging/build_wheels.py $(WHEEL)

deb: $(VENV)/.installed-packaging  ## Build the Debian package for this release, in dist (needs python3-venv, python3-dev and a C compiler).
	$(BIN)/python packaging/build_wheels.py --python /usr/bin/python3
	$(BIN)/python packaging/build_deb.py "$$(ls -t dist/polymq-*-$$(/usr/bin/python3 -c 'import sys; print("cp{}{}".format(*sys.version_info))')-*.whl | head -n 1)"

man: $(VENV)/.installed  ## Write the man pages, in dist/man.
	$(BIN)/python packaging/make_man_pages.py dist/man

demo: $(VENV)/.installed-demo  ## Every protocol to every protocol, a crash, a failover, and Parquet (about a minute).
	@$(RUN) examples.demo

test: $(VENV)/.installed-dev  ## Run the tests, but for those that take long (about 5 minutes on two processors).
	$(RUN) pytest $(PARALLEL) -m "$(QUICK)" $(TESTS)

test-all: $(VENV)/.installed-dev  ## Run all tests, with Spark, Java, kill loops and simulations (about 15 minutes).
	$(RUN) pytest $(PARALLEL) $(TESTS)

coverage: $(VENV)/.installed-dev  ## Run the tests without servers and report which branches no test takes (plain kernels).
	POLYMQ_KERNELS=pure $(RUN) pytest $(PARALLEL) -m "$(QUICK)" --cov --cov-report= tests $(TESTS)
	$(BIN)/coverage report

crash: $(VENV)/.installed-dev  ## Break the disk in 20,000 ways and look for what was promised (CRASH="--states 1000000").
	PYTHONHASHSEED=0 $(RUN) tests.crash $(CRASH)

sabotage: $(VENV)/.installed-dev  ## Break the code on purpose, and see whether the tests notice (SABOTAGE="--only NAME").
	$(RUN) tests.sabotage $(SABOTAGE)

fuzz: $(VENV)/.installed-fuzz  ## Search a minute for bytes that break MQTT's parsers (FUZZ="--seconds 3600 --keep").
	$(RUN) tests.fuzz $(FUZZ)

kills: $(VENV)/.installed-dev  ## Kill a loaded server at 60 system calls and look for what it acked (needs strace).
	$(RUN) interop_tests.kills $(KILLS)

replica-kills: $(VENV)/.installed-dev  ## Kill a master or its slave 50 times under load, and look for what was acked.
	$(RUN) interop_tests.replica_kills $(KILLS)

model: $(VENV)/.installed-dev  ## A minute of all protocols, kills and full disks, and every promise checked (MODEL="--episodes 20").
	$(RUN) interop_tests.model $(MODEL)

check: $(VENV)/.installed-dev  ## Lint, formatting, types, and the architecture's import table.
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy $(CHECKED)
	$(RUN) pytest -q -p no:randomly tests/test_architecture.py tests/test_tidy.py

run: $(VENV)/.installed  ## Run a standalone server on the standard ports, with its data in ./data.
	@exec $(BIN)/polymq serve

bench: $(VENV)/.installed-dev  ## Measure against the peers that are installed here.
	$(BIN)/python benchmarks/run.py $(BENCH)

reference: $(VENV)/.installed  ## Write the generated parts of docs/: the commands and the pictures.
	$(RUN) docs.site.reference

site: $(VENV)/.installed-docs reference  ## Build the documentation site into build/site; a broken link fails.
	$(RUN) sphinx --quiet --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir build/site-state . build/site
	@echo "The site is in build/site: open build/site/index.html."

clean:  ## Remove what was built (not ./data).
	rm -rf build dist wheelhouse *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(FOLDERS) -name '*.so' -delete
	rm -f $(VENV)/.installed*
