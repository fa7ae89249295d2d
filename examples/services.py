"""The outside services that the example workflows call: payments, carrier, mail.

Every call names its idempotency key, fence and run, and waits `timeout` seconds at most until its
answer begins; nothing is sent after that time. What a call raises says what is known about the
outside world, which is all that its caller can act on:

    NotSent                        surely nothing happened: the service was never reached
    RateLimited, Declined,
    StaleFence, KeyReused, Refused surely nothing happened now: the service said so
    Unanswered                     it may or may not have happened
"""

import functools
import os
import time
from collections.abc import Mapping
from typing import Any

import httpx
from django.conf import settings

Resource = dict[str, Any]

TIMEOUT = 10.0


class ServiceError(Exception):
    """A call to an outside service did not bring what was asked for."""


class NotSent(ServiceError):
    """The service could not be reached: surely nothing was sent."""


class Unanswered(ServiceError):
    """No usable answer came: the call may or may not have happened."""


class Refused(ServiceError):
    """The service refused the request as it stands and did nothing; repeating it will not help."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code


class StaleFence(Refused):
    """A later holder of the run has called before: whoever gets this no longer owns the run."""


class KeyReused(Refused):
    """The idempotency key was used before with another body."""


class RateLimited(ServiceError):
    """The service did nothing and asks to wait. `retry_after` is its header as sent, or None."""

    def __init__(self, retry_after: str | None) -> None:
        super().__init__(f"asked to retry after {retry_after!r}")
        self.retry_after = retry_after


class Declined(ServiceError):
    """The payment was declined and nothing was taken. `amount` is what was asked for."""

    def __init__(self, code: str, decline_code: str, amount: str) -> None:
        super().__init__(f"{code}: {decline_code} for {amount}")
        self.code = code
        self.decline_code = decline_code
        self.amount = amount


class _Service:
    """One outside service below `settings.SANDBOX_URL`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _do(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        key: str,
        fence: int,
        run: str,
        timeout: float,
    ) -> Resource:
        headers = {"Idempotency-Key": key, "Fence": str(fence), "Run": run}
        request = _client(os.getpid()).build_request(
            "POST", self._address(path), json=body, headers=headers
        )
        return _resource(_send(request, timeout))

    def _find(self, path: str, key: str, timeout: float) -> Resource | None:
        request = _client(os.getpid()).build_request(
            "GET", self._address(path), params={"key": key}
        )
        try:
            response = _send(request, timeout)
        except NotSent as error:
            raise Unanswered(str(error)) from error
        found = _object(response)
        # Only the service's own words count: a proxy's 404 does not mean that nothing happened.
        if response.status_code == httpx.codes.NOT_FOUND and found.get("found") is False:
            return None
        resource = found.get("resource")
        if response.is_success and found.get("found") is True and isinstance(resource, dict):
            return resource
        raise Unanswered(f"the look-up was answered with {response.status_code}")

    def _address(self, path: str) -> str:
        return f"{settings.SANDBOX_URL.rstrip('/')}/{self._name}/{path}"


class Payments(_Service):
    """Takes money and gives it back. Amounts are decimal strings in the currency's main unit."""

    def charge(
        self,
        *,
        order_id: str,
        customer_id: str,
        amount: str,
        currency: str,
        idempotency_key: str,
        fence: int,
        run: str,
        timeout: float = TIMEOUT,
    ) -> Resource:
        """Charge a customer for an order; return the charge with its `id`."""
        body = {
            "order_id": order_id,
            "customer_id": customer_id,
            "amount": amount,
            "currency": currency,
        }
        return self._do("charges", body, key=idempotency_key, fence=fence, run=run, timeout=timeout)

    def refund(
        self,
        *,
        charge_id: str,
        amount: str,
        currency: str,
        idempotency_key: str,
        fence: int,
        run: str,
        timeout: float = TIMEOUT,
    ) -> Resource:
        """Give back (part of) a charge; return the refund with its `id`."""
        body = {"charge_id": charge_id, "amount": amount, "currency": currency}
        return self._do("refunds", body, key=idempotency_key, fence=fence, run=run, timeout=timeout)

    def find_charge(self, key: str, *, timeout: float = TIMEOUT) -> Resource | None:
        """The charge made under a key, None if there is none now; Unanswered if nobody can say."""
        return self._find("charges", key, timeout)

    def find_refund(self, key: str, *, timeout: float = TIMEOUT) -> Resource | None:
        """The refund made under a key, None if there is none now; Unanswered if nobody can say."""
        return self._find("refunds", key, timeout)


class Carrier(_Service):
    """Takes parcels to customers."""

    def ship(
        self,
        *,
        order_id: str,
        ship_to: Mapping[str, Any],
        lines: list[dict[str, Any]],
        idempotency_key: str,
        fence: int,
        run: str,
        timeout: float = TIMEOUT,
    ) -> Resource:
        """Hand an order's lines to the carrier; return the shipment with its `id`."""
        body = {"order_id": order_id, "ship_to": dict(ship_to), "lines": lines}
        return self._do(
            "shipments", body, key=idempotency_key, fence=fence, run=run, timeout=timeout
        )

    def cancel(
        self,
        *,
        shipment_id: str,
        idempotency_key: str,
        fence: int,
        run: str,
        timeout: float = TIMEOUT,
    ) -> Resource:
        """Call a shipment back; return the cancellation with its `id`."""
        return self._do(
            "cancellations",
            {"shipment_id": shipment_id},
            key=idempotency_key,
            fence=fence,
            run=run,
            timeout=timeout,
        )

    def find_shipment(self, key: str, *, timeout: float = TIMEOUT) -> Resource | None:
        """The shipment of a key, None if there is none now; Unanswered if nobody can say."""
        return self._find("shipments", key, timeout)

    def find_cancellation(self, key: str, *, timeout: float = TIMEOUT) -> Resource | None:
        """The cancellation of a key, None if there is none now; Unanswered if nobody can say."""
        return self._find("cancellations", key, timeout)


class Mail(_Service):
    """Sends messages to customers."""

    def send(
        self,
        *,
        to: str,
        subject: str,
        body: str,
        idempotency_key: str,
        fence: int,
        run: str,
        timeout: float = TIMEOUT,
    ) -> Resource:
        """Send one message; return it with its `id`."""
        message = {"to": to, "subject": subject, "body": body}
        return self._do(
            "messages", message, key=idempotency_key, fence=fence, run=run, timeout=timeout
        )

    def find(self, key: str, *, timeout: float = TIMEOUT) -> Resource | None:
        """The message of a key, None if there is none now; Unanswered if nobody can say."""
        return self._find("messages", key, timeout)


payments = Payments("payments")
carrier = Carrier("carrier")
mail = Mail("mail")


@functools.lru_cache(maxsize=1)
def _client(pid: int) -> httpx.Client:
    """The connections of this process: a fork must not talk over its parent's sockets."""
    # No proxy from the environment: the sandbox is on this machine.
    return httpx.Client(trust_env=False, limits=httpx.Limits(keepalive_expiry=60))


def _send(request: httpx.Request, timeout: float) -> httpx.Response:
    """Send a request within `timeout` seconds; say what a missing answer means."""
    deadline = time.monotonic() + timeout
    limits = httpx.Timeout(timeout).as_dict()
    request.extensions = {
        "timeout": limits,
        "trace": functools.partial(_keep_deadline, deadline, limits),
    }
    try:
        return _client(os.getpid()).send(request)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise NotSent(f"{request.url.host} could not be reached: {error}") from error
    except httpx.HTTPError as error:
        raise Unanswered(f"no answer within {timeout} s: {type(error).__name__} {error}") from error


def _keep_deadline(
    deadline: float, limits: dict[str, float | None], event: str, info: Mapping[str, Any]
) -> None:
    """Let nothing out after the deadline, and leave to the answer only what connecting left over.

    A request sent later would land after its caller was told that its time is over.
    """
    if not event.endswith("send_request_headers.started"):
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise NotSent("connecting took longer than the whole call may")
    limits.update(write=left, read=left)


def _resource(response: httpx.Response) -> Resource:
    """What a request brought, or the error that its answer means."""
    if response.status_code in (httpx.codes.OK, httpx.codes.CREATED):
        return _object(response)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise RateLimited(response.headers.get("Retry-After"))
    if not response.is_client_error or response.status_code == httpx.codes.REQUEST_TIMEOUT:
        raise Unanswered(f"the service answered {response.status_code}")
    problem = _object(response)
    code, message = str(problem.get("code", "")), str(problem.get("message", ""))
    match response.status_code, code:
        case 402, "declined":
            raise Declined(code, str(problem.get("decline_code", "")), str(problem.get("amount")))
        case 409, "stale_fence":
            raise StaleFence(response.status_code, code, message)
        case 422, "key_reused":
            raise KeyReused(response.status_code, code, message)
        case _:
            raise Refused(response.status_code, code, message)


def _object(response: httpx.Response) -> dict[str, Any]:
    """The answer's JSON object; an answer that is none says nothing about what happened."""
    try:
        value = response.json()
    except ValueError:
        raise Unanswered(f"the {response.status_code} answer is not JSON") from None
    if not isinstance(value, dict):
        raise Unanswered(f"the {response.status_code} answer is not a JSON object")
    return value
