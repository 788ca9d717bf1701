# Every target sets itself up: virtual environment, pinned packages, native build. Second runs start in seconds.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
NATIVE := Cargo.toml Cargo.lock pyproject.toml $(shell find native -name '*.rs' -o -name Cargo.toml)
.DEFAULT_GOAL := help
.PHONY: help setup services test check bench demo format lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.built ## virtual environment, pinned packages, native build

$(VENV)/.python:
	@echo "== virtual environment ($$($(PYTHON) --version))"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "streamlearn needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check "uv>=0.8,<1"
	@touch $@

$(VENV)/.packages: requirements.lock $(VENV)/.python
	@echo "== packages (about 700 MB the first time)"
	@$(VENV)/bin/uv pip install --python $(RUN) --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.built: $(NATIVE) $(VENV)/.packages
	@command -v cargo >/dev/null || { echo "error: cargo not found"; echo "help: install Rust 1.85 or newer (rustup), then run this again"; exit 1; }
	@echo "== native build (about a minute the first time)"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/uv pip install --python $(RUN) --no-deps --no-build-isolation -e .
	@touch $@

lock: $(VENV)/.python ## pin every package again, with hashes
	@$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --no-annotate --group dev pyproject.toml -o requirements.lock
