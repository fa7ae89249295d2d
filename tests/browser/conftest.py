"""People with a browser, an outside world and an engine in one process."""

from __future__ import annotations

import pytest

from tests.engine_fixtures import alone, checked, engine_connections
from tests.people import alice, bob, oscar
from tests.sandbox_fixture import sandbox, sandbox_process

__all__ = [
    "alice",
    "alone",
    "bob",
    "checked",
    "engine_connections",
    "oscar",
    "sandbox",
    "sandbox_process",
]


@pytest.fixture
def visit(chromium, live_server):
    """Return a page on which somebody has logged in by the form."""
    contexts = []

    def page_of(person, **options):
        person.set_password("a long enough password")
        person.save()
        context = chromium.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        page = context.new_page()
        page.goto("/login/")
        page.fill("[name=username]", person.username)
        page.fill("[name=password]", "a long enough password")
        page.press("[name=password]", "Enter")
        page.wait_for_url(lambda url: "login" not in url)
        return page

    yield page_of
    for context in contexts:
        context.close()
