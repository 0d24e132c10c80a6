# make demo: environment, model, an answer. make test: the same environment, then the whole suite.
# make test-full: with the cases that teach little beside their neighbours too.
# make bench: a fixed small set of figures, added to docs/benchmarks.jsonl; on an idle machine.
# make test-gpu: what needs a GPU, with a Python (PYTHON=...) that has kt and a torch that sees one.
# make sanitize: the native tests with sanitizers, and a minute of fuzzing; it needs a compiler and cmake alone.
PYTHON ?= python3
VENV ?= .venv
OLDER = build/older
# One more than CI has cores: a fifth of two workers' time went by waiting for processes that tests start.
WORKERS ?= 3
FUZZ_SECONDS ?= 60
PIP = $(VENV)/bin/python -m pip
CONSTRAINTS ?= constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK = 1

DEV_EXTRA = from importlib.metadata import requires; from packaging.requirements import Requirement; \
	print(*(f"{r.name}{r.specifier}" for r in map(Requirement, requires("kt-cli")) \
	if r.marker and r.marker.evaluate({"extra": "dev"})), sep="\n")

SOURCES = pyproject.toml $(CONSTRAINTS) $(shell find native -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)

.PHONY: bench demo test test-full test-gpu check sanitize install dev format clean

demo: install
	$(VENV)/bin/kt run demo -p "What is photosynthesis?" --temperature 0 --max-tokens 80

# Worksteal keeps neighbours together, and with them the models that they share. Some tests measure: they run alone.
# Collecting everything takes 10 s a process, so where a mark chooses, only files with the mark are looked at.
PYTEST = $(VENV)/bin/python -m pytest
BESIDE = -n $(WORKERS) --dist worksteal
MARKED = $$(grep -rl --include='test_*.py' 'mark.$(1)' tests)

test: dev $(OLDER)/installed
	$(PYTEST) $(BESIDE) -m "not alone and not full"
	$(PYTEST) -m alone $(call MARKED,alone)
	PYTHONPATH=$(OLDER) $(PYTEST) $(BESIDE) -m transformers -k "not scalar" $(call MARKED,transformers) # scalar: slow

test-full: dev
	$(PYTEST) $(BESIDE) -m "not alone"
	$(PYTEST) -m alone $(call MARKED,alone)

# What needs a GPU; without one every test says so and is skipped. The Python is one whose torch sees the GPU.
test-gpu:
	$(PYTHON) -m pytest -m gpu -rs --timeout=600 -n 4 --dist worksteal $(call MARKED,gpu\|ON_A_GPU)

check: dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files 'native/*.cpp' 'native/*.h')
	$(VENV)/bin/python -m pytest tests/test_structure.py

bench: dev
	$(VENV)/bin/python tests/bench/guard.py

# Address and undefined behaviour: every tier that this CPU runs. Threads: what they share is the same for all tiers.
# Off: g++ 13 puts 64-byte vectors at 32-byte places of the stack that looks for use after return (GCC bug 110027).
SANITIZE = build/sanitize
sanitize: export ASAN_OPTIONS = detect_stack_use_after_return=0
sanitize:
	cmake -S native -B $(SANITIZE)/memory -DKT_NATIVE_TESTS=ON -DKT_SANITIZE=address,undefined
	cmake --build $(SANITIZE)/memory --parallel --target kt_native_tests kt_fuzz
	$(SANITIZE)/memory/kt_native_tests
	$(SANITIZE)/memory/kt_fuzz $(FUZZ_SECONDS)
	cmake -S native -B $(SANITIZE)/threads -DKT_NATIVE_TESTS=ON -DKT_SANITIZE=thread -DKT_TIERS=avx2
	cmake --build $(SANITIZE)/threads --parallel --target kt_native_tests
	$(SANITIZE)/threads/kt_native_tests

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
