# Everything runs in .venv, made from the locks. `make demo` needs Python 3.11 or newer and a package index, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-more test-hardware lint bench proto lock clean

demo: $(VENV)/.runtime
	@$(BIN)/gpuplugin demo

test: $(VENV)/.dev
	@tests/run

test-more: $(VENV)/.dev
	@tests/run --more

test-hardware: $(VENV)/.dev
	@$(BIN)/pytest -m hardware -rs tests/hardware

lint: $(VENV)/.dev
	@tests/run --only lint

bench: $(VENV)/.dev
	@for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

proto: $(VENV)/.dev
	@$(BIN)/python proto/generate.py

# Needs uv. The locks name no registry host, so that they work with any.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
		--extra build -o requirements.lock pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
		--extra build --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpuplugin needs Python 3.11 or newer; name one with make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) …"
	@$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) …"
	@$(BIN)/pip install --quiet --require-hashes -r requirements-dev.lock
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) build ./*.egg-info
