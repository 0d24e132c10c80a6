# make demo: environment, model, an answer. make test: the same environment, then the whole suite.
# make sanitize: the native tests with sanitizers; it needs a compiler and cmake alone.
PYTHON ?= python3
VENV ?= .venv
OLDER = build/older
PIP = $(VENV)/bin/python -m pip
CONSTRAINTS ?= constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK = 1

DEV_EXTRA = from importlib.metadata import requires; from packaging.requirements import Requirement; \
	print(*(f"{r.name}{r.specifier}" for r in map(Requirement, requires("kt-cli")) \
	if r.marker and r.marker.evaluate({"extra": "dev"})), sep="\n")

SOURCES = pyproject.toml $(CONSTRAINTS) $(shell find native -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)

.PHONY: demo test check sanitize install dev format clean

demo: install
	$(VENV)/bin/kt run demo -p "What is photosynthesis?" --temperature 0 --max-tokens 80

test: dev $(OLDER)/installed
	$(VENV)/bin/python -m pytest
	PYTHONPATH=$(OLDER) $(VENV)/bin/python -m pytest tests/parity tests/inject -k "not scalar" # slow, and no news of transformers

check: dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files 'native/*.cpp' 'native/*.h')
	$(VENV)/bin/python -m pytest tests/test_structure.py

# the native tests under address and undefined behaviour, and under thread sanitizers
sanitize:
	for kind in address,undefined thread; do \
		cmake -S native -B build/sanitize/$$kind -DKT_NATIVE_TESTS=ON -DKT_SANITIZE=$$kind && \
		cmake --build build/sanitize/$$kind --parallel && \
		build/sanitize/$$kind/kt_native_tests || exit 1; \
	done

install: $(VENV)/installed
dev: $(VENV)/installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python $(SOURCES)
	$(PIP) install -c $(CONSTRAINTS) -e .
	touch $@

# The dev extra's tools alone: installing the project once more would build the kernels once more.
$(VENV)/installed-dev: $(VENV)/installed
	$(VENV)/bin/python -c '$(DEV_EXTRA)' > build/dev.txt
	$(PIP) install -c $(CONSTRAINTS) -r build/dev.txt
	touch $@

$(OLDER)/installed: constraints-older.txt $(VENV)/installed
	rm -rf $(OLDER)
	$(PIP) install --no-deps --target $(OLDER) -r constraints-older.txt
	touch $@

format: dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $$(git ls-files 'native/*.cpp' 'native/*.h')

clean:
	rm -rf build $(VENV)
