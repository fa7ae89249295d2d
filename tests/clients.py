"""Clients of the API: each is one person, by session or by token, and sends real HTTP bodies."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client
from knox.models import AuthToken

V1 = "/api/v1/"
CSRF = "c" * 32


class Caller:
    """Sends JSON; what it got last is in `answer`."""

    def __init__(self, client: Client, **headers: str) -> None:
        self.client = client
        self.headers = headers

    def get(self, address: str, **query: Any) -> Any:
        return self.client.get(V1 + address, query or None, headers=self.headers)

    def post(self, address: str, body: Any = None, **headers: str) -> Any:
        return self.send(address, json.dumps({} if body is None else body), **headers)

    def send(self, address: str, body: str | bytes, kind="application/json", **headers) -> Any:
        """POST these very bytes."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(
            V1 + address, body, content_type=kind, headers={**self.headers, **names}
        )


def anonymous() -> Caller:
    return Caller(Client(enforce_csrf_checks=True))


def session_of(person: Any) -> Caller:
    """A browser in which the person is logged in, with the CSRF token that a page gave it."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(person)
    client.cookies["csrftoken"] = CSRF
    return Caller(client, **{"X-CSRFToken": CSRF})


def token_of(person: Any) -> Caller:
    """A program that has a token of the person."""
    _, token = AuthToken.objects.create(user=person)
    return Caller(Client(enforce_csrf_checks=True), Authorization=f"Token {token}")


def problem_of(answer: Any, status: int, code: str = "") -> Any:
    """The problem that an answer tells of, checked to be one of this status and code."""
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    body = json.loads(answer.content, parse_constant=_refuse)
    assert set(body) >= {"type", "title", "status", "detail", "code", "errors"}
    assert body["status"] == status
    assert all(set(error) == {"path", "reason"} for error in body["errors"])
    if code:
        assert body["code"] == code
    return body


def paths_of(problem: Any) -> list[str]:
    return [error["path"] for error in problem["errors"]]


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")
