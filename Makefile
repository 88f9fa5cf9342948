# What a fresh clone needs, from nothing: `make demo`, `make test`. Everything installs itself into .venv.
#
#   CUDA=12|13      which DALI and CuPy to install; changing it builds .venv anew
#   KILLS=20        of `make chaos`
#   JOBS=3          test files at a time; default: the CPUs and four more, as two thirds of the time are waiting
#   PYTHON=python3  what .venv is made from, 3.11 or newer

CUDA ?= 12
KILLS ?= 20
JOBS ?= $(shell echo $$(($$(nproc) + 4)))
PYTHON ?= python3
# A worker that dies ends the run and names its test: one in its place is dealt tests until all wait for each other.
WORKERS := -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Compiled modules are kept, whatever this shell says: tests start a hundred processes, each of which would compile all
# of ours again (half a second), and each worker the tests.
unexport PYTHONDONTWRITEBYTECODE

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# The root folder must stay off sys.path, or `import kernels` would mean ours: hence -I and -P, and `pytest` only as -Im.
BIN := .venv/bin
PY := $(BIN)/python

# The stamp says for which CUDA .venv was made, as DALI's wheels for 12 and 13 write the same files; with a "?" behind it
# while that is under way.
ifneq ($(file < .venv/.stamp),cuda$(CUDA))
.PHONY: .venv/.stamp
endif

# install WHY PACKAGE...: from apt where that is possible, else the line says what is missing and fails.
define SHELL_LIB
install() {
    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "make: $$1: installing $${*:2}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$${@:2}" >/dev/null
    else
        echo "make: $$1: please install $${*:2} (only root on a Debian-like system gets it from here)" >&2
        return 1
    fi
}
endef

.PHONY: help demo test test-long check bench chaos reference tables docs clean system

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: .venv/.native  ## the whole way on this machine: topic, bad records, batches, kill and resume
	@$(BIN)/dali-feed demo

test: .venv/.stamp system .venv/.native  ## the tests, of some a short form; what needs a GPU is skipped where there is none
	@$(PY) -Im pytest $(WORKERS) -m "not long"

test-long: .venv/.stamp system .venv/.native  ## all tests, in the long form too, and more examples of each property
	@$(PY) -Im pytest $(WORKERS) --hypothesis-profile thorough

check: .venv/.stamp  ## lint, format, types, layers
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy dali_feed tests bench examples docs
	$(BIN)/lint-imports --no-cache --no-logo

bench: .venv/.native  ## our loader, a topic and storage beside what bounds them: rows into bench/results
	@$(BIN)/dali-feed bench loader --batch 64 --rounds 5 --out bench/results/loader.jsonl
	$(BIN)/dali-feed bench loader --batch 256 --rounds 5 --out bench/results/loader.jsonl
	for program in topics stream columns storage options; do
	    $(PY) bench/$$program.py  # without -P: it finds its helpers in bench/, and the root folder stays off the path
	done

chaos: .venv/.stamp system .venv/.native  ## kill training, producing, packing and following processes (KILLS=20), and a broker
	@$(PY) bench/chaos.py --kills $(KILLS)

reference: .venv/.stamp  ## write docs/reference.md and docs/cli.md from signatures, docstrings and options
	@$(PY) -P docs/_reference.py
	@$(PY) docs/_cli.py  # without -P, as below

tables: .venv/.stamp  ## write the tables of figures in the pages from bench/results
	@$(PY) docs/_tables.py  # without -P: it finds its helpers in docs/

docs: .venv/.stamp  ## build the site of these pages into site/: python -m http.server -d site shows it
	@$(PY) -Ic 'import material, mkdocs' 2>/dev/null || {
	    extra='import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])'
	    $(PY) -Im pip install --quiet --disable-pip-version-check $$($(PY) -Ic "$$extra")
	}
	# The theme speaks of its own future at each start; a strict build fails on warnings about these pages.
	NO_MKDOCS_2_WARNING=1 $(PY) -P -m mkdocs build --strict

clean:  ## remove .venv and everything else that is made here
	@rm -rf .venv build dist site ./*.egg-info dali_feed/native/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml
	@$(SHELL_LIB)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	    echo "make: $(PYTHON) is missing or older than 3.11; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2
	    exit 1
	}
	# Debian ships venv without ensurepip, in a package per version.
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null ||
	    install "no venv in $(PYTHON)" "$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
	if ! $(PY) -Im pip --version >/dev/null 2>&1 || { [ -s $@ ] && [ "$$(tr -d '?' < $@)" != cuda$(CUDA) ]; }; then
	    $(PYTHON) -m venv --clear .venv
	fi
	printf 'cuda$(CUDA)?' > $@
	echo "make: installing into .venv for CUDA $(CUDA); torch and DALI are large, the first time takes minutes"
	$(PY) -Im pip install --quiet --disable-pip-version-check -e '.[cuda$(CUDA),dev]'
	printf 'cuda$(CUDA)' > $@

# The loops in C (dali_feed/native), anew where one has changed; without a compiler all works, slower.
.venv/.native: .venv/.stamp $(wildcard dali_feed/native/*.[ch])
	@if command -v cc >/dev/null; then
	    $(PY) -W ignore -c 'from setuptools import setup; setup()' -q build_ext --inplace --force
	else
	    echo "make: no C compiler: going on without the loops in C (dali_feed/native)" >&2
	fi
	touch $@

# The broker tests run Apache Kafka from Maven Central (Java 17 or newer; with a JDK its own client too). Missing, they
# are skipped.
system:
	@$(SHELL_LIB)
	java=$$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' || true)
	[ "$${java:-0}" -ge 17 ] || install "no Java 17" default-jdk-headless || echo "make: going on without Kafka's own broker" >&2
	command -v mvn >/dev/null || install "no Maven" maven || echo "make: going on without Kafka's own broker" >&2
	command -v kcat >/dev/null || install "no kcat" kcat || echo "make: going on without kcat as another client" >&2
	command -v chromium >/dev/null || install "no Chromium" chromium ||
	    echo "make: going on without the report's check in a browser" >&2
