"""A PostgreSQL and a broker of our own for the session, so that plain `pytest` needs nothing."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import django
import pytest

from config import servers

Own = TypeVar("Own", servers.Postgres, servers.Valkey)
STATE = pytest.StashKey[Path]()
STARTED = pytest.StashKey[list[servers.Postgres | servers.Valkey]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start what the environment does not name, before pytest-django loads the settings."""
    state = config.stash[STATE] = Path(tempfile.mkdtemp(prefix="standfast-tests-"))
    started = config.stash[STARTED] = []
    environment = {
        "SECRET_KEY": secrets.token_hex(40),
        "STANDFAST_STATE": str(state / "state"),
        "INSECURE_HTTP": "1",
        "HASHED_STATIC_FILES": "0",
        # Seconds; `make test-long` uses the lengths of production.
        "DURABLE_LEASE_TTL": "2",
        "DURABLE_SWEEP_INTERVAL": "0.5",
    }
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    # Not a default: importing `config` has already named the product's own.
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    if "DATABASE_URL" not in os.environ:
        postgres = servers.Postgres(
            data=state / "postgres",
            port=servers.free_port(),
            password=secrets.token_hex(8),
            log=state / "postgres.log",
        )
        started.append(postgres)
        postgres.start()
        os.environ["DATABASE_URL"] = postgres.url
    if "BROKER_URL" not in os.environ:
        valkey = servers.Valkey(
            folder=state / "valkey",
            port=servers.free_port(),
            password=secrets.token_hex(8),
            log=state / "valkey.log",
        )
        started.append(valkey)
        valkey.start()
        os.environ["BROKER_URL"] = valkey.url
    django.setup()
    _let_the_flush_pass_the_triggers()


# What migrating makes and no test changes: kept, so that it need not be made again each time.
MADE_BY_MIGRATING = {"django_content_type", "auth_permission"}


def _let_the_flush_pass_the_triggers() -> None:
    """Only the flush after a test may empty append-only tables.

    Deleting a few rows is ten times faster than truncating forty tables; a replica does it in any
    order.
    """
    from django.core.management.commands import flush
    from django.db.backends.postgresql.operations import DatabaseOperations

    def sql_flush(self, style, tables, **options):
        emptied = [self.quote_name(table) for table in set(tables) - MADE_BY_MIGRATING]
        statements = [f"DELETE FROM {table}" for table in emptied]  # noqa: S608
        return ["SET LOCAL session_replication_role = replica", *statements]

    DatabaseOperations.sql_flush = sql_flush  # type: ignore[method-assign]
    setattr(flush, "emit_post_migrate_signal", lambda *args, **options: None)  # noqa: B010


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what was started and leave nothing behind."""
    for server in config.stash.get(STARTED, []):
        server.stop()
    if STATE in config.stash:
        shutil.rmtree(config.stash[STATE], ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> servers.Postgres:
    """The session's own PostgreSQL, for tests that stop and start it; skips on a given one."""
    return _own(pytestconfig, servers.Postgres)


@pytest.fixture(scope="session")
def valkey_server(pytestconfig: pytest.Config) -> servers.Valkey:
    """The session's own broker, for tests that stop and start it; skips on a given one."""
    return _own(pytestconfig, servers.Valkey)


BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A real, headless browser from Debian's packages, one for the session.

    Without one its tests are skipped; in CI that is a failure.
    """
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        missing = "no `chromium` on this machine: the browser tests need Debian's package chromium"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright runs a loop in this thread, in which Django would refuse to work.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=program, args=BROWSER_FLAGS)
        yield browser
        browser.close()


def _own(config: pytest.Config, kind: type[Own]) -> Own:
    for server in config.stash[STARTED]:
        if isinstance(server, kind):
            return server
    pytest.skip(f"the environment names its own {kind.__name__}, which is not ours to stop")
