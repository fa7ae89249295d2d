"""Browsers of the people, and how often a page may ask the database."""

import pytest

from tests.people import alice, bob, oscar, sam, vera  # noqa: F401 - fixtures

MOST_QUERIES = 15


@pytest.fixture
def browse():
    """Return a browser in which a person is logged in; it refuses POSTs without a CSRF token."""

    from django.test import Client

    def log_in(person):
        client = Client(enforce_csrf_checks=True)
        client.force_login(person)
        return client

    return log_in


@pytest.fixture
def post():
    """Send a form as a browser does: with the token of the page it is on."""

    def send(client, page, address=None, *, htmx=False, **fields):
        client.get(page)
        token = client.cookies["csrftoken"].value
        headers = {"HX-Request": "true"} if htmx else {}
        sent = {**fields, "csrfmiddlewaretoken": token}
        return client.post(address or page, sent, headers=headers)

    return send


@pytest.fixture
def within_budget(django_assert_max_num_queries):
    """No page asks the database more than fifteen times, login and rights included."""
    return lambda: django_assert_max_num_queries(MOST_QUERIES)


@pytest.fixture
def sweep(db):
    """A worker looked for work a second ago."""
    from tests import factories

    return factories.make_sweep()
