# Two commands: `make` sets everything up and runs the core matrix on plain torch; `make test` sets everything up and
# passes the checks and the tests. What is set up already is not set up again.

# The Python that .venv is made from, 3.10 or newer.
PYTHON ?= python3
# More arguments for gradcheck run (`make run ARGS="--matrix smoke"`) or for pytest (`make test ARGS="-k case"`).
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

.DEFAULT_GOAL := run
.DELETE_ON_ERROR:
.PHONY: run test lint format schemas covers record fuzz setup clean

run: $(STAMP)
	$(BIN)/gradcheck run --provider torch $(ARGS)

# One thread each: two workers with two threads on two cores wait for each other.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if [ -x $(BIN)/hadolint ]; then echo '$(BIN)/hadolint Dockerfile'; $(BIN)/hadolint Dockerfile; \
	else echo 'There is no hadolint wheel for this platform: the Dockerfile was not linted.'; fi

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# After a change of gradcheck_cli/records: the published JSON Schemas, generated anew.
schemas: $(STAMP)
	$(BIN)/python -m gradcheck_cli.records.schema schemas

# After a change of an axis, a constraint or a matrix that has a cover: cases/*.cover, generated anew in some minutes.
covers: $(STAMP)
	$(BIN)/python -m gradcheck_cli.matrices.cover

# After a change of cases/bugs: the table of public reports.
record: $(STAMP)
	$(BIN)/python -m gradcheck_cli.matrices.public_record

# Hostile input of every kind, a quarter of an hour of it: `make fuzz ARGS="400000 7"` for more of another seed.
fuzz: $(STAMP)
	$(BIN)/python benchmarks/fuzz.py $(ARGS)

setup: $(STAMP)

# The stamp is touched last, so a set-up that was interrupted is taken up again.
$(STAMP): pyproject.toml requirements-dev.txt constraints-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	echo "gradcheck needs Python 3.10 or newer, and '$(PYTHON)' is not: name one, as in: make PYTHON=python3.12"; exit 2; }
	@echo 'Setting up $(VENV), once. torch is large: this takes a few minutes.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	$(BIN)/python -m pip check
	@touch $@

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
