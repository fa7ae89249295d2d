# `make up` runs the product on this machine, `make test` checks it as CI does.
# Both need python3 (3.11 or newer) and nothing else.

VENV := .venv
PYTHON := python3
BIN := $(VENV)/bin

.PHONY: up test test-all test-long

up: $(VENV)/ready
	@exec $(BIN)/python manage.py up

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Standfast needs Python 3.11 or newer; this python3 is %d.%d." % sys.version_info[:2])'
	@echo "Installing into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Settings for checks that look at the code and reach no database.
LOOK := DEBUG=1
PRODUCTION := SECRET_KEY=$$($(PYTHON) -c 'import secrets; print(secrets.token_hex(40))') \
	DATABASE_URL=postgresql://nowhere/standfast STANDFAST_STATE=/nonexistent

test: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(LOOK) $(BIN)/mypy
	$(BIN)/lint-imports
	$(LOOK) $(BIN)/python manage.py makemigrations --check --dry-run
	$(PRODUCTION) $(BIN)/python manage.py check --deploy --fail-level WARNING
	$(BIN)/pytest
