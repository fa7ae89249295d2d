"""What happens to one request: the switch decides when, the store decides once.

The order of a request's checks: key and body, the switch's refusals (as a proxy in front of the
service would make them), the fence, the key, and only then a decline or the deed itself.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from examples.sandbox import store as store_module
from examples.sandbox.catalogue import BadBody, Operation
from examples.sandbox.store import Outcome, Received, Store
from examples.sandbox.switches import WAITING, Behaviour, Switch
from examples.strict_json import Json, NotJson, canonical, loads


@dataclass(frozen=True)
class Answer:
    """What the caller is told. `headers` come on top of the usual ones."""

    status: int
    body: Mapping[str, Json]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The error's stable name, empty for a success."""
        return str(self.body.get("code", ""))


@dataclass(frozen=True)
class Handled:
    """A request's ledger number and its answer; None means that it is never answered."""

    number: int
    answer: Answer | None


FAILED = Answer(500, {"code": "error", "message": "The service failed."})


class Desk:
    """Serves requests for all three services from one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._over = threading.Event()

    @property
    def over(self) -> threading.Event:
        """Set when everyone who is being kept waiting should go: at a reset, at the end."""
        return self._over

    def reset(self) -> None:
        """Forget everything and let go of whoever waits; what they wanted no longer happens."""
        old, self._over = self._over, threading.Event()
        self._store.reset()
        old.set()

    def close(self) -> None:
        """Let go of whoever waits."""
        self._over.set()

    def look_up(self, received: Received, operation: Operation) -> Handled:
        """Say what is known of a key, unless a switch for look-ups says otherwise."""
        over = self._over
        number, switch = self._store.arrive(received)
        match switch.behaviour:
            case Behaviour.SILENCE:
                return Handled(number, None)
            case Behaviour.ERROR:
                return self._settle(number, FAILED, over)
            case Behaviour.NOT_FOUND:
                known = None
            case _:
                known = self._store.find(operation, received.key)
        if known is None:
            return self._settle(number, Answer(404, {"found": False}), over)
        resource, request = known
        found = {"found": True, "resource": resource, "request": request}
        return self._settle(number, Answer(200, found), over)

    def request(self, received: Received, operation: Operation) -> Handled:
        """Do an operation, or what its switch says instead. Blocks for as long as that takes."""
        try:
            body = canonical(operation.check(loads(received.body)))
        except (NotJson, BadBody) as problem:
            return self.refuse(received, Answer(400, {"code": "bad_body", "message": str(problem)}))
        over = self._over
        asked = Received(**{**vars(received), "body": body})
        number, switch = self._store.arrive(asked)
        answer = self._behave(number, asked, operation, switch, over)
        return self._settle(number, answer, over)

    def refuse(self, received: Received, answer: Answer) -> Handled:
        """Answer a request that is not one, and still write it into the ledger."""
        self._store.refuse(received, answer.status, answer.code)
        return Handled(0, answer)

    def _behave(
        self,
        number: int,
        received: Received,
        operation: Operation,
        switch: Switch,
        over: threading.Event,
    ) -> Answer | None:
        match switch.behaviour:
            case Behaviour.RATE_LIMIT:
                return _rate_limited(switch)
            case Behaviour.ERROR_BEFORE:
                return FAILED
            case Behaviour.SILENCE:
                return None
        if switch.behaviour in WAITING and over.wait(switch.seconds):
            return None
        decline = switch.behaviour is Behaviour.DECLINE
        outcome = self._store.perform(number, received, operation, decline=decline)
        match switch.behaviour:
            case Behaviour.APPLY_THEN_SILENCE | Behaviour.LATE:
                return None
            case Behaviour.ERROR_AFTER:
                return FAILED
            case _:
                return _answer(outcome, received)

    def _settle(self, number: int, answer: Answer | None, over: threading.Event) -> Handled:
        """Write the answer down before it goes out; a reset in between makes it none."""
        if answer is None or over.is_set():
            return Handled(number, None)
        self._store.answered(number, answer.status, answer.code)
        return Handled(number, answer)


def _rate_limited(switch: Switch) -> Answer:
    headers = {"Retry-After": switch.retry_after} if switch.retry_after else {}
    message = "Too many requests; try again later."
    return Answer(429, {"code": "rate_limited", "message": message}, headers)


def _answer(outcome: Outcome, received: Received) -> Answer | None:
    match outcome:
        case store_module.Applied(resource):
            return Answer(201, resource)
        case store_module.Repeated(resource):
            return Answer(201, resource, {"Idempotent-Replayed": "true"})
        case store_module.KeyReused():
            message = "This key was used before with another body."
            return Answer(422, {"code": "key_reused", "message": message})
        case store_module.StaleFence(highest):
            message = f"Fence {received.fence} is below {highest}, the highest seen for this run."
            return Answer(409, {"code": "stale_fence", "message": message, "highest": highest})
        case store_module.Declined():
            return Answer(402, _decline(loads(received.body)))
        case store_module.Forgotten():
            return None


def _decline(body: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "code": "declined",
        "decline_code": "insufficient_funds",
        "amount": body["amount"],
        "message": "The card does not have enough money.",
    }
