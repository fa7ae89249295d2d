"""What each answer, and each missing answer, of a service means to its caller."""

import itertools
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from examples import services
from examples.services import carrier, mail, payments

CALL: dict[str, Any] = {"fence": 1, "run": "run-1", "timeout": 0.5}
CHARGE: dict[str, Any] = {
    "order_id": "1",
    "customer_id": "Åse",
    "amount": "12.50",
    "currency": "EUR",
}


def charge(**changes):
    return payments.charge(**{**CHARGE, "idempotency_key": "1:charge", **CALL, **changes})


@contextmanager
def a_server_that_says(settings, words: bytes):
    """A server on a free port that reads one request and answers with exactly these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        settings.SANDBOX_URL = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield
        thread.join(5)


def test_every_operation_can_be_done_and_found_by_its_key(sandbox):
    key = "1:x"
    charged = payments.charge(**CHARGE, idempotency_key=key, **CALL)
    refunded = payments.refund(
        charge_id=charged["id"], amount="2.00", currency="EUR", idempotency_key=key, **CALL
    )
    shipped = carrier.ship(
        order_id="1",
        ship_to={"city": "Malmö"},
        lines=[{"sku": "SF-1", "quantity": 1}],
        idempotency_key=key,
        **CALL,
    )
    cancelled = carrier.cancel(shipment_id=shipped["id"], idempotency_key=key, **CALL)
    sent = mail.send(to="a@example.org", subject="Hej", body="Då", idempotency_key=key, **CALL)

    assert payments.find_charge(key) == charged
    assert payments.find_refund(key) == refunded
    assert carrier.find_shipment(key) == shipped
    assert carrier.find_cancellation(key) == cancelled
    assert mail.find(key) == sent
    assert sandbox.applied("shipment", "1") == sandbox.applied("message", "1") == 1


def test_what_never_happened_is_not_found(sandbox):
    assert payments.find_charge("1:charge") is None


def test_a_service_that_is_not_there_was_surely_sent_nothing(settings):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings.SANDBOX_URL = f"http://127.0.0.1:{port}"

    with pytest.raises(services.NotSent):
        charge()
    with pytest.raises(services.Unanswered):
        payments.find_charge("1:charge")


@pytest.mark.parametrize("behaviour", ["apply-then-silence", "silence", "error-before"])
def test_without_a_clear_answer_nobody_knows(sandbox, behaviour):
    sandbox.switch("payments", behaviour)

    with pytest.raises(services.Unanswered):
        charge()


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{{",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\n{}",
        b"not HTTP at all\r\n\r\n",
    ],
)
def test_an_answer_that_cannot_be_understood_means_that_nobody_knows(settings, words):
    with a_server_that_says(settings, words), pytest.raises(services.Unanswered):
        charge()


@pytest.mark.parametrize(
    "body", [b"{}", b"<p>nothing here</p>", b'{"found": 0}', b'{"found":true}']
)
def test_a_404_that_is_not_the_services_own_is_no_proof_that_nothing_happened(settings, body):
    length = str(len(body)).encode()
    words = b"HTTP/1.1 404 Not Found\r\nContent-Length: " + length + b"\r\n\r\n" + body

    with a_server_that_says(settings, words), pytest.raises(services.Unanswered):
        payments.find_charge("1:charge")


@pytest.mark.parametrize("behaviour", ["error", "silence"])
def test_a_look_up_that_fails_says_so(sandbox, behaviour):
    sandbox.switch("payments", behaviour, operation="lookup")

    with pytest.raises(services.Unanswered):
        payments.find_charge("1:charge", timeout=0.3)


@pytest.mark.parametrize("wait", ["43", "nan"])
def test_a_rate_limit_hands_on_the_raw_header(sandbox, wait):
    sandbox.switch("payments", "rate-limit", retry_after=wait)

    with pytest.raises(services.RateLimited) as caught:
        charge()
    assert caught.value.retry_after == wait


def test_a_rate_limit_without_a_header_has_none(sandbox):
    sandbox.switch("payments", "rate-limit")

    with pytest.raises(services.RateLimited) as caught:
        charge()
    assert caught.value.retry_after is None


def test_a_declined_payment_says_why(sandbox):
    sandbox.switch("payments", "decline")

    with pytest.raises(services.Declined) as caught:
        charge()
    declined = caught.value
    assert (declined.code, declined.decline_code) == ("declined", "insufficient_funds")
    assert declined.amount == "12.50"


def test_a_stale_fence_and_a_reused_key_have_their_own_errors(sandbox):
    charge(fence=2)

    with pytest.raises(services.StaleFence):
        charge(fence=1)
    with pytest.raises(services.KeyReused):
        charge(fence=2, amount="99.00")
    with pytest.raises(services.Refused) as caught:
        charge(fence=2, amount="many")
    assert caught.value.code == "bad_body"


def test_a_call_ends_at_its_timeout(sandbox):
    sandbox.switch("payments", "silence")
    start = time.monotonic()

    with pytest.raises(services.Unanswered):
        charge(timeout=0.4)
    assert 0.3 < time.monotonic() - start < 1.5


def test_nothing_is_sent_once_the_time_of_the_call_is_over(sandbox, monkeypatch):
    clock = itertools.count(step=10)
    with monkeypatch.context() as patch:
        patch.setattr(services, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        with pytest.raises(services.NotSent):
            charge(timeout=5)

    assert sandbox.ledger() == []
    assert charge()["order_id"] == "1"


def test_what_connecting_took_is_taken_from_the_time_for_the_answer(sandbox, monkeypatch):
    sandbox.switch("payments", "silence")
    clock = iter([0.0, 29.7])
    start = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(services, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        with pytest.raises(services.Unanswered):
            charge(timeout=30)

    assert time.monotonic() - start < 5


def test_a_restarted_service_is_found_again(sandbox, sandbox_process):
    charge()
    sandbox_process.kill()
    sandbox_process.start()

    assert payments.find_charge("1:charge") == charge()
