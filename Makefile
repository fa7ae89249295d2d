# `make up` runs the product on this machine, `make test` checks it as CI does.
# Both need python3 (3.11 or newer) and nothing else.

PYTHON := python3
VENV := .venv
BIN := $(VENV)/bin

# The first working Python that runs Django 6: a name on the PATH may be a shim of nothing.
DJANGO6_PYTHON = $(shell for python in python3.13 python3.12 \
	$$HOME/.pyenv/versions/3.13*/bin/python3 $$HOME/.pyenv/versions/3.12*/bin/python3; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && break; done)

# For checks that look at the code, with no secret and no server.
LOOK := DEBUG=1 STANDFAST_STATE=/nonexistent
PRODUCTION = SECRET_KEY=$$($(PYTHON) -c 'import secrets; print(secrets.token_hex(40))') \
	DATABASE_URL=postgresql://nowhere.example/standfast STANDFAST_STATE=/nonexistent

.PHONY: up test test-all test-long

up: $(VENV)/product
	@exec $(BIN)/python manage.py up

test: $(VENV)/checks
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(LOOK) $(BIN)/mypy
	$(BIN)/lint-imports
	$(LOOK) $(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(PRODUCTION) $(BIN)/python manage.py check --deploy --fail-level WARNING
	$(BIN)/pytest

# Then all of it once more on the newest Django, where a Python for it is found.
test-all: test
ifeq ($(DJANGO6_PYTHON),)
	@echo "SKIPPED: Django 6 needs Python 3.12 or newer, and none was found."
else
	$(MAKE) --no-print-directory test VENV=.venv-django6 PYTHON=$(DJANGO6_PYTHON)
endif

# Minutes of real time and measurements, which `make test` leaves out.
test-long: $(VENV)/checks
	$(BIN)/pytest -m "long or benchmark"
	DURABLE_LEASE_TTL=15 DURABLE_SWEEP_INTERVAL=5 $(BIN)/pytest tests/crash --timeout 1200 \
		-m "not long"

# Both are brought up to date when what they should hold has changed.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

$(VENV)/product: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Standfast needs Python 3.11 or newer, not %d.%d" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@echo "Installing into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/checks: $(VENV)/product
	@echo "Installing the tools of the checks into $(VENV) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@
