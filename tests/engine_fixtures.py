"""Fixtures of the tests that run the engine in this process; a folder's conftest imports them.

Django is imported inside: a conftest is read before its set-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest


@pytest.fixture(scope="session")
def engine_connections(django_db_setup: None) -> Iterator[None]:
    """The engine's own connections stay open from test to test, as in a worker."""
    from tests.scenario import let_go

    yield
    let_go()


@pytest.fixture
def alone(
    transactional_db: None,
    engine_connections: None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """No broker: only the test decides who advances a run, and when. The outside starts empty."""
    from durable import registry, signals, tasks
    from tests.shop import service

    # What tests declare is their own, whatever others call theirs.
    monkeypatch.setattr(registry, "_latest", dict(registry._latest))
    for name in ("_workflows", "_tasks", "_effects"):
        kept = {
            key: definition
            for key, definition in getattr(registry, name).items()
            if not _is_anothers(definition.function, request.module)
        }
        monkeypatch.setattr(registry, name, kept)
    signals.run_ready.disconnect(dispatch_uid="durable.hint")
    signals.message_stored.disconnect(dispatch_uid="durable.relay")
    service.clear()
    yield
    signals.run_ready.connect(tasks.hint, dispatch_uid="durable.hint")
    signals.message_stored.connect(tasks.hint_relay, dispatch_uid="durable.relay")


@pytest.fixture
def hints(alone: None) -> Iterator[list[Any]]:
    """The ids of the runs that workers are told about, as anybody who listens hears them."""
    from durable import signals

    told: list[Any] = []

    def listen(sender: Any, run_id: Any, **kwargs: Any) -> None:
        told.append(run_id)

    signals.run_ready.connect(listen, dispatch_uid="tests.hints")
    yield told
    signals.run_ready.disconnect(dispatch_uid="tests.hints")


@pytest.fixture
def checked(alone: None) -> Iterator[None]:
    """Like `alone`; afterwards everything that must hold after any scenario is recomputed."""
    from tests.after import after_checks

    yield
    after_checks()


MOVED = """
CREATE SCHEMA moved;
CREATE TABLE moved.clock AS SELECT interval '0' AS ahead;
CREATE FUNCTION moved.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS
    'SELECT pg_catalog.clock_timestamp() + (SELECT ahead FROM moved.clock)';
"""


def _is_anothers(function: Any, module: Any) -> bool:
    """Whether another test file declared it, or an earlier test inside itself."""
    of_a_test = function.__module__.rpartition(".")[2].startswith("test_")
    return of_a_test and (
        "<locals>" in function.__qualname__ or function.__module__ != module.__name__
    )


class Clock:
    """The database's clock, as every session that was opened since sees it."""

    def forward(self, seconds: float) -> None:
        """Move time on; every later clock_timestamp() says so."""
        from tests.scenario import execute

        execute("UPDATE moved.clock SET ahead = ahead + %s", timedelta(seconds=seconds))


@pytest.fixture
def clock(alone: None) -> Iterator[Clock]:
    """A database clock that a test may move: nothing has to be slept away.

    The functions of the migrations find their clock_timestamp() by the session's search path.
    """
    from django.db import connection

    from tests.scenario import execute, let_go

    database = connection.settings_dict["NAME"]
    execute(MOVED)
    execute(f'ALTER DATABASE "{database}" SET search_path = moved, public, pg_catalog')
    connection.close()
    let_go()
    yield Clock()
    let_go()
    execute(f'ALTER DATABASE "{database}" RESET search_path; DROP SCHEMA moved CASCADE')
    connection.close()


@pytest.fixture
def large_payments_ask(alone: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The only policy in force: `pay` over 5,000 needs another person. oscar starts the runs."""
    from approvals import policies
    from approvals.policies import Policy
    from tests.people import make_person

    monkeypatch.setattr(policies, "_policies", {})
    make_person("oscar", "operator")
    return policies.register(
        Policy(
            name="large-pay",
            effect="pay",
            when=lambda parameters: float(parameters["amount"]) > 5000,
            decide_within=timedelta(hours=1),
            valid_for=timedelta(minutes=5),
            sentence="Payments over 5,000 need another person",
        )
    )
