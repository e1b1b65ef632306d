# Everything starts here: `make demo`, `make test`, `make lint`, `make bench`. No target needs root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/*.hpp native/*.cpp) CMakeLists.txt pyproject.toml scripts/check_exports.sh

.PHONY: setup demo test test-sanitize test-arm lint format bench clean

setup: $(VENV)/.installed

$(VENV)/.created: Makefile
	@PYTHON="$(PYTHON)" sh scripts/check_tools.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'scikit-build-core>=0.11' 'nanobind>=2.7' 'cmake>=3.20' ninja
	@touch $@

# Editable: Python changes are live; a change under native/ rebuilds what it touches. Without build isolation, since
# an isolated environment has new paths each time and would compile everything anew.
INSTALL := $(BIN)/python -m pip install --quiet --no-build-isolation --editable

$(VENV)/.installed: $(VENV)/.created $(NATIVE)
	$(INSTALL) .
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(INSTALL) '.[test]'
	@sh scripts/install_chromium.sh $(BIN)
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(INSTALL) '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

test: $(VENV)/.test
	$(BIN)/python -m pytest

# These two compile the kernels anew, in build folders of their own: minutes, the first time.
test-sanitize: $(VENV)/.test
	sh scripts/test_sanitize.sh $(BIN)

test-arm: $(VENV)/.created
	sh scripts/test_arm.sh $(BIN)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror native/*.hpp native/*.cpp native/selftest/*

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i native/*.hpp native/*.cpp native/selftest/*

bench: setup
	$(BIN)/octavo bench paging

clean:
	rm -rf $(VENV) build dist
