# make train   creates .venv, installs, runs the quick start
# make test    creates .venv if needed, installs, runs all tests
# make lint    ruff and mypy
# Another torch, such as a CUDA build already chosen: make train TORCH=torch==2.13.0+cu130, or install it
# into .venv first; an installed torch is kept.

PYTHON ?= python3
TORCH ?= torch==2.13.0
EXTRAS ?= all
BIN := .venv/bin

.PHONY: train test lint install install-dev clean

train: install
	$(BIN)/treewise train

test: install-dev
	$(BIN)/python -m pytest

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: .venv/.installed
install-dev: .venv/.installed-dev

.venv/.torch:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip uv
# uv picks the torch build for this machine: the small CPU build where there is no GPU. Where it can't
# reach PyTorch's own index, pip takes whatever build the configured index has.
	$(BIN)/python -c "import torch" 2>/dev/null \
	  || VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --torch-backend auto "$(TORCH)" 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet "$(TORCH)"
	touch $@

.venv/.installed: .venv/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS),trl,dev]"
	touch $@

clean:
	rm -rf .venv
