"""A real, headless Chromium from Debian's packages; without one these tests are skipped."""

from __future__ import annotations

import os
import shutil

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

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def chromium():
    """The browser of the session."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        said = "no `chromium` on this machine: the browser tests need Debian's package of that name"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)
    # Playwright runs an event loop in this thread; Django would refuse the ORM beside it.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


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
